//! Options for connecting to hosts.

use crate::connect::connector::{Container, Rsh};
use rlaunch_plan::hosts::host_table::HostTable;
use rlaunch_plan::hosts::{self, Host};
use rlaunch_ssh::config::StrictHostKeyChecking;
use rlaunch_ssh::{Destination, SshOptions};
use std::path::PathBuf;

/// Value of `--new-hosts`: what to do with hosts that have no recorded host key.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr, strum::VariantArray,
)]
#[strum(serialize_all = "kebab-case")]
pub enum NewHostsRule {
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

/// Options for connecting to hosts and for installing the agent on them.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// Tables `[hosts.NAME]` of the configuration file.
    pub host_table: HostTable,
    pub port: Option<u16>,
    pub ssh_config: Option<PathBuf>,
    /// Whether `ssh_config` was named by an rlaunch.toml and not by the user. Such a file is refused if
    /// other users may write to it.
    pub check_ssh_config_permissions: bool,
    /// Command of `--rsh`, used in place of SSH.
    pub rsh: Option<Rsh>,
    pub container: Option<Container>,
    /// Whether the job runs in a container on this machine, without other hosts.
    pub here: bool,
    pub agent: Option<PathBuf>,
    pub agent_dir: Option<String>,
    /// Value of `--new-hosts`, if given.
    pub new_hosts: Option<NewHostsRule>,
    /// Maximum number of simultaneous SSH handshakes, from `--ssh-fanout`, if given.
    pub fanout: Option<u16>,
    /// Whether to retry unknown host names and refused connections for a while, for hosts that are still
    /// booting.
    pub retry_until_up: bool,
}

impl Reach {
    /// Sets `here`. Returns whether the job runs on this machine alone and not in a container.
    pub fn settle(&mut self, hosts: &[Host]) -> bool {
        let is_local = hosts::are_local(hosts);
        self.here = is_local && self.container.is_some();
        is_local && !self.here
    }

    pub fn ssh(&self) -> SshOptions {
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

/// Returns the destination for the SSH client; `port` takes precedence over the port in `ssh_config`.
pub fn destination(host: &Host, port: Option<u16>) -> Destination<'_> {
    Destination { name: &host.name, user: host.user.as_deref(), port }
}
