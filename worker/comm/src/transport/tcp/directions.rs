//! Receiving of packets from one socket.
//!
//! Sending of packets over one socket.

use super::{IoOutcome, PACKET};
use crate::transport::{Header, PacketKind, Sink};
use crate::types::LinkError;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send, sendmsg};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Size of the buffer for data that is read ahead, in bytes.
const AHEAD: usize = 64 << 10;
/// Maximum number of bytes to read ahead while a long packet is expected. The limit is low, so that
/// the packet's payload is read straight into the receiver's memory and not into the buffer.
const SHORT_AHEAD: usize = 256;
/// Longest payload, in bytes, that is always delivered whole. Longer payloads may be delivered in
/// parts.
const WHOLE: usize = 16 << 10;
/// Number of bytes after which a call of [`Inbound::receive`] returns, so that other links get
/// their turn.
const RECEIVE_BUDGET: usize = 4 << 20;

/// Receive state of a link.
pub(super) struct Inbound {
    /// Data that was read ahead; the bytes `begin..end` are not delivered yet.
    buffer: Box<[u8]>,
    begin: usize,
    end: usize,
    /// Long packet of which only a part was delivered so far.
    long: Option<Long>,
    /// Whether the next packet is probably long.
    expects_long: bool,
    stream_end: StreamEnd,
}

#[derive(Clone, Copy, Debug)]
struct Long {
    header: Header,
    /// Number of bytes of the payload that were delivered so far.
    offset: usize,
}

/// State of the stream of data from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamEnd {
    Open,
    /// [`PacketKind::Bye`] has arrived.
    SaidBye,
    /// [`PacketKind::Bye`] and the end of the stream have arrived.
    Ended,
}

/// Omits the buffer, which contains the program's data.
impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut inbound = f.debug_struct("Inbound");
        inbound.field("waiting", &(self.end - self.begin)).field("long", &self.long);
        inbound.field("stream_end", &self.stream_end).finish_non_exhaustive()
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
            stream_end: StreamEnd::Open,
        }
    }

    pub(super) fn expect_long(&mut self) {
        self.expects_long = true;
    }

    /// Returns whether the stream has ended after a goodbye packet.
    pub(super) fn has_ended(&self) -> bool {
        self.stream_end == StreamEnd::Ended
    }

    /// Reads data from the socket, and delivers the packets in it to `sink`. Returns whether any
    /// data had arrived; if not, the call has cost one system call.
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
            // After a partial read the kernel has no more data.
            if count < asked || total >= RECEIVE_BUDGET {
                return Ok(true);
            }
        }
    }

    /// Handles the end of the stream, which is an error if no goodbye packet has arrived. A call
    /// that has received data before the end (`has_received`) succeeds nevertheless; the next call
    /// returns the error.
    fn end_of_stream(&mut self, has_received: bool) -> Result<bool, LinkError> {
        match self.stream_end {
            StreamEnd::Open if has_received => Ok(true),
            StreamEnd::Open => Err(LinkError::Gone),
            StreamEnd::SaidBye | StreamEnd::Ended => {
                self.stream_end = StreamEnd::Ended;
                Ok(has_received)
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

    /// Returns the number of bytes to read ahead. The number is never 0, because undelivered data
    /// is at the front of the buffer and shorter than a header and [`WHOLE`] bytes.
    fn room_ahead(&self) -> usize {
        let room = self.buffer.len() - self.end;
        if self.expects_long { room.min(SHORT_AHEAD) } else { room }
    }

    /// Reads the rest of a long payload straight into the receiver's memory, and the data that
    /// follows it into the buffer, which is empty.
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

    /// Delivers every complete packet in the buffer, and the beginning of a long packet.
    fn deliver(&mut self, sink: &mut dyn Sink) -> Result<(), LinkError> {
        while let Some((head, rest)) = self.buffer[self.begin..self.end].split_first_chunk() {
            let header = Header::from_bytes(head)?;
            let length = header.length as usize;
            if length > PACKET {
                return Err(LinkError::Protocol("a packet is too long"));
            }
            if length <= rest.len() {
                if header.kind == PacketKind::Bye {
                    self.stream_end = StreamEnd::SaidBye;
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
                self.deliver_front(header, sink)?;
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

    /// Delivers the buffered beginning of a long packet's payload; nothing else is in the buffer.
    fn deliver_front(&mut self, header: Header, sink: &mut dyn Sink) -> Result<(), LinkError> {
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
                return Err(LinkError::Protocol("there is no memory for a payload"));
            }
            self.begin += taken;
            offset += taken;
        }
        self.advance(offset);
        Ok(())
    }
}

/// Longest payload, in bytes, that is copied into one buffer with its header: the copy is cheaper
/// than a system call with two buffers.
const SMALL: usize = 496;

/// Size, in bytes, of a separate first write for payloads that are longer than this, but at most
/// twice as long. The kernel transmits nothing of such a payload before it has copied the last
/// byte. If the first part is written separately, the peer copies that part meanwhile, which
/// shortens the transfer by a fifth. The kernel itself splits longer payloads.
const EARLY: usize = 32 << 10;

/// Flags of all sends. A broken connection must be an error and not SIGPIPE, because the process
/// belongs to the program.
const FLAGS: MsgFlags = MsgFlags::MSG_NOSIGNAL.union(MsgFlags::MSG_DONTWAIT);

/// Send state of a link: number of bytes sent of the current packet, and a buffer for small
/// packets.
pub(super) struct Outbound {
    sent: usize,
    small: [u8; Header::SIZE + SMALL],
}

/// Omits the buffer, which contains the program's data.
impl fmt::Debug for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbound").field("sent", &self.sent).finish_non_exhaustive()
    }
}

impl Default for Outbound {
    fn default() -> Outbound {
        Outbound { sent: 0, small: [0; Header::SIZE + SMALL] }
    }
}

impl Outbound {
    /// Sends a packet, or continues the packet of the previous call. Returns `true` once the whole
    /// packet is written, `false` if the socket has no room for the rest yet.
    #[inline]
    pub(super) fn send(
        &mut self,
        socket: &TcpStream,
        header: Header,
        payload: &[u8],
    ) -> Result<bool, LinkError> {
        let head = header.to_bytes();
        let moved = match self.small.get_mut(..Header::SIZE + payload.len()) {
            Some(small) => {
                small[..Header::SIZE].copy_from_slice(&head);
                small[Header::SIZE..].copy_from_slice(payload);
                let small = &small[self.sent.min(small.len())..];
                IoOutcome::written(send(socket.as_raw_fd(), small, FLAGS).map_err(io::Error::from))?
            }
            None => {
                if self.sent == 0 && (EARLY + 1..=2 * EARLY).contains(&payload.len()) {
                    let early = write_two(socket, &head, &payload[..EARLY], 0)?;
                    if !self.count_sent(&early)? || self.sent < head.len() + EARLY {
                        return Ok(false);
                    }
                }
                write_two(socket, &head, payload, self.sent)?
            }
        };
        if !self.count_sent(&moved)? {
            return Ok(false);
        }
        // After a partial write the socket buffer is full; another call would fail.
        if self.sent < head.len() + payload.len() {
            return Ok(false);
        }
        self.sent = 0;
        Ok(true)
    }

    /// Counts the bytes that a system call has written. Returns whether there were any.
    fn count_sent(&mut self, moved: &IoOutcome) -> Result<bool, LinkError> {
        match moved {
            IoOutcome::Bytes(count) => self.sent += count,
            IoOutcome::WouldBlock => return Ok(false),
            IoOutcome::Closed => return Err(LinkError::Gone),
        }
        Ok(true)
    }
}

/// Writes `head` and then `body`, without the first `sent` bytes of both together.
fn write_two(
    socket: &TcpStream,
    head: &[u8],
    body: &[u8],
    sent: usize,
) -> Result<IoOutcome, LinkError> {
    let head_rest = head.get(sent..).unwrap_or_default();
    let body_rest = body.get(sent.saturating_sub(head.len())..).unwrap_or_default();
    let result = if head_rest.is_empty() {
        send(socket.as_raw_fd(), body_rest, FLAGS)
    } else {
        let both = [IoSlice::new(head_rest), IoSlice::new(body_rest)];
        sendmsg::<()>(socket.as_raw_fd(), &both, &[], FLAGS, None)
    };
    IoOutcome::written(result.map_err(|errno: Errno| io::Error::from(errno)))
}
