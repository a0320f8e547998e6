//! Peers for tests that play the host's side of an exchange up to any byte of it, and then stall or hang up.

use super::channel::AgentChannel;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

/// Behaviour of the peer after the last byte that it plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Neither reads nor writes any more, as behind a link that drops packets.
    Stalls,
    /// Closes the stream.
    Closes,
}

/// Part of an exchange, as the host plays it.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Says(Vec<u8>),
    /// Reads this many bytes.
    Hears(usize),
}

impl Step {
    fn len(&self) -> usize {
        match self {
            Step::Says(bytes) => bytes.len(),
            Step::Hears(count) => *count,
        }
    }
}

/// Returns the number of bytes of an exchange in both directions.
pub(crate) fn length(steps: &[Step]) -> usize {
    steps.iter().map(Step::len).sum()
}

/// Returns a channel to a peer that plays the first `bytes` bytes of an exchange, and then has a fault.
pub(crate) fn channel_to_peer(steps: &[Step], bytes: usize, fault: Fault) -> AgentChannel {
    // What the peer has not read blocks the launcher, so the buffer holds only one byte.
    let (own, peer) = duplex(1);
    let steps = steps.to_vec();
    tokio::spawn(async move {
        let peer = play(peer, steps, bytes).await;
        if fault == Fault::Stalls {
            std::future::pending::<()>().await;
        }
        drop(peer);
    });
    AgentChannel::over_stream(own)
}

async fn play(mut peer: DuplexStream, steps: Vec<Step>, mut left: usize) -> DuplexStream {
    for step in steps {
        let count = step.len().min(left);
        left -= count;
        // An error means that the launcher has hung up.
        let _ = match step {
            Step::Says(bytes) => peer.write_all(&bytes[..count]).await,
            Step::Hears(_) => peer.read_exact(&mut vec![0; count]).await.map(drop),
        };
    }
    peer
}
