//! Name of this machine, for files of jobs in a home directory that several machines share.

use sha2::{Digest, Sha256};

/// Maximum length in the name of a file or socket, in characters. The address of a socket has room for no
/// more.
const MAX_MACHINE: usize = 40;

/// Returns the name of this machine, without characters that a file name cannot have.
pub(crate) fn machine() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    plain_machine(&name.to_string_lossy())
}

/// Shortens a machine's name, and replaces characters that a file name cannot have. The end of a shortened one is a hash of the
/// whole: names of pods may begin alike.
fn plain_machine(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_graphic() && c != '/' { c } else { '_' };
    let plain: String = name.chars().map(plain).collect();
    if plain.is_empty() {
        return "localhost".to_owned();
    }
    if plain.len() <= MAX_MACHINE {
        return plain;
    }
    let digest = Sha256::digest(name);
    let hash = u32::from_be_bytes(std::array::from_fn(|at| digest[at]));
    format!("{}-{hash:08x}", &plain[..MAX_MACHINE - 9])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_whose_names_begin_alike_are_told_apart() {
        let pods = ["0", "1"].map(|pod| plain_machine(&format!("{}-{pod}", "pod".repeat(20))));
        assert_ne!(pods[0], pods[1]);
        for pod in &pods {
            assert!(pod.len() == MAX_MACHINE && pod.starts_with("podpod"), "{pod}");
        }
        assert_eq!(plain_machine("a/b"), "a_b");
        assert_eq!(plain_machine(&"a".repeat(MAX_MACHINE)), "a".repeat(MAX_MACHINE));
    }
}
