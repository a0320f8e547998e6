//! Who is who in a job: numbers that cannot be mistaken for one another.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl $name {
            /// This number as an index into a table ordered by it.
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
    /// A process of the job, `0..world size`, in the order of slots over hosts.
    Rank
}
id_type! {
    /// A rank's place among the ranks of its node, from 0.
    LocalRank
}
id_type! {
    /// A host taken into the job, numbered in the order the hosts were given.
    NodeId
}

/// One run of rlaunch. Unique for ever on every host, because shared-memory names and directories
/// are derived from it and outlive a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct JobId(pub u128);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
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
