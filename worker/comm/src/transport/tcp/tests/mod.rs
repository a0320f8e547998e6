//! Tests with both ends in one process, and with a misbehaving peer.

mod broken;
mod whole;

use super::TcpLink;
use super::outbound::to_bytes;
use crate::transport::Armed;
use crate::transport::packet::{Header, PacketKind};
use crate::transport::{Fill, Link, Sink};
use crate::types::error::LinkError;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Makes both ends of a connection, with small kernel buffers if `small`. Small segments keep TCP
/// from waiting until there is room for a large segment.
fn sockets(small: bool) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    if small {
        setsockopt(&listener, sockopt::TcpMaxSeg, &1000).unwrap();
        setsockopt(&listener, sockopt::RcvBuf, &16_000).unwrap();
        setsockopt(&listener, sockopt::SndBuf, &4000).unwrap();
    }
    let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    if small {
        setsockopt(&dialled, sockopt::SndBuf, &4000).unwrap();
    }
    (dialled, accepted)
}

fn links(small: bool) -> (TcpLink, TcpLink) {
    let (one, other) = sockets(small);
    (TcpLink::new(one).unwrap(), TcpLink::new(other).unwrap())
}

/// Makes a link, and the plain socket of its peer.
fn bare() -> (TcpLink, TcpStream) {
    let (one, other) = sockets(false);
    (TcpLink::new(one).unwrap(), other)
}

fn header(kind: PacketKind, tag: u32, length: usize) -> Header {
    Header { kind, context: 5, tag, transfer: 9, length: length as u32 }
}

fn bytes(seed: u32, length: usize) -> Vec<u8> {
    (0..length as u32).map(|at| (at.wrapping_mul(31) ^ at >> 9).wrapping_add(seed) as u8).collect()
}

/// Encodes a packet as it is sent.
fn encoded(header: Header, payload: &[u8]) -> Vec<u8> {
    [&to_bytes(header)[..], payload].concat()
}

/// Sink that keeps all packets. For packets in parts it offers `piece` bytes of memory at a time.
#[derive(Default)]
struct Recorder {
    packets: Vec<(Header, Vec<u8>)>,
    partly: Vec<u8>,
    first_part: Option<usize>,
    piece: usize,
}

impl Recorder {
    fn new(piece: usize) -> Recorder {
        Recorder { piece, ..Recorder::default() }
    }
}

impl Sink for Recorder {
    fn packet(&mut self, header: Header, payload: &[u8]) -> Result<(), LinkError> {
        assert!(self.partly.is_empty(), "a packet within another");
        self.packets.push((header, payload.to_vec()));
        Ok(())
    }

    fn part(
        &mut self,
        header: Header,
        offset: usize,
        fill: &mut Fill<'_>,
    ) -> Result<usize, LinkError> {
        assert_eq!(offset, self.partly.len());
        let mut memory = vec![0; self.piece.min(header.length as usize - offset)];
        let count = fill(&mut memory).unwrap();
        self.first_part.get_or_insert(count);
        self.partly.extend_from_slice(&memory[..count]);
        if self.partly.len() == header.length as usize {
            self.packets.push((header, std::mem::take(&mut self.partly)));
        }
        Ok(count)
    }
}

/// Sends all packets from one end to the other, both in this thread.
fn cross(from: &mut TcpLink, to: &mut TcpLink, packets: &[(Header, Vec<u8>)], sink: &mut Recorder) {
    let end = Instant::now() + TIMEOUT;
    let first = sink.packets.len();
    for (header, payload) in packets {
        while !from.send(*header, payload).unwrap() {
            to.receive(sink).unwrap();
            assert!(Instant::now() < end, "stuck at {header:?}");
        }
    }
    while sink.packets.len() < first + packets.len() {
        to.receive(sink).unwrap();
        assert!(Instant::now() < end, "{} packets came", sink.packets.len());
    }
    // `assert_eq` would print a mebibyte.
    assert!(sink.packets[first..] == *packets, "what came is not what was sent");
}

/// Receives until an error, and returns it.
fn until_error(link: &mut TcpLink, sink: &mut Recorder) -> LinkError {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Err(error) = link.receive(sink) {
            return error;
        }
        assert!(Instant::now() < end, "no error");
    }
}

/// Receives until `sink` has `count` packets.
fn until_came(link: &mut TcpLink, sink: &mut Recorder, count: usize) {
    let end = Instant::now() + TIMEOUT;
    while sink.packets.len() < count {
        link.receive(sink).unwrap();
        assert!(Instant::now() < end, "{} packets came", sink.packets.len());
    }
}

/// Returns whether a rank that sleeps on the link would wake up within this time.
fn wakes(link: &mut TcpLink, wants_room: bool, milliseconds: u16) -> bool {
    let Armed::Watch(watched) = link.arm(wants_room).unwrap() else { return true };
    let mut flags = PollFlags::POLLIN;
    flags.set(PollFlags::POLLOUT, watched.writable);
    let mut fds = [PollFd::new(watched.fd, flags)];
    let ready = poll(&mut fds, PollTimeout::from(milliseconds)).unwrap() > 0;
    link.disarm();
    ready
}

/// Generator of pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}
