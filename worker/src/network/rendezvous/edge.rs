//! Edge of the tree of agents over a TCP connection: encrypted frames in both directions, and the
//! negotiation before. A connection becomes an edge
//! only after the parent has connected back to the child by a *return connection*, which proves
//! that TCP works in both directions:
//!
//! 1. child → parent: `ConnectBack` with a listener and a nonce;
//! 2. parent → that listener, on a new connection: `RETURN_MAGIC` and the nonce; or, if that
//!    fails, parent → child: `NoReturnPath`;
//! 3. child → parent: `Accept`, on one of its connections.

use bytes::Bytes;
use nix::sys::socket::{setsockopt, sockopt};
use rlaunch_bootstrap::deadline::Deadline;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::control::{self, FrameError, FrameReader};
use rlaunch_bootstrap::rendezvous::codec::{Decoder, encode_head};
use rlaunch_bootstrap::rendezvous::link::{Frame, Head};
use rlaunch_bootstrap::security::handshake::{
    Established, MAX_PLAIN, Parties, SecureError, SecureStream,
};
use serde::{Deserialize, Serialize};
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

/// Number of encrypted bytes that are collected before they are written.
const WRITE_AT_ONCE: usize = 256 << 10;

/// Event of an edge.
#[derive(Debug)]
pub(crate) enum EdgeEvent {
    Frame(Frame),
    /// The edge broke; the text says how. No event follows.
    Broke(String),
}

/// Connection that was proved to work in both directions and has carried no frames yet.
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

    /// Turns the connection into an edge that carries frames. Events go to `events` with the peer's
    /// node id. The edge breaks when nothing has been received for `node_timeout`.
    pub(crate) fn into_edge(
        self,
        payload_limit: usize,
        node_timeout: Duration,
        events: mpsc::UnboundedSender<(NodeId, EdgeEvent)>,
    ) -> Edge {
        let (reading, writing) = self.tcp.into_split();
        let stream = Arc::new(Mutex::new(self.stream));
        let (frames, queue) = mpsc::unbounded_channel();
        let mut decoder = Decoder::new(payload_limit);
        decoder.push(&self.rest);
        let edge_reader = EdgeReader { reading, stream: stream.clone(), decoder, node_timeout };
        let peer = self.peer;
        let mut reader = JoinSet::new();
        reader.spawn(async move {
            let how = edge_reader.read_all(peer, &events).await;
            // The receiver is dropped when the agent leaves.
            let _ = events.send((peer, EdgeEvent::Broke(how)));
        });
        let writer = tokio::spawn(write_all(writing, stream, queue));
        Edge { frames, _reader: reader, writer }
    }
}

/// Edge that carries frames until it is dropped or breaks.
#[derive(Debug)]
pub(crate) struct Edge {
    frames: mpsc::UnboundedSender<Frame>,
    /// Task that reads, aborted when the edge is dropped.
    _reader: JoinSet<()>,
    /// Task that writes, which ends when its queue is empty and closed.
    writer: JoinHandle<()>,
}

impl Edge {
    /// Queues a frame. The queue needs no limit of its own: the link above this edge keeps every
    /// packet until the peer has confirmed it, so the queue adds little memory.
    pub(crate) fn send(&self, frame: Frame) {
        // The reader reports a broken edge.
        let _ = self.frames.send(frame);
    }

    /// Closes the queue and waits until all frames are written.
    pub(crate) async fn finish(self) {
        let Edge { frames, writer, .. } = self;
        drop(frames);
        // A task that has failed has nothing left to write.
        let _ = writer.await;
    }
}

struct EdgeReader {
    reading: OwnedReadHalf,
    stream: Arc<Mutex<SecureStream>>,
    decoder: Decoder<Head>,
    node_timeout: Duration,
}

impl EdgeReader {
    /// Reads frames until the edge breaks, and describes how it broke.
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
                None => return format!("nothing received for {} s", self.node_timeout.as_secs()),
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

    /// Reads some bytes. Returns `None` if nothing was received for `self.node_timeout`; time in which
    /// this process was suspended does not count.
    async fn read(&mut self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        let mut node_timeout = Deadline::after(self.node_timeout, Instant::now().into_std());
        loop {
            match timeout_at(node_timeout.next_check().into(), self.reading.read(buffer)).await {
                Ok(read) => return Some(read),
                Err(_) if node_timeout.has_expired(Instant::now().into_std()) => return None,
                Err(_) => {}
            }
        }
    }
}

/// Writes frames until the queue is closed or the edge breaks.
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
            return; // The reader reports the error.
        }
    }
}

// The lock is held for one call, never across an await.
fn seal(stream: &Mutex<SecureStream>, plain: &[u8], out: &mut Vec<u8>) -> Result<(), SecureError> {
    stream.lock().unwrap_or_else(PoisonError::into_inner).seal(plain, out)
}

fn open(stream: &Mutex<SecureStream>, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), SecureError> {
    stream.lock().unwrap_or_else(PoisonError::into_inner).open(bytes, out)
}

/// Has the socket closed in order, so that the last data still arrives. Undoes an earlier setting by
/// which closing it resets the connection.
pub(super) fn close_in_order(tcp: &TcpStream) -> io::Result<()> {
    setsockopt(tcp, sockopt::Linger, &libc::linger { l_onoff: 0, l_linger: 0 })?;
    Ok(())
}

/// Disables Nagle's algorithm, and has the kernel break the connection when data has not been
/// acknowledged for `node_timeout`.
pub(super) fn tune(tcp: &TcpStream, node_timeout: Duration) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let patience = u32::try_from(node_timeout.as_millis()).unwrap_or(u32::MAX);
    setsockopt(tcp, sockopt::TcpUserTimeout, &patience)?;
    Ok(())
}

/// Random number that a return connection carries, by which the child recognises it.
pub(super) type Nonce = [u8; 16];
/// First bytes of a return connection, unencrypted: the connection proves reachability, not an
/// identity.
pub(super) const RETURN_MAGIC: &[u8; 12] = b"rlaunch-back";

/// Message of a negotiation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SetupMessage {
    /// From the child: connect back to this listener and send the nonce.
    ConnectBack { listener: SocketAddr, nonce: Nonce },
    /// From the parent: the return connection failed.
    NoReturnPath,
    /// From the child: the nonce has arrived, and this connection is the edge.
    Accept,
}

/// Reason why a negotiation failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum NegotiationError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Secure(#[from] SecureError),
    #[error(transparent)]
    Wire(#[from] FrameError),
    #[error("the connection ended")]
    Ended,
}

/// Connection whose cryptographic handshake is done.
pub(super) struct Negotiation {
    pub(super) parties: Parties,
    tcp: TcpStream,
    stream: SecureStream,
    frames: FrameReader,
}

impl Negotiation {
    /// Sends the handshake's last bytes, if any, and begins the negotiation.
    pub(super) async fn begin(
        mut tcp: TcpStream,
        done: Established,
    ) -> Result<Negotiation, NegotiationError> {
        tcp.write_all(&done.send).await?;
        let Established { parties, stream, .. } = done;
        let mut negotiation = Negotiation { parties, tcp, stream, frames: FrameReader::default() };
        negotiation.push(&[])?;
        Ok(negotiation)
    }

    fn push(&mut self, received: &[u8]) -> Result<(), NegotiationError> {
        let mut plain = Vec::new();
        self.stream.open(received, &mut plain)?;
        self.frames.push(&plain);
        Ok(())
    }

    pub(super) async fn send(&mut self, word: &SetupMessage) -> Result<(), NegotiationError> {
        let mut sealed = Vec::new();
        self.stream.seal(&control::encode(word)?, &mut sealed)?;
        Ok(self.tcp.write_all(&sealed).await?)
    }

    /// Receives the next message. Cancel-safe.
    pub(super) async fn receive(&mut self) -> Result<SetupMessage, NegotiationError> {
        loop {
            if let Some(word) = self.frames.next_frame()? {
                return Ok(word);
            }
            let mut buffer = [0; 4096];
            match self.tcp.read(&mut buffer).await? {
                0 => return Err(NegotiationError::Ended),
                length => self.push(&buffer[..length])?,
            }
        }
    }

    pub(super) fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        Ok((self.tcp.local_addr()?, self.tcp.peer_addr()?))
    }

    /// Ends the negotiation. The returned bytes were read after its last message and belong to the
    /// edge.
    pub(super) fn into_parts(self) -> (TcpStream, SecureStream, Vec<u8>) {
        (self.tcp, self.stream, self.frames.into_unread())
    }
}
