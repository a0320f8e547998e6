//! The job that the user asked for: its hosts, its programs and all options, checked and complete.
//!
//! | file | subject |
//! |---|---|
//! | `apps` | programs, their order of start, templates |
//! | `options` | dry runs, `--show`, output, restarts |
//! | `stdin`, `tag_pattern` | `--stdin`; `--tag-output` |

pub(crate) mod apps;
pub(crate) mod options;
pub(crate) mod stdin;
pub(crate) mod tag_pattern;

use crate::hosts::addresses;
use crate::hosts::{Host, SlotsBy};
use crate::plan::map::{MapBy, MapError, RankBy, RankMap};
use crate::plan::options::{Options, UserChoices};
use apps::AppSpec;
use options::{DryRun, OutputOptions, Restarts, Show, TimeoutReport, WatchOptions};
use ring::rand::SecureRandom;
use rlaunch_bootstrap::client::messages::Token;
use rlaunch_bootstrap::id::JobId;
use rlaunch_bootstrap::job::{MpiInterfaces, PortRange, PreloadFile, SingletonPolicy};
use rlaunch_bootstrap::security::handshake::Secret;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use stdin::Stdin;

/// Job as the user asked for it, with all options checked.
pub(crate) struct JobSpec {
    pub(crate) id: JobId,
    /// Hosts in the user's order; this machine if none were named or allocated. A program may have other
    /// hosts ([`AppSpec::hosts`]).
    pub(crate) hosts: Vec<Host>,
    /// Whether all ranks run on this machine, without SSH and outside of a container.
    pub(crate) is_local: bool,
    pub(crate) map_by: MapBy,
    /// `--rank-by`: the numbering of ranks. `None` numbers them in the order in which `map_by` assigns them
    /// to slots.
    pub(crate) rank_by: Option<RankBy>,
    pub(crate) oversubscribe: bool,
    /// Programs, at least one.
    pub(crate) apps: Vec<AppSpec>,
    /// Whether the programs are services, so that the job ends as soon as any rank exits.
    pub(crate) serve: bool,
    /// Whole command line of rlaunch, as the user typed it.
    pub(crate) command_line: Vec<OsString>,
    /// Whether ranks get none of this shell's variables except those of `-x` and `--env-file`. This includes
    /// ranks on this machine.
    pub(crate) no_env: bool,
    /// Whether variables that a login shell sets on a host override those passed on from this shell.
    pub(crate) login: bool,
    pub(crate) options: Options,
    pub(crate) preload: Vec<Preload>,
    /// Process management interfaces that agents serve to MPI programs.
    pub(crate) mpi: MpiInterfaces,
    pub(crate) singleton: SingletonPolicy,
    pub(crate) stdin: Stdin,
    pub(crate) output: OutputOptions,
    /// Time between SIGTERM and SIGKILL when ranks are ended.
    pub(crate) kill_after: Duration,
    /// Node timeout: a node from which nothing is received for this time is lost, and a node that receives
    /// nothing from the launcher for this time ends its ranks.
    pub(crate) node_timeout: Duration,
    pub(crate) timeout: Option<Duration>,
    pub(crate) timeout_report: TimeoutReport,
    pub(crate) watches: WatchOptions,
    pub(crate) continue_on_error: bool,
    pub(crate) port_range: PortRange,
    /// `--master-port`: the value of MASTER_PORT; `None` if rlaunch chooses a port.
    pub(crate) master_port: Option<u16>,
    /// Constraints on the addresses by which agents reach each other.
    pub(crate) oob: addresses::AddressConstraints,
    /// `--radix`: the maximum number of an agent's children in the tree of agents; `None` if it depends on
    /// the number of nodes.
    pub(crate) radix: Option<u32>,
    /// Secret that the agents of this job share.
    pub(crate) secret: Secret,
    /// Token by which ranks of this job authenticate.
    pub(crate) token: Token,
    pub(crate) show: Vec<Show>,
    /// Kind of dry run; `None` if ranks are started.
    pub(crate) dry_run: Option<DryRun>,
    /// Limit and number of restarts; `None` if the job is never restarted.
    pub(crate) restarts: Option<Restarts>,
    /// `--events`: the path of a file, or `fd:N` for an open file descriptor.
    pub(crate) events: Option<String>,
    /// Whether a record of the job is kept.
    pub(crate) is_recorded: bool,
}

/// `--preload`: a file to copy to the hosts.
#[derive(Clone, Debug)]
pub(crate) struct Preload {
    pub(crate) file: PreloadFile,
    /// Path of the file on this machine.
    pub(crate) source: PathBuf,
}

impl JobSpec {
    /// Returns the first program, or the only one.
    pub(crate) fn first(&self) -> &AppSpec {
        &self.apps[0]
    }

    /// Returns the words of all programs, with `:` between programs.
    pub(crate) fn program_words(&self) -> Vec<OsString> {
        let programs: Vec<&[OsString]> = self.apps.iter().map(|app| &app.argv[..]).collect();
        programs.join(&OsString::from(":"))
    }

    /// Tells whether any program gets the variable `name` from this shell, from `-x` or from `--env-file`.
    pub(crate) fn sets_variable(&self, name: &str) -> bool {
        self.apps.iter().any(|app| app.env.iter().any(|var| var.name == name))
    }

    /// Tells whether any host has as many slots as GPUs, a number that only the host's agent knows.
    pub(crate) fn has_slots_from_gpus(&self) -> bool {
        let is_open = |host: &Host| host.slots_by == SlotsBy::Open;
        !matches!(self.map_by, MapBy::Ppr(_)) && self.hosts.iter().any(is_open)
    }

    /// Maps the job's ranks to its hosts. The number of slots of every host must be known.
    pub(crate) fn map_ranks(&self) -> Result<RankMap, MapError> {
        self.map_ranks_to(&self.hosts)
    }

    /// Maps the job's ranks to `hosts` in place of [`JobSpec::hosts`], once agents have reported the number
    /// of slots.
    pub(crate) fn map_ranks_to(&self, hosts: &[Host]) -> Result<RankMap, MapError> {
        let by = |hosts: &[Host], ranks| {
            let map = RankMap::by(self.map_by, hosts, ranks, self.oversubscribe)?;
            Ok(map.renumbered(self.map_by, self.rank_by))
        };
        match &self.apps[..] {
            [only] => by(hosts, only.ranks),
            several => apps::map_ranks(several, hosts, by),
        }
    }

    /// Returns the user's choices for the configuration of ranks. Variables of the first program that choose
    /// a network apply to the ranks of all programs.
    pub(crate) fn user_choices(&self) -> UserChoices<'_> {
        UserChoices { options: &self.options, env: &self.first().env }
    }
}

/// Returns random bytes for a secret.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], NoRandom> {
    let mut bytes = [0; N];
    let filled = ring::rand::SystemRandom::new().fill(&mut bytes);
    filled.map(|()| bytes).map_err(|_| NoRandom)
}

#[derive(Debug, thiserror::Error)]
#[error("the system has no source of random numbers")]
pub(crate) struct NoRandom;
