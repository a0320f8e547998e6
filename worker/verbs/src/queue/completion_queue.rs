//! Completion queues, and the work completions that are polled from them.
//!
//! Completion channels, with which a thread waits for completions without polling.
//!
//! Arm the queues ([`crate::CompletionQueue::arm`]), poll each queue again, then wait on the
//! channel. A completion that arrived before its queue was armed raises no event. One event stands
//! for any number of completions.

use crate::device::{Context, is_readable, set_nonblocking};
use crate::error::{Verb, VerbsError};
use rdma_sys::{ibv_comp_channel, ibv_cq, ibv_wc, ibv_wc_status};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

/// Memory for up to `N` completions of one poll. The caller reuses the same memory for all polls.
#[derive(Debug)]
pub struct CompletionBatch<const N: usize = 16>([MaybeUninit<ibv_wc>; N]);

/// Completion queue (`ibv_cq`). Several queue pairs may share it.
#[derive(Debug)]
pub struct CompletionQueue {
    queue: NonNull<ibv_cq>,
    context: Arc<Context>,
    /// Channel that the queue raises events on.
    _channel: Option<Arc<CompletionChannel>>,
}

// SAFETY: libibverbs is thread safe (see `Context`), and the queue is destroyed by its last owner.
unsafe impl Send for CompletionQueue {}

// SAFETY: as above; polling takes the queue's own lock.
unsafe impl Sync for CompletionQueue {}

/// Status of a work completion (`enum ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WcStatus(u32);

impl WcStatus {
    /// Tells whether the work request succeeded.
    pub fn is_success(self) -> bool {
        self.0 == ibv_wc_status::IBV_WC_SUCCESS
    }

    /// Tells whether the request failed because the peer did not acknowledge a packet in spite of
    /// all retries: the peer is dead or has destroyed its queue pair, or packets are lost (wrong
    /// address, or an MTU that is too large).
    pub fn is_retry_exceeded(self) -> bool {
        self.0 == ibv_wc_status::IBV_WC_RETRY_EXC_ERR
    }

    /// Tells whether the work request was flushed, because the queue pair was in the error state
    /// already. The first failed completion of the queue pair has the cause.
    pub fn is_flushed(self) -> bool {
        self.0 == ibv_wc_status::IBV_WC_WR_FLUSH_ERR
    }

    /// Returns the value of `enum ibv_wc_status`.
    pub fn code(self) -> u32 {
        self.0
    }
}

/// Writes rdma-core's text and the number, for example `transport retry counter exceeded (status
/// 12)`.
impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: any number is allowed; unknown ones have a text as well.
        let text = unsafe { rdma_sys::ibv_wc_status_str(self.0) };
        if text.is_null() {
            return write!(f, "status {}", self.0);
        }
        // SAFETY: the text is a constant string that ends with a zero.
        let text = unsafe { CStr::from_ptr(text) };
        write!(f, "{} (status {})", text.to_string_lossy(), self.0)
    }
}

/// Work completion. A completion proves that its work request is over and the device no longer uses
/// the request's memory: a completion can be neither constructed nor cloned, and the device reports
/// each completion once.
#[derive(Debug, PartialEq, Eq)]
pub struct Completion {
    id: u64,
    qpn: u32,
    /// Address of the `ibv_cq` that the completion was polled from.
    queue: usize,
    /// Success, or the kind of failure.
    pub status: WcStatus,
    /// Length of the received message, in bytes. Undefined unless a receive succeeded.
    pub length: u32,
    /// Vendor-specific error code, if the request failed.
    pub vendor_error: u32,
}

impl Completion {
    /// Returns the id with which the work request was posted.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Tells whether the completion was polled from `queue` and belongs to the queue pair with
    /// number `qpn`. That queue pair must exist.
    pub(crate) fn is_from(&self, qpn: u32, queue: *const ibv_cq) -> bool {
        self.qpn == qpn && self.queue == queue as usize
    }
}

impl CompletionQueue {
    /// Creates a queue with room for at least `entries` completions. If more completions arrive
    /// without being polled, the queue overruns and fails.
    pub fn create(
        context: &Arc<Context>,
        entries: u32,
    ) -> Result<Arc<CompletionQueue>, VerbsError> {
        CompletionQueue::new(context, entries, None)
    }

    /// Creates a queue that raises an event on `channel` when it is armed and a completion arrives.
    /// Fails with EINVAL if the channel belongs to another opened device.
    pub fn create_on(
        context: &Arc<Context>,
        entries: u32,
        channel: &Arc<CompletionChannel>,
    ) -> Result<Arc<CompletionQueue>, VerbsError> {
        if channel.context().as_ptr() != context.as_ptr() {
            return Err(VerbsError::from_errno(Verb::CreateCq, context.name(), libc::EINVAL));
        }
        CompletionQueue::new(context, entries, Some(channel.clone()))
    }

    fn new(
        context: &Arc<Context>,
        entries: u32,
        channel: Option<Arc<CompletionChannel>>,
    ) -> Result<Arc<CompletionQueue>, VerbsError> {
        context.check_not_inherited()?;
        let entries = i32::try_from(entries.max(1)).unwrap_or(i32::MAX);
        let none = null_mut::<ibv_comp_channel>();
        let on = channel.as_ref().map_or(none, |channel| channel.as_ptr());
        // SAFETY: the context is open, and the channel, if any, is alive and belongs to the
        // context; the queue will own both.
        let queue =
            unsafe { rdma_sys::ibv_create_cq(context.as_ptr(), entries, null_mut(), on, 0) };
        let Some(queue) = NonNull::new(queue) else {
            return Err(VerbsError::last_os_error(Verb::CreateCq, context.name()));
        };
        let context = context.clone();
        Ok(Arc::new(CompletionQueue { queue, context, _channel: channel }))
    }

    /// Returns the device that the queue belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Arms the queue, so that the next completion raises an event on the channel. Poll the queue
    /// again afterwards, because completions that arrived before the call raise no event.
    pub fn arm(&self) -> Result<(), VerbsError> {
        self.context.check_not_inherited()?;
        // SAFETY: the queue is alive. 0 asks for an event for every completion, not only for
        // solicited ones.
        let code = unsafe { rdma_sys::ibv_req_notify_cq(self.as_ptr(), 0) };
        match code {
            0 => Ok(()),
            code => Err(VerbsError::from_errno(Verb::ReqNotifyCq, self.context.name(), code)),
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.queue.as_ptr()
    }

    /// Takes up to 16 completions, without waiting.
    pub fn poll(&self) -> Result<Vec<Completion>, VerbsError> {
        Ok(self.poll_into(&mut <CompletionBatch>::default())?.collect())
    }

    /// Takes up to `N` completions, without waiting. The caller reuses the `batch` for further
    /// polls, so a poll without a completion costs only the call of `ibv_poll_cq`.
    pub fn poll_into<'b, const N: usize>(
        &self,
        batch: &'b mut CompletionBatch<N>,
    ) -> Result<impl ExactSizeIterator<Item = Completion> + use<'b, N>, VerbsError> {
        self.context.check_not_inherited()?;
        let first = batch.0.as_mut_ptr().cast();
        // SAFETY: the queue is alive, and the batch has room for N completions.
        let count = unsafe { rdma_sys::ibv_poll_cq(self.as_ptr(), N as i32, first) };
        let Ok(count) = usize::try_from(count) else {
            return Err(VerbsError::last_os_error(Verb::PollCq, self.context.name()));
        };
        let queue = self.as_ptr() as usize;
        Ok(batch.0.iter_mut().take(count).map(move |slot| CompletionBatch::<N>::take(slot, queue)))
    }

    /// Takes one completion, without waiting; `None` if there is none.
    pub fn poll_one(&self) -> Result<Option<Completion>, VerbsError> {
        Ok(self.poll_into(&mut CompletionBatch::<1>::default())?.next())
    }
}

impl<const N: usize> Default for CompletionBatch<N> {
    fn default() -> Self {
        CompletionBatch([const { MaybeUninit::zeroed() }; N])
    }
}

impl<const N: usize> CompletionBatch<N> {
    fn take(slot: &mut MaybeUninit<ibv_wc>, queue: usize) -> Completion {
        let done = std::mem::replace(slot, MaybeUninit::zeroed());
        // SAFETY: the structure consists of integers, and was zeroed: fields that a provider does
        // not write, such as most fields of a failed request, are 0.
        let done = unsafe { done.assume_init() };
        Completion {
            id: done.wr_id,
            qpn: done.qp_num,
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
        // SAFETY: the queue was created once and is destroyed only here. Queue pairs that use it
        // hold an `Arc` of it, so they are gone.
        if unsafe { rdma_sys::ibv_destroy_cq(self.as_ptr()) } != 0 {
            tracing::warn!(device = self.context.name(), "ibv_destroy_cq failed");
        }
    }
}

/// Completion channel (`ibv_comp_channel`): a file descriptor that becomes readable when a
/// completion arrives in an armed completion queue that was created on it. An armed queue raises
/// one event, and must be armed again for the next.
#[derive(Debug)]
pub struct CompletionChannel {
    channel: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs is thread safe (see `Context`), and the channel is destroyed by its last
// owner.
unsafe impl Send for CompletionChannel {}

// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// Creates a channel on an opened device.
    pub fn create(context: &Arc<Context>) -> Result<Arc<CompletionChannel>, VerbsError> {
        context.check_not_inherited()?;
        // SAFETY: the context is open and will be owned by the channel.
        let channel = unsafe { rdma_sys::ibv_create_comp_channel(context.as_ptr()) };
        let failed = || VerbsError::last_os_error(Verb::CreateCompChannel, context.name());
        let channel = NonNull::new(channel).ok_or_else(failed)?;
        let made = CompletionChannel { channel, context: context.clone() };
        set_nonblocking(made.raw_fd()).map_err(|_| failed())?;
        Ok(Arc::new(made))
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_comp_channel {
        self.channel.as_ptr()
    }

    /// Returns the device that the channel belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    fn raw_fd(&self) -> RawFd {
        // SAFETY: the channel is alive, and its descriptor never changes.
        unsafe { self.channel.as_ref() }.fd
    }

    /// Returns the file descriptor, for an event loop. It is readable when
    /// [`CompletionChannel::wait`] would return at once.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive for as long as it is borrowed, and the descriptor with it.
        unsafe { BorrowedFd::borrow_raw(self.raw_fd()) }
    }

    /// Waits for an event and takes all events that have arrived. Returns `false` if none arrives
    /// before the timeout. Afterwards the queues must be armed again and then polled.
    pub fn wait(&self, timeout: Duration) -> Result<bool, VerbsError> {
        match is_readable(self.raw_fd(), Instant::now() + timeout) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(_) => return Err(self.failed()),
        }
        self.drain_events()
    }

    /// Takes all events that have arrived, without waiting. Returns `false` if there were none.
    pub fn drain_events(&self) -> Result<bool, VerbsError> {
        let mut any = false;
        while self.take_event()? {
            any = true;
        }
        Ok(any)
    }

    /// Takes and acknowledges one event. Returns `false` if there is none.
    fn take_event(&self) -> Result<bool, VerbsError> {
        self.context.check_not_inherited()?;
        let (mut queue, mut cq_context) = (null_mut(), null_mut());
        // SAFETY: the channel is alive; both variables have room for a pointer.
        let code = unsafe {
            rdma_sys::ibv_get_cq_event(self.as_ptr(), &raw mut queue, &raw mut cq_context)
        };
        if code != 0 {
            return match io::Error::last_os_error().kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
                _ => Err(self.failed()),
            };
        }
        // SAFETY: the queue is alive, because ibv_destroy_cq waits until all events that were taken
        // are acknowledged. Each event is acknowledged once.
        unsafe { rdma_sys::ibv_ack_cq_events(queue, 1) };
        Ok(true)
    }

    /// Makes the error of `ibv_get_cq_event` from the number in `errno`.
    fn failed(&self) -> VerbsError {
        VerbsError::last_os_error(Verb::GetCqEvent, self.context.name())
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        if self.context.is_inherited() {
            return;
        }
        // SAFETY: the channel was created once and is destroyed only here. Queues on it hold an
        // `Arc` of it, so they are gone.
        let code = unsafe { rdma_sys::ibv_destroy_comp_channel(self.as_ptr()) };
        if code != 0 {
            tracing::warn!(device = self.context.name(), code, "ibv_destroy_comp_channel failed");
        }
    }
}
