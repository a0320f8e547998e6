//! Collectives that return when they are done. Safety: see the crate.

use crate::arguments::{given, op};
use crate::errors::call;
use crate::handles::rl_comm;
use crate::memory::Buffers;
use crate::types::*;
use rlaunch_comm::raw::{self, CollectiveKind};
use std::ffi::c_void;
use std::ptr;

/// # Safety
///
/// C's promise for the buffers, for the time of the call.
unsafe fn run(
    comm: Option<&rl_comm>,
    kind: CollectiveKind,
    number: rl_op,
    buffers: Buffers,
) -> rl_result {
    call(|| {
        let comm = given(comm, "comm")?;
        let op = op(number)?;
        // SAFETY: the caller's promise.
        let (element, given) = unsafe { buffers.given(kind, comm.place()) }?;
        Ok(raw::collective(&comm.comm, kind, (element, op), given)?)
    })
}

/// Returns when every rank has called it.
#[unsafe(no_mangle)]
pub extern "C" fn rl_barrier(comm: Option<&rl_comm>) -> rl_result {
    call(|| Ok(given(comm, "comm")?.comm.barrier()?))
}

/// Gives every rank what `root` has in `data`, `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_broadcast(
    comm: Option<&rl_comm>,
    data: *mut c_void,
    count: usize,
    type_of: rl_type,
    root: usize,
) -> rl_result {
    let buffers = Buffers { input: ptr::null(), output: data, count, element: type_of };
    // SAFETY: C's promise, for the time of the call.
    unsafe { run(comm, CollectiveKind::Broadcast { root }, RL_SUM, buffers) }
}

/// Reduces `count` elements of each rank to `output` of `root`; the others' may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_reduce(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    type_of: rl_type,
    op: rl_op,
    root: usize,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: type_of };
    // SAFETY: C's promise, for the time of the call.
    unsafe { run(comm, CollectiveKind::Reduce { root }, op, buffers) }
}

/// Reduces `count` elements of each rank, for all. The results are equal to the bit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_all_reduce(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    type_of: rl_type,
    op: rl_op,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: type_of };
    // SAFETY: C's promise, for the time of the call.
    unsafe { run(comm, CollectiveKind::AllReduce, op, buffers) }
}

/// Puts `count` elements of each rank, by rank, to `output` of `root`; the others' may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_gather(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    type_of: rl_type,
    root: usize,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: type_of };
    // SAFETY: C's promise, for the time of the call.
    unsafe { run(comm, CollectiveKind::Gather { root }, RL_SUM, buffers) }
}

/// Gives each rank its `count` elements of what `root` has, by rank; the others' `input` may be
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_scatter(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    type_of: rl_type,
    root: usize,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: type_of };
    // SAFETY: C's promise, for the time of the call.
    unsafe { run(comm, CollectiveKind::Scatter { root }, RL_SUM, buffers) }
}

/// Puts `count` elements of each rank, by rank, to everyone's `output`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_all_gather(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    type_of: rl_type,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: type_of };
    // SAFETY: C's promise, for the time of the call.
    unsafe { run(comm, CollectiveKind::AllGather, RL_SUM, buffers) }
}

/// Reduces `count` elements for each rank from each rank, and gives each its part, by rank. In
/// place, the part is at the front of `output` afterwards, and anything behind it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_reduce_scatter(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    type_of: rl_type,
    op: rl_op,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: type_of };
    // SAFETY: C's promise, for the time of the call.
    unsafe { run(comm, CollectiveKind::ReduceScatter, op, buffers) }
}

/// Sends `count` elements of `input` to each rank and gets as many from each, by rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_all_to_all(
    comm: Option<&rl_comm>,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    type_of: rl_type,
) -> rl_result {
    let buffers = Buffers { input, output, count, element: type_of };
    // SAFETY: C's promise, for the time of the call.
    unsafe { run(comm, CollectiveKind::AllToAll, RL_SUM, buffers) }
}
