//! Python with frameworks for hosts, below `/run`.

use crate::setup::venv::{Base, Venv};

/// Path of the interpreter with torch on hosts.
pub const PROGRAM: &str = "/run/rlaunch-python/bin/python";
/// Path of the interpreter with torch and programs that start it: accelerate, DeepSpeed.
pub const STARTERS: &str = "/run/rlaunch-starters/bin/python";
/// Path of the interpreter with the newest JAX.
pub const JAX: &str = "/run/rlaunch-jax/bin/python3";

/// Virtual environment. torch depends on libraries for GPUs on every machine.
pub(crate) const TORCH: Venv = Venv {
    name: "python",
    on_hosts: "/run/rlaunch-python",
    packages: &["torch==2.15.0", "numpy==2.4.6"],
    what: "a Python with torch",
    takes: "about two minutes",
    disk_space: 12,
    base: Base::Machine,
};

/// Programs that start torch's.
pub(crate) const TORCH_STARTERS: Venv = Venv {
    name: "starters",
    on_hosts: "/run/rlaunch-starters",
    packages: &["accelerate==1.15.0", "deepspeed==0.19.8"],
    what: "a Python with accelerate and DeepSpeed",
    takes: "half a minute",
    disk_space: 1,
    base: Base::Upon(&TORCH),
};

/// JAX since 0.11 needs a newer Python than some machines have.
pub(crate) const NEW_JAX: Venv = Venv {
    name: "jax",
    on_hosts: "/run/rlaunch-jax",
    packages: &["jax==0.12.0.1"],
    what: "a Python with JAX",
    takes: "half a minute",
    disk_space: 2,
    base: Base::Newer(12),
};

/// What only the soak of frameworks needs.
pub(crate) const FRAMEWORKS: [Venv; 5] = [
    framework("jax-0.10", "/run/rlaunch-jax-0.10", &["jax==0.10.2"], Base::Machine),
    framework(
        "lightning",
        "/run/rlaunch-lightning",
        &["lightning==2.6.6", "mpi4py==4.1.2"],
        Base::Upon(&TORCH),
    ),
    framework("tensorflow", "/run/rlaunch-tensorflow", &["tensorflow-cpu==2.21.0"], Base::Machine),
    framework("ray", "/run/rlaunch-ray", &["ray[default]==2.60.0"], Base::Machine),
    framework(
        "dask",
        "/run/rlaunch-dask",
        &["dask==2026.8.0", "distributed==2026.8.0", "dask-mpi==2026.3.0", "mpi4py==4.1.2"],
        Base::Machine,
    ),
];

const fn framework(
    name: &'static str,
    on_hosts: &'static str,
    packages: &'static [&'static str],
    base: Base,
) -> Venv {
    let (what, takes, disk_space) = ("a Python with a framework", "a minute", 3);
    Venv { name, on_hosts, packages, what, takes, disk_space, base }
}

/// Lists all of them.
pub(crate) fn all() -> impl Iterator<Item = Venv> {
    [TORCH, TORCH_STARTERS, NEW_JAX].into_iter().chain(FRAMEWORKS)
}
