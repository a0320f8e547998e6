//! The programs of a job: one, or several with `:` between them, each with hosts, ranks and
//! variables of its own. All ranks are of one job, numbered over the programs in their order.

pub(crate) mod after;
mod error;
mod map;
mod order;
mod render;
pub(crate) mod template;

pub(crate) use error::AppError;
pub(crate) use map::map_ranks;
pub(crate) use order::{Due, Order, awaited_ports};
pub(crate) use render::Filled;

use crate::hosts::Host;
use crate::job::JobSpec;
use crate::plan::map::{MappedNode, RankMap};
use crate::plan::rank_env;
use after::Condition;
use rlaunch_bootstrap::id::{LocalRank, NodeId, Rank};
use rlaunch_bootstrap::job::{Application, EnvVar, RankSpec, ScriptCheck, WorkingDir};
use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use template::TemplateFile;

/// One program of a job, and what its ranks have in common.
#[derive(Clone, Debug)]
pub(crate) struct AppSpec {
    /// By which conditions and templates know it.
    pub(crate) name: Option<String>,
    /// Its own; `None` where it runs on those of the job.
    pub(crate) hosts: Option<Vec<Host>>,
    /// How many ranks; `None` is one for each slot that is free.
    pub(crate) ranks: Option<u32>,
    /// The program and its arguments, at least one.
    pub(crate) argv: Vec<OsString>,
    pub(crate) wdir: WorkingDir,
    /// What goes along from here, and what `-x` sets.
    pub(crate) env: Vec<EnvVar>,
    /// Names that `-x` set: rlaunch's own values do not replace them.
    pub(crate) explicit: Vec<String>,
    pub(crate) script: Option<ScriptCheck>,
    /// Which of the job's preloaded files its arguments may name.
    pub(crate) preload: Vec<u32>,
    /// What has to be there before its ranks start.
    pub(crate) after: Vec<Condition>,
    pub(crate) templates: Vec<TemplateFile>,
}

/// How an application is called in messages: `application 2 (decode)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Title(String);

impl Title {
    pub(crate) fn new(index: usize, name: Option<&str>, argv: &[OsString]) -> Title {
        let program = argv.first().and_then(|program| Path::new(program).file_name());
        let program = program.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Title(format!("application {} ({})", index + 1, name.unwrap_or(&program)))
    }
}

impl fmt::Display for Title {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AppSpec {
    /// How it is called; `index` is its place among the job's.
    pub(crate) fn title(&self, index: usize) -> Title {
        Title::new(index, self.name.as_deref(), &self.argv)
    }
}

impl JobSpec {
    /// What a rank runs.
    pub(crate) fn application_of(&self, map: &RankMap, rank: Rank) -> &AppSpec {
        let index = map.application_of(rank);
        self.apps.get(index).unwrap_or_else(|| self.first())
    }
}

/// Names that `-x` sets for every program.
pub(crate) fn explicit_everywhere(apps: &[AppSpec]) -> Vec<String> {
    let Some((first, others)) = apps.split_first() else { return Vec::new() };
    let is_everywhere = |name: &&String| others.iter().all(|app| app.explicit.contains(name));
    first.explicit.iter().filter(is_everywhere).cloned().collect()
}

/// The programs that ranks of a node run, and these ranks, as its agent is told.
pub(crate) fn of_node(
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
            wdir: app.wdir.clone(),
            env: app.env.clone(),
            script: app.script.clone(),
            preload: app.preload.clone(),
            waits: !app.after.is_empty(),
        })
    };
    let spec = |(local_rank, &rank): (LocalRank, &Rank)| {
        let at = here.binary_search(&map.application_of(rank)).unwrap_or(0);
        let explicit = &job.application_of(map, rank).explicit;
        RankSpec {
            rank,
            local_rank,
            application: u32::try_from(at).unwrap_or(u32::MAX),
            env: rank_env::of_rank(job.id, map, node, local_rank, explicit),
            stdin: job.stdin.is_read_by(rank),
        }
    };
    let specs = (0u32..).map(LocalRank).zip(ranks).map(spec).collect();
    (here.iter().filter_map(application).collect(), specs)
}

/// Nodes on which an application has ranks, in their order.
fn nodes_of(map: &RankMap, index: usize) -> impl Iterator<Item = &MappedNode> {
    let has_any =
        move |node: &&MappedNode| node.ranks.iter().any(|rank| map.application_of(*rank) == index);
    map.nodes.iter().filter(has_any)
}

/// What a command line means, its words without quotes, or why it cannot be meant.
#[cfg(test)]
pub(crate) fn typed(line: &str) -> Result<JobSpec, String> {
    use crate::cli::args::Invocation;

    let typed = std::iter::once("rlaunch").chain(line.split(' ')).map(OsString::from);
    match Invocation::parse(typed.collect()) {
        Ok(Invocation::Run(args)) => {
            crate::cli::lower::job(*args).map_err(|error| error.to_string())
        }
        Ok(_) => Err("a verb".to_owned()),
        Err(misread) => Err(format!("{misread:?}")),
    }
}
