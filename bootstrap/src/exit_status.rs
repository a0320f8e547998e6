//! Exit status of a process.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Exit status of a rank's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// The process exited with this code.
    Code(i32),
    /// The process was killed by the signal with this number.
    Signal(i32),
}

impl ExitStatus {
    /// Tells whether the process exited with code 0.
    pub fn success(self) -> bool {
        self == ExitStatus::Code(0)
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExitStatus::Code(code) => write!(f, "exited with code {code}"),
            ExitStatus::Signal(signal) => write!(f, "was killed by signal {signal}"),
        }
    }
}
