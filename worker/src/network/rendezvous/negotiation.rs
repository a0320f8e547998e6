//! Negotiation of an edge of the tree over an encrypted connection. A connection becomes an edge
//! only after the parent has connected back to the child by a *return connection*, which proves
//! that TCP works in both directions:
//!
//! 1. child → parent: `ConnectBack` with a listener and a nonce;
//! 2. parent → that listener, on a new connection: `RETURN_MAGIC` and the nonce; or, if that
//!    fails, parent → child: `NoReturnPath`;
//! 3. child → parent: `Accept`, on one of its connections.

use rlaunch_bootstrap::protocol::control::{self, FrameError, FrameReader};
use rlaunch_bootstrap::security::handshake::{Established, Parties, SecureError, SecureStream};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

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
