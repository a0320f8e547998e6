//! Tests with both ends in one process, and with a misbehaving peer.
//!
//! Tests with peers that send one byte at a time, send garbage, fall silent or die.
//!
//! Tests of two links that are connected with each other.

use super::TcpLink;
use crate::transport::{Armed, Fill, Header, Link, PacketKind, Sink};
use crate::types::LinkError;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread;
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
    [&header.to_bytes()[..], payload].concat()
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

#[test]
fn a_peer_that_sends_in_fragments_is_understood() {
    for seed in 1..=8 {
        let (mut link, mut peer) = bare();
        let mut random = Random(seed * 0x1234_5677);
        let mut packets = Vec::new();
        for tag in 0..40 {
            let size = [0, 7, 40, 600, 17_000, 70_000][random.below(6)] + random.below(9);
            packets.push((header(PacketKind::Eager, tag, size), bytes(tag, size)));
        }
        let stream: Vec<u8> =
            packets.iter().flat_map(|(h, payload)| encoded(*h, payload)).collect();
        peer.set_nodelay(true).unwrap();
        let writer = thread::spawn(move || {
            let mut rest = &stream[..];
            while !rest.is_empty() {
                let most = if random.below(20) == 0 { 50_000 } else { 40 };
                let count = (1 + random.below(most)).min(rest.len());
                peer.write_all(&rest[..count]).unwrap();
                rest = &rest[count..];
            }
            peer
        });
        let mut sink = Recorder::new(if seed % 2 == 0 { usize::MAX } else { 333 });
        until_came(&mut link, &mut sink, packets.len());
        assert!(sink.packets == packets, "seed {seed}");
        drop(writer.join().unwrap());
        assert!(matches!(until_error(&mut link, &mut sink), LinkError::Gone));
    }
}

#[test]
fn packets_that_no_rlaunch_sends_are_refused() {
    let good = encoded(header(PacketKind::Eager, 1, 2), &[1, 2]);
    for kind in [0, 10, 15] {
        let (mut link, mut peer) = bare();
        let mut bad = header(PacketKind::Eager, 0, 0).to_bytes();
        bad[4] = kind;
        peer.write_all(&[&good[..], &bad].concat()).unwrap();
        let mut sink = Recorder::new(usize::MAX);
        let error = until_error(&mut link, &mut sink);
        assert!(matches!(error, LinkError::UnknownPacket(found) if found == kind), "{error:?}");
        assert_eq!(sink.packets.len(), 1);
    }
    let (mut link, mut peer) = bare();
    let long = header(PacketKind::Data, 0, link.limits().packet + 1);
    peer.write_all(&long.to_bytes()).unwrap();
    let error = until_error(&mut link, &mut Recorder::new(usize::MAX));
    assert!(matches!(error, LinkError::Protocol(_)), "{error:?}");
}

#[test]
fn an_end_without_bye_is_noticed_after_all_that_was_sent() {
    let whole = encoded(header(PacketKind::Eager, 1, 100), &bytes(1, 100));
    let long = encoded(header(PacketKind::Data, 2, 500_000), &bytes(2, 500_000));
    for (lasts, cut) in [(&whole, 0), (&whole, 9), (&whole, 50), (&long, 16), (&long, 400_000)] {
        let (mut link, mut peer) = bare();
        let stream = [&whole[..], &lasts[..cut]].concat();
        let writer = thread::spawn(move || peer.write_all(&stream).unwrap());
        let mut sink = Recorder::new(usize::MAX);
        assert!(matches!(until_error(&mut link, &mut sink), LinkError::Gone));
        assert_eq!(sink.packets.len(), 1);
        assert_eq!(sink.partly.len(), if cut > 16 && lasts == &long { cut - 16 } else { 0 });
        writer.join().unwrap();
        assert!(matches!(link.receive(&mut sink), Err(LinkError::Gone)), "it stays so");
    }
}

#[test]
fn an_end_after_bye_is_no_error_and_wakes_nobody() {
    let (mut one, mut other) = links(false);
    assert!(one.send(header(PacketKind::Bye, 0, 0), &[]).unwrap());
    drop(one);
    let mut sink = Recorder::new(usize::MAX);
    until_came(&mut other, &mut sink, 1);
    let end = Instant::now() + TIMEOUT;
    while !other.inbound.has_ended() {
        other.receive(&mut sink).unwrap();
        assert!(Instant::now() < end);
    }
    assert!(!other.receive(&mut sink).unwrap());
    assert!(!wakes(&mut other, false, 20));
}

#[test]
fn a_peer_that_dies_with_unread_packets_is_gone_for_both_directions() {
    let (mut link, mut peer) = bare();
    peer.write_all(&encoded(header(PacketKind::Eager, 1, 4), &[1, 2, 3, 4])).unwrap();
    assert!(link.send(header(PacketKind::Eager, 2, 4), &[4; 4]).unwrap());
    let waiting = |peer: &TcpStream| peer.peek(&mut [0; 20]).unwrap();
    assert_eq!(waiting(&peer), 20);
    // TCP sends a reset when a socket with unread data is closed.
    drop(peer);
    let mut sink = Recorder::new(usize::MAX);
    assert!(matches!(until_error(&mut link, &mut sink), LinkError::Gone));
    assert_eq!(sink.packets.len(), 1);
    let end = Instant::now() + TIMEOUT;
    let error = loop {
        match link.send(header(PacketKind::Eager, 3, 4), &[4; 4]) {
            Ok(_) => assert!(Instant::now() < end),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LinkError::Gone), "{error:?}");
}

/// Returns payload sizes from 0 to `limit` bytes, most of them near a limit in the code.
fn sizes(limit: usize) -> Vec<usize> {
    let edges = [1, 496, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 512 << 10, limit - 1];
    let around = edges.into_iter().flat_map(|edge| [edge - 1, edge, edge + 1]);
    around.chain([(64 << 10) - 16, limit / 2 + 77]).collect()
}

#[test]
fn packets_of_every_size_arrive_whole_and_in_order() {
    for piece in [usize::MAX, 10_000, 70_001] {
        let (mut one, mut other) = links(false);
        let mut packets = Vec::new();
        for (tag, size) in (0..).zip(sizes(one.limits().packet)) {
            for kind in [PacketKind::Eager, PacketKind::Data, PacketKind::Fin] {
                packets.push((header(kind, tag, size), bytes(tag, size)));
            }
        }
        let mut sink = Recorder::new(piece);
        cross(&mut one, &mut other, &packets, &mut sink);
        cross(&mut other, &mut one, &packets, &mut sink);
    }
}

#[test]
fn packets_get_through_small_kernel_buffers_in_both_directions_at_once() {
    let (mut one, mut other) = links(true);
    let mut random = Random(0x9e37_79b9);
    let kinds = [PacketKind::Eager, PacketKind::Rts, PacketKind::Cts, PacketKind::Data];
    let mut packets = Vec::new();
    for tag in 0..60 {
        let size = match random.below(4) {
            0 => random.below(2000),
            1 => random.below(40_000),
            2 => random.below(900_000),
            _ => 0,
        };
        packets.push((header(kinds[random.below(4)], tag, size), bytes(tag, size)));
    }
    let mut sinks = [Recorder::new(usize::MAX), Recorder::new(30_000)];
    let mut sent = [0, 0];
    let end = Instant::now() + TIMEOUT;
    while sinks.iter().any(|sink| sink.packets.len() < packets.len()) {
        let [ones, others] = &mut sent;
        for (link, sent) in [(&mut one, ones), (&mut other, others)] {
            if let Some((header, payload)) = packets.get(*sent) {
                *sent += usize::from(link.send(*header, payload).unwrap());
            }
        }
        one.receive(&mut sinks[0]).unwrap();
        other.receive(&mut sinks[1]).unwrap();
        assert!(Instant::now() < end, "stuck after {sent:?}");
    }
    assert!(sinks.iter().all(|sink| sink.packets == packets));
}

#[test]
fn one_read_brings_many_small_packets() {
    let (mut one, mut other) = links(false);
    for tag in 0..500 {
        assert!(one.send(header(PacketKind::Eager, tag, 8), &bytes(tag, 8)).unwrap());
    }
    let all = 500 * (Header::SIZE + 8);
    let end = Instant::now() + TIMEOUT;
    while other.socket.peek(&mut vec![0; all]).unwrap_or(0) < all {
        assert!(Instant::now() < end);
    }
    let mut sink = Recorder::new(usize::MAX);
    assert!(other.receive(&mut sink).unwrap());
    assert_eq!(sink.packets.len(), 500);
    assert!(!other.receive(&mut sink).unwrap());
}

#[test]
fn an_expected_long_packet_goes_straight_to_its_place() {
    let (mut one, mut other) = links(false);
    let mut sink = Recorder::new(usize::MAX);
    let grant = (header(PacketKind::Cts, 0, 8), bytes(0, 8));
    let size = one.limits().packet;
    cross(&mut other, &mut one, &[grant], &mut sink);
    let packet = (header(PacketKind::Data, 1, size), bytes(1, size));
    cross(&mut one, &mut other, &[packet], &mut sink);
    let first = sink.first_part.unwrap();
    assert!(first <= 256, "{first} bytes were read ahead and copied");
}

#[test]
fn a_link_sleeps_until_something_comes_and_until_there_is_room() {
    let (mut one, mut other) = links(true);
    assert!(!wakes(&mut other, false, 20));
    let small = (header(PacketKind::Eager, 0, 3), bytes(0, 3));
    assert!(one.send(small.0, &small.1).unwrap());
    assert!(wakes(&mut other, false, 5000));
    let mut sink = Recorder::new(usize::MAX);
    until_came(&mut other, &mut sink, 1);
    assert!(!wakes(&mut other, false, 20));

    let size = one.limits().packet;
    let long = (header(PacketKind::Data, 1, size), bytes(1, size));
    while one.send(long.0, &long.1).unwrap() || wakes(&mut one, true, 200) {}
    let (mut room, mut came) = (0, 0);
    loop {
        assert!(wakes(&mut other, false, 5000), "lost after {came} receives");
        came += usize::from(other.receive(&mut sink).unwrap());
        if wakes(&mut one, true, 0) {
            room += 1;
            if one.send(long.0, &long.1).unwrap() {
                break;
            }
        }
    }
    assert!(room > 0);
    let end = Instant::now() + TIMEOUT;
    while sink.packets.last().is_none_or(|last| last.0 != long.0) || !sink.partly.is_empty() {
        other.receive(&mut sink).unwrap();
        assert!(Instant::now() < end);
    }
    assert!(sink.packets.iter().skip(1).all(|packet| *packet == long));
}

#[test]
fn what_is_no_packet_is_not_sent() {
    let (mut one, _other) = links(false);
    let long = vec![0; one.limits().packet + 1];
    let error = one.send(header(PacketKind::Eager, 0, long.len()), &long).unwrap_err();
    assert!(matches!(error, LinkError::Protocol(_)));
    let error = one.send(header(PacketKind::Eager, 0, 3), &[1, 2]).unwrap_err();
    assert!(matches!(error, LinkError::Protocol(_)));
}
