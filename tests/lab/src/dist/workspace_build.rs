//! Builds for tests: everything that tests run, by one call of cargo.
//!
//! Cargo resolves the features of a crate for the packages that one call selects, so a further call
//! for another package would compile shared crates again. Here the whole workspace is selected at
//! once. Link arguments, which `cargo rustc -- …` could set for only one target, are added by a
//! wrapper around rustc.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::glibc::BinaryKind;
use super::machine::TargetMachine;
use super::{
    AGENT, COPIER, MODULE_PATH, PACKAGE, Profile, SHARED, STACK_READER, place, place_sources,
    workspace,
};
use crate::command::{checked, display, quote};
use crate::{LabError, files, setup};

/// Profile of all builds in this file.
const PROFILE: Profile = Profile::Lab;

/// Features that only tests need: programs of tests that need root, and the fuzzer, whose build
/// script must be compiled with the same features as all other crates.
pub(crate) const TEST_FEATURES: &str =
    "rlaunch-lab/hosts,rlaunch-tests/hosts,rlaunch-fuzz/libfuzzer";

/// Packages and targets that one call of cargo builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BuildSet {
    /// Launcher and agent: enough for jobs whose ranks do not use the communicator.
    Job,
    /// Libraries that ranks link and import, to go with `Job`.
    Ranks,
    /// Files that [`super::build`] lays out, without RDMA where the bindings of libibverbs cannot
    /// be built.
    Shipped,
    /// Agent, libraries and programs for hosts of another architecture, without RDMA where it cannot be built.
    Sent,
    /// The whole workspace, tests included.
    Everything,
}

/// Packages of a job. `Job` and `Ranks` select the same packages, so that cargo resolves the same
/// features for both.
const JOB_PACKAGES: &[&str] = &["rlaunch", AGENT, "rlaunch-capi", "rlaunch-python"];
const SHIPPED_PACKAGES: &[&str] =
    &["rlaunch", AGENT, STACK_READER, COPIER, "rlaunch-bench", "rlaunch-capi", "rlaunch-python"];
const SENT_PACKAGES: &[&str] = &[AGENT, COPIER, "rlaunch-bench", "rlaunch-capi", "rlaunch-python"];

impl BuildSet {
    fn words(self) -> Vec<&'static str> {
        let (packages, targets): (_, &[&str]) = match self {
            BuildSet::Everything => {
                let targets = ["--workspace", "--lib", "--bins", "--tests", "--examples"];
                return targets.into_iter().chain(["--features", TEST_FEATURES]).collect();
            }
            BuildSet::Job => (JOB_PACKAGES, &["--bins"]),
            BuildSet::Ranks => (JOB_PACKAGES, &["--lib"]),
            BuildSet::Shipped => (SHIPPED_PACKAGES, &["--bins", "--lib"]),
            BuildSet::Sent => (SENT_PACKAGES, &["--bins", "--lib"]),
        };
        let prover = matches!(self, BuildSet::Shipped | BuildSet::Sent);
        let prover = ["-p", "rlaunch-prover"].into_iter().filter(|_| prover);
        let words = packages.iter().flat_map(|package| ["-p", *package]);
        let words = words.chain(targets.iter().copied());
        match setup::builds_verbs() {
            true => words.chain(prover).collect(),
            false => words.chain(["--no-default-features"]).collect(),
        }
    }
}

/// File that is laid out, with name and kind of its target in cargo.
struct DistFile {
    target: &'static str,
    kind: &'static str,
    /// Path among the files for hosts; none in the top directory, under the name of the target.
    sent: Option<&'static str>,
    linkage: Linkage,
}

/// Arguments that a file is linked with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Linkage {
    /// No arguments beyond those of cargo.
    Plain,
    /// No symbols: the file travels to emulated computers, where they would cost minutes.
    Stripped,
    /// Stub libraries, so that hosts with older C libraries can load the file.
    Portable,
    /// Stub libraries and no symbols.
    PortableStripped,
    /// Static C library, no symbols, and no relocation at each start.
    Static,
}

const BIN: &str = "bin";
const CDYLIB: &str = "cdylib";
const EXAMPLE: &str = "example";
const TEST: &str = "test";

const DIST_FILES: &[DistFile] = &[
    dist_file("rlaunch", BIN, None, Linkage::Portable),
    dist_file(AGENT, BIN, Some(AGENT), Linkage::Static),
    dist_file(STACK_READER, BIN, Some(STACK_READER), Linkage::Static),
    dist_file(COPIER, BIN, Some(COPIER), Linkage::Static),
    dist_file("rlaunch-bench", BIN, Some("rlaunch-bench"), Linkage::PortableStripped),
    dist_file("rlaunch-prover", BIN, Some("rlaunch-prover"), Linkage::PortableStripped),
    dist_file("rlaunch", CDYLIB, Some(SHARED), Linkage::PortableStripped),
    dist_file("_rlaunch", CDYLIB, Some(MODULE_PATH), Linkage::PortableStripped),
    dist_file("comm-suite", BIN, None, Linkage::Stripped),
    // Example of rlaunch-verbs, for guests.
    dist_file("loopback", EXAMPLE, None, Linkage::Plain),
    // Test of rlaunch-prover, which runs on guests since it needs RDMA devices.
    dist_file("two_provers", TEST, None, Linkage::Plain),
];

const fn dist_file(
    target: &'static str,
    kind: &'static str,
    sent: Option<&'static str>,
    linkage: Linkage,
) -> DistFile {
    DistFile { target, kind, sent, linkage }
}

/// Artifacts and warnings of one call of cargo.
#[derive(Debug)]
pub(crate) struct Built {
    /// Messages of cargo about what it built or found built.
    artifacts: Vec<Value>,
    warnings: usize,
}

impl Built {
    /// Returns the number of warnings for crates of this workspace. They include those of clippy if
    /// everything was built.
    pub(crate) fn warnings(&self) -> usize {
        self.warnings
    }

    /// Finds the program called `name` that is not a test.
    pub(crate) fn program(&self, name: &str) -> Result<PathBuf, LabError> {
        let found = self.file(name, BIN).or_else(|| self.file(name, EXAMPLE));
        found.ok_or_else(|| LabError::Unexpected(format!("cargo built no program called {name}")))
    }

    /// Finds the file of a target: the target itself rather than its unit tests.
    fn file(&self, name: &str, kind: &str) -> Option<PathBuf> {
        let has = |list: &Value, word: &str| {
            list.as_array().is_some_and(|list| list.contains(&word.into()))
        };
        let artifact = self.artifacts.iter().find(|artifact| {
            artifact["target"]["name"] == name
                && has(&artifact["target"]["kind"], kind)
                && artifact["profile"]["test"] == (kind == TEST)
        })?;
        let files =
            artifact["filenames"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let library =
            files.map(Path::new).find(|file| file.extension().is_some_and(|end| end == "so"));
        artifact["executable"].as_str().map(PathBuf::from).or_else(|| library.map(PathBuf::from))
    }
}

/// Builds a set for `machine`, and lays out its files below cargo's target directory.
pub(super) fn build(
    machine: &TargetMachine,
    target: &Path,
    selection: BuildSet,
) -> Result<Built, LabError> {
    let mut cargo = machine.cargo(&["build", "--profile", PROFILE.name()]);
    cargo.args(selection.words());
    let compiler = match selection {
        BuildSet::Everything => Compiler::Clippy,
        _ => Compiler::Rustc,
    };
    cargo.env("RUSTC_WORKSPACE_WRAPPER", wrapper(machine, target, compiler)?);
    let built = artifacts("build for tests", &mut cargo)?;
    lay_out(machine, target, &built)?;
    Ok(built)
}

/// Runs a cargo that builds; returns what it built or found built. Its progress is printed at once,
/// messages of compilers at the end.
fn artifacts(operation: &str, cargo: &mut Command) -> Result<Built, LabError> {
    cargo.arg("--message-format=json").stderr(Stdio::inherit());
    let output = cargo.output().map_err(LabError::io(format!("start {}", display(cargo))))?;
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut built = Built { artifacts: Vec::new(), warnings: 0 };
    for message in lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        match message["reason"].as_str() {
            Some("compiler-artifact") => built.artifacts.push(message),
            Some("compiler-message") => {
                built.warnings += 1;
                eprint!("{}", message["message"]["rendered"].as_str().unwrap_or_default());
            }
            // Other messages are about build scripts and the end of the build.
            _ => {}
        }
    }
    checked(operation, cargo, output).map(|_| built)
}

/// Runs a cargo that builds one program; returns the path of the program.
pub(crate) fn program_of(
    operation: &str,
    cargo: &mut Command,
    name: &str,
) -> Result<PathBuf, LabError> {
    artifacts(operation, cargo)?.program(name)
}

/// Compiler of this workspace's crates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compiler {
    Rustc,
    /// Rustc with lints. A separate `cargo clippy` would check every crate again, those from the
    /// registry included, which takes two minutes.
    Clippy,
}

/// Copies the built files to where launchers and guests look for them.
fn lay_out(machine: &TargetMachine, target: &Path, built: &Built) -> Result<(), LabError> {
    let sent = machine.place(target, PROFILE);
    for entry in DIST_FILES {
        let Some(file) = built.file(entry.target, entry.kind) else { continue };
        let top = || super::dist_in(target, PROFILE).join(entry.target);
        let to = entry.sent.map_or_else(top, |name| sent.join(name));
        match entry.linkage {
            Linkage::Portable | Linkage::PortableStripped => machine.place_checked(&file, &to)?,
            _ => place(&file, &to)?,
        }
    }
    match built.file("_rlaunch", CDYLIB) {
        Some(_) => place_sources(&workspace().join(PACKAGE), &sent.join("python")),
        None => Ok(()),
    }
}

/// Writes the wrapper that adds the link arguments; returns its path. The path contains a digest of
/// the content: cargo identifies a wrapper by its path, so a changed wrapper causes a new build.
pub(super) fn wrapper(
    machine: &TargetMachine,
    target: &Path,
    compiler: Compiler,
) -> Result<PathBuf, LabError> {
    let text = script(&rules(machine, target)?, compiler);
    write_wrapper(target, &text)
}

/// Writes a wrapper around rustc below cargo's target directory; returns its path.
pub(crate) fn write_wrapper(target: &Path, text: &str) -> Result<PathBuf, LabError> {
    let path = target.join("lab-wrapper").join(setup::recipe_name("rustc", [text]));
    if path.exists() {
        return Ok(path);
    }
    let new = path.with_extension(std::process::id().to_string());
    files::make_dir(&target.join("lab-wrapper"))?;
    files::write(&new, text, 0o755)?;
    fs::rename(&new, &path).map_err(LabError::io(format!("write {}", path.display())))?;
    Ok(path)
}

/// Lists `name/kind` of crates, and the arguments that rustc gets in addition to those of cargo.
fn rules(machine: &TargetMachine, target: &Path) -> Result<Vec<(String, Vec<String>)>, LabError> {
    let stubs = machine.linking(target)?;
    let strip = || ["-C".into(), "strip=symbols".into()];
    let rule = |entry: &DistFile| {
        let kind = if entry.kind == CDYLIB { BinaryKind::Library } else { BinaryKind::Program };
        let mut words = match entry.linkage {
            Linkage::Portable | Linkage::PortableStripped => stubs.words(kind),
            Linkage::Static => ["target-feature=+crt-static", "relocation-model=static"]
                .iter()
                .flat_map(|word| ["-C".to_owned(), (*word).to_owned()])
                .collect(),
            Linkage::Plain | Linkage::Stripped => Vec::new(),
        };
        if !matches!(entry.linkage, Linkage::Plain | Linkage::Portable) {
            words.extend(strip());
        }
        (format!("{}/{}", entry.target.replace('-', "_"), entry.kind), words)
    };
    Ok(DIST_FILES.iter().map(rule).filter(|(_, words)| !words.is_empty()).collect())
}

/// Returns the text of a wrapper, which gets rustc and its arguments as its own arguments. The
/// wrapper adds no arguments for unit tests of a crate. It needs bash: dash drops variables such as
/// `CARGO_BIN_EXE_rlaunch-prover` from the environment.
fn script(rules: &[(String, Vec<String>)], compiler: Compiler) -> String {
    let mut text = "\
#!/usr/bin/env bash
# Starts rustc, with more arguments for some crates: `cargo lab` wrote this.
name= kind= before=
for word; do
    case $before in
        --crate-name) name=$word ;;
        --crate-type) kind=${kind:-$word} ;;
    esac
    [ \"$word\" != --test ] || kind=test
    before=$word
done
case $name/$kind in
"
    .to_owned();
    for (crate_kind, words) in rules {
        let words: Vec<String> = words.iter().map(|word| quote(word)).collect();
        text += &format!("    {crate_kind}) set -- \"$@\" {} ;;\n", words.join(" "));
    }
    text += match compiler {
        Compiler::Rustc => "esac\nexec \"$@\"\n",
        Compiler::Clippy => "esac\nexec \"${1%rustc}clippy-driver\" \"$@\"\n",
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what the wrapper adds to these arguments by the rules for two crates.
    fn added(words: &[&str]) -> String {
        let rules = [
            ("rlaunch/bin".to_owned(), vec!["-C".to_owned(), "linkage-arg=-L/a b".to_owned()]),
            ("rlaunch/cdylib".to_owned(), vec!["-C".to_owned(), "strip=symbols".to_owned()]),
        ];
        let text = script(&rules, Compiler::Rustc);
        let all = ["-c", &text, "wrapper", "printf", "<%s>"];
        let output = Command::new("bash").args(all).args(words).output().unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        let given: String = words.iter().map(|word| format!("<{word}>")).collect();
        shown.strip_prefix(&given).unwrap_or_else(|| panic!("{shown}")).to_owned()
    }

    #[test]
    fn the_wrapper_adds_words_for_a_crate_of_a_kind() {
        let name = ["--crate-name", "rlaunch"];
        let with = |more: &[&'static str]| added(&[&name, more].concat());
        assert_eq!(with(&["--crate-type", "bin"]), "<-C><linkage-arg=-L/a b>");
        assert_eq!(
            with(&["--crate-type", "cdylib", "--crate-type", "rlib"]),
            "<-C><strip=symbols>"
        );
        assert_eq!(with(&["--crate-type", "bin", "--test"]), "");
        assert_eq!(added(&["--crate-name", "other", "--crate-type", "bin"]), "");
        assert_eq!(added(&["-vV"]), "");
    }
}
