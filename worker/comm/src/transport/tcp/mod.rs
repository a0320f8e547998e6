//! Links over TCP: one socket for each pair of ranks.
//!
//! A packet is its header, 16 bytes in little-endian order, and its payload. Long payloads go from
//! the sender's memory into the kernel, and from there straight into the receiver's memory. Small
//! packets are read ahead into a buffer, so that one system call receives many of them.
//!
//! [`directions`] sends and receives, [`probe`] finds out why nothing is acknowledged. A link sleeps on a descriptor
//! ([`SocketWatch`]): its socket or, once the peer has ended the stream, an epoll(7) descriptor. The socket itself would
//! stay readable from then on.

mod directions;
mod probe;

use super::{Armed, Limits, Link, Sink};
use crate::transport::{Header, PacketKind, WatchedFd};
use crate::types::LinkError;
use directions::{Inbound, Outbound};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use probe::HostProbe;
use rlaunch_sys::PeerSilence;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Longest eager message, which is sent as one packet, in bytes. Up to this length a copy costs
/// less than the round trip of RTS and CTS, which precedes longer messages.
const EAGER: usize = 64 << 10;
/// Longest payload of one packet, in bytes.
const PACKET: usize = 1 << 20;

/// Time without any acknowledgement after which the peer's host, or the network to it, counts as
/// down. The kernel's own limit, `TCP_USER_TIMEOUT`, is not used because it also ends connections
/// to peers that merely do not read.
const SILENCE: Duration = Duration::from_secs(12);
/// Time without any acknowledgement after which it is tried whether the peer's host answers at all. The rest of [`SILENCE`]
/// is enough for two repetitions of the packet that asks.
const DOUBT: Duration = Duration::from_secs(8);
/// Interval between checks for missing acknowledgements while a rank sleeps.
const SILENCE_CHECK: Duration = Duration::from_secs(1);
/// Keepalive of an idle connection: seconds before the first probe, seconds between probes, and
/// number of unanswered probes after which the connection fails.
const KEEP_IDLE: u32 = 4;
const KEEP_EVERY: u32 = 3;
const KEEP_COUNT: u32 = 3;
const KEEP_TOTAL: Duration = Duration::from_secs((KEEP_IDLE + KEEP_EVERY * KEEP_COUNT) as u64);

/// Link to one peer over TCP. Dropping the link closes the connection. Data that was sent still
/// arrives, provided that all received data was read.
#[derive(Debug)]
pub(crate) struct TcpLink {
    socket: TcpStream,
    inbound: Inbound,
    outbound: Outbound,
    watch: SocketWatch,
    /// Time of the last check for missing acknowledgements.
    silence_checked: Instant,
    /// Result of the checks so far: since when the peer's host has not responded.
    silence: PeerSilence,
    /// Whether that host answers at all, since it is in [`DOUBT`].
    probe: Option<HostProbe>,
}

impl TcpLink {
    pub(crate) const LIMITS: Limits = Limits {
        eager: EAGER,
        packet: PACKET,
        fetch: usize::MAX,
        write: usize::MAX,
        poll_is_syscall: true,
    };

    /// Makes a link from a connected `socket` that has carried no packet yet.
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
            probe: None,
        })
    }

    /// Fails if the peer's host has acknowledged nothing for [`SILENCE`] although data was sent, and says whether it answers.
    /// Checks at most once per [`SILENCE_CHECK`].
    fn check_silence(&mut self) -> Result<(), LinkError> {
        if self.silence_checked.elapsed() < SILENCE_CHECK {
            return Ok(());
        }
        self.silence_checked = Instant::now();
        // If the kernel does not report the time, keepalive finds a dead peer.
        let silent = self.silence.check(self.socket.as_fd()).unwrap_or(None);
        let Some(silent) = silent.filter(|silent| *silent >= DOUBT) else {
            self.probe = None;
            return Ok(());
        };
        if self.probe.is_none() {
            // Where this host cannot ask, it is not known that the other answers.
            self.probe = HostProbe::beside(&self.socket).ok();
            if self.probe.is_some() {
                // The answer takes a moment, also where the rank has not looked for long.
                return Ok(());
            }
        }
        if silent < SILENCE {
            return Ok(());
        }
        if self.probe.as_ref().is_some_and(HostProbe::is_answered)
            && let Ok(segment) = getsockopt(&self.socket, sockopt::TcpMaxSeg)
        {
            return Err(LinkError::Unacknowledged { silent, segment });
        }
        Err(LinkError::Silent(silent))
    }

    fn check(header: Header, payload: &[u8]) -> Result<(), LinkError> {
        if payload.len() > PACKET {
            return Err(LinkError::Protocol("a packet is too long"));
        }
        if header.length as usize != payload.len() {
            return Err(LinkError::Protocol("the payload has another length than its header says"));
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
        // A socket at the end of its stream stays readable.
        let is_open = !self.inbound.has_ended();
        let watched = self.watch.watched_fd(&self.socket, is_open, wants_room);
        watched
            .map(Armed::Watch)
            .map_err(|source| LinkError::System { operation: "watch a socket", source })
    }

    fn visit_fds(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        visit(self.socket.as_fd());
        if let Some(fd) = self.watch.epoll_fd() {
            visit(fd);
        }
    }
}

fn keep_alive(socket: &TcpStream) -> nix::Result<()> {
    setsockopt(socket, sockopt::KeepAlive, &true)?;
    setsockopt(socket, sockopt::TcpKeepIdle, &KEEP_IDLE)?;
    setsockopt(socket, sockopt::TcpKeepInterval, &KEEP_EVERY)?;
    setsockopt(socket, sockopt::TcpKeepCount, &KEEP_COUNT)
}

/// Outcome of a system call on a socket.
#[derive(Debug)]
enum IoOutcome {
    /// Number of bytes moved; more than 0 unless 0 were requested.
    Bytes(usize),
    /// There was nothing to read, or no room to write.
    WouldBlock,
    /// The connection is closed.
    Closed,
}

impl IoOutcome {
    /// Classifies the result of a read into a buffer that is not empty.
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
            // Keepalive probes were not answered.
            io::ErrorKind::TimedOut => Err(LinkError::Silent(KEEP_TOTAL)),
            _ => Err(LinkError::System { operation, source }),
        }
    }
}

/// Epoll descriptor for a socket at the end of its stream. It is made when it is first needed.
#[derive(Debug, Default)]
struct SocketWatch {
    epoll: Option<Epoll>,
    /// Whether the socket was added to the epoll descriptor, to wait for room to write.
    is_member: bool,
}

impl SocketWatch {
    /// Returns the epoll descriptor; `None` if it was never needed.
    fn epoll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.epoll.as_ref().map(|epoll| epoll.0.as_fd())
    }

    /// Returns the descriptor to sleep on. It becomes ready when the socket can be read, if
    /// `readable`, or written, if `writable`.
    fn watched_fd<'l>(
        &'l mut self,
        socket: &'l TcpStream,
        readable: bool,
        writable: bool,
    ) -> io::Result<WatchedFd<'l>> {
        if readable {
            return Ok(WatchedFd { fd: socket.as_fd(), writable, instead_of: self.epoll_fd() });
        }
        if self.epoll.is_none() {
            self.epoll = Some(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
        }
        let Some(epoll) = &self.epoll else { return Err(io::ErrorKind::OutOfMemory.into()) };
        if self.is_member != writable {
            if writable {
                epoll.add(socket, EpollEvent::new(EpollFlags::EPOLLOUT, 0))?;
            } else {
                // The kernel reports the end of the stream of an added socket even if no event is
                // requested.
                epoll.delete(socket)?;
            }
            self.is_member = writable;
        }
        Ok(WatchedFd { fd: epoll.0.as_fd(), writable: false, instead_of: Some(socket.as_fd()) })
    }
}

#[cfg(test)]
mod tests;
