//! Record of a job: one JSON file, written when the job is over and readable by its user only. `rlaunch report` reads the
//! file. [`JobRecord`] is its schema, [`Recorder`] collects it, [`RecordStore`] keeps it.

use crate::run::output::{RecordedOutput, SharedTranscript};
use crate::run::show::{self, RankPlace, VariableRow};
use chrono::DateTime;
use nix::sys::signal::Signal;
use rlaunch_bootstrap::env::redacted;
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::job::stdin::Readers;
use rlaunch_plan::map::{HostRanks, RankMap};
use rlaunch_plan::rank_config::RankConfig;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::shell::without_secrets;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime};
use store::BegunRecord;
pub(crate) use store::{PARTIAL, machine};

mod store;

pub use store::{HeldName, NameClaim, RecordStore, RecordStoreError, RecordedJob, begins_id};

/// Version of the schema. New fields may appear without a new version, but no field changes its meaning.
const VERSION: u32 = 1;

/// Record of a job that is over.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct JobRecord {
    pub v: u32,
    /// Id of the job, 32 hexadecimal digits.
    pub job: String,
    /// Name of the job; empty if an older rlaunch has written the record.
    #[serde(default)]
    pub name: String,
    /// Start, in seconds since 1970.
    pub started: f64,
    /// Duration in seconds; 0 if the launcher was killed.
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
    /// Name of the file with the whole output, beside the record, if the job has left its terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_file: Option<String>,
    pub end: RecordedEnd,
    /// Id of the next attempt at the job, if it has started again after this end (`--max-restarts`).
    #[serde(default)]
    pub next: Option<String>,
    /// How `argv` was run; `None` in the record of an rlaunch that did not note it.
    #[serde(default)]
    pub launch: Option<RecordedLaunch>,
    /// Phases of the launcher that have ended, in their order, as in `--events`.
    #[serde(default)]
    pub phases: Vec<RecordedPhase>,
    /// First and last output of the ranks. It comes last, so that a list of jobs need not read it.
    #[serde(default)]
    pub output: RecordedOutput,
}

/// Phase of the launcher: `reach`, `prepare`, `join` and, while ranks run, `run`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct RecordedPhase {
    pub name: String,
    pub seconds: f64,
}

/// What is needed, beside its words, to run a command line again.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct RecordedLaunch {
    /// Directory in which rlaunch was started; `None` if it was deleted, or its path is no text.
    pub directory: Option<String>,
    /// Version of rlaunch.
    pub rlaunch: String,
    /// Words of `argv`, by their index, that are not as they were typed: they have secrets, or are no text.
    pub altered: Vec<usize>,
    /// Whether ranks read rlaunch's own standard input.
    #[serde(default)]
    pub stdin: bool,
}

impl RecordedLaunch {
    /// `argv` are the words of the job's command line as they are recorded.
    fn new(job: &JobSpec, argv: &[String]) -> RecordedLaunch {
        let words = job.command_line.iter().zip(argv).enumerate();
        let altered = words.filter(|(_, (typed, kept))| typed.to_str() != Some(kept.as_str()));
        RecordedLaunch {
            directory: job.directory.as_ref().and_then(|path| path.to_str()).map(str::to_owned),
            rlaunch: env!("CARGO_PKG_VERSION").to_owned(),
            altered: altered.map(|(index, _)| index).collect(),
            stdin: job.stdin.file.is_none() && job.stdin.readers != Readers::None,
        }
    }
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
    /// Tells whether the launcher was killed, so that it is not known how the job would have ended.
    pub fn is_killed(&self) -> bool {
        *self == RecordedEnd::killed()
    }

    /// Tells whether the launcher was ended by SIGTERM, as by `rlaunch stop`, which the message says.
    pub fn is_stopped(&self) -> bool {
        self.spoke == "launcher" && self.exit_code == Exit::signal(Signal::SIGTERM as i32).0
    }

    /// Returns the end of a job whose launcher does not come to write another.
    fn killed() -> RecordedEnd {
        let message = "the launcher was killed before the job was over";
        RecordedEnd::new(&Err(Failed::new(Exit::signal(Signal::SIGKILL as i32), message)))
    }

    fn new(ended: &Result<Exit, Failed>) -> RecordedEnd {
        let (exit, by_rank, message, details) = match ended {
            Ok(exit) => (exit, true, "", Vec::new()),
            Err(Failed { exit, by_rank, message, details, asides, .. }) => {
                (exit, *by_rank, message.as_str(), details.iter().chain(asides).collect())
            }
        };
        let spoke = if by_rank { "rank" } else { "launcher" };
        RecordedEnd {
            exit_code: exit.0,
            spoke: spoke.to_owned(),
            message: redacted(message),
            details: details.into_iter().map(|line| redacted(line)).collect(),
        }
    }
}

/// Configuration that the ranks were started with.
struct RankStart {
    table: RankTable,
    rank_configs: Vec<Vec<RankConfig>>,
    libraries: Vec<Option<PathBuf>>,
}

/// Collector of the record while the job runs.
pub struct Recorder {
    started: SystemTime,
    clock: Instant,
    map: OnceLock<RankMap>,
    start: OnceLock<RankStart>,
    /// Output of the ranks so far.
    transcript: SharedTranscript,
    phases: Mutex<Vec<RecordedPhase>>,
    output_file: Option<String>,
    /// Record for the case that this process is killed; `None` if it could not be written.
    begun: OnceLock<BegunRecord>,
}

impl Recorder {
    /// Makes the collector; the whole output is in `output_file`, if there is one.
    pub(crate) fn new(output_file: Option<String>) -> Recorder {
        Recorder {
            started: SystemTime::now(),
            clock: Instant::now(),
            map: OnceLock::new(),
            start: OnceLock::new(),
            transcript: SharedTranscript::default(),
            phases: Mutex::default(),
            output_file,
            begun: OnceLock::new(),
        }
    }

    /// Adds the mapping of ranks to hosts, and stores what is known, for the case that this process is killed.
    pub(crate) fn mapped(&self, job: &JobSpec, map: &RankMap) {
        // An error would mean a second call, which a job does not make.
        let _ = self.map.set(map.clone());
        let record = JobRecord { seconds: 0.0, ..self.record(job, map, RecordedEnd::killed()) };
        let store = RecordStore::for_user().map_err(io::Error::other);
        match store.and_then(|store| store.begin(&record)) {
            Ok(begun) => drop(self.begun.set(begun)),
            // The same error when the job is over is a warning.
            Err(error) => tracing::info!("no record if this process is killed: {error}"),
        }
    }

    /// Adds a phase that has ended.
    pub(crate) fn phase_ended(&self, name: &str, seconds: f64) {
        self.phases().push(RecordedPhase { name: name.to_owned(), seconds });
    }

    fn phases(&self) -> MutexGuard<'_, Vec<RecordedPhase>> {
        self.phases.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Returns the transcript, to which the output of the ranks is added.
    pub(crate) fn transcript(&self) -> &SharedTranscript {
        &self.transcript
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
        Some(self.record(job, &map, RecordedEnd::new(ended)))
    }

    /// Stores the record of the job that has ended. A failure is only a warning.
    pub(crate) fn save_or_warn(&self, record: &JobRecord) {
        store::save_or_warn(record, self.begun.get());
    }

    /// Makes the record, and moves the output so far into it.
    fn record(&self, job: &JobSpec, map: &RankMap, end: RecordedEnd) -> JobRecord {
        let since_1970 = self.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (placement, environment) = match self.start.get() {
            None => (Vec::new(), Vec::new()),
            Some(RankStart { table, rank_configs, libraries }) => (
                show::rank_places(map, rank_configs, table),
                group_by_rank(&show::variables(job, map, rank_configs, libraries)),
            ),
        };
        let argv = without_secrets(&job.command_line);
        JobRecord {
            v: VERSION,
            launch: Some(RecordedLaunch::new(job, &argv)),
            job: job.id.to_string(),
            name: job.name.to_string(),
            started: since_1970.as_secs_f64(),
            seconds: self.clock.elapsed().as_secs_f64(),
            argv,
            program: without_secrets(&job.program_words()),
            hosts: HostRanks::of_map(map),
            placement,
            environment,
            output_file: self.output_file.clone(),
            end,
            next: None,
            phases: self.phases().clone(),
            output: self.transcript.take(),
        }
    }
}

impl JobRecord {
    fn recorded_job(&self) -> RecordedJob {
        RecordedJob { id: self.job.clone(), name: self.name.clone() }
    }

    /// Returns the minute in which the job began: `2026-11-29 10:10 UTC`.
    pub fn began(&self) -> String {
        let began = DateTime::from_timestamp(self.started as i64, 0).unwrap_or_default();
        began.format("%Y-%m-%d %H:%M UTC").to_string()
    }

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
        let of = |by_rank| Failed { by_rank, ..Failed::new(Exit::signal(15), "ended by SIGTERM") };
        assert!(RecordedEnd::new(&Err(of(false))).is_stopped() && !end.is_stopped());
        assert!(!RecordedEnd::new(&Err(of(true))).is_stopped());
        assert_eq!(end.message, "b: no route");
    }

    pub(super) fn record(number: u32) -> JobRecord {
        JobRecord {
            v: 1,
            job: format!("{number:032x}"),
            name: format!("name-{number}"),
            started: 0.0,
            seconds: 1.0,
            argv: vec!["rlaunch".into()],
            program: vec!["true".into()],
            hosts: vec![],
            placement: vec![],
            environment: vec![],
            output_file: None,
            end: RecordedEnd {
                exit_code: 0,
                spoke: "rank".into(),
                message: String::new(),
                details: Vec::new(),
            },
            next: None,
            launch: None,
            phases: vec![],
            output: RecordedOutput::default(),
        }
    }

    #[test]
    fn a_job_began_in_a_minute() {
        let began = JobRecord { started: 1_700_000_000.9, ..record(1) }.began();
        assert_eq!(began, "2023-11-14 22:13 UTC");
    }

    #[test]
    fn words_that_are_not_kept_as_typed_are_noted() {
        use rlaunch_plan::job::stdin::Stdin;
        let mut job = rlaunch_plan::testing::job("-H a hostname");
        let line = "rlaunch -x HF_TOKEN=abc -H a hostname";
        job.command_line = line.split(' ').map(Into::into).collect();
        job.directory = Some("/home/me/run".into());
        let launch = RecordedLaunch::new(&job, &without_secrets(&job.command_line));
        assert_eq!(launch.directory.as_deref(), Some("/home/me/run"));
        assert_eq!(launch.altered, [2]);
        for (readers, file, reads) in [
            (Readers::All, None, true),
            (Readers::None, None, false),
            (Readers::All, Some("in".into()), false),
        ] {
            job.stdin = Stdin { readers, file };
            assert_eq!(RecordedLaunch::new(&job, &[]).stdin, reads, "{:?}", job.stdin);
        }
    }
}
