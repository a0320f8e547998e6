//! Programs of the real MPI libraries, which rlaunch starts as their own launchers do: Debian's
//! MPICH and Open MPI in C, and the newest ones of the Python package index by mpi4py.

use crate::running::Outcome;
use crate::support::{Field, Run, launch_directory};
use rlaunch_lab::mpi;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Compilers of Debian's libraries.
const COMPILERS: [&str; 2] = ["mpicc.mpich", "mpicc.openmpi"];

/// Program of one MPI library, whose first word names the part that it runs.
struct Program {
    library: &'static str,
    /// Words of the command line before the part.
    words: String,
    _directory: TempDir,
}

impl Program {
    /// Returns the program of each library.
    fn all() -> Vec<Program> {
        let compiled = COMPILERS.into_iter().map(Program::compiled);
        compiled.chain(mpi::NAMES.into_iter().map(Program::interpreted)).collect()
    }

    fn compiled(compiler: &'static str) -> Program {
        let directory = launch_directory();
        let program = directory.path().join("program");
        let mut command = Command::new(compiler);
        command.arg("-O1").arg("-o").arg(&program).arg(source("program.c"));
        rlaunch_lab::command::run("compile", &mut command).unwrap();
        let path = program.display();
        let words = format!("--preload {path} {path}");
        Program { library: compiler, words, _directory: directory }
    }

    fn interpreted(library: &'static str) -> Program {
        let script = source("program.py");
        let words = format!("--preload {script} {} {script}", mpi::python(library));
        Program { library, words, _directory: launch_directory() }
    }

    /// Returns the run of a part of the program with these options of rlaunch.
    fn run<'a>(&self, field: &'a Field, options: &str, part: &str) -> Run<'a> {
        let line = format!("{options} {} {part}", self.words);
        field.rlaunch(&line).within(Duration::from_secs(60))
    }

    /// Runs a part on two hosts with two ranks each.
    fn on_four(&self, field: &Field, part: &str) -> Outcome {
        self.run(field, "-H a:2,b:2 -np 4", part).run()
    }
}

fn source(name: &str) -> String {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.join("netns/mpi").join(name).display().to_string()
}

#[test]
fn programs_of_each_library_find_their_ranks() {
    let field = Field::new();
    for program in Program::all() {
        let ran = program.on_four(&field, "all 1024");
        let said = ran.succeeded().out().contains("right on 4 ranks");
        assert!(said, "{}: {ran}", program.library);
    }
}

#[test]
fn mpi_abort_ends_the_job_with_its_code() {
    let field = Field::new();
    for program in Program::all() {
        let ran = program.on_four(&field, "abort 7");
        ran.ended_with(7).says(&["rank 1 on a called MPI_Abort(7)"]);
    }
}

#[test]
fn a_rank_that_leaves_before_mpi_finalize_has_failed() {
    let field = Field::new();
    for program in Program::all() {
        let ran = program.on_four(&field, "leave");
        assert_ne!(ran.code, 0, "{}: {ran}", program.library);
        ran.says(&["rank 1 on a (pid "]);
    }
}

#[test]
fn several_programs_are_one_world() {
    let field = Field::new();
    for program in [Program::compiled(COMPILERS[0]), Program::compiled(COMPILERS[1])] {
        let path = program.words.rsplit(' ').next().unwrap();
        let line = format!("-H a:2,b:2 {} programs : -np 1 {path} programs", program.words);
        let line = line.replacen("-H a:2,b:2", "-H a:2,b:2 -np 2", 1);
        let ran = field.rlaunch(&line).run();
        let expected = ["rank 0 program 0", "rank 1 program 0", "rank 2 program 1"];
        assert_eq!(ran.succeeded().sorted(), expected, "{}: {ran}", program.library);
    }
}

#[test]
fn a_shell_starts_programs_of_either_family() {
    let field = Field::new();
    for program in [Program::compiled(COMPILERS[0]), Program::compiled(COMPILERS[1])] {
        let path = program.words.rsplit(' ').next().unwrap().to_owned();
        let script = format!("{path} all 100");
        let line = format!("-H a:2,b:2 -np 4 --preload {path} sh -c");
        let script = script.replace(&path, "$RLAUNCH_PRELOAD_DIR/program");
        let ran = field.rlaunch(&line).args([script]).run();
        assert!(ran.succeeded().out().contains("right on 4 ranks"), "{}: {ran}", program.library);
    }
}

#[test]
fn spawn_is_refused_and_the_job_goes_on() {
    let field = Field::new();
    for program in [Program::compiled(COMPILERS[0]), Program::compiled(COMPILERS[1])] {
        let ran = program.run(&field, "-H a,b -np 2", "spawn").run();
        let expected = ["rank 0 spawn refused", "rank 1 spawn refused"];
        assert_eq!(ran.succeeded().sorted(), expected, "{}: {ran}", program.library);
    }
}
