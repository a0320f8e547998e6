//! Prometheus from Debian's package, which is unpacked and not installed: that would start a server.

use crate::command::run;
use crate::{LabError, setup};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

/// Returns the path of `promtool`, which checks what a Prometheus server would read. Downloads it once.
pub fn promtool() -> Result<PathBuf, LabError> {
    let (cache, program) = (setup::cache(), Path::new("usr/bin/promtool"));
    let place = cache.join("prometheus");
    if !place.join(program).is_file() {
        let new = cache.join(format!("prometheus.{}", process::id()));
        let _ = fs::remove_dir_all(&new);
        fs::create_dir_all(&new).map_err(LabError::io(format!("make {}", new.display())))?;
        if download(&new).is_err() {
            setup::apt("read the package lists", &["update", "-q"])?;
            download(&new)?;
        }
        let _ = fs::remove_dir_all(&place);
        fs::rename(&new, &place).map_err(LabError::io(format!("make {}", place.display())))?;
    }
    Ok(place.join(program))
}

fn download(directory: &Path) -> Result<(), LabError> {
    let script =
        "apt-get download -q prometheus && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb";
    let mut sh = Command::new("sh");
    run("download prometheus", sh.args(["-c", script]).current_dir(directory)).map(drop)
}
