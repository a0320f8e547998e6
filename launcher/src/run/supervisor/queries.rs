//! Questions of other rlaunch processes about the job, and their sessions beside ranks.

use super::{Action, Supervisor};
use crate::run::live::{Asker, Query, QueryKind, SessionStep};
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::protocol::session::ToSession;
use std::time::Instant;

impl Supervisor<'_> {
    pub(super) fn on_query(&mut self, now: Instant, Query { connection, kind }: Query) {
        let asker = Asker::Connection(connection);
        match kind {
            QueryKind::Closed => {
                self.inspections.on_asker_gone(asker);
                self.sessions.on_client_gone(connection);
                self.send_for_sessions();
            }
            QueryKind::Session(ToSession::Start(start)) => {
                let node = self.node_of(start.rank);
                self.sessions.start(connection, start, node);
                self.send_for_sessions();
            }
            QueryKind::Session(what) => {
                self.sessions.on_client(connection, what);
                self.send_for_sessions();
            }
            QueryKind::Inspect(what) => {
                let running = self.ends.iter().enumerate().filter(|(_, end)| end.is_none());
                let running = running.filter_map(|(node, _)| u32::try_from(node).ok().map(NodeId));
                let messages = self.inspections.ask(now, asker, &what, running);
                let send = |(node, message)| Action::Send(node, message);
                self.actions.extend(messages.into_iter().map(send));
                self.send_answers();
            }
        }
    }

    /// Returns the node beside whose rank a session may begin, or the reason why it may not.
    fn node_of(&self, rank: Rank) -> Result<NodeId, String> {
        let Some(at) = self.nodes.iter().position(|node| node.ranks.contains(&rank)) else {
            let ranks: usize = self.nodes.iter().map(|node| node.ranks.len()).sum();
            return Err(format!("its last rank is {}", ranks.saturating_sub(1)));
        };
        let node = NodeId(u32::try_from(at).unwrap_or(u32::MAX));
        if self.is_ending() {
            Err("it is ending".to_owned())
        } else if self.is_suspending() {
            Err("it is suspended".to_owned())
        } else if self.ends[at].is_some() {
            Err(format!("all its ranks on {} have ended", self.host(node)))
        } else {
            Ok(node)
        }
    }

    /// Sends the messages of sessions to agents and clients.
    pub(super) fn send_for_sessions(&mut self) {
        let action = |step| match step {
            SessionStep::Send(node, message) => Action::Send(node, message),
            SessionStep::Reply(connection, reply) => Action::Reply(connection, reply),
        };
        self.actions.extend(self.sessions.take_steps().into_iter().map(action));
    }

    /// Sends the answers of agents to those that have asked.
    pub(super) fn send_answers(&mut self) {
        for (asker, answer) in self.inspections.take_answers() {
            let Asker::Connection(connection) = asker;
            let reply = answer.into_reply(|node| self.host(node));
            self.actions.push_back(Action::Reply(connection, reply));
        }
    }
}
