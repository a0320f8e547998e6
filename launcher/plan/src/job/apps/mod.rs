//! Programs of a job: one, or several with `:` between them, each with its own hosts, ranks and variables.
//! Ranks are numbered across all programs, in the order of the programs on the command line.
//!
//! | file | subject |
//! |---|---|
//! | `after` | `--after`: conditions, and the order in which programs start |
//! | `template` | texts with placeholders, and their replacement for each rank |
//!
//! A program runs on its own hosts, or else on the job's hosts from the first free slot on ([`map_ranks`]).

pub mod after;
pub mod template;

pub use after::{DueProgram, StartOrder, awaited_ports};
pub use template::{JobAddresses, RenderedTexts};

use crate::hosts::Host;
use crate::job::JobSpec;
use crate::map::{MapError, RankMap};
use crate::program::Starter;
use after::Condition;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::job::{EnvVar, ScriptCheck, WorkingDir};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fmt, io};
use template::{PLACEHOLDERS, TemplateFile};

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
    /// Whether the script uses TensorFlow's strategies for several ranks, which find each other by TF_CONFIG.
    pub reads_tf_config: bool,
    /// Path of the program in the virtual environment of this shell.
    pub in_environment: Option<PathBuf>,
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
            reads_tf_config: false,
            in_environment: None,
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

    /// Returns what the program of a rank is if it starts processes itself.
    pub fn starter_of(&self, map: &RankMap, rank: Rank) -> Option<Starter> {
        self.options.starter(map.application_of(rank))
    }
}

/// Error in the names, conditions, hosts or templates of programs.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error("`--name {0}` is not a name of letters, digits, `-`, `_` and `.`")]
    Name(String),
    #[error("two programs are called {0}")]
    NameTwice(String),
    #[error("{title} is to start after `{name}`, but no program has that name")]
    UnknownName { title: AppTitle, name: String, nearest: Option<String> },
    #[error("`{0}` is not a condition of the form ready:tcp:HOST:PORT")]
    Ready(String),
    #[error("{} cannot start: each waits for another", .0.join(", "))]
    Cycle(Vec<String>),
    #[error("{0} has no -np, but another program follows on the same hosts")]
    NoRanks(AppTitle),
    #[error("{0} has no number of slots in the hostfile, but several programs run on it")]
    SlotsFromGpus(String),
    #[error("`--template {0}` is not of the form FILE:DEST")]
    NoDest(String),
    #[error("cannot read the template {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{title}: {what} is not a valid template: {cause}")]
    Syntax { title: AppTitle, what: String, cause: String },
    #[error("{title}: cannot replace placeholders in {what} for rank {rank}: {cause}")]
    Fill { title: AppTitle, what: String, rank: u32, cause: String },
    #[error(
        "{title}: {dest} would have other content for rank {rank} than for rank {other} on {host}"
    )]
    TwoFiles { title: AppTitle, dest: String, rank: u32, other: u32, host: String },
}

impl AppError {
    pub fn hint(&self) -> Option<String> {
        match self {
            AppError::UnknownName { nearest, name, .. } => Some(match nearest {
                Some(nearest) => format!("{nearest} exists"),
                None => format!("--name {name} goes before the program that is meant"),
            }),
            AppError::Cycle(_) => Some("one of them must not have --after".to_owned()),
            AppError::NoRanks(_) => {
                Some("with -np N the other slots are left for the programs behind it".to_owned())
            }
            AppError::SlotsFromGpus(host) => Some(format!("write `{host} slots=N` there")),
            AppError::Syntax { .. } => Some("for two literal braces write {{ \"{{\" }}".to_owned()),
            AppError::Fill { .. } => Some(format!("placeholders are {PLACEHOLDERS}")),
            AppError::TwoFiles { .. } => {
                Some("{{rank.index}} in DEST gives each rank a file of its own".to_owned())
            }
            AppError::Name(_)
            | AppError::NameTwice(_)
            | AppError::Ready(_)
            | AppError::NoDest(_)
            | AppError::Read { .. } => None,
        }
    }
}

/// Programs that share a list of hosts.
struct HostGroup<'a> {
    hosts: &'a [Host],
    /// Numbers of the group's programs in the job, counted from 0, in ascending order.
    members: Vec<usize>,
    /// Mapping of the group's ranks to its hosts. These ranks are numbered from 0 within the group.
    map: RankMap,
}

/// Maps the ranks of all programs. `common` are the job's hosts. `by` maps a number of ranks to hosts, or
/// with `None` one rank to each slot. It is told the number of the program, if only one has these hosts.
pub fn map_ranks(
    apps: &[AppSpec],
    common: &[Host],
    by: impl Fn(&[Host], Option<u32>, Option<usize>) -> Result<RankMap, MapError>,
) -> Result<RankMap, MapError> {
    let mut sizes: Vec<u32> = apps.iter().map(|app| app.ranks.unwrap_or(0)).collect();
    let on_common: Vec<usize> = (0..apps.len()).filter(|&i| apps[i].hosts.is_none()).collect();
    let own = (0..apps.len()).filter_map(|i| Some((apps[i].hosts.as_deref()?, vec![i])));
    let mut groups = Vec::new();
    for (hosts, members) in std::iter::once((common, on_common)).chain(own) {
        let Some(&last) = members.last() else { continue };
        let only = Some(last).filter(|_| members.len() == 1);
        let asked = |sizes: &[u32]| members.iter().map(|&i| sizes[i]).fold(0, u32::saturating_add);
        let map = match apps[last].ranks {
            Some(_) => by(hosts, Some(asked(&sizes)), only)?,
            None => {
                let others = asked(&sizes);
                let all = by(hosts, None, only)?;
                match all.world_size.checked_sub(others).filter(|&left| left > 0) {
                    Some(left) => sizes[last] = left,
                    // No slot is left for the last program. This fails, and the error has the number of ranks
                    // that need slots.
                    None => return by(hosts, Some(others.saturating_add(1)), only),
                }
                all
            }
        };
        groups.push(HostGroup { hosts, members, map });
    }
    let firsts = first_ranks(&sizes);
    let mut hosts: Vec<(Host, Vec<Rank>)> = Vec::new();
    for group in &groups {
        group.place(&sizes, &firsts, &mut hosts);
    }
    for (_, ranks) in &mut hosts {
        ranks.sort_unstable();
    }
    let firsts = firsts.into_iter().skip(1).map(Rank).collect();
    Ok(RankMap::from_assignment(hosts, firsts))
}

/// Returns the first rank of each program, by the numbers of ranks of the programs.
fn first_ranks(sizes: &[u32]) -> Vec<u32> {
    let mut next = 0_u32;
    let mut firsts = Vec::with_capacity(sizes.len());
    for size in sizes {
        firsts.push(next);
        next = next.saturating_add(*size);
    }
    firsts
}

impl HostGroup<'_> {
    /// Adds the group's ranks, converted to the job's numbering, to `hosts`. A host of several groups is
    /// added once, with the sum of its slots. `sizes` and `firsts` have the number of ranks and the first
    /// rank of each program.
    fn place(&self, sizes: &[u32], firsts: &[u32], hosts: &mut Vec<(Host, Vec<Rank>)>) {
        for host in self.hosts {
            let node = self.map.nodes.iter().find(|node| node.host == *host);
            let ranks = node.map_or(&[][..], |node| &node.ranks);
            let ranks = ranks.iter().filter_map(|rank| self.job_rank(*rank, sizes, firsts));
            let is_same =
                |(known, _): &&mut (Host, _)| known.name == host.name && known.user == host.user;
            match hosts.iter_mut().find(is_same) {
                Some((known, all)) => {
                    known.slots = known.slots.saturating_add(host.slots);
                    all.extend(ranks);
                }
                None => {
                    let ranks = ranks.collect();
                    hosts.push((host.clone(), ranks));
                }
            }
        }
    }

    /// Converts a rank of the group to the job's numbering. `sizes` and `firsts` have the number of ranks and
    /// the first rank of each program.
    fn job_rank(&self, rank: Rank, sizes: &[u32], firsts: &[u32]) -> Option<Rank> {
        let mut left = rank.0;
        for &member in &self.members {
            match left.checked_sub(sizes[member]) {
                None => return Some(Rank(firsts[member] + left)),
                Some(beyond) => left = beyond,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::MapBy;
    use proptest::prelude::*;

    fn app(hosts: Option<&str>, ranks: Option<u32>) -> AppSpec {
        AppSpec {
            hosts: hosts.map(|list| crate::hosts::parse(&[list.into()]).unwrap()),
            ranks,
            ..AppSpec::new(vec!["x".into()], WorkingDir::SameAsLauncher("/".into()))
        }
    }

    fn map(common: &str, apps: &[AppSpec], order: MapBy) -> Result<RankMap, String> {
        let common = crate::hosts::parse(&[common.into()]).unwrap();
        let by = |hosts: &[Host], ranks, _| RankMap::place(order, hosts, ranks, false);
        map_ranks(apps, &common, by).map_err(|error| error.to_string())
    }

    /// Formats a map as `a: 0 1 · b: 2`. Also returns, for each rank, the number of the program that it runs.
    fn shown(map: &RankMap) -> (String, Vec<usize>) {
        let node = |node: &crate::map::MappedNode| {
            let ranks: Vec<String> = node.ranks.iter().map(ToString::to_string).collect();
            format!("{}: {}", node.host, ranks.join(" "))
        };
        let nodes: Vec<String> = map.nodes.iter().map(node).collect();
        let apps = (0..map.world_size).map(|rank| map.application_of(Rank(rank))).collect();
        (nodes.join(" · "), apps)
    }

    #[test]
    fn each_program_has_its_own_hosts() {
        let apps = [app(None, Some(1)), app(Some("p"), Some(1)), app(Some("d:2"), None)];
        let map = map("p", &apps, MapBy::Slot).unwrap();
        assert_eq!(shown(&map), ("p: 0 1 · d: 2 3".to_owned(), vec![0, 1, 2, 2]));
        assert_eq!(map.nodes[0].host.slots, 2);
        assert!(map.nodes.iter().all(|n| n.ranks.iter().all(|&r| map.node_of(r) == Some(n))));
    }

    #[test]
    fn programs_share_the_slots_of_the_job() {
        let apps = [app(None, Some(3)), app(Some("c"), None), app(None, None)];
        let dealt = map("a:2,b:3,d", &apps, MapBy::Slot).unwrap();
        let expected = ("a: 0 1 · b: 2 4 5 · d: 6 · c: 3".to_owned(), vec![0, 0, 0, 1, 2, 2, 2]);
        assert_eq!(shown(&dealt), expected);
        let apps = [app(None, Some(1)), app(None, Some(2))];
        let dealt = map("a:2,b:2,c", &apps, MapBy::Node).unwrap();
        assert_eq!(shown(&dealt).0, "a: 0 · b: 1 · c: 2");
        let unused = map("a,b,c:4", &apps[..1], MapBy::Slot).unwrap().unused;
        assert_eq!(unused.iter().map(ToString::to_string).collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn too_few_slots_count_all_programs() {
        let apps = [app(None, Some(1)), app(None, Some(1))];
        let error = "2 ranks need 2 slots; p has 1: use -H p:2";
        assert_eq!(map("p", &apps, MapBy::Slot), Err(error.to_owned()));
        let apps = [app(None, Some(1)), app(None, None)];
        assert_eq!(map("p", &apps, MapBy::Slot), Err(error.to_owned()));
    }

    proptest! {
        #[test]
        fn every_rank_is_somewhere_once_and_programs_follow_each_other(
            common in prop::collection::vec(1u32..5, 1..4),
            own in prop::collection::vec((prop::option::of(0usize..4), 1u32..6), 1..6),
            by_node in any::<bool>(),
        ) {
            let list = |slots: &[u32]| -> String {
                let names = ["a", "b", "c", "d"];
                let entries = slots.iter().zip(names).map(|(n, name)| format!("{name}:{}", n * 8));
                entries.collect::<Vec<_>>().join(",")
            };
            let apps: Vec<AppSpec> = own
                .iter()
                .map(|(own, ranks)| {
                    let own = own.map(|at| format!("{}:9", ["a", "c", "x", "y"][at]));
                    app(own.as_deref(), Some(*ranks))
                })
                .collect();
            let order = if by_node { MapBy::Node } else { MapBy::Slot };
            let Ok(map) = map(&list(&common), &apps, order) else { return Ok(()) };
            let mut ranks: Vec<Rank> = map.nodes.iter().flat_map(|n| n.ranks.clone()).collect();
            ranks.sort_unstable();
            prop_assert_eq!(ranks, (0..map.world_size).map(Rank).collect::<Vec<_>>());
            for (index, app) in apps.iter().enumerate() {
                prop_assert_eq!(Some(map.ranks_of(index).count() as u32), app.ranks);
                prop_assert!(map.ranks_of(index).all(|rank| map.application_of(rank) == index));
                for rank in (0..map.world_size).map(Rank) {
                    if map.application_of(rank) == index && let Some(hosts) = &app.hosts {
                        let host = &map.node_of(rank).unwrap().host;
                        prop_assert!(hosts.iter().any(|own| own.name == host.name));
                    }
                }
            }
        }
    }
}
