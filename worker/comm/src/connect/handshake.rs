//! Handshake of two ranks on a new connection, as a state machine without a socket.
//!
//! ```text
//! dialling rank                                    accepting rank
//!   magic, from, to, nonce           ──────────▶
//!                                    ◀──────────   nonce, HMAC(key, "accepts", all of the above)
//!   HMAC(key, "dials", the same)     ──────────▶
//!                                    ◀──────────   in use
//! ```
//!
//! The key is the accepting rank's key, which only the ranks of the job know. `HMAC` is
//! HMAC-SHA256. Both nonces are fresh random numbers, so recorded messages cannot be replayed. The
//! handshake authenticates both ends. Later messages are not encrypted, as in other message-passing
//! libraries.
//!
//! Messages of fixed length over a non-blocking socket.
//!
//! Accepting end of the handshake between two ranks. A connection is not trusted
//! until the dialling rank has proved that it has this rank's key.
//!
//! Dialling end of the handshake between two ranks.

use super::DialError;
use hmac::{Hmac, KeyInit, Mac};
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, connect, send, socket,
};
use rlaunch_bootstrap::id::Rank;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// First bytes of a hello. The last byte changes with every change of the handshake.
const MAGIC: [u8; 8] = *b"rlrank\0\x02";
const NONCE: usize = 32;
const MAC: usize = 32;

/// Length of the dialling rank's first message, in bytes.
pub(super) const HELLO: usize = MAGIC.len() + 4 + 4 + NONCE;
/// Length of the accepting rank's reply, in bytes.
pub(super) const REPLY: usize = NONCE + MAC;
/// Length of the dialling rank's proof, in bytes.
pub(super) const PROOF: usize = MAC;
/// Last message of the accepting rank, which says that the connection is in use.
pub(super) const IN_USE: u8 = 0x2a;

/// Secret key of a rank, which only the ranks of its job know. The key is never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RankKey([u8; 32]);

impl RankKey {
    pub(super) fn random() -> io::Result<RankKey> {
        random().map(RankKey)
    }

    /// Returns the HMAC of the concatenated `words` under the key.
    #[cfg(feature = "rdma")]
    pub(super) fn proof(&self, words: &[&[u8]]) -> [u8; MAC] {
        self.mac_of(words).finalize().into_bytes().into()
    }

    /// Returns whether `proof` is the HMAC of the concatenated `words` under the key.
    #[cfg(feature = "rdma")]
    pub(super) fn is_proof(&self, words: &[&[u8]], proof: &[u8]) -> bool {
        self.mac_of(words).verify_slice(proof).is_ok()
    }

    #[cfg(feature = "rdma")]
    fn mac_of(&self, words: &[&[u8]]) -> Hmac<Sha256> {
        // HMAC fills keys shorter than a block with zeros.
        let mut block = [0; 64];
        block[..self.0.len()].copy_from_slice(&self.0);
        words.iter().fold(Hmac::<Sha256>::new(&block.into()), Hmac::chain_update)
    }
}

impl fmt::Debug for RankKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::from)?;
    Ok(bytes)
}

/// Both ranks of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    /// Rank that dials.
    pub(super) from: Rank,
    /// Rank that accepts.
    pub(super) to: Rank,
}

/// First message of the handshake, which the dialling rank sends.
#[derive(Clone, Debug)]
pub(super) struct Hello([u8; HELLO]);

impl Hello {
    /// Makes a hello with a fresh nonce.
    pub(super) fn new(ends: Ends) -> io::Result<Hello> {
        let mut bytes = [0; HELLO];
        let parts: [&[u8]; 4] =
            [&MAGIC, &ends.from.0.to_le_bytes(), &ends.to.0.to_le_bytes(), &random()?];
        let mut at = 0;
        for part in parts {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Ok(Hello(bytes))
    }

    /// Decodes a hello; `None` if the bytes are not a hello of this version.
    pub(super) fn read(bytes: &[u8]) -> Option<(Hello, Ends)> {
        let hello: [u8; HELLO] = bytes.try_into().ok()?;
        let rest = hello.strip_prefix(&MAGIC)?;
        let (from, rest) = rest.split_first_chunk()?;
        let (to, _) = rest.split_first_chunk()?;
        let ends =
            Ends { from: Rank(u32::from_le_bytes(*from)), to: Rank(u32::from_le_bytes(*to)) };
        Some((Hello(hello), ends))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Role of a rank in the handshake. Each HMAC covers the role of the rank that computes it, so that
/// the HMAC of one rank cannot be used as that of the other.
#[derive(Clone, Copy, Debug)]
enum Role {
    Dials,
    Accepts,
}

/// Data that the HMACs of both ends authenticate: the hello, and the accepting rank's nonce.
#[derive(Clone, Debug)]
pub(super) struct Challenge {
    hello: Hello,
    nonce: [u8; NONCE],
}

impl Challenge {
    /// Makes the accepting rank's reply to a hello, with a fresh nonce. `own` is the accepting
    /// rank's key.
    pub(super) fn reply(hello: Hello, own: &RankKey) -> io::Result<(Challenge, [u8; REPLY])> {
        let challenge = Challenge { hello, nonce: random()? };
        let mut reply = [0; REPLY];
        reply[..NONCE].copy_from_slice(&challenge.nonce);
        let mac = challenge.mac(own, Role::Accepts)?.finalize().into_bytes();
        reply[NONCE..].copy_from_slice(&mac);
        Ok((challenge, reply))
    }

    /// Makes the dialling rank's proof from the accepting rank's `reply`. `key` is the accepting
    /// rank's key. Returns `None` if the reply was made with another key.
    pub(super) fn prove(
        hello: &Hello,
        reply: &[u8],
        key: &RankKey,
    ) -> io::Result<Option<[u8; PROOF]>> {
        let Some((nonce, mac)) = reply.split_first_chunk() else { return Ok(None) };
        let challenge = Challenge { hello: hello.clone(), nonce: *nonce };
        if challenge.mac(key, Role::Accepts)?.verify_slice(mac).is_err() {
            return Ok(None);
        }
        Ok(Some(challenge.mac(key, Role::Dials)?.finalize().into_bytes().into()))
    }

    /// Returns whether `proof` shows that the dialling rank has the key.
    pub(super) fn verify_proof(&self, proof: &[u8], own: &RankKey) -> bool {
        self.mac(own, Role::Dials).is_ok_and(|mac| mac.verify_slice(proof).is_ok())
    }

    fn mac(&self, key: &RankKey, role: Role) -> io::Result<Hmac<Sha256>> {
        let mac = Hmac::<Sha256>::new_from_slice(&key.0);
        let mac = mac.map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let role: &[u8] = match role {
            Role::Dials => b"dials  ",
            Role::Accepts => b"accepts",
        };
        Ok(mac.chain_update(role).chain_update(self.hello.bytes()).chain_update(self.nonce))
    }
}

/// Length of the longest message, in bytes.
const MAX_MESSAGE: usize = 64;

/// Socket on which a handshake runs.
#[derive(Debug)]
pub(super) struct HandshakeSocket {
    socket: TcpStream,
    buffer: [u8; MAX_MESSAGE],
    filled: usize,
}

impl HandshakeSocket {
    /// Makes a handshake socket from `socket`, which must be non-blocking.
    pub(super) fn new(socket: TcpStream) -> HandshakeSocket {
        HandshakeSocket { socket, buffer: [0; MAX_MESSAGE], filled: 0 }
    }

    /// Starts to connect. The socket becomes writable when the attempt has succeeded or failed.
    pub(super) fn dial(to: SocketAddr) -> io::Result<HandshakeSocket> {
        let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = TcpStream::from(socket(family, SockType::Stream, flags, None)?);
        socket.set_nodelay(true)?;
        match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
            Ok(()) | Err(Errno::EINPROGRESS | Errno::EINTR) => Ok(HandshakeSocket::new(socket)),
            Err(errno) => Err(errno.into()),
        }
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(super) fn into_socket(self) -> TcpStream {
        self.socket
    }

    /// Sends a message. The message always fits into the socket buffer, because nothing else was
    /// sent before.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = send(self.socket.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Returns the next message of `length` bytes, at most [`MAX_MESSAGE`]; `None` until it has
    /// arrived completely. Reads no bytes behind the message, because they belong to the link.
    pub(super) fn receive(&mut self, length: usize) -> io::Result<Option<&[u8]>> {
        let wanted = self.buffer.get_mut(self.filled..length).unwrap_or_default();
        match self.socket.read(wanted) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.filled += count,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => return Ok(None),
                _ => return Err(error),
            },
        }
        if self.filled < length {
            return Ok(None);
        }
        self.filled = 0;
        Ok(Some(&self.buffer[..length]))
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: Ends = Ends { from: Rank(3), to: Rank(70_000) };

    #[test]
    fn two_with_the_key_believe_each_other() {
        let key = RankKey::random().unwrap();
        let hello = Hello::new(ENDS).unwrap();
        let (received, ends) = Hello::read(hello.bytes()).unwrap();
        assert_eq!(ends, ENDS);
        let (challenge, reply) = Challenge::reply(received, &key).unwrap();
        let proof = Challenge::prove(&hello, &reply, &key).unwrap().unwrap();
        assert!(challenge.verify_proof(&proof, &key));
    }

    #[test]
    fn nobody_without_the_key_is_believed() {
        let (key, other) = (RankKey::random().unwrap(), RankKey::random().unwrap());
        let hello = Hello::new(ENDS).unwrap();
        let (challenge, reply) = Challenge::reply(hello.clone(), &key).unwrap();
        assert_eq!(Challenge::prove(&hello, &reply, &other).unwrap(), None);
        let proof = Challenge::prove(&hello, &reply, &key).unwrap().unwrap();
        assert!(!challenge.verify_proof(&proof, &other));
        // The HMAC of the accepting rank is not accepted as a proof.
        assert!(!challenge.verify_proof(&reply[NONCE..], &key));
        assert!(!challenge.verify_proof(&[], &key));
    }

    #[test]
    fn what_was_said_once_proves_nothing_later() {
        let key = RankKey::random().unwrap();
        let hello = Hello::new(ENDS).unwrap();
        let (_, reply) = Challenge::reply(hello.clone(), &key).unwrap();
        let proof = Challenge::prove(&hello, &reply, &key).unwrap().unwrap();
        let (again, _) = Challenge::reply(hello, &key).unwrap();
        assert!(!again.verify_proof(&proof, &key));
        let another = Hello::new(ENDS).unwrap();
        assert_eq!(Challenge::prove(&another, &reply, &key).unwrap(), None);
    }

    #[test]
    fn a_proof_for_one_connection_is_none_for_another() {
        let key = RankKey::random().unwrap();
        let hello = Hello::new(ENDS).unwrap();
        for at in MAGIC.len()..HELLO {
            let mut other = hello.clone();
            other.0[at] ^= 1;
            let (_, reply) = Challenge::reply(other, &key).unwrap();
            assert_eq!(Challenge::prove(&hello, &reply, &key).unwrap(), None, "byte {at}");
        }
    }

    #[test]
    fn what_is_no_hello_is_not_read() {
        let hello = Hello::new(ENDS).unwrap();
        assert!(Hello::read(&hello.bytes()[1..]).is_none());
        let mut bytes = hello.bytes().to_vec();
        bytes[0] ^= 1;
        assert!(Hello::read(&bytes).is_none());
    }

    #[test]
    fn a_key_is_not_printed() {
        assert_eq!(format!("{:?}", RankKey([77; 32])), "Key(..)");
    }
}
