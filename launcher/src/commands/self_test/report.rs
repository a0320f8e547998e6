//! Lines of `rlaunch self-test`.

use rlaunch_bootstrap::bench::BenchMatrix;
use rlaunch_engine::run::job_run::StartFacts;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::collections::BTreeMap;

/// Result for one part.
pub(super) enum PartVerdict {
    Works(String),
    /// The hosts do not have it, for this reason.
    None(String),
    Failed(Failed),
}

/// Formats the line of a part.
pub(super) fn line(name: &str, verdict: &PartVerdict) -> String {
    let (state, text) = match verdict {
        PartVerdict::Works(text) => ("ok", text),
        PartVerdict::None(why) => ("none", why),
        PartVerdict::Failed(failed) => ("FAILED", &failed.message),
    };
    format!("{name:<14} {state:<7} {text}\n")
}

/// Lines that ranks have printed about their hosts, by subject. An entry has the rank and the text.
#[derive(Default)]
pub(super) struct ProbeOutput(BTreeMap<String, Vec<(usize, String)>>);

impl ProbeOutput {
    /// Adds a line `RANK SUBJECT TEXT`. Other lines, as a host's own startup files print them, are ignored.
    pub(super) fn add(&mut self, line: &str) {
        let mut words = line.trim_end().splitn(3, ' ');
        let (rank, subject) = (words.next().and_then(|rank| rank.parse().ok()), words.next());
        if let (Some(rank), Some(subject)) = (rank, subject) {
            let text = words.next().unwrap_or_default().to_owned();
            self.0.entry(subject.to_owned()).or_default().push((rank, text));
        }
    }

    /// Formats the texts about a subject, each with the hosts for which it holds; `None` if there are none.
    fn describe(&self, facts: &StartFacts, subject: &str) -> Option<String> {
        let mut hosts_by_text: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (rank, text) in self.0.get(subject)? {
            let node = facts.table.ranks().get(*rank).map(|row| row.node.index());
            let host = node.and_then(|node| facts.table.nodes().get(node));
            hosts_by_text.entry(text).or_default().extend(host.map(|host| &*host.host));
        }
        let texts = hosts_by_text.iter().map(|(text, hosts)| {
            let hosts = text::list(hosts);
            if text.is_empty() { format!("on {hosts}") } else { format!("{text} on {hosts}") }
        });
        Some(texts.collect::<Vec<_>>().join("; "))
    }
}

/// Describes the hosts and the tree of agents. Both work if there are facts.
pub(super) fn hosts(facts: &StartFacts) -> Vec<(&'static str, PartVerdict)> {
    let nodes = facts.table.nodes();
    let named: Vec<String> =
        nodes.iter().map(|node| format!("{} ({})", node.host, node.arch)).collect();
    let addresses: Vec<String> = nodes.iter().map(|node| node.address.to_string()).collect();
    let cpus: Vec<String> = facts
        .inventories
        .iter()
        .zip(nodes)
        .map(|(inventory, node)| {
            let gpus = match inventory.gpus.len() {
                0 => String::new(),
                count => format!(", {}", text::count(count, "GPU")),
            };
            format!("{}: {} CPUs{gpus}", node.host, inventory.cpus.online.len())
        })
        .collect();
    vec![
        ("hosts", PartVerdict::Works(text::list(&named))),
        ("agents", PartVerdict::Works(format!("joined at {}", text::list(&addresses)))),
        ("inventory", PartVerdict::Works(text::list(&cpus))),
    ]
}

/// Describes bandwidth and latency of the worst pair of hosts.
pub(super) fn between(matrix: &BenchMatrix) -> String {
    let pairs = |table: &[Vec<f64>]| {
        let cells = table.iter().enumerate().flat_map(|(a, row)| {
            row.iter().enumerate().filter(move |(b, _)| a != *b).map(|(_, value)| *value)
        });
        cells.collect::<Vec<f64>>()
    };
    let slowest = pairs(&matrix.megabits).into_iter().fold(f64::INFINITY, f64::min);
    let longest = pairs(&matrix.latency_us).into_iter().fold(0.0, f64::max);
    format!("{:.1} Gb/s and {longest:.1} us between the slowest two", slowest / 1000.0)
}

/// Describes Python and the MPI libraries of the hosts.
pub(super) fn software(
    facts: &StartFacts,
    found: &ProbeOutput,
) -> Vec<(&'static str, PartVerdict)> {
    let python = match (found.describe(facts, "python-failed"), found.describe(facts, "python")) {
        (Some(failed), _) => {
            let message = format!("`import rlaunch` does not work: {failed}");
            PartVerdict::Failed(Failed::new(rlaunch_text::exit::Exit::FILES, message))
        }
        (None, Some(works)) => PartVerdict::Works(format!("`import rlaunch` with {works}")),
        (None, None) => PartVerdict::None("no python3".to_owned()),
    };
    let mpi = match found.describe(facts, "mpi") {
        Some(libraries) => PartVerdict::Works(format!("{libraries} (programs start unchanged)")),
        None => PartVerdict::None("no Open MPI or MPICH in the system's libraries".to_owned()),
    };
    vec![("Python", python), ("MPI", mpi)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_text::exit::Exit;

    #[test]
    fn a_line_has_the_state_of_a_part() {
        let works = line("TCP", &PartVerdict::Works("9.1 Gb/s".into()));
        assert_eq!(works, "TCP            ok      9.1 Gb/s\n");
        let failed = PartVerdict::Failed(Failed::new(Exit::HOST, "no answer"));
        assert_eq!(line("shared memory", &failed), "shared memory  FAILED  no answer\n");
    }

    #[test]
    fn lines_of_ranks_are_told_from_others() {
        let mut found = ProbeOutput::default();
        found.add("Welcome to this host\n");
        found.add("1 python 3.11.2\n");
        found.add("0 python-none\n");
        assert_eq!(found.0["python"], [(1, "3.11.2".to_owned())]);
        assert_eq!(found.0["python-none"], [(0, String::new())]);
        assert_eq!(found.0.len(), 2);
    }

    #[test]
    fn the_slowest_pair_is_described() {
        let matrix = BenchMatrix {
            bytes: 1 << 20,
            megabits: vec![vec![0.0, 9000.0], vec![8400.0, 0.0]],
            latency_us: vec![vec![0.0, 12.0], vec![15.5, 0.0]],
            at_once: vec![],
        };
        assert_eq!(between(&matrix), "8.4 Gb/s and 15.5 us between the slowest two");
    }
}
