//! What was meant: the job as the rest of the launcher knows it. After [`JobSpec::from_args`]
//! nothing looks at a flag again.

pub(crate) mod apps;

use crate::cli::args::{
    AnotherArgs, Args, ConfigArgs, ForeignArgs, HostArgs, NetworkArgs, OtherNodes, PlacingArgs,
    ReachArgs,
};
use crate::cli::config::{ConfigError, Found, HostBook};
use crate::cli::listing::{self, ListingError};
use crate::connect::route::{BadContainer, Container, Rsh, RshError};
use crate::console::exit::Exit;
use crate::hosts::addresses;
use crate::hosts::{self, Host, SlotsBy};
use crate::plan::horovod;
use crate::plan::map::{self, MapBy, MapError, RankBy, RankMap, TwoNumbers};
use crate::plan::placement::Bind;
use crate::plan::rank_env::{self, EnvError};
use crate::plan::selection::PortWishes;
use crate::plan::setup::{Options, Transport, Wishes};
use crate::run::dry_run::DryRun;
use crate::run::events::{Events, Record};
use crate::run::output;
use crate::run::record::Recorder;
use crate::run::restart::Restarts;
use crate::run::show::Show;
use crate::run::stdin::{Stdin, StdinError};
use crate::ssh::new_hosts::NewHostsRule;
use apps::{AppError, AppSpec};
use ring::rand::SecureRandom;
use rlaunch_bootstrap::client::wire::Token;
use rlaunch_bootstrap::id::JobId;
use rlaunch_bootstrap::job::{EnvVar, PortRange, PreloadFile, ScriptCheck, Singleton, WorkingDir};
use rlaunch_bootstrap::secure::Secret;
use sha2::{Digest, Sha256};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Scripts up to this size are compared with the hosts' copies, in bytes.
const COMPARED: u64 = 1 << 20;

/// One run of rlaunch.
pub(crate) struct JobSpec {
    pub(crate) id: JobId,
    /// In the order given; only this machine when none were. Programs may have others of their own.
    pub(crate) hosts: Vec<Host>,
    /// Run on this machine, without SSH or a container.
    pub(crate) local: bool,
    pub(crate) map_by: MapBy,
    /// `None` numbers ranks as they are dealt out.
    pub(crate) rank_by: Option<RankBy>,
    pub(crate) oversubscribe: bool,
    /// What it runs, at least one.
    pub(crate) apps: Vec<AppSpec>,
    /// They are services: when a rank ends, the job does.
    pub(crate) serve: bool,
    /// The whole command line of rlaunch.
    pub(crate) typed: Vec<OsString>,
    /// Nothing else goes along from this shell, to this machine's own agent neither.
    pub(crate) no_env: bool,
    /// What a login on a host sets counts there before what goes along from here.
    pub(crate) login: bool,
    pub(crate) options: Options,
    pub(crate) preload: Vec<Preload>,
    pub(crate) singleton: Singleton,
    pub(crate) stdin: Stdin,
    pub(crate) output: output::Wanted,
    pub(crate) kill_after: Duration,
    /// How long a node may be silent before it is lost.
    pub(crate) node_timeout: Duration,
    pub(crate) timeout: Option<Duration>,
    pub(crate) continue_on_error: bool,
    pub(crate) port_range: PortRange,
    /// MASTER_PORT, where the user has chosen it.
    pub(crate) master_port: Option<u16>,
    /// Which addresses agents may use among themselves.
    pub(crate) oob: addresses::Choice,
    /// The most children an agent has in the tree, when the user says so.
    pub(crate) radix: Option<u32>,
    /// What agents of this job have in common.
    pub(crate) secret: Secret,
    /// By which ranks of this job are known.
    pub(crate) token: Token,
    pub(crate) show: Vec<Show>,
    /// No rank is to be started.
    pub(crate) dry_run: Option<DryRun>,
    /// Where it may begin again.
    pub(crate) restarts: Option<Restarts>,
    pub(crate) reach: Reach,
    pub(crate) events: Events,
    /// `None` where no record is wanted.
    pub(crate) recorder: Option<Recorder>,
    /// What ranks print to stdout goes to stderr.
    pub(crate) aside: bool,
}

/// How hosts are reached and where the agent is kept.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    /// What is known of hosts beside their names.
    pub(crate) book: HostBook,
    pub(crate) port: Option<u16>,
    pub(crate) ssh_config: Option<PathBuf>,
    /// The command that leads to the hosts, in place of SSH.
    pub(crate) rsh: Option<Rsh>,
    pub(crate) container: Option<Container>,
    /// The only host is this machine, where a container is to be entered.
    pub(crate) here: bool,
    pub(crate) agent: Option<PathBuf>,
    pub(crate) agent_dir: Option<String>,
    /// Rule for hosts whose keys are not known, where the command line has one.
    pub(crate) new_hosts: Option<NewHostsRule>,
    /// Handshakes at one time, where the user says so.
    pub(crate) fanout: Option<u16>,
    /// Hosts may not be there yet: a name that nobody knows and a port where nobody listens are
    /// tried again for a while.
    pub(crate) patient: bool,
}

impl Reach {
    pub(crate) fn from_args(args: ReachArgs) -> Result<Reach, JobError> {
        let ReachArgs {
            config: ConfigArgs { found: Found { book, .. }, .. },
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
            crate::connect::agent::deliver::check_directory(directory)
                .map_err(JobError::AgentDir)?;
        }
        let rsh = rsh.map(|text| Rsh::parse("--rsh", &text)).transpose()?;
        let container = Container::from_args(container, container_exec)?;
        let (here, patient) = (false, false);
        Ok(Reach {
            book,
            port,
            ssh_config,
            rsh,
            new_hosts,
            container,
            here,
            patient,
            agent,
            agent_dir,
            fanout,
        })
    }

    /// Whether these hosts mean this machine, with nothing on the way.
    pub(crate) fn settle(&mut self, hosts: &[Host]) -> bool {
        let is_local = hosts::are_local(hosts);
        self.here = is_local && self.container.is_some();
        is_local && !self.here
    }
}

/// A file to copy and where it is here.
#[derive(Clone, Debug)]
pub(crate) struct Preload {
    pub(crate) file: PreloadFile,
    pub(crate) source: PathBuf,
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
    Container(#[from] BadContainer),
    #[error("cannot tell the working directory")]
    WorkingDir(#[source] io::Error),
    #[error(transparent)]
    Stdin(#[from] StdinError),
    #[error("cannot preload {}", path.display())]
    Preload { path: PathBuf, source: io::Error },
    #[error("two preloaded files are called {}", name.display())]
    PreloadTwice { name: OsString },
    #[error("cannot write events to {target}")]
    Events { target: String, source: io::Error },
    #[error("{0}")]
    AgentDir(String),
    #[error("--cpus-per-rank is for --bind core, which it implies")]
    CpusPerRank,
    #[error("--require-rdma and --transport tcp exclude each other")]
    RdmaByTcp,
    #[error("the system has no random numbers")]
    Random,
}

impl JobError {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            JobError::Preload { .. }
            | JobError::WorkingDir(_)
            | JobError::Events { .. }
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

impl JobSpec {
    /// Lowers what was typed, and looks at this machine's files and environment once.
    pub(crate) fn from_args(args: Args) -> Result<JobSpec, JobError> {
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
        let mut reach = Reach::from_args(args.reach)?;
        let mut hosts = listing::hosts(&named, &mut reach)?;
        let local = reach.settle(&apps::all_hosts(&hosts, &others)?);
        if hosts.is_empty() {
            found.check_no_hosts()?;
            let slots = apps::ranks_on_common(named.ranks, &others);
            hosts.push(Host { slots, ..Host::this_machine() });
        }
        args.foreign.check_nodes(&hosts)?;
        let here = std::env::current_dir().map_err(JobError::WorkingDir)?;
        let plugin = args.network.nccl_net_plugin.iter().map(|path| {
            let mut variable = OsString::from("NCCL_NET_PLUGIN=");
            variable.push(path);
            variable
        });
        let wanted = rank_env::Wanted {
            named: plugin.chain(args.program.env).collect(),
            files: args.program.env_file,
            nothing_else: args.program.no_env,
            login: args.program.login,
        };
        let (mut env, explicit) = rank_env::forwarded(std::env::vars_os(), &wanted)?;
        let name = rlaunch_bootstrap::env::RLAUNCH_INIT_TIMEOUT;
        if args.network.init_timeout.is_some() && !explicit.iter().any(|asked| asked == name) {
            // What is typed wins over what the shell has.
            env.retain(|var| var.name != name);
        }
        for var in &env {
            let (name, value) = (var.name.to_string_lossy(), var.value.to_string_lossy());
            tracing::debug!("forwards {name}={}", rlaunch_bootstrap::env::shown(&name, &value));
        }
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
            wdir: wdir.map_or(WorkingDir::Launchers(here.clone()), WorkingDir::Required),
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
        let events = Events::open(args.output.events.as_deref(), id).map_err(|source| {
            JobError::Events { target: args.output.events.clone().unwrap_or_default(), source }
        })?;
        Ok(JobSpec {
            id,
            events,
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
            output: output::Wanted::of(&args.output),
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
            recorder: (!args.output.no_record && dry_run.is_none()).then(Recorder::new),
            aside: args.aside,
        })
    }
}

/// What was asked for of ranks' places and networks.
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

impl JobSpec {
    /// The program before the first `:`, or the only one.
    pub(crate) fn first(&self) -> &AppSpec {
        &self.apps[0]
    }

    /// Whether the user has set a variable, for any program.
    pub(crate) fn asks_for(&self, name: &str) -> bool {
        self.apps.iter().any(|app| app.env.iter().any(|var| var.name == name))
    }

    /// Whether it takes the GPUs of hosts to know how many ranks they run.
    pub(crate) fn has_open_slots(&self) -> bool {
        let is_open = |host: &Host| host.slots_by == SlotsBy::Open;
        !matches!(self.map_by, MapBy::Ppr(_)) && self.hosts.iter().any(is_open)
    }

    /// Where every rank runs, if no slots are open.
    pub(crate) fn map_ranks(&self) -> Result<RankMap, MapError> {
        self.map_onto(&self.hosts)
    }

    /// Where every rank runs, where the job's own hosts are these, with slots that are known.
    pub(crate) fn map_onto(&self, hosts: &[Host]) -> Result<RankMap, MapError> {
        let by = |hosts: &[Host], ranks| {
            let map = RankMap::by(self.map_by, hosts, ranks, self.oversubscribe)?;
            Ok(map.numbered(self.map_by, self.rank_by))
        };
        match &self.apps[..] {
            [only] => by(hosts, only.ranks),
            several => apps::map_ranks(several, hosts, by),
        }
    }

    /// What setting ranks up needs of it. Who chooses a network for the first program does so for
    /// all.
    pub(crate) fn wishes(&self) -> Wishes<'_> {
        Wishes { options: &self.options, env: &self.first().env }
    }

    /// Runs a phase of the job and records how long it took.
    pub(crate) async fn phase<T>(&self, name: &str, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let done = work.await;
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!("{name}: {:.1} ms", seconds * 1e3);
        self.events.emit(&Record::Phase { name, seconds });
        done
    }
}

/// Bytes that nobody can guess.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], JobError> {
    let mut bytes = [0; N];
    let filled = ring::rand::SystemRandom::new().fill(&mut bytes);
    filled.map(|()| bytes).map_err(|_| JobError::Random)
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

/// What the hosts must have for `path` to be run, when this machine has it.
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
