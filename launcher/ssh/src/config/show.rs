//! A host's configuration in the form of `ssh -G`: keywords in lower case and their values.

use std::path::PathBuf;
use std::time::Duration;

use super::{
    AddressFamily, HostConfig, IdentityAgent, JumpHop, Proxy, SshConfig, StrictHostKeyChecking,
};

impl SshConfig {
    /// Lists the supported keywords with their values in `host`, except the keywords for algorithms. `alias`
    /// is the name that the user gave.
    pub fn show(&self, alias: &str, host: &HostConfig) -> Vec<(&'static str, String)> {
        let mut lines = vec![("host", alias.to_owned())];
        self.show_reach(host, &mut lines);
        self.show_trust(host, &mut lines);
        lines
    }

    fn show_reach(&self, host: &HostConfig, lines: &mut Vec<(&'static str, String)>) {
        lines.extend(self.user_for(host).map(|user| ("user", user.to_owned())));
        lines.push(("hostname", host.hostname.clone()));
        lines.push(("port", host.port.unwrap_or(super::DEFAULT_PORT).to_string()));
        lines.push(("addressfamily", family(host.address_family).to_owned()));
        lines.extend(host.bind_address.clone().map(|address| ("bindaddress", address)));
        lines.push(("connectionattempts", host.connection_attempts.unwrap_or(1).to_string()));
        let timeout = host.connect_timeout.map_or("none".to_owned(), |time| seconds(Some(time)));
        lines.push(("connecttimeout", timeout));
        lines.push(("serveralivecountmax", host.server_alive_count_max.unwrap_or(3).to_string()));
        lines.push(("serveraliveinterval", seconds(host.server_alive_interval)));
        let bytes = host.rekey_limit.bytes.unwrap_or(0);
        lines.push(("rekeylimit", format!("{bytes} {}", seconds(host.rekey_limit.after))));
        match &host.proxy {
            Proxy::Direct => {}
            Proxy::Jump(hops) => {
                let hops: Vec<String> = hops.iter().map(hop).collect();
                lines.push(("proxyjump", hops.join(",")));
            }
            Proxy::Command(command) => lines.push(("proxycommand", command.clone())),
        }
    }

    fn show_trust(&self, host: &HostConfig, lines: &mut Vec<(&'static str, String)>) {
        let strict = match host.strict_host_key_checking {
            StrictHostKeyChecking::Yes => "true",
            StrictHostKeyChecking::Ask => "ask",
            StrictHostKeyChecking::AcceptNew => "accept-new",
            StrictHostKeyChecking::No => "false",
        };
        lines.push(("stricthostkeychecking", strict.to_owned()));
        lines.extend(host.host_key_alias.clone().map(|alias| ("hostkeyalias", alias)));
        lines.push(("identitiesonly", if host.identities_only { "yes" } else { "no" }.to_owned()));
        match &host.identity_agent {
            IdentityAgent::Environment => {}
            IdentityAgent::None => lines.push(("identityagent", "none".to_owned())),
            IdentityAgent::Socket(path) => {
                lines.push(("identityagent", path.display().to_string()));
            }
        }
        let path = |path: &PathBuf| path.display().to_string();
        let identities = host.identity_files_or_default(&self.local.home);
        lines.extend(identities.iter().map(|file| ("identityfile", path(file))));
        if identities.is_empty() {
            lines.push(("identityfile", "none".to_owned()));
        }
        lines.extend(host.certificate_files.iter().map(|file| ("certificatefile", path(file))));
        let list = |files: &[PathBuf]| match files {
            [] => "none".to_owned(),
            files => files.iter().map(path).collect::<Vec<_>>().join(" "),
        };
        lines.push(("userknownhostsfile", list(&host.user_known_hosts_files)));
        lines.push(("globalknownhostsfile", list(&host.global_known_hosts_files)));
    }
}

fn family(family: AddressFamily) -> &'static str {
    match family {
        AddressFamily::Any => "any",
        AddressFamily::Inet => "inet",
        AddressFamily::Inet6 => "inet6",
    }
}

fn seconds(time: Option<Duration>) -> String {
    time.unwrap_or_default().as_secs().to_string()
}

/// Formats a jump host; an IP address gets brackets, as in `ssh -G`.
fn hop(hop: &JumpHop) -> String {
    let mut text = hop.user.as_ref().map_or_else(String::new, |user| format!("{user}@"));
    let is_address =
        hop.host.contains(':') || hop.host.chars().all(|c| c.is_ascii_digit() || c == '.');
    text += &if is_address { format!("[{}]", hop.host) } else { hop.host.clone() };
    text += &hop.port.map_or_else(String::new, |port| format!(":{port}"));
    text
}
