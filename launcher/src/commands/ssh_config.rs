//! `rlaunch ssh-config`: what SSH's configuration says about hosts, as rlaunch understands it.

use crate::cli::args::SshConfigArgs;
use crate::hosts::{self, Host};
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use rlaunch_console::stdout;
use rlaunch_ssh::AlgorithmNames;
use rlaunch_ssh::config::{HostConfig, SshConfig, StrictHostKeyChecking};
use std::path::PathBuf;

/// Prints it, host by host.
pub(crate) fn ssh_config(args: &SshConfigArgs) -> Result<Exit, Failed> {
    let usage = |error: &dyn std::error::Error| Failed::from_error(Exit::USAGE, error);
    let hosts = hosts::parse(&args.hosts).map_err(|error| usage(&error))?;
    let home = std::env::home_dir().unwrap_or_else(|| PathBuf::from("/"));
    let paths =
        args.ssh_config.clone().map_or_else(|| SshConfig::default_paths(&home), |file| vec![file]);
    let config = SshConfig::load_for_user(args.ssh_config.as_deref(), &home);
    let config = config.map_err(|e| usage(&e).hint(e.hint()))?;
    let mut text = head(&config, &paths);
    for host in &hosts {
        text += &of_host(&config, host, args.port)?;
    }
    stdout::print(&text);
    Ok(Exit::SUCCESS)
}

fn head(config: &SshConfig, paths: &[PathBuf]) -> String {
    let name = |path: &PathBuf| path.display().to_string();
    let read: Vec<String> = config.files().iter().map(name).collect();
    let mut text = match read.as_slice() {
        [] => {
            let missing: Vec<String> = paths.iter().map(name).collect();
            format!("# no file: {} is not there\n", missing.join(" or "))
        }
        read => format!("# read: {}\n", read.join(" ")),
    };
    for note in config.notes() {
        text += &format!("# {note}\n");
    }
    text
}

fn of_host(config: &SshConfig, host: &Host, port: Option<u16>) -> Result<String, Failed> {
    let failed =
        |error: &dyn std::error::Error, hint| Failed::from_error(Exit::USAGE, error).hint(hint);
    let resolved = config
        .resolve_as(&host.name, host.user.as_deref(), None)
        .map_err(|error| failed(&error, error.hint()))?;
    // As for a job: `--port` is for hosts whose configuration names none.
    let resolved = HostConfig { port: resolved.port.or(port), ..resolved };
    let names = AlgorithmNames::for_host(&resolved)
        .map_err(|error| failed(&error, error.hint(&host.name)))?;
    let mut text = "\n".to_owned();
    for (keyword, value) in config.show(&host.name, &resolved) {
        text += &format!("{keyword} {value}\n");
    }
    text += &format!("kexalgorithms {}\n", names.kex);
    text += &format!("ciphers {}\n", names.ciphers);
    text += &format!("hostkeyalgorithms {}\n", names.host_keys);
    text += &format!("pubkeyacceptedalgorithms {}\n", names.public_keys);
    if resolved.strict_host_key_checking == StrictHostKeyChecking::AcceptNew {
        text += "# a key that is not known is accepted, kept and said: nobody is asked\n";
    }
    Ok(text)
}
