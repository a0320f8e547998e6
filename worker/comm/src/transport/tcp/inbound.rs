//! Receiving packets from one socket.

use super::{IoOutcome, PACKET};
use crate::transport::Sink;
use crate::transport::packet::{Header, PacketKind};
use crate::types::error::LinkError;
use std::fmt;
use std::io::{self, IoSliceMut, Read};
use std::net::TcpStream;

/// How much is read ahead of what is known to be there, in bytes.
const AHEAD: usize = 64 << 10;
/// The same where a long packet is expected, whose payload is to go straight to its place.
const SHORT_AHEAD: usize = 256;
/// Packets up to here are handed over whole, in bytes. Longer ones may come in parts.
const WHOLE: usize = 16 << 10;
/// What one call receives at most before other links get their turn, in bytes.
const TURN: usize = 4 << 20;

/// What has come and was not yet handed over.
pub(super) struct Inbound {
    /// Read ahead, of which `begin..end` waits to be understood.
    buffer: Box<[u8]>,
    begin: usize,
    end: usize,
    /// The packet that comes in parts.
    long: Option<Long>,
    /// The next packet is probably long.
    expects_long: bool,
    farewell: StreamEnd,
}

#[derive(Clone, Copy, Debug)]
struct Long {
    header: Header,
    /// How much of the payload the sink has.
    offset: usize,
}

/// How far the peer is with its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamEnd {
    Open,
    /// [`PacketKind::Bye`] has come.
    SaidBye,
    /// And then the end of the stream.
    Ended,
}

/// Without what ranks say to each other.
impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut inbound = f.debug_struct("Inbound");
        inbound.field("waiting", &(self.end - self.begin)).field("long", &self.long);
        inbound.field("farewell", &self.farewell).finish_non_exhaustive()
    }
}

impl Inbound {
    pub(super) fn new() -> Inbound {
        Inbound {
            buffer: vec![0; AHEAD].into_boxed_slice(),
            begin: 0,
            end: 0,
            long: None,
            expects_long: false,
            farewell: StreamEnd::Open,
        }
    }

    /// What comes next is probably long.
    pub(super) fn expect_long(&mut self) {
        self.expects_long = true;
    }

    /// Nothing comes any more, as the peer has announced.
    pub(super) fn has_ended(&self) -> bool {
        self.farewell == StreamEnd::Ended
    }

    /// Hands over what has come; says whether anything did. One system call if nothing did.
    pub(super) fn receive(
        &mut self,
        socket: &TcpStream,
        sink: &mut dyn Sink,
    ) -> Result<bool, LinkError> {
        let mut total = 0;
        loop {
            let (asked, moved) = match self.long {
                Some(long) => self.read_long(long, socket, sink)?,
                None => self.read_ahead(socket)?,
            };
            let count = match moved {
                IoOutcome::Bytes(count) => count,
                IoOutcome::WouldBlock => return Ok(total > 0),
                IoOutcome::Closed => return self.end_of_stream(total > 0),
            };
            if self.long.is_none() {
                self.deliver(sink)?;
            }
            total += count;
            // Less than was asked means that the kernel has no more.
            if count < asked || total >= TURN {
                return Ok(true);
            }
        }
    }

    /// After everything that came before it.
    fn end_of_stream(&mut self, something_came: bool) -> Result<bool, LinkError> {
        match self.farewell {
            StreamEnd::Open if something_came => Ok(true),
            StreamEnd::Open => Err(LinkError::Gone),
            StreamEnd::SaidBye | StreamEnd::Ended => {
                self.farewell = StreamEnd::Ended;
                Ok(something_came)
            }
        }
    }

    fn read_ahead(&mut self, socket: &TcpStream) -> Result<(usize, IoOutcome), LinkError> {
        let asked = self.room_ahead();
        let into = &mut self.buffer[self.end..self.end + asked];
        let moved = IoOutcome::read((&*socket).read(into))?;
        if let IoOutcome::Bytes(count) = moved {
            self.end += count;
        }
        Ok((asked, moved))
    }

    /// Never 0: what waits is less than [`WHOLE`] and a header, and at the buffer's front.
    fn room_ahead(&self) -> usize {
        let room = self.buffer.len() - self.end;
        if self.expects_long { room.min(SHORT_AHEAD) } else { room }
    }

    /// The rest of a payload straight to its place, and what follows it into the buffer, which is
    /// empty.
    fn read_long(
        &mut self,
        long: Long,
        socket: &TcpStream,
        sink: &mut dyn Sink,
    ) -> Result<(usize, IoOutcome), LinkError> {
        let ahead = self.room_ahead().min(SHORT_AHEAD);
        let ahead = &mut self.buffer[..ahead];
        let mut rest = long.header.length as usize - long.offset;
        let (mut asked, mut total, mut behind) = (0, 0, 0);
        let mut outcome = Ok(IoOutcome::WouldBlock);
        sink.part(long.header, long.offset, &mut |memory| {
            let length = memory.len().min(rest);
            let memory = &mut memory[..length];
            if memory.is_empty() {
                return Ok(0);
            }
            let result = if length == rest {
                asked += length + ahead.len();
                (&*socket).read_vectored(&mut [IoSliceMut::new(memory), IoSliceMut::new(ahead)])
            } else {
                asked += length;
                (&*socket).read(memory)
            };
            outcome = IoOutcome::read(result);
            let Ok(IoOutcome::Bytes(count)) = outcome else { return Ok(0) };
            total += count;
            behind = count.saturating_sub(length);
            rest -= count - behind;
            Ok(count - behind)
        })?;
        self.end = behind;
        self.advance(total - behind);
        Ok((asked, if total > 0 { IoOutcome::Bytes(total) } else { outcome? }))
    }

    fn advance(&mut self, count: usize) {
        if let Some(long) = &mut self.long {
            long.offset += count;
            if long.offset == long.header.length as usize {
                self.long = None;
            }
        }
    }

    /// Hands over every packet that lies in the buffer, and what there is of a long one.
    fn deliver(&mut self, sink: &mut dyn Sink) -> Result<(), LinkError> {
        while let Some((head, rest)) = self.buffer[self.begin..self.end].split_first_chunk() {
            let header = from_bytes(head)?;
            let length = header.length as usize;
            if length > PACKET {
                return Err(LinkError::Protocol("longer than a packet may be"));
            }
            if length <= rest.len() {
                if header.kind == PacketKind::Bye {
                    self.farewell = StreamEnd::SaidBye;
                }
                self.expects_long = length > WHOLE;
                self.begin += Header::SIZE + length;
                sink.packet(header, &rest[..length])?;
            } else if length <= WHOLE {
                break;
            } else {
                self.expects_long = true;
                self.begin += Header::SIZE;
                self.long = Some(Long { header, offset: 0 });
                self.hand_over_front(header, sink)?;
                break;
            }
        }
        if self.begin > 0 {
            self.buffer.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        Ok(())
    }

    /// All that is buffered is the front of this packet's payload.
    fn hand_over_front(&mut self, header: Header, sink: &mut dyn Sink) -> Result<(), LinkError> {
        let mut offset = 0;
        while self.begin < self.end {
            let mut taken = 0;
            let front = &self.buffer[self.begin..self.end];
            sink.part(header, offset, &mut |memory| {
                let left = &front[taken..];
                let count = left.len().min(memory.len());
                memory[..count].copy_from_slice(&left[..count]);
                taken += count;
                Ok::<usize, io::Error>(count)
            })?;
            if taken == 0 {
                return Err(LinkError::Protocol("no memory for a payload"));
            }
            self.begin += taken;
            offset += taken;
        }
        self.advance(offset);
        Ok(())
    }
}

#[inline]
fn from_bytes(bytes: &[u8; Header::SIZE]) -> Result<Header, LinkError> {
    let both = u128::from_le_bytes(*bytes);
    Header::from_words([both as u64, (both >> 64) as u64])
}
