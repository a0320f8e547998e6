//! `rlaunch doctor --try`, once `self-test`: tries what jobs use, and says in a line each what works.
//! `self_test/probe.sh` finds what each host has: Python, MPI libraries.

use super::bench::records::{self, LineReader};
use super::bench::{measuring_job, measuring_program};
use crate::cli::args::MeasurementArgs;
use crate::cli::command_line::CommandLine;
use crate::cli::lower::MeasurementJob;
use clap::Parser;
use rlaunch_bootstrap::bench::{BenchMatrix, BenchRecord};
use rlaunch_console::{messages, stdout};
use rlaunch_engine::run::job_run::StartFacts;
use rlaunch_plan::options::Transport;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::shell::quoted;
use rlaunch_text::{printable, style, text};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Verb after which the jobs are named.
const VERB: &str = "doctor";
/// Script that a rank on each host runs.
const PROBE: &str = include_str!("self_test/probe.sh");
/// Size of messages between hosts in bytes, and the time for each direction of each pair in milliseconds.
const SIZE: &str = "1048576";
const MILLIS: &str = "30";
/// Time limit of each job, and additional time for each pair of hosts.
const JOB_TIMEOUT: Duration = Duration::from_secs(60);
const PAIR_TIMEOUT: Duration = Duration::from_millis(200);

/// Try what jobs use: SSH, the tree of agents, shared memory, TCP, RDMA, Python, MPI.
///
/// The older form of `rlaunch doctor --try`. Small jobs run on the hosts, with rlaunch's own programs.
#[derive(Debug, Parser)]
pub(crate) struct SelfTestArgs {
    #[command(flatten)]
    pub(crate) measurement: MeasurementArgs,
}

/// Runs the jobs one after the other, and prints a line for each part as soon as it is known, then a verdict with the
/// next step. Fails with the first part that does not work.
pub(super) async fn run(args: SelfTestArgs, line: &CommandLine) -> Result<Exit, Failed> {
    // Lines about each of the jobs would hide those of the report.
    let _quiet = messages::quiet();
    let typed = hosts_option(&args.measurement.hosts);
    let test = SelfTest { args: args.measurement, line };
    let (facts, found) = test.probe().await?;
    let (mut failed, mut broken) = (None, Vec::new());
    let mut show = |name: &str, verdict: PartVerdict| {
        stdout::print_styled(&part_line(name, &verdict));
        if let PartVerdict::Failed(cause) = verdict {
            broken.push(name.to_owned());
            failed.get_or_insert(cause);
        }
    };
    for (name, verdict) in hosts(&facts) {
        show(name, verdict);
    }
    show("shared memory", test.within_a_host(&facts).await);
    show("TCP", test.between_hosts(&facts, Transport::Tcp).await);
    show("RDMA", test.rdma(&facts).await);
    for (name, verdict) in software(&facts, &found) {
        show(name, verdict);
    }
    stdout::print(&verdict_line(&broken, &typed));
    match failed {
        None => Ok(Exit::SUCCESS),
        Some(failed) => Err(failed.hint(Some(format!("look for causes: rlaunch doctor{typed}")))),
    }
}

/// Returns the option for these hosts with a blank before it, for command lines to type; nothing for this machine.
fn hosts_option(hosts: &[String]) -> String {
    let list = hosts.join(",");
    if list.is_empty() { list } else { format!(" -H {}", quoted(OsStr::new(&list))) }
}

/// Formats the verdict on all parts, of which `broken` do not work. `typed` is the option for the hosts.
fn verdict_line(broken: &[String], typed: &str) -> String {
    match broken {
        [] => format!("jobs can run; the next step: rlaunch{typed} PROGRAM\n"),
        broken => format!("jobs cannot use what has FAILED: {}\n", broken.join(", ")),
    }
}

/// Hosts and options of all jobs.
struct SelfTest<'a> {
    args: MeasurementArgs,
    line: &'a CommandLine,
}

impl SelfTest<'_> {
    /// Runs the script on each host. If that fails, nothing else can work.
    async fn probe(&self) -> Result<(StartFacts, ProbeOutput), Failed> {
        let argv = ["sh", "-c", PROBE].map(OsString::from).to_vec();
        let job = MeasurementJob {
            timeout: Some(JOB_TIMEOUT),
            ..MeasurementJob::new(VERB, self.args.clone(), argv).with_one_rank_on_each_host()
        };
        let launch = job.launch(&self.line.config)?;
        let ended = records::run_lines(launch, ProbeOutput::default()).await?;
        match (ended.ended, ended.facts) {
            (Err(failed), _) => Err(failed),
            (Ok(_), facts) => match Arc::into_inner(facts).and_then(OnceLock::into_inner) {
                Some(facts) => Ok((facts, ended.reader)),
                None => Err(Failed::new(Exit::BUG, "the job has left no facts about its hosts")),
            },
        }
    }

    /// Measures between two ranks on the first host.
    async fn within_a_host(&self, facts: &StartFacts) -> PartVerdict {
        let Some(host) = facts.table.nodes().first().map(|node| node.host.clone()) else {
            return PartVerdict::None("no host".to_owned());
        };
        let words = ["lat", "8", "u8", "sum", "20"].map(str::to_owned).to_vec();
        let args = MeasurementArgs { oversubscribe: true, ..self.args.clone() };
        let records = match self.measure(args, Some(2), words, JOB_TIMEOUT).await {
            Ok(records) => records,
            Err(failed) => return PartVerdict::Failed(failed),
        };
        let latency = records.iter().find_map(|record| match record {
            BenchRecord::Row(row) => Some(row.median_us),
            _ => None,
        });
        match latency {
            Some(us) => PartVerdict::Works(format!("{us:.2} us for 8 bytes, on {host}")),
            None => no_result(),
        }
    }

    /// Measures between all pairs of hosts.
    async fn between_hosts(&self, facts: &StartFacts, transport: Transport) -> PartVerdict {
        if facts.table.nodes().len() < 2 {
            return PartVerdict::None("needs a second host".to_owned());
        }
        let words = ["mesh", SIZE, MILLIS].map(str::to_owned).to_vec();
        let mut args = self.args.clone();
        args.network.transport = transport;
        let hosts = u32::try_from(facts.table.nodes().len()).unwrap_or(u32::MAX);
        let timeout = JOB_TIMEOUT + PAIR_TIMEOUT.saturating_mul(hosts.saturating_mul(hosts));
        let records = match self.measure(args, None, words, timeout).await {
            Ok(records) => records,
            Err(failed) => return PartVerdict::Failed(failed),
        };
        let matrix = records.iter().find_map(|record| match record {
            BenchRecord::Matrix(matrix) => Some(matrix),
            _ => None,
        });
        matrix.map_or_else(no_result, |matrix| PartVerdict::Works(between(matrix)))
    }

    /// Measures over RDMA, if all hosts have ports for it.
    async fn rdma(&self, facts: &StartFacts) -> PartVerdict {
        let nodes = facts.table.nodes();
        let without: Vec<&str> =
            nodes.iter().filter(|node| node.nics.is_empty()).map(|node| &*node.host).collect();
        match without[..] {
            [] => self.between_hosts(facts, Transport::Rdma).await,
            _ => PartVerdict::None(format!("no usable port on {}", without.join(", "))),
        }
    }

    /// Runs the measuring program, once on each host or as `ranks` ranks on the first ones, and returns its results.
    async fn measure(
        &self,
        args: MeasurementArgs,
        ranks: Option<u32>,
        words: Vec<String>,
        timeout: Duration,
    ) -> Result<Vec<BenchRecord>, Failed> {
        let program = measuring_program(&args)?;
        let mut job = measuring_job(args, program, words);
        if ranks.is_none() {
            job = job.with_one_rank_on_each_host();
        }
        let job = MeasurementJob { verb: VERB, ranks, timeout: Some(timeout), ..job };
        let ended = records::run(job.launch(&self.line.config)?, |_, _| Ok(())).await?;
        ended.ended.map(|_| ended.reader.records)
    }
}

fn no_result() -> PartVerdict {
    PartVerdict::Failed(Failed::new(Exit::BUG, "the measuring program has printed no result"))
}

impl LineReader for ProbeOutput {
    fn take(&mut self, line: &[u8], _facts: Option<&StartFacts>) -> io::Result<()> {
        self.add(&String::from_utf8_lossy(line));
        Ok(())
    }
}

/// Result for one part.
enum PartVerdict {
    Works(String),
    /// The hosts do not have it, for this reason.
    None(String),
    Failed(Failed),
}

/// Formats the line of a part.
fn part_line(name: &str, verdict: &PartVerdict) -> String {
    let (state, paint, text) = match verdict {
        PartVerdict::Works(text) => ("ok", style::GOOD, text),
        PartVerdict::None(why) => ("none", style::DIM, why),
        PartVerdict::Failed(failed) => ("FAILED", style::BAD, &failed.message),
    };
    let state = paint.paint(&format!("{state:<7}"));
    format!("{name:<14} {state} {}\n", printable::message(text))
}

/// Lines that ranks have printed about their hosts, by subject. An entry has the rank and the text.
#[derive(Default)]
struct ProbeOutput(BTreeMap<String, Vec<(usize, String)>>);

impl ProbeOutput {
    /// Adds a line `RANK SUBJECT TEXT`. Other lines, as a host's own startup files print them, are ignored.
    fn add(&mut self, line: &str) {
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
        let texts = hosts_by_text.iter_mut().map(|(text, hosts)| {
            // Ranks print in any order.
            hosts.sort_unstable();
            let hosts = text::list(hosts);
            if text.is_empty() { format!("on {hosts}") } else { format!("{text} on {hosts}") }
        });
        Some(texts.collect::<Vec<_>>().join("; "))
    }
}

/// Describes the hosts and the tree of agents. Both work if there are facts.
fn hosts(facts: &StartFacts) -> Vec<(&'static str, PartVerdict)> {
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
fn between(matrix: &BenchMatrix) -> String {
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
fn software(facts: &StartFacts, found: &ProbeOutput) -> Vec<(&'static str, PartVerdict)> {
    let python = match (found.describe(facts, "python-failed"), found.describe(facts, "python")) {
        (Some(failed), _) => {
            let message = format!("`import rlaunch` does not work: {failed}");
            PartVerdict::Failed(Failed::new(Exit::FILES, message))
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

    #[test]
    fn a_line_has_the_state_of_a_part() {
        let part_line = |name: &str, verdict: &PartVerdict| {
            anstream::adapter::strip_str(&part_line(name, verdict)).to_string()
        };
        let works = part_line("TCP", &PartVerdict::Works("9.1 Gb/s".into()));
        assert_eq!(works, "TCP            ok      9.1 Gb/s\n");
        let failed = PartVerdict::Failed(Failed::new(Exit::HOST, "no answer"));
        assert_eq!(part_line("shared memory", &failed), "shared memory  FAILED  no answer\n");
    }

    #[test]
    fn the_verdict_has_the_next_step() {
        let typed = hosts_option(&["a,b".to_owned(), "n[1-2]".to_owned()]);
        let works = verdict_line(&[], &typed);
        assert_eq!(works, "jobs can run; the next step: rlaunch -H 'a,b,n[1-2]' PROGRAM\n");
        assert!(verdict_line(&[], &hosts_option(&[])).ends_with("rlaunch PROGRAM\n"));
        let broken = ["TCP".to_owned(), "RDMA".to_owned()];
        assert!(verdict_line(&broken, &typed).ends_with(": TCP, RDMA\n"));
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
