//! What links of one opened device share: where it says what has ended, and what wakes a rank that
//! sleeps.

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

/// Names hubs.
static NUMBERS: AtomicUsize = AtomicUsize::new(0);

/// See the module.
#[derive(Debug)]
pub(crate) struct CqPoller {
    pub(crate) resources: Resources,
    channel: Arc<CompletionChannel>,
    /// No two hubs of a process have one.
    pub(super) number: usize,
    state: Mutex<PollState>,
}

#[derive(Debug, Default)]
struct PollState {
    /// What was polled, by the tags of the slots that it is about.
    lines: BTreeMap<u64, VecDeque<Completion>>,
    batch: CompletionBatch,
    /// The next completion is told on the channel, or was.
    requested: bool,
    /// A link is about to sleep on it.
    armed: bool,
}

impl CqPoller {
    /// Of an opened device, for so many queue pairs of this depth.
    pub(crate) fn open(
        context: &Arc<Context>,
        pairs: usize,
        depth: Depth,
    ) -> Result<Arc<CqPoller>, VerbsError> {
        let domain = ProtectionDomain::allocate(context)?;
        let channel = CompletionChannel::create(context)?;
        // All requests of queue pairs that fail end at once. Devices have room for those of as many pairs
        // as are connected at the start (255), and of the pairs of larger jobs few ever speak.
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

    /// Keeps what is about the slots with this tag.
    pub(super) fn join(&self, tag: u64) {
        self.state().lines.insert(tag, VecDeque::new());
    }

    pub(super) fn leave(&self, tag: u64) {
        self.state().lines.remove(&tag);
    }

    /// Exchanges `inbox`, which is empty, for what has ended of the slots with this tag.
    #[inline]
    pub(super) fn collect(
        &self,
        tag: u64,
        inbox: &mut VecDeque<Completion>,
    ) -> Result<(), LinkError> {
        let mut state = self.state();
        if state.lines.get(&tag).is_none_or(VecDeque::is_empty) {
            self.poll(&mut state)?;
        }
        if let Some(line) = state.lines.get_mut(&tag) {
            std::mem::swap(line, inbox);
        }
        Ok(())
    }

    /// Says whether anything has ended.
    fn poll(&self, state: &mut PollState) -> Result<bool, LinkError> {
        let PollState { lines, batch, .. } = state;
        let ended = self.resources.completions.poll_into(batch).map_err(|error| failed(&error))?;
        let any = ended.len() > 0;
        for completion in ended {
            // What nobody waits for is of a link that is gone.
            if let Some(line) = lines.get_mut(&BounceBuffers::tag_of(&completion)) {
                line.push_back(completion);
            }
        }
        Ok(any)
    }

    /// Whether a link may sleep: nothing has come, and whatever does is told on the channel.
    pub(super) fn arm(&self, tag: u64) -> Result<bool, LinkError> {
        let mut state = self.state();
        if state.lines.get(&tag).is_some_and(|line| !line.is_empty()) {
            return Ok(false);
        }
        if state.armed {
            return Ok(true);
        }
        // What was told of before is known, and would wake this rank at once.
        self.take_events(&mut state)?;
        if !state.requested {
            self.resources.completions.arm().map_err(|error| failed(&error))?;
            state.requested = true;
        }
        // What has ended in between is not told of; and whoever it is for has looked already.
        state.armed = !self.poll(&mut state)?;
        Ok(state.armed)
    }

    /// After a sleep. A link whose peer has left is asked no more whether it may sleep, but woken by
    /// what is told of it.
    pub(super) fn disarm(&self, has_peer_left: bool) {
        let mut state = self.state();
        if std::mem::take(&mut state.armed) || (has_peer_left && state.requested) {
            // If not now, the next call says why.
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
