//! Beginning of a stream: authentication, and the keys of its records.
//!
//! ```text
//! dialling host                                   accepting host
//!   handshake of agents (Noise)      ◀─────────▶  both have the secret of this copy
//!   Hello: link, stream, key         ──────────▶  encrypted by the handshake
//!                                    ◀──────────  Welcome: key
//!   records                          ◀─────────▶  encrypted by the key of whoever sends
//! ```
//!
//! Keys are random, new for each stream and direction, and travel under the fresh keys of the
//! handshake alone. So nobody reads later what was recorded now, even with the secret.

use super::record::Cipher;
use super::socket::{Socket, is_tick};
use ring::rand::{SecureRandom, SystemRandom};
use rlaunch_bootstrap::id::{JobId, NodeId};
use rlaunch_bootstrap::security::Secret;
use rlaunch_bootstrap::security::handshake::{
    Dialer, HandshakeStep, Listener, Parties, SecureError, SecureStream,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time in which an accepted connection has to do its handshake, and an address that was dialled.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Version of the messages here and of records. Every change of them needs a new number.
const VERSION: u16 = 1;
/// The secret says which copy a host belongs to, so copies need no other name.
const COPY: JobId = JobId(u128::from_be_bytes(*b"rlaunch\0copy\0\0\0\0"));

/// Failure of a handshake.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error("{0}")]
    System(#[from] io::Error),
    #[error("connected, but no answer came in time")]
    Late,
    /// What an accepting host does at once that has another secret.
    #[error("closed at once, as by a host of another copy")]
    Closed,
    #[error("not a host of this copy")]
    Stranger,
    #[error("other version of rlaunch")]
    Version,
    #[error("rank {0} connected, which is not the one before")]
    WrongRank(u32),
    #[error("one end encrypts files and the other does not")]
    Plain,
    #[error("stream {stream} of {streams}")]
    Streams { stream: u32, streams: u32 },
    #[error("no random numbers")]
    Random,
    #[error("AES-256-GCM takes no key")]
    Cipher,
}

impl From<SecureError> for HandshakeError {
    fn from(error: SecureError) -> HandshakeError {
        match error {
            SecureError::Version(_) => HandshakeError::Version,
            _ => HandshakeError::Stranger,
        }
    }
}

/// What an end of a link has to know of the copy.
#[derive(Clone, Debug)]
pub struct Party {
    pub secret: Secret,
    /// Rank of this end.
    pub me: u32,
    /// Whether chunks are not encrypted.
    pub is_plain: bool,
}

/// Stream whose handshake is done.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) socket: Arc<Socket>,
    /// Encrypts what this end sends.
    pub(super) seals: Cipher,
    /// Decrypts what the other end sends.
    pub(super) opens: Cipher,
}

/// Number of a link, by which its streams find together.
pub(super) type LinkId = [u8; 16];

/// First message of the dialling host.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Hello {
    version: u16,
    pub(super) link: LinkId,
    /// Number of this stream.
    pub(super) stream: u32,
    /// Number of streams of the link.
    pub(super) streams: u32,
    is_plain: bool,
    key: [u8; 32],
}

/// Answer of the accepting host.
#[derive(Serialize, Deserialize)]
struct Welcome {
    key: [u8; 32],
}

/// Returns random bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N], HandshakeError> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| HandshakeError::Random)?;
    Ok(bytes)
}

fn cipher(key: &[u8; 32]) -> Result<Cipher, HandshakeError> {
    Cipher::new(key).map_err(|_| HandshakeError::Cipher)
}

/// Dialling end of a handshake after which both know that they have the secret.
pub(super) struct Dialled {
    socket: Socket,
    noise: SecureStream,
    until: Instant,
    is_plain: bool,
}

impl Dialled {
    /// Proves to rank `to` that this end has the secret, and has that proved.
    pub(super) fn begin(
        socket: Socket,
        me: &Party,
        to: u32,
        within: Duration,
    ) -> Result<Dialled, HandshakeError> {
        let until = Instant::now() + within;
        let parties = Parties { job: COPY, from: NodeId(me.me), to: NodeId(to) };
        let (dialer, first) = Dialer::start(&me.secret, parties)?;
        write(&socket, &first, until)?;
        let mut step = HandshakeStep::More(dialer);
        let mut buffer = [0; 256];
        loop {
            step = match step {
                HandshakeStep::Done(done) => {
                    let (noise, is_plain) = (done.stream, me.is_plain);
                    return Ok(Dialled { socket, noise, until, is_plain });
                }
                HandshakeStep::More(dialer) => {
                    // Nothing but the answer comes before a hello was sent.
                    let count = read(&socket, &mut buffer, until)?;
                    dialer.receive(&buffer[..count])?
                }
            };
        }
    }

    /// Makes this the stream number `stream` of a link of `streams`.
    pub(super) fn join(
        mut self,
        link: LinkId,
        stream: u32,
        streams: u32,
    ) -> Result<Stream, HandshakeError> {
        let (version, is_plain, key) = (VERSION, self.is_plain, random()?);
        let hello = Hello { version, link, stream, streams, is_plain, key };
        send(&self.socket, &mut self.noise, &hello, self.until)?;
        let welcome: Welcome = receive(&self.socket, &mut self.noise, self.until)?;
        let (seals, opens) = (cipher(&key)?, cipher(&welcome.key)?);
        Ok(Stream { socket: Arc::new(self.socket), seals, opens })
    }
}

/// Accepting end of a handshake. Fails if the other end is not rank `from`.
pub(super) fn answer(
    socket: Socket,
    me: &Party,
    from: u32,
) -> Result<(Hello, Stream), HandshakeError> {
    let until = Instant::now() + HANDSHAKE_TIMEOUT;
    let (parties, mut noise) = prove(&socket, me, until)?;
    let hello: Hello = receive(&socket, &mut noise, until)?;
    // Only now is it certain that the first message was no replay.
    if parties.from.0 != from {
        return Err(HandshakeError::WrongRank(parties.from.0));
    }
    if hello.version != VERSION {
        return Err(HandshakeError::Version);
    }
    if hello.is_plain != me.is_plain {
        return Err(HandshakeError::Plain);
    }
    let Hello { stream, streams, .. } = hello;
    if stream >= streams || streams > super::MAX_STREAMS {
        return Err(HandshakeError::Streams { stream, streams });
    }
    let key = random()?;
    let (seals, opens) = (cipher(&key)?, cipher(&hello.key)?);
    send(&socket, &mut noise, &Welcome { key }, until)?;
    Ok((hello, Stream { socket: Arc::new(socket), seals, opens }))
}

fn prove(
    socket: &Socket,
    me: &Party,
    until: Instant,
) -> Result<(Parties, SecureStream), HandshakeError> {
    let listener = Listener::new(me.secret.clone(), COPY, NodeId(me.me));
    let mut step = HandshakeStep::More(listener);
    let mut buffer = [0; 256];
    loop {
        step = match step {
            HandshakeStep::Done(done) => {
                write(socket, &done.send, until)?;
                return Ok((done.parties, done.stream));
            }
            HandshakeStep::More(listener) => {
                // The other end sends its hello after the answer only.
                let count = read(socket, &mut buffer, until)?;
                listener.receive(&buffer[..count])?
            }
        };
    }
}

/// Sends a value as one packet of the handshake's encryption.
fn send<T: Serialize>(
    socket: &Socket,
    noise: &mut SecureStream,
    value: &T,
    until: Instant,
) -> Result<(), HandshakeError> {
    let plain = postcard::to_stdvec(value).map_err(|_| HandshakeError::Version)?;
    let mut packet = Vec::new();
    noise.seal(&plain, &mut packet)?;
    write(socket, &packet, until)
}

/// Receives a value that is one packet. Reads nothing behind it, which is the first record.
fn receive<T: DeserializeOwned>(
    socket: &Socket,
    noise: &mut SecureStream,
    until: Instant,
) -> Result<T, HandshakeError> {
    let mut length = [0; 2];
    read_exact(socket, &mut length, until)?;
    let mut packet = vec![0; length.len() + usize::from(u16::from_le_bytes(length))];
    packet[..length.len()].copy_from_slice(&length);
    read_exact(socket, &mut packet[length.len()..], until)?;
    let mut plain = Vec::new();
    noise.open(&packet, &mut plain)?;
    postcard::from_bytes(&plain).map_err(|_| HandshakeError::Version)
}

fn read_exact(socket: &Socket, bytes: &mut [u8], until: Instant) -> Result<(), HandshakeError> {
    let mut filled = 0;
    while filled < bytes.len() {
        filled += read(socket, &mut bytes[filled..], until)?;
    }
    Ok(())
}

fn read(mut socket: &Socket, bytes: &mut [u8], until: Instant) -> Result<usize, HandshakeError> {
    loop {
        match socket.read(bytes) {
            Ok(0) => return Err(HandshakeError::Closed),
            Ok(count) => return Ok(count),
            Err(error) if is_tick(&error) => in_time(until)?,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                return Err(HandshakeError::Closed);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn write(mut socket: &Socket, mut bytes: &[u8], until: Instant) -> Result<(), HandshakeError> {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if is_tick(&error) => in_time(until)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn in_time(until: Instant) -> Result<(), HandshakeError> {
    if Instant::now() < until { Ok(()) } else { Err(HandshakeError::Late) }
}
