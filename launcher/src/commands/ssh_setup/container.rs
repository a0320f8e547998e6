//! Login to a container by SSH: the container has a key of its own, and sshd runs a script that enters the
//! container for every login by that key.

use rlaunch_engine::connect::connector::{ContainerEngine, is_container_name};
use rlaunch_ssh::config::{HostConfig, Proxy, StrictHostKeyChecking};
use rlaunch_text::shell::quoted_posix;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Container that has the same name on every host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedContainer {
    /// Engine with a command line like docker's.
    pub(super) engine: ContainerEngine,
    pub(super) name: String,
}

impl FromStr for NamedContainer {
    type Err = String;

    /// Parses `NAME` or `KIND:NAME`. The name becomes part of file names and commands, so only characters that engines
    /// allow in names are accepted.
    fn from_str(text: &str) -> Result<NamedContainer, String> {
        let (kind, name) = text.split_once(':').unwrap_or(("docker", text));
        let engine = kind.parse().ok().filter(|engine: &ContainerEngine| engine.is_like_docker());
        let engine = engine.ok_or_else(|| format!("`{kind}` is not docker, podman or nerdctl"))?;
        if !is_container_name(name) {
            return Err("a container's name has letters, digits and _.- only".to_owned());
        }
        Ok(NamedContainer { engine, name: name.to_owned() })
    }
}

impl NamedContainer {
    /// Returns the path of the script on a host, relative to the home directory.
    pub(crate) fn script_path(&self) -> String {
        format!(".ssh/rlaunch-{}.sh", self.name)
    }

    /// Returns the script that sshd runs for a login by the container's key.
    pub(crate) fn script(&self) -> String {
        let (engine, name) = (self.engine.command(), &self.name);
        format!(
            "#!/bin/sh\n\
             # Written by rlaunch ssh-setup. sshd runs it for logins by the key of container {name}.\n\
             if [ -n \"$SSH_ORIGINAL_COMMAND\" ]; then\n    \
                 exec {engine} exec -i {name} /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"\n\
             fi\n\
             exec {engine} exec -it {name} /bin/sh"
        )
    }

    /// Returns the line for authorized_keys by which the key `public` may only run the script.
    pub(crate) fn authorized_line(&self, public: &str) -> String {
        let only = "no-port-forwarding,no-agent-forwarding,no-X11-forwarding";
        format!("command=\"sh ~/{}\",{only} {public}", self.script_path())
    }
}

/// Host with an entry in the SSH configuration of the container.
pub(crate) struct HostBlock<'a> {
    /// Name of the host as the user types it.
    pub(crate) alias: &'a str,
    pub(crate) config: &'a HostConfig,
}

/// Returns the new content of the SSH configuration file for logins to the container. Each of `hosts` keeps the user's
/// configuration, except that it is logged in to with `key`. Other hosts in `before`, the present content of the file,
/// are kept. The files `sources` are included, because they configure the jump hosts.
pub(crate) fn configuration(
    container: &NamedContainer,
    key: &Path,
    hosts: &[HostBlock<'_>],
    before: &str,
    (home, sources): (&Path, &[PathBuf]),
) -> String {
    let shown = |path: &Path| words(&tilde(path, home));
    let mut hops = Vec::new();
    let mut blocks = Vec::new();
    for block in before.split("\n\n").filter(|block| block.starts_with("Host ")) {
        let (first, rest) = block.split_once('\n').unwrap_or((block, ""));
        let name = first.trim_start_matches("Host ");
        if rest.contains("Include ") {
            hops.extend(name.split(' ').map(str::to_owned));
        } else if name != "*" && !name.starts_with("* ") && !hosts.iter().any(|e| e.alias == name) {
            blocks.push(block.trim_end().to_owned());
        }
    }
    for HostBlock { alias, config } in hosts {
        let lines = host_lines(alias, config, home);
        if !lines.is_empty() {
            blocks.push(format!("Host {alias}\n{}", lines.trim_end()));
        }
        if let Proxy::Jump(jumps) = &config.proxy {
            hops.extend(jumps.iter().map(|hop| hop.host.clone()));
        }
    }
    blocks.sort();
    hops.sort();
    hops.dedup();
    let mut text = format!(
        "# Written by rlaunch ssh-setup: hosts by the key that leads into the container {name}.\n\
         #   rlaunch --ssh-config ~/.ssh/rlaunch-{name} -H HOST,... PROGRAM\n",
        name = container.name
    );
    let others: String = hops.iter().map(|hop| format!(" !{hop}")).collect();
    let _ = write!(
        text,
        "\nHost *{others}\n  IdentityFile {}\n  IdentitiesOnly yes\n  IdentityAgent none\n",
        shown(key)
    );
    for block in blocks {
        let _ = write!(text, "\n{block}\n");
    }
    if !hops.is_empty() {
        let _ = write!(text, "\nHost {}\n", hops.join(" "));
        for source in sources {
            let _ = writeln!(text, "  Include {}", shown(source));
        }
    }
    text
}

/// Returns the lines of ssh_config for a host's address, user, port, proxy and host key.
fn host_lines(alias: &str, config: &HostConfig, home: &Path) -> String {
    let mut text = String::new();
    let mut line = |keyword: &str, value: &str| {
        let _ = writeln!(text, "  {keyword} {value}");
    };
    if config.hostname != alias {
        line("HostName", &config.hostname);
    }
    if let Some(user) = &config.user {
        line("User", &words(user));
    }
    if let Some(port) = config.port {
        line("Port", &port.to_string());
    }
    if let Some(name) = &config.host_key_alias {
        line("HostKeyAlias", name);
    }
    if config.strict_host_key_checking == StrictHostKeyChecking::No {
        line("StrictHostKeyChecking", "no");
    }
    let known: Vec<String> =
        config.user_known_hosts_files.iter().map(|file| words(&tilde(file, home))).collect();
    if known != ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"] {
        line("UserKnownHostsFile", &known.join(" "));
    }
    match &config.proxy {
        Proxy::Direct => {}
        Proxy::Command(command) => line("ProxyCommand", &command.replace('%', "%%")),
        Proxy::Jump(hops) => {
            let hop = |hop: &rlaunch_ssh::config::JumpHop| {
                let user = hop.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
                let port = hop.port.map(|port| format!(":{port}")).unwrap_or_default();
                let host = if hop.host.contains(':') {
                    format!("[{}]", hop.host)
                } else {
                    hop.host.clone()
                };
                format!("{user}{host}{port}")
            };
            line("ProxyJump", &hops.iter().map(hop).collect::<Vec<_>>().join(","));
        }
    }
    text
}

/// Escapes a value for ssh_config.
fn words(value: &str) -> String {
    let value = value.replace('%', "%%");
    if value.contains(' ') { format!("\"{value}\"") } else { value }
}

/// Writes a path below the home directory as `~/…`.
pub(crate) fn tilde(path: &Path, home: &Path) -> String {
    match path.strip_prefix(home) {
        Ok(below) => format!("~/{}", below.display()),
        Err(_) => path.display().to_string(),
    }
}

/// Returns a shell command that appends a line to authorized_keys.
pub(crate) fn append_command(line: &str) -> String {
    format!("echo {} >> ~/.ssh/authorized_keys", quoted_posix(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_ssh::config::SshConfig;

    fn container(text: &str) -> NamedContainer {
        text.parse().unwrap()
    }

    #[test]
    fn names_of_containers() {
        assert_eq!(container("mpicont").engine, ContainerEngine::Docker);
        assert_eq!(container("podman:a_b.c-1").name, "a_b.c-1");
        for bad in ["", "-x", "a b", "a;b", "a'b", "lxc:a", "docker:", "a:b:c", "../a"] {
            assert!(bad.parse::<NamedContainer>().is_err(), "{bad}");
        }
    }

    const CONFIG: &str = "\
Host a
  HostName 10.0.0.1
  User nvidia
  Port 2222
Host b
  ProxyJump root@gate:23
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
";

    /// Checks that the written configuration of a host is the user's, except for the key.
    #[test]
    fn hosts_are_where_they_were() {
        let (home, file) = (std::env::home_dir().unwrap(), Path::new("/x/config"));
        let theirs = SshConfig::parse(CONFIG, file).unwrap();
        let resolved = |names: &[&str]| -> Vec<HostConfig> {
            names.iter().map(|name| theirs.resolve_as(name, None, None).unwrap()).collect()
        };
        let key = home.join(".ssh/id_ed25519_mpicont");
        let write = |names: &[&str], before: &str| {
            let configs = resolved(names);
            let entries =
                names.iter().zip(&configs).map(|(alias, config)| HostBlock { alias, config });
            let entries: Vec<HostBlock<'_>> = entries.collect();
            let sources = [file.to_owned()];
            configuration(&container("mpicont"), &key, &entries, before, (&home, &sources))
        };
        let text = write(&["a", "b", "c"], "");
        let ours = SshConfig::parse(&text.replace("  Include /x/config\n", ""), file).unwrap();
        for (name, theirs) in ["a", "b", "c"].iter().zip(resolved(&["a", "b", "c"])) {
            let found = ours.resolve_as(name, None, None).unwrap();
            assert_eq!(found.identity_files, std::slice::from_ref(&key), "{text}");
            assert!(found.identities_only, "{text}");
            let identity_agent = theirs.identity_agent.clone();
            let as_theirs = HostConfig {
                identity_files: Vec::new(),
                identities_only: false,
                identity_agent,
                ..found
            };
            assert_eq!(as_theirs, theirs, "{name}: {text}");
        }
        assert!(ours.resolve_as("gate", None, None).unwrap().identity_files.is_empty(), "{text}");
        assert!(text.ends_with("\nHost gate\n  Include /x/config\n"), "{text}");
        // Adding hosts one by one in another order gives the same text.
        let one_by_one = write(&["a"], &write(&["c"], &write(&["b"], "")));
        assert_eq!(one_by_one, text);
        assert_eq!(write(&["a", "b", "c"], &text), text);
    }

    #[test]
    fn the_command_is_the_only_thing_a_key_may_do() {
        let line = container("podman:job").authorized_line("ssh-ed25519 AAAA me@here");
        assert_eq!(
            line,
            "command=\"sh ~/.ssh/rlaunch-job.sh\",no-port-forwarding,no-agent-forwarding,\
             no-X11-forwarding ssh-ed25519 AAAA me@here"
        );
        let script = container("podman:job").script();
        assert!(script.contains("\n    exec podman exec -i job /bin/sh -c \"$SSH_ORI"), "{script}");
    }
}
