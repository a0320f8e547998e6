//! Native frames on architectures where registers of another thread cannot be read.

use rlaunch_bootstrap::protocol::inspection::{StackFrame, ThreadStack};

/// Returns the reason why there are none.
pub(crate) fn read(_pid: u32) -> Result<Vec<ThreadStack>, String> {
    Err(format!("native frames are not read on {}", std::env::consts::ARCH))
}

/// Does nothing, since there are no native frames.
pub(crate) fn drop_interpreter(_frames: &mut [StackFrame]) {}
