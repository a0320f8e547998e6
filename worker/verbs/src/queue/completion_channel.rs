//! Completion channels, with which a thread waits for completions without polling.
//!
//! Arm the queues ([`crate::CompletionQueue::arm`]), poll each queue again, then wait on the
//! channel. A completion that arrived before its queue was armed raises no event. One event stands
//! for any number of completions.

use crate::device::Context;
use crate::error::{Verb, VerbsError};
use crate::poll::{is_readable, set_nonblocking};
use rdma_sys::ibv_comp_channel;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
