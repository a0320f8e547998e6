//! Virtual environments for hosts: of this machine's own Python, built once from the package index
//! and kept in the cache. Hosts have them below `/run`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::background::Background;
use crate::command::{run, with_spinner};
use crate::files::make_dir;
use crate::{LabError, setup};

/// Interpreter that virtual environments are made of; hosts have it too.
pub(crate) const BASE: &str = "/usr/bin/python3";
/// Script that makes an environment. Arguments: directory, lock file, time limit in seconds,
/// interpreter, packages.
const SCRIPT: &str = include_str!("venv.sh");
/// Time limit of the script in seconds.
const LIMIT: &str = "900";

/// Virtual environment for hosts.
#[derive(Debug)]
pub(crate) struct Venv {
    /// Name of the environment, with which the name of its directory begins.
    pub(crate) name: &'static str,
    /// Path on hosts, below `/run`.
    pub(crate) on_hosts: &'static str,
    /// Packages and their versions.
    pub(crate) packages: &'static [&'static str],
    /// Words for messages: `a Python with torch`.
    pub(crate) what: &'static str,
    /// Usual duration of the build: `about two minutes`.
    pub(crate) takes: &'static str,
    /// Free disk space in GiB that the downloads and the environment need together.
    pub(crate) disk_space: u64,
}

impl Venv {
    /// Returns the directory of the environment, if it has been built from the current recipe.
    pub(crate) fn find(&self) -> Option<PathBuf> {
        Some(self.place()).filter(|place| place.is_dir())
    }

    /// Builds the environment unless it exists. Returns its directory.
    pub(crate) fn build(&self) -> Result<PathBuf, LabError> {
        if let Some(place) = self.find() {
            return Ok(place);
        }
        let mut command = self.command()?;
        println!("building {} in {} (once, {})", self.what, self.place().display(), self.takes);
        let operation = format!("build {}", self.what);
        with_spinner(format!("building {}", self.what), || run(&operation, &mut command))?;
        Ok(self.place())
    }

    /// Starts building the environment in the background; [`build`](Venv::build) then waits for it.
    /// Dropping the handle ends the build. Returns nothing if the environment exists or cannot be
    /// built.
    pub(crate) fn build_beside(&self) -> Option<Background> {
        if self.find().is_some() {
            return None;
        }
        // A failure is reported by `build` when the environment is needed.
        Background::start(self.command().ok()?).ok()
    }

    fn command(&self) -> Result<Command, LabError> {
        let (place, cache) = (self.place(), setup::cache());
        make_dir(&cache)?;
        self.check_disk_space(&cache)?;
        let mut command = Command::new("sh");
        let lock = cache.join(format!("{}.lock", self.name));
        command.args(["-c", SCRIPT, "venv.sh"]).arg(place).arg(lock);
        command.args([LIMIT, BASE]).args(self.packages);
        Ok(command)
    }

    fn check_disk_space(&self, cache: &Path) -> Result<(), LabError> {
        let free = setup::free_space(cache)?;
        if free >= self.disk_space {
            return Ok(());
        }
        Err(LabError::Unexpected(format!(
            "{} needs {} GiB in {}, where {free} GiB are free",
            self.what,
            self.disk_space,
            cache.display()
        )))
    }

    /// Returns the directory of the environment, which need not exist. Its name has a digest of the packages and of the
    /// script that installs them.
    pub(super) fn place(&self) -> PathBuf {
        let parts = self.packages.iter().chain(&[SCRIPT, BASE]).copied();
        setup::cache().join(setup::recipe_name(self.name, parts))
    }
}
