//! Recipe of the guests' image. The image is named by a digest of the recipe, so that a changed
//! recipe makes another image and an unchanged one is never built twice.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// Debian packages in the image, beside the essential ones.
const PACKAGES: &[&str] = &[
    "openssh-server",
    "openssh-client",
    // Verbs: libraries, tools and benchmarks.
    "rdma-core",
    "ibverbs-providers",
    "ibverbs-utils",
    "perftest",
    // Memory checker for unsafe code around verbs.
    "valgrind",
    // `ip`, `tc` and `rdma`; `lspci`; `ping`.
    "iproute2",
    "pciutils",
    "iputils-ping",
    "kmod",
    "procps",
    "hostname",
    "python3-minimal",
    // Containers inside guests.
    "podman",
    "crun",
    "netavark",
    "iptables",
];

/// Script, and its name in error messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Script {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
}

/// Script that downloads Debian's kernel.
pub(super) const KERNEL: Script =
    Script { name: "kernel.sh", text: include_str!("image/kernel.sh") };
/// Builds the Soft-iWARP driver for that kernel.
pub(super) const SIW: Script = Script { name: "siw.sh", text: include_str!("image/siw.sh") };
/// Makes the root directory.
pub(super) const ROOT: Script = Script { name: "root.sh", text: include_str!("image/root.sh") };
/// Puts the parts together.
pub(super) const FINISH: Script =
    Script { name: "finish.sh", text: include_str!("image/finish.sh") };
/// pid 1 of a guest.
pub(super) const GUEST_INIT: Script =
    Script { name: "guest-init.sh", text: include_str!("image/guest-init.sh") };
/// Script that runs as process 1 in the initial ramdisk and then executes the guest's own process
/// 1.
pub(super) const RAMDISK_INIT: Script =
    Script { name: "ramdisk-init.sh", text: include_str!("image/ramdisk-init.sh") };

const SCRIPTS: &[Script] = &[KERNEL, SIW, ROOT, FINISH, GUEST_INIT, RAMDISK_INIT];

/// Number of hexadecimal digits of the digest in the name.
const DIGITS: usize = 16;

/// Everything that determines the content of the image.
#[derive(Debug, Clone)]
pub(super) struct Recipe {
    /// Code name of Debian's release.
    pub(super) suite: String,
    pub(super) packages: &'static [&'static str],
    scripts: &'static [Script],
}

impl Recipe {
    /// Returns the recipe for the release called `suite`.
    pub(super) fn new(suite: &str) -> Recipe {
        Recipe { suite: suite.into(), packages: PACKAGES, scripts: SCRIPTS }
    }

    /// Returns the name of the image.
    pub(super) fn image_name(&self) -> String {
        let mut digest = Sha256::new();
        let scripts = self.scripts.iter().flat_map(|script| [script.name, script.text]);
        let parts = [self.suite.as_str()].into_iter().chain(self.packages.iter().copied());
        for part in parts.chain(scripts) {
            // The length is included, so that moving a letter from one part to the next changes the
            // digest.
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        let mut name = String::from("vm-");
        for byte in &digest.finalize()[..DIGITS / 2] {
            // Writing to a string does not fail.
            let _ = write!(name, "{byte:02x}");
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_plain() {
        let name = Recipe::new("bookworm").image_name();
        let digits = name.strip_prefix("vm-").unwrap();
        assert_eq!(digits.len(), DIGITS);
        assert!(digits.chars().all(|digit| digit.is_ascii_hexdigit()), "{name}");
        assert_eq!(name, Recipe::new("bookworm").image_name());
    }

    #[test]
    fn whatever_changes_is_another_image() {
        let recipe = Recipe::new("bookworm");
        let mut names = vec![recipe.image_name(), Recipe::new("trixie").image_name()];
        names.push(Recipe { packages: &["podman"], ..recipe.clone() }.image_name());
        names.push(Recipe { packages: &["pod", "man"], ..recipe.clone() }.image_name());
        let scripts: &[Script] = &[Script { name: "guest-init.sh", text: "exec sleep infinity\n" }];
        names.push(Recipe { scripts, ..recipe }.image_name());
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn every_script_counts() {
        for script in SCRIPTS {
            assert!(script.text.ends_with('\n'), "{}", script.name);
        }
        assert_eq!(SCRIPTS.len(), std::fs::read_dir(dir()).unwrap().count());
    }

    fn dir() -> std::path::PathBuf {
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/vm/image")
    }
}
