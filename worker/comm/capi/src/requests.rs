//! The end of what was begun.

use crate::arguments::given;
use crate::errors::{Failure, call};
use crate::handles::rl_request;
use crate::types::{rl_received, rl_result};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

/// The handle itself; C's is NULL from here on.
///
/// # Safety
///
/// It is NULL or was given out, and was not taken before.
unsafe fn take(request: Option<&mut *mut rl_request>) -> Result<Arc<rl_request>, Failure> {
    let handle = std::mem::replace(given(request, "request")?, ptr::null_mut());
    if handle.is_null() {
        return Err(Failure::argument("the request is over already, or never began"));
    }
    // SAFETY: `hand_out` has made it of an `Arc`, whose count it holds.
    Ok(unsafe { Arc::from_raw(handle) })
}

/// Waits until the request is over, and sets it to NULL, however it ends. `received` may be NULL;
/// it says what a receive has got, and of anything else nothing that means anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_wait(
    request: Option<&mut *mut rl_request>,
    received: Option<&mut MaybeUninit<rl_received>>,
) -> rl_result {
    call(|| {
        // SAFETY: C's promise.
        let handle = unsafe { take(request) }?;
        let pending = handle.pending().take().ok_or(Failure::GivenUp)?;
        let got = pending.wait()?;
        if let Some(received) = received {
            received.write(got.into());
        }
        Ok(())
    })
}

/// Goes on with everything, and says whether the request is over; `done` is 1 then and the request
/// NULL, however it ended. `received` may be NULL, and is written to when it is over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_test(
    request: Option<&mut *mut rl_request>,
    done: Option<&mut MaybeUninit<c_int>>,
    received: Option<&mut MaybeUninit<rl_received>>,
) -> rl_result {
    call(|| {
        let (request, done) = (given(request, "request")?, given(done, "done")?);
        done.write(1);
        // SAFETY: C's promise.
        let handle = unsafe { take(Some(&mut *request)) }?;
        let mut slot = handle.pending();
        let pending = slot.as_mut().ok_or(Failure::GivenUp)?;
        let Some(got) = pending.test() else {
            drop(slot);
            done.write(0);
            *request = Arc::into_raw(handle).cast_mut();
            return Ok(());
        };
        // The memory is C's again before C is told.
        *slot = None;
        let got = got?;
        if let Some(received) = received {
            received.write(got.into());
        }
        Ok(())
    })
}

/// Gives the request up and sets it to NULL: its memory is not touched any more. A message to be sent
/// arrives whole or not at all, one to be received waits for the next receive, and the communicator of
/// a collective is of no more use for collectives, at any of its ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_cancel(request: Option<&mut *mut rl_request>) -> rl_result {
    call(|| {
        // SAFETY: C's promise.
        let handle = unsafe { take(request) }?;
        drop(handle.pending().take());
        Ok(())
    })
}
