//! Questions of other rlaunch processes about the job.

use super::{Action, Supervisor};
use crate::run::live::{Asker, Query, QueryKind};
use rlaunch_bootstrap::id::NodeId;
use std::time::Instant;

impl Supervisor<'_> {
    pub(super) fn on_query(&mut self, now: Instant, Query { connection, kind }: Query) {
        let asker = Asker::Connection(connection);
        match kind {
            QueryKind::Closed => self.inspections.on_asker_gone(asker),
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

    /// Sends the answers of agents to those that have asked.
    pub(super) fn send_answers(&mut self) {
        for (asker, answer) in self.inspections.take_answers() {
            let Asker::Connection(connection) = asker;
            let reply = answer.into_reply(|node| self.host(node));
            self.actions.push_back(Action::Reply(connection, reply));
        }
    }
}
