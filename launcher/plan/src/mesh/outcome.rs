//! Outcomes of proofs, and the remedies that follow: a retry, a smaller MTU, or giving up a pair of NICs.

use super::paths::Proof;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::mesh::{PathFault, PathOutcome, PathProof, ProofStep};
use rlaunch_bootstrap::rank_table::NicId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// RDMA MTU, in bytes, that fits the standard Ethernet MTU of 1500.
const ETHERNET: u32 = 1024;

/// Outcome of the proof of a path: its measurements or its failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProofOutcome {
    Up(PathProof),
    Failed(Failure),
}

/// Failure of the proof of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Node whose report names the cause.
    pub node: NodeId,
    pub fault: PathFault,
    /// Fault that the other end reported, if it reported one too.
    pub other: Option<PathFault>,
}

/// Reports of the two ends of each path, by the path's id.
#[derive(Debug, Default)]
pub struct PathReports(BTreeMap<u32, Vec<EndReport>>);

/// Node, and what the end on that node reported about a path.
type EndReport = (NodeId, Result<PathProof, PathFault>);

impl PathReports {
    pub fn add(&mut self, node: NodeId, outcomes: Vec<PathOutcome>) {
        for PathOutcome { id, result } in outcomes {
            self.0.entry(id).or_default().push((node, result));
        }
    }

    /// Returns the outcome of a path, which is up if both ends report success. If both ends report a fault,
    /// the cause is the fault of an end that did not merely wait for its peer; otherwise, the fault in the
    /// earlier step. `missing_cause` is the cause for an end without a report.
    pub fn outcome(&self, id: u32, proof: &Proof, missing_cause: &str) -> ProofOutcome {
        let reports = self.0.get(&id).map_or(&[][..], Vec::as_slice);
        let result_of = |node: NodeId| {
            let found =
                reports.iter().find(|(by, _)| *by == node).map(|(_, result)| result.clone());
            found.unwrap_or_else(|| Err(no_report_fault(missing_cause)))
        };
        match (result_of(proof.from.node), result_of(proof.to.node)) {
            (Ok(one), Ok(other)) => ProofOutcome::Up(PathProof {
                mtu: one.mtu.into_iter().chain(other.mtu).min(),
                round_trip_ns: one.round_trip_ns,
                write_mbps: one.write_mbps,
            }),
            (Err(fault), Ok(_)) => {
                ProofOutcome::Failed(Failure { node: proof.from.node, fault, other: None })
            }
            (Ok(_), Err(fault)) => {
                ProofOutcome::Failed(Failure { node: proof.to.node, fault, other: None })
            }
            (Err(one), Err(other)) => ProofOutcome::Failed(worse_failure(proof, one, other)),
        }
    }
}

fn worse_failure(proof: &Proof, one: PathFault, other: PathFault) -> Failure {
    let weight = |fault: &PathFault| (fault.awaited_peer, fault.step);
    if weight(&one) <= weight(&other) {
        Failure { node: proof.from.node, fault: one, other: Some(other) }
    } else {
        Failure { node: proof.to.node, fault: other, other: Some(one) }
    }
}

fn no_report_fault(cause: &str) -> PathFault {
    PathFault { step: ProofStep::Prepare, cause: cause.to_owned(), hint: None, awaited_peer: true }
}

/// Returns the outcome of a path that was not tried, because no time was left.
pub(crate) fn out_of_time(proof: &Proof, timeout: Duration) -> ProofOutcome {
    let cause = format!("not tried within {} s (--mesh-timeout)", timeout.as_secs_f64());
    ProofOutcome::Failed(Failure {
        node: proof.from.node,
        fault: no_report_fault(&cause),
        other: None,
    })
}

impl Failure {
    /// Tells whether small packets arrived and large ones did not.
    pub fn is_of_size(&self) -> bool {
        let by_size = |fault: &PathFault| fault.step == ProofStep::Block;
        by_size(&self.fault) && self.other.as_ref().is_none_or(by_size)
    }
}

/// Remedy for a pair of NICs with a failed path between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Remedy {
    /// Retry unchanged; the host may just have been busy, so that packets were lost.
    Retry,
    /// Retry with this MTU in bytes.
    LowerMtu(u32),
    /// Treat the NICs as not reaching each other.
    Exclude,
}

/// Pairs of NICs to which a remedy was applied already.
#[derive(Clone, Copy, Debug)]
pub struct AppliedRemedies<'a> {
    /// Pairs with a lowered MTU.
    pub lowered: &'a BTreeSet<(NicId, NicId)>,
    /// Pairs that were retried.
    pub repeated: &'a BTreeSet<(NicId, NicId)>,
}

/// Chooses the remedy for each pair of NICs with a failed path. `carried` returns the MTU, in bytes, that
/// both NICs of a pair support. `passed` tells whether packets of a proof's MTU have passed between its NICs.
pub(crate) fn remedies<'a>(
    failed: impl Iterator<Item = (&'a Proof, &'a Failure)>,
    carried: impl Fn((NicId, NicId)) -> Option<u32>,
    passed: impl Fn(&Proof) -> bool,
    had: AppliedRemedies<'_>,
) -> BTreeMap<(NicId, NicId), Remedy> {
    let mut remedies = BTreeMap::new();
    for (proof, failure) in failed {
        let nics = proof.nics();
        let may_be_lost = if failure.is_of_size() {
            passed(proof)
        } else {
            failure.fault.step == ProofStep::Token
        };
        let remedy = if may_be_lost && !had.repeated.contains(&nics) {
            Remedy::Retry
        } else if failure.is_of_size() {
            let can = !proof.by_manager && !had.lowered.contains(&nics);
            carried(nics)
                .filter(|_| can)
                .and_then(smaller)
                .map_or(Remedy::Exclude, Remedy::LowerMtu)
        } else {
            Remedy::Exclude
        };
        // If several paths between two NICs failed, the strongest of their remedies is chosen.
        let known = remedies.entry(nics).or_insert(remedy);
        *known = (*known).max(remedy);
    }
    remedies
}

/// Returns the next MTU to try, in bytes: the one that fits standard Ethernet, or the next smaller one if
/// that was too large. `None` means that there is no smaller one.
fn smaller(mtu: u32) -> Option<u32> {
    match mtu {
        0..=256 => None,
        257..=ETHERNET => Some(mtu.next_power_of_two() / 2),
        _ => Some(ETHERNET),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::id::Rank;

    const END: [NicId; 2] = [NicId { node: NodeId(0), nic: 0 }, NicId { node: NodeId(1), nic: 2 }];

    fn proof() -> Proof {
        let [from, to] = END;
        Proof { a: Rank(0), b: Rank(1), from, to, mtu: None, by_manager: false }
    }

    fn fault(step: ProofStep, waited: bool) -> PathFault {
        PathFault { step, cause: "because".into(), hint: None, awaited_peer: waited }
    }

    fn outcome(one: Result<u32, PathFault>, other: Result<u32, PathFault>) -> ProofOutcome {
        let mut reports = PathReports::default();
        for (end, result) in END.iter().zip([one, other]) {
            let result = result.map(|mtu| PathProof {
                mtu: Some(mtu),
                round_trip_ns: mtu,
                write_mbps: None,
            });
            reports.add(end.node, vec![PathOutcome { id: 7, result }]);
        }
        reports.outcome(7, &proof(), "silence")
    }

    fn failure(verdict: ProofOutcome) -> Failure {
        match verdict {
            ProofOutcome::Failed(failure) => failure,
            ProofOutcome::Up(proved) => panic!("it is up: {proved:?}"),
        }
    }

    #[test]
    fn both_ends_have_to_say_that_it_is_up() {
        let up =
            ProofOutcome::Up(PathProof { mtu: Some(1024), round_trip_ns: 4096, write_mbps: None });
        assert_eq!(outcome(Ok(4096), Ok(1024)), up);
        let late = fault(ProofStep::Token, true);
        assert_eq!(failure(outcome(Ok(1), Err(late))).node, NodeId(1));
        let silent = PathReports::default().outcome(7, &proof(), "no answer from b");
        assert_eq!(failure(silent).fault.cause, "no answer from b");
    }

    #[test]
    fn the_end_that_did_not_merely_wait_knows_best() {
        let waited = fault(ProofStep::Connect, true);
        let failed = fault(ProofStep::Token, false);
        let found = failure(outcome(Err(waited.clone()), Err(failed.clone())));
        assert_eq!((found.node, found.fault, found.other), (NodeId(1), failed, Some(waited)));
    }

    #[test]
    fn smaller_packets_are_tried_once_where_small_ones_arrive() {
        let block = failure(outcome(Err(fault(ProofStep::Block, false)), Ok(4096)));
        let token = failure(outcome(Err(fault(ProofStep::Token, false)), Ok(4096)));
        let nics = proof().nics();
        let none = BTreeSet::new();
        let all = |failures: &[&Failure], mtu, lowered: &[(NicId, NicId)]| {
            let proof = proof();
            let lowered = lowered.iter().copied().collect();
            let had = AppliedRemedies { lowered: &lowered, repeated: &none };
            let failed = failures.iter().map(|failure| (&proof, *failure));
            remedies(failed, |_| Some(mtu), |_| false, had)[&nics]
        };
        let remedy =
            |failure: &Failure, mtu, lowered: &[(NicId, NicId)]| all(&[failure], mtu, lowered);
        assert_eq!(remedy(&block, 4096, &[]), Remedy::LowerMtu(1024));
        assert_eq!(remedy(&block, 1024, &[]), Remedy::LowerMtu(512));
        assert_eq!(remedy(&block, 256, &[]), Remedy::Exclude);
        assert_eq!(remedy(&block, 4096, &[nics]), Remedy::Exclude);
        assert_eq!(remedy(&token, 4096, &[]), Remedy::Retry);
        assert_eq!(all(&[&block, &token], 4096, &[]), Remedy::LowerMtu(1024));
        let repeated = [nics].into();
        let had = AppliedRemedies { lowered: &none, repeated: &repeated };
        let proof = proof();
        let failed = [(&proof, &token)].into_iter();
        assert_eq!(remedies(failed, |_| None, |_| false, had)[&nics], Remedy::Exclude);
    }

    /// On a busy host one path of many loses a packet.
    #[test]
    fn where_another_path_carries_large_packets_the_proof_is_repeated_first() {
        let block = failure(outcome(Err(fault(ProofStep::Block, false)), Ok(4096)));
        let (proof, none) = (proof(), BTreeSet::new());
        let nics = proof.nics();
        let remedy = |repeated: &BTreeSet<(NicId, NicId)>| {
            let had = AppliedRemedies { lowered: &none, repeated };
            remedies([(&proof, &block)].into_iter(), |_| Some(4096), |_| true, had)[&nics]
        };
        assert_eq!(remedy(&none), Remedy::Retry);
        assert_eq!(remedy(&[nics].into()), Remedy::LowerMtu(1024));
    }
}
