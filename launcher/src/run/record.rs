//! What is left of a job when it is over: one JSON file, for its user alone, which `rlaunch report`
//! reads. [`JobRecord`] is its schema.

mod kept;
pub(crate) mod store;

pub(crate) use kept::{Kept, KeptOutput};

use crate::job::JobSpec;
use crate::plan::map::RankMap;
use crate::plan::setup::Setup;
use crate::run::show::{self, ToldRow};
use rlaunch_bootstrap::env::redacted;
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use rlaunch_console::redact::without_secrets;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ffi::OsString;
use std::mem;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime};

/// Version of the schema. New fields may appear without a new one; none changes its meaning.
const VERSION: u32 = 1;

/// A job that is over.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct JobRecord {
    pub(crate) v: u32,
    /// Its id, 32 hexadecimal digits.
    pub(crate) job: String,
    /// In seconds since 1970.
    pub(crate) started: f64,
    /// How long it took, in seconds.
    pub(crate) seconds: f64,
    /// The whole command line, without the values of what is called a secret.
    pub(crate) argv: Vec<String>,
    /// What of it was run as ranks.
    pub(crate) program: Vec<String>,
    /// Those that got ranks, in their order.
    pub(crate) hosts: Vec<HostRanks>,
    /// By rank; empty if no rank was started.
    pub(crate) placement: Vec<RankPlace>,
    /// As `--show env` has it.
    pub(crate) environment: Vec<Told>,
    pub(crate) output: KeptOutput,
    pub(crate) end: End,
}

/// A host and its ranks.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct HostRanks {
    pub(crate) host: String,
    pub(crate) ranks: Vec<u32>,
}

/// Where a rank ran.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct RankPlace {
    pub(crate) rank: u32,
    pub(crate) host: String,
    /// A list of processors, `0-3,8`; none if it was not bound.
    pub(crate) cpus: Option<String>,
    pub(crate) numa_node: Option<u32>,
    /// Its PCI address.
    pub(crate) gpu: Option<String>,
    /// The nearest, and how near.
    pub(crate) nics: String,
    pub(crate) why: String,
}

/// A variable that ranks were told, and why.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Told {
    /// `NAME=VALUE`, or `NAME+=:VALUE` for what is appended.
    pub(crate) variable: String,
    pub(crate) why: String,
    pub(crate) ranks: Vec<u32>,
}

/// How it ended, as the last line of `--events` has it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct End {
    pub(crate) exit_code: u8,
    /// Whose code that is: `rank` or `launcher`.
    pub(crate) spoke: String,
    pub(crate) message: String,
}

impl End {
    fn of(ended: &Result<Exit, Failed>) -> End {
        let (exit, by_rank, message) = match ended {
            Ok(exit) => (exit, true, ""),
            Err(failed) => (&failed.exit, failed.by_rank, failed.message.as_str()),
        };
        let spoke = if by_rank { "rank" } else { "launcher" };
        End { exit_code: exit.0, spoke: spoke.to_owned(), message: redacted(message) }
    }
}

/// What the launcher has decided for ranks, kept until the job is over.
struct Decided {
    table: RankTable,
    setups: Vec<Vec<Setup>>,
    libraries: Vec<Option<PathBuf>>,
}

/// Collects what is recorded while the job goes on; nothing is written before it is over.
pub(crate) struct Recorder {
    started: SystemTime,
    clock: Instant,
    map: OnceLock<RankMap>,
    decided: OnceLock<Decided>,
    output: Mutex<KeptOutput>,
}

impl Recorder {
    pub(crate) fn new() -> Recorder {
        Recorder {
            started: SystemTime::now(),
            clock: Instant::now(),
            map: OnceLock::new(),
            decided: OnceLock::new(),
            output: Mutex::default(),
        }
    }

    /// Where ranks run.
    pub(crate) fn mapped(&self, map: &RankMap) {
        // That is decided once.
        let _ = self.map.set(map.clone());
    }

    /// What ranks start with; the last two by node.
    pub(crate) fn decided(
        &self,
        table: RankTable,
        setups: Vec<Vec<Setup>>,
        libraries: Vec<Option<PathBuf>>,
    ) {
        // That is decided once.
        let _ = self.decided.set(Decided { table, setups, libraries });
    }

    /// What they have printed.
    pub(crate) fn printed(&self, kept: Kept) {
        *self.output_of_ranks() = kept.into_output();
    }

    fn output_of_ranks(&self) -> MutexGuard<'_, KeptOutput> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record of a job that has ended so, to which what was printed moves; `None` if its ranks fit
    /// no hosts. Where it has ended before it was known how many ranks its hosts run, they have none.
    pub(crate) fn finish(&self, job: &JobSpec, ended: &Result<Exit, Failed>) -> Option<JobRecord> {
        let map = match self.map.get() {
            Some(map) => map.clone(),
            None if job.has_open_slots() => RankMap::unsettled(&job.hosts),
            None => return None,
        };
        let since_1970 = self.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (placement, environment) = match self.decided.get() {
            None => (Vec::new(), Vec::new()),
            Some(Decided { table, setups, libraries }) => (
                show::places(&map, setups, table),
                gathered(&show::told(job, &map, setups, libraries)),
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
            argv: without_secrets(&job.typed),
            program: without_secrets(&program(job)),
            hosts: hosts.collect(),
            placement,
            environment,
            output: mem::take(&mut self.output_of_ranks()),
            end: End::of(ended),
        })
    }
}

impl JobRecord {
    /// How many ranks it had.
    pub(crate) fn ranks(&self) -> u32 {
        let ranks: usize = self.hosts.iter().map(|host| host.ranks.len()).sum();
        u32::try_from(ranks).unwrap_or(u32::MAX)
    }
}

/// The words of all programs, with `:` between them.
fn program(job: &JobSpec) -> Vec<OsString> {
    let programs: Vec<&[OsString]> = job.apps.iter().map(|app| &app.argv[..]).collect();
    programs.join(&OsString::from(":"))
}

/// Ranks that were told the same in one row.
fn gathered(rows: &[ToldRow<'_>]) -> Vec<Told> {
    let mut told: Vec<Told> = Vec::new();
    let mut known = HashMap::new();
    for (rank, _, variable, why) in rows {
        let at = *known.entry((variable, why)).or_insert_with(|| {
            told.push(Told { variable: variable.clone(), why: why.clone(), ranks: vec![] });
            told.len() - 1
        });
        told[at].ranks.push(*rank);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::Host;

    #[test]
    fn what_ranks_are_told_alike_is_one_row() {
        let host = Host::this_machine();
        let row = |rank, variable: &str| (rank, &host, variable.to_owned(), "why".to_owned());
        let told = gathered(&[row(0, "A=1"), row(0, "B=0"), row(1, "A=1"), row(1, "B=1")]);
        let told: Vec<(&str, &[u32])> =
            told.iter().map(|told| (told.variable.as_str(), told.ranks.as_slice())).collect();
        assert_eq!(told, [("A=1", &[0, 1][..]), ("B=0", &[0]), ("B=1", &[1])]);
    }

    #[test]
    fn an_end_says_whose_code_it_is() {
        assert_eq!(End::of(&Ok(Exit::SUCCESS)).spoke, "rank");
        let end = End::of(&Err(Failed::new(Exit::HOST, "b: no route")));
        assert_eq!((end.exit_code, end.spoke.as_str()), (201, "launcher"));
        assert_eq!(end.message, "b: no route");
    }
}
