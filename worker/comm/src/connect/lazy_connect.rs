//! Connections that are made at the first message, for large jobs, in which few pairs of ranks ever
//! communicate.
//!
//! One thread of the process accepts peers that dial, and dials the peers that a
//! [`LazyLink`](super::lazy_link::LazyLink) has asked for. The thread runs as long as any link
//! waits for its peer. Pairs that use RDMA first connect over TCP here, and then connect their
//! queue pairs ([`LazyRdma`]). The thread puts a finished connection into a mailbox, increments the
//! count of events, and wakes the rank through an eventfd.

use super::eager_connect::{self, TcpConnector};
use super::{ConnectError, Contact, LazyRdma, RankListener, wake_fd};
use crate::transport::{Link, LinkHint, WakeFd};
use crate::types::LinkError;
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

/// Longest sleep of the thread while no link asks for its peer.
const MAX_SLEEP: Duration = Duration::from_secs(60);

/// Connector from which lazy links take their connections. Dropping the connector ends the
/// connecting thread.
#[derive(Debug)]
pub(crate) struct LazyConnector {
    shared: Arc<Shared>,
    /// Properties of the links to peers that are reached by RDMA. All other peers are reached by
    /// TCP.
    link_hint: BTreeMap<Rank, LinkHint>,
    thread: Option<JoinHandle<()>>,
}

/// State that the thread and the links share.
#[derive(Debug)]
struct Shared {
    mailbox: Mutex<Mailbox>,
    /// Count of events, which are connections made or failed. The rank is woken after each
    /// increment.
    events: AtomicU32,
    /// Number of wake-ups that were drained, that is, read from `arrivals`.
    drained: AtomicU32,
    is_closed: AtomicBool,
    /// Descriptor that wakes the connecting thread.
    wake: WakeFd,
    /// Descriptor that wakes the sleeping rank.
    arrivals: WakeFd,
}

#[derive(Default)]
struct Mailbox {
    wanted: Vec<Rank>,
    /// Peers whose processes have exited successfully.
    ended: Vec<Rank>,
    finished: BTreeMap<Rank, Result<Arrival, LinkError>>,
    /// Error that ended the thread. No connection is made after it.
    broken: Option<Arc<str>>,
}

/// Result of a link's wait for a connection to its peer.
pub(crate) enum Arrival {
    Connected(Box<dyn Link>),
    /// The peer's process has exited without sending anything to this rank.
    Left,
}

impl Mailbox {
    /// Takes the peers that links have asked for, and the peers that have ended.
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
    /// Starts the thread for this rank, `me`. The thread accepts connections on `listener`, dials
    /// those of `peers` that links ask for, at their `contacts`, and uses `rdma` where possible. A
    /// peer that a link has asked for must connect within `timeout`.
    pub(crate) fn open(
        listener: RankListener,
        rdma: Option<LazyRdma>,
        contacts: &[Contact],
        table: Arc<RankTable>,
        me: Rank,
        peers: &[Rank],
        timeout: Duration,
    ) -> Result<LazyConnector, ConnectError> {
        let shared = Arc::new(Shared {
            mailbox: Mutex::default(),
            events: AtomicU32::new(0),
            drained: AtomicU32::new(0),
            is_closed: AtomicBool::new(false),
            wake: wake_fd()?,
            arrivals: wake_fd()?,
        });
        let connector = TcpConnector::new(listener, contacts, &table, me, peers, |_| None)?;
        let link_hint = rdma.as_ref().map(LazyRdma::link_hint).unwrap_or_default();
        let connect_thread =
            ConnectThread { shared: shared.clone(), connector, rdma, table, timeout };
        let thread = thread::Builder::new().name("rlaunch peers".to_owned());
        let thread = without_signals(|| thread.spawn(|| connect_thread.run()));
        let thread = thread.map_err(ConnectError::system("start the thread that accepts peers"))?;
        Ok(LazyConnector { shared, link_hint, thread: Some(thread) })
    }

    /// Returns the properties that the link to a peer will have.
    pub(crate) fn link_hint(&self, peer: Rank) -> LinkHint {
        self.link_hint.get(&peer).copied().unwrap_or(LinkHint::TCP)
    }

    /// Returns whether an event has occurred since the count `seen`, and sets `seen` to the current
    /// count.
    pub(crate) fn has_event(&self, seen: &mut u32) -> bool {
        self.shared.has_event(seen)
    }

    /// Drains the wake-ups of events that are counted already ([`LazyConnector::has_event`]), so
    /// that they do not end the next sleep.
    pub(crate) fn drain_wakeups(&self) {
        self.shared.drain_wakeups();
    }

    /// Returns the descriptor that wakes the rank. The rank may watch it even after the connector
    /// was dropped.
    pub(crate) fn arrival_fd(&self) -> ArrivalFd {
        ArrivalFd(self.shared.clone())
    }

    /// Reports that the peer's process has exited successfully. If a connection to the peer is in
    /// use or being made, that connection delivers the peer's last packets. Otherwise the link's
    /// wait for the peer ends with [`Arrival::Left`].
    pub(crate) fn peer_has_left(&self, peer: Rank) {
        self.shared.lock().ended.push(peer);
        self.shared.wake.wake();
    }

    /// Asks the connecting thread to dial a peer.
    pub(crate) fn want(&self, peer: Rank) {
        self.shared.lock().wanted.push(peer);
        self.shared.wake.wake();
    }

    /// Takes the result of a link's wait for this peer; `None` while the wait lasts.
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

/// Descriptor that is readable after an event of the connector.
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
        // The thread returns no value, and a panic in it has already been printed.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

impl Shared {
    fn has_event(&self, seen: &mut u32) -> bool {
        let events = self.events.load(Ordering::Acquire);
        std::mem::replace(seen, events) != events
    }

    /// Counts an event and then wakes the rank. Because of this order, a rank that drains the
    /// wake-up finds the event counted.
    fn announce(&self) {
        self.count();
        self.arrivals.wake();
    }

    fn count(&self) {
        self.events.fetch_add(1, Ordering::Release);
    }

    /// Drains the wake-ups of events that are counted. The wake-up of a counted event may not be
    /// written yet; such a wake-up ends the next sleep, and is drained afterwards.
    fn drain_wakeups(&self) {
        let events = self.events.load(Ordering::Acquire);
        let drained = self.drained.load(Ordering::Relaxed);
        if events != drained {
            // Only one thread sleeps at a time, so no other thread changes this count.
            self.drained
                .store(drained.wrapping_add(self.arrivals.clear() as u32), Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State of the connecting thread.
struct ConnectThread {
    shared: Arc<Shared>,
    connector: TcpConnector,
    rdma: Option<LazyRdma>,
    table: Arc<RankTable>,
    timeout: Duration,
}

/// Peers for which a link's wait has ended, each with the result.
type Arrivals = Vec<(Rank, Result<Arrival, ConnectError>)>;

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
                    now + self.timeout
                });
            }
            // Connections that are being made may still deliver data that an ended peer has sent,
            // so wait for them.
            let mut gone: Vec<Rank> =
                ended.extract_if(.., |rank| !self.is_connecting(*rank)).collect();
            gone.retain(|rank| self.connector.forget(*rank));
            if !gone.is_empty() {
                waits.retain(|rank, _| !gone.contains(rank));
                self.deliver(gone.into_iter().map(|rank| (rank, Ok(Arrival::Left))).collect());
                continue;
            }
            if let Err(error) = self.step(&waits) {
                self.shared.lock().broken = Some(full_text(&error).into());
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
            for (rank, _) in waits.extract_if(.., |_, deadline| *deadline <= now) {
                let error = self.connector.give_up(rank, &self.table, self.timeout);
                arrivals.extend(error.map(|error| (rank, Err(error))));
            }
            if !arrivals.is_empty() {
                self.deliver(arrivals);
            }
        }
    }

    /// Puts results into the mailbox, and wakes the rank.
    fn deliver(&self, arrivals: Arrivals) {
        let not_connected = |error| LinkError::NotConnected(full_text(&error).into());
        let arrivals =
            arrivals.into_iter().map(|(rank, arrival)| (rank, arrival.map_err(not_connected)));
        self.shared.lock().finished.extend(arrivals);
        self.shared.announce();
    }

    /// Returns whether this rank is dialling a peer, or connecting a queue pair with it.
    fn is_connecting(&self, rank: Rank) -> bool {
        self.connector.is_dialling(rank)
            || self.rdma.as_ref().is_some_and(|rdma| rdma.is_connecting(rank))
    }

    /// Waits until there is work or the first time limit of `waits` is reached, and takes the steps
    /// that are possible.
    fn step(&mut self, waits: &BTreeMap<Rank, Instant>) -> Result<(), ConnectError> {
        let deadlines =
            waits.values().copied().chain(self.rdma.as_ref().and_then(LazyRdma::deadline));
        let deadline = deadlines.fold(Instant::now() + MAX_SLEEP, Instant::min);
        let mut extra_fds = vec![self.shared.wake.as_fd()];
        extra_fds.extend(self.rdma.iter().flat_map(LazyRdma::fds));
        self.connector.step(deadline, &extra_fds)?;
        self.shared.wake.clear();
        Ok(())
    }

    /// Continues after a TCP connection to the peer `rank` was made: connects a queue pair if the
    /// pair uses RDMA, else makes the link.
    fn on_connected(&mut self, rank: Rank, socket: TcpStream, arrivals: &mut Arrivals) {
        match self.rdma.as_mut().filter(|rdma| rdma.uses_rdma(rank)) {
            Some(rdma) => {
                let deadline = Instant::now() + self.timeout;
                let started = rdma.begin(rank, socket, deadline);
                arrivals.extend(started.err().map(|error| (rank, Err(error))));
            }
            None => {
                let link = eager_connect::link(rank, socket);
                arrivals.push((rank, link.map(|link| Arrival::Connected(Box::new(link)))));
            }
        }
    }
}

/// Formats an error with its cause and hint, because the link's error has only one text.
fn full_text(error: &ConnectError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    let hint = error.hint().map(|hint| format!(" (hint: {hint})"));
    format!("{error}{}{}", cause.unwrap_or_default(), hint.unwrap_or_default())
}

/// Calls `f`, which starts a thread, with all signals blocked. The new thread then receives none of
/// the program's signals.
fn without_signals<R>(f: impl FnOnce() -> R) -> R {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let started = f();
    // This cannot fail: it restores a mask that the call above returned.
    let _ = before.map(|before| before.thread_set_mask());
    started
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    /// Announcement of an event by the connecting thread, in two steps. The rank may take any step
    /// in between.
    struct Announcer<'d> {
        shared: &'d Shared,
        is_counted: bool,
    }

    impl Announcer<'_> {
        fn step(&mut self) {
            if self.is_counted {
                self.shared.arrivals.wake();
            } else {
                self.shared.count();
            }
            self.is_counted = !self.is_counted;
        }
    }

    fn would_wake(shared: &Shared) -> bool {
        let mut fds = [PollFd::new(shared.arrivals.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    }

    /// Checks every order in which two events can occur between the steps of a rank that polls two
    /// links and is about to sleep.
    #[test]
    fn a_rank_does_not_sleep_on_news_and_is_not_woken_for_nothing() {
        for order in 0..1 << 12 {
            let shared = Shared {
                mailbox: Mutex::default(),
                events: AtomicU32::new(0),
                drained: AtomicU32::new(0),
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
                shared.drain_wakeups();
                shared.has_event(&mut seen[link]);
            }
            // The rank arms its links one by one; then the remaining events occur.
            let mut is_awake = false;
            for seen in &mut seen {
                shared.drain_wakeups();
                is_awake |= shared.has_event(seen);
            }
            while steps < 4 {
                announcer.step();
                steps += 1;
            }
            let sees = seen.iter().all(|seen| *seen == shared.events.load(Ordering::Acquire));
            assert!(sees || is_awake || would_wake(&shared), "{order:b}: it sleeps on events");
            // A rank that has seen all events sleeps.
            for seen in &mut seen {
                shared.drain_wakeups();
                shared.has_event(seen);
            }
            assert!(!would_wake(&shared), "{order:b}: it is woken for nothing");
        }
    }
}
