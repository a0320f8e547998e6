//! Names and numbers that C and Rust agree on. C may pass any number, so none of them is an `enum`.
#![expect(non_camel_case_types, reason = "they are C's")]

use rlaunch_comm::Received;
use std::ffi::c_void;

/// How a call ended: RL_OK, or why it failed.
pub type rl_result = i32;

/// It did what it says.
pub const RL_OK: rl_result = 0;
/// An argument that makes no sense, as NULL where something is wanted.
pub const RL_INVALID: rl_result = 1;
/// The communicator has no such rank.
pub const RL_NO_SUCH_RANK: rl_result = 2;
/// Buffers that do not fit to each other, in this rank or among the ranks.
pub const RL_LENGTH: rl_result = 3;
/// A message that is longer than the buffer.
pub const RL_TRUNCATED: rl_result = 4;
/// A rank is dead, or the way to it is.
pub const RL_LOST: rl_result = 16;
/// A rank has finalized its communicator.
pub const RL_LEFT: rl_result = 17;
/// RLAUNCH_COMM_TIMEOUT has passed.
pub const RL_TIMED_OUT: rl_result = 18;
/// The job is at its end.
pub const RL_ABORTED: rl_result = 19;
/// The request was given up before it was done, here or by another rank.
pub const RL_GIVEN_UP: rl_result = 20;
/// This process could not join the others.
pub const RL_START: rl_result = 32;
/// A mistake in rlaunch itself.
pub const RL_INTERNAL: rl_result = 64;

/// What elements are.
pub type rl_type = i32;

/// IEEE 754 half precision.
pub const RL_F16: rl_type = 0;
/// The upper half of RL_F32.
pub const RL_BF16: rl_type = 1;
/// float
pub const RL_F32: rl_type = 2;
/// double
pub const RL_F64: rl_type = 3;
/// int32_t
pub const RL_I32: rl_type = 4;
/// int64_t
pub const RL_I64: rl_type = 5;
/// uint8_t, and plain bytes.
pub const RL_U8: rl_type = 6;
/// uint64_t
pub const RL_U64: rl_type = 7;

/// How elements are reduced to one. Integers wrap around.
pub type rl_op = i32;

/// a + b
pub const RL_SUM: rl_op = 0;
/// a * b
pub const RL_PROD: rl_op = 1;
/// The lesser; not a number if either is none.
pub const RL_MIN: rl_op = 2;
/// The greater; not a number if either is none.
pub const RL_MAX: rl_op = 3;

/// What a receive has got.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rl_received {
    /// The rank that sent it.
    pub from: usize,
    /// How many elements it has.
    pub length: usize,
}

impl From<Received> for rl_received {
    fn from(Received { from, length }: Received) -> rl_received {
        rl_received { from, length }
    }
}

/// C's `RL_IN_PLACE`.
pub(crate) fn is_in_place(input: *const c_void) -> bool {
    input.addr() == usize::MAX
}
