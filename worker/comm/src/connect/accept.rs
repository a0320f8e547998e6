//! Accepting end of the [handshake](super::hello) between two ranks. A connection is not trusted
//! until the dialling rank has proved that it has this rank's key.

use super::handshake_socket::HandshakeSocket;
use super::hello::{Challenge, Ends, HELLO, Hello, IN_USE, PROOF, RankKey};
use std::collections::VecDeque;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Time for a peer to authenticate after its connection was accepted.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// Accepted connection whose peer is not authenticated yet.
#[derive(Debug)]
pub(super) struct InboundConnection {
    handshake: HandshakeSocket,
    step: AcceptStep,
    expires: Instant,
}

#[derive(Debug)]
enum AcceptStep {
    AwaitsHello,
    AwaitsProof(Ends, Challenge),
}

/// Outcome of a step of the handshake.
#[derive(Debug)]
pub(super) enum AcceptOutcome {
    /// The handshake continues.
    Pending(InboundConnection),
    /// The peer is authenticated. The peer starts to use the connection after [`confirm`] has sent
    /// the last message of the handshake.
    Authenticated(Ends, HandshakeSocket),
    /// The handshake has failed, and the connection is closed.
    Rejected,
}

impl InboundConnection {
    fn new(socket: TcpStream) -> io::Result<InboundConnection> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let (handshake, expires) =
            (HandshakeSocket::new(socket), Instant::now() + HANDSHAKE_TIMEOUT);
        Ok(InboundConnection { handshake, step: AcceptStep::AwaitsHello, expires })
    }

    pub(super) fn socket(&self) -> &TcpStream {
        self.handshake.socket()
    }

    pub(super) fn expires(&self) -> Instant {
        self.expires
    }

    /// Takes the next step of the handshake once the socket is readable. `own` is this rank's key.
    /// `is_missing` tells whether this rank still needs a connection with these ends. An error
    /// closes only this connection, because an unauthenticated peer may have caused it.
    pub(super) fn advance(self, own: &RankKey, is_missing: impl Fn(Ends) -> bool) -> AcceptOutcome {
        self.try_advance(own, is_missing).unwrap_or(AcceptOutcome::Rejected)
    }

    fn try_advance(
        mut self,
        own: &RankKey,
        is_missing: impl Fn(Ends) -> bool,
    ) -> io::Result<AcceptOutcome> {
        match self.step {
            AcceptStep::AwaitsHello => {
                let Some(bytes) = self.handshake.receive(HELLO)? else {
                    return Ok(AcceptOutcome::Pending(self));
                };
                let Some((hello, ends)) = Hello::read(bytes) else {
                    return Ok(AcceptOutcome::Rejected);
                };
                if !is_missing(ends) {
                    return Ok(AcceptOutcome::Rejected);
                }
                let (challenge, reply) = Challenge::reply(hello, own)?;
                self.handshake.send(&reply)?;
                self.step = AcceptStep::AwaitsProof(ends, challenge);
                Ok(AcceptOutcome::Pending(self))
            }
            AcceptStep::AwaitsProof(ends, ref challenge) => {
                let Some(proof) = self.handshake.receive(PROOF)? else {
                    return Ok(AcceptOutcome::Pending(self));
                };
                let is_proved = challenge.verify_proof(proof, own) && is_missing(ends);
                Ok(if is_proved {
                    AcceptOutcome::Authenticated(ends, self.handshake)
                } else {
                    AcceptOutcome::Rejected
                })
            }
        }
    }
}

/// Sends the last message of the handshake, which says that the connection is in use.
pub(super) fn confirm(handshake: HandshakeSocket) -> io::Result<TcpStream> {
    handshake.send(&[IN_USE])?;
    Ok(handshake.into_socket())
}

/// Accepts up to `most` connections that are waiting at the listener, and adds them to `inbound`.
/// If `inbound` then has more than `most` connections, the oldest are closed.
pub(super) fn admit(
    listener: &TcpListener,
    inbound: &mut VecDeque<InboundConnection>,
    most: usize,
) -> io::Result<()> {
    // The loop is bounded, so that a flood of connections cannot occupy this rank.
    for _ in 0..most {
        match listener.accept() {
            Ok((socket, _)) => inbound.extend(InboundConnection::new(socket)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => break,
                io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                // accept(2) also returns network errors of the new connection, which concern no
                // other connection.
                _ if is_network_error(&error) => {}
                _ => return Err(error),
            },
        }
        while inbound.len() > most {
            inbound.pop_front();
        }
    }
    Ok(())
}

fn is_network_error(error: &io::Error) -> bool {
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
