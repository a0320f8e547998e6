//! Target machines of builds: like this one, or of another architecture.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::glibc::{self, StubLibraries};
use super::{Profile, cargo, dist_in, host_triple, place, release_cargo};
use crate::LabError;

/// Machines of one architecture and C library, with their toolchain.
#[derive(Debug)]
pub(super) struct TargetMachine {
    /// Target triple. Launchers look for the files of such hosts in a directory of this name.
    pub(super) triple: String,
    /// Prefix of the names of their compiler and binary tools; `None` for machines like this one.
    prefix: Option<&'static str>,
}

impl TargetMachine {
    /// Describes machines like this one.
    pub(super) fn own() -> Result<TargetMachine, LabError> {
        Ok(TargetMachine { triple: host_triple()?, prefix: None })
    }

    /// Describes other machines, whose tools have names that begin with `prefix`.
    pub(super) fn other(triple: &str, prefix: &'static str) -> TargetMachine {
        TargetMachine { triple: triple.to_owned(), prefix: Some(prefix) }
    }

    /// Returns the C compiler, which is also the linker.
    pub(super) fn compiler(&self) -> String {
        self.prefix.map_or_else(|| "cc".to_owned(), |prefix| format!("{prefix}gcc"))
    }

    /// Returns the program that lists symbols of their libraries.
    pub(super) fn objdump(&self) -> String {
        format!("{}objdump", self.prefix.unwrap_or_default())
    }

    /// Makes a cargo command that builds for these machines; the caller appends what to build.
    pub(super) fn cargo<S: AsRef<str>>(&self, words: &[S]) -> Command {
        self.complete(cargo(), words)
    }

    /// Makes a cargo command that builds what ships to these machines; the caller appends what to build.
    pub(super) fn release_cargo<S: AsRef<str>>(&self, words: &[S]) -> Result<Command, LabError> {
        Ok(self.complete(release_cargo()?, words))
    }

    fn complete<S: AsRef<str>>(&self, mut command: Command, words: &[S]) -> Command {
        command.args(words.iter().map(AsRef::as_ref));
        if self.prefix.is_some() {
            let name = self.triple.to_uppercase().replace('-', "_");
            command.env(format!("CARGO_TARGET_{name}_LINKER"), self.compiler());
            command.args(["--target", &self.triple]);
        }
        command
    }

    /// Returns the directory in which cargo writes files of a profile for these machines.
    pub(super) fn built(&self, target: &Path, profile: &str) -> PathBuf {
        match self.prefix {
            Some(_) => target.join(&self.triple).join(profile),
            None => target.join(profile),
        }
    }

    /// Returns the directory in which launchers look for the files of such hosts.
    pub(super) fn place(&self, target: &Path, profile: Profile) -> PathBuf {
        dist_in(target, profile).join("lib/rlaunch").join(&self.triple)
    }

    /// Returns the stub libraries for linking files that hosts with older C libraries can load. On
    /// a machine without glibc there are none, and files run only on machines like it.
    pub(super) fn linking(&self, target: &Path) -> Result<StubLibraries, LabError> {
        let directory = match self.prefix {
            Some(_) => target.join("glibc").join(&self.triple),
            None => target.join("glibc"),
        };
        match self.has_glibc() {
            true => StubLibraries::make(self, &directory),
            false => Ok(StubLibraries::default()),
        }
    }

    /// Copies a file that was linked with stub libraries. Fails if it needs a newer C library than
    /// the oldest hosts have.
    pub(super) fn place_checked(&self, from: &Path, to: &Path) -> Result<(), LabError> {
        if self.has_glibc() {
            glibc::check(self, from)?;
        }
        place(from, to)
    }

    fn has_glibc(&self) -> bool {
        self.triple.ends_with("-gnu")
    }
}
