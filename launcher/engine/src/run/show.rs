//! The launcher's decisions about a job, as text for people or as JSON for programs: `--show` and `--dry-run`.
//!
//! [`print()`] writes both before ranks start: after `--show` the job goes on, after `--dry-run` it ends. [`offline`]
//! writes a dry run that asks no host.
//!
//! The output of `--dry-run` begins with lines that programs can parse: a keyword, then words quoted as for a
//! shell.
//!
//! ```text
//! host a slots=2 ranks=0-1
//! host user@b slots=1 ranks=none
//! wdir preferred /home/user
//! env NCCL_DEBUG=INFO
//! program python3 train.py 'a b'
//! ```
//!
//! A host's ranks are in the order of their local ranks. If a `preferred` directory is missing on a host,
//! ranks there run in their home directory; a `required` directory must exist on every host. Values with a
//! name that suggests a secret are replaced. New keywords may be added.

use crate::connect::agent::library::SHARED;
use anstyle::Style;
use rlaunch_bootstrap::env::{self as names, redacted_value};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::job::library::PYTHON;
use rlaunch_bootstrap::job::{EnvRule, EnvVar, WorkingDir, runs_python};
use rlaunch_bootstrap::rank_table::{RankNic, RankTable};
use rlaunch_console::{messages, stdout};
use rlaunch_plan::env::{Variable, identity};
use rlaunch_plan::hosts::{Host, SlotsBy};
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::job::apps::AppSpec;
use rlaunch_plan::job::options::{Show, ShowFormat};
use rlaunch_plan::map::{self, MappedNode, RankMap};
use rlaunch_plan::mesh::{self, Mesh};
use rlaunch_plan::program::Starter;
use rlaunch_plan::rank_config::RankConfig;
use rlaunch_plan::{picture, table};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::shell::{quoted, without_secrets};
use rlaunch_text::{columns, printable, text};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

/// Prints to stdout what `--show` or `--dry-run` asks for, before ranks write to stdout. Waits until a slow
/// reader has taken all of it. Cancel-safe.
pub async fn print(plan: &ShownPlan<'_>) {
    let text = match plan.job.dry_run {
        Some(_) => dry_run_text(plan),
        None => {
            let (on_stderr, shown): (Vec<Show>, Vec<Show>) =
                plan.job.show.iter().partition(|show| **show == Show::PlacementOnStderr);
            on_stderr.into_iter().for_each(|show| messages::asked(&plan.text(show)));
            shown.into_iter().map(|show| plan.text(show)).collect()
        }
    };
    if text.is_empty() {
        return;
    }
    drop(tokio::task::spawn_blocking(move || stdout::print_styled(&text)).await);
}

/// Job whose decisions are shown.
#[derive(Clone, Copy)]
pub struct ShownPlan<'a> {
    pub job: &'a JobSpec,
    pub map: &'a RankMap,
    /// Inventories by node.
    pub inventories: &'a [Inventory],
    pub table: &'a RankTable,
    pub mesh: &'a Mesh,
    /// Configuration of ranks, by node and local rank.
    pub rank_configs: &'a [Vec<RankConfig>],
    /// Directory of the library for ranks, by node.
    pub libraries: &'a [Option<PathBuf>],
    /// Command that has started the node's container, by node.
    pub containers: &'a [Option<String>],
}

impl ShownPlan<'_> {
    /// Explains a subject of `--show`. Invisible characters, which hosts may have sent, are escaped.
    pub(crate) fn text(&self, show: Show) -> String {
        let ShownPlan { map, inventories, table, mesh, rank_configs, .. } = *self;
        let text = match show {
            Show::Placement | Show::PlacementOnStderr => placement(map, rank_configs, table),
            Show::PlacementPicture => {
                let picture = picture::placement(map, inventories, rank_configs, table);
                let drawn = rlaunch_plot::svg(&[&picture]);
                drawn.unwrap_or_else(|error| format!("{error}\n"))
            }
            Show::Container => self.container_text(),
            Show::Env => return self.env_text(io::stdout().is_terminal()),
            // It is printed when ranks have started, by `timing`.
            Show::Timing => return String::new(),
            Show::RankTable(ShowFormat::Text) => table::format_table(table),
            Show::RankTable(ShowFormat::Json) => json(table),
            Show::Mesh(ShowFormat::Text) => mesh::format_table(table, mesh),
            Show::Mesh(ShowFormat::Json) => json(&mesh::json_rows(table, mesh)),
        };
        printable::text(&text).into_owned()
    }

    /// Lists the command of each node whose container was started for the job, as a person could type it there.
    fn container_text(&self) -> String {
        let nodes = self.map.nodes.iter().zip(self.containers);
        let rows = nodes
            .filter_map(|(node, command)| Some(format!("{}: {}\n", node.host, command.as_ref()?)));
        let text: String = rows.collect();
        if text.is_empty() { "no container was started for this job\n".to_owned() } else { text }
    }

    /// Lists the variables of ranks with the reasons; ranks that share a value share a row. At a terminal, long paths are
    /// shortened.
    fn env_text(&self, is_terminal: bool) -> String {
        let ShownPlan { job, map, rank_configs, libraries, .. } = *self;
        let explained = variables(job, map, rank_configs, libraries).into_iter();
        let explained = explained.map(|(rank, _, variable, why)| (rank, variable, why));
        let mut rows = vec![columns::row(["variable", "ranks", "why"])];
        for SharedVariable { variable, why, ranks } in
            shared(self.variables_of_all().into_iter().chain(explained))
        {
            let variable = if is_terminal { shortened(&variable) } else { variable };
            let [variable, why] = [variable, why].map(|cell| printable::text(&cell).into_owned());
            rows.push(vec![
                variable,
                text::ranges(ranks, usize::MAX),
                format!("{DIM}{why}{DIM:#}"),
            ]);
        }
        columns::lay_out(&rows)
    }

    /// Lists those variables whose names say enough that users look for, unless the user has set them: rank, variable,
    /// reason.
    fn variables_of_all(&self) -> Vec<(u32, String, String)> {
        const RANK: &str =
            "its number; WORLD_SIZE, LOCAL_RANK and others tell the rest of its place";
        const TMPDIR: &str = "(host): a directory of the job there";
        const COMPILED: &str = "(host): where torch has it without rlaunch, so that the next job finds what was compiled";
        let ShownPlan { job, map, rank_configs, .. } = *self;
        let mut rows = Vec::new();
        for (Rank(rank), ..) in ranks_in_order(map, rank_configs) {
            let app = job.application_of(map, Rank(rank));
            let is_own = |name: &str| app.user_set_vars.iter().any(|set| set == name);
            let mut push = |name: &str, variable: String, why: &str| {
                if !is_own(name) {
                    rows.push((rank, variable, why.to_owned()));
                }
            };
            if !job.starter_of(map, Rank(rank)).is_some_and(Starter::is_service) {
                push(names::RANK, names::RANK.to_owned(), RANK);
                for [name, why] in identity::rank_rows(job.mpi) {
                    push(name, name.to_owned(), why);
                }
            }
            push(names::TMPDIR, names::TMPDIR.to_owned(), TMPDIR);
            let forwards = app.env.iter().any(|var| var.name == names::TORCHINDUCTOR_CACHE_DIR);
            if runs_python(&app.argv) && !forwards && !is_own(names::TMPDIR) {
                let name = names::TORCHINDUCTOR_CACHE_DIR;
                push(name, name.to_owned(), COMPILED);
            }
        }
        rows
    }
}

/// Style of reasons.
const DIM: Style = Style::new().dimmed();

/// Variable with the ranks that have this value of it, and the reason of the first of them.
#[derive(Debug, PartialEq, Eq)]
struct SharedVariable {
    variable: String,
    why: String,
    ranks: Vec<u32>,
}

/// Groups rows (rank, `NAME=VALUE`, reason) by variable and value. Values of a variable stand together, where its first
/// is.
fn shared(rows: impl IntoIterator<Item = (u32, String, String)>) -> Vec<SharedVariable> {
    let mut shared: Vec<SharedVariable> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for (rank, variable, why) in rows {
        let at = *known.entry(variable.clone()).or_insert(shared.len());
        match shared.get_mut(at) {
            Some(group) if group.ranks.last() == Some(&rank) => {}
            Some(group) => group.ranks.push(rank),
            None => shared.push(SharedVariable { variable, why, ranks: vec![rank] }),
        }
    }
    let name_of = |variable: &str| variable.split(['=', '+']).next().map(str::to_owned);
    let mut places = HashMap::new();
    for (at, group) in shared.iter().enumerate() {
        places.entry(name_of(&group.variable)).or_insert(at);
    }
    shared.sort_by_key(|group| places.get(&name_of(&group.variable)).copied());
    shared
}

/// Maximum length of a path that is shown in full at a terminal.
const LONG_PATH: usize = 40;

/// Leaves out the beginning of a long path, the value of `NAME=PATH` or `NAME+=:PATH`.
fn shortened(variable: &str) -> String {
    let Some((name, value)) = variable.split_once('=') else { return variable.to_owned() };
    let (colon, path) = value.strip_prefix(':').map_or(("", value), |path| (":", path));
    let is_path = path.starts_with('/') && !path.contains(':');
    let mut parts = path.rsplitn(3, '/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(last), Some(above), Some(_)) if is_path && path.chars().count() > LONG_PATH => {
            format!("{name}={colon}…/{above}/{last}")
        }
        _ => variable.to_owned(),
    }
}

fn json<T: Serialize>(value: &T) -> String {
    match serde_json::to_string_pretty(value) {
        Ok(text) => format!("{text}\n"),
        Err(error) => format!("cannot be shown: {error}\n"),
    }
}

/// Lists the ranks in order, with their hosts and configurations.
fn ranks_in_order<'a>(
    map: &'a RankMap,
    rank_configs: &'a [Vec<RankConfig>],
) -> impl Iterator<Item = (Rank, &'a Host, &'a RankConfig)> {
    let node_ranks = |(node, rank_configs): (&'a MappedNode, &'a Vec<RankConfig>)| {
        node.ranks.iter().zip(rank_configs).map(|(&rank, config)| (rank, &node.host, config))
    };
    let mut ranks: Vec<_> = map.nodes.iter().zip(rank_configs).flat_map(node_ranks).collect();
    ranks.sort_by_key(|(rank, ..)| *rank);
    ranks.into_iter()
}

/// Placement of a rank.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct RankPlace {
    pub rank: u32,
    pub host: String,
    /// List of CPUs to which the rank was bound, as in `0-3,8`; `None` if it was not bound.
    pub cpus: Option<String>,
    pub numa_node: Option<u32>,
    /// PCI address of the rank's GPU.
    pub gpu: Option<String>,
    /// Nearest NICs and their distance in the terms of `nvidia-smi topo -m`, as in `mlx5_0,mlx5_1 PIX`.
    pub nics: String,
    pub why: String,
}

/// Writes the placement as a table: hosts, CPUs and the nearest devices, as far as they are known.
pub fn placement(map: &RankMap, rank_configs: &[Vec<RankConfig>], table: &RankTable) -> String {
    let mut rows = vec![columns::row(["rank", "host", "cpus", "numa", "gpu", "nics", "why"])];
    rows.extend(rank_places(map, rank_configs, table).into_iter().map(|place| {
        vec![
            place.rank.to_string(),
            place.host,
            place.cpus.unwrap_or_else(|| "all".to_owned()),
            place.numa_node.map(|node| node.to_string()).unwrap_or_default(),
            place.gpu.unwrap_or_default(),
            place.nics,
            place.why,
        ]
    }));
    columns::lay_out(&rows)
}

/// Returns the placement of each rank, by rank.
pub(crate) fn rank_places(
    map: &RankMap,
    rank_configs: &[Vec<RankConfig>],
    table: &RankTable,
) -> Vec<RankPlace> {
    let place = |(rank, host, config): (Rank, &Host, &RankConfig)| RankPlace {
        rank: rank.0,
        host: host.to_string(),
        cpus: config.placement.cpus.as_ref().map(ToString::to_string),
        numa_node: config.placement.numa_node,
        gpu: config.gpu.clone(),
        nics: nearest_nics(table, rank),
        why: config.placement.reason.clone(),
    };
    ranks_in_order(map, rank_configs).map(place).collect()
}

/// Writes a rank's nearest NICs and their distance, as in `mlx5_0,mlx5_1 PIX`. The distance is in the terms
/// of `nvidia-smi topo -m`.
fn nearest_nics(table: &RankTable, rank: Rank) -> String {
    let Some(row) = table.ranks().get(rank.index()) else { return String::new() };
    let Some(first) = row.nics.first() else { return String::new() };
    let name = |own: &RankNic| {
        let nics = &table.nodes().get(row.node.index())?.nics;
        Some(nics.get(own.nic as usize)?.device.as_str())
    };
    let nearest = row.nics.iter().take_while(|own| own.distance == first.distance);
    let mut names: Vec<&str> = nearest.filter_map(name).collect();
    names.dedup();
    let names = names.join(",");
    // The distance is unknown if the rank has neither a GPU nor a NUMA node.
    let is_somewhere = row.gpu.is_some() || row.numa_node.is_some();
    if is_somewhere { format!("{names} {}", first.distance) } else { names }
}

/// Variable of a rank: rank, host, `NAME=VALUE`, reason.
pub(crate) type VariableRow<'a> = (u32, &'a Host, String, String);

/// Lists the variables that rlaunch sets for each rank, with the reasons. A value from the shell in which
/// rlaunch was started, or from `-x`, takes precedence and is marked as the user's. Variables that a host
/// sets itself are not known here. Values that look like secrets are replaced.
pub fn variables<'a>(
    job: &JobSpec,
    map: &'a RankMap,
    rank_configs: &'a [Vec<RankConfig>],
    libraries: &[Option<PathBuf>],
) -> Vec<VariableRow<'a>> {
    let library_of = |rank| libraries.get(map.node_of(rank)?.id.index())?.as_ref();
    let mut rows = Vec::new();
    let world_size = ranks_in_order(map, rank_configs).count();
    for (rank, host, config) in ranks_in_order(map, rank_configs) {
        let AppSpec { env, user_set_vars, .. } = job.application_of(map, rank);
        let yours = |name: &str| env.iter().find(|var| var.name == name);
        let explained = config.defaults.iter().filter(|default| !default.reason.is_empty());
        let mut push = |variable, why| rows.push((rank.0, host, variable, why));
        for Variable { name, value, reason } in explained {
            let (value, why) = match yours(name) {
                Some(var) => {
                    (var.value.to_string_lossy().into_owned(), user_reason(var).to_owned())
                }
                None => (value.clone(), reason.clone()),
            };
            push(format!("{name}={}", redacted_value(name, &value)), why);
        }
        let of_library = library_of(rank).map(|path| library_rows(path, yours));
        for [variable, why] in of_library.into_iter().flatten() {
            push(variable, why);
        }
        let is_served =
            world_size > 1 && !job.starter_of(map, Rank(rank.0)).is_some_and(Starter::is_service);
        let served = is_served.then(|| identity::process_manager_rows(job.mpi));
        for [variable, why] in served.into_iter().flatten() {
            push(variable.to_owned(), why.to_owned());
        }
        let is_known = |name: &str| config.defaults.iter().any(|default| default.name == name);
        let asked = |name: &OsStr| user_set_vars.iter().any(|asked| name == asked.as_str());
        for var in env.iter().filter(|var| configures_library(&var.name) || asked(&var.name)) {
            let (name, value) = (var.name.to_string_lossy(), var.value.to_string_lossy());
            if !is_known(&name) {
                push(format!("{name}={}", redacted_value(&name, &value)), user_reason(var).into());
            }
        }
        if job.login && !asked(OsStr::new(names::PATH)) {
            push(names::PATH.into(), "(host): as a login shell there has it".into());
        }
    }
    rows
}

/// Returns the reason for a variable that comes from the shell in which rlaunch was started, or from `-x`.
fn user_reason(var: &EnvVar) -> &'static str {
    match var.rule {
        EnvRule::Default => "(yours) where the host sets none",
        EnvRule::Set | EnvRule::PathBefore | EnvRule::PathAfter => "(yours)",
    }
}

/// Lists the variables by which a rank finds its library, with the reasons. `yours` returns the user's own
/// value of a variable.
fn library_rows<'a>(path: &Path, yours: impl Fn(&str) -> Option<&'a EnvVar>) -> Vec<[String; 2]> {
    let (path, python) = (path.display(), path.join(PYTHON));
    let own = match yours(names::RLAUNCH_LIB) {
        Some(var) => [format!("{}={}", names::RLAUNCH_LIB, var.value.display()), "(yours)".into()],
        None => [
            format!("{}={path}", names::RLAUNCH_LIB),
            format!("where {SHARED} is, for those who load it by its path"),
        ],
    };
    let appended = |name: &str, path: &dyn Display, why: &str| {
        [format!("{name}+=:{path}"), format!("{why}; what you or the host have there comes first")]
    };
    let finds = format!("programs that are linked with {SHARED} find it");
    let mut rows = vec![
        own,
        appended(names::LD_LIBRARY_PATH, &path, &finds),
        appended(names::PYTHONPATH, &python.display(), "`import rlaunch` finds it"),
    ];
    if yours(names::PYTHONBREAKPOINT).is_none() {
        let why = "`breakpoint()` waits for `rlaunch attach`, where the host sets none".to_owned();
        rows.push([format!("{}={}", names::PYTHONBREAKPOINT, names::BREAKPOINT), why]);
    }
    rows
}

/// Tells whether a variable configures a library for which rlaunch sets variables too.
fn configures_library(name: &OsStr) -> bool {
    const PREFIXES: &[&str] = &["NCCL_", "UCX_", "GLOO_", "HOROVOD_", "TP_SOCKET_", "OMP_NUM_"];
    PREFIXES.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
}

/// Prints the job without connecting to any host. The output depends only on the command line and on the
/// files and environment of this machine.
pub fn offline(job: &JobSpec) -> Result<Exit, Failed> {
    if job.show.contains(&Show::PlacementPicture) {
        let message = "--show placement=svg draws the hosts' devices, but --dry-run=offline asks no host for them";
        let hint = "--dry-run without a value connects to the hosts, and starts no rank";
        return Err(Failed::new(Exit::USAGE, message).hint(Some(hint)));
    }
    let known = !job.has_slots_from_gpus();
    let map = known.then(|| job.map_ranks()).transpose();
    let map = map.map_err(|error| job.mapping_failed(&error))?;
    if let Some(map) = &map {
        messages::print(map::placement_line(map, job.map_by, job.oversubscribe).as_slice());
    }
    stdout::print(&program_lines(job, map.as_ref()));
    Ok(Exit::SUCCESS)
}

/// Describes a job after its hosts were connected: the lines that programs can parse, the placement, the
/// variables of ranks, and what `--show` asks for. If that is a picture, there is nothing else.
fn dry_run_text(plan: &ShownPlan<'_>) -> String {
    const ALWAYS: [Show; 2] = [Show::Placement, Show::Env];
    const ELSEWHERE: [Show; 2] = [Show::Timing, Show::PlacementOnStderr];
    let ShownPlan { job, map, .. } = *plan;
    let lines = program_lines(job, Some(map));
    if job.show.contains(&Show::PlacementPicture) {
        let drawn = job.show.iter().filter(|show| **show != Show::PlacementOnStderr);
        return drawn.map(|show| plan.text(*show)).collect();
    }
    let is_more = |show: &&Show| !ALWAYS.contains(show) && !ELSEWHERE.contains(show);
    let more = job.show.iter().filter(is_more);
    let parts = ALWAYS.iter().chain(more).map(|show| plan.text(*show));
    std::iter::once(printable::text(&lines).into_owned())
        .chain(parts)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Makes the lines that programs can parse. `map` is `None` if slots depend on GPUs that were not counted;
/// then slots and ranks of some hosts are unknown.
pub fn program_lines(job: &JobSpec, map: Option<&RankMap>) -> String {
    let mut lines = host_lines(&job.hosts, map);
    for (index, app) in job.apps.iter().enumerate() {
        if job.apps.len() > 1 {
            let ranks =
                map.map_or("?".to_owned(), |map| ranges(&map.ranks_of(index).collect::<Vec<_>>()));
            let name = app.name.as_deref().unwrap_or("-");
            lines.push(format!("application {} name={name} ranks={ranks}", index + 1));
        }
        lines.push(match &app.wdir {
            WorkingDir::SameAsLauncher(directory) => {
                format!("wdir preferred {}", quoted(directory.path.as_os_str()))
            }
            WorkingDir::Required(path) => format!("wdir required {}", quoted(path.as_os_str())),
        });
        lines.extend(env_lines(app));
        lines.push(format!("program {}", quoted_program(&app.argv)));
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

/// Makes a line for each host, in the order in which hosts were given.
fn host_lines(hosts: &[Host], map: Option<&RankMap>) -> Vec<String> {
    let key = |host: &Host| (host.user.clone(), host.name.clone());
    let nodes = map.iter().flat_map(|map| &map.nodes);
    let nodes: HashMap<_, _> = nodes.map(|node| (key(&node.host), node)).collect();
    let idle = map.iter().flat_map(|map| &map.unused);
    let idle: HashMap<_, _> = idle.map(|host| (key(host), host)).collect();
    let line = |host: &Host| {
        let name = quoted(host.to_string().as_ref());
        let (slots, ranks) = match (nodes.get(&key(host)), idle.get(&key(host))) {
            (Some(node), _) => (node.host.slots.to_string(), ranges(&node.ranks)),
            (None, Some(idle)) => (idle.slots.to_string(), "none".to_owned()),
            (None, None) if host.slots_by == SlotsBy::Open => ("gpus".to_owned(), "?".to_owned()),
            (None, None) => (host.slots.to_string(), "?".to_owned()),
        };
        format!("host {name} slots={slots} ranks={ranks}")
    };
    hosts.iter().map(line).collect()
}

fn ranges(ranks: &[Rank]) -> String {
    text::ranges(ranks.iter().map(|rank| rank.0), usize::MAX)
}

/// Makes a line for each variable that `-x` or a similar option sets.
fn env_lines(app: &AppSpec) -> impl Iterator<Item = String> {
    let is_asked =
        |name: &OsStr| app.user_set_vars.iter().any(|asked| *asked == name.to_string_lossy());
    app.env.iter().filter(move |var| is_asked(&var.name)).map(|var| {
        let (name, value) = (var.name.to_string_lossy(), var.value.to_string_lossy());
        let mut word = var.name.clone();
        word.push("=");
        match redacted_value(&name, &value) {
            same if same == value => word.push(&var.value),
            hidden => word.push(hidden),
        }
        format!("env {}", quoted(&word))
    })
}

/// Quotes the words of a program, with secrets replaced.
fn quoted_program(argv: &[OsString]) -> String {
    let words = argv.iter().zip(without_secrets(argv)).map(|(word, safe)| {
        if word.to_string_lossy() == safe { quoted(word) } else { quoted(safe.as_ref()) }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_shown_is_refused() {
        assert_eq!("rank-table".parse(), Ok(Show::RankTable(ShowFormat::Text)));
        assert_eq!("rank-table=json".parse(), Ok(Show::RankTable(ShowFormat::Json)));
        assert_eq!("mesh=json".parse(), Ok(Show::Mesh(ShowFormat::Json)));
        assert_eq!("placement".parse(), Ok(Show::Placement));
        assert_eq!("placement=stderr".parse(), Ok(Show::PlacementOnStderr));
        assert_eq!("placement=svg".parse(), Ok(Show::PlacementPicture));
        assert!("placement=json".parse::<Show>().is_err());
        assert!("rank-table=xml".parse::<Show>().is_err());
        assert!("".parse::<Show>().is_err());
    }

    #[test]
    fn ranks_with_one_value_share_a_row_beside_other_values() {
        let rows = [
            (0, "A=1", "of a"),
            (0, "B=x", ""),
            (1, "A=2", "of b"),
            (1, "B=x", ""),
            (2, "A=1", "of c"),
            (2, "A=1", "again"),
            (2, "C+=:/l", ""),
        ];
        let rows = rows.map(|(rank, variable, why)| (rank, variable.to_owned(), why.to_owned()));
        let shown = |one: SharedVariable| format!("{} {:?} {}", one.variable, one.ranks, one.why);
        let shown: Vec<String> = shared(rows).into_iter().map(shown).collect();
        assert_eq!(shown, ["A=1 [0, 2] of a", "A=2 [1] of b", "B=x [0, 1] ", "C+=:/l [2] "]);
    }

    #[test]
    fn only_long_paths_are_shortened() {
        let long = "/home/somebody/.cache/rlaunch/0123456789abcdef/lib";
        assert_eq!(shortened(&format!("A={long}")), "A=…/0123456789abcdef/lib");
        assert_eq!(shortened(&format!("A+=:{long}")), "A+=:…/0123456789abcdef/lib");
        for same in ["A=/short/path", "PMIX_*", &format!("A={long}:{long}"), &"x".repeat(50)] {
            assert_eq!(shortened(same), same);
        }
    }

    #[test]
    fn ranks_that_follow_each_other_are_taken_together() {
        let shown = |ranks: &[u32]| ranges(&ranks.iter().copied().map(Rank).collect::<Vec<_>>());
        assert_eq!(shown(&[0, 1, 2, 5]), "0-2,5");
        assert_eq!(shown(&[0, 2, 4]), "0,2,4");
        assert_eq!(shown(&[3, 2]), "3,2");
        assert_eq!(shown(&[7]), "7");
    }
}
