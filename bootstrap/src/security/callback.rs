//! How an agent whose shell gives no stdin reaches its launcher.
//!
//! Its command line carries what anybody may know: where the launcher listens, the launcher's public
//! key, which is made for this job alone, and the number of its node. The agent makes a key of its
//! own and prints it, [`Announcement`], on its stdout, which SSH vouches for; then it dials. Both ends
//! now know each other's key, and prove it by the Noise handshake `KK` (noiseprotocol.org, revision
//! 34), whose other keys are fresh for every connection:
//!
//! ```text
//! agent                                          launcher
//!   magic, version, node         ──────────▶       in the clear, and the handshake's prologue
//!   e, es, ss                    ──────────▶       only who has the announced key can make it
//!                                ◀──────────  e, ee, se
//!   first packet                 ──────────▶       only now the launcher knows that this is no replay
//! ```
//!
//! Then both directions carry frames of [`crate::protocol::control`] inside packets, as an edge of the tree does:
//! see [`SecureStream`]. Who dials without the announced key is told nothing.
//!
//! At the same port hosts without an agent get theirs, see [`FetchRequest`]. It is no secret, and who gets it
//! checks its hash.

use crate::id::NodeId;
use crate::security::handshake::{SecureError, SecureStream};
use snow::{Builder, HandshakeState, Keypair};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

const PATTERN: &str = "Noise_KK_25519_ChaChaPoly_BLAKE2s";
const MAGIC: &[u8; 12] = b"rlaunch-call";
/// Changes whenever the handshake changes.
pub const CALLBACK_VERSION: u16 = 1;

const PREAMBLE: usize = MAGIC.len() + 2 + 4;
/// `e` and the tag of an empty payload: the length of either message, in bytes.
pub const HANDSHAKE: usize = 32 + 16;
/// The longest thing that anybody says first, in bytes.
pub const MAX_FIRST_MESSAGE: usize = 512;
/// Hexadecimal digits of a SHA-256.
const DIGEST: usize = 64;

/// Why there is no conversation.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum CallbackError {
    /// It speaks something else.
    #[error("it is no agent of rlaunch")]
    NotRlaunch,
    /// It is another build.
    #[error("it speaks version {0}, this end {CALLBACK_VERSION}")]
    Version(u16),
    /// It has not the key that was announced, or somebody has changed what it said.
    #[error("it has not the key that it should have")]
    WrongKey,
    /// The library refuses.
    #[error("cannot encrypt")]
    Noise(#[source] snow::Error),
    /// It follows the handshake and breaks what comes behind.
    #[error(transparent)]
    Secure(#[from] SecureError),
}

/// By which one end is known to the other. Written as hexadecimal digits.
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

/// A key of one's own. Its private half is never printed.
pub struct KeyPair {
    private: Vec<u8>,
    public: PublicKey,
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnKey({})", self.public)
    }
}

impl KeyPair {
    /// A fresh one.
    pub fn generate() -> Result<KeyPair, CallbackError> {
        let Keypair { private, public } =
            Builder::new(pattern()?).generate_keypair().map_err(CallbackError::Noise)?;
        let public = public.try_into().map_err(|_| CallbackError::WrongKey)?;
        Ok(KeyPair { private, public: PublicKey(public) })
    }

    /// What the other end may know.
    pub fn public(&self) -> PublicKey {
        self.public
    }
}

fn pattern() -> Result<snow::params::NoiseParams, CallbackError> {
    PATTERN.parse().map_err(CallbackError::Noise)
}

fn builder<'a>(
    prologue: &'a [u8],
    own: &'a KeyPair,
    other: &'a PublicKey,
) -> Result<Builder<'a>, CallbackError> {
    let build = || -> Result<Builder<'a>, snow::Error> {
        let builder = Builder::new(PATTERN.parse()?).prologue(prologue)?;
        builder.local_private_key(&own.private)?.remote_public_key(&other.0)
    };
    build().map_err(CallbackError::Noise)
}

fn preamble(node: NodeId) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PREAMBLE + HANDSHAKE);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&CALLBACK_VERSION.to_le_bytes());
    bytes.extend_from_slice(&node.0.to_le_bytes());
    bytes
}

/// The agent's end until the launcher has answered.
#[derive(Debug)]
pub struct CallbackDialer(Box<HandshakeState>);

impl CallbackDialer {
    /// Begins; the bytes are to be sent.
    pub fn start(
        own: &KeyPair,
        launcher: &PublicKey,
        node: NodeId,
    ) -> Result<(CallbackDialer, Vec<u8>), CallbackError> {
        let mut send = preamble(node);
        let builder = builder(&send, own, launcher)?;
        let mut noise = Box::new(builder.build_initiator().map_err(CallbackError::Noise)?);
        let mut first = [0; HANDSHAKE];
        let length = noise.write_message(&[], &mut first).map_err(CallbackError::Noise)?;
        send.extend_from_slice(&first[..length]);
        Ok((CallbackDialer(noise), send))
    }

    /// The answer came.
    pub fn finish(mut self, answer: &[u8; HANDSHAKE]) -> Result<SecureStream, CallbackError> {
        self.0.read_message(answer, &mut []).map_err(|_| CallbackError::WrongKey)?;
        Ok(SecureStream::new(*self.0, &[])?)
    }
}

/// What somebody said first.
#[derive(Debug, PartialEq)]
pub enum FirstMessage {
    /// An agent calls, or somebody who wants to be taken for one.
    Callback(CallbackHello),
    /// A host gets its agent.
    Fetch(FetchRequest),
}

/// The first message of a call.
#[derive(Debug, PartialEq)]
pub struct CallbackHello {
    /// Which node it claims to be.
    pub node: NodeId,
    preamble: [u8; PREAMBLE],
    first: [u8; HANDSHAKE],
}

/// `FETCH DIGEST`, or the same as a program of the web says it, `GET /DIGEST HTTP/1.1` and headers.
#[derive(Debug, PartialEq)]
pub struct FetchRequest {
    /// The SHA-256 of what is wanted, in hexadecimal digits.
    pub digest: String,
    /// The answer is to have the head of HTTP.
    pub http: bool,
}

impl FirstMessage {
    /// Reads what has come so far; `None` while more must come. Never takes more than
    /// [`MAX_FIRST_MESSAGE`].
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
        match u16::from_le_bytes([v0, v1]) {
            CALLBACK_VERSION => {}
            other => return Err(CallbackError::Version(other)),
        }
        let Some((first, rest)) = rest.split_first_chunk::<HANDSHAKE>() else { return Ok(None) };
        if !rest.is_empty() {
            // An agent has nothing to say before it is answered.
            return Err(CallbackError::NotRlaunch);
        }
        let node = NodeId(u32::from_le_bytes([n0, n1, n2, n3]));
        Ok(Some(CallbackHello { node, preamble: *preamble, first: *first }))
    }

    /// What to send, and both directions, if it comes from who has announced this key. It may still
    /// be a replay: only a first packet that can be opened shows that it is not.
    pub fn answer(
        &self,
        own: &KeyPair,
        agent: &PublicKey,
    ) -> Result<(Vec<u8>, SecureStream), CallbackError> {
        let builder = builder(&self.preamble, own, agent)?;
        let mut noise = builder.build_responder().map_err(CallbackError::Noise)?;
        noise.read_message(&self.first, &mut []).map_err(|_| CallbackError::WrongKey)?;
        let mut send = vec![0; HANDSHAKE];
        let length = noise.write_message(&[], &mut send).map_err(CallbackError::Noise)?;
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

/// Both directions of a connection, for one who reads and one who writes. Clones share it.
#[derive(Clone, Debug)]
pub struct SharedStream(Arc<Mutex<SecureStream>>);

impl SharedStream {
    /// Behind a handshake.
    pub fn new(stream: SecureStream) -> SharedStream {
        SharedStream(Arc::new(Mutex::new(stream)))
    }

    /// What to send for these bytes.
    pub fn seal(&self, plain: &[u8]) -> Result<Vec<u8>, SecureError> {
        let mut sealed = Vec::with_capacity(plain.len() + 64);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).seal(plain, &mut sealed)?;
        Ok(sealed)
    }

    /// Adds what these bytes say to `plain`, as far as packets are whole.
    pub fn open(&self, received: &[u8], plain: &mut Vec<u8>) -> Result<(), SecureError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).open(received, plain)
    }
}

/// What an agent without stdin prints, each on a line of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// It dials now.
    Dialing {
        /// [`crate::protocol::control::PROTOCOL_VERSION`] of the agent.
        version: u16,
        /// By which it will be known.
        key: PublicKey,
    },
    /// It has dialled in vain: by which ways, and what became of each.
    Failed(String),
}

const MARK: &str = "rlaunch-callback ";
const FAILED: &str = "failed ";
/// The longest line that can be one, in bytes.
const LONGEST_LINE: usize = 4096;
/// How much of a failure is kept, in characters.
const LONGEST_WHY: usize = 900;

impl fmt::Display for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Announcement::Dialing { version, key } => write!(f, "{MARK}{version} {key}"),
            Announcement::Failed(why) => write!(f, "{MARK}{FAILED}{why}"),
        }
    }
}

impl Announcement {
    /// Of a line without its end; `None` if it is any other line.
    pub fn parse(line: &str) -> Option<Announcement> {
        let words = line.trim_end().strip_prefix(MARK)?;
        if let Some(why) = words.strip_prefix(FAILED) {
            let why: String = why.chars().filter(|c| !c.is_control()).take(LONGEST_WHY).collect();
            return Some(Announcement::Failed(why.trim().to_owned()));
        }
        let (version, key) = words.split_once(' ')?;
        Some(Announcement::Dialing { version: version.parse().ok()?, key: key.parse().ok()? })
    }
}

/// Finds announcements among whatever else comes on stdout, however it is cut.
#[derive(Debug, Default)]
pub struct AnnouncementScanner {
    line: Vec<u8>,
    /// The line is too long to be one; the rest of it is skipped.
    skips: bool,
}

impl AnnouncementScanner {
    /// Adds what was read; gives what was announced in it.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Announcement> {
        let mut found = Vec::new();
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let (text, ends) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            self.skips |= self.line.len() + text.len() > LONGEST_LINE;
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

/// An address as it stands on a command line: no shell takes offence, as none would at `[`.
pub fn address_word(address: SocketAddr) -> String {
    format!("{}:{}", address.ip(), address.port())
}

/// The address of such a word.
pub fn parse_address_word(word: &str) -> Option<SocketAddr> {
    let (ip, port) = word.rsplit_once(':')?;
    Some(SocketAddr::new(ip.parse::<IpAddr>().ok()?, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(3);

    /// Keys of an agent and its launcher.
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
        // Everything but the agent's private key is known.
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
            b"SSH-2.0-x\r\n",
            b"FETCH 0123\n",
            b"FETCH ../../etc/passwd\n",
            b"GET /etc/passwd HTTP/1.0\r\n\r\n",
            b"POST",
            &endless,
            &eager,
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
        assert_eq!(format!("{key:?}"), format!("OwnKey({})", key.public()));
    }
}
