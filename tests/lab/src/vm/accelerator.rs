//! KVM or emulation: how guests' processors are executed.
//!
//! That `/dev/kvm` can be opened proves nothing: on some virtual machines it can, and no guest
//! boots. So a guest without a root directory is started once as a probe, and the result is kept
//! until this machine reboots.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::image::Image;
use crate::LabError;
use crate::command::background::Background;
use crate::command::wait_until;

/// Time limit of the probe. With KVM it takes a second.
const LIMIT: Duration = Duration::from_secs(10);
/// File with the result of the probe. It is on a tmpfs, which a reboot empties.
const RECORD: &str = "/run/rlaunch-lab-accelerator";
/// Line that the initial ramdisk prints when it finds no root directory: the kernel has booted.
const BOOTED: &str = "lab: no root directory";

/// Executor of guests' processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accelerator {
    /// This machine's processor.
    Kvm,
    /// QEMU's emulation.
    Tcg,
}

impl Accelerator {
    /// Finds out what this machine can do, from the recorded result or by a probe.
    pub(super) fn detect(image: &Image) -> Accelerator {
        let opens = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
        if !opens {
            return Accelerator::Tcg;
        }
        // Without a recorded result and after a failed probe, guests are emulated.
        Accelerator::remembered().unwrap_or_else(|| {
            let found = if boots_by_kvm(image) { Accelerator::Kvm } else { Accelerator::Tcg };
            println!("  guests run by {}", found.name());
            // If recording fails, the next start probes again.
            let _ = fs::write(RECORD, found.name());
            found
        })
    }

    fn remembered() -> Option<Accelerator> {
        let name = fs::read_to_string(RECORD).ok()?;
        [Accelerator::Kvm, Accelerator::Tcg].into_iter().find(|one| one.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Accelerator::Kvm => "KVM",
            Accelerator::Tcg => "emulation",
        }
    }

    /// Returns arguments of QEMU.
    pub(super) fn arguments(self) -> &'static str {
        match self {
            Accelerator::Kvm => "-accel kvm -cpu host",
            Accelerator::Tcg => "-accel tcg,thread=multi -cpu max,-erms,-fsrm",
        }
    }
}

fn boots_by_kvm(image: &Image) -> bool {
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(Accelerator::Kvm.arguments().split(' '));
    qemu.args(["-machine", "q35", "-m", "512", "-nodefaults", "-no-user-config", "-no-reboot"]);
    qemu.args(["-display", "none", "-serial", "stdio", "-append", "console=ttyS0 panic=-1"]);
    qemu.arg("-kernel").arg(image.kernel()).arg("-initrd").arg(image.ramdisk());
    let booted = || -> Result<(), LabError> {
        let mut guest = Background::start(qemu)?;
        wait_until(LIMIT, "a guest to boot by KVM", || match guest.ended()? {
            Some(status) => Err(LabError::Unexpected(format!("QEMU ended with {status}"))),
            None => Ok(guest.stdout().contains(BOOTED)),
        })
    };
    booted().is_ok()
}
