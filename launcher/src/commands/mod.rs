//! Verbs, and the job that rlaunch runs without one.
//!
//! To add a verb:
//!
//! 1. Write `commands/NAME.rs` with its options, a struct that derives [`clap::Parser`], and with `run`. The first
//!    line of the struct's comment is the verb's line in `rlaunch --help`; `overview` has its line in `rlaunch -h`. Flatten
//!    [`crate::cli::args::ConnectArgs`] if the verb connects to hosts; with it the verb reads `rlaunch.toml`.
//! 2. Add its `mod` line here, its row to the table below, a variant to [`Verb`], and an arm to [`Verb::run`].
//! 3. If the verb asks the agents of hosts, flatten [`crate::cli::args::HostListArgs`] too and call `agent_session`. What
//!    it asks is a verb of the agent: an arm of `main` and a line of `USAGE` in `worker/src/main.rs`.
//! 4. If tests on hosts cover the verb, name them in the table `HOSTS` of `tests/lab/src/stages/reach.rs`.
//!
//! Help, completions, manual pages and hints on mistyped verbs are made from [`Verb`].
//!
//! | files | subject |
//! |---|---|
//! | `invocation` | which verb the command line means |
//! | `meant` | hints for a job that was meant as something else, such as a mistyped verb |
//! | `jobs`, `stack` | `rlaunch jobs`: jobs that run, and with -a those that have ended; `rlaunch stack`: where their ranks are |
//! | `found` | the job that a word means, running or ended |
//! | `rerun` | `rlaunch rerun`: a job run again |
//! | `stop` | `rlaunch stop`, `rlaunch wait`: the end of a job |
//! | `logs` | `rlaunch logs`: what ranks have printed |
//! | `monitor` | `rlaunch monitor`: what jobs and hosts do; metrics for Prometheus |
//! | `shell` | `rlaunch shell`: lines that are typed run on all hosts |
//! | `exec` | `rlaunch exec`, `rlaunch attach`: commands and debuggers beside a rank |
//! | `agent_session` | the agents of all hosts, asked at once or in a conversation |
//! | `topo`, `capture`, `reap` | verbs that ask all hosts at once |
//! | `changes` | changes to hosts that can be undone, for `up`, `down` and `doctor --fix` |
//! | `doctor` | `rlaunch doctor` |
//! | `self_test` | `rlaunch doctor --try`, once `self-test` |
//! | `network` | `rlaunch network discover`, `rlaunch network mesh` |
//! | `bench` | `rlaunch bench`; `rlaunch bench train` |
//! | `copy` | `rlaunch push`, `fetch` and `images`, `--sync` of jobs: files and images to hosts, and from them |
//! | `report` | `rlaunch report`; `log_metrics` finds speeds and networks in output |
//! | `up` | `rlaunch up` and `rlaunch down`: hosts become a cluster, and what they were |
//! | `hostfile`, `trust` | `rlaunch hostfile`, the older form of `--dry-run=offline`; `rlaunch trust` |
//! | `ssh_config`, `ssh_setup` | `rlaunch ssh --show`, once `ssh-config`; `rlaunch ssh-setup` |
//! | `host_files` | `rlaunch version`, `pack` and `cache`: what is sent to hosts, and kept there |
//! | `overview` | `rlaunch -h`, and what the help of verbs shows |
//! | `output` | JSON, and files with pictures (`--plot`) |
//! | `help`, `man` | topics and verbs explained; manual pages |
//! | `completions` | scripts for shells, and the words that they ask for |

mod agent_session;
pub(crate) mod bench;
mod capture;
mod changes;
mod completions;
pub(crate) mod copy;
pub(crate) mod doctor;
#[cfg(test)]
mod dry_run_tests;
pub(crate) mod exec;
mod found;
mod help;
mod host_files;
mod hostfile;
mod invocation;
pub(crate) mod jobs;
mod logs;
mod man;
mod meant;
mod monitor;
pub(crate) mod network;
mod output;
mod overview;
pub(crate) mod reap;
mod report;
mod rerun;
mod self_test;
mod shell;
mod ssh_config;
mod ssh_setup;
pub(crate) mod stack;
mod stop;
pub(crate) mod topo;
mod trust;
mod up;

pub(crate) use invocation::Invocation;

use crate::cli::args::JobArgs;
use crate::cli::command_line::CommandLine;
use crate::cli::lower;
use copy::sync::SyncedTree;
use rlaunch_console::messages;
use rlaunch_engine::run::{self, show};
use rlaunch_plan::job::options::DryRun;
use rlaunch_plan::options::Preflight;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::io::{self, IsTerminal};

/// Verb of rlaunch with its options. Commands for ranks, as `rlaunch kv`, are in
/// [`rlaunch_client::command`].
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    #[command(alias = "status")]
    Jobs(jobs::JobsArgs),
    Logs(logs::LogsArgs),
    #[command(hide = true)]
    History(jobs::HistoryArgs),
    Stop(stop::StopArgs),
    Wait(stop::WaitArgs),
    Rerun(rerun::RerunArgs),
    Stack(stack::StackArgs),
    Monitor(Box<monitor::MonitorArgs>),
    Shell(shell::ShellArgs),
    Exec(exec::ExecArgs),
    Attach(exec::AttachArgs),
    Push(Box<copy::push::PushArgs>),
    Fetch(Box<copy::fetch::FetchArgs>),
    Images(Box<copy::images::ImagesArgs>),
    Reap(reap::ReapArgs),
    Topo(topo::TopoArgs),
    Doctor(Box<doctor::DoctorArgs>),
    #[command(hide = true)]
    SelfTest(Box<self_test::SelfTestArgs>),
    Network(Box<network::NetworkCommand>),
    Capture(capture::CaptureArgs),
    Cache(host_files::CacheArgs),
    Bench(Box<bench::BenchCommand>),
    Report(report::ReportArgs),
    #[command(hide = true)]
    Hostfile(hostfile::HostfileArgs),
    Ssh(ssh_config::SshConfigArgs),
    #[command(hide = true)]
    SshConfig(ssh_config::SshConfigArgs),
    SshSetup(ssh_setup::SshSetupArgs),
    Up(Box<up::UpArgs>),
    Down(Box<up::down::DownArgs>),
    Trust(trust::TrustArgs),
    Version(host_files::VersionArgs),
    Pack(host_files::PackArgs),
    Completions(completions::CompletionsArgs),
    #[command(name = "__complete", hide = true)]
    Complete(completions::CompleteArgs),
    Man(man::ManArgs),
    Help(help::HelpArgs),
    /// No verb: a job.
    #[command(skip)]
    Job(Box<JobArgs>),
}

/// Other words for verbs.
const ALIASES: [&str; 1] = ["status"];

impl Verb {
    /// Runs the verb. `line` is its command line, with the settings from files and variables.
    #[expect(clippy::cognitive_complexity, reason = "a line for each verb")]
    pub(crate) async fn run(self, line: CommandLine) -> Result<Exit, Failed> {
        match self {
            Verb::Jobs(args) => jobs::run(args, &line).await,
            Verb::Logs(args) => logs::run(&args).await,
            Verb::History(args) => jobs::run_history(&args),
            Verb::Stop(args) => stop::run(args, &line).await,
            Verb::Rerun(args) => rerun::run(&args).await,
            Verb::Wait(args) => stop::run_wait(&args).await,
            Verb::Stack(args) => stack::run(&args).await,
            Verb::Monitor(args) => monitor::run(*args, &line).await,
            Verb::Shell(args) => shell::run(args, &line).await,
            Verb::Exec(args) => exec::run_exec(args).await,
            Verb::Attach(args) => exec::run_attach(args).await,
            Verb::Push(args) => copy::push::run_push(&args, &line).await,
            Verb::Fetch(args) => copy::fetch::run_fetch(*args, &line).await,
            Verb::Images(args) => copy::images::run(*args, &line).await,
            Verb::Reap(args) => reap::run(args, &line).await,
            Verb::Topo(args) => topo::run(args, &line).await,
            Verb::Doctor(args) => doctor::run(*args, &line).await,
            Verb::SelfTest(args) => self_test::run(*args, &line).await,
            Verb::Network(command) => network::run(*command, &line).await,
            Verb::Capture(args) => capture::run(args, &line).await,
            Verb::Cache(args) => host_files::run_cache(args, &line).await,
            Verb::Bench(command) => bench::run(*command, &line).await,
            Verb::Report(args) => report::run(&args).await,
            Verb::Hostfile(args) => hostfile::run(&args, &line),
            Verb::Ssh(args) | Verb::SshConfig(args) => ssh_config::run(&args),
            Verb::SshSetup(args) => ssh_setup::run(args).await,
            Verb::Up(args) => up::run(&args, &line).await,
            Verb::Down(args) => up::down::run(&args, &line).await,
            Verb::Trust(args) => trust::run(&args),
            Verb::Version(args) => host_files::run_version(&args),
            Verb::Pack(args) => host_files::run_pack(args),
            Verb::Completions(args) => completions::run(&args),
            Verb::Complete(args) => completions::run_complete(&args, &line).await,
            Verb::Man(args) => man::run(&args),
            Verb::Help(args) => help::run(&args),
            Verb::Job(args) => launch_job(*args, &line).await,
        }
    }
}

/// Runs a job or its dry run (`rlaunch PROGRAM`). If the job fails and its command line was meant as something else, the
/// failure has a hint with the command line to type.
async fn launch_job(args: JobArgs, line: &CommandLine) -> Result<Exit, Failed> {
    meant::refuse(&args)?;
    meant::refuse_habit(&args, &line.config).await?;
    let name = args.output.job_name.clone().filter(|_| args.output.dry_run.is_none());
    name.as_ref().map_or(Ok(()), found::refuse_taken)?;
    if io::stderr().is_terminal() {
        meant::aside(&args).iter().for_each(|hint| messages::dim_hint(hint));
    }
    let (meant, behind) = (meant::hint(&args), meant::options_behind(&args));
    if args.network.preflight == Preflight::Full {
        doctor::check_before_job(&args, line).await?;
    }
    let apart = meant::hosts_apart(&args);
    let tree = SyncedTree::from_options(&args.environment)?;
    let launch = lower::job_or_fail(args, &line.config).map_err(|failed| failed.hint(apart))?;
    // Both are held until the job has ended.
    let _name = match &name {
        Some(name) => found::hold_name(name, launch.spec.id)?,
        None => None,
    };
    let (launch, _copy) = match tree {
        Some(tree) => tree.place(launch).await?,
        None => (launch, None),
    };
    copy::image::place(&launch).await?;
    let ended = match launch.spec.dry_run {
        Some(DryRun::Offline) => show::offline(&launch.spec),
        Some(DryRun::Agents) | None => run::run_job(launch).await,
    };
    ended.map_err(|failed| match failed.exit {
        Exit::NOT_FOUND if !failed.by_rank => failed.hint(meant).hint(behind),
        _ => failed.hint(behind),
    })
}
