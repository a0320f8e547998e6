//! `rlaunch ssh-setup`, as typed.

use clap::{ArgAction, Parser};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Let your key log in to hosts, so that jobs run there without a password.
///
/// It logs in by a password, once, where no key works yet, installs the key, corrects the modes
/// that sshd insists on, and tries a fresh login. It says first what it will do, and asks. A second
/// run finds nothing to do.
#[derive(Debug, Parser)]
#[command(
    name = "rlaunch ssh-setup",
    max_term_width = 100,
    after_help = "\
What is written, where it is not there yet:
  here        ~/.ssh/id_ed25519 and .pub        a key without a passphrase, if you have none
              ~/.ssh/known_hosts                keys of hosts, as shown to you first
  on a host   ~/.ssh/authorized_keys            one line for your key; what is there stays
              modes: ~ not writable for others, ~/.ssh 700, authorized_keys 600
With --container NAME also
  here        ~/.ssh/id_ed25519_NAME and .pub   a second key, that leads into the container
              ~/.ssh/rlaunch-NAME               for --ssh-config: hosts by that key
  on a host   ~/.ssh/rlaunch-NAME.sh            runs `docker exec -i NAME`, mode 700
              ~/.ssh/authorized_keys            one line for that key, with this command
Nothing else is changed. Secrets are neither written down nor given to another program.

Examples:
  rlaunch ssh-setup -H a,b                        this account's name there, a password each at most
  rlaunch ssh-setup -H nvidia@a,nvidia@b --dry-run   what would be done
  rlaunch ssh-setup -H a,b --container mpicont    and into the containers called mpicont:
  rlaunch --ssh-config ~/.ssh/rlaunch-mpicont -H a,b hostname"
)]
pub(crate) struct SetupArgs {
    /// The hosts, as for a job
    #[arg(
        short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST,...",
        action = ArgAction::Append, required = true
    )]
    pub(crate) hosts: Vec<String>,

    /// Make a second key that leads into the container of this name, on every host: by docker, or
    /// by podman or nerdctl as podman:NAME
    #[arg(long, value_name = "[KIND:]NAME")]
    pub(crate) container: Option<NamedContainer>,

    /// The key to install, made if it is not there. Otherwise the one that ~/.ssh/config names, or
    /// ~/.ssh/id_ed25519
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,

    /// Do not ask whether to go on
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// Say what would be done, and do nothing
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,

    /// The SSH port of hosts for which ~/.ssh/config names none
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,

    /// Read this instead of ~/.ssh/config and /etc/ssh/ssh_config
    #[arg(long, value_name = "FILE")]
    pub(crate) ssh_config: Option<PathBuf>,
}

/// A container that has the same name on every host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedContainer {
    pub(crate) engine: Engine,
    pub(crate) name: String,
}

/// The program that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Docker,
    Podman,
    Nerdctl,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Engine::Docker => "docker",
            Engine::Podman => "podman",
            Engine::Nerdctl => "nerdctl",
        })
    }
}

impl FromStr for NamedContainer {
    type Err = String;

    /// `NAME` or `KIND:NAME`. The name stands in file names and in commands, so it may hold only
    /// what engines allow in names themselves.
    fn from_str(text: &str) -> Result<NamedContainer, String> {
        let (engine, name) = match text.split_once(':') {
            None => (Engine::Docker, text),
            Some(("docker", name)) => (Engine::Docker, name),
            Some(("podman", name)) => (Engine::Podman, name),
            Some(("nerdctl", name)) => (Engine::Nerdctl, name),
            Some((kind, _)) => return Err(format!("`{kind}` is none of docker, podman, nerdctl")),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(plain) {
            return Err("a container's name has letters, digits and _.- only".to_owned());
        }
        Ok(NamedContainer { engine, name: name.to_owned() })
    }
}
