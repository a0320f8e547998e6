//! Nonblocking collectives, as C functions. The crate's documentation has the safety requirements.

use crate::arguments::{non_null, op};
use crate::errors::call;
use crate::handles::{rl_comm, rl_request};
use crate::memory::Buffers;
use crate::types::*;
use rlaunch_comm::raw::{self, CollectiveKind};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

/// Starts a collective with the arguments that C has passed.
///
/// # Safety
///
/// The buffers must be valid as the header demands, until the request completes.
unsafe fn begin(
    comm: Option<&rl_comm>,
    kind: CollectiveKind,
    number: rl_op,
    buffers: Buffers,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    call(|| {
        let request = non_null(request, "request")?;
        request.write(ptr::null_mut());
        let comm = non_null(comm, "comm")?;
        let op = op(number)?;
        // SAFETY: the caller guarantees it.
        let (element, buffers) = unsafe { buffers.collective_buffers(kind, comm.rank_and_size()) }?;
        // SAFETY: the buffers stay valid until the request is freed, which drops `pending`.
        let pending = unsafe { raw::icollective(&comm.comm, kind, (element, op), buffers) }?;
        request.write(comm.new_request(pending));
        Ok(())
    })
}

/// Starts rl_barrier.
#[unsafe(no_mangle)]
pub extern "C" fn rl_ibarrier(
    comm: Option<&rl_comm>,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    let buffers = Buffers { input: ptr::null(), output: ptr::null_mut(), count: 0, element: RL_U8 };
    // SAFETY: a barrier has no buffers.
    unsafe { begin(comm, CollectiveKind::Barrier, RL_SUM, buffers, request) }
}

/// Starts rl_broadcast.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_ibroadcast(
    comm: Option<&rl_comm>,
    data: *mut c_void,
    count: usize,
    datatype: rl_type,
    root: usize,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    let buffers = Buffers { input: ptr::null(), output: data, count, element: datatype };
    // SAFETY: C guarantees it, until the request completes.
    unsafe { begin(comm, CollectiveKind::Broadcast { root }, RL_SUM, buffers, request) }
}

/// Starts rl_reduce.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_ireduce(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    datatype: rl_type,
    op: rl_op,
    root: usize,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: datatype };
    // SAFETY: C guarantees it, until the request completes.
    unsafe { begin(comm, CollectiveKind::Reduce { root }, op, buffers, request) }
}

/// Starts rl_all_reduce.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_iall_reduce(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    datatype: rl_type,
    op: rl_op,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: datatype };
    // SAFETY: C guarantees it, until the request completes.
    unsafe { begin(comm, CollectiveKind::AllReduce, op, buffers, request) }
}

/// Starts rl_gather.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_igather(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    datatype: rl_type,
    root: usize,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: datatype };
    // SAFETY: C guarantees it, until the request completes.
    unsafe { begin(comm, CollectiveKind::Gather { root }, RL_SUM, buffers, request) }
}

/// Starts rl_scatter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_iscatter(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    datatype: rl_type,
    root: usize,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: datatype };
    // SAFETY: C guarantees it, until the request completes.
    unsafe { begin(comm, CollectiveKind::Scatter { root }, RL_SUM, buffers, request) }
}

/// Starts rl_all_gather.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_iall_gather(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    datatype: rl_type,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: datatype };
    // SAFETY: C guarantees it, until the request completes.
    unsafe { begin(comm, CollectiveKind::AllGather, RL_SUM, buffers, request) }
}

/// Starts rl_reduce_scatter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_ireduce_scatter(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    datatype: rl_type,
    op: rl_op,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: datatype };
    // SAFETY: C guarantees it, until the request completes.
    unsafe { begin(comm, CollectiveKind::ReduceScatter, op, buffers, request) }
}

/// Starts rl_all_to_all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_iall_to_all(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    datatype: rl_type,
    request: Option<&mut MaybeUninit<*mut rl_request>>,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: datatype };
    // SAFETY: C guarantees it, until the request completes.
    unsafe { begin(comm, CollectiveKind::AllToAll, RL_SUM, buffers, request) }
}
