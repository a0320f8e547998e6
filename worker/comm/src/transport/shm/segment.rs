//! The memory that the ranks of a node share: who they are, and a ring from each to each.

use super::memory::Memory;
use super::ring::{LINE, RingLayout};
use super::split_copy;
use nix::errno::Errno;
use nix::sys::signal;
use nix::unistd::Pid;
use rlaunch_sys::{OwnedBytes, SharedMemory};
use std::io;
use std::sync::atomic::Ordering;

/// What all of it may take, in bytes: as much as containers have in /dev/shm.
const ALL: usize = 64 << 20;
/// A ring, in bytes. With more than 45 ranks the lower bound wins over [`ALL`].
const RING: std::ops::RangeInclusive<usize> = 32 << 10..=512 << 10;
/// So much of a ring is brought in at the start, in bytes: two long packets. The rest comes in as it
/// is used, since all of it would take a rank longer than everything else that it does to start.
const AT_HAND: usize = 32 << 10;
/// What page tables map at once, at most: a rank's part begins at a page of any size.
const PAGE: usize = 64 << 10;

/// How it is laid out, in its first word, beside the number of ranks.
const VERSION: u64 = u64::from_le_bytes(*b"rlshm2\0\0");
const VERSION_WORD: usize = 0;
/// How many ranks have come.
const COUNT_WORD: usize = LINE;
const RANKS: usize = 2 * LINE;
/// Two lines a rank: who it is, and whether it sleeps.
const RANK: usize = 2 * LINE;
const PID: usize = 0;
/// 1 when all others below are there.
const READY: usize = 8;
const SLEEPS: usize = LINE;
/// What belongs to a ring beside its lines: where its receiver is, and what it asks for.
const BESIDE: usize = LINE + split_copy::SIZE;
/// The words of an [`Identity`], one after the other.
const IDENTITY: usize = 16;

/// Why a rank has no part in its node's memory.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The system's reason.
    #[error("cannot {operation} /dev/shm/{name}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// In /dev/shm.
        name: String,
        /// Why it failed.
        source: io::Error,
    },
    /// Two processes are the same rank.
    #[error("local rank {local_rank} of /dev/shm/{name} is process {pid} already{}", if *.lives { "" } else { ", which has ended" })]
    Taken {
        /// In /dev/shm.
        name: String,
        /// On this node.
        local_rank: usize,
        /// The other process.
        pid: u64,
        /// Whether it still runs.
        lives: bool,
    },
    /// Another program's memory, or of a job with other ranks.
    #[error("/dev/shm/{name} is not the memory of {local_size} ranks")]
    Other {
        /// In /dev/shm.
        name: String,
        /// Of this node.
        local_size: usize,
    },
}

/// Where everything is: a pure function of how many ranks there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SegmentLayout {
    ranks: usize,
    /// Of one ring, in bytes.
    ring: usize,
}

impl SegmentLayout {
    fn of(ranks: usize) -> SegmentLayout {
        let rings = ranks * ranks.saturating_sub(1);
        let share = (ALL - 4 * PAGE) / rings.max(1);
        let fits = if share == 0 { 0 } else { 1 << share.ilog2() };
        SegmentLayout { ranks, ring: fits.clamp(*RING.start(), *RING.end()) }
    }

    fn rank(self, rank: usize) -> usize {
        RANKS + rank * RANK
    }

    fn heads(self) -> usize {
        self.rank(self.ranks)
    }

    /// Where the rings begin.
    fn rings(self) -> usize {
        let rings = self.ranks * self.ranks.saturating_sub(1);
        (self.heads() + rings * BESIDE).next_multiple_of(PAGE)
    }

    /// The rings to a rank, side by side: its own part, which it takes near itself.
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
        let beside = if from < to { from } else { from - 1 };
        let number = to * (self.ranks - 1) + beside;
        RingLayout {
            lines: self.rings() + number * self.ring,
            count: self.ring / LINE,
            head: self.heads() + number * BESIDE,
        }
    }
}

/// What the others know of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    /// Of its process, as it sees itself.
    pub(super) pid: u64,
    /// The inodes of its namespaces of process ids and of networks; 0 where it does not know.
    pub(super) namespaces: [u64; 2],
    /// Where to send what wakes it.
    pub(super) bell: u64,
    /// An address in its memory, and what is there: who reads that, may fetch, and from the right
    /// process.
    pub(super) probe: [u64; 2],
}

/// One rank's hold on its node's memory.
#[derive(Debug)]
pub(super) struct Segment {
    memory: SharedMemory,
    layout: SegmentLayout,
    local_rank: usize,
}

impl Segment {
    /// Opens or makes the memory of this name for so many ranks, and takes this rank's place in
    /// it. Whoever comes last takes the name away.
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
                    return AttachError::Other { name: name.to_owned(), local_size };
                }
                system("open")(error)
            })?;
        memory.reserve(0..layout.rings()).map_err(system("find room for"))?;
        memory.prefault(0..layout.rings());
        memory.reserve(layout.inbox(local_rank)).map_err(system("find room for"))?;
        let version = VERSION | (local_size as u64) << 48;
        if memory.swap_if(VERSION_WORD, 0, version).is_err_and(|found| found != version) {
            return Err(AttachError::Other { name: name.to_owned(), local_size });
        }
        let segment = Segment { memory, layout, local_rank };
        segment.take_place(name, identity)?;
        if segment.memory.word(COUNT_WORD).fetch_add(1, Ordering::AcqRel) + 1 == local_size as u64 {
            SharedMemory::unlink(name).map_err(system("take away"))?;
        }
        Ok(segment)
    }

    fn take_place(&self, name: &str, identity: Identity) -> Result<(), AttachError> {
        let at = self.layout.rank(self.local_rank);
        if let Err(pid) = self.memory.swap_if(at + PID, 0, identity.pid) {
            return Err(AttachError::Taken {
                name: name.to_owned(),
                local_rank: self.local_rank,
                pid,
                lives: lives(pid),
            });
        }
        let words = [
            identity.namespaces[0],
            identity.namespaces[1],
            identity.bell,
            identity.probe[0],
            identity.probe[1],
        ];
        for (index, word) in words.into_iter().enumerate() {
            self.memory.store(at + IDENTITY + index * 8, word, Ordering::Relaxed);
        }
        self.memory.store(at + READY, 1, Ordering::Release);
        Ok(())
    }

    /// Who a rank of this node is, once it has come. Rings to it may be written before.
    pub(super) fn identity(&self, rank: usize) -> Option<Identity> {
        let at = self.layout.rank(rank);
        if self.memory.load(at + READY, Ordering::Acquire) == 0 {
            return None;
        }
        let word = |index: usize| self.memory.load(at + IDENTITY + index * 8, Ordering::Relaxed);
        Some(Identity {
            pid: self.memory.load(at + PID, Ordering::Relaxed),
            namespaces: [word(0), word(1)],
            bell: word(2),
            probe: [word(3), word(4)],
        })
    }

    /// The ring from a rank to this one.
    pub(super) fn ring_from(&self, from: usize) -> RingLayout {
        self.at_hand(self.layout.ring(from, self.local_rank))
    }

    /// The ring from this rank to another, which has room for it once it is there.
    pub(super) fn ring_to(&self, to: usize) -> RingLayout {
        self.at_hand(self.layout.ring(self.local_rank, to))
    }

    fn at_hand(&self, ring: RingLayout) -> RingLayout {
        let length = AT_HAND.min(ring.count * LINE);
        self.memory.prefault(ring.lines..ring.lines + length);
        ring
    }

    /// The lines of a ring, for the one link that this rank has there.
    pub(super) fn claim(&self, ring: RingLayout) -> Option<OwnedBytes> {
        self.memory.claim(ring.bytes())
    }

    /// Where the receiver of a ring asks its sender for help.
    pub(super) fn help(place: RingLayout) -> usize {
        place.head + LINE
    }

    /// The word by which a rank says that it sleeps.
    pub(super) fn sleeps(&self, rank: usize) -> usize {
        self.layout.rank(rank) + SLEEPS
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

fn lives(pid: u64) -> bool {
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

    fn me(bell: u64) -> Identity {
        Identity { pid: u64::from(std::process::id()), bell, ..Identity::default() }
    }

    #[test]
    fn every_ring_has_lines_of_its_own() {
        for ranks in [1, 2, 3, 8, 45, 46, 128] {
            let layout = SegmentLayout::of(ranks);
            let mut spans = vec![(0, layout.heads())];
            for from in 0..ranks {
                for to in (0..ranks).filter(|to| *to != from) {
                    let ring = layout.ring(from, to);
                    assert!(layout.inbox(to).contains(&ring.lines));
                    spans.push((ring.lines, ring.lines + ring.count * LINE));
                    spans.push((ring.head, ring.head + BESIDE));
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
            assert!(layout.length() <= ALL, "{ranks} ranks: {}", layout.length());
            assert!(RING.contains(&layout.ring));
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
        assert_eq!(error, format!("local rank 0 of /dev/shm/{name} is process {pid} already"));
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
        assert!(error.ends_with(&format!("process {pid} already, which has ended")), "{error}");
        SharedMemory::unlink(&name).unwrap();
    }

    #[test]
    fn the_memory_of_other_ranks_is_refused() {
        let name = name("other");
        let _first = Segment::attach(&name, 0, 2, me(0)).unwrap();
        for size in [3, 4] {
            let error = Segment::attach(&name, 1, size, me(0)).unwrap_err();
            assert!(matches!(error, AttachError::Other { .. }), "{error}");
        }
        SharedMemory::unlink(&name).unwrap();
    }
}
