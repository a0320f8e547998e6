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

use crate::connect::options::ConnectOptions;
use crate::hosts::addresses;
use crate::hosts::{Host, SlotsBy};
use crate::plan::map::{MapBy, MapError, RankBy, RankMap};
use crate::plan::options::{Options, UserChoices};
use apps::AppSpec;
use options::{DryRun, OutputOptions, Restarts, Show};
use ring::rand::SecureRandom;
use rlaunch_bootstrap::client::messages::Token;
use rlaunch_bootstrap::id::JobId;
use rlaunch_bootstrap::job::{PortRange, PreloadFile, SingletonPolicy};
use rlaunch_bootstrap::security::handshake::Secret;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use stdin::Stdin;

/// Specification of a job.
pub(crate) struct JobSpec {
    pub(crate) id: JobId,
    /// Hosts in the order of the user, or this machine if the user named none. Programs may have their own.
    pub(crate) hosts: Vec<Host>,
    /// Whether ranks run on this machine, without SSH and outside of a container.
    pub(crate) is_local: bool,
    pub(crate) map_by: MapBy,
    /// Numbering of ranks; `None` for the order in which they are dealt out.
    pub(crate) rank_by: Option<RankBy>,
    pub(crate) oversubscribe: bool,
    /// Programs, at least one.
    pub(crate) apps: Vec<AppSpec>,
    /// The programs are services: the job ends as soon as any rank exits.
    pub(crate) serve: bool,
    /// Whole command line of rlaunch.
    pub(crate) typed: Vec<OsString>,
    /// Pass on none of this shell's variables except those of `-x` and `--env-file`, not even to ranks on this
    /// machine.
    pub(crate) no_env: bool,
    /// Variables that a login shell on a host sets override those passed on from this shell.
    pub(crate) login: bool,
    pub(crate) options: Options,
    pub(crate) preload: Vec<Preload>,
    pub(crate) singleton: SingletonPolicy,
    pub(crate) stdin: Stdin,
    pub(crate) output: OutputOptions,
    /// Time between TERM and KILL.
    pub(crate) kill_after: Duration,
    /// Time without a message after which a node is lost.
    pub(crate) node_timeout: Duration,
    pub(crate) timeout: Option<Duration>,
    pub(crate) continue_on_error: bool,
    pub(crate) port_range: PortRange,
    /// `--master-port`.
    pub(crate) master_port: Option<u16>,
    /// Addresses that agents use among themselves.
    pub(crate) oob: addresses::Choice,
    /// `--radix`: the limit of an agent's children in the tree.
    pub(crate) radix: Option<u32>,
    /// Secret that the agents of this job share.
    pub(crate) secret: Secret,
    /// Token by which ranks of this job authenticate.
    pub(crate) token: Token,
    pub(crate) show: Vec<Show>,
    /// Set if no rank is to be started.
    pub(crate) dry_run: Option<DryRun>,
    /// Set if the job may be restarted.
    pub(crate) restarts: Option<Restarts>,
    pub(crate) connect: ConnectOptions,
    /// Destination of events: a file, or `fd:N`.
    pub(crate) events: Option<String>,
    /// Whether a record of the job is kept.
    pub(crate) is_recorded: bool,
    /// Whether ranks' stdout goes to stderr.
    pub(crate) ranks_to_stderr: bool,
}

/// File to copy to hosts.
#[derive(Clone, Debug)]
pub(crate) struct Preload {
    pub(crate) file: PreloadFile,
    /// Path on this machine.
    pub(crate) source: PathBuf,
}

impl JobSpec {
    /// Returns the first program, or the only one.
    pub(crate) fn first(&self) -> &AppSpec {
        &self.apps[0]
    }

    /// Tells whether the user set a variable, for any program.
    pub(crate) fn sets_variable(&self, name: &str) -> bool {
        self.apps.iter().any(|app| app.env.iter().any(|var| var.name == name))
    }

    /// Tells whether a host's slots are the number of its GPUs, which only its agent knows.
    pub(crate) fn has_slots_from_gpus(&self) -> bool {
        let is_open = |host: &Host| host.slots_by == SlotsBy::Open;
        !matches!(self.map_by, MapBy::Ppr(_)) && self.hosts.iter().any(is_open)
    }

    /// Maps ranks to the hosts, whose slots must be known.
    pub(crate) fn map_ranks(&self) -> Result<RankMap, MapError> {
        self.map_ranks_to(&self.hosts)
    }

    /// Maps ranks to these hosts in place of the job's own, once their slots are known.
    pub(crate) fn map_ranks_to(&self, hosts: &[Host]) -> Result<RankMap, MapError> {
        let by = |hosts: &[Host], ranks| {
            let map = RankMap::by(self.map_by, hosts, ranks, self.oversubscribe)?;
            Ok(map.numbered(self.map_by, self.rank_by))
        };
        match &self.apps[..] {
            [only] => by(hosts, only.ranks),
            several => apps::map_ranks(several, hosts, by),
        }
    }

    /// Returns the user's choices for ranks. A network chosen by variables of the first program is that of all ranks.
    pub(crate) fn wishes(&self) -> UserChoices<'_> {
        UserChoices { options: &self.options, env: &self.first().env }
    }
}

/// Returns random bytes for a secret.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], NoRandom> {
    let mut bytes = [0; N];
    let filled = ring::rand::SystemRandom::new().fill(&mut bytes);
    filled.map(|()| bytes).map_err(|_| NoRandom)
}

/// Error of a system that has no source of random numbers.
#[derive(Debug, thiserror::Error)]
#[error("the system has no source of random numbers")]
pub(crate) struct NoRandom;
