//! Tests that the tables name existing files and tests, and that no new file is left unnamed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::choice::Workspace;
use super::selection::{HostStage, NETNS, VM, module_of};
use super::table::{LONG, SMOKE, UNREACHED, row_of, rows};
use super::{paths, readers};
use crate::dist;

/// Folders of all programs and libraries that run on hosts.
const PRODUCTS: [&str; 3] = ["bootstrap", "launcher", "worker"];
/// Folders in which every file must be named by itself, so that a new one is noticed.
const OPEN: [&str; 4] = ["launcher/console/src/", "launcher/src/", "worker/src/", "worker/"];

/// Lists the files below a folder, by their paths from the workspace.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dist::workspace().join(folder)).unwrap() {
        let name = entry.unwrap().file_name();
        let path = folder.join(&name);
        match dist::workspace().join(&path).is_dir() {
            // Python and cargo write these.
            true if name == "__pycache__" || name == "target" => {}
            true => found.extend(files_below(&path)),
            false => found.push(path),
        }
    }
    found
}

fn read(file: &Path) -> String {
    fs::read_to_string(dist::workspace().join(file)).unwrap()
}

fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

/// Lists the tests of a stage by the names that libtest prints.
fn tests_of(stage: &HostStage) -> BTreeSet<String> {
    let folder = Path::new(stage.folder);
    let mut found = BTreeSet::new();
    for file in files_below(folder).iter().filter(|file| is_source(file)) {
        let module = file.strip_prefix(folder).unwrap().with_extension("");
        let module: Vec<_> = module.iter().map(|part| part.to_str().unwrap()).collect();
        let text = read(file);
        let after = text.split("#[test]\n").skip(1).map(|rest| rest.split("fn ").nth(1).unwrap());
        let names = after.map(|rest| rest.split('(').next().unwrap());
        found.extend(names.map(|name| format!("{}::{name}", module.join("::"))));
    }
    found
}

#[test]
fn every_source_that_a_row_names_is_there() {
    for name in rows().flat_map(|row| row.sources) {
        let path = dist::workspace().join(name);
        assert!(if name.ends_with('/') { path.is_dir() } else { path.is_file() }, "{name}");
        assert!(!OPEN.contains(name), "{name} would hide new files");
    }
    let all: Vec<&&str> = rows().flat_map(|row| row.sources).collect();
    assert_eq!(all.len(), all.iter().collect::<BTreeSet<_>>().len(), "a source has two rows");
}

#[test]
fn every_test_that_a_row_names_is_there() {
    let workspace = Workspace::read().unwrap();
    for (stage, modules) in [(&NETNS, &workspace.netns), (&VM, &workspace.vm)] {
        let tests = tests_of(stage);
        let named = rows().chain([&SMOKE]).flat_map(|row| match stage.name {
            "vm" => row.vm,
            _ => row.netns,
        });
        for name in named {
            assert!(
                modules.iter().any(|module| module == module_of(name)),
                "{}: {name}",
                stage.name
            );
            let begins = |test: &String| test.starts_with(name);
            assert!(tests.iter().any(begins), "{}: no test's name begins with {name}", stage.name);
        }
    }
    let tests = tests_of(&NETNS);
    assert!(LONG.iter().all(|long| tests.contains(*long)), "{LONG:?}");
}

#[test]
fn every_test_is_led_to() {
    let workspace = Workspace::read().unwrap();
    let led = |name: &&str| module_of(name).to_owned();
    let netns: BTreeSet<String> = rows().flat_map(|row| row.netns).map(led).collect();
    let vm: BTreeSet<String> = rows().flat_map(|row| row.vm).map(led).collect();
    for (modules, led) in [(workspace.netns, netns), (workspace.vm, vm)] {
        let left: Vec<_> = modules
            .iter()
            .filter(|module| !led.contains(*module) && !UNREACHED.contains(&module.as_str()))
            .collect();
        assert!(left.is_empty(), "no row leads to {left:?}");
    }
}

#[test]
fn every_source_has_a_row() {
    let sources = PRODUCTS.iter().flat_map(|product| files_below(Path::new(product)));
    let of_programs = sources.filter(|file| file.iter().any(|part| part == "src"));
    let left: Vec<PathBuf> = of_programs.filter(|file| row_of(file).is_none()).collect();
    assert!(left.is_empty(), "no row of the table names {left:?}");
}

/// Lists the existing paths, relative to the workspace, that string literals of a source name
/// outside its folder. Some literals are relative to the source's folder, some to the crate's.
fn paths_up(file: &Path, krate: &Path) -> Vec<PathBuf> {
    let text = read(file);
    let literals = text.split('"').skip(1);
    let up =
        literals.map(|literal| literal.trim_start_matches('/')).filter(|l| l.starts_with("../"));
    let from = |literal: &str| {
        let bases = [file.parent().unwrap_or(file), krate];
        let meant = bases.map(|base| normal(&base.join(literal)));
        meant.into_iter().flatten().find(|path| dist::workspace().join(path).exists())
    };
    up.filter_map(from).collect()
}

/// Resolves `..` in a path. Returns nothing if it leads out of the workspace.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if !normal.pop() => return None,
            Component::ParentDir => {}
            part => normal.push(part),
        }
    }
    Some(normal).filter(|path| path.components().next().is_some())
}

/// Returns whether the row of a file names the tests in another file.
fn leads(from: &Path, to: &Path) -> bool {
    let Some((_, row)) = row_of(from).or_else(|| row_of(&from.join("any"))) else { return false };
    let stages = [(&NETNS, row.netns), (&VM, row.vm)];
    stages.into_iter().any(|(stage, names)| {
        let module = to.strip_prefix(stage.folder).map(|inside| inside.with_extension(""));
        module.is_ok_and(|module| names.iter().any(|name| Path::new(module_of(name)) == module))
    })
}

/// A file that is read from outside its crate has a reader, or a row with the test that reads it.
#[test]
fn every_file_that_is_read_from_elsewhere_has_its_readers() {
    let crates = Workspace::read().unwrap().crates;
    let sources =
        PRODUCTS.iter().chain(&["tests"]).flat_map(|folder| files_below(Path::new(folder)));
    for file in sources.filter(|file| is_source(file)) {
        let (reader, inside) = crates.owner(&file).unwrap();
        let depth = file.components().count() - inside.components().count();
        let krate: PathBuf = file.components().take(depth).collect();
        for path in paths_up(&file, &krate) {
            if crates.owner(&path).is_some_and(|(owner, _)| owner == reader) {
                continue;
            }
            let is_known = || {
                let of_folder = readers::all().iter().any(|(name, crates)| {
                    Path::new(name).starts_with(&path) && crates.contains(&reader)
                });
                of_folder || readers::crates_that_read(&path.join("any")).contains(reader)
            };
            let is_built = || {
                // The manifest names these.
                let owner =
                    crates.owner(&path).map(|(owner, _)| BTreeSet::from([owner.to_owned()]));
                owner.is_some_and(|owner| crates.reached(&owner).contains(reader))
            };
            let exact = readers::crates_that_read(&path).contains(reader);
            assert!(
                exact || is_known() || is_built() || leads(&path, &file) || is_guide(&path, &file),
                "{} reads {}, which neither readers.rs nor table.rs names",
                file.display(),
                path.display()
            );
        }
    }
}

/// Returns whether the reader is `tests/guide.rs`, which reads all guides. The rows of guides name
/// each test that follows a guide.
fn is_guide(path: &Path, reader: &Path) -> bool {
    reader == Path::new("tests/guide.rs") && paths::names("examples/", path)
}
