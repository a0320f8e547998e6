//! Dialling end of the handshake.

use super::DialError;
use super::handshake_socket::HandshakeSocket;
use super::hello::{Challenge, Direction, Hello, REPLY, RankKey, TAKEN};
use nix::poll::PollFlags;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Time for an attempt until the peer is authenticated.
const ATTEMPT: Duration = Duration::from_secs(3);

/// Attempt to connect to a peer.
#[derive(Debug)]
pub(super) struct Dial {
    pub(super) parties: Direction,
    wire: HandshakeSocket,
    step: DialStep,
    hello: Hello,
    expires: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DialStep {
    Connects,
    AwaitsReply,
    /// The proof was sent, so the peer may already use the connection. From here on the attempt has
    /// no time limit, and ends only if the connection fails.
    AwaitsTaken,
}

/// Outcome of a step of an attempt.
#[derive(Debug)]
pub(super) enum DialOutcome {
    /// The attempt continues.
    Pending(Dial),
    /// The proof was sent. The attempt continues until the peer says that it uses the connection.
    Proved(Dial),
    /// The peer uses the connection.
    Accepted(TcpStream),
}

impl Dial {
    pub(super) fn begin(parties: Direction, to: SocketAddr) -> io::Result<Dial> {
        let hello = Hello::new(parties)?;
        let wire = HandshakeSocket::dial(to)?;
        let expires = Instant::now() + ATTEMPT;
        Ok(Dial { parties, wire, step: DialStep::Connects, hello, expires })
    }

    pub(super) fn socket(&self) -> &TcpStream {
        self.wire.socket()
    }

    /// Returns the poll(2) events that the attempt waits for.
    pub(super) fn waits_for(&self) -> PollFlags {
        if self.step == DialStep::Connects { PollFlags::POLLOUT } else { PollFlags::POLLIN }
    }

    /// Returns the time at which the attempt is abandoned; `None` once the proof is sent.
    pub(super) fn expires(&self) -> Option<Instant> {
        (self.step != DialStep::AwaitsTaken).then_some(self.expires)
    }

    /// Takes the next step of the attempt once the socket is ready. `key` is the peer's key.
    pub(super) fn advance(mut self, key: &RankKey) -> Result<DialOutcome, DialError> {
        match self.step {
            DialStep::Connects => {
                if let Some(error) = self.wire.socket().take_error()? {
                    return Err(error.into());
                }
                self.wire.send(self.hello.bytes())?;
                self.step = DialStep::AwaitsReply;
                Ok(DialOutcome::Pending(self))
            }
            DialStep::AwaitsReply => {
                let Some(reply) = self.wire.receive(REPLY)? else {
                    return Ok(DialOutcome::Pending(self));
                };
                let proof = Challenge::prove(&self.hello, reply, key)?;
                self.wire.send(&proof.ok_or(DialError::Unauthenticated)?)?;
                self.step = DialStep::AwaitsTaken;
                Ok(DialOutcome::Proved(self))
            }
            DialStep::AwaitsTaken => match self.wire.receive(1)? {
                None => Ok(DialOutcome::Pending(self)),
                Some([TAKEN]) => Ok(DialOutcome::Accepted(self.wire.into_socket())),
                Some(_) => Err(DialError::Unauthenticated),
            },
        }
    }
}
