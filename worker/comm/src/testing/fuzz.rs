//! Entry points for fuzzers. Their input takes the place of what other ranks, or processes outside
//! the job, send. No input may cause a panic or allocate much more memory than its own length.

use crate::connect;
use crate::progress::engine::matching::Target;
use crate::progress::engine::{Engine, Envelope, Owner};
use crate::transport::{Armed, Header, Limits, Link, LocalSlice, PacketKind, SelfLink, Sink};
use crate::types::{Cause, LinkError, Operation, PeerName};
use bytes::Bytes;
use rlaunch_lock::{EngineLock, Memory};
use std::collections::VecDeque;

/// Longest payload of a packet in bytes.
const PACKET: usize = 128;
/// Length of each receive buffer in bytes.
const ROOM: usize = 64;
/// Number of bytes in front of each packet in the input: a flag for arrival in parts, and the
/// length of the payload.
const FRAME: usize = 2;

/// Decodes the input as a rank's contact, and as the first message of a connection.
pub fn contact_and_hello(data: &[u8]) {
    let own = connect::Contact::new(None);
    let _ = connect::exchange_contacts(&own, |_| Ok(vec![Bytes::copy_from_slice(data)]));
    let _ = connect::is_hello(data);
}

/// Returns valid inputs of [`contact_and_hello`].
pub fn contact_and_hello_seeds() -> Vec<Vec<u8>> {
    let mut hello = b"rlrank\0\x02".to_vec();
    hello.extend([7; 40]);
    // Version, TCP port and key, no RDMA advert.
    let contact = [vec![3, 1, 0xd2, 9], vec![3; 32], vec![0]].concat();
    vec![hello, contact]
}

/// Link over which the packets of the fuzzer's input arrive.
struct Feed {
    packets: VecDeque<(bool, Result<Header, LinkError>, Vec<u8>)>,
}

impl Feed {
    /// Splits the input into packets. The input of a packet is a flag for arrival in parts, a
    /// length, a header and a payload.
    fn cut(mut data: &[u8]) -> Feed {
        let mut packets = VecDeque::new();
        while let Some((&[in_parts, length], rest)) = data.split_first_chunk::<FRAME>() {
            let Some((words, rest)) = rest.split_first_chunk::<{ Header::SIZE }>() else { break };
            let length = usize::from(length).min(PACKET).min(rest.len());
            let header = Header::from_bytes(words);
            let header = header.map(|header| Header { length: length as u32, ..header });
            packets.push_back((in_parts % 2 == 1, header, rest[..length].to_vec()));
            data = &rest[length..];
        }
        Feed { packets }
    }
}

impl Link for Feed {
    fn limits(&self) -> Limits {
        let (fetch, write) = (usize::MAX, usize::MAX);
        Limits { eager: ROOM, packet: PACKET, fetch, write, poll_is_syscall: false }
    }

    fn send(&mut self, _: Header, _: &[u8]) -> Result<bool, LinkError> {
        Ok(true)
    }

    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        let Some((in_parts, header, payload)) = self.packets.pop_front() else { return Ok(false) };
        let header = header?;
        if !in_parts {
            return sink.packet(header, &payload).map(|()| true);
        }
        let mut offset = 0;
        loop {
            let mut taken = 0;
            let received = sink.part(header, offset, &mut |memory| {
                let rest = &payload[offset..];
                taken = rest.len().min(memory.len()).min(7);
                memory[..taken].copy_from_slice(&rest[..taken]);
                Ok(taken)
            })?;
            assert_eq!(received, taken);
            offset += received;
            if offset == payload.len() || received == 0 {
                return Ok(true);
            }
        }
    }

    fn arm(&mut self, _: bool) -> Result<Armed<'_>, LinkError> {
        Ok(Armed::NoFd)
    }
}

/// Delivers the input as packets of one peer to a rank that waits for short messages from that
/// peer, for a message from any rank, and for the peer to accept a long message.
pub fn packets(data: &[u8]) {
    let name = |rank| PeerName { rank, host: "".into() };
    let links: Vec<Box<dyn Link>> = vec![Box::new(SelfLink::default()), Box::new(Feed::cut(data))];
    let lock = EngineLock::new(Engine::new(0, links, [name(0), name(1)].into()), |_| ());
    let (mut into, from) = ([0; 4 * ROOM], [1; 4 * ROOM]);
    lock.lend([Memory::Exclusive(&mut into), Memory::Shared(&from)], |guard, [into, from]| {
        let (engine, buffers) = guard.attach_and_split();
        let mut keys = Vec::new();
        for tag in 0..3 {
            let key = engine.request(Operation::Receive { from: Some(1), tag });
            let room = LocalSlice::all(into, 4 * ROOM).part(tag as usize * ROOM, ROOM);
            let target = Target { into: room, reduction: None };
            let message = Envelope { peer: 1, context: 0, tag };
            engine.receive(message, target, Owner::Request(key), buffers);
            keys.push(key);
        }
        let key = engine.request(Operation::Receive { from: None, tag: 3 });
        let room = LocalSlice::all(into, 4 * ROOM).part(3 * ROOM, ROOM);
        let target = Target { into: room, reduction: None };
        engine.receive_any(&[0, 1], 0, 3, target, Owner::Request(key), buffers);
        keys.push(key);
        let key = engine.request(Operation::Send { to: 1, tag: 0 });
        let message = Envelope { peer: 1, context: 0, tag: 0 };
        engine.send(message, LocalSlice::all(from, 4 * ROOM), Owner::Request(key), buffers);
        keys.push(key);
        // Each call handles one packet, or sends what follows from one.
        for _ in 0..2 * (data.len() / (FRAME + Header::SIZE)) + 4 {
            engine.progress(buffers);
        }
        for key in keys {
            engine.cancel(key, &Cause::Cancelled, buffers);
        }
    });
}

/// Returns valid inputs of [`packets`].
pub fn packets_seeds() -> Vec<Vec<u8>> {
    let packet = |in_parts, kind, (tag, transfer), payload: &[u8]| {
        let header = Header { kind, context: 0, tag, transfer, length: payload.len() as u32 };
        let head = [in_parts, payload.len() as u8];
        [&head[..], &header.to_bytes(), payload].concat()
    };
    let offer = [48_u64.to_le_bytes(), [0; 8]].concat();
    let whole = [
        packet(0, PacketKind::Eager, (0, 0), &[5; 20]),
        packet(1, PacketKind::Eager, (3, 0), &[6; 40]),
        packet(0, PacketKind::Cts, (0, 1), &[]),
        packet(0, PacketKind::Bye, (0, 0), &[]),
    ];
    let offered = [
        packet(0, PacketKind::Rts, (1, 9), &offer),
        packet(1, PacketKind::Data, (1, 9), &[7; 30]),
        packet(0, PacketKind::Data, (1, 9), &[7; 18]),
        packet(0, PacketKind::Fin, (0, 1), &[]),
        packet(0, PacketKind::Rts, (8, 10), &offer),
    ];
    vec![whole.concat(), offered.concat()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_mean_something() {
        for seed in packets_seeds() {
            let packets = Feed::cut(&seed).packets;
            assert!(packets.len() > 3 && packets.iter().all(|(_, header, _)| header.is_ok()));
        }
        let [hello, contact] = &contact_and_hello_seeds()[..] else { panic!("two seeds") };
        assert!(connect::is_hello(hello));
        let own = connect::Contact::new(None);
        assert!(
            connect::exchange_contacts(&own, |_| Ok(vec![Bytes::copy_from_slice(contact)])).is_ok()
        );
    }
}
