//! Variables of torch.

use crate::env::Variable;
use rlaunch_bootstrap::env::TORCH_FR_BUFFER_SIZE;
use rlaunch_bootstrap::job::EnvVar;

/// Number of operations that a process keeps, which is torch's default.
const OPERATIONS: &str = "2000";
/// Earlier name of the variable. Later versions of torch read it too, but prefer the new one.
const EARLIER_NAME: &str = "TORCH_NCCL_TRACE_BUFFER_SIZE";

/// Returns the variable with which processes of torch record their last collective operations, unless the user has set
/// it by its earlier name. The agent adds where they can be asked for them. Versions of torch that know the earlier name
/// alone are left as they are, since the record costs them more.
pub(crate) fn recorder_variable(env: &[EnvVar]) -> Option<Variable> {
    let is_set = env.iter().any(|variable| variable.name == EARLIER_NAME);
    (!is_set).then(|| Variable::new(TORCH_FR_BUFFER_SIZE, OPERATIONS, "--hang-timeout"))
}
