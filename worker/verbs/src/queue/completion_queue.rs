//! Where devices say what is done.

use super::completion_channel::CompletionChannel;
use crate::device::Context;
use crate::error::{Verb, VerbsError};
use rdma_sys::{ibv_comp_channel, ibv_cq, ibv_wc, ibv_wc_status};
use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Room for completions that are taken at once.
#[derive(Debug)]
pub struct CompletionBatch<const MOST: usize = 16>([MaybeUninit<ibv_wc>; MOST]);

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    queue: NonNull<ibv_cq>,
    context: Arc<Context>,
    /// On which it tells, owned for as long.
    _channel: Option<Arc<CompletionChannel>>,
}

// SAFETY: libibverbs is thread safe (see `Context`), and the queue is destroyed by its last owner.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above; polling takes the queue's own lock.
unsafe impl Sync for CompletionQueue {}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WcStatus(u32);

impl WcStatus {
    /// It was done.
    pub fn is_success(self) -> bool {
        self.0 == ibv_wc_status::IBV_WC_SUCCESS
    }

    /// The peer never answered: wrong address, MTU, a dead peer.
    pub fn is_retry_exceeded(self) -> bool {
        self.0 == ibv_wc_status::IBV_WC_RETRY_EXC_ERR
    }

    /// It was never tried: the queue pair had failed before.
    pub fn is_flushed(self) -> bool {
        self.0 == ibv_wc_status::IBV_WC_WR_FLUSH_ERR
    }

    /// `enum ibv_wc_status`.
    pub fn code(self) -> u32 {
        self.0
    }
}

/// In rdma-core's words: `transport retry counter exceeded (status 12)`.
impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: any number is allowed: those that are not known have a text as well.
        let text = unsafe { rdma_sys::ibv_wc_status_str(self.0) };
        if text.is_null() {
            return write!(f, "status {}", self.0);
        }
        // SAFETY: a constant string that ends with a zero.
        let text = unsafe { CStr::from_ptr(text) };
        write!(f, "{} (status {})", text.to_string_lossy(), self.0)
    }
}

/// A request that has ended. There is one of each, and nobody makes any but devices: whoever has it
/// may rely on the request being over.
#[derive(Debug, PartialEq, Eq)]
pub struct Completion {
    id: u64,
    /// The queue pair's number.
    pair: u32,
    /// The completion queue, by its address.
    queue: usize,
    /// How it ended.
    pub status: WcStatus,
    /// Of a receive: how many bytes came.
    pub length: u32,
    /// The device's own word on an error.
    pub vendor_error: u32,
}

impl Completion {
    /// What the request was given.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether its request was made of this queue pair, which lives, and completes here.
    pub(crate) fn is_of(&self, pair: u32, queue: *const ibv_cq) -> bool {
        self.pair == pair && self.queue == queue as usize
    }
}

impl CompletionQueue {
    /// Makes one for at least `entries` completions.
    pub fn create(
        context: &Arc<Context>,
        entries: u32,
    ) -> Result<Arc<CompletionQueue>, VerbsError> {
        CompletionQueue::make(context, entries, None)
    }

    /// Makes one that tells on a channel of the same opened device, whenever it is armed.
    pub fn create_on(
        context: &Arc<Context>,
        entries: u32,
        channel: &Arc<CompletionChannel>,
    ) -> Result<Arc<CompletionQueue>, VerbsError> {
        if channel.context().as_ptr() != context.as_ptr() {
            return Err(VerbsError::code(Verb::CreateCq, context.name(), libc::EINVAL));
        }
        CompletionQueue::make(context, entries, Some(channel.clone()))
    }

    fn make(
        context: &Arc<Context>,
        entries: u32,
        channel: Option<Arc<CompletionChannel>>,
    ) -> Result<Arc<CompletionQueue>, VerbsError> {
        context.own()?;
        let entries = i32::try_from(entries.max(1)).unwrap_or(i32::MAX);
        let none = null_mut::<ibv_comp_channel>();
        let on = channel.as_ref().map_or(none, |channel| channel.as_ptr());
        // SAFETY: the context is open, and the channel alive and of this context, if there is one;
        // both will be owned by the queue.
        let queue =
            unsafe { rdma_sys::ibv_create_cq(context.as_ptr(), entries, null_mut(), on, 0) };
        let Some(queue) = NonNull::new(queue) else {
            return Err(VerbsError::last(Verb::CreateCq, context.name()));
        };
        let context = context.clone();
        Ok(Arc::new(CompletionQueue { queue, context, _channel: channel }))
    }

    /// The device that it is of.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Has the next completion told on the channel. What has come before is not, so the queue is
    /// polled once more afterwards.
    pub fn arm(&self) -> Result<(), VerbsError> {
        self.context.own()?;
        // SAFETY: the queue is alive; any completion shall be told of, not just those that the peer
        // marks.
        let code = unsafe { rdma_sys::ibv_req_notify_cq(self.as_ptr(), 0) };
        match code {
            0 => Ok(()),
            code => Err(VerbsError::code(Verb::ReqNotifyCq, self.context.name(), code)),
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.queue.as_ptr()
    }

    /// What has ended since, at most 16 requests; nothing is waited for.
    pub fn poll(&self) -> Result<Vec<Completion>, VerbsError> {
        Ok(self.poll_into(&mut <CompletionBatch>::default())?.collect())
    }

    /// The same by a batch that its owner keeps: a look that finds nothing costs a call and no more.
    pub fn poll_into<'b, const MOST: usize>(
        &self,
        batch: &'b mut CompletionBatch<MOST>,
    ) -> Result<impl ExactSizeIterator<Item = Completion> + use<'b, MOST>, VerbsError> {
        self.context.own()?;
        let first = batch.0.as_mut_ptr().cast();
        // SAFETY: the queue is alive, and there is room for MOST completions.
        let count = unsafe { rdma_sys::ibv_poll_cq(self.as_ptr(), MOST as i32, first) };
        let Ok(count) = usize::try_from(count) else {
            return Err(VerbsError::last(Verb::PollCq, self.context.name()));
        };
        let queue = self.as_ptr() as usize;
        Ok(batch
            .0
            .iter_mut()
            .take(count)
            .map(move |slot| CompletionBatch::<MOST>::take(slot, queue)))
    }

    /// The first request that has ended since; nothing is waited for.
    pub fn poll_one(&self) -> Result<Option<Completion>, VerbsError> {
        Ok(self.poll_into(&mut CompletionBatch::<1>::default())?.next())
    }
}

impl<const MOST: usize> Default for CompletionBatch<MOST> {
    fn default() -> Self {
        CompletionBatch([const { MaybeUninit::zeroed() }; MOST])
    }
}

impl<const MOST: usize> CompletionBatch<MOST> {
    fn take(slot: &mut MaybeUninit<ibv_wc>, queue: usize) -> Completion {
        let done = std::mem::replace(slot, MaybeUninit::zeroed());
        // SAFETY: integers alone, zeros at first: what a provider does not write, as of a failed
        // request it need not, is zero.
        let done = unsafe { done.assume_init() };
        Completion {
            id: done.wr_id,
            pair: done.qp_num,
            queue,
            status: WcStatus(done.status),
            length: done.byte_len,
            vendor_error: done.vendor_err,
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if self.context.is_inherited() {
            return;
        }
        // SAFETY: it was made once and is destroyed here alone; queue pairs that use it have an
        // `Arc` of this and are gone.
        if unsafe { rdma_sys::ibv_destroy_cq(self.as_ptr()) } != 0 {
            tracing::warn!(device = self.context.name(), "ibv_destroy_cq failed");
        }
    }
}
