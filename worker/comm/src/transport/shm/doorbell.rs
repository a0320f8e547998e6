//! Doorbell, by which a rank wakes a sleeping rank of the same node.
//!
//! 1. A rank that is about to sleep stores the number of this sleep in its sleep word in the shared
//!    segment, executes a full barrier, and polls its rings a last time.
//! 2. A sender that has published a record executes a full barrier and reads the receiver's sleep
//!    word. If it is not 0, the sender sends one byte to the receiver's datagram socket and then
//!    clears the word. It may poll for an answer in between; until then the receiver sleeps on.
//!
//! Without both barriers the sleeping rank could miss the record while the sender misses the word
//! (the store-buffering race). The sender's barrier comes after the record is published, so it does
//! not delay the receiver: the latency of 8 bytes is the same without it. `membarrier(2)`, which
//! would move the whole cost to the sleeping rank, is not used because registering for it takes up
//! to 40 ms in processes with threads.
//!
//! The socket has an abstract name that the kernel chose, so no other process can have taken it. A
//! spurious datagram is harmless: the rank polls and sleeps again.
//!
//! Guard for the wait for a peer that is suspended while it may write to this rank's memory.
//!
//! During a [split copy](super::split_copy), a slice that the peer has claimed cannot be taken
//! back: whenever the peer continues, it writes the slice. So the wait ends only when the peer has
//! written the slice or is dead. If waits have a time limit, the guard sends SIGCONT to the peer
//! when the limit has passed. If the peer still does not finish, for example because a debugger has
//! stopped it or its cgroup is frozen, the guard kills it.

use super::memory::Memory;
use super::segment::Segment;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use nix::unistd::Pid;
use rlaunch_bootstrap::deadline::Deadline;
use rustix::process::{PidfdFlags, pidfd_open};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

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
        let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) else {
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

/// Time after which a peer counts as suspended, and not merely as waiting for a processor.
const SUSPENDED_AFTER: Duration = Duration::from_millis(100);
/// Time that each check sleeps, once [`SUSPENDED_AFTER`] has passed.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Time after which the guard reports the wait on stderr.
const NOTICE_AFTER: Duration = Duration::from_secs(10);
/// Time for a resumed peer to finish writing the slice that it has claimed last.
const FINISH_TIME: Duration = Duration::from_secs(1);

/// Guard of this rank's wait for one peer: it resumes or kills a peer that is suspended for too
/// long.
#[derive(Debug)]
pub(super) struct StallGuard {
    pid: Pid,
    begin: Instant,
    limit: Option<Duration>,
    is_reported: bool,
    /// Whether the peer was stopped when SIGCONT was sent, and the deadline for it to finish;
    /// `None` before SIGCONT is sent.
    resumed: Option<(bool, Deadline)>,
    is_killed: bool,
}

impl StallGuard {
    pub(super) fn new(pid: Pid, limit: Option<Duration>) -> StallGuard {
        let begin = Instant::now();
        StallGuard { pid, begin, limit, is_reported: false, resumed: None, is_killed: false }
    }

    /// Reports the wait, or resumes or kills the peer, if the wait has lasted long enough. Sleeps
    /// for [`POLL_INTERVAL`] once [`SUSPENDED_AFTER`] has passed.
    pub(super) fn check(&mut self) {
        let lasted = self.begin.elapsed();
        if lasted > SUSPENDED_AFTER {
            thread::sleep(POLL_INTERVAL);
        }
        if lasted > NOTICE_AFTER && !self.is_reported {
            self.is_reported = true;
            let (seconds, pid) = (lasted.as_secs(), self.pid);
            eprintln!("rlaunch: waiting {seconds} s for process {pid} to finish a message");
        }
        let Some(limit) = self.limit else { return };
        if let Some((_, deadline)) = &mut self.resumed {
            if !self.is_killed && deadline.has_expired(Instant::now()) {
                self.is_killed = true;
                let _ = kill(self.pid, Signal::SIGKILL);
            }
        } else if lasted > limit {
            let deadline =
                Deadline::after(FINISH_TIME, Instant::now()).checked_every(POLL_INTERVAL);
            self.resumed = Some((is_stopped(self.pid), deadline));
            let _ = kill(self.pid, Signal::SIGCONT);
        }
    }
}

/// Stops the peer again if it was stopped before the guard resumed it.
impl Drop for StallGuard {
    fn drop(&mut self) {
        if self.resumed.is_some_and(|(was_stopped, _)| was_stopped) && !self.is_killed {
            let _ = kill(self.pid, Signal::SIGSTOP);
        }
    }
}

/// Returns whether the process is stopped by a signal.
fn is_stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The command name before the state may contain any characters.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// Timeout for expected events; generous, since a busy machine may be suspended for seconds.
    const BOUND: Duration = Duration::from_secs(50);

    struct Peer(Child);

    impl Peer {
        fn stopped() -> (Peer, Pid) {
            let child = Command::new("sleep").arg("60").spawn().unwrap();
            let pid = Pid::from_raw(child.id() as i32);
            kill(pid, Signal::SIGSTOP).unwrap();
            wait_for(|| is_stopped(pid));
            (Peer(child), pid)
        }
    }

    impl Drop for Peer {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn wait_for(mut condition: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !condition() {
            assert!(begin.elapsed() < BOUND);
            thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn who_stands_still_is_woken_after_the_limit_and_stopped_again() {
        let (_peer, pid) = Peer::stopped();
        let mut stall = StallGuard::new(pid, Some(Duration::from_millis(1)));
        thread::sleep(2 * POLL_INTERVAL);
        stall.check();
        wait_for(|| !is_stopped(pid));
        drop(stall);
        wait_for(|| is_stopped(pid));
    }

    #[test]
    fn who_did_not_look_for_long_leaves_it_its_time_to_go_on() {
        let (_peer, pid) = Peer::stopped();
        let mut stall = StallGuard::new(pid, Some(Duration::from_millis(1)));
        // This process was suspended before it sent SIGCONT.
        stall.begin -= 2 * FINISH_TIME;
        stall.check();
        stall.check();
        assert!(stall.resumed.is_some() && !stall.is_killed, "{stall:?}");
        wait_for(|| !is_stopped(pid));
    }

    #[test]
    fn who_goes_on_and_does_not_finish_is_ended() {
        let (mut peer, pid) = Peer::stopped();
        let mut stall = StallGuard::new(pid, Some(Duration::from_millis(1)));
        let ended = || {
            stall.check();
            peer.0.try_wait().unwrap().is_some()
        };
        wait_for(ended);
    }

    #[test]
    fn without_a_limit_it_is_left_alone() {
        let (_peer, pid) = Peer::stopped();
        let mut stall = StallGuard::new(pid, None);
        thread::sleep(2 * POLL_INTERVAL);
        stall.check();
        drop(stall);
        assert!(is_stopped(pid));
    }
}
