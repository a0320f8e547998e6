//! Simulated links, for tests. Packets travel through the memory of a [`SimWorld`], in which a seed
//! decides the order of ranks, the delays and the faults.
//!
//! One rank runs at a time. Its *turn* lasts until it sleeps or its program ends; then another
//! rank, chosen at random, has the next turn.
//!
//! Pseudo-random numbers from a seed, by SplitMix64 (Steele, Lea, Flood 2014).

use super::{
    Armed, Exposure, Header, Limits, Link, LocalSlice, PacketKind, RemoteBuf, Sink, WriteOutcome,
};
use crate::types::LinkError;
use rlaunch_lock::{BufferId, BufferTable};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Size limits, in bytes. They are low so that small tests have long messages.
const EAGER: usize = 256;
const PACKET: usize = 1024;

/// Link from one simulated rank to another.
#[derive(Debug)]
pub(crate) struct SimLink {
    world: Arc<SimWorld>,
    from: usize,
    to: usize,
    /// Packet that is being delivered in parts, and the number of bytes delivered.
    partial: Option<(Header, Vec<u8>, usize)>,
    /// Memory exposed to the peer's writes, by the address that was given to the peer.
    exposed: BTreeMap<u64, (BufferId, Range<usize>)>,
}

impl SimLink {
    pub(crate) fn new(world: &Arc<SimWorld>, from: usize, to: usize) -> SimLink {
        SimLink { world: world.clone(), from, to, partial: None, exposed: BTreeMap::new() }
    }

    /// Returns whether the sender writes long messages between these two ranks. Between other ranks
    /// the receiver fetches them.
    fn writes(&self) -> bool {
        (self.from + self.to) % 2 == 1
    }

    /// Writes the peer's bytes to memory of this rank, as a device would.
    fn write_here(
        &mut self,
        address: u64,
        bytes: &[u8],
        sink: &mut dyn Sink,
    ) -> Result<(), LinkError> {
        let unknown = LinkError::Protocol("it wrote to memory that was not exposed");
        let (buffer, range) = self.exposed.remove(&address).ok_or(unknown)?;
        assert_eq!(range.len(), bytes.len(), "length of the exposed memory");
        // If the program has taken the buffer back, these calls have no effect.
        if let Some(buffers) = sink.buffers() {
            buffers.conceal(buffer, &range);
            buffers.write(buffer, range.clone(), |memory| memory.copy_from_slice(bytes));
            // Expose the memory again: this rank must not access it before the peer reports the
            // write.
            buffers.expose(buffer, range);
        }
        Ok(())
    }

    /// Delivers the next bytes of the packet that is being delivered in parts. Returns `false` if
    /// there is no such packet.
    fn deliver_part(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        let Some((header, payload, delivered)) = &mut self.partial else { return Ok(false) };
        let most = 1 + self.world.chance(payload.len());
        let mut fill = |into: &mut [u8]| -> io::Result<usize> {
            let part = most.min(into.len()).min(payload.len() - *delivered);
            into[..part].copy_from_slice(&payload[*delivered..*delivered + part]);
            Ok(part)
        };
        *delivered += sink.part(*header, *delivered, &mut fill)?;
        if *delivered == payload.len() {
            self.partial = None;
        }
        Ok(true)
    }
}

impl Link for SimLink {
    fn limits(&self) -> Limits {
        let write = if self.writes() { 3 * EAGER } else { usize::MAX };
        let poll_is_syscall = self.to % 2 == 1;
        Limits { eager: EAGER, packet: PACKET, fetch: 4 * EAGER, write, poll_is_syscall }
    }

    fn send(&mut self, header: Header, payload: &[u8]) -> Result<bool, LinkError> {
        if !self.world.is_alive(self.from) {
            return Err(LinkError::Gone);
        }
        if self.world.is_full(self.from, self.to) {
            return Ok(false);
        }
        self.world.put(self.from, self.to, SimMessage::Packet(header), payload);
        Ok(true)
    }

    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        if !self.world.is_alive(self.from) {
            return Err(LinkError::Gone);
        }
        if self.partial.is_some() {
            return self.deliver_part(sink);
        }
        if let Some(transfer) = self.world.confirmed(self.from, self.to) {
            sink.written(transfer)?;
            return Ok(true);
        }
        let Some((message, payload)) = self.world.take(self.to, self.from) else {
            return match self.world.is_alive(self.to) {
                true => Ok(false),
                // Packets that the peer sent before it died come first.
                false if self.world.has_more(self.to, self.from) => Ok(false),
                false => Err(LinkError::Gone),
            };
        };
        let header = match message {
            SimMessage::Packet(header) => header,
            SimMessage::Write { address, transfer } => {
                self.write_here(address, &payload, sink)?;
                self.world.confirm(self.to, self.from, transfer);
                return Ok(true);
            }
        };
        let is_splittable = matches!(header.kind, PacketKind::Eager | PacketKind::Data);
        if is_splittable && !payload.is_empty() && self.world.chance(3) == 0 {
            self.partial = Some((header, payload, 0));
            return self.deliver_part(sink);
        }
        sink.packet(header, &payload)?;
        Ok(true)
    }

    fn expose_read(&mut self, message: &[u8]) -> Option<u64> {
        if self.writes() { None } else { self.world.expose(message) }
    }

    fn fetch(&mut self, address: u64, into: &mut [u8]) -> Result<bool, LinkError> {
        Ok(self.world.fetch(address, into))
    }

    fn revoke(&mut self, address: u64) {
        self.world.revoke(self.from, self.to, address);
    }

    fn has_revoked(&mut self, known: u32) -> bool {
        self.world.revoked(self.to, self.from) != known
    }

    fn expose_write(&mut self, buffers: &BufferTable, into: LocalSlice) -> Exposure {
        let range = into.range();
        match self.world.chance(8) {
            // Simulate memory that cannot be locked, or a slow registration.
            0 => return Exposure::Refused,
            1 => return Exposure::Pending,
            _ if !buffers.expose(into.buffer, range.clone()) => return Exposure::Refused,
            _ => {}
        }
        let address = self.exposed.last_key_value().map_or(1, |(last, _)| last + 1);
        self.exposed.insert(address, (into.buffer, range));
        Exposure::At(RemoteBuf { address, key: address })
    }

    fn write(
        &mut self,
        buffers: &BufferTable,
        from: LocalSlice,
        to: RemoteBuf,
        transfer: u32,
    ) -> Result<WriteOutcome, LinkError> {
        if !self.world.is_alive(self.from) {
            return Err(LinkError::Gone);
        }
        assert_eq!(to.address, to.key, "as exposed");
        if self.world.chance(8) == 0 {
            return Ok(WriteOutcome::Refused);
        }
        if self.world.is_full(self.from, self.to) {
            return Ok(WriteOutcome::NoRoom);
        }
        let message = SimMessage::Write { address: to.address, transfer };

        let put = |bytes: &[u8]| self.world.put(self.from, self.to, message, bytes);
        from.read(buffers, put).ok_or(LinkError::PartlySent)?;
        Ok(WriteOutcome::Posted)
    }

    fn arm(&mut self, wants_room: bool) -> Result<Armed<'_>, LinkError> {
        let may_sleep = self.partial.is_none() && self.world.arm(self.from, self.to, wants_room);
        Ok(if may_sleep { Armed::NoFd } else { Armed::Ready })
    }

    fn disarm(&mut self) {
        self.world.disarm(self.from, self.to);
    }
}

/// Generator whose numbers depend only on its seed.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// Makes a generator from a seed.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Returns the next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns a number below `of`, or 0 if `of` is 0.
    pub fn below(&mut self, of: usize) -> usize {
        match of {
            0 => 0,
            _ => (self.draw() % of as u64) as usize,
        }
    }
}

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
enum SimMessage {
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

    fn chance(&self, of: usize) -> usize {
        self.lock().dice.below(of)
    }

    fn is_alive(&self, rank: usize) -> bool {
        self.lock().alive[rank]
    }

    fn is_full(&self, from: usize, to: usize) -> bool {
        let mut state = self.lock();
        let is_full = state.wires.get(&(from, to)).is_some_and(|wire| wire.len() >= ROOM);
        is_full || state.dice.below(8) == 0
    }

    fn put(&self, from: usize, to: usize, message: SimMessage, payload: &[u8]) {
        let mut state = self.lock();
        let flight = state.dice.below(FLIGHT.as_micros() as usize);
        let ready = state.now + Duration::from_micros(flight as u64);
        let packet = InFlight { ready, message, payload: payload.to_vec() };
        state.wires.entry((from, to)).or_default().push_back(packet);
    }

    /// Takes the next packet from rank `from` that has arrived at rank `to`. The call takes virtual
    /// time, so a packet may arrive between two polls in one turn.
    fn take(&self, from: usize, to: usize) -> Option<(SimMessage, Vec<u8>)> {
        let mut state = self.lock();
        state.pass(POLL);
        let now = state.now;
        let wire = state.wires.get_mut(&(from, to))?;
        let packet = wire.pop_front_if(|packet| packet.ready <= now)?;
        Some((packet.message, packet.payload))
    }

    /// Tests whether the rank `me` may sleep until something arrives from this peer, and returns
    /// the answer. If it may, records that the arrival wakes the rank.
    fn arm(&self, me: usize, peer: usize, wants_room: bool) -> bool {
        let mut state = self.lock();
        let may_sleep = !state.has_event(me, peer, wants_room);
        if may_sleep {
            state.armed.insert((me, peer), wants_room);
        }
        may_sleep
    }

    fn disarm(&self, me: usize, peer: usize) {
        self.lock().armed.remove(&(me, peer));
    }

    /// Queues the report to rank `from` that its write to rank `to` has completed.
    fn confirm(&self, from: usize, to: usize, transfer: u32) {
        self.lock().confirmed.entry((from, to)).or_default().push_back(transfer);
    }

    fn confirmed(&self, from: usize, to: usize) -> Option<u32> {
        let mut state = self.lock();
        // Simulates a delayed completion.
        if state.dice.below(3) == 0 {
            return None;
        }
        state.confirmed.get_mut(&(from, to))?.pop_front()
    }

    fn has_more(&self, from: usize, to: usize) -> bool {
        self.lock().wires.get(&(from, to)).is_some_and(|wire| !wire.is_empty())
    }

    fn expose(&self, message: &[u8]) -> Option<u64> {
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
    fn revoke(&self, from: usize, to: usize, address: u64) {
        let mut state = self.lock();
        *state.revoked.entry((from, to)).or_default() += 1;
        if let Some(bytes) = state.exposed.get_mut(&address) {
            bytes.fill(0xee);
        }
    }

    fn revoked(&self, from: usize, to: usize) -> u32 {
        self.lock().revoked.get(&(from, to)).copied().unwrap_or(0)
    }

    fn fetch(&self, address: u64, into: &mut [u8]) -> bool {
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
