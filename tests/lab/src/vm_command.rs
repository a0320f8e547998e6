//! `cargo lab vm`: hosts with real verbs, from the command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use crate::args::OneHost;
use crate::become_command;
use rlaunch_lab::dist::{self, Profile};
use rlaunch_lab::vm::{self, Topology, VmLab, VmOptions};
use rlaunch_lab::{Cut, LabError, command};

const EXAMPLES: &str = "\
Three guests, each with a cable to both others, as a ring of machines without a switch:
  cargo lab build                     rlaunch and its agent, which n1 sees as /share
  cargo lab vm up 3 triangle          the first time this builds the image: about a minute
  cargo lab vm ssh n1 /share/rlaunch -H n1,n2,n3 hostname
  cargo lab vm ssh n1 /share/rlaunch topo -H n1,n2,n3
  cargo lab vm ssh n2 rdma link       rxe and siw on every fabric interface
  cargo lab vm down

Break its links:
  cargo lab vm cut n1 eth1            the cable between n1 and n2 is pulled
  cargo lab vm heal n1 eth1           and back
  cargo lab vm netem n1 eth1 loss 10% drop every tenth packet; no words end it
  cargo lab vm mtu n1 eth1 1500       the two ends no longer agree
  cargo lab vm port n1 eth1 down      as the guest's administrator would";

/// Everything after `cargo lab vm`.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Vm {
    /// Build the guests' image, unless it is there already.
    Build,
    /// Start guests n1 to nN and wait until each answers by ssh.
    Up {
        /// How many guests.
        guests: usize,
        /// `star`: one switch for all; `triangle`: three guests, a cable for each pair.
        #[arg(value_enum, default_value = "star")]
        topology: Topology,
        /// How many processors each has; emulated ones are slow.
        #[arg(long, default_value_t = 1)]
        cpus: usize,
        /// The last guest has Soft-iWARP only: not everybody can use RoCE.
        #[arg(long)]
        mixed: bool,
        /// What n1 sees as /share, read-only; what `cargo lab build` made if left out.
        #[arg(long)]
        share: Option<PathBuf>,
    },
    /// Run a command in a guest by ssh.
    Ssh {
        /// The guest.
        guest: String,
        /// The command and its arguments; a shell if left out.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Run a command of this machine in the head's network, where the guests are 10.77.0.K.
    Exec {
        /// The command and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// End all guests and remove everything but the image, after a crash as well.
    Down,
    /// Say which guests are up and what their addresses are.
    Status,
    /// Print what a guest's kernel and sshd have said.
    Console(OneHost),
    /// Pull the cable of an interface, as the guest sees it too.
    Cut {
        #[command(flatten)]
        at: Interface,
        /// Drop frames without taking the carrier away.
        #[arg(long)]
        silent: bool,
    },
    /// Bring a cable back.
    Heal(Interface),
    /// Drop, delay or mangle what an interface sends.
    Netem {
        #[command(flatten)]
        at: Interface,
        /// As after `tc qdisc ... netem`, for example `loss 10%`; nothing ends it.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Change the largest packet of an interface.
    Mtu {
        #[command(flatten)]
        at: Interface,
        /// In bytes.
        mtu: u32,
    },
    /// Take an interface down or up inside the guest.
    Port {
        #[command(flatten)]
        at: Interface,
        /// Which of both.
        #[arg(value_parser = ["down", "up"])]
        state: String,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Interface {
    /// The guest.
    guest: String,
    /// The interface: eth1, eth2 and so on are the fabric's.
    interface: String,
}

/// Does what was typed, in the lab called `name`.
pub(crate) fn dispatch(name: &str, vm: &Vm) -> Result<ExitCode, LabError> {
    match vm {
        Vm::Build => println!("{}", vm::build()?.display()),
        Vm::Up { guests, topology, cpus, mixed, share } => {
            let share = share.clone().or_else(built);
            let new = VmOptions::new(name, *guests, *topology);
            up(&VmOptions { cpus: *cpus, mixed: *mixed, share, ..new })?;
        }
        Vm::Ssh { guest, command } => {
            let mut ssh = VmLab::find(name)?.ssh(guest)?;
            return become_command(ssh.args(command));
        }
        Vm::Exec { command } => return become_command(VmLab::find(name)?.exec().args(command)),
        Vm::Down => match VmLab::down(name)? {
            true => println!("guests of lab {name}: removed"),
            false => println!("guests of lab {name}: there were none"),
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
        Vm::Netem { at, words } => {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            VmLab::find(name)?.netem(&at.guest, &at.interface, &words)?;
        }
        Vm::Mtu { at, mtu } => VmLab::find(name)?.set_mtu(&at.guest, &at.interface, *mtu)?,
        Vm::Port { at, state } => {
            VmLab::find(name)?.set_port(&at.guest, &at.interface, state == "up")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn up(options: &VmOptions) -> Result<(), LabError> {
    vm::build()?;
    let progress = command::spinner(format!("starting {} guests", options.guests));
    let lab = VmLab::up(options);
    progress.finish_and_clear();
    print_status(&lab?);
    match &options.share {
        Some(share) => println!("n1 sees {} as /share", share.display()),
        None => println!("n1 has no /share: `cargo lab build`, or --share"),
    }
    Ok(())
}

/// What `cargo lab build` made, if it has been run.
fn built() -> Option<PathBuf> {
    dist::directory(Profile::Lab).ok().filter(|directory| directory.exists())
}

fn print_status(lab: &VmLab) {
    for guest in lab.status() {
        let state = if guest.up { "up" } else { "down" };
        println!("{}\t{state}\t{}", guest.name, guest.addresses.join(" "));
    }
}

impl Vm {
    /// Whether this touches namespaces and guests.
    pub(crate) fn needs_root(&self) -> bool {
        // The guests' root directory holds files of several owners.
        !matches!(self, Vm::Status)
    }
}
