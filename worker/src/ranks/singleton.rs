//! Detection of MPI programs. rlaunch is not an MPI launcher, so each rank of such a program would
//! be rank 0 of 1, and print plausible but wrong results.

use crate::cleanup::processes;
use crate::node::elf;
use nix::unistd::Pid;
use rlaunch_bootstrap::protocol::control::UnservedMpi;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Times after the start of ranks at which they are checked; Python programs load libraries late.
pub(crate) const CHECK_AFTER: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];

/// Returns the MPI library that a program is linked with, if any.
pub(crate) fn linked_mpi(program: &Path) -> Option<UnservedMpi> {
    let library = elf::needed(program).into_iter().find(|name| is_mpi(name))?;
    Some(UnservedMpi { needs: needed_server(&library), library, linked: true })
}

/// Returns the first process of the job that has loaded an MPI library.
pub(crate) fn find_in_processes() -> Option<(Pid, UnservedMpi)> {
    processes::descendants(None).into_iter().find_map(|pid| Some((pid, loaded_mpi(pid)?)))
}

fn loaded_mpi(pid: Pid) -> Option<UnservedMpi> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let mut names = maps.lines().filter_map(|line| line.rsplit_once('/').map(|(_, name)| name));
    let library = names.find(|name| is_mpi(name))?.to_owned();
    let linked = linked_mpi(Path::new(&format!("/proc/{pid}/exe"))).is_some();
    Some(UnservedMpi { needs: needed_server(&library), library, linked })
}

fn is_mpi(library: &str) -> bool {
    library.starts_with("libmpi.so") || library.starts_with("libmpich.so")
}

/// Returns the kind of server that the MPI library needs. Open MPI's library is `libmpi.so.40`
/// since version 3, and `libmpi.so.20` before; MPICH and its derivatives (Intel MPI, MVAPICH) have
/// `libmpi.so.12`.
fn needed_server(library: &str) -> String {
    let open_mpi = [".40", ".20"].iter().any(|version| library.contains(&format!(".so{version}")));
    if open_mpi { "PMIx" } else { "PMI" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mpi_libraries_are_known_by_name() {
        assert!(is_mpi("libmpi.so.40.30.4") && is_mpi("libmpich.so.12") && is_mpi("libmpi.so.12"));
        assert!(!is_mpi("libmpifort.so.12") && !is_mpi("libc.so.6"));
        assert_eq!(needed_server("libmpi.so.40.30.4"), "PMIx");
        assert_eq!(needed_server("libmpich.so.12.2.2"), "PMI");
        assert_eq!(needed_server("libmpi.so.12"), "PMI");
    }

    #[test]
    fn a_shell_is_no_mpi_program() {
        assert!(linked_mpi(Path::new("/bin/sh")).is_none());
    }
}
