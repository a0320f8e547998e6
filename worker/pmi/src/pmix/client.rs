//! Connections, and the ranks at their other ends. At the beginning of a connection the client says
//! which rank it is, and how it encodes messages.
//!
//! A message is a header of 16 bytes and a body. The header has four 32-bit words: the number of the peer, the tag of the request, the length of the
//! body in bytes, and padding. An answer has the tag of its request. All words are big-endian, except in
//! a client's first header, which has the order of the host.

use super::bfrops::{DecodeError, Reader, Status, Writer};
use crate::node::{ConnectionId, Node};
use crate::sorted_map::SortedMap;
use thiserror::Error;

/// Client that has sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) connection: ConnectionId,
    /// Tag for the answer.
    pub(super) tag: u32,
    /// Local rank.
    pub(super) local: usize,
    /// Number of the client's MPI program in the rank's life.
    pub(super) run: u32,
}

/// Result of reading from a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The message is not complete yet.
    Nothing,
    /// A local rank has begun this run.
    Began {
        /// Local rank.
        local: usize,
        /// Number of the MPI program in the rank's life.
        run: u32,
    },
    /// A client has sent a request with this body.
    Request(Caller, Vec<u8>),
    /// The connection is to be closed.
    Refused,
}

/// Connections of a node.
#[derive(Debug, Default)]
pub(super) struct Clients {
    clients: SortedMap<ConnectionId, Client>,
}

/// State of a connection.
#[derive(Debug, Default)]
struct Client {
    frames: Frames,
    /// Rank at the other end; `None` until its first message has come.
    rank: Option<Rank>,
}

/// Rank at the other end of a connection.
#[derive(Clone, Copy, Debug)]
struct Rank {
    /// Local rank.
    local: usize,
    /// Number of the client's MPI program in the rank's life.
    run: u32,
    version: Version,
    has_asked_for_job: bool,
    has_finalized: bool,
}

impl Clients {
    /// Takes the next message of a connection out of `bytes`.
    pub(super) fn next(
        &mut self,
        node: &mut Node,
        connection: ConnectionId,
        bytes: &mut &[u8],
    ) -> Event {
        let client = self.clients.get_or_insert_with(connection, Client::default);
        let frame = match client.frames.next(bytes) {
            Ok(Some(frame)) => frame,
            Ok(None) => return Event::Nothing,
            Err(_) => return Event::Refused,
        };
        match client.rank {
            // The client closes its connection after it has finalized.
            Some(Rank { has_finalized: true, .. }) => Event::Refused,
            Some(Rank { local, run, .. }) => {
                Event::Request(Caller { connection, tag: frame.tag, local, run }, frame.body)
            }
            None => client.greet(node, connection, &frame.body).unwrap_or(Event::Refused),
        }
    }

    /// Tells whether a client may ask for the description of the job: it may do so once.
    pub(super) fn may_ask_for_job(&mut self, connection: ConnectionId) -> bool {
        let rank = self.clients.get_mut(&connection).and_then(|client| client.rank.as_mut());
        rank.is_some_and(|rank| !std::mem::replace(&mut rank.has_asked_for_job, true))
    }

    /// Records that a client has finalized.
    pub(super) fn finalize(&mut self, connection: ConnectionId) {
        let client = self.clients.get_mut(&connection);
        if let Some(rank) = client.and_then(|client| client.rank.as_mut()) {
            rank.has_finalized = true;
        }
    }

    /// Returns the version of a client's library.
    pub(super) fn version(&self, connection: ConnectionId) -> Version {
        let rank = self.clients.get(&connection).and_then(|client| client.rank);
        rank.map_or(Version(0, 0, 0), |rank| rank.version)
    }

    /// Forgets a connection.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.clients.remove(&connection);
    }
}

impl Client {
    /// Takes the first message of a connection. Returns `None` if it is not of a rank of this node.
    fn greet(&mut self, node: &mut Node, connection: ConnectionId, body: &[u8]) -> Option<Event> {
        let hello = Hello::decode(body).ok()?;
        if !is_equal(node.layout().namespace.as_bytes(), hello.namespace) {
            return None;
        }
        let local = node.layout().local_rank(hello.rank)?;
        let status = hello.status();
        node.send(connection, answer(status, hello.rank));
        if status != Status::SUCCESS {
            return None;
        }
        let run = node.begin(connection, local);
        self.rank = Some(Rank {
            local,
            run,
            version: hello.version,
            has_asked_for_job: false,
            has_finalized: false,
        });
        Some(Event::Began { local, run })
    }
}

/// Kind of process that a rank is; the others are tools and launchers.
const SIMPLE_CLIENT: u8 = 0;

/// Kind of buffers that do not describe their contents.
const NON_DESC: u8 = 1;

/// First message of a client, as far as the server needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello<'a> {
    /// Name of the job. Only processes of the job know it, so it serves as a password.
    pub(super) namespace: &'a [u8],
    pub(super) rank: u32,
    /// Version of the client's library.
    pub(super) version: Version,
    security: &'a [u8],
    encoding: &'a [u8],
    buffers: u8,
    store: &'a [u8],
}

/// Version of a client's library: major, minor, release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub(super) u32, pub(super) u32, pub(super) u32);

/// Reason why a first message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum HelloError {
    /// The message is malformed.
    #[error("the first message is malformed: {0}")]
    Malformed(#[from] DecodeError),
    /// The process is a tool or a launcher.
    #[error("a process of kind {0} is not a rank")]
    NotARank(u8),
}

impl<'a> Hello<'a> {
    /// Decodes a first message. Infos after it are not read.
    ///
    /// The credential is not read either: it contains nothing but a user and a group, which the sender
    /// chooses freely, and which differ between the sides of a container.
    pub(super) fn decode(body: &'a [u8]) -> Result<Hello<'a>, HelloError> {
        let mut rest = body;
        let security = text(&mut rest)?;
        let mut reader = Reader::new(rest);
        let credential = reader.u32()?;
        reader.bytes(usize::try_from(credential).map_err(|_| DecodeError::End)?)?;
        let kind = reader.u8()?;
        if kind != SIMPLE_CLIENT {
            return Err(HelloError::NotARank(kind));
        }
        let mut rest = reader.rest();
        let namespace = text(&mut rest)?;
        let mut reader = Reader::new(rest);
        let rank = reader.u32()?;
        let mut rest = reader.rest();
        let version = Version::parse(text(&mut rest)?);
        let encoding = text(&mut rest)?;
        let mut reader = Reader::new(rest);
        let buffers = reader.u8()?;
        let store = text(&mut reader.rest())?;
        Ok(Hello { namespace, rank, version, security, encoding, buffers, store })
    }

    /// Returns the status for the answer: success if the client does all in the way that
    /// [`super::job_info()`] tells it to. The server knows no other.
    pub(super) fn status(&self) -> Status {
        let is_known = matches!(self.security, b"native" | b"none")
            && self.encoding == b"v3"
            && self.buffers == NON_DESC
            && self.store == b"hash";
        if is_known { Status::SUCCESS } else { Status::NOT_SUPPORTED }
    }
}

impl Version {
    /// Returns the version that a text begins with. Missing numbers are zero.
    fn parse(text: &[u8]) -> Version {
        let text = String::from_utf8_lossy(text);
        let mut numbers = text.split('.').map(|number| {
            let end = number.find(|char: char| !char.is_ascii_digit()).unwrap_or(number.len());
            number.get(..end).and_then(|digits| digits.parse().ok()).unwrap_or(0)
        });
        let mut next = || numbers.next().unwrap_or(0);
        Version(next(), next(), next())
    }
}

/// Reads a text that ends with a zero byte.
fn text<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let end = rest.iter().position(|&byte| byte == 0).ok_or(DecodeError::End)?;
    let (text, after) = rest.split_at_checked(end).ok_or(DecodeError::End)?;
    *rest = after.get(1..).unwrap_or_default();
    Ok(text)
}

/// Returns the answer to a first message: the status and, if that is success, a number that clients do
/// not use.
pub(super) fn answer(status: Status, number: u32) -> Vec<u8> {
    let mut answer = status.0.to_be_bytes().to_vec();
    if status == Status::SUCCESS {
        answer.extend_from_slice(&number.to_be_bytes());
    }
    answer
}

/// Compares two secrets in a time that does not depend on where they differ.
pub(super) fn is_equal(secret: &[u8], other: &[u8]) -> bool {
    let difference = secret.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b));
    secret.len() == other.len() && std::hint::black_box(difference) == 0
}

/// Size in bytes of a header.
const HEADER: usize = 16;

/// Maximum size in bytes of the first body, by which a client says which rank it is. Any process of the
/// host can send one; those of Open MPI have 150 bytes.
const FIRST_MAX: usize = 16 * 1024;

/// Maximum size in bytes of the other bodies. The longest requests name all ranks of a job, with 60 bytes
/// each: 16 MiB are enough for 250,000 ranks.
const BODY_MAX: usize = 16 * 1024 * 1024;

/// Message without its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Tag for the answer.
    pub(super) tag: u32,
    pub(super) body: Vec<u8>,
}

/// Body is longer than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a message of {0} bytes is too long")]
pub(super) struct TooLong(u32);

/// Bytes of a connection that are not a whole message yet.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// Whether the first message is complete.
    is_greeted: bool,
    begun: Vec<u8>,
}

impl Frames {
    /// Takes the next message out of `bytes`. Returns `Ok(None)` and keeps the bytes if it is not
    /// complete yet.
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Frame>, TooLong> {
        self.take(bytes, HEADER);
        let Some((&header, _)) = self.begun.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [_, _, _, _, t0, t1, t2, t3, n0, n1, n2, n3, ..] = header;
        let (length, max) = if self.is_greeted {
            (u32::from_be_bytes([n0, n1, n2, n3]), BODY_MAX)
        } else {
            (u32::from_ne_bytes([n0, n1, n2, n3]), FIRST_MAX)
        };
        let body = usize::try_from(length).unwrap_or(usize::MAX);
        if body > max {
            return Err(TooLong(length));
        }
        self.take(bytes, HEADER + body);
        if self.begun.len() < HEADER + body {
            return Ok(None);
        }
        self.is_greeted = true;
        let mut body = std::mem::take(&mut self.begun);
        body.drain(..HEADER);
        Ok(Some(Frame { tag: u32::from_be_bytes([t0, t1, t2, t3]), body }))
    }

    /// Moves bytes to `begun` until that has this length.
    fn take(&mut self, bytes: &mut &[u8], length: usize) {
        let missing = length.saturating_sub(self.begun.len());
        let (part, rest) = bytes.split_at_checked(missing).unwrap_or((bytes, &[]));
        self.begun.extend_from_slice(part);
        *bytes = rest;
    }
}

/// Returns a message with its header.
pub(super) fn framed(tag: u32, body: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.i32(0).u32(tag).count(body.len()).u32(0).raw(body);
    writer.into_bytes()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a first message, without header, as Open MPI 5.0.11 sends it.
    pub(in crate::pmix) fn hello(namespace: &str, rank: u32) -> Vec<u8> {
        message("native", 8, 0, namespace, rank, "5.0.11", "v3", 1, "hash")
    }

    #[expect(clippy::too_many_arguments, reason = "each is a field of the message")]
    pub(in crate::pmix) fn message(
        security: &str,
        credential: u32,
        kind: u8,
        namespace: &str,
        rank: u32,
        version: &str,
        encoding: &str,
        buffers: u8,
        store: &str,
    ) -> Vec<u8> {
        let credential_bytes = vec![7; usize::try_from(credential).unwrap()];
        let parts: [&[u8]; 14] = [
            security.as_bytes(),
            &[0],
            &credential.to_be_bytes(),
            &credential_bytes,
            &[kind],
            namespace.as_bytes(),
            &[0],
            &rank.to_be_bytes(),
            version.as_bytes(),
            &[0],
            encoding.as_bytes(),
            &[0, buffers],
            store.as_bytes(),
            &[0],
        ];
        parts.concat()
    }

    #[test]
    fn a_first_message_is_decoded() {
        let bytes = hello("job", 5);
        let hello = Hello::decode(&bytes).unwrap();
        assert_eq!((hello.namespace, hello.rank), (&b"job"[..], 5));
        assert_eq!(hello.version, Version(5, 0, 11));
        assert_eq!(hello.status(), Status::SUCCESS);
        let with_infos = [&bytes[..], b"\0\0\0\x01infos"].concat();
        assert_eq!(Hello::decode(&with_infos), Ok(hello));
        let none = message("none", 0, 0, "job", 5, "3.2.5", "v3", 1, "hash");
        assert_eq!(Hello::decode(&none).unwrap().status(), Status::SUCCESS);
        for length in 0..bytes.len() {
            let error = Hello::decode(&bytes[..length]);
            assert_eq!(error, Err(HelloError::Malformed(DecodeError::End)), "{length} bytes");
        }
    }

    #[test]
    fn tools_are_refused() {
        for kind in 1..=20 {
            let bytes = message("native", 8, kind, "job", 0, "5.0.11", "v3", 1, "hash");
            assert_eq!(Hello::decode(&bytes), Err(HelloError::NotARank(kind)));
        }
    }

    #[test]
    fn what_the_server_cannot_do_is_not_supported() {
        let status = |security, encoding, buffers, store| {
            let bytes = message(security, 0, 0, "job", 0, "5.0.11", encoding, buffers, store);
            Hello::decode(&bytes).unwrap().status()
        };
        assert_eq!(status("native", "v3", 1, "hash"), Status::SUCCESS);
        assert_eq!(status("munge", "v3", 1, "hash"), Status::NOT_SUPPORTED);
        assert_eq!(status("native", "v41", 1, "hash"), Status::NOT_SUPPORTED);
        assert_eq!(status("native", "v3", 2, "hash"), Status::NOT_SUPPORTED);
        assert_eq!(status("native", "v3", 1, "shmem2"), Status::NOT_SUPPORTED);
    }

    #[test]
    fn versions_may_have_suffixes() {
        assert_eq!(Version::parse(b"3.2.5"), Version(3, 2, 5));
        assert_eq!(Version::parse(b"6.1.0rc2"), Version(6, 1, 0));
        assert_eq!(Version::parse(b"7a1"), Version(7, 0, 0));
        assert_eq!(Version::parse(b""), Version(0, 0, 0));
        assert!(Version(4, 2, 3) < Version(4, 2, 4) && Version(4, 9, 9) < Version(5, 0, 0));
    }

    #[test]
    fn secrets_are_compared() {
        assert!(is_equal(b"abc", b"abc"));
        assert!(!is_equal(b"abc", b"abd"));
        assert!(!is_equal(b"abc", b"ab"));
        assert!(!is_equal(b"", b"a"));
        assert!(is_equal(b"", b""));
    }

    #[test]
    fn an_answer_has_a_number_unless_it_is_an_error() {
        assert_eq!(answer(Status::SUCCESS, 3), [0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(answer(Status::NOT_SUPPORTED, 3), [255, 255, 255, 209]);
    }

    /// Returns the first message of a client.
    fn first(body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len()).unwrap().to_ne_bytes();
        [&[255; 8][..], &length, &[0; 4], body].concat()
    }

    #[test]
    fn the_first_length_has_the_order_of_the_host_and_the_others_do_not() {
        let bytes = [first(b"hello"), framed(7, b"x"), framed(8, b"")].concat();
        let mut rest = &bytes[..];
        let mut frames = Frames::default();
        assert_eq!(frames.next(&mut rest).unwrap().unwrap().body, b"hello");
        assert_eq!(frames.next(&mut rest), Ok(Some(Frame { tag: 7, body: b"x".to_vec() })));
        assert_eq!(frames.next(&mut rest), Ok(Some(Frame { tag: 8, body: Vec::new() })));
        assert_eq!(frames.next(&mut rest), Ok(None));
    }

    #[test]
    fn bodies_have_limits() {
        let mut frames = Frames::default();
        let mut header = [0; HEADER];
        header[8..12].copy_from_slice(&(16 * 1024 + 1_u32).to_ne_bytes());
        assert_eq!(frames.next(&mut &header[..]), Err(TooLong(16 * 1024 + 1)));
        let mut frames = Frames { is_greeted: true, begun: Vec::new() };
        let max = u32::try_from(BODY_MAX).unwrap();
        header[8..12].copy_from_slice(&max.to_be_bytes());
        assert_eq!(frames.next(&mut &header[..]), Ok(None));
        let mut frames = Frames { is_greeted: true, begun: Vec::new() };
        header[8..12].copy_from_slice(&(max + 1).to_be_bytes());
        assert_eq!(frames.next(&mut &header[..]), Err(TooLong(max + 1)));
    }

    proptest! {
        #[test]
        fn messages_come_in_any_split(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..5),
            splits in prop::collection::vec(1..20_usize, 1..80),
        ) {
            let mut bytes = first(&bodies[0]);
            for (tag, body) in (1..).zip(&bodies[1..]) {
                bytes.extend(framed(tag, body));
            }
            let mut frames = Frames::default();
            let mut found = Vec::new();
            let mut rest = &bytes[..];
            for split in splits.into_iter().chain([bytes.len()]) {
                let (mut part, after) = rest.split_at(split.min(rest.len()));
                rest = after;
                while let Some(frame) = frames.next(&mut part).unwrap() {
                    found.push(frame.body);
                }
                prop_assert!(part.is_empty());
            }
            prop_assert_eq!(found, bodies);
        }
    }
}
