//! What wakes a rank that sleeps.
//!
//! A rank that is about to sleep says so in a word that its peers look at after each record. They
//! ring then: a datagram to its socket, which has a name that the system chose, so nobody can have
//! taken it before. A stray ring does no harm, it is looked at and forgotten.
//!
//! Between the word and the record there is a race that only a full barrier on both sides ends:
//! sleeper and sender must not both see what was before the other. The sender's is after its
//! record is on the way, so nobody waits for it: 8 bytes take as long without. (`membarrier`, by
//! which the sleeper would have it executed for all, makes processes with threads wait for up to
//! 40 ms when they register.)

use super::memory::Memory;
use super::segment::Segment;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// In place of a rank, of what epoll reports.
const SOCKET: u64 = u64::MAX;

/// Says that a rank sleeps, before it looks once more: whoever publishes a record that it does not
/// see then, sees the word.
pub(super) fn fall_asleep<M: Memory>(memory: &M, word: usize, sleep: u64) {
    memory.store(word, sleep, Ordering::Relaxed);
    memory.fence();
}

/// Whether a rank sleeps that a record was just published for: its sleep's number, or 0.
#[inline(always)]
pub(super) fn sleeps<M: Memory>(memory: &M, word: usize) -> u64 {
    memory.fence();
    memory.load(word, Ordering::Relaxed)
}

/// What a process sleeps on: one for all its peers on the node.
#[derive(Debug)]
pub(super) struct Doorbell {
    socket: UnixDatagram,
    /// The socket, and a descriptor for each peer's process.
    epoll: Epoll,
    /// Of each local rank: its process.
    processes: Mutex<Vec<Option<OwnedFd>>>,
    /// Of each local rank: its process has ended.
    ended: Vec<AtomicBool>,
    /// Whether the word says that we sleep.
    armed: AtomicBool,
    /// How often we have slept.
    sleep: AtomicU64,
}

impl Doorbell {
    pub(super) fn new(local_size: usize) -> io::Result<Doorbell> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket::socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
        // No name at all asks the system for one.
        socket::bind(socket.as_raw_fd(), &UnixAddr::new_unnamed())?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, SOCKET))?;
        Ok(Doorbell {
            socket: UnixDatagram::from(socket),
            epoll,
            processes: Mutex::new((0..local_size).map(|_| None).collect()),
            ended: (0..local_size).map(|_| AtomicBool::new(false)).collect(),
            armed: AtomicBool::new(false),
            sleep: AtomicU64::new(0),
        })
    }

    /// Where others ring.
    pub(super) fn name(&self) -> io::Result<u64> {
        let address = self.socket.local_addr()?;
        let name = address.as_abstract_name().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mut word = [0; 8];
        word.get_mut(..name.len()).ok_or(io::ErrorKind::InvalidData)?.copy_from_slice(name);
        Ok(u64::from_le_bytes(word))
    }

    /// Notices the end of a peer's process from now on. Where the system does not let us, the
    /// agent still does.
    pub(super) fn watch(&self, rank: usize, pid: u64) -> io::Result<()> {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(rustix::io::Errno::SRCH) => {
                self.ended[rank].store(true, Ordering::Relaxed);
                return Ok(());
            }
            Err(_) => return Ok(()),
        };
        self.epoll.add(&process, EpollEvent::new(EpollFlags::EPOLLIN, rank as u64))?;
        let mut processes =
            self.processes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        processes[rank] = Some(process);
        Ok(())
    }

    /// Whether the peer's process was seen to have ended, see [`Doorbell::look`].
    #[inline(always)]
    pub(super) fn ended(&self, rank: usize) -> bool {
        self.ended[rank].load(Ordering::Relaxed)
    }

    /// Wakes the rank that gave this name, and writes in its word that this has been done.
    #[cold]
    pub(super) fn ring(&self, segment: &Segment, rank: usize, sleep: u64, name: u64) {
        let bytes = name.to_le_bytes();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        if let Ok(address) = SocketAddr::from_abstract_name(&bytes[..end]) {
            // It fails when the peer is gone, which is found out elsewhere, or has rings enough.
            let _ = self.socket.send_to_addr(&[1], &address);
        }
        // After it, so that a sender that is killed in between leaves no sleeper behind whom
        // nobody rings for. The number keeps this from a later sleep.
        let _ = segment.memory().swap_if(segment.sleeps(rank), sleep, 0);
    }

    /// Says that this rank sleeps, once for all its links. Records that are not seen after it
    /// ring.
    pub(super) fn arm(&self, segment: &Segment) {
        if self.armed.swap(true, Ordering::Relaxed) {
            return;
        }
        let sleep = self.sleep.fetch_add(1, Ordering::Relaxed) + 1;
        fall_asleep(segment.memory(), segment.sleeps(segment.local_rank()), sleep);
    }

    /// This rank is awake.
    pub(super) fn disarm(&self, segment: &Segment) {
        if self.armed.swap(false, Ordering::Relaxed) {
            segment.memory().store(segment.sleeps(segment.local_rank()), 0, Ordering::Relaxed);
            self.look();
        }
    }

    /// Looks what has happened: forgets rings, notes ends. A system call.
    pub(super) fn look(&self) {
        let mut events = [EpollEvent::empty(); 16];
        // An error leaves things as they are, until the next look.
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        for event in &events[..count] {
            if event.data() == SOCKET {
                // As many as there can be, the queue is short.
                while self.socket.recv(&mut [0; 1]).is_ok() {}
                continue;
            }
            let rank = event.data() as usize;
            self.ended[rank].store(true, Ordering::Relaxed);
            let mut processes =
                self.processes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if let Some(process) = processes[rank].take() {
                // It would be ready for ever.
                let _ = self.epoll.delete(process);
            }
        }
    }

    /// Readable when somebody has rung, or a peer's process has ended.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}
