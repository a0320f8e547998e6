//! Record of a job: one JSON file, written when the job is over and readable by its user only. `rlaunch
//! report` reads the file. [`JobRecord`] is its schema.

pub mod store;
mod transcript;

pub use transcript::{RecordedOutput, Transcript};

use crate::run::show::{self, VariableRow};
use rlaunch_bootstrap::env::redacted;
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::map::RankMap;
use rlaunch_plan::rank_config::RankConfig;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::redact::without_secrets;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::mem;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime};

/// Version of the schema. New fields may appear without a new version, but no field changes its meaning.
const VERSION: u32 = 1;

/// Record of a job that is over.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct JobRecord {
    pub v: u32,
    /// Id of the job, 32 hexadecimal digits.
    pub job: String,
    /// Start, in seconds since 1970.
    pub started: f64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Command line of rlaunch; values of options and variables whose names suggest a secret are
    /// replaced.
    pub argv: Vec<String>,
    /// Words of `argv` that are the ranks' programs, with `:` between programs.
    pub program: Vec<String>,
    /// Hosts that got ranks, in the order of nodes.
    pub hosts: Vec<HostRanks>,
    /// Placement of ranks, by rank; empty if no rank was started.
    pub placement: Vec<RankPlace>,
    /// Variables of ranks, as `--show env` prints them.
    pub environment: Vec<RankVariable>,
    pub output: RecordedOutput,
    pub end: RecordedEnd,
}

/// Ranks of a host.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct HostRanks {
    pub host: String,
    pub ranks: Vec<u32>,
}

/// Placement of a rank.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct RankPlace {
    pub rank: u32,
    pub host: String,
    /// List of CPUs to which the rank was bound, as in `0-3,8`; `None` if it was not bound.
    pub cpus: Option<String>,
    pub numa_node: Option<u32>,
    /// PCI address of the rank's GPU.
    pub gpu: Option<String>,
    /// Nearest NICs and their distance in the terms of `nvidia-smi topo -m`, as in `mlx5_0,mlx5_1 PIX`.
    pub nics: String,
    pub why: String,
}

/// Variable that was set for ranks, and the reason.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct RankVariable {
    /// `NAME=VALUE`, or `NAME+=:VALUE` for a value that was appended.
    pub variable: String,
    pub why: String,
    pub ranks: Vec<u32>,
}

/// End of the job, as in the last line of `--events`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct RecordedEnd {
    pub exit_code: u8,
    /// Origin of the exit code: `rank` or `launcher`.
    pub(crate) spoke: String,
    pub message: String,
    /// Further lines of the message, such as the places of ranks in a job that hangs.
    #[serde(default)]
    pub details: Vec<String>,
}

impl RecordedEnd {
    fn new(ended: &Result<Exit, Failed>) -> RecordedEnd {
        let (exit, by_rank, message, details) = match ended {
            Ok(exit) => (exit, true, "", &[][..]),
            Err(Failed { exit, by_rank, message, details, .. }) => {
                (exit, *by_rank, message.as_str(), &details[..])
            }
        };
        let spoke = if by_rank { "rank" } else { "launcher" };
        RecordedEnd {
            exit_code: exit.0,
            spoke: spoke.to_owned(),
            message: redacted(message),
            details: details.iter().map(|line| redacted(line)).collect(),
        }
    }
}

/// Configuration that the ranks were started with.
struct RankStart {
    table: RankTable,
    rank_configs: Vec<Vec<RankConfig>>,
    libraries: Vec<Option<PathBuf>>,
}

/// Collector of the record while the job runs; nothing is written before the job is over.
pub struct Recorder {
    started: SystemTime,
    clock: Instant,
    map: OnceLock<RankMap>,
    start: OnceLock<RankStart>,
    output: Mutex<RecordedOutput>,
}

impl Recorder {
    pub(crate) fn new() -> Recorder {
        Recorder {
            started: SystemTime::now(),
            clock: Instant::now(),
            map: OnceLock::new(),
            start: OnceLock::new(),
            output: Mutex::default(),
        }
    }

    /// Adds the mapping of ranks to hosts.
    pub(crate) fn mapped(&self, map: &RankMap) {
        // An error would mean a second call, which a job does not make.
        let _ = self.map.set(map.clone());
    }

    /// Adds the configuration with which ranks are started. `rank_configs` and `libraries` are indexed by
    /// node.
    pub fn starting(
        &self,
        table: RankTable,
        rank_configs: Vec<Vec<RankConfig>>,
        libraries: Vec<Option<PathBuf>>,
    ) {
        // An error would mean a second call, which a job does not make.
        let _ = self.start.set(RankStart { table, rank_configs, libraries });
    }

    /// Adds the output of the ranks.
    pub fn printed(&self, transcript: Transcript) {
        *self.output_of_ranks() = transcript.into_output();
    }

    fn output_of_ranks(&self) -> MutexGuard<'_, RecordedOutput> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the record of a job that has ended, and moves the output into it. Returns `None` if ranks could
    /// not be mapped to hosts. In the record of a job that ended before its hosts' GPUs were counted, hosts
    /// have no ranks.
    pub fn finish(&self, job: &JobSpec, ended: &Result<Exit, Failed>) -> Option<JobRecord> {
        let map = match self.map.get() {
            Some(map) => map.clone(),
            None if job.has_slots_from_gpus() => RankMap::all_hosts(&job.hosts),
            None => return None,
        };
        let since_1970 = self.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (placement, environment) = match self.start.get() {
            None => (Vec::new(), Vec::new()),
            Some(RankStart { table, rank_configs, libraries }) => (
                show::rank_places(&map, rank_configs, table),
                group_by_rank(&show::variables(job, &map, rank_configs, libraries)),
            ),
        };
        let hosts = map.nodes.iter().map(|node| HostRanks {
            host: node.host.to_string(),
            ranks: node.ranks.iter().map(|rank| rank.0).collect(),
        });
        Some(JobRecord {
            v: VERSION,
            job: job.id.to_string(),
            started: since_1970.as_secs_f64(),
            seconds: self.clock.elapsed().as_secs_f64(),
            argv: without_secrets(&job.command_line),
            program: without_secrets(&job.program_words()),
            hosts: hosts.collect(),
            placement,
            environment,
            output: mem::take(&mut self.output_of_ranks()),
            end: RecordedEnd::new(ended),
        })
    }
}

impl JobRecord {
    /// Returns the number of ranks of the job.
    pub fn ranks(&self) -> u32 {
        let ranks: usize = self.hosts.iter().map(|host| host.ranks.len()).sum();
        u32::try_from(ranks).unwrap_or(u32::MAX)
    }
}

/// Groups rows with equal variable and reason, and lists the ranks of each group.
fn group_by_rank(rows: &[VariableRow<'_>]) -> Vec<RankVariable> {
    let mut variables: Vec<RankVariable> = Vec::new();
    let mut known = HashMap::new();
    for (rank, _, variable, why) in rows {
        let at = *known.entry((variable, why)).or_insert_with(|| {
            variables.push(RankVariable {
                variable: variable.clone(),
                why: why.clone(),
                ranks: vec![],
            });
            variables.len() - 1
        });
        variables[at].ranks.push(*rank);
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_plan::hosts::Host;

    #[test]
    fn what_ranks_are_told_alike_is_one_row() {
        let host = Host::this_machine();
        let row = |rank, variable: &str| (rank, &host, variable.to_owned(), "why".to_owned());
        let rows = group_by_rank(&[row(0, "A=1"), row(0, "B=0"), row(1, "A=1"), row(1, "B=1")]);
        let rows: Vec<(&str, &[u32])> =
            rows.iter().map(|row| (row.variable.as_str(), row.ranks.as_slice())).collect();
        assert_eq!(rows, [("A=1", &[0, 1][..]), ("B=0", &[0]), ("B=1", &[1])]);
    }

    #[test]
    fn an_end_says_whose_code_it_is() {
        assert_eq!(RecordedEnd::new(&Ok(Exit::SUCCESS)).spoke, "rank");
        let details = vec!["rank 1: TOKEN=secret".to_owned()];
        let failed = Failed { details, ..Failed::new(Exit::HOST, "b: no route") };
        let end = RecordedEnd::new(&Err(failed));
        assert!(end.details[0].starts_with("rank 1: ") && !end.details[0].contains("secret"));
        assert_eq!((end.exit_code, end.spoke.as_str()), (201, "launcher"));
        assert_eq!(end.message, "b: no route");
    }
}
