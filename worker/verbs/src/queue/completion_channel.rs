//! A descriptor that becomes readable when requests have ended: for those who wait without polling.

use crate::device::Context;
use crate::error::{Verb, VerbsError};
use crate::poll::{is_readable, set_nonblocking};
use rdma_sys::ibv_comp_channel;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A completion channel. Queues that were made on it tell by it of the next completion, once each
/// time after they were armed.
#[derive(Debug)]
pub struct CompletionChannel {
    channel: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs is thread safe (see `Context`), and the channel is destroyed by its last owner.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// Makes one.
    pub fn create(context: &Arc<Context>) -> Result<Arc<CompletionChannel>, VerbsError> {
        context.own()?;
        // SAFETY: the context is open and will be owned by the channel.
        let channel = unsafe { rdma_sys::ibv_create_comp_channel(context.as_ptr()) };
        let failed = || VerbsError::last(Verb::CreateCompChannel, context.name());
        let channel = NonNull::new(channel).ok_or_else(failed)?;
        let made = CompletionChannel { channel, context: context.clone() };
        set_nonblocking(made.raw_fd()).map_err(|_| failed())?;
        Ok(Arc::new(made))
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_comp_channel {
        self.channel.as_ptr()
    }

    /// The device that it is of.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    fn raw_fd(&self) -> RawFd {
        // SAFETY: the channel is alive, and its descriptor never changes.
        unsafe { self.channel.as_ref() }.fd
    }

    /// For an event loop: readable when [`CompletionChannel::wait`] would not wait.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive for as long as it is borrowed, and the descriptor with it.
        unsafe { BorrowedFd::borrow_raw(self.raw_fd()) }
    }

    /// Whether a queue told of completions before the timeout. What was told is taken, so the queues
    /// are to be armed again, and then polled: what ended in between is not told of.
    pub fn wait(&self, timeout: Duration) -> Result<bool, VerbsError> {
        match is_readable(self.raw_fd(), Instant::now() + timeout) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(_) => return Err(self.failed()),
        }
        self.drain_events()
    }

    /// The same without waiting.
    pub fn drain_events(&self) -> Result<bool, VerbsError> {
        let mut any = false;
        while self.take()? {
            any = true;
        }
        Ok(any)
    }

    /// Takes and acknowledges one event; false when there is none.
    fn take(&self) -> Result<bool, VerbsError> {
        self.context.own()?;
        let (mut queue, mut of_ours) = (null_mut(), null_mut());
        // SAFETY: the channel is alive; both are room for the pointers.
        let code =
            unsafe { rdma_sys::ibv_get_cq_event(self.as_ptr(), &raw mut queue, &raw mut of_ours) };
        if code != 0 {
            return match io::Error::last_os_error().kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
                _ => Err(self.failed()),
            };
        }
        // SAFETY: the queue is alive: ibv_destroy_cq waits for those events to be acknowledged that
        // were taken. Each is acknowledged once.
        unsafe { rdma_sys::ibv_ack_cq_events(queue, 1) };
        Ok(true)
    }

    /// By the number in `errno`.
    fn failed(&self) -> VerbsError {
        VerbsError::last(Verb::GetCqEvent, self.context.name())
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
        // SAFETY: it was made once and is destroyed here alone; queues on it have an `Arc` of this
        // and are gone.
        let code = unsafe { rdma_sys::ibv_destroy_comp_channel(self.as_ptr()) };
        if code != 0 {
            tracing::warn!(device = self.context.name(), code, "ibv_destroy_comp_channel failed");
        }
    }
}
