//! Advice for a path that does not work, from the step at which it failed and the system's error.

use super::outcome::Failure;
use super::paths::Proof;
use super::show::ConnectionEnd;
use crate::findings::{CheckId, id};
use rlaunch_bootstrap::protocol::mesh::ProofStep;
use rlaunch_bootstrap::rank_table::{Nic, RankTable, Transport};

/// UDP destination port of RoCE v2 packets.
const ROCE_PORT: u16 = 4791;

/// Returns the likely cause and a remedy, if they are known.
pub(crate) fn hint(table: &RankTable, proof: &Proof, failure: &Failure) -> Option<String> {
    let (one, other) =
        (ConnectionEnd::at_nic(table, proof.from)?, ConnectionEnd::at_nic(table, proof.to)?);
    let (from, to) = (one.nic?, other.nic?);
    let cause = failure.fault.cause.as_str();
    let reported_hint = failure.fault.hint.clone();
    let reported_hint =
        reported_hint.or_else(|| failure.other.as_ref().and_then(|fault| fault.hint.clone()));
    match failure.fault.step {
        ProofStep::Block => Some(hint_for_size(proof, (one.host, from), (other.host, to))),
        ProofStep::Token if cause.contains("status 12") || failure.fault.awaited_peer => {
            Some(hint_for_silence((one.host, from), (other.host, to)))
        }
        ProofStep::Connect if cause.contains("no answer in time") => {
            Some(hint_for_silence((one.host, from), (other.host, to)))
        }
        ProofStep::Connect if cause.contains("RTR") => {
            reported_hint.or_else(|| Some(hint_for_address((one.host, from), (other.host, to))))
        }
        ProofStep::Prepare if cause.contains("GLIBC") => Some(OLD_LIBRARIES.to_owned()),
        ProofStep::Prepare | ProofStep::Exchange | ProofStep::Connect | ProofStep::Token => {
            reported_hint
        }
    }
}

/// Returns the id of the finding that a failed path states.
pub(crate) fn finding(failure: &Failure) -> CheckId {
    let cause = failure.fault.cause.as_str();
    match failure.fault.step {
        ProofStep::Block => id::MTU_PATH,
        ProofStep::Connect if cause.contains("RTR") => id::MESH_ROUTE,
        _ => id::MESH_SILENT,
    }
}

/// Hint for a host whose C library is older than that of the machine on which the prover was built.
const OLD_LIBRARIES: &str =
    "build rlaunch-prover (`cargo prover`) on a system as old as that host, or give --mesh off";

type HostNic<'a> = (&'a str, &'a Nic);

/// Returns the hint for the case that small packets arrive and large ones do not.
fn hint_for_size(proof: &Proof, (host, from): HostNic<'_>, (peer, to): HostNic<'_>) -> String {
    let carried = proof.mtu.or_else(|| from.mtu.into_iter().chain(to.mtu).min()).unwrap_or(4096);
    let interface = |nic: &Nic| nic.netdev.clone().unwrap_or_else(|| nic.device.clone());
    let (one, other) = (interface(from), interface(to));
    // RoCE adds 60 bytes to its data (IPv4, UDP, RDMA headers, checksum), ping only 28.
    let data = carried.saturating_add(32);
    let test = match (&from.netdev, to.address) {
        (Some(netdev), Some(address)) => {
            format!("; on {host}: ping -c 3 -M do -s {data} -I {netdev} {address}")
        }
        _ => String::new(),
    };
    format!(
        "something between them drops packets of {carried} B, which NCCL sends anyway: let it \
         carry them (switches: MTU 9216), or set the interfaces ({host} {one}, {peer} {other}) to \
         MTU 1500{test}"
    )
}

/// Returns the hint for the case that no packet arrives.
fn hint_for_silence((host, from): HostNic<'_>, (_, to): HostNic<'_>) -> String {
    let test = match (&from.netdev, to.address) {
        (Some(netdev), Some(address)) => {
            format!("on {host}: ping -c 3 -I {netdev} {address}; when that works, ")
        }
        _ => String::new(),
    };
    match from.transport {
        Transport::Roce => format!(
            "{test}see whether a firewall drops UDP port {ROCE_PORT}, and whether both GIDs are \
             RoCE v2"
        ),
        Transport::Infiniband => {
            format!(
                "on {host}: ibping, ibtracert, and see whether both ports share a partition key"
            )
        }
        Transport::Iwarp => format!(
            "{test}see whether a firewall drops TCP between {host}'s {} and its peer",
            from.device
        ),
    }
}

/// Returns the hint for the case that the kernel cannot resolve the peer's address.
fn hint_for_address((host, from): HostNic<'_>, (_, to): HostNic<'_>) -> String {
    match (&from.netdev, to.address) {
        (Some(netdev), Some(address)) => {
            format!("on {host}: ip route get {address} oif {netdev}; ip neigh show {address}")
        }
        _ => format!("rlaunch topo -H {host} shows what the port can reach"),
    }
}
