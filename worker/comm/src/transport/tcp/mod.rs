//! Packets over TCP: a socket for each pair of ranks.
//!
//! A packet is its header, 16 bytes little endian, and its payload. Payloads go from the caller's
//! memory into the kernel and from there to where they belong; only small ones pass through a
//! buffer, so that one system call brings many of them.

mod inbound;
mod outbound;
#[cfg(test)]
mod tests;
mod watch;

use super::{Armed, Limits, Link, Sink};
use crate::transport::packet::{Header, PacketKind};
use crate::types::error::LinkError;
use inbound::Inbound;
use nix::sys::socket::{setsockopt, sockopt};
use outbound::Outbound;
use rlaunch_sys::PeerSilence;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use watch::SocketWatch;

/// Messages up to here are sent before they are wanted, in bytes: a round trip costs more than a
/// copy of so much.
const EAGER: usize = 64 << 10;
/// The longest payload of one packet, in bytes.
const PACKET: usize = 1 << 20;

/// A host that has acknowledged nothing for so long is not there any more, or the way to it. What
/// the kernel has for that, `TCP_USER_TIMEOUT`, also ends connections whose peers only do not read.
const SILENCE: Duration = Duration::from_secs(12);
/// How often it is looked for that while a rank sleeps.
const SILENCE_CHECK: Duration = Duration::from_secs(1);
/// While nothing is sent the kernel asks: after this many seconds, then so often, so many times.
const KEEP_IDLE: u32 = 4;
const KEEP_EVERY: u32 = 3;
const KEEP_COUNT: u32 = 3;
const ASKED: Duration = Duration::from_secs((KEEP_IDLE + KEEP_EVERY * KEEP_COUNT) as u64);

/// TCP to one other rank. Dropping it closes the connection; what was sent still arrives if all
/// that has come was received.
#[derive(Debug)]
pub(crate) struct TcpLink {
    socket: TcpStream,
    inbound: Inbound,
    outbound: Outbound,
    watch: SocketWatch,
    /// When it was last looked whether the peer's host is there.
    silence_checked: Instant,
    /// What was found then.
    silence: PeerSilence,
}

impl TcpLink {
    pub(crate) const LIMITS: Limits = Limits {
        eager: EAGER,
        packet: PACKET,
        fetch: usize::MAX,
        write: usize::MAX,
        poll_is_syscall: true,
    };

    /// Takes over a connected `socket` that carries nothing yet.
    pub(crate) fn new(socket: TcpStream) -> Result<TcpLink, LinkError> {
        let tuned = socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true));
        let tuned = tuned.and_then(|()| keep_alive(&socket).map_err(io::Error::from));
        tuned.map_err(|source| LinkError::System { operation: "set up a socket", source })?;
        Ok(TcpLink {
            socket,
            inbound: Inbound::new(),
            outbound: Outbound::default(),
            watch: SocketWatch::default(),
            silence_checked: Instant::now(),
            silence: PeerSilence::default(),
        })
    }

    /// Fails where the peer's host has been silent for too long.
    fn check_silence(&mut self) -> Result<(), LinkError> {
        if self.silence_checked.elapsed() < SILENCE_CHECK {
            return Ok(());
        }
        self.silence_checked = Instant::now();
        // What cannot be asked is found otherwise.
        let silent = self.silence.check(self.socket.as_fd()).unwrap_or(None);
        match silent.filter(|silent| *silent >= SILENCE) {
            Some(silent) => Err(LinkError::Silent(silent)),
            None => Ok(()),
        }
    }

    fn check(header: Header, payload: &[u8]) -> Result<(), LinkError> {
        if payload.len() > PACKET {
            return Err(LinkError::Protocol("longer than a packet may be"));
        }
        if header.length as usize != payload.len() {
            return Err(LinkError::Protocol("its length is another than its header says"));
        }
        Ok(())
    }
}

impl Link for TcpLink {
    fn limits(&self) -> Limits {
        TcpLink::LIMITS
    }

    fn send(&mut self, header: Header, payload: &[u8]) -> Result<bool, LinkError> {
        TcpLink::check(header, payload)?;
        if header.kind == PacketKind::Cts {
            self.inbound.expect_long();
        }
        self.outbound.send(&self.socket, header, payload)
    }

    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        self.inbound.receive(&self.socket, sink)
    }

    fn is_delivered(&self) -> bool {
        rlaunch_sys::unacknowledged_bytes(self.socket.as_fd()).map_or(true, |bytes| bytes == 0)
    }

    fn arm(&mut self, wants_room: bool) -> Result<Armed<'_>, LinkError> {
        self.check_silence()?;
        // At the end of its stream a socket is readable for ever.
        let reads = !self.inbound.has_ended();
        let watched = self.watch.on(&self.socket, reads, wants_room);
        watched
            .map(Armed::Watch)
            .map_err(|source| LinkError::System { operation: "watch a socket", source })
    }

    fn unwatch(&self, unwatches: &mut dyn FnMut(BorrowedFd<'_>)) {
        unwatches(self.socket.as_fd());
        self.watch.fd().into_iter().for_each(unwatches);
    }
}

fn keep_alive(socket: &TcpStream) -> nix::Result<()> {
    setsockopt(socket, sockopt::KeepAlive, &true)?;
    setsockopt(socket, sockopt::TcpKeepIdle, &KEEP_IDLE)?;
    setsockopt(socket, sockopt::TcpKeepInterval, &KEEP_EVERY)?;
    setsockopt(socket, sockopt::TcpKeepCount, &KEEP_COUNT)
}

/// What a system call on a socket came to.
#[derive(Debug)]
enum IoOutcome {
    /// So many bytes, more than 0 unless 0 were asked.
    Bytes(usize),
    /// Nothing to read, or no room.
    WouldBlock,
    /// The peer says nothing any more.
    Closed,
}

impl IoOutcome {
    /// Of a read of more than no bytes.
    fn read(result: io::Result<usize>) -> Result<IoOutcome, LinkError> {
        match result {
            Ok(0) => Ok(IoOutcome::Closed),
            Ok(count) => Ok(IoOutcome::Bytes(count)),
            Err(error) => IoOutcome::failed("receive", error),
        }
    }

    fn written(result: io::Result<usize>) -> Result<IoOutcome, LinkError> {
        match result {
            Ok(count) => Ok(IoOutcome::Bytes(count)),
            Err(error) => IoOutcome::failed("send", error),
        }
    }

    fn failed(operation: &'static str, source: io::Error) -> Result<IoOutcome, LinkError> {
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(IoOutcome::WouldBlock),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Ok(IoOutcome::Closed),
            // The kernel has asked in vain.
            io::ErrorKind::TimedOut => Err(LinkError::Silent(ASKED)),
            _ => Err(LinkError::System { operation, source }),
        }
    }
}
