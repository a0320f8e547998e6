//! Sending packets over one socket.

use super::IoOutcome;
use crate::transport::packet::Header;
use crate::types::error::LinkError;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send, sendmsg};
use std::fmt;
use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Payloads up to here are copied behind their header, in bytes: that is cheaper than to tell the
/// kernel of two places.
const SMALL: usize = 496;

/// The kernel lets nothing go before it has copied the last byte of payloads up to twice this, in
/// bytes. Of longer ones than this, so much is written first, which the peer copies meanwhile: that
/// takes a fifth off their time. Still longer payloads the kernel cuts itself.
const EARLY: usize = 32 << 10;

/// A broken connection is an error, not a signal: the process may be anyone's.
const FLAGS: MsgFlags = MsgFlags::MSG_NOSIGNAL.union(MsgFlags::MSG_DONTWAIT);

/// How much of the packet under way has been sent.
pub(super) struct Outbound {
    sent: usize,
    small: [u8; Header::SIZE + SMALL],
}

/// Without what ranks say to each other.
impl fmt::Debug for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbound").field("sent", &self.sent).finish_non_exhaustive()
    }
}

impl Default for Outbound {
    fn default() -> Outbound {
        Outbound { sent: 0, small: [0; Header::SIZE + SMALL] }
    }
}

impl Outbound {
    /// Begins a packet or goes on with it; `true` once all of it is written.
    #[inline]
    pub(super) fn send(
        &mut self,
        socket: &TcpStream,
        header: Header,
        payload: &[u8],
    ) -> Result<bool, LinkError> {
        let head = to_bytes(header);
        let moved = match self.small.get_mut(..Header::SIZE + payload.len()) {
            Some(small) => {
                small[..Header::SIZE].copy_from_slice(&head);
                small[Header::SIZE..].copy_from_slice(payload);
                let small = &small[self.sent.min(small.len())..];
                IoOutcome::written(send(socket.as_raw_fd(), small, FLAGS).map_err(io::Error::from))?
            }
            None => {
                if self.sent == 0 && (EARLY + 1..=2 * EARLY).contains(&payload.len()) {
                    let early = write_two(socket, &head, &payload[..EARLY], 0)?;
                    if !self.went(&early)? || self.sent < head.len() + EARLY {
                        return Ok(false);
                    }
                }
                write_two(socket, &head, payload, self.sent)?
            }
        };
        if !self.went(&moved)? {
            return Ok(false);
        }
        // A short write means that there is no room: the next would be in vain.
        if self.sent < head.len() + payload.len() {
            return Ok(false);
        }
        self.sent = 0;
        Ok(true)
    }

    /// Says whether anything was written.
    fn went(&mut self, moved: &IoOutcome) -> Result<bool, LinkError> {
        match moved {
            IoOutcome::Bytes(count) => self.sent += count,
            IoOutcome::WouldBlock => return Ok(false),
            IoOutcome::Closed => return Err(LinkError::Gone),
        }
        Ok(true)
    }
}

/// Writes what follows the first `sent` bytes of `head` and `body`.
fn write_two(
    socket: &TcpStream,
    head: &[u8],
    body: &[u8],
    sent: usize,
) -> Result<IoOutcome, LinkError> {
    let head_rest = head.get(sent..).unwrap_or_default();
    let body_rest = body.get(sent.saturating_sub(head.len())..).unwrap_or_default();
    let result = if head_rest.is_empty() {
        send(socket.as_raw_fd(), body_rest, FLAGS)
    } else {
        let both = [IoSlice::new(head_rest), IoSlice::new(body_rest)];
        sendmsg::<()>(socket.as_raw_fd(), &both, &[], FLAGS, None)
    };
    IoOutcome::written(result.map_err(|errno: Errno| io::Error::from(errno)))
}

/// As it crosses the socket.
#[inline]
pub(super) fn to_bytes(header: Header) -> [u8; Header::SIZE] {
    let [first, second] = header.to_words();
    (u128::from(first) | u128::from(second) << 64).to_le_bytes()
}
