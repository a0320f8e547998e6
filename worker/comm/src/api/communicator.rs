//! The ranks that talk to each other, as one of them sees them.

use crate::api::collectives::{PreparedCollective, ScheduleCache};
use crate::api::group::Group;
use crate::progress::engine::direct::{ReceiveOutcome, SendOutcome};
use crate::progress::engine::out_of_step::CancelledCollective;
use crate::progress::engine::target::Target;
use crate::progress::engine::{Engine, Envelope, Owner, Status};
use crate::progress::wait::{Progress, WaitState};
use crate::transport::LocalSlice;
use crate::transport::packet::CONTEXT;
use crate::types::element::Element;
use crate::types::error::{Cause, CommError, Operation};
use rlaunch_lock::{BufferTable, EngineGuard, Memory};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a receive has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Who sent it.
    pub from: usize,
    /// How many elements; not more than there was room for.
    pub length: usize,
}

/// One bit of a context says that a collective speaks.
const MOST_CONTEXTS: u32 = 1 << (CONTEXT - 1);

/// The ranks of a job, or some of them. Calls may come from several threads; those of collectives
/// must come in the same order in every rank.
#[derive(Debug)]
pub struct Communicator {
    pub(crate) progress: Arc<Progress>,
    pub(crate) group: Group,
    /// Its number; the same in every rank.
    pub(crate) context: u32,
    contexts: Arc<ContextIds>,
    /// How many collectives there were.
    collectives: AtomicU32,
    pub(crate) schedules: ScheduleCache,
}

/// Numbers for communicators. The first rank of a communicator numbers those that are split from it,
/// and no two ranks of the job have a number in common: whichever threads of whichever ranks split at
/// once, no number is given out twice.
#[derive(Debug)]
struct ContextIds {
    /// How many this rank has given out.
    given: AtomicU32,
    /// This rank's number in the job, and how many ranks that has.
    me: usize,
    ranks: usize,
}

impl ContextIds {
    /// A number that no communicator of the job has; [`MOST_CONTEXTS`] where there is none left. The
    /// world is 0.
    fn allocate(&self) -> u32 {
        let given = self.given.fetch_add(1, Ordering::Relaxed) as usize;
        let number = given.saturating_mul(self.ranks).saturating_add(self.me + 1);
        if number < MOST_CONTEXTS as usize {
            return number as u32;
        }
        self.given.fetch_sub(1, Ordering::Relaxed);
        MOST_CONTEXTS
    }
}

impl Communicator {
    pub(crate) fn new(progress: Arc<Progress>, group: Group) -> Communicator {
        let schedules = ScheduleCache::new(group.topology());
        let contexts = ContextIds { given: AtomicU32::new(0), me: group.me, ranks: group.size() };
        Communicator {
            progress,
            group,
            context: 0,
            contexts: Arc::new(contexts),
            collectives: AtomicU32::new(0),
            schedules,
        }
    }

    /// This process's number, from 0.
    pub fn rank(&self) -> usize {
        self.group.me
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.group.size()
    }

    /// This process's number among the ranks of its node.
    pub fn local_rank(&self) -> usize {
        self.group.local().0
    }

    /// How many ranks its node has.
    pub fn local_size(&self) -> usize {
        self.group.local().1
    }

    /// Has `interrupted` asked after each sleep of a wait, once a second at least: where it says
    /// `true`, the wait fails with [`Cause::Interrupted`]. A message to be sent then arrives whole or
    /// not at all, one to be received waits for the next receive, and the communicator of a collective
    /// is of no more use for collectives, at any of its ranks. What a device copies just then takes the
    /// peer along. The first to be given is asked, for all communicators of this process.
    pub fn set_interrupt_check(&self, interrupted: fn() -> bool) {
        // Who comes second has the same wish.
        let _ = self.progress.interrupted.set(interrupted);
    }

    /// Ends the job, and says why: rlaunch ends all ranks, this one included. What is returned is
    /// for the caller to return as well, since the end takes a moment. Alone, it is the only effect.
    pub fn abort(&self, why: &str) -> CommError {
        if let Err(cause) = self.check_not_forked() {
            return CommError { operation: Operation::Abort, cause };
        }
        let told = self.progress.with_agent(|agent| agent.abort(why));
        let cause = match told {
            Some(Err(error)) => format!("{why} (and the agent was not told: {error})"),
            Some(Ok(())) | None => why.to_owned(),
        };
        CommError { operation: Operation::Abort, cause: Cause::Aborted(cause.into()) }
    }

    /// Sends a message to rank `to`; returns when `data` may be used again. Messages between two
    /// ranks with one tag arrive in the order in which they were sent. A long message waits until
    /// it is received.
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
        match guard.parts().0.send_short(&to, bytes) {
            SendOutcome::Sent => return Ok(()),
            SendOutcome::QueuedPacket => return self.flush(&mut guard, to.peer, operation),
            SendOutcome::Failed => return Err(guard.parts().0.failure(to.peer)),
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

    /// Waits until all that was to be sent to a peer has gone.
    pub(crate) fn flush(
        &self,
        guard: &mut EngineGuard<'_, Engine>,
        peer: usize,
        operation: Operation,
    ) -> Result<(), Cause> {
        let mut pause = WaitState::default();
        loop {
            let (engine, buffers) = guard.parts();
            let progress = engine.progress(buffers);
            if engine.has_sent(peer) {
                return Ok(());
            }
            if progress {
                pause.end();
            } else {
                let missing = |engine: &mut Engine| (Some(operation), engine.name(peer));
                self.progress.pause(&mut pause, guard, missing)?;
            }
        }
    }

    /// Receives a message of rank `from`, which may be shorter than `data`.
    pub fn recv<T: Element>(
        &self,
        data: &mut [T],
        from: usize,
        tag: u32,
    ) -> Result<Received, CommError> {
        self.receive(data, Some(from), tag)
    }

    /// Receives a message of whichever rank sends one with this tag first.
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
        let came = source.and_then(|source| match source {
            Some(message) => self.receive_bytes(message, bytes, operation),
            None => self.receive_lent((None, tag), bytes, operation),
        });
        self.received(came, operation, T::TYPE.size())
    }

    /// Waits for a message of one rank.
    fn receive_bytes(
        &self,
        from: Envelope,
        bytes: &mut [u8],
        operation: Operation,
    ) -> Result<Status, Cause> {
        let mut guard = self.progress.engine.lock();
        let mut length = 0;
        let got = self.await_message(&mut guard, &from, operation, |message| {
            length = message.len();
            if let Some(into) = bytes.get_mut(..length) {
                into.copy_from_slice(message);
            }
        })?;
        if !got {
            drop(guard);
            return self.receive_lent((Some(from), from.tag), bytes, operation);
        }
        if length > bytes.len() {
            let (engine, _) = guard.parts();
            return Err(engine.matching.truncated(from.peer, length as u64, bytes.len()));
        }
        Ok(Status { from: from.peer, length })
    }

    /// Waits for a short message, and says `false` if it is a long one.
    #[inline]
    pub(crate) fn await_message(
        &self,
        guard: &mut EngineGuard<'_, Engine>,
        from: &Envelope,
        operation: Operation,
        mut take: impl FnMut(&[u8]),
    ) -> Result<bool, Cause> {
        let mut pause = WaitState::default();
        loop {
            let (engine, buffers) = guard.parts();
            match engine.receive_short_message(from, buffers, &mut take) {
                ReceiveOutcome::Message => return Ok(true),
                ReceiveOutcome::Rts => return Ok(false),
                ReceiveOutcome::Progress => {
                    pause.end();
                    continue;
                }
                ReceiveOutcome::Failed => return Err(engine.failure(from.peer)),
                ReceiveOutcome::Nothing => {}
            }
            if let Some(cause) = engine.matching.out_of_step(from.context, from.tag) {
                return Err(cause);
            }
            // Now the others have their turn. What comes of that may be the message: who slept on it
            // would not hear of it again.
            if self.progress.is_about_to_yield(&pause) && engine.progress(buffers) {
                pause.end();
                continue;
            }
            let missing = |engine: &mut Engine| (Some(operation), engine.name(from.peer));
            self.progress.pause(&mut pause, guard, missing)?;
        }
    }

    fn receive_lent(
        &self,
        (source, tag): (Option<Envelope>, u32),
        bytes: &mut [u8],
        operation: Operation,
    ) -> Result<Status, Cause> {
        let length = bytes.len();
        self.progress.engine.lend([Memory::Exclusive(bytes)], |guard, [buffer]| {
            let target = Target { into: LocalSlice::all(buffer, length), fold: None };
            self.run_request(guard, operation, |engine, owner, buffers| {
                self.post_receive(engine, (source, tag), (target, owner), buffers);
            })
        })
    }

    pub(crate) fn post_receive(
        &self,
        engine: &mut Engine,
        (source, tag): (Option<Envelope>, u32),
        (target, owner): (Target, Owner),
        buffers: &BufferTable,
    ) {
        match source {
            Some(message) => engine.receive(message, target, owner, buffers),
            None => {
                let from = (self.context << 1, tag);
                engine.receive_any(&self.group.ranks, from, (target, owner), buffers);
            }
        }
    }

    /// What came, in elements of `size` bytes.
    pub(crate) fn received(
        &self,
        came: Result<Status, Cause>,
        operation: Operation,
        size: usize,
    ) -> Result<Received, CommError> {
        let came = came.map_err(|cause| self.progress.explain(operation, cause))?;
        if !came.length.is_multiple_of(size) {
            let cause = Cause::PartialElement { length: came.length, size };
            return Err(CommError { operation, cause });
        }
        let from = self.group.rank_of(came.from).unwrap_or(came.from);
        Ok(Received { from, length: came.length / size })
    }

    /// Sends one message and receives another at the same time, so that two ranks may do it with
    /// each other.
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

    /// Makes a communicator of those ranks that give the same `colour`, ordered by `key` and then
    /// by their rank here. Every rank has to call it.
    pub fn split(&self, colour: u32, key: i64) -> Result<Communicator, CommError> {
        let context = if self.rank() == 0 { self.contexts.allocate() } else { 0 };
        let own = [u64::from(colour), key as u64, u64::from(context)];
        let mut all = vec![0; own.len() * self.size()];
        self.all_gather(&own, &mut all)?;
        let (rows, _) = all.as_chunks::<3>();
        let context = rows[0][2] as u32;
        if context >= MOST_CONTEXTS {
            let cause = Cause::Start("there are too many communicators".into());
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

    /// Fails in a process that was forked: connections and device memory are its parent's.
    #[inline]
    pub(crate) fn check_not_forked(&self) -> Result<(), Cause> {
        if self.progress.engine.is_inherited() { Err(Cause::Forked) } else { Ok(()) }
    }

    /// A message from a rank, or `None` for one from any.
    pub(crate) fn source(&self, from: Option<usize>, tag: u32) -> Result<Option<Envelope>, Cause> {
        self.check_not_forked()?;
        from.map(|from| self.envelope(from, tag)).transpose()
    }

    /// A message to or from a rank.
    pub(crate) fn envelope(&self, rank: usize, tag: u32) -> Result<Envelope, Cause> {
        self.check_not_forked()?;
        let size = self.size();
        let peer = *self.group.ranks.get(rank).ok_or(Cause::NoSuchRank { rank, size })?;
        Ok(Envelope { peer, context: self.context << 1, tag })
    }

    /// The context and the number of the next collective.
    pub(crate) fn next_collective(&self) -> (u32, u32) {
        (self.context << 1 | 1, self.collectives.fetch_add(1, Ordering::Relaxed))
    }

    /// Gives up a collective that this thread runs itself.
    #[cold]
    pub(crate) fn cancel_collective(&self, collective: &PreparedCollective, cause: &Cause) {
        let PreparedCollective { number: (context, number), operation, .. } = *collective;
        let ranks = &self.group.ranks;
        let mut guard = self.progress.engine.lock();
        let (engine, buffers) = guard.parts();
        engine.cancel_collective(
            CancelledCollective { context, number, operation, ranks, cause },
            buffers,
        );
    }

    /// Begins something and waits for its end.
    #[inline]
    pub(crate) fn run_request(
        &self,
        guard: &mut EngineGuard<'_, Engine>,
        operation: Operation,
        begin: impl FnOnce(&mut Engine, Owner, &BufferTable),
    ) -> Result<Status, Cause> {
        let (engine, buffers) = guard.parts();
        let key = engine.request(operation);
        begin(engine, Owner::Request(key), buffers);
        self.progress.wait(guard, key)
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
        let mut came = [0u8];
        comm.recv(&mut came, 0, 0).unwrap();
        assert_eq!(came, [7]);
    }
}
