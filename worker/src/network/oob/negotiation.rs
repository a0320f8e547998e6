//! Sentences of two agents that are about to have an edge, over an encrypted connection.

use rlaunch_bootstrap::protocol::control::{self, FrameReader, WireError};
use rlaunch_bootstrap::security::handshake::{Established, Parties, SecureError, SecureStream};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Proof that a connection back has arrived.
pub(super) type Nonce = [u8; 16];
/// What begins a connection back, in the clear: it proves a way, not a person.
pub(super) const RETURN_MAGIC: &[u8; 12] = b"rlaunch-back";

/// One sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SetupMessage {
    /// Child: connect back to this listener of mine and write the nonce there.
    ConnectBack { listener: SocketAddr, nonce: Nonce },
    /// Parent: I cannot.
    NoReturnPath,
    /// Child: the nonce has come; this is our edge.
    Accept,
}

/// Why a conversation ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum NegotiationError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Secure(#[from] SecureError),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("it broke off")]
    Ended,
}

/// A connection whose handshake is over.
pub(super) struct Negotiation {
    pub(super) parties: Parties,
    tcp: TcpStream,
    stream: SecureStream,
    frames: FrameReader,
}

impl Negotiation {
    /// Sends what the handshake owes.
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

    /// The next sentence. Safe to cancel.
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

    /// The conversation is over; what was read beyond it belongs to the edge.
    pub(super) fn into_parts(self) -> (TcpStream, SecureStream, Vec<u8>) {
        (self.tcp, self.stream, self.frames.into_rest())
    }
}
