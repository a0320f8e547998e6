//! Files for hosts that `rlaunch` carries: a zip archive at the end of its executable.
//!
//! Paths in the archive are those of files beside rlaunch, `lib/rlaunch/TRIPLE/NAME`, so `unzip` lays them out where
//! rlaunch looks for them. The entry [`INDEX`] has their digests, so that a job reads no more than it sends.

use flate2::read::GzDecoder;
use rlaunch_bootstrap::job::library::LibraryName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use zip::read::{ArchiveOffset, Config};
use zip::{CompressionMethod, ZipArchive};

/// Directory of the files in the archive, and beside rlaunch.
pub(super) const DIRECTORY: &str = "lib/rlaunch";
/// Path of the index in the archive.
pub(super) const INDEX: &str = "lib/rlaunch/index.json";
/// Signature of the record that ends a zip archive, and the size of that record without a comment (APPNOTE.TXT of
/// PKWARE, 4.3.16).
const END_SIGNATURE: &[u8; 4] = b"PK\x05\x06";
const END_SIZE: i64 = 22;
/// Signature of an entry in a zip archive (4.3.7), with which the archive begins.
const ENTRY_SIGNATURE: &[u8; 4] = b"PK\x03\x04";
/// Start of a gzip file (RFC 1952): deflate, no name, no time, unknown system.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];

/// Archive of an executable, with its index.
pub struct Bundle {
    archive: Mutex<ZipArchive<BufReader<File>>>,
    pub index: Index,
}

/// Content of [`INDEX`].
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Index {
    /// Executables by their paths in the archive.
    pub programs: BTreeMap<String, Digest>,
    /// Libraries for ranks by architecture, as in `uname -m`.
    pub libraries: BTreeMap<String, BundledLibrary>,
}

/// Digest and size of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Digest {
    /// SHA-256 in hexadecimal digits.
    pub sha256: String,
    /// Size of the file in bytes.
    pub size: u64,
}

/// Library for ranks of one architecture.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BundledLibrary {
    pub name: LibraryName,
    /// Paths relative to the directory of the architecture.
    pub files: Vec<String>,
}

impl Bundle {
    /// Returns the archive of this program; `None` if it carries no files. The result is kept.
    pub fn own() -> io::Result<Option<&'static Bundle>> {
        static OWN: OnceLock<Result<Option<Bundle>, String>> = OnceLock::new();
        // The path of the executable may lead to a newer file by now.
        let open = || Bundle::open(Path::new("/proc/self/exe")).map_err(|error| error.to_string());
        match OWN.get_or_init(open) {
            Ok(bundle) => Ok(bundle.as_ref()),
            Err(error) => Err(io::Error::other(error.as_str())),
        }
    }

    /// Opens the archive at the end of an executable; `None` if there is none.
    pub fn open(executable: &Path) -> io::Result<Option<Bundle>> {
        let mut file = File::open(executable)?;
        if !ends_with_archive(&mut file)? {
            return if begins_archive(&mut file) {
                Err(io::Error::other("the file is cut off, or something was appended"))
            } else {
                Ok(None)
            };
        }
        let config = Config { archive_offset: ArchiveOffset::Known(0) };
        let archive = ZipArchive::with_config(config, BufReader::new(file));
        let mut archive = archive.map_err(io::Error::other)?;
        let index = read(&mut archive, INDEX)?;
        let index = serde_json::from_slice(&index).map_err(io::Error::other)?;
        Ok(Some(Bundle { archive: Mutex::new(archive), index }))
    }

    /// Returns the path of a program for an architecture, and its digest.
    pub fn program(&self, arch: &str, name: &str) -> Option<(String, &Digest)> {
        let path = format!("{}/{name}", directory_of(arch));
        let digest = self.index.programs.get(&path)?;
        Some((path, digest))
    }

    /// Reads a file.
    pub fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        read(&mut self.archive(), path)
    }

    /// Writes a file to `to`, a part at a time.
    pub fn copy(&self, path: &str, to: &mut impl Write) -> io::Result<()> {
        let mut archive = self.archive();
        let at = archive.index_for_name(path).ok_or_else(|| missing(path))?;
        let file = archive.by_index(at).map_err(io::Error::from);
        let copied = file.and_then(|mut file| io::copy(&mut file, to).map(drop));
        copied.map_err(|error| damaged(path, error))
    }

    /// Reads an agent as a gzip file. The archive has it compressed already, in the same way. Fails if it was packed
    /// otherwise.
    pub(crate) fn read_gzip(&self, path: &str) -> io::Result<Vec<u8>> {
        let mut archive = self.archive();
        let at = archive.index_for_name(path).ok_or_else(|| missing(path))?;
        let file = archive.by_index_raw(at).map_err(io::Error::from);
        let mut file = file.map_err(|error| damaged(path, error))?;
        if file.compression() != CompressionMethod::Deflated {
            return Err(io::Error::other(format!("{path} is not compressed by deflate")));
        }
        let mut gzip = GZIP_HEADER.to_vec();
        file.read_to_end(&mut gzip)?;
        gzip.extend(file.crc32().to_le_bytes());
        // The format has the size modulo 2^32.
        gzip.extend((file.size() as u32).to_le_bytes());
        // A host would find a damaged file too, and be blamed.
        let checked = io::copy(&mut GzDecoder::new(&gzip[..]), &mut io::sink());
        checked.map_err(|error| damaged(path, error))?;
        Ok(gzip)
    }

    fn archive(&self) -> MutexGuard<'_, ZipArchive<BufReader<File>>> {
        self.archive.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the directory in the archive for an architecture.
pub(super) fn directory_of(arch: &str) -> String {
    format!("{DIRECTORY}/{arch}-unknown-linux-gnu")
}

/// Tells whether a file ends with a zip archive that has no comment.
pub(super) fn ends_with_archive(file: &mut File) -> io::Result<bool> {
    let mut end = [0; END_SIZE as usize];
    match file.seek(SeekFrom::End(-END_SIZE)) {
        Ok(_) => file.read_exact(&mut end)?,
        // The file is shorter than the record.
        Err(_) => return Ok(false),
    }
    Ok(end.starts_with(END_SIGNATURE))
}

/// Tells whether an archive begins where an ELF executable ends, after its table of sections. Then the executable is the
/// rest of one that carried files: a download that was cut off starts nevertheless.
fn begins_archive(file: &mut File) -> bool {
    let mut header = [0; 64];
    let mut start = [0; ENTRY_SIGNATURE.len()];
    let mut read = |at, into: &mut [u8]| {
        file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(into)).is_ok()
    };
    if !read(0, &mut header) {
        return false;
    }
    sections_end(&header).is_some_and(|end| read(end, &mut start) && start == *ENTRY_SIGNATURE)
}

/// Returns the end of the table of sections of a 64-bit ELF file (`e_shoff`, `e_shentsize`, `e_shnum` of its header).
fn sections_end(header: &[u8; 64]) -> Option<u64> {
    let number = |at| u16::from_le_bytes([header[at], header[at + 1]]);
    let offset = u64::from_le_bytes(header[40..48].try_into().ok()?);
    let size = u64::from(number(58)) * u64::from(number(60));
    if header.starts_with(b"\x7fELF") { offset.checked_add(size) } else { None }
}

fn read(archive: &mut ZipArchive<BufReader<File>>, path: &str) -> io::Result<Vec<u8>> {
    let at = archive.index_for_name(path).ok_or_else(|| missing(path))?;
    let read = archive.by_index(at).map_err(io::Error::from).and_then(|mut file| {
        let size = usize::try_from(file.size()).unwrap_or(0);
        let mut content = Vec::with_capacity(size.min(64 << 20));
        file.read_to_end(&mut content)?;
        Ok(content)
    });
    read.map_err(|error| damaged(path, error))
}

/// Makes the error of a damaged file say where it is, since neither the host nor the directory for which it is read is at
/// fault. Errors of the system stay as they are.
fn damaged(path: &str, error: io::Error) -> io::Error {
    use io::ErrorKind::{
        InvalidData, InvalidInput, Other, OutOfMemory, UnexpectedEof, Unsupported,
    };
    // Decoders report damaged bytes by these kinds.
    let kinds = [InvalidData, InvalidInput, Other, OutOfMemory, UnexpectedEof, Unsupported];
    if error.raw_os_error().is_some() || !kinds.contains(&error.kind()) {
        return error;
    }
    let why = format!(
        "the executable rlaunch on this machine is damaged, in {path} ({error}): install it again"
    );
    io::Error::new(InvalidData, why)
}

fn missing(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{path} is not in the archive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executable_without_an_archive_carries_nothing() {
        let exe = std::env::current_exe().unwrap();
        assert!(Bundle::open(&exe).unwrap().is_none());
        let short = tempfile::NamedTempFile::new().unwrap();
        assert!(Bundle::open(short.path()).unwrap().is_none());
    }

    #[test]
    fn an_archive_that_is_not_ours_is_an_error() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        zip::ZipWriter::new(file.as_file_mut()).finish().unwrap();
        let error = Bundle::open(file.path()).map(drop).unwrap_err().to_string();
        assert_eq!(error, "lib/rlaunch/index.json is not in the archive");
    }

    #[test]
    fn an_archive_that_is_cut_off_is_an_error() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut header = [0; 64];
        header[..4].copy_from_slice(b"\x7fELF");
        header[40] = 64; // The table of sections begins after the header, and has one section of 8 bytes.
        header[58] = 8;
        header[60] = 1;
        let rest = [&header[..], &[0; 8]].concat();
        std::io::Write::write_all(&mut file, &rest).unwrap();
        assert!(Bundle::open(file.path()).unwrap().is_none());
        std::io::Write::write_all(&mut file, b"PK\x03\x04 and some more").unwrap();
        let error = Bundle::open(file.path()).map(drop).unwrap_err().to_string();
        assert!(error.contains("cut off"), "{error}");
    }
}
