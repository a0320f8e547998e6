//! Finds out which process management interface the MPI library of a program needs in order to
//! start. Also finds programs whose library needs an interface that rlaunch does not serve: each
//! rank of such a program would be rank 0 of 1, and print plausible but wrong results.

use crate::cleanup::processes;
use crate::network::mpi::MpiOffer;
use crate::node::elf;
use crate::ranks::Ranks;
use nix::unistd::Pid;
use rlaunch_bootstrap::job::MpiInterfaces;
use rlaunch_bootstrap::protocol::control::{FromAgent, UnservedMpi};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Times after the start of the ranks at which running processes are checked; Python loads
/// libraries late.
const CHECK_AFTER: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];

/// Process management interface that an MPI library needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interface {
    /// PMIx in a version that rlaunch serves: Open MPI since version 3.
    Pmix,
    /// PMI-1: MPICH and its derivatives (Intel MPI, MVAPICH).
    Pmi1,
    /// An interface that rlaunch does not serve: Open MPI before version 3.
    Other,
    /// The library's name does not tell the interface.
    Unknown,
}

/// Returns the interfaces to offer to the ranks of a program. If the program is linked with an MPI
/// library that needs an interface which is not offered, returns that library as the error.
pub(crate) fn offer(wanted: MpiInterfaces, program: &Path) -> Result<MpiOffer, UnservedMpi> {
    match wanted {
        MpiInterfaces::Pmix => Ok(MpiOffer { pmix: true, pmi1: false }),
        MpiInterfaces::Pmi1 => Ok(MpiOffer { pmix: false, pmi1: true }),
        MpiInterfaces::None => match linked_library(program) {
            Some(library) => Err(unserved(library, true)),
            None => Ok(MpiOffer::default()),
        },
        MpiInterfaces::Auto => {
            let library = linked_library(program).unwrap_or_default();
            match interface(&library) {
                Interface::Pmix => Ok(MpiOffer { pmix: true, pmi1: false }),
                Interface::Pmi1 => Ok(MpiOffer { pmix: false, pmi1: true }),
                Interface::Other => Err(unserved(library, true)),
                Interface::Unknown => Ok(MpiOffer { pmix: true, pmi1: true }),
            }
        }
    }
}

/// Returns the MPI library with which a program or library is linked.
pub(crate) fn linked_library(file: &Path) -> Option<String> {
    elf::needed(file).into_iter().find(|name| is_mpi(name))
}

/// Tells whether a program runs MPI, as far as is known before it starts: it is linked with a library, or the user has
/// named an interface. Neither a script nor Python shows what it will load.
pub(crate) fn is_mpi_program(wanted: MpiInterfaces, program: &Path) -> bool {
    matches!(wanted, MpiInterfaces::Pmix | MpiInterfaces::Pmi1) || linked_library(program).is_some()
}

/// Returns the process management interface that an MPI library needs, if rlaunch does not serve it.
pub(crate) fn unserved_interface(library: &str) -> Option<String> {
    let is_other = interface(library) == Interface::Other;
    is_other.then(|| unserved(library.to_owned(), true).needs)
}

/// Returns the first process of the job that has loaded an MPI library which needs an interface
/// that is not served. `is_served` tells whether ranks are offered any interface.
pub(crate) fn find_unserved(is_served: bool) -> Option<(Pid, UnservedMpi)> {
    processes::descendants(&[]).into_iter().find_map(|pid| {
        let library = loaded_mpi(pid)?;
        if is_served && interface(&library) != Interface::Other {
            return None;
        }
        let executable = format!("/proc/{pid}/exe");
        let is_linked = elf::needed(Path::new(&executable)).iter().any(|name| is_mpi(name));
        Some((pid, unserved(library, is_linked)))
    })
}

/// Describes a library whose interface is not served. `linked` tells whether the program is linked with it; otherwise it
/// has loaded it.
fn unserved(library: String, linked: bool) -> UnservedMpi {
    let needs = match interface(&library) {
        Interface::Pmix => "PMIx",
        Interface::Pmi1 => "PMI",
        Interface::Other => "PMIx of a version before 3",
        Interface::Unknown => "a process manager",
    };
    UnservedMpi { library, needs: needs.to_owned(), linked }
}

fn loaded_mpi(pid: Pid) -> Option<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let mut names = maps.lines().filter_map(|line| line.rsplit_once('/').map(|(_, name)| name));
    names.find(|name| is_mpi(name)).map(str::to_owned)
}

fn is_mpi(library: &str) -> bool {
    library.starts_with("libmpi.so") || library.starts_with("libmpich.so")
}

/// Returns the interface that a library needs, by its name. The number of Open MPI's `libmpi.so` is
/// 0 or 1 in versions 1.x, 20 in 2.x, and 40 since 3.0; MPICH and its derivatives have 12.
fn interface(library: &str) -> Interface {
    if library.starts_with("libmpich.so") {
        return Interface::Pmi1;
    }
    let number = library.strip_prefix("libmpi.so.").and_then(|rest| rest.split('.').next());
    match number {
        Some("40") => Interface::Pmix,
        Some("12") => Interface::Pmi1,
        Some("0" | "1" | "20") => Interface::Other,
        _ => Interface::Unknown,
    }
}

impl Ranks {
    /// Reports the first process that has loaded an MPI library but is not offered the interface
    /// that the library needs. Such a process takes itself for the only rank.
    pub(super) fn check_for_mpi(&mut self, now: Instant) {
        if self.mpi_checks.last().is_none_or(|&due| due > now) {
            return;
        }
        self.mpi_checks.pop();
        if let Some((pid, what)) = find_unserved(self.serves_mpi) {
            self.mpi_checks.clear();
            self.to_launcher
                .send(&FromAgent::UnservedMpi { pid: pid.as_raw().cast_unsigned(), what });
        }
    }
}

/// Returns the times of the checks for MPI, latest first. Returns no times unless `wanted` is set.
pub(super) fn check_times(wanted: bool) -> Vec<Instant> {
    if !wanted {
        return Vec::new();
    }
    let now = Instant::now();
    CHECK_AFTER.iter().rev().map(|&after| now + after).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_known_by_name() {
        assert!(is_mpi("libmpi.so.40.30.4") && is_mpi("libmpich.so.12") && is_mpi("libmpi.so.12"));
        assert!(!is_mpi("libmpifort.so.12") && !is_mpi("libc.so.6"));
        assert_eq!(interface("libmpi.so.40.30.4"), Interface::Pmix);
        assert_eq!(interface("libmpich.so.12.2.2"), Interface::Pmi1);
        assert_eq!(interface("libmpi.so.12"), Interface::Pmi1);
        assert_eq!(interface("libmpi.so.20.10.1"), Interface::Other);
        assert_eq!(interface("libmpi.so"), Interface::Unknown);
        let old = unserved_interface("libmpi.so.20.10.1");
        assert_eq!(old.as_deref(), Some("PMIx of a version before 3"));
        assert_eq!(unserved_interface("libmpi.so.40.30.4"), None);
    }

    #[test]
    fn a_shell_is_offered_what_its_children_may_need() {
        let shell = Path::new("/bin/sh");
        assert_eq!(offer(MpiInterfaces::Auto, shell), Ok(MpiOffer { pmix: true, pmi1: true }));
        assert_eq!(offer(MpiInterfaces::Pmi1, shell), Ok(MpiOffer { pmix: false, pmi1: true }));
        assert_eq!(offer(MpiInterfaces::None, shell), Ok(MpiOffer::default()));
        assert!(!is_mpi_program(MpiInterfaces::Auto, shell));
        assert!(is_mpi_program(MpiInterfaces::Pmix, shell));
    }
}
