//! Dialling end of the [handshake](super::hello) between two ranks.

use super::DialError;
use super::handshake_socket::HandshakeSocket;
use super::hello::{Challenge, Ends, Hello, IN_USE, REPLY, RankKey};
use nix::poll::PollFlags;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Time limit of an attempt, which must have authenticated the peer by then.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);

/// Attempt to connect to a peer.
#[derive(Debug)]
pub(super) struct Dial {
    pub(super) ends: Ends,
    handshake: HandshakeSocket,
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
    AwaitsConfirmation,
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
    pub(super) fn begin(ends: Ends, to: SocketAddr) -> io::Result<Dial> {
        let hello = Hello::new(ends)?;
        let handshake = HandshakeSocket::dial(to)?;
        let expires = Instant::now() + ATTEMPT_TIMEOUT;
        Ok(Dial { ends, handshake, step: DialStep::Connects, hello, expires })
    }

    pub(super) fn socket(&self) -> &TcpStream {
        self.handshake.socket()
    }

    /// Returns the poll(2) events that the attempt waits for.
    pub(super) fn waits_for(&self) -> PollFlags {
        if self.step == DialStep::Connects { PollFlags::POLLOUT } else { PollFlags::POLLIN }
    }

    /// Returns the time at which the attempt is abandoned; `None` once the proof is sent.
    pub(super) fn expires(&self) -> Option<Instant> {
        (self.step != DialStep::AwaitsConfirmation).then_some(self.expires)
    }

    /// Takes the next step of the attempt once the socket is ready. `key` is the peer's key.
    pub(super) fn advance(mut self, key: &RankKey) -> Result<DialOutcome, DialError> {
        match self.step {
            DialStep::Connects => {
                if let Some(error) = self.handshake.socket().take_error()? {
                    return Err(error.into());
                }
                self.handshake.send(self.hello.bytes())?;
                self.step = DialStep::AwaitsReply;
                Ok(DialOutcome::Pending(self))
            }
            DialStep::AwaitsReply => {
                let Some(reply) = self.handshake.receive(REPLY)? else {
                    return Ok(DialOutcome::Pending(self));
                };
                let proof = Challenge::prove(&self.hello, reply, key)?;
                self.handshake.send(&proof.ok_or(DialError::Unauthenticated)?)?;
                self.step = DialStep::AwaitsConfirmation;
                Ok(DialOutcome::Proved(self))
            }
            DialStep::AwaitsConfirmation => match self.handshake.receive(1)? {
                None => Ok(DialOutcome::Pending(self)),
                Some([IN_USE]) => Ok(DialOutcome::Accepted(self.handshake.into_socket())),
                Some(_) => Err(DialError::Unauthenticated),
            },
        }
    }
}
