//! MPI programs without a process manager, with `--mpi none`: several ranks of them would each be
//! rank 0 of 1.
//!
//! The programs are those that Debian's MPICH and Open MPI bring; each is linked with its library
//! and ends by itself.

use crate::support::Field;

/// A program linked with MPI, its library, and the interface which that needs.
const PROGRAMS: [(&str, &str, &str); 2] =
    [("mpivars", "libmpich.so.12", "PMI"), ("ompi_info", "libmpi.so.40", "PMIx")];

#[test]
fn a_program_linked_with_mpi_is_refused_before_any_rank_starts() {
    let field = Field::new();
    for (program, library, needs) in PROGRAMS {
        let ran = field.rlaunch("-H a,b -np 2 --mpi none").args([program]).run();
        let said = [program, library, &format!("needs {needs};"), "a, b"];
        ran.refused(207, &said).hints("leave out --mpi none");
        assert_eq!(ran.out(), "", "{ran}");
    }
}

#[test]
fn one_rank_of_it_is_rank_0_of_1_and_runs() {
    let field = Field::new();
    field.rlaunch("-H a -np 1 --mpi none ompi_info --version").run().succeeded();
}

#[test]
fn it_runs_when_the_user_says_so() {
    let field = Field::new();
    for policy in ["warn", "ignore"] {
        let run = field.rlaunch("-H a,b -np 2 --mpi none --singleton").args([policy, "ompi_info"]);
        run.args(["--version"]).run().succeeded();
    }
}

/// Python and shells load MPI later than their start, so running ranks are checked again.
#[test]
fn a_library_that_is_loaded_later_is_warned_of() {
    let field = Field::new();
    let script = "import ctypes, time; ctypes.CDLL('libmpi.so.40'); time.sleep(4)";
    let line = "-H a,b -np 2 --mpi none python3 -c";
    let ran = field.rlaunch(line).args([script]).run();
    let warnings = ran.succeeded().err().matches("libmpi.so.40").count();
    assert_eq!(warnings, 1, "{ran}");
    let line = "-H a,b -np 2 --mpi none --singleton ignore python3 -c";
    field.rlaunch(line).args([script]).run().succeeded().says_nothing();
    field.rlaunch("-H a,b -np 2 python3 -c").args([script]).run().succeeded().says_nothing();
}
