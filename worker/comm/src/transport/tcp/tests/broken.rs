//! Tests with peers that send one byte at a time, send garbage, fall silent or die.

use super::*;
use std::io::Write;
use std::thread;

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
        let mut bad = to_bytes(header(PacketKind::Eager, 0, 0));
        bad[4] = kind;
        peer.write_all(&[&good[..], &bad].concat()).unwrap();
        let mut sink = Recorder::new(usize::MAX);
        let error = until_error(&mut link, &mut sink);
        assert!(matches!(error, LinkError::UnknownPacket(found) if found == kind), "{error:?}");
        assert_eq!(sink.packets.len(), 1);
    }
    let (mut link, mut peer) = bare();
    let long = header(PacketKind::Data, 0, link.limits().packet + 1);
    peer.write_all(&to_bytes(long)).unwrap();
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
