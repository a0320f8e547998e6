//! Long payloads over several sockets.
//!
//! The payloads of long [`Kind::Data`] packets, one after the other, are one stream of bytes. It is
//! cut into chunks; each goes over the next lane that has room, behind its place in the stream and
//! its length. The receiver takes them in the stream's order, from whichever lane has the next one;
//! the others fill the kernel's buffers meanwhile. So a slow lane carries less, and nobody waits for
//! it as long as those buffers last. The packets' headers stay on the pair's first socket, which
//! says in what order all packets are.

use super::outbound::write_two;
use super::{Moved, inbound};
use crate::transport::Sink;
use crate::transport::packet::{Header, Kind};
use crate::types::error::LinkError;
use nix::poll::PollFlags;
use std::io::{IoSliceMut, Read};
use std::net::TcpStream;

/// The most sockets beside the first one.
pub(crate) const MOST_LANES: usize = 16;
/// What goes over one lane at once, in bytes: the kernel copies and sends long pieces faster.
const CHUNK: usize = 256 << 10;
/// Payloads from here on are cut up, in bytes.
const FROM: usize = 2 * CHUNK;
/// In front of a chunk: its place in the stream and its length, both `u64`, little endian.
const HEAD: usize = 16;

/// Whether a packet's payload goes this way.
pub(super) fn takes(header: Header) -> bool {
    header.kind == Kind::Data && header.length as usize >= FROM
}

/// The sockets beside the first one.
#[derive(Debug)]
pub(super) struct Stripe {
    sockets: Vec<TcpStream>,
    lanes: Vec<Lane>,
    /// The packet that is being sent: how much of it is cut up.
    cut: Option<usize>,
    /// Where in the stream sent the next chunk begins.
    cut_at: u64,
    /// The lane whose turn it is.
    turn: usize,
    /// How much of the stream has come.
    came: u64,
}

#[derive(Debug, Default)]
struct Lane {
    leaving: Option<Leaving>,
    coming: Coming,
}

/// A chunk that is being sent.
#[derive(Debug)]
struct Leaving {
    head: [u8; HEAD],
    /// Its place in the packet.
    start: usize,
    length: usize,
    /// Of its head and itself.
    sent: usize,
}

/// A chunk that comes.
#[derive(Debug, Default)]
struct Coming {
    head: [u8; HEAD],
    head_came: usize,
    /// What follows: its place in the stream, and its length, which is 0 until the head is there.
    at: u64,
    left: usize,
}

impl Stripe {
    pub(super) fn new(sockets: Vec<TcpStream>) -> Stripe {
        let lanes = sockets.iter().map(|_| Lane::default()).collect();
        Stripe { sockets, lanes, cut: None, cut_at: 0, turn: 0, came: 0 }
    }

    pub(super) fn lanes(&self) -> &[TcpStream] {
        &self.sockets
    }

    /// Its header has been sent and its payload not yet.
    pub(super) fn is_sending(&self) -> bool {
        self.cut.is_some()
    }

    /// The header has been sent.
    pub(super) fn begin(&mut self) {
        self.cut = Some(0);
    }

    /// Goes on with the payload; `true` once all of it is written.
    pub(super) fn send(&mut self, payload: &[u8]) -> Result<bool, LinkError> {
        let mut full = 0;
        // One after the other, until none has room or anything to do.
        while full < self.lanes.len() {
            let lane = self.turn;
            self.turn = (lane + 1) % self.lanes.len();
            if self.lanes[lane].leaving.is_none() {
                self.lanes[lane].leaving = self.cut_off(payload.len());
            }
            let went = self.lanes[lane].send(&self.sockets[lane], payload)?;
            full = if went { 0 } else { full + 1 };
        }
        let all_cut = self.cut == Some(payload.len());
        let done = all_cut && self.lanes.iter().all(|lane| lane.leaving.is_none());
        if done {
            self.cut = None;
        }
        Ok(done)
    }

    /// The next chunk of a payload of `length` bytes.
    fn cut_off(&mut self, length: usize) -> Option<Leaving> {
        let start = self.cut?;
        let size = (length - start).min(CHUNK);
        if size == 0 {
            return None;
        }
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&self.cut_at.to_le_bytes());
        head[8..].copy_from_slice(&(size as u64).to_le_bytes());
        self.cut = Some(start + size);
        self.cut_at += size as u64;
        Some(Leaving { head, start, length: size, sent: 0 })
    }

    /// Which lanes it waits for with what it sends.
    pub(super) fn wants_to_send(&self, wanted: &mut [PollFlags]) {
        for (lane, wanted) in self.lanes.iter().zip(wanted) {
            if lane.leaving.is_some() {
                *wanted |= PollFlags::POLLOUT;
            }
        }
    }

    /// Which lanes it waits for with what it receives.
    pub(super) fn wants_to_receive(&self, wanted: &mut [PollFlags]) {
        let next = self.next_lane();
        for ((index, lane), wanted) in self.lanes.iter().enumerate().zip(wanted) {
            // A lane with a later chunk would be readable all the time.
            if next.map_or(lane.coming.left == 0, |next| next == index) {
                *wanted |= PollFlags::POLLIN;
            }
        }
    }

    fn next_lane(&self) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.coming.left > 0 && lane.coming.at == self.came)
    }

    /// Hands over what has come of this packet, of which the sink has `offset` bytes; says how much.
    pub(super) fn receive(
        &mut self,
        header: Header,
        offset: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize, LinkError> {
        let length = header.length as usize;
        let mut total = 0;
        while offset + total < length && total < inbound::TURN {
            let Some(lane) = self.find_next()? else { break };
            let coming = &mut self.lanes[lane].coming;
            if coming.left > length - offset - total {
                return Err(LinkError::OutOfTurn("a chunk that is longer than its packet"));
            }
            let (count, moved) = coming.take(&self.sockets[lane], header, offset + total, sink)?;
            total += count;
            self.came += count as u64;
            match moved {
                Moved::Bytes(_) => {}
                Moved::Nothing => break,
                Moved::Ended if total > 0 => break,
                Moved::Ended => return Err(LinkError::Gone),
            }
        }
        Ok(total)
    }

    /// The lane with the next chunk, as far as heads have come.
    fn find_next(&mut self) -> Result<Option<usize>, LinkError> {
        if let Some(lane) = self.next_lane() {
            return Ok(Some(lane));
        }
        let mut waits = false;
        for (lane, socket) in self.lanes.iter_mut().zip(&self.sockets) {
            if lane.coming.left == 0 {
                lane.coming.read_head(socket)?;
                let early = lane.coming.left > 0 && lane.coming.at < self.came;
                if early {
                    return Err(LinkError::OutOfTurn("a chunk that has come already"));
                }
                waits |= lane.coming.left == 0;
            }
        }
        match self.next_lane() {
            None if !waits => Err(LinkError::OutOfTurn("a chunk that nobody has")),
            lane => Ok(lane),
        }
    }
}

impl Lane {
    /// Says whether the chunk has left, and the lane may have room for another.
    fn send(&mut self, socket: &TcpStream, payload: &[u8]) -> Result<bool, LinkError> {
        let Some(leaving) = &mut self.leaving else { return Ok(false) };
        let body = payload.get(leaving.start..leaving.start + leaving.length);
        let body = body.ok_or(LinkError::OutOfTurn("another packet than was begun"))?;
        match write_two(socket, &leaving.head, body, leaving.sent)? {
            Moved::Bytes(count) => leaving.sent += count,
            Moved::Nothing => return Ok(false),
            Moved::Ended => return Err(LinkError::Gone),
        }
        let left = leaving.sent == HEAD + leaving.length;
        if left {
            self.leaving = None;
        }
        Ok(left)
    }
}

impl Coming {
    fn read_head(&mut self, socket: &TcpStream) -> Result<(), LinkError> {
        let mut socket = socket;
        match Moved::read(socket.read(&mut self.head[self.head_came..]))? {
            Moved::Bytes(count) => self.head_came(count),
            Moved::Nothing => Ok(()),
            Moved::Ended => Err(LinkError::Gone),
        }
    }

    /// So much more of the next head is there.
    fn head_came(&mut self, count: usize) -> Result<(), LinkError> {
        self.head_came += count;
        if self.head_came < HEAD {
            return Ok(());
        }
        self.head_came = 0;
        let both = u128::from_le_bytes(self.head);
        self.at = both as u64;
        let length = (both >> 64) as u64;
        if length == 0 || length > CHUNK as u64 {
            return Err(LinkError::OutOfTurn("a chunk of a length that none has"));
        }
        self.left = length as usize;
        Ok(())
    }

    /// Hands over what has come of this chunk, and reads the next one's head behind it.
    fn take(
        &mut self,
        socket: &TcpStream,
        header: Header,
        offset: usize,
        sink: &mut dyn Sink,
    ) -> Result<(usize, Moved), LinkError> {
        let (mut total, mut behind) = (0, 0);
        let mut outcome = Ok(Moved::Nothing);
        let left = self.left;
        let head = &mut self.head;
        sink.part(header, offset, &mut |memory| {
            let rest = left - total;
            let length = memory.len().min(rest);
            let memory = &mut memory[..length];
            if memory.is_empty() {
                return Ok(0);
            }
            let mut socket = socket;
            let result = if length == rest {
                socket.read_vectored(&mut [IoSliceMut::new(memory), IoSliceMut::new(head)])
            } else {
                socket.read(memory)
            };
            outcome = Moved::read(result);
            let Ok(Moved::Bytes(count)) = outcome else { return Ok(0) };
            behind = count.saturating_sub(length);
            total += count - behind;
            Ok(count - behind)
        })?;
        self.left -= total;
        self.at += total as u64;
        self.head_came(behind)?;
        Ok((total, outcome?))
    }
}
