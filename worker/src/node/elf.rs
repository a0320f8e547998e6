//! Reading of ELF executables: the machine that they are built for, and the libraries that they
//! need (`e_machine` of the header and DT_NEEDED of the dynamic section; System V ABI, chapters 4
//! and 5). Only 64-bit little-endian files are supported, since agents run only on such machines.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
/// Number of bytes per read.
const BLOCK: usize = 4096;
/// Maximum number of program headers or dynamic entries that are read; no real file has more.
const MAX_ENTRIES: u64 = 4096;
/// Maximum length of a library name, in bytes.
const MAX_NAME: usize = 256;

/// Returns the names of the libraries that an executable needs. Empty for a static executable and
/// for a file that is not a supported executable.
pub(crate) fn needed(path: &Path) -> Vec<String> {
    Blocks::open(path).and_then(|file| read_needed(&file)).unwrap_or_default()
}

/// Returns Rust's name for the machine that an executable is built for. `None` for other machines
/// and for a file that is not a supported executable.
pub(crate) fn machine(path: &Path) -> Option<&'static str> {
    let file = Blocks::open(path)?;
    check(&file)?;
    match number(&file, 18, 2)? {
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
    fn open(path: &Path) -> Option<Blocks> {
        Some(Blocks { file: File::open(path).ok()?, last: RefCell::default() })
    }

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
    let segments = segments(file)?;
    let dynamic = segments.iter().find(|segment| segment.kind == PT_DYNAMIC)?;
    let mut names = Vec::new();
    let mut strings = None;
    for entry in 0..(dynamic.size / 16).min(MAX_ENTRIES) {
        let at = dynamic.offset.checked_add(entry * 16)?;
        match (number(file, at, 8)?, number(file, at.checked_add(8)?, 8)?) {
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
    Some(names.into_iter().filter_map(|name| string(file, start.checked_add(name)?)).collect())
}

/// Returns `None` if the file is not a supported executable.
fn check(file: &Blocks) -> Option<()> {
    let mut ident = [0; 6];
    file.read_exact(&mut ident, 0)?;
    // Magic number, 64 bits, little-endian.
    (ident == *b"\x7fELF\x02\x01").then_some(())
}

fn segments(file: &Blocks) -> Option<Vec<Segment>> {
    check(file)?;
    let (table, size, count) =
        (number(file, 32, 8)?, number(file, 54, 2)?, number(file, 56, 2)?.min(MAX_ENTRIES));
    (0..count)
        .map(|index| {
            let at = table.checked_add(index * size)?;
            let field = |offset, width| number(file, at.checked_add(offset)?, width);
            let (kind, offset) = (field(0, 4)?, field(8, 8)?);
            Some(Segment { kind, offset, address: field(16, 8)?, size: field(32, 8)? })
        })
        .collect()
}

/// Reads an unsigned number of `width` bytes, at most 8.
fn number(file: &Blocks, at: u64, width: usize) -> Option<u64> {
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes[..width], at)?;
    Some(u64::from_le_bytes(bytes))
}

fn string(file: &Blocks, at: u64) -> Option<String> {
    let mut bytes = [0; MAX_NAME];
    let read = file.read(&mut bytes, at)?;
    let end = bytes[..read].iter().position(|&byte| byte == 0)?;
    String::from_utf8(bytes[..end].to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let _ = needed(&path);
        }
    }
}
