//! State machine of a rank's connection to its agent, without the socket.

use bytes::Bytes;
use rlaunch_bootstrap::id::{JobId, Rank};
use rlaunch_bootstrap::protocol::rank::{
    CLIENT_VERSION, FromRank, HelloRefusal, JobEvent, Reply, ToRank,
};
use rlaunch_bootstrap::rendezvous::node::Call;
use rlaunch_bootstrap::security::Token;
use std::collections::BTreeSet;

/// State of a client's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientPhase {
    /// The rank has sent its hello; the agent has not replied yet.
    #[default]
    AwaitWelcome,
    /// The agent accepted the rank. The rank may make calls.
    Ready,
    /// The connection has ended.
    Closed,
}

/// Event that changes the [`ClientPhase`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientPhaseEvent {
    /// The agent accepted the rank.
    Welcome,
    /// The agent rejected the rank.
    Refusal,
    /// The socket was closed or failed.
    End,
}

rlaunch_bootstrap::transitions! {
    ClientPhase on ClientPhaseEvent {
        AwaitWelcome + Welcome => Ready,
        AwaitWelcome + Refusal => Closed,
        AwaitWelcome + End     => Closed,
        Ready        + End     => Closed,
    }
}

/// Result of handling a message from the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// The agent accepted the rank, in a job with this number of ranks.
    Ready(u32),
    /// The agent rejected the rank, for this reason.
    Refused(HelloRefusal),
    /// The agent replied to a call. Contains the request number, the reply and its payload.
    Answered(u64, Reply, Bytes),
    /// The agent reported an event of the job.
    JobEvent(JobEvent),
}

/// Violation of the protocol by the agent, detected by the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientViolation {
    /// The message is not allowed in this state of the connection.
    #[error("unexpected message from the agent in state {0:?}")]
    OutOfPhase(ClientPhase),
    /// The agent answered a call that was never made or was answered before.
    #[error("the agent answered call {0}, which is not pending")]
    NoSuchCall(u64),
}

/// State machine of one connection to the agent.
#[derive(Debug, Default)]
pub struct ClientMachine {
    phase: ClientPhase,
    open: BTreeSet<u64>,
    next: u64,
}

impl ClientMachine {
    /// Starts a connection. Returns the hello message to send.
    pub fn hello(job: JobId, rank: Rank, token: Token) -> (ClientMachine, FromRank) {
        let hello = FromRank::Hello { version: CLIENT_VERSION, job, rank, token };
        (ClientMachine::default(), hello)
    }

    /// Returns the state of the connection.
    pub fn phase(&self) -> ClientPhase {
        self.phase
    }

    /// Returns the request numbers of calls that the agent has not answered.
    pub fn open(&self) -> impl Iterator<Item = u64> {
        self.open.iter().copied()
    }

    /// Starts a call. Returns the request number of the call and the message to send.
    pub fn call(&mut self, call: Call) -> (u64, FromRank) {
        let request = self.next;
        self.next += 1;
        self.open.insert(request);
        (request, FromRank::Call { request, call })
    }

    /// Handles a message from the agent.
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

    /// Handles the end of the connection. Drops the pending calls, which will not be answered.
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
