//! Rank tables, which programs may read from any file.

use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::RankTable;

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
