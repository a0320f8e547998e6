//! `cargo lab vm`: hosts that are emulated computers, with real verbs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::become_command;
use super::hosts::OneHost;
use rlaunch_lab::dist::{self, Profile};
use rlaunch_lab::vm::{self, Topology, VmLab, VmOptions};
use rlaunch_lab::{Cut, LabError, command};

const EXAMPLES: &str = include_str!("vm.txt").trim_ascii_end();

/// Everything that can follow `cargo lab vm`.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Vm {
    /// Build the guests' image, unless it is built already.
    Build,
    /// Start guests n1 to nN and wait until each answers by ssh.
    Up {
        /// Number of guests.
        guests: usize,
        /// `star`: one switch for all; `triangle`: three guests, a cable for each pair.
        #[arg(value_enum, default_value = "star")]
        topology: Topology,
        /// Directory that n1 sees as /share, read-only; by default what `cargo lab build` made.
        #[arg(long)]
        share: Option<PathBuf>,
    },
    /// Run a command in a guest by ssh.
    Ssh {
        /// Guest to log in to.
        guest: String,
        /// Command and its arguments; without it, a shell.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Run a command of this machine in the network of the head node, where guest K is 10.77.0.K.
    Exec {
        /// Command and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Boot all guests again, as after a loss of power: their disks stay.
    Reboot,
    /// End all guests and remove everything but the image, even after a crash.
    Down,
    /// Print which guests are up, and their addresses.
    Status,
    /// Print the console output of a guest's kernel and sshd.
    Console(OneHost),
    /// Pull the cable of an interface; the guest sees the carrier go.
    Cut {
        #[command(flatten)]
        at: Interface,
        /// Drop frames but leave the carrier up.
        #[arg(long)]
        silent: bool,
    },
    /// Plug a cable back in.
    Heal(Interface),
}

/// Network interface of a guest.
#[derive(Debug, Args)]
pub(crate) struct Interface {
    /// Guest that has the interface.
    guest: String,
    /// Name of the interface; eth1, eth2 and so on belong to the fabric.
    interface: String,
}

impl Vm {
    /// Returns whether the verb needs root: guests run in namespaces, and their root directory holds
    /// files of several owners.
    pub(super) fn needs_root(&self) -> bool {
        !matches!(self, Vm::Status)
    }
}

/// Runs a verb on the guests of the lab called `name`.
pub(super) fn run(name: &str, vm: &Vm) -> Result<ExitCode, LabError> {
    match vm {
        Vm::Build => println!("{}", vm::build()?.display()),
        Vm::Up { guests, topology, share } => {
            let share = share.clone().or_else(built_directory);
            let new = VmOptions::new(name, *guests, *topology);
            up(&VmOptions { share, ..new })?;
        }
        Vm::Ssh { guest, command } => {
            let mut ssh = VmLab::find(name)?.ssh(guest)?;
            return become_command(ssh.args(command));
        }
        Vm::Exec { command } => return become_command(VmLab::find(name)?.exec().args(command)),
        Vm::Reboot => VmLab::find(name)?.reboot()?,
        Vm::Down => match VmLab::down(name)? {
            true => println!("guests of lab {name}: removed"),
            false => println!("guests of lab {name}: nothing to remove"),
        },
        Vm::Status => match VmLab::find(name) {
            Ok(lab) => print_status(&lab),
            Err(LabError::NoGuests { .. }) => println!("guests of lab {name}: down"),
            Err(error) => return Err(error),
        },
        Vm::Console(of) => print!("{}", VmLab::find(name)?.console(&of.host)?),
        Vm::Cut { at, silent } => {
            let kind = if *silent { Cut::Silent } else { Cut::Carrier };
            VmLab::find(name)?.cut(&at.guest, &at.interface, kind)?;
        }
        Vm::Heal(at) => VmLab::find(name)?.heal(&at.guest, &at.interface)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn up(options: &VmOptions) -> Result<(), LabError> {
    vm::build()?;
    let text = format!("starting {} guests", options.guests);
    print_status(&command::with_spinner(text, || VmLab::up(options))?);
    match &options.share {
        Some(share) => println!("n1 sees {} as /share", share.display()),
        None => println!("n1 has no /share: `cargo lab build`, or --share"),
    }
    Ok(())
}

/// Returns the directory that `cargo lab build` made, if it exists.
fn built_directory() -> Option<PathBuf> {
    dist::directory(Profile::Lab).ok().filter(|directory| directory.exists())
}

fn print_status(lab: &VmLab) {
    for guest in lab.status() {
        let state = if guest.up { "up" } else { "down" };
        println!("{}\t{state}\t{}", guest.name, guest.addresses.join(" "));
    }
}
