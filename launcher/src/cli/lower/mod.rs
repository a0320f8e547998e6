//! Lowering: conversion of parsed options to a [`JobSpec`]. All that a job needs of this machine's files and
//! environment is read here, and later stages do not read the options.
//!
//! | file | subject |
//! |---|---|
//! | `options` | options of ranks, of the network and of connections |
//! | `directory` | working directories of ranks |
//! | `apps` | one program or several; files that are copied to hosts, scripts, and files that hosts may lack |

mod apps;
mod directory;
mod options;
#[cfg(test)]
mod start_order_tests;

pub(crate) use directory::here;
pub(crate) use options::connect_options;

use crate::cli::args::{
    CompatArgs, EnvironmentArgs, HostArgs, JobArgs, MeasurementArgs, NodeCountError, OutputArgs,
    ProcessArgs, RendezvousArgs, TerminationArgs,
};
use crate::cli::config::{ConfigError, LoadedConfig};
use crate::cli::host_selection::{self, HostOptions, HostSelectionError, RankCount};
use rlaunch_bootstrap::job::Pseudoterminals;
use rlaunch_console::terminal;
use rlaunch_engine::connect::connector::{ContainerOptionError, Reach, RshError};
use rlaunch_engine::run::job_run::{Launch, NoRandom, Stdio, new_identity};
use rlaunch_plan::env::forwarded::{EnvError, EnvOptions};
use rlaunch_plan::hosts::Host;
use rlaunch_plan::hosts::addresses::AddressConstraints;
use rlaunch_plan::job::apps::{AppError, AppSpec, template};
use rlaunch_plan::job::options::{
    HangOptions, OutputOptions, Restarts, TimeoutReport, WatchOptions,
};
use rlaunch_plan::job::stdin::{Stdin, StdinError};
use rlaunch_plan::job::{Identity, JobSpec};
use rlaunch_plan::map::{self, MapBy, TwoNumbers};
use rlaunch_plan::options::Options;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::shell::quoted;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

/// Converts parsed options to a job, like [`job`]. Failures have hints, including one on settings from files
/// and variables.
pub(crate) fn job_or_fail(args: JobArgs, config: &LoadedConfig) -> Result<Launch, Failed> {
    job(args, config).map_err(|error| error.into_failed(config))
}

/// Converts parsed options to a job. Reads files and the environment of this machine.
pub(crate) fn job(args: JobArgs, config: &LoadedConfig) -> Result<Launch, JobError> {
    let HostArgs { map_by, per_node, rank_by, ranks, oversubscribe, .. } = args.hosts;
    let (map_by, rank_by) = map::combine_orders(map_by, per_node, rank_by)?;
    let programs = apps::with_hosts(args.other_programs, &config.hosts, map_by)?;
    let mut reach = connect_options(args.connect, config)?;
    reach.node_timeout = args.termination.node_timeout;
    let named = named_hosts(&args.hosts, config);
    let (hosts, is_local) = select_hosts(&named, ranks, map_by, &programs, config, &mut reach)?;
    args.compat.check_nodes(&hosts)?;
    let (env, user_set_vars) = options::variables(env_options(&args.environment), &args.network)?;
    let rank_options = options::rank_options(args.placement, args.network, &env)?;
    let wdir = directory::of_option(args.environment.wdir)?;
    let first = AppSpec {
        ranks,
        script: apps::script_check(&args.command.argv),
        env,
        user_set_vars,
        preload: (0..).zip(&args.environment.preload).map(|(index, _)| index).collect(),
        ..AppSpec::new(args.command.argv, wdir)
    };
    let (apps, preloaded) =
        apps::lower(first, &args.application, args.environment.preload, programs)?;
    apps::check_slots(&apps, &hosts)?;
    let (output, termination) = (args.output, args.termination);
    let (is_dry, watches_hangs) = (output.dry_run.is_some(), termination.hang_timeout.is_some());
    let named_ports = template::named_ports(&apps);
    let Identity { id, name, secret, token } = new_identity()?;
    let spec = JobSpec {
        id,
        name: output.job_name.clone().unwrap_or(name),
        hosts,
        is_local,
        map_by,
        rank_by,
        oversubscribe,
        apps,
        serve: termination.serve,
        command_line: args.typed,
        directory: here().ok().map(|here| here.path),
        no_env: args.environment.no_env,
        login: args.environment.login,
        options: Options { map_by, watches_hangs, named_ports, ..rank_options },
        preload: apps::preloads(&preloaded)?,
        runs_copier: false,
        mpi: args.environment.mpi,
        singleton: args.environment.singleton,
        stdin: stdin(&output)?,
        output: output_options(&output),
        kill_after: termination.kill_after,
        node_timeout: termination.node_timeout,
        timeout: termination.timeout,
        timeout_report: timeout_report(&termination)?,
        watches: watch_options(&termination),
        continue_on_error: termination.continue_on_error,
        port_range: args.rendezvous.port_range,
        master_port: args.rendezvous.master_port,
        radix: args.rendezvous.radix,
        oob: oob_constraints(args.rendezvous, args.compat, config),
        secret,
        token,
        show: output.show,
        dry_run: output.dry_run,
        restarts: termination.max_restarts.map(Restarts::up_to).filter(|_| !is_dry),
        events: output.events,
        is_recorded: !output.no_record && !is_dry,
        notify: termination.notify.filter(|_| !is_dry),
    };
    apps::check_copied_programs(&spec)?;
    let stdio = if args.detaching.is_some() { Stdio::Nowhere } else { Stdio::Stdout };
    Ok(Launch { spec, reach, stdio, detaching: args.detaching })
}

fn env_options(environment: &EnvironmentArgs) -> EnvOptions {
    EnvOptions {
        named: environment.env.clone(),
        files: environment.env_file.clone(),
        nothing_else: environment.no_env,
        login: environment.login,
    }
}

fn timeout_report(termination: &TerminationArgs) -> Result<TimeoutReport, JobError> {
    if termination.hang_report && termination.hang_timeout.or(termination.timeout).is_none() {
        return Err(JobError::HangReport);
    }
    let both = termination.hang_report && termination.timeout.is_some();
    Ok(TimeoutReport {
        state: both || termination.report_state_on_timeout,
        stacks: both || termination.get_stack_traces,
    })
}

fn watch_options(termination: &TerminationArgs) -> WatchOptions {
    let ends_job = !termination.hang_report;
    let hang = termination.hang_timeout.map(|timeout| HangOptions { timeout, ends_job });
    WatchOptions { hang, straggler_window: termination.straggler_report }
}

fn stdin(output: &OutputArgs) -> Result<Stdin, StdinError> {
    let option = output.stdin.as_ref();
    if output.detach { Stdin::of_detached(option) } else { Stdin::from_option(option) }
}

fn output_options(output: &OutputArgs) -> OutputOptions {
    OutputOptions {
        tag: output.tag_output.clone(),
        no_tag: output.no_tag,
        fold: output.fold,
        directory: output.output_dir.clone(),
        merge_stderr: output.merge_stderr,
        pseudoterminals: pseudoterminals(output, io::stdout().is_terminal()),
    }
}

/// Decides which ranks have a pseudoterminal. Without an option that needs a reader at a terminal: lines that come at
/// once are for people, and a pipe carries more.
fn pseudoterminals(output: &OutputArgs, is_terminal: bool) -> Pseudoterminals {
    let size = terminal::size_or_default();
    match (output.pty, output.no_pty) {
        (true, _) => Pseudoterminals::All(size),
        (false, false) if is_terminal => Pseudoterminals::Usual(size),
        _ => Pseudoterminals::None,
    }
}

/// Collects the options that choose the addresses by which agents reach each other.
fn oob_constraints(
    rendezvous: RendezvousArgs,
    compat: CompatArgs,
    config: &LoadedConfig,
) -> AddressConstraints {
    AddressConstraints {
        interfaces: rendezvous.oob_if,
        networks: rendezvous.oob_net,
        preferred: config.hosts.fabric_addresses(),
        preferences: compat.preferences,
    }
}

fn named_hosts<'a>(args: &'a HostArgs, config: &'a LoadedConfig) -> HostOptions<'a> {
    HostOptions {
        lists: &args.hosts,
        files: &args.hostfiles,
        exclude: &args.exclude,
        table: &config.hosts,
    }
}

/// Selects the job's own hosts, or this machine if there are none. Also tells whether the whole job runs on this
/// machine without SSH or a container.
fn select_hosts(
    options: &HostOptions<'_>,
    ranks: Option<u32>,
    map_by: MapBy,
    programs: &[apps::Program],
    config: &LoadedConfig,
    connect: &mut Reach,
) -> Result<(Vec<Host>, bool), JobError> {
    let mut hosts = host_selection::select(options, RankCount::new(ranks, map_by), connect)?;
    let all = apps::all_hosts(&hosts, programs).map_err(HostSelectionError::from)?;
    let is_local = connect.settle(&all);
    if hosts.is_empty() {
        config.check_no_hosts()?;
        let slots = apps::ranks_on_job_hosts(ranks, programs);
        hosts.push(Host { slots, ..Host::this_machine() });
    }
    Ok((hosts, is_local))
}

/// Error in the options of a job, or in a file that they name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    HostSelection(#[from] HostSelectionError),
    #[error(transparent)]
    TwoNumbers(#[from] TwoNumbers),
    #[error(transparent)]
    Env(#[from] EnvError),
    #[error(transparent)]
    NodeCount(#[from] NodeCountError),
    #[error(transparent)]
    App(#[from] AppError),
    #[error(transparent)]
    Rsh(#[from] RshError),
    #[error(transparent)]
    Container(#[from] ContainerOptionError),
    #[error("cannot determine the working directory")]
    WorkingDir(#[source] io::Error),
    #[error(transparent)]
    Stdin(#[from] StdinError),
    #[error("cannot copy {}", path.display())]
    Preload { path: PathBuf, source: io::Error },
    #[error("two files of --copy are called {}", name.display())]
    PreloadTwice { name: OsString },
    /// `line` is the command line by which an interpreter runs the program.
    #[error("{} is not executable", program.display())]
    CopyNotExecutable { program: OsString, line: Option<String> },
    #[error("{0}")]
    AgentDir(String),
    #[error("--cpus-per-rank is for --bind core, which it implies")]
    CpusPerRank,
    #[error("--require-rdma and --transport tcp exclude each other")]
    RdmaByTcp,
    #[error("--hang-report needs a time: --hang-timeout 300, or --timeout 3600")]
    HangReport,
    #[error(transparent)]
    Random(#[from] NoRandom),
}

impl JobError {
    /// Adds the hints, including one on settings from files and variables.
    fn into_failed(self, config: &LoadedConfig) -> Failed {
        Failed::from_error(self.exit(), &self).hint(self.hint()).hint(config.hint())
    }

    pub(crate) fn exit(&self) -> Exit {
        match self {
            JobError::Preload { .. }
            | JobError::WorkingDir(_)
            | JobError::Stdin(_)
            | JobError::App(AppError::Read { .. }) => Exit::FILES,
            JobError::CopyNotExecutable { .. } => Exit::NOT_EXECUTABLE,
            _ => Exit::USAGE,
        }
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            JobError::Config(error) => error.hint(),
            JobError::HostSelection(error) => error.hint(),
            JobError::Env(error) => error.hint(),
            JobError::NodeCount(error) => Some(error.hint().into()),
            JobError::App(error) => error.hint(),
            JobError::Rsh(error) => error.hint(),
            JobError::Stdin(error) => error.hint(),
            JobError::CopyNotExecutable { program, line } => {
                let line = line.as_deref().unwrap_or("name its interpreter before it");
                Some(format!("{line}; or make it executable here: chmod +x {}", quoted(program)))
            }
            JobError::Preload { path, .. } if path.is_dir() => Some(format!(
                "a directory goes by rlaunch push -H HOSTS {}, or with the job by --sync",
                quoted(path.as_os_str())
            )),
            JobError::WorkingDir(_) => {
                Some("it may have been deleted: cd to another, or name one by --wdir".into())
            }
            _ => None,
        }
    }
}

/// Job of a verb: a program that measures, on the hosts that the user chose.
#[derive(Debug)]
pub(crate) struct MeasurementJob {
    pub(crate) args: MeasurementArgs,
    /// Program and its arguments.
    pub(crate) argv: Vec<OsString>,
    pub(crate) process: ProcessArgs,
    /// Number of ranks; `None` for one on each slot.
    pub(crate) ranks: Option<u32>,
    pub(crate) map_by: MapBy,
    pub(crate) timeout: Option<Duration>,
}

impl MeasurementJob {
    /// Makes a job with a rank on each slot of its hosts.
    pub(crate) fn new(args: MeasurementArgs, argv: Vec<OsString>) -> MeasurementJob {
        let process = ProcessArgs { env: Vec::new(), wdir: None, preload: Vec::new() };
        MeasurementJob { args, argv, process, ranks: None, map_by: MapBy::default(), timeout: None }
    }

    pub(crate) fn with_one_rank_on_each_host(self) -> MeasurementJob {
        MeasurementJob { map_by: MapBy::Ppr(1), ..self }
    }

    /// Reads what the job needs of this machine's files and environment.
    pub(crate) fn launch(self, config: &LoadedConfig) -> Result<Launch, Failed> {
        self.lower(config).map_err(|error| error.into_failed(config))
    }

    fn lower(self, config: &LoadedConfig) -> Result<Launch, JobError> {
        let MeasurementJob { args, argv, process, ranks, map_by, timeout } = self;
        let mut reach = options::connect_options(args.connect, config)?;
        reach.node_timeout = args.node_timeout;
        let lists =
            HostOptions { lists: &args.hosts, files: &[], exclude: &[], table: &config.hosts };
        let (hosts, is_local) = select_hosts(&lists, ranks, map_by, &[], config, &mut reach)?;
        let named = EnvOptions { named: process.env, ..EnvOptions::default() };
        let (env, user_set_vars) = options::variables(named, &args.network)?;
        let options = options::rank_options(args.placement, args.network, &env)?;
        let app = AppSpec {
            ranks,
            script: apps::script_check(&argv),
            env,
            user_set_vars,
            preload: (0..).zip(&process.preload).map(|(index, _)| index).collect(),
            ..AppSpec::new(argv, directory::of_option(process.wdir)?)
        };
        let mut job = JobSpec::new(new_identity()?, hosts, app);
        job.is_local = is_local;
        job.map_by = map_by;
        job.oversubscribe = args.oversubscribe;
        job.options = Options { map_by, ..options };
        job.preload = apps::preloads(&process.preload)?;
        job.node_timeout = args.node_timeout;
        job.timeout = timeout;
        job.oob = AddressConstraints {
            preferred: config.hosts.fabric_addresses(),
            ..AddressConstraints::default()
        };
        // The record says what the user typed, not the program that came of it.
        job.command_line = std::env::args_os().collect();
        job.directory = here().ok().map(|here| here.path);
        job.is_recorded = true;
        Ok(Launch { spec: job, reach, stdio: Stdio::Stdout, detaching: None })
    }
}

/// Parses the command line of a job; its words are separated by spaces.
#[cfg(test)]
pub(crate) fn parse(line: &str) -> Result<JobSpec, String> {
    use crate::cli::command_line::parse_job;

    let words = std::iter::once("rlaunch").chain(line.split(' ')).map(OsString::from);
    let (args, line) = parse_job(words.collect()).map_err(|error| format!("{error:?}"))?;
    job(args, &line.config).map(|launch| launch.spec).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Verb {
        #[command(flatten)]
        args: MeasurementArgs,
    }

    #[test]
    fn a_port_is_not_a_number_of_ranks() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            format!("--hostfile {}", path.display())
        };
        let ports = file("ports", "h0\nme@h1:2222 # two\n");
        for line in [
            "-H h1:2222 x",
            "-H h1:22 x",
            "-H a,me@h1:22022 --map-by node x",
            "-np 1 x : -H h1:2222 y",
            &format!("{ports} x"),
            &format!("{ports} -H h1 x"),
        ] {
            let error = parse(line).err().unwrap();
            assert!(error.contains("h1:22") && error.contains("slots, on which"), "{error}");
        }
        assert!(parse(&format!("{ports} x")).err().unwrap().contains("/ports gives a host 2222"));
        let counted = ["-H h:2222 -np 2 x", "-H h:2222 --ppn 2 x", "-np 1 x : -H h:2222 -np 1 y"];
        let written = [
            format!("{ports} -np 2 x"),
            format!("{ports} -H h0 x"),
            format!("{ports} -H h1:2 x"),
            format!("{ports} --exclude me@h1 x"),
            format!("{} x", file("slots", "h slots=2222\nh2:2222 slots=2\n")),
        ];
        for line in counted.into_iter().chain(written.iter().map(String::as_str)) {
            assert!(parse(line).is_ok(), "{line}: {:?}", parse(line).err());
        }
    }

    #[test]
    fn a_terminal_for_ranks_needs_one_here_or_the_option() {
        let of = |line: &str, is_terminal| {
            let words = ["rlaunch"].into_iter().chain(line.split(' ')).map(OsString::from);
            let (args, _) = crate::cli::command_line::parse_job(words.collect()).unwrap();
            pseudoterminals(&args.output, is_terminal)
        };
        let size = terminal::size_or_default();
        assert_eq!(of("x", true), Pseudoterminals::Usual(size));
        assert_eq!(of("x", false), Pseudoterminals::None);
        assert_eq!(of("--no-pty x", true), Pseudoterminals::None);
        assert_eq!(of("--pty x", false), Pseudoterminals::All(size));
        assert!(parse("--pty --no-pty x").is_err());
    }

    #[test]
    fn a_job_has_a_name() {
        assert_eq!(parse("--job-name night_1 x").unwrap().name.as_str(), "night_1");
        assert_eq!(parse("x").unwrap().name.as_str().split('-').count(), 2);
        for name in ["a/b", "last", "-x"] {
            let error = parse(&format!("--job-name={name} x")).err().unwrap();
            assert!(error.contains("job-name"), "{error}");
        }
    }

    #[test]
    fn a_job_without_a_terminal_keeps_its_output() {
        assert!(parse("-d --stdin none x").is_ok());
        for line in ["-d --no-record x", "--detach --dry-run x"] {
            assert!(parse(line).err().unwrap().contains("--detach"), "{line}");
        }
    }

    #[test]
    fn one_option_reports_the_ranks_at_either_time() {
        let both = TimeoutReport { state: true, stacks: true };
        let job = parse("--timeout 9 --hang-report x").unwrap();
        assert_eq!((job.timeout_report, job.watches.hang), (both, None));
        let job = parse("--hang-timeout 9 --hang-report x").unwrap();
        assert_eq!(job.timeout_report, TimeoutReport::default());
        assert!(job.watches.hang.is_some_and(|hang| !hang.ends_job));
        let job = parse("--timeout 9 --get-stack-traces x").unwrap();
        assert_eq!(job.timeout_report, TimeoutReport { state: false, stacks: true });
        assert!(parse("--hang-report x").err().unwrap().contains("--hang-timeout 300"));
    }

    #[test]
    fn options_mean_what_they_mean_for_a_job() {
        let typed = "-H a:2,b --oversubscribe --transport tcp --gpu-mask --node-timeout 9";
        let typed_job = format!("{typed} --stdin none -np 3 -x A=1 --timeout 7 ./program word");
        let expected = parse(&typed_job).unwrap();
        let words = ["verb"].into_iter().chain(typed.split(' '));
        let args = Verb::try_parse_from(words).unwrap().args;
        let argv = ["./program", "word"].map(OsString::from).to_vec();
        let mut job = MeasurementJob { ranks: Some(3), ..MeasurementJob::new(args, argv) };
        job.process.env.push("A=1".into());
        job.timeout = Some(Duration::from_secs(7));
        let job = job.launch(&LoadedConfig::default()).unwrap().spec;
        let seen = |job: &JobSpec| {
            let ranks = (&job.hosts, job.is_local, &job.apps, job.map_by, job.oversubscribe);
            let times = (job.kill_after, job.node_timeout, job.timeout);
            let network = (&job.options, &job.oob, job.port_range);
            format!("{:#?}", (ranks, times, network, job.mpi, job.singleton, job.is_recorded))
        };
        assert_eq!(seen(&job), seen(&expected));
    }
}
