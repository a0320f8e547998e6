//! Messages as encrypted records.
//!
//! ```text
//! length of the sealed part: u32    length of the plain part: u32    (little endian, authenticated)
//! sealed part: frame of `rlaunch_copy::wire`, and a tag of 16 bytes
//! plain part: a chunk, with `--plain` only
//! ```
//!
//! Nonces are the numbers of records, so a record that is lost, repeated or in another's place does
//! not open. A chunk of the plain part is not authenticated here: whoever receives it compares its
//! hash with that of the manifest, which was.

use super::socket::{Socket, is_tick};
use super::{Handle, LinkError, lock};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use ring::error::Unspecified;
use rlaunch_copy::wire::{Lengths, MAX_HEAD, PREFIX};
use rlaunch_copy::{CHUNK, Message, WireError};
use std::io::{IoSlice, Read, Write};
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Length of the lengths before a record, in bytes.
const LENGTHS: usize = 8;
const TAG: usize = 16;
/// Maximum length of a chunk, in bytes.
const MAX_CHUNK: usize = CHUNK as usize;
/// Maximum length of a sealed part, in bytes.
const MAX_SEALED: usize = PREFIX + MAX_HEAD + MAX_CHUNK + TAG;
/// Maximum number of buffers that are kept for later records.
const KEPT: usize = 64;

/// Key of one direction of a stream, and the number of its records so far.
#[derive(Debug)]
pub(super) struct Cipher {
    key: LessSafeKey,
    records: u64,
}

impl Cipher {
    pub(super) fn new(key: &[u8; 32]) -> Result<Cipher, Unspecified> {
        let key = UnboundKey::new(&AES_256_GCM, key)?;
        Ok(Cipher { key: LessSafeKey::new(key), records: 0 })
    }

    /// Returns a nonce that this key has never had.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&self.records.to_le_bytes());
        self.records += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    fn seal(&mut self, lengths: [u8; LENGTHS], bytes: &mut [u8]) -> Option<Tag> {
        let nonce = self.nonce();
        self.key.seal_in_place_separate_tag(nonce, Aad::from(lengths), bytes).ok()
    }

    /// Decrypts a sealed part in its place. Returns the content, without the tag.
    fn open<'a>(&mut self, lengths: [u8; LENGTHS], bytes: &'a mut [u8]) -> Option<&'a mut [u8]> {
        let nonce = self.nonce();
        self.key.open_in_place(nonce, Aad::from(lengths), bytes).ok()
    }
}

/// Sending half of a stream.
#[derive(Debug)]
pub struct Sender {
    socket: Arc<Socket>,
    cipher: Cipher,
    link: Handle,
    is_plain: bool,
    buffer: Vec<u8>,
    waited: Duration,
}

impl Sender {
    pub(super) fn new(socket: Arc<Socket>, cipher: Cipher, link: Handle, is_plain: bool) -> Sender {
        let (buffer, waited) = (Vec::new(), Duration::ZERO);
        Sender { socket, cipher, link, is_plain, buffer, waited }
    }

    /// Sends a message, and its payload if it is a chunk. Waits as long as the neighbour is alive.
    pub fn send(&mut self, message: &Message, payload: &[u8]) -> Result<(), LinkError> {
        let wire = |source| LinkError::Wire { host: self.link.host().to_owned(), source };
        let head = message.encode(payload.len()).map_err(wire)?;
        let (sealed, plain): (&[u8], &[u8]) =
            if self.is_plain { (&[], payload) } else { (payload, &[]) };
        let lengths = encode_lengths(head.len() + sealed.len() + TAG, plain.len());
        self.buffer.clear();
        self.buffer.extend_from_slice(&lengths);
        self.buffer.extend_from_slice(&head);
        self.buffer.extend_from_slice(sealed);
        let tag = self.cipher.seal(lengths, &mut self.buffer[LENGTHS..]);
        let tag = tag.ok_or_else(|| wire(WireError::Payload(payload.len())))?;
        self.buffer.extend_from_slice(tag.as_ref());
        let begin = Instant::now();
        let sent = write_all(&self.socket, &self.link, &self.buffer, plain);
        self.waited += begin.elapsed();
        sent
    }

    /// Returns for how long the socket took no bytes since this was last asked.
    pub fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }
}

fn encode_lengths(sealed: usize, plain: usize) -> [u8; LENGTHS] {
    let mut lengths = [0; LENGTHS];
    // Both are below 2 MiB.
    lengths[..4].copy_from_slice(&(sealed as u32).to_le_bytes());
    lengths[4..].copy_from_slice(&(plain as u32).to_le_bytes());
    lengths
}

fn decode_lengths(lengths: [u8; LENGTHS]) -> (usize, usize) {
    let [a, b, c, d, e, f, g, h] = lengths;
    (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes([e, f, g, h]) as usize)
}

fn write_all(
    mut socket: &Socket,
    link: &Handle,
    first: &[u8],
    second: &[u8],
) -> Result<(), LinkError> {
    let mut slices = [IoSlice::new(first), IoSlice::new(second)];
    let mut rest = &mut slices[..];
    // Whether the kernel has no room for more.
    let mut is_full = false;
    while !rest.is_empty() {
        let left: usize = rest.iter().map(|slice| slice.len()).sum();
        match socket.write_vectored(rest) {
            Ok(count) => {
                if is_full {
                    // Room comes only of what the neighbour has taken. Before that, the kernel takes bytes for a
                    // neighbour that has gone as well.
                    link.heard();
                }
                is_full |= count < left;
                IoSlice::advance_slices(&mut rest, count);
            }
            Err(error) if is_tick(&error) => {
                is_full = true;
                link.check()?;
            }
            Err(error) => return Err(link.failed("send to", error)),
        }
    }
    Ok(())
}

/// Receiving half of a stream.
#[derive(Debug)]
pub struct Receiver {
    socket: Arc<Socket>,
    cipher: Cipher,
    link: Handle,
    is_plain: bool,
    pool: Arc<Pool>,
    waited: Duration,
}

/// Message with its payload.
#[derive(Debug)]
pub struct Incoming {
    pub message: Message,
    /// Empty unless the message is a chunk.
    pub payload: Payload,
}

impl Receiver {
    pub(super) fn new(
        socket: Arc<Socket>,
        cipher: Cipher,
        link: Handle,
        is_plain: bool,
        pool: Arc<Pool>,
    ) -> Receiver {
        Receiver { socket, cipher, link, is_plain, pool, waited: Duration::ZERO }
    }

    /// Waits for the next message. Nothing is right after an error.
    pub fn receive(&mut self) -> Result<Incoming, LinkError> {
        let mut lengths = [0; LENGTHS];
        self.fill(&mut lengths)?;
        let (sealed, plain) = decode_lengths(lengths);
        let may_be = plain <= if self.is_plain { MAX_CHUNK } else { 0 };
        if !may_be || !(PREFIX + TAG..=MAX_SEALED).contains(&sealed) {
            return Err(self.altered());
        }
        let mut buffer = self.pool.take(sealed + plain);
        self.fill(&mut buffer)?;
        let Some(frame) = self.cipher.open(lengths, &mut buffer[..sealed]) else {
            return Err(self.altered());
        };
        let read = read_frame(frame, sealed, plain);
        self.link.heard();
        let wire = |source| LinkError::Wire { host: self.link.host().to_owned(), source };
        let (message, range) = read.map_err(wire)?;
        let payload = Payload { buffer, range, pool: self.pool.clone() };
        Ok(Incoming { message, payload })
    }

    /// Returns for how long nothing came since this was last asked.
    pub fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    fn altered(&self) -> LinkError {
        LinkError::Altered { host: self.link.host().to_owned() }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), LinkError> {
        let begin = Instant::now();
        let filled = read_all(&self.socket, &self.link, bytes);
        self.waited += begin.elapsed();
        filled
    }
}

fn read_all(mut socket: &Socket, link: &Handle, bytes: &mut [u8]) -> Result<(), LinkError> {
    let mut filled = 0;
    while filled < bytes.len() {
        match socket.read(&mut bytes[filled..]) {
            Ok(0) => {
                return Err(link.failed("receive from", std::io::ErrorKind::UnexpectedEof.into()));
            }
            Ok(count) => {
                filled += count;
                // A chunk may take longer than a silence on a slow wire.
                link.heard();
            }
            Err(error) if is_tick(&error) => link.check()?,
            Err(error) => return Err(link.failed("receive from", error)),
        }
    }
    Ok(())
}

/// Reads the frame of a record whose sealed part had `sealed` bytes. Returns where in the record its
/// payload is.
fn read_frame(
    frame: &[u8],
    sealed: usize,
    plain: usize,
) -> Result<(Message, Range<usize>), WireError> {
    let unreadable = || WireError::Unreadable(frame.len());
    let prefix = frame.first_chunk::<PREFIX>().ok_or_else(unreadable)?;
    let lengths = Lengths::decode(*prefix)?;
    let payload_at = PREFIX + lengths.head;
    let head = frame.get(PREFIX..payload_at).ok_or_else(unreadable)?;
    let inside = frame.len() - payload_at;
    let is_whole = match (inside, plain) {
        (0, plain) => plain == lengths.payload,
        (inside, 0) => inside == lengths.payload,
        _ => false,
    };
    if !is_whole {
        return Err(unreadable());
    }
    let message = Message::decode(head, lengths.payload)?;
    let at = if plain > 0 { sealed } else { payload_at };
    Ok((message, at..at + lengths.payload))
}

/// Buffers of chunks that nobody needs any more, for the next ones: the kernel need not clear new memory for each.
#[derive(Debug, Default)]
pub(super) struct Pool(Mutex<Vec<Vec<u8>>>);

impl Pool {
    fn take(&self, length: usize) -> Vec<u8> {
        let kept = if length > MAX_CHUNK / 2 { lock(&self.0).pop() } else { None };
        let mut buffer = kept.unwrap_or_default();
        buffer.resize(length, 0);
        buffer
    }

    fn give_back(&self, buffer: Vec<u8>) {
        let mut kept = lock(&self.0);
        if buffer.capacity() > MAX_CHUNK / 2 && kept.len() < KEPT {
            kept.push(buffer);
        }
    }
}

/// Bytes of a chunk.
#[derive(Debug)]
pub struct Payload {
    buffer: Vec<u8>,
    range: Range<usize>,
    pool: Arc<Pool>,
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CHECK, Shared};
    use super::*;
    use rlaunch_bootstrap::deadline::Deadline;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    /// Makes a link to a neighbour that is lost after a time of `silence`, and the neighbour's end.
    fn linked(silence: Duration) -> (Handle, Arc<Socket>, UnixStream) {
        let (own, its) = UnixStream::pair().unwrap();
        let socket = Arc::new(Socket::unix(own).unwrap());
        let deadline = Deadline::after(silence, Instant::now()).checked_every(CHECK);
        let link = Handle(Arc::new(Shared {
            host: "b".into(),
            silence: Mutex::new(deadline),
            ended: AtomicBool::new(false),
            sockets: vec![Arc::clone(&socket)],
        }));
        (link, socket, its)
    }

    #[test]
    fn what_takes_longer_than_a_silence_to_send_is_sent() {
        let silence = Duration::from_secs(3);
        let (link, socket, mut its) = linked(silence);
        let bytes = vec![7; 1700 << 10];
        let length = bytes.len();
        let reading = thread::spawn(move || {
            let (mut taken, mut buffer) = (0, [0; 16 << 10]);
            while taken < length {
                // So slow that writes wait, and without a word. The kernel has room again only once three quarters of
                // its buffer are taken, after some 0.4 s.
                thread::sleep(Duration::from_millis(40));
                taken += its.read(&mut buffer).unwrap();
            }
        });
        let begin = Instant::now();
        write_all(&socket, &link, &bytes[..100], &bytes[100..]).unwrap();
        assert!(begin.elapsed() > silence, "{:?}", begin.elapsed());
        // Whoever waits for the neighbour's answer has the full time.
        link.check().unwrap();
        reading.join().unwrap();
    }

    #[test]
    fn a_neighbour_that_takes_nothing_is_lost() {
        let (link, socket, _its) = linked(Duration::from_secs(1));
        let error = write_all(&socket, &link, &vec![7; 4 << 20], &[]).unwrap_err();
        assert!(matches!(error, LinkError::Silent { .. }), "{error}");
    }

    #[test]
    fn bytes_that_the_kernel_has_room_for_are_no_sign_of_the_neighbour() {
        let (link, socket, _its) = linked(Duration::from_secs(1));
        let due = lock(&link.0.silence).due();
        write_all(&socket, &link, b"beat", &[]).unwrap();
        assert_eq!(lock(&link.0.silence).due(), due);
    }
}
