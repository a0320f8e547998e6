//! Advice for a path that does not work, from the step at which it failed and the system's error.

use super::outcome::Failure;
use super::paths::Proof;
use super::show::ConnectionEnd;
use crate::findings::{CheckId, id};
use rlaunch_bootstrap::protocol::mesh::{PathFault, ProofStep};
use rlaunch_bootstrap::rank_table::{Nic, RankTable, Transport};

/// UDP destination port of RoCE v2 packets.
const ROCE_PORT: u16 = 4791;

/// Returns the likely cause and a remedy, if they are known.
pub fn hint(table: &RankTable, proof: &Proof, failure: &Failure) -> Option<String> {
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

/// Words of causes, and the findings that they state; the first that fits counts. The words are those of the prover and
/// of its errors of verbs (`worker/verbs/src/error.rs`).
const STATED: &[(&str, CheckId)] = &[
    ("GLIBC", id::AGENT_RUN),
    ("libibverbs.so.1 cannot be loaded", id::DEV_LIBRARY),
    ("ib_uverbs is not loaded", id::DEV_UVERBS),
    ("no provider for", id::DEV_PROVIDER),
    ("queue pairs are needed", id::DEV_QP),
    ("ibv_create_qp", id::DEV_QP),
    ("memory may not be locked", id::LIM_MEMLOCK),
    ("rdma_create_id", id::DEV_RDMA_CM),
    ("supports connections by RDMA_CM only", id::IWARP_CM),
    ("not in this network namespace", id::ROCE_NETDEV),
    ("no RDMA device has this address here", id::ROCE_NETDEV),
    ("RDMA_CM_EVENT_ADDR_ERROR", id::MESH_ROUTE),
    ("RDMA_CM_EVENT_ROUTE_ERROR", id::MESH_ROUTE),
    ("to RTR", id::MESH_ROUTE),
    ("RDMA_CM_EVENT_UNREACHABLE", id::MESH_SILENT),
];

/// Returns the id of the finding that a failed path states.
pub fn finding(failure: &Failure) -> CheckId {
    let PathFault { step, cause, awaited_peer, .. } = &failure.fault;
    let stated = STATED.iter().find(|(words, _)| cause.contains(words)).map(|(_, id)| *id);
    match step {
        ProofStep::Block => id::MTU_PATH,
        _ if cause.contains("/dev/infiniband") => of_device_file(cause),
        _ if stated.is_some() => stated.unwrap_or(id::MESH_PROOF),
        ProofStep::Token
            if cause.contains("status 12") || cause.starts_with("no answer within") =>
        {
            id::MESH_SILENT
        }
        // The prover did not come to it.
        ProofStep::Token if cause == "not tried" => id::MESH_PROOF,
        ProofStep::Token | ProofStep::Connect if *awaited_peer => id::MESH_SILENT,
        ProofStep::Connect if cause.contains("no answer in time") => id::MESH_SILENT,
        _ => id::MESH_PROOF,
    }
}

/// Returns the id for a device that cannot be opened, from the error of its file.
fn of_device_file(cause: &str) -> CheckId {
    let lower = cause.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    match () {
        () if has(&["permission denied", "not permitted"]) => id::DEV_PERM,
        () if has(&["missing", "no such"]) => id::DEV_UVERBS,
        () => id::MESH_PROOF,
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

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::id::NodeId;

    fn id_of(step: ProofStep, cause: &str, awaited_peer: bool) -> &'static str {
        let fault = PathFault { step, cause: cause.into(), hint: None, awaited_peer };
        finding(&Failure { node: NodeId(0), fault, other: None }).as_str()
    }

    #[test]
    fn a_failure_has_the_id_of_its_cause() {
        use ProofStep::{Block, Connect, Exchange, Prepare, Token};
        for (step, cause, id) in [
            (
                Prepare,
                "mlx5_0: ibv_reg_mr: memory may not be locked (80 KiB are needed, the limit is 64 KiB)",
                "lim.memlock",
            ),
            (Prepare, "rocep1s0: 300 queue pairs are needed, the device has 124", "dev.qp"),
            (
                Prepare,
                "irdma0: ibv_create_qp: failed: No space left on device (os error 28)",
                "dev.qp",
            ),
            (Prepare, "it has ended: version `GLIBC_2.34' not found", "agent.run"),
            (Prepare, "no rdma-core: libibverbs.so.1 cannot be loaded", "dev.library"),
            (Prepare, "no provider for mlx5_0", "dev.provider"),
            (
                Prepare,
                "mlx5_0: /dev/infiniband/uverbs0: Permission denied (os error 13)",
                "dev.perm",
            ),
            (
                Prepare,
                "mlx5_0: /dev/infiniband/uverbs0: No such file or directory (os error 2)",
                "dev.uverbs",
            ),
            (
                Connect,
                "10.0.0.1 to 10.0.0.2: rdma_create_id: failed: No such device (os error 19)",
                "dev.rdma-cm",
            ),
            (
                Connect,
                "10.0.0.1 to 10.0.0.2: rdma_resolve_addr: RDMA_CM_EVENT_ADDR_ERROR (no RDMA device has this address here)",
                "roce.netdev",
            ),
            (
                Connect,
                "siw0: ibv_modify_qp to RTS: the device supports connections by RDMA_CM only",
                "iwarp.cm",
            ),
            (
                Connect,
                "mlx5_0: ibv_modify_qp to RTR: no route to the peer's address from this port",
                "mesh.route",
            ),
            (Connect, "a to b: rdma_connect: no answer in time", "mesh.silent"),
            (Connect, "a to b: rdma_connect: RDMA_CM_EVENT_REJECTED", "mesh.proof"),
            (Token, "transport retry counter exceeded (status 12)", "mesh.silent"),
            (Token, "no answer within 1.1 s", "mesh.silent"),
            (Token, "remote access error (status 10)", "mesh.proof"),
            (Block, "transport retry counter exceeded (status 12)", "mtu.path"),
        ] {
            assert_eq!(id_of(step, cause, false), id, "{cause}");
        }
        for (step, cause, id) in [
            (Prepare, "not tried within 5 s (--mesh-timeout)", "mesh.proof"),
            (Prepare, "no answer from its prover", "mesh.proof"),
            (Exchange, "the peer has no queue pair", "mesh.proof"),
            (Token, "not tried", "mesh.proof"),
            (Token, "no token from the peer within 1.0 s", "mesh.silent"),
            (Connect, "the peer did not connect within 1.5 s", "mesh.silent"),
        ] {
            assert_eq!(id_of(step, cause, true), id, "{cause}");
        }
    }
}
