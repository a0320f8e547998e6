//! Simulated links, for tests. Packets travel through the memory of a [`SimWorld`], in which one
//! rank runs at a time and a seed decides the order of ranks, the delays and the faults.
//!
//! Pseudo-random numbers from a seed, by SplitMix64 (Steele, Lea, Flood 2014).

mod world;

pub use world::Faults;

pub(crate) use world::SimWorld;

use super::{Armed, Exposure, Limits, Link, LocalSlice, RemoteBuf, Sink, WriteOutcome};
use crate::transport::{Header, PacketKind};
use crate::types::error::LinkError;
use rlaunch_lock::{BufferId, BufferTable};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use world::SimMessage;

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
