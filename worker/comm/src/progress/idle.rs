//! Clock of a rank, and its sleep until a link or the agent has something to receive.
//!
//! One thread of a process, the sleeping thread, sleeps until a link has something to receive; the
//! others wait for the sleeping thread ([`Threads`]). Any thread that polls meanwhile may receive
//! the messages for which other threads wait.

use crate::transport::{WakeFd, WatchedFd};
use crate::types::LinkError;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum duration of a sleep, and so the maximum delay that a missed wake-up causes.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Clock and sleep of a rank. Simulations implement the trait with virtual time.
pub(crate) trait Idle: Send + Sync + std::fmt::Debug {
    /// Returns the time since a moment in the past that is the same for all calls.
    fn now(&self) -> Duration;
    /// Yields the processor once.
    fn yield_now(&self);
    /// Sleeps until a watched descriptor is ready, for at most `longest`. Returns whether the
    /// agent's socket is readable.
    fn sleep(&self, longest: Duration) -> bool;
    /// Makes [`Idle::sleep`] end when the descriptor `watched` is ready. `link` is the rank at the
    /// other end of the link that uses this descriptor.
    fn watch(&self, link: usize, watched: WatchedFd<'_>) -> Result<(), LinkError>;
    /// Stops watching `fd` for the link to rank `link`.
    fn unwatch(&self, link: usize, fd: BorrowedFd<'_>);
    /// Makes [`Idle::sleep`] end when the agent's socket is readable.
    fn watch_agent(&self, socket: BorrowedFd<'_>) -> Result<(), LinkError>;
    /// Ends the [`Idle::sleep`] of another thread. If no thread sleeps, the next sleep ends at
    /// once.
    fn wake(&self);
}

/// Epoll token of the agent's socket. Descriptors of links have token 0.
const AGENT: u64 = 1;
/// Epoll token of the eventfd that [`Idle::wake`] signals.
const WAKE: u64 = 2;

/// Implementation of [`Idle`] with the real clock and epoll(7).
#[derive(Debug)]
pub(crate) struct EpollIdle {
    begin: Instant,
    epoll: Epoll,
    wake: WakeFd,
    watches: Mutex<Watches>,
}

/// Descriptors that are watched for links. Several links may share a descriptor; epoll watches it
/// until none of these links needs it.
#[derive(Debug, Default)]
struct Watches {
    /// For each link, indexed by the rank at its other end: the descriptor, and whether a sleep
    /// also ends when the descriptor is writable. `None` if the link watches no descriptor.
    links: Vec<Option<(RawFd, bool)>>,
    /// For each descriptor: the number of links that watch it, and whether a sleep also ends when
    /// it is writable.
    files: BTreeMap<RawFd, (usize, bool)>,
}

impl Watches {
    /// Replaces the descriptor that a link watches by `next`, or by none if `next` is `None`.
    /// Returns the previous descriptor.
    fn replace(&mut self, link: usize, next: Option<(RawFd, bool)>) -> Option<(RawFd, bool)> {
        if link >= self.links.len() {
            self.links.resize(link + 1, None);
        }
        let before = std::mem::replace(&mut self.links[link], next);
        if let Some((fd, _)) = before
            && let Some((links, _)) = self.files.get_mut(&fd)
        {
            *links -= 1;
        }
        before
    }
}

impl EpollIdle {
    pub(crate) fn new() -> Result<EpollIdle, LinkError> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(system("epoll_create"))?;
        let wake = WakeFd::new();
        let wake =
            wake.map_err(|source| LinkError::System { operation: "make an eventfd", source })?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, WAKE);
        epoll.add(&wake, event).map_err(system("epoll_ctl"))?;
        Ok(EpollIdle { begin: Instant::now(), epoll, wake, watches: Mutex::default() })
    }
}

impl EpollIdle {
    /// Tells whether no watched descriptor is ready, so that a sleep would not end immediately.
    #[cfg(test)]
    pub(crate) fn is_quiet(&self) -> bool {
        self.epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO) == Ok(0)
    }

    /// Removes a descriptor from epoll if no link watches the descriptor any more.
    fn remove_unused(&self, watches: &mut Watches, fd: BorrowedFd<'_>) {
        let file = fd.as_raw_fd();
        if watches.files.get(&file).is_some_and(|(links, _)| *links == 0) {
            watches.files.remove(&file);
            // Fails if the descriptor was closed, which removed it from epoll already.
            let _ = self.epoll.delete(fd);
        }
    }
}

fn system(operation: &'static str) -> impl Fn(nix::Error) -> LinkError {
    move |errno| LinkError::System { operation, source: errno.into() }
}

impl Idle for EpollIdle {
    fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    fn yield_now(&self) {
        std::thread::yield_now();
    }

    fn sleep(&self, longest: Duration) -> bool {
        let mut events = [EpollEvent::empty(); 16];
        let longest =
            EpollTimeout::try_from(longest.min(LONGEST_SLEEP)).unwrap_or(EpollTimeout::ZERO);
        // A sleep that a signal interrupts counts as a short sleep.
        let count = self.epoll.wait(&mut events, longest).unwrap_or(0);
        let events = &events[..count];
        if events.iter().any(|event| event.data() == WAKE) {
            self.wake.clear();
        }
        events.iter().any(|event| event.data() == AGENT)
    }

    fn watch_agent(&self, socket: BorrowedFd<'_>) -> Result<(), LinkError> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, AGENT);
        self.epoll.add(socket, event).map_err(system("epoll_ctl"))
    }

    fn watch(&self, link: usize, watched: WatchedFd<'_>) -> Result<(), LinkError> {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        let next = (watched.fd.as_raw_fd(), watched.writable);
        if watches.links.get(link) == Some(&Some(next)) {
            return Ok(());
        }
        watches.replace(link, Some(next));
        if let Some(before) = watched.instead_of {
            self.remove_unused(&mut watches, before);
        }
        let mut flags = EpollFlags::EPOLLIN;
        flags.set(EpollFlags::EPOLLOUT, watched.writable);
        let mut event = EpollEvent::new(flags, 0);
        match watches.files.entry(next.0) {
            Entry::Occupied(mut known) => {
                let (links, writable) = known.get_mut();
                *links += 1;
                if std::mem::replace(writable, watched.writable) == watched.writable {
                    return Ok(());
                }
                self.epoll.modify(watched.fd, &mut event).map_err(system("epoll_ctl"))
            }
            Entry::Vacant(new) => {
                new.insert((1, watched.writable));
                self.epoll.add(watched.fd, event).map_err(system("epoll_ctl"))
            }
        }
    }

    fn unwatch(&self, link: usize, fd: BorrowedFd<'_>) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.replace(link, None);
        self.remove_unused(&mut watches, fd);
    }

    fn wake(&self) {
        self.wake.wake();
    }
}

/// State of the thread that sleeps until a link has something to receive.
#[derive(Debug, Default, PartialEq, Eq)]
enum Sleeper {
    #[default]
    None,
    Asleep,
    /// The thread has been woken, but does not hold the engine lock yet.
    Woken,
}

/// State of the waiting threads, protected by the engine lock.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    sleeper: Sleeper,
    /// Number of threads that wait until the sleep of the sleeping thread ends.
    pub(crate) waiting_threads: u32,
    /// Whether something has happened that the sleeping thread may not know about.
    has_changed: bool,
    /// Object whose [`Idle::wake`] ends the sleep of the sleeping thread.
    waker: Option<Arc<dyn Idle>>,
}

impl Threads {
    pub(crate) fn set_waker(&mut self, waker: Arc<dyn Idle>) {
        self.waker = Some(waker);
    }

    /// Tells whether there is a sleeping thread. A thread that has been woken counts as sleeping
    /// until it holds the engine lock.
    pub(crate) fn has_sleeper(&self) -> bool {
        self.sleeper != Sleeper::None
    }

    /// Marks the calling thread as sleeping until a link has something to receive. The thread must
    /// have polled all links.
    pub(crate) fn begin_sleep(&mut self) {
        self.sleeper = Sleeper::Asleep;
        self.has_changed = false;
    }

    pub(crate) fn end_sleep(&mut self) {
        self.sleeper = Sleeper::None;
    }

    /// Records that something was received, has failed or waits to be sent, so that
    /// [`Threads::on_unlock`] wakes the sleeping thread.
    #[inline]
    pub(crate) fn note_change(&mut self) {
        self.has_changed = true;
    }

    /// Wakes the sleeping thread if something has changed. Runs whenever a thread releases the
    /// engine lock.
    #[inline]
    pub(crate) fn on_unlock(&mut self) {
        if std::mem::take(&mut self.has_changed) && self.sleeper == Sleeper::Asleep {
            self.sleeper = Sleeper::Woken;
            if let Some(waker) = &self.waker {
                waker.wake();
            }
        }
    }
}
