//! Unfinished files: names under which files are made, by which the next copy finds them, and the locks of copies that make
//! them.

use super::beneath::{Beneath, Seen};
use rlaunch_copy::hash;
use rustix::fs::{FileType, FlockOperation, OFlags};
use std::fs::File;

/// What the name of an unfinished file has between the name that it will have and the digits of its
/// content's hash.
const MARK: &[u8] = b".rlaunch-";
/// Number of these digits.
const DIGITS: usize = 8;
/// Length of a name, in bytes, that Linux takes.
const MAX_NAME: usize = 255;

/// Returns a name that no copy takes along.
pub(crate) fn staging_name_of(name: &str, number: u32) -> String {
    String::from_utf8_lossy(&staging_name(name.as_bytes(), number)).into_owned()
}

/// Returns the name under which a file is made.
pub(super) fn staging_name(name: &[u8], content: u32) -> Vec<u8> {
    [&stem(name), MARK, format!("{content:08x}").as_bytes()].concat()
}

/// Returns what the name of an unfinished file begins with, whatever it is to contain.
pub(super) fn stem(name: &[u8]) -> Vec<u8> {
    if 1 + name.len() + MARK.len() + DIGITS <= MAX_NAME {
        return [b".", name].concat();
    }
    let short = hash(name).to_string();
    [b".", &short.as_bytes()[..2 * DIGITS]].concat()
}

/// Tells whether a name is one under which files are made.
pub(super) fn is_staging_name(name: &[u8]) -> bool {
    name.first() == Some(&b'.') && without_digits(name).is_some()
}

/// Returns what is before mark and digits in the name of an unfinished file.
pub(super) fn without_digits(name: &[u8]) -> Option<&[u8]> {
    let (start, digits) = name.split_at_checked(name.len().checked_sub(DIGITS)?)?;
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    start.strip_suffix(MARK).filter(|_| digits.iter().all(is_digit))
}

/// Locks an unfinished file of this user that no copy has locked. `None` if it is another one.
pub(super) fn lock_abandoned(beneath: &Beneath, path: &[u8]) -> Option<File> {
    let is_own = |seen: &Seen| seen.is_own && seen.file_type == FileType::RegularFile;
    beneath.look(path).ok().flatten().filter(is_own)?;
    let file = beneath.file(path, OFlags::RDONLY).ok()?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok().map(|()| file)
}
