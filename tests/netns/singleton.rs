//! Programs linked with MPI libraries that are not served: with `--mpi none`, and Open MPI before
//! version 3. Each of several ranks would be rank 0 of 1.
//!
//! The programs come with Debian's MPICH and Open MPI. Each is linked with its library and ends
//! immediately, so where a rank must be seen while it runs, a script loads the library and waits.

use crate::support::Field;
use nix::sys::signal::Signal;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Programs linked with MPI, their libraries, and the interface that each library needs.
const PROGRAMS: [(&str, &str, &str); 2] =
    [("mpivars", "libmpich.so.12", "PMI"), ("ompi_info", "libmpi.so.40", "PMIx")];

#[test]
fn a_program_linked_with_mpi_is_refused_before_any_rank_starts() {
    let field = Field::new();
    for (program, library, needs) in PROGRAMS {
        let ran = field.rlaunch("--mpi none -H a,b -np 2").args([program]).run();
        ran.refused(207, &[program, library, &format!("needs {needs};"), "a, b"]);
        ran.hints("leave out --mpi none");
    }
}

#[test]
fn one_rank_of_it_is_rank_0_of_1_and_runs() {
    let field = Field::new();
    field.rlaunch("--mpi none -H a -np 1 ompi_info --version").run().succeeded();
}

#[test]
fn it_runs_when_the_user_says_so() {
    let field = Field::new();
    for policy in ["warn", "ignore"] {
        let run = field.rlaunch("--mpi none -H a,b -np 2 --singleton").args([policy, "ompi_info"]);
        run.args(["--version"]).run().succeeded();
    }
}

/// Python and shells load MPI later than their start, so running ranks are looked at again.
#[test]
fn a_library_that_is_loaded_later_is_warned_of() {
    let field = Field::new();
    let run = |options: &str, seconds: u32| {
        let script =
            format!("import ctypes, time; ctypes.CDLL('libmpi.so.40'); time.sleep({seconds})");
        let run = field.rlaunch("-H a,b -np 2").args(options.split_whitespace());
        run.args(["python3", "-c", &script]).spawn()
    };
    let mut running = run("--mpi none", 1000);
    running.wait_for_stderr("libmpi.so.40", 1);
    // The other rank is looked into as well.
    std::thread::sleep(Duration::from_secs(2));
    running.signal(Signal::SIGTERM);
    let ran = running.finish();
    let warnings = ran.ended_with(143).err().matches("libmpi.so.40").count();
    assert_eq!(warnings, 1, "{ran}");
    run("--mpi none --singleton ignore", 3).finish().succeeded().says_nothing();
    run("", 3).finish().succeeded().says_nothing();
}

/// Compiles a program that is linked with a library of this name.
fn linked_with(library: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let compile = |words: &[&str], text: &str| {
        fs::write(path("source.c"), text).unwrap();
        let mut cc = Command::new("cc");
        let done = cc.current_dir(&directory).args(words).arg("source.c").args(["-L.", "-o"]);
        let out = if words.is_empty() { "program" } else { library };
        let done = done.arg(out).args(words.is_empty().then(|| format!("./{library}")));
        let output = done.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let name = format!("-Wl,-soname,{library}");
    compile(&["-shared", "-fPIC", &name], "int MPI_Init(void) { return 0; }\n");
    compile(&[], "int MPI_Init(void); int main(void) { return MPI_Init(); }\n");
    fs::read(path("program")).unwrap()
}

#[test]
fn versions_of_open_mpi_that_need_more_than_is_served_are_refused() {
    let field = Field::new();
    let _scratch = field.scratch(&["a", "b"], "/tmp/mpi");
    for library in ["libmpi.so.1", "libmpi.so.20"] {
        let program = linked_with(library);
        for host in ["a", "b"] {
            field.lab.write_file(host, Path::new("/tmp/mpi/old"), &program, 0o755).unwrap();
        }
        let ran = field.rlaunch("-H a,b -np 2 /tmp/mpi/old").run();
        ran.refused(207, &["/tmp/mpi/old", library, "needs PMIx of a version before 3;"]);
        ran.hints("start it with its own mpirun");
    }
}
