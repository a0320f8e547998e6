//! Messages of fixed length over a non-blocking socket.

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, connect, send, socket,
};
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;

/// Length of the longest message, in bytes.
const MAX_MESSAGE: usize = 64;

/// Socket on which a handshake runs.
#[derive(Debug)]
pub(super) struct HandshakeSocket {
    socket: TcpStream,
    buffer: [u8; MAX_MESSAGE],
    filled: usize,
}

impl HandshakeSocket {
    /// Makes a handshake socket from `socket`, which must be non-blocking.
    pub(super) fn new(socket: TcpStream) -> HandshakeSocket {
        HandshakeSocket { socket, buffer: [0; MAX_MESSAGE], filled: 0 }
    }

    /// Starts to connect. The socket becomes writable when the attempt has succeeded or failed.
    pub(super) fn dial(to: SocketAddr) -> io::Result<HandshakeSocket> {
        let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = TcpStream::from(socket(family, SockType::Stream, flags, None)?);
        socket.set_nodelay(true)?;
        match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
            Ok(()) | Err(Errno::EINPROGRESS | Errno::EINTR) => Ok(HandshakeSocket::new(socket)),
            Err(errno) => Err(errno.into()),
        }
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(super) fn into_socket(self) -> TcpStream {
        self.socket
    }

    /// Sends a message. The message always fits into the socket buffer, because nothing else was
    /// sent before.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = send(self.socket.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Returns the next message of `length` bytes, at most [`MAX_MESSAGE`]; `None` until it has
    /// arrived completely. Reads no bytes behind the message, because they belong to the link.
    pub(super) fn receive(&mut self, length: usize) -> io::Result<Option<&[u8]>> {
        let wanted = self.buffer.get_mut(self.filled..length).unwrap_or_default();
        match self.socket.read(wanted) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.filled += count,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => return Ok(None),
                _ => return Err(error),
            },
        }
        if self.filled < length {
            return Ok(None);
        }
        self.filled = 0;
        Ok(Some(&self.buffer[..length]))
    }
}
