//! Environment of ranks that use PMI-1, and the value of `PMI_process_mapping`: the node of each rank,
//! in MPICH's notation.
//!
//! A block `(first,nodes,count)` places the next `count` ranks on node `first`, as many on the node after
//! it, and so on for `nodes` nodes. Clients begin with the first block again when ranks are left over.

use crate::layout::{JobLayout, RankPlace};
use crate::sorted_map::SortedMap;
use std::fmt::Write as _;

/// Variables of other launchers that a rank must not inherit: clients prefer `PMI_FD` to `PMI_PORT`, and
/// the others make a rank believe that a rank has spawned it, or that Hydra or a debugger runs it.
pub const REMOVED: [&str; 4] = ["PMI_FD", "PMI_SPAWNED", "PMI_TOTALVIEW", "HYDI_CONTROL_FD"];

/// Returns the variables by which a rank finds the agent's port on 127.0.0.1.
pub fn environment(place: &RankPlace, port: u16) -> Vec<(String, String)> {
    let mut variables = identity(place);
    variables.extend(contact(place, port));
    variables
}

/// Returns the variables by which a rank finds the agent's port on 127.0.0.1, if its MPI library may be
/// one that uses PMIx and is offered PMIx as well. Rank and size are left out, since the server tells
/// them; MPICH 5 fails if it finds both interfaces, unless `MPIR_CVAR_PMI_VERSION` says which to use.
pub fn environment_beside_pmix(place: &RankPlace, port: u16) -> Vec<(String, String)> {
    let mut variables = contact(place, port);
    variables.push(("MPIR_CVAR_PMI_VERSION".to_owned(), "1".to_owned()));
    variables
}

fn contact(place: &RankPlace, port: u16) -> Vec<(String, String)> {
    vec![
        ("PMI_PORT".to_owned(), format!("127.0.0.1:{port}")),
        ("PMI_ID".to_owned(), place.pmi_id.to_string()),
    ]
}

/// Returns the variables that say which rank this is, and which interface MPICH 5 is to use.
fn identity(place: &RankPlace) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    let mut add = |name: &str, value: String| variables.push((name.to_owned(), value));
    add("PMI_RANK", place.rank.to_string());
    add("PMI_SIZE", place.world_size.to_string());
    add("MPI_LOCALRANKID", place.local_rank.to_string());
    add("MPI_LOCALNRANKS", place.local_size.to_string());
    add("MPIR_CVAR_PMI_VERSION", "1".to_owned());
    variables
}

/// Maximum length in bytes of the value. MPICH 3 reads answers into a buffer of 1024 bytes, of which the
/// answer's other fields take 40.
const MAPPING_MAX: usize = 960;

/// Ranks that follow each other, as many on each of some nodes that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    first: usize,
    nodes: usize,
    count: usize,
}

/// Returns the mapping of a job. Returns `None` if the layout is not complete or the mapping too long;
/// clients then take each rank for a node of its own, which is slower but works.
pub(super) fn process_mapping(layout: &JobLayout) -> Option<String> {
    let node_of = numbered(&layout.node_of_ranks()?);
    let blocks = blocks(&node_of);
    let blocks = shortest_period(&blocks, &node_of);
    let mut mapping = "(vector".to_owned();
    for Block { first, nodes, count } in blocks {
        write!(mapping, ",({first},{nodes},{count})").ok()?;
        if mapping.len() >= MAPPING_MAX {
            return None;
        }
    }
    mapping.push(')');
    (!blocks.is_empty()).then_some(mapping)
}

/// Returns the node of each rank with the nodes numbered in the order in which ranks need them, so that
/// no number is left out and the first block begins with node 0, to which clients return.
fn numbered(node_of: &[usize]) -> Vec<usize> {
    let mut numbers = SortedMap::default();
    let number = |node: &usize| {
        let next = numbers.len();
        *numbers.get_or_insert_with(*node, || next)
    };
    node_of.iter().map(number).collect()
}

/// Joins ranks into blocks.
fn blocks(node_of: &[usize]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for same in node_of.chunk_by(|one, next| one == next) {
        let Some(&node) = same.first() else { continue };
        match blocks.last_mut() {
            Some(last) if last.count == same.len() && last.first + last.nodes == node => {
                last.nodes += 1;
            }
            _ => blocks.push(Block { first: node, nodes: 1, count: same.len() }),
        }
    }
    blocks
}

/// Returns the shortest beginning of the blocks from which a client finds the nodes of all ranks: it
/// begins with the first block again when ranks are left over, and stops at the last rank.
fn shortest_period<'a>(blocks: &'a [Block], node_of: &[usize]) -> &'a [Block] {
    let mut ranks = 0;
    let is_period = |block: &Block| {
        ranks += block.nodes * block.count;
        node_of.iter().zip(node_of.iter().skip(ranks)).all(|(node, later)| node == later)
    };
    let last = blocks.iter().position(is_period);
    last.and_then(|last| blocks.get(..=last)).unwrap_or(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{JobLayout, NodeLayout};

    #[test]
    fn a_rank_learns_its_place_and_its_secret() {
        let node = |ranks: &[u32]| NodeLayout { host: String::new(), ranks: ranks.to_vec() };
        let nodes = vec![node(&[0, 1]), node(&[2, 3, 4])];
        let pmi_ids = vec![70, 80, 90];
        let layout = JobLayout { nodes, here: 1, pmi_ids, ..JobLayout::default() };
        let text = |variables: Vec<(String, String)>| {
            variables.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        let place = layout.place(3).unwrap();
        let identity = [
            "PMI_RANK=3", "PMI_SIZE=5", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=3",
            "MPIR_CVAR_PMI_VERSION=1",
        ];
        let contact = ["PMI_PORT=127.0.0.1:5000", "PMI_ID=80"];
        assert_eq!(text(environment(&place, 5000)), [&identity[..], &contact].concat());
        let beside = text(environment_beside_pmix(&place, 5000));
        assert_eq!(beside, [&contact[..], &["MPIR_CVAR_PMI_VERSION=1"]].concat());
        assert_eq!(layout.place(0), None);
    }

    fn layout(nodes: &[&[u32]]) -> JobLayout {
        let node = |(number, ranks): (usize, &&[u32])| NodeLayout {
            host: format!("host{number}"),
            ranks: ranks.to_vec(),
        };
        JobLayout { nodes: nodes.iter().enumerate().map(node).collect(), ..JobLayout::default() }
    }

    fn mapping(nodes: &[&[u32]]) -> Option<String> {
        process_mapping(&layout(nodes))
    }

    /// Returns the node of each rank as a client reads it.
    fn read(mapping: &str, ranks: usize) -> Vec<usize> {
        let inner = mapping.strip_prefix("(vector,").unwrap().strip_suffix(')').unwrap();
        let mut nodes = Vec::new();
        for block in inner.split_inclusive(')').cycle() {
            let block = block.trim_start_matches([',', '(']).trim_end_matches(')');
            let numbers: Vec<usize> = block.split(',').map(|part| part.parse().unwrap()).collect();
            for node in numbers[0]..numbers[0] + numbers[1] {
                nodes.extend(std::iter::repeat_n(node, numbers[2]));
            }
            if nodes.len() >= ranks {
                nodes.truncate(ranks);
                return nodes;
            }
        }
        nodes
    }

    #[test]
    fn equal_nodes_are_one_block() {
        assert_eq!(mapping(&[&[0, 1], &[2, 3]]).unwrap(), "(vector,(0,2,2))");
        assert_eq!(mapping(&[&[0]]).unwrap(), "(vector,(0,1,1))");
    }

    #[test]
    fn unequal_nodes_are_several_blocks() {
        let nodes: &[&[u32]] = &[&[0, 1], &[2, 3], &[4], &[5], &[6, 7, 8]];
        assert_eq!(mapping(nodes).unwrap(), "(vector,(0,2,2),(2,2,1),(4,1,3))");
    }

    #[test]
    fn ranks_dealt_one_by_one_are_a_repeated_block() {
        assert_eq!(mapping(&[&[0, 2, 4], &[1, 3, 5]]).unwrap(), "(vector,(0,2,1))");
        // The last round is not full.
        assert_eq!(mapping(&[&[0, 2, 4], &[1, 3]]).unwrap(), "(vector,(0,2,1))");
        let every_third = |first| (first..1000).step_by(3).collect::<Vec<u32>>();
        let nodes = [0, 1, 2].map(every_third);
        assert_eq!(mapping(&nodes.each_ref().map(Vec::as_slice)).unwrap(), "(vector,(0,3,1))");
    }

    #[test]
    fn nodes_without_ranks_or_in_another_order_are_renumbered() {
        assert_eq!(mapping(&[&[], &[0, 1], &[2]]).unwrap(), "(vector,(0,1,2),(1,1,1))");
        assert_eq!(mapping(&[&[2, 3], &[0, 1]]).unwrap(), "(vector,(0,2,2))");
    }

    #[test]
    fn a_layout_with_holes_or_a_long_mapping_has_none() {
        assert_eq!(mapping(&[]), None);
        assert_eq!(mapping(&[&[0, 2]]), None);
        assert_eq!(mapping(&[&[0], &[0]]), None);
        let mut next = 0;
        let mut uneven = |count: u32| {
            next += count;
            (next - count..next).collect::<Vec<u32>>()
        };
        let nodes: Vec<Vec<u32>> = (1..200).map(&mut uneven).collect();
        let nodes: Vec<&[u32]> = nodes.iter().map(Vec::as_slice).collect();
        assert_eq!(mapping(&nodes), None);
    }

    proptest::proptest! {
        #[test]
        fn a_client_reads_what_was_written(nodes in proptest::collection::vec(0_usize..5, 1..60)) {
            let mut ranks = vec![Vec::new(); 5];
            for (rank, &node) in (0..).zip(&nodes) {
                ranks[node].push(rank);
            }
            let ranks: Vec<&[u32]> = ranks.iter().map(Vec::as_slice).collect();
            let mapping = mapping(&ranks).unwrap();
            proptest::prop_assert_eq!(read(&mapping, nodes.len()), numbered(&nodes), "{}", mapping);
        }
    }
}
