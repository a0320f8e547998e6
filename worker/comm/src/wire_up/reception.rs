//! Meeting peers when they are needed, in jobs with so many ranks that few pairs ever speak.
//!
//! A thread keeps the door: it lets peers in that dial, and dials those that are wanted. It runs as
//! long as any link waits for its peer. Those that speak RDMA meet here over TCP as well, and connect
//! their queue pairs then ([`Later`]).

use super::meeting::{Meeting, Sockets};
use super::{Contact, Door, Later, WireUpError, bell};
use crate::bell::Bell;
use crate::error::LinkError;
use crate::link::{Link, Outlook};
use nix::sys::signal::{SigSet, SigmaskHow};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::table::RankTable;
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// With nobody to wait for, the thread wakes for nothing else than its peers and this.
const IDLE: Duration = Duration::from_secs(60);

/// Where links get their peers from. The thread ends with it.
#[derive(Debug)]
pub(crate) struct Reception {
    desk: Arc<FrontDesk>,
    /// Of those that do not speak TCP.
    outlooks: BTreeMap<Rank, Outlook>,
    keeper: Option<JoinHandle<()>>,
}

/// What the thread and the links share.
#[derive(Debug)]
struct FrontDesk {
    slips: Mutex<Slips>,
    /// Grows whenever somebody has come, or never will.
    news: AtomicU32,
    is_closed: AtomicBool,
    /// Wakes the thread.
    bell: Bell,
    /// Wakes a rank that sleeps.
    call: Bell,
}

#[derive(Default)]
struct Slips {
    wanted: Vec<Rank>,
    met: BTreeMap<Rank, Result<Box<dyn Link>, LinkError>>,
    /// Nobody comes any more.
    broken: Option<Arc<str>>,
}

impl fmt::Debug for Slips {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut slips = f.debug_struct("Slips");
        slips.field("wanted", &self.wanted).field("broken", &self.broken).finish_non_exhaustive()
    }
}

impl Reception {
    /// Keeps `door` for this rank, `me`, and those of `peers`, whose `contacts` it knows; some of them
    /// are reached by `rdma`. A peer that is wanted has `patience` to come.
    pub(crate) fn open(
        door: Door,
        rdma: Option<Later>,
        contacts: &[Contact],
        table: Arc<RankTable>,
        (me, peers): (Rank, &[Rank]),
        patience: Duration,
    ) -> Result<Reception, WireUpError> {
        let desk = Arc::new(FrontDesk {
            slips: Mutex::default(),
            news: AtomicU32::new(0),
            is_closed: AtomicBool::new(false),
            bell: bell()?,
            call: bell()?,
        });
        let meeting = Meeting::new(door, contacts, &table, (me, peers), |_| None)?;
        let outlooks = rdma.as_ref().map(Later::outlooks).unwrap_or_default();
        let keeps = Keeper { desk: desk.clone(), meeting, rdma, table, patience };
        let thread = thread::Builder::new().name("rlaunch peers".to_owned());
        let keeper = without_signals(|| thread.spawn(|| keeps.run()));
        let keeper = keeper.map_err(|source| WireUpError::System {
            operation: "start the thread that lets peers in",
            source,
        })?;
        Ok(Reception { desk, outlooks, keeper: Some(keeper) })
    }

    /// What the link to a peer will be.
    pub(crate) fn outlook(&self, peer: Rank) -> Outlook {
        self.outlooks.get(&peer).copied().unwrap_or(Outlook::TCP)
    }

    /// Whether there are any news since `seen`, which it brings up to date.
    pub(crate) fn has_news(&self, seen: &mut u32) -> bool {
        let news = self.desk.news.load(Ordering::Acquire);
        let is_new = std::mem::replace(seen, news) != news;
        if is_new {
            // Others see by their own `seen` that there are news, and it rang before that.
            self.desk.call.hear();
        }
        is_new
    }

    /// Has a peer dialled.
    pub(crate) fn want(&self, peer: Rank) {
        self.desk.lock().wanted.push(peer);
        self.desk.bell.ring();
    }

    /// The link to a peer, if it has come.
    pub(crate) fn take(&self, peer: Rank) -> Result<Option<Box<dyn Link>>, LinkError> {
        let mut slips = self.desk.lock();
        match slips.met.remove(&peer).transpose()? {
            Some(link) => Ok(Some(link)),
            None => match &slips.broken {
                Some(why) => Err(LinkError::Unmet(why.clone())),
                None => Ok(None),
            },
        }
    }

    /// Readable when there are news that nobody has looked at.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.desk.call.as_fd()
    }
}

impl Drop for Reception {
    fn drop(&mut self) {
        self.desk.is_closed.store(true, Ordering::Release);
        self.desk.bell.ring();
        // It has nothing to say: a panic in it is a bug that was printed.
        drop(self.keeper.take().map(JoinHandle::join));
    }
}

impl FrontDesk {
    fn lock(&self) -> MutexGuard<'_, Slips> {
        self.slips.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread.
struct Keeper {
    desk: Arc<FrontDesk>,
    meeting: Meeting,
    rdma: Option<Later>,
    table: Arc<RankTable>,
    patience: Duration,
}

/// Who has come, or never will.
type Came = Vec<(Rank, Result<Box<dyn Link>, WireUpError>)>;

impl Keeper {
    fn run(mut self) {
        let mut waits: BTreeMap<Rank, Instant> = BTreeMap::new();
        while !self.desk.is_closed.load(Ordering::Acquire) {
            let now = Instant::now();
            for rank in std::mem::take(&mut self.desk.lock().wanted) {
                waits.entry(rank).or_insert_with(|| {
                    self.meeting.want(rank);
                    now + self.patience
                });
            }
            if let Err(error) = self.step(&waits) {
                self.desk.lock().broken = Some(sentence(&error).into());
                return self.tell();
            }
            let mut came = Came::new();
            for (rank, sockets) in self.meeting.met() {
                waits.remove(&rank);
                self.meet(rank, sockets, &mut came);
            }
            for (rank, link) in self.rdma.as_mut().map(Later::advance).unwrap_or_default() {
                came.push((rank, link.map(|link| link as _)));
            }
            let now = Instant::now();
            for (rank, _) in waits.extract_if(.., |_, end| *end <= now) {
                let error = self.meeting.give_up(rank, &self.table, self.patience);
                came.extend(error.map(|error| (rank, Err(error))));
            }
            if !came.is_empty() {
                let unmet = |error| LinkError::Unmet(sentence(&error).into());
                let came = came.into_iter().map(|(rank, link)| (rank, link.map_err(unmet)));
                self.desk.lock().met.extend(came);
                self.tell();
            }
        }
    }

    /// Waits for something to happen, or until the first of those that are waited for has had its
    /// time.
    fn step(&mut self, waits: &BTreeMap<Rank, Instant>) -> Result<(), WireUpError> {
        let ends = waits.values().copied().chain(self.rdma.as_ref().and_then(Later::end));
        let end = ends.fold(Instant::now() + IDLE, Instant::min);
        let mut also = vec![self.desk.bell.as_fd()];
        also.extend(self.rdma.iter().flat_map(Later::fds));
        self.meeting.step(end, &also)?;
        self.desk.bell.hear();
        Ok(())
    }

    /// A peer has been met over TCP.
    fn meet(&mut self, rank: Rank, sockets: Sockets, came: &mut Came) {
        match self.rdma.as_mut().filter(|rdma| rdma.speaks_with(rank)) {
            Some(rdma) => {
                let end = Instant::now() + self.patience;
                let begun = sockets.first(rank).and_then(|socket| rdma.begin(rank, socket, end));
                came.extend(begun.err().map(|error| (rank, Err(error))));
            }
            None => came.push((rank, sockets.link(rank).map(|link| Box::new(link) as _))),
        }
    }

    fn tell(&self) {
        // In this order: who sees the news makes it quiet.
        self.desk.call.ring();
        self.desk.news.fetch_add(1, Ordering::Release);
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
