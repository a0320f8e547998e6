//! What is filled into templates, once it is known where every rank runs.

use super::template::{self, Target, Text};
use super::{AppError, AppSpec, nodes_of};
use crate::job::JobSpec;
use crate::plan::map::RankMap;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Template};
use rlaunch_bootstrap::env as names;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::{RankFile, WorkingDir};
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What templates can name.
pub(super) const KNOWN: &str = "host.name, host.hostname, host.oob_ip, rank.index, rank.local, \
    rank.hca, rank.hcas, world_size, app[\"NAME\"].oob_ip, app[\"NAME\"].hosts, \
    app[\"NAME\"].size; rank.hca where the host has RDMA, and NAME as --name has it";

/// What was known late of one rank, as [`rlaunch_bootstrap::job::RankSetup`] has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filled {
    pub(crate) words: Vec<(u32, OsString)>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) files: Vec<RankFile>,
}

#[derive(Serialize)]
struct OfHost<'a> {
    name: &'a str,
    hostname: &'a str,
    oob_ip: String,
}

#[derive(Serialize)]
struct OfRank<'a> {
    index: u32,
    local: u32,
    /// Nearest first.
    hcas: Vec<&'a str>,
    /// Not defined where there is none, so that naming it is an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    hca: Option<&'a str>,
}

#[derive(Serialize)]
struct OfApp<'a> {
    oob_ip: String,
    hosts: Vec<&'a str>,
    size: usize,
}

/// What the templates of one rank can name.
#[derive(Serialize)]
struct Known<'a> {
    host: OfHost<'a>,
    rank: OfRank<'a>,
    world_size: u32,
    app: &'a BTreeMap<&'a str, OfApp<'a>>,
}

impl Filled {
    /// What is filled in for each rank that has any of it.
    pub(crate) fn by_rank(
        job: &JobSpec,
        map: &RankMap,
        table: &RankTable,
    ) -> Result<BTreeMap<Rank, Filled>, Failed> {
        fill(&job.apps, map, table)
            .map_err(|error| Failed::from_error(Exit::USAGE, &error).hint(error.hint()))
    }
}

/// The templates of a program, ready to be filled in.
type Compiled<'e, 'a> = Vec<(Text<'a>, Template<'e, 'a>)>;

fn fill(
    apps: &[AppSpec],
    map: &RankMap,
    table: &RankTable,
) -> Result<BTreeMap<Rank, Filled>, AppError> {
    let mut filled: BTreeMap<Rank, Filled> = BTreeMap::new();
    let environment = template::environment();
    let named = named(apps, map, table);
    for (index, app) in apps.iter().enumerate() {
        let own = kept(apps, app);
        let compiled = compile(&environment, app, index)?;
        if own.is_empty() && compiled.is_empty() {
            continue;
        }
        let ranks = (0..map.world_size).map(Rank).filter(|r| map.application_of(*r) == index);
        for rank in ranks {
            let Some(known) = known(table, rank, &named) else { continue };
            let known = Value::from(Serde(known));
            let mut of_rank = fill_one(app, index, (rank, &known), &compiled)?;
            of_rank.env.splice(..0, own.iter().cloned());
            filled.insert(rank, of_rank);
        }
    }
    check_files(apps, map, &filled)?;
    Ok(filled)
}

fn compile<'e, 'a>(
    environment: &'e Environment<'a>,
    app: &'a AppSpec,
    index: usize,
) -> Result<Compiled<'e, 'a>, AppError> {
    let compile = |text: Text<'a>| {
        let template = environment.template_from_str(text.text);
        let template = template.map_err(|error| AppError::Syntax {
            title: app.title(index),
            what: text.what(app),
            cause: template::cause(&error, text),
        });
        Ok((text, template?))
    };
    template::texts(app).into_iter().map(compile).collect()
}

fn fill_one(
    app: &AppSpec,
    index: usize,
    (rank, known): (Rank, &Value),
    compiled: &Compiled<'_, '_>,
) -> Result<Filled, AppError> {
    let mut filled = Filled::default();
    for (text, template) in compiled {
        let done = template.render(known.clone()).map_err(|error| AppError::Fill {
            title: app.title(index),
            what: text.what(app),
            rank: rank.0,
            cause: template::cause(&error, *text),
        })?;
        match text.target {
            Target::Word(at) => filled.words.push((at, done.into())),
            Target::Variable(name) => filled.env.push((name.to_owned(), done.into())),
            Target::Dest(_) => filled.files.push(RankFile { path: done.into(), content: vec![] }),
            // Its path came just before.
            Target::Content(_) => {
                if let Some(file) = filled.files.last_mut() {
                    file.content = done.into_bytes();
                }
            }
        }
    }
    Ok(filled)
}

/// Where rank 0 can be met is told to all ranks alike, unless every program has set it: one that
/// has keeps what it has.
fn kept(apps: &[AppSpec], app: &AppSpec) -> Vec<(OsString, OsString)> {
    const OF_MASTER: [&str; 3] =
        [names::MASTER_ADDR, names::MASTER_PORT, names::JAX_COORDINATOR_ADDRESS];
    let sets = |app: &AppSpec, name: &str| app.explicit.iter().any(|asked| asked == name);
    let is_own = |name: &&str| sets(app, name) && !apps.iter().all(|other| sets(other, name));
    let value = |name| app.env.iter().find(|var| var.name == name).map(|var| var.value.clone());
    let own = OF_MASTER.into_iter().filter(is_own);
    own.filter_map(|name| Some((name.into(), value(name)?))).collect()
}

/// Programs by their names.
fn named<'a>(
    apps: &'a [AppSpec],
    map: &'a RankMap,
    table: &'a RankTable,
) -> BTreeMap<&'a str, OfApp<'a>> {
    let of_app = |(index, app): (usize, &'a AppSpec)| {
        let nodes: Vec<_> = nodes_of(map, index).collect();
        let first = table.nodes().get(nodes.first()?.id.index())?;
        let is_own = |rank: &u32| map.application_of(Rank(*rank)) == index;
        let hosts = nodes.iter().map(|node| node.host.name.as_str()).collect();
        let size = (0..map.world_size).filter(is_own).count();
        Some((app.name.as_deref()?, OfApp { oob_ip: first.address.to_string(), hosts, size }))
    };
    apps.iter().enumerate().filter_map(of_app).collect()
}

fn known<'a>(
    table: &'a RankTable,
    rank: Rank,
    app: &'a BTreeMap<&'a str, OfApp<'a>>,
) -> Option<Known<'a>> {
    let row = table.ranks().get(rank.index())?;
    let node = table.nodes().get(row.node.index())?;
    let mut hcas: Vec<&str> = Vec::new();
    for own in &row.nics {
        let device = node.nics.get(own.nic as usize)?.device.as_str();
        if !hcas.contains(&device) {
            hcas.push(device);
        }
    }
    let (name, hostname) = (node.host.as_str(), node.hostname.as_str());
    Some(Known {
        host: OfHost { name, hostname, oob_ip: node.address.to_string() },
        rank: OfRank { index: rank.0, local: row.local_rank.0, hca: hcas.first().copied(), hcas },
        world_size: table.ranks().len().try_into().unwrap_or(u32::MAX),
        app,
    })
}

/// Refuses two different files at one path of a host.
fn check_files(
    apps: &[AppSpec],
    map: &RankMap,
    filled: &BTreeMap<Rank, Filled>,
) -> Result<(), AppError> {
    let mut there: BTreeMap<(NodeId, PathBuf), (Rank, &[u8])> = BTreeMap::new();
    for (&rank, of_rank) in filled {
        let Some(node) = map.node_of(rank) else { continue };
        let index = map.application_of(rank);
        let (WorkingDir::SameAsLauncher(directory) | WorkingDir::Required(directory)) =
            &apps[index].wdir;
        for file in &of_rank.files {
            let path = directory.join(&file.path);
            let (other, content) = there.entry((node.id, path)).or_insert((rank, &file.content));
            if *content != file.content {
                return Err(AppError::TwoFiles {
                    title: apps[index].title(index),
                    dest: Path::new(&file.path).display().to_string(),
                    rank: rank.0,
                    other: other.0,
                    host: node.host.to_string(),
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
