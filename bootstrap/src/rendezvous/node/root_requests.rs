//! Questions to the agent of the root's node, for services that this machine carries and does not
//! know: the question goes up, the root's driver answers it, the answer comes down.

use super::store::Origin;
use super::{Answer, CallId, Node, NodeOutput, NodeViolation};
use crate::id::NodeId;
use crate::rendezvous::message::Message;
use crate::rendezvous::payload::Payload;

impl Node {
    pub(super) fn on_ask(&mut self, id: CallId, question: Payload) {
        match self.aborted.clone() {
            Some((by, text)) => self.answer(id, Answer::Aborted { by, text }),
            None => self.ask(Origin::Call(id), question),
        }
    }

    pub(super) fn ask(&mut self, origin: Origin, question: Payload) {
        if self.aborted.is_some() {
            return;
        }
        // If too much waits already, the refusal is that of a store without room.
        let Some(request) = self.pass_up(origin) else { return };
        match self.parent {
            Some(parent) => self.send_with(parent, Message::RootRequest { request }, question),
            None => self.outputs.push_back(NodeOutput::RootRequest(request, question)),
        }
    }

    /// Passes on what the root's own agent has answered. After an abort its question is forgotten.
    pub(super) fn on_own_answer(&mut self, request: u64, answer: Payload) {
        if let Some(origin) = self.origin_of(request) {
            self.pass_down(origin, answer);
        }
    }

    pub(super) fn on_told(
        &mut self,
        from: NodeId,
        request: u64,
        answer: Payload,
    ) -> Result<(), NodeViolation> {
        if self.aborted.is_none() {
            let origin = self.origin_of(request);
            self.pass_down(origin.ok_or(NodeViolation::Unknown { from, message: "told" })?, answer);
        }
        Ok(())
    }

    fn pass_down(&mut self, origin: Origin, answer: Payload) {
        match origin {
            Origin::Call(id) => self.answer(id, Answer::Value(answer)),
            Origin::Child(child, request) => {
                self.send_with(child, Message::RootReply { request }, answer);
            }
        }
    }
}
