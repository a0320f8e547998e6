//! A rank's side of the conversation, without the socket.

use super::events::JobEvent;
use super::messages::{CLIENT_VERSION, FromRank, HelloRefusal, Reply, ToRank, Token};
use crate::id::{JobId, Rank};
use crate::rendezvous::node::Call;
use bytes::Bytes;
use std::collections::BTreeSet;

/// Where the conversation is, named for what it awaits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientPhase {
    /// The hello was sent.
    #[default]
    AwaitWelcome,
    /// Calls are answered.
    Ready,
    /// Nothing comes any more.
    Closed,
}

/// What moves the conversation on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientPhaseEvent {
    /// The agent welcomes.
    Welcome,
    /// The agent refuses.
    Refusal,
    /// The socket ended.
    End,
}

crate::transitions! {
    ClientPhase on ClientPhaseEvent {
        AwaitWelcome + Welcome => Ready,
        AwaitWelcome + Refusal => Closed,
        AwaitWelcome + End     => Closed,
        Ready        + End     => Closed,
    }
}

/// Something a rank should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// Calls can be made; the job has so many ranks.
    Ready(u32),
    /// The agent does not know this rank.
    Refused(HelloRefusal),
    /// A call is answered.
    Answered(u64, Reply, Bytes),
    /// Something happened elsewhere.
    JobEvent(JobEvent),
}

/// The agent said what it must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientViolation {
    /// Not in this state.
    #[error("the agent spoke out of turn, in state {0:?}")]
    OutOfPhase(ClientPhase),
    /// There is no such call, or it was answered before.
    #[error("the agent answered call {0}, which is not open")]
    NoSuchCall(u64),
}

/// The machine.
#[derive(Debug, Default)]
pub struct ClientMachine {
    phase: ClientPhase,
    open: BTreeSet<u64>,
    next: u64,
}

impl ClientMachine {
    /// Begins; the frame is to be sent.
    pub fn hello(job: JobId, rank: Rank, token: Token) -> (ClientMachine, FromRank) {
        let hello = FromRank::Hello { version: CLIENT_VERSION, job, rank, token };
        (ClientMachine::default(), hello)
    }

    /// Where the conversation is.
    pub fn phase(&self) -> ClientPhase {
        self.phase
    }

    /// Calls that are not answered.
    pub fn open(&self) -> impl Iterator<Item = u64> {
        self.open.iter().copied()
    }

    /// A call and its number; the frame is to be sent.
    pub fn call(&mut self, call: Call) -> (u64, FromRank) {
        let request = self.next;
        self.next += 1;
        self.open.insert(request);
        (request, FromRank::Call { request, call })
    }

    /// A frame came.
    pub fn handle(
        &mut self,
        message: ToRank,
        payload: Bytes,
    ) -> Result<ClientEvent, ClientViolation> {
        match message {
            ToRank::Welcome { world_size } => {
                self.advance(ClientPhaseEvent::Welcome)?;
                Ok(ClientEvent::Ready(world_size))
            }
            ToRank::Refused(why) => {
                self.advance(ClientPhaseEvent::Refusal)?;
                Ok(ClientEvent::Refused(why))
            }
            ToRank::Reply { .. } | ToRank::JobEvent(_) if self.phase != ClientPhase::Ready => {
                Err(ClientViolation::OutOfPhase(self.phase))
            }
            ToRank::Reply { request, reply } if self.open.remove(&request) => {
                Ok(ClientEvent::Answered(request, reply, payload))
            }
            ToRank::Reply { request, .. } => Err(ClientViolation::NoSuchCall(request)),
            ToRank::JobEvent(event) => Ok(ClientEvent::JobEvent(event)),
        }
    }

    /// The socket ended: open calls are never answered.
    pub fn end(&mut self) {
        self.phase = self.phase.after(ClientPhaseEvent::End).unwrap_or(self.phase);
        self.open.clear();
    }

    fn advance(&mut self, event: ClientPhaseEvent) -> Result<(), ClientViolation> {
        self.phase = self.phase.after(event).ok_or(ClientViolation::OutOfPhase(self.phase))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> ClientMachine {
        let (mut client, _) = ClientMachine::hello(JobId(1), Rank(0), Token([0; 16]));
        let welcome = client.handle(ToRank::Welcome { world_size: 3 }, Bytes::new());
        assert_eq!(welcome, Ok(ClientEvent::Ready(3)));
        client
    }

    fn reply(request: u64) -> ToRank {
        ToRank::Reply { request, reply: Reply::Done }
    }

    #[test]
    fn replies_come_in_any_order_and_once() {
        let mut client = ready();
        let (first, _) = client.call(Call::Clock);
        let (second, _) = client.call(Call::Clock);
        for request in [second, first] {
            let answered = client.handle(reply(request), Bytes::new());
            assert_eq!(answered, Ok(ClientEvent::Answered(request, Reply::Done, Bytes::new())));
        }
        let again = client.handle(reply(first), Bytes::new());
        assert_eq!(again, Err(ClientViolation::NoSuchCall(first)));
        assert_eq!(client.handle(reply(99), Bytes::new()), Err(ClientViolation::NoSuchCall(99)));
    }

    #[test]
    fn nothing_comes_out_of_turn() {
        let (mut client, _) = ClientMachine::hello(JobId(1), Rank(0), Token([0; 16]));
        let early = client.handle(reply(0), Bytes::new());
        assert_eq!(early, Err(ClientViolation::OutOfPhase(ClientPhase::AwaitWelcome)));
        let event = ToRank::JobEvent(JobEvent::JobEnding { why: "enough".into() });
        let early = client.handle(event, Bytes::new());
        assert_eq!(early, Err(ClientViolation::OutOfPhase(ClientPhase::AwaitWelcome)));
        let refused = ToRank::Refused(HelloRefusal::WrongJob);
        assert!(client.handle(refused, Bytes::new()).is_ok());
        let late = client.handle(ToRank::Welcome { world_size: 1 }, Bytes::new());
        assert_eq!(late, Err(ClientViolation::OutOfPhase(ClientPhase::Closed)));
        let mut client = ready();
        let twice = client.handle(ToRank::Welcome { world_size: 3 }, Bytes::new());
        assert_eq!(twice, Err(ClientViolation::OutOfPhase(ClientPhase::Ready)));
    }

    #[test]
    fn the_end_leaves_no_call_open() {
        let mut client = ready();
        client.call(Call::Clock);
        client.end();
        assert_eq!((client.phase(), client.open().count()), (ClientPhase::Closed, 0));
    }

    #[test]
    fn the_states_of_a_conversation() {
        assert_eq!(
            ClientPhase::graph(),
            "AwaitWelcome -- Welcome -> Ready\n\
             AwaitWelcome -- Refusal -> Closed\n\
             AwaitWelcome -- End -> Closed\n\
             Ready -- End -> Closed\n"
        );
    }
}
