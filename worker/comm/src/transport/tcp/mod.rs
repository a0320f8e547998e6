//! Packets over TCP: a socket for each pair of ranks, and more for long messages if wanted.
//!
//! A packet is its header, 16 bytes little endian, and its payload. Payloads go from the caller's
//! memory into the kernel and from there to where they belong; only small ones pass through a
//! buffer, so that one system call brings many of them. Where a pair has more than one socket,
//! the payloads of long [`Kind::Data`] packets go over the others ([`stripe`]), for networks that
//! give a single connection less than they have.

mod inbound;
mod outbound;
mod stripe;
#[cfg(test)]
mod tests;
mod watch;

use super::{Armed, Limits, Link, Sink};
use crate::transport::packet::{Header, Kind};
use crate::types::error::LinkError;
use inbound::Inbound;
use nix::poll::PollFlags;
use nix::sys::socket::{setsockopt, sockopt};
use outbound::Outbound;
use rlaunch_sys::PeerSilence;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use stripe::Stripe;
use watch::Watch;

pub(crate) use stripe::MOST_LANES;

/// Messages up to here are sent before they are wanted, in bytes: a round trip costs more than a
/// copy of so much.
const EAGER: usize = 64 << 10;
/// The longest payload of one packet, in bytes.
const PACKET: usize = 1 << 20;
/// The same where it goes over several sockets, which then wait for each other less often.
const STRIPED_PACKET: usize = 4 << 20;

/// A host that has acknowledged nothing for so long is not there any more, or the way to it. What
/// the kernel has for that, `TCP_USER_TIMEOUT`, also ends connections whose peers only do not read.
const SILENCE: Duration = Duration::from_secs(12);
/// How often it is looked for that while a rank sleeps.
const LISTEN: Duration = Duration::from_secs(1);
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
    stripe: Option<Stripe>,
    watch: Watch,
    /// When it was last looked whether the peer's host is there.
    listened: Instant,
    /// What was found then: of the sockets for long messages, and of the first one.
    silences: Vec<PeerSilence>,
}

impl TcpLink {
    /// With one socket.
    pub(crate) const LIMITS: Limits = Limits {
        eager: EAGER,
        packet: PACKET,
        fetch: usize::MAX,
        write: usize::MAX,
        is_dear: true,
    };

    /// Takes over `socket`, and `lanes` for long messages, as many as the peer has and in the same
    /// order, at most [`MOST_LANES`]. All are connected to the same peer and carry nothing yet.
    pub(crate) fn new(socket: TcpStream, lanes: Vec<TcpStream>) -> Result<TcpLink, LinkError> {
        if lanes.len() > MOST_LANES {
            return Err(LinkError::OutOfTurn("more sockets than a pair may have"));
        }
        for each in lanes.iter().chain([&socket]) {
            let tuned = each.set_nonblocking(true).and_then(|()| each.set_nodelay(true));
            let tuned = tuned.and_then(|()| keep_alive(each).map_err(io::Error::from));
            tuned.map_err(|source| LinkError::System { operation: "set up a socket", source })?;
        }
        let stripe = (!lanes.is_empty()).then(|| Stripe::new(lanes));
        let limit = if stripe.is_some() { STRIPED_PACKET } else { PACKET };
        let inbound = Inbound::new(limit, stripe.is_some());
        let outbound = Outbound::default();
        let (watch, listened, silences) = (Watch::default(), Instant::now(), Vec::new());
        Ok(TcpLink { socket, inbound, outbound, stripe, watch, listened, silences })
    }

    /// Fails where the peer's host has been silent for too long.
    fn listen(&mut self) -> Result<(), LinkError> {
        if self.listened.elapsed() < LISTEN {
            return Ok(());
        }
        self.listened = Instant::now();
        let lanes = self.stripe.as_ref().map_or(&[][..], |stripe| stripe.lanes());
        self.silences.resize_with(lanes.len() + 1, PeerSilence::default);
        for (socket, silence) in lanes.iter().chain([&self.socket]).zip(&mut self.silences) {
            // What cannot be asked is found otherwise.
            let silent = silence.check(socket.as_fd()).unwrap_or(None);
            if let Some(silent) = silent.filter(|silent| *silent >= SILENCE) {
                return Err(LinkError::Silent(silent));
            }
        }
        Ok(())
    }

    fn check(&self, header: Header, payload: &[u8]) -> Result<(), LinkError> {
        if payload.len() > self.inbound.limit() {
            return Err(LinkError::OutOfTurn("longer than a packet may be"));
        }
        if header.length as usize != payload.len() {
            return Err(LinkError::OutOfTurn("its length is another than its header says"));
        }
        Ok(())
    }
}

impl Link for TcpLink {
    fn limits(&self) -> Limits {
        Limits { packet: self.inbound.limit(), ..TcpLink::LIMITS }
    }

    fn send(&mut self, header: Header, payload: &[u8]) -> Result<bool, LinkError> {
        self.check(header, payload)?;
        if header.kind == Kind::Grant {
            self.inbound.expect_long();
        }
        match &mut self.stripe {
            Some(stripe) if stripe::takes(header) => {
                if !stripe.is_sending() {
                    if !self.outbound.send(&self.socket, header, &[])? {
                        return Ok(false);
                    }
                    stripe.begin();
                }
                stripe.send(payload)
            }
            _ => self.outbound.send(&self.socket, header, payload),
        }
    }

    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        match (&mut self.stripe, self.inbound.striped()) {
            (Some(stripe), Some((header, offset))) => {
                let came = stripe.receive(header, offset, sink)?;
                self.inbound.striped_came(came);
                Ok(came > 0)
            }
            _ => self.inbound.receive(&self.socket, sink),
        }
    }

    fn is_delivered(&self) -> bool {
        rlaunch_sys::unacknowledged_bytes(self.socket.as_fd()).map_or(true, |bytes| bytes == 0)
    }

    fn arm(&mut self, wants_room: bool) -> Result<Armed<'_>, LinkError> {
        self.listen()?;
        let mut wanted = [PollFlags::empty(); 1 + MOST_LANES];
        if self.inbound.has_ended() {
            // Nothing comes any more, and the socket would say so for ever.
        } else if let (Some(stripe), Some(_)) = (&self.stripe, self.inbound.striped()) {
            stripe.wants_to_receive(&mut wanted[1..]);
        } else {
            wanted[0] |= PollFlags::POLLIN;
        }
        if wants_room {
            match &self.stripe {
                Some(stripe) if stripe.is_sending() => stripe.wants_to_send(&mut wanted[1..]),
                _ => wanted[0] |= PollFlags::POLLOUT,
            }
        }
        let lanes = self.stripe.as_ref().map_or(&[][..], |stripe| stripe.lanes());
        let watched = self.watch.on(&self.socket, lanes, &wanted);
        watched
            .map(Armed::Watch)
            .map_err(|source| LinkError::System { operation: "watch sockets", source })
    }
    fn forget(&self, forgets: &mut dyn FnMut(BorrowedFd<'_>)) {
        forgets(self.socket.as_fd());
        self.watch.fd().into_iter().for_each(forgets);
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
enum Moved {
    /// So many bytes, more than 0 unless 0 were asked.
    Bytes(usize),
    /// Nothing to read, or no room.
    Nothing,
    /// The peer says nothing any more.
    Ended,
}

impl Moved {
    /// Of a read of more than no bytes.
    fn read(result: io::Result<usize>) -> Result<Moved, LinkError> {
        match result {
            Ok(0) => Ok(Moved::Ended),
            Ok(count) => Ok(Moved::Bytes(count)),
            Err(error) => Moved::failed("receive", error),
        }
    }

    fn written(result: io::Result<usize>) -> Result<Moved, LinkError> {
        match result {
            Ok(count) => Ok(Moved::Bytes(count)),
            Err(error) => Moved::failed("send", error),
        }
    }

    fn failed(operation: &'static str, source: io::Error) -> Result<Moved, LinkError> {
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(Moved::Nothing),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Ok(Moved::Ended),
            // The kernel has asked in vain.
            io::ErrorKind::TimedOut => Err(LinkError::Silent(ASKED)),
            _ => Err(LinkError::System { operation, source }),
        }
    }
}
