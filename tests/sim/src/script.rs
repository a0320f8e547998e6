//! What ranks do: the same program in every rank, as an MPI program has it.

use fastrand::Rng;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rendezvous::message::{CollectiveKind, Key};
use rlaunch_bootstrap::rendezvous::node::Call;
use std::time::Duration;

/// A step of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Meet at this barrier.
    Barrier(&'static str),
    /// Give and get so many bytes.
    Gather(&'static str, usize),
    /// This rank puts the key of this number; the others go on.
    Put(Rank, u32),
    /// Read a key that was put before a barrier.
    Get(u32),
    /// Wait for a key, which may be put later.
    Await(u32),
    /// Learn the root's clock.
    Clock,
    /// Compute for up to so long, each rank for a time of its own.
    Compute(Duration),
}

/// A program in which every key is put by one rank and read only where it must be there.
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

/// What a rank gives to the `turn`-th gather of a name.
pub fn blob(rank: Rank, name: &str, turn: u64, length: usize) -> Vec<u8> {
    let seed = u64::from(rank.0) << 32 ^ turn << 8 ^ name.len() as u64;
    let mut rng = Rng::with_seed(seed);
    (0..length).map(|_| rng.u8(..)).collect()
}

/// The value of a key.
pub fn value(key: u32) -> Vec<u8> {
    blob(Rank(key), "value", 0, key as usize * 7)
}

/// A key by its number.
pub fn key(number: u32) -> Key {
    Key { namespace: "sim".into(), name: number.to_string().into() }
}

impl Step {
    /// The call that `rank` makes; `None` when it makes none here.
    pub fn call(&self, rank: Rank, turn: u64) -> Option<Call> {
        let meet = |kind, name: &'static str, blob| Call::Collective {
            kind,
            name: name.into(),
            blob,
            timeout: None,
        };
        match *self {
            Step::Barrier(name) => Some(meet(CollectiveKind::Barrier, name, vec![])),
            Step::Gather(name, length) => {
                Some(meet(CollectiveKind::Gather, name, blob(rank, name, turn, length)))
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

    /// The kind and name under which turns are counted, for steps at which all meet.
    pub fn meeting(&self) -> Option<(CollectiveKind, &'static str)> {
        match *self {
            Step::Barrier(name) => Some((CollectiveKind::Barrier, name)),
            Step::Gather(name, _) => Some((CollectiveKind::Gather, name)),
            _ => None,
        }
    }
}
