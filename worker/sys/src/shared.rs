//! Memory shared by processes.
//!
//! Ranges of shared memory, each of which has one owner in this process.

use std::arch::asm;
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, slice};

/// Executes a sequentially consistent fence: of two processes that each store a word, execute the
/// fence and load the word of the other, at least one sees the store of the other.
///
/// The standard library's fence is `mfence`, which also orders accesses to memory of other types
/// and takes several times as long as an instruction with a `lock` prefix. For ordinary memory
/// both are full barriers.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn full_fence() {
    // SAFETY: the word at the top of this thread's stack is mapped and writable, and keeps its
    // value. The compiler moves no access to memory across the instruction, since by its options
    // it may read and write any memory.
    unsafe { asm!("lock or dword ptr [rsp], 0", options(nostack)) };
}

/// Executes a sequentially consistent fence.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub fn full_fence() {
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// Has the processor fetch a cache line for writing. Processors without such an instruction, such
/// as old ones of Intel, do nothing.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn prefetch_for_write(line: *const u8) {
    // SAFETY: a prefetch changes no memory and no flag, and never faults, whatever the address.
    unsafe { asm!("prefetchw [{}]", in(reg) line, options(readonly, nostack, preserves_flags)) };
}

/// Has the processor fetch a cache line for writing.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn prefetch_for_write(line: *const u8) {
    // SAFETY: a prefetch changes no memory and no flag, and never faults, whatever the address.
    unsafe {
        asm!("prfm pstl1keep, [{}]", in(reg) line, options(readonly, nostack, preserves_flags));
    }
}

/// Mapping of memory that other processes have mapped as well: atomic words at its beginning, and
/// bytes after them.
///
/// Words ([`SharedMemory::word`]) may be used by any thread of any process at any time. Bytes are
/// accessed through ranges that a caller has claimed ([`SharedMemory::claim`]): within this
/// process, each byte is in at most one claimed range, and each range has one owner. Which
/// *process* may write which bytes when is agreed through words, by storing a word with `Release`
/// and loading it with `Acquire`.
///
/// The processes belong to one job and one user and are trusted to follow that protocol. If a
/// process does not, bytes change while they are read. Readers therefore treat bytes as plain
/// numbers and validate their meaning only after copying them out.
#[derive(Clone, Debug)]
pub struct SharedMemory {
    /// Address of the mapping, which exists as long as this value.
    base: NonNull<u8>,
    /// Number of bytes at the beginning that are used as words.
    words: usize,
    mapping: Arc<Mapping>,
}

#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    length: usize,
    file: File,
    /// Ranges of bytes that are claimed.
    claimed: Mutex<Vec<Range<usize>>>,
}

// SAFETY: the mapping belongs to the process, not to a thread: any thread may use and unmap it.
unsafe impl Send for Mapping {}

// SAFETY: threads share the file, which only system calls use, and the claimed ranges, which are
// behind a lock.
unsafe impl Sync for Mapping {}

// SAFETY: as above.
unsafe impl Send for SharedMemory {}

// SAFETY: it gives out references to atomics only; bytes are accessed by the owners of ranges.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Directory with the files of named memory.
    pub const DIRECTORY: &str = "/dev/shm";

    /// Maps the memory of this name, creating it filled with zeros if it does not exist. The first
    /// `words` of its `length` bytes are words, the rest can be claimed. No pages are allocated
    /// yet, see [`SharedMemory::reserve`].
    ///
    /// Fails with `InvalidInput` for an invalid name, with `PermissionDenied` if other users own
    /// the file or may access it, and with `InvalidData` if it is not a file or has another length.
    pub fn open(name: &str, words: usize, length: usize) -> io::Result<SharedMemory> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            // O_NONBLOCK, so that opening a FIFO of that name does not block. The standard library
            // adds O_CLOEXEC.
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(SharedMemory::path(name)?)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(refused(io::ErrorKind::InvalidData, "it is not a file"));
        }
        // SAFETY: geteuid(2) takes nothing and cannot fail.
        let user = unsafe { libc::geteuid() };
        if metadata.uid() != user || metadata.mode() & 0o077 != 0 {
            let reason = "it belongs to another user, or others may access it";
            return Err(refused(io::ErrorKind::PermissionDenied, reason));
        }
        match metadata.len() {
            0 => file.set_len(length as u64)?,
            found if found == length as u64 => {}
            _ => return Err(refused(io::ErrorKind::InvalidData, "its length differs")),
        }
        SharedMemory::map(file, words, length)
    }

    /// Maps memory without a name, which this process shares with those that it forks.
    pub fn unnamed(words: usize, length: usize) -> io::Result<SharedMemory> {
        SharedMemory::map(unnamed_file(length)?, words, length)
    }

    /// Maps memory without a name twice, to simulate two processes within one.
    pub fn pair(words: usize, length: usize) -> io::Result<(SharedMemory, SharedMemory)> {
        let file = unnamed_file(length)?;
        let other = file.try_clone()?;
        Ok((SharedMemory::map(file, words, length)?, SharedMemory::map(other, words, length)?))
    }

    /// Removes the name from the directory. Processes that have mapped the memory keep it.
    pub fn unlink(name: &str) -> io::Result<()> {
        std::fs::remove_file(SharedMemory::path(name)?)
    }

    fn path(name: &str) -> io::Result<PathBuf> {
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
            return Err(refused(
                io::ErrorKind::InvalidInput,
                "the name must not be empty, contain / or begin with a dot",
            ));
        }
        Ok(PathBuf::from(SharedMemory::DIRECTORY).join(name))
    }

    fn map(file: File, words: usize, length: usize) -> io::Result<SharedMemory> {
        if length == 0 || length > isize::MAX as usize || words > length {
            return Err(refused(
                io::ErrorKind::InvalidInput,
                "the length is invalid for a mapping",
            ));
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses, of a file that is open for
        // reading and writing.
        let base = unsafe {
            libc::mmap(ptr::null_mut(), length, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Arc::new(Mapping { base, length, file, claimed: Mutex::default() });
        Ok(SharedMemory { base, words, mapping })
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> usize {
        self.mapping.length
    }

    /// Allocates pages for a range of bytes, preferably in memory near this thread. Fails with
    /// `StorageFull` if no memory is left; touching bytes that are not reserved may then kill the
    /// process (`SIGBUS`).
    ///
    /// # Panics
    ///
    /// Panics if the range is not in the mapping.
    pub fn reserve(&self, bytes: Range<usize>) -> io::Result<()> {
        self.mapping.at(bytes.start, bytes.len());
        let (offset, length) = (bytes.start as libc::off_t, bytes.len() as libc::off_t);
        let file = self.mapping.file.as_raw_fd();
        loop {
            // SAFETY: fallocate(2) takes numbers and touches no memory of this process.
            if unsafe { libc::fallocate(file, 0, offset, length) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// Maps reserved pages into this process in advance, which saves page faults when they are
    /// first touched.
    ///
    /// # Panics
    ///
    /// Panics if the range is not in the mapping.
    pub fn prefault(&self, bytes: Range<usize>) {
        let at = self.mapping.at(bytes.start, bytes.len());
        // SAFETY: sysconf(3) takes a number; this one is known everywhere.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let before = at.addr() % page;
        let first = at.wrapping_sub(before);
        // Errors are ignored: kernels before 5.14 do not support it.
        // SAFETY: the call changes no bytes, and the range, extended to the beginning of its page,
        // is in the mapping.
        unsafe { libc::madvise(first.cast(), bytes.len() + before, libc::MADV_POPULATE_WRITE) };
    }

    /// Returns the word at an offset in bytes.
    ///
    /// # Panics
    ///
    /// Panics if the offset is not a multiple of 8, or no word is there.
    #[inline(always)]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "a word at {offset}");
        assert!(offset < self.words && 8 <= self.words - offset, "8 bytes at {offset}");
        // SAFETY: the line above has checked that the offset is in the mapping.
        let at = unsafe { self.base.as_ptr().add(offset) }.cast();
        // SAFETY: it is aligned, since the mapping begins at a page, and lives as long as `self`.
        // Claimed ranges do not contain words, so all accesses in all processes are atomic.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// Claims a range of bytes. Returns `None` while another claimed range overlaps it.
    ///
    /// # Panics
    ///
    /// Panics if the range is not in the mapping, or contains words.
    pub fn claim(&self, bytes: Range<usize>) -> Option<OwnedBytes> {
        self.mapping.at(bytes.start, bytes.len());
        assert!(self.words <= bytes.start, "a range at {}, where words are", bytes.start);
        let mut claimed = self.mapping.claimed();
        let overlaps = |other: &Range<usize>| other.start < bytes.end && bytes.start < other.end;
        if claimed.iter().any(overlaps) {
            return None;
        }
        claimed.push(bytes.clone());
        drop(claimed);
        Some(OwnedBytes::new(self.clone(), bytes))
    }
}

impl Mapping {
    fn claimed(&self) -> std::sync::MutexGuard<'_, Vec<Range<usize>>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(
            offset <= self.length && length <= self.length - offset,
            "{length} bytes at {offset}"
        );
        // SAFETY: the line above has checked that the offset is in the mapping, or at its end.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// Creates a file in memory that has no name.
fn unnamed_file(length: usize) -> io::Result<File> {
    // SAFETY: memfd_create(2) reads a string that ends with a zero, as a C literal does.
    let fd = unsafe { libc::memfd_create(c"rlaunch".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above has created the descriptor, and nothing else owns it.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(length as u64)?;
    Ok(file)
}

fn refused(kind: io::ErrorKind, reason: &'static str) -> io::Error {
    io::Error::new(kind, reason)
}

/// Claimed range of a [`SharedMemory`]. Offsets count from the beginning of the memory, in bytes.
///
/// The range can be sent to another thread but not shared with one. Writing to it panics while
/// [`OwnedBytes::with`] lends its bytes, so this process never writes to bytes that it has a
/// reference to.
#[derive(Debug)]
pub struct OwnedBytes {
    memory: SharedMemory,
    bytes: Range<usize>,
    /// Whether references to the range's bytes exist.
    lent: Cell<bool>,
}

// SAFETY: no other value accesses its bytes, and they do not belong to a particular thread.
unsafe impl Send for OwnedBytes {}

impl OwnedBytes {
    /// Creates the owner of a range that the memory has recorded as claimed.
    fn new(memory: SharedMemory, bytes: Range<usize>) -> OwnedBytes {
        OwnedBytes { memory, bytes, lent: Cell::new(false) }
    }

    /// Loads a word of this range, or one of the memory's words.
    ///
    /// # Panics
    ///
    /// Panics if the offset is not a multiple of 8, or no word of either kind is there.
    #[inline(always)]
    pub fn load(&self, word: usize, order: Ordering) -> u64 {
        match self.own_word(word) {
            Some(own) => own.load(order),
            None => self.memory.word(word).load(order),
        }
    }

    /// Stores a word of this range, or one of the memory's words.
    ///
    /// # Panics
    ///
    /// Panics as [`OwnedBytes::load`] does, and for a word of this range while its bytes are lent.
    #[inline(always)]
    pub fn store(&self, word: usize, value: u64, order: Ordering) {
        match self.own_word(word) {
            Some(own) => {
                self.assert_not_lent();
                own.store(value, order);
            }
            None => self.memory.word(word).store(value, order),
        }
    }

    /// Returns the memory that the range belongs to.
    #[inline(always)]
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Copies bytes into the range, to `offset`.
    ///
    /// # Panics
    ///
    /// Panics if the bytes would not be inside the range, or while the range's bytes are lent.
    #[inline(always)]
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.assert_not_lent();
        let to = self.at(offset, bytes.len());
        // SAFETY: `to` begins as many bytes of the range, to which nothing in this process refers:
        // no other range has them, and they are not lent. So `bytes` does not overlap them.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Has the processor fetch the cache line at `offset` for writing, without waiting for it.
    ///
    /// # Panics
    ///
    /// Panics if the offset is not inside the range, or at its end.
    #[inline(always)]
    pub fn prefetch_for_write(&self, offset: usize) {
        prefetch_for_write(self.at(offset, 0));
    }

    /// Lends bytes in place to `look`. The peer process must have handed the bytes over through a
    /// word, and may write to them again only after another word permits it.
    ///
    /// # Panics
    ///
    /// Panics if the bytes are not inside the range.
    #[inline(always)]
    pub fn with<T>(&self, offset: usize, length: usize, look: impl FnOnce(&[u8]) -> T) -> T {
        let from = self.at(offset, length);
        let _lent = Loan { lent: &self.lent, before: self.lent.replace(true) };
        // SAFETY: `from` begins as many initialised bytes of the range, which outlives the slice.
        // This process does not write to them until `_lent` is dropped, and the peer process does
        // not, as documented for the type. Every byte is a valid u8.
        look(unsafe { slice::from_raw_parts(from, length) })
    }

    /// Returns a word of this range, or `None` for an offset outside of it. Private to this module,
    /// because a store must check first that the bytes are not lent.
    #[inline(always)]
    fn own_word(&self, offset: usize) -> Option<&AtomicU64> {
        if offset < self.bytes.start || offset >= self.bytes.end {
            return None;
        }
        assert!(offset.is_multiple_of(8), "a word at {offset}");
        let at = self.at(offset, 8).cast();
        // SAFETY: it is inside the range, by the line above, and aligned, since the mapping begins
        // at a page. No other thread accesses it; other processes do so atomically.
        Some(unsafe { AtomicU64::from_ptr(at) })
    }

    #[inline(always)]
    fn assert_not_lent(&self) {
        assert!(!self.lent.get(), "bytes are written to while they are lent");
    }

    #[inline(always)]
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let Range { start, end } = self.bytes;
        assert!(
            start <= offset && offset <= end && length <= end - offset,
            "{length} bytes at {offset}"
        );
        // SAFETY: the line above has checked that it is inside the range or at its end, and the
        // range is inside the mapping.
        unsafe { self.memory.base.as_ptr().add(offset) }
    }
}

/// Returns the bytes to the memory, so that they can be claimed again.
impl Drop for OwnedBytes {
    fn drop(&mut self) {
        self.memory.mapping.claimed().retain(|bytes| *bytes != self.bytes);
    }
}

/// Loan of the bytes, which lasts until this value is dropped.
struct Loan<'l> {
    lent: &'l Cell<bool>,
    before: bool,
}

/// Restores the previous state. After a nested loan, the bytes are still lent.
impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.lent.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::Ordering;

    /// Name of the memory of one test. Dropping it removes the memory.
    struct Name(String);

    impl Name {
        fn new(test: &str) -> Name {
            Name(format!("rlaunch-sys-{test}-{}", std::process::id()))
        }

        fn path(&self) -> PathBuf {
            SharedMemory::path(&self.0).unwrap()
        }
    }

    impl Drop for Name {
        fn drop(&mut self) {
            let _ = SharedMemory::unlink(&self.0);
        }
    }

    #[test]
    fn whoever_comes_second_sees_what_the_first_wrote() {
        let name = Name::new("second");
        let first = SharedMemory::open(&name.0, 4096, 10_000).unwrap();
        first.word(8).store(7, Ordering::Release);
        first.claim(4096..10_000).unwrap().write(9_990, b"0123456789");
        let second = SharedMemory::open(&name.0, 4096, 10_000).unwrap();
        assert_eq!(second.word(8).load(Ordering::Acquire), 7);
        let range = second.claim(9_990..10_000).unwrap();
        assert_eq!(range.with(9_990, 10, <[u8]>::to_vec), b"0123456789");
        assert_eq!(name.path().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn both_mappings_of_a_pair_are_one_memory() {
        let (first, second) = SharedMemory::pair(4096, 8192).unwrap();
        first.word(4088).store(1, Ordering::Release);
        assert_eq!(second.word(4088).load(Ordering::Acquire), 1);
    }

    /// Without the fence both would often see only what was there before, since a processor loads
    /// while its own stores still wait to become visible.
    #[test]
    fn of_two_that_store_and_look_one_sees_the_other() {
        const ROUNDS: u64 = 2_000;
        // Words that both store, and words that count the rounds that each has ended.
        const STORED: [usize; 2] = [0, 64];
        const ENDED: [usize; 2] = [128, 192];
        let (ours, theirs) = SharedMemory::pair(4096, 4096).unwrap();
        let sees = |memory: &SharedMemory, me: usize| {
            let round = |round| {
                memory.word(STORED[me]).store(round, Ordering::Relaxed);
                full_fence();
                let seen = memory.word(STORED[1 - me]).load(Ordering::Relaxed) >= round;
                memory.word(ENDED[me]).store(round, Ordering::Release);
                while memory.word(ENDED[1 - me]).load(Ordering::Acquire) < round {
                    std::thread::yield_now();
                }
                seen
            };
            (1..=ROUNDS).map(round).collect::<Vec<bool>>()
        };
        let (first, second) = std::thread::scope(|scope| {
            let other = scope.spawn(|| sees(&theirs, 1));
            (sees(&ours, 0), other.join().unwrap())
        });
        let blind = std::iter::zip(first, second).position(|(first, second)| !first && !second);
        assert_eq!(blind, None, "round in which neither saw the other");
    }

    #[test]
    fn memory_outlives_its_name() {
        let name = Name::new("name");
        let first = SharedMemory::open(&name.0, 4096, 4096).unwrap();
        SharedMemory::unlink(&name.0).unwrap();
        assert!(!name.path().exists());
        first.word(0).store(1, Ordering::Relaxed);
    }

    #[test]
    fn pages_are_taken_only_for_what_is_reserved() {
        let name = Name::new("pages");
        let memory = SharedMemory::open(&name.0, 4096, 1 << 20).unwrap();
        memory.reserve(4096 * 3 + 100..4096 * 5).unwrap();
        assert_eq!(name.path().metadata().unwrap().blocks() * 512, 4096 * 2);
    }

    #[test]
    fn more_than_there_is_room_for_is_an_error() {
        let name = Name::new("room");
        let memory = SharedMemory::open(&name.0, 4096, 1 << 45).unwrap();
        let error = memory.reserve(0..1 << 45).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_file_of_another_length_is_refused() {
        let name = Name::new("length");
        std::fs::write(name.path(), b"short").unwrap();
        std::fs::set_permissions(name.path(), PermissionsExt::from_mode(0o600)).unwrap();
        let error = SharedMemory::open(&name.0, 4096, 4096).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_file_that_others_may_write_is_refused() {
        let name = Name::new("mode");
        std::fs::write(name.path(), b"").unwrap();
        std::fs::set_permissions(name.path(), PermissionsExt::from_mode(0o660)).unwrap();
        let error = SharedMemory::open(&name.0, 4096, 4096).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_link_is_not_followed() {
        let name = Name::new("link");
        symlink("/dev/zero", name.path()).unwrap();
        let error = SharedMemory::open(&name.0, 4096, 4096).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
    }

    #[test]
    fn a_name_that_leaves_the_directory_is_refused() {
        for name in ["", "..", "../etc/passwd", "a/b", "a\0b"] {
            let error = SharedMemory::open(name, 4096, 4096).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name:?}");
        }
    }

    #[test]
    #[should_panic(expected = "8 bytes at 4096")]
    fn a_word_behind_the_end_is_not_given() {
        let (memory, _) = SharedMemory::pair(4096, 8192).unwrap();
        memory.word(4096);
    }

    #[test]
    #[should_panic(expected = "a word at 4")]
    fn half_a_word_is_not_given() {
        let (memory, _) = SharedMemory::pair(4096, 8192).unwrap();
        memory.word(4);
    }

    #[test]
    fn a_byte_is_in_one_lane_at_most() {
        let (memory, other) = SharedMemory::pair(4096, 8192).unwrap();
        let range = memory.claim(4096..4196).unwrap();
        assert!(memory.claim(4195..5000).is_none());
        assert!(memory.clone().claim(4096..4097).is_none());
        let beside = memory.claim(4196..5000).unwrap();
        assert!(other.claim(4096..8192).is_some(), "the other mapping stands for another process");
        drop(range);
        assert!(memory.claim(4096..4196).is_some());
        assert!(memory.claim(4100..4200).is_none());
        drop(beside);
    }

    #[test]
    #[should_panic(expected = "a range at 4088, where words are")]
    fn words_are_in_no_lane() {
        let (memory, _) = SharedMemory::pair(4096, 8192).unwrap();
        memory.claim(4088..5000);
    }

    fn range() -> OwnedBytes {
        let (memory, _) = SharedMemory::pair(4096, 8192).unwrap();
        memory.claim(4096..4160).unwrap()
    }

    #[test]
    fn what_is_looked_at_is_not_written_to() {
        let range = range();
        range.write(4096, b"abc");
        range.with(4096, 3, |bytes| {
            assert!(catch_unwind(AssertUnwindSafe(|| range.write(4096, b"x"))).is_err());
            let stores = || range.store(4104, 1, Ordering::Relaxed);
            assert!(catch_unwind(AssertUnwindSafe(stores)).is_err());
            assert_eq!(range.with(4097, 2, <[u8]>::to_vec), b"bc");
            let nested = catch_unwind(AssertUnwindSafe(|| range.write(4096, b"x")));
            assert!(nested.is_err(), "the outer loan continues");
            range.store(0, 7, Ordering::Relaxed);
            assert_eq!(bytes, b"abc");
        });
        range.write(4096, b"x");
        assert_eq!(range.load(0, Ordering::Relaxed), 7);
    }

    #[test]
    fn a_look_that_panics_is_over() {
        let range = range();
        let panicked =
            catch_unwind(AssertUnwindSafe(|| range.with(4096, 1, |_| panic!("on purpose"))));
        assert!(panicked.is_err());
        range.write(4096, b"x");
    }

    #[test]
    fn words_are_the_lanes_or_the_memorys() {
        let range = range();
        range.store(4104, 5, Ordering::Release);
        range.store(8, 6, Ordering::Release);
        assert_eq!(range.with(4104, 8, <[u8]>::to_vec), 5_u64.to_ne_bytes());
        assert_eq!(range.memory().word(8).load(Ordering::Acquire), 6);
        for outside in [4097, 4160, 8184] {
            let loaded = catch_unwind(AssertUnwindSafe(|| range.load(outside, Ordering::Relaxed)));
            assert!(loaded.is_err(), "{outside}");
        }
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4159")]
    fn bytes_behind_the_end_are_not_given() {
        range().with(4159, 2, |_| ());
    }

    #[test]
    fn a_line_that_is_prefetched_keeps_its_bytes() {
        let range = range();
        range.write(4096, b"abc");
        range.prefetch_for_write(4096);
        assert_eq!(range.with(4096, 3, <[u8]>::to_vec), b"abc");
    }

    #[test]
    #[should_panic(expected = "0 bytes at 4161")]
    fn no_line_outside_is_prefetched() {
        range().prefetch_for_write(4161);
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4095")]
    fn bytes_before_the_beginning_are_not_given() {
        range().write(4095, b"ab");
    }

    #[test]
    #[should_panic(expected = "bytes at 18446744073709551615")]
    fn an_offset_that_overflows_is_no_way_in() {
        range().write(usize::MAX, b"ab");
    }
}
