//! Scenario of a copy, drawn from a seed.

use fastrand::Rng;
use rlaunch_copy::{CHUNK, ChunkId, ChunkSet, Entry, Hash, Kind, Manifest, RelativePath, Time};
use std::time::Duration;

/// Numbers of hosts.
const HOSTS: std::ops::RangeInclusive<usize> = 1..=40;
/// Length of a chunk's frame without the chunk, in bytes, at most.
const FRAME: u64 = 16;

/// Files, hosts and deaths of a copy.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Seed that everything is drawn from.
    pub seed: u64,
    /// Files.
    pub manifest: Manifest,
    /// Hosts in the order of the chain.
    pub hosts: Vec<Host>,
    /// Deaths, of which each attempt has at most one.
    pub deaths: Vec<Death>,
}

/// Host, and the link that leads to it from the host before.
#[derive(Clone, Debug)]
pub struct Host {
    /// Bytes per second of the link.
    pub bandwidth: u64,
    /// Latency of the link.
    pub latency: Duration,
    /// Latency that is added to some chunks, since they go over several connections.
    pub jitter: Duration,
    /// Bytes per second that the disk reads and writes.
    pub disk: u64,
    /// How long it takes to give files their names.
    pub finish: Duration,
    /// Chunks that are there before.
    pub had: ChunkSet,
}

/// Death of a host during an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// Index of the host among all.
    pub host: usize,
    /// When it dies.
    pub at: Moment,
    /// How long the other hosts go on.
    pub unnoticed: Duration,
}

/// Moment of a death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// When the first part of the manifest comes.
    Manifest,
    /// When so many chunks have been written, in this attempt.
    Chunks(u32),
    /// While its files are being given their names.
    Finish,
}

impl Scenario {
    /// Draws a small copy from `seed`.
    pub fn from_seed(seed: u64) -> Scenario {
        let mut rng = Rng::with_seed(seed ^ 0xc0b1);
        let manifest = draw_manifest(&mut rng);
        let chunks = manifest.chunk_count();
        let is_fresh = rng.u32(..3) == 0;
        let count = rng.usize(HOSTS);
        let hosts: Vec<Host> = (0..count)
            .map(|_| Host {
                bandwidth: rng.u64(10_000_000..5_000_000_000),
                latency: Duration::from_micros(rng.u64(5..2000)),
                jitter: Duration::from_micros(if is_fresh { 0 } else { rng.u64(..20_000) }),
                disk: rng.u64(50_000_000..5_000_000_000),
                finish: Duration::from_micros(rng.u64(..100_000)),
                had: if is_fresh { ChunkSet::new(chunks) } else { draw_had(&mut rng, chunks) },
            })
            .collect();
        let number = if rng.bool() { 0 } else { rng.u32(1..=4) };
        let deaths = (0..number).map(|_| draw_death(&mut rng, count, chunks)).collect();
        Scenario { seed, manifest, hosts, deaths }
    }

    /// Makes a copy of one file to many alike hosts that have nothing.
    pub fn large(seed: u64, hosts: usize, chunks: u32) -> Scenario {
        let manifest = manifest_of(&[u64::from(chunks) * CHUNK]);
        let host = Host {
            bandwidth: 1_250_000_000,
            latency: Duration::from_micros(50),
            jitter: Duration::ZERO,
            disk: 5_000_000_000,
            finish: Duration::from_millis(20),
            had: ChunkSet::new(chunks),
        };
        Scenario { seed, manifest, hosts: vec![host; hosts], deaths: Vec::new() }
    }

    /// Makes a copy during which a host dies when it has written so many chunks.
    pub fn with_death(hosts: usize, chunks: u32, host: usize, after: u32) -> Scenario {
        let at = if after < chunks { Moment::Chunks(after) } else { Moment::Finish };
        let death = Death { host, at, unnoticed: Duration::from_millis(100) };
        Scenario { deaths: vec![death], ..Scenario::large(0, hosts, chunks) }
    }

    /// Returns the time that an ideal pipeline needs, in which no host asks and none has a manifest:
    /// each sends a chunk on as soon as it is written and the link is free. Known if hosts have
    /// nothing and chunks stay in order.
    pub fn ideal(&self) -> Option<Duration> {
        let is_fresh = |host: &Host| host.had.is_empty() && host.jitter.is_zero();
        if !self.hosts.iter().all(is_fresh) {
            return None;
        }
        let mut there = vec![Duration::ZERO; self.manifest.chunk_count() as usize];
        for host in &self.hosts {
            let (mut link_free, mut disk_free) = (Duration::ZERO, Duration::ZERO);
            for (id, there) in (0..).map(ChunkId).zip(&mut there) {
                let length = u64::from(self.manifest.chunk(id).length);
                link_free = link_free.max(*there) + taken(length + FRAME, host.bandwidth);
                disk_free = disk_free.max(link_free + host.latency) + taken(length, host.disk);
                *there = disk_free;
            }
        }
        Some(there.into_iter().max().unwrap_or_default())
    }
}

/// Returns how long so many bytes take.
pub(super) fn taken(bytes: u64, per_second: u64) -> Duration {
    // Bytes of one message, so that this is far from 2^64.
    Duration::from_nanos(bytes * 1_000_000_000 / per_second)
}

fn draw_manifest(rng: &mut Rng) -> Manifest {
    let mut sizes = Vec::new();
    for _ in 0..rng.u32(..12) {
        sizes.push(match rng.u32(..4) {
            0 => 0,
            1 => rng.u64(1..100),
            2 => rng.u64(1..=4) * CHUNK,
            _ => rng.u64(..20 * CHUNK),
        });
    }
    manifest_of(&sizes)
}

fn manifest_of(sizes: &[u64]) -> Manifest {
    let file = |(number, size): (usize, &u64)| Entry {
        // A name that always is one; were it none, the file would be missing for all hosts alike.
        path: RelativePath::new(format!("file-{number}")).expect("a name without slashes"),
        mode: 0o644,
        mtime: Time { secs: 0, nanos: 0 },
        kind: Kind::File {
            size: *size,
            chunks: vec![Hash([number as u8; 32]); size.div_ceil(CHUNK) as usize],
            sparse: false,
        },
    };
    Manifest::new(sizes.iter().enumerate().map(file).collect()).expect("a list of files")
}

fn draw_had(rng: &mut Rng, chunks: u32) -> ChunkSet {
    let mut had = ChunkSet::new(chunks);
    match rng.u32(..5) {
        0 => {}
        1 => had = ChunkSet::full(chunks),
        // As after an attempt that ended in the middle.
        2 => had.insert_range(0..rng.u32(..=chunks)),
        // All but one that was changed.
        3 => {
            had = ChunkSet::full(chunks);
            had.remove(ChunkId(rng.u32(..=chunks)));
        }
        _ => {
            let share = rng.u32(1..100);
            (0..chunks).filter(|_| rng.u32(..100) < share).for_each(|id| {
                had.insert(ChunkId(id));
            });
        }
    }
    had
}

fn draw_death(rng: &mut Rng, hosts: usize, chunks: u32) -> Death {
    let at = match rng.u32(..6) {
        0 => Moment::Manifest,
        1 => Moment::Finish,
        _ => Moment::Chunks(rng.u32(..=chunks)),
    };
    let unnoticed = Duration::from_micros(rng.u64(..2_000_000));
    Death { host: rng.usize(..hosts), at, unnoticed }
}
