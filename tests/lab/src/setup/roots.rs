//! Root directories of Debian's packages: of a machine with a real systemd, whatever process 1 this machine has, and of an
//! image with an MPI library.

use crate::command::background::Background;
use crate::command::{run, with_spinner};
use crate::{LabError, setup};
use std::path::PathBuf;
use std::process::Command;

/// Root directory, which is made once and kept in the cache.
#[derive(Debug)]
pub struct Root {
    name: &'static str,
    what: &'static str,
    packages: &'static [&'static str],
}

/// Machine with systemd as process 1, sessions of logins, D-Bus for users, a polkit that lets users linger, and programs
/// for tests.
pub static SYSTEMD: Root = Root {
    name: "systemd",
    what: "a machine with systemd",
    packages: &[
        "systemd-sysv", "libpam-systemd", "dbus-user-session", "polkitd", "passwd", "procps",
    ],
};

/// Machine with systemd as process 1 that sets its network up by systemd-networkd, by netplan, or by NetworkManager.
pub static NETWORKED: Root = Root {
    name: "networked",
    what: "a machine with systemd-networkd, netplan and NetworkManager",
    packages: &[
        "systemd-sysv", "dbus", "openssh-server", "iproute2", "netplan.io", "network-manager",
        "procps", "hostname",
    ],
};

/// Image as people make one for MPI programs in Python.
pub static MPI_IMAGE: Root = Root {
    name: "mpi-image",
    what: "an image with Open MPI and mpi4py",
    packages: &["openmpi-bin", "python3-mpi4py", "libibverbs1", "ibverbs-providers"],
};

impl Root {
    /// Returns the directory. Nothing may write to it.
    pub fn make(&self) -> Result<PathBuf, LabError> {
        let (place, what) = (self.place(), self.what);
        if place.is_dir() {
            return Ok(place);
        }
        println!("making {what} in {} (once, about a minute)", place.display());
        let make = || run(&format!("make {what}"), &mut self.command());
        with_spinner(format!("making {what}"), || {
            make().or_else(|_| {
                // The package lists may be missing, or older than the packages.
                setup::apt("read the package lists", &["update", "-q"])?;
                make()
            })
        })?;
        Ok(place)
    }

    /// Starts making the directory in the background, unless it exists. Dropping the handle ends that.
    pub(crate) fn make_beside(&self) -> Option<Background> {
        // A failure is reported by `make` when the directory is needed.
        let is_missing = !self.place().is_dir();
        is_missing.then(|| Background::start(self.command()).ok()).flatten()
    }

    fn place(&self) -> PathBuf {
        let recipe = self.packages.iter().copied().chain([setup::DEBIAN]);
        setup::cache().join(setup::recipe_name(self.name, recipe))
    }

    fn command(&self) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", setup::DEBIAN, "debian.sh"]).arg(self.place());
        command.arg("machine").args(self.packages);
        command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        command
    }
}
