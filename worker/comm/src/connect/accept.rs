//! The accepting end of connections: who knocks is a stranger until it has proved otherwise.

use super::hello::{Challenge, HELLO, Hello, Key, PROOF, Parties, TAKEN};
use super::wire::Wire;
use std::collections::VecDeque;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// So long somebody may take to prove who it is.
const PATIENCE: Duration = Duration::from_secs(2);

/// Somebody who has connected.
#[derive(Debug)]
pub(super) struct Guest {
    wire: Wire,
    step: Step,
    expires: Instant,
}

#[derive(Debug)]
enum Step {
    AwaitsHello,
    AwaitsProof(Parties, Challenge),
}

/// What came of a guest.
#[derive(Debug)]
pub(super) enum Met {
    /// Nothing yet.
    Waits(Guest),
    /// It is who it says; its connection is used once it has been told so.
    Proved(Parties, Wire),
    /// It was sent away.
    Stranger,
}

impl Guest {
    fn new(socket: TcpStream) -> io::Result<Guest> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let (wire, expires) = (Wire::new(socket), Instant::now() + PATIENCE);
        Ok(Guest { wire, step: Step::AwaitsHello, expires })
    }

    pub(super) fn socket(&self) -> &TcpStream {
        self.wire.socket()
    }

    pub(super) fn expires(&self) -> Instant {
        self.expires
    }

    /// The socket is ready. `is_missing` says who may come. A stranger's fault is its own affair.
    pub(super) fn advance(self, own: &Key, is_missing: impl Fn(Parties) -> bool) -> Met {
        self.try_advance(own, is_missing).unwrap_or(Met::Stranger)
    }

    fn try_advance(mut self, own: &Key, is_missing: impl Fn(Parties) -> bool) -> io::Result<Met> {
        match self.step {
            Step::AwaitsHello => {
                let Some(bytes) = self.wire.hear(HELLO)? else { return Ok(Met::Waits(self)) };
                let Some((hello, parties)) = Hello::read(bytes) else { return Ok(Met::Stranger) };
                if !is_missing(parties) {
                    return Ok(Met::Stranger);
                }
                let (challenge, reply) = Challenge::reply(hello, own)?;
                self.wire.say(&reply)?;
                self.step = Step::AwaitsProof(parties, challenge);
                Ok(Met::Waits(self))
            }
            Step::AwaitsProof(parties, ref challenge) => {
                let Some(proof) = self.wire.hear(PROOF)? else { return Ok(Met::Waits(self)) };
                let met = challenge.is_met(proof, own) && is_missing(parties);
                Ok(if met { Met::Proved(parties, self.wire) } else { Met::Stranger })
            }
        }
    }
}

/// Tells the peer that its connection is in use.
pub(super) fn take(wire: Wire) -> io::Result<TcpStream> {
    wire.say(&[TAKEN])?;
    Ok(wire.into_socket())
}

/// Lets in all who knock, and those go who have been here longest when there are more than `most`.
pub(super) fn admit(
    listener: &TcpListener,
    guests: &mut VecDeque<Guest>,
    most: usize,
) -> io::Result<()> {
    // Not for ever, however many there are.
    for _ in 0..most {
        match listener.accept() {
            Ok((socket, _)) => guests.extend(Guest::new(socket)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => break,
                io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                // accept(2): errors of the network show here and concern that connection alone.
                _ if is_of_the_network(&error) => {}
                _ => return Err(error),
            },
        }
        while guests.len() > most {
            guests.pop_front();
        }
    }
    Ok(())
}

fn is_of_the_network(error: &io::Error) -> bool {
    use nix::errno::Errno;
    let known = [
        Errno::ENETDOWN,
        Errno::EPROTO,
        Errno::ENOPROTOOPT,
        Errno::EHOSTDOWN,
        Errno::ENONET,
        Errno::EHOSTUNREACH,
        Errno::EOPNOTSUPP,
        Errno::ENETUNREACH,
        Errno::EPERM,
    ];
    known.iter().any(|errno| error.raw_os_error() == Some(*errno as i32))
}
