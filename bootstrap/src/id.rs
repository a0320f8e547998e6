//! Numbers of ranks, nodes and jobs, as types that cannot be confused with each other; and how a
//! rank ended.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the number as an index into a table with one entry for each number.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id_type! {
    /// Number of a rank in the job, from 0. Ranks are numbered in the order in which the slots of
    /// the hosts are filled.
    Rank
}
id_type! {
    /// Number of a rank among the ranks of its node, from 0.
    LocalRank
}
id_type! {
    /// Number of a node in the job, from 0, in the order in which the hosts were given.
    NodeId
}

/// Identifier of one run of rlaunch. It is random, so that shared memory and directories named
/// after it never collide with those of another job, even a crashed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct JobId(pub u128);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_print_as_people_type_them() {
        assert_eq!(Rank(17).to_string(), "17");
        assert_eq!(format!("{:>3}", NodeId(4)), "  4");
        assert_eq!(JobId(0xab).to_string(), "000000000000000000000000000000ab");
    }
}
