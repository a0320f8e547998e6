//! State of a simulated job: packets in flight between ranks, the rank that runs, and the virtual
//! time.
//!
//! One rank runs at a time. Its *turn* lasts until it sleeps or its program ends; then another
//! rank, chosen at random, has the next turn.

use super::Dice;
use crate::transport::Header;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Faults of a simulated job.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Rank that dies, and the number of turns of all ranks after which it dies; `None` if no rank
    /// dies.
    pub dies: Option<(usize, u64)>,
    /// Whether ranks are forbidden to fetch from each other's memory.
    pub no_fetch: bool,
}

/// Upper bound of a packet's travel time.
const FLIGHT: Duration = Duration::from_micros(300);
/// Upper bounds of the virtual times that a turn of a rank and a poll of a link take.
const TURN: Duration = Duration::from_micros(20);
const POLL: Duration = Duration::from_micros(5);
/// Maximum number of packets in flight from one rank to another.
const ROOM: usize = 4;

/// Content of a packet in flight.
#[derive(Clone, Copy, Debug)]
pub(super) enum SimMessage {
    /// Packet that a link has sent.
    Packet(Header),
    /// Bytes that a simulated device writes to exposed memory.
    Write { address: u64, transfer: u32 },
}

#[derive(Debug)]
struct InFlight {
    ready: Duration,
    message: SimMessage,
    payload: Vec<u8>,
}

#[derive(Debug)]
struct WorldState {
    dice: Dice,
    now: Duration,
    /// Rank whose turn it is.
    turn: usize,
    turns: u64,
    /// Whether each rank's program is running.
    running: Vec<bool>,
    alive: Vec<bool>,
    /// Time at which each sleeping rank wakes up by itself; `None` for ranks that do not sleep.
    asleep: Vec<Option<Duration>>,
    /// Peers that wake a sleeping rank, as pairs of the rank and a peer: anything that arrives from
    /// the peer wakes the rank. If the value is `true`, room to send to the peer wakes the rank,
    /// too.
    armed: BTreeMap<(usize, usize), bool>,
    faults: Faults,
    wires: BTreeMap<(usize, usize), VecDeque<InFlight>>,
    /// Transfer ids of writes that have arrived and are not reported to the writer yet, by writer
    /// and target.
    confirmed: BTreeMap<(usize, usize), VecDeque<u32>>,
    /// Copies of the messages exposed for fetching, by their simulated address.
    exposed: BTreeMap<u64, Vec<u8>>,
    /// Number of revoked exposures, by sender and receiver.
    revoked: BTreeMap<(usize, usize), u32>,
}

/// State that the ranks of a simulated job share.
#[derive(Debug)]
pub(crate) struct SimWorld {
    state: Mutex<WorldState>,
    turns: Condvar,
}

impl SimWorld {
    /// Makes the state for `ranks` ranks, before their programs begin.
    pub(crate) fn new(seed: u64, ranks: usize, faults: Faults) -> SimWorld {
        let state = WorldState {
            dice: Dice::new(seed),
            now: Duration::ZERO,
            turn: 0,
            turns: 0,
            running: vec![true; ranks],
            alive: vec![true; ranks],
            asleep: vec![None; ranks],
            armed: BTreeMap::new(),
            faults,
            wires: BTreeMap::new(),
            confirmed: BTreeMap::new(),
            exposed: BTreeMap::new(),
            revoked: BTreeMap::new(),
        };
        SimWorld { state: Mutex::new(state), turns: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, WorldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn chance(&self, of: usize) -> usize {
        self.lock().dice.below(of)
    }

    pub(super) fn is_alive(&self, rank: usize) -> bool {
        self.lock().alive[rank]
    }

    pub(super) fn is_full(&self, from: usize, to: usize) -> bool {
        let mut state = self.lock();
        let is_full = state.wires.get(&(from, to)).is_some_and(|wire| wire.len() >= ROOM);
        is_full || state.dice.below(8) == 0
    }

    pub(super) fn put(&self, from: usize, to: usize, message: SimMessage, payload: &[u8]) {
        let mut state = self.lock();
        let flight = state.dice.below(FLIGHT.as_micros() as usize);
        let ready = state.now + Duration::from_micros(flight as u64);
        let packet = InFlight { ready, message, payload: payload.to_vec() };
        state.wires.entry((from, to)).or_default().push_back(packet);
    }

    /// Takes the next packet from rank `from` that has arrived at rank `to`. The call takes virtual
    /// time, so a packet may arrive between two polls in one turn.
    pub(super) fn take(&self, from: usize, to: usize) -> Option<(SimMessage, Vec<u8>)> {
        let mut state = self.lock();
        state.pass(POLL);
        let now = state.now;
        let wire = state.wires.get_mut(&(from, to))?;
        let packet = wire.pop_front_if(|packet| packet.ready <= now)?;
        Some((packet.message, packet.payload))
    }

    /// Tests whether the rank `me` may sleep until something arrives from this peer, and returns
    /// the answer. If it may, records that the arrival wakes the rank.
    pub(super) fn arm(&self, me: usize, peer: usize, wants_room: bool) -> bool {
        let mut state = self.lock();
        let may_sleep = !state.has_event(me, peer, wants_room);
        if may_sleep {
            state.armed.insert((me, peer), wants_room);
        }
        may_sleep
    }

    pub(super) fn disarm(&self, me: usize, peer: usize) {
        self.lock().armed.remove(&(me, peer));
    }

    /// Queues the report to rank `from` that its write to rank `to` has completed.
    pub(super) fn confirm(&self, from: usize, to: usize, transfer: u32) {
        self.lock().confirmed.entry((from, to)).or_default().push_back(transfer);
    }

    pub(super) fn confirmed(&self, from: usize, to: usize) -> Option<u32> {
        let mut state = self.lock();
        // Simulates a delayed completion.
        if state.dice.below(3) == 0 {
            return None;
        }
        state.confirmed.get_mut(&(from, to))?.pop_front()
    }

    pub(super) fn has_more(&self, from: usize, to: usize) -> bool {
        self.lock().wires.get(&(from, to)).is_some_and(|wire| !wire.is_empty())
    }

    pub(super) fn expose(&self, message: &[u8]) -> Option<u64> {
        let mut state = self.lock();
        if state.faults.no_fetch {
            return None;
        }
        let before = state.exposed.last_key_value();
        let address = before.map_or(1, |(at, bytes)| at + bytes.len() as u64 + 1);
        state.exposed.insert(address, message.to_vec());
        Some(address)
    }

    /// Counts a revoked exposure, and overwrites the message, as the program of rank `from` would.
    pub(super) fn revoke(&self, from: usize, to: usize, address: u64) {
        let mut state = self.lock();
        *state.revoked.entry((from, to)).or_default() += 1;
        if let Some(bytes) = state.exposed.get_mut(&address) {
            bytes.fill(0xee);
        }
    }

    pub(super) fn revoked(&self, from: usize, to: usize) -> u32 {
        self.lock().revoked.get(&(from, to)).copied().unwrap_or(0)
    }

    pub(super) fn fetch(&self, address: u64, into: &mut [u8]) -> bool {
        let mut state = self.lock();
        // Simulates a kernel that forbids the access.
        if state.dice.below(8) == 0 {
            return false;
        }
        let Some((at, bytes)) = state.exposed.range(..=address).next_back() else { return false };
        let offset = (address - at) as usize;
        let Some(part) = bytes.get(offset..offset + into.len()) else { return false };
        into.copy_from_slice(part);
        true
    }

    /// Waits for the first turn of the rank `me`.
    pub(crate) fn begin(&self, me: usize) {
        drop(self.await_turn(self.lock(), me));
    }

    pub(crate) fn now(&self) -> Duration {
        self.lock().now
    }

    /// Ends a turn of the rank `me`, which sleeps for up to `longest`. Returns when its next turn
    /// begins.
    pub(crate) fn pass(&self, me: usize, longest: Duration) {
        let mut state = self.lock();
        state.asleep[me] = Some(state.now.saturating_add(longest));
        state.next();
        self.turns.notify_all();
        self.await_turn(state, me).asleep[me] = None;
    }

    fn await_turn<'s>(
        &'s self,
        state: MutexGuard<'s, WorldState>,
        me: usize,
    ) -> MutexGuard<'s, WorldState> {
        let waited = self.turns.wait_while(state, |state| state.turn != me);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the program of the rank `me` has ended, and begins the next rank's turn.
    pub(crate) fn end(&self, me: usize) {
        let mut state = self.lock();
        state.running[me] = false;
        state.next();
        self.turns.notify_all();
    }
}

impl WorldState {
    fn pass(&mut self, longest: Duration) {
        let passes = 1 + self.dice.below(longest.as_micros() as usize) as u64;
        self.now += Duration::from_micros(passes);
    }

    /// Advances the time, and chooses the rank that has the next turn.
    fn next(&mut self) {
        self.turns += 1;
        self.pass(TURN);
        if let Some((rank, after)) = self.faults.dies
            && self.turns >= after
        {
            self.alive[rank] = false;
        }
        let running: Vec<usize> = (0..self.running.len()).filter(|&at| self.running[at]).collect();
        if running.is_empty() {
            return;
        }
        while !running.iter().any(|&rank| self.is_awake(rank)) {
            self.now = self.next_event();
        }
        // Sometimes any rank may run, even one that nothing has woken.
        let is_fair = self.dice.below(8) > 0;
        let turns = running.iter().filter(|&&rank| !is_fair || self.is_awake(rank));
        let turns: Vec<usize> = turns.copied().collect();
        self.turn = turns[self.dice.below(turns.len())];
    }

    fn is_awake(&self, rank: usize) -> bool {
        let is_over = self.asleep[rank].is_none_or(|until| until <= self.now);
        let mut armed = self.armed.range((rank, 0)..(rank + 1, 0));
        is_over || armed.any(|(&(me, peer), &wants_room)| self.has_event(me, peer, wants_room))
    }

    /// Returns whether the rank `me` would make progress if it polled the link to this peer or, if
    /// `wants_room`, sent to the peer.
    fn has_event(&self, me: usize, peer: usize, wants_room: bool) -> bool {
        let has_come = match self.wires.get(&(peer, me)).and_then(VecDeque::front) {
            Some(packet) => packet.ready <= self.now,
            None => !self.alive[peer],
        };
        let is_completed =
            self.confirmed.get(&(me, peer)).is_some_and(|transfers| !transfers.is_empty());
        let has_room = self.wires.get(&(me, peer)).is_none_or(|wire| wire.len() < ROOM);
        has_come || is_completed || !self.alive[me] || (wants_room && has_room)
    }

    /// Returns the time of the next arrival of a packet or the next end of a sleep. Called while
    /// all ranks sleep.
    fn next_event(&self) -> Duration {
        let arrivals = self.wires.values().filter_map(VecDeque::front).map(|packet| packet.ready);
        let ends = self.asleep.iter().flatten().copied();
        let events = arrivals.chain(ends).filter(|&at| at > self.now);
        events.min().expect("a sleep ends in the future")
    }
}
