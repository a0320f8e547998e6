//! Reports of the agent about other ranks, and their consequences for pending calls.

use super::Engine;
use crate::progress::agent::AgentEvent;
use crate::types::{Cause, LinkError};
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::protocol::rank::JobEvent;

impl Engine {
    /// Returns the cause with which all calls fail, if the agent has reported one.
    pub(crate) fn launcher_cause(&self) -> Option<&Cause> {
        self.matching.fault.as_ref().filter(|_| self.has_launcher_cause)
    }

    /// Applies a report of the agent. `nodes[rank]` is the node of a rank of the job. After the
    /// first report that makes all calls fail, later reports are ignored.
    pub(crate) fn apply_event(&mut self, event: AgentEvent, nodes: &[NodeId]) {
        if self.has_launcher_cause {
            return;
        }
        let ranks_on = |node: NodeId| (0..nodes.len()).filter(move |at| nodes[*at] == node);
        match event {
            AgentEvent::Gone => self
                .set_launcher_cause(&Cause::Aborted("the agent is gone: the job is over".into())),
            AgentEvent::Job(JobEvent::JobEnding { why }) => {
                self.set_launcher_cause(&Cause::Aborted(format!("the job ends: {why}").into()));
            }
            AgentEvent::Job(JobEvent::RankFailed { rank, status, ends }) => {
                let at = rank.index();
                // If a rank has said goodbye, its failure matters only if it ends the job.
                let is_missed = self.peers.get(at).is_some_and(|peer| !peer.inbox.has_left);
                if at < self.peers.len() && at != self.me && (ends || is_missed) {
                    self.lose_ranks(&[at], LinkError::Exited(status));
                }
            }
            AgentEvent::Job(JobEvent::RanksFinished { ranks }) => {
                let left = (0..self.peers.len()).filter(|at| ranks.contains(Rank(*at as u32)));
                for at in left.filter(|at| *at != self.me).collect::<Vec<_>>() {
                    self.peers[at].link.peer_has_left();
                }
            }
            AgentEvent::Job(JobEvent::NodeLost { node, how }) => {
                let lost: Vec<usize> = ranks_on(node).filter(|at| *at != self.me).collect();
                self.lose_ranks(&lost, LinkError::NodeLost(how));
            }
            AgentEvent::Job(JobEvent::LinkDown { nodes: ends, what }) => {
                let own = nodes.get(self.me).copied();
                let other = ends.iter().find(|node| Some(**node) != own);
                let (true, Some(other)) = (ends.iter().any(|node| Some(*node) == own), other)
                else {
                    return;
                };
                let is_affected = |at: &usize| {
                    let peer = &self.peers[*at];
                    peer.link.is_rdma() && !peer.inbox.has_left
                };
                let lost: Vec<usize> = ranks_on(*other).filter(is_affected).collect();
                self.lose_ranks(&lost, LinkError::LinkDown(what));
            }
        }
    }

    /// Marks ranks as lost and fails everything that is pending, with an error that names the first
    /// of them.
    fn lose_ranks(&mut self, ranks: &[usize], error: LinkError) {
        let Some(&first) = ranks.first() else { return };
        for &at in ranks {
            self.peers[at].is_gone = true;
        }
        self.lost = Some(first);
        let cause = self.mark_lost(first, error);
        self.set_launcher_cause(&cause);
    }

    fn set_launcher_cause(&mut self, cause: &Cause) {
        self.has_launcher_cause = true;
        self.matching.fault = Some(cause.clone());
        self.fail_all(cause);
        self.threads.note_change();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{Armed, Header, Limits, Link, SelfLink, Sink};
    use crate::types::{Operation, PeerName};
    use rlaunch_bootstrap::job::ExitStatus;

    struct Silent {
        by_rdma: bool,
    }

    impl Link for Silent {
        fn limits(&self) -> Limits {
            Limits {
                eager: 64,
                packet: 64,
                fetch: usize::MAX,
                write: usize::MAX,
                poll_is_syscall: false,
            }
        }

        fn send(&mut self, _: Header, _: &[u8]) -> Result<bool, LinkError> {
            Ok(true)
        }

        fn receive(&mut self, _: &mut dyn Sink) -> Result<bool, LinkError> {
            Ok(false)
        }

        fn is_rdma(&self) -> bool {
            self.by_rdma
        }

        fn arm(&mut self, _: bool) -> Result<Armed<'_>, LinkError> {
            Ok(Armed::NoFd)
        }
    }

    const NODES: [NodeId; 4] = [NodeId(0), NodeId(0), NodeId(1), NodeId(2)];

    /// Applies reports to the engine of rank 0 in a job of four ranks on three nodes, with RDMA to
    /// rank 2. Returns the error of a call that was pending; `None` if the call is still pending.
    fn error_after(events: &[JobEvent]) -> Option<String> {
        let names = ["a", "a", "b", "c"].into_iter().zip(0..);
        let names: Vec<PeerName> =
            names.map(|(host, rank)| PeerName { rank, host: host.into() }).collect();
        let link = |rank: usize| -> Box<dyn Link> {
            match rank {
                0 => Box::new(SelfLink::default()),
                rank => Box::new(Silent { by_rdma: rank == 2 }),
            }
        };
        let mut engine = Engine::new(0, (0..4).map(link).collect(), names.into());
        let key = engine.request(Operation::Collective("barrier"));
        events.iter().for_each(|event| engine.apply_event(AgentEvent::Job(event.clone()), &NODES));
        let ended = engine.take(key)?.unwrap_err().to_string();
        assert_eq!(engine.launcher_cause().unwrap().to_string(), ended);
        Some(ended)
    }

    fn failed(rank: u32, ends: bool) -> JobEvent {
        JobEvent::RankFailed { rank: Rank(rank), status: ExitStatus::Signal(9), ends }
    }

    fn down(one: u32, other: u32) -> JobEvent {
        let nodes = [NodeId(one), NodeId(other)];
        JobEvent::LinkDown { nodes, what: "link down: a x ↔ b x".into() }
    }

    #[test]
    fn what_the_launcher_knows_ends_every_wait_with_its_words() {
        let lost = JobEvent::NodeLost { node: NodeId(2), how: "nothing received for 6 s".into() };
        let ending = JobEvent::JobEnding { why: "ended by SIGINT".into() };
        for (event, words) in [
            (failed(3, true), "rank 3 on c is lost: it was killed by signal 9"),
            (failed(1, false), "rank 1 on a is lost: it was killed by signal 9"),
            (lost, "rank 3 on c is lost: its node is lost: nothing received for 6 s"),
            (ending, "the job ends: ended by SIGINT"),
        ] {
            assert_eq!(error_after(&[event]).as_deref(), Some(words));
        }
    }

    #[test]
    fn a_link_that_is_down_concerns_those_who_use_it() {
        let words = "rank 2 on b is lost: link down: a x ↔ b x";
        for event in [down(0, 1), down(1, 0)] {
            assert_eq!(error_after(&[event]).as_deref(), Some(words));
        }
        // Rank 3 is reached by TCP, and the link between nodes 1 and 2 is not used by rank 0.
        for event in [down(0, 2), down(1, 2)] {
            assert_eq!(error_after(&[event]), None);
        }
    }

    #[test]
    fn what_was_said_first_holds() {
        let words = "rank 2 on b is lost: it was killed by signal 9";
        assert_eq!(error_after(&[failed(2, true), failed(3, true)]).as_deref(), Some(words));
    }

    #[test]
    fn nonsense_is_passed_over() {
        assert_eq!(error_after(&[failed(9, true), failed(0, true), down(7, 8)]), None);
        let nowhere = JobEvent::NodeLost { node: NodeId(7), how: "x".into() };
        assert_eq!(error_after(&[nowhere]), None);
    }
}
