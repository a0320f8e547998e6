//! The job that the user asked for: its hosts, its programs and all options, checked and complete.
//!
//! | file | subject |
//! |---|---|
//! | `apps` | programs, their order of start, templates |
//! | `name` | names of jobs, and which job a word means |
//! | `options` | dry runs, `--show`, output, restarts |
//! | `stdin`, `tag_pattern` | `--stdin`; `--tag-output` |

pub mod apps;
pub mod name;
pub mod options;
pub mod stdin;
pub mod tag_pattern;

use crate::hosts::{Host, SlotsBy, addresses};
use crate::map::{MapBy, MapError, RankBy, RankMap};
use crate::options::{HIDING_GPUS, Options, UserChoices};
use crate::program::{Nodes, Starter, StarterKind};
use apps::AppSpec;
use name::JobName;
use options::{DryRun, OutputOptions, Restarts, Show, TimeoutReport, WatchOptions};
use rlaunch_bootstrap::id::JobId;
use rlaunch_bootstrap::job::{MpiInterfaces, PortRange, PreloadFile, SingletonPolicy};
use rlaunch_bootstrap::rendezvous::shape::TreeShape;
use rlaunch_bootstrap::security::{Secret, Token};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::{Failed, Message};
use rlaunch_text::shell;
use rlaunch_text::typed::TypedJob;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;
use stdin::{Readers, Stdin};

/// Default of `--kill-after`.
pub const KILL_AFTER: Duration = Duration::from_secs(5);
/// Default of `--node-timeout`.
const NODE_TIMEOUT: Duration = Duration::from_secs(6);
/// Time without `--node-timeout` that nodes wait for a launcher that sends nothing while its machine answers.
const LAUNCHER_TIMEOUT: Duration = Duration::from_secs(30);
/// Default of `--port-range`.
pub const PORT_RANGE: PortRange = PortRange { first: 21_000, last: 21_511 };

/// Copy of a working tree in which ranks run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeCopy {
    /// Where ranks have it. `~/` is the home directory.
    pub of_ranks: PathBuf,
    /// Where hosts have it: in the same place, unless ranks are in containers.
    pub of_hosts: PathBuf,
    /// Hosts whose copy is that of another host, with the latter: their home directory is one. Known once all have it.
    pub shared: OnceLock<Vec<(String, String)>>,
}

impl TreeCopy {
    /// Returns the host that stands for all that have the same copy as this one.
    pub fn holder<'a>(&'a self, host: &'a str) -> &'a str {
        let shared = self.shared.get().into_iter().flatten();
        let other = shared.into_iter().find(|(sharer, _)| sharer == host);
        other.map_or(host, |(_, holder)| holder)
    }

    /// Returns the path by which `rlaunch fetch` brings it, as a word for a shell.
    pub fn for_fetch(&self) -> String {
        // Below the home directory of the host, which a shell here knows nothing of.
        let path = self.of_hosts.strip_prefix("~").unwrap_or(&self.of_hosts);
        shell::quoted(path.as_os_str())
    }
}

/// Job as the user asked for it, with all options checked.
pub struct JobSpec {
    pub id: JobId,
    /// Name, which restarts keep.
    pub name: JobName,
    /// Hosts in the user's order; this machine if none were named or allocated. A program may have other
    /// hosts ([`AppSpec::hosts`]).
    pub hosts: Vec<Host>,
    /// Whether all ranks run on this machine, without SSH and outside of a container.
    pub is_local: bool,
    pub map_by: MapBy,
    /// `--rank-by`: the numbering of ranks. `None` numbers them in the order in which `map_by` assigns them
    /// to slots.
    pub rank_by: Option<RankBy>,
    pub oversubscribe: bool,
    /// Programs, at least one.
    pub apps: Vec<AppSpec>,
    /// Whether the programs are services, so that the job ends as soon as any rank exits.
    pub serve: bool,
    /// Whole command line of rlaunch, as the user typed it.
    pub command_line: Vec<OsString>,
    /// Directory in which the user typed it, by the path that the user knows; `None` if it has been deleted.
    pub directory: Option<PathBuf>,
    /// Whether ranks get none of this shell's variables except those of `-x` and `--env-file`. This includes
    /// ranks on this machine.
    pub no_env: bool,
    /// Whether variables that a login shell sets on a host override those passed on from this shell.
    pub login: bool,
    pub options: Options,
    pub preload: Vec<Preload>,
    /// Whether the program of ranks is the copier, which nodes keep.
    pub runs_copier: bool,
    /// Copy of a working tree that ranks run in.
    pub tree: Option<TreeCopy>,
    /// Process management interfaces that agents serve to MPI programs.
    pub mpi: MpiInterfaces,
    pub singleton: SingletonPolicy,
    pub stdin: Stdin,
    pub output: OutputOptions,
    /// Time between SIGTERM and SIGKILL when ranks are ended.
    pub kill_after: Duration,
    /// `--node-timeout`; what holds without it is [`JobSpec::node_timeout()`] and [`JobSpec::launcher_timeout()`].
    pub node_timeout: Option<Duration>,
    pub timeout: Option<Duration>,
    pub timeout_report: TimeoutReport,
    pub watches: WatchOptions,
    pub continue_on_error: bool,
    pub port_range: PortRange,
    /// `--master-port`: the value of MASTER_PORT; `None` if rlaunch chooses a port.
    pub master_port: Option<u16>,
    /// Constraints on the addresses by which agents reach each other.
    pub oob: addresses::AddressConstraints,
    /// `--radix`: the maximum number of an agent's children in the tree of agents; `None` if it depends on
    /// the number of nodes.
    pub radix: Option<u32>,
    /// Secret that the agents of this job share.
    pub secret: Secret,
    /// Token by which ranks of this job authenticate.
    pub token: Token,
    pub show: Vec<Show>,
    /// Kind of dry run; `None` if ranks are started.
    pub dry_run: Option<DryRun>,
    /// Limit and number of restarts; `None` if the job is never restarted.
    pub restarts: Option<Restarts>,
    /// `--events`: the path of a file, or `fd:N` for an open file descriptor.
    pub events: Option<String>,
    /// Whether a record of the job is kept.
    pub is_recorded: bool,
    /// `--notify`: a line for a shell of this machine, which runs it when the job is over.
    pub notify: Option<String>,
}

/// Id, name and secrets of one attempt at a job. By id and secrets it recognizes its own agents and ranks.
pub struct Identity {
    pub id: JobId,
    pub name: JobName,
    pub secret: Secret,
    pub token: Token,
}

/// `--copy`: a file to copy to the hosts.
#[derive(Clone, Debug)]
pub struct Preload {
    pub file: PreloadFile,
    /// Path of the file on this machine.
    pub source: PathBuf,
}

impl JobSpec {
    /// Makes a job whose options all have their defaults. Its ranks read no standard input, and it leaves no
    /// record.
    pub fn new(identity: Identity, hosts: Vec<Host>, app: AppSpec) -> JobSpec {
        let Identity { id, name, secret, token } = identity;
        JobSpec {
            id,
            name,
            is_local: false,
            hosts,
            map_by: MapBy::default(),
            rank_by: None,
            oversubscribe: false,
            command_line: app.argv.clone(),
            directory: None,
            apps: vec![app],
            serve: false,
            no_env: false,
            login: false,
            options: Options::default(),
            preload: Vec::new(),
            runs_copier: false,
            tree: None,
            mpi: MpiInterfaces::default(),
            singleton: SingletonPolicy::default(),
            stdin: Stdin { readers: Readers::None, file: None },
            output: OutputOptions::default(),
            kill_after: KILL_AFTER,
            node_timeout: None,
            timeout: None,
            timeout_report: TimeoutReport::default(),
            watches: WatchOptions::default(),
            continue_on_error: false,
            port_range: PORT_RANGE,
            master_port: None,
            radix: None,
            oob: addresses::AddressConstraints::default(),
            secret,
            token,
            show: Vec::new(),
            dry_run: None,
            restarts: None,
            events: None,
            is_recorded: false,
            notify: None,
        }
    }

    /// Returns the first program, or the only one.
    pub fn first(&self) -> &AppSpec {
        &self.apps[0]
    }

    /// Returns the node timeout: a node from which nothing is received for this time is lost, and a node that receives
    /// nothing from the launcher for this time ends its ranks.
    pub fn node_timeout(&self) -> Duration {
        self.node_timeout.unwrap_or(NODE_TIMEOUT)
    }

    /// Returns the time after which a node ends its ranks if it receives nothing from the launcher although the launcher's
    /// machine answers: the launcher is stopped, or gets no CPU. A node timeout that the user has chosen is exact.
    pub fn launcher_timeout(&self) -> Duration {
        self.node_timeout.unwrap_or(LAUNCHER_TIMEOUT)
    }

    /// Returns the words of all programs, with `:` between programs.
    pub fn program_words(&self) -> Vec<OsString> {
        let programs: Vec<&[OsString]> = self.apps.iter().map(|app| &app.argv[..]).collect();
        programs.join(&OsString::from(":"))
    }

    /// Returns the command line as the user typed it, if the job has one program.
    pub fn typed(&self) -> Option<TypedJob<'_>> {
        match self.apps.as_slice() {
            [app] => {
                // Python before a script or a module was not typed.
                let added = match app.argv.as_slice() {
                    [first, second, ..] if first == "python3" && second == "-m" => 2,
                    [first, ..] if first == "python3" => 1,
                    _ => 0,
                };
                let typed = |added| TypedJob::new(&self.command_line, app.argv.get(added..)?);
                typed(0).or_else(|| typed(added))
            }
            _ => None,
        }
    }

    /// Returns the command line as the user typed it with options added, for a hint; the options alone if the job has
    /// several programs.
    pub fn with_options(&self, options: &[&str]) -> String {
        TypedJob::or_options(self.typed(), options)
    }

    /// Describes why the job's ranks cannot be mapped to hosts, with the command line that maps them.
    pub fn mapping_failed(&self, error: &MapError) -> Failed {
        let hint = matches!(error, MapError::Slots { .. } | MapError::OfEach { .. })
            .then(|| format!("ranks can share slots: {}", self.with_options(&["--oversubscribe"])));
        Failed::from_error(Exit::USAGE, error).hint(hint)
    }

    /// Tells whether any program gets the variable `name` from this shell, from `-x` or from `--env-file`.
    pub fn sets_variable(&self, name: &str) -> bool {
        self.apps.iter().any(|app| app.env.iter().any(|var| var.name == name))
    }

    /// Tells whether any host has as many slots as GPUs, a number that only the host's agent knows.
    pub fn has_slots_from_gpus(&self) -> bool {
        let is_open = |host: &Host| host.slots_by == SlotsBy::Open;
        let only = Some(0).filter(|_| self.apps.len() == 1);
        let order = self.order_of(only, self.first().ranks, self.hosts.len());
        let is_listed = self.options.rank_list.is_some();
        !is_listed && !matches!(order, MapBy::Ppr(_)) && self.hosts.iter().any(is_open)
    }

    /// Maps the job's ranks to its hosts. The number of slots of every host must be known.
    pub fn map_ranks(&self) -> Result<RankMap, MapError> {
        self.map_ranks_to(&self.hosts)
    }

    /// Maps the job's ranks to `hosts` in place of [`JobSpec::hosts`], once agents have reported the number
    /// of slots.
    pub fn map_ranks_to(&self, hosts: &[Host]) -> Result<RankMap, MapError> {
        let by = |hosts: &[Host], ranks, app| {
            let order = self.order_of(app, ranks, hosts.len());
            let map = RankMap::place(order, hosts, ranks, self.oversubscribe)?;
            Ok(map.renumbered(order, self.rank_by))
        };
        match &self.apps[..] {
            [only] if let Some(list) = &self.options.rank_list => {
                RankMap::listed(list, hosts, only.ranks)
            }
            [only] => by(hosts, only.ranks, Some(0)),
            several => apps::map_ranks(several, hosts, by),
        }
    }

    /// Returns the order in which a program's ranks are mapped to this number of hosts. Each host gets one of a program that
    /// starts processes itself, unless the user has asked for more.
    fn order_of(&self, app: Option<usize>, ranks: Option<u32>, hosts: usize) -> MapBy {
        let starts = app.is_some_and(|app| self.options.starter(app).is_some());
        let fits = ranks.is_none_or(|ranks| ranks as usize <= hosts);
        match self.map_by {
            MapBy::Ppr(each) => MapBy::Ppr(each),
            _ if starts && fits => MapBy::Ppr(1),
            order => order,
        }
    }

    /// Returns what the user should know about the job before it starts: programs of which hosts get one whatever their slots,
    /// GPUs that this shell hides on all hosts, variables that TensorFlow lacks, and starters that would be alone or count other
    /// nodes.
    pub fn notes(&self, map: &RankMap) -> Vec<Message> {
        let mut notes: Vec<Message> = self.one_on_each_host(map).into_iter().collect();
        if !self.is_local {
            notes.extend(HIDING_GPUS.iter().filter_map(|name| self.hidden_gpus(name)));
        }
        if map.world_size > 1 {
            notes.extend(self.lacks_tf_config());
        }
        if map.nodes.len() > 1 {
            notes.extend(self.learns_of_no_other_host());
        }
        notes.extend((0..self.apps.len()).filter_map(|app| self.counts_other_nodes(app, map)));
        notes
    }

    /// Says that slots do not count for a program that starts processes itself, where hosts have several.
    fn one_on_each_host(&self, map: &RankMap) -> Option<Message> {
        let Starter { name, .. } = self.options.starter(0).filter(|_| self.apps.len() == 1)?;
        let order = self.order_of(Some(0), self.first().ranks, self.hosts.len());
        let has_slots = map.nodes.iter().any(|node| node.host.slots > 1);
        (has_slots && order != self.map_by).then(|| {
            Message::Info(format!(
                "{name} starts processes itself: each host gets one {name}, whatever its slots"
            ))
        })
    }

    /// Says that a variable of this shell that hides GPUs is passed on.
    fn hidden_gpus(&self, name: &str) -> Option<Message> {
        let var = self.apps.iter().find_map(|app| {
            let is_asked = app.user_set_vars.iter().any(|set| set == name);
            app.env.iter().find(|var| !is_asked && var.name == name)
        })?;
        let value = var.value.display();
        Some(Message::Info(format!(
            "{name}={value} of this shell holds on all hosts: only these GPUs are seen there"
        )))
    }

    /// Says that ranks of TensorFlow would not find each other.
    fn lacks_tf_config(&self) -> Option<Message> {
        const NAME: &str = "TF_CONFIG";
        let is_set = |app: &AppSpec| app.env.iter().any(|var| var.name == NAME);
        let is_chosen = !self.options.env_styles.is_empty();
        self.apps.iter().find(|app| app.reads_tf_config && !is_set(app) && !is_chosen)?;
        let line = self.with_options(&["--env-style", "tensorflow"]);
        Some(Message::Hint(format!(
            "each rank of TensorFlow would train alone without {NAME}: {line}"
        )))
    }

    /// Says that a program starts ranks of its own on each host, which do not find those of other hosts: what starts them is
    /// told nothing by rlaunch, and its options name no other host.
    fn learns_of_no_other_host(&self) -> Option<Message> {
        // Beginnings of options that name other hosts, or say that there are none.
        const NAMING: &[&str] = &[
            "--nn", "--node", "--stan", "--rdzv", "--master", "--machine-rank", "--num-machines",
            "--num-nodes", "--main-process-ip", "--config-file", "--mpirun-hostfile", "--hostfile",
            "-H",
        ];
        const SHELLS: [&str; 4] = ["sh", "bash", "dash", "zsh"];
        let [app] = self.apps.as_slice() else { return None };
        let words: Vec<String> =
            app.argv.iter().map(|word| word.to_string_lossy().replace('_', "-")).collect();
        // A shell's script is one word.
        let all = || words.iter().flat_map(|word| word.split_whitespace());
        let has =
            |names: &[&str]| all().any(|word| names.iter().any(|name| word.starts_with(name)));
        let base = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
        let is_shell = || all().next().is_some_and(|word| SHELLS.contains(&&*base(word)));
        let (name, instead) = match self.options.starter(0) {
            _ if has(NAMING) => return None,
            None if is_shell() && all().any(|word| base(word) == "torchrun") => (
                "torchrun within a shell",
                "start it by rlaunch, or give it `--nnodes {{nodes}} --node-rank {{node.index}} \
                 --master-addr {{master.addr}} --master-port {{master.port}}`",
            ),
            Some(Starter { name, kind: StarterKind::Launcher })
                if name == "deepspeed" || has(&["--num-proc", "--multi-gpu"]) =>
            {
                (name, "start the script itself, as in `rlaunch -H a:2,b:2 python3 train.py`")
            }
            _ => return None,
        };
        Some(Message::Hint(format!("{name} does not learn of the other hosts: {instead}")))
    }

    /// Says that `--nnodes` of torchrun is not the number of nodes that the job starts.
    fn counts_other_nodes(&self, app: usize, map: &RankMap) -> Option<Message> {
        let Starter { name, kind } = self.options.starter(app)?;
        let StarterKind::Torchrun(Nodes::Told(least, most)) = kind else { return None };
        let found = map.ranks_of(app).count();
        let told = if least == most { most.to_string() } else { format!("{least}:{most}") };
        let is_right = (least as usize..=most as usize).contains(&found);
        (!is_right).then(|| {
            Message::Hint(format!(
                "{name} expects {told} nodes, but this job starts {found}: without --nnodes, rlaunch tells it the number"
            ))
        })
    }

    /// Returns the shape of the tree for this number of nodes, with the value of `--radix` if given.
    pub fn shape(&self, nodes: usize) -> TreeShape {
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        self.radix.map_or_else(|| TreeShape::for_nodes(nodes), |radix| TreeShape::new(nodes, radix))
    }

    /// Returns the user's choices for the configuration of ranks. Variables of the first program that choose
    /// a network apply to the ranks of all programs.
    pub fn user_choices(&self) -> UserChoices<'_> {
        UserChoices { options: &self.options, env: &self.first().env }
    }
}
