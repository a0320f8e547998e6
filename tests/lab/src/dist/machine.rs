//! What machines something is built for: such as this one, or of another architecture.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::glibc::{self, StubLibraries};
use super::{Profile, cargo, dist_in, host_triple, place};
use crate::LabError;

/// Machines of one architecture and C library, and who compiles for them.
#[derive(Debug)]
pub(super) struct TargetMachine {
    /// Rust's name of them, under which launchers look for what they are sent.
    pub(super) triple: String,
    /// What the names of their compiler and its tools begin with, where it is not this machine's own.
    prefix: Option<&'static str>,
}

impl TargetMachine {
    /// Such as this one.
    pub(super) fn own() -> Result<TargetMachine, LabError> {
        Ok(TargetMachine { triple: host_triple()?, prefix: None })
    }

    /// Others, for whom the tools called `prefix` and a name compile.
    pub(super) fn other(triple: &str, prefix: &'static str) -> TargetMachine {
        TargetMachine { triple: triple.to_owned(), prefix: Some(prefix) }
    }

    /// What compiles C for them, and links.
    pub(super) fn compiler(&self) -> String {
        self.prefix.map_or_else(|| "cc".to_owned(), |prefix| format!("{prefix}gcc"))
    }

    /// What lists the symbols of their libraries.
    pub(super) fn objdump(&self) -> String {
        format!("{}objdump", self.prefix.unwrap_or_default())
    }

    /// A cargo that builds for them; what it is to do is still to be said.
    pub(super) fn cargo<S: AsRef<str>>(&self, words: &[S]) -> Command {
        let mut command = cargo();
        command.args(words.iter().map(AsRef::as_ref));
        if self.prefix.is_some() {
            let name = self.triple.to_uppercase().replace('-', "_");
            command.env(format!("CARGO_TARGET_{name}_LINKER"), self.compiler());
            command.args(["--target", &self.triple]);
        }
        command
    }

    /// Where such a cargo puts what it builds by a profile of this name.
    pub(super) fn built(&self, target: &Path, profile: &str) -> PathBuf {
        match self.prefix {
            Some(_) => target.join(&self.triple).join(profile),
            None => target.join(profile),
        }
    }

    /// Where launchers find what they are sent.
    pub(super) fn place(&self, target: &Path, profile: Profile) -> PathBuf {
        dist_in(target, profile).join("lib/rlaunch").join(&self.triple)
    }

    /// What links programs and libraries so that those with older C libraries load them. Without
    /// glibc they are for such as this one alone.
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

    /// Copies what was linked so, unless it needs more than older ones have.
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
