//! The network of a simulated job: what is on its way between ranks, whose turn it is, and what time.

use super::Dice;
use crate::transport::packet::Header;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What can go wrong in a world.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// A rank that dies after so many turns.
    pub dies: Option<(usize, u64)>,
    /// Ranks may not fetch from each other's memory.
    pub no_fetch: bool,
}

/// The longest that a packet is on its way.
const FLIGHT: Duration = Duration::from_micros(300);
/// The longest that a turn takes, and a look at a link.
const TURN: Duration = Duration::from_micros(20);
const LOOK: Duration = Duration::from_micros(5);
/// Packets that fit between two ranks.
const ROOM: usize = 4;

/// What crosses a wire, beside bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum SimMessage {
    /// A packet of the link's.
    Packet(Header),
    /// Bytes that a device puts where it was told to.
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
    /// Whose turn it is.
    turn: usize,
    turns: u64,
    /// Ranks whose program runs.
    running: Vec<bool>,
    alive: Vec<bool>,
    /// When the sleep of a rank is over, whatever comes.
    asleep: Vec<Option<Duration>>,
    /// What wakes ranks, by who sleeps and who may wake it: news, and room where that is wanted.
    armed: BTreeMap<(usize, usize), bool>,
    faults: Faults,
    wires: BTreeMap<(usize, usize), VecDeque<InFlight>>,
    /// Transfers that were written, by who wrote them and to whom.
    confirmed: BTreeMap<(usize, usize), VecDeque<u32>>,
    /// Messages that may be fetched, by address.
    exposed: BTreeMap<u64, Vec<u8>>,
    /// How many of them were revoked, by who had offered them and to whom.
    revoked: BTreeMap<(usize, usize), u32>,
}

/// What the ranks of a world share.
#[derive(Debug)]
pub(crate) struct SimWorld {
    state: Mutex<WorldState>,
    turns: Condvar,
}

impl SimWorld {
    /// Makes a world of `ranks` ranks whose programs are about to begin.
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

    pub(super) fn lives(&self, rank: usize) -> bool {
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

    /// What has come. A look takes time, so something may come between two of one turn.
    pub(super) fn take(&self, from: usize, to: usize) -> Option<(SimMessage, Vec<u8>)> {
        let mut state = self.lock();
        state.pass(LOOK);
        let now = state.now;
        let wire = state.wires.get_mut(&(from, to))?;
        let packet = wire.pop_front_if(|packet| packet.ready <= now)?;
        Some((packet.message, packet.payload))
    }

    /// Whether a rank may sleep until something comes from this peer.
    pub(super) fn arm(&self, me: usize, peer: usize, wants_room: bool) -> bool {
        let mut state = self.lock();
        let may_sleep = !state.has_news(me, peer, wants_room);
        if may_sleep {
            state.armed.insert((me, peer), wants_room);
        }
        may_sleep
    }

    pub(super) fn disarm(&self, me: usize, peer: usize) {
        self.lock().armed.remove(&(me, peer));
    }

    /// Whoever wrote a message is told that it has arrived.
    pub(super) fn confirm(&self, from: usize, to: usize, transfer: u32) {
        self.lock().confirmed.entry((from, to)).or_default().push_back(transfer);
    }

    pub(super) fn confirmed(&self, from: usize, to: usize) -> Option<u32> {
        let mut state = self.lock();
        // The word may take a while.
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

    /// The program of `from` uses the memory at `address` for something else from here on.
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

    /// Waits for the first turn of `me`.
    pub(crate) fn begin(&self, me: usize) {
        drop(self.await_turn(self.lock(), me));
    }

    pub(crate) fn now(&self) -> Duration {
        self.lock().now
    }

    /// Lets somebody have the next turn, and returns when it is `me`'s again: after a sleep of
    /// `longest`, if nothing has come before.
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

    /// The program of a rank is over.
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

    /// Time passes, and somebody who runs has the next turn.
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
        // Now and then somebody is woken for nothing.
        let is_fair = self.dice.below(8) > 0;
        let turns = running.iter().filter(|&&rank| !is_fair || self.is_awake(rank));
        let turns: Vec<usize> = turns.copied().collect();
        self.turn = turns[self.dice.below(turns.len())];
    }

    fn is_awake(&self, rank: usize) -> bool {
        let is_over = self.asleep[rank].is_none_or(|until| until <= self.now);
        let mut armed = self.armed.range((rank, 0)..(rank + 1, 0));
        is_over || armed.any(|(&(me, peer), &wants_room)| self.has_news(me, peer, wants_room))
    }

    /// Whether a look at this peer, or what is to be sent to it, would not be in vain.
    fn has_news(&self, me: usize, peer: usize, wants_room: bool) -> bool {
        let has_come = match self.wires.get(&(peer, me)).and_then(VecDeque::front) {
            Some(packet) => packet.ready <= self.now,
            None => !self.alive[peer],
        };
        let is_told = self.confirmed.get(&(me, peer)).is_some_and(|told| !told.is_empty());
        let has_room = self.wires.get(&(me, peer)).is_none_or(|wire| wire.len() < ROOM);
        has_come || is_told || !self.alive[me] || (wants_room && has_room)
    }

    /// When something happens next, where everybody sleeps.
    fn next_event(&self) -> Duration {
        let arrivals = self.wires.values().filter_map(VecDeque::front).map(|packet| packet.ready);
        let ends = self.asleep.iter().flatten().copied();
        let events = arrivals.chain(ends).filter(|&at| at > self.now);
        events.min().expect("who sleeps does so for a while")
    }
}
