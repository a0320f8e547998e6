//! Requests of agents to the root's agent. This module passes requests up the tree and replies
//! down, without interpreting their content.

use super::store::RequestOrigin;
use super::{Answer, CallId, Node, NodeOutput, NodeViolation};
use crate::id::NodeId;
use crate::rendezvous::message::Message;
use crate::rendezvous::payload::Payload;

impl Node {
    pub(super) fn on_agent_request(&mut self, id: CallId, question: Payload) {
        match self.aborted.clone() {
            Some((by, text)) => self.answer(id, Answer::Aborted { by, text }),
            None => self.request_root(RequestOrigin::Call(id), question),
        }
    }

    pub(super) fn request_root(&mut self, origin: RequestOrigin, question: Payload) {
        if self.aborted.is_some() {
            return;
        }
        // If too many requests are pending, a child gets the reply that says the store is full.
        let Some(request) = self.register_request(origin) else { return };
        match self.parent {
            Some(parent) => self.send_with(parent, Message::RootRequest { request }, question),
            None => self.outputs.push_back(NodeOutput::RootRequest(request, question)),
        }
    }

    /// Handles this agent's own reply to a request, at the root. Ignores the reply if an abort has
    /// dropped the request.
    pub(super) fn on_agent_reply(&mut self, request: u64, answer: Payload) {
        if let Some(origin) = self.take_origin(request) {
            self.deliver_root_reply(origin, answer);
        }
    }

    pub(super) fn on_root_reply(
        &mut self,
        from: NodeId,
        request: u64,
        answer: Payload,
    ) -> Result<(), NodeViolation> {
        if self.aborted.is_none() {
            let origin = self.take_origin(request);
            self.deliver_root_reply(
                origin.ok_or(NodeViolation::Unknown { from, message: "root reply" })?,
                answer,
            );
        }
        Ok(())
    }

    fn deliver_root_reply(&mut self, origin: RequestOrigin, answer: Payload) {
        match origin {
            RequestOrigin::Call(id) => self.answer(id, Answer::Value(answer)),
            RequestOrigin::Child(child, request) => {
                self.send_with(child, Message::RootReply { request }, answer);
            }
        }
    }
}
