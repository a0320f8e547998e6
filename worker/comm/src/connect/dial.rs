//! The dialling end of a connection until it is in use.

use super::Unreached;
use super::hello::{Challenge, Hello, Key, Parties, REPLY, TAKEN};
use super::wire::Wire;
use nix::poll::PollFlags;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// So long an attempt may take until it is known who answers.
const ATTEMPT: Duration = Duration::from_secs(3);

/// An attempt to reach a peer.
#[derive(Debug)]
pub(super) struct Dial {
    pub(super) parties: Parties,
    wire: Wire,
    step: Step,
    hello: Hello,
    expires: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Connects,
    AwaitsReply,
    /// The peer may be using the connection already, so there is no way back but its end.
    AwaitsTaken,
}

/// How far it has come.
#[derive(Debug)]
pub(super) enum Reached {
    /// Not there yet.
    Waits(Dial),
    /// The peer takes the connection if it believes the proof that has been sent.
    Offered(Dial),
    /// It is in use.
    Taken(TcpStream),
}

impl Dial {
    pub(super) fn begin(parties: Parties, to: SocketAddr) -> io::Result<Dial> {
        let hello = Hello::new(parties)?;
        let wire = Wire::dial(to)?;
        let expires = Instant::now() + ATTEMPT;
        Ok(Dial { parties, wire, step: Step::Connects, hello, expires })
    }

    pub(super) fn socket(&self) -> &TcpStream {
        self.wire.socket()
    }

    /// What it waits for.
    pub(super) fn waits_for(&self) -> PollFlags {
        if self.step == Step::Connects { PollFlags::POLLOUT } else { PollFlags::POLLIN }
    }

    /// When it is given up.
    pub(super) fn expires(&self) -> Option<Instant> {
        (self.step != Step::AwaitsTaken).then_some(self.expires)
    }

    /// The socket is ready. `key` is the peer's.
    pub(super) fn advance(mut self, key: &Key) -> Result<Reached, Unreached> {
        match self.step {
            Step::Connects => {
                if let Some(error) = self.wire.socket().take_error()? {
                    return Err(error.into());
                }
                self.wire.say(self.hello.bytes())?;
                self.step = Step::AwaitsReply;
                Ok(Reached::Waits(self))
            }
            Step::AwaitsReply => {
                let Some(reply) = self.wire.hear(REPLY)? else { return Ok(Reached::Waits(self)) };
                let proof = Challenge::prove(&self.hello, reply, key)?;
                self.wire.say(&proof.ok_or(Unreached::Stranger)?)?;
                self.step = Step::AwaitsTaken;
                Ok(Reached::Offered(self))
            }
            Step::AwaitsTaken => match self.wire.hear(1)? {
                None => Ok(Reached::Waits(self)),
                Some([TAKEN]) => Ok(Reached::Taken(self.wire.into_socket())),
                Some(_) => Err(Unreached::Stranger),
            },
        }
    }
}
