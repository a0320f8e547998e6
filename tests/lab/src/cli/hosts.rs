//! Verbs for hosts made of namespaces: `cargo lab up`, `ssh`, `cut` and so on.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::become_command;
use rlaunch_lab::{Account, Cut, Lab, LabError, Options, Slurm, Status, names};

/// Verbs for hosts made of namespaces.
#[derive(Debug, Subcommand)]
pub(crate) enum HostVerb {
    /// Make N hosts (a, b, c, … z, h27, …), or grow the lab to N.
    Up {
        /// Number of hosts.
        hosts: usize,
        /// Give all hosts the same home directories, as over NFS.
        #[arg(long)]
        shared_home: bool,
        /// First two octets of the lab's addresses.
        #[arg(long, default_value = "10.91", value_parser = names::parse_net)]
        net: [u8; 2],
        /// Start Slurm on all hosts, and print the variable by which its commands find it.
        #[arg(long)]
        slurm: bool,
    },
    /// Remove the lab and everything that runs in it, even after a crash.
    Down,
    /// Print which hosts are up.
    Status,
    /// Print the hosts' names in the form that rlaunch's -H takes.
    Hosts {
        /// Print the first N names; without it, the names of the lab's hosts.
        count: Option<usize>,
    },
    /// Run a command on the launch node, in the current directory if the launch node has it.
    Exec {
        /// Run as the account `user` rather than root.
        #[arg(long)]
        user: bool,
        /// Command and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Run a command inside a host, without ssh.
    On {
        /// Host to run it in.
        host: String,
        /// Run as the account `user` rather than root.
        #[arg(long)]
        user: bool,
        /// Command and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Log in to a host by ssh, from the launch node.
    Ssh {
        /// Host to log in to.
        host: String,
        /// Log in from and as the account `user` rather than root.
        #[arg(long)]
        user: bool,
        /// Command and its arguments; without it, a shell.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// List the hosts' processes except init and the listening sshd: host, pid, parent, state,
    /// arguments.
    Ps {
        /// Hosts to list; without any, all.
        hosts: Vec<String>,
    },
    /// Cut a host's link.
    Cut {
        /// Host to cut off.
        host: String,
        /// Drop frames but leave the carrier up.
        #[arg(long)]
        silent: bool,
    },
    /// Restore a host's link.
    Heal(OneHost),
    /// Crash a host as a power loss would: cut its link, then kill its processes.
    Crash(OneHost),
    /// Start a crashed host again.
    Boot(OneHost),
}

/// Name of one host.
#[derive(Debug, Args)]
pub(crate) struct OneHost {
    /// Name of the host.
    pub(super) host: String,
}

impl HostVerb {
    /// Returns whether the verb enters or changes namespaces, which needs root.
    pub(super) fn needs_root(&self) -> bool {
        !matches!(self, HostVerb::Status | HostVerb::Hosts { .. })
    }
}

/// Runs a verb on the lab called `name`.
pub(super) fn run(name: &str, verb: &HostVerb) -> Result<ExitCode, LabError> {
    match verb {
        HostVerb::Up { hosts, shared_home, net, slurm } => {
            let options =
                Options { name: name.into(), hosts: *hosts, net: *net, shared_home: *shared_home };
            let lab = Lab::up(&options)?;
            print_status(&lab.status());
            if *slurm {
                let names = lab.hosts();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let slurm = Slurm::start(&lab, &names)?;
                println!("export SLURM_CONF={}", slurm.conf().display());
            }
        }
        HostVerb::Down => match Lab::down(name)? {
            true => println!("lab {name}: removed"),
            false => println!("lab {name}: nothing to remove"),
        },
        HostVerb::Status => match Lab::attach(name) {
            Ok(lab) => print_status(&lab.status()),
            Err(LabError::NotUp { .. }) => println!("lab {name}: down"),
            Err(error) => return Err(error),
        },
        HostVerb::Hosts { count } => match count {
            Some(count) => println!("{}", names::host_list(*count)),
            None => println!("{}", Lab::attach(name)?.hosts().join(",")),
        },
        HostVerb::Exec { user, command } => {
            return become_command(Lab::attach(name)?.exec(account(*user)).args(command));
        }
        HostVerb::On { host, user, command } => {
            return become_command(Lab::attach(name)?.on(host, account(*user))?.args(command));
        }
        HostVerb::Ssh { host, user, command } => {
            let mut ssh = Lab::attach(name)?.exec(account(*user));
            return become_command(ssh.args(["ssh", host]).args(command));
        }
        HostVerb::Ps { hosts } => print_processes(&Lab::attach(name)?, hosts)?,
        HostVerb::Cut { host, silent } => {
            let kind = if *silent { Cut::Silent } else { Cut::Carrier };
            Lab::attach(name)?.cut(host, kind)?;
        }
        HostVerb::Heal(of) => Lab::attach(name)?.heal(&of.host)?,
        HostVerb::Crash(of) => Lab::attach(name)?.crash(&of.host)?,
        HostVerb::Boot(of) => Lab::attach(name)?.boot(&of.host)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn account(user: bool) -> Account {
    if user { Account::User } else { Account::Root }
}

fn print_status(status: &Status) {
    let down: Vec<&str> =
        status.hosts.iter().filter(|host| !host.up).map(|host| host.name.as_str()).collect();
    let first = status.hosts.first().map_or("", |host| host.name.as_str());
    let last = status.hosts.last().map_or("", |host| host.name.as_str());
    let homes = if status.shared_home { ", shared home" } else { "" };
    println!("lab {}: {} hosts {first}..{last}{homes}", status.lab, status.hosts.len());
    if !down.is_empty() {
        println!("crashed: {}", down.join(","));
    }
}

fn print_processes(lab: &Lab, hosts: &[String]) -> Result<(), LabError> {
    let mut processes = Vec::new();
    for host in hosts {
        processes.extend(lab.processes(host)?);
    }
    if hosts.is_empty() {
        processes = lab.all_processes();
    }
    for process in processes {
        let (pid, parent, state) = (process.pid, process.parent, process.state);
        println!("{}\t{pid}\t{parent}\t{state}\t{}", process.host, process.command_line());
    }
    Ok(())
}
