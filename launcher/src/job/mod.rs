//! A job as it was meant: its hosts, its programs and what is wanted of it. Nothing here or above looks
//! at an argument again.

pub(crate) mod apps;
pub(crate) mod options;
pub(crate) mod stdin;
pub(crate) mod tag_pattern;

use crate::connect::options::ConnectOptions;
use crate::hosts::addresses;
use crate::hosts::{Host, SlotsBy};
use crate::plan::map::{MapBy, MapError, RankBy, RankMap};
use crate::plan::rank_config::{Options, UserChoices};
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

/// One run of rlaunch.
pub(crate) struct JobSpec {
    pub(crate) id: JobId,
    /// In the order given; only this machine when none were. Programs may have others of their own.
    pub(crate) hosts: Vec<Host>,
    /// Run on this machine, without SSH or a container.
    pub(crate) local: bool,
    pub(crate) map_by: MapBy,
    /// `None` numbers ranks as they are dealt out.
    pub(crate) rank_by: Option<RankBy>,
    pub(crate) oversubscribe: bool,
    /// Programs, at least one.
    pub(crate) apps: Vec<AppSpec>,
    /// They are services: when a rank ends, the job does.
    pub(crate) serve: bool,
    /// The whole command line of rlaunch.
    pub(crate) typed: Vec<OsString>,
    /// Nothing else goes along from this shell, to this machine's own agent neither.
    pub(crate) no_env: bool,
    /// Variables that a login on a host sets count there before those that go along from here.
    pub(crate) login: bool,
    pub(crate) options: Options,
    pub(crate) preload: Vec<Preload>,
    pub(crate) singleton: SingletonPolicy,
    pub(crate) stdin: Stdin,
    pub(crate) output: OutputOptions,
    pub(crate) kill_after: Duration,
    /// How long a node may be silent before it is lost.
    pub(crate) node_timeout: Duration,
    pub(crate) timeout: Option<Duration>,
    pub(crate) continue_on_error: bool,
    pub(crate) port_range: PortRange,
    /// MASTER_PORT, where the user has chosen it.
    pub(crate) master_port: Option<u16>,
    /// Addresses that agents may use among themselves.
    pub(crate) oob: addresses::Choice,
    /// The most children an agent has in the tree, when the user says so.
    pub(crate) radix: Option<u32>,
    /// Secret that agents of this job have in common.
    pub(crate) secret: Secret,
    /// Token by which ranks of this job are known.
    pub(crate) token: Token,
    pub(crate) show: Vec<Show>,
    /// No rank is to be started.
    pub(crate) dry_run: Option<DryRun>,
    /// Restarts, where the job may begin again.
    pub(crate) restarts: Option<Restarts>,
    pub(crate) reach: ConnectOptions,
    /// Target of its events: a file, or `fd:N`.
    pub(crate) events: Option<String>,
    /// A record is kept of it.
    pub(crate) is_recorded: bool,
    /// Standard output of ranks goes to stderr.
    pub(crate) aside: bool,
}

/// A file to copy and where it is here.
#[derive(Clone, Debug)]
pub(crate) struct Preload {
    pub(crate) file: PreloadFile,
    pub(crate) source: PathBuf,
}

impl JobSpec {
    /// The program before the first `:`, or the only one.
    pub(crate) fn first(&self) -> &AppSpec {
        &self.apps[0]
    }

    /// Whether the user has set a variable, for any program.
    pub(crate) fn asks_for(&self, name: &str) -> bool {
        self.apps.iter().any(|app| app.env.iter().any(|var| var.name == name))
    }

    /// Whether it takes the GPUs of hosts to know how many ranks they run.
    pub(crate) fn has_open_slots(&self) -> bool {
        let is_open = |host: &Host| host.slots_by == SlotsBy::Open;
        !matches!(self.map_by, MapBy::Ppr(_)) && self.hosts.iter().any(is_open)
    }

    /// Maps ranks onto the hosts, if no slots are open.
    pub(crate) fn map_ranks(&self) -> Result<RankMap, MapError> {
        self.map_onto(&self.hosts)
    }

    /// Maps ranks onto these hosts in place of the job's own, whose slots are known.
    pub(crate) fn map_onto(&self, hosts: &[Host]) -> Result<RankMap, MapError> {
        let by = |hosts: &[Host], ranks| {
            let map = RankMap::by(self.map_by, hosts, ranks, self.oversubscribe)?;
            Ok(map.numbered(self.map_by, self.rank_by))
        };
        match &self.apps[..] {
            [only] => by(hosts, only.ranks),
            several => apps::map_ranks(several, hosts, by),
        }
    }

    /// Returns what setting ranks up needs. A network that is chosen for the first program is chosen for
    /// all.
    pub(crate) fn wishes(&self) -> UserChoices<'_> {
        UserChoices { options: &self.options, env: &self.first().env }
    }
}

/// Makes bytes that cannot be guessed.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], NoRandom> {
    let mut bytes = [0; N];
    let filled = ring::rand::SystemRandom::new().fill(&mut bytes);
    filled.map(|()| bytes).map_err(|_| NoRandom)
}

/// A system without random numbers.
#[derive(Debug, thiserror::Error)]
#[error("the system has no random numbers")]
pub(crate) struct NoRandom;
