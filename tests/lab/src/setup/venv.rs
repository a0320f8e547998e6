//! Virtual environments for hosts: of this machine's own Python, built once from the package index
//! and kept in the cache. Hosts have them below `/run`.

use std::env;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::background::Background;
use crate::command::{run, with_spinner};
use crate::files::make_dir;
use crate::{LabError, setup};

/// Interpreter that virtual environments are made of; hosts have it too.
pub(crate) const BASE: &str = "/usr/bin/python3";
/// Script that makes an environment.
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
    /// What the environment is made of.
    pub(crate) base: Base,
}

/// What a virtual environment is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Base {
    /// [`BASE`].
    Machine,
    /// [`BASE`], and another environment whose packages it has too.
    Upon(&'static Venv),
    /// The first interpreter of at least this minor version that this machine has.
    Newer(u32),
}

impl Base {
    fn interpreter(self) -> Result<PathBuf, LabError> {
        match self {
            Base::Machine | Base::Upon(_) => Ok(BASE.into()),
            Base::Newer(minor) => newer(minor),
        }
    }
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
    /// built, or not yet, since the one below it is not there.
    pub(crate) fn build_beside(&self) -> Option<Background> {
        let is_early = matches!(self.base, Base::Upon(other) if other.find().is_none());
        if is_early || self.find().is_some() {
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
        command.args(["-c", SCRIPT, "venv.sh"]).arg(place).arg(lock).arg(LIMIT);
        command.arg(self.base.interpreter()?).args([self.on_hosts, &self.below()?]);
        command.args(self.packages);
        Ok(command)
    }

    /// Returns a line for each directory in which the environment below has its packages: here, and on hosts.
    fn below(&self) -> Result<String, LabError> {
        let Base::Upon(other) = self.base else { return Ok(String::new()) };
        let here = other.build()?;
        let inside = version(Path::new(BASE))
            .map(|minor| format!("lib/python3.{minor}/site-packages"))
            .ok_or_else(|| LabError::Missing(BASE.into()))?;
        Ok(format!("{}\n{}/{inside}", here.join(&inside).display(), other.on_hosts))
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
        let base = self.base.interpreter().unwrap_or_default();
        let upon = match self.base {
            Base::Upon(other) => other.place(),
            _ => PathBuf::new(),
        };
        let (base, upon) = (base.to_string_lossy(), upon.to_string_lossy());
        let parts = self.packages.iter().copied().chain([SCRIPT, &*base, &*upon]);
        setup::cache().join(setup::recipe_name(self.name, parts))
    }
}

/// Finds an interpreter of Python 3 of at least this minor version: [`BASE`], one that is installed for all, or one of
/// those that pyenv and uv keep in a home.
fn newer(minor: u32) -> Result<PathBuf, LabError> {
    let home = PathBuf::from(env::var_os("HOME").unwrap_or_default());
    let inside = |directory: &str| {
        let entries = std::fs::read_dir(home.join(directory)).into_iter().flatten().flatten();
        let mut found: Vec<_> = entries.map(|entry| entry.path().join("bin/python3")).collect();
        found.sort();
        found
    };
    let for_all =
        (minor..minor + 5).map(|minor| PathBuf::from(format!("/usr/bin/python3.{minor}")));
    iter::once(PathBuf::from(BASE))
        .chain(for_all)
        .chain(inside(".pyenv/versions"))
        .chain(inside(".local/share/uv/python"))
        .find(|python| version(python).is_some_and(|found| found >= minor))
        .ok_or_else(|| LabError::Missing(format!("Python 3.{minor} or newer")))
}

/// Asks an interpreter for its minor version; none if it is none of Python 3.
fn version(python: &Path) -> Option<u32> {
    let program = "import sys; print(sys.version_info[1] if sys.version_info[0] == 3 else '')";
    let output = Command::new(python).args(["-c", program]).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}
