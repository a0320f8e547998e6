//! Versions of NCCL.

use std::fmt;
use std::str::FromStr;

/// Version such as `2.30.7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u32, u32, u32);

impl Version {
    /// First version that can choose a port for each peer by subnet (NCCL_IB_SUBNET_AWARE_ROUTING).
    pub const SUBNET_AWARE: Version = Version(2, 30, 7);
}

/// Error for a text that is not a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a version like 2.30.7")]
pub struct BadVersion;

impl FromStr for Version {
    type Err = BadVersion;

    /// Parses a version and ignores what follows the third number, as in `2.27.3+cuda12.9`.
    fn from_str(text: &str) -> Result<Version, BadVersion> {
        let mut numbers = text.splitn(3, '.').map(|part| {
            let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..end].parse::<u32>().map_err(|_| BadVersion)
        });
        let mut next = || numbers.next().unwrap_or(Err(BadVersion));
        Ok(Version(next()?, next()?, next()?))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let version = |text: &str| text.parse::<Version>().unwrap();
        assert!(version("2.9.7") < version("2.27.3+cuda12.9"));
        assert!(version("2.30.7") >= Version::SUBNET_AWARE);
        assert!(version("2.30.6-1") < Version::SUBNET_AWARE);
        for text in ["", "2", "2.30", "2.x.1", "v2.30.7", "99999999999.1.1"] {
            assert_eq!(text.parse::<Version>(), Err(BadVersion), "{text:?}");
        }
    }
}
