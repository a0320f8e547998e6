//! A job in one process, whose ranks are threads of which one runs at a time.
//!
//! Who runs next, how long packets take, whether there is room and who dies is drawn from one seed,
//! so a run that went wrong goes wrong again. Time is virtual.

mod dice;

pub use dice::Dice;

use crate::communicator::Communicator;
use crate::engine::Engine;
use crate::error::{LinkError, PeerName};
use crate::group::Group;
use crate::link::sim::SimLink;
use crate::link::{Link, OwnLink, Watched};
use crate::packet::Header;
use crate::station::{Idle, Patience, Station};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What can go wrong in a world.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// A rank that dies after so many turns.
    pub dies: Option<(usize, u64)>,
    /// Ranks may not fetch from each other's memory.
    pub no_fetch: bool,
}

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// How many ranks.
    pub ranks: usize,
    /// How many of them a node has.
    pub per_node: usize,
    /// What goes wrong.
    pub faults: Faults,
    /// How long a wait may take, in virtual time.
    pub timeout: Duration,
}

/// The longest that a packet is on its way.
const FLIGHT: Duration = Duration::from_micros(300);
/// Packets that fit between two ranks.
const ROOM: usize = 4;

/// What crosses a wire, beside bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Message {
    /// A packet of the link's.
    Packet(Header),
    /// Bytes that a device puts where it was told to.
    Write { address: u64, transfer: u32 },
}

#[derive(Debug)]
struct Packet {
    ready: Duration,
    message: Message,
    payload: Vec<u8>,
}

#[derive(Debug)]
struct State {
    dice: Dice,
    now: Duration,
    /// Whose turn it is.
    turn: usize,
    turns: u64,
    /// Ranks whose program runs.
    running: Vec<bool>,
    alive: Vec<bool>,
    faults: Faults,
    wires: BTreeMap<(usize, usize), VecDeque<Packet>>,
    /// Transfers that were written, by who wrote them and to whom.
    confirmed: BTreeMap<(usize, usize), VecDeque<u32>>,
    /// Messages that may be fetched, by address.
    exposed: BTreeMap<u64, Vec<u8>>,
}

/// What the ranks of a world share.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    turns: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn chance(&self, of: usize) -> usize {
        self.lock().dice.below(of)
    }

    pub(crate) fn lives(&self, rank: usize) -> bool {
        self.lock().alive[rank]
    }

    pub(crate) fn is_full(&self, from: usize, to: usize) -> bool {
        let mut state = self.lock();
        let is_full = state.wires.get(&(from, to)).is_some_and(|wire| wire.len() >= ROOM);
        is_full || state.dice.below(8) == 0
    }

    pub(crate) fn put(&self, from: usize, to: usize, message: Message, payload: &[u8]) {
        let mut state = self.lock();
        let flight = state.dice.below(FLIGHT.as_micros() as usize);
        let ready = state.now + Duration::from_micros(flight as u64);
        let packet = Packet { ready, message, payload: payload.to_vec() };
        state.wires.entry((from, to)).or_default().push_back(packet);
    }

    pub(crate) fn take(&self, from: usize, to: usize) -> Option<(Message, Vec<u8>)> {
        let mut state = self.lock();
        let now = state.now;
        let wire = state.wires.get_mut(&(from, to))?;
        let packet = wire.pop_front_if(|packet| packet.ready <= now)?;
        Some((packet.message, packet.payload))
    }

    /// Whoever wrote a message is told that it has arrived.
    pub(crate) fn confirm(&self, from: usize, to: usize, transfer: u32) {
        self.lock().confirmed.entry((from, to)).or_default().push_back(transfer);
    }

    pub(crate) fn confirmed(&self, from: usize, to: usize) -> Option<u32> {
        let mut state = self.lock();
        // The word may take a while.
        if state.dice.below(3) == 0 {
            return None;
        }
        state.confirmed.get_mut(&(from, to))?.pop_front()
    }

    pub(crate) fn has_more(&self, from: usize, to: usize) -> bool {
        self.lock().wires.get(&(from, to)).is_some_and(|wire| !wire.is_empty())
    }

    pub(crate) fn expose(&self, message: &[u8]) -> Option<u64> {
        let mut state = self.lock();
        if state.faults.no_fetch {
            return None;
        }
        let before = state.exposed.last_key_value();
        let address = before.map_or(1, |(at, bytes)| at + bytes.len() as u64 + 1);
        state.exposed.insert(address, message.to_vec());
        Some(address)
    }

    pub(crate) fn fetch(&self, address: u64, into: &mut [u8]) -> bool {
        let mut state = self.lock();
        // Now and then the kernel does not allow it.
        if state.dice.below(8) == 0 {
            return false;
        }
        let Some((at, bytes)) = state.exposed.range(..=address).next_back() else { return false };
        let offset = (address - at) as usize;
        let Some(part) = bytes.get(offset..offset + into.len()) else { return false };
        into.copy_from_slice(part);
        true
    }

    /// Lets somebody have the next turn, and returns when it is `me`'s again.
    fn pass(&self, me: usize, longest: Duration) {
        let mut state = self.lock();
        state.next(longest);
        self.turns.notify_all();
        drop(self.await_turn(state, me));
    }

    fn await_turn<'s>(&'s self, state: MutexGuard<'s, State>, me: usize) -> MutexGuard<'s, State> {
        let waited = self.turns.wait_while(state, |state| state.turn != me);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// The program of a rank is over.
    fn end(&self, me: usize) {
        let mut state = self.lock();
        state.running[me] = false;
        state.next(Duration::ZERO);
        self.turns.notify_all();
    }
}

impl State {
    /// Time passes, and somebody who runs has the next turn.
    fn next(&mut self, longest: Duration) {
        self.turns += 1;
        let passes = 1 + self.dice.below(20) as u64;
        self.now += Duration::from_micros(passes) + longest.min(Duration::from_micros(200));
        if let Some((rank, after)) = self.faults.dies
            && self.turns >= after
        {
            self.alive[rank] = false;
        }
        let running: Vec<usize> = (0..self.running.len()).filter(|&at| self.running[at]).collect();
        if !running.is_empty() {
            self.turn = running[self.dice.below(running.len())];
        }
    }
}

/// How a simulated rank waits.
#[derive(Debug)]
struct SimIdle {
    world: Arc<Shared>,
    me: usize,
}

impl Idle for SimIdle {
    fn now(&self) -> Duration {
        self.world.lock().now
    }

    fn pass(&self) {
        self.world.pass(self.me, Duration::ZERO);
    }

    fn sleep(&self, longest: Duration) -> bool {
        self.world.pass(self.me, longest);
        false
    }

    fn watch_agent(&self, _: BorrowedFd<'_>) -> Result<(), LinkError> {
        Ok(())
    }

    fn watch(&self, _: Watched<'_>) -> Result<(), LinkError> {
        Ok(())
    }
}

/// Runs `program` in every rank of a world, and returns what each says, by rank.
pub fn run<R: Send>(settings: &Settings, program: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    let ranks = settings.ranks;
    let state = State {
        dice: Dice::new(settings.seed),
        now: Duration::ZERO,
        turn: 0,
        turns: 0,
        running: vec![true; ranks],
        alive: vec![true; ranks],
        faults: settings.faults.clone(),
        wires: BTreeMap::new(),
        confirmed: BTreeMap::new(),
        exposed: BTreeMap::new(),
    };
    let world = Arc::new(Shared { state: Mutex::new(state), turns: Condvar::new() });
    std::thread::scope(|scope| {
        let rank = |me| {
            let (world, program) = (&world, &program);
            scope.spawn(move || {
                // The turn goes on even if the program panics.
                let _end = End { world, me };
                drop(world.await_turn(world.lock(), me));
                program(&communicator(world, settings, me))
            })
        };
        let threads: Vec<_> = (0..ranks).map(rank).collect();
        let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

struct End<'w> {
    world: &'w Arc<Shared>,
    me: usize,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.world.end(self.me);
    }
}

fn communicator(world: &Arc<Shared>, settings: &Settings, me: usize) -> Communicator {
    let link = |peer| -> Box<dyn Link> {
        match peer == me {
            true => Box::new(OwnLink::default()),
            false => Box::new(SimLink::new(world, me, peer)),
        }
    };
    let name = |rank: usize| PeerName {
        rank: rank as u32,
        host: format!("n{}", rank / settings.per_node).into(),
    };
    let names: Vec<PeerName> = (0..settings.ranks).map(name).collect();
    let links = (0..settings.ranks).map(link).collect();
    let engine = Engine::new(me, links, names.into());
    let nodes = (0..settings.ranks).map(|rank| (rank / settings.per_node) as u32);
    let group = Group::world(me, nodes.collect());
    let idle = Arc::new(SimIdle { world: world.clone(), me });
    let station = Station::new(engine, idle, Patience::none(), Some(settings.timeout));
    Communicator::new(Arc::new(station), group)
}

#[cfg(test)]
mod tests;
