//! Links: transports that carry packets from this rank to one other rank.
//!
//! A [`Link`] delivers packets in order and completely, and knows nothing of messages or matching.
//! The rank table names the transport of each pair; the layers above are the same for all of them.
//!
//! | module | transport |
//! |---|---|
//! | [`shm`] | shared-memory rings and `process_vm_readv` between ranks of a node |
//! | [`tcp`] | one socket for each pair of ranks |
//! | `verbs` | one RDMA queue pair (RC) for each pair of ranks |
//! | [`sim`] | a simulated network, for tests |
//! | [`SelfLink`] | a queue, for messages of a rank to itself |
//!
//! [`packet`] has the packet header, [`wake_fd`] an eventfd that wakes a sleeping thread.
//!
//! A message of up to [`Limits::eager`] bytes is sent as one packet. A longer one is announced by a
//! request to send (RTS), and moved once the receiver has a buffer for it, by one of three methods:
//! the receiver fetches it from the sender's memory ([`Link::fetch`]), the sender writes it into
//! the receiver's ([`Link::write`]), or the sender sends it as data packets.

mod local_slice;
pub(crate) mod packet;
mod self_link;
pub(crate) mod shm;
pub(crate) mod sim;
pub(crate) mod tcp;
#[cfg(feature = "rdma")]
pub(crate) mod verbs;
pub(crate) mod wake_fd;

pub(crate) use local_slice::LocalSlice;
pub(crate) use self_link::SelfLink;

use crate::transport::packet::Header;
use crate::types::error::LinkError;
use rlaunch_lock::BufferTable;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Default of [`Link::wake_latency`], for transports whose wake-up takes one system call.
const WAKE_LATENCY: Duration = Duration::from_micros(50);

/// Connection to one other rank. No method blocks.
pub(crate) trait Link: Send {
    /// Returns the sizes that this link works best with.
    fn limits(&self) -> Limits;

    /// Returns about how long a sleeping rank takes to continue after data has arrived.
    fn wake_latency(&self) -> Duration {
        WAKE_LATENCY
    }

    /// Sends a packet, or continues one that was sent in part. Returns `true` once the whole
    /// payload has been copied or written, so that the caller may change it; `false` if there is no
    /// room at present.
    ///
    /// After `false` the caller repeats the call with the same packet, and sends no other packet
    /// before it. The payload has at most [`Limits::packet`] bytes.
    fn send(&mut self, header: Header, payload: &[u8]) -> Result<bool, LinkError>;

    /// Passes packets that have arrived to the sink, a limited number so that other links get their
    /// turn. Returns whether any data arrived. Fails with [`LinkError::Gone`] if the peer ended
    /// without [`PacketKind::Bye`](packet::PacketKind::Bye), after all that it had sent was
    /// delivered.
    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError>;

    /// Returns the address from which the peer can fetch `message`, or `None` if it cannot. The
    /// caller keeps the memory unchanged until the transfer is finished or [revoked](Link::revoke).
    fn expose_read(&mut self, message: &[u8]) -> Option<u64> {
        let _ = message;
        None
    }

    /// Copies `into.len()` bytes from `address` in the peer's memory, which the peer's
    /// [`Link::expose_read`] returned. Returns `false` if the system forbids access; the peer then
    /// has to [send](Link::send) the bytes.
    fn fetch(&mut self, address: u64, into: &mut [u8]) -> Result<bool, LinkError> {
        let _ = (address, into);
        Ok(false)
    }

    /// Registers a whole buffer with this link's device, before any of it is sent or received.
    fn register(&mut self, buffers: &BufferTable, whole: LocalSlice) {
        let _ = (buffers, whole);
    }

    /// Marks the memory that was [exposed](Link::expose_read) at this address as about to change,
    /// so that the peer can detect a fetch that came too late ([`Link::has_revoked`]). Called once
    /// before each [`PacketKind::Withdrawn`](packet::PacketKind::Withdrawn) is sent.
    fn revoke(&mut self, address: u64) {
        let _ = address;
    }

    /// Returns whether the peer has revoked more than `known` exposures. Called after a
    /// [fetch](Link::fetch): on `false` the fetched bytes are those that were exposed.
    fn has_revoked(&mut self, known: u32) -> bool {
        let _ = known;
        false
    }

    /// Allows the peer to write to this memory, and returns the address and key that it needs.
    fn expose_write(&mut self, buffers: &BufferTable, into: LocalSlice) -> Exposure {
        let _ = (buffers, into);
        Exposure::Refused
    }

    /// Writes a whole message into memory that the peer has exposed, without a copy. Packets
    /// [sent](Link::send) later arrive after the message. [`Sink::written`] reports, by `transfer`,
    /// when the source memory may change.
    ///
    /// After [`WriteOutcome::NoRoom`] the caller repeats the call with the same message, and sends
    /// no packet before it.
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

    /// Returns whether the link uses the RDMA path between two nodes, which the launcher may watch.
    fn is_rdma(&self) -> bool {
        false
    }

    /// Returns whether everything sent reaches the peer even if this process ends immediately.
    fn is_delivered(&self) -> bool {
        true
    }

    /// Sends the peer an occasional probe, so that the end of its host is detected. Called before
    /// this rank sleeps while it waits for the peer.
    fn probe_peer(&mut self) {}

    /// Prepares for sleep: returns the file descriptor that becomes ready when a packet arrives or,
    /// if `wants_room`, when there is room to send.
    fn arm(&mut self, wants_room: bool) -> Result<Armed<'_>, LinkError>;

    /// Ends what [`Link::arm`] began, whether or not the rank has slept.
    fn disarm(&mut self) {}

    /// Passes every descriptor that [`Link::arm`] has ever returned to `unwatches`. Called when the
    /// peer has left and nothing more is expected from it.
    fn unwatch(&self, unwatches: &mut dyn FnMut(BorrowedFd<'_>)) {
        let _ = unwatches;
    }

    /// Reports that the peer's process has exited successfully, as the launcher observed. A
    /// connected link ignores it, because it receives the peer's last packets itself.
    fn peer_has_left(&mut self) {}
}

/// Size limits of a link, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Longest message that is sent eagerly. A longer one is announced by an RTS.
    pub(crate) eager: usize,
    /// Longest payload of one packet: at least `eager`, and a multiple of 64.
    pub(crate) packet: usize,
    /// Shortest message that the receiver fetches; `usize::MAX` if the link cannot fetch.
    pub(crate) fetch: usize,
    /// Shortest message for which the receiver exposes memory to the sender's write; `usize::MAX`
    /// if the link has no writes.
    pub(crate) write: usize,
    /// Whether each poll for packets is a system call.
    pub(crate) poll_is_syscall: bool,
}

/// Properties of a link that is not connected yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkHint {
    pub(crate) limits: Limits,
    /// As [`Link::wake_latency`] will return it.
    pub(crate) wake_latency: Duration,
    pub(crate) is_rdma: bool,
}

impl LinkHint {
    pub(crate) const TCP: LinkHint =
        LinkHint { limits: tcp::TcpLink::LIMITS, wake_latency: WAKE_LATENCY, is_rdma: false };
}

/// Remote memory that a message is written to; the link defines what the two numbers mean.
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
    /// The peer cannot write; it has to [send](Link::send) the bytes.
    Refused,
}

/// Outcome of an attempt to write a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// The whole message was posted.
    Posted,
    /// There is no room for all of it at present; call again.
    NoRoom,
    /// Nothing was posted, because the memory cannot be registered with the device.
    Refused,
}

/// Permission of a link for its rank to sleep.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Armed<'l> {
    /// The rank must not sleep: a packet has arrived, or there is room to send.
    Ready,
    /// The rank may sleep on this descriptor.
    Watch(WatchedFd<'l>),
    /// The rank may sleep; no descriptor reports this link's packets.
    NoFd,
}

/// Descriptor on which a rank sleeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchedFd<'l> {
    /// Becomes readable when a packet arrives.
    pub(crate) fd: BorrowedFd<'l>,
    /// Wait until the descriptor is writable, too.
    pub(crate) writable: bool,
    /// Descriptor that the link returned earlier and that may have to be removed from the watched
    /// set.
    pub(crate) instead_of: Option<BorrowedFd<'l>>,
}

/// Function that copies the next bytes of a payload to the start of the given memory, and returns
/// their number.
pub(crate) type Fill<'f> = dyn FnMut(&mut [u8]) -> io::Result<usize> + 'f;

/// Receiver of the packets that arrive over links.
pub(crate) trait Sink {
    /// Takes a packet whose payload is in memory completely.
    fn packet(&mut self, header: Header, payload: &[u8]) -> Result<(), LinkError>;

    /// Takes the next part of a packet that arrives in parts: calls `fill` with the memory for the
    /// payload from `offset` on, and returns the number of bytes that `fill` returned. The packet
    /// ends when `offset` plus this number is the payload's length. Until then the link delivers
    /// nothing else.
    fn part(
        &mut self,
        header: Header,
        offset: usize,
        fill: &mut Fill<'_>,
    ) -> Result<usize, LinkError>;

    /// Reports that a [`Link::write`] with this transfer id has completed and its memory may
    /// change.
    fn written(&mut self, transfer: u32) -> Result<(), LinkError> {
        let _ = transfer;
        Err(LinkError::Protocol("completion of a write that was never posted"))
    }

    /// Returns the table of lent buffers, for links that copy into memory as a device would.
    fn buffers(&self) -> Option<&BufferTable> {
        None
    }
}
