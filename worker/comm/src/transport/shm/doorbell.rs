//! Doorbell, by which a rank wakes a sleeping rank of the same node.
//!
//! 1. A rank that is about to sleep stores the number of this sleep in its sleep word in the shared
//!    segment, executes a full barrier, and polls its rings a last time.
//! 2. A sender that has published a record executes a full barrier and reads the receiver's sleep
//!    word. If it is not 0, the sender sends one byte to the receiver's datagram socket and then
//!    clears the word.
//!
//! Without both barriers the sleeping rank could miss the record while the sender misses the word
//! (the store-buffering race). The sender's barrier comes after the record is published, so it does
//! not delay the receiver: the latency of 8 bytes is the same without it. `membarrier(2)`, which
//! would move the whole cost to the sleeping rank, is not used because registering for it takes up
//! to 40 ms in processes with threads.
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

/// Epoll data of the socket. The epoll data of a pidfd is the local rank of its process.
const SOCKET_TOKEN: u64 = u64::MAX;

/// Announces a sleep of this rank: stores the number of the sleep in the rank's sleep word. The
/// caller then polls its rings once more. The sender of any record that this poll misses will see
/// the sleep word.
pub(super) fn announce_sleep<M: Memory>(memory: &M, word: usize, sleep: u64) {
    memory.store(word, sleep, Ordering::Relaxed);
    memory.fence();
}

/// Returns the number of the receiver's current sleep, or 0 if the receiver is awake. Called by a
/// sender that has just published a record. `word` is the offset of the receiver's sleep word.
#[inline(always)]
pub(super) fn sleep_number<M: Memory>(memory: &M, word: usize) -> u64 {
    memory.fence();
    memory.load(word, Ordering::Relaxed)
}

/// Doorbell of this rank, with the descriptor on which the rank sleeps until a peer on the node
/// rings or ends.
#[derive(Debug)]
pub(super) struct Doorbell {
    socket: UnixDatagram,
    /// Epoll descriptor that watches the socket and a pidfd of each peer's process.
    epoll: Epoll,
    /// Pidfds of the peers' processes, by local rank.
    processes: Mutex<Vec<Option<OwnedFd>>>,
    /// Whether each peer's process has ended, by local rank.
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
        epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, SOCKET_TOKEN))?;
        Ok(Doorbell {
            socket: UnixDatagram::from(socket),
            epoll,
            processes: Mutex::new((0..local_size).map(|_| None).collect()),
            ended: (0..local_size).map(|_| AtomicBool::new(false)).collect(),
            armed: AtomicBool::new(false),
            sleep: AtomicU64::new(0),
        })
    }

    /// Returns the name of this rank's socket. Peers pass the name to [`Doorbell::ring`].
    pub(super) fn name(&self) -> io::Result<u64> {
        let address = self.socket.local_addr()?;
        let name = address.as_abstract_name().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mut word = [0; 8];
        word.get_mut(..name.len()).ok_or(io::ErrorKind::InvalidData)?.copy_from_slice(name);
        Ok(u64::from_le_bytes(word))
    }

    /// Starts to watch for the end of a peer's process. If the system does not support pidfds, only
    /// the agent detects the end.
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
    pub(super) fn has_ended(&self, rank: usize) -> bool {
        self.ended[rank].load(Ordering::Relaxed)
    }

    /// Wakes the sleeping local rank `rank` by a datagram to its socket `name`. Then clears the
    /// rank's sleep word, unless the rank has ended the sleep with the number `sleep` already.
    #[cold]
    pub(super) fn ring(&self, segment: &Segment, rank: usize, sleep: u64, name: u64) {
        let bytes = name.to_le_bytes();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        if let Ok(address) = SocketAddr::from_abstract_name(&bytes[..end]) {
            // This fails if the peer is gone, which its pidfd reports, or if the peer's socket is
            // full, which means that it wakes up anyway.
            let _ = self.socket.send_to_addr(&[1], &address);
        }
        // Clear the word only after the datagram is sent: a sender killed in between would
        // otherwise leave a sleeping rank that no other sender wakes. If the rank has gone to sleep
        // again meanwhile, the number differs and the word stays.
        let _ = segment.memory().compare_exchange(segment.sleep_word(rank), sleep, 0);
    }

    /// Announces that this rank is about to sleep. One announcement is for all links of the rank;
    /// further calls before [`Doorbell::disarm`] do nothing. Peers that publish a record later
    /// [wake](Doorbell::ring) this rank.
    pub(super) fn arm(&self, segment: &Segment) {
        if self.armed.swap(true, Ordering::Relaxed) {
            return;
        }
        let sleep = self.sleep.fetch_add(1, Ordering::Relaxed) + 1;
        announce_sleep(segment.memory(), segment.sleep_word(segment.local_rank()), sleep);
    }

    /// Clears this rank's sleep word after a sleep, and takes the datagrams that have arrived.
    pub(super) fn disarm(&self, segment: &Segment) {
        if self.armed.swap(false, Ordering::Relaxed) {
            segment.memory().store(segment.sleep_word(segment.local_rank()), 0, Ordering::Relaxed);
            self.poll();
        }
    }

    /// Polls the epoll descriptor: drops pending datagrams, and records which processes have ended.
    /// Costs at least one system call.
    pub(super) fn poll(&self) {
        let mut events = [EpollEvent::empty(); 16];
        // If this fails, nothing changes until the next call.
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        for event in &events[..count] {
            if event.data() == SOCKET_TOKEN {
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

    /// Returns the descriptor that becomes readable when a peer rings or when a peer's process
    /// ends.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}
