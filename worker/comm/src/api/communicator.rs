//! [`Communicator`]: blocking messages, splitting into smaller communicators, and functions that
//! all other calls use. A [`Group`] has its members and the nodes on which they run.

use crate::collectives::ScheduleCache;
use crate::collectives::choice::Topology;
use crate::progress::engine::direct::{ReceiveOutcome, SendOutcome};
use crate::progress::engine::matching::Target;
use crate::progress::engine::{Engine, Envelope, Owner, Status};
use crate::progress::wait::{Progress, WaitState};
use crate::transport::{CONTEXT, LocalSlice};
use crate::types::{Cause, CommError, Element, Operation};
use rlaunch_lock::{BufferTable, EngineGuard, Memory};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Result of a receive, or of a nonblocking send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Rank of the sender in the communicator; in the result of a send, rank of the destination.
    pub from: usize,
    /// Number of elements in the message; for a receive, at most the length of the buffer.
    pub length: usize,
}

/// Number of different context ids, which identify communicators. A packet header has [`CONTEXT`]
/// bits for the context id, but one of them distinguishes collectives from messages.
const MOST_CONTEXTS: u32 = 1 << (CONTEXT - 1);

/// Group of ranks that exchange messages and run collectives.
///
/// Several threads may call into one communicator at the same time. All ranks of a communicator
/// must call its collectives in the same order.
#[derive(Debug)]
pub struct Communicator {
    pub(crate) progress: Arc<Progress>,
    pub(crate) group: Group,
    /// Context id of the communicator, equal on all its ranks.
    pub(crate) context: u32,
    contexts: Arc<ContextIds>,
    /// Number of collectives begun so far.
    collectives: AtomicU32,
    pub(crate) schedules: ScheduleCache,
}

/// Allocator of context ids, shared by all communicators of the process. Rank 0 of a communicator
/// allocates one id for each split of this communicator. Different ranks of the job never allocate
/// equal ids: the ids of rank `r` are `r + 1` plus multiples of the world size.
#[derive(Debug)]
struct ContextIds {
    /// Number of ids that this rank has allocated.
    allocated: AtomicU32,
    /// Rank of this process in the job.
    me: usize,
    /// World size: the number of ranks in the job.
    ranks: usize,
}

impl ContextIds {
    /// Returns an unused id, or [`MOST_CONTEXTS`] if none is left. Id 0 belongs to the communicator
    /// of all ranks.
    fn allocate(&self) -> u32 {
        let allocated = self.allocated.fetch_add(1, Ordering::Relaxed) as usize;
        let number = allocated.saturating_mul(self.ranks).saturating_add(self.me + 1);
        if number < MOST_CONTEXTS as usize {
            return number as u32;
        }
        self.allocated.fetch_sub(1, Ordering::Relaxed);
        MOST_CONTEXTS
    }
}

impl Communicator {
    pub(crate) fn new(progress: Arc<Progress>, group: Group) -> Communicator {
        let schedules = ScheduleCache::new(group.topology());
        let contexts =
            ContextIds { allocated: AtomicU32::new(0), me: group.me, ranks: group.size() };
        Communicator {
            progress,
            group,
            context: 0,
            contexts: Arc::new(contexts),
            collectives: AtomicU32::new(0),
            schedules,
        }
    }

    /// Returns the rank of this process in the communicator, from 0.
    pub fn rank(&self) -> usize {
        self.group.me
    }

    /// Returns the number of ranks in the communicator.
    pub fn size(&self) -> usize {
        self.group.size()
    }

    /// Returns the rank of this process among the communicator's ranks on its node, from 0.
    pub fn local_rank(&self) -> usize {
        self.group.local().0
    }

    /// Returns the number of the communicator's ranks on this node.
    pub fn local_size(&self) -> usize {
        self.group.local().1
    }

    /// Sets a callback that can interrupt waits of this process, on any communicator.
    ///
    /// A waiting call sleeps for at most a second at a time, and runs the callback after each
    /// sleep. If the callback returns `true`, the call fails with [`Cause::Interrupted`]. The
    /// message of an interrupted send is delivered whole or not at all. The message of an
    /// interrupted receive is kept for the next receive. An interrupted collective makes the
    /// communicator unusable for collectives, on all its ranks. If an RDMA device is copying from
    /// or to the call's buffer and does not finish within 2 seconds, the peer counts as lost.
    ///
    /// Only the first callback is used; later calls of this function have no effect.
    pub fn set_interrupt_check(&self, interrupted: fn() -> bool) {
        let _ = self.progress.interrupted.set(interrupted);
    }

    /// Asks rlaunch to end all ranks of the job, this one included, for the reason `why`.
    ///
    /// The job takes a moment to end, so the caller should pass on the returned error. In a process
    /// that rlaunch did not start, the call only returns the error.
    pub fn abort(&self, why: &str) -> CommError {
        if let Err(cause) = self.check_not_forked() {
            return CommError { operation: Operation::Abort, cause };
        }
        let reported = self.progress.with_agent(|agent| agent.abort(why));
        let cause = match reported {
            Some(Err(error)) => format!("{why} (and the agent could not be notified: {error})"),
            Some(Ok(())) | None => why.to_owned(),
        };
        CommError { operation: Operation::Abort, cause: Cause::Aborted(cause.into()) }
    }

    /// Sends a message to rank `to`, and returns once the program may change `data`.
    ///
    /// Messages between two ranks with the same tag arrive in the order in which they were sent. A
    /// short message is buffered. A long message is sent when rank `to` receives it, and the call
    /// waits until then. Fails if rank `to` does not exist, has left or is lost, if the job is
    /// ending, or after `RLAUNCH_COMM_TIMEOUT` seconds.
    pub fn send<T: Element>(&self, data: &[T], to: usize, tag: u32) -> Result<(), CommError> {
        let operation = Operation::Send { to, tag };
        let bytes = bytemuck::cast_slice(data);
        let sent =
            self.envelope(to, tag).and_then(|message| self.send_bytes(message, bytes, operation));
        sent.map_err(|cause| self.progress.explain(operation, cause))
    }

    #[inline]
    fn send_bytes(&self, to: Envelope, bytes: &[u8], operation: Operation) -> Result<(), Cause> {
        let mut guard = self.progress.engine.lock();
        match guard.attach_and_split().0.send_short(&to, bytes) {
            SendOutcome::Sent => return Ok(()),
            SendOutcome::Queued => return self.flush(&mut guard, to.peer, operation),
            SendOutcome::Failed => return Err(guard.attach_and_split().0.failure(to.peer)),
            SendOutcome::TooLong => {}
        }
        drop(guard);
        self.progress.engine.lend([Memory::Shared(bytes)], |guard, [buffer]| {
            let from = LocalSlice::all(buffer, bytes.len());
            let sent = self.run_request(guard, operation, |engine, owner, buffers| {
                engine.send(to, from, owner, buffers);
            });
            sent.map(drop)
        })
    }

    /// Waits until everything that is queued for a peer has been sent.
    pub(crate) fn flush(
        &self,
        guard: &mut EngineGuard<'_, Engine>,
        peer: usize,
        operation: Operation,
    ) -> Result<(), Cause> {
        let mut wait_state = WaitState::default();
        loop {
            let (engine, buffers) = guard.attach_and_split();
            let progress = engine.progress(buffers);
            if engine.has_sent(peer) {
                return Ok(());
            }
            if progress {
                wait_state.reset();
            } else {
                let missing = |engine: &mut Engine| (Some(operation), engine.name(peer));
                self.progress.pause(&mut wait_state, guard, missing)?;
            }
        }
    }

    /// Receives a message with this tag from rank `from`. The message may be shorter than `data`;
    /// if it is longer, the call fails with [`Cause::Truncated`]. The call also fails for the
    /// reasons listed at [`Communicator::send`].
    pub fn recv<T: Element>(
        &self,
        data: &mut [T],
        from: usize,
        tag: u32,
    ) -> Result<Received, CommError> {
        self.receive(data, Some(from), tag)
    }

    /// Works like [`Communicator::recv`], but receives the message with this tag that arrived first
    /// from any rank.
    pub fn recv_any<T: Element>(&self, data: &mut [T], tag: u32) -> Result<Received, CommError> {
        self.receive(data, None, tag)
    }

    fn receive<T: Element>(
        &self,
        data: &mut [T],
        from: Option<usize>,
        tag: u32,
    ) -> Result<Received, CommError> {
        let operation = Operation::Receive { from, tag };
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(data);
        let source = self.source(from, tag);
        let status = source.and_then(|source| match source {
            Some(message) => self.receive_bytes(message, bytes, operation),
            None => self.receive_lent(None, tag, bytes, operation),
        });
        self.received(status, operation, T::TYPE.size())
    }

    fn receive_bytes(
        &self,
        from: Envelope,
        bytes: &mut [u8],
        operation: Operation,
    ) -> Result<Status, Cause> {
        let mut guard = self.progress.engine.lock();
        let mut length = 0;
        let is_short = self.await_message(&mut guard, &from, operation, |message| {
            length = message.len();
            if let Some(into) = bytes.get_mut(..length) {
                into.copy_from_slice(message);
            }
        })?;
        if !is_short {
            drop(guard);
            return self.receive_lent(Some(from), from.tag, bytes, operation);
        }
        if length > bytes.len() {
            let (engine, _) = guard.attach_and_split();
            return Err(engine.matching.truncated(from.peer, length as u64, bytes.len()));
        }
        Ok(Status { from: from.peer, length })
    }

    /// Waits for a message. Passes a short message to `take` and returns `true`. Returns `false` if
    /// the message is long and still has to be received with [`Engine::receive`].
    #[inline]
    pub(crate) fn await_message(
        &self,
        guard: &mut EngineGuard<'_, Engine>,
        from: &Envelope,
        operation: Operation,
        mut take: impl FnMut(&[u8]),
    ) -> Result<bool, Cause> {
        let mut wait_state = WaitState::default();
        loop {
            let (engine, buffers) = guard.attach_and_split();
            match engine.receive_short_message(from, buffers, &mut take) {
                ReceiveOutcome::Message => return Ok(true),
                ReceiveOutcome::NeedsPosting => return Ok(false),
                ReceiveOutcome::Progress => {
                    wait_state.reset();
                    continue;
                }
                ReceiveOutcome::Failed => return Err(engine.failure(from.peer)),
                ReceiveOutcome::Nothing => {}
            }
            if let Some(cause) = engine.matching.out_of_step(from.context, from.tag) {
                return Err(cause);
            }
            // Poll the other peers too before sleeping. Polling may bring the awaited message,
            // whose link then raises no further event, so look for the message again.
            if self.progress.is_about_to_yield(&wait_state) && engine.progress(buffers) {
                wait_state.reset();
                continue;
            }
            let missing = |engine: &mut Engine| (Some(operation), engine.name(from.peer));
            self.progress.pause(&mut wait_state, guard, missing)?;
        }
    }

    fn receive_lent(
        &self,
        source: Option<Envelope>,
        tag: u32,
        bytes: &mut [u8],
        operation: Operation,
    ) -> Result<Status, Cause> {
        let length = bytes.len();
        self.progress.engine.lend([Memory::Exclusive(bytes)], |guard, [buffer]| {
            let target = Target { into: LocalSlice::all(buffer, length), reduction: None };
            self.run_request(guard, operation, |engine, owner, buffers| {
                self.post_receive(engine, source, tag, target, owner, buffers);
            })
        })
    }

    pub(crate) fn post_receive(
        &self,
        engine: &mut Engine,
        source: Option<Envelope>,
        tag: u32,
        target: Target,
        owner: Owner,
        buffers: &BufferTable,
    ) {
        match source {
            Some(message) => engine.receive(message, target, owner, buffers),
            None => {
                let context = self.context << 1;
                engine.receive_any(&self.group.ranks, context, tag, target, owner, buffers);
            }
        }
    }

    /// Converts the result of a request: the length to elements of `size` bytes, and the rank of
    /// the job to a rank of this communicator. Fails if the length is not a whole number of
    /// elements.
    pub(crate) fn received(
        &self,
        status: Result<Status, Cause>,
        operation: Operation,
        size: usize,
    ) -> Result<Received, CommError> {
        let status = status.map_err(|cause| self.progress.explain(operation, cause))?;
        if !status.length.is_multiple_of(size) {
            let cause = Cause::PartialElement { length: status.length, size };
            return Err(CommError { operation, cause });
        }
        let from = self.group.rank_of(status.from).unwrap_or(status.from);
        Ok(Received { from, length: status.length / size })
    }

    /// Sends `data` to rank `to` with `tag`, and at the same time receives into `into` from rank
    /// `from` with `from_tag`, so that two ranks can exchange long messages without a deadlock.
    /// Returns the result of the receive.
    pub fn sendrecv<T: Element>(
        &self,
        data: &[T],
        (to, tag): (usize, u32),
        into: &mut [T],
        (from, from_tag): (usize, u32),
    ) -> Result<Received, CommError> {
        self.scope(|scope| {
            let sends = scope.isend(data, to, tag)?;
            let receives = scope.irecv(into, from, from_tag)?;
            let received = scope.wait(receives)?;
            scope.wait(sends)?;
            Ok(received)
        })
    }

    /// Creates a communicator of the ranks that pass the same `colour`, ordered by `key` and then
    /// by rank. Collective: every rank of this communicator must call this function. Fails for the
    /// same reasons as [`Communicator::all_gather`], or if the job has created too many
    /// communicators.
    pub fn split(&self, colour: u32, key: i64) -> Result<Communicator, CommError> {
        let context = if self.rank() == 0 { self.contexts.allocate() } else { 0 };
        let own = [u64::from(colour), key as u64, u64::from(context)];
        let mut all = vec![0; own.len() * self.size()];
        self.all_gather(&own, &mut all)?;
        let (rows, _) = all.as_chunks::<3>();
        let context = rows[0][2] as u32;
        if context >= MOST_CONTEXTS {
            let cause = Cause::Start("too many communicators were created".into());
            return Err(CommError { operation: Operation::Collective("split"), cause });
        }
        let colours: Vec<(u32, i64)> =
            rows.iter().map(|row| (row[0] as u32, row[1] as i64)).collect();
        let group = self.group.split(&colours);
        Ok(Communicator {
            progress: self.progress.clone(),
            schedules: ScheduleCache::new(group.topology()),
            group,
            context,
            contexts: self.contexts.clone(),
            collectives: AtomicU32::new(0),
        })
    }

    /// Fails with [`Cause::Forked`] in a forked child: connections and device memory belong to the
    /// parent process.
    #[inline]
    pub(crate) fn check_not_forked(&self) -> Result<(), Cause> {
        if self.progress.engine.is_inherited() { Err(Cause::Forked) } else { Ok(()) }
    }

    /// Returns the envelope of a message from rank `from`, or `None` if the message may come from
    /// any rank.
    pub(crate) fn source(&self, from: Option<usize>, tag: u32) -> Result<Option<Envelope>, Cause> {
        self.check_not_forked()?;
        from.map(|from| self.envelope(from, tag)).transpose()
    }

    /// Returns the envelope (peer, context and tag) of a message to or from a rank of this
    /// communicator. Fails if the communicator has no such rank, or in a forked child.
    pub(crate) fn envelope(&self, rank: usize, tag: u32) -> Result<Envelope, Cause> {
        self.check_not_forked()?;
        let size = self.size();
        let peer = *self.group.ranks.get(rank).ok_or(Cause::NoSuchRank { rank, size })?;
        Ok(Envelope { peer, context: self.context << 1, tag })
    }

    /// Returns the context and the sequence number of the next collective, and counts the
    /// collective as begun.
    pub(crate) fn next_collective(&self) -> (u32, u32) {
        (self.context << 1 | 1, self.collectives.fetch_add(1, Ordering::Relaxed))
    }

    /// Creates a request, starts its operation with `begin`, and waits for the result.
    #[inline]
    pub(crate) fn run_request(
        &self,
        guard: &mut EngineGuard<'_, Engine>,
        operation: Operation,
        begin: impl FnOnce(&mut Engine, Owner, &BufferTable),
    ) -> Result<Status, Cause> {
        let (engine, buffers) = guard.attach_and_split();
        let key = engine.request(operation);
        begin(engine, Owner::Request(key), buffers);
        self.progress.wait(guard, key)
    }
}

/// Members of a communicator, in the order of their ranks in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Rank in the job of each member, indexed by the member's rank in the communicator.
    pub(crate) ranks: Arc<[usize]>,
    /// Number of each member's node, indexed by the member's rank in the communicator.
    pub(crate) nodes: Arc<[u32]>,
    /// This process's rank in the communicator.
    pub(crate) me: usize,
}

impl Group {
    /// Creates the group of all ranks of a job; `nodes[rank]` is the node of a rank.
    pub(crate) fn world(me: usize, nodes: Arc<[u32]>) -> Group {
        Group { ranks: (0..nodes.len()).collect(), nodes, me }
    }

    pub(crate) fn size(&self) -> usize {
        self.ranks.len()
    }

    /// Returns this process's position among the members on its node, from 0, and the number of
    /// members on this node.
    pub(crate) fn local(&self) -> (usize, usize) {
        let own = self.nodes[self.me];
        let before = self.nodes[..self.me].iter().filter(|node| **node == own).count();
        (before, self.nodes.iter().filter(|node| **node == own).count())
    }

    pub(crate) fn topology(&self) -> Topology {
        let nodes: Vec<usize> = self.nodes.iter().map(|node| *node as usize).collect();
        Topology::new(self.me, &nodes)
    }

    /// Converts a rank of the job to a rank of the communicator; `None` if the rank is not a
    /// member.
    pub(crate) fn rank_of(&self, rank: usize) -> Option<usize> {
        // Most communicators have all ranks of the job as members, and then both numbers are equal.
        if self.ranks.get(rank) == Some(&rank) {
            return Some(rank);
        }
        self.ranks.iter().position(|of_job| *of_job == rank)
    }

    /// Returns the group of the members with this process's colour, ordered by key and then by
    /// rank. `colours[rank]` is the colour and the key of a member.
    pub(crate) fn split(&self, colours: &[(u32, i64)]) -> Group {
        let own = colours[self.me].0;
        let mut members: Vec<usize> =
            (0..self.size()).filter(|&member| colours[member].0 == own).collect();
        members.sort_by_key(|&member| (colours[member].1, member));
        Group {
            ranks: members.iter().map(|&member| self.ranks[member]).collect(),
            nodes: members.iter().map(|&member| self.nodes[member]).collect(),
            me: members.iter().position(|&member| member == self.me).unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_where_the_program_says_so() {
        let comm = Communicator::from_env().unwrap();
        comm.set_interrupt_check(|| true);
        let failed = comm.recv(&mut [0u8], 0, 0).unwrap_err();
        assert!(matches!(failed.cause, Cause::Interrupted), "{failed}");
        let mut into = vec![0u8; 1 << 20];
        let failed = comm.scope(|scope| scope.irecv(&mut into, 0, 0).map(drop));
        assert!(matches!(failed.unwrap_err().cause, Cause::Interrupted));
        comm.send(&[7u8], 0, 0).unwrap();
        let mut data = [0u8];
        comm.recv(&mut data, 0, 0).unwrap();
        assert_eq!(data, [7]);
    }

    #[test]
    fn a_group_splits_by_colour_and_orders_by_key() {
        let world = Group::world(2, [0, 0, 1, 1].into());
        assert_eq!(world.local(), (0, 2));
        let odd = Group { me: 3, ..world.clone() }.split(&[(0, 0), (1, 5), (0, 0), (1, 4)]);
        assert_eq!((&*odd.ranks, odd.me, odd.local()), (&[3, 1][..], 0, (0, 1)));
        assert_eq!((odd.rank_of(1), odd.rank_of(0)), (Some(1), None));
        let even = world.split(&[(0, 7), (1, 0), (0, 7), (1, 0)]);
        assert_eq!((&*even.ranks, even.me), (&[0, 2][..], 1));
    }
}
