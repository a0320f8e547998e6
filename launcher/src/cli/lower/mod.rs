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
    CompatArgs, EnvironmentArgs, HostArgs, JobArgs, MeasurementArgs, NetworkArgs, NodeCountError,
    OutputArgs, ProcessArgs, RendezvousArgs, TerminationArgs,
};
use crate::cli::config::{ConfigError, LoadedConfig};
use crate::cli::host_selection::{self, HostOptions, HostSelectionError, RankCount};
use rlaunch_bootstrap::job::Pseudoterminals;
use rlaunch_console::terminal;
use rlaunch_engine::connect::connector::{
    Container, ContainerOptionError, Launcher, Reach, RshError,
};
use rlaunch_engine::run::detach::Detaching;
use rlaunch_engine::run::job_run::{Launch, NoRandom, Stdio, new_identity};
use rlaunch_plan::env::forwarded::{EnvError, EnvOptions};
use rlaunch_plan::env::starters;
use rlaunch_plan::hosts::Host;
use rlaunch_plan::hosts::addresses::AddressConstraints;
use rlaunch_plan::job::apps::{AppError, AppSpec, template};
use rlaunch_plan::job::name::JobName;
use rlaunch_plan::job::options::{
    HangOptions, OutputOptions, Restarts, TimeoutReport, WatchOptions,
};
use rlaunch_plan::job::stdin::{Stdin, StdinError};
use rlaunch_plan::job::{Identity, JobSpec};
use rlaunch_plan::map::{self, MapBy, TwoNumbers};
use rlaunch_plan::options::{EnvStyle, Options};
use rlaunch_plan::rank_list::{RankList, RankListError};
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
pub(crate) fn job(mut args: JobArgs, config: &LoadedConfig) -> Result<Launch, JobError> {
    let HostArgs { map_by, per_node, rank_by, ranks, oversubscribe, .. } = args.hosts;
    let (map_by, rank_by) = map::combine_orders(map_by, per_node, rank_by)?;
    let rank_list = rank_list(&mut args)?;
    let programs = apps::with_hosts(args.other_programs, &config.hosts, map_by)?;
    let mut reach = connect_options(args.connect, config)?;
    reach.node_timeout = args.termination.node_timeout;
    let containers = options::containers(&reach, apps::images(&programs))?;
    let named = named_hosts(&args.hosts, config);
    let (mut hosts, place) = select_hosts(&named, ranks, map_by, &programs, config, &mut reach)?;
    limit_nodes(&args.compat, &mut hosts)?;
    let of_slurm = has_slurm_style(place, &mut args.network);
    let of_shell = EnvOptions { of_slurm, ..env_options(&args.environment, &containers) };
    let (env, user_set_vars) = options::variables(of_shell, &args.network)?;
    let rank_options = options::rank_options(args.placement, args.network, &env)?;
    let wdir = directory::of_option(args.environment.wdir)?;
    let preload = (0..).zip(&args.environment.preload).map(|(index, _)| index).collect();
    let words = apps::of_words(args.command.argv, args.python, wdir);
    let first = AppSpec { ranks, env, user_set_vars, preload, ..words };
    let (apps, preloaded) =
        apps::lower(first, &args.application, args.environment.preload, programs)?;
    apps::check_slots(&apps, &hosts)?;
    let (output, termination) = (args.output, args.termination);
    let (is_dry, watches_hangs) = (output.dry_run.is_some(), termination.hang_timeout.is_some());
    let Identity { id, name, secret, token } = new_identity()?;
    let mut spec = JobSpec {
        id,
        name: output.job_name.clone().unwrap_or(name),
        hosts,
        is_local: place == Place::Here,
        map_by,
        rank_by,
        oversubscribe,
        options: Options { rank_list, ..with_programs(rank_options, map_by, watches_hangs, &apps) },
        apps,
        serve: termination.serve,
        command_line: args.typed,
        directory: here().ok().map(|here| here.path),
        no_env: args.environment.no_env,
        login: args.environment.login,
        preload: apps::preloads(&preloaded)?,
        runs_copier: false,
        tree: None,
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
    options::enter_containers(&mut reach, &containers, &mut spec)?;
    let (stdio, detaching) = (stdio_with(args.detaching.as_ref()), args.detaching);
    Ok(Launch { spec, reach, stdio, detaching, tree: None })
}

/// Leaves this machine out if an option of another launcher says so, and checks the number of nodes that one gives.
fn limit_nodes(compat: &CompatArgs, hosts: &mut Vec<Host>) -> Result<(), JobError> {
    if !compat.leave_out_this_machine(hosts) {
        return Err(JobError::OnlyThisMachine);
    }
    Ok(compat.check_nodes(hosts)?)
}

/// Reads the rankfile. Its hosts are those of the job if no option names any.
fn rank_list(args: &mut JobArgs) -> Result<Option<RankList>, JobError> {
    let Some(path) = &args.hosts.rankfile else { return Ok(None) };
    if !args.other_programs.is_empty() {
        return Err(JobError::RankfileOfSeveral);
    }
    let others = [
        ("--npernode", args.hosts.per_node.is_some()),
        ("--rank-by", args.hosts.rank_by.is_some()),
    ];
    if let Some((option, _)) = others.into_iter().find(|(_, is_set)| *is_set) {
        return Err(JobError::RankfileAnd(option));
    }
    let list = RankList::read(path)?;
    if args.hosts.hosts.is_empty() && args.hosts.hostfiles.is_empty() {
        args.hosts.hosts = list.names();
    }
    Ok(Some(list))
}

/// Tells whether agents start by a step of Slurm. Ranks have the variables of its steps then.
fn has_slurm_style(place: Place, network: &mut NetworkArgs) -> bool {
    let in_slurm = place == Place::Slurm;
    if in_slurm && !network.env_style.contains(&EnvStyle::Slurm) {
        network.env_style.push(EnvStyle::Slurm);
    }
    in_slurm
}

/// Adds what the programs decide to the options of ranks.
fn with_programs(
    options: Options,
    map_by: MapBy,
    watches_hangs: bool,
    apps: &[AppSpec],
) -> Options {
    let starters = apps::starters(apps);
    let mut named_ports = template::named_ports(apps);
    named_ports.extend(starters::ports(&starters));
    Options { map_by, watches_hangs, named_ports, starters, ..options }
}

/// Returns where output goes: nowhere, if the job is going to leave its terminal.
fn stdio_with(detaching: Option<&Detaching>) -> Stdio {
    if detaching.is_some() { Stdio::Nowhere } else { Stdio::Stdout }
}

/// Collects the options for ranks' variables. With images, ranks have none of this shell but those that are named, as with
/// `docker run`.
fn env_options(environment: &EnvironmentArgs, containers: &[Option<Container>]) -> EnvOptions {
    let has_images = containers.iter().flatten().any(Container::is_image);
    EnvOptions {
        named: environment.env.clone(),
        files: environment.env_file.clone(),
        nothing_else: environment.no_env || has_images,
        login: environment.login,
        of_slurm: false,
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

/// Where all of a job runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// On this machine, without SSH or a container.
    Here,
    /// On nodes of the Slurm job in which rlaunch runs.
    Slurm,
    Elsewhere,
}

/// Selects the job's own hosts, or this machine if there are none.
fn select_hosts(
    options: &HostOptions<'_>,
    ranks: Option<u32>,
    map_by: MapBy,
    programs: &[apps::Program],
    config: &LoadedConfig,
    connect: &mut Reach,
) -> Result<(Vec<Host>, Place), JobError> {
    let mut hosts = host_selection::select(options, RankCount::new(ranks, map_by), connect)?;
    let all = apps::all_hosts(&hosts, programs).map_err(HostSelectionError::from)?;
    let is_local = connect.settle(&all);
    let place = if is_local && connect.launcher != Launcher::Srun {
        Place::Here
    } else if host_selection::choose_launcher(&all, connect)? {
        Place::Slurm
    } else {
        Place::Elsewhere
    };
    if hosts.is_empty() {
        config.check_no_hosts()?;
        let slots = apps::ranks_on_job_hosts(ranks, programs);
        hosts.push(Host { slots, ..Host::this_machine() });
    }
    Ok((hosts, place))
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
    #[error("--volume: {0}")]
    Volume(String),
    #[error("programs on {0} want different containers, and a host has one")]
    TwoContainers(String),
    #[error(transparent)]
    RankList(#[from] RankListError),
    #[error("--rankfile lists the ranks of one program, and there are several")]
    RankfileOfSeveral,
    #[error("--rankfile says where each rank runs, and {0} says otherwise")]
    RankfileAnd(&'static str),
    #[error("--no-local leaves none of the hosts: this machine is the only one")]
    OnlyThisMachine,
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
        let settings = match self {
            JobError::Env(_) => config.hint_on(|option| matches!(option, "env" | "env-file")),
            _ => config.hint(),
        };
        Failed::from_error(self.exit(), &self).hint(self.hint()).hint(settings)
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
            JobError::RankList(_) => Some(
                "a rankfile has a line for each rank, such as `rank 0=a slot=0-3`, or just its host".into(),
            ),
            JobError::RankfileOfSeveral => Some("behind each `:`, -H names the hosts of a program".into()),
            JobError::OnlyThisMachine => Some("-H names other hosts".into()),
            JobError::TwoContainers(_) => {
                Some("-H behind each `:` gives programs hosts of their own".into())
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
    /// Verb that starts the job, which is named after it.
    pub(crate) verb: &'static str,
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
    pub(crate) fn new(
        verb: &'static str,
        args: MeasurementArgs,
        argv: Vec<OsString>,
    ) -> MeasurementJob {
        let process = ProcessArgs { env: Vec::new(), wdir: None, preload: Vec::new() };
        let map_by = MapBy::default();
        MeasurementJob { verb, args, argv, process, ranks: None, map_by, timeout: None }
    }

    pub(crate) fn with_one_rank_on_each_host(self) -> MeasurementJob {
        MeasurementJob { map_by: MapBy::Ppr(1), ..self }
    }

    /// Reads what the job needs of this machine's files and environment.
    pub(crate) fn launch(self, config: &LoadedConfig) -> Result<Launch, Failed> {
        self.lower(config).map_err(|error| error.into_failed(config))
    }

    fn lower(self, config: &LoadedConfig) -> Result<Launch, JobError> {
        let MeasurementJob { verb, args, argv, process, ranks, map_by, timeout } = self;
        let mut reach = options::connect_options(args.connect, config)?;
        reach.node_timeout = args.node_timeout;
        let lists =
            HostOptions { lists: &args.hosts, files: &[], exclude: &[], table: &config.hosts };
        let (hosts, place) = select_hosts(&lists, ranks, map_by, &[], config, &mut reach)?;
        let (nothing_else, of_slurm) = (reach.starts_containers(), place == Place::Slurm);
        options::mount_directory(&mut reach);
        let named =
            EnvOptions { named: process.env, nothing_else, of_slurm, ..EnvOptions::default() };
        let (env, user_set_vars) = options::variables(named, &args.network)?;
        let options = options::rank_options(args.placement, args.network, &env)?;
        let app = AppSpec {
            ranks,
            script: apps::read(&argv).script,
            env,
            user_set_vars,
            preload: (0..).zip(&process.preload).map(|(index, _)| index).collect(),
            ..AppSpec::new(argv, directory::of_option(process.wdir)?)
        };
        let identity = Identity { name: JobName::of_verb(verb), ..new_identity()? };
        let mut job = JobSpec::new(identity, hosts, app);
        job.is_local = place == Place::Here;
        job.map_by = map_by;
        job.oversubscribe = args.oversubscribe;
        job.options = with_programs(options, map_by, false, &job.apps);
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
        Ok(Launch { spec: job, reach, stdio: Stdio::Stdout, detaching: None, tree: None })
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
    use rlaunch_bootstrap::id::Rank;

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
    fn a_rankfile_names_hosts_and_cpus() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ranks");
        std::fs::write(&file, "rank 1=a slot=1\nrank 0=b slot=p0\nrank 2=a slot=0\n").unwrap();
        let line = |rest: &str| format!("--rankfile {} {rest}", file.display());
        let job = parse(&line("x")).unwrap();
        let map = job.map_ranks().unwrap();
        let places: Vec<String> =
            (0..3).map(|rank| map.node_of(Rank(rank)).unwrap().host.to_string()).collect();
        assert_eq!(places, ["b", "a", "a"]);
        assert!(job.options.wants_cores() && job.options.binds_by_list());
        assert_eq!(parse(&line("-np 2 x")).unwrap().map_ranks().unwrap().world_size, 2);
        let other = parse(&line("-H a,c x")).unwrap().map_ranks().unwrap_err().to_string();
        assert_eq!(other, "rank 0 of the rankfile is on b, and the hosts are a, c");
        assert!(
            parse(&line("--npernode 2 x")).err().unwrap().contains("--npernode says otherwise")
        );
        assert!(parse(&line("-np 1 x : -np 1 y")).err().unwrap().contains("several"));
        std::fs::write(&file, "rank 0=a slot=0:1\n").unwrap();
        assert!(parse(&line("x")).err().unwrap().contains("ranks:1: slot=0:1"));
        assert!(parse("-H localhost -nolocal x").err().unwrap().contains("the only one"));
    }

    #[test]
    fn hosts_get_one_of_a_program_that_starts_processes_itself() {
        let mapped = |line: &str| {
            let job = parse(line).unwrap();
            let map = job.map_ranks().unwrap();
            let ranks: Vec<usize> = map.nodes.iter().map(|node| node.ranks.len()).collect();
            let is_said = job.notes(&map).iter().any(|note| format!("{note:?}").contains("itself"));
            (ranks, is_said)
        };
        for (line, ranks, is_said) in [
            ("-H a:4,b:4 torchrun x.py", vec![1, 1], true),
            ("-H a,b torchrun x.py", vec![1, 1], false),
            ("-H a:4,b:4 -np 1 vllm serve m", vec![1], true),
            ("-H a:4,b:4 -np 3 torchrun x.py", vec![3], false),
            ("-H a:4,b:4 --npernode 2 torchrun x.py", vec![2, 2], false),
            ("-H a:4,b:4 python3 x.py", vec![4, 4], false),
            ("-H a -np 1 x : -H b:4,c:4 torchrun x.py", vec![1, 1, 1], false),
        ] {
            assert_eq!(mapped(line), (ranks, is_said), "{line}");
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("hosts");
        std::fs::write(&file, "a\nb\n").unwrap();
        let counts = |program: &str| {
            let line = format!("--hostfile {} {program}", file.display());
            parse(&line).unwrap().has_slots_from_gpus()
        };
        assert_eq!([counts("python3 x.py"), counts("torchrun x.py")], [true, false]);
    }

    #[test]
    fn each_host_has_the_container_of_its_programs() {
        let launch = |line: &str| {
            let words = ["rlaunch"].into_iter().chain(line.split(' ')).map(OsString::from);
            let (args, line) = crate::cli::command_line::parse_job(words.collect()).unwrap();
            job(args, &line.config).map_err(|error| error.to_string())
        };
        let line = "-H a --image one -x A=1 w : -H b --image two x : -H c --volume /d:/d y : -H d:2 -np 2 z";
        let Launch { spec, reach, .. } = launch(line).unwrap();
        let of = |name: &str| format!("{:?}", reach.of_hosts[name].as_ref().unwrap());
        assert!(of("a").contains("\"one\"") && of("b").contains("\"two\""), "{}", of("a"));
        assert!(of("c").contains("\"one\"") && of("c").contains("\"/d\""), "{}", of("c"));
        assert_eq!(of("d"), of("a"));
        let passed =
            |app: &AppSpec| app.env.iter().filter(|var| var.name != "PYTHONUNBUFFERED").count();
        assert!(spec.apps.iter().all(|app| passed(app) == 1), "{:?}", spec.apps[0].env);
        let plain = launch("-H a -np 1 x : -H b --image two y").unwrap().reach;
        assert!(plain.of_hosts["a"].is_none() && plain.of_hosts["b"].is_some());
        let local = launch("-np 1 x").unwrap();
        assert!(local.spec.is_local && !local.reach.here);
        let inside = launch("--image one -np 1 x").unwrap();
        assert!(!inside.spec.is_local && inside.reach.here);
        let error = launch("-H a:2 -np 1 x : -np 1 --image two y").err().unwrap();
        assert_eq!(error, "programs on a want different containers, and a host has one");
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
        let mut job = MeasurementJob { ranks: Some(3), ..MeasurementJob::new("bench", args, argv) };
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
