//! Recipe of the guests' image. The image is named by a digest of the recipe, so that a changed
//! recipe makes another image and an unchanged one is never built twice.

use crate::setup::recipe_name;

/// Debian packages in the image, beside the essential ones.
pub(super) const PACKAGES: &[&str] = &[
    "openssh-server", "openssh-client",
    // Verbs: libraries, tools and benchmarks.
    "rdma-core", "ibverbs-providers", "ibverbs-utils", "perftest",
    // Memory checker for unsafe code around verbs; `ip`, `tc` and `rdma`; `lspci`; `ping`. Containers inside guests.
    "valgrind", "iproute2", "pciutils", "iputils-ping", "kmod", "procps", "hostname",
    "python3-minimal", "podman", "crun", "netavark", "iptables",
    // Sets addresses at boot, on guests that keep some.
    "ifupdown",
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

/// Returns the name of the image for the release of Debian with the code name `suite`.
pub(super) fn image_name(suite: &str) -> String {
    let scripts = SCRIPTS.iter().flat_map(|script| [script.name, script.text]);
    recipe_name("vm", [suite].into_iter().chain(PACKAGES.iter().copied()).chain(scripts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_counts() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/vm/image");
        assert_eq!(SCRIPTS.len(), std::fs::read_dir(folder).unwrap().count());
    }
}
