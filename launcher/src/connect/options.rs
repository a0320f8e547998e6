//! How hosts are reached, as the user wants it.

use crate::connect::route::{Container, Rsh};
use crate::hosts::host_table::HostTable;
use crate::hosts::{self, Host};
use rlaunch_ssh::config::StrictHostKeyChecking;
use rlaunch_ssh::{Destination, SshOptions};
use std::path::PathBuf;

/// `--new-hosts`: what becomes of hosts whose keys are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum NewHostsRule {
    Accept,
    Ask,
    Refuse,
}

impl From<NewHostsRule> for StrictHostKeyChecking {
    fn from(rule: NewHostsRule) -> StrictHostKeyChecking {
        match rule {
            NewHostsRule::Accept => StrictHostKeyChecking::AcceptNew,
            NewHostsRule::Ask => StrictHostKeyChecking::Ask,
            NewHostsRule::Refuse => StrictHostKeyChecking::Yes,
        }
    }
}

/// How hosts are reached and where the agent is kept.
#[derive(Debug, Default)]
pub(crate) struct ConnectOptions {
    /// Table of hosts from a file: addresses, users, ports, slots.
    pub(crate) book: HostTable,
    pub(crate) port: Option<u16>,
    pub(crate) ssh_config: Option<PathBuf>,
    /// Whether an rlaunch.toml names that, and not the user, so that others must not be able to write it.
    pub(crate) is_ssh_config_of_file: bool,
    /// The command that leads to the hosts, in place of SSH.
    pub(crate) rsh: Option<Rsh>,
    pub(crate) container: Option<Container>,
    /// The only host is this machine, where a container is to be entered.
    pub(crate) here: bool,
    pub(crate) agent: Option<PathBuf>,
    pub(crate) agent_dir: Option<String>,
    /// Rule for hosts whose keys are not known, where the command line has one.
    pub(crate) new_hosts: Option<NewHostsRule>,
    /// Handshakes at one time, where the user says so.
    pub(crate) fanout: Option<u16>,
    /// Hosts may not be there yet: a name that is not known and a port that refuses are
    /// tried again for a while.
    pub(crate) patient: bool,
}

impl ConnectOptions {
    /// Whether these hosts mean this machine, with nothing on the way.
    pub(crate) fn settle(&mut self, hosts: &[Host]) -> bool {
        let is_local = hosts::are_local(hosts);
        self.here = is_local && self.container.is_some();
        is_local && !self.here
    }

    /// Picks the options that are for SSH.
    pub(crate) fn ssh(&self) -> SshOptions {
        SshOptions {
            config: self.ssh_config.clone(),
            is_config_of_file: self.is_ssh_config_of_file,
            port: self.port,
            new_hosts: self.new_hosts.map(StrictHostKeyChecking::from),
            fanout: self.fanout,
            patient: self.patient,
        }
    }
}

/// Returns the host as SSH is to find it; `port` takes precedence over its configuration's.
pub(crate) fn destination(host: &Host, port: Option<u16>) -> Destination<'_> {
    Destination { name: &host.name, user: host.user.as_deref(), port }
}
