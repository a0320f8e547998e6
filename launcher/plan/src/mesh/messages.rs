//! Messages about the mesh: one line for the whole, and one for each pair of NICs between which RDMA fails.

use super::outcome::Failure;
use super::paths::{Mode, Proof};
use super::show::{ConnectionEnd, transport_name};
use super::{Mesh, ProofResult, advice, is_rdma};
use crate::findings::{self, CheckId};
use crate::options::Transport;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::{NicId, RankTable};
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
    /// Prints the result of the proofs. `table` is the rank table that was built after the proofs.
    ///
    /// # Errors
    ///
    /// `transport` requires RDMA, and some pair of ranks has no RDMA path.
    pub fn conclude(
        &self,
        table: &RankTable,
        transport: Transport,
        mode: Mode,
    ) -> Result<Vec<Message>, Failed> {
        if self.rounds == 0 {
            return Ok(Vec::new());
        }
        let failures = self.failures();
        let line = |(result, failure): &(&ProofResult, &Failure)| {
            let (text, hint) = self.line(table, result, failure);
            FailureLine { finding: advice::finding(failure), text, hint }
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
    pub fn line(
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
        let smaller = self.smaller(table, result, failure);
        let what = if smaller.is_some() { "only small packets pass" } else { "no RDMA" };
        let instead = match smaller {
            Some(mtu) => format!("MTU {mtu} works and is used"),
            None => instead(table, &result.proof).to_owned(),
        };
        let line = format!(
            "{what} between {} and {}{size} (ranks {ranks}): {step}: {host}: {}: {instead}",
            name(from),
            name(to),
            failure.fault.cause,
        );
        (line, advice::hint(table, &result.proof, failure))
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
    fn smaller(&self, table: &RankTable, result: &ProofResult, failure: &Failure) -> Option<u32> {
        let pair = table.pair(result.proof.a, result.proof.b)?;
        let lowered = failure.is_of_size() && self.lowered.contains(&result.proof.nics());
        pair.mtu.filter(|_| lowered && is_rdma(pair.connect))
    }

    /// Writes `mesh: 6/6 paths up, RoCE v2, 3 subnets, proved in 41 ms`.
    pub fn summary(&self, table: &RankTable, mode: Mode) -> String {
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
        words.push(format!("proved in {} ms", self.duration.as_millis().max(1)));
        format!("mesh: {}", words.join(", "))
    }
}

/// Tells the user what replaces a failed path: other ports or TCP.
fn instead(table: &RankTable, failed: &Proof) -> &'static str {
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
    failed = findings::mark(failed, lines.first().map(|line| line.finding));
    if lines.len() > MAX_LINES {
        failed.details.push(format!("and {} more", lines.len() - MAX_LINES));
    }
    failed.hint(Some("--transport auto uses TCP where RDMA does not work"))
}
