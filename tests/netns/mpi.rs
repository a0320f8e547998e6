//! MPI programs with the libraries that people use: their results, and the ways in which they end.
//!
//! The tests here are functions of the libraries; `debian` and `wheels` call them. `stand_in` is for
//! tests of programs that use MPI.

mod debian;
pub(crate) mod stand_in;
mod wheels;

use crate::support::{Field, Run};
use rlaunch_lab::mpi::MpiLibrary;
use std::path::Path;
use std::time::Duration;

/// Hosts of the ranks.
const HOSTS: [&str; 2] = ["a", "b"];
/// Directory of the programs on hosts.
const DIRECTORY: &str = "/tmp/mpi";
/// Time limit of a job on two busy cores. Ranks of MPI libraries wait actively.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// MPI program on hosts a and b.
struct Program<'a> {
    field: &'a Field,
    library: &'a MpiLibrary,
    /// Words that start it.
    words: Vec<String>,
}

impl<'a> Program<'a> {
    /// Prepares a job of two ranks on each host, with options and then the words that select a part
    /// of the program.
    fn run(&self, options: &str, part: &str) -> Run<'a> {
        let run = self.field.rlaunch("-H a:2,b:2").args(options.split_whitespace());
        run.args(&self.words).args(part.split_whitespace()).within(PATIENCE)
    }

    /// Returns what rank 0 prints if everything was right.
    fn right(&self) -> String {
        format!("right on 4 ranks, one-sided among {}\n", self.library.one_sided)
    }
}

/// Calls `test` with the program of each library. A job must leave nothing in shared memory.
fn for_each(libraries: &[MpiLibrary], test: impl Fn(&Program<'_>)) {
    let field = Field::new();
    let _programs = field.scratch(&HOSTS, DIRECTORY);
    let shared_memory = || HOSTS.map(|host| field.on(host, "ls /dev/shm"));
    for library in libraries {
        // Is shown if the test fails.
        println!("with {}:", library.name);
        let (path, contents) = (format!("{DIRECTORY}/program"), library.program().unwrap());
        for host in HOSTS {
            field.lab.write_file(host, Path::new(&path), &contents, 0o755).unwrap();
        }
        let before = shared_memory();
        test(&Program { field: &field, library, words: library.words(&path) });
        assert_eq!(shared_memory(), before, "{} has left it in /dev/shm", library.name);
    }
}

/// Communicators, collectives and one-sided communication give the right results.
fn results_are_right(libraries: &[MpiLibrary]) {
    for_each(libraries, |program| {
        let ran = program.run("", "all 65536").run();
        assert_eq!(ran.succeeded().out(), program.right(), "{ran}");
        ran.keeps_quiet_about(&["rlaunch"]);
    });
}

fn mpi_abort_ends_the_job_with_its_code(libraries: &[MpiLibrary]) {
    for_each(libraries, |program| {
        let ran = program.run("", "abort 7").run();
        ran.ended_with(7)
            .says(&["error: rank 1 on a called MPI_Abort(7)\n", "all processes ended on"]);
    });
}

/// Ranks that lose the connection to it call `MPI_Abort`, which must not hide the cause.
fn a_rank_that_leaves_before_mpi_finalize_is_named(libraries: &[MpiLibrary]) {
    for_each(libraries, |program| {
        let ran = program.run("", "leave").run();
        let said = ["error: rank 1 on a (pid ", ") exited without MPI_Finalize\n"];
        ran.ended_with(1).says(&said);
    });
}

fn a_rank_that_is_killed_in_a_collective_is_named(libraries: &[MpiLibrary]) {
    for_each(libraries, |program| {
        let mut running = program.run("", "wait").spawn();
        running.wait_for_text(" waits in process ", 4);
        let out = running.out();
        let process = out.lines().find_map(|line| line.strip_prefix("rank 1 waits in process "));
        program.field.on("a", &format!("kill -9 {}", process.unwrap()));
        let ran = running.finish();
        let said = ["error: rank 1 on a (pid ", ") was killed by signal 9 (SIGKILL)\n"];
        ran.ended_with(137).says(&said);
    });
}

/// Programs of one job are one `MPI_COMM_WORLD` and know their numbers. None can start another.
fn several_programs_are_one_world_that_does_not_grow(libraries: &[MpiLibrary]) {
    for_each(libraries, |program| {
        let run = program.field.rlaunch("-H a:2 -np 2").args(&program.words);
        let run = run.args(["programs", ":", "-H", "b:2", "-np", "2"]).args(&program.words);
        let ran = run.args(["programs"]).within(PATIENCE).run();
        let expected = [0, 1, 2, 3]
            .map(|rank: u32| format!("rank {rank} of program {} spawned none", rank / 2));
        assert_eq!(ran.succeeded().sorted(), expected, "{ran}");
    });
}
