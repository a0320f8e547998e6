//! Programs of a job: one, or several with `:` between them, each with its own hosts, ranks and variables.
//! Ranks are numbered across all programs, in the order of the programs on the command line.
//!
//! | file | subject |
//! |---|---|
//! | `rank_map` | mapping of the ranks of several programs to hosts |
//! | `after`, `start_order` | `--after`: conditions, and the order in which programs start |
//! | `template`, `render` | texts with placeholders; their replacement for each rank |
//! | `error` | errors in the options of programs |

pub mod after;
mod error;
mod rank_map;
mod render;
mod start_order;
pub mod template;

pub use error::AppError;
pub use rank_map::map_ranks;
pub use render::RenderedTexts;
pub use start_order::{DueProgram, StartOrder, awaited_ports};

use crate::env::identity;
use crate::hosts::Host;
use crate::job::JobSpec;
use crate::map::{MappedNode, RankMap};
use after::Condition;
use rlaunch_bootstrap::id::{LocalRank, NodeId, Rank};
use rlaunch_bootstrap::job::{Application, EnvVar, RankSpec, ScriptCheck, WorkingDir};
use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use template::TemplateFile;

/// Program of a job, with the settings that its ranks share.
#[derive(Clone, Debug)]
pub struct AppSpec {
    /// `--name`: the name by which `--after` and templates refer to this program.
    pub name: Option<String>,
    /// Hosts of this program alone; `None` if it runs on the job's hosts.
    pub hosts: Option<Vec<Host>>,
    /// Number of ranks; `None` for one on each free slot.
    pub ranks: Option<u32>,
    /// Program and its arguments; never empty.
    pub argv: Vec<OsString>,
    /// Further names under which hosts may have the program, in the order in which they are tried.
    pub other_names: Vec<OsString>,
    pub wdir: WorkingDir,
    /// Variables passed on from this shell, and those of `-x` and `--env-file`.
    pub env: Vec<EnvVar>,
    /// Names of the variables that the user sets by `-x` or `--env-file`. rlaunch sets no values of its own
    /// for them.
    pub user_set_vars: Vec<String>,
    pub script: Option<ScriptCheck>,
    /// Preloaded files that this program's arguments may name, as indices into [`JobSpec::preload`].
    pub preload: Vec<u32>,
    /// Conditions that have to be met before this program's ranks start.
    pub after: Vec<Condition>,
    pub templates: Vec<TemplateFile>,
}

impl AppSpec {
    /// Makes the only program of a job, without variables of this shell. Its ranks start in `wdir`.
    pub fn new(argv: Vec<OsString>, wdir: WorkingDir) -> AppSpec {
        AppSpec {
            name: None,
            hosts: None,
            ranks: None,
            argv,
            other_names: Vec::new(),
            wdir,
            env: Vec::new(),
            user_set_vars: Vec::new(),
            script: None,
            preload: Vec::new(),
            after: Vec::new(),
            templates: Vec::new(),
        }
    }
}

/// Name of a program in messages: `application 2 (decode)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppTitle(String);

impl AppTitle {
    pub fn new(index: usize, name: Option<&str>, argv: &[OsString]) -> AppTitle {
        let program = argv.first().and_then(|program| Path::new(program).file_name());
        let program = program.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        AppTitle(format!("application {} ({})", index + 1, name.unwrap_or(&program)))
    }
}

impl fmt::Display for AppTitle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AppSpec {
    /// Returns the program's name in messages. `index` is the program's number in the job, from 0.
    pub fn title(&self, index: usize) -> AppTitle {
        AppTitle::new(index, self.name.as_deref(), &self.argv)
    }
}

impl JobSpec {
    /// Returns the program that a rank runs.
    pub fn application_of(&self, map: &RankMap, rank: Rank) -> &AppSpec {
        let index = map.application_of(rank);
        self.apps.get(index).unwrap_or_else(|| self.first())
    }
}

/// Returns the names of the variables that the user sets for every program, by `-x` or `--env-file`.
pub fn vars_set_for_all_apps(apps: &[AppSpec]) -> Vec<String> {
    let Some((first, others)) = apps.split_first() else { return Vec::new() };
    let is_everywhere = |name: &&String| others.iter().all(|app| app.user_set_vars.contains(name));
    first.user_set_vars.iter().filter(is_everywhere).cloned().collect()
}

/// Describes a node's programs and ranks for its agent.
pub fn node_applications(
    job: &JobSpec,
    map: &RankMap,
    node: NodeId,
) -> (Vec<Application>, Vec<RankSpec>) {
    let ranks: &[Rank] = map.nodes.get(node.index()).map_or(&[], |node| &node.ranks);
    let mut here: Vec<usize> = ranks.iter().map(|rank| map.application_of(*rank)).collect();
    here.sort_unstable();
    here.dedup();
    let application = |&index: &usize| {
        let app = job.apps.get(index)?;
        Some(Application {
            index: u32::try_from(index).unwrap_or(u32::MAX),
            argv: app.argv.clone(),
            other_names: app.other_names.clone(),
            wdir: app.wdir.clone(),
            env: app.env.clone(),
            script: app.script.clone(),
            preload: app.preload.clone(),
            starts_on_request: !app.after.is_empty(),
        })
    };
    let spec = |(local_rank, &rank): (LocalRank, &Rank)| {
        let at = here.binary_search(&map.application_of(rank)).unwrap_or(0);
        let user_set_vars = &job.application_of(map, rank).user_set_vars;
        RankSpec {
            rank,
            local_rank,
            application: u32::try_from(at).unwrap_or(u32::MAX),
            env: identity::rank_variables(job.id, map, node, local_rank, user_set_vars),
            stdin: job.stdin.is_read_by(rank),
        }
    };
    let specs = (0u32..).map(LocalRank).zip(ranks).map(spec).collect();
    (here.iter().filter_map(application).collect(), specs)
}

/// Returns the nodes on which a program has ranks. `index` is the program's number in the job, from 0.
fn nodes_of(map: &RankMap, index: usize) -> impl Iterator<Item = &MappedNode> {
    let has_any =
        move |node: &&MappedNode| node.ranks.iter().any(|rank| map.application_of(*rank) == index);
    map.nodes.iter().filter(has_any)
}
