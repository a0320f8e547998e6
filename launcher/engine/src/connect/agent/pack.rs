//! Writing a launcher that carries files for hosts.

use super::bundle::{
    BundledLibrary, DIRECTORY, Digest, INDEX, Index, directory_of, ends_with_archive,
};
use super::host_file::{self, HostFile};
use super::library;
use super::store::{AGENT, PROGRAMS};
use std::fs::File;
use std::io::{self, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

/// Architectures whose files are looked for.
pub(super) const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];
/// Best and slowest compression, of deflate and of xz. Packing happens once.
const LEVEL: i64 = 9;

/// Reason why no launcher was written.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    #[error("no agent below {}", .0.display())]
    Nothing(PathBuf),
    #[error("{} carries files already", .0.display())]
    Packed(PathBuf),
    #[error("{} is not a file", .0.display())]
    Special(PathBuf),
    #[error("cannot {operation} {}", path.display())]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
}

impl PackError {
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            PackError::Nothing(_) => {
                Some("--files takes the directory that has lib/rlaunch/TRIPLE/rlaunch-worker")
            }
            PackError::Packed(_) => Some("--launcher takes a launcher that carries none"),
            PackError::Special(_) => Some("-o takes the path of a file, which is replaced"),
            PackError::Io { .. } => None,
        }
    }
}

/// Returns a function that makes the error of an operation on a file.
fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PackError + use<> {
    let path = path.to_owned();
    move |source| PackError::Io { operation, path, source }
}

/// Writes a copy of `launcher` to `output` that carries the files in `root/lib/rlaunch`. The result depends only on the
/// contents of the files. A file at `output` is replaced once the new one is complete.
pub fn pack(launcher: &Path, root: &Path, output: &Path) -> Result<Index, PackError> {
    let found = PackedFiles::look(root)?;
    if !found.index.programs.keys().any(|path| path.ends_with(AGENT)) {
        return Err(PackError::Nothing(root.join(DIRECTORY)));
    }
    // The new file replaces what has its name, /dev/null as well. A link stays, and its target is replaced.
    let output = &output.canonicalize().unwrap_or_else(|_| output.to_owned());
    if output.metadata().is_ok_and(|found| !found.is_file()) {
        return Err(PackError::Special(output.to_owned()));
    }
    let directory = output.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let mut copy =
        tempfile::NamedTempFile::new_in(directory).map_err(failed("write to", directory))?;
    let mut from = File::open(launcher).map_err(failed("read", launcher))?;
    if ends_with_archive(&mut from).map_err(failed("read", launcher))? {
        return Err(PackError::Packed(launcher.to_owned()));
    }
    from.rewind()
        .and_then(|()| io::copy(&mut from, copy.as_file_mut()))
        .map_err(failed("copy", launcher))?;
    found.append_to(copy.as_file_mut(), root)?;
    host_file::make_executable(copy.as_file())
        .and_then(|()| copy.persist(output).map_err(|error| error.error))
        .map_err(failed("write", output))?;
    Ok(found.index)
}

/// Files that a launcher will carry.
struct PackedFiles {
    index: Index,
    /// Paths relative to the root, of programs and of libraries' files.
    paths: Vec<String>,
}

impl PackedFiles {
    fn look(root: &Path) -> Result<PackedFiles, PackError> {
        let mut found = PackedFiles { index: Index::default(), paths: Vec::new() };
        for arch in ARCHITECTURES {
            let directory = directory_of(arch);
            for name in PROGRAMS {
                let path = format!("{directory}/{name}");
                let on_disk = root.join(&path);
                if on_disk.is_file() {
                    let file = HostFile::on_disk(&on_disk).map_err(failed("read", &on_disk))?;
                    let digest = Digest { sha256: file.sha256, size: file.size };
                    found.index.programs.insert(path.clone(), digest);
                    found.paths.push(path);
                }
            }
            let on_disk = root.join(&directory);
            let library = library::describe(&on_disk, arch).map_err(failed("read", &on_disk))?;
            if let Some((name, files)) = library {
                found.paths.extend(files.iter().map(|file| format!("{directory}/{file}")));
                found.index.libraries.insert(arch.to_owned(), BundledLibrary { name, files });
            }
        }
        Ok(found)
    }

    /// Writes the archive after what `file` has.
    fn append_to(&self, file: &mut File, root: &Path) -> Result<(), PackError> {
        let archive = Path::new("the archive");
        file.seek(SeekFrom::End(0)).map_err(failed("write", archive))?;
        let mut writer = ZipWriter::new(file);
        let options = |method| {
            SimpleFileOptions::default()
                .compression_method(method)
                .compression_level(Some(LEVEL))
                .last_modified_time(DateTime::default())
                .unix_permissions(0o755)
        };
        let write = |error: zip::result::ZipError| failed("write", archive)(error.into());
        let index = serde_json::to_vec(&self.index).map_err(io::Error::from);
        let index = index.map_err(failed("write", archive))?;
        writer.start_file(INDEX, options(CompressionMethod::Deflated)).map_err(write)?;
        writer.write_all(&index).map_err(failed("write", archive))?;
        for path in &self.paths {
            let on_disk = root.join(path);
            let content = File::open(&on_disk).map_err(failed("read", &on_disk))?;
            // Agents travel as gzip files, which have the same compression; xz makes the rest a quarter smaller.
            let method = if path.ends_with(AGENT) {
                CompressionMethod::Deflated
            } else {
                CompressionMethod::Xz
            };
            writer.start_file(path, options(method)).map_err(write)?;
            io::copy(&mut BufReader::new(content), &mut writer)
                .map_err(failed("pack", &on_disk))?;
        }
        writer.finish().map_err(write)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::bundle::Bundle;
    use super::*;
    use flate2::read::GzDecoder;
    use std::fs;
    use std::io::Read;

    /// Makes a directory with an agent of this architecture and a library, and a launcher.
    fn lay_out(root: &Path) -> PathBuf {
        let directory = root.join(directory_of(std::env::consts::ARCH));
        fs::create_dir_all(directory.join("python/rlaunch")).unwrap();
        fs::write(directory.join(AGENT), b"an agent, an agent, an agent").unwrap();
        fs::write(directory.join("python/rlaunch/__init__.py"), "x = 1\n").unwrap();
        let launcher = root.join("rlaunch");
        fs::write(&launcher, "launcher").unwrap();
        launcher
    }

    #[test]
    fn a_launcher_carries_what_was_packed() {
        let root = tempfile::tempdir().unwrap();
        let launcher = lay_out(root.path());
        let packed = root.path().join("packed");
        pack(&launcher, root.path(), &packed).unwrap();
        let bundle = Bundle::open(&packed).unwrap().unwrap();
        let (path, digest) = bundle.program(std::env::consts::ARCH, AGENT).unwrap();
        assert_eq!((digest.size, digest.sha256.len()), (28, 64));
        assert_eq!(bundle.read(&path).unwrap(), b"an agent, an agent, an agent");
        let mut unpacked = Vec::new();
        let gzip = bundle.read_gzip(&path).unwrap();
        GzDecoder::new(&gzip[..]).read_to_end(&mut unpacked).unwrap();
        assert_eq!(unpacked, b"an agent, an agent, an agent");
        let library = &bundle.index.libraries[std::env::consts::ARCH];
        assert_eq!(library.files, ["python/rlaunch/__init__.py"]);
        assert!(fs::read(&packed).unwrap().starts_with(b"launcher"));
        assert!(matches!(pack(&packed, root.path(), &launcher), Err(PackError::Packed(_))));
        assert_eq!(fs::read(&launcher).unwrap(), b"launcher");
        let special = pack(&launcher, root.path(), Path::new("/dev/null"));
        assert!(matches!(special, Err(PackError::Special(_))));
    }

    #[test]
    fn a_packed_file_that_was_damaged_is_named() {
        let root = tempfile::tempdir().unwrap();
        let launcher = lay_out(root.path());
        let packed = root.path().join("packed");
        pack(&launcher, root.path(), &packed).unwrap();
        let directory = directory_of(std::env::consts::ARCH);
        for name in [AGENT, "python/rlaunch/__init__.py"] {
            let path = format!("{directory}/{name}");
            let mut bytes = fs::read(&packed).unwrap();
            // Before the name is the length of a field that is between the name and the content.
            let at = bytes.windows(path.len()).position(|part| part == path.as_bytes()).unwrap();
            let field = usize::from(u16::from_le_bytes([bytes[at - 2], bytes[at - 1]]));
            bytes[at + path.len() + field + 5] ^= 0x40;
            let spoiled = root.path().join("spoiled");
            fs::write(&spoiled, bytes).unwrap();
            let bundle = Bundle::open(&spoiled).unwrap().unwrap();
            let read = [
                bundle.read(&path).map(drop),
                bundle.copy(&path, &mut Vec::new()),
                // The rest does not travel so.
                if name == AGENT {
                    bundle.read_gzip(&path).map(drop)
                } else {
                    bundle.read(&path).map(drop)
                },
            ];
            for read in read {
                let error = read.unwrap_err().to_string();
                let words = format!("rlaunch on this machine is damaged, in {path} (");
                assert!(error.contains(&words), "{error}");
            }
        }
    }

    #[test]
    fn packing_twice_gives_the_same_bytes() {
        let root = tempfile::tempdir().unwrap();
        let launcher = lay_out(root.path());
        let packed = ["one", "two"].map(|name| root.path().join(name));
        for output in &packed {
            pack(&launcher, root.path(), output).unwrap();
        }
        assert_eq!(fs::read(&packed[0]).unwrap(), fs::read(&packed[1]).unwrap());
    }

    #[test]
    fn without_an_agent_nothing_is_written() {
        let root = tempfile::tempdir().unwrap();
        let output = root.path().join("packed");
        fs::write(root.path().join("rlaunch"), "launcher").unwrap();
        let nothing = pack(&root.path().join("rlaunch"), root.path(), &output);
        assert!(matches!(nothing, Err(PackError::Nothing(_))));
        assert!(!output.exists());
    }
}
