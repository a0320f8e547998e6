//! Callback: TCP connection from an agent to its launcher, used if the shell that starts the agent
//! passes no stdin to it.
//!
//! The agent's command line contains only public data: the launcher's address, a public key that
//! the launcher made for this job, and the number of the node. The agent makes a key pair, prints
//! its public key on stdout ([`Announcement`]), which SSH authenticates, and connects to the
//! launcher. Both ends then know each other's public key, and prove possession of the private keys
//! by the Noise handshake `KK` (noiseprotocol.org, revision 34), with fresh session keys for every
//! connection:
//!
//! ```text
//! agent                                          launcher
//!   magic, version, node         ──────────▶  in clear text; the prologue of the handshake
//!   e, es, ss                    ──────────▶  requires the agent's private key
//!                                ◀──────────  e, ee, se
//!   first packet                 ──────────▶  proves that the message above is not a replay
//! ```
//!
//! After the handshake both directions carry the frames of [`crate::protocol::control`], in the
//! packets of [`SecureStream`]. A peer without the announced key gets no answer.
//!
//! Hosts that lack the agent's executable download it from the same port ([`FetchRequest`]). The
//! executable is not secret, and the host checks its hash.

use crate::id::NodeId;
use crate::security::handshake::{SecureError, SecureStream};
use snow::{Builder, HandshakeState, Keypair};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

const PATTERN: &str = "Noise_KK_25519_ChaChaPoly_BLAKE2s";
const MAGIC: &[u8; 12] = b"rlaunch-call";
/// Version of the handshake. Every change of the handshake needs a new number.
pub const CALLBACK_VERSION: u16 = 1;

const PREAMBLE: usize = MAGIC.len() + 2 + 4;
/// Length of each handshake message in bytes: an ephemeral key and the tag of an empty payload.
pub const HANDSHAKE: usize = 32 + 16;
/// Maximum length of the first message on a connection, in bytes.
pub const MAX_FIRST_MESSAGE: usize = 512;
/// Length of a SHA-256 hash, in hexadecimal digits.
const DIGEST: usize = 64;

/// Failure of a callback connection.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum CallbackError {
    /// The peer uses another protocol.
    #[error("it is not an rlaunch agent")]
    NotRlaunch,
    /// The peer uses this other version of the handshake.
    #[error("it uses protocol version {0}, this end uses {CALLBACK_VERSION}")]
    Version(u16),
    /// The peer does not have the expected key, or its message was altered on the way.
    #[error("it does not have the expected key")]
    WrongKey,
    /// The Noise library failed.
    #[error("cannot encrypt")]
    Noise(#[from] snow::Error),
    /// The peer violated the protocol after the handshake.
    #[error(transparent)]
    Secure(#[from] SecureError),
}

/// Public key, formatted as hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for PublicKey {
    type Err = CallbackError;

    fn from_str(text: &str) -> Result<PublicKey, CallbackError> {
        let mut key = [0; 32];
        let bytes = text.as_bytes();
        if bytes.len() != 2 * key.len() {
            return Err(CallbackError::NotRlaunch);
        }
        for (byte, digits) in key.iter_mut().zip(bytes.chunks_exact(2)) {
            let digit =
                |at: usize| char::from(digits[at]).to_digit(16).ok_or(CallbackError::NotRlaunch);
            *byte = (digit(0)? * 16 + digit(1)?) as u8;
        }
        Ok(PublicKey(key))
    }
}

/// Key pair of an agent or launcher. The private key is never printed.
pub struct KeyPair {
    private: Vec<u8>,
    public: PublicKey,
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({})", self.public)
    }
}

impl KeyPair {
    /// Makes a new key pair.
    pub fn generate() -> Result<KeyPair, CallbackError> {
        let Keypair { private, public } = Builder::new(PATTERN.parse()?).generate_keypair()?;
        let public = public.try_into().map_err(|_| CallbackError::WrongKey)?;
        Ok(KeyPair { private, public: PublicKey(public) })
    }

    /// Returns the public key.
    pub fn public(&self) -> PublicKey {
        self.public
    }
}

fn builder<'a>(
    prologue: &'a [u8],
    own: &'a KeyPair,
    other: &'a PublicKey,
) -> Result<Builder<'a>, CallbackError> {
    let builder = Builder::new(PATTERN.parse()?).prologue(prologue)?;
    Ok(builder.local_private_key(&own.private)?.remote_public_key(&other.0)?)
}

fn preamble(node: NodeId) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PREAMBLE + HANDSHAKE);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&CALLBACK_VERSION.to_le_bytes());
    bytes.extend_from_slice(&node.0.to_le_bytes());
    bytes
}

/// Agent's side of the handshake, while it waits for the launcher's answer.
#[derive(Debug)]
pub struct CallbackDialer(Box<HandshakeState>);

impl CallbackDialer {
    /// Starts the handshake with the launcher. Returns the bytes to send.
    pub fn start(
        own: &KeyPair,
        launcher: &PublicKey,
        node: NodeId,
    ) -> Result<(CallbackDialer, Vec<u8>), CallbackError> {
        let mut send = preamble(node);
        let builder = builder(&send, own, launcher)?;
        let mut noise = Box::new(builder.build_initiator()?);
        let mut first = [0; HANDSHAKE];
        let length = noise.write_message(&[], &mut first)?;
        send.extend_from_slice(&first[..length]);
        Ok((CallbackDialer(noise), send))
    }

    /// Completes the handshake with the launcher's answer. Returns the encrypted stream.
    pub fn finish(mut self, answer: &[u8; HANDSHAKE]) -> Result<SecureStream, CallbackError> {
        self.0.read_message(answer, &mut []).map_err(|_| CallbackError::WrongKey)?;
        Ok(SecureStream::new(*self.0, &[])?)
    }
}

/// First message that a peer sends on a connection to the launcher.
#[derive(Debug, PartialEq)]
pub enum FirstMessage {
    /// The first message of an agent's handshake. The agent is not authenticated yet.
    Callback(CallbackHello),
    /// A request to download the agent's executable.
    Fetch(FetchRequest),
}

/// First message of the handshake, as the launcher receives it.
#[derive(Debug, PartialEq)]
pub struct CallbackHello {
    /// Number of the node that the sender claims to run on.
    pub node: NodeId,
    preamble: [u8; PREAMBLE],
    first: [u8; HANDSHAKE],
}

/// Request to download a file by its hash: `FETCH DIGEST`, or `GET /DIGEST HTTP/1.1` with headers.
#[derive(Debug, PartialEq)]
pub struct FetchRequest {
    /// SHA-256 of the file, in hexadecimal digits.
    pub digest: String,
    /// Whether the response must begin with an HTTP header.
    pub http: bool,
}

impl FirstMessage {
    /// Parses the bytes that were received so far. Returns `None` if the message is incomplete, and
    /// an error if it is longer than [`MAX_FIRST_MESSAGE`] or not valid.
    pub fn read(bytes: &[u8]) -> Result<Option<FirstMessage>, CallbackError> {
        let begins = |with: &[u8]| {
            let length = bytes.len().min(with.len());
            bytes[..length] == with[..length]
        };
        let opening = if begins(MAGIC) {
            CallbackHello::read(bytes)?.map(FirstMessage::Callback)
        } else if begins(b"FETCH ") || begins(b"GET /") {
            FetchRequest::read(bytes)?.map(FirstMessage::Fetch)
        } else {
            return Err(CallbackError::NotRlaunch);
        };
        if opening.is_none() && bytes.len() >= MAX_FIRST_MESSAGE {
            return Err(CallbackError::NotRlaunch);
        }
        Ok(opening)
    }
}

impl CallbackHello {
    fn read(bytes: &[u8]) -> Result<Option<CallbackHello>, CallbackError> {
        let Some((preamble, rest)) = bytes.split_first_chunk::<PREAMBLE>() else {
            return Ok(None);
        };
        let [.., v0, v1, n0, n1, n2, n3] = *preamble;
        let version = u16::from_le_bytes([v0, v1]);
        if version != CALLBACK_VERSION {
            return Err(CallbackError::Version(version));
        }
        let Some((first, rest)) = rest.split_first_chunk::<HANDSHAKE>() else { return Ok(None) };
        if !rest.is_empty() {
            // Agents send nothing more before they receive the answer.
            return Err(CallbackError::NotRlaunch);
        }
        let node = NodeId(u32::from_le_bytes([n0, n1, n2, n3]));
        Ok(Some(CallbackHello { node, preamble: *preamble, first: *first }))
    }

    /// Checks that the sender has the private key that belongs to the public key `agent`. Returns
    /// the bytes to send and the encrypted stream. The message may be a replay; only a packet on
    /// the stream that decrypts proves that it is not.
    pub fn answer(
        &self,
        own: &KeyPair,
        agent: &PublicKey,
    ) -> Result<(Vec<u8>, SecureStream), CallbackError> {
        let builder = builder(&self.preamble, own, agent)?;
        let mut noise = builder.build_responder()?;
        noise.read_message(&self.first, &mut []).map_err(|_| CallbackError::WrongKey)?;
        let mut send = vec![0; HANDSHAKE];
        let length = noise.write_message(&[], &mut send)?;
        send.truncate(length);
        Ok((send, SecureStream::new(noise, &[])?))
    }
}

impl FetchRequest {
    fn read(bytes: &[u8]) -> Result<Option<FetchRequest>, CallbackError> {
        let http = bytes.starts_with(b"GET /");
        let end: &[u8] = if http { b"\r\n\r\n" } else { b"\n" };
        let Some(at) = bytes.windows(end.len()).position(|window| window == end) else {
            return Ok(None);
        };
        let line = bytes[..at].split(|&byte| byte == b'\n').next().unwrap_or_default();
        let line = std::str::from_utf8(line).map_err(|_| CallbackError::NotRlaunch)?;
        let mut words = line.split_ascii_whitespace().skip(1);
        let digest = words.next().unwrap_or_default();
        let digest = if http { digest.strip_prefix('/').unwrap_or_default() } else { digest };
        let is_digest = digest.len() == DIGEST && digest.bytes().all(|b| b.is_ascii_hexdigit());
        let is_http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
        if !is_digest || http != is_http {
            return Err(CallbackError::NotRlaunch);
        }
        Ok(Some(FetchRequest { digest: digest.to_owned(), http }))
    }
}

/// Encrypted connection that a reading task and a writing task share. Clones refer to the same
/// connection.
#[derive(Clone, Debug)]
pub struct SharedStream(Arc<Mutex<SecureStream>>);

impl SharedStream {
    /// Makes a connection that can be shared.
    pub fn new(stream: SecureStream) -> SharedStream {
        SharedStream(Arc::new(Mutex::new(stream)))
    }

    /// Encrypts `plain`. Returns the packets to send.
    pub fn seal(&self, plain: &[u8]) -> Result<Vec<u8>, SecureError> {
        let mut sealed = Vec::with_capacity(plain.len() + 64);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).seal(plain, &mut sealed)?;
        Ok(sealed)
    }

    /// Decrypts received bytes. Appends the contents of complete packets to `plain`.
    pub fn open(&self, received: &[u8], plain: &mut Vec<u8>) -> Result<(), SecureError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).open(received, plain)
    }
}

/// Line that an agent without stdin prints on its stdout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// The agent is about to connect to the launcher.
    Dialing {
        /// Version of the agent's messages ([`crate::protocol::control::PROTOCOL_VERSION`]).
        version: u16,
        key: PublicKey,
    },
    /// The agent could not connect to the launcher. The text lists the addresses that it tried, and
    /// the errors.
    Failed(String),
}

const MARK: &str = "rlaunch-callback ";
const FAILED: &str = "failed ";
/// Maximum length of a line with an announcement, in bytes.
const MAX_LINE: usize = 4096;
/// Maximum length of the text in [`Announcement::Failed`], in characters. A longer text is cut off.
const MAX_FAILURE_TEXT: usize = 900;

impl fmt::Display for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Announcement::Dialing { version, key } => write!(f, "{MARK}{version} {key}"),
            Announcement::Failed(why) => write!(f, "{MARK}{FAILED}{why}"),
        }
    }
}

impl Announcement {
    /// Parses a line without its line break. Returns `None` if the line is not an announcement.
    pub fn parse(line: &str) -> Option<Announcement> {
        let words = line.trim_end().strip_prefix(MARK)?;
        if let Some(why) = words.strip_prefix(FAILED) {
            let why: String =
                why.chars().filter(|c| !c.is_control()).take(MAX_FAILURE_TEXT).collect();
            return Some(Announcement::Failed(why.trim().to_owned()));
        }
        let (version, key) = words.split_once(' ')?;
        Some(Announcement::Dialing { version: version.parse().ok()?, key: key.parse().ok()? })
    }
}

/// Scanner that finds announcements in the stdout of an agent. The stdout may be split anywhere.
#[derive(Debug, Default)]
pub struct AnnouncementScanner {
    line: Vec<u8>,
    /// Whether the rest of a line that is too long is being skipped.
    skips: bool,
}

impl AnnouncementScanner {
    /// Appends received bytes. Returns the announcements that these bytes complete.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Announcement> {
        let mut found = Vec::new();
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let (text, ends) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            self.skips |= self.line.len() + text.len() > MAX_LINE;
            if !self.skips {
                self.line.extend_from_slice(text);
            }
            if ends {
                if !self.skips {
                    found.extend(Announcement::parse(&String::from_utf8_lossy(&self.line)));
                }
                self.skips = false;
                self.line.clear();
            }
        }
        found
    }
}

/// Formats an address as a word that no shell changes: without brackets around an IPv6 address.
pub fn address_word(address: SocketAddr) -> String {
    format!("{}:{}", address.ip(), address.port())
}

/// Parses a word that [`address_word`] has formatted.
pub fn parse_address_word(word: &str) -> Option<SocketAddr> {
    let (ip, port) = word.rsplit_once(':')?;
    Some(SocketAddr::new(ip.parse::<IpAddr>().ok()?, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(3);

    /// Makes the key pairs of an agent and its launcher.
    fn keys() -> (KeyPair, KeyPair) {
        (KeyPair::generate().unwrap(), KeyPair::generate().unwrap())
    }

    fn call(bytes: &[u8]) -> CallbackHello {
        match FirstMessage::read(bytes) {
            Ok(Some(FirstMessage::Callback(call))) => call,
            other => panic!("{other:?}"),
        }
    }

    fn connected() -> (SecureStream, SecureStream) {
        let (agent, launcher) = keys();
        let (caller, first) = CallbackDialer::start(&agent, &launcher.public(), NODE).unwrap();
        let (answer, of_launcher) = call(&first).answer(&launcher, &agent.public()).unwrap();
        (caller.finish(&answer.try_into().unwrap()).unwrap(), of_launcher)
    }

    #[test]
    fn two_that_know_each_other_talk() {
        let (mut agent, mut launcher) = connected();
        let (mut sealed, mut heard) = (Vec::new(), Vec::new());
        agent.seal(b"hello", &mut sealed).unwrap();
        launcher.open(&sealed, &mut heard).unwrap();
        let launcher = SharedStream::new(launcher);
        agent.open(&launcher.clone().seal(b" and back").unwrap(), &mut heard).unwrap();
        assert_eq!(heard, b"hello and back");
    }

    #[test]
    fn the_command_line_is_not_enough() {
        let (agent, launcher) = keys();
        // The attacker knows everything except the agent's private key.
        let thief = KeyPair::generate().unwrap();
        let (_, first) = CallbackDialer::start(&thief, &launcher.public(), NODE).unwrap();
        let refused = call(&first).answer(&launcher, &agent.public());
        assert_eq!(refused.err(), Some(CallbackError::WrongKey));
    }

    #[test]
    fn a_launcher_without_its_key_is_recognised() {
        let (agent, launcher) = keys();
        let other = KeyPair::generate().unwrap();
        let (caller, first) = CallbackDialer::start(&agent, &other.public(), NODE).unwrap();
        let (answer, _) = call(&first).answer(&other, &agent.public()).unwrap();
        let (wrong, _) = CallbackDialer::start(&agent, &launcher.public(), NODE).unwrap();
        let answer: [u8; HANDSHAKE] = answer.try_into().unwrap();
        assert_eq!(wrong.finish(&answer).err(), Some(CallbackError::WrongKey));
        assert!(caller.finish(&answer).is_ok());
    }

    #[test]
    fn a_replayed_call_leads_nowhere() {
        let (agent, launcher) = keys();
        let (caller, first) = CallbackDialer::start(&agent, &launcher.public(), NODE).unwrap();
        let (answer, _) = call(&first).answer(&launcher, &agent.public()).unwrap();
        let (_, mut replayed) = call(&first).answer(&launcher, &agent.public()).unwrap();
        let mut stream = caller.finish(&answer.try_into().unwrap()).unwrap();
        let mut sealed = Vec::new();
        stream.seal(b"hello", &mut sealed).unwrap();
        assert_eq!(replayed.open(&sealed, &mut Vec::new()), Err(SecureError::WrongSecret));
    }

    #[test]
    fn the_preamble_is_part_of_what_is_proved() {
        let (agent, launcher) = keys();
        let (_, mut first) = CallbackDialer::start(&agent, &launcher.public(), NODE).unwrap();
        first[PREAMBLE - 1] ^= 1;
        let other = call(&first);
        assert_ne!(other.node, NODE);
        assert_eq!(other.answer(&launcher, &agent.public()).err(), Some(CallbackError::WrongKey));
    }

    #[test]
    fn an_opening_is_read_however_it_is_cut() {
        let (agent, launcher) = keys();
        let (_, first) = CallbackDialer::start(&agent, &launcher.public(), NODE).unwrap();
        let digest = "0123456789abcdef".repeat(4);
        let line = format!("FETCH {digest}\n").into_bytes();
        let get = format!("GET /{digest} HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n").into_bytes();
        for whole in [&first, &line, &get] {
            for length in 0..whole.len() {
                assert_eq!(FirstMessage::read(&whole[..length]), Ok(None), "{length}");
            }
        }
        assert_eq!(call(&first).node, NODE);
        let fetch =
            |http| Ok(Some(FirstMessage::Fetch(FetchRequest { digest: digest.clone(), http })));
        assert_eq!(FirstMessage::read(&line), fetch(false));
        assert_eq!(FirstMessage::read(&get), fetch(true));
    }

    #[test]
    fn what_is_no_opening_is_refused() {
        let (agent, launcher) = keys();
        let (_, first) = CallbackDialer::start(&agent, &launcher.public(), NODE).unwrap();
        let mut version = first.clone();
        version[MAGIC.len()] = 9;
        assert_eq!(FirstMessage::read(&version), Err(CallbackError::Version(9)));
        let mut eager = first;
        eager.push(0);
        let mut endless = b"GET /".to_vec();
        endless.resize(MAX_FIRST_MESSAGE, b'a');
        let strangers: [&[u8]; 7] = [
            b"SSH-2.0-x\r\n", b"FETCH 0123\n", b"FETCH ../../etc/passwd\n",
            b"GET /etc/passwd HTTP/1.0\r\n\r\n", b"POST", &endless, &eager,
        ];
        for stranger in strangers {
            assert_eq!(
                FirstMessage::read(stranger),
                Err(CallbackError::NotRlaunch),
                "{stranger:?}"
            );
        }
    }

    #[test]
    fn an_announcement_is_found_behind_any_banner() {
        let key = KeyPair::generate().unwrap().public();
        let calls = Announcement::Dialing { version: 7, key };
        let failed = Announcement::Failed("10.0.0.1:21003 (no answer)".into());
        let banner = "entering container\r\nno rlaunch-callback 7 here\n".to_owned();
        let text = format!("{banner}{}{calls}\r\n{failed}\n", "x".repeat(5000) + "\n");
        for cut in [1, 2, 7, 100, text.len()] {
            let mut scanner = AnnouncementScanner::default();
            let parts = text.as_bytes().chunks(cut);
            let found: Vec<_> = parts.flat_map(|part| scanner.push(part)).collect();
            assert_eq!(found, [calls.clone(), failed.clone()], "cut at {cut}");
        }
        assert_eq!(Announcement::parse("rlaunch-callback 7 12"), None);
    }

    #[test]
    fn addresses_pass_through_shells() {
        for text in ["10.0.0.1:21003", "[fd00::2]:21003", "[::1]:1024"] {
            let address: SocketAddr = text.parse().unwrap();
            let word = address_word(address);
            assert!(!word.contains(['[', ']']), "{word}");
            assert_eq!(parse_address_word(&word), Some(address));
        }
        for bad in ["", "10.0.0.1", "10.0.0.1:x", ":1", "host:22"] {
            assert_eq!(parse_address_word(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_private_key_is_not_printed() {
        let key = KeyPair::generate().unwrap();
        assert_eq!(format!("{key:?}"), format!("KeyPair({})", key.public()));
    }
}
