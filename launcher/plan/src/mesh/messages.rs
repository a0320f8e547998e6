//! Messages about the mesh: one line for the whole, and one for each pair of NICs between which RDMA fails, with advice
//! from the step at which a path failed and the system's error.

use super::outcome::Failure;
use super::paths::Proof;
use super::show::{ConnectionEnd, transport_name};
use super::{Mesh, ProofResult, is_rdma};
use crate::findings::{self, CheckId, id};
use crate::options::{MeshMode, Transport};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::mesh::{PathFault, ProofStep};
use rlaunch_bootstrap::rank_table::{Nic, NicId, RankTable, Transport as RdmaTransport};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::{Failed, Message};
use rlaunch_text::text;
use std::collections::BTreeSet;

/// Maximum number of lines about failed paths; the rest are only counted.
const MAX_LINES: usize = 8;

/// Line about a failed path.
struct FailureLine {
    finding: CheckId,
    text: String,
    hint: Option<String>,
}

impl Mesh {
    /// Returns messages about the result of the proofs. `table` is the rank table that was built after the proofs.
    ///
    /// # Errors
    ///
    /// `transport` requires RDMA, and some pair of ranks has no RDMA path.
    pub fn conclude(
        &self,
        table: &RankTable,
        transport: Transport,
        mode: MeshMode,
    ) -> Result<Vec<Message>, Failed> {
        if self.rounds == 0 {
            return Ok(Vec::new());
        }
        let failures = self.failures();
        let line = |(result, failure): &(&ProofResult, &Failure)| {
            let (text, hint) = self.failure_line(table, result, failure);
            FailureLine { finding: finding_of(failure), text, hint }
        };
        let lines: Vec<FailureLine> = failures.iter().map(line).collect();
        let lost = failures.iter().any(|(result, _)| !self.is_replaced(table, &result.proof));
        if transport == Transport::Rdma && lost {
            return Err(refuse(self.summary(table, mode), &lines));
        }
        let mut told = warnings(&lines);
        told.push(Message::Info(self.summary(table, mode)));
        self.log_costs(table);
        Ok(told)
    }

    fn log_costs(&self, table: &RankTable) {
        for (node, cost) in &self.costs {
            let each = |all: u64| all / u64::from(cost.queue_pairs.max(1));
            tracing::info!(
                "mesh: {}: {} queue pairs, {} us and {} B each",
                table.nodes().get(node.index()).map_or("", |row| &row.host),
                cost.queue_pairs,
                each(cost.connect_us.into()),
                each(cost.memory)
            );
        }
    }

    /// Tells whether all pairs of ranks that were to use the NICs of a failed path still use RDMA.
    fn is_replaced(&self, table: &RankTable, failed: &Proof) -> bool {
        let between_nics =
            self.results.iter().filter(|result| result.proof.nics() == failed.nics());
        let mut pairs = between_nics.map(|result| (result.proof.a, result.proof.b));
        pairs.all(|(a, b)| table.pair(a, b).is_some_and(|pair| is_rdma(pair.connect)))
    }

    /// Describes a failed path and what is used instead, as in `no RDMA between a rxe0/1 … and b rxe1/1 …:
    /// token: b: transport retry counter exceeded (status 12): TCP is used`. Also returns a hint if one is
    /// known.
    pub fn failure_line(
        &self,
        table: &RankTable,
        result: &ProofResult,
        failure: &Failure,
    ) -> (String, Option<String>) {
        let Proof { from, to, mtu, .. } = result.proof;
        let name = |end: NicId| {
            ConnectionEnd::at_nic(table, end)
                .map_or_else(String::new, |side| format!("{} {}", side.host, side.text()))
        };
        let host = table.nodes().get(failure.node.index()).map_or("", |row| &row.host);
        let step = failure.fault.step;
        let size = mtu.map(|mtu| format!(" at MTU {mtu}")).unwrap_or_default();
        let ranks = self.ranks_of(&result.proof);
        let smaller = self.lowered_mtu(table, result, failure);
        let what = if smaller.is_some() { "only small packets pass" } else { "no RDMA" };
        let instead = match smaller {
            Some(mtu) => format!("MTU {mtu} works and is used"),
            None => replacement(table, &result.proof).to_owned(),
        };
        let line = format!(
            "{what} between {} and {}{size} (ranks {ranks}): {step}: {host}: {}: {instead}",
            name(from),
            name(to),
            failure.fault.cause,
        );
        (line, hint_of(table, &result.proof, failure))
    }

    /// Writes the ranks of a path, `0 and 4`, and the number of other pairs of ranks that use the same NICs.
    fn ranks_of(&self, proof: &Proof) -> String {
        let between_nics = self.results.iter().filter(|result| result.proof.nics() == proof.nics());
        let pairs: BTreeSet<(Rank, Rank)> =
            between_nics.map(|result| (result.proof.a, result.proof.b)).collect();
        let more = match pairs.len().saturating_sub(1) {
            0 => String::new(),
            1 => " and 1 more pair".to_owned(),
            more => format!(" and {more} more pairs"),
        };
        format!("{} and {}{more}", proof.a, proof.b)
    }

    /// Returns the MTU, in bytes, that the ranks of a failed path use now, if only large packets were lost.
    fn lowered_mtu(
        &self,
        table: &RankTable,
        result: &ProofResult,
        failure: &Failure,
    ) -> Option<u32> {
        let pair = table.pair(result.proof.a, result.proof.b)?;
        let lowered = failure.is_of_size() && self.lowered.contains(&result.proof.nics());
        pair.mtu.filter(|_| lowered && is_rdma(pair.connect))
    }

    /// Writes `mesh: 6/6 paths up, RoCE v2, 3 subnets, tested in 41 ms`.
    pub fn summary(&self, table: &RankTable, mode: MeshMode) -> String {
        let up: Vec<&Proof> = self.in_use(table).map(|result| &result.proof).collect();
        let pairs = |proofs: &mut dyn Iterator<Item = &Proof>| {
            // Unless every pair of ranks is proved, one proof of a pair of NICs counts for all ranks that use
            // it.
            let full = mode.is_full(table.world_size());
            let key =
                |p: &Proof| if full { (Some((p.a, p.b)), None) } else { (None, Some(p.nics())) };
            proofs.map(key).collect::<BTreeSet<_>>().len()
        };
        let works = pairs(&mut up.iter().copied());
        let all = pairs(&mut self.results.iter().map(|result| &result.proof));
        let kind = if mode.is_full(table.world_size()) { "paths" } else { "paths between ports" };
        let mut words = vec![format!("{}/{} {kind} up", 2 * works, 2 * all)];
        words.extend(transport_names(table, &up));
        words.extend(subnets(table, &up));
        words.push(format!("tested in {} ms", self.duration.as_millis().max(1)));
        format!("mesh: {}", words.join(", "))
    }
}

/// Tells the user what replaces a failed path: other ports or TCP.
fn replacement(table: &RankTable, failed: &Proof) -> &'static str {
    match table.pair(failed.a, failed.b) {
        Some(pair) if is_rdma(pair.connect) => "other ports are used",
        _ => "TCP is used",
    }
}

/// Names the transports of the working paths, as in `RoCE v2` or `RoCE v2 and iWARP by RDMA_CM`.
fn transport_names(table: &RankTable, up: &[&Proof]) -> Option<String> {
    let describe = |proof: &&Proof| {
        let nic = ConnectionEnd::at_nic(table, proof.from)?.nic?;
        let how = if proof.by_manager { " by RDMA_CM" } else { "" };
        Some(format!("{}{how}", transport_name(nic.transport)))
    };
    let kinds: BTreeSet<String> = up.iter().filter_map(describe).collect();
    let kinds: Vec<String> = kinds.into_iter().collect();
    (!kinds.is_empty()).then(|| kinds.join(" and "))
}

fn subnets(table: &RankTable, up: &[&Proof]) -> Option<String> {
    let first_network =
        |proof: &&Proof| ConnectionEnd::at_nic(table, proof.from)?.nic?.networks.first().cloned();
    let count = up.iter().filter_map(first_network).collect::<BTreeSet<String>>().len();
    match count {
        0 => None,
        count => Some(text::count(count, "subnet")),
    }
}

/// Makes a warning of each failure; equal hints are given once.
fn warnings(lines: &[FailureLine]) -> Vec<Message> {
    let mut hints = BTreeSet::new();
    let mut told = Vec::new();
    for line in lines.iter().take(MAX_LINES) {
        let finding = Some(line.finding.as_str());
        told.push(Message::Warning { finding, text: line.text.clone() });
        let hint = line.hint.iter().filter(|hint| hints.insert(hint.as_str()));
        told.extend(hint.cloned().map(Message::Hint));
    }
    if lines.len() > MAX_LINES {
        let text = format!("and {} more that do not work", lines.len() - MAX_LINES);
        told.push(Message::Warning { finding: None, text });
    }
    told
}

fn refuse(summary: String, lines: &[FailureLine]) -> Failed {
    let mut failed = Failed::new(Exit::MESH, summary);
    for line in lines.iter().take(MAX_LINES) {
        failed.details.push(line.text.trim_end_matches(": TCP is used").to_owned());
        failed = failed.hint(line.hint.clone());
    }
    failed = findings::with_finding(failed, lines.first().map(|line| line.finding));
    if lines.len() > MAX_LINES {
        failed.details.push(format!("and {} more", lines.len() - MAX_LINES));
    }
    failed.hint(Some("--transport auto uses TCP where RDMA does not work"))
}

/// UDP destination port of RoCE v2 packets.
const ROCE_PORT: u16 = 4791;

/// Words of the error of a completion with IBV_WC_RETRY_EXC_ERR (12): no acknowledgement has come.
const UNANSWERED: &str = "status 12";

/// Returns the likely cause and a remedy, if they are known.
pub fn hint_of(table: &RankTable, proof: &Proof, failure: &Failure) -> Option<String> {
    let (one, other) =
        (ConnectionEnd::at_nic(table, proof.from)?, ConnectionEnd::at_nic(table, proof.to)?);
    let (from, to) = (one.nic?, other.nic?);
    let cause = failure.fault.cause.as_str();
    let reported_hint = failure.fault.hint.clone();
    let reported_hint =
        reported_hint.or_else(|| failure.other.as_ref().and_then(|fault| fault.hint.clone()));
    match failure.fault.step {
        ProofStep::Block => Some(hint_for_size(proof, (one.host, from), (other.host, to))),
        ProofStep::Token if cause.contains(UNANSWERED) || failure.fault.awaited_peer => {
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
pub fn finding_of(failure: &Failure) -> CheckId {
    let PathFault { step, cause, awaited_peer, .. } = &failure.fault;
    if *step == ProofStep::Block {
        return id::MTU_PATH;
    }
    if cause.contains("/dev/infiniband") {
        return of_device_file(cause);
    }
    if let Some((_, stated)) = STATED.iter().find(|(words, _)| cause.contains(words)) {
        return *stated;
    }
    let is_silent = match step {
        ProofStep::Token => {
            // The prover did not come to a path that was `not tried`.
            cause.contains(UNANSWERED)
                || cause.starts_with("no answer within")
                || (*awaited_peer && cause != "not tried")
        }
        ProofStep::Connect => *awaited_peer || cause.contains("no answer in time"),
        ProofStep::Prepare | ProofStep::Exchange | ProofStep::Block => false,
    };
    if is_silent { id::MESH_SILENT } else { id::MESH_PROOF }
}

/// Returns the id for a device that cannot be opened, from the error of its file.
fn of_device_file(cause: &str) -> CheckId {
    let lower = cause.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if has(&["permission denied", "not permitted"]) {
        id::DEV_PERM
    } else if has(&["missing", "no such"]) {
        id::DEV_UVERBS
    } else {
        id::MESH_PROOF
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
        RdmaTransport::Roce => format!(
            "{test}see whether a firewall drops UDP port {ROCE_PORT}, and whether both GIDs are \
             RoCE v2"
        ),
        RdmaTransport::Infiniband => {
            format!(
                "on {host}: ibping, ibtracert, and see whether both ports share a partition key"
            )
        }
        RdmaTransport::Iwarp => format!(
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
        finding_of(&Failure { node: NodeId(0), fault, other: None }).as_str()
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
