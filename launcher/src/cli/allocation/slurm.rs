//! Hosts that Slurm has allocated, from the variables that `salloc` and `sbatch` set.

use super::{Allocation, text};
use rlaunch_plan::hosts::ranges::MAX_HOSTS;
use rlaunch_plan::hosts::{self, Host, HostsError, SlotsBy};
use std::ffi::OsString;

/// Variable that lists the nodes: `n[01-03],login`.
pub(super) const NODES: &str = "SLURM_JOB_NODELIST";
/// Variable that lists the nodes in Slurm 1, before it was renamed.
const OLD_NODES: &str = "SLURM_NODELIST";
/// Variable with the number of tasks on each node, in the order of the nodes: `2(x3),1`.
const TASKS: &str = "SLURM_TASKS_PER_NODE";
/// Variable with the number of tasks on every node, which Slurm sets only if the user chose that number.
const TASKS_PER_NODE: &str = "SLURM_NTASKS_PER_NODE";

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SlurmError {
    #[error("the nodes of {variable}")]
    Nodes { variable: &'static str, source: HostsError },
    #[error("{variable} is `{value}`, which is not understood")]
    Tasks { variable: &'static str, value: String },
    #[error("{TASKS} `{value}` is for {counts} nodes, and {NODES} has {nodes}")]
    Lengths { value: String, counts: usize, nodes: usize },
}

/// Reads the allocation, if there is one. A node has a slot for each task that Slurm would start there, or
/// one slot if no variable has the number of tasks.
pub(super) fn hosts(
    env: &impl Fn(&str) -> Option<OsString>,
) -> Result<Option<Allocation>, SlurmError> {
    let named = |variable| Some((variable, text(env, variable)?));
    let Some((variable, list)) = named(NODES).or_else(|| named(OLD_NODES)) else {
        return Ok(None);
    };
    let hosts = hosts::parse(&[list]);
    let mut hosts = hosts.map_err(|source| SlurmError::Nodes { variable, source })?;
    let tasks = tasks(env, hosts.len())?;
    for (host, tasks) in hosts.iter_mut().zip(tasks) {
        *host = Host { slots: tasks, slots_by: SlotsBy::Given, ..host.clone() };
    }
    let job = text(env, "SLURM_JOB_ID").map(|id| format!(" {id}")).unwrap_or_default();
    Ok(Some(Allocation { hosts, source: format!("Slurm's job{job} ({variable})") }))
}

/// Returns the number of tasks on each node, in the order of the nodes; empty if no variable has it.
fn tasks(env: &impl Fn(&str) -> Option<OsString>, nodes: usize) -> Result<Vec<u32>, SlurmError> {
    if let Some(value) = text(env, TASKS) {
        let counts = counts(&value);
        let counts =
            counts.ok_or_else(|| SlurmError::Tasks { variable: TASKS, value: value.clone() })?;
        if counts.len() != nodes {
            return Err(SlurmError::Lengths { value, counts: counts.len(), nodes });
        }
        return Ok(counts);
    }
    let Some(value) = text(env, TASKS_PER_NODE) else { return Ok(Vec::new()) };
    let each = value.parse().ok().filter(|&each: &u32| each > 0);
    let each = each.ok_or(SlurmError::Tasks { variable: TASKS_PER_NODE, value })?;
    Ok(vec![each; nodes])
}

/// Parses `2(x3),1` to 2, 2, 2, 1.
fn counts(text: &str) -> Option<Vec<u32>> {
    let mut counts = Vec::new();
    for part in text.split(',') {
        let (count, times) = match part.trim().split_once('(') {
            Some((count, times)) => {
                (count, times.strip_prefix('x')?.strip_suffix(')')?.parse::<usize>().ok()?)
            }
            None => (part.trim(), 1),
        };
        let count: u32 = count.parse().ok().filter(|&count| count > 0)?;
        if times > MAX_HOSTS - counts.len() {
            return None;
        }
        counts.extend(std::iter::repeat_n(count, times));
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(settings: &[(&str, &str)]) -> Result<Option<Vec<(String, u32)>>, SlurmError> {
        let value =
            |name: &str| settings.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
        let named = |host: &Host| (host.name.clone(), host.slots);
        Ok(hosts(&value)?.map(|allocation| allocation.hosts.iter().map(named).collect()))
    }

    fn some(hosts: &[(&str, u32)]) -> Result<Option<Vec<(String, u32)>>, SlurmError> {
        Ok(Some(hosts.iter().map(|(name, slots)| ((*name).to_owned(), *slots)).collect()))
    }

    #[test]
    fn nodes_take_the_tasks_that_slurm_would_start() {
        let nodes = (NODES, "n[01-03],login");
        let expected = [("n01", 2), ("n02", 2), ("n03", 2), ("login", 1)];
        assert_eq!(parsed(&[nodes, (TASKS, "2(x3),1")]), some(&expected));
        assert_eq!(parsed(&[(OLD_NODES, "a,b"), (TASKS, "4(x2)")]), some(&[("a", 4), ("b", 4)]));
        assert_eq!(parsed(&[(NODES, "a,b"), (TASKS_PER_NODE, "3")]), some(&[("a", 3), ("b", 3)]));
        let both = [(NODES, "a"), (TASKS, "2"), (TASKS_PER_NODE, "3")];
        assert_eq!(parsed(&both), some(&[("a", 2)]));
        // The number of CPUs on a node says nothing about tasks.
        assert_eq!(
            parsed(&[(NODES, "a,b"), ("SLURM_CPUS_ON_NODE", "64")]),
            some(&[("a", 1), ("b", 1)])
        );
        assert_eq!(parsed(&[(TASKS, "2")]), Ok(None));
    }

    #[test]
    fn it_is_said_whose_hosts_they_are() {
        let settings = [(NODES, "a"), ("SLURM_JOB_ID", "4711")];
        let value =
            |name: &str| settings.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
        let source = hosts(&value).unwrap().unwrap().source;
        assert_eq!(source, "Slurm's job 4711 (SLURM_JOB_NODELIST)");
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let error = |settings: &[(&str, &str)]| {
            rlaunch_bootstrap::error_chain(&parsed(settings).unwrap_err())
        };
        assert_eq!(
            error(&[(NODES, "n[1-")]),
            "the nodes of SLURM_JOB_NODELIST: `n[1-`: a bracket is not closed"
        );
        assert_eq!(
            error(&[(NODES, "n[1-4]"), (TASKS, "1")]),
            "SLURM_TASKS_PER_NODE `1` is for 1 nodes, and SLURM_JOB_NODELIST has 4"
        );
        for bad in ["2(y3)", "2(x3", "x", "0", "2,", "2(x99999)", "2(x18446744073709551616)"] {
            assert!(error(&[(NODES, "a"), (TASKS, bad)]).contains("not understood"), "{bad}");
        }
        assert!(error(&[(NODES, "a"), (TASKS_PER_NODE, "-1")]).contains(TASKS_PER_NODE));
    }

    proptest! {
        #[test]
        fn counts_are_read_as_they_are_written(runs in prop::collection::vec((1..300u32, 1..5usize), 1..6)) {
            let text: Vec<String> = runs
                .iter()
                .map(|(count, times)| match times {
                    1 => count.to_string(),
                    _ => format!("{count}(x{times})"),
                })
                .collect();
            let expected: Vec<u32> =
                runs.iter().flat_map(|(count, times)| vec![*count; *times]).collect();
            prop_assert_eq!(counts(&text.join(",")), Some(expected));
        }

        #[test]
        fn anything_is_counts_or_nothing(text in "[0-9x(),]{0,20}|.{0,12}") {
            prop_assert!(counts(&text).is_none_or(|counts| counts.iter().all(|&count| count > 0)));
        }
    }
}
