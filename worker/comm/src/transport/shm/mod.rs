//! Links between ranks of one node, over shared memory.
//!
//! Each ordered pair of ranks has a [`ring`] for packets in the node's shared [`segment`]. A
//! message longer than [`EAGER`] is announced by an RTS (request to send). The receiver then copies
//! the message from the sender's memory with `process_vm_readv`. From [`SPLIT_FETCH`] bytes on, the
//! sender helps and copies a part of the message ([`split_copy`]). If the system forbids these
//! copies, long messages go through the ring as data packets.
//!
//! A sleeping rank is woken through its [`doorbell`]. [`StallGuard`] handles a sender that is
//! suspended while it helps. `model` checks the memory orderings with loom.

mod doorbell;
mod memory;
#[cfg(test)]
mod model;
mod ring;
#[cfg(test)]
mod ring_tests;
mod segment;
mod split_copy;
#[cfg(test)]
mod tests;

use super::{Armed, Limits, Link, Sink, WatchedFd};
use crate::transport::{Header, PacketKind};
use crate::types::LinkError;
use doorbell::{Doorbell, StallGuard};
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use ring::{Receiver, Sender};
use rlaunch_sys::OwnedBytes;
pub use segment::AttachError;
use segment::{Identity, Segment};
use split_copy::CopyRequest;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

/// Longest eager message, which is sent as one packet, in bytes. The receiver fetches longer
/// messages.
const EAGER: usize = 16 << 10;
/// Longest payload of a packet, in bytes. The receiver takes a packet only when the whole packet is
/// in the ring, so longer packets would make it start later.
const PACKET: usize = 16 << 10;
/// Shortest message that the receiver fetches, in bytes. For longer messages one copy by a system
/// call costs less than two copies through the ring. Two copies take 2.5 us for 16 KiB and 4.8 us
/// for 32 KiB; one copy that both ends share takes 3.1 us and 4.1 us.
const FETCH: usize = 16 << 10;
/// Maximum number of bytes that one system call reads. The limit keeps the number of pages small
/// that the kernel pins at a time.
const MAX_READ: usize = 1 << 20;
/// Shortest message, in bytes, for which the receiver asks the sender to copy a part.
const SPLIT_FETCH: usize = 24 << 10;
/// Shortest and longest slice, in bytes, of a message that both ends copy. Between these bounds a
/// slice is half of the message. One system call costs as much as copying 20 KiB.
const SLICE_LENGTHS: std::ops::RangeInclusive<usize> = 16 << 10..=512 << 10;
/// Number of polls without a packet after which a link checks whether the peer's process is alive.
const POLLS_PER_CHECK: u32 = 1 << 14;

/// State that all shared-memory links of this rank share.
#[derive(Debug)]
pub(crate) struct ShmNode {
    segment: Segment,
    doorbell: Doorbell,
    me: Identity,
    /// Whether the node has more ranks than processors. A sender that helps with a copy would then
    /// take time from other ranks.
    oversubscribed: bool,
    /// Time that a peer may be suspended while it writes to this rank's memory; `None` for no
    /// limit.
    timeout: Option<Duration>,
    /// Random value for a test of access. [`Identity`] has the value and its address; a peer that
    /// reads the value at this address can fetch from this rank.
    _probe: Box<u64>,
}

impl ShmNode {
    /// Joins the segment of this rank's node. `name` identifies the job and the node: the first
    /// rank to attach creates /dev/shm/`name`, and the last one removes the name.
    ///
    /// `oversubscribed` means that the node has more ranks than processors. `timeout` is the time
    /// that a peer may be suspended while it writes to this rank's memory. After this time, this
    /// rank sends SIGCONT to the peer.
    pub(crate) fn attach(
        name: &str,
        local_rank: usize,
        local_size: usize,
        oversubscribed: bool,
        timeout: Option<Duration>,
    ) -> Result<Arc<ShmNode>, AttachError> {
        let system = |operation| {
            let name = name.to_owned();
            move |source| AttachError::System { operation, name, source }
        };
        let doorbell =
            Doorbell::new(local_size).map_err(system("create the doorbell socket for"))?;
        let probe = Box::new(RandomState::new().hash_one(std::process::id()));
        let me = Identity {
            pid: u64::from(std::process::id()),
            namespaces: ["pid", "net"].map(namespace),
            doorbell: doorbell.name().map_err(system("create the doorbell socket for"))?,
            probe: [std::ptr::from_ref::<u64>(&probe).addr() as u64, *probe],
        };
        let segment = Segment::attach(name, local_rank, local_size, me)?;
        Ok(Arc::new(ShmNode { segment, doorbell, me, oversubscribed, timeout, _probe: probe }))
    }

    /// Makes the link to the local rank `peer` of this node. Returns `None` until that rank has
    /// attached.
    pub(crate) fn link(self: &Arc<ShmNode>, peer: usize) -> Result<Option<ShmLink>, LinkError> {
        assert!(peer < self.segment.local_size() && peer != self.segment.local_rank());
        let Some(identity) = self.segment.identity(peer) else { return Ok(None) };
        let system = |operation| move |source| LinkError::System { operation, source };
        if identity.namespaces[1] != self.me.namespaces[1] {
            let source = io::Error::other("it is in another network namespace");
            return Err(system("reach its doorbell socket")(source));
        }
        let mut peer_pid = None;
        if identity.namespaces[0] == self.me.namespaces[0] {
            self.doorbell.watch(peer, identity.pid).map_err(system("watch its process"))?;
            peer_pid = i32::try_from(identity.pid).ok().map(Pid::from_raw);
        }
        let outgoing = self.segment.ring_to(peer);
        let incoming = self.segment.ring_from(peer);
        let claim = |ring| {
            let taken = LinkError::Protocol("a link to it already exists");
            self.segment.claim(ring).ok_or(taken)
        };
        let mut link = ShmLink {
            sender: Sender::new(outgoing),
            outgoing: claim(outgoing)?,
            receiver: Receiver::new(incoming),
            incoming: claim(incoming)?,
            own_request: Segment::copy_request_offset(incoming),
            peer_request: Segment::copy_request_offset(outgoing),
            last_request: 0,
            last_handled: 0,
            peer,
            sleep_word: self.segment.sleep_word(peer),
            doorbell_name: identity.doorbell,
            peer_pid,
            has_said_bye: false,
            blocked_payload: 0,
            empty_polls: 0,
            limits: Limits {
                eager: EAGER.min(outgoing.max_payload() / 64 * 64),
                packet: PACKET.min(outgoing.max_payload() / 64 * 64),
                fetch: FETCH,
                write: usize::MAX,
                poll_is_syscall: false,
            },
            node: Arc::clone(self),
        };
        link.probe(identity.probe);
        Ok(Some(link))
    }
}

/// Returns the inode number of this process's namespace of the given kind, or 0 if /proc does not
/// show it.
fn namespace(kind: &str) -> u64 {
    std::fs::metadata(format!("/proc/self/ns/{kind}")).map_or(0, |metadata| metadata.ino())
}

/// Link to another rank of this node.
#[derive(Debug)]
pub(crate) struct ShmLink {
    sender: Sender,
    /// Memory of the ring to the peer.
    outgoing: OwnedBytes,
    receiver: Receiver,
    /// Memory of the ring from the peer.
    incoming: OwnedBytes,
    /// Offset in the segment of the area for copy requests of this rank, and of the area for copy
    /// requests of the peer.
    own_request: usize,
    peer_request: usize,
    /// Number of the last copy request that this rank has sent, and of the last copy request from
    /// the peer that this rank has handled; 0 before the first.
    last_request: u32,
    last_handled: u32,
    peer: usize,
    /// Offset in the segment of the peer's sleep word, which is 0 while the peer is awake.
    sleep_word: usize,
    /// Name of the peer's doorbell socket.
    doorbell_name: u64,
    /// Process id of the peer; `None` if this rank may not read the peer's memory.
    peer_pid: Option<Pid>,
    has_said_bye: bool,
    /// Length in bytes of the payload that the last [`Link::send`] had no room for.
    blocked_payload: usize,
    /// Number of polls without a packet; wraps around.
    empty_polls: u32,
    limits: Limits,
    node: Arc<ShmNode>,
}

impl ShmLink {
    /// Tests whether this rank can read the peer's memory, and whether the process id is the
    /// peer's. `probe` has an address in the peer's memory and the value stored there. If the test
    /// fails, this rank never reads the peer's memory.
    fn probe(&mut self, probe: [u64; 2]) {
        let mut bytes = [0; 8];
        let read = self.fetch(probe[0], &mut bytes);
        if !matches!(read, Ok(true)) || u64::from_ne_bytes(bytes) != probe[1] {
            self.peer_pid = None;
        }
    }

    /// Puts a packet into the ring. Returns `false` if the ring has no room.
    #[inline(always)]
    fn put(&mut self, header: Header, payload: &[u8]) -> Result<bool, LinkError> {
        let sent = self.sender.send(&self.outgoing, header.to_words(), payload)?;
        if !sent {
            self.blocked_payload = payload.len();
        }
        Ok(sent)
    }

    /// Wakes the peer if it sleeps. Called after each change that the peer may be waiting for.
    #[inline(always)]
    fn wake(&self) {
        let sleep = doorbell::sleep_number(self.node.segment.memory(), self.sleep_word);
        if sleep != 0 {
            self.node.doorbell.ring(&self.node.segment, self.peer, sleep, self.doorbell_name);
        }
    }

    /// Handles a poll without a packet: helps the peer if it has sent a copy request, and checks
    /// now and then whether the peer is alive. Returns `false`, or an error if the peer has ended
    /// without a goodbye packet.
    #[inline]
    fn on_empty_poll(&mut self) -> Result<bool, LinkError> {
        self.sender.idle(&self.outgoing);
        if self.is_help_requested() {
            self.help();
            return Ok(false);
        }
        self.empty_polls = self.empty_polls.wrapping_add(1);
        if self.empty_polls.is_multiple_of(POLLS_PER_CHECK) {
            self.node.doorbell.poll();
        }
        // The ring is checked after the process, because everything that the peer sent before its
        // end is in the ring once the end is detected.
        if self.node.doorbell.has_ended(self.peer)
            && !self.has_said_bye
            && !self.receiver.has_record(&self.incoming)
        {
            return Err(LinkError::Gone);
        }
        Ok(false)
    }

    #[inline(always)]
    fn is_help_requested(&self) -> bool {
        let number = split_copy::requested(self.node.segment.memory(), self.peer_request);
        number != 0 && number != self.last_handled
    }

    #[cold]
    fn help(&mut self) {
        let memory = self.node.segment.memory();
        let number = split_copy::requested(memory, self.peer_request);
        self.last_handled = number;
        let Some(pid) = self.peer_pid else { return };
        let mut is_mapped = true;
        let succeeded = split_copy::help(memory, self.peer_request, number, |request, bytes| {
            let (from, to) = (bytes.start as u64, bytes.len());
            let source = request.source.wrapping_add(from);
            let target = request.target.wrapping_add(from);
            let written = rlaunch_sys::write_to_process(pid.as_raw(), source, target, to);
            is_mapped = !written.as_ref().is_err_and(is_unmapped);
            written.is_ok_and(|written| written == to)
        });
        // The memory of a cancelled message may be unmapped; that says nothing about other
        // messages.
        if !succeeded && is_mapped {
            self.peer_pid = None;
        }
    }

    /// Fetches a message with the sender's help: the sender copies a part of the message when it is
    /// idle.
    fn fetch_split(&mut self, pid: Pid, address: u64, into: &mut [u8]) -> Result<(), ReadError> {
        let slice = (into.len() / 2).clamp(*SLICE_LENGTHS.start(), *SLICE_LENGTHS.end());
        let target = into.as_mut_ptr().expose_provenance() as u64;
        let request = CopyRequest::new(address, target, into.len(), slice);
        let (slices, own_request) = (request.slices(), self.own_request);
        self.last_request = self.last_request.checked_add(1).unwrap_or(1);
        split_copy::request(self.node.segment.memory(), own_request, self.last_request, &request);
        let mut result = Ok(());
        while let Some(slice) =
            split_copy::claim_front(self.node.segment.memory(), own_request, slices)
        {
            // After an error the remaining slices are claimed but not copied, so that the peer
            // writes no more.
            if result.is_ok() {
                let bytes = request.bytes(slice);
                result = read(pid, address.wrapping_add(bytes.start as u64), &mut into[bytes]);
            }
        }
        let claimed_by_peer = split_copy::close(self.node.segment.memory(), own_request);
        let written = self.await_written(pid, claimed_by_peer);
        result?;
        if !written {
            let back = request.bytes(slices - claimed_by_peer).start;
            read(pid, address.wrapping_add(back as u64), &mut into[back..])?;
        }
        Ok(())
    }

    /// Waits until the peer has written the `slices` slices that it has claimed. Returns `false` if
    /// the peer has failed to write one of them, or has ended before.
    fn await_written(&self, pid: Pid, slices: usize) -> bool {
        let mut polls = 0_u32;
        let mut stall = None;
        loop {
            match split_copy::written(self.node.segment.memory(), self.own_request, slices) {
                Some(false) => {}
                written => return written == Some(true),
            }
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(1 << 10) {
                std::thread::yield_now();
            }
            if polls.is_multiple_of(POLLS_PER_CHECK) {
                self.node.doorbell.poll();
                stall.get_or_insert_with(|| StallGuard::new(pid, self.node.timeout)).check();
            }
            if self.node.doorbell.has_ended(self.peer) {
                return false;
            }
            std::hint::spin_loop();
        }
    }
}

/// Reason why a peer's memory was not read.
enum ReadError {
    /// The system forbids the access.
    Forbidden,
    Link(LinkError),
}

/// Reads a peer's memory with `process_vm_readv`.
fn read(pid: Pid, address: u64, into: &mut [u8]) -> Result<(), ReadError> {
    let mut done = 0;
    while done < into.len() {
        let end = into.len().min(done + MAX_READ);
        let base = (address as usize).wrapping_add(done);
        let remote = RemoteIoVec { base, len: end - done };
        match process_vm_readv(pid, &mut [IoSliceMut::new(&mut into[done..end])], &[remote]) {
            Ok(0) => return Err(read_error(Errno::EFAULT)),
            Ok(count) => done += count,
            Err(Errno::EINTR) => {}
            Err(Errno::EPERM | Errno::ENOSYS) => return Err(ReadError::Forbidden),
            Err(Errno::ESRCH) => return Err(ReadError::Link(LinkError::Gone)),
            Err(error) => return Err(read_error(error)),
        }
    }
    Ok(())
}

fn is_unmapped(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EFAULT as i32)
}

fn read_error(error: Errno) -> ReadError {
    ReadError::Link(LinkError::System { operation: "read its memory", source: error.into() })
}

impl Link for ShmLink {
    fn limits(&self) -> Limits {
        self.limits
    }

    #[inline]
    fn send(&mut self, header: Header, payload: &[u8]) -> Result<bool, LinkError> {
        let sent = self.put(header, payload)?;
        if sent {
            self.wake();
            self.sender.prepare(&self.outgoing);
        }
        Ok(sent)
    }

    /// Leaves out the fence of [`ShmLink::wake`], which waits until the record is visible. If the
    /// peer is polling the record's line, that takes about as long as a message. A caller that first
    /// polls for an answer waits for both at the same time, and for the line that is cleared here.
    #[inline]
    fn publish(&mut self, header: Header, payload: &[u8]) -> Result<bool, LinkError> {
        let sent = self.put(header, payload)?;
        if sent {
            self.sender.prepare(&self.outgoing);
        }
        Ok(sent)
    }

    #[inline]
    fn wake_peer(&mut self) {
        self.wake();
    }

    /// Takes one packet at most, because to poll for a second one would cost as much as to take it.
    #[inline]
    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        let mut bye = false;
        let taken = self.receiver.receive(&self.incoming, |words, payload| {
            let header = Header::from_words(words)?;
            bye = header.kind == PacketKind::Bye;
            sink.packet(header, payload)
        })?;
        if taken.is_none() {
            return self.on_empty_poll();
        }
        self.has_said_bye |= bye;
        if self.receiver.release(&self.incoming) {
            self.wake();
        }
        Ok(true)
    }

    fn expose_read(&mut self, message: &[u8]) -> Option<u64> {
        Some(message.as_ptr().addr() as u64)
    }

    fn fetch(&mut self, address: u64, into: &mut [u8]) -> Result<bool, LinkError> {
        let Some(pid) = self.peer_pid else { return Ok(false) };
        let result = if into.len() < SPLIT_FETCH || self.node.oversubscribed {
            read(pid, address, into)
        } else {
            self.fetch_split(pid, address, into)
        };
        match result {
            Ok(()) => Ok(true),
            Err(ReadError::Link(error)) => Err(error),
            Err(ReadError::Forbidden) => {
                self.peer_pid = None;
                Ok(false)
            }
        }
    }

    fn revoke(&mut self, _: u64) {
        let memory = self.node.segment.memory();
        split_copy::revoke(memory, self.peer_request);
        // The peer's current request may be for this message, so this rank must no longer help with
        // it. If the request is for another message, the copy merely takes longer.
        self.last_handled = split_copy::requested(memory, self.peer_request);
    }

    fn has_revoked(&mut self, known: u32) -> bool {
        split_copy::revoked(self.node.segment.memory(), self.own_request) != known
    }

    fn arm(&mut self, wants_room: bool) -> Result<Armed<'_>, LinkError> {
        let node = &*self.node;
        node.doorbell.arm(&node.segment);
        if self.receiver.has_record(&self.incoming)
            || self.is_help_requested()
            || (wants_room && self.sender.has_room(&self.outgoing, self.blocked_payload)?)
            || (node.doorbell.has_ended(self.peer) && !self.has_said_bye)
        {
            return Ok(Armed::Ready);
        }
        Ok(Armed::Watch(WatchedFd { fd: node.doorbell.fd(), writable: false, instead_of: None }))
    }

    fn disarm(&mut self) {
        self.node.doorbell.disarm(&self.node.segment);
    }

    fn visit_fds(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        visit(self.node.doorbell.fd());
    }
}
