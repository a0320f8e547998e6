//! Files in the directory for shared memory that MPI libraries make, and leave there if a rank is killed.

use crate::sorted_map::SortedSet;

/// Directory for shared memory.
const DIRECTORY: &str = "/dev/shm/";

/// Maximum number of names for each rank of a node.
const PER_RANK: usize = 64;

/// Maximum length in bytes of a name.
const NAME_MAX: usize = 255;

/// Names of files that belong to the job.
#[derive(Debug)]
pub(crate) struct Segments {
    names: SortedSet<String>,
    max: usize,
}

impl Segments {
    /// Creates an empty set for a number of ranks.
    pub(crate) fn new(ranks: usize) -> Segments {
        Segments { names: SortedSet::default(), max: ranks.saturating_mul(PER_RANK) }
    }

    /// Adds a name. Returns whether it is new, or `None` if it is not one of a file, or if there are too
    /// many.
    pub(crate) fn add(&mut self, name: &str) -> Option<bool> {
        let is_name = !name.is_empty() && name.len() <= NAME_MAX && !name.starts_with('.');
        if !is_name || name.contains(['/', '\0', '\n']) {
            return None;
        } else if self.names.contains_key(name) {
            return Some(false);
        }
        if self.names.len() >= self.max {
            return None;
        }
        self.names.insert(name.to_owned(), ());
        Some(true)
    }
}

/// Returns the name of a file that a rank has named by its path, or `None` if the file is not in the
/// directory for shared memory.
pub(crate) fn name_of(path: &[u8]) -> Option<&str> {
    std::str::from_utf8(path).ok()?.strip_prefix(DIRECTORY)
}

/// Returns the names of the files that MPICH may make on a node, which follow from the name of the key-value
/// store. Later versions append a number to it, which grows when a program begins with MPI again.
pub(crate) fn of_mpich(store: &str, node: usize) -> Vec<String> {
    let mut names = Vec::new();
    for number in ["", "-1", "-2", "-3"] {
        let hash = fnv1a(format!("{store}{number}").as_bytes());
        for kind in ["shm", "vci"] {
            names.push(format!("mpich_{kind}_{hash:x}_{node}"));
        }
    }
    names
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
        let add = |path: &str| name_of(path.as_bytes()).and_then(|name| Segments::new(1).add(name));
        assert_eq!(add("/dev/shm/sm_segment.a.0.97830000.0"), Some(true));
        for path in [
            "/tmp/x",
            "/dev/shm/",
            "/dev/shm/..",
            "/dev/shm/a/b",
            "/dev/shm/../etc/passwd",
            "/dev/shm/\0",
            "/dev/shm/a\nb",
            "x",
        ] {
            assert_eq!(add(path), None, "{path}");
        }
    }

    #[test]
    fn names_are_limited() {
        let mut segments = Segments::new(1);
        for number in 0..100 {
            assert_eq!(segments.add(&number.to_string()), (number < 64).then_some(true));
        }
        assert_eq!(segments.add("63"), Some(false));
    }

    /// The name is one that MPICH 5.0.2 has made.
    #[test]
    fn names_of_mpich_follow_from_its_store() {
        let names = of_mpich("rlaunch-1cd549a92fa56ef4bfaa385f47d84780-1", 1);
        assert!(names.contains(&"mpich_shm_c605d8f2_1".to_owned()));
    }
}
