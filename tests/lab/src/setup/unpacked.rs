//! Programs from Debian's packages, which are unpacked and not installed: that would start servers, or take over this
//! machine's interfaces.

use crate::command::run;
use crate::files::make_dir;
use crate::{LabError, setup};
use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

/// Shell function that downloads packages and unpacks them here.
const UNPACK: &str = "unpack() { apt-get download -q \"$@\" && \
                      for file in *.deb; do dpkg-deb -x $file . || return; done && rm *.deb; }";
/// Shell line for programs that need libraries which few machines have. The C library is this machine's.
const WITH_LIBRARIES: &str = "need=$(apt-cache depends netplan.io network-manager | \
     sed -n 's/^ *Depends: \\(\\(lib\\|netplan-\\)[^ <>]*\\)$/\\1/p' | grep -vx libc6 | sort -u)
     unpack netplan.io network-manager $need";

/// Returns the path of `promtool`, which checks what a Prometheus server would read.
pub fn promtool() -> Result<PathBuf, LabError> {
    unpacked("prometheus", "unpack prometheus", "usr/bin/promtool")
}

/// Returns the program by which `netplan generate` reads its files. It takes `--root-dir`.
pub fn netplan_generator() -> Result<Command, LabError> {
    of_networks("usr/libexec/netplan/generate")
}

/// Returns `nmcli`, which serves only with `--offline`: it prints the profile that it would store.
pub fn nmcli() -> Result<Command, LabError> {
    of_networks("usr/bin/nmcli")
}

fn of_networks(program: &str) -> Result<Command, LabError> {
    let program = unpacked("network-tools", WITH_LIBRARIES, program)?;
    let root = setup::cache().join("network-tools");
    let libraries = ["usr/lib", "lib"].map(|directory| {
        root.join(directory).join(format!("{ARCH}-linux-gnu")).display().to_string()
    });
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", libraries.join(":"));
    Ok(command)
}

/// Returns the path of a program in the directory `name` of the cache. The shell line fills it once.
fn unpacked(name: &str, line: &str, program: &str) -> Result<PathBuf, LabError> {
    let cache = setup::cache();
    let place = cache.join(name);
    if !place.join(program).is_file() {
        let new = cache.join(format!("{name}.{}", process::id()));
        let _ = fs::remove_dir_all(&new);
        make_dir(&new)?;
        if download(name, line, &new).is_err() {
            setup::apt("read the package lists", &["update", "-q"])?;
            download(name, line, &new)?;
        }
        // Lacks this program, as it is of an earlier version of the line.
        let _ = fs::remove_dir_all(&place);
        fs::rename(&new, &place).map_err(LabError::io(format!("make {}", place.display())))?;
    }
    Ok(place.join(program))
}

fn download(name: &str, line: &str, directory: &Path) -> Result<(), LabError> {
    let mut sh = Command::new("sh");
    sh.args(["-c", &format!("{UNPACK}\n{line}")]).current_dir(directory);
    run(&format!("download {name}"), &mut sh).map(drop)
}
