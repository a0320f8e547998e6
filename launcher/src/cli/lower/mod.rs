//! From what was typed to what was meant: after this, nothing looks at an argument again.

mod apps;

use crate::cli::args::{
    AnotherArgs, Args, ConfigArgs, ForeignArgs, HostArgs, NetworkArgs, OtherNodes, PlacingArgs,
    ReachArgs,
};
use crate::cli::config::{ConfigError, Found};
use crate::cli::host_selection::{self, ListingError};
use crate::connect::connector::{Container, ContainerOptionError, Rsh, RshError};
use crate::connect::options::ConnectOptions;
use crate::hosts::Host;
use crate::hosts::addresses;
use crate::job::apps::{AppError, AppSpec};
use crate::job::options::{OutputOptions, Restarts};
use crate::job::stdin::{Stdin, StdinError};
use crate::job::{JobSpec, NoRandom, Preload, random};
use crate::plan::horovod;
use crate::plan::map::{self, MapBy, TwoNumbers};
use crate::plan::placement::Bind;
use crate::plan::rank_config::{Options, Transport};
use crate::plan::rank_env::{self, EnvError};
use crate::plan::selection::PortWishes;
use rlaunch_bootstrap::client::messages::Token;
use rlaunch_bootstrap::id::JobId;
use rlaunch_bootstrap::job::{EnvVar, PreloadFile, ScriptCheck, WorkingDir};
use rlaunch_bootstrap::security::handshake::Secret;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use sha2::{Digest, Sha256};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Scripts up to this size are compared with the hosts' copies, in bytes.
const COMPARED: u64 = 1 << 20;

/// Lowers what was typed; an error says what was not typed but set, as well.
pub(crate) fn specify(args: Args) -> Result<JobSpec, Failed> {
    let not_typed = args.reach.config.found.hint();
    job(args).map_err(|error| {
        Failed::from_error(error.exit(), &error).hint(error.hint()).hint(not_typed)
    })
}

/// Lowers what was typed, and looks at this machine's files and environment once.
pub(crate) fn job(args: Args) -> Result<JobSpec, JobError> {
    let others = args.others.iter().map(|other| &other.foreign);
    ForeignArgs::tell([&args.foreign].into_iter().chain(others));
    let book = &args.reach.config.found.book;
    let with_slots = |other: AnotherArgs| {
        let hosts = book.with_slots(&other.hosts);
        AnotherArgs { hosts, ..other }
    };
    let others: Vec<AnotherArgs> = args.others.into_iter().map(with_slots).collect();
    let preferred = book.mesh();
    let named = HostArgs { hosts: book.with_slots(&args.hosts.hosts), ..args.hosts };
    let HostArgs { map_by, per_node, rank_by, .. } = named;
    let (map_by, rank_by) = map::order(map_by, per_node, rank_by)?;
    let found = args.reach.config.found.clone();
    let mut reach = connect_options(args.reach)?;
    let (hosts, local) = hosts_of_job(&named, &others, &found, &mut reach)?;
    args.foreign.check_nodes(&hosts)?;
    let here = std::env::current_dir().map_err(JobError::WorkingDir)?;
    let wanted = rank_env::Wanted {
        named: named_variables(&args.network, args.program.env),
        files: args.program.env_file,
        nothing_else: args.program.no_env,
        login: args.program.login,
    };
    let (env, explicit) = variables(&wanted, &args.network)?;
    let script = |argv: &[OsString]| {
        let script = script_of(argv).and_then(|path| check(path, &here));
        mention_files(argv, script.as_ref(), &here);
        script
    };
    let options = Options { map_by, ..options(args.placing, args.network, &env)? };
    let wdir = args.program.wdir;
    let first = AppSpec {
        name: None,
        hosts: None,
        ranks: named.ranks,
        script: script(&args.command.argv),
        wdir: wdir.map_or(WorkingDir::SameAsLauncher(here.clone()), WorkingDir::Required),
        argv: args.command.argv,
        env,
        explicit,
        preload: (0..).zip(&args.program.preload).map(|(index, _)| index).collect(),
        after: Vec::new(),
        templates: Vec::new(),
    };
    let files = args.program.preload;
    let (apps, files) = apps::lower(first, &args.application, files, others, script)?;
    apps::check_slots(&apps, &hosts)?;
    let dry_run = args.output.dry_run;
    let id = JobId(uuid::Uuid::now_v7().as_u128());
    Ok(JobSpec {
        id,
        events: args.output.events,
        local,
        hosts,
        map_by,
        rank_by,
        oversubscribe: named.oversubscribe,
        apps,
        serve: args.end.serve,
        options,
        typed: args.typed,
        login: wanted.login,
        no_env: wanted.nothing_else,
        preload: preloads(&files)?,
        singleton: args.program.singleton.into(),
        stdin: Stdin::of(args.output.stdin.as_ref())?,
        output: OutputOptions {
            tag: args.output.tag_output,
            directory: args.output.output_dir,
            merge_stderr: args.output.merge_stderr,
        },
        kill_after: args.end.kill_after,
        node_timeout: args.end.node_timeout,
        timeout: args.end.timeout,
        continue_on_error: args.end.continue_on_error,
        port_range: args.between.port_range,
        master_port: args.between.master_port,
        oob: addresses::Choice {
            interfaces: args.between.oob_if,
            networks: args.between.oob_net,
            preferred,
            preferences: args.foreign.preferences,
        },
        radix: args.between.radix,
        secret: Secret::from_bytes(random()?),
        token: Token(random()?),
        show: args.output.show,
        dry_run,
        restarts: args.end.max_restarts.map(Restarts::up_to).filter(|_| dry_run.is_none()),
        reach,
        is_recorded: !args.output.no_record && dry_run.is_none(),
        aside: args.aside,
    })
}

/// Lists the variables that were asked for by name, the plugin that NCCL is to load among them.
fn named_variables(network: &NetworkArgs, typed: Vec<OsString>) -> Vec<OsString> {
    let plugin = network.nccl_net_plugin.iter().map(|path| {
        let mut variable = OsString::from("NCCL_NET_PLUGIN=");
        variable.push(path);
        variable
    });
    plugin.chain(typed).collect()
}

/// Collects the variables that go along from this shell, and the names of those that were asked for.
fn variables(
    wanted: &rank_env::Wanted,
    network: &NetworkArgs,
) -> Result<(Vec<EnvVar>, Vec<String>), JobError> {
    let (mut env, explicit) = rank_env::forwarded(std::env::vars_os(), wanted)?;
    let name = rlaunch_bootstrap::env::RLAUNCH_INIT_TIMEOUT;
    if network.init_timeout.is_some() && !explicit.iter().any(|asked| asked == name) {
        // An option that was typed wins over the shell's variable.
        env.retain(|var| var.name != name);
    }
    for var in &env {
        let (name, value) = (var.name.to_string_lossy(), var.value.to_string_lossy());
        tracing::debug!(
            "forwards {name}={}",
            rlaunch_bootstrap::env::redacted_value(&name, &value)
        );
    }
    Ok((env, explicit))
}

/// Names the hosts of the job, this machine if there are none, and says whether they are this machine
/// alone.
fn hosts_of_job(
    named: &HostArgs,
    others: &[AnotherArgs],
    found: &Found,
    reach: &mut ConnectOptions,
) -> Result<(Vec<Host>, bool), JobError> {
    let mut hosts = host_selection::hosts(named, reach)?;
    let local = reach.settle(&apps::all_hosts(&hosts, others)?);
    if hosts.is_empty() {
        found.check_no_hosts()?;
        let slots = apps::ranks_on_common(named.ranks, others);
        hosts.push(Host { slots, ..Host::this_machine() });
    }
    Ok((hosts, local))
}

/// Lowers what was typed of how hosts are reached.
pub(crate) fn connect_options(args: ReachArgs) -> Result<ConnectOptions, JobError> {
    let ReachArgs {
        config: ConfigArgs { found: Found { book, check_ssh_config_permissions, .. }, .. },
        port,
        ssh_config,
        rsh,
        new_hosts,
        container,
        container_exec,
        agent,
        agent_dir,
        ssh_fanout: fanout,
    } = args;
    if let Some(directory) = &agent_dir {
        crate::connect::agent::deploy::check_directory(directory).map_err(JobError::AgentDir)?;
    }
    let rsh = rsh.map(|text| Rsh::parse("--rsh", &text)).transpose()?;
    let container = Container::from_args(container, container_exec)?;
    let (here, retry_until_up) = (false, false);
    Ok(ConnectOptions {
        book,
        port,
        ssh_config,
        check_ssh_config_permissions,
        rsh,
        new_hosts,
        container,
        here,
        retry_until_up,
        agent,
        agent_dir,
        fanout,
    })
}

/// Lowers the options for ranks' places and networks.
fn options(
    placing: PlacingArgs,
    network: NetworkArgs,
    env: &[EnvVar],
) -> Result<Options, JobError> {
    let bind = match (placing.bind, placing.cpus_per_rank) {
        (bind, None) => bind.unwrap_or_default(),
        (None | Some(Bind::Core(_)), each) => Bind::Core(each),
        (Some(_), Some(_)) => return Err(JobError::CpusPerRank),
    };
    let require_rdma = network.require_rdma;
    let transport = match (network.transport, require_rdma) {
        (Transport::Tcp, true) => return Err(JobError::RdmaByTcp),
        (_, true) => Transport::Rdma,
        (transport, false) => transport,
    };
    Ok(Options {
        map_by: MapBy::default(),
        bind,
        gpu_mask: placing.gpu_mask,
        transport,
        require_rdma,
        ports: PortWishes {
            hca: network.hca,
            gid_index: network.gid_index,
            connect: network.connect,
        },
        nccl_net_plugin: network.nccl_net_plugin,
        nccl_verify: network.nccl_verify,
        nccl_share_gpu: network.nccl_share_gpu,
        env_styles: network.env_style,
        horovod: !network.no_horovod && horovod::is_left_to_us(env),
        traffic_class: network.mesh.traffic_class,
        service_level: network.mesh.service_level,
        init_timeout: network.init_timeout,
        mesh: network.mesh.options(),
    })
}

fn preloads(paths: &[PathBuf]) -> Result<Vec<Preload>, JobError> {
    let mut preloads: Vec<Preload> = Vec::new();
    for path in paths {
        let failed = |source| JobError::Preload { path: path.clone(), source };
        let metadata = fs::metadata(path).map_err(failed)?;
        let name = path.file_name().filter(|_| metadata.is_file());
        let name = name.ok_or_else(|| failed(io::Error::other("it is not a file")))?.to_owned();
        if preloads.iter().any(|other| other.file.name == name) {
            return Err(JobError::PreloadTwice { name });
        }
        let mode = metadata.permissions().mode() & 0o777;
        let file = PreloadFile { typed: path.clone(), name, size: metadata.len(), mode };
        preloads.push(Preload { file, source: path.clone() });
    }
    Ok(preloads)
}

/// Other arguments that name a file here may be meant for the hosts to have as well.
fn mention_files(argv: &[OsString], script: Option<&ScriptCheck>, here: &Path) {
    let is_script = |arg: &OsStr| script.is_some_and(|script| script.path == arg);
    for argument in argv.iter().skip(1).filter(|arg| !is_script(arg)) {
        if here.join(argument).is_file() {
            tracing::info!("{} names a file here: do the hosts have it?", argument.display());
        }
    }
}

/// Says what the hosts must have for `path` to be run, when this machine has it.
fn check(path: &OsStr, here: &Path) -> Option<ScriptCheck> {
    let metadata = fs::metadata(here.join(path)).ok().filter(fs::Metadata::is_file)?;
    let content = (metadata.len() <= COMPARED).then(|| fs::read(here.join(path)).ok()).flatten();
    let sha256 = content.map(|bytes| Sha256::digest(bytes).into());
    Some(ScriptCheck { path: path.into(), sha256 })
}

/// The script that an interpreter is given: the first argument that is no option.
fn script_of(argv: &[OsString]) -> Option<&OsStr> {
    let program = Path::new(argv.first()?).file_name()?.to_str()?;
    let version = program.strip_prefix("python").map(|v| v.trim_start_matches(['.', '-']));
    let is_python = version.is_some_and(|v| v.chars().all(|c| c.is_ascii_digit() || c == '.'));
    // Options that take the next word, and those after which there is no script.
    let (takes_word, no_script): (&[&str], &[&str]) = match program {
        _ if is_python => (&["-W", "-X", "--check-hash-based-pycs"], &["-c", "-m", "-V"]),
        "bash" | "sh" => (&["-o", "+o", "-O", "+O", "--rcfile", "--init-file"], &["-c", "-s"]),
        _ => return None,
    };
    let mut words = argv[1..].iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if no_script.contains(&&*text) || text == "-" {
            return None;
        }
        if takes_word.contains(&&*text) {
            words.next();
        } else if text == "--" {
            return words.next().map(OsString::as_os_str);
        } else if !text.starts_with(['-', '+']) {
            return Some(word);
        }
    }
    None
}

/// A command line that cannot be meant.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Listing(#[from] ListingError),
    #[error(transparent)]
    TwoNumbers(#[from] TwoNumbers),
    #[error(transparent)]
    Env(#[from] EnvError),
    #[error(transparent)]
    OtherNodes(#[from] OtherNodes),
    #[error(transparent)]
    App(#[from] AppError),
    #[error(transparent)]
    Rsh(#[from] RshError),
    #[error(transparent)]
    Container(#[from] ContainerOptionError),
    #[error("cannot tell the working directory")]
    WorkingDir(#[source] io::Error),
    #[error(transparent)]
    Stdin(#[from] StdinError),
    #[error("cannot preload {}", path.display())]
    Preload { path: PathBuf, source: io::Error },
    #[error("two preloaded files are called {}", name.display())]
    PreloadTwice { name: OsString },
    #[error("{0}")]
    AgentDir(String),
    #[error("--cpus-per-rank is for --bind core, which it implies")]
    CpusPerRank,
    #[error("--require-rdma and --transport tcp exclude each other")]
    RdmaByTcp,
    #[error(transparent)]
    Random(#[from] NoRandom),
}

impl JobError {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            JobError::Preload { .. }
            | JobError::WorkingDir(_)
            | JobError::Stdin(_)
            | JobError::App(AppError::Read { .. }) => Exit::FILES,
            _ => Exit::USAGE,
        }
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            JobError::Config(error) => error.hint(),
            JobError::Listing(error) => error.hint(),
            JobError::Env(error) => error.hint(),
            JobError::OtherNodes(_) => Some("without --nnodes all hosts take part".into()),
            JobError::App(error) => error.hint(),
            JobError::Rsh(error) => error.hint(),
            JobError::Stdin(error) => error.hint(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(line: &str) -> Option<String> {
        let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        script_of(&argv).map(|s| s.to_string_lossy().into_owned())
    }

    #[test]
    fn the_script_is_the_first_argument_that_is_no_option() {
        let some = |path: &str| Some(path.to_owned());
        assert_eq!(script("python train.py --epochs 3"), some("train.py"));
        assert_eq!(script("/usr/bin/python3.11 -u -W ignore ./train.py"), some("./train.py"));
        assert_eq!(script("bash -x -o pipefail run.sh a"), some("run.sh"));
        assert_eq!(script("sh -- -odd"), some("-odd"));
        for none in
            ["python -m torch", "python -c pass", "sh -c true", "./train.py", "python", "perl x"]
        {
            assert_eq!(script(none), None, "{none}");
        }
    }

    #[test]
    fn preloads_are_files_with_names_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.py");
        fs::write(&file, "pass").unwrap();
        assert_eq!(preloads(std::slice::from_ref(&file)).unwrap()[0].file.size, 4);
        assert!(matches!(preloads(&[file.clone(), file]), Err(JobError::PreloadTwice { .. })));
        let directory = preloads(&[dir.path().to_owned()]);
        assert!(matches!(directory, Err(JobError::Preload { .. })));
    }
}
