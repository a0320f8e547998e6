//! Where the kernel's files are: `/`, or a recording of them.

use std::fs;
use std::net::IpAddr;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// The longest file that is read, in bytes: what the kernel says in one is shorter.
const LONGEST: usize = 256 << 10;
/// In a recording: what the kernel says over sockets, `NAME ADDRESS/PREFIX` on each line.
const ADDRESSES: &str = "/addresses";

/// A directory below which everything is looked for.
#[derive(Debug)]
pub(crate) struct Root {
    prefix: PathBuf,
    is_live: bool,
}

impl Root {
    /// This machine.
    pub(crate) fn live() -> Root {
        Root { prefix: "/".into(), is_live: true }
    }

    /// A recorded tree.
    pub(crate) fn recorded(prefix: &Path) -> Root {
        let prefix = prefix.canonicalize().unwrap_or_else(|_| prefix.to_owned());
        Root { prefix, is_live: false }
    }

    pub(super) fn is_live(&self) -> bool {
        self.is_live
    }

    /// Where a path of the machine is.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.prefix.join(path.trim_start_matches('/'))
    }

    /// A file's text without the end of its last line; `None` when it cannot be read, as entries
    /// that are empty often cannot.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let bytes = fs::read(self.path(path)).ok()?;
        let text = String::from_utf8_lossy(bytes.get(..LONGEST).unwrap_or(&bytes)).into_owned();
        Some(text.trim_end().to_owned())
    }

    /// A file that is one value.
    pub(super) fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.trim().parse().ok()
    }

    /// A file that is a hexadecimal number, `0x15b3`.
    pub(super) fn hex(&self, path: &str) -> Option<u64> {
        u64::from_str_radix(self.text(path)?.trim().trim_start_matches("0x"), 16).ok()
    }

    /// The names in a directory, in order; numbers in theirs.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_by_cached_key(|name| (name.parse::<u64>().ok(), name.clone()));
        names
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Where a link or a directory really is, as a path of the machine.
    pub(super) fn real(&self, path: &str) -> Option<String> {
        let real = self.path(path).canonicalize().ok()?;
        let inside = real.strip_prefix(&self.prefix).ok()?;
        Some(format!("/{}", inside.to_str()?))
    }

    /// The last component of where a link leads, whether or not anything is there.
    pub(super) fn link_name(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        match target.components().next_back()? {
            Component::Normal(name) => Some(name.to_str()?.to_owned()),
            _ => None,
        }
    }

    /// What a recording says of addresses; of a live machine the kernel has to be asked.
    pub(super) fn recorded_addresses(&self) -> Vec<(String, IpAddr, u8)> {
        let text = self.text(ADDRESSES).unwrap_or_default();
        let line = |line: &str| {
            let (name, address) = line.split_once(' ')?;
            let (address, prefix) = address.trim().split_once('/')?;
            Some((name.to_owned(), address.parse().ok()?, prefix.parse().ok()?))
        };
        text.lines().filter_map(line).collect()
    }
}
