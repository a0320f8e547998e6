//! Python with torch for hosts, which have it at [`PROGRAM`].

use crate::setup::venv::Venv;

/// Path of the interpreter on hosts.
pub const PROGRAM: &str = "/run/rlaunch-python/bin/python";

/// Virtual environment. torch depends on libraries for GPUs on every machine.
pub(crate) const TORCH: Venv = Venv {
    name: "python",
    on_hosts: "/run/rlaunch-python",
    packages: &["torch==2.15.0", "numpy==2.4.6"],
    what: "a Python with torch",
    takes: "about two minutes",
    disk_space: 12,
};
