//! Completion queue, protection domain and completion channel of an opened device. All links over
//! the device share them.

use super::failed;
use crate::types::LinkError;
use rlaunch_verbs::{
    BounceBuffers, Completion, CompletionBatch, CompletionChannel, CompletionQueue, Context, Depth,
    ProtectionDomain, Resources, VerbsError,
};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of the next [`CqPoller`] of this process.
static NUMBERS: AtomicUsize = AtomicUsize::new(0);

/// Completion queue of one opened device, shared by its links. The id of each completion has the
/// tag of a link's buffers ([`BounceBuffers::tag`]), by which the poller finds the link that the
/// completion is for.
#[derive(Debug)]
pub(crate) struct CqPoller {
    pub(crate) resources: Resources,
    channel: Arc<CompletionChannel>,
    /// Number of this poller, unique in this process. A lent buffer's registration with the device
    /// is stored under this number.
    pub(super) number: usize,
    state: Mutex<PollState>,
}

#[derive(Debug, Default)]
struct PollState {
    /// Completions that were polled and not yet [collected](CqPoller::collect), by the tag of the
    /// link's buffers.
    queues: BTreeMap<u64, VecDeque<Completion>>,
    batch: CompletionBatch,
    /// Whether the completion queue is armed, or has raised an event that has not been drained.
    requested: bool,
    /// Whether a link has asked to sleep on the channel.
    armed: bool,
}

impl CqPoller {
    /// Makes the shared resources for up to `pairs` queue pairs whose queues have the capacities
    /// `depth`.
    pub(crate) fn open(
        context: &Arc<Context>,
        pairs: usize,
        depth: Depth,
    ) -> Result<Arc<CqPoller>, VerbsError> {
        let domain = ProtectionDomain::allocate(context)?;
        let channel = CompletionChannel::create(context)?;
        // When queue pairs fail, all their work requests complete at once. Devices allow completion
        // queues that are large enough for the queue pairs connected at the start (up to 255). In
        // larger jobs few queue pairs are ever connected.
        let pairs = u32::try_from(pairs).unwrap_or(u32::MAX);
        let entries = pairs.saturating_mul(depth.send + depth.receive);
        let entries = entries.min(context.limits()?.completions);
        let completions = CompletionQueue::create_on(context, entries, &channel)?;
        let resources = Resources { domain, completions, depth };
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(CqPoller { resources, channel, number, state: Mutex::default() }))
    }

    pub(crate) fn device(&self) -> &str {
        self.resources.domain.context().name()
    }

    fn state(&self) -> MutexGuard<'_, PollState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the tag of a link. From now on, completions with this tag are kept for
    /// [`CqPoller::collect`].
    pub(super) fn join(&self, tag: u64) {
        self.state().queues.insert(tag, VecDeque::new());
    }

    pub(super) fn leave(&self, tag: u64) {
        self.state().queues.remove(&tag);
    }

    /// Moves the completions with this tag into `inbox`, which must be empty. Polls the completion
    /// queue first if no completion with this tag is waiting.
    #[inline]
    pub(super) fn collect(
        &self,
        tag: u64,
        inbox: &mut VecDeque<Completion>,
    ) -> Result<(), LinkError> {
        let mut state = self.state();
        if state.queues.get(&tag).is_none_or(VecDeque::is_empty) {
            self.poll(&mut state)?;
        }
        if let Some(queue) = state.queues.get_mut(&tag) {
            std::mem::swap(queue, inbox);
        }
        Ok(())
    }

    /// Polls the completion queue. Returns whether there were any completions.
    fn poll(&self, state: &mut PollState) -> Result<bool, LinkError> {
        let PollState { queues, batch, .. } = state;
        let ended = self.resources.completions.poll_into(batch).map_err(|error| failed(&error))?;
        let has_any = ended.len() > 0;
        for completion in ended {
            // Completions without a queue belong to a link that was dropped.
            if let Some(queue) = queues.get_mut(&BounceBuffers::tag_of(&completion)) {
                queue.push_back(completion);
            }
        }
        Ok(has_any)
    }

    /// Prepares the link with this tag to sleep. Returns `true` if the link may sleep: no
    /// completion is pending for it, and the next completion raises an event on the channel.
    pub(super) fn arm(&self, tag: u64) -> Result<bool, LinkError> {
        let mut state = self.state();
        if state.queues.get(&tag).is_some_and(|queue| !queue.is_empty()) {
            return Ok(false);
        }
        if state.armed {
            return Ok(true);
        }
        // Drain old events, which would wake this rank at once.
        self.take_events(&mut state)?;
        if !state.requested {
            self.resources.completions.arm().map_err(|error| failed(&error))?;
            state.requested = true;
        }
        // Completions that precede the request raise no event, so poll again. If there are any, the
        // caller must not sleep, because they may belong to links that it has armed already.
        state.armed = !self.poll(&mut state)?;
        Ok(state.armed)
    }

    /// Ends a sleep of a link, and drains the channel's events, because the channel would otherwise
    /// stay readable. `has_peer_left` tells that the link's peer has left. Such a link is no
    /// longer armed, but its completions still raise events.
    pub(super) fn disarm(&self, has_peer_left: bool) {
        let mut state = self.state();
        if std::mem::take(&mut state.armed) || (has_peer_left && state.requested) {
            // An error is returned again by the next call.
            let _ = self.take_events(&mut state);
        }
    }

    fn take_events(&self, state: &mut PollState) -> Result<(), LinkError> {
        if state.requested && self.channel.drain_events().map_err(|error| failed(&error))? {
            state.requested = false;
        }
        Ok(())
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }
}
