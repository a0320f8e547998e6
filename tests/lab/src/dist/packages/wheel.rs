//! Wheel for pip: `bin/rlaunch`, and the Python package for programs on the launching machine.

use std::process::Command;

use super::{PackageSpec, Profile, SUMMARY};
use crate::LabError;
use crate::command::run;
use crate::dist::workspace;

/// Script that makes the wheel, with the modules of Python's standard library.
const SCRIPT: &str = include_str!("wheel.py");

/// Packs launcher and Python package as `rlaunch-VERSION-py3-none-manylinux_2_28_ARCH.whl`.
pub(super) fn make(package: &PackageSpec) -> Result<(), LabError> {
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT]).arg(&package.output).args([&package.version, package.arch]);
    python.args([&package.time.to_string(), SUMMARY]).arg(workspace().join("README.md"));
    python.arg(package.tree.join("bin/rlaunch")).arg(package.library.join("python"));
    python.arg(match package.profile {
        Profile::Lab => "1",
        Profile::Release => "9",
    });
    run("pack a wheel", &mut python).map(drop)
}
