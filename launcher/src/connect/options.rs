//! The user's choices for reaching hosts.

use crate::connect::connector::{Container, Rsh};
use crate::hosts::host_table::HostTable;
use crate::hosts::{self, Host};
use rlaunch_ssh::config::StrictHostKeyChecking;
use rlaunch_ssh::{Destination, SshOptions};
use std::path::PathBuf;

/// `--new-hosts`: the rule for hosts without a recorded key.
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

/// Options for reaching hosts and for keeping the agent there.
#[derive(Debug, Default)]
pub(crate) struct ConnectOptions {
    /// `[hosts.NAME]` of the configuration file.
    pub(crate) host_table: HostTable,
    pub(crate) port: Option<u16>,
    pub(crate) ssh_config: Option<PathBuf>,
    /// Whether `ssh_config` was named by an rlaunch.toml rather than by the user; others must then not
    /// be able to write it.
    pub(crate) check_ssh_config_permissions: bool,
    /// `--rsh`: a command to use in place of SSH.
    pub(crate) rsh: Option<Rsh>,
    pub(crate) container: Option<Container>,
    /// Whether the only host is this machine, and a container is to be entered on it.
    pub(crate) here: bool,
    pub(crate) agent: Option<PathBuf>,
    pub(crate) agent_dir: Option<String>,
    /// `--new-hosts`, if given.
    pub(crate) new_hosts: Option<NewHostsRule>,
    /// `--fanout`, the limit of simultaneous SSH handshakes, if given.
    pub(crate) fanout: Option<u16>,
    /// Retry unknown names and refused connections for a while, for hosts that are still booting.
    pub(crate) retry_until_up: bool,
}

impl ConnectOptions {
    /// Tells whether the job runs on this machine directly, and records whether it runs in a container
    /// on this machine.
    pub(crate) fn settle(&mut self, hosts: &[Host]) -> bool {
        let is_local = hosts::are_local(hosts);
        self.here = is_local && self.container.is_some();
        is_local && !self.here
    }

    /// Returns the options of the SSH client.
    pub(crate) fn ssh(&self) -> SshOptions {
        SshOptions {
            config: self.ssh_config.clone(),
            check_config_permissions: self.check_ssh_config_permissions,
            port: self.port,
            new_hosts: self.new_hosts.map(StrictHostKeyChecking::from),
            fanout: self.fanout,
            retry_until_up: self.retry_until_up,
        }
    }
}

/// Returns the destination for SSH; `port` takes precedence over the SSH configuration.
pub(crate) fn destination(host: &Host, port: Option<u16>) -> Destination<'_> {
    Destination { name: &host.name, user: host.user.as_deref(), port }
}
