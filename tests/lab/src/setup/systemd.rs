//! Root directory of a machine with a real systemd, whatever process 1 this machine has.

use crate::command::{run, with_spinner};
use crate::{LabError, setup};
use std::path::PathBuf;
use std::process::Command;

/// Packages of Debian: systemd as process 1, sessions of logins, D-Bus for users, a polkit that lets users linger, and
/// programs for tests.
const PACKAGES: [&str; 6] =
    ["systemd-sysv", "libpam-systemd", "dbus-user-session", "polkitd", "passwd", "procps"];

/// Returns the directory, which is made once and kept in the cache. Nothing may write to it.
pub fn root() -> Result<PathBuf, LabError> {
    let name = setup::recipe_name("systemd", PACKAGES.into_iter().chain([setup::DEBIAN]));
    let place = setup::cache().join(name);
    if place.is_dir() {
        return Ok(place);
    }
    println!("making a machine with systemd in {} (once, about a minute)", place.display());
    let make = || {
        let mut command = Command::new("sh");
        command.args(["-c", setup::DEBIAN, "debian.sh"]).arg(&place).arg("machine").args(PACKAGES);
        command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        run("make a machine with systemd", &mut command)
    };
    with_spinner("making a machine with systemd", || {
        make().or_else(|_| {
            // The package lists may be missing, or older than the packages.
            setup::apt("read the package lists", &["update", "-q"])?;
            make()
        })
    })?;
    Ok(place)
}
