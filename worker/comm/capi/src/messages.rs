//! Messages from rank to rank (point-to-point), and completion and cancellation of requests, as C
//! functions. The crate's documentation has the safety requirements.

use crate::errors::{Failure, call};
use crate::handles::{rl_comm, rl_request};
use crate::memory::{are_apart, bytes, element, input, non_null, output};
use crate::types::*;
use rlaunch_comm::{Received, raw};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

/// Sends `count` elements to rank `to`, like MPI_Send; returns when `data` may be reused. The tag
/// may be any number. Messages with the same tag from one rank to another are received in the order
/// in which they were sent. Short messages are buffered; a long one blocks until the receiver has
/// posted a matching receive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_send(
    comm: Option<&rl_comm>,
    data: *const c_void,
    count: usize,
    datatype: rl_type,
    to: usize,
    tag: u32,
) -> rl_result {
    call(|| {
        let comm = non_null(comm, "comm")?;
        let length = bytes(element(datatype)?, count)?;
        // SAFETY: C guarantees it, during the call.
        let data = unsafe { input(data, length, "data") }?;
        Ok(comm.comm.send(data, to, tag)?)
    })
}

/// Receives a message with this tag from rank `from`, of up to `count` elements, like MPI_Recv.
/// Fails with RL_TRUNCATED if the message is longer. `received` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_recv(
    comm: Option<&rl_comm>,
    data: *mut c_void,
    count: usize,
    datatype: rl_type,
    from: usize,
    tag: u32,
    received: Option<&mut MaybeUninit<rl_received>>,
) -> rl_result {
    // SAFETY: C guarantees it, during the call.
    call(|| unsafe { receive(comm, (data, count, datatype), (Some(from), tag), received) })
}

/// Receives a message with this tag from any rank, of up to `count` elements. `received` may be
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_recv_any(
    comm: Option<&rl_comm>,
    data: *mut c_void,
    count: usize,
    datatype: rl_type,
    tag: u32,
    received: Option<&mut MaybeUninit<rl_received>>,
) -> rl_result {
    // SAFETY: C guarantees it, during the call.
    call(|| unsafe { receive(comm, (data, count, datatype), (None, tag), received) })
}

/// Receives a message. `source` has the rank that sends the message, or `None` for any rank, and
/// the tag.
///
/// # Safety
///
/// `data` must be valid as the header demands, during the call.
unsafe fn receive(
    comm: Option<&rl_comm>,
    (data, count, datatype): (*mut c_void, usize, rl_type),
    source: (Option<usize>, u32),
    received: Option<&mut MaybeUninit<rl_received>>,
) -> Result<(), Failure> {
    let comm = non_null(comm, "comm")?;
    let element = element(datatype)?;
    // SAFETY: the caller guarantees it.
    let data = unsafe { output(data, bytes(element, count)?, "data") }?;
    let got = raw::receive(&comm.comm, (data, element), source)?;
    report(received, got);
    Ok(())
}

/// Tells the caller about a received message, if it wants to know.
fn report(received: Option<&mut MaybeUninit<rl_received>>, got: Received) {
    if let Some(received) = received {
        received.write(got.into());
    }
}

/// Sends one message and receives another at the same time, like MPI_Sendrecv, so that ranks can
/// exchange messages without deadlock: sends `count` elements of `data` to rank `to` with `tag`,
/// and receives up to `room` elements into `into` from rank `from` with `from_tag`. Both have the
/// same element type. `received` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_sendrecv(
    comm: Option<&rl_comm>,
    data: *const c_void,
    count: usize,
    to: usize,
    tag: u32,
    into: *mut c_void,
    room: usize,
    from: usize,
    from_tag: u32,
    datatype: rl_type,
    received: Option<&mut MaybeUninit<rl_received>>,
) -> rl_result {
    call(|| {
        let comm = non_null(comm, "comm")?;
        let element = element(datatype)?;
        let (reads, writes) = (bytes(element, count)?, bytes(element, room)?);
        are_apart((data, reads), (into, writes))?;
        // SAFETY: C guarantees it, during the call.
        let data = unsafe { input(data, reads, "data") }?;
        // SAFETY: C guarantees it, during the call; it does not overlap the data.
        let into = unsafe { output(into, writes, "into") }?;
        let source = (from, from_tag);
        let got = raw::exchange(&comm.comm, data, (to, tag), (into, element), source)?;
        report(received, got);
        Ok(())
    })
}

/// Starts rl_send. `data` must not be modified before the request completes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_isend(
    comm: Option<&rl_comm>,
    data: *const c_void,
    count: usize,
    datatype: rl_type,
    to: usize,
    tag: u32,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    call(|| {
        let request = non_null(request, "request")?;
        request.write(ptr::null_mut());
        let comm = non_null(comm, "comm")?;
        let length = bytes(element(datatype)?, count)?;
        // SAFETY: C guarantees it, until the request completes.
        let data = unsafe { input(data, length, "data") }?;
        // SAFETY: the data stays valid until the request is freed, which drops `pending`.
        let pending = unsafe { raw::isend(&comm.comm, data, (to, tag)) }?;
        request.write(comm.new_request(pending));
        Ok(())
    })
}

/// Starts rl_recv. `data` must not be accessed before the request completes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_irecv(
    comm: Option<&rl_comm>,
    data: *mut c_void,
    count: usize,
    datatype: rl_type,
    from: usize,
    tag: u32,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    // SAFETY: C guarantees it, until the request completes.
    call(|| unsafe { ireceive(comm, (data, count, datatype), (Some(from), tag), request) })
}

/// Starts rl_recv_any. `data` must not be accessed before the request completes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_irecv_any(
    comm: Option<&rl_comm>,
    data: *mut c_void,
    count: usize,
    datatype: rl_type,
    tag: u32,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    // SAFETY: C guarantees it, until the request completes.
    call(|| unsafe { ireceive(comm, (data, count, datatype), (None, tag), request) })
}

/// Starts to receive a message. `source` has the rank that sends the message, or `None` for any
/// rank, and the tag.
///
/// # Safety
///
/// `data` must be valid as the header demands, until the request completes.
unsafe fn ireceive(
    comm: Option<&rl_comm>,
    (data, count, datatype): (*mut c_void, usize, rl_type),
    source: (Option<usize>, u32),
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> Result<(), Failure> {
    let request = non_null(request, "request")?;
    request.write(ptr::null_mut());
    let comm = non_null(comm, "comm")?;
    let element = element(datatype)?;
    // SAFETY: the caller guarantees it.
    let data = unsafe { output(data, bytes(element, count)?, "data") }?;
    // SAFETY: only the request uses the data until it is freed, which drops `pending`.
    let pending = unsafe { raw::ireceive(&comm.comm, (data, element), source) }?;
    request.write(comm.new_request(pending));
    Ok(())
}

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
        report(received, got);
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
        report(received, got);
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
