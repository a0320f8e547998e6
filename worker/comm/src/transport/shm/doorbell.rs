//! Doorbell: wakes a rank of the same node that sleeps.
//!
//! 1. A rank that is about to sleep stores the number of this sleep in its sleep word in the shared
//!    segment, executes a full barrier, and polls its rings a last time.
//! 2. A sender that has published a record executes a full barrier and reads the receiver's sleep
//!    word. If it is not 0, the sender sends one byte to the receiver's datagram socket and then
//!    clears the word.
//!
//! Without both barriers the sleeper could miss the record while the sender misses the word (the
//! store-buffering race). The sender's barrier comes after the record is published, so it does not
//! delay the receiver: the latency of 8 bytes is the same without it. `membarrier(2)`, with which
//! only the sleeper would pay, is not used because registering for it takes up to 40 ms in
//! processes with threads.
//!
//! The socket has an abstract name that the kernel chose, so no other process can have taken it. A
//! spurious datagram is harmless: the rank polls and sleeps again.

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

/// Epoll data of the socket; other values are local ranks, whose pidfd is meant.
const SOCKET: u64 = u64::MAX;

/// Announces a sleep. The caller polls its rings again afterwards: a sender whose record it does
/// not see then will see the word.
pub(super) fn announce_sleep<M: Memory>(memory: &M, word: usize, sleep: u64) {
    memory.store(word, sleep, Ordering::Relaxed);
    memory.fence();
}

/// Returns the number of the sleep of the rank for which a record was just published, or 0 if it is
/// awake.
#[inline(always)]
pub(super) fn sleep_number<M: Memory>(memory: &M, word: usize) -> u64 {
    memory.fence();
    memory.load(word, Ordering::Relaxed)
}

/// Descriptor on which a rank sleeps, one for all its peers on the node.
#[derive(Debug)]
pub(super) struct Doorbell {
    socket: UnixDatagram,
    /// Contains the socket and a pidfd for each peer's process.
    epoll: Epoll,
    /// Pidfds by local rank.
    processes: Mutex<Vec<Option<OwnedFd>>>,
    /// Whether the process has ended, by local rank.
    ended: Vec<AtomicBool>,
    /// Whether this rank's sleep word is set.
    armed: AtomicBool,
    /// Number of this rank's last sleep.
    sleep: AtomicU64,
}

impl Doorbell {
    pub(super) fn new(local_size: usize) -> io::Result<Doorbell> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket::socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
        // An empty name has the kernel choose one.
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

    /// Returns the name of the socket, as peers need it for [`Doorbell::ring`].
    pub(super) fn name(&self) -> io::Result<u64> {
        let address = self.socket.local_addr()?;
        let name = address.as_abstract_name().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mut word = [0; 8];
        word.get_mut(..name.len()).ok_or(io::ErrorKind::InvalidData)?.copy_from_slice(name);
        Ok(u64::from_le_bytes(word))
    }

    /// Watches a peer's process for its end. Where the system has no pidfds, only the agent detects
    /// it.
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

    /// Returns whether [`Doorbell::poll`] has found that the peer's process has ended.
    #[inline(always)]
    pub(super) fn ended(&self, rank: usize) -> bool {
        self.ended[rank].load(Ordering::Relaxed)
    }

    /// Wakes the sleeping rank whose socket has this name, and clears its sleep word.
    #[cold]
    pub(super) fn ring(&self, segment: &Segment, rank: usize, sleep: u64, name: u64) {
        let bytes = name.to_le_bytes();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        if let Ok(address) = SocketAddr::from_abstract_name(&bytes[..end]) {
            // Fails if the peer is gone, which its pidfd reports, or if its socket is full, which
            // wakes it as well.
            let _ = self.socket.send_to_addr(&[1], &address);
        }
        // Clear the word only after the datagram: a sender killed in between would otherwise leave
        // a sleeper that no other sender wakes. The sleep's number protects a later sleep.
        let _ = segment.memory().swap_if(segment.sleep_word(rank), sleep, 0);
    }

    /// Announces that this rank sleeps, once for all its links. Senders of later records ring.
    pub(super) fn arm(&self, segment: &Segment) {
        if self.armed.swap(true, Ordering::Relaxed) {
            return;
        }
        let sleep = self.sleep.fetch_add(1, Ordering::Relaxed) + 1;
        announce_sleep(segment.memory(), segment.sleep_word(segment.local_rank()), sleep);
    }

    /// Clears the sleep word after a sleep.
    pub(super) fn disarm(&self, segment: &Segment) {
        if self.armed.swap(false, Ordering::Relaxed) {
            segment.memory().store(segment.sleep_word(segment.local_rank()), 0, Ordering::Relaxed);
            self.poll();
        }
    }

    /// Polls the epoll: drops pending datagrams, and records processes that have ended. Takes a
    /// system call.
    pub(super) fn poll(&self) {
        let mut events = [EpollEvent::empty(); 16];
        // On an error nothing changes until the next call.
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        for event in &events[..count] {
            if event.data() == SOCKET {
                // Read all datagrams; the queue is short.
                while self.socket.recv(&mut [0; 1]).is_ok() {}
                continue;
            }
            let rank = event.data() as usize;
            self.ended[rank].store(true, Ordering::Relaxed);
            let mut processes =
                self.processes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if let Some(process) = processes[rank].take() {
                // A pidfd of an ended process stays readable.
                let _ = self.epoll.delete(process);
            }
        }
    }

    /// Returns the descriptor that is readable after a ring, or after the end of a peer's process.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}
