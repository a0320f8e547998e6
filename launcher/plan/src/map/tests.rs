use super::*;
use crate::hosts::{self, hostfile};
use proptest::prelude::*;

fn map(list: &str, ranks: Option<u32>, over: bool) -> Result<Vec<(String, u32)>, String> {
    let hosts = crate::hosts::parse(&[list.to_owned()]).unwrap();
    let map = RankMap::by_slot(&hosts, ranks, over).map_err(|e| e.to_string())?;
    let ranks: Vec<_> = map.nodes.iter().flat_map(|n| n.ranks.clone()).collect();
    assert_eq!(ranks, (0..map.world_size).map(Rank).collect::<Vec<_>>());
    for node in &map.nodes {
        assert!(node.ranks.iter().all(|&r| map.node_of(r) == Some(node)));
    }
    let row = |n: &MappedNode| (n.host.name.clone(), n.ranks.len() as u32);
    Ok(map.nodes.iter().map(row).collect())
}

fn counts(list: &[(&str, u32)]) -> Result<Vec<(String, u32)>, String> {
    Ok(list.iter().map(|(n, c)| ((*n).to_owned(), *c)).collect())
}

/// Maps ranks by `--map-by` (`order`) and `--rank-by`, and lists the ranks of each node.
fn dealt(
    order: &str,
    by: Option<RankBy>,
    list: &str,
    ranks: Option<u32>,
    over: bool,
) -> Result<Vec<Vec<u32>>, String> {
    let hosts = crate::hosts::parse(&[list.to_owned()]).unwrap();
    let order: MapBy = order.parse().unwrap();
    let map = RankMap::place(order, &hosts, ranks, over).map_err(|error| error.to_string())?;
    let map = map.renumbered(order, by);
    for node in &map.nodes {
        assert!(node.ranks.iter().all(|&rank| map.node_of(rank) == Some(node)));
    }
    Ok(map.nodes.iter().map(|node| node.ranks.iter().map(|r| r.0).collect()).collect())
}

#[test]
fn slots_fill_in_order() {
    assert_eq!(map("a:2,b", Some(3), false), counts(&[("a", 2), ("b", 1)]));
    assert_eq!(map("a:2,b", None, false), counts(&[("a", 2), ("b", 1)]));
    assert_eq!(map("a,b,c", Some(2), false), counts(&[("a", 1), ("b", 1)]));
}

#[test]
fn by_node_each_host_takes_one_in_turn() {
    let deal = |list: &str, ranks, over| dealt("node", None, list, ranks, over).unwrap();
    assert_eq!(deal("a:8,b:8", Some(2), false), [[0], [1]]);
    assert_eq!(deal("a:3,b:1,c:2", None, false), [vec![0, 3, 5], vec![1], vec![2, 4]]);
    assert_eq!(deal("a,b:2", Some(5), true), [vec![0, 3], vec![1, 2, 4]]);
}

#[test]
fn so_many_on_each_host() {
    let deal = |list: &str, ranks| dealt("ppr:2:node", None, list, ranks, false);
    assert_eq!(deal("a,b", None).unwrap(), [[0, 1], [2, 3]]);
    assert_eq!(deal("a:4,b:2", None).unwrap(), [[0, 1], [2, 3]]);
    assert_eq!(deal("a,b,c", Some(3)).unwrap(), [vec![0, 1], vec![2]]);
    assert_eq!(deal("a,b", Some(5)).unwrap_err(), "5 ranks do not fit: 2 on each of 2 hosts are 4");
    assert_eq!(
        deal("a,b:1", None).unwrap_err(),
        "2 ranks on each host need 2 slots; b has 1: use b:2"
    );
    assert_eq!(dealt("ppr:2:node", None, "a,b:1", None, true).unwrap(), [[0, 1], [2, 3]]);
}

#[test]
fn ranks_are_numbered_as_asked() {
    let deal = |order, by, list: &str| dealt(order, Some(by), list, None, false).unwrap();
    assert_eq!(deal("slot", RankBy::Node, "a:2,b:1,c:2"), [vec![0, 3], vec![1], vec![2, 4]]);
    assert_eq!(deal("node", RankBy::Slot, "a:2,b:1,c:2"), [vec![0, 1], vec![2], vec![3, 4]]);
    assert_eq!(deal("node", RankBy::Node, "a:2,b:1"), [vec![0, 2], vec![1]]);
    assert_eq!(deal("ppr:2:node", RankBy::Node, "a,b"), [[0, 2], [1, 3]]);
    assert_eq!(deal("slot", RankBy::Slot, "a:2,b"), [vec![0, 1], vec![2]]);
}

#[test]
fn words_for_orders_are_understood() {
    for text in ["slot", "node", "ppr:4:node", "numa", "gpu"] {
        assert_eq!(text.parse::<MapBy>().unwrap().to_string(), text);
    }
    for text in ["ppr:0:node", "ppr:4:socket", "ppr::node", "core", ""] {
        assert!(text.parse::<MapBy>().unwrap_err().contains("ppr:N:node"), "{text}");
    }
    let node = Some(RankBy::Node);
    assert_eq!(combine_orders(MapBy::Slot, Some(4), None), Ok((MapBy::Ppr(4), None)));
    assert_eq!(combine_orders(MapBy::Node, Some(4), None), Ok((MapBy::Ppr(4), node)));
    assert_eq!(combine_orders(MapBy::Ppr(4), Some(4), node), Ok((MapBy::Ppr(4), node)));
    assert_eq!(combine_orders(MapBy::Ppr(2), Some(4), None), Err(TwoNumbers(4, 2)));
    assert_eq!(combine_orders(MapBy::Numa, None, None), Ok((MapBy::Numa, None)));
}

#[test]
fn too_few_slots_say_what_to_type() {
    let text = "4 ranks need 4 slots; there are 3 (a 1, b 1, c 1): use -H a:2,b,c";
    assert_eq!(map("a,b,c", Some(4), false), Err(text.into()));
    for (list, ranks, meant) in [
        ("a,b,c", 8, "use -H a:3,b:3,c:2"),
        ("a:4,b,c", 8, "use -H a:4,b:2,c:2"),
        ("a:4,b,c", 7, "use -H a:4,b:2,c"),
        (
            "n[1-9]",
            10,
            "(n1 1, n2 1, n3 1, n4 1, n5 1, n6 1, n7 1, n8 1, and 1 more): give each host up to 2, as in -H n1:2",
        ),
    ] {
        let error = map(list, Some(ranks), false).unwrap_err();
        assert!(error.ends_with(meant), "{error}");
    }
    let text = "3 ranks need 3 slots; h1 has 1: use -H h1:3";
    assert_eq!(map("h1", Some(3), false), Err(text.into()));
    let text = "4294967295 ranks are more than the 1048576 of a job";
    assert_eq!(map("a:4294967295", None, false), Err(text.into()));
}

#[test]
fn oversubscription_is_dealt_out() {
    assert_eq!(map("a,b,c", Some(8), true), counts(&[("a", 3), ("b", 3), ("c", 2)]));
}

proptest! {
    /// A node's number must be the position of its host in the list, because some jobs connect to hosts
    /// before they map ranks.
    #[test]
    fn every_rank_has_a_place_and_hosts_without_are_the_last(
        slots in prop::collection::vec(1..5u32, 1..7),
        order in prop::sample::select(vec!["slot", "node", "numa", "gpu", "ppr:2:node"]),
        by in prop::sample::select(vec![None, Some(RankBy::Slot), Some(RankBy::Node)]),
        ranks in prop::option::of(1..30u32),
    ) {
        let entries = slots.iter().enumerate().map(|(at, slots)| format!("h{at}:{slots}"));
        let list = entries.collect::<Vec<_>>().join(",");
        let hosts = crate::hosts::parse(&[list]).unwrap();
        let order: MapBy = order.parse().unwrap();
        let Ok(map) = RankMap::place(order, &hosts, ranks, true) else {
            // Only `ppr:2:node` may fail, if there are more than two ranks for each host.
            prop_assert!(ranks.is_some_and(|ranks| ranks as usize > 2 * hosts.len()));
            return Ok(());
        };
        let map = map.renumbered(order, by);
        let used: Vec<&Host> = map.nodes.iter().map(|node| &node.host).collect();
        let all: Vec<&Host> = used.into_iter().chain(&map.unused).collect();
        prop_assert_eq!(all, hosts.iter().collect::<Vec<_>>());
        let mut found: Vec<u32> =
            map.nodes.iter().flat_map(|node| node.ranks.iter().map(|rank| rank.0)).collect();
        found.sort_unstable();
        prop_assert_eq!(found, (0..map.world_size).collect::<Vec<_>>());
        prop_assert_eq!(map.node_of(Rank(0)).map(|node| node.id), Some(NodeId(0)));
    }
}

fn shown_line(list: &str, order: MapBy, ranks: Option<u32>) -> String {
    let hosts = hosts::parse(&[list.to_owned()]).unwrap();
    let map = RankMap::place(order, &hosts, ranks, false).unwrap();
    format_line(&map, &remarks(&map, order, &[]))
}

#[test]
fn a_placement_is_shown_where_a_host_idles_or_is_crowded() {
    let shown = |list: &str, ranks, oversubscribe| {
        let hosts = hosts::parse(&[list.to_owned()]).unwrap();
        let map = RankMap::place(MapBy::Slot, &hosts, ranks, oversubscribe).unwrap();
        placement_line(&map, MapBy::Slot, oversubscribe)
    };
    assert_eq!(shown("a:2,b", None, false), None);
    assert_eq!(shown("a:2,b", None, true), None);
    assert!(shown("a:2,b", Some(1), false).is_some());
    let line = "placement: a 0-2 · b 3 — more ranks than slots: a".to_owned();
    assert_eq!(shown("a:2,b", Some(4), true), Some(Message::Labelled(line)));
}

#[test]
fn hosts_without_ranks_are_said_with_what_helps() {
    assert_eq!(shown_line("a:2,b", MapBy::Slot, None), "placement: a 0-1 · b 2");
    assert_eq!(
        shown_line("a:8,b:8", MapBy::Slot, Some(2)),
        "placement: a 0-1 · b none — 1 of 2 hosts idle; --map-by node spreads"
    );
    assert_eq!(shown_line("a:8,b:8", MapBy::Node, Some(2)), "placement: a 0 · b 1");
    let idle = "placement: a 0 · b none · c none — 2 of 3 hosts idle";
    assert_eq!(shown_line("a,b,c", MapBy::Slot, Some(1)), idle);
    let idle = "placement: a 0 · b none — 1 of 2 hosts idle";
    assert_eq!(shown_line("a:2,b", MapBy::Node, Some(1)), idle);
}

#[test]
fn long_lists_are_cut() {
    assert_eq!(shown_line("a:3,b:1,c:2", MapBy::Node, None), "placement: a 0,3,5 · b 1 · c 2,4");
    let expected = "placement: a 0,2,4,6 and 4 more · b 1,3,5,7 and 4 more";
    assert_eq!(shown_line("a:8,b:8", MapBy::Node, None), expected);
    let many = shown_line("n[1-12]:2", MapBy::Slot, Some(18));
    assert!(many.contains("· n8 14-15 · and 1 more · n10 none ·"), "{many}");
    let many = shown_line("n[1-20]", MapBy::Slot, Some(2));
    assert!(many.contains("· n10 none · and 10 more none — 18 of 20 hosts idle"), "{many}");
}

#[test]
fn slots_that_nobody_gave_are_said() {
    let hosts = hostfile::parse("a\nb\nc slots=1\n").unwrap();
    let settled: Vec<Host> =
        hosts.iter().zip([2, 0, 8]).map(|(host, gpus)| host.settled(gpus)).collect();
    let map = RankMap::place(MapBy::Slot, &settled, None, false).unwrap();
    assert_eq!(
        format_line(&map, &remarks(&map, MapBy::Slot, &[])),
        "placement: a 0-1 · b 2 · c 3 — slots are GPUs: a 2; 1 slot where there is no GPU: b"
    );
}

#[test]
fn a_rankfile_names_the_host_of_each_rank() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ranks");
    std::fs::write(&file, "rank 0=c\nrank 1=a\nrank 2=c\nrank 3=b\n").unwrap();
    let list = RankList::read(&file).unwrap();
    let hosts = crate::hosts::parse(&["a,b,c".to_owned()]).unwrap();
    let ranks = |ranks| {
        let map = RankMap::listed(&list, &hosts, ranks).unwrap();
        let of = |node: &MappedNode| {
            (node.host.to_string(), node.ranks.iter().map(|rank| rank.0).collect::<Vec<_>>())
        };
        (map.nodes.iter().map(of).collect::<Vec<_>>(), map.unused.len())
    };
    let named = |host: &str, ranks: &[u32]| (host.to_owned(), ranks.to_vec());
    assert_eq!(ranks(None), (vec![named("c", &[0, 2]), named("a", &[1]), named("b", &[3])], 0));
    assert_eq!(ranks(Some(2)), (vec![named("c", &[0]), named("a", &[1])], 1));
    let error = RankMap::listed(&list, &hosts, Some(5)).unwrap_err().to_string();
    assert_eq!(error, "-np 5, but the rankfile has 4 ranks");
    let error = RankMap::listed(&list, &hosts[..2], None).unwrap_err().to_string();
    assert_eq!(error, "rank 0 of the rankfile is on c, and the hosts are a, b");
}
