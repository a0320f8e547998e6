//! Problems that a node finds while it prepares, which keep the job from starting, and what the user should know.

use super::PortRange;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;

/// Reason why a node cannot run the job. Every problem is found before any rank starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Problem {
    /// The program is not on the node's search path, or nothing has the path given for it.
    NoProgram {
        /// Program as the user typed it.
        program: OsString,
        /// Name of an installed program that the user may have meant, such as `python3` for
        /// `python`.
        instead: Option<String>,
    },
    /// The program has a name there, but cannot start.
    CannotStart {
        /// Program as the user typed it, or its path if it was found on the search path.
        program: OsString,
        defect: ProgramDefect,
    },
    /// The script that an interpreter is going to run cannot be reached.
    NoScript {
        /// Path of the script as the user typed it.
        #[serde(with = "crate::serde_path")]
        script: PathBuf,
        defect: PathDefect,
    },
    /// The directory given by `--wdir` cannot be entered.
    NoDirectory {
        /// Directory as the user typed it.
        #[serde(with = "crate::serde_path")]
        directory: PathBuf,
        defect: PathDefect,
    },
    /// A file given to an option does not exist.
    NoFile {
        /// Name of the option, with its dashes.
        option: String,
        /// Path of the file as the user typed it.
        #[serde(with = "crate::serde_path")]
        path: PathBuf,
    },
    /// A preloaded file could not be stored on the node.
    PreloadFailed {
        /// Operation that failed, with the path.
        operation: String,
        /// Error of the operating system.
        cause: String,
    },
    /// The range for listening ports has no free port.
    NoPort {
        /// Range that was searched for a free port.
        range: PortRange,
    },
    /// The port that the user chose for MASTER_PORT is in use.
    PortTaken { port: u16 },
    /// The program is linked with MPI, but no process manager is there to tell each rank its
    /// number.
    Singleton {
        #[serde(with = "crate::serde_path")]
        program: PathBuf,
        /// File name of the MPI library, such as `libmpi.so.40`.
        library: String,
        /// Process management interface that the library needs: `PMI` or `PMIx`.
        needs: String,
    },
    /// The output of the ranks takes more open files than the agent may have.
    FewFiles(FewFiles),
    /// The system forbids the binding to CPUs that the user has asked for.
    CannotBind {
        /// Error of the operating system.
        cause: String,
    },
    /// The operating system refused another operation that the job needs.
    System {
        operation: String,
        /// Error of the operating system.
        cause: String,
    },
}

/// Reason why a path does not lead to what it should: a program, a script or a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathDefect {
    /// Nothing has this name.
    Missing,
    /// A symbolic link on the way leads to a place that does not exist.
    DanglingLink {
        #[serde(with = "crate::serde_path")]
        link: PathBuf,
        #[serde(with = "crate::serde_path")]
        target: PathBuf,
    },
    /// A symbolic link on the way leads back to itself.
    LinkLoop {
        #[serde(with = "crate::serde_path")]
        link: PathBuf,
    },
    /// The user may not enter this directory, which is on the way or the path's own.
    Closed {
        #[serde(with = "crate::serde_path")]
        directory: PathBuf,
    },
    /// It is a directory, or else a device, a pipe or a socket.
    NotAFile { is_directory: bool },
    /// This file, on the way or the path's own, is where a directory should be.
    NotADirectory {
        #[serde(with = "crate::serde_path")]
        file: PathBuf,
    },
    /// The user may not execute the file.
    NotExecutable,
    /// Nothing may be executed on the file system.
    MountedNoexec,
    /// The operating system has another error, such as that of a network file system that was lost.
    Unreachable { cause: String },
}

/// Reason why a program that has a name on the node cannot start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProgramDefect {
    /// Its path does not lead to a file that can be executed.
    Unusable(PathDefect),
    /// An interpreter cannot be executed: the last of these, of which each is named by the first line of the one before,
    /// and the first by the program's.
    NoInterpreter { interpreters: Vec<OsString>, defect: PathDefect },
    /// Its first line lets env(1) look for the interpreter, which is not on the search path.
    NotOnPath { interpreter: OsString },
    /// Its first line ends in a carriage return, which counts as a part of the interpreter's name.
    CarriageReturn { interpreter: OsString },
    /// The loader that the executable names does not exist.
    NoLoader { loader: OsString },
    /// The executable ends before all that its headers name. Both are in bytes.
    CutOff { length: u64, whole: u64 },
    /// The executable is built for `machine`, and the node, which is `host`, has no emulator for that.
    OtherMachine { machine: String, host: String },
    /// The kernel does not see the `#!` of this interpreter, so a shell would execute the script.
    HiddenInterpreter { interpreter: OsString, by: HiddenBy },
    /// It is what Git LFS leaves in place of a file, which a shell would execute.
    LfsPointer,
}

/// Reason why the kernel does not see the interpreter that a script names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HiddenBy {
    /// Its name ends behind what the kernel reads of a first line.
    Length,
    /// A byte order mark is before the `#!`.
    ByteOrderMark,
    /// Blanks or empty lines are before the `#!`.
    Blanks,
}

/// Limit of open files that is too low for the ranks of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FewFiles {
    /// Number of ranks on the node.
    pub ranks: u32,
    /// Number of files that the agent may have open.
    pub limit: u64,
    /// Number of files that it has open if every rank calls it.
    pub needed: u64,
}

/// Fact that the user should know, although it does not prevent the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// The launcher's directory does not exist on the node; ranks run in the user's home directory.
    RunsInHome {
        /// Path of the user's home directory.
        #[serde(with = "crate::serde_path")]
        home: PathBuf,
    },
    /// The program is another one than that in the launcher's virtual environment.
    OtherProgram {
        /// Path on the launcher's machine.
        #[serde(with = "crate::serde_path")]
        expected: PathBuf,
        /// Path on the node.
        #[serde(with = "crate::serde_path")]
        found: PathBuf,
    },
    /// The node's copy of the script differs from the launcher's.
    ScriptDiffers {
        /// Path of the script as the user typed it.
        #[serde(with = "crate::serde_path")]
        script: PathBuf,
    },
    /// The job's directory on the node could not be created. Ranks run without the files that it
    /// would contain.
    NoWorkspace {
        /// Directories that were tried, with the errors of the operating system.
        cause: String,
    },
    /// The agent may not have open enough files for all ranks to call it, as for a barrier.
    FewFiles(FewFiles),
    /// The account's TMPDIR on the node cannot be used, so temporary files of the ranks go elsewhere.
    OtherTmpdir {
        /// Directories that were tried, with the errors of the operating system.
        cause: String,
        /// Directory that is used.
        #[serde(with = "crate::serde_path")]
        instead: PathBuf,
    },
    /// The system forbids to bind ranks to CPUs, so that they are not.
    Unbound {
        /// Error of the operating system.
        cause: String,
    },
}
