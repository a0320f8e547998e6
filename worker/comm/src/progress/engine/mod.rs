//! Engine of a process: the state of all messages and collectives of all its communicators. The
//! engine never blocks; [`crate::progress::wait`] contains the waiting.
//!
//! Protocols for messages:
//!
//! * Eager: a message of up to [`Limits::eager`] bytes is sent at once, in one packet. If no
//!   receive is posted for the message, the receiving rank keeps a copy.
//! * Rendezvous: the sender announces a longer message with a packet RTS (request to send). Once a
//!   receive matches the message, the receiving rank chooses one of three methods. It fetches the
//!   message from the sender's memory and answers with FIN; or it answers with CTS (clear to send)
//!   and an address, to which the sender's device writes the message before the sender sends
//!   `Written`; or it answers with CTS without an address, and the sender sends `Data` packets.
//! * Cancellation: see [`out_of_step`].
//!
//! | word | meaning |
//! |---|---|
//! | context | number that identifies a communicator, and tells its collectives from its messages |
//! | transfer id | number that the sender gives to a long message |
//! | owner | operation (request or collective) for which a message is sent or received |
//! | posted | said of a receive that waits for its message |
//! | unexpected | said of a message that has arrived, or was announced, before a receive matches it |
//! | expose | let the peer's device write to a part of this rank's memory |
//! | gone | said of a peer that has said goodbye or was lost |
//!
//! | file | contents |
//! |---|---|
//! | `matching` | posted receives, requests, collectives, and the error that fails them all; keyed storage |
//! | `incoming`, `inbox` | handling of received packets; messages of one peer that are not complete or not matched, and destinations of their bytes |
//! | `outbox` | packets waiting to be sent to one peer |
//! | `direct` | short messages sent from and received into the caller's memory without queueing; zero-copy transfer of long messages |
//! | `collective` | execution of the steps of collectives |
//! | `out_of_step` | cancellation, and notices of cancelled collectives |
//! | `job_events` | reports of the agent about other ranks |

pub(crate) mod collective;
pub(crate) mod direct;
pub(crate) mod inbox;
mod incoming;
mod job_events;
pub(crate) mod matching;
pub(crate) mod out_of_step;
mod outbox;

pub(crate) use self::matching::{Owner, RequestState, Status};
pub(crate) use matching::SlabKey;

use self::matching::{Matching, PostedReceive};
use crate::progress::idle::{Idle, Threads};
use crate::transport::{Armed, Header, Limits, Link, LocalSlice, PacketKind};
use crate::types::{Cause, LinkError, Operation, PeerName};
use inbox::Inbox;
use incoming::Incoming;
use matching::Target;
use outbox::Outbox;
use rlaunch_lock::{BufferId, BufferTable};
use std::sync::Arc;
use std::time::Duration;

/// Number of calls of [`Engine::progress`] between two polls of an idle link, if each poll of the
/// link is a system call. A link is idle if nothing is queued for its peer and nothing is expected
/// from it.
const IDLE_POLL_INTERVAL: u32 = 32;
/// Peer, context and tag of a message. A receive matches a message with the same three values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    /// Rank of the peer in the job.
    pub(crate) peer: usize,
    pub(crate) context: u32,
    pub(crate) tag: u32,
}

/// State of the communication with one rank of the job, which may be this rank itself.
struct Peer {
    link: Box<dyn Link>,
    limits: Limits,
    outbox: Outbox,
    inbox: Inbox,
    /// Whether a sleep ends when the link has room to send.
    is_armed_for_room: bool,
    /// Whether a sleep ends when the link has something to receive.
    is_watched: bool,
    is_gone: bool,
}

/// Messages and collectives of a process, see the [module documentation](self).
pub(crate) struct Engine {
    peers: Vec<Peer>,
    me: usize,
    /// Rank of the job that was lost first, as far as this rank knows; `None` if no rank was lost.
    lost: Option<usize>,
    /// Whether the agent has reported why the job fails. [`Matching::fault`] is then final.
    has_launcher_cause: bool,
    pub(crate) matching: Matching,
    /// Reused buffer for the results of [`Outbox::pump`].
    sent: Vec<(Owner, usize)>,
    /// Reused buffer for bytes that are fetched to be reduced.
    scratch: Vec<u8>,
    rounds: u32,
    /// Peer from which a call last awaited a message without posting a receive.
    awaited: usize,
    /// Peer to which a message was [published](Link::publish), and which may still sleep; this rank
    /// if there is none.
    published: usize,
    pub(crate) threads: Threads,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("matching", &self.matching).finish_non_exhaustive()
    }
}

impl Engine {
    /// Creates an engine for rank `me`. `links[rank]` leads to a rank of the job, and `names[rank]`
    /// is the name of that rank.
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
            published: me,
            threads: Threads::default(),
        }
    }

    /// Returns the maximum length in bytes of messages that every link sends eagerly.
    pub(crate) fn least_eager(&self) -> usize {
        self.peers.iter().map(|peer| peer.limits.eager).min().unwrap_or(0)
    }

    /// Returns the largest [`Link::wake_latency`] of all links.
    pub(crate) fn wake_latency(&self) -> Duration {
        self.peers.iter().map(|peer| peer.link.wake_latency()).max().unwrap_or_default()
    }

    /// Tells whether a poll is a system call on every link to another rank.
    pub(crate) fn poll_is_syscall(&self) -> bool {
        let mut others = self.peers.iter().enumerate().filter(|&(at, _)| at != self.me);
        others.all(|(_, peer)| peer.limits.poll_is_syscall)
    }

    /// Creates a request. If the engine has failed, the request is already complete, with the
    /// engine's error.
    pub(crate) fn request(&mut self, operation: Operation) -> SlabKey {
        let ended = self.matching.fault.clone().map(Err);
        self.matching.requests.insert(RequestState { operation, ended, collective: None })
    }

    /// Removes a completed request and returns its result. Returns `None` if the request is
    /// pending.
    #[inline]
    pub(crate) fn take(&mut self, key: SlabKey) -> Option<Result<Status, Cause>> {
        let ended = self.matching.requests.get_mut(key)?.ended.take()?;
        self.matching.requests.remove(key);
        Some(ended)
    }

    pub(crate) fn operation(&mut self, key: SlabKey) -> Option<Operation> {
        self.matching.requests.get_mut(key).map(|request| request.operation)
    }

    /// Tells whether nothing can be sent to a peer any more, because the peer has left or was lost,
    /// or because the engine has failed.
    #[inline]
    fn has_failed(&self, peer: usize) -> bool {
        self.peers[peer].is_gone || self.matching.fault.is_some()
    }

    /// Returns the reason why nothing can be sent to a peer.
    #[cold]
    pub(crate) fn failure(&self, peer: usize) -> Cause {
        let left = || Cause::Left(self.matching.names[peer].clone());
        self.matching.fault.clone().unwrap_or_else(left)
    }

    /// Queues a message, and sends as much as the link has room for. `owner` completes when the
    /// memory of the message may change.
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

    /// Matches a receive with a message that has already arrived from the envelope's peer, or posts
    /// the receive if no such message has arrived.
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

    /// Matches a receive with the oldest message that has arrived from any of `ranks`, which are
    /// ranks of the job. Posts the receive if there is no such message.
    pub(crate) fn receive_any(
        &mut self,
        ranks: &[usize],
        context: u32,
        tag: u32,
        target: Target,
        owner: Owner,
        buffers: &BufferTable,
    ) {
        let posted = PostedReceive { from: None, context, tag, target, owner };
        // The oldest message first, so that a rank that sends much does not starve the others.
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

    /// Matches a receive with a message that has already arrived from `peer`. Returns `false` if
    /// there is no such message.
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

    /// Sends queued packets to a peer while its link has room. Returns whether any packet was sent,
    /// or the peer was lost.
    fn pump(&mut self, at: usize, buffers: &BufferTable) -> bool {
        let peer = &mut self.peers[at];
        let sent = peer.outbox.pump(&mut *peer.link, buffers, &mut self.sent);
        while let Some((owner, length)) = self.sent.pop() {
            self.matching.complete(owner, Ok(Status { from: at, length }));
        }
        self.note_queued(at);
        sent.unwrap_or_else(|error| {
            self.lose(at, error);
            true
        })
    }

    /// Requests that the sleeping thread be woken if it does not know of packets queued for rank
    /// `at`: it does not wait for room to send on that rank's link, or the rank is this one.
    #[inline]
    fn note_queued(&mut self, at: usize) {
        let peer = &self.peers[at];
        if at == self.me || (!peer.outbox.is_empty() && !peer.is_armed_for_room) {
            self.threads.note_change();
        }
    }

    /// Wakes the peer to which a message was published, unless that has been done since.
    #[inline]
    fn wake_published(&mut self) {
        let peer = std::mem::replace(&mut self.published, self.me);
        if peer != self.me {
            self.peers[peer].link.wake_peer();
        }
    }

    /// Does what must not be put off any longer when a thread releases the engine lock.
    #[inline]
    pub(crate) fn on_unlock(&mut self) {
        self.wake_published();
        self.threads.on_unlock();
    }

    /// Polls all links, sends queued packets, and continues collectives whose current step has
    /// completed. Returns whether anything happened.
    #[inline]
    pub(crate) fn progress(&mut self, buffers: &BufferTable) -> bool {
        self.wake_published();
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

    /// Completes the handling of packets received from a peer: applies notices of cancelled
    /// collectives, fetches messages, sends answers and handles a goodbye.
    #[inline]
    fn after_receive(&mut self, at: usize, buffers: &BufferTable) {
        let Peer { outbox, inbox, .. } = &self.peers[at];
        let (waits, has_control) = (!outbox.is_empty(), inbox.has_control);
        let fetches = !inbox.fetches.is_empty();
        if has_control {
            // Before sending, because a notice may cancel messages that are queued.
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

    /// Tells whether a packet is expected from a peer, because of a posted receive or an unfinished
    /// long message.
    fn expects(&self, at: usize) -> bool {
        let peer = &self.peers[at];
        let is_posted = |posted: &PostedReceive| posted.from.is_none_or(|from| from == at);
        peer.outbox.has_transfers()
            || peer.inbox.awaits_data()
            || self.matching.posted.iter().any(is_posted)
    }

    /// Handles the goodbye of a peer. Unfinished messages to and from the peer fail. If the peer
    /// left because it had lost another rank, everything fails.
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

    fn mark_lost(&mut self, at: usize, error: LinkError) -> Cause {
        self.peers[at].is_gone = true;
        self.lost.get_or_insert(at);
        Cause::Lost { peer: self.matching.names[at].clone(), why: Arc::new(error) }
    }

    /// Marks a peer as lost and fails everything, because any pending operation may depend on the
    /// peer.
    fn lose(&mut self, at: usize, error: LinkError) {
        let cause = self.mark_lost(at, error);
        self.fail_all(&cause);
        self.threads.note_change();
    }

    /// Registers a memory region with the devices of all links.
    pub(crate) fn register(&mut self, region: BufferId, buffers: &BufferTable) {
        let length = buffers.length(region).unwrap_or(0);
        for peer in self.peers.iter_mut().filter(|peer| !peer.is_gone) {
            peer.link.register(buffers, LocalSlice::all(region, length));
        }
    }

    /// Fails all pending operations and all later calls. Revokes announced messages, because the
    /// program may reuse the memory of failed operations.
    fn fail_all(&mut self, cause: &Cause) {
        self.matching.fail_all(cause);
        for peer in &mut self.peers {
            peer.outbox.revoke_all(&mut *peer.link);
        }
    }

    /// Lists the ranks that a request is waiting for.
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

    /// Returns a list that contains only the name of `rank`, a rank of the job.
    pub(crate) fn name(&self, rank: usize) -> Vec<PeerName> {
        vec![self.matching.names[rank].clone()]
    }

    /// Prepares all links for a sleep. Returns `false` if the caller must not sleep: a packet has
    /// arrived, a link has room to send or has failed, or a device is still registering memory.
    pub(crate) fn arm(&mut self, idle: &dyn Idle) -> bool {
        for at in 0..self.peers.len() {
            if self.peers[at].is_gone {
                let Peer { link, is_watched, .. } = &mut self.peers[at];
                if std::mem::take(is_watched) {
                    link.visit_fds(&mut |fd| idle.unwatch(at, fd));
                }
                continue;
            }
            // A device registers memory in the background, and raises no event when it has
            // finished.
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

    /// Reverses [`Engine::arm`] on all links, even on links to peers that have left: such a link
    /// may share the descriptor that ended the sleep with other links.
    pub(crate) fn disarm(&mut self) {
        for peer in &mut self.peers {
            peer.is_armed_for_room = false;
            peer.link.disarm();
        }
    }

    /// Queues a goodbye to all peers if `is_first`, and sends queued packets while links have room.
    /// Returns whether everything has been delivered.
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
