//! Files and libraries of a program on this host.

use crate::node::diagnostics::python::Interpreter;
use crate::node::environment::Variables;
use crate::node::inventory::libraries;
use crate::node::{delivery, environment};
use crate::ranks::{mpi_library, prepare};
use rlaunch_bootstrap::env::PATH;
use rlaunch_bootstrap::job::WorkingDir;
use rlaunch_bootstrap::protocol::diagnosis::{ProgramInquiry, ProgramReport};
use sha2::{Digest, Sha256};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Maximum number of words that are looked at, and maximum length of each in bytes.
const MAX_WORDS: usize = 256;
const MAX_WORD: usize = 4096;
/// Maximum size of a file whose contents are hashed, in bytes.
const MAX_HASHED: u64 = 64 << 20;
const CHUNK: usize = 256 << 10;
/// Ends of words that name files, whether or not the files exist.
const FILE_ENDS: &[&str] = &[".py", ".sh", ".json", ".yaml", ".yml", ".toml"];

/// Describes what this host has of a program. `login` is the environment of a login, and
/// `locked_memory` the limit of locked memory.
pub(super) fn report(
    inquiry: &ProgramInquiry,
    login: &Variables,
    locked_memory: Option<u64>,
) -> ProgramReport {
    let directory = WorkingDir::SameAsLauncher(inquiry.directory.clone());
    let directory = prepare::find_working_dir(&directory, &mut Vec::new());
    let directory = directory.unwrap_or_else(|_| PathBuf::from("/"));
    let env = environment::for_application(login.iter().cloned(), &[]);
    let search_path = env.get(OsStr::new(PATH)).cloned().unwrap_or_default();
    let words: Vec<OsString> = inquiry.words.iter().map(OsString::from).collect();
    let program = prepare::find_program(&words, &search_path, &directory).ok();
    let is_python = |path: &&PathBuf| libraries::is_python(path);
    let python = program.as_ref().filter(is_python).cloned();
    let python = python.map(|path| Interpreter::at(path, login));
    let linked = program.as_deref().and_then(mpi_library::linked_library);
    let mpi_library = linked.or_else(|| python.as_ref().and_then(of_mpi4py));
    ProgramReport {
        unserved_mpi: mpi_library.as_deref().and_then(mpi_library::unserved_interface),
        mpi_library,
        horovod_mpi_only: python
            .as_ref()
            .and_then(|python| libraries::is_horovod_with_mpi_alone(&python.directories)),
        files: find_files(&inquiry.words, &directory),
        locked_memory,
        program,
    }
}

/// Finds files among the words of a command line, with the digests of their contents.
fn find_files(words: &[String], directory: &Path) -> Vec<(String, Option<String>)> {
    let mut files: Vec<(String, Option<String>)> = Vec::new();
    // The first word is the program; with a slash it is a file like any other.
    let has_slash = |(at, word): &(usize, &String)| *at > 0 || word.contains('/');
    for (_, word) in words.iter().enumerate().filter(has_slash).take(MAX_WORDS) {
        let is_known = files.iter().any(|(other, _)| other == word);
        if is_known || word.is_empty() || word.len() > MAX_WORD || word.starts_with('-') {
            continue;
        }
        match digest_of(&directory.join(word)) {
            Ok(digest) => files.extend(digest.map(|digest| (word.clone(), Some(digest)))),
            Err(error) if error.kind() == io::ErrorKind::NotFound && looks_like_file(word) => {
                files.push((word.clone(), None));
            }
            // A file that may not be read cannot be compared.
            Err(_) => {}
        }
    }
    files
}

fn looks_like_file(word: &str) -> bool {
    let is_address = word.contains("://");
    let is_text = word.contains(char::is_whitespace);
    let has_end = FILE_ENDS.iter().any(|end| word.ends_with(end));
    (word.contains('/') || has_end) && !is_address && !is_text
}

/// Returns the digest of a file's contents, or of its size if it is large; `None` for what is not a
/// file.
fn digest_of(path: &Path) -> io::Result<Option<String>> {
    let metadata = path.metadata()?;
    if !metadata.is_file() {
        return Ok(None);
    }
    if metadata.len() > MAX_HASHED {
        return Ok(Some(delivery::hex(&Sha256::digest(metadata.len().to_string()))));
    }
    let mut file = File::open(path)?.take(MAX_HASHED);
    let (mut hasher, mut chunk) = (Sha256::new(), vec![0; CHUNK]);
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(Some(delivery::hex(&hasher.finalize()))),
            length => hasher.update(&chunk[..length]),
        }
    }
}

/// Returns the MPI library with which mpi4py is linked. Builds for several libraries, which choose
/// one when they are loaded, are not known.
fn of_mpi4py(python: &Interpreter) -> Option<String> {
    let directories = python.directories.iter().map(|directory| directory.join("mpi4py"));
    let directory = directories.into_iter().find(|directory| directory.is_dir())?;
    let names = libraries::file_names(&directory).into_iter();
    let modules = names.filter(|name| name.starts_with("MPI.") && name.ends_with(".so"));
    let mut libraries: Vec<String> =
        modules.filter_map(|name| mpi_library::linked_library(&directory.join(name))).collect();
    libraries.dedup();
    libraries.pop().filter(|_| libraries.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn files_are_found_among_the_words() {
        let here = tempfile::tempdir().unwrap();
        fs::write(here.path().join("train.py"), "abc").unwrap();
        fs::write(here.path().join("plain"), "").unwrap();
        fs::create_dir(here.path().join("data")).unwrap();
        let line = "python3 train.py --config=a.yaml plain data data/x conf.json https://x/y 8";
        let found = find_files(&words(line), here.path());
        let names: Vec<(&str, bool)> =
            found.iter().map(|(word, digest)| (word.as_str(), digest.is_some())).collect();
        let wanted = [("train.py", true), ("plain", true), ("data/x", false), ("conf.json", false)];
        assert_eq!(names, wanted);
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(found[0].1.as_deref(), Some(digest));
    }

    #[test]
    fn a_large_file_is_known_by_its_size() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("large");
        File::create(&path).unwrap().set_len(MAX_HASHED + 1).unwrap();
        let of_size = delivery::hex(&Sha256::digest("67108865"));
        assert_eq!(digest_of(&path).unwrap(), Some(of_size));
    }

    /// Python with mpi4py and Horovod, both linked with what the shell is linked with.
    #[test]
    fn a_python_program_is_described() {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("bin");
        let packages = root.path().join("lib/python3.12/site-packages");
        fs::create_dir_all(packages.join("mpi4py")).unwrap();
        fs::create_dir_all(packages.join("horovod/torch")).unwrap();
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("python3.12"), "").unwrap();
        fs::set_permissions(bin.join("python3.12"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink("python3.12", bin.join("python3")).unwrap();
        // The shell's libc in the place of an MPI library: the names have the same length.
        let shell = fs::read("/bin/sh").unwrap();
        let at = shell.windows(10).position(|part| part == b"libc.so.6\0").unwrap();
        let library = [&shell[..at], b"libmpi.so\0", &shell[at + 10..]].concat();
        fs::write(packages.join("mpi4py/MPI.cpython-312.so"), &library).unwrap();
        let build = packages.join("horovod/torch/mpi_lib_v2.cpython-312.so");
        fs::write(&build, &library).unwrap();
        let login = vec![("PATH".into(), bin.clone().into_os_string())];
        let directory = root.path().to_owned().into();
        let inquiry = ProgramInquiry { words: words("python3 gone.py"), directory };
        let found = report(&inquiry, &login, Some(65_536));
        assert_eq!(found.program, Some(bin.join("python3")));
        assert_eq!(found.files, [("gone.py".to_owned(), None)]);
        assert_eq!(found.mpi_library.as_deref(), Some("libmpi.so"));
        assert_eq!((found.unserved_mpi, found.locked_memory), (None, Some(65_536)));
        assert_eq!(found.horovod_mpi_only, Some(true));
        fs::write(&build, [&library[..], b"HOROVOD_GLOO_RENDEZVOUS_ADDR"].concat()).unwrap();
        assert_eq!(report(&inquiry, &login, None).horovod_mpi_only, Some(false));
        let missing = ProgramInquiry { words: words("nosuch -x"), ..inquiry };
        assert_eq!(report(&missing, &login, None), ProgramReport::default());
    }
}
