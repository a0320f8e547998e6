//! Collectives that go on while the program does something else. Safety: see the crate.

use crate::arguments::{given, op};
use crate::errors::call;
use crate::handles::{rl_comm, rl_request};
use crate::memory::Buffers;
use crate::types::*;
use rlaunch_comm::raw::{self, CollectiveKind};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

/// # Safety
///
/// C's promise for the buffers, until the request is over.
unsafe fn begin(
    comm: Option<&rl_comm>,
    kind: CollectiveKind,
    number: rl_op,
    buffers: Buffers,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    call(|| {
        let request = given(request, "request")?;
        request.write(ptr::null_mut());
        let comm = given(comm, "comm")?;
        let op = op(number)?;
        // SAFETY: the caller's promise.
        let (element, given) = unsafe { buffers.given(kind, comm.place()) }?;
        // SAFETY: the buffers stay until the request is over, and it is dropped then.
        let pending = unsafe { raw::icollective(&comm.comm, kind, (element, op), given) }?;
        request.write(comm.hand_out(pending));
        Ok(())
    })
}

/// Begins rl_barrier.
#[unsafe(no_mangle)]
pub extern "C" fn rl_ibarrier(
    comm: Option<&rl_comm>,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    let buffers = Buffers { input: ptr::null(), output: ptr::null_mut(), count: 0, element: RL_U8 };
    // SAFETY: no memory is promised.
    unsafe { begin(comm, CollectiveKind::Barrier, RL_SUM, buffers, request) }
}

/// Begins rl_broadcast.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_ibroadcast(
    comm: Option<&rl_comm>,
    data: *mut c_void,
    count: usize,
    type_of: rl_type,
    root: usize,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    let buffers = Buffers { input: ptr::null(), output: data, count, element: type_of };
    // SAFETY: C's promise, until the request is over.
    unsafe { begin(comm, CollectiveKind::Broadcast { root }, RL_SUM, buffers, request) }
}

/// Begins rl_reduce.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_ireduce(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    type_of: rl_type,
    op: rl_op,
    root: usize,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: type_of };
    // SAFETY: C's promise, until the request is over.
    unsafe { begin(comm, CollectiveKind::Reduce { root }, op, buffers, request) }
}

/// Begins rl_all_reduce.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_iall_reduce(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    type_of: rl_type,
    op: rl_op,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: type_of };
    // SAFETY: C's promise, until the request is over.
    unsafe { begin(comm, CollectiveKind::AllReduce, op, buffers, request) }
}

/// Begins rl_gather.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_igather(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    type_of: rl_type,
    root: usize,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: type_of };
    // SAFETY: C's promise, until the request is over.
    unsafe { begin(comm, CollectiveKind::Gather { root }, RL_SUM, buffers, request) }
}

/// Begins rl_scatter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_iscatter(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    type_of: rl_type,
    root: usize,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: type_of };
    // SAFETY: C's promise, until the request is over.
    unsafe { begin(comm, CollectiveKind::Scatter { root }, RL_SUM, buffers, request) }
}

/// Begins rl_all_gather.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_iall_gather(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    type_of: rl_type,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: type_of };
    // SAFETY: C's promise, until the request is over.
    unsafe { begin(comm, CollectiveKind::AllGather, RL_SUM, buffers, request) }
}

/// Begins rl_reduce_scatter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_ireduce_scatter(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    type_of: rl_type,
    op: rl_op,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: type_of };
    // SAFETY: C's promise, until the request is over.
    unsafe { begin(comm, CollectiveKind::ReduceScatter, op, buffers, request) }
}

/// Begins rl_all_to_all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_iall_to_all(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    type_of: rl_type,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: type_of };
    // SAFETY: C's promise, until the request is over.
    unsafe { begin(comm, CollectiveKind::AllToAll, RL_SUM, buffers, request) }
}
