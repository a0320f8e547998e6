//! Options and verbs of `cargo lab`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};

use super::hosts::HostVerb;
use super::vm::Vm;
use rlaunch_lab::bench::Bench;
use rlaunch_lab::dist::Profile;
use rlaunch_lab::soak::Soak;
use rlaunch_lab::{names, stages};

const EXAMPLES: &str = include_str!("examples.txt").trim_ascii_end();

/// Test hosts on this machine, and all checks, tests and measurements of rlaunch.
///
/// A host is a set of Linux namespaces: it has its own network address, name, processes, home
/// directories and sshd. The launch node, where rlaunch runs, reaches the hosts by name.
#[derive(Debug, Parser)]
#[command(name = "cargo lab", bin_name = "cargo lab", after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Name of the lab; labs with different names are independent.
    #[arg(long, global = true, default_value = "lab", value_parser = names::check_lab_name)]
    pub(super) lab: String,
    #[command(subcommand)]
    pub(super) verb: Verb,
}

/// Everything that can follow `cargo lab`.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    #[command(flatten)]
    Hosts(HostVerb),
    /// Install the packages that the lab and its benches need by apt-get; elsewhere, name those that
    /// are missing.
    Setup,
    /// Build launcher and agent, and print where they are.
    Build {
        /// `lab` builds quickly, `release` is what ships.
        #[arg(long, value_enum, default_value = "lab")]
        profile: Profile,
    },
    /// Build what ships and pack it: one executable that carries all, .tar.gz, .deb, .rpm, wheels,
    /// SHA256SUMS and a list of dependencies (CycloneDX), in target/dist.
    Dist {
        /// `release` is what ships, `lab` builds quickly.
        #[arg(long, value_enum, default_value = "release")]
        profile: Profile,
    },
    /// Pack a folder, in target/gpu, whose script `run` proves the claims about GPUs on a machine with
    /// one: `tests/README.md`.
    Gpu {
        /// Pack the launcher of this directory, as `cargo lab build` lays it out, and build none.
        #[arg(long, value_name = "DIR")]
        from: Option<PathBuf>,
    },
    /// Go from a clean checkout to a job on three hosts: set up, build, start, run, each step shown.
    Demo {
        /// Leave the hosts up.
        #[arg(long)]
        keep: bool,
    },
    /// Run every test of the project in stages and print a ledger.
    Test(TestArgs),
    /// Simulate the tree of agents in virtual time: `cargo lab sim --help`.
    #[command(disable_help_flag = true)]
    Sim {
        /// Arguments of the simulation.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Manage hosts that are emulated computers with software RDMA devices.
    #[command(subcommand)]
    Vm(Vm),
    /// Check dependencies: licences, sources, duplicates, and versions with known vulnerabilities.
    Deps {
        /// Also check against RustSec's current database, which is downloaded.
        #[arg(long)]
        online: bool,
    },
    /// Fuzz the decoders of network and file input.
    Fuzz {
        /// Fuzz only this decoder.
        target: Option<String>,
        /// Seconds of search for each decoder, after its known inputs were replayed.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// Measure rlaunch beside its peers.
    #[command(subcommand)]
    Bench(Bench),
    /// Repeat one thing many times.
    #[command(subcommand)]
    Soak(Soak),
}

/// Options of `cargo lab test`.
#[derive(Debug, clap::Args)]
pub(crate) struct TestArgs {
    /// Run only this stage.
    #[arg(long, value_parser = PossibleValuesParser::new(stages::names()))]
    pub(super) stage: Option<String>,
    /// Run only tests whose names contain this.
    #[arg(long)]
    pub(super) filter: Option<String>,
    /// Run only tests that the changes since REV can affect, and list the others. REV is by default
    /// origin/main, else the last commit that passed here, else the commit before this one.
    #[arg(long, value_name = "REV", num_args = 0..=1, conflicts_with = "repeat")]
    #[expect(clippy::option_option, reason = "the option may be given without a value")]
    pub(super) changed: Option<Option<String>>,
    /// Run only tests that are marked #[ignore]: those that take minutes and change with one part of
    /// the code, or need programs that few machines have.
    #[arg(long, requires = "filter")]
    pub(super) ignored: bool,
    /// Run the selected tests N times, and print how often each failed.
    #[arg(long, value_name = "N", requires = "filter", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) repeat: Option<u32>,
}

impl Verb {
    /// Returns whether the verb enters or changes namespaces. `test` does so in some stages only: it
    /// becomes root by itself if it can, and skips those stages otherwise.
    pub(super) fn needs_root(&self) -> bool {
        match self {
            Verb::Hosts(verb) => verb.needs_root(),
            Verb::Vm(verb) => verb.needs_root(),
            Verb::Soak(_) | Verb::Demo { .. } | Verb::Bench(_) => true,
            _ => false,
        }
    }
}
