//! Reading of ELF executables: the machine that they are built for, the libraries that they need,
//! and their loader (`e_machine` of the header, DT_NEEDED of the dynamic section and PT_INTERP of the
//! program header; System V ABI, chapters 4 and 5). Only 64-bit little-endian files are supported,
//! since agents run only on such machines; of i386, only the loader is read.

use std::cell::RefCell;
use std::env::consts::ARCH;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
const EM_386: u64 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
/// Length of the header of a 64-bit file, in bytes.
pub(crate) const HEADER: u64 = 64;
/// Number of bytes per read.
const BLOCK: usize = 4096;
/// Maximum number of program headers or dynamic entries that are read; no real file has more.
const MAX_ENTRIES: u64 = 4096;
/// Maximum length of a library name, in bytes.
const MAX_NAME: usize = 256;

/// Returns the names of the libraries that an executable needs. Empty for a static executable and
/// for a file that is not a supported executable.
pub(crate) fn needed(path: &Path) -> Vec<String> {
    Executable::open(path).and_then(|file| read_needed(&file.0)).unwrap_or_default()
}

/// Returns Rust's name for the machine that an executable is built for. `None` for other machines
/// and for a file that is not a supported executable.
pub(crate) fn machine(path: &Path) -> Option<&'static str> {
    Executable::open(path)?.machine()
}

/// File that may be an executable.
pub(crate) struct Executable(Blocks);

impl Executable {
    /// Returns `None` if the file cannot be opened.
    pub(crate) fn open(path: &Path) -> Option<Executable> {
        Some(Executable(Blocks { file: File::open(path).ok()?, last: RefCell::default() }))
    }

    /// See [`machine`].
    pub(crate) fn machine(&self) -> Option<&'static str> {
        machine_of(&self.0)
    }

    /// Returns the length of an executable for this machine, and the length that its headers and segments take, if it is
    /// shorter than that. Both are in bytes.
    pub(crate) fn cut_off(&self) -> Option<(u64, u64)> {
        let Executable(file) = self;
        if self.machine()? != ARCH {
            return None;
        }
        let length = file.file.metadata().ok()?.len();
        let whole = if length < HEADER {
            HEADER
        } else {
            let table = read_number(file, 54, 2)? * read_number(file, 56, 2)?;
            let headers = read_number(file, 32, 8)?.checked_add(table)?;
            let segments = read_segments(file).unwrap_or_default();
            let loaded = segments.iter().filter(|segment| segment.kind == PT_LOAD);
            let ends = loaded.filter_map(|segment| segment.offset.checked_add(segment.size));
            ends.fold(headers, u64::max)
        };
        (length < whole).then_some((length, whole))
    }

    /// Returns the path of the loader that the kernel starts for an executable (PT_INTERP). `None` for a
    /// static executable, for one of another machine, whose emulator has loaders of its own, and for other
    /// files.
    pub(crate) fn loader(&self) -> Option<PathBuf> {
        let Executable(file) = self;
        let at = if self.machine() == Some(ARCH) {
            read_segments(file)?.iter().find(|segment| segment.kind == PT_INTERP)?.offset
        } else {
            loader_name_of_i386(file)?
        };
        read_string(file, at).map(PathBuf::from).filter(|loader| loader.is_absolute())
    }
}

/// Returns the offset of the loader's name in a 32-bit executable of i386, which machines of x86-64
/// execute as well.
fn loader_name_of_i386(file: &Blocks) -> Option<u64> {
    let mut ident = [0; 6];
    file.read_exact(&mut ident, 0)?;
    if ARCH != "x86_64" || ident != *b"\x7fELF\x01\x01" || read_number(file, 18, 2)? != EM_386 {
        return None;
    }
    let (table, size, count) = (
        read_number(file, 28, 4)?,
        read_number(file, 42, 2)?,
        read_number(file, 44, 2)?.min(MAX_ENTRIES),
    );
    let mut headers = (0..count).map(|index| table + index * size);
    let header = headers.find(|&at| read_number(file, at, 4) == Some(PT_INTERP))?;
    read_number(file, header + 4, 4)
}

fn machine_of(file: &Blocks) -> Option<&'static str> {
    check_ident(file)?;
    match read_number(file, 18, 2)? {
        21 => Some("powerpc64"),
        62 => Some("x86_64"),
        183 => Some("aarch64"),
        243 => Some("riscv64"),
        _ => None,
    }
}

/// File that is read in blocks of [`BLOCK`] bytes. The fields that are needed are close together,
/// and one system call for each field took longer than everything else.
struct Blocks {
    file: File,
    /// Offset and content of the block that was read last.
    last: RefCell<(u64, Vec<u8>)>,
}

impl Blocks {
    /// Reads bytes at an offset and returns their number, which is smaller at the end of the file.
    /// `None` if the file cannot be read.
    fn read(&self, bytes: &mut [u8], at: u64) -> Option<usize> {
        let mut last = self.last.borrow_mut();
        let mut read = 0;
        while read < bytes.len() {
            let at = at.checked_add(read as u64)?;
            let skipped = at.checked_sub(last.0).and_then(|skipped| usize::try_from(skipped).ok());
            let Some(skipped) = skipped.filter(|&skipped| skipped < last.1.len()) else {
                let mut block = vec![0; BLOCK];
                let length = self.file.read_at(&mut block, at).ok()?;
                if length == 0 {
                    break;
                }
                block.truncate(length);
                *last = (at, block);
                continue;
            };
            let length = (last.1.len() - skipped).min(bytes.len() - read);
            bytes[read..read + length].copy_from_slice(&last.1[skipped..skipped + length]);
            read += length;
        }
        Some(read)
    }

    fn read_exact(&self, bytes: &mut [u8], at: u64) -> Option<()> {
        (self.read(bytes, at)? == bytes.len()).then_some(())
    }
}

struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    size: u64,
}

fn read_needed(file: &Blocks) -> Option<Vec<String>> {
    let segments = read_segments(file)?;
    let dynamic = segments.iter().find(|segment| segment.kind == PT_DYNAMIC)?;
    let mut names = Vec::new();
    let mut strings = None;
    for entry in 0..(dynamic.size / 16).min(MAX_ENTRIES) {
        let at = dynamic.offset.checked_add(entry * 16)?;
        match (read_number(file, at, 8)?, read_number(file, at.checked_add(8)?, 8)?) {
            (0, _) => break,
            (DT_NEEDED, name) => names.push(name),
            (DT_STRTAB, address) => strings = Some(address),
            _ => {}
        }
    }
    let strings = strings?;
    let table = segments.iter().find(|s| {
        s.kind == PT_LOAD && (s.address..s.address.saturating_add(s.size)).contains(&strings)
    })?;
    let start = table.offset.checked_add(strings - table.address)?;
    Some(names.into_iter().filter_map(|name| read_string(file, start.checked_add(name)?)).collect())
}

/// Returns `None` if the file is not a supported executable.
fn check_ident(file: &Blocks) -> Option<()> {
    let mut ident = [0; 6];
    file.read_exact(&mut ident, 0)?;
    // Magic number, 64 bits, little-endian.
    (ident == *b"\x7fELF\x02\x01").then_some(())
}

fn read_segments(file: &Blocks) -> Option<Vec<Segment>> {
    check_ident(file)?;
    let (table, size, count) = (
        read_number(file, 32, 8)?,
        read_number(file, 54, 2)?,
        read_number(file, 56, 2)?.min(MAX_ENTRIES),
    );
    (0..count)
        .map(|index| {
            let at = table.checked_add(index * size)?;
            let field = |offset, width| read_number(file, at.checked_add(offset)?, width);
            let (kind, offset) = (field(0, 4)?, field(8, 8)?);
            Some(Segment { kind, offset, address: field(16, 8)?, size: field(32, 8)? })
        })
        .collect()
}

/// Reads an unsigned number of `width` bytes, at most 8.
fn read_number(file: &Blocks, at: u64, width: usize) -> Option<u64> {
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes[..width], at)?;
    Some(u64::from_le_bytes(bytes))
}

fn read_string(file: &Blocks, at: u64) -> Option<String> {
    let mut bytes = [0; MAX_NAME];
    let read = file.read(&mut bytes, at)?;
    let end = bytes[..read].iter().position(|&byte| byte == 0)?;
    String::from_utf8(bytes[..end].to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loader(path: impl AsRef<Path>) -> Option<PathBuf> {
        Executable::open(path.as_ref())?.loader()
    }

    #[test]
    fn a_shell_needs_libc() {
        let libraries = needed(Path::new("/bin/sh"));
        assert!(libraries.iter().any(|name| name.starts_with("libc.so")), "{libraries:?}");
    }

    #[test]
    fn a_shell_is_built_for_this_machine() {
        assert_eq!(machine(Path::new("/bin/sh")), Some(std::env::consts::ARCH));
        assert_eq!(machine(Path::new("/etc/passwd")), None);
        assert_eq!(machine(Path::new("/")), None);
    }

    #[test]
    fn other_files_need_nothing() {
        assert!(needed(Path::new("/etc/passwd")).is_empty());
        assert!(needed(Path::new("/nonexistent")).is_empty());
        assert!(needed(Path::new("/")).is_empty());
    }

    /// Reading a damaged file must end, whatever the result.
    #[test]
    fn damaged_files_are_survived() {
        let whole = std::fs::read("/bin/sh").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("damaged");
        for at in 0..64 {
            let mut bytes = whole[..whole.len().min(4096)].to_vec();
            bytes[at] ^= 0xff;
            std::fs::write(&path, bytes).unwrap();
            let file = Executable::open(&path).unwrap();
            let _ = (needed(&path), file.loader(), file.cut_off());
        }
    }

    #[test]
    fn a_loader_is_that_of_this_machine() {
        assert!(loader("/bin/sh").unwrap().exists());
        for other in ["/etc/passwd", "/nonexistent", "/"] {
            assert_eq!(loader(other), None);
        }
        let path = tempfile::NamedTempFile::new().unwrap();
        let mut bytes = std::fs::read("/bin/sh").unwrap();
        // Machine of s390.
        bytes[18] = 22;
        std::fs::write(path.path(), bytes).unwrap();
        assert_eq!(loader(path), None);
    }

    /// Reads a program of a 32-bit compiler, as far as the name of its loader.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_32_bit_program_has_a_loader() {
        let mut bytes = vec![0_u8; 84];
        bytes[..6].copy_from_slice(b"\x7fELF\x01\x01");
        // Machine; program headers: offset, size and number; the first of them: type and offset.
        for (at, value) in [(18, 3), (28, 52), (42, 32), (44, 1), (52, 3), (56, 84)] {
            bytes[at] = value;
        }
        bytes.extend_from_slice(b"/lib/ld-linux.so.2\0");
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), bytes).unwrap();
        assert_eq!(loader(path), Some("/lib/ld-linux.so.2".into()));
    }
}
