//! Hosts that PBS or Torque has allocated, in a file with a line for each rank or for each node.

use super::{Allocation, text};
use rlaunch_plan::hosts::hostfile::{self, HostfileError};
use rlaunch_plan::hosts::{Host, SlotsBy};
use std::ffi::OsString;
use std::path::Path;

/// Variable that names the file with the allocated hosts.
pub(super) const FILE: &str = "PBS_NODEFILE";
/// Variable of Torque with the number of allocated CPUs on each node, for files with a line for each node.
const CPUS_PER_NODE: &str = "PBS_NUM_PPN";

#[derive(Debug, thiserror::Error)]
pub(crate) enum PbsError {
    #[error("the hosts of {FILE}")]
    File(#[source] HostfileError),
    #[error("{CPUS_PER_NODE} is `{0}`, which is not a number of ranks")]
    CpusPerNode(String),
}

/// Reads the allocation, if there is one. A host has a slot for each of its lines. If every host has only one
/// line, each has the number of slots in Torque's variable, or one slot without that variable.
pub(super) fn hosts(
    env: &impl Fn(&str) -> Option<OsString>,
) -> Result<Option<Allocation>, PbsError> {
    let Some(file) = env(FILE).filter(|file| !file.is_empty() && text(env, FILE).is_some()) else {
        return Ok(None);
    };
    let path = Path::new(&file);
    let hosts = hostfile::read(path).map_err(PbsError::File)?;
    let once = hosts.iter().all(|host| host.slots_by == SlotsBy::Open);
    let each = match text(env, CPUS_PER_NODE).filter(|_| once) {
        Some(each) => {
            let number = each.parse().ok().filter(|&each: &u32| each > 0);
            number.ok_or(PbsError::CpusPerNode(each))?
        }
        None => 1,
    };
    let with_slots = |host: Host| Host {
        slots: if host.slots_by == SlotsBy::Open { each } else { host.slots },
        slots_by: SlotsBy::Given,
        ..host
    };
    let hosts = hosts.into_iter().map(with_slots).collect();
    Ok(Some(Allocation { hosts, source: format!("{} ({FILE})", path.display()) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str, each: Option<&str>) -> Result<Option<Vec<(String, u32)>>, PbsError> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("nodes");
        std::fs::write(&file, text).unwrap();
        let value = |name: &str| match name {
            FILE => Some(file.clone().into_os_string()),
            CPUS_PER_NODE => each.map(OsString::from),
            _ => None,
        };
        let named = |host: &Host| (host.name.clone(), host.slots);
        Ok(hosts(&value)?.map(|allocation| allocation.hosts.iter().map(named).collect()))
    }

    #[test]
    fn a_line_is_a_slot() {
        let expect = |text: &str, each, wanted: &[(&str, u32)]| {
            let found = parsed(text, each).unwrap().unwrap();
            let found: Vec<_> = found.iter().map(|(n, s)| (n.as_str(), *s)).collect();
            assert_eq!(found, wanted, "{text}");
        };
        expect("a\na\nb\n", None, &[("a", 2), ("b", 1)]);
        // Each host has a line for each of its slots, so Torque's number has no effect.
        expect("a\na\nb\nb\n", Some("2"), &[("a", 2), ("b", 2)]);
        expect("a\nb\n", Some("4"), &[("a", 4), ("b", 4)]);
        expect("a\nb\n", None, &[("a", 1), ("b", 1)]);
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let error =
            |text: &str, each| rlaunch_bootstrap::error_chain(&parsed(text, each).unwrap_err());
        assert!(error("a\nb c\n", None).ends_with("nodes:2: `c` is not understood"));
        assert!(error("", None).starts_with("the hosts of PBS_NODEFILE: "));
        assert_eq!(
            error("a\n", Some("many")),
            "PBS_NUM_PPN is `many`, which is not a number of ranks"
        );
        assert_eq!(hosts(&|_| None).unwrap(), None);
    }
}
