//! Tests of two links that are connected with each other.

use super::*;

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
