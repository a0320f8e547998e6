//! Programs linked with MPI libraries, which rlaunch does not serve: each of several ranks would be
//! rank 0 of 1.
//!
//! The programs come with Debian's MPICH and Open MPI. Each is linked with its library and ends
//! immediately, so where a rank must be seen while it runs, a script loads the library and waits.

use crate::support::Field;

/// Programs linked with MPI, their libraries, and the interface that each library needs.
const PROGRAMS: [(&str, &str, &str); 2] =
    [("mpivars", "libmpich.so.12", "PMI"), ("ompi_info", "libmpi.so.40", "PMIx")];

#[test]
fn a_program_linked_with_mpi_is_refused_before_any_rank_starts() {
    let field = Field::new();
    for (program, library, needs) in PROGRAMS {
        let ran = field.rlaunch("-H a,b -np 2").args([program]).run();
        ran.refused(207, &[program, library, &format!("needs {needs};"), "a, b", "hint: "]);
        assert_eq!(ran.out(), "", "{ran}");
    }
}

#[test]
fn one_rank_of_it_is_rank_0_of_1_and_runs() {
    let field = Field::new();
    field.rlaunch("-H a -np 1 ompi_info --version").run().succeeded();
}

#[test]
fn it_runs_when_the_user_says_so() {
    let field = Field::new();
    for policy in ["warn", "ignore"] {
        let run = field.rlaunch("-H a,b -np 2 --singleton").args([policy, "ompi_info"]);
        run.args(["--version"]).run().succeeded();
    }
}

/// Python and shells load MPI later than their start, so running ranks are looked at again.
#[test]
fn a_library_that_is_loaded_later_is_warned_of() {
    let field = Field::new();
    let script = "import ctypes, time; ctypes.CDLL('libmpi.so.40'); time.sleep(4)";
    let ran = field.rlaunch("-H a,b -np 2 python3 -c").args([script]).run();
    let warnings = ran.succeeded().err().matches("libmpi.so.40").count();
    assert_eq!(warnings, 1, "{ran}");
    let ran = field.rlaunch("-H a,b -np 2 --singleton ignore python3 -c").args([script]).run();
    ran.succeeded().says_nothing();
}
