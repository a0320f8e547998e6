//! Links. A link carries packets between this rank and one other rank, the peer.
//!
//! A [`Link`] delivers packets in order and completely. It does not know which packets form a
//! message, nor which receive of the program a message is for. The rank table names the transport
//! of each pair of ranks; the layers above do not depend on the transport.
//!
//! | module | transport |
//! |---|---|
//! | [`shm`] | shared-memory rings, and `process_vm_readv`, between ranks of a node |
//! | [`tcp`] | one socket for each pair of ranks |
//! | `verbs` | one RDMA queue pair (RC) for each pair of ranks |
//! | [`sim`] | a simulated network, for tests |
//! | [`SelfLink`] | a queue, for messages of a rank to itself |
//!
//! [`Header`] is the packet header. [`WakeFd`] is an eventfd that wakes a sleeping thread.
//!
//! A message of up to [`Limits::eager`] bytes is sent as one packet. A longer message is announced
//! by a request to send (RTS). Once the receiver has a buffer for the message, it is transferred by
//! one of three methods: the receiver copies it from the sender's memory ([`Link::fetch`]), the
//! sender writes it into the receiver's memory ([`Link::write`]), or the sender sends it as data
//! packets. The sending of one long message is a *transfer*; its id is in each of its packets.
//! Memory is *exposed* while the peer may read or write it.
//!
//! Byte ranges of lent buffers. A lent buffer is memory of the program that the communicator may
//! access until an operation on it ends.
//!
//! Link for messages of a rank to itself.
//!
//! Packets: a header of 16 bytes, then a payload.
//!
//! A short message is one [`Eager`](PacketKind::Eager) packet. A long message is sent in
//! these steps, in which all packets have the same transfer id:
//!
//! 1. The sender sends [`Rts`](PacketKind::Rts) with the length and, if the receiver can fetch, the
//!    address of the message.
//! 2. Once the receiver's program has called a matching receive, the receiver either fetches the
//!    bytes and sends [`Fin`](PacketKind::Fin), or sends [`Cts`](PacketKind::Cts), with an address
//!    of its own if the sender can write.
//! 3. After a CTS the sender writes the bytes and sends [`Written`](PacketKind::Written), or sends
//!    them as [`Data`](PacketKind::Data) packets.
//!
//! [`Withdrawn`](PacketKind::Withdrawn) cancels a message after its RTS.
//!
//! [`Rts`] and [`RemoteBuf`] are payloads of control packets.
//!
//! Eventfd that wakes a thread from its sleep on file descriptors.

pub(crate) mod shm;
pub(crate) mod sim;
pub(crate) mod tcp;
#[cfg(feature = "rdma")]
pub(crate) mod verbs;

use crate::types::LinkError;
use nix::sys::eventfd::{EfdFlags, EventFd};
use rlaunch_lock::{BufferId, BufferTable};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Default result of [`Link::wake_latency`]: time in which one system call wakes a sleeping rank,
/// approximately.
const WAKE_LATENCY: Duration = Duration::from_micros(50);

/// Connection to one peer. None of the methods blocks.
pub(crate) trait Link: Send {
    /// Returns the message sizes at which this link changes its transfer method, and the length of
    /// the longest packet.
    fn limits(&self) -> Limits;

    /// Returns the approximate time from the arrival of data until a rank that sleeps on this link
    /// continues.
    fn wake_latency(&self) -> Duration {
        WAKE_LATENCY
    }

    /// Sends a packet, or the rest of a packet that an earlier call has sent in part. Returns
    /// `true` when the caller may change the payload, because the link has copied or written all of
    /// it; `false` if there is no room for the rest yet.
    ///
    /// After `false` the caller repeats the call with the same packet, and sends no other packet
    /// before. The payload has at most [`Limits::packet`] bytes.
    fn send(&mut self, header: Header, payload: &[u8]) -> Result<bool, LinkError>;

    /// Sends a packet as [`Link::send`] does, but may leave a sleeping peer asleep until
    /// [`Link::wake_peer`]. After `false` the caller continues with [`Link::send`].
    fn publish(&mut self, header: Header, payload: &[u8]) -> Result<bool, LinkError> {
        self.send(header, payload)
    }

    /// Wakes the peer if it sleeps. Called after [`Link::publish`], before this rank sleeps or
    /// returns to its program.
    fn wake_peer(&mut self) {}

    /// Passes packets that have arrived to `sink`, a limited number per call so that other links
    /// get their turn. Returns whether any data has arrived. If the peer has ended without
    /// [`PacketKind::Bye`], fails with [`LinkError::Gone`] after all
    /// packets of the peer were passed on.
    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError>;

    /// Returns the address from which the peer can fetch `message`, or `None` if the peer cannot
    /// fetch. The caller must not change the message before the peer has fetched it, or before this
    /// rank has [revoked](Link::revoke) the address.
    fn expose_read(&mut self, message: &[u8]) -> Option<u64> {
        let _ = message;
        None
    }

    /// Copies bytes from the peer's memory into all of `into`. `address` is an address that the
    /// peer's [`Link::expose_read`] returned, or lies inside that message. Returns `false` if the
    /// system forbids access; the peer then has to [send](Link::send) the bytes.
    fn fetch(&mut self, address: u64, into: &mut [u8]) -> Result<bool, LinkError> {
        let _ = (address, into);
        Ok(false)
    }

    /// Registers a whole lent buffer with this link's device. Called before any part of the buffer
    /// is sent or received.
    fn register(&mut self, buffers: &BufferTable, whole: LocalSlice) {
        let _ = (buffers, whole);
    }

    /// Records that the memory [exposed](Link::expose_read) at this address is about to change, so
    /// that the peer can detect that it fetched the memory too late ([`Link::has_revoked`]). Called
    /// once before each [`PacketKind::Withdrawn`] is sent.
    fn revoke(&mut self, address: u64) {
        let _ = address;
    }

    /// Returns whether the peer has revoked more exposures than `known`, the number that the peer
    /// has reported by packets. Called after a [fetch](Link::fetch): `false` means that the fetched
    /// bytes had not changed.
    fn has_revoked(&mut self, known: u32) -> bool {
        let _ = known;
        false
    }

    /// Allows the peer to write to the memory `into`. Returns the address and key that the peer
    /// needs for writing.
    fn expose_write(&mut self, buffers: &BufferTable, into: LocalSlice) -> Exposure {
        let _ = (buffers, into);
        Exposure::Refused
    }

    /// Writes a whole message into memory that the peer has exposed, without a copy. Packets
    /// [sent](Link::send) later arrive after the message. The link calls [`Sink::written`] with
    /// `transfer` when the memory of the message may change.
    ///
    /// After [`WriteOutcome::NoRoom`] the caller repeats the call with the same message, and sends
    /// no packet before.
    fn write(
        &mut self,
        buffers: &BufferTable,
        from: LocalSlice,
        to: RemoteBuf,
        transfer: u32,
    ) -> Result<WriteOutcome, LinkError> {
        let _ = (buffers, from, to, transfer);
        Ok(WriteOutcome::Refused)
    }

    /// Returns whether this link uses RDMA. If the launcher reports that the RDMA path between two
    /// nodes is down, such links between these nodes are lost.
    fn is_rdma(&self) -> bool {
        false
    }

    /// Returns whether everything that was sent reaches the peer even if this process ends now.
    fn is_delivered(&self) -> bool {
        true
    }

    /// Sends the peer a probe if nothing was received for a while, so that a crash of the peer's
    /// host is detected. Called each time before this rank sleeps while it waits for the peer.
    fn probe_peer(&mut self) {}

    /// Prepares this rank to sleep on this link. The returned file descriptor becomes ready when a
    /// packet arrives or, if `wants_room`, when there is room to send.
    fn arm(&mut self, wants_room: bool) -> Result<Armed<'_>, LinkError>;

    /// Reverses [`Link::arm`], whether or not the rank has slept.
    fn disarm(&mut self) {}

    /// Passes every descriptor that [`Link::arm`] has ever returned to `visit`, which stops
    /// watching it. Called once the peer has left and sends nothing more.
    fn visit_fds(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        let _ = visit;
    }

    /// Reports that the peer's process has exited successfully, as the launcher observed. A
    /// connected link ignores the report, because it receives the peer's last packets itself.
    fn peer_has_left(&mut self) {}
}

/// Size limits of a link, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Longest message that is sent eagerly, as one packet. Longer messages are announced by an
    /// RTS.
    pub(crate) eager: usize,
    /// Longest payload of one packet: at least `eager`, and a multiple of 64.
    pub(crate) packet: usize,
    /// Shortest message that the receiver fetches; `usize::MAX` if the link does not support
    /// fetches.
    pub(crate) fetch: usize,
    /// Shortest message for which the receiver exposes memory to the sender's write; `usize::MAX`
    /// if the link does not support writes.
    pub(crate) write: usize,
    /// Whether each poll for packets is a system call.
    pub(crate) poll_is_syscall: bool,
}

/// Properties that a link will have once it is connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkHint {
    pub(crate) limits: Limits,
    /// Value that [`Link::wake_latency`] will return.
    pub(crate) wake_latency: Duration,
    pub(crate) is_rdma: bool,
}

impl LinkHint {
    pub(crate) const TCP: LinkHint =
        LinkHint { limits: tcp::TcpLink::LIMITS, wake_latency: WAKE_LATENCY, is_rdma: false };
}

/// Memory of the peer to which this rank writes a message. The link defines the meaning of both
/// numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteBuf {
    pub(crate) address: u64,
    pub(crate) key: u64,
}

/// Outcome of exposing memory to a peer's writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exposure {
    /// The peer may write to this address.
    At(RemoteBuf),
    /// Registration with the device is still running; call again.
    Pending,
    /// The peer cannot write, and has to [send](Link::send) the bytes.
    Refused,
}

/// Outcome of an attempt to write a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// The whole message was posted to the device. [`Sink::written`] will report its completion.
    Posted,
    /// Part of the message could not be posted yet; call again.
    NoRoom,
    /// Nothing was posted, because the memory cannot be registered with the device.
    Refused,
}

/// Result of [`Link::arm`]: whether the rank may sleep, and on which descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Armed<'l> {
    /// The rank must not sleep, because a packet has arrived or there is room to send.
    Ready,
    /// The rank may sleep on this descriptor.
    Watch(WatchedFd<'l>),
    /// The rank may sleep, but no descriptor reports this link's packets.
    NoFd,
}

/// Descriptor on which a rank sleeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchedFd<'l> {
    /// Descriptor that becomes readable when a packet arrives.
    pub(crate) fd: BorrowedFd<'l>,
    /// Whether the rank also wakes up when the descriptor is writable.
    pub(crate) writable: bool,
    /// Descriptor that an earlier [`Link::arm`] may have returned, and that `fd` replaces. The
    /// caller stops watching it.
    pub(crate) instead_of: Option<BorrowedFd<'l>>,
}

/// Function that copies the next bytes of a payload to the start of the given memory, and returns
/// the number of bytes copied.
pub(crate) type Fill<'f> = dyn FnMut(&mut [u8]) -> io::Result<usize> + 'f;

/// Receiver of the packets that arrive over links.
pub(crate) trait Sink {
    /// Takes a packet with its whole payload.
    fn packet(&mut self, header: Header, payload: &[u8]) -> Result<(), LinkError>;

    /// Takes the next part of a packet whose payload arrives in parts. Calls `fill` with the memory
    /// in which the payload continues from byte `offset` on, and returns the number of bytes that
    /// `fill` has copied there.
    ///
    /// The packet is complete when `offset` plus this number equals the payload's length. Until
    /// then the link delivers nothing else.
    fn part(
        &mut self,
        header: Header,
        offset: usize,
        fill: &mut Fill<'_>,
    ) -> Result<usize, LinkError>;

    /// Reports that the [`Link::write`] with this transfer id has completed, so that the program
    /// may change the memory of the message.
    fn written(&mut self, transfer: u32) -> Result<(), LinkError> {
        let _ = transfer;
        Err(LinkError::Protocol("completion of a write that was never posted"))
    }

    /// Returns the table of lent buffers. Simulated links use the table to write to memory as a
    /// device would.
    fn buffers(&self) -> Option<&BufferTable> {
        None
    }
}

/// Byte range of a lent buffer, to send from or to receive into.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalSlice {
    pub(crate) buffer: BufferId,
    pub(crate) start: usize,
    pub(crate) length: usize,
}

impl LocalSlice {
    pub(crate) fn all(buffer: BufferId, length: usize) -> LocalSlice {
        LocalSlice { buffer, start: 0, length }
    }

    /// Returns the part of this slice that begins `offset` bytes after its start and is `length`
    /// bytes long. The slice must contain the whole part.
    pub(crate) fn part(self, offset: usize, length: usize) -> LocalSlice {
        LocalSlice { start: self.start + offset, length, ..self }
    }

    pub(crate) fn range(self) -> Range<usize> {
        self.start..self.start + self.length
    }

    pub(crate) fn read<R>(self, buffers: &BufferTable, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
        buffers.read(self.buffer, self.range(), f)
    }

    pub(crate) fn write<R>(
        self,
        buffers: &BufferTable,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Option<R> {
        buffers.write(self.buffer, self.range(), f)
    }
}

/// Link of a rank to itself: an unbounded queue of packets.
#[derive(Debug, Default)]
pub(crate) struct SelfLink {
    packets: VecDeque<(Header, Vec<u8>)>,
}

impl Link for SelfLink {
    fn limits(&self) -> Limits {
        // All messages are eager, because a rank that is sending cannot answer its own RTS.
        let all = u32::MAX as usize & !63;
        Limits { eager: all, packet: all, fetch: all, write: all, poll_is_syscall: false }
    }

    fn send(&mut self, header: Header, payload: &[u8]) -> Result<bool, LinkError> {
        self.packets.push_back((header, payload.to_vec()));
        Ok(true)
    }

    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        let Some((header, payload)) = self.packets.pop_front() else { return Ok(false) };
        sink.packet(header, &payload)?;
        Ok(true)
    }

    fn arm(&mut self, _: bool) -> Result<Armed<'_>, LinkError> {
        Ok(Armed::NoFd)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PacketKind {
    /// Complete short message.
    Eager = 1,
    /// Request to send, which announces a long message. The payload is an encoded [`Rts`]: length
    /// and address of the message.
    Rts = 2,
    /// Clear to send: the receiver has a buffer for the message of this transfer. The payload has
    /// the address of the buffer, if the link supports writes.
    Cts = 3,
    /// Next bytes of the message of this transfer.
    Data = 4,
    /// Report that the receiver has fetched the message of this transfer; the sender may reuse its
    /// memory.
    Fin = 5,
    /// Goodbye: the sender sends nothing more on this link.
    Bye = 6,
    /// Report that the message of this transfer was written to the address in the CTS.
    Written = 7,
    /// Report that the sender cancelled the message of this transfer. The receiver answers with
    /// [`PacketKind::Fin`] unless it has sent one for this transfer already.
    Withdrawn = 8,
    /// Report that a rank has cancelled all collectives of the communicator from the number in
    /// [`Header::tag`] on. The payload tells which rank, in which collective, and why.
    OutOfStep = 9,
}

/// Length of [`Header::context`] in bits.
pub(crate) const CONTEXT: u32 = 28;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: PacketKind,
    /// Context id, [`CONTEXT`] bits long. It identifies the communicator, and tells whether the
    /// packet belongs to a collective.
    pub(crate) context: u32,
    /// Tag of the message. In a collective, the number of the collective.
    pub(crate) tag: u32,
    /// Transfer id that the message's sender chose; 0 for eager messages.
    pub(crate) transfer: u32,
    /// Length of the payload in bytes.
    pub(crate) length: u32,
}

impl Header {
    /// Size of a header in bytes.
    pub(crate) const SIZE: usize = 16;

    /// Encodes the header as two words; the first is never 0.
    #[inline]
    pub(crate) fn to_words(self) -> [u64; 2] {
        let first = u64::from(self.length)
            | u64::from(self.kind as u8) << 32
            | u64::from(self.context) << (u64::BITS - CONTEXT);
        [first, u64::from(self.tag) | u64::from(self.transfer) << 32]
    }

    /// Encodes the header in the byte order of connections.
    #[inline]
    pub(crate) fn to_bytes(self) -> [u8; Header::SIZE] {
        let [first, second] = self.to_words();
        (u128::from(first) | u128::from(second) << 64).to_le_bytes()
    }

    /// Decodes what [`Header::to_bytes`] returns. Fails if the packet kind is unknown.
    #[inline]
    pub(crate) fn from_bytes(bytes: &[u8; Header::SIZE]) -> Result<Header, LinkError> {
        let both = u128::from_le_bytes(*bytes);
        Header::from_words([both as u64, (both >> 64) as u64])
    }

    /// Decodes a header. Fails if the packet kind is unknown.
    #[inline]
    pub(crate) fn from_words(words: [u64; 2]) -> Result<Header, LinkError> {
        let kind = match (words[0] >> 32) as u8 & 0xf {
            1 => PacketKind::Eager,
            2 => PacketKind::Rts,
            3 => PacketKind::Cts,
            4 => PacketKind::Data,
            5 => PacketKind::Fin,
            6 => PacketKind::Bye,
            7 => PacketKind::Written,
            8 => PacketKind::Withdrawn,
            9 => PacketKind::OutOfStep,
            other => return Err(LinkError::UnknownPacket(other)),
        };
        Ok(Header {
            kind,
            context: (words[0] >> (u64::BITS - CONTEXT)) as u32,
            tag: words[1] as u32,
            transfer: (words[1] >> 32) as u32,
            length: words[0] as u32,
        })
    }
}

/// Descriptor that is readable from the first [`wake`](WakeFd::wake) until
/// [`clear`](WakeFd::clear).
#[derive(Debug)]
pub(crate) struct WakeFd(EventFd);

impl WakeFd {
    pub(crate) fn new() -> io::Result<WakeFd> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(WakeFd(EventFd::from_flags(flags)?))
    }

    pub(crate) fn wake(&self) {
        // Fails only if the 64-bit counter would overflow; even then the descriptor is readable.
        let _ = self.0.write(1);
    }

    /// Makes the descriptor unreadable, and returns the number of wake-ups since the last call.
    pub(crate) fn clear(&self) -> u64 {
        // Fails if there was no wake-up, or if another thread has cleared it.
        self.0.read().unwrap_or(0)
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Payload of [`PacketKind::Rts`]: the length of the message in bytes, and the address to fetch it
/// from, or 0 if the peer cannot fetch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rts {
    pub(crate) length: u64,
    pub(crate) address: u64,
}

impl Rts {
    pub(crate) const SIZE: usize = 16;

    pub(crate) fn encode(self) -> [u8; Rts::SIZE] {
        encode_words(self.length, self.address)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Rts, LinkError> {
        let [length, address] = decode_words(bytes, "malformed RTS")?;
        Ok(Rts { length, address })
    }
}

impl RemoteBuf {
    pub(crate) const SIZE: usize = 16;

    pub(crate) fn encode(self) -> [u8; RemoteBuf::SIZE] {
        encode_words(self.address, self.key)
    }

    /// Decodes the payload of [`PacketKind::Cts`]: memory to write the message to. An empty payload
    /// gives `None`: the message shall be sent as packets.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<RemoteBuf>, LinkError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let [address, key] = decode_words(bytes, "malformed CTS")?;
        Ok(Some(RemoteBuf { address, key }))
    }
}

/// Encodes two words as the payload of a control packet.
pub(crate) fn encode_words(first: u64, second: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&second.to_le_bytes());
    bytes
}

/// Decodes the two words of a control packet. Fails with `what` if the payload has another length.
pub(crate) fn decode_words(bytes: &[u8], what: &'static str) -> Result<[u64; 2], LinkError> {
    let ([first, second], []) = bytes.as_chunks::<8>() else {
        return Err(LinkError::Protocol(what));
    };
    Ok([u64::from_le_bytes(*first), u64::from_le_bytes(*second)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    #[test]
    fn it_is_readable_until_it_is_heard() {
        let wake = WakeFd::new().unwrap();
        let is_readable = || {
            let mut fds = [PollFd::new(wake.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
        };
        assert_eq!(wake.clear(), 0);
        assert!(!is_readable());
        wake.wake();
        wake.wake();
        assert!(is_readable());
        assert_eq!(wake.clear(), 2);
        assert!(!is_readable(), "however often it was woken");
    }
}
