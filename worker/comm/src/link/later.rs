//! TCP to a peer that is connected when there is something to say to it.

use super::tcp::TcpLink;
use super::{Armed, Limits, Link, Sink, Watched};
use crate::error::LinkError;
use crate::packet::{Header, Kind};
use crate::wire_up::Reception;
use rlaunch_bootstrap::id::Rank;
use std::sync::Arc;

/// The way to a peer, whether or not it has been met.
#[derive(Debug)]
pub(crate) struct LaterLink {
    peer: Rank,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Ahead { reception: Arc<Reception>, is_wanted: bool, seen: u32 },
    Met(Box<TcpLink>),
}

impl LaterLink {
    pub(crate) fn new(peer: Rank, reception: &Arc<Reception>) -> LaterLink {
        let way = Way::Ahead { reception: reception.clone(), is_wanted: false, seen: 0 };
        LaterLink { peer, way }
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
        if let Some(link) = reception.take(self.peer)? {
            self.way = Way::Met(Box::new(link));
        }
        Ok(true)
    }

    /// The link, if the peer has been met.
    fn met(&mut self) -> Result<Option<&mut TcpLink>, LinkError> {
        self.hear()?;
        Ok(match &mut self.way {
            Way::Met(link) => Some(link),
            Way::Ahead { .. } => None,
        })
    }
}

impl Link for LaterLink {
    fn limits(&self) -> Limits {
        TcpLink::LIMITS
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
        self.met()?.map_or(Ok(false), |link| link.receive(sink))
    }

    fn is_delivered(&self) -> bool {
        match &self.way {
            Way::Met(link) => link.is_delivered(),
            Way::Ahead { .. } => true,
        }
    }

    fn arm(&mut self, wants_room: bool) -> Result<Armed<'_>, LinkError> {
        // News may be for links that were asked before this one.
        if self.hear()? {
            return Ok(Armed::Awake);
        }
        match &mut self.way {
            Way::Met(link) => link.arm(wants_room),
            Way::Ahead { reception, .. } => {
                Ok(Armed::Watch(Watched { fd: reception.fd(), writable: false }))
            }
        }
    }

    fn disarm(&mut self) {
        if let Way::Met(link) = &mut self.way {
            link.disarm();
        }
    }
}
