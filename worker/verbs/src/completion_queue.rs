//! Where devices say what is done.

use crate::device::Context;
use crate::error::{Verb, VerbsError};
use rdma_sys::{ibv_cq, ibv_wc, ibv_wc_status};
use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// As many completions as are taken at once.
const BATCH: usize = 16;

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    queue: NonNull<ibv_cq>,
    context: Arc<Context>,
}

// SAFETY: libibverbs is thread safe (see `Context`), and the queue is destroyed by its last owner.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above; polling takes the queue's own lock.
unsafe impl Sync for CompletionQueue {}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(u32);

impl Status {
    /// It was done.
    pub fn is_success(self) -> bool {
        self.0 == ibv_wc_status::IBV_WC_SUCCESS
    }

    /// The peer never answered: wrong address, MTU, a dead peer.
    pub fn is_no_answer(self) -> bool {
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
impl fmt::Display for Status {
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

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the request was given.
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// Of a receive: how many bytes came.
    pub length: u32,
    /// The device's own word on an error.
    pub vendor_error: u32,
}

impl CompletionQueue {
    /// Makes one for at least `entries` completions.
    pub fn create(
        context: &Arc<Context>,
        entries: u32,
    ) -> Result<Arc<CompletionQueue>, VerbsError> {
        let entries = i32::try_from(entries.max(1)).unwrap_or(i32::MAX);
        // SAFETY: the context is open and will be owned by the queue; no channel is one.
        let queue = unsafe {
            rdma_sys::ibv_create_cq(context.as_ptr(), entries, null_mut(), null_mut(), 0)
        };
        match NonNull::new(queue) {
            Some(queue) => Ok(Arc::new(CompletionQueue { queue, context: context.clone() })),
            None => Err(VerbsError::last(Verb::CreateCq, context.name())),
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.queue.as_ptr()
    }

    /// What has ended since; nothing is waited for.
    pub fn poll(&self) -> Result<Vec<Completion>, VerbsError> {
        let mut batch = [const { MaybeUninit::<ibv_wc>::zeroed() }; BATCH];
        let first = batch.as_mut_ptr().cast();
        // SAFETY: the queue is alive, and there is room for BATCH completions.
        let count = unsafe { rdma_sys::ibv_poll_cq(self.as_ptr(), BATCH as i32, first) };
        let Ok(count) = usize::try_from(count) else {
            return Err(VerbsError::last(Verb::PollCq, self.context.name()));
        };
        let ended = batch.iter().take(count).map(|slot| {
            // SAFETY: integers alone, zeros at first: what a provider does not write, as of a failed
            // request it need not, is zero.
            let done = unsafe { slot.assume_init_ref() };
            Completion {
                id: done.wr_id,
                status: Status(done.status),
                length: done.byte_len,
                vendor_error: done.vendor_err,
            }
        });
        Ok(ended.collect())
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: it was made once and is destroyed here alone; queue pairs that use it have an
        // `Arc` of this and are gone.
        if unsafe { rdma_sys::ibv_destroy_cq(self.as_ptr()) } != 0 {
            tracing::warn!(device = self.context.name(), "ibv_destroy_cq failed");
        }
    }
}
