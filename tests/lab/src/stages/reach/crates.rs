//! The workspace's crates, and which of them are built from which.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::{LabError, dist};

/// The workspace as cargo describes it.
#[derive(Debug, Deserialize)]
pub(super) struct Crates {
    packages: Vec<Package>,
    workspace_root: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    /// `dev` or `build`; nothing is said of others.
    kind: Option<String>,
    /// Its directory, unless cargo fetches it.
    path: Option<PathBuf>,
}

impl Dependency {
    fn is_dev(&self) -> bool {
        self.kind.as_deref() == Some("dev")
    }
}

impl Crates {
    /// Asks cargo.
    pub(super) fn from_cargo() -> Result<Crates, LabError> {
        dist::metadata("ask cargo for the workspace's crates")
    }

    /// Gives the names of all crates.
    pub(super) fn names(&self) -> BTreeSet<String> {
        self.packages.iter().map(|package| package.name.clone()).collect()
    }

    /// Finds the crate in whose directory a file is, and the file's path there.
    pub(super) fn owner<'a>(&'a self, file: &'a Path) -> Option<(&'a str, &'a Path)> {
        let all = self.packages.iter().filter_map(|package| {
            let directory = self.directory(package)?;
            Some((directory, &*package.name, file.strip_prefix(directory).ok()?))
        });
        let (_, name, inside) = all.max_by_key(|(directory, ..)| directory.components().count())?;
        Some((name, inside))
    }

    /// Finds the crates that a change of some can break: those themselves, all that are built from
    /// them, and those whose tests are.
    pub(super) fn reached(&self, changed: &BTreeSet<String>) -> BTreeSet<String> {
        let mut built = changed.clone();
        loop {
            let more = self.built_from(&built, |dependency| !dependency.is_dev());
            if more.is_subset(&built) {
                break;
            }
            built.extend(more);
        }
        // A crate does not contain its tests, so crates built from it go on as they were.
        let tested = self.built_from(&built, Dependency::is_dev);
        built.into_iter().chain(tested).collect()
    }

    fn built_from(
        &self,
        some: &BTreeSet<String>,
        counts: impl Fn(&Dependency) -> bool,
    ) -> BTreeSet<String> {
        let is_built = |package: &&Package| {
            let mut own =
                package.dependencies.iter().filter(|dependency| dependency.path.is_some());
            own.any(|dependency| counts(dependency) && some.contains(&dependency.name))
        };
        self.packages.iter().filter(is_built).map(|package| package.name.clone()).collect()
    }

    fn directory<'a>(&self, package: &'a Package) -> Option<&'a Path> {
        package.manifest_path.parent()?.strip_prefix(&self.workspace_root).ok()
    }
}

/// Tells whether other crates are built from this file of a crate, or its own tests and examples
/// alone.
pub(super) fn is_built_from(inside: &Path) -> bool {
    inside.starts_with("src") || inside == "Cargo.toml" || inside == "build.rs"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_up() -> Crates {
        let package =
            |name: &str, directory: &str, dependencies: &[(&str, Option<&str>)]| Package {
                name: name.into(),
                manifest_path: Path::new("/w").join(directory).join("Cargo.toml"),
                dependencies: dependencies
                    .iter()
                    .map(|(name, kind)| Dependency {
                        name: (*name).into(),
                        kind: kind.map(Into::into),
                        path: (*name != "fetched").then(|| "/w".into()),
                    })
                    .collect(),
            };
        let packages = vec![
            package("base", "base", &[("fetched", None)]),
            package("fetched", "base/fetched", &[]),
            package("middle", "base/middle", &[("base", None)]),
            package("generated", "generated", &[("middle", Some("build"))]),
            package("tested", "tested", &[("generated", Some("dev"))]),
            package("far", "far", &[("tested", None)]),
        ];
        Crates { packages, workspace_root: "/w".into() }
    }

    #[test]
    fn a_file_is_of_the_crate_with_the_longest_directory() {
        let crates = made_up();
        let owner =
            |file: &'static str| crates.owner(Path::new(file)).map(|(name, _)| name.to_owned());
        assert_eq!(owner("base/src/lib.rs").as_deref(), Some("base"));
        assert_eq!(owner("base/middle/src/lib.rs").as_deref(), Some("middle"));
        assert_eq!(owner("base/middleman.rs").as_deref(), Some("base"));
        assert_eq!(owner("README.md"), None);
        let inside = crates.owner(Path::new("far/src/a.rs")).unwrap().1;
        assert_eq!(inside, Path::new("src/a.rs"));
    }

    #[test]
    fn crates_are_reached_by_what_they_and_their_tests_are_built_from() {
        let crates = made_up();
        let reached = |name: &str| {
            let reached = crates.reached(&BTreeSet::from([name.to_owned()]));
            reached.into_iter().collect::<Vec<_>>().join(" ")
        };
        // The tests of `tested` are not what `far` is built from.
        assert_eq!(reached("base"), "base generated middle tested");
        assert_eq!(reached("tested"), "far tested");
        // A crate of the same name that is fetched is another one.
        assert_eq!(reached("fetched"), "fetched");
    }

    #[test]
    fn cargo_is_understood() {
        let crates = Crates::from_cargo().unwrap();
        let changed = BTreeSet::from(["rlaunch-lab".to_owned()]);
        let expected = ["rlaunch-lab", "rlaunch-tests"].map(str::to_owned);
        assert_eq!(crates.reached(&changed), expected.into());
        let (owner, inside) = crates.owner(Path::new("worker/comm/capi/src/lib.rs")).unwrap();
        assert_eq!((owner, inside), ("rlaunch-capi", Path::new("src/lib.rs")));
    }
}
