//! An edge made of a TCP connection: frames of the tree, encrypted, in both directions.

use super::negotiation::{Negotiation, NegotiationError};
use bytes::Bytes;
use nix::sys::socket::{setsockopt, sockopt};
use rlaunch_bootstrap::deadline::Deadline;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::rendezvous::codec::{Decoder, encode_head};
use rlaunch_bootstrap::rendezvous::link::{Frame, Head};
use rlaunch_bootstrap::security::handshake::{MAX_PLAIN, SecureError, SecureStream};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout_at};

/// Sealed bytes that are written at once.
const WRITE_AT_ONCE: usize = 256 << 10;

/// What comes from an edge.
#[derive(Debug)]
pub(crate) enum EdgeEvent {
    Frame(Frame),
    /// It broke, and how that was noticed. Nothing follows.
    Broke(String),
}

/// A connection that was proved both ways and carries nothing yet.
pub(crate) struct ProvedConnection {
    pub(crate) peer: NodeId,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    tcp: TcpStream,
    stream: SecureStream,
    rest: Vec<u8>,
}

impl ProvedConnection {
    pub(super) fn new(
        peer: NodeId,
        negotiation: Negotiation,
    ) -> Result<ProvedConnection, NegotiationError> {
        let (local, remote) = negotiation.addresses()?;
        let (tcp, stream, rest) = negotiation.into_parts();
        Ok(ProvedConnection { peer, local, remote, tcp, stream, rest })
    }

    /// Starts to carry frames, until the peer has been silent for so long. What comes goes to
    /// `events`, marked with the peer.
    pub(crate) fn into_edge(
        self,
        payload_limit: usize,
        silence: Duration,
        events: mpsc::UnboundedSender<(NodeId, EdgeEvent)>,
    ) -> Edge {
        let (reading, writing) = self.tcp.into_split();
        let stream = Arc::new(Mutex::new(self.stream));
        let (frames, queue) = mpsc::unbounded_channel();
        let mut decoder = Decoder::new(payload_limit);
        decoder.push(&self.rest);
        let edge_reader = EdgeReader { reading, stream: stream.clone(), decoder, silence };
        let peer = self.peer;
        let mut reader = JoinSet::new();
        reader.spawn(async move {
            let how = edge_reader.read_all(peer, &events).await;
            // Nobody listens any more once the agent is leaving.
            let _ = events.send((peer, EdgeEvent::Broke(how)));
        });
        let writer = tokio::spawn(write_all(writing, stream, queue));
        Edge { frames, _reader: reader, writer }
    }
}

/// An edge that carries frames until it is dropped or breaks.
#[derive(Debug)]
pub(crate) struct Edge {
    frames: mpsc::UnboundedSender<Frame>,
    /// Aborted with the edge.
    _reader: JoinSet<()>,
    /// Ends by itself once its queue is empty and nobody can add to it.
    writer: JoinHandle<()>,
}

impl Edge {
    /// Bounded by the link, which keeps what is not confirmed.
    pub(crate) fn send(&self, frame: Frame) {
        // Its reader says so when it is broken.
        let _ = self.frames.send(frame);
    }

    /// Waits until everything is written.
    pub(crate) async fn finish(self) {
        let Edge { frames, writer, .. } = self;
        drop(frames);
        // It has nothing to say but that it is over.
        let _ = writer.await;
    }
}

struct EdgeReader {
    reading: OwnedReadHalf,
    stream: Arc<Mutex<SecureStream>>,
    decoder: Decoder<Head>,
    silence: Duration,
}

impl EdgeReader {
    /// Reads until the edge breaks, and says how it did.
    async fn read_all(
        mut self,
        peer: NodeId,
        events: &mpsc::UnboundedSender<(NodeId, EdgeEvent)>,
    ) -> String {
        let mut buffer = vec![0; 64 << 10];
        let mut plain = Vec::new();
        loop {
            loop {
                match self.decoder.next_frame() {
                    Ok(Some((head, payload))) => {
                        let frame = Frame { head, payload: payload.into() };
                        if events.send((peer, EdgeEvent::Frame(frame))).is_err() {
                            return "closing".to_owned();
                        }
                    }
                    Ok(None) => break,
                    Err(error) => return error.to_string(),
                }
            }
            let length = match self.read(&mut buffer).await {
                None => return format!("nothing heard for {} s", self.silence.as_secs()),
                Some(Ok(0)) => return "the connection ended".to_owned(),
                Some(Ok(length)) => length,
                Some(Err(error)) => return error.to_string(),
            };
            plain.clear();
            if let Err(error) = open(&self.stream, &buffer[..length], &mut plain) {
                return error.to_string();
            }
            self.decoder.push(&plain);
        }
    }

    /// Reads something; `None` once the peer has been silent for too long. While this process
    /// itself stood still, that was not the peer's silence.
    async fn read(&mut self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        let mut silence = Deadline::after(self.silence, Instant::now().into_std());
        loop {
            match timeout_at(silence.look().into(), self.reading.read(buffer)).await {
                Ok(read) => return Some(read),
                Err(_) if silence.is_over(Instant::now().into_std()) => return None,
                Err(_) => {}
            }
        }
    }
}

/// Writes frames until there are none to come or the edge breaks.
async fn write_all(
    mut writing: OwnedWriteHalf,
    stream: Arc<Mutex<SecureStream>>,
    mut queue: mpsc::UnboundedReceiver<Frame>,
) {
    while let Some(frame) = queue.recv().await {
        let Ok(head) = encode_head(&frame.head, frame.payload.len()) else { return };
        let chunks: Vec<Bytes> =
            std::iter::once(head.into()).chain(frame.payload.chunks().cloned()).collect();
        let mut sealed = Vec::new();
        for chunk in chunks.iter().flat_map(|chunk| chunk.chunks(MAX_PLAIN)) {
            if seal(&stream, chunk, &mut sealed).is_err() {
                return;
            }
            if sealed.len() >= WRITE_AT_ONCE {
                if writing.write_all(&sealed).await.is_err() {
                    return;
                }
                sealed.clear();
            }
        }
        if writing.write_all(&sealed).await.is_err() {
            return; // The reader says so.
        }
    }
}

// Locked for a call each, never over a wait.
fn seal(stream: &Mutex<SecureStream>, plain: &[u8], out: &mut Vec<u8>) -> Result<(), SecureError> {
    stream.lock().unwrap_or_else(PoisonError::into_inner).seal(plain, out)
}

fn open(stream: &Mutex<SecureStream>, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), SecureError> {
    stream.lock().unwrap_or_else(PoisonError::into_inner).open(bytes, out)
}

/// Has what was written last arrive although this connection is closed.
pub(super) fn linger(tcp: &TcpStream) -> io::Result<()> {
    setsockopt(tcp, sockopt::Linger, &libc::linger { l_onoff: 0, l_linger: 0 })?;
    Ok(())
}

/// Small frames go at once, and a peer that is gone is noticed as early as by its silence.
pub(super) fn tune(tcp: &TcpStream, silence: Duration) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let patience = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
    setsockopt(tcp, sockopt::TcpUserTimeout, &patience)?;
    Ok(())
}
