//! Files for hosts: on this machine's disk, or in the archive that rlaunch carries. Programs of the archive that run on this
//! machine are copied into the cache that hosts have too, under the same names: `~/.cache/rlaunch/HASH/NAME`.

use super::AgentStoreError;
use super::bundle::Bundle;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{Group, Uid, User};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use tempfile::NamedTempFile;

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
    /// Describes a file on disk, which is read for its digest, unless a job before has done so.
    pub(super) fn on_disk(path: &Path) -> io::Result<HostFile> {
        let (sha256, size) = known_digest(path)?;
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
            FilePlace::Disk(path) => fs::read(path),
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
            FilePlace::Disk(path) => compress(&fs::read(path)?)?,
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
                local_copy(self, name)
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

/// Results of [`digest`] in this process, by the inodes, sizes and times of files.
static DIGESTS: Mutex<BTreeMap<[i64; 6], (String, u64)>> = Mutex::new(BTreeMap::new());

/// Returns what [`digest`] does. A file that is unchanged is read once.
fn known_digest(path: &Path) -> io::Result<(String, u64)> {
    let found = fs::metadata(path)?;
    let [device, inode, size] = [found.dev(), found.ino(), found.size()].map(u64::cast_signed);
    // One that is written to without another time of its own has another ctime.
    let file = [device, inode, size, found.mtime(), found.ctime(), found.ctime_nsec()];
    let mut digests = DIGESTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = digests.get(&file) {
        return Ok(known.clone());
    }
    let digest = digest(path)?;
    digests.insert(file, digest.clone());
    Ok(digest)
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

/// Directories for caches of accounts whose home directory takes no programs.
const SHARED: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Returns the path of a copy of `file`, which is made if there is none yet. Fails, with the reason for the home
/// directory, if no directory takes programs.
fn local_copy(file: &HostFile, name: &OsStr) -> io::Result<PathBuf> {
    let mut first_error = None;
    for cache in caches() {
        match place_in(&cache, file, name) {
            Ok(path) => return Ok(path),
            Err(error) => {
                let error = io::Error::new(error.kind(), format!("{}: {error}", cache.display()));
                first_error.get_or_insert(error);
            }
        }
    }
    Err(first_error.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

/// Lists the directories that may take programs, the one in the home directory first.
fn caches() -> impl Iterator<Item = PathBuf> {
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    let own = format!(".rlaunch-{}", Uid::effective());
    let shared = SHARED.into_iter().map(move |directory| Path::new(directory).join(&own));
    home.map(|home| home.join(".cache/rlaunch")).into_iter().chain(shared)
}

/// Returns the path of a copy of `file` in `cache`, which is made if there is none yet.
fn place_in(cache: &Path, file: &HostFile, name: &OsStr) -> io::Result<PathBuf> {
    let build = cache.join(&file.hash);
    // Before anything is created: with HOME of another account, root would leave directories there.
    check_directories_above(cache)?;
    DirBuilder::new().recursive(true).mode(0o700).create(&build)?;
    for directory in [cache, &build] {
        check_unshared(&fs::symlink_metadata(directory)?)?;
    }
    let path = build.join(name);
    let is_whole = |found: Metadata| {
        found.is_file() && found.len() == file.size && check_unshared(&found).is_ok()
    };
    if fs::symlink_metadata(&path).is_ok_and(is_whole) {
        return Ok(path);
    }
    if statvfs(&build)?.flags().contains(FsFlags::ST_NOEXEC) {
        return Err(io::Error::other("programs may not be executed from there"));
    }
    let mut copy = NamedTempFile::new_in(&build)?;
    file.copy(copy.as_file_mut())?;
    make_executable(copy.as_file())?;
    // A later start looks at the size alone, which a crash of this machine may leave without the content.
    copy.as_file().sync_data()?;
    copy.persist(&path).map_err(|error| error.error)?;
    Ok(path)
}

/// Fails if another account may replace a directory above the cache, and so swap the copy between check and start. The
/// rules are those of the agent's installation on hosts (`place.sh`): directories belong to this account or to root, and
/// others may write only where the sticky bit keeps them from renaming what is not theirs. The root directory is not
/// checked.
fn check_directories_above(cache: &Path) -> io::Result<()> {
    let existing = cache.ancestors().skip(1).find(|directory| directory.exists());
    let existing = existing.unwrap_or(Path::new("/")).canonicalize()?;
    for directory in existing.ancestors().filter(|directory| *directory != Path::new("/")) {
        let found = fs::metadata(directory)?;
        let (mode, owner) = (found.mode(), found.uid());
        let is_own = owner == 0 || owner == Uid::effective().as_raw();
        let others_write = mode & 0o002 != 0 || mode & 0o020 != 0 && !is_private(found.gid());
        if !is_own || others_write && mode & 0o1000 == 0 {
            let directory = directory.display();
            let why =
                format!("others may change {directory}: owner {owner}, mode {:o}", mode & 0o7777);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
    }
    Ok(())
}

/// Tells whether a group is the account's own: its primary group, of the account's name.
fn is_private(group: u32) -> bool {
    let account = User::from_uid(Uid::effective()).ok().flatten();
    account.is_some_and(|account| {
        let is_primary = account.gid.as_raw() == group;
        let named = Group::from_gid(account.gid).ok().flatten();
        is_primary && named.is_some_and(|named| named.name == account.name)
    })
}

/// Fails if another account may have written a file or directory.
fn check_unshared(found: &Metadata) -> io::Result<()> {
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if found.uid() != Uid::effective().as_raw() {
        return refused(format!("it belongs to user {}", found.uid()));
    }
    if found.is_symlink() || found.mode() & 0o022 != 0 {
        return refused(format!("other users may change it (mode {:o})", found.mode() & 0o7777));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_gzip_file_unpacks_to_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        fs::write(&path, b"some bytes").unwrap();
        let file = HostFile::on_disk(&path).unwrap();
        assert_eq!(file.hash.len(), HASH_DIGITS);
        let mut unpacked = Vec::new();
        GzDecoder::new(&file.gzip().unwrap()[..]).read_to_end(&mut unpacked).unwrap();
        assert_eq!(unpacked, b"some bytes");
        assert_eq!(file.content().unwrap(), b"some bytes");
        assert_eq!(file.local_path().unwrap(), path);
    }

    fn file(root: &Path) -> HostFile {
        let path = root.join("content");
        fs::write(&path, b"a program").unwrap();
        HostFile::on_disk(&path).unwrap()
    }

    #[test]
    fn a_file_is_read_again_once_it_is_another_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        let write = |content: &str| {
            fs::write(path.with_extension("new"), content).unwrap();
            fs::rename(path.with_extension("new"), &path).unwrap();
        };
        write("one");
        let one = HostFile::on_disk(&path).unwrap().sha256;
        assert_eq!(HostFile::on_disk(&path).unwrap().sha256, one);
        write("two");
        let two = HostFile::on_disk(&path).unwrap();
        assert_eq!((two.sha256.clone(), two.size), digest(&path).unwrap());
        assert_ne!(two.sha256, one);
    }

    #[test]
    fn a_copy_is_made_once_and_repaired() {
        let root = tempfile::tempdir().unwrap();
        let (file, cache) = (file(root.path()), root.path().join("cache"));
        let place = || place_in(&cache, &file, OsStr::new("agent")).unwrap();
        let path = place();
        assert_eq!(path, cache.join(&file.hash).join("agent"));
        let inode = || fs::metadata(&path).unwrap().ino();
        let first = inode();
        assert_eq!((place(), inode()), (path.clone(), first));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o755);
        let spoil: [fn(&Path); 2] = [
            |path| fs::write(path, "short").unwrap(),
            |path| fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap(),
        ];
        for spoil in spoil {
            spoil(&path);
            place();
            assert_eq!(fs::read(&path).unwrap(), b"a program");
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o755);
        }
    }

    #[test]
    fn a_cache_that_others_may_change_is_not_used() {
        let root = tempfile::tempdir().unwrap();
        let (file, cache) = (file(root.path()), root.path().join("cache"));
        fs::create_dir(&cache).unwrap();
        fs::set_permissions(&cache, Permissions::from_mode(0o777)).unwrap();
        let refused =
            |cache: &Path| place_in(cache, &file, OsStr::new("agent")).unwrap_err().to_string();
        assert_eq!(refused(&cache), "other users may change it (mode 777)");
        let link = root.path().join("link");
        fs::set_permissions(&cache, Permissions::from_mode(0o700)).unwrap();
        symlink(&cache, &link).unwrap();
        assert!(refused(&link).starts_with("other users may change it"));
    }

    #[test]
    fn a_cache_below_a_directory_that_others_may_change_is_not_used() {
        let root = tempfile::tempdir().unwrap();
        let (file, upper) = (file(root.path()), root.path().join("upper"));
        let cache = upper.join("home/.cache/rlaunch");
        fs::create_dir(&upper).unwrap();
        let link = root.path().join("link");
        symlink(&upper, &link).unwrap();
        for (mode, is_used) in [(0o777, false), (0o1777, true), (0o755, true)] {
            fs::set_permissions(&upper, Permissions::from_mode(mode)).unwrap();
            for cache in [&cache, &link.join("home/.cache/rlaunch")] {
                let placed = place_in(cache, &file, OsStr::new("agent"));
                assert_eq!(placed.is_ok(), is_used, "{mode:o} {placed:?}");
                let refused = placed.err().map(|error| error.to_string()).unwrap_or_default();
                let why = format!("others may change {}: owner ", upper.display());
                assert!(is_used || refused.starts_with(&why), "{refused}");
                // What was refused is left as it was.
                assert_eq!(upper.join("home").exists(), is_used);
            }
            let _ = fs::remove_dir_all(upper.join("home"));
        }
    }
}
