//! Meeting peers when they are needed, in jobs with so many ranks that few pairs ever speak.
//!
//! A thread keeps the door: it lets peers in that dial, and dials those that are wanted. It runs as
//! long as any link waits for its peer. Those that speak RDMA meet here over TCP as well, and connect
//! their queue pairs then ([`LazyRdma`]).

use super::eager_connect::{self, TcpConnector};
use super::{Contact, LazyRdma, RankListener, WireUpError, wake_fd};
use crate::transport::wake_fd::WakeFd;
use crate::transport::{Link, LinkHint};
use crate::types::error::LinkError;
use nix::sys::signal::{SigSet, SigmaskHow};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::RankTable;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// With nobody to wait for, the thread wakes for nothing else than its peers and this.
const IDLE: Duration = Duration::from_secs(60);

/// Where links get their peers from. The thread ends with it.
#[derive(Debug)]
pub(crate) struct LazyConnector {
    shared: Arc<Shared>,
    /// Of those that do not speak TCP.
    link_hint: BTreeMap<Rank, LinkHint>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread and the links share.
#[derive(Debug)]
struct Shared {
    mailbox: Mutex<Mailbox>,
    /// Grows whenever a peer has come, or never will; then the rank is called.
    news: AtomicU32,
    /// How many of these calls were heard.
    heard: AtomicU32,
    is_closed: AtomicBool,
    /// Wakes the thread.
    wake: WakeFd,
    /// Wakes a rank that sleeps.
    arrivals: WakeFd,
}

#[derive(Default)]
struct Mailbox {
    wanted: Vec<Rank>,
    /// Peers whose processes have ended well.
    ended: Vec<Rank>,
    finished: BTreeMap<Rank, Result<Arrival, LinkError>>,
    /// Nobody comes any more.
    broken: Option<Arc<str>>,
}

/// End of a link's wait for its peer.
pub(crate) enum Arrival {
    Connected(Box<dyn Link>),
    /// Its process has ended, and nothing was sent to this rank.
    Left,
}

impl Mailbox {
    /// Takes those that are wanted, and those that have ended.
    fn take_requests(&mut self) -> (Vec<Rank>, Vec<Rank>) {
        (std::mem::take(&mut self.wanted), std::mem::take(&mut self.ended))
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut mailbox = f.debug_struct("Mailbox");
        mailbox.field("wanted", &self.wanted).field("broken", &self.broken).finish_non_exhaustive()
    }
}

impl LazyConnector {
    /// Keeps `listener` for this rank, `me`, and those of `peers`, whose `contacts` it knows; some of them
    /// are reached by `rdma`. A peer that is wanted has `patience` to come.
    pub(crate) fn open(
        listener: RankListener,
        rdma: Option<LazyRdma>,
        contacts: &[Contact],
        table: Arc<RankTable>,
        (me, peers): (Rank, &[Rank]),
        patience: Duration,
    ) -> Result<LazyConnector, WireUpError> {
        let shared = Arc::new(Shared {
            mailbox: Mutex::default(),
            news: AtomicU32::new(0),
            heard: AtomicU32::new(0),
            is_closed: AtomicBool::new(false),
            wake: wake_fd()?,
            arrivals: wake_fd()?,
        });
        let connector = TcpConnector::new(listener, contacts, &table, (me, peers), |_| None)?;
        let link_hint = rdma.as_ref().map(LazyRdma::link_hint).unwrap_or_default();
        let connects = ConnectThread { shared: shared.clone(), connector, rdma, table, patience };
        let thread = thread::Builder::new().name("rlaunch peers".to_owned());
        let thread = without_signals(|| thread.spawn(|| connects.run()));
        let thread = thread.map_err(|source| WireUpError::System {
            operation: "start the thread that lets peers in",
            source,
        })?;
        Ok(LazyConnector { shared, link_hint, thread: Some(thread) })
    }

    /// What the link to a peer will be.
    pub(crate) fn link_hint(&self, peer: Rank) -> LinkHint {
        self.link_hint.get(&peer).copied().unwrap_or(LinkHint::TCP)
    }

    /// Whether there are any news since `seen`, which it brings up to date.
    pub(crate) fn has_news(&self, seen: &mut u32) -> bool {
        self.shared.has_news(seen)
    }

    /// Before this rank sleeps on [`LazyConnector::fd`]: makes it quiet, where it is about news that are
    /// [there](Reception::has_news) already.
    pub(crate) fn quiet(&self) {
        self.shared.quiet();
    }

    /// Returns the owner of the descriptor, which is watched for longer than there is a reception.
    pub(crate) fn arrival_fd(&self) -> ArrivalFd {
        ArrivalFd(self.shared.clone())
    }

    /// The peer's process has ended well. Unless there is a connection to it, which brings what it has
    /// sent, it is [not met](Arrival::Left) any more.
    pub(crate) fn peer_has_left(&self, peer: Rank) {
        self.shared.lock().ended.push(peer);
        self.shared.wake.wake();
    }

    /// Has a peer dialled.
    pub(crate) fn want(&self, peer: Rank) {
        self.shared.lock().wanted.push(peer);
        self.shared.wake.wake();
    }

    /// Takes the end of the wait for a peer, if it has come.
    pub(crate) fn take(&self, peer: Rank) -> Result<Option<Arrival>, LinkError> {
        let mut mailbox = self.shared.lock();
        match mailbox.finished.remove(&peer).transpose()? {
            Some(arrival) => Ok(Some(arrival)),
            None => match &mailbox.broken {
                Some(why) => Err(LinkError::NotConnected(why.clone())),
                None => Ok(None),
            },
        }
    }
}

/// Readable when a reception has news.
#[derive(Debug)]
pub(crate) struct ArrivalFd(Arc<Shared>);

impl AsFd for ArrivalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.arrivals.as_fd()
    }
}

impl Drop for LazyConnector {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Release);
        self.shared.wake.wake();
        // It has nothing to say: a panic in it is a bug that was printed.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

impl Shared {
    fn has_news(&self, seen: &mut u32) -> bool {
        let news = self.news.load(Ordering::Acquire);
        std::mem::replace(seen, news) != news
    }

    /// Counts the news, and calls then: who has heard the call and finds no news has them already.
    fn announce(&self) {
        self.count();
        self.arrivals.wake();
    }

    fn count(&self) {
        self.news.fetch_add(1, Ordering::Release);
    }

    /// Hears the calls about news that were counted. As long as one is due that has not come, the next
    /// sleep hears it.
    fn quiet(&self) {
        let news = self.news.load(Ordering::Acquire);
        let heard = self.heard.load(Ordering::Relaxed);
        if news != heard {
            // One thread sleeps at a time.
            self.heard.store(heard.wrapping_add(self.arrivals.clear() as u32), Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread.
struct ConnectThread {
    shared: Arc<Shared>,
    connector: TcpConnector,
    rdma: Option<LazyRdma>,
    table: Arc<RankTable>,
    patience: Duration,
}

/// Who has come, or never will.
type Arrivals = Vec<(Rank, Result<Arrival, WireUpError>)>;

impl ConnectThread {
    fn run(mut self) {
        let mut waits: BTreeMap<Rank, Instant> = BTreeMap::new();
        let mut ended: BTreeSet<Rank> = BTreeSet::new();
        while !self.shared.is_closed.load(Ordering::Acquire) {
            let now = Instant::now();
            let (wanted, left) = self.shared.lock().take_requests();
            ended.extend(left);
            for rank in wanted {
                waits.entry(rank).or_insert_with(|| {
                    self.connector.want(rank);
                    now + self.patience
                });
            }
            // What they have sent is on its way by a connection that is in use, or about to be.
            let mut over: Vec<Rank> =
                ended.extract_if(.., |rank| !self.is_under_way(*rank)).collect();
            over.retain(|rank| self.connector.forget(*rank));
            if !over.is_empty() {
                waits.retain(|rank, _| !over.contains(rank));
                self.deliver(over.into_iter().map(|rank| (rank, Ok(Arrival::Left))).collect());
                continue;
            }
            if let Err(error) = self.step(&waits) {
                self.shared.lock().broken = Some(sentence(&error).into());
                return self.shared.announce();
            }
            let mut arrivals = Arrivals::new();
            for (rank, socket) in self.connector.take_connected() {
                waits.remove(&rank);
                self.on_connected(rank, socket, &mut arrivals);
            }
            for (rank, link) in self.rdma.as_mut().map(LazyRdma::advance).unwrap_or_default() {
                arrivals.push((rank, link.map(|link| Arrival::Connected(link))));
            }
            let now = Instant::now();
            for (rank, _) in waits.extract_if(.., |_, end| *end <= now) {
                let error = self.connector.give_up(rank, &self.table, self.patience);
                arrivals.extend(error.map(|error| (rank, Err(error))));
            }
            if !arrivals.is_empty() {
                self.deliver(arrivals);
            }
        }
    }

    /// Hands these to their links.
    fn deliver(&self, arrivals: Arrivals) {
        let unmet = |error| LinkError::NotConnected(sentence(&error).into());
        let arrivals = arrivals.into_iter().map(|(rank, arrival)| (rank, arrival.map_err(unmet)));
        self.shared.lock().finished.extend(arrivals);
        self.shared.announce();
    }

    /// Whether a connection to a peer is being made, or a queue pair.
    fn is_under_way(&self, rank: Rank) -> bool {
        self.connector.is_dialling(rank) || self.rdma.as_ref().is_some_and(|rdma| rdma.begins(rank))
    }

    /// Waits for something to happen, or until the first of those that are waited for has had its
    /// time.
    fn step(&mut self, waits: &BTreeMap<Rank, Instant>) -> Result<(), WireUpError> {
        let ends = waits.values().copied().chain(self.rdma.as_ref().and_then(LazyRdma::end));
        let end = ends.fold(Instant::now() + IDLE, Instant::min);
        let mut also = vec![self.shared.wake.as_fd()];
        also.extend(self.rdma.iter().flat_map(LazyRdma::fds));
        self.connector.step(end, &also)?;
        self.shared.wake.clear();
        Ok(())
    }

    /// A peer has been met over TCP.
    fn on_connected(&mut self, rank: Rank, socket: TcpStream, arrivals: &mut Arrivals) {
        match self.rdma.as_mut().filter(|rdma| rdma.speaks_with(rank)) {
            Some(rdma) => {
                let end = Instant::now() + self.patience;
                let begun = rdma.begin(rank, socket, end);
                arrivals.extend(begun.err().map(|error| (rank, Err(error))));
            }
            None => {
                let link = eager_connect::link(rank, socket);
                arrivals.push((rank, link.map(|link| Arrival::Connected(Box::new(link)))));
            }
        }
    }
}

/// With what to do about it, since nothing else says that here.
fn sentence(error: &WireUpError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    let hint = error.hint().map(|hint| format!(" (hint: {hint})"));
    format!("{error}{}{}", cause.unwrap_or_default(), hint.unwrap_or_default())
}

/// A thread that `starts` here gets none of the program's signals.
fn without_signals<R>(starts: impl FnOnce() -> R) -> R {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let started = starts();
    // The same call as above with what that one has returned: it cannot fail.
    let _ = before.map(|before| before.thread_set_mask());
    started
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    /// The thread's way to tell of news, in two steps, between which a rank may do anything.
    struct Announcer<'d> {
        shared: &'d Shared,
        is_counted: bool,
    }

    impl Announcer<'_> {
        fn step(&mut self) {
            match self.is_counted {
                false => self.shared.count(),
                true => self.shared.arrivals.wake(),
            }
            self.is_counted = !self.is_counted;
        }
    }

    fn would_wake(shared: &Shared) -> bool {
        let mut fds = [PollFd::new(shared.arrivals.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    }

    /// Every order of two news and of a rank that looks and is about to sleep, for two of its links.
    #[test]
    fn a_rank_does_not_sleep_on_news_and_is_not_woken_for_nothing() {
        for order in 0..1 << 12 {
            let shared = Shared {
                mailbox: Mutex::default(),
                news: AtomicU32::new(0),
                heard: AtomicU32::new(0),
                is_closed: AtomicBool::new(false),
                wake: wake_fd().unwrap(),
                arrivals: wake_fd().unwrap(),
            };
            let mut announcer = Announcer { shared: &shared, is_counted: false };
            let (mut steps, mut seen) = (0, [0; 2]);
            for moment in 0..12 {
                if order >> moment & 1 == 1 && steps < 4 {
                    announcer.step();
                    steps += 1;
                    continue;
                }
                let link = moment as usize % 2;
                shared.quiet();
                shared.has_news(&mut seen[link]);
            }
            // The rank goes to sleep, link by link; then what is left to do is done.
            let mut is_awake = false;
            for seen in &mut seen {
                shared.quiet();
                is_awake |= shared.has_news(seen);
            }
            while steps < 4 {
                announcer.step();
                steps += 1;
            }
            let sees = seen.iter().all(|seen| *seen == shared.news.load(Ordering::Acquire));
            assert!(sees || is_awake || would_wake(&shared), "{order:b}: it sleeps on news");
            // Once it has seen everything, it sleeps.
            for seen in &mut seen {
                shared.quiet();
                shared.has_news(seen);
            }
            assert!(!would_wake(&shared), "{order:b}: it is woken for nothing");
        }
    }
}
