//! Completion queue, protection domain and completion channel that all links of an opened device
//! share.

use super::failed;
use crate::types::error::LinkError;
use rlaunch_verbs::{
    BounceBuffers, Completion, CompletionBatch, CompletionChannel, CompletionQueue, Context, Depth,
    ProtectionDomain, Resources, VerbsError,
};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Source of [`CqPoller::number`].
static NUMBERS: AtomicUsize = AtomicUsize::new(0);

/// Shared completion queue of one opened device. It distributes completions to the links by the
/// tags of their slots.
#[derive(Debug)]
pub(crate) struct CqPoller {
    pub(crate) resources: Resources,
    channel: Arc<CompletionChannel>,
    /// Number that is unique in this process, as the key of buffer registrations.
    pub(super) number: usize,
    state: Mutex<PollState>,
}

#[derive(Debug, Default)]
struct PollState {
    /// Completions that were polled and not yet collected, by the tag of their slots.
    queues: BTreeMap<u64, VecDeque<Completion>>,
    batch: CompletionBatch,
    /// A notification was requested and its event has not been drained.
    requested: bool,
    /// A link has asked to sleep on the channel.
    armed: bool,
}

impl CqPoller {
    /// Makes the shared resources for `pairs` queue pairs of this depth.
    pub(crate) fn open(
        context: &Arc<Context>,
        pairs: usize,
        depth: Depth,
    ) -> Result<Arc<CqPoller>, VerbsError> {
        let domain = ProtectionDomain::allocate(context)?;
        let channel = CompletionChannel::create(context)?;
        // When queue pairs fail, all their work requests complete at once. The completion queues of
        // devices are large enough for the queue pairs that are connected at the start (up to 255);
        // in larger jobs few pairs ever connect.
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

    /// Starts to collect completions for the slots with this tag.
    pub(super) fn join(&self, tag: u64) {
        self.state().queues.insert(tag, VecDeque::new());
    }

    pub(super) fn leave(&self, tag: u64) {
        self.state().queues.remove(&tag);
    }

    /// Swaps the empty `inbox` for the completions of the slots with this tag.
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

    /// Requests a notification. Returns whether the link may sleep: no completion is pending, and
    /// the next one raises an event on the channel.
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
        // Completions that precede the request raise no event, so poll again. Their links were
        // armed before and must be polled by the caller.
        state.armed = !self.poll(&mut state)?;
        Ok(state.armed)
    }

    /// Ends a sleep. Links whose peers have left are no longer armed, so their events are drained
    /// here; the channel would stay readable otherwise.
    pub(super) fn disarm(&self, has_peer_left: bool) {
        let mut state = self.state();
        if std::mem::take(&mut state.armed) || (has_peer_left && state.requested) {
            // An error shows up again in the next call.
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
