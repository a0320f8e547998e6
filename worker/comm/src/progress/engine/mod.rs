//! Engine of a process: the state of all messages and collectives of all its communicators. It
//! never blocks; [`crate::progress::wait`] waits.
//!
//! Message protocols:
//!
//! * Eager: a message up to [`Limits::eager`] travels with its header. If no receive is posted for
//!   it, the receiver keeps a copy.
//! * Rendezvous: the sender announces a longer message with an RTS packet. Once a receive matches
//!   it, the receiver does one of three things. It fetches the message from the sender's memory and
//!   answers FIN; or it answers CTS with the place to write to, and the sender's device writes the
//!   message and sends `Written`; or it answers a bare CTS, and the sender sends `Data` packets.
//! * Cancellation: see [`out_of_step`].
//!
//! | file | contents |
//! |---|---|
//! | `matching` | posted receives, requests, collectives, and the error that fails them all |
//! | `incoming`, `inbox` | handling of received packets; messages of one peer that are not complete or not matched |
//! | `outbox` | packets waiting to be sent to one peer |
//! | `fetch` | zero-copy transfer of long messages |
//! | `direct` | short messages sent from and received into the caller's memory without queueing |
//! | `collective`, `target` | running collectives; destinations of received bytes |
//! | `out_of_step` | cancellation, and notices of cancelled collectives |
//! | `job_events` | reports of the agent about other ranks |
//! | `threads`, `slab` | coordination of waiting threads; keyed storage |

pub(crate) mod collective;
pub(crate) mod direct;
mod fetch;
mod inbox;
mod incoming;
mod job_events;
pub(crate) mod matching;
pub(crate) mod out_of_step;
mod outbox;
mod slab;
pub(crate) mod target;
mod threads;

pub(crate) use self::matching::{Owner, RequestState, Status};
pub(crate) use slab::SlabKey;

use self::matching::{Matching, PostedReceive};
use crate::progress::idle::Idle;
use crate::transport::packet::{Header, PacketKind};
use crate::transport::{Armed, Limits, Link, LocalSlice};
use crate::types::error::{Cause, LinkError, Operation, PeerName};
use inbox::Inbox;
use incoming::Incoming;
use outbox::Outbox;
use rlaunch_lock::{BufferId, BufferTable};
use std::sync::Arc;
use std::time::Duration;
use target::Target;
use threads::Threads;

/// Links whose polls are system calls are polled only every this many rounds while nothing is
/// expected from their peer.
const IDLE_POLL_INTERVAL: u32 = 32;
/// Peer, communicator and tag that identify a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    /// Rank in the job.
    pub(crate) peer: usize,
    pub(crate) context: u32,
    pub(crate) tag: u32,
}

/// State of one rank of the job; one of them is this rank.
struct Peer {
    link: Box<dyn Link>,
    limits: Limits,
    outbox: Outbox,
    inbox: Inbox,
    /// The sleeper wakes when the link has room to send.
    is_armed_for_room: bool,
    /// The sleeper wakes when the link has something to receive.
    is_watched: bool,
    is_gone: bool,
}

/// Messages and collectives of a process. See the module documentation.
pub(crate) struct Engine {
    peers: Vec<Peer>,
    me: usize,
    /// First rank that was lost.
    lost: Option<usize>,
    /// The agent has reported why the job fails, so [`Matching::fault`] is final.
    has_launcher_cause: bool,
    pub(crate) matching: Matching,
    /// Buffer for the results of [`Outbox::pump`].
    sent: Vec<(Owner, usize)>,
    /// Bytes fetched for a reduction.
    scratch: Vec<u8>,
    rounds: u32,
    /// Peer whose message a call last waited for without a posted receive.
    awaited: usize,
    pub(crate) threads: Threads,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("matching", &self.matching).finish_non_exhaustive()
    }
}

impl Engine {
    /// Creates an engine for rank `me` with a link to each rank of the job.
    pub(crate) fn new(me: usize, links: Vec<Box<dyn Link>>, names: Arc<[PeerName]>) -> Engine {
        let peer = |link: Box<dyn Link>| Peer {
            limits: link.limits(),
            link,
            outbox: Outbox::default(),
            inbox: Inbox::default(),
            is_armed_for_room: false,
            is_watched: false,
            is_gone: false,
        };
        let peers = links.into_iter().map(peer).collect();
        Engine {
            peers,
            me,
            lost: None,
            has_launcher_cause: false,
            matching: Matching::new(names),
            sent: Vec::new(),
            scratch: Vec::new(),
            rounds: 0,
            awaited: me,
            threads: Threads::default(),
        }
    }

    /// Returns the longest message in bytes that every link sends eagerly.
    pub(crate) fn least_eager(&self) -> usize {
        self.peers.iter().map(|peer| peer.limits.eager).min().unwrap_or(0)
    }

    /// Returns the largest [`Link::wake_latency`].
    pub(crate) fn wake_latency(&self) -> Duration {
        self.peers.iter().map(|peer| peer.link.wake_latency()).max().unwrap_or_default()
    }

    /// Tells whether polling any other rank takes a system call.
    pub(crate) fn poll_is_syscall(&self) -> bool {
        let mut others = self.peers.iter().enumerate().filter(|&(at, _)| at != self.me);
        others.all(|(_, peer)| peer.limits.poll_is_syscall)
    }

    /// Creates a request. It has failed already if the engine has.
    pub(crate) fn request(&mut self, operation: Operation) -> SlabKey {
        let ended = self.matching.fault.clone().map(Err);
        self.matching.requests.insert(RequestState { operation, ended, collective: None })
    }

    /// Removes a completed request and returns its result.
    #[inline]
    pub(crate) fn take(&mut self, key: SlabKey) -> Option<Result<Status, Cause>> {
        let ended = self.matching.requests.get_mut(key)?.ended.take()?;
        self.matching.requests.remove(key);
        Some(ended)
    }

    pub(crate) fn operation(&mut self, key: SlabKey) -> Option<Operation> {
        self.matching.requests.get_mut(key).map(|request| request.operation)
    }

    /// Tells whether nothing can be sent to a peer any more.
    #[inline]
    fn has_failed(&self, peer: usize) -> bool {
        self.peers[peer].is_gone || self.matching.fault.is_some()
    }

    /// Returns why nothing can be sent to a peer.
    #[cold]
    pub(crate) fn failure(&self, peer: usize) -> Cause {
        let left = || Cause::Left(self.matching.names[peer].clone());
        self.matching.fault.clone().unwrap_or_else(left)
    }

    /// Sends a message, or queues it.
    #[inline]
    pub(crate) fn send(
        &mut self,
        to: Envelope,
        from: LocalSlice,
        owner: Owner,
        buffers: &BufferTable,
    ) {
        if self.has_failed(to.peer) {
            let cause = self.failure(to.peer);
            return self.matching.complete(owner, Err(cause));
        }
        let peer = &mut self.peers[to.peer];
        let length = from.length;
        let (context, tag) = (to.context, to.tag);
        if length <= peer.limits.eager {
            let length = length as u32;
            let header = Header { kind: PacketKind::Eager, context, tag, transfer: 0, length };
            peer.outbox.push_message(header, from, owner);
        } else {
            let offered = from.read(buffers, |bytes| peer.link.expose_read(bytes));
            let address = offered.flatten().unwrap_or(0);
            let header = Header { kind: PacketKind::Rts, context, tag, transfer: 0, length: 0 };
            peer.outbox.push_rts(header, from, address, owner);
        }
        self.pump(to.peer, buffers);
    }

    /// Posts a receive from one peer.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        from: Envelope,
        target: Target,
        owner: Owner,
        buffers: &BufferTable,
    ) {
        let Envelope { peer, context, tag } = from;
        let posted = PostedReceive { from: Some(peer), context, tag, target, owner };
        if self.find(peer, posted, buffers) {
            return;
        }
        if self.has_failed(peer) {
            let cause = self.failure(peer);
            return self.matching.complete(owner, Err(cause));
        }
        self.matching.posted.push(posted);
    }

    /// Posts a receive that matches the first message from any of `ranks`, which are ranks of the
    /// job.
    pub(crate) fn receive_any(
        &mut self,
        ranks: &[usize],
        (context, tag): (u32, u32),
        (target, owner): (Target, Owner),
        buffers: &BufferTable,
    ) {
        let posted = PostedReceive { from: None, context, tag, target, owner };
        // Oldest arrival first, so that a talkative rank does not starve the others.
        let arrival =
            |peer: &usize| Some((self.peers[*peer].inbox.arrival_of(context, tag)?, *peer));
        let first = ranks.iter().filter_map(arrival).min();
        if first.is_some_and(|(_, peer)| self.find(peer, posted, buffers)) {
            return;
        }
        if let Some(fault) = &self.matching.fault {
            let cause = fault.clone();
            return self.matching.complete(owner, Err(cause));
        }
        self.matching.posted.push(posted);
    }

    /// Matches a receive with a message that has already arrived; `false` if there is none.
    fn find(&mut self, peer: usize, posted: PostedReceive, buffers: &BufferTable) -> bool {
        let found = self.incoming(peer, buffers).0.match_posted(posted);
        match found {
            Ok(found) => {
                if found && !self.peers[peer].outbox.is_empty() {
                    self.pump(peer, buffers);
                }
                if found {
                    self.fetch(peer, buffers);
                }
                found
            }
            Err(error) => {
                self.lose(peer, error);
                false
            }
        }
    }

    #[inline]
    fn incoming<'e>(
        &'e mut self,
        peer: usize,
        buffers: &'e BufferTable,
    ) -> (Incoming<'e>, &'e mut dyn Link) {
        let Peer { link, limits, outbox, inbox, .. } = &mut self.peers[peer];
        let matching = &mut self.matching;
        (Incoming { matching, inbox, outbox, buffers, peer, limits: *limits }, &mut **link)
    }

    /// Sends queued packets to a peer while its link has room. Returns whether any were sent.
    fn pump(&mut self, at: usize, buffers: &BufferTable) -> bool {
        let peer = &mut self.peers[at];
        let sent = peer.outbox.pump(&mut *peer.link, buffers, &mut self.sent);
        while let Some((owner, length)) = self.sent.pop() {
            self.matching.complete(owner, Ok(Status { from: at, length }));
        }
        self.has_queued(at);
        sent.unwrap_or_else(|error| {
            self.lose(at, error);
            true
        })
    }

    /// Makes the sleeper wake when packets were queued for a link that it does not watch for room,
    /// or for this rank itself.
    #[inline]
    fn has_queued(&mut self, at: usize) {
        let peer = &self.peers[at];
        if at == self.me || (!peer.outbox.is_empty() && !peer.is_armed_for_room) {
            self.threads.note_change();
        }
    }

    /// Polls all links and advances everything that can advance. Returns whether anything happened.
    #[inline]
    pub(crate) fn progress(&mut self, buffers: &BufferTable) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        let mut progress = false;
        for at in 0..self.peers.len() {
            progress |= self.poll_peer(at, buffers);
        }
        while let Some(key) = self.matching.ready.pop() {
            progress = true;
            self.run(key, buffers);
        }
        if progress {
            self.threads.note_change();
        }
        progress
    }

    #[inline]
    fn poll_peer(&mut self, at: usize, buffers: &BufferTable) -> bool {
        let peer = &self.peers[at];
        if peer.is_gone {
            return false;
        }
        let waits = !peer.outbox.is_empty();
        if peer.limits.poll_is_syscall
            && !self.rounds.is_multiple_of(IDLE_POLL_INTERVAL)
            && !waits
            && !self.expects(at)
        {
            return false;
        }
        let mut progress = waits && self.pump(at, buffers);
        if !self.peers[at].inbox.fetches.is_empty() {
            self.fetch(at, buffers);
        }
        let (mut incoming, link) = self.incoming(at, buffers);
        match link.receive(&mut incoming) {
            Ok(false) => return progress,
            Ok(true) => progress = true,
            Err(error) => {
                self.lose(at, error);
                return true;
            }
        }
        self.after_receive(at, buffers);
        progress
    }

    /// Handles the consequences of received packets.
    #[inline]
    fn after_receive(&mut self, at: usize, buffers: &BufferTable) {
        let Peer { outbox, inbox, .. } = &self.peers[at];
        let (waits, has_control) = (!outbox.is_empty(), inbox.has_control);
        let fetches = !inbox.fetches.is_empty();
        if has_control {
            // Before sending, because it may cancel what is queued.
            self.take_out_of_step(buffers);
        }
        if fetches {
            self.fetch(at, buffers);
        }
        if waits {
            self.pump(at, buffers);
        }
        if has_control {
            self.process_bye(at, buffers);
        }
    }

    #[cold]
    fn process_bye(&mut self, at: usize, buffers: &BufferTable) {
        self.peers[at].inbox.has_control = false;
        if self.peers[at].inbox.has_left {
            self.leave(at, buffers);
        }
    }

    /// Tells whether anything is expected from a peer.
    fn expects(&self, at: usize) -> bool {
        let peer = &self.peers[at];
        let is_posted = |posted: &PostedReceive| posted.from.is_none_or(|from| from == at);
        peer.outbox.awaits_cts()
            || peer.inbox.awaits_data()
            || self.matching.posted.iter().any(is_posted)
    }

    /// Handles the goodbye of a peer. Its unfinished messages fail, unless it left because it had
    /// lost another rank, which then fails everything.
    fn leave(&mut self, at: usize, buffers: &BufferTable) {
        self.peers[at].is_gone = true;
        let peer = &mut self.peers[at];
        if let Some(rank) = peer.inbox.lost_rank.filter(|rank| *rank < self.matching.names.len()) {
            let why = Arc::new(LinkError::ReportedLost(at));
            let cause = Cause::Lost { peer: self.matching.names[rank].clone(), why };
            self.lost.get_or_insert(rank);
            return self.fail_all(&cause);
        }
        let cause = Cause::Left(self.matching.names[at].clone());
        for (owner, length) in peer.outbox.take_written() {
            self.matching.complete(owner, Ok(Status { from: at, length }));
        }
        let (mut owners, diverted) = peer.inbox.fail();
        diverted.into_iter().for_each(|buffer| buffers.free(buffer));
        owners.extend(peer.outbox.fail());
        self.matching.posted.retain(|posted| {
            let is_theirs = posted.from == Some(at);
            if is_theirs {
                owners.push(posted.owner);
            }
            !is_theirs
        });
        for owner in owners {
            self.matching.complete(owner, Err(cause.clone()));
        }
    }

    fn lost(&mut self, at: usize, error: LinkError) -> Cause {
        self.peers[at].is_gone = true;
        self.lost.get_or_insert(at);
        Cause::Lost { peer: self.matching.names[at].clone(), why: Arc::new(error) }
    }

    /// Marks a peer as lost and fails everything, because any pending operation may depend on it.
    fn lose(&mut self, at: usize, error: LinkError) {
        let cause = self.lost(at, error);
        self.fail_all(&cause);
        self.threads.note_change();
    }

    /// Registers a memory region with all devices.
    pub(crate) fn register(&mut self, region: BufferId, buffers: &BufferTable) {
        let length = buffers.length(region).unwrap_or(0);
        for peer in self.peers.iter_mut().filter(|peer| !peer.is_gone) {
            peer.link.register(buffers, LocalSlice::all(region, length));
        }
    }

    /// Fails everything that is pending and all later calls, and withdraws announced messages,
    /// because their owners will reuse the memory.
    fn fail_all(&mut self, cause: &Cause) {
        self.matching.fail_all(cause);
        for peer in &mut self.peers {
            peer.outbox.revoke_all(&mut *peer.link);
        }
    }

    /// Lists the ranks that a request waits for.
    pub(crate) fn missing(&mut self, key: SlabKey) -> Vec<PeerName> {
        let collective = self.matching.requests.get_mut(key).and_then(|request| request.collective);
        let owner = collective.map_or(Owner::Request(key), Owner::Collective);
        let posted = self.matching.posted.iter().filter(|posted| posted.owner == owner);
        let mut ranks: Vec<usize> = posted.filter_map(|posted| posted.from).collect();
        let of_peer = |peer: &Peer| peer.outbox.holds(owner) || peer.inbox.holds(owner);
        ranks.extend((0..self.peers.len()).filter(|&at| of_peer(&self.peers[at])));
        ranks.sort_unstable();
        ranks.dedup();
        ranks.into_iter().map(|rank| self.matching.names[rank].clone()).collect()
    }

    /// Returns the name of a rank of the job, as a list of one.
    pub(crate) fn name(&self, rank: usize) -> Vec<PeerName> {
        vec![self.matching.names[rank].clone()]
    }

    /// Prepares all links for a sleep. Returns `false` if something arrived in the meantime.
    pub(crate) fn arm(&mut self, idle: &dyn Idle) -> bool {
        for at in 0..self.peers.len() {
            if self.peers[at].is_gone {
                let Peer { link, is_watched, .. } = &mut self.peers[at];
                if std::mem::take(is_watched) {
                    link.unwatch(&mut |fd| idle.unwatch(at, fd));
                }
                continue;
            }
            // A device registers memory in the background and raises no event when it has finished.
            if self.peers[at].inbox.fetches.front().is_some_and(|fetch| fetch.address == 0) {
                return false;
            }
            let is_expected = at == self.awaited || self.expects(at);
            let Peer { link, outbox, is_armed_for_room, is_watched, .. } = &mut self.peers[at];
            if is_expected {
                link.probe_peer();
            }
            *is_armed_for_room = !outbox.is_empty();
            let watched = match link.arm(*is_armed_for_room) {
                Ok(Armed::Watch(watched)) => {
                    *is_watched = true;
                    idle.watch(at, watched)
                }
                Ok(Armed::NoFd) => Ok(()),
                Ok(Armed::Ready) => return false,
                Err(error) => Err(error),
            };
            if let Err(error) = watched {
                self.lose(at, error);
                return false;
            }
        }
        true
    }

    /// Ends the preparations after a sleep. Includes links whose peers have left: a descriptor that
    /// they share with other links may be what ended the sleep.
    pub(crate) fn disarm(&mut self) {
        for peer in &mut self.peers {
            peer.is_armed_for_room = false;
            peer.link.disarm();
        }
    }

    /// Queues a goodbye to all peers if `is_first`, and returns whether all of them have been
    /// delivered.
    pub(crate) fn bye(&mut self, is_first: bool, buffers: &BufferTable) -> bool {
        let mut all = true;
        for at in 0..self.peers.len() {
            if self.peers[at].is_gone || at == self.me {
                continue;
            }
            if is_first {
                self.peers[at].outbox.push_bye(self.lost);
            }
            self.pump(at, buffers);
            let peer = &self.peers[at];
            all &= peer.is_gone || (peer.outbox.is_empty() && peer.link.is_delivered());
        }
        all
    }
}
