//! Mutual authentication and encryption of TCP connections between agents.
//!
//! All agents of a job have a secret in common, which they received on their control channels. When
//! two agents connect, each proves to the other that it has the secret, by the Noise handshake
//! `NNpsk0` (noiseprotocol.org, revision 34), with fresh session keys for every connection:
//!
//! ```text
//! dialer                                          listener
//!   magic, version, job, from, to  ──────────▶  in clear text; the prologue of the handshake
//!   psk, e                         ──────────▶  requires the secret
//!                                  ◀──────────  e, ee
//!   first packet                   ──────────▶  proves that the message above is not a replay
//! ```
//!
//! After the handshake both directions carry packets: a length as little-endian `u16`, then
//! encrypted bytes, at most 65,535. Anything else ends the connection with a [`SecureError`].

use super::Secret;
use crate::id::{JobId, NodeId};
use snow::{Builder, HandshakeState, TransportState};

/// Noise handshake pattern with the algorithms it uses.
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const MAGIC: &[u8; 12] = b"rlaunch-edge";
/// Version of the handshake and the packets. Every change of them needs a new number.
pub const EDGE_VERSION: u16 = 1;

const PREAMBLE: usize = MAGIC.len() + 2 + 16 + 4 + 4;
/// Length of each handshake message in bytes: an ephemeral key and the tag of an empty payload.
const HANDSHAKE: usize = 32 + 16;
const TAG: usize = 16;
const LENGTH: usize = 2;
/// Maximum number of content bytes in one packet.
pub const MAX_PLAIN: usize = u16::MAX as usize - TAG;

/// Reason why a connection between agents is rejected.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum SecureError {
    /// The peer does not speak this protocol.
    #[error("it is not an rlaunch agent")]
    NotRlaunch,
    /// The peer uses this other version of the protocol.
    #[error("it uses protocol version {0}, this agent uses {EDGE_VERSION}")]
    Version(u16),
    /// The peer belongs to this other job.
    #[error("it belongs to job {0}")]
    WrongJob(JobId),
    /// The peer tries to reach this other node.
    #[error("it expects node {0} at this address")]
    WrongNode(NodeId),
    /// The peer does not have the job's secret, or its message was altered on the way.
    #[error("it does not have the job's secret")]
    WrongSecret,
    /// The Noise library failed.
    #[error("cannot encrypt")]
    Noise(#[from] snow::Error),
}

/// Job and nodes that a connection between agents belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parties {
    /// Identifier of the job that both nodes belong to.
    pub job: JobId,
    /// Node whose agent connects.
    pub from: NodeId,
    /// Node whose agent listens.
    pub to: NodeId,
}

impl Parties {
    fn preamble(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PREAMBLE);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&EDGE_VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.job.0.to_le_bytes());
        bytes.extend_from_slice(&self.from.0.to_le_bytes());
        bytes.extend_from_slice(&self.to.0.to_le_bytes());
        bytes
    }

    /// Parses a preamble of [`PREAMBLE`] bytes.
    fn read(bytes: &[u8]) -> Result<Parties, SecureError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(SecureError::NotRlaunch)?;
        let (version, rest) = rest.split_first_chunk().ok_or(SecureError::NotRlaunch)?;
        let version = u16::from_le_bytes(*version);
        if version != EDGE_VERSION {
            return Err(SecureError::Version(version));
        }
        let (job, rest) = rest.split_first_chunk().ok_or(SecureError::NotRlaunch)?;
        let (from, rest) = rest.split_first_chunk().ok_or(SecureError::NotRlaunch)?;
        let (to, _) = rest.split_first_chunk().ok_or(SecureError::NotRlaunch)?;
        Ok(Parties {
            job: JobId(u128::from_le_bytes(*job)),
            from: NodeId(u32::from_le_bytes(*from)),
            to: NodeId(u32::from_le_bytes(*to)),
        })
    }

    fn builder<'a>(prologue: &'a [u8], secret: &'a Secret) -> Result<Builder<'a>, SecureError> {
        Ok(Builder::new(PATTERN.parse()?).prologue(prologue)?.psk(0, &secret.0)?)
    }
}

/// Result of one step of the handshake.
#[derive(Debug)]
pub enum HandshakeStep<T> {
    /// The handshake needs more bytes from the peer.
    More(T),
    Done(Established),
}

/// Result of a completed handshake.
#[derive(Debug)]
pub struct Established {
    /// Job and nodes that the connection belongs to. The listener must not trust `from` before a
    /// packet from the peer has been decrypted, because the handshake may be a replay.
    pub parties: Parties,
    /// Bytes to send before any packet; may be empty.
    pub send: Vec<u8>,
    /// Encrypted connection, ready for use.
    pub stream: SecureStream,
}

/// Connecting agent's side of the handshake.
#[derive(Debug)]
pub struct Dialer {
    noise: Box<HandshakeState>,
    parties: Parties,
    received: Vec<u8>,
}

impl Dialer {
    /// Starts the handshake. Returns the bytes to send.
    pub fn start(secret: &Secret, parties: Parties) -> Result<(Dialer, Vec<u8>), SecureError> {
        let mut send = parties.preamble();
        let builder = Parties::builder(&send, secret)?;
        let mut noise = Box::new(builder.build_initiator()?);
        let mut first = [0; HANDSHAKE];
        let length = noise.write_message(&[], &mut first)?;
        send.extend_from_slice(&first[..length]);
        Ok((Dialer { noise, parties, received: Vec::new() }, send))
    }

    /// Continues the handshake with bytes that were received.
    pub fn receive(mut self, bytes: &[u8]) -> Result<HandshakeStep<Dialer>, SecureError> {
        self.received.extend_from_slice(bytes);
        let Some((answer, rest)) = self.received.split_at_checked(HANDSHAKE) else {
            return Ok(HandshakeStep::More(self));
        };
        self.noise.read_message(answer, &mut []).map_err(|_| SecureError::WrongSecret)?;
        let stream = SecureStream::new(*self.noise, rest)?;
        Ok(HandshakeStep::Done(Established { parties: self.parties, send: Vec::new(), stream }))
    }
}

/// Listening agent's side of the handshake.
#[derive(Debug)]
pub struct Listener {
    secret: Secret,
    job: JobId,
    me: NodeId,
    received: Vec<u8>,
}

impl Listener {
    /// Makes the listener's side for a connection to node `me` of the job.
    pub fn new(secret: Secret, job: JobId, me: NodeId) -> Listener {
        Listener { secret, job, me, received: Vec::new() }
    }

    /// Continues the handshake with bytes that were received.
    pub fn receive(mut self, bytes: &[u8]) -> Result<HandshakeStep<Listener>, SecureError> {
        self.received.extend_from_slice(bytes);
        // At the first wrong byte, as another protocol may never send as many as a preamble has.
        let begins = self.received.len().min(MAGIC.len());
        if self.received[..begins] != MAGIC[..begins] {
            return Err(SecureError::NotRlaunch);
        }
        let Some((preamble, rest)) = self.received.split_at_checked(PREAMBLE) else {
            return Ok(HandshakeStep::More(self));
        };
        let parties = Parties::read(preamble)?;
        if parties.job != self.job {
            return Err(SecureError::WrongJob(parties.job));
        }
        if parties.to != self.me {
            return Err(SecureError::WrongNode(parties.to));
        }
        let Some((first, rest)) = rest.split_at_checked(HANDSHAKE) else {
            return Ok(HandshakeStep::More(self));
        };
        let builder = Parties::builder(preamble, &self.secret)?;
        let mut noise = builder.build_responder()?;
        noise.read_message(first, &mut []).map_err(|_| SecureError::WrongSecret)?;
        let mut send = vec![0; HANDSHAKE];
        let length = noise.write_message(&[], &mut send)?;
        send.truncate(length);
        let stream = SecureStream::new(noise, rest)?;
        Ok(HandshakeStep::Done(Established { parties, send, stream }))
    }
}

/// Encrypted connection that carries packets in both directions.
#[derive(Debug)]
pub struct SecureStream {
    noise: Box<TransportState>,
    received: Vec<u8>,
}

impl SecureStream {
    /// Makes a stream from a completed handshake. `rest` contains bytes that were received after
    /// the handshake.
    pub(crate) fn new(noise: HandshakeState, rest: &[u8]) -> Result<SecureStream, SecureError> {
        let noise = noise.into_transport_mode()?;
        Ok(SecureStream { noise: Box::new(noise), received: rest.to_vec() })
    }

    /// Encrypts `plain`. Appends the packets to send to `out`.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), SecureError> {
        for part in plain.chunks(MAX_PLAIN) {
            let sealed = part.len() + TAG;
            let length = u16::try_from(sealed).unwrap_or(u16::MAX);
            out.extend_from_slice(&length.to_le_bytes());
            let from = out.len();
            out.resize(from + sealed, 0);
            self.noise.write_message(part, &mut out[from..])?;
        }
        Ok(())
    }

    /// Decrypts received bytes. Appends the contents of complete packets to `plain`. After an error
    /// the connection must be closed.
    pub fn open(&mut self, received: &[u8], plain: &mut Vec<u8>) -> Result<(), SecureError> {
        self.received.extend_from_slice(received);
        let mut taken = 0;
        while let Some((length, rest)) = self.received[taken..].split_first_chunk::<LENGTH>() {
            let length = usize::from(u16::from_le_bytes(*length));
            if length < TAG {
                return Err(SecureError::WrongSecret);
            }
            let Some(sealed) = rest.get(..length) else { break };
            let from = plain.len();
            plain.resize(from + length - TAG, 0);
            if self.noise.read_message(sealed, &mut plain[from..]).is_err() {
                plain.truncate(from); // These bytes are not authenticated.
                return Err(SecureError::WrongSecret);
            }
            taken += LENGTH + length;
        }
        self.received.drain(..taken);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTIES: Parties = Parties { job: JobId(7), from: NodeId(3), to: NodeId(1) };

    fn secret(byte: u8) -> Secret {
        Secret::from_bytes([byte; 32])
    }

    fn listener() -> Listener {
        Listener::new(secret(1), JobId(7), NodeId(1))
    }

    /// Feeds `bytes` to a listener, in parts of `size` bytes.
    fn feed(bytes: &[u8], size: usize) -> Result<HandshakeStep<Listener>, SecureError> {
        let mut step = HandshakeStep::More(listener());
        for part in bytes.chunks(size) {
            step = match step {
                HandshakeStep::More(listener) => listener.receive(part)?,
                done @ HandshakeStep::Done(_) => return Ok(done),
            };
        }
        Ok(step)
    }

    fn connected(size: usize) -> (SecureStream, SecureStream) {
        let (dialler, first) = Dialer::start(&secret(1), PARTIES).unwrap();
        let Ok(HandshakeStep::Done(answer)) = feed(&first, size) else { panic!("no answer") };
        assert_eq!(answer.parties, PARTIES);
        let mut step = HandshakeStep::More(dialler);
        for part in answer.send.chunks(size) {
            let HandshakeStep::More(dialler) = step else { panic!("early") };
            step = dialler.receive(part).unwrap();
        }
        let HandshakeStep::Done(done) = step else { panic!("unfinished") };
        (done.stream, answer.stream)
    }

    fn refusal(step: Result<HandshakeStep<Listener>, SecureError>) -> Option<SecureError> {
        step.err()
    }

    #[test]
    fn two_that_share_the_secret_understand_each_other() {
        for size in [1, 5, 48, 1000] {
            let (mut dialler, mut listener) = connected(size);
            let plain: Vec<u8> = (0..200_000_u32).map(|n| n as u8).collect();
            for (from, to) in [(&mut dialler, &mut listener)].into_iter().chain([]) {
                let (mut sealed, mut heard) = (Vec::new(), Vec::new());
                from.seal(&plain, &mut sealed).unwrap();
                for part in sealed.chunks(size.max(3) * 100) {
                    to.open(part, &mut heard).unwrap();
                }
                assert_eq!(heard, plain);
            }
            let (mut sealed, mut heard) = (Vec::new(), Vec::new());
            listener.seal(b"and back", &mut sealed).unwrap();
            dialler.open(&sealed, &mut heard).unwrap();
            assert_eq!(heard, b"and back");
        }
    }

    #[test]
    fn strangers_are_refused_by_what_they_are() {
        let (_, of_other) = Dialer::start(&secret(2), PARTIES).unwrap();
        assert_eq!(refusal(feed(&of_other, 9)), Some(SecureError::WrongSecret));
        let job = Parties { job: JobId(8), ..PARTIES };
        let (_, of_job) = Dialer::start(&secret(1), job).unwrap();
        assert_eq!(refusal(feed(&of_job, 99)), Some(SecureError::WrongJob(JobId(8))));
        let node = Parties { to: NodeId(2), ..PARTIES };
        let (_, of_node) = Dialer::start(&secret(1), node).unwrap();
        assert_eq!(refusal(feed(&of_node, 99)), Some(SecureError::WrongNode(NodeId(2))));
        assert_eq!(refusal(feed(b"GET / HTTP/1.1", 1)), Some(SecureError::NotRlaunch));
        let (_, mut of_version) = Dialer::start(&secret(1), PARTIES).unwrap();
        of_version[MAGIC.len()] = 9;
        assert_eq!(refusal(feed(&of_version, 99)), Some(SecureError::Version(9)));
    }

    #[test]
    fn half_a_handshake_proves_nothing() {
        let (_, first) = Dialer::start(&secret(1), PARTIES).unwrap();
        assert!(matches!(feed(&first[..first.len() - 1], 7), Ok(HandshakeStep::More(_))));
    }

    #[test]
    fn a_replay_of_the_first_message_leads_nowhere() {
        let (dialler, first) = Dialer::start(&secret(1), PARTIES).unwrap();
        let Ok(HandshakeStep::Done(original)) = feed(&first, 99) else { panic!() };
        let Ok(HandshakeStep::Done(mut replayed)) = feed(&first, 99) else { panic!() };
        let Ok(HandshakeStep::Done(mut mine)) = dialler.receive(&original.send) else { panic!() };
        let mut sealed = Vec::new();
        mine.stream.seal(b"hello", &mut sealed).unwrap();
        // A replay of both messages does not give the attacker the session keys.
        let opened = replayed.stream.open(&sealed, &mut Vec::new());
        assert_eq!(opened, Err(SecureError::WrongSecret));
    }

    #[test]
    fn tampering_is_noticed() {
        let (mut dialler, mut listener) = connected(99);
        let mut sealed = Vec::new();
        dialler.seal(b"hello", &mut sealed).unwrap();
        let last = sealed.len() - 1;
        sealed[last] ^= 1;
        assert_eq!(listener.open(&sealed, &mut Vec::new()), Err(SecureError::WrongSecret));
        assert_eq!(dialler.open(&[3, 0, 1], &mut Vec::new()), Err(SecureError::WrongSecret));
    }

    #[test]
    fn a_packet_counts_once_and_in_its_turn() {
        let (mut dialler, mut listener) = connected(99);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        dialler.seal(b"one", &mut first).unwrap();
        dialler.seal(b"two", &mut second).unwrap();
        let mut heard = Vec::new();
        listener.open(&first, &mut heard).unwrap();
        assert_eq!(listener.open(&first, &mut heard), Err(SecureError::WrongSecret));
        let (mut dialler, mut listener) = connected(99);
        dialler.seal(b"one", &mut Vec::new()).unwrap();
        second.clear();
        dialler.seal(b"two", &mut second).unwrap();
        assert_eq!(listener.open(&second, &mut heard), Err(SecureError::WrongSecret));
        assert_eq!(heard, b"one", "what cannot be trusted is not handed on");
    }

    #[test]
    fn a_packet_says_nothing_before_it_is_whole() {
        let (mut dialler, mut listener) = connected(99);
        let mut sealed = Vec::new();
        dialler.seal(b"hello", &mut sealed).unwrap();
        let (last, most) = sealed.split_last().unwrap();
        let mut heard = Vec::new();
        for byte in most {
            listener.open(&[*byte], &mut heard).unwrap();
            assert!(heard.is_empty());
        }
        listener.open(&[*last], &mut heard).unwrap();
        assert_eq!(heard, b"hello");
        assert!(listener.received.is_empty());
    }

    #[test]
    fn the_longest_packet_is_one_and_a_byte_more_is_two() {
        for (length, packets) in [(0, 0), (1, 1), (MAX_PLAIN, 1), (MAX_PLAIN + 1, 2)] {
            let (mut dialler, mut listener) = connected(99);
            let plain = vec![7; length];
            let (mut sealed, mut heard) = (Vec::new(), Vec::new());
            dialler.seal(&plain, &mut sealed).unwrap();
            assert_eq!(sealed.len(), length + packets * (LENGTH + TAG));
            listener.open(&sealed, &mut heard).unwrap();
            assert_eq!(heard, plain);
        }
    }

    #[test]
    fn a_peer_cannot_make_more_wait_than_one_packet() {
        let (_, mut listener) = connected(99);
        let mut longest = u16::MAX.to_le_bytes().to_vec();
        longest.resize(LENGTH + usize::from(u16::MAX) - 1, 0);
        assert_eq!(listener.open(&longest, &mut Vec::new()), Ok(()));
        assert!(listener.received.len() < LENGTH + usize::from(u16::MAX));
        // The next byte completes the packet, which does not decrypt.
        assert_eq!(listener.open(&[0], &mut Vec::new()), Err(SecureError::WrongSecret));
    }

    #[test]
    fn the_preamble_is_part_of_what_is_proved() {
        let (_, first) = Dialer::start(&secret(1), PARTIES).unwrap();
        // Change the sender in the preamble, which only the prologue protects.
        let sender = MAGIC.len() + 2 + 16;
        let mut changed = first.clone();
        changed[sender] ^= 1;
        assert_eq!(refusal(feed(&changed, 99)), Some(SecureError::WrongSecret));
        assert_eq!(refusal(feed(&first, 99)), None);
    }

    #[test]
    fn a_dialler_recognises_a_listener_without_the_secret() {
        let (dialler, _) = Dialer::start(&secret(1), PARTIES).unwrap();
        let (_, first) = Dialer::start(&secret(2), PARTIES).unwrap();
        let other = Listener::new(secret(2), JobId(7), NodeId(1)).receive(&first);
        let Ok(HandshakeStep::Done(other)) = other else { panic!() };
        assert_eq!(dialler.receive(&other.send).err(), Some(SecureError::WrongSecret));
    }

    #[test]
    fn the_secret_is_not_printed() {
        assert_eq!(format!("{:?}", secret(9)), "Secret(..)");
    }
}
