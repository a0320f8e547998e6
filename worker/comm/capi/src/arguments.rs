//! Checks and conversions of arguments that C passes.

use crate::errors::Failure;
use crate::types::{rl_op, rl_type};
use rlaunch_comm::{ElementType, Op};

pub(crate) fn element(number: rl_type) -> Result<ElementType, Failure> {
    let known = usize::try_from(number).ok().and_then(|at| ElementType::ALL.get(at));
    known.copied().ok_or_else(|| Failure::argument(format!("there is no rl_type {number}")))
}

pub(crate) fn op(number: rl_op) -> Result<Op, Failure> {
    let known = usize::try_from(number).ok().and_then(|at| Op::ALL.get(at));
    known.copied().ok_or_else(|| Failure::argument(format!("there is no rl_op {number}")))
}

/// Unwraps a pointer that C has passed. Fails with RL_INVALID if it is NULL. `name` is the name of
/// the parameter, for the error.
pub(crate) fn non_null<T>(pointer: Option<T>, name: &str) -> Result<T, Failure> {
    pointer.ok_or_else(|| Failure::argument(format!("{name} is NULL")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::*;

    #[test]
    fn types_and_operations_have_the_numbers_of_the_library() {
        let types = [RL_F16, RL_BF16, RL_F32, RL_F64, RL_I32, RL_I64, RL_U8, RL_U64];
        let named: Vec<_> = types.map(|number| element(number).unwrap().name()).into();
        assert_eq!(named, ["f16", "bf16", "f32", "f64", "i32", "i64", "u8", "u64"]);
        let ops = [RL_SUM, RL_PROD, RL_MIN, RL_MAX].map(|number| op(number).unwrap());
        assert_eq!(ops, Op::ALL);
        assert!(element(8).is_err() && element(-1).is_err() && op(4).is_err());
    }
}
