//! Variables of torch.

use crate::plan::env::Variable;
use rlaunch_bootstrap::env::{TORCH_FR_BUFFER_SIZE, TORCH_NCCL_TRACE_BUFFER_SIZE};

/// Number of operations that a process keeps: the default of torch, which early versions do not have.
const OPERATIONS: &str = "2000";

/// Returns the variables with which processes of torch record their last collective operations. The agent adds where
/// they can be asked for them.
pub(crate) fn recorder_variables() -> Vec<Variable> {
    let names = [TORCH_FR_BUFFER_SIZE, TORCH_NCCL_TRACE_BUFFER_SIZE];
    names.map(|name| Variable::new(name, OPERATIONS, "--hang-timeout")).into()
}
