//! Crates of the workspace, and their dependencies on each other.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::{LabError, dist};

/// Workspace as `cargo metadata` describes it.
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
    /// `dev` or `build`; `None` for normal dependencies.
    kind: Option<String>,
    /// Directory of a dependency in the workspace; `None` for crates of the registry.
    path: Option<PathBuf>,
}

impl Dependency {
    fn is_dev(&self) -> bool {
        self.kind.as_deref() == Some("dev")
    }
}

impl Crates {
    /// Runs `cargo metadata`.
    pub(super) fn from_cargo() -> Result<Crates, LabError> {
        dist::metadata("ask cargo for the workspace's crates")
    }

    /// Returns the names of all crates.
    pub(super) fn names(&self) -> BTreeSet<String> {
        self.packages.iter().map(|package| package.name.clone()).collect()
    }

    /// Finds the crate that contains a file, and the path of the file in it.
    pub(super) fn owner<'a>(&'a self, file: &'a Path) -> Option<(&'a str, &'a Path)> {
        let all = self.packages.iter().filter_map(|package| {
            let directory = self.directory(package)?;
            Some((directory, &*package.name, file.strip_prefix(directory).ok()?))
        });
        let (_, name, inside) = all.max_by_key(|(directory, ..)| directory.components().count())?;
        Some((name, inside))
    }

    /// Finds the crates that changes of some crates can break: those crates, all that depend on
    /// them, and those whose tests do.
    pub(super) fn reached(&self, changed: &BTreeSet<String>) -> BTreeSet<String> {
        let mut built = changed.clone();
        loop {
            let more = self.built_from(&built, |dependency| !dependency.is_dev());
            if more.is_subset(&built) {
                break;
            }
            built.extend(more);
        }
        // Dev-dependencies are followed only one step, since other crates do not depend on the
        // tests of a crate.
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

/// Returns whether a file is part of what other crates depend on, rather than only of the crate's
/// own tests and examples.
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
        // `far` does not depend on the tests of `tested`.
        assert_eq!(reached("base"), "base generated middle tested");
        assert_eq!(reached("tested"), "far tested");
        // A dependency of the same name from the registry is another crate.
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
