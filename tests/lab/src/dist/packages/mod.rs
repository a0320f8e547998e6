//! Packages in `target/dist`: a launcher that carries all that it sends to hosts, with manual pages and completions,
//! as `.tar.gz`, `.deb`, `.rpm` and wheel.
//!
//! The same files give the same bytes, whenever and wherever they are packed: times are that of the last commit, and
//! owners are root.
//!
//! | file | what |
//! |---|---|
//! | `archives` | `.tar.gz`, `.deb` and `.rpm`, by the tools of Debian; wheel for pip, by a script in Python |
//! | `sbom` | list of the crates inside (CycloneDX), checksums |

mod archives;
mod sbom;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{
    Profile, aarch64, cargo, dist_in, host_triple, launcher, place, target_directory, workspace,
};
use crate::LabError;
use crate::command::{printed, run, show};
use crate::files::{self, make_dir};

/// Seconds since 1970 of files whose commit is not known: 1 January 1980, the first day of zip archives.
const UNKNOWN_TIME: u64 = 315_532_800;

/// Maximum size of a launcher with all that it carries, in bytes.
const MAX_SIZE: u64 = 20_000_000;

/// Text about the whole, for packages.
const SUMMARY: &str = "Starts one program on many hosts over SSH, and says why when it cannot";

/// Package that is made: version, architecture and files.
struct PackageSpec {
    version: String,
    /// Architecture as in `uname -m`.
    arch: &'static str,
    /// Directory with the files as they are installed below `/usr`.
    tree: PathBuf,
    /// Directory for the package.
    output: PathBuf,
    /// Seconds since 1970 of all files.
    time: u64,
    /// Directory of the library for ranks of `arch`, if it was built.
    library: PathBuf,
    /// Profile of what is packed. Packages that tests install are compressed quickly, those that ship well.
    profile: Profile,
}

/// Packs what was built by a profile; returns the directory of the packages. Launchers for other architectures are
/// packed if they were built.
pub fn pack(profile: Profile) -> Result<PathBuf, LabError> {
    let target = target_directory()?;
    let files = dist_in(&target, profile);
    let work = target.join("packages").join(profile.name());
    let output = directory(profile)?;
    let _ = fs::remove_dir_all(&output);
    let own = launcher(profile)?;
    let other = aarch64::launcher(profile)?;
    let launchers = [(std::env::consts::ARCH, own.clone()), ("aarch64", other)];
    let version = version()?;
    let time = time();
    for (arch, launcher) in launchers.iter().filter(|(_, launcher)| launcher.is_file()) {
        let tree = work.join(arch);
        let _ = fs::remove_dir_all(&tree);
        let packed = tree.join("bin/rlaunch");
        make_dir(&tree.join("bin"))?;
        pack_launcher(&own, (arch, launcher), &files, &packed)?;
        if profile == Profile::Release {
            check_size(&packed)?;
        }
        // The launcher of this machine prints the texts, which are the same for all.
        add_texts(&own, &tree)?;
        let library = files.join("lib/rlaunch").join(format!("{arch}-unknown-linux-gnu"));
        let (version, output) = (version.clone(), output.clone());
        let package = PackageSpec { version, arch, tree, output, time, library, profile };
        write_packages(&package)?;
        place(&packed, &output_of(&package).join("rlaunch"))?;
    }
    sbom::write_list(&output, &version, time)?;
    sbom::write_checksums(&output)?;
    Ok(output)
}

/// Returns the directory in which [`pack`] leaves the packages of a profile.
pub fn directory(profile: Profile) -> Result<PathBuf, LabError> {
    let target = target_directory()?;
    Ok(match profile {
        // Tests must not replace what is to be shipped.
        Profile::Lab => target.join("packages").join(profile.name()).join("dist"),
        Profile::Release => target.join("dist"),
    })
}

/// Packs a tree of other files as [`pack`] does, for this machine's architecture and without a library for ranks. The tree
/// needs the paths that packages of rlaunch have.
pub fn pack_tree(tree: &Path, output: &Path) -> Result<(), LabError> {
    write_packages(&PackageSpec {
        version: version()?,
        arch: std::env::consts::ARCH,
        tree: tree.to_owned(),
        output: output.to_owned(),
        time: time(),
        library: workspace().join(super::PACKAGE).with_file_name(""),
        profile: Profile::Lab,
    })?;
    sbom::write_checksums(output)
}

fn write_packages(package: &PackageSpec) -> Result<(), LabError> {
    make_dir(&package.output)?;
    archives::tar(package)?;
    archives::deb(package)?;
    archives::rpm(package)?;
    archives::wheel(package)
}

fn output_of(package: &PackageSpec) -> PathBuf {
    package.output.join(package.arch)
}

/// Writes a launcher that carries the files for hosts. Names of functions, which only backtraces show, are a quarter of
/// it and are left out.
fn pack_launcher(
    own: &Path,
    (arch, launcher): (&str, &Path),
    files: &Path,
    packed: &Path,
) -> Result<(), LabError> {
    let stripped = packed.with_extension("stripped");
    place(launcher, &stripped)?;
    let strip = if arch == std::env::consts::ARCH { "strip" } else { "aarch64-linux-gnu-strip" };
    run("strip the launcher", Command::new(strip).arg(&stripped))?;
    let mut pack = Command::new(own);
    pack.arg("pack").arg("--launcher").arg(&stripped).arg("--files").arg(files);
    show("pack the launcher", pack.arg("--output").arg(packed))?;
    fs::remove_file(&stripped).map_err(LabError::io("remove a copy"))
}

/// Fails if a launcher that carries files is larger than [`MAX_SIZE`].
fn check_size(packed: &Path) -> Result<(), LabError> {
    let failed = LabError::io(format!("look at {}", packed.display()));
    let size = fs::metadata(packed).map_err(failed)?.len();
    println!("{}: {:.1} MB", packed.display(), size as f64 / 1e6);
    match size <= MAX_SIZE {
        true => Ok(()),
        false => Err(LabError::Unexpected(format!(
            "{} has {size} bytes, of {MAX_SIZE} at most",
            packed.display()
        ))),
    }
}

/// Adds manual pages, completions, licence and README to the tree.
fn add_texts(launcher: &Path, tree: &Path) -> Result<(), LabError> {
    let share = tree.join("share");
    let mut man = Command::new(launcher);
    run("write manual pages", man.args(["man", "--all"]).arg(share.join("man")))?;
    let completions = [
        ("bash", "bash-completion/completions/rlaunch"),
        ("zsh", "zsh/vendor-completions/_rlaunch"),
        ("fish", "fish/vendor_completions.d/rlaunch.fish"),
    ];
    for (shell, path) in completions {
        let mut print = Command::new(launcher);
        let script = run("write completions", print.args(["completions", shell]))?.stdout;
        write(&share.join(path), &script)?;
    }
    for (file, name) in [("LICENSE", "copyright"), ("README.md", "README.md")] {
        place(&workspace().join(file), &share.join("doc/rlaunch").join(name))?;
    }
    Ok(())
}

fn version() -> Result<String, LabError> {
    let metadata = super::metadata("ask cargo for the version")?;
    let mut packages = metadata["packages"].as_array().into_iter().flatten();
    let found = packages.find(|package| package["name"] == "rlaunch");
    let found = found.and_then(|package| package["version"].as_str()).map(str::to_owned);
    found.ok_or_else(|| LabError::Unexpected("cargo knows no package rlaunch".into()))
}

/// Returns the time of the last commit, in seconds since 1970.
fn time() -> u64 {
    let mut git = Command::new("git");
    git.current_dir(workspace()).args(["log", "-1", "--format=%ct"]);
    let found = printed("ask git for the time of the last commit", &mut git).ok();
    found.and_then(|text| text.trim().parse().ok()).unwrap_or(UNKNOWN_TIME)
}

/// Writes a file that all can read, and its directory.
fn write(path: &Path, content: &[u8]) -> Result<(), LabError> {
    make_dir(path.parent().unwrap_or(path))?;
    files::write(path, content, 0o644)
}

/// Builds the launcher for aarch64, if that can be done here. If not, removes what an earlier build has left, which would
/// be packed as if it were of this version.
pub fn build_other_launchers(profile: Profile) -> Result<(), LabError> {
    if aarch64::missing(profile)?.is_empty() {
        return aarch64::build_launcher(profile);
    }
    let stale = aarch64::launcher(profile)?;
    match fs::remove_file(&stale) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(LabError::io(format!("remove {}", stale.display()))(error))
        }
        _ => Ok(()),
    }
}

/// Makes a command by which cargo describes all packages of a build for this machine. Those for other systems need not
/// be downloaded.
fn cargo_metadata() -> Result<Command, LabError> {
    let mut metadata = cargo();
    metadata.args(["metadata", "--offline", "--locked", "--format-version", "1"]);
    metadata.args(["--filter-platform", &host_triple()?]);
    Ok(metadata)
}
