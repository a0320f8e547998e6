//! Files for hosts: on this machine's disk, or in the archive that rlaunch carries.

mod local_copy;

use super::bundle::Bundle;
use super::store::AgentStoreError;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use std::fmt::{self, Write as _};
use std::fs::{File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Number of leading hexadecimal digits of the SHA-256 that name a build in the hosts' caches.
pub(super) const HASH_DIGITS: usize = 32;

/// Advice for an account that has no place for copies of what rlaunch carries.
pub const PLACES: &str = "rlaunch keeps a copy of its programs in ~/.cache/rlaunch, or in /tmp, /var/tmp or \
                                 /dev/shm: one of them must be writable, without noexec, and closed to other users";

/// Program that is sent to hosts: the agent, the prover, or the program of `rlaunch bench`.
pub struct HostFile {
    place: FilePlace,
    /// SHA-256 of the file in hexadecimal digits.
    pub sha256: String,
    /// First digits of `sha256`, by which the agent is named in the hosts' caches.
    pub hash: String,
    /// Size of the file in bytes.
    pub size: u64,
    compressed: OnceLock<Bytes>,
}

/// Location of a file.
enum FilePlace {
    Disk(PathBuf),
    /// Path in the archive.
    Bundle(&'static Bundle, String),
}

impl HostFile {
    /// Describes a file on disk, which is read once for its digest.
    pub(super) fn on_disk(path: &Path) -> io::Result<HostFile> {
        let (sha256, size) = digest(path)?;
        Ok(HostFile::new(FilePlace::Disk(path.to_owned()), sha256, size))
    }

    /// Describes a program in the archive; `None` if it is not there.
    pub(super) fn in_bundle(bundle: &'static Bundle, arch: &str, name: &str) -> Option<HostFile> {
        let (path, digest) = bundle.program(arch, name)?;
        let (sha256, size) = (digest.sha256.clone(), digest.size);
        Some(HostFile::new(FilePlace::Bundle(bundle, path), sha256, size))
    }

    fn new(place: FilePlace, sha256: String, size: u64) -> HostFile {
        let hash = sha256.chars().take(HASH_DIGITS).collect();
        HostFile { place, sha256, hash, size, compressed: OnceLock::new() }
    }

    /// Returns the SHA-256 of the file.
    pub fn digest(&self) -> [u8; 32] {
        std::array::from_fn(|at| {
            let digits = self.sha256.get(2 * at..2 * at + 2);
            digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).unwrap_or(0)
        })
    }

    /// Returns what travels to a host: the file's content, or a gzip file of it.
    pub fn payload(&self, gzip: bool) -> Result<Bytes, AgentStoreError> {
        let payload = if gzip { self.gzip() } else { self.content().map(Bytes::from) };
        payload.map_err(|source| AgentStoreError::Read { path: self.to_string().into(), source })
    }

    /// Reads the content. It is not kept, since few hosts need it uncompressed.
    pub fn content(&self) -> io::Result<Vec<u8>> {
        match &self.place {
            FilePlace::Disk(path) => std::fs::read(path),
            FilePlace::Bundle(bundle, path) => bundle.read(path),
        }
    }

    /// Writes the content to `to`, a part at a time, since programs are large.
    fn copy(&self, to: &mut impl io::Write) -> io::Result<()> {
        match &self.place {
            FilePlace::Disk(path) => io::copy(&mut File::open(path)?, to).map(drop),
            FilePlace::Bundle(bundle, path) => bundle.copy(path, to),
        }
    }

    /// Returns the content as a gzip file, which is kept.
    fn gzip(&self) -> io::Result<Bytes> {
        if let Some(compressed) = self.compressed.get() {
            return Ok(compressed.clone());
        }
        let gzip = match &self.place {
            FilePlace::Disk(path) => compress(&std::fs::read(path)?)?,
            FilePlace::Bundle(bundle, path) => bundle.read_gzip(path)?,
        };
        Ok(self.compressed.get_or_init(|| gzip.into()).clone())
    }

    /// Returns the path of a file of this content on this machine, for programs that run here. What rlaunch carries is
    /// copied into this account's cache first, as it would be on a host.
    pub fn local_path(&self) -> io::Result<PathBuf> {
        match &self.place {
            FilePlace::Disk(path) => Ok(path.clone()),
            FilePlace::Bundle(_, path) => {
                let name = Path::new(path).file_name().unwrap_or(path.as_ref());
                local_copy::place(self, name)
            }
        }
    }
}

impl AsRef<HostFile> for HostFile {
    fn as_ref(&self) -> &HostFile {
        self
    }
}

impl fmt::Display for HostFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            FilePlace::Disk(path) => path.display().fmt(f),
            FilePlace::Bundle(_, path) => write!(f, "{path} in rlaunch"),
        }
    }
}

fn compress(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// Returns the SHA-256 of a file in hexadecimal digits, and the size of the file in bytes.
fn digest(path: &Path) -> io::Result<(String, u64)> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut size = 0;
    let mut part = vec![0; 64 << 10];
    loop {
        let read = file.read(&mut part)?;
        if read == 0 {
            break;
        }
        hasher.update(&part[..read]);
        size += read as u64;
    }
    let sha256 = hasher.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    Ok((sha256, size))
}

/// Lets every account execute a file.
pub(super) fn make_executable(file: &File) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;

    #[test]
    fn the_gzip_file_unpacks_to_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        std::fs::write(&path, b"some bytes").unwrap();
        let file = HostFile::on_disk(&path).unwrap();
        assert_eq!(file.hash.len(), HASH_DIGITS);
        let mut unpacked = Vec::new();
        GzDecoder::new(&file.gzip().unwrap()[..]).read_to_end(&mut unpacked).unwrap();
        assert_eq!(unpacked, b"some bytes");
        assert_eq!(file.content().unwrap(), b"some bytes");
        assert_eq!(file.local_path().unwrap(), path);
    }
}
