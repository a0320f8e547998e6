//! Python and its packages, by file names: Python itself is not started.

use super::variable;
use crate::node::environment::Variables;
use crate::node::inventory::{self, Root, libraries};
use nix::unistd::{AccessFlags, access};
use rlaunch_bootstrap::env::{LD_LIBRARY_PATH, PATH, PYTHONPATH};
use rlaunch_bootstrap::inventory::{InstalledLibrary, Inventory};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Packages that are reported. A name that ends in `*` is the beginning of one.
const PACKAGES: &str =
    "torch horovod mpi4py numpy nvidia-nccl-* tensorflow jax jaxlib deepspeed cupy-*";
/// Recorded file with Python and its packages; each line is `NAME VERSION`.
const RECORDED: &str = "/python";
/// Recorded file with the version and path of the NCCL library.
const RECORDED_NCCL: &str = "/nccl";

/// Python interpreter.
#[derive(Debug)]
pub(crate) struct Interpreter {
    pub(crate) path: PathBuf,
    /// Directories in which it finds packages, in order.
    pub(crate) directories: Vec<PathBuf>,
}

impl Interpreter {
    /// Finds the interpreter that a login would start as `python3`.
    pub(crate) fn find(login: &Variables) -> Option<Interpreter> {
        let mut places = std::env::split_paths(variable(login, PATH));
        let is_there = |path: &PathBuf| path.is_file() && access(path, AccessFlags::X_OK).is_ok();
        let path = places.find_map(|place| Some(place.join("python3")).filter(is_there))?;
        Some(Interpreter::at(path, login))
    }

    /// Describes the interpreter at a path.
    pub(crate) fn at(path: PathBuf, login: &Variables) -> Interpreter {
        let version = version_of(&path);
        let loading = loading(&path, login);
        let mut directories = libraries::python_directories(&loading);
        // Other versions of Python are beside it.
        let is_of_other = |directory: &Path, version: &str| {
            let parent = directory.parent().and_then(Path::file_name).and_then(OsStr::to_str);
            let other = parent.and_then(|name| name.strip_prefix("python"));
            // Debian has packages for all versions in `python3`.
            other.is_some_and(|other| other.starts_with("3.") && other != version)
        };
        if let Some(version) = &version {
            directories.retain(|directory| !is_of_other(directory, version));
        }
        Interpreter { path, directories }
    }

    /// Lists Python and the wanted packages with their versions. The first directory that has a
    /// package counts.
    fn packages(&self) -> Vec<(String, String)> {
        let own = version_of(&self.path).map(|version| ("python".to_owned(), version));
        let mut found: Vec<(String, String)> = own.into_iter().collect();
        for directory in &self.directories {
            for name in libraries::file_names(directory) {
                let Some((name, version)) = parse_package(&name) else { continue };
                if !found.iter().any(|(other, _)| *other == name) {
                    found.push((name, version));
                }
            }
        }
        found
    }
}

fn loading<'a>(program: &'a Path, login: &'a Variables) -> libraries::Loading<'a> {
    libraries::Loading {
        program,
        library_path: variable(login, LD_LIBRARY_PATH),
        python_path: variable(login, PYTHONPATH),
        home: Path::new(variable(login, "HOME")),
    }
}

/// Returns the version of an interpreter, from the name of the file to which `python3` is a link.
fn version_of(path: &Path) -> Option<String> {
    let real = path.canonicalize().ok()?;
    let version = real.file_name()?.to_str()?.strip_prefix("python")?;
    version.starts_with("3.").then(|| version.to_owned())
}

/// Parses a name like `nvidia_nccl_cu12-2.27.5.dist-info` or `mpi4py-3.1.4-py3.11.egg-info` of a
/// wanted package.
fn parse_package(file: &str) -> Option<(String, String)> {
    let stem = file.strip_suffix(".dist-info").or_else(|| file.strip_suffix(".egg-info"))?;
    let (name, version) = stem.split_once('-')?;
    let name = name.to_ascii_lowercase().replace('_', "-");
    let is_wanted = |wanted: &str| match wanted.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == wanted,
    };
    let version = version.split("-py3").next().unwrap_or(version);
    PACKAGES.split(' ').any(is_wanted).then(|| (name.clone(), version.to_owned()))
}

/// Lists Python and its packages that matter to jobs.
pub(super) fn packages(root: &Root, interpreter: Option<&Interpreter>) -> Vec<(String, String)> {
    let lines = root.asked_lines(RECORDED, || {
        let packages = interpreter.map(Interpreter::packages).unwrap_or_default();
        packages.into_iter().map(|(name, version)| format!("{name} {version}")).collect()
    });
    let split = |line: &String| line.split_once(' ').map(|(n, v)| (n.to_owned(), v.to_owned()));
    lines.iter().filter_map(split).collect()
}

/// Finds the NCCL library that Python, or any program without Python, would load. Returns `None` on
/// a host without GPUs, as jobs do.
pub(super) fn nccl(
    root: &Root,
    inventory: &Inventory,
    interpreter: Option<&Interpreter>,
    login: &Variables,
) -> Option<InstalledLibrary> {
    if inventory.gpus.is_empty() {
        return None;
    }
    let program = interpreter.map_or(Path::new("/bin/sh"), |interpreter| &interpreter.path);
    let found = || inventory::libraries::find_nccl(&loading(program, login));
    let line = root.asked_text(RECORDED_NCCL, || {
        found().map(|library| format!("{} {}", library.version, library.path))
    })?;
    let (version, path) = line.split_once(' ')?;
    Some(InstalledLibrary { version: version.to_owned(), path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn packages_are_known_by_their_files() {
        let wanted = |name: &str, version: &str| Some((name.to_owned(), version.to_owned()));
        assert_eq!(parse_package("torch-2.4.0+cu121.dist-info"), wanted("torch", "2.4.0+cu121"));
        assert_eq!(
            parse_package("nvidia_nccl_cu12-2.27.5.dist-info"),
            wanted("nvidia-nccl-cu12", "2.27.5")
        );
        assert_eq!(parse_package("mpi4py-3.1.4-py3.11.egg-info"), wanted("mpi4py", "3.1.4"));
        assert_eq!(parse_package("numpy-1.24.2.egg-info"), wanted("numpy", "1.24.2"));
        for other in ["torch", "torchvision-0.19.0.dist-info", "numpy.libs", "-.dist-info"] {
            assert_eq!(parse_package(other), None, "{other}");
        }
    }

    #[test]
    fn packages_are_those_of_the_python_on_the_path() {
        let root = tempfile::tempdir().unwrap();
        let venv = root.path().join("venv");
        for version in ["3.10", "3.12"] {
            let packages = venv.join(format!("lib/python{version}/site-packages"));
            fs::create_dir_all(packages.join(format!("torch-2.{version}.dist-info"))).unwrap();
        }
        let bin = venv.join("bin");
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("python3.12"), "").unwrap();
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(bin.join("python3.12"), executable).unwrap();
        symlink("python3.12", bin.join("python3")).unwrap();
        let search = std::env::join_paths([root.path(), &bin]).unwrap();
        let home = root.path().as_os_str().to_owned();
        let login = vec![("PATH".into(), search), ("HOME".into(), home)];
        let interpreter = Interpreter::find(&login).unwrap();
        assert_eq!(interpreter.path, bin.join("python3"));
        let packages = interpreter.packages();
        let find = |name| packages.iter().find(|(own, _)| own == name).unwrap().1.as_str();
        assert_eq!((find("python"), find("torch")), ("3.12", "2.3.12"));
        assert!(Interpreter::find(&vec![("PATH".into(), home_of(&root))]).is_none());
    }

    fn home_of(root: &tempfile::TempDir) -> std::ffi::OsString {
        root.path().as_os_str().to_owned()
    }
}
