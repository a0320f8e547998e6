//! Sending of packets over one socket.

use super::IoOutcome;
use crate::transport::packet::Header;
use crate::types::error::LinkError;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send, sendmsg};
use std::fmt;
use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Longest payload, in bytes, that is copied into one buffer with its header: the copy is cheaper
/// than a system call with two buffers.
const SMALL: usize = 496;

/// Size, in bytes, of a separate first write for payloads that are longer than this, but at most
/// twice as long. The kernel transmits nothing of such a payload before it has copied the last
/// byte. If the first part is written separately, the peer copies that part meanwhile, which
/// shortens the transfer by a fifth. The kernel itself splits longer payloads.
const EARLY: usize = 32 << 10;

/// Flags of all sends. A broken connection must be an error and not SIGPIPE, because the process
/// belongs to the program.
const FLAGS: MsgFlags = MsgFlags::MSG_NOSIGNAL.union(MsgFlags::MSG_DONTWAIT);

/// Send state of a link: number of bytes sent of the current packet, and a buffer for small
/// packets.
pub(super) struct Outbound {
    sent: usize,
    small: [u8; Header::SIZE + SMALL],
}

/// Omits the buffer, which contains the program's data.
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
    /// Sends a packet, or continues the packet of the previous call. Returns `true` once the whole
    /// packet is written, `false` if the socket has no room for the rest yet.
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
                    if !self.count_sent(&early)? || self.sent < head.len() + EARLY {
                        return Ok(false);
                    }
                }
                write_two(socket, &head, payload, self.sent)?
            }
        };
        if !self.count_sent(&moved)? {
            return Ok(false);
        }
        // After a partial write the socket buffer is full; another call would fail.
        if self.sent < head.len() + payload.len() {
            return Ok(false);
        }
        self.sent = 0;
        Ok(true)
    }

    /// Counts the bytes that a system call has written. Returns whether there were any.
    fn count_sent(&mut self, moved: &IoOutcome) -> Result<bool, LinkError> {
        match moved {
            IoOutcome::Bytes(count) => self.sent += count,
            IoOutcome::WouldBlock => return Ok(false),
            IoOutcome::Closed => return Err(LinkError::Gone),
        }
        Ok(true)
    }
}

/// Writes `head` and then `body`, without the first `sent` bytes of both together.
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

/// Encodes a header in the byte order of the connection.
#[inline]
pub(super) fn to_bytes(header: Header) -> [u8; Header::SIZE] {
    let [first, second] = header.to_words();
    (u128::from(first) | u128::from(second) << 64).to_le_bytes()
}
