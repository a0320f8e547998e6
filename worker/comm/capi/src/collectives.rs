//! Collectives, blocking and nonblocking, as C functions. The crate's documentation has the safety
//! requirements.

use crate::errors::call;
use crate::handles::{rl_comm, rl_request};
use crate::memory::{Buffers, non_null, op};
use crate::types::*;
use rlaunch_comm::raw::{self, CollectiveKind};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

/// Runs a blocking collective with the arguments that C has passed.
///
/// # Safety
///
/// The buffers must be valid as the header demands, during the call.
unsafe fn run(
    comm: Option<&rl_comm>,
    kind: CollectiveKind,
    number: rl_op,
    buffers: Buffers,
) -> rl_result {
    call(|| {
        let comm = non_null(comm, "comm")?;
        let op = op(number)?;
        // SAFETY: the caller guarantees it.
        let (element, buffers) = unsafe { buffers.collective_buffers(kind, comm.rank_and_size()) }?;
        Ok(raw::collective(&comm.comm, kind, (element, op), buffers)?)
    })
}

/// Returns once every rank has called it.
#[unsafe(no_mangle)]
pub extern "C" fn rl_barrier(comm: Option<&rl_comm>) -> rl_result {
    call(|| Ok(non_null(comm, "comm")?.comm.barrier()?))
}

/// Copies `count` elements of `data` from rank `root` to `data` of all ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_broadcast(
    comm: Option<&rl_comm>,
    data: *mut c_void,
    count: usize,
    datatype: rl_type,
    root: usize,
) -> rl_result {
    let buffers = Buffers { input: ptr::null(), output: data, count, element: datatype };
    // SAFETY: C guarantees it, during the call.
    unsafe { run(comm, CollectiveKind::Broadcast { root }, RL_SUM, buffers) }
}

/// Reduces `count` elements of `input` of all ranks, element by element, into `output` of rank
/// `root`. `output` of the other ranks may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_reduce(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    datatype: rl_type,
    op: rl_op,
    root: usize,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: datatype };
    // SAFETY: C guarantees it, during the call.
    unsafe { run(comm, CollectiveKind::Reduce { root }, op, buffers) }
}

/// Reduces `count` elements of `input` of all ranks, element by element, into `output` of every
/// rank. All ranks get bitwise equal results.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_all_reduce(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    datatype: rl_type,
    op: rl_op,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: datatype };
    // SAFETY: C guarantees it, during the call.
    unsafe { run(comm, CollectiveKind::AllReduce, op, buffers) }
}

/// Concatenates the `count` elements of `input` of all ranks, in rank order, into the size * count
/// elements of `output` of rank `root`. `output` of the other ranks may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_gather(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    datatype: rl_type,
    root: usize,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: datatype };
    // SAFETY: C guarantees it, during the call.
    unsafe { run(comm, CollectiveKind::Gather { root }, RL_SUM, buffers) }
}

/// Splits the size * count elements of `input` of rank `root` into parts of `count`, in rank order,
/// and copies each rank's part to its `output`. `input` of the other ranks may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_scatter(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    datatype: rl_type,
    root: usize,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: datatype };
    // SAFETY: C guarantees it, during the call.
    unsafe { run(comm, CollectiveKind::Scatter { root }, RL_SUM, buffers) }
}

/// Concatenates the `count` elements of `input` of all ranks, in rank order, into the size * count
/// elements of `output` of every rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_all_gather(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    datatype: rl_type,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: datatype };
    // SAFETY: C guarantees it, during the call.
    unsafe { run(comm, CollectiveKind::AllGather, RL_SUM, buffers) }
}

/// Reduces the size * count elements of `input` of all ranks, element by element, and gives each
/// rank its part of `count`, in rank order, in `output`. In place, `output` has size * count
/// elements; its first `count` are the result, and the rest is undefined.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_reduce_scatter(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    datatype: rl_type,
    op: rl_op,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: datatype };
    // SAFETY: C guarantees it, during the call.
    unsafe { run(comm, CollectiveKind::ReduceScatter, op, buffers) }
}

/// Sends `count` elements of `input` to each rank and receives as many from each: part j of `input`
/// of rank i becomes part i of `output` of rank j. `input` and `output` have size * count elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_all_to_all(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    datatype: rl_type,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: datatype };
    // SAFETY: C guarantees it, during the call.
    unsafe { run(comm, CollectiveKind::AllToAll, RL_SUM, buffers) }
}

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
