//! Messages from rank to rank. Safety: see the crate.

use crate::arguments::{element, given};
use crate::errors::{Failure, call};
use crate::handles::{rl_comm, rl_request};
use crate::memory::{are_apart, bytes, input, output};
use crate::types::*;
use rlaunch_comm::raw;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

/// Sends to a rank; returns when the data may be used again. Messages between two ranks with one tag
/// arrive in the order in which they were sent. A long message waits until it is received.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_send(
    comm: Option<&rl_comm>,
    data: *const c_void,
    count: usize,
    type_of: rl_type,
    to: usize,
    tag: u32,
) -> rl_result {
    call(|| {
        let comm = given(comm, "comm")?;
        let length = bytes(element(type_of)?, count)?;
        // SAFETY: C's promise, for the time of the call.
        let data = unsafe { input(data, length, "data") }?;
        Ok(comm.comm.send(data, to, tag)?)
    })
}

/// Receives a message of a rank, which may be shorter than there is room for. `received` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_recv(
    comm: Option<&rl_comm>,
    data: *mut c_void,
    count: usize,
    type_of: rl_type,
    from: usize,
    tag: u32,
    received: Option<&mut MaybeUninit<rl_received>>,
) -> rl_result {
    // SAFETY: C's promise, for the time of the call.
    call(|| unsafe { receive(comm, (data, count, type_of), (Some(from), tag), received) })
}

/// Receives a message of whichever rank sends one with this tag first. `received` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_recv_any(
    comm: Option<&rl_comm>,
    data: *mut c_void,
    count: usize,
    type_of: rl_type,
    tag: u32,
    received: Option<&mut MaybeUninit<rl_received>>,
) -> rl_result {
    // SAFETY: C's promise, for the time of the call.
    call(|| unsafe { receive(comm, (data, count, type_of), (None, tag), received) })
}

/// # Safety
///
/// C's promise for the data, for the time of the call.
unsafe fn receive(
    comm: Option<&rl_comm>,
    (data, count, type_of): (*mut c_void, usize, rl_type),
    source: (Option<usize>, u32),
    received: Option<&mut MaybeUninit<rl_received>>,
) -> Result<(), Failure> {
    let comm = given(comm, "comm")?;
    let element = element(type_of)?;
    // SAFETY: the caller's promise.
    let data = unsafe { output(data, bytes(element, count)?, "data") }?;
    let got = raw::receive(&comm.comm, (data, element), source)?;
    if let Some(received) = received {
        received.write(got.into());
    }
    Ok(())
}

/// Sends one message and receives another at the same time, so that two ranks may do it with each
/// other. `received` may be NULL.
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
    type_of: rl_type,
    received: Option<&mut MaybeUninit<rl_received>>,
) -> rl_result {
    call(|| {
        let comm = given(comm, "comm")?;
        let element = element(type_of)?;
        let (reads, writes) = (bytes(element, count)?, bytes(element, room)?);
        are_apart((data, reads), (into, writes))?;
        // SAFETY: C's promise, for the time of the call.
        let data = unsafe { input(data, reads, "data") }?;
        // SAFETY: C's promise, for the time of the call; it does not overlap the data.
        let into = unsafe { output(into, writes, "into") }?;
        let source = (from, from_tag);
        let got = raw::exchange(&comm.comm, data, (to, tag), (into, element), source)?;
        if let Some(received) = received {
            received.write(got.into());
        }
        Ok(())
    })
}

/// Begins rl_send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_isend(
    comm: Option<&rl_comm>,
    data: *const c_void,
    count: usize,
    type_of: rl_type,
    to: usize,
    tag: u32,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    call(|| {
        let request = given(request, "request")?;
        request.write(ptr::null_mut());
        let comm = given(comm, "comm")?;
        let length = bytes(element(type_of)?, count)?;
        // SAFETY: C's promise, until the request is over.
        let data = unsafe { input(data, length, "data") }?;
        // SAFETY: the data stays until the request is over, and it is dropped then.
        let pending = unsafe { raw::isend(&comm.comm, data, (to, tag)) }?;
        request.write(comm.hand_out(pending));
        Ok(())
    })
}

/// Begins rl_recv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_irecv(
    comm: Option<&rl_comm>,
    data: *mut c_void,
    count: usize,
    type_of: rl_type,
    from: usize,
    tag: u32,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    // SAFETY: C's promise, until the request is over.
    call(|| unsafe { ireceive(comm, (data, count, type_of), (Some(from), tag), request) })
}

/// Begins rl_recv_any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_irecv_any(
    comm: Option<&rl_comm>,
    data: *mut c_void,
    count: usize,
    type_of: rl_type,
    tag: u32,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    // SAFETY: C's promise, until the request is over.
    call(|| unsafe { ireceive(comm, (data, count, type_of), (None, tag), request) })
}

/// # Safety
///
/// C's promise for the data, until the request is over.
unsafe fn ireceive(
    comm: Option<&rl_comm>,
    (data, count, type_of): (*mut c_void, usize, rl_type),
    source: (Option<usize>, u32),
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> Result<(), Failure> {
    let request = given(request, "request")?;
    request.write(ptr::null_mut());
    let comm = given(comm, "comm")?;
    let element = element(type_of)?;
    // SAFETY: the caller's promise.
    let data = unsafe { output(data, bytes(element, count)?, "data") }?;
    // SAFETY: the data is nobody else's until the request is over, and it is dropped then.
    let pending = unsafe { raw::ireceive(&comm.comm, (data, element), source) }?;
    request.write(comm.hand_out(pending));
    Ok(())
}
