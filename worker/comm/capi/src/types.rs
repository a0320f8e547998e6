//! Types and constants of the C API. C may pass any integer, so types and operations are integers
//! and not Rust enums.
#![expect(non_camel_case_types, reason = "they are C's")]

use rlaunch_comm::Received;
use std::ffi::c_void;

/// Result of a call: RL_OK, or the kind of error. rl_error() returns the text of the error.
pub type rl_result = i32;

/// Success.
pub const RL_OK: rl_result = 0;
/// An argument is invalid: NULL, an unknown type or operation, overlapping buffers, a request that
/// has completed already.
pub const RL_INVALID: rl_result = 1;
/// A rank is not less than the size of the communicator.
pub const RL_NO_SUCH_RANK: rl_result = 2;
/// Counts differ between the ranks of a collective, or a message is not a whole number of elements.
pub const RL_LENGTH: rl_result = 3;
/// A message is longer than the receive buffer.
pub const RL_TRUNCATED: rl_result = 4;
/// A rank has died, or the connection to it has failed.
pub const RL_LOST: rl_result = 16;
/// A rank has finalized its communicator, so it will not answer.
pub const RL_LEFT: rl_result = 17;
/// The call has waited for RLAUNCH_COMM_TIMEOUT seconds.
pub const RL_TIMED_OUT: rl_result = 18;
/// The job is ending.
pub const RL_ABORTED: rl_result = 19;
/// The operation was cancelled before it completed: by this process, by the rank that sent the
/// message, or because another rank has cancelled a collective of the communicator.
pub const RL_GIVEN_UP: rl_result = 20;
/// This process could not join the job, or was forked from a process that has.
pub const RL_START: rl_result = 32;
/// A bug in rlaunch.
pub const RL_INTERNAL: rl_result = 64;

/// Type of elements.
pub type rl_type = i32;

/// IEEE 754 half precision, 2 bytes.
pub const RL_F16: rl_type = 0;
/// bfloat16, 2 bytes: the upper half of an RL_F32.
pub const RL_BF16: rl_type = 1;
/// float, 4 bytes.
pub const RL_F32: rl_type = 2;
/// double, 8 bytes.
pub const RL_F64: rl_type = 3;
/// int32_t
pub const RL_I32: rl_type = 4;
/// int64_t
pub const RL_I64: rl_type = 5;
/// uint8_t; also for plain bytes.
pub const RL_U8: rl_type = 6;
/// uint64_t
pub const RL_U64: rl_type = 7;

/// Reduction operation. Integers wrap around on overflow.
pub type rl_op = i32;

/// Sum.
pub const RL_SUM: rl_op = 0;
/// Product.
pub const RL_PROD: rl_op = 1;
/// Minimum; NaN if any operand is NaN.
pub const RL_MIN: rl_op = 2;
/// Maximum; NaN if any operand is NaN.
pub const RL_MAX: rl_op = 3;

/// Source and length of a received message.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rl_received {
    /// Rank that sent the message.
    pub from: usize,
    /// Length of the message, in elements of the receive's type.
    pub length: usize,
}

impl From<Received> for rl_received {
    fn from(Received { from, length }: Received) -> rl_received {
        rl_received { from, length }
    }
}

/// Tells whether a pointer is C's `RL_IN_PLACE`.
pub(crate) fn is_in_place(input: *const c_void) -> bool {
    input.addr() == usize::MAX
}
