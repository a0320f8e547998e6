//! `--show mesh`: the connection between every two ranks of different hosts, and the result of its proof.

use super::outcome::{Failure, ProofOutcome};
use super::paths::pairs;
use super::{Mesh, ProofResult, is_rdma};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::mesh::{PathProof, ProofStep};
use rlaunch_bootstrap::rank_table::{Nic, NicId, Pair, PairTransport, RankTable, Transport};
use rlaunch_text::columns;
use serde::Serialize;

/// Writes a line for each pair of ranks on different nodes.
pub fn format_table(table: &RankTable, mesh: &Mesh) -> String {
    let header = ["ranks", "hosts", "by", "from", "to", "mtu", "round trip"];
    let mut rows = vec![columns::row(header)];
    for pair in pairs(table) {
        let Pair { a, b, nic_a, nic_b, connect, mtu } = pair;
        let (Some(one), Some(other)) =
            (ConnectionEnd::at_rank(table, a, nic_a), ConnectionEnd::at_rank(table, b, nic_b))
        else {
            continue;
        };
        rows.push(vec![
            format!("{a}-{b}"),
            format!("{}-{}", one.host, other.host),
            describe_transport(connect, one.nic),
            one.text(),
            other.text(),
            mtu.map(|mtu| mtu.to_string()).unwrap_or_default(),
            round_trip(mesh, &pair, &one, &other),
        ]);
    }
    match rows.len() {
        1 => "all ranks are on one host\n".to_owned(),
        _ => columns::lay_out(&rows),
    }
}

/// Writes the measured round trip of a pair, such as `41 us`, or `not proved`. Empty without RDMA or proofs.
fn round_trip(
    mesh: &Mesh,
    pair: &Pair,
    one: &ConnectionEnd<'_>,
    other: &ConnectionEnd<'_>,
) -> String {
    if !is_rdma(pair.connect) || mesh.rounds == 0 {
        return String::new();
    }
    match proof(mesh, pair, one, other) {
        Some(proved) => format!("{} us", proved.round_trip_ns.div_ceil(1000)),
        None => "not tested".to_owned(),
    }
}

fn proof(
    mesh: &Mesh,
    pair: &Pair,
    one: &ConnectionEnd<'_>,
    other: &ConnectionEnd<'_>,
) -> Option<PathProof> {
    let nics = one.end?.min(other.end?);
    let result = mesh.proof_between((pair.a, pair.b), (nics, one.end?.max(other.end?)))?;
    match result.outcome {
        ProofOutcome::Up(proved) => Some(proved),
        ProofOutcome::Failed(_) => None,
    }
}

/// Writes how a pair is connected, as in `RoCE v2 oob`, `iWARP rdma_cm (NCCL cannot use it)` or `TCP`.
fn describe_transport(connect: PairTransport, nic: Option<&Nic>) -> String {
    let transport = nic.map_or("", |nic| transport_name(nic.transport));
    match connect {
        PairTransport::SharedMemory => "shared memory".to_owned(),
        PairTransport::Tcp => "TCP".to_owned(),
        PairTransport::Rdma => format!("{transport} oob"),
        PairTransport::RdmaCm => match nic {
            // With RoCE, `rdma_cm` concerns only rlaunch's queue pairs: NCCL creates its own without it.
            Some(nic) if nic.transport != Transport::Iwarp => format!("{transport} rdma_cm"),
            _ => format!("{transport} rdma_cm (NCCL cannot use it)"),
        },
    }
}

/// Returns the common name of a transport.
pub(crate) fn transport_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Infiniband => "InfiniBand",
        Transport::Roce => "RoCE v2",
        Transport::Iwarp => "iWARP",
    }
}

/// End of the connection between two ranks: a host and, with RDMA, a NIC.
pub struct ConnectionEnd<'a> {
    pub host: &'a str,
    pub nic: Option<&'a Nic>,
    end: Option<NicId>,
    /// Address of the node.
    address: std::net::IpAddr,
}

impl<'a> ConnectionEnd<'a> {
    fn at_rank(table: &'a RankTable, rank: Rank, nic: Option<u32>) -> Option<ConnectionEnd<'a>> {
        let node = table.ranks().get(rank.index())?.node;
        let row = table.nodes().get(node.index())?;
        let end = nic.map(|nic| NicId { node, nic });
        let nic = nic.and_then(|nic| row.nics.get(nic as usize));
        Some(ConnectionEnd { host: &row.host, nic, end, address: row.address })
    }

    /// Returns the end at a NIC; `None` if the rank table has no such NIC.
    pub fn at_nic(table: &'a RankTable, end: NicId) -> Option<ConnectionEnd<'a>> {
        let row = table.nodes().get(end.node.index())?;
        let nic = Some(table.nic(end)?);
        Some(ConnectionEnd { host: &row.host, nic, end: Some(end), address: row.address })
    }

    /// Writes the NIC, as in `mlx5_0/1 GID 3 10.0.0.1`, or the node's address if there is no NIC.
    pub fn text(&self) -> String {
        let Some(nic) = self.nic else { return self.address.to_string() };
        let mut words = vec![format!("{}/{}", nic.device, nic.port)];
        words.extend(nic.gid_index.map(|index| format!("GID {index}")));
        words.extend(nic.address.map(|address| address.to_string()));
        words.join(" ")
    }
}

/// Pair of ranks in the JSON output.
#[derive(Debug, Serialize)]
pub struct PairRow<'a> {
    #[serde(flatten)]
    pair: Pair,
    host_a: &'a str,
    host_b: &'a str,
    /// Device of rank `a`, such as `mlx5_0`.
    device_a: Option<&'a str>,
    device_b: Option<&'a str>,
    gid_a: Option<&'a str>,
    gid_b: Option<&'a str>,
    /// Whether the path was proved; null if the pair does not use RDMA or no round took place.
    proved: Option<bool>,
    round_trip_us: Option<f64>,
    /// Failed proofs between NICs of the two nodes.
    failed: Vec<FailureRow<'a>>,
}

#[derive(Debug, Serialize)]
struct FailureRow<'a> {
    device_a: Option<&'a str>,
    device_b: Option<&'a str>,
    mtu: Option<u32>,
    /// Host that reported the failure.
    host: &'a str,
    step: ProofStep,
    cause: &'a str,
}

/// Lists every pair of ranks on different nodes for the JSON output.
pub fn json_rows<'a>(table: &'a RankTable, mesh: &'a Mesh) -> Vec<PairRow<'a>> {
    let shown = |pair: Pair| {
        let (one, other) = (
            ConnectionEnd::at_rank(table, pair.a, pair.nic_a)?,
            ConnectionEnd::at_rank(table, pair.b, pair.nic_b)?,
        );
        let proof = proof(mesh, &pair, &one, &other);
        let proved = (is_rdma(pair.connect) && mesh.rounds > 0).then_some(proof.is_some());
        let device = |side: &ConnectionEnd<'a>| side.nic.map(|nic| nic.device.as_str());
        let gid = |side: &ConnectionEnd<'a>| side.nic.and_then(|nic| nic.gid.as_deref());
        Some(PairRow {
            host_a: one.host,
            host_b: other.host,
            device_a: device(&one),
            device_b: device(&other),
            gid_a: gid(&one),
            gid_b: gid(&other),
            proved,
            round_trip_us: proof.map(|proof| f64::from(proof.round_trip_ns) / 1e3),
            failed: failures(table, mesh, &pair),
            pair,
        })
    };
    pairs(table).filter_map(shown).collect()
}

/// Lists the failed proofs between the nodes of a pair.
fn failures<'a>(table: &'a RankTable, mesh: &'a Mesh, pair: &Pair) -> Vec<FailureRow<'a>> {
    let node = |rank: Rank| table.ranks().get(rank.index()).map(|row| row.node);
    let (Some(a), Some(b)) = (node(pair.a), node(pair.b)) else { return Vec::new() };
    let shown = |(result, failure): (&'a ProofResult, &'a Failure)| {
        let ends = [result.proof.from, result.proof.to];
        let nic_of = |node| ends.into_iter().find(|end| end.node == node);
        let device = |end| Some(ConnectionEnd::at_nic(table, end)?.nic?.device.as_str());
        let (one, other) = (nic_of(a)?, nic_of(b)?);
        Some(FailureRow {
            device_a: device(one),
            device_b: device(other),
            mtu: result.proof.mtu,
            host: &table.nodes().get(failure.node.index())?.host,
            step: failure.fault.step,
            cause: &failure.fault.cause,
        })
    };
    mesh.failures().into_iter().filter_map(shown).collect()
}
