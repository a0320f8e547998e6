//! Completion and cancellation of requests.

use crate::arguments::non_null;
use crate::errors::{Failure, call};
use crate::handles::rl_request;
use crate::types::{rl_received, rl_result};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

/// Takes the handle out of C's variable, and sets the variable to NULL.
///
/// # Safety
///
/// The handle must be NULL, or come from [`crate::handles::rl_comm::new_request`] and not have been
/// taken before.
unsafe fn take(request: Option<&mut *mut rl_request>) -> Result<Arc<rl_request>, Failure> {
    let handle = std::mem::replace(non_null(request, "request")?, ptr::null_mut());
    if handle.is_null() {
        return Err(Failure::argument("the request has completed already, or was never started"));
    }
    // SAFETY: `new_request` has made the handle from an `Arc`, whose reference count it holds.
    Ok(unsafe { Arc::from_raw(handle) })
}

/// Waits until the request completes, like MPI_Wait. Frees the request and sets *request to NULL,
/// whether or not it succeeds. `received` may be NULL; it is meaningful only for receives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_wait(
    request: Option<&mut *mut rl_request>,
    received: Option<&mut MaybeUninit<rl_received>>,
) -> rl_result {
    call(|| {
        // SAFETY: C guarantees it.
        let handle = unsafe { take(request) }?;
        let pending = handle.pending().take().ok_or(Failure::GivenUp)?;
        let got = pending.wait()?;
        if let Some(received) = received {
            received.write(got.into());
        }
        Ok(())
    })
}

/// Tests whether the request has completed, without waiting, like MPI_Test. If it has, *done is 1,
/// the request is freed and *request is NULL, whether or not it succeeded; else *done is 0. The
/// call also makes progress on all other operations of this process. `received` may be NULL; it is
/// meaningful only for receives that have completed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_test(
    request: Option<&mut *mut rl_request>,
    done: Option<&mut MaybeUninit<c_int>>,
    received: Option<&mut MaybeUninit<rl_received>>,
) -> rl_result {
    call(|| {
        let (request, done) = (non_null(request, "request")?, non_null(done, "done")?);
        done.write(1);
        // SAFETY: C guarantees it.
        let handle = unsafe { take(Some(&mut *request)) }?;
        let mut slot = handle.pending();
        let pending = slot.as_mut().ok_or(Failure::GivenUp)?;
        let Some(got) = pending.test() else {
            drop(slot);
            done.write(0);
            *request = Arc::into_raw(handle).cast_mut();
            return Ok(());
        };
        // Release the buffers before the call returns.
        *slot = None;
        let got = got?;
        if let Some(received) = received {
            received.write(got.into());
        }
        Ok(())
    })
}

/// Cancels the request, frees it and sets *request to NULL; its buffers are not accessed any more.
/// A message that was being sent arrives whole or not at all. A message that was being received
/// goes to the next matching receive. After a collective is cancelled, no rank can use its
/// communicator for collectives any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_cancel(request: Option<&mut *mut rl_request>) -> rl_result {
    call(|| {
        // SAFETY: C guarantees it.
        let handle = unsafe { take(request) }?;
        drop(handle.pending().take());
        Ok(())
    })
}
