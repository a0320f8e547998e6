//! Mapping of the ranks of several programs to hosts. A program runs on its own hosts, or else on the job's
//! hosts from the first free slot on.

use super::AppSpec;
use crate::hosts::Host;
use crate::map::{MapError, RankMap};
use rlaunch_bootstrap::id::Rank;

/// Programs that share a list of hosts.
struct HostGroup<'a> {
    hosts: &'a [Host],
    /// Numbers of the group's programs in the job, counted from 0, in ascending order.
    members: Vec<usize>,
    /// Mapping of the group's ranks to its hosts. These ranks are numbered from 0 within the group.
    map: RankMap,
}

/// Maps the ranks of all programs. `common` are the job's hosts. `by` maps a number of ranks to hosts, or
/// with `None` one rank to each slot.
pub fn map_ranks(
    apps: &[AppSpec],
    common: &[Host],
    by: impl Fn(&[Host], Option<u32>) -> Result<RankMap, MapError>,
) -> Result<RankMap, MapError> {
    let mut sizes: Vec<u32> = apps.iter().map(|app| app.ranks.unwrap_or(0)).collect();
    let on_common: Vec<usize> = (0..apps.len()).filter(|&i| apps[i].hosts.is_none()).collect();
    let own = (0..apps.len()).filter_map(|i| Some((apps[i].hosts.as_deref()?, vec![i])));
    let mut groups = Vec::new();
    for (hosts, members) in std::iter::once((common, on_common)).chain(own) {
        let Some(&last) = members.last() else { continue };
        let asked = |sizes: &[u32]| members.iter().map(|&i| sizes[i]).fold(0, u32::saturating_add);
        let map = match apps[last].ranks {
            Some(_) => by(hosts, Some(asked(&sizes)))?,
            None => {
                let others = asked(&sizes);
                let all = by(hosts, None)?;
                match all.world_size.checked_sub(others).filter(|&left| left > 0) {
                    Some(left) => sizes[last] = left,
                    // No slot is left for the last program. This fails, and the error has the number of ranks
                    // that need slots.
                    None => return by(hosts, Some(others.saturating_add(1))),
                }
                all
            }
        };
        groups.push(HostGroup { hosts, members, map });
    }
    let mut end = 0_u32;
    let first = |size: &u32| {
        let after = end.saturating_add(*size);
        std::mem::replace(&mut end, after)
    };
    let firsts: Vec<u32> = sizes.iter().map(first).collect();
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
    use rlaunch_bootstrap::job::WorkingDir;

    fn app(hosts: Option<&str>, ranks: Option<u32>) -> AppSpec {
        AppSpec {
            name: None,
            hosts: hosts.map(|list| crate::hosts::parse(&[list.into()]).unwrap()),
            ranks,
            argv: vec!["x".into()],
            other_names: vec![],
            wdir: WorkingDir::SameAsLauncher("/".into()),
            env: vec![],
            user_set_vars: vec![],
            script: None,
            preload: vec![],
            after: vec![],
            templates: vec![],
        }
    }

    fn map(common: &str, apps: &[AppSpec], order: MapBy) -> Result<RankMap, String> {
        let common = crate::hosts::parse(&[common.into()]).unwrap();
        let by = |hosts: &[Host], ranks| RankMap::by(order, hosts, ranks, false);
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
        let error = "2 ranks asked, 1 slot (p 1): use p:2 or --oversubscribe";
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
            let counted = |index| {
                (0..map.world_size).filter(|&r| map.application_of(Rank(r)) == index).count()
            };
            for (index, app) in apps.iter().enumerate() {
                prop_assert_eq!(Some(counted(index) as u32), app.ranks);
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
