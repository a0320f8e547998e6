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
//! [`packet`] defines the packet header. [`wake_fd`] is an eventfd that wakes a sleeping thread.
//!
//! A message of up to [`Limits::eager`] bytes is sent as one packet. A longer message is announced
//! by a request to send (RTS). Once the receiver has a buffer for the message, it is transferred by
//! one of three methods: the receiver copies it from the sender's memory ([`Link::fetch`]), the
//! sender writes it into the receiver's memory ([`Link::write`]), or the sender sends it as data
//! packets. The sending of one long message is a *transfer*; its id is in each of its packets.
//! Memory is *exposed* while the peer may read or write it.

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

    /// Passes packets that have arrived to `sink`, a limited number per call so that other links
    /// get their turn. Returns whether any data has arrived. If the peer has ended without
    /// [`PacketKind::Bye`](packet::PacketKind::Bye), fails with [`LinkError::Gone`] after all
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
    /// once before each [`PacketKind::Withdrawn`](packet::PacketKind::Withdrawn) is sent.
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
