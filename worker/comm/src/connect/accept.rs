//! The accepting end of connections: who knocks is a stranger until it has proved otherwise.

use super::handshake_socket::HandshakeSocket;
use super::hello::{Challenge, Direction, HELLO, Hello, PROOF, RankKey, TAKEN};
use std::collections::VecDeque;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// So long somebody may take to prove who it is.
const PATIENCE: Duration = Duration::from_secs(2);

/// Somebody who has connected.
#[derive(Debug)]
pub(super) struct InboundConnection {
    wire: HandshakeSocket,
    step: AcceptStep,
    expires: Instant,
}

#[derive(Debug)]
enum AcceptStep {
    AwaitsHello,
    AwaitsProof(Direction, Challenge),
}

/// What came of a guest.
#[derive(Debug)]
pub(super) enum AcceptOutcome {
    /// Nothing yet.
    Pending(InboundConnection),
    /// It is who it says; its connection is used once it has been told so.
    Authenticated(Direction, HandshakeSocket),
    /// It was sent away.
    Rejected,
}

impl InboundConnection {
    fn new(socket: TcpStream) -> io::Result<InboundConnection> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let (wire, expires) = (HandshakeSocket::new(socket), Instant::now() + PATIENCE);
        Ok(InboundConnection { wire, step: AcceptStep::AwaitsHello, expires })
    }

    pub(super) fn socket(&self) -> &TcpStream {
        self.wire.socket()
    }

    pub(super) fn expires(&self) -> Instant {
        self.expires
    }

    /// The socket is ready. `is_missing` says who may come. A stranger's fault is its own affair.
    pub(super) fn advance(
        self,
        own: &RankKey,
        is_missing: impl Fn(Direction) -> bool,
    ) -> AcceptOutcome {
        self.try_advance(own, is_missing).unwrap_or(AcceptOutcome::Rejected)
    }

    fn try_advance(
        mut self,
        own: &RankKey,
        is_missing: impl Fn(Direction) -> bool,
    ) -> io::Result<AcceptOutcome> {
        match self.step {
            AcceptStep::AwaitsHello => {
                let Some(bytes) = self.wire.receive(HELLO)? else {
                    return Ok(AcceptOutcome::Pending(self));
                };
                let Some((hello, parties)) = Hello::read(bytes) else {
                    return Ok(AcceptOutcome::Rejected);
                };
                if !is_missing(parties) {
                    return Ok(AcceptOutcome::Rejected);
                }
                let (challenge, reply) = Challenge::reply(hello, own)?;
                self.wire.send(&reply)?;
                self.step = AcceptStep::AwaitsProof(parties, challenge);
                Ok(AcceptOutcome::Pending(self))
            }
            AcceptStep::AwaitsProof(parties, ref challenge) => {
                let Some(proof) = self.wire.receive(PROOF)? else {
                    return Ok(AcceptOutcome::Pending(self));
                };
                let met = challenge.is_connected(proof, own) && is_missing(parties);
                Ok(if met {
                    AcceptOutcome::Authenticated(parties, self.wire)
                } else {
                    AcceptOutcome::Rejected
                })
            }
        }
    }
}

/// Tells the peer that its connection is in use.
pub(super) fn take(wire: HandshakeSocket) -> io::Result<TcpStream> {
    wire.send(&[TAKEN])?;
    Ok(wire.into_socket())
}

/// Lets in all who knock, and those go who have been here longest when there are more than `most`.
pub(super) fn admit(
    listener: &TcpListener,
    inbound: &mut VecDeque<InboundConnection>,
    most: usize,
) -> io::Result<()> {
    // Not for ever, however many there are.
    for _ in 0..most {
        match listener.accept() {
            Ok((socket, _)) => inbound.extend(InboundConnection::new(socket)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => break,
                io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                // accept(2): errors of the network show here and concern that connection alone.
                _ if is_of_the_network(&error) => {}
                _ => return Err(error),
            },
        }
        while inbound.len() > most {
            inbound.pop_front();
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
