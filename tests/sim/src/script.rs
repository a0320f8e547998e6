//! Script of the ranks: every rank makes the same steps, like an MPI program.

use fastrand::Rng;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rendezvous::message::{CollectiveKind, Key};
use rlaunch_bootstrap::rendezvous::node::Call;
use std::time::Duration;

/// Step of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Call the barrier of this name.
    Barrier(&'static str),
    /// Gather blobs of this many bytes.
    Gather(&'static str, usize),
    /// One rank puts the key with this number; the other ranks continue.
    Put(Rank, u32),
    /// Read a key that was put before a barrier.
    Get(u32),
    /// Wait for a key, which may be put later.
    Await(u32),
    /// Measure the offset to the root's clock.
    Clock,
    /// Compute for a random time up to this limit, different in each rank.
    Compute(Duration),
}

/// Draws a script in which each key is put by one rank and read only after that.
pub fn draw(rng: &mut Rng, ranks: u32) -> Vec<Step> {
    const NAMES: [&str; 3] = ["", "epoch", "weights"];
    let mut script = Vec::new();
    for key in 0..rng.u32(3..12) {
        let name = NAMES[rng.usize(..NAMES.len())];
        match rng.u32(..6) {
            0 | 1 => script.push(Step::Barrier(name)),
            2 => script.push(Step::Gather(name, rng.usize(..300))),
            3 => {
                let writer = Rank(rng.u32(..ranks));
                script.extend([Step::Put(writer, key), Step::Barrier(name), Step::Get(key)]);
            }
            4 => script.extend([Step::Put(Rank(rng.u32(..ranks)), key), Step::Await(key)]),
            _ => script.push(Step::Clock),
        }
        script.push(Step::Compute(Duration::from_micros(rng.u64(..400_000))));
    }
    script
}

/// Returns the blob of a rank for the gather with this name and sequence number.
pub fn blob(rank: Rank, name: &str, sequence: u64, length: usize) -> Vec<u8> {
    let seed = u64::from(rank.0) << 32 ^ sequence << 8 ^ name.len() as u64;
    let mut rng = Rng::with_seed(seed);
    (0..length).map(|_| rng.u8(..)).collect()
}

/// Returns the value of a key.
pub fn value(key: u32) -> Vec<u8> {
    blob(Rank(key), "value", 0, key as usize * 7)
}

/// Returns the key with this number.
pub fn key(number: u32) -> Key {
    Key { namespace: "sim".into(), name: number.to_string().into() }
}

impl Step {
    /// Returns the call that `rank` makes in this step, if any.
    pub fn call(&self, rank: Rank, sequence: u64) -> Option<Call> {
        let collective = |kind, name: &'static str, blob| Call::Collective {
            kind,
            name: name.into(),
            blob,
            timeout: None,
        };
        match *self {
            Step::Barrier(name) => Some(collective(CollectiveKind::Barrier, name, vec![])),
            Step::Gather(name, length) => {
                Some(collective(CollectiveKind::Gather, name, blob(rank, name, sequence, length)))
            }
            Step::Put(writer, number) if writer == rank => {
                Some(Call::Put { key: key(number), value: value(number) })
            }
            Step::Put(..) | Step::Compute(_) => None,
            Step::Get(number) => Some(Call::Get(key(number))),
            Step::Await(number) => Some(Call::Await { key: key(number), timeout: None }),
            Step::Clock => Some(Call::Clock),
        }
    }

    /// Returns kind and name of a collective operation, or `None` for other steps.
    pub fn collective(&self) -> Option<(CollectiveKind, &'static str)> {
        match *self {
            Step::Barrier(name) => Some((CollectiveKind::Barrier, name)),
            Step::Gather(name, _) => Some((CollectiveKind::Gather, name)),
            _ => None,
        }
    }
}
