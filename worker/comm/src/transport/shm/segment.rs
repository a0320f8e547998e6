//! Shared-memory segment of a node: an entry for each of its ranks, and a ring from each rank to
//! each other rank.
//!
//! Layout: a line (64 bytes) with version and number of ranks, a line with the count of attached
//! ranks, two lines for each rank (its [`Identity`] and its sleep word), three lines for each ring
//! (head word and copy requests), and then, from a page boundary on, the rings, grouped by
//! receiver.

use super::memory::Memory;
use super::ring::{LINE, RingLayout};
use super::split_copy;
use nix::errno::Errno;
use nix::sys::signal;
use nix::unistd::Pid;
use rlaunch_sys::{OwnedBytes, SharedMemory};
use std::io;
use std::sync::atomic::Ordering;

/// Size, in bytes, that a segment should not exceed: the usual size of /dev/shm in containers.
const TARGET_SIZE: usize = 64 << 20;
/// Smallest and largest size of a ring, in bytes. With more than 45 ranks the smallest size takes
/// precedence over [`TARGET_SIZE`].
const RING_SIZES: std::ops::RangeInclusive<usize> = 32 << 10..=512 << 10;
/// Bytes of a ring that are prefaulted when a link is made: room for two long packets. Faulting in
/// the whole ring would take longer than the rest of a rank's start.
const PREFAULTED: usize = 32 << 10;
/// Largest page size of supported systems, in bytes. The rings to one rank begin at a multiple of
/// it, so that the kernel can place them on that rank's NUMA node.
const PAGE: usize = 64 << 10;

/// Version of the layout. The first word of the segment has the version and the number of ranks.
const VERSION: u64 = u64::from_le_bytes(*b"rlshm2\0\0");
const VERSION_WORD: usize = 0;
/// Offset of the word with the number of ranks that have attached.
const COUNT_WORD: usize = LINE;
const RANKS: usize = 2 * LINE;
/// Size of a rank's entry in bytes: one line for its identity, one for its sleep word.
const RANK: usize = 2 * LINE;
const PID: usize = 0;
/// Offset in a rank's entry of the word that is set to 1 after the rest of the entry is written.
const READY: usize = 8;
const SLEEP_WORD: usize = LINE;
/// Size in bytes of a ring's control area: the line with the head word, and the area for copy
/// requests.
const CONTROL: usize = LINE + split_copy::SIZE;
/// Offset in bytes, within a rank's entry, of the words of its [`Identity`] other than the process
/// id.
const IDENTITY: usize = 16;

/// Failure to attach to the node's shared memory.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// A system call failed.
    #[error("cannot {operation} /dev/shm/{name}")]
    System {
        /// Operation that failed, for the error text.
        operation: &'static str,
        /// Name of the segment in /dev/shm.
        name: String,
        /// Error that the system returned.
        source: io::Error,
    },
    /// The file system of /dev/shm has no room.
    #[error("/dev/shm has no room for the {} KiB that the ranks of this host share", *.length >> 10)]
    Full {
        /// Size of the segment in bytes.
        length: usize,
        /// Error that the system returned.
        source: io::Error,
    },
    /// Another process has attached as the same local rank.
    #[error("local rank {local_rank} of /dev/shm/{name} is already taken by process {pid}{}", if *.is_alive { "" } else { ", which has ended" })]
    Taken {
        /// Name of the segment in /dev/shm.
        name: String,
        /// Local rank that both processes claim.
        local_rank: usize,
        /// Process id of the other process.
        pid: u64,
        /// Whether the other process is still running.
        is_alive: bool,
    },
    /// The segment has another version or number of ranks, or does not belong to rlaunch.
    #[error("/dev/shm/{name} is not a segment for {local_size} ranks of this version of rlaunch")]
    Incompatible {
        /// Name of the segment in /dev/shm.
        name: String,
        /// Number of ranks on this node.
        local_size: usize,
    },
}

/// Offsets of all entries and rings in the segment, computed from the number of ranks alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SegmentLayout {
    ranks: usize,
    /// Size of one ring in bytes.
    ring: usize,
}

impl SegmentLayout {
    fn of(ranks: usize) -> SegmentLayout {
        let rings = ranks * ranks.saturating_sub(1);
        let share = (TARGET_SIZE - 4 * PAGE) / rings.max(1);
        let fits = if share == 0 { 0 } else { 1 << share.ilog2() };
        SegmentLayout { ranks, ring: fits.clamp(*RING_SIZES.start(), *RING_SIZES.end()) }
    }

    fn rank(self, rank: usize) -> usize {
        RANKS + rank * RANK
    }

    fn heads(self) -> usize {
        self.rank(self.ranks)
    }

    /// Returns the offset of the first ring.
    fn rings(self) -> usize {
        let rings = self.ranks * self.ranks.saturating_sub(1);
        (self.heads() + rings * CONTROL).next_multiple_of(PAGE)
    }

    /// Returns the byte range of all rings whose receiver is the local rank `to`. The receiver
    /// reserves this memory, so that the kernel places it on the receiver's NUMA node.
    fn inbox(self, to: usize) -> std::ops::Range<usize> {
        let inbox = self.ranks.saturating_sub(1) * self.ring;
        let start = self.rings() + to * inbox;
        start..start + inbox
    }

    fn length(self) -> usize {
        self.inbox(self.ranks).start
    }

    fn ring(self, from: usize, to: usize) -> RingLayout {
        // A rank has no ring to itself.
        let index = if from < to { from } else { from - 1 };
        let number = to * (self.ranks - 1) + index;
        RingLayout {
            first_line: self.rings() + number * self.ring,
            count: self.ring / LINE,
            head: self.heads() + number * CONTROL,
        }
    }
}

/// Data of a rank that its peers on the node need to make links to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    /// Process id, in the rank's own PID namespace.
    pub(super) pid: u64,
    /// Inodes of the rank's PID and network namespaces; 0 if unknown.
    pub(super) namespaces: [u64; 2],
    /// Name of the rank's doorbell socket.
    pub(super) doorbell: u64,
    /// Address in the rank's memory, and the random value stored there. A peer that reads this
    /// value has the right process, and may fetch from it.
    pub(super) probe: [u64; 2],
}

/// Shared segment to which this rank is attached.
#[derive(Debug)]
pub(super) struct Segment {
    memory: SharedMemory,
    layout: SegmentLayout,
    local_rank: usize,
}

impl Segment {
    /// Opens or creates the segment `name` for `local_size` ranks, and registers this rank in it.
    /// The last rank to attach removes the name.
    pub(super) fn attach(
        name: &str,
        local_rank: usize,
        local_size: usize,
        identity: Identity,
    ) -> Result<Segment, AttachError> {
        assert!(local_rank < local_size, "local rank {local_rank} of {local_size}");
        let layout = SegmentLayout::of(local_size);
        let system = |operation| {
            let name = name.to_owned();
            move |source| AttachError::System { operation, name, source }
        };
        let memory =
            SharedMemory::open(name, layout.rings(), layout.length()).map_err(|error| {
                if error.kind() == io::ErrorKind::InvalidData {
                    return AttachError::Incompatible { name: name.to_owned(), local_size };
                }
                system("open")(error)
            })?;
        let reserve = |bytes| {
            memory.reserve(bytes).map_err(|source| match source.kind() {
                io::ErrorKind::StorageFull => AttachError::Full { length: layout.length(), source },
                _ => system("reserve memory in")(source),
            })
        };
        reserve(0..layout.rings())?;
        memory.prefault(0..layout.rings());
        reserve(layout.inbox(local_rank))?;
        let version = VERSION | (local_size as u64) << 48;
        if memory.compare_exchange(VERSION_WORD, 0, version).is_err_and(|found| found != version) {
            return Err(AttachError::Incompatible { name: name.to_owned(), local_size });
        }
        let segment = Segment { memory, layout, local_rank };
        segment.register(name, identity)?;
        if segment.memory.word(COUNT_WORD).fetch_add(1, Ordering::AcqRel) + 1 == local_size as u64 {
            SharedMemory::unlink(name).map_err(system("remove"))?;
        }
        Ok(segment)
    }

    fn register(&self, name: &str, identity: Identity) -> Result<(), AttachError> {
        let at = self.layout.rank(self.local_rank);
        if let Err(pid) = self.memory.compare_exchange(at + PID, 0, identity.pid) {
            return Err(AttachError::Taken {
                name: name.to_owned(),
                local_rank: self.local_rank,
                pid,
                is_alive: is_alive(pid),
            });
        }
        let words = [
            identity.namespaces[0], identity.namespaces[1], identity.doorbell, identity.probe[0],
            identity.probe[1],
        ];
        for (index, word) in words.into_iter().enumerate() {
            self.memory.store(at + IDENTITY + index * 8, word, Ordering::Relaxed);
        }
        self.memory.store(at + READY, 1, Ordering::Release);
        Ok(())
    }

    /// Returns the identity of a local rank, or `None` until that rank has attached.
    pub(super) fn identity(&self, rank: usize) -> Option<Identity> {
        let at = self.layout.rank(rank);
        if self.memory.load(at + READY, Ordering::Acquire) == 0 {
            return None;
        }
        let word = |index: usize| self.memory.load(at + IDENTITY + index * 8, Ordering::Relaxed);
        Some(Identity {
            pid: self.memory.load(at + PID, Ordering::Relaxed),
            namespaces: [word(0), word(1)],
            doorbell: word(2),
            probe: [word(3), word(4)],
        })
    }

    /// Returns the layout of the ring from a local rank to this rank, and prefaults its first
    /// [`PREFAULTED`] bytes.
    pub(super) fn ring_from(&self, from: usize) -> RingLayout {
        self.prefault_ring(self.layout.ring(from, self.local_rank))
    }

    /// Returns the layout of the ring from this rank to a local rank, and prefaults its first
    /// [`PREFAULTED`] bytes. The local rank must have attached before, because it reserves the
    /// ring's memory.
    pub(super) fn ring_to(&self, to: usize) -> RingLayout {
        self.prefault_ring(self.layout.ring(self.local_rank, to))
    }

    fn prefault_ring(&self, ring: RingLayout) -> RingLayout {
        let length = PREFAULTED.min(ring.count * LINE);
        self.memory.prefault(ring.first_line..ring.first_line + length);
        ring
    }

    /// Claims the memory of a ring for one link. Returns `None` if another link of this process has
    /// claimed the ring.
    pub(super) fn claim(&self, ring: RingLayout) -> Option<OwnedBytes> {
        self.memory.claim(ring.bytes())
    }

    /// Returns the offset in the segment of a ring's area for copy requests.
    pub(super) fn copy_request_offset(ring: RingLayout) -> usize {
        ring.head + LINE
    }

    /// Returns the offset in the segment of a rank's sleep word.
    pub(super) fn sleep_word(&self, rank: usize) -> usize {
        self.layout.rank(rank) + SLEEP_WORD
    }

    pub(super) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    pub(super) fn local_rank(&self) -> usize {
        self.local_rank
    }

    pub(super) fn local_size(&self) -> usize {
        self.layout.ranks
    }
}

fn is_alive(pid: u64) -> bool {
    let Ok(pid) = i32::try_from(pid) else { return false };
    pid > 0 && signal::kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn name(test: &str) -> String {
        format!("rlaunch-segment-{test}-{}", std::process::id())
    }

    fn me(doorbell: u64) -> Identity {
        Identity { pid: u64::from(std::process::id()), doorbell, ..Identity::default() }
    }

    #[test]
    fn every_ring_has_lines_of_its_own() {
        for ranks in [1, 2, 3, 8, 45, 46, 128] {
            let layout = SegmentLayout::of(ranks);
            let mut spans = vec![(0, layout.heads())];
            for from in 0..ranks {
                for to in (0..ranks).filter(|to| *to != from) {
                    let ring = layout.ring(from, to);
                    assert!(layout.inbox(to).contains(&ring.first_line));
                    spans.push((ring.first_line, ring.first_line + ring.count * LINE));
                    spans.push((ring.head, ring.head + CONTROL));
                }
            }
            spans.sort_unstable();
            assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranks} ranks");
            assert!(spans.last().unwrap().1 <= layout.length().max(layout.rings()));
        }
    }

    #[test]
    fn the_memory_of_a_node_fits_into_a_container() {
        for ranks in 1..=45 {
            let layout = SegmentLayout::of(ranks);
            assert!(layout.length() <= TARGET_SIZE, "{ranks} ranks: {}", layout.length());
            assert!(RING_SIZES.contains(&layout.ring));
        }
        assert_eq!(SegmentLayout::of(2).ring, 512 << 10);
        assert_eq!(SegmentLayout::of(200).ring, 32 << 10);
    }

    #[test]
    fn ranks_learn_of_each_other_and_the_last_takes_the_name_away() {
        let name = name("learn");
        let path = Path::new(SharedMemory::DIRECTORY).join(&name);
        let first = Segment::attach(&name, 0, 2, me(5)).unwrap();
        assert_eq!(first.identity(0), Some(me(5)));
        assert_eq!(first.identity(1), None);
        assert!(path.exists());
        let second = Segment::attach(&name, 1, 2, me(6)).unwrap();
        assert_eq!(second.identity(0), Some(me(5)));
        assert_eq!(first.identity(1), Some(me(6)));
        assert!(!path.exists());
    }

    #[test]
    fn a_place_that_is_taken_names_the_process() {
        let name = name("taken");
        let _first = Segment::attach(&name, 0, 2, me(0)).unwrap();
        let error = Segment::attach(&name, 0, 2, me(0)).unwrap_err().to_string();
        let pid = std::process::id();
        assert_eq!(
            error,
            format!("local rank 0 of /dev/shm/{name} is already taken by process {pid}")
        );
        SharedMemory::unlink(&name).unwrap();
    }

    #[test]
    fn a_place_of_a_process_that_has_ended_stays_taken() {
        let name = name("ended");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = u64::from(child.id());
        child.wait().unwrap();
        let ended = Identity { pid, ..Identity::default() };
        let _first = Segment::attach(&name, 0, 2, ended).unwrap();
        let error = Segment::attach(&name, 0, 2, me(0)).unwrap_err().to_string();
        assert!(error.ends_with(&format!("by process {pid}, which has ended")), "{error}");
        SharedMemory::unlink(&name).unwrap();
    }

    #[test]
    fn the_memory_of_other_ranks_is_refused() {
        let name = name("other");
        let _first = Segment::attach(&name, 0, 2, me(0)).unwrap();
        for size in [3, 4] {
            let error = Segment::attach(&name, 1, size, me(0)).unwrap_err();
            assert!(matches!(error, AttachError::Incompatible { .. }), "{error}");
        }
        SharedMemory::unlink(&name).unwrap();
    }
}
