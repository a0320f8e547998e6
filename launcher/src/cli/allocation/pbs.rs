//! Hosts that PBS or Torque has allocated: a file with a line for each rank, or for each node.

use super::{Allocation, text};
use crate::hosts::hostfile::{self, HostfileError};
use crate::hosts::{Host, SlotsBy};
use std::ffi::OsString;
use std::path::Path;

/// Names that file.
pub(super) const FILE: &str = "PBS_NODEFILE";
/// How many processors of each node Torque has allocated, for files with a line for each node.
const EACH: &str = "PBS_NUM_PPN";

/// An allocation that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PbsError {
    #[error("the hosts of {FILE}")]
    File(#[source] HostfileError),
    #[error("{EACH} is `{0}`, which is no number of ranks")]
    Each(String),
}

/// The allocation that these variables speak of. A host has a slot for each of its lines; where
/// none has two, as many as Torque says.
pub(super) fn hosts(
    env: &impl Fn(&str) -> Option<OsString>,
) -> Result<Option<Allocation>, PbsError> {
    let Some(file) = env(FILE).filter(|file| !file.is_empty() && text(env, FILE).is_some()) else {
        return Ok(None);
    };
    let path = Path::new(&file);
    let hosts = hostfile::read(path).map_err(PbsError::File)?;
    let once = hosts.iter().all(|host| host.slots_by == SlotsBy::Open);
    let each = match text(env, EACH).filter(|_| once) {
        Some(each) => {
            let number = each.parse().ok().filter(|&each: &u32| each > 0);
            number.ok_or(PbsError::Each(each))?
        }
        None => 1,
    };
    let settle = |host: Host| Host {
        slots: if host.slots_by == SlotsBy::Open { each } else { host.slots },
        slots_by: SlotsBy::Given,
        ..host
    };
    let hosts = hosts.into_iter().map(settle).collect();
    Ok(Some(Allocation { hosts, source: format!("{} ({FILE})", path.display()) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, each: Option<&str>) -> Result<Option<Vec<(String, u32)>>, PbsError> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("nodes");
        std::fs::write(&file, text).unwrap();
        let value = |name: &str| match name {
            FILE => Some(file.clone().into_os_string()),
            EACH => each.map(OsString::from),
            _ => None,
        };
        let named = |host: &Host| (host.name.clone(), host.slots);
        Ok(hosts(&value)?.map(|allocation| allocation.hosts.iter().map(named).collect()))
    }

    #[test]
    fn a_line_is_a_slot() {
        let expect = |text: &str, each, wanted: &[(&str, u32)]| {
            let found = of(text, each).unwrap().unwrap();
            let found: Vec<_> = found.iter().map(|(n, s)| (n.as_str(), *s)).collect();
            assert_eq!(found, wanted, "{text}");
        };
        expect("a\na\nb\n", None, &[("a", 2), ("b", 1)]);
        // Torque's number is in the lines already.
        expect("a\na\nb\nb\n", Some("2"), &[("a", 2), ("b", 2)]);
        expect("a\nb\n", Some("4"), &[("a", 4), ("b", 4)]);
        expect("a\nb\n", None, &[("a", 1), ("b", 1)]);
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let said = |text: &str, each| rlaunch_bootstrap::error_chain(&of(text, each).unwrap_err());
        assert!(said("a\nb c\n", None).ends_with("nodes:2: `c` is not understood"));
        assert!(said("", None).starts_with("the hosts of PBS_NODEFILE: "));
        assert_eq!(said("a\n", Some("many")), "PBS_NUM_PPN is `many`, which is no number of ranks");
        assert_eq!(hosts(&|_| None).unwrap(), None);
    }
}
