//! How the Horovod that a job's program would load was built.
//!
//! Horovod crashes if it is told to use Gloo and was built without it.

use crate::node::inventory::nccl::{Loading, names, python_directories};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Frameworks for each of which Horovod has a library.
const FRAMEWORKS: [&str; 3] = ["torch", "tensorflow", "mxnet"];
/// String in a library that is built with Gloo: the variable with the address of the store.
const GLOO_MARKER: &[u8] = b"HOROVOD_GLOO_RENDEZVOUS_ADDR";
/// Number of bytes of the library that are searched. Code for GPUs, which is long, comes after the
/// strings.
const MAX_SEARCHED: u64 = 256 << 20;
const CHUNK: usize = 1 << 20;

/// Tells whether the program would load a Horovod that is built with MPI alone. False if there is
/// no Horovod, or if its library cannot be read.
pub(crate) fn needs_mpi(loading: &Loading<'_>) -> bool {
    is_built_with_mpi_alone(&python_directories(loading)) == Some(true)
}

/// Tells whether the first Horovod in these directories of Python packages is built with MPI alone. `None`
/// if there is no Horovod; false if its library cannot be read.
pub(crate) fn is_built_with_mpi_alone(directories: &[PathBuf]) -> Option<bool> {
    let library = directories.iter().find_map(|directory| library(directory))?;
    Some(lacks_gloo(&library))
}

/// Finds Horovod's library, such as `horovod/torch/mpi_lib_v2.cpython-311-x86_64-linux-gnu.so`, in
/// a directory of Python packages.
fn library(directory: &Path) -> Option<PathBuf> {
    FRAMEWORKS.iter().find_map(|framework| {
        let folder = directory.join("horovod").join(framework);
        let is_library = |name: &String| name.starts_with("mpi_lib") && name.ends_with(".so");
        names(&folder).into_iter().find(is_library).map(|name| folder.join(name))
    })
}

fn lacks_gloo(library: &Path) -> bool {
    let Ok(file) = File::open(library) else { return false };
    let (mut file, mut window, mut chunk) = (file.take(MAX_SEARCHED), Vec::new(), vec![0; CHUNK]);
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
        assert!(!needs_mpi(&program("/usr/bin/python3")), "Horovod is not installed");
        let library = folder.join("mpi_lib_v2.cpython-311-x86_64-linux-gnu.so");
        fs::write(&library, b"\x7fELF HOROVOD_GLOO_IFACE").unwrap();
        assert!(needs_mpi(&program("/usr/bin/python3")));
        assert!(!needs_mpi(&program("/usr/bin/perl")));
        // The string crosses the end of a chunk.
        fs::write(&library, [&vec![1; CHUNK - 9][..], GLOO_MARKER].concat()).unwrap();
        assert!(!needs_mpi(&program("/usr/bin/python3")));
    }
}
