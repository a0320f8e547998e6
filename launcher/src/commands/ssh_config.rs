//! `rlaunch ssh --show`, which was `rlaunch ssh-config`: shows SSH's configuration of hosts as rlaunch understands it.

use crate::cli::args::SshArgs;
use clap::Parser;
use nix::unistd::Uid;
use rlaunch_console::stdout;
use rlaunch_plan::hosts::{self, Host};
use rlaunch_ssh::AlgorithmNames;
use rlaunch_ssh::config::{HostConfig, SshConfig, StrictHostKeyChecking};
use rlaunch_ssh::error::SshError;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::path::PathBuf;

/// Show what SSH's configuration says about hosts, as rlaunch understands it.
///
/// The format is that of `ssh -G`, a keyword and its value on each line, for the keywords that rlaunch follows. Other
/// keywords are ignored. No host is connected to. Comments name the files that were read, and what rlaunch does not
/// follow in them (`Match exec`).
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch ssh --show a                          address, user and keys for a
  rlaunch ssh --show root@a b                   the same for root on a, and for b
  diff <(rlaunch ssh --show a | sort) <(ssh -G a | sort)    differences from ssh

Keywords that are followed: Host, Match (host, originalhost, user, localuser, all), Include, HostName,
User, Port, AddressFamily, BindAddress, ProxyJump, ProxyCommand, ConnectTimeout, ConnectionAttempts,
ServerAliveInterval, ServerAliveCountMax, RekeyLimit, IdentityFile, CertificateFile, IdentityAgent,
IdentitiesOnly, StrictHostKeyChecking, UserKnownHostsFile, GlobalKnownHostsFile, HostKeyAlias,
KexAlgorithms, Ciphers, HostKeyAlgorithms, PubkeyAcceptedAlgorithms.")]
pub(crate) struct SshConfigArgs {
    /// Show the configuration, without which `rlaunch ssh` runs the program ssh
    #[arg(long = "show")]
    _show: bool,

    /// Hosts, as for ssh or for a job
    #[arg(value_name = "HOST", required = true)]
    pub(crate) hosts: Vec<String>,

    #[command(flatten)]
    pub(crate) ssh: SshArgs,
}

pub(super) fn run(args: &SshConfigArgs) -> Result<Exit, Failed> {
    let usage = |error: &dyn std::error::Error| Failed::from_error(Exit::USAGE, error);
    let hosts = hosts::parse(&args.hosts).map_err(|error| usage(&error))?;
    let home = std::env::home_dir().unwrap_or_else(|| PathBuf::from("/"));
    let paths =
        args.ssh.ssh_config.clone().map_or_else(|| SshConfig::default_paths(&home), |f| vec![f]);
    let config = SshConfig::load_for_user(args.ssh.ssh_config.as_deref(), &home);
    let config = config.map_err(|e| usage(&e).hint(e.hint()))?;
    let mut text = header(&config, &paths);
    for host in &hosts {
        text += &host_config(&config, host, args.ssh.port)?;
    }
    stdout::print(&text);
    Ok(Exit::SUCCESS)
}

fn header(config: &SshConfig, paths: &[PathBuf]) -> String {
    let name = |path: &PathBuf| path.display().to_string();
    let read: Vec<String> = config.files().iter().map(name).collect();
    let mut text = match read.as_slice() {
        [] => {
            let missing: Vec<String> = paths.iter().map(name).collect();
            format!("# no file: {} does not exist\n", missing.join(" or "))
        }
        read => format!("# read: {}\n", read.join(" ")),
    };
    for note in config.notes() {
        text += &format!("# {note}\n");
    }
    text
}

fn host_config(config: &SshConfig, host: &Host, port: Option<u16>) -> Result<String, Failed> {
    let failed =
        |error: &dyn std::error::Error, hint| Failed::from_error(Exit::USAGE, error).hint(hint);
    let resolved = config
        .resolve_as(&host.name, host.user.as_deref(), None)
        .map_err(|error| failed(&error, error.hint()))?;
    // As for a job, --port is for hosts whose configuration has none.
    let resolved = HostConfig { port: resolved.port.or(port), ..resolved };
    let names = AlgorithmNames::for_host(&resolved)
        .map_err(|error| failed(&error, error.hint(&host.name)))?;
    let mut text = "\n".to_owned();
    if config.user_for(&resolved).is_none() {
        let error = SshError::NoUser { uid: Uid::current().as_raw() };
        text += &format!("# {error}; a job needs NAME@{}\n", host.name);
    }
    for (keyword, value) in config.show(&host.name, &resolved) {
        text += &format!("{keyword} {value}\n");
    }
    text += &format!("kexalgorithms {}\n", names.kex);
    text += &format!("ciphers {}\n", names.ciphers);
    text += &format!("hostkeyalgorithms {}\n", names.host_keys);
    text += &format!("pubkeyacceptedalgorithms {}\n", names.public_keys);
    if resolved.strict_host_key_checking == StrictHostKeyChecking::AcceptNew {
        text += "# unknown host keys are accepted without a question, recorded and reported\n";
    }
    Ok(text)
}
