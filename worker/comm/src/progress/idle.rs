//! How a rank sleeps, and what wakes it.

use crate::transport::WatchedFd;
use crate::transport::wake_fd::WakeFd;
use crate::types::error::LinkError;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest sleep: what is forgotten is found then.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// What a rank does while it waits, and what time it is.
pub(crate) trait Idle: Send + Sync + std::fmt::Debug {
    /// Since some moment.
    fn now(&self) -> Duration;
    /// Lets others run once.
    fn yield_now(&self);
    /// Sleeps until something happens at the links, `longest` at most. Says whether the agent has
    /// something to tell.
    fn sleep(&self, longest: Duration) -> bool;
    /// Has [`Idle::sleep`] end when this is ready, for the link with this number.
    fn watch(&self, link: usize, watched: WatchedFd<'_>) -> Result<(), LinkError>;
    /// The link with this number waits for nothing any more, and least of all for what becomes of
    /// this, that it has had watched.
    fn unwatch(&self, link: usize, fd: BorrowedFd<'_>);
    /// The same for the agent's socket.
    fn watch_agent(&self, socket: BorrowedFd<'_>) -> Result<(), LinkError>;
    /// Ends the [`Idle::sleep`] of another thread, or else the next one.
    fn wake(&self);
}

/// What epoll calls the agent and the bell; links are 0.
const AGENT: u64 = 1;
const BELL: u64 = 2;

/// The real thing.
#[derive(Debug)]
pub(crate) struct EpollIdle {
    begin: Instant,
    epoll: Epoll,
    wake: WakeFd,
    watches: Mutex<Watches>,
}

/// Files that are watched for links. Links may share one: it is watched until the last of them has left.
#[derive(Debug, Default)]
struct Watches {
    /// Each link's descriptor that was watched last and whether for room as well.
    links: Vec<Option<(RawFd, bool)>>,
    /// How many links watch it, and whether for room as well.
    files: BTreeMap<RawFd, (usize, bool)>,
}

impl Watches {
    /// A link watches this from here on, or nothing; returns what it was watching until then.
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
        let event = EpollEvent::new(EpollFlags::EPOLLIN, BELL);
        epoll.add(&wake, event).map_err(system("epoll_ctl"))?;
        Ok(EpollIdle { begin: Instant::now(), epoll, wake, watches: Mutex::default() })
    }
}

impl EpollIdle {
    /// Whether nothing ends a sleep now.
    #[cfg(test)]
    pub(crate) fn is_quiet(&self) -> bool {
        self.epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO) == Ok(0)
    }

    /// Watches this no more if no link does.
    fn remove_unused(&self, watches: &mut Watches, fd: BorrowedFd<'_>) {
        let file = fd.as_raw_fd();
        if watches.files.get(&file).is_some_and(|(links, _)| *links == 0) {
            watches.files.remove(&file);
            // It fails where the file was closed, and is watched no more then.
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
        // An interrupted sleep is a short one.
        let count = self.epoll.wait(&mut events, longest).unwrap_or(0);
        let events = &events[..count];
        if events.iter().any(|event| event.data() == BELL) {
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
