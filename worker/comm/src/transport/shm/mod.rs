//! Ranks of one node: rings in memory that they share, and memory read from process to process.

mod doorbell;
mod memory;
#[cfg(test)]
mod model;
mod ring;
#[cfg(test)]
mod ring_tests;
mod segment;
mod split_copy;
mod stall_guard;
#[cfg(test)]
mod tests;

use super::{Armed, Limits, Link, Sink, WatchedFd};
use crate::transport::packet::{Header, PacketKind};
use crate::types::error::LinkError;
use doorbell::Doorbell;
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use ring::{Receiver, Sender};
use rlaunch_sys::OwnedBytes;
pub use segment::AttachError;
use segment::{Identity, Segment};
use split_copy::CopyRequest;
use stall_guard::StallGuard;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

/// Longer messages are offered, and then fetched.
const EAGER: usize = 16 << 10;
/// Longer packets only make the receiver wait for their first bytes.
const PACKET: usize = 16 << 10;
/// From here on one copy is worth the system call: two take 2.5 us for 16 KiB, 4.8 us for 32, one
/// by both ends 3.1 and 4.1.
const FETCH: usize = 16 << 10;
/// So much is fetched at once, so that the kernel pins few pages.
const SLICE: usize = 1 << 20;
/// From here on the sender is asked to help.
const HELPED: usize = 24 << 10;
/// What is claimed at once then, at least and at most, and half of the message in between: a call
/// costs as much as 20 KiB.
const CLAIM: std::ops::RangeInclusive<usize> = 16 << 10..=512 << 10;
/// So many times nothing has come before we look whether the peer lives.
const PATIENCE: u32 = 1 << 14;

/// This rank's part in its node: what its links have in common.
#[derive(Debug)]
pub(crate) struct ShmNode {
    segment: Segment,
    doorbell: Doorbell,
    me: Identity,
    /// Ranks share processors, so nobody has time to help.
    oversubscribed: bool,
    /// How long a peer may stand still while it writes to this rank's memory.
    timeout: Option<Duration>,
    /// What peers read to see that they can.
    _probe: Box<u64>,
}

impl ShmNode {
    /// Takes this rank's place among those of its node. The name is the job's and the node's;
    /// whoever comes first makes what it names, in /dev/shm, and whoever comes last takes it away.
    /// A node is crowded when it has more ranks than processors. After `timeout` a peer that stands
    /// still while it writes to this rank's memory is made to finish.
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
        let doorbell = Doorbell::new(local_size).map_err(system("make the bell of"))?;
        let probe = Box::new(RandomState::new().hash_one(std::process::id()));
        let me = Identity {
            pid: u64::from(std::process::id()),
            namespaces: ["pid", "net"].map(namespace),
            bell: doorbell.name().map_err(system("make the bell of"))?,
            probe: [std::ptr::from_ref::<u64>(&probe).addr() as u64, *probe],
        };
        let segment = Segment::attach(name, local_rank, local_size, me)?;
        Ok(Arc::new(ShmNode { segment, doorbell, me, oversubscribed, timeout, _probe: probe }))
    }

    /// The link to another rank of this node, by its local rank; `None` until it has come.
    ///
    /// # Panics
    /// If it is this rank, or none of this node.
    pub(crate) fn link(self: &Arc<ShmNode>, peer: usize) -> Result<Option<ShmLink>, LinkError> {
        assert!(peer < self.segment.local_size() && peer != self.segment.local_rank());
        let Some(identity) = self.segment.identity(peer) else { return Ok(None) };
        let system = |operation| move |source| LinkError::System { operation, source };
        if identity.namespaces[1] != self.me.namespaces[1] {
            let source = io::Error::other("it is in another network namespace");
            return Err(system("reach its bell")(source));
        }
        let mut source = None;
        if identity.namespaces[0] == self.me.namespaces[0] {
            self.doorbell.watch(peer, identity.pid).map_err(system("watch its process"))?;
            source = i32::try_from(identity.pid).ok().map(Pid::from_raw);
        }
        let place = self.segment.ring_to(peer);
        let from = self.segment.ring_from(peer);
        let claim = |ring| {
            let taken = LinkError::Protocol("there is a link to it already");
            self.segment.claim(ring).ok_or(taken)
        };
        let mut link = ShmLink {
            sender: Sender::new(place),
            outgoing: claim(place)?,
            receiver: Receiver::new(from),
            incoming: claim(from)?,
            asks: Segment::help(from),
            asked: Segment::help(place),
            request: 0,
            helped: 0,
            peer,
            sleeps: self.segment.sleeps(peer),
            bell: identity.bell,
            source,
            has_said_bye: false,
            wanted: 0,
            empty: 0,
            limits: Limits {
                eager: EAGER.min(place.payload() / 64 * 64),
                packet: PACKET.min(place.payload() / 64 * 64),
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

/// The inode that stands for a namespace of this process; 0 where /proc does not say.
fn namespace(kind: &str) -> u64 {
    std::fs::metadata(format!("/proc/self/ns/{kind}")).map_or(0, |metadata| metadata.ino())
}

/// The way to another rank of this node.
#[derive(Debug)]
pub(crate) struct ShmLink {
    sender: Sender,
    /// The lines that it writes to.
    outgoing: OwnedBytes,
    receiver: Receiver,
    /// The lines that it reads.
    incoming: OwnedBytes,
    /// Where we ask it for help, and where it asks us.
    asks: usize,
    asked: usize,
    /// The number of our last request, and of its last that we have seen.
    request: u32,
    helped: u32,
    /// Its local rank.
    peer: usize,
    /// The word by which it says that it sleeps.
    sleeps: usize,
    /// What wakes it.
    bell: u64,
    /// The process whose memory we may read.
    source: Option<Pid>,
    has_said_bye: bool,
    /// The payload that there was no room for.
    wanted: usize,
    /// How often nothing has come.
    empty: u32,
    limits: Limits,
    node: Arc<ShmNode>,
}

impl ShmLink {
    /// Finds out whether the peer's memory can be read, and that it is the peer's.
    fn probe(&mut self, probe: [u64; 2]) {
        let mut bytes = [0; 8];
        let read = self.fetch(probe[0], &mut bytes);
        if !matches!(read, Ok(true)) || u64::from_ne_bytes(bytes) != probe[1] {
            self.source = None;
        }
    }

    /// To be called after something was published that the peer may sleep for.
    #[inline(always)]
    fn wake(&self) {
        let sleep = doorbell::sleeps(self.node.segment.memory(), self.sleeps);
        if sleep != 0 {
            self.node.doorbell.ring(&self.node.segment, self.peer, sleep, self.bell);
        }
    }

    /// Nothing has come: helps the peer to fetch from us, if it asks.
    #[inline]
    fn idle(&mut self) -> Result<bool, LinkError> {
        self.sender.idle(&self.outgoing);
        if self.is_help_requested() {
            self.help();
            return Ok(false);
        }
        self.empty = self.empty.wrapping_add(1);
        if self.empty.is_multiple_of(PATIENCE) {
            self.node.doorbell.look();
        }
        // Only now: what it sent before it ended is there when the end is.
        if self.node.doorbell.ended(self.peer)
            && !self.has_said_bye
            && !self.receiver.waiting(&self.incoming)
        {
            return Err(LinkError::Gone);
        }
        Ok(false)
    }

    #[inline(always)]
    fn is_help_requested(&self) -> bool {
        let number = split_copy::requested(self.node.segment.memory(), self.asked);
        number != 0 && number != self.helped
    }

    #[cold]
    fn help(&mut self) {
        let memory = self.node.segment.memory();
        let number = split_copy::requested(memory, self.asked);
        self.helped = number;
        let Some(pid) = self.source else { return };
        let mut is_there = true;
        let works = split_copy::help(memory, self.asked, number, |request, bytes| {
            let (from, to) = (bytes.start as u64, bytes.len());
            let source = request.source.wrapping_add(from);
            let target = request.target.wrapping_add(from);
            let written = rlaunch_sys::write_to_process(pid.as_raw(), source, target, to);
            is_there = !written.as_ref().is_err_and(is_nowhere);
            written.is_ok_and(|written| written == to)
        });
        // A message that was given up may not be there any more.
        if !works && is_there {
            self.source = None;
        }
    }

    /// Fetches with the peer's help.
    fn fetch_split(&mut self, pid: Pid, address: u64, into: &mut [u8]) -> Result<(), ReadError> {
        let slice = (into.len() / 2).clamp(*CLAIM.start(), *CLAIM.end());
        let target = into.as_mut_ptr().expose_provenance() as u64;
        let request = CopyRequest::new(address, target, into.len(), slice);
        let (slices, asks) = (request.slices(), self.asks);
        self.request = self.request.checked_add(1).unwrap_or(1);
        split_copy::request(self.node.segment.memory(), asks, self.request, &request);
        let mut result = Ok(());
        while let Some(slice) = split_copy::claim_front(self.node.segment.memory(), asks, slices) {
            // After an error the rest is only claimed, so that the peer writes no more of it.
            if result.is_ok() {
                let bytes = request.bytes(slice);
                result = read(pid, address.wrapping_add(bytes.start as u64), &mut into[bytes]);
            }
        }
        let theirs = split_copy::close(self.node.segment.memory(), asks);
        let written = self.await_written(pid, theirs);
        result?;
        if !written {
            let back = request.bytes(slices - theirs).start;
            read(pid, address.wrapping_add(back as u64), &mut into[back..])?;
        }
        Ok(())
    }

    /// Waits until the peer has written its slices, or has ended; false when they are not there.
    fn await_written(&self, pid: Pid, slices: usize) -> bool {
        let mut looks = 0_u32;
        let mut stall = None;
        loop {
            match split_copy::written(self.node.segment.memory(), self.asks, slices) {
                Some(false) => {}
                written => return written == Some(true),
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1 << 10) {
                std::thread::yield_now();
            }
            if looks.is_multiple_of(PATIENCE) {
                self.node.doorbell.look();
                stall.get_or_insert_with(|| StallGuard::new(pid, self.node.timeout)).check();
            }
            if self.node.doorbell.ended(self.peer) {
                return false;
            }
            std::hint::spin_loop();
        }
    }
}

/// Why a peer's memory was not read.
enum ReadError {
    /// It may not be.
    Forbidden,
    Link(LinkError),
}

/// Reads a peer's memory.
fn read(pid: Pid, address: u64, into: &mut [u8]) -> Result<(), ReadError> {
    let mut done = 0;
    while done < into.len() {
        let end = into.len().min(done + SLICE);
        let base = (address as usize).wrapping_add(done);
        let remote = RemoteIoVec { base, len: end - done };
        match process_vm_readv(pid, &mut [IoSliceMut::new(&mut into[done..end])], &[remote]) {
            Ok(0) => return Err(reading(Errno::EFAULT)),
            Ok(count) => done += count,
            Err(Errno::EINTR) => {}
            Err(Errno::EPERM | Errno::ENOSYS) => return Err(ReadError::Forbidden),
            Err(Errno::ESRCH) => return Err(ReadError::Link(LinkError::Gone)),
            Err(error) => return Err(reading(error)),
        }
    }
    Ok(())
}

fn is_nowhere(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EFAULT as i32)
}

fn reading(error: Errno) -> ReadError {
    ReadError::Link(LinkError::System { operation: "read its memory", source: error.into() })
}

impl Link for ShmLink {
    fn limits(&self) -> Limits {
        self.limits
    }

    #[inline]
    fn send(&mut self, header: Header, payload: &[u8]) -> Result<bool, LinkError> {
        if !self.sender.send(&self.outgoing, header.to_words(), payload)? {
            self.wanted = payload.len();
            return Ok(false);
        }
        self.wake();
        self.sender.prepare(&self.outgoing);
        Ok(true)
    }

    /// One packet at most: to look for another would cost as much as a packet.
    #[inline]
    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        let mut bye = false;
        let taken = self.receiver.receive(&self.incoming, |words, payload| {
            let header = Header::from_words(words)?;
            bye = header.kind == PacketKind::Bye;
            sink.packet(header, payload)
        })?;
        if taken.is_none() {
            return self.idle();
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
        let Some(pid) = self.source else { return Ok(false) };
        let result = if into.len() < HELPED || self.node.oversubscribed {
            read(pid, address, into)
        } else {
            self.fetch_split(pid, address, into)
        };
        match result {
            Ok(()) => Ok(true),
            Err(ReadError::Link(error)) => Err(error),
            Err(ReadError::Forbidden) => {
                self.source = None;
                Ok(false)
            }
        }
    }

    fn revoke(&mut self, _: u64) {
        let memory = self.node.segment.memory();
        split_copy::revoke(memory, self.asked);
        // It may be about this message; another one takes longer without help.
        self.helped = split_copy::requested(memory, self.asked);
    }

    fn has_revoked(&mut self, known: u32) -> bool {
        split_copy::revoked(self.node.segment.memory(), self.asks) != known
    }

    fn arm(&mut self, wants_room: bool) -> Result<Armed<'_>, LinkError> {
        let node = &*self.node;
        node.doorbell.arm(&node.segment);
        if self.receiver.waiting(&self.incoming)
            || self.is_help_requested()
            || (wants_room && self.sender.has_room(&self.outgoing, self.wanted)?)
            || (node.doorbell.ended(self.peer) && !self.has_said_bye)
        {
            return Ok(Armed::Ready);
        }
        Ok(Armed::Watch(WatchedFd { fd: node.doorbell.fd(), writable: false, instead_of: None }))
    }

    fn disarm(&mut self) {
        self.node.doorbell.disarm(&self.node.segment);
    }

    fn unwatch(&self, unwatches: &mut dyn FnMut(BorrowedFd<'_>)) {
        unwatches(self.node.doorbell.fd());
    }
}
