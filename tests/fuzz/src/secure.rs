//! Handshakes between agents, and the encrypted stream between an agent and its parent in the tree.

use crate::stream::{parts, whole};
use rlaunch_bootstrap::id::{JobId, NodeId};
use rlaunch_bootstrap::security::Secret;
use rlaunch_bootstrap::security::handshake::{
    Dialer, Established, HandshakeStep, Listener, Parties,
};

const PARTIES: Parties = Parties { job: JobId(7), from: NodeId(2), to: NodeId(1) };

fn secret() -> Secret {
    Secret::from_bytes([3; 32])
}

/// Runs both ends of a handshake on input that was made without the secret: neither completes it.
pub(crate) fn handshake(data: &[u8]) {
    let mut listener = Listener::new(secret(), PARTIES.job, PARTIES.to);
    for part in parts(data) {
        match listener.receive(part) {
            Ok(HandshakeStep::More(more)) => listener = more,
            Ok(HandshakeStep::Done(_)) => panic!("the listener accepts a peer without the secret"),
            Err(_) => break,
        }
    }
    let Ok((mut dialler, _)) = Dialer::start(&secret(), PARTIES) else { return };
    for part in parts(data) {
        match dialler.receive(part) {
            Ok(HandshakeStep::More(more)) => dialler = more,
            Ok(HandshakeStep::Done(_)) => panic!("the dialer accepts a peer without the secret"),
            Err(_) => break,
        }
    }
}

/// Changes the bytes of an encrypted stream: the receiver gets a prefix of the sent text and
/// nothing else.
pub(crate) fn sealed(data: &[u8]) {
    const SAID: &[u8] = b"what was said, over and over";
    let Some((mut from, mut to)) = connected() else { return };
    let mut packets = Vec::new();
    for piece in SAID.chunks(7) {
        assert!(from.stream.seal(piece, &mut packets).is_ok());
    }
    let Some((at, change)) = data.split_first() else { return };
    let at = usize::from(*at) % packets.len();
    for (byte, change) in packets[at..].iter_mut().zip(change) {
        *byte ^= change;
    }
    packets.truncate(packets.len().saturating_sub(change.len() % 5));
    let mut heard = Vec::new();
    let _ = to.stream.open(&packets, &mut heard);
    assert!(SAID.starts_with(&heard));
    let _ = to.stream.open(data, &mut heard);
    assert!(SAID.starts_with(&heard));
}

fn connected() -> Option<(Established, Established)> {
    let (dialler, first) = Dialer::start(&secret(), PARTIES).ok()?;
    let listener = Listener::new(secret(), PARTIES.job, PARTIES.to);
    let Ok(HandshakeStep::Done(listener)) = listener.receive(&first) else { return None };
    let Ok(HandshakeStep::Done(dialler)) = dialler.receive(&listener.send) else { return None };
    Some((dialler, listener))
}

pub(crate) fn handshake_seeds() -> Vec<Vec<u8>> {
    let other = Secret::from_bytes([4; 32]);
    let first = Dialer::start(&other, PARTIES).map(|(_, first)| first).unwrap_or_default();
    vec![whole(first.iter().copied()), whole(first[..9].iter().copied())]
}

pub(crate) fn sealed_seeds() -> Vec<Vec<u8>> {
    vec![vec![0, 1], vec![9, 0, 0, 7], vec![40; 60]]
}
