//! Tests of hierarchical schedules, for ranks that share nodes.

use super::super::by_node;
use super::*;

/// Returns assignments of ranks to nodes: node by node, round robin, and irregular.
fn groupings() -> Vec<Vec<usize>> {
    let mut groupings = Vec::new();
    for (size, nodes) in [(1, 1), (2, 1), (2, 2), (3, 2), (4, 2), (5, 5), (8, 3), (12, 4), (64, 8)]
    {
        groupings.push((0..size).map(|rank| rank * nodes / size).collect());
        groupings.push((0..size).map(|rank| rank % nodes).collect());
    }
    for seed in 0..60 {
        let mut state = mix(seed);
        let mut below = |limit: usize| {
            state = mix(state);
            (state >> 33) as usize % limit
        };
        let (size, nodes) = (1 + below(40), 1 + below(9));
        groupings.push((0..size).map(|_| 100 + below(nodes)).collect());
    }
    groupings
}

#[test]
fn by_node_nobody_leaves_a_barrier_before_all_have_come() {
    for grouping in groupings() {
        let nodes = by_node::Nodes::new(&grouping);
        let schedules: Vec<Schedule> = (0..nodes.size())
            .map(|rank| by_node::barrier(rank, &nodes, barrier::dissemination))
            .collect();
        check_barrier("by node", &schedules);
        let mut memories = vec![Memory::apart(Vec::new(), 0); nodes.size()];
        play(&format!("by node {grouping:?}"), &schedules, &mut memories);
    }
}

#[test]
fn by_node_all_get_what_they_get_without() {
    for (index, grouping) in groupings().iter().enumerate() {
        let nodes = by_node::Nodes::new(grouping);
        let size = nodes.size();
        let name = format!("by node {grouping:?}");
        for (count, root) in [0, 1, 7, 33]
            .into_iter()
            .flat_map(|count| [0, size / 2, size - 1].map(|root| (count, root)))
        {
            let schedules: Vec<Schedule> = (0..size)
                .map(|rank| {
                    let (among, within) = (broadcast::scatter_ring, broadcast::binomial);
                    by_node::broadcast(rank, &nodes, count, root, among, within)
                })
                .collect();
            check_nothing(&name, &schedules, count);
            check_broadcast(&name, &schedules, count, root);
            for in_place in [false, true] {
                let (one, other) = match index % 2 {
                    0 => (reduce::binomial as fn(_, _, _, _) -> _, reduce::scatter_gather as _),
                    _ => (reduce::scatter_gather as _, reduce::binomial as fn(_, _, _, _) -> _),
                };
                let schedules: Vec<Schedule> = (0..size)
                    .map(|rank| by_node::reduce(rank, &nodes, count, root, in_place, one, other))
                    .collect();
                check_nothing(&name, &schedules, count);
                check_reduce(&name, &schedules, (count, root), in_place);
            }
        }
        for count in [0, 1, 7, 33] {
            for (in_place, (_, among)) in
                IN_PLACE.into_iter().flat_map(|in_place| ALL_REDUCE.map(|among| (in_place, among)))
            {
                let schedules: Vec<Schedule> = (0..size)
                    .map(|rank| {
                        let (up, down) = (reduce::binomial, broadcast::binomial);
                        by_node::all_reduce(rank, &nodes, count, in_place(rank), up, among, down)
                    })
                    .collect();
                check_nothing(&name, &schedules, count);
                check_all_reduce(&name, &schedules, count, in_place);
                let schedules: Vec<Schedule> = (0..size)
                    .map(|rank| {
                        by_node::in_order(rank, &nodes, |me| among(me, count, in_place(rank)))
                    })
                    .collect();
                check_nothing(&name, &schedules, count);
                check_all_reduce(&name, &schedules, count, in_place);
            }
        }
    }
}
