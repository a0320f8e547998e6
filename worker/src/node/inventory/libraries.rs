//! Libraries that a job's program would load: the version of NCCL, and how Horovod was built.
//!
//! A Python program loads the NCCL that is installed as a Python package; the package's `dist-info`
//! has the version. Any other program loads the library that the dynamic loader finds; the
//! library's file name or a string in the file has the version.
//!
//! Horovod crashes if it is told to use Gloo and was built without it.

use rlaunch_bootstrap::inventory::InstalledLibrary;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Beginning of a name like `nvidia_nccl_cu12-2.27.5.dist-info`.
const WHEEL: &str = "nvidia_nccl_cu";
const LIBRARY: &str = "libnccl.so.2";
/// String in the library that precedes its version.
const VERSION_MARKER: &[u8] = b"NCCL version ";
/// Number of bytes of the library that are searched: the strings come before the code, which is
/// long.
const MAX_SEARCHED: u64 = 64 << 20;
const CHUNK: usize = 1 << 20;
/// Maximum length of a version in bytes, as in `2.27.3+cuda12.9`.
const MAX_VERSION: usize = 32;
/// Directories that loaders search in addition to their configured ones.
const SYSTEM_DIRECTORIES: &[&str] = &[
    "/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64",
    "/usr/lib64", "/usr/lib",
];

/// Program, and the variables that decide where its libraries are found.
#[derive(Clone, Copy)]
pub(crate) struct Loading<'a> {
    pub(crate) program: &'a Path,
    /// Value of LD_LIBRARY_PATH.
    pub(crate) library_path: &'a OsStr,
    /// Value of PYTHONPATH.
    pub(crate) python_path: &'a OsStr,
    /// Value of HOME.
    pub(crate) home: &'a Path,
}

/// Returns the NCCL library that the program would load.
pub(crate) fn find_nccl(loading: &Loading<'_>) -> Option<InstalledLibrary> {
    let packages = python_directories(loading);
    let loader = std::env::split_paths(loading.library_path).chain(configured_directories());
    let loader = loader.chain(SYSTEM_DIRECTORIES.iter().map(PathBuf::from));
    packages.iter().find_map(|directory| nccl_in_packages(directory)).or_else(|| {
        let mut libraries = loader.map(|directory| directory.join(LIBRARY));
        libraries.find_map(|library| nccl_library(&library))
    })
}

/// Tells whether a program is a Python, by its name.
pub(crate) fn is_python(program: &Path) -> bool {
    program.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("python"))
}

/// Returns the directories in which this Python searches for packages, in order: PYTHONPATH; the
/// virtual environment or other prefix of the program; `~/.local`; the Python that a virtual
/// environment links to; `/usr/local`. Empty if the program is not Python.
pub(crate) fn python_directories(loading: &Loading<'_>) -> Vec<PathBuf> {
    if !is_python(loading.program) {
        return Vec::new();
    }
    let mut directories: Vec<PathBuf> = std::env::split_paths(loading.python_path).collect();
    let real = loading.program.canonicalize().ok();
    let prefix = |program: &Path| Some(program.parent()?.parent()?.to_owned());
    // In a virtual environment, `python` is a link to the system's Python.
    let prefixes = [prefix(loading.program), Some(loading.home.join(".local"))];
    let prefixes = prefixes.into_iter().chain([real.as_deref().and_then(prefix)]);
    for prefix in prefixes.flatten().chain([PathBuf::from("/usr/local")]) {
        for library in ["lib", "lib64"] {
            let versions = file_names(&prefix.join(library)).into_iter();
            let versions = versions.filter(|name| name.starts_with("python3"));
            for version in versions {
                let own = prefix.join(library).join(version);
                directories.extend([own.join("site-packages"), own.join("dist-packages")]);
            }
        }
    }
    directories
}

/// Returns the names of the files in a directory, in order.
pub(crate) fn file_names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// Finds the NCCL in a directory of Python packages.
fn nccl_in_packages(directory: &Path) -> Option<InstalledLibrary> {
    file_names(directory).into_iter().find_map(|name| {
        let version = name.strip_prefix(WHEEL)?.strip_suffix(".dist-info")?;
        let (_cuda, version) = version.split_once('-')?;
        let path = directory.join(&name).display().to_string();
        Some(InstalledLibrary { version: version.to_owned(), path })
    })
}

/// Returns the directories listed in /etc/ld.so.conf.d.
fn configured_directories() -> Vec<PathBuf> {
    let directory = Path::new("/etc/ld.so.conf.d");
    let files = file_names(directory).into_iter().map(|name| directory.join(name));
    let text: String = files.filter_map(|file| fs::read_to_string(file).ok()).collect();
    text.lines().filter(|line| line.starts_with('/')).map(PathBuf::from).collect()
}

/// Finds a library's version in the name of the file that the link `path` points to, such as
/// `libnccl.so.2.27.5`, or else in the file's content.
fn nccl_library(path: &Path) -> Option<InstalledLibrary> {
    let real = path.canonicalize().ok()?;
    let version = || {
        let name = real.file_name()?.to_str()?.strip_prefix("libnccl.so.")?;
        name.contains('.').then(|| name.to_owned())
    };
    let version =
        version().or_else(|| version_in_file(&mut File::open(&real).ok()?.take(MAX_SEARCHED)))?;
    Some(InstalledLibrary { version, path: path.display().to_string() })
}

/// Searches a library for its version: `NCCL version 2.27.5+cuda12.9`.
fn version_in_file(file: &mut impl Read) -> Option<String> {
    let mut window: Vec<u8> = Vec::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        let length = file.read(&mut chunk).ok().filter(|length| *length > 0)?;
        window.extend_from_slice(&chunk[..length]);
        if let Some(version) = version_in(&window) {
            return Some(version);
        }
        // The string may begin in one chunk and end in the next.
        let kept = window.len().min(VERSION_MARKER.len() + MAX_VERSION);
        window.drain(..window.len() - kept);
    }
}

fn version_in(window: &[u8]) -> Option<String> {
    let places = window
        .windows(VERSION_MARKER.len())
        .enumerate()
        .filter(|(_, bytes)| *bytes == VERSION_MARKER);
    places.map(|(at, _)| &window[at + VERSION_MARKER.len()..]).find_map(|after| {
        let is_of_version = |byte: &&u8| byte.is_ascii_digit() || **byte == b'.';
        let digits = after.iter().take(MAX_VERSION).take_while(is_of_version).count();
        let text = std::str::from_utf8(&after[..digits]).ok()?;
        // A version that ends with the window may be cut off.
        let is_whole = text.split('.').count() >= 3 && after.len() > digits;
        is_whole.then(|| text.trim_end_matches('.').to_owned())
    })
}

/// Frameworks for each of which Horovod has a library.
const FRAMEWORKS: [&str; 3] = ["torch", "tensorflow", "mxnet"];
/// String in a library that is built with Gloo: the variable with the address of the store.
const GLOO_MARKER: &[u8] = b"HOROVOD_GLOO_RENDEZVOUS_ADDR";
/// Number of bytes of the library that are searched. Code for GPUs, which is long, comes after the
/// strings.
const MAX_SEARCHED_FOR_GLOO: u64 = 256 << 20;

/// Tells whether the program would load a Horovod that is built with MPI alone. False if there is
/// no Horovod, or if its library cannot be read.
pub(crate) fn horovod_needs_mpi(loading: &Loading<'_>) -> bool {
    is_horovod_with_mpi_alone(&python_directories(loading)) == Some(true)
}

/// Tells whether the first Horovod in these directories of Python packages is built with MPI alone. `None`
/// if there is no Horovod; false if its library cannot be read.
pub(crate) fn is_horovod_with_mpi_alone(directories: &[PathBuf]) -> Option<bool> {
    let library = directories.iter().find_map(|directory| horovod_library(directory))?;
    Some(lacks_gloo(&library))
}

/// Finds Horovod's library, such as `horovod/torch/mpi_lib_v2.cpython-311-x86_64-linux-gnu.so`, in
/// a directory of Python packages.
fn horovod_library(directory: &Path) -> Option<PathBuf> {
    FRAMEWORKS.iter().find_map(|framework| {
        let folder = directory.join("horovod").join(framework);
        let is_library = |name: &String| name.starts_with("mpi_lib") && name.ends_with(".so");
        file_names(&folder).into_iter().find(is_library).map(|name| folder.join(name))
    })
}

fn lacks_gloo(library: &Path) -> bool {
    let Ok(file) = File::open(library) else { return false };
    let (mut file, mut window, mut chunk) =
        (file.take(MAX_SEARCHED_FOR_GLOO), Vec::new(), vec![0; CHUNK]);
    loop {
        let Ok(length) = file.read(&mut chunk) else { return false };
        if length == 0 {
            return true;
        }
        window.extend_from_slice(&chunk[..length]);
        if window.windows(GLOO_MARKER.len()).any(|bytes| bytes == GLOO_MARKER) {
            return false;
        }
        // The string may begin in one chunk and end in the next.
        let kept = window.len().min(GLOO_MARKER.len());
        window.drain(..window.len() - kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn looked_up(root: &Path, program: &Path, library_path: &Path) -> Option<InstalledLibrary> {
        find_nccl(&Loading {
            program,
            library_path: library_path.as_os_str(),
            python_path: OsStr::new(""),
            home: root,
        })
    }

    #[test]
    fn pythons_own_wheel_comes_first() {
        let root = tempfile::tempdir().unwrap();
        let venv = root.path().join("venv");
        let packages = venv.join("lib/python3.12/site-packages");
        let info = packages.join("nvidia_nccl_cu12-2.27.5.dist-info");
        fs::create_dir_all(&info).unwrap();
        fs::create_dir_all(venv.join("bin")).unwrap();
        let python = venv.join("bin/python");
        symlink("/usr/bin/python3", &python).unwrap();
        let libraries = root.path().join("lib");
        fs::create_dir(&libraries).unwrap();
        fs::write(libraries.join("libnccl.so.2.30.7"), "").unwrap();
        symlink("libnccl.so.2.30.7", libraries.join(LIBRARY)).unwrap();
        let found = looked_up(root.path(), &python, &libraries).unwrap();
        assert_eq!((found.version.as_str(), Path::new(&found.path)), ("2.27.5", &*info));
        let found = looked_up(root.path(), Path::new("/opt/all_reduce_perf"), &libraries).unwrap();
        assert_eq!(found.version, "2.30.7");
        assert_eq!(Path::new(&found.path), libraries.join(LIBRARY));
    }

    #[test]
    fn a_library_without_a_version_in_its_name_is_read() {
        let root = tempfile::tempdir().unwrap();
        let text = [&[0; 3][..], b"%s NCCL version %d", b"NCCL version 2.28.9+cuda13.0\0"].concat();
        // The string crosses the end of a chunk.
        let content = [&vec![1; CHUNK - 40][..], &text].concat();
        fs::write(root.path().join(LIBRARY), content).unwrap();
        let found = looked_up(root.path(), Path::new("/bin/true"), root.path()).unwrap();
        assert_eq!(found.version, "2.28.9");
        fs::write(root.path().join(LIBRARY), "no NCCL version 2.").unwrap();
        assert_eq!(nccl_library(&root.path().join(LIBRARY)), None);
    }

    #[test]
    fn a_build_is_known_by_its_library() {
        let root = tempfile::tempdir().unwrap();
        let packages = root.path().join("packages");
        let folder = packages.join("horovod/torch");
        fs::create_dir_all(&folder).unwrap();
        let program = |program| Loading {
            program: Path::new(program),
            library_path: OsStr::new(""),
            python_path: packages.as_os_str(),
            home: root.path(),
        };
        assert!(!horovod_needs_mpi(&program("/usr/bin/python3")), "Horovod is not installed");
        let library = folder.join("mpi_lib_v2.cpython-311-x86_64-linux-gnu.so");
        fs::write(&library, b"\x7fELF HOROVOD_GLOO_IFACE").unwrap();
        assert!(horovod_needs_mpi(&program("/usr/bin/python3")));
        assert!(!horovod_needs_mpi(&program("/usr/bin/perl")));
        // The string crosses the end of a chunk.
        fs::write(&library, [&vec![1; CHUNK - 9][..], GLOO_MARKER].concat()).unwrap();
        assert!(!horovod_needs_mpi(&program("/usr/bin/python3")));
    }
}
