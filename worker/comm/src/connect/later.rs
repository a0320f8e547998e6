//! A way to a peer that is connected when there is something to say to it.

use super::{Arrival, ArrivalFd, LazyConnector};
use crate::transport::packet::{Header, PacketKind};
use crate::transport::{
    Armed, Exposure, Limits, Link, LinkHint, Piece, RemoteBuf, Sink, WatchedFd, WriteOutcome,
};
use crate::types::error::LinkError;
use rlaunch_bootstrap::id::Rank;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// The way to a peer, whether or not it has been met.
pub(crate) struct LazyLink {
    peer: Rank,
    outlook: LinkHint,
    /// The descriptor that was watched until the peer was met.
    call: ArrivalFd,
    way: LazyState,
}

enum LazyState {
    Unconnected {
        reception: Arc<LazyConnector>,
        is_wanted: bool,
        seen: u32,
    },
    Connected(Box<dyn Link>),
    /// It has left, and has sent nothing.
    Left {
        is_told: bool,
    },
}

impl LazyLink {
    pub(crate) fn new(peer: Rank, reception: &Arc<LazyConnector>) -> LazyLink {
        let way =
            LazyState::Unconnected { reception: reception.clone(), is_wanted: false, seen: 0 };
        LazyLink { peer, outlook: reception.outlook(peer), call: reception.call(), way }
    }

    #[cfg(test)]
    pub(crate) fn is_met(&self) -> bool {
        matches!(self.way, LazyState::Connected(_))
    }

    /// Whether there are news at the reception, which may be about this peer.
    fn hear(&mut self) -> Result<bool, LinkError> {
        let LazyState::Unconnected { reception, seen, .. } = &mut self.way else {
            return Ok(false);
        };
        if !reception.has_news(seen) {
            return Ok(false);
        }
        match reception.take(self.peer)? {
            Some(Arrival::Connected(link)) => self.way = LazyState::Connected(link),
            Some(Arrival::Left) => self.way = LazyState::Left { is_told: false },
            None => {}
        }
        Ok(true)
    }

    /// The link, if the peer has been met.
    fn met(&mut self) -> Result<Option<&mut dyn Link>, LinkError> {
        self.hear()?;
        Ok(self.met_before())
    }

    /// The same, without a look at the reception.
    fn met_before(&mut self) -> Option<&mut dyn Link> {
        match &mut self.way {
            LazyState::Connected(link) => Some(link.as_mut()),
            LazyState::Unconnected { .. } | LazyState::Left { .. } => None,
        }
    }
}

impl fmt::Debug for LazyLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_met = matches!(self.way, LazyState::Connected(_));
        f.debug_struct("LaterLink").field("peer", &self.peer).field("is_met", &is_met).finish()
    }
}

impl Link for LazyLink {
    fn limits(&self) -> Limits {
        self.outlook.limits
    }

    fn waking(&self) -> Duration {
        self.outlook.waking
    }

    fn send(&mut self, header: Header, payload: &[u8]) -> Result<bool, LinkError> {
        if let Some(link) = self.met()? {
            return link.send(header, payload);
        }
        let LazyState::Unconnected { reception, is_wanted, .. } = &mut self.way else {
            return Ok(false);
        };
        // A peer that was never spoken to is not waiting for the last word.
        if header.kind == PacketKind::Bye && !*is_wanted {
            return Ok(true);
        }
        if !std::mem::replace(is_wanted, true) {
            reception.want(self.peer);
        }
        Ok(false)
    }

    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        if let Some(link) = self.met()? {
            return link.receive(sink);
        }
        match &mut self.way {
            // What the peer would have said.
            LazyState::Left { is_told: is_told @ false } => {
                *is_told = true;
                let bye = PacketKind::Bye;
                sink.packet(Header { kind: bye, context: 0, tag: 0, transfer: 0, length: 0 }, &[])?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    // Who exposes memory and who writes to it have spoken before.

    fn tell(&mut self, whole: Piece<'_>) {
        if let Some(link) = self.met_before() {
            link.tell(whole);
        }
    }

    fn expose(&mut self, into: Piece<'_>) -> Exposure {
        self.met_before().map_or(Exposure::Refused, |link| link.expose(into))
    }

    fn write(
        &mut self,
        from: Piece<'_>,
        to: RemoteBuf,
        transfer: u32,
    ) -> Result<WriteOutcome, LinkError> {
        self.met_before().map_or(Ok(WriteOutcome::Refused), |link| link.write(from, to, transfer))
    }

    fn is_by_rdma(&self) -> bool {
        self.outlook.is_by_rdma
    }

    fn is_delivered(&self) -> bool {
        match &self.way {
            LazyState::Connected(link) => link.is_delivered(),
            LazyState::Unconnected { .. } | LazyState::Left { .. } => true,
        }
    }

    fn ask(&mut self) {
        if let Some(link) = self.met_before() {
            link.ask();
        }
    }

    fn arm(&mut self, wants_room: bool) -> Result<Armed<'_>, LinkError> {
        if let LazyState::Unconnected { reception, .. } = &self.way {
            reception.quiet();
        }
        // News may be for links that were asked before this one.
        if self.hear()? {
            return Ok(Armed::Ready);
        }
        match &mut self.way {
            LazyState::Connected(link) => Ok(match link.arm(wants_room)? {
                Armed::Watch(watched) => {
                    let instead_of = watched.instead_of.or(Some(self.call.as_fd()));
                    Armed::Watch(WatchedFd { instead_of, ..watched })
                }
                other => other,
            }),
            LazyState::Unconnected { .. } => {
                let fd = self.call.as_fd();
                Ok(Armed::Watch(WatchedFd { fd, writable: false, instead_of: None }))
            }
            LazyState::Left { is_told: false } => Ok(Armed::Ready),
            LazyState::Left { is_told: true } => Ok(Armed::NoFd),
        }
    }

    fn disarm(&mut self) {
        if let Some(link) = self.met_before() {
            link.disarm();
        }
    }
    fn forget(&self, forgets: &mut dyn FnMut(BorrowedFd<'_>)) {
        forgets(self.call.as_fd());
        if let LazyState::Connected(link) = &self.way {
            link.forget(forgets);
        }
    }

    fn peer_has_left(&mut self) {
        if let LazyState::Unconnected { reception, .. } = &self.way {
            reception.peer_has_left(self.peer);
        }
    }
}
