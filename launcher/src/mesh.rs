//! `--show mesh`: by what any two ranks of different hosts reach each other.

use crate::columns;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::table::{Connect, Nic, Pair, RankTable, Transport};

/// Every pair of ranks of different nodes, the lower rank first.
pub(crate) fn pairs(table: &RankTable) -> impl Iterator<Item = Pair> {
    let ranks = table.world_size();
    let all = (0..ranks).flat_map(move |a| (a + 1..ranks).map(move |b| (Rank(a), Rank(b))));
    let pairs = all.filter_map(|(a, b)| table.pair(a, b));
    pairs.filter(|pair| pair.connect != Connect::SharedMemory)
}

/// For people: a line for each pair.
pub(crate) fn for_people(table: &RankTable) -> String {
    let mut rows = vec![columns::row(["ranks", "hosts", "by", "from", "to", "mtu"])];
    for pair in pairs(table) {
        let Pair { a, b, nic_a, nic_b, connect, mtu } = pair;
        let (Some(one), Some(other)) = (End::of(table, a, nic_a), End::of(table, b, nic_b)) else {
            continue;
        };
        rows.push(vec![
            format!("{a}-{b}"),
            format!("{}-{}", one.host, other.host),
            by(connect, one.nic),
            one.text(),
            other.text(),
            mtu.map(|mtu| mtu.to_string()).unwrap_or_default(),
        ]);
    }
    match rows.len() {
        1 => "all ranks are on one host\n".to_owned(),
        _ => columns::lay_out(&rows),
    }
}

/// `RoCE`, `iWARP by RDMA_CM`, `TCP`.
fn by(connect: Connect, nic: Option<&Nic>) -> String {
    let speaks = nic.map_or("", |nic| match nic.transport {
        Transport::Infiniband => "InfiniBand",
        Transport::Roce => "RoCE",
        Transport::Iwarp => "iWARP",
    });
    match connect {
        Connect::SharedMemory => "shared memory".to_owned(),
        Connect::Tcp => "TCP".to_owned(),
        Connect::Rdma => speaks.to_owned(),
        Connect::RdmaCm => format!("{speaks} by RDMA_CM"),
    }
}

/// One end of a pair.
struct End<'a> {
    host: &'a str,
    nic: Option<&'a Nic>,
    /// Of its node.
    address: std::net::IpAddr,
}

impl<'a> End<'a> {
    fn of(table: &'a RankTable, rank: Rank, nic: Option<u32>) -> Option<End<'a>> {
        let row = table.ranks().get(rank.index())?;
        let node = table.nodes().get(row.node.index())?;
        let nic = nic.and_then(|nic| node.nics.get(nic as usize));
        Some(End { host: &node.host, nic, address: node.address })
    }

    /// `mlx5_0/1 GID 3 10.0.0.1`, or the address of the node.
    fn text(&self) -> String {
        let Some(nic) = self.nic else { return self.address.to_string() };
        let mut words = vec![format!("{}/{}", nic.device, nic.port)];
        words.extend(nic.gid_index.map(|index| format!("GID {index}")));
        words.extend(nic.address.map(|address| address.to_string()));
        words.join(" ")
    }
}
