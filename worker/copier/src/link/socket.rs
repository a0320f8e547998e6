//! Socket of a stream.

use super::TICK;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;

/// Connection to a neighbour, or to the command that carries bytes to it.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Makes a socket each of whose calls waits for a [`TICK`] at most.
    pub(crate) fn tcp(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TICK))?;
        stream.set_write_timeout(Some(TICK))?;
        Ok(Socket::Tcp(stream))
    }

    /// Makes such a socket from one of a pair.
    pub(crate) fn unix(stream: UnixStream) -> io::Result<Socket> {
        stream.set_read_timeout(Some(TICK))?;
        stream.set_write_timeout(Some(TICK))?;
        Ok(Socket::Unix(stream))
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.shutdown(how),
            Socket::Unix(stream) => stream.shutdown(how),
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Reads and writes through shared references, as both halves of a stream have one.
        match self {
            Socket::Tcp(stream) => {
                let mut stream: &TcpStream = stream;
                stream.read(buffer)
            }
            Socket::Unix(stream) => {
                let mut stream: &UnixStream = stream;
                stream.read(buffer)
            }
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buffer)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => {
                let mut stream: &TcpStream = stream;
                stream.write_vectored(slices)
            }
            Socket::Unix(stream) => {
                let mut stream: &UnixStream = stream;
                stream.write_vectored(slices)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Tells whether a call only waited for its [`TICK`], or was interrupted: it is to be made again.
pub(crate) fn is_tick(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}
