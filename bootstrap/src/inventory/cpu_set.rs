//! Sets of CPUs, in the kernel's list format.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Highest CPU number that is accepted. The kernel's own limit is 8192.
const LAST_CPU: u32 = 65_535;

/// Set of CPU numbers, written as `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet(BTreeSet<u32>);

/// Error of parsing a text that is not a list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a list of CPUs like 0-3,8")]
pub struct CpuListError(String);

impl CpuSet {
    /// Returns the number of CPUs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Tells whether the set has no CPUs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Tells whether `cpu` is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// Returns the CPUs that are in both sets.
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.intersection(&other.0).copied().collect())
    }

    /// Returns the CPU numbers in ascending order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> {
        self.0.iter().copied()
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> CpuSet {
        CpuSet(cpus.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<CpuSet, CpuListError> {
        let bad = || CpuListError(text.to_owned());
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<u32>().map_err(|_| bad());
            let (first, last) = (number(first)?, number(last)?);
            if first > last || last > LAST_CPU {
                return Err(bad());
            }
            cpus.extend(first..=last);
        }
        Ok(CpuSet(cpus))
    }
}

impl TryFrom<String> for CpuSet {
    type Error = CpuListError;

    fn try_from(text: String) -> Result<CpuSet, CpuListError> {
        text.parse()
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> String {
        set.to_string()
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for text in ["0-3,8", "0", "", "1,3,5-7", "0-127,256-383"] {
            assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), text);
        }
        let set: CpuSet = "4,0-2,3\n".parse().unwrap();
        assert_eq!((set.to_string().as_str(), set.len()), ("0-4", 5));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["x", "3-1", "1-", "-1", "0-4000000000"] {
            assert_eq!(text.parse::<CpuSet>(), Err(CpuListError(text.into())));
        }
    }

    #[test]
    fn sets_are_cut() {
        let (a, b): (CpuSet, CpuSet) = ("0-7".parse().unwrap(), "6-9".parse().unwrap());
        assert_eq!(a.intersection(&b).to_string(), "6-7");
    }
}
