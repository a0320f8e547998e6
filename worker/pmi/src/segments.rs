//! Files in the directory for shared memory that MPI libraries make, and leave there if a rank is killed.

use std::collections::BTreeSet;

/// Directory for shared memory.
const DIRECTORY: &str = "/dev/shm/";

/// Maximum number of names for each rank of a node.
const PER_RANK: usize = 64;

/// Maximum length in bytes of a name.
const NAME_MAX: usize = 255;

/// Names of files that belong to the job.
#[derive(Debug)]
pub(crate) struct Segments {
    names: BTreeSet<String>,
    max: usize,
}

impl Segments {
    /// Creates an empty set for a number of ranks.
    pub(crate) fn new(ranks: usize) -> Segments {
        Segments { names: BTreeSet::new(), max: ranks.saturating_mul(PER_RANK) }
    }

    /// Adds a file that a rank has named. Returns false if the file is not in the directory for shared
    /// memory, or if there are too many.
    pub(crate) fn add_path(&mut self, path: &[u8]) -> bool {
        let path = std::str::from_utf8(path).ok();
        path.and_then(|path| path.strip_prefix(DIRECTORY)).is_some_and(|name| self.add(name))
    }

    /// Adds the files that MPICH makes on a node, whose names follow from the name of the key-value store.
    /// Later versions append a number to it, which grows when a program begins with MPI again.
    pub(crate) fn add_mpich(&mut self, store: &str, node: usize) {
        let later = (1..=3).map(|number| format!("{store}-{number}"));
        for store in later.chain([store.to_owned()]) {
            for kind in ["shm", "vci"] {
                self.add(&format!("mpich_{kind}_{:x}_{node}", fnv1a(store.as_bytes())));
            }
        }
    }

    fn add(&mut self, name: &str) -> bool {
        let is_name = !name.is_empty() && name.len() <= NAME_MAX && !name.starts_with('.');
        if !is_name || name.contains(['/', '\0']) || self.names.len() >= self.max {
            return false;
        }
        self.names.insert(name.to_owned());
        true
    }

    /// Returns the names in the directory for shared memory.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }
}

fn fnv1a(bytes: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(16_777_619);
    bytes.iter().fold(2_166_136_261, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_shared_memory_are_taken() {
        let mut segments = Segments::new(1);
        assert!(segments.add_path(b"/dev/shm/sm_segment.a.0.97830000.0"));
        for path in [
            "/tmp/x",
            "/dev/shm/",
            "/dev/shm/..",
            "/dev/shm/a/b",
            "/dev/shm/../etc/passwd",
            "/dev/shm/\0",
            "x",
        ] {
            assert!(!segments.add_path(path.as_bytes()), "{path}");
        }
        assert_eq!(segments.names().collect::<Vec<_>>(), ["sm_segment.a.0.97830000.0"]);
    }

    #[test]
    fn names_are_limited() {
        let mut segments = Segments::new(1);
        for number in 0..100 {
            assert_eq!(segments.add_path(format!("/dev/shm/{number}").as_bytes()), number < 64);
        }
    }

    /// The name is one that MPICH 5.0.2 has made.
    #[test]
    fn names_of_mpich_follow_from_its_store() {
        let mut segments = Segments::new(1);
        segments.add_mpich("rlaunch-1cd549a92fa56ef4bfaa385f47d84780-1", 1);
        assert!(segments.names().any(|name| name == "mpich_shm_c605d8f2_1"));
    }
}
