//! How packets get from this rank to one other: shared memory, TCP, RDMA, or a simulation.
//!
//! A link carries packets in order, whole or not at all, and knows nothing of messages. Which of
//! them a pair has is in the rank table; everything above is the same for all.

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

/// [`Link::waking`] where nothing but the kernel is in between.
const WAKE_LATENCY: Duration = Duration::from_micros(50);

/// The way to one other rank. Nothing in here blocks.
pub(crate) trait Link: Send {
    /// How much goes at once.
    fn limits(&self) -> Limits;

    /// About how long it takes, once something has come, until who sleeps on it goes on.
    fn wake_latency(&self) -> Duration {
        WAKE_LATENCY
    }

    /// Begins a packet, or goes on with the one that was begun: called with the same packet until
    /// it says `true`, and with no other in between. `true` means that the payload has been copied
    /// or written and may change; `false` that there is no room now. The payload is not longer
    /// than [`Limits::packet`].
    fn send(&mut self, header: Header, payload: &[u8]) -> Result<bool, LinkError>;

    /// Hands what has come to the sink, some packets at most so that other links get their turn.
    /// Says whether anything came. [`LinkError::Gone`] once the peer has ended without
    /// [`PacketKind::Bye`](crate::transport::packet::Kind::Bye), after everything that it had sent.
    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError>;

    /// Where the peer may fetch this message from, if it can fetch at all. The memory stays as it
    /// is until the transfer is over.
    fn expose_read(&mut self, message: &[u8]) -> Option<u64> {
        let _ = message;
        None
    }

    /// Fetches `into.len()` bytes from `address` in the peer, as its [`Link::expose_read`] has said; `false`
    /// when it may not, and then [`Link::send`] has to bring them.
    fn fetch(&mut self, address: u64, into: &mut [u8]) -> Result<bool, LinkError> {
        let _ = (address, into);
        Ok(false)
    }

    /// Tells this link's device of all the memory of a buffer, before any of it is sent or received.
    fn register(&mut self, buffers: &BufferTable, whole: LocalSlice) {
        let _ = (buffers, whole);
    }

    /// Says that what was [offered](Link::expose_read) at this address is about to change: a peer that fetches
    /// it from here on finds that out by [`Link::has_revoked`]. Called once for each [`PacketKind::Withdrawn`] that is
    /// sent, before it.
    ///
    /// [`PacketKind::Withdrawn`]: crate::transport::packet::Kind::Withdrawn
    fn revoke(&mut self, address: u64) {
        let _ = address;
    }

    /// Whether the peer has revoked more than these offers. Asked after a [fetch](Link::fetch), whose
    /// bytes are what was offered where it says `false`.
    fn has_revoked(&mut self, known: u32) -> bool {
        let _ = known;
        false
    }

    /// Lets the peer write to this memory, and says what it has to know for that.
    fn expose_write(&mut self, buffers: &BufferTable, into: LocalSlice) -> Exposure {
        let _ = (buffers, into);
        Exposure::Refused
    }

    /// Writes a whole message to where the peer has exposed memory, without a copy. Called with the
    /// same message until it says something else than [`WriteOutcome::NoRoom`], and with no packet in
    /// between. What is [sent](Link::send) afterwards comes after the message. [`Sink::written`]
    /// tells by `transfer` when the memory may change.
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

    /// Whether it fails with the RDMA between two nodes, which somebody else watches.
    fn is_rdma(&self) -> bool {
        false
    }

    /// Whether what was sent gets to the peer even if this rank ends now.
    fn is_delivered(&self) -> bool {
        true
    }

    /// Before this rank sleeps until the peer says something: sees to it, now and then, that a peer
    /// that is there no more is found out.
    fn probe_peer(&mut self) {}

    /// Before this rank sleeps: what becomes ready when a packet comes, or, where it waits to
    /// send, when there is room.
    fn arm(&mut self, wants_room: bool) -> Result<Armed<'_>, LinkError>;

    /// After it has slept, or changed its mind.
    fn disarm(&mut self) {}

    /// Hands everything to `unwatches` that [`Link::arm`] has ever given to be watched: the peer has left,
    /// and no news of it are waited for.
    fn unwatch(&self, unwatches: &mut dyn FnMut(BorrowedFd<'_>)) {
        let _ = unwatches;
    }

    /// The peer's process has ended well, as the launcher knows. A link that has met the peer hears of
    /// that itself, after all that was sent.
    fn peer_has_left(&mut self) {}
}

/// How much goes at once over a link, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Longer messages are offered first, and sent when the peer wants them.
    pub(crate) eager: usize,
    /// The longest payload of one packet; not less than `eager`, and a multiple of 64.
    pub(crate) packet: usize,
    /// From here on a message is fetched where the link can do that.
    pub(crate) fetch: usize,
    /// From here on memory is exposed for a message, for its sender to write; `usize::MAX` where the
    /// link cannot do that.
    pub(crate) write: usize,
    /// Looking whether something has come costs a system call.
    pub(crate) poll_is_syscall: bool,
}

/// What is known of a link before there is one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkHint {
    pub(crate) limits: Limits,
    /// See [`Link::waking`].
    pub(crate) wake_latency: Duration,
    pub(crate) is_rdma: bool,
}

impl LinkHint {
    /// Of TCP.
    pub(crate) const TCP: LinkHint =
        LinkHint { limits: tcp::TcpLink::LIMITS, wake_latency: WAKE_LATENCY, is_rdma: false };
}

/// Where a peer may write a message, in the words of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteBuf {
    pub(crate) address: u64,
    pub(crate) key: u64,
}

/// Outcome of exposing memory to a peer's writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exposure {
    /// The peer may write, here.
    At(RemoteBuf),
    /// The device is being told of it: to be asked again.
    Pending,
    /// The peer cannot write, and [`Link::send`] has to bring the bytes.
    Refused,
}

/// What became of a message that was to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// It is on its way, all of it.
    Posted,
    /// There is no room for all of it now.
    NoRoom,
    /// Nothing of it is, nor can be: the memory cannot be told to the device.
    Refused,
}

/// Whether a rank may sleep as far as a link is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Armed<'l> {
    /// Not now: something has come, or there is room.
    Ready,
    /// It may, on this.
    Watch(WatchedFd<'l>),
    /// It may, and nothing of the system's will wake it.
    NoFd,
}

/// Something to sleep on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchedFd<'l> {
    /// Readable when something has come.
    pub(crate) fd: BorrowedFd<'l>,
    /// It is waited for being writable, too.
    pub(crate) writable: bool,
    /// Watched by the link before, perhaps, and not waited for any more.
    pub(crate) instead_of: Option<BorrowedFd<'l>>,
}

/// Puts the next bytes of a packet to the front of memory, and says how many there were.
pub(crate) type Fill<'f> = dyn FnMut(&mut [u8]) -> io::Result<usize> + 'f;

/// Where packets go that have come.
pub(crate) trait Sink {
    /// A packet that lies in memory as a whole.
    fn packet(&mut self, header: Header, payload: &[u8]) -> Result<(), LinkError>;

    /// A packet that comes in parts: memory for what follows `offset` of its payload. `fill` puts
    /// bytes to the memory's front and says how many. Returns that number. The packet is over when
    /// `offset` and it make the payload's length; in between nothing else comes over this link.
    fn part(
        &mut self,
        header: Header,
        offset: usize,
        fill: &mut Fill<'_>,
    ) -> Result<usize, LinkError>;

    /// The message of this transfer was [written](Link::write); its memory may change.
    fn written(&mut self, transfer: u32) -> Result<(), LinkError> {
        let _ = transfer;
        Err(LinkError::Protocol("a message was written that was not wanted"))
    }

    /// What is lent, for a link that is its own device.
    fn buffers(&self) -> Option<&BufferTable> {
        None
    }
}
