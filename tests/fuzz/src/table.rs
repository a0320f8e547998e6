//! Rank tables, which programs may read from any file, and the message that brings one to an agent.

use crate::stream::{parts, whole};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::{NodeRanks, RankLayout, RankTable, TableMessage};
use rlaunch_bootstrap::rendezvous::payload::Payload;

/// Number of ranks of which all pairs are checked.
const CHECKED: u32 = 6;

/// Parses a rank table. A valid table has every rank, and describes each pair the same from both
/// ends.
pub(crate) fn table(data: &[u8]) {
    let Ok(table) = serde_json::from_slice::<RankTable>(data) else { return };
    assert_eq!(table.ranks().len(), table.world_size() as usize);
    for (index, row) in table.ranks().iter().enumerate() {
        assert_eq!(row.rank.index(), index);
        assert!(row.node.index() < table.nodes().len());
    }
    let ranks = table.world_size().min(CHECKED);
    for (a, b) in (0..ranks).flat_map(|a| (0..ranks).map(move |b| (Rank(a), Rank(b)))) {
        let (Some(there), Some(back)) = (table.pair(a, b), table.pair(b, a)) else {
            panic!("no pair of {a:?} and {b:?}");
        };
        assert_eq!(
            (there.nic_a, there.nic_b, there.connect, there.mtu),
            (back.nic_b, back.nic_a, back.connect, back.mtu)
        );
    }
    assert_eq!(table.pair(Rank(0), Rank(table.world_size())), None);
    let again = serde_json::to_vec(&table).unwrap_or_default();
    assert_eq!(serde_json::from_slice::<RankTable>(&again).ok(), Some(table));
}

pub(crate) fn table_seeds() -> Vec<Vec<u8>> {
    vec![include_bytes!("../../../bootstrap/rank-table.example.json").to_vec()]
}

/// Takes a message apart, in pieces and as a whole, with the same result. A message with a valid layout
/// survives being encoded and taken apart again.
pub(crate) fn message(data: &[u8]) {
    let pieces: Vec<Payload> = parts(data).map(|part| part.to_vec().into()).collect();
    let at_once = TableMessage::parse(&data.get(1..).unwrap_or_default().to_vec().into());
    let Ok(message) = TableMessage::parse(&Payload::join(&pieces)) else {
        assert!(at_once.is_err());
        return;
    };
    assert_eq!(at_once.ok().as_ref().map(TableMessage::json), Some(message.json()));
    let Ok(layout) = message.layout() else { return };
    for rank in layout.nodes.iter().flat_map(|node| &node.ranks) {
        assert!(layout.application_of(*rank) <= layout.first_ranks.len());
    }
    let again = layout.encode_message(message.json()).unwrap_or_default();
    let Ok(again) = TableMessage::parse(&again.into()) else { panic!("{layout:?} is lost") };
    assert_eq!((again.json(), again.layout().ok()), (message.json(), Some(layout)));
}

pub(crate) fn message_seeds() -> Vec<Vec<u8>> {
    let json = include_bytes!("../../../bootstrap/rank-table.example.json");
    let of_example = serde_json::from_slice::<RankTable>(json).ok();
    let of_example = of_example.map(|table| RankLayout::new(&table, vec![Rank(1)]));
    let node = |host: &str, ranks: &[u32]| NodeRanks {
        host: host.to_owned(),
        ranks: ranks.iter().copied().map(Rank).collect(),
    };
    let nodes = vec![node("a", &[0, 2]), node("b", &[1, 300]), node("c", &[])];
    let small = RankLayout { nodes, first_ranks: vec![Rank(1), Rank(2)] };
    let message = |layout: &RankLayout, json: &[u8]| layout.encode_message(json).ok().map(whole);
    let example = of_example.and_then(|layout| message(&layout, json));
    example.into_iter().chain(message(&small, b"{}")).collect()
}
