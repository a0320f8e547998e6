//! A way to a peer that is connected when there is something to say to it.

use super::{Arrival, Call, Reception};
use crate::transport::packet::{Header, Kind};
use crate::transport::{
    Armed, Exposure, Limits, Link, Outlook, Piece, Place, Sink, Watched, Wrote,
};
use crate::types::error::LinkError;
use rlaunch_bootstrap::id::Rank;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// The way to a peer, whether or not it has been met.
pub(crate) struct LaterLink {
    peer: Rank,
    outlook: Outlook,
    /// The descriptor that was watched until the peer was met.
    call: Call,
    way: Way,
}

enum Way {
    Ahead {
        reception: Arc<Reception>,
        is_wanted: bool,
        seen: u32,
    },
    Met(Box<dyn Link>),
    /// It has left, and has sent nothing.
    Left {
        is_told: bool,
    },
}

impl LaterLink {
    pub(crate) fn new(peer: Rank, reception: &Arc<Reception>) -> LaterLink {
        let way = Way::Ahead { reception: reception.clone(), is_wanted: false, seen: 0 };
        LaterLink { peer, outlook: reception.outlook(peer), call: reception.call(), way }
    }

    #[cfg(test)]
    pub(crate) fn is_met(&self) -> bool {
        matches!(self.way, Way::Met(_))
    }

    /// Whether there are news at the reception, which may be about this peer.
    fn hear(&mut self) -> Result<bool, LinkError> {
        let Way::Ahead { reception, seen, .. } = &mut self.way else { return Ok(false) };
        if !reception.has_news(seen) {
            return Ok(false);
        }
        match reception.take(self.peer)? {
            Some(Arrival::Met(link)) => self.way = Way::Met(link),
            Some(Arrival::Left) => self.way = Way::Left { is_told: false },
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
            Way::Met(link) => Some(link.as_mut()),
            Way::Ahead { .. } | Way::Left { .. } => None,
        }
    }
}

impl fmt::Debug for LaterLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_met = matches!(self.way, Way::Met(_));
        f.debug_struct("LaterLink").field("peer", &self.peer).field("is_met", &is_met).finish()
    }
}

impl Link for LaterLink {
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
        let Way::Ahead { reception, is_wanted, .. } = &mut self.way else { return Ok(false) };
        // A peer that was never spoken to is not waiting for the last word.
        if header.kind == Kind::Bye && !*is_wanted {
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
            Way::Left { is_told: is_told @ false } => {
                *is_told = true;
                let bye = Kind::Bye;
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
        self.met_before().map_or(Exposure::Unable, |link| link.expose(into))
    }

    fn write(&mut self, from: Piece<'_>, to: Place, transfer: u32) -> Result<Wrote, LinkError> {
        self.met_before().map_or(Ok(Wrote::Unable), |link| link.write(from, to, transfer))
    }

    fn is_by_rdma(&self) -> bool {
        self.outlook.is_by_rdma
    }

    fn is_delivered(&self) -> bool {
        match &self.way {
            Way::Met(link) => link.is_delivered(),
            Way::Ahead { .. } | Way::Left { .. } => true,
        }
    }

    fn ask(&mut self) {
        if let Some(link) = self.met_before() {
            link.ask();
        }
    }

    fn arm(&mut self, wants_room: bool) -> Result<Armed<'_>, LinkError> {
        if let Way::Ahead { reception, .. } = &self.way {
            reception.quiet();
        }
        // News may be for links that were asked before this one.
        if self.hear()? {
            return Ok(Armed::Awake);
        }
        match &mut self.way {
            Way::Met(link) => Ok(match link.arm(wants_room)? {
                Armed::Watch(watched) => {
                    let instead_of = watched.instead_of.or(Some(self.call.as_fd()));
                    Armed::Watch(Watched { instead_of, ..watched })
                }
                other => other,
            }),
            Way::Ahead { .. } => {
                let fd = self.call.as_fd();
                Ok(Armed::Watch(Watched { fd, writable: false, instead_of: None }))
            }
            Way::Left { is_told: false } => Ok(Armed::Awake),
            Way::Left { is_told: true } => Ok(Armed::Quiet),
        }
    }

    fn disarm(&mut self) {
        if let Some(link) = self.met_before() {
            link.disarm();
        }
    }
    fn forget(&self, forgets: &mut dyn FnMut(BorrowedFd<'_>)) {
        forgets(self.call.as_fd());
        if let Way::Met(link) = &self.way {
            link.forget(forgets);
        }
    }

    fn peer_has_left(&mut self) {
        if let Way::Ahead { reception, .. } = &self.way {
            reception.peer_has_left(self.peer);
        }
    }
}
