//! Link that connects to its peer when there is something to send.

use super::{Arrival, ArrivalFd, LazyConnector};
use crate::transport::{
    Armed, Exposure, Header, Limits, Link, LinkHint, LocalSlice, PacketKind, RemoteBuf, Sink,
    WatchedFd, WriteOutcome,
};
use crate::types::LinkError;
use rlaunch_bootstrap::id::Rank;
use rlaunch_lock::BufferTable;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// Link to a peer that may not be connected yet.
pub(crate) struct LazyLink {
    peer: Rank,
    link_hint: LinkHint,
    /// Descriptor that wakes the rank when the peer is connected. The rank watches it until then.
    arrivals: ArrivalFd,
    state: LazyState,
}

enum LazyState {
    Unconnected {
        connector: Arc<LazyConnector>,
        is_wanted: bool,
        seen: u32,
    },
    Connected(Box<dyn Link>),
    /// The peer has left without sending anything to this rank.
    Left {
        is_reported: bool,
    },
}

impl LazyLink {
    pub(crate) fn new(peer: Rank, connector: &Arc<LazyConnector>) -> LazyLink {
        let state =
            LazyState::Unconnected { connector: connector.clone(), is_wanted: false, seen: 0 };
        LazyLink {
            peer,
            link_hint: connector.link_hint(peer),
            arrivals: connector.arrival_fd(),
            state,
        }
    }

    #[cfg(test)]
    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.state, LazyState::Connected(_))
    }

    /// Takes the connection to the peer from the connector, if there is one. Returns whether the
    /// connector had any event, possibly for another link.
    fn take_arrival(&mut self) -> Result<bool, LinkError> {
        let LazyState::Unconnected { connector, seen, .. } = &mut self.state else {
            return Ok(false);
        };
        if !connector.has_event(seen) {
            return Ok(false);
        }
        match connector.take(self.peer)? {
            Some(Arrival::Connected(link)) => self.state = LazyState::Connected(link),
            Some(Arrival::Left) => self.state = LazyState::Left { is_reported: false },
            None => {}
        }
        Ok(true)
    }

    /// Returns the underlying link, or `None` if the peer is not connected yet.
    fn connected(&mut self) -> Result<Option<&mut dyn Link>, LinkError> {
        self.take_arrival()?;
        Ok(self.connected_link())
    }

    /// Returns the underlying link, or `None` if it was not taken from the connector yet.
    fn connected_link(&mut self) -> Option<&mut dyn Link> {
        match &mut self.state {
            LazyState::Connected(link) => Some(link.as_mut()),
            LazyState::Unconnected { .. } | LazyState::Left { .. } => None,
        }
    }
}

impl fmt::Debug for LazyLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_connected = matches!(self.state, LazyState::Connected(_));
        f.debug_struct("LazyLink")
            .field("peer", &self.peer)
            .field("is_connected", &is_connected)
            .finish()
    }
}

impl Link for LazyLink {
    fn limits(&self) -> Limits {
        self.link_hint.limits
    }

    fn wake_latency(&self) -> Duration {
        self.link_hint.wake_latency
    }

    fn send(&mut self, header: Header, payload: &[u8]) -> Result<bool, LinkError> {
        if let Some(link) = self.connected()? {
            return link.send(header, payload);
        }
        let LazyState::Unconnected { connector, is_wanted, .. } = &mut self.state else {
            return Ok(false);
        };
        // A peer without a connection does not expect a goodbye.
        if header.kind == PacketKind::Bye && !*is_wanted {
            return Ok(true);
        }
        if !std::mem::replace(is_wanted, true) {
            connector.want(self.peer);
        }
        Ok(false)
    }

    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        if let Some(link) = self.connected()? {
            return link.receive(sink);
        }
        match &mut self.state {
            // Deliver the goodbye packet that a connected peer would have sent.
            LazyState::Left { is_reported: is_reported @ false } => {
                *is_reported = true;
                let bye = PacketKind::Bye;
                sink.packet(Header { kind: bye, context: 0, tag: 0, transfer: 0, length: 0 }, &[])?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    // Memory is exposed and written only after a connection was made.

    fn register(&mut self, buffers: &BufferTable, whole: LocalSlice) {
        if let Some(link) = self.connected_link() {
            link.register(buffers, whole);
        }
    }

    fn expose_write(&mut self, buffers: &BufferTable, into: LocalSlice) -> Exposure {
        self.connected_link().map_or(Exposure::Refused, |link| link.expose_write(buffers, into))
    }

    fn write(
        &mut self,
        buffers: &BufferTable,
        from: LocalSlice,
        to: RemoteBuf,
        transfer: u32,
    ) -> Result<WriteOutcome, LinkError> {
        self.connected_link()
            .map_or(Ok(WriteOutcome::Refused), |link| link.write(buffers, from, to, transfer))
    }

    fn is_rdma(&self) -> bool {
        self.link_hint.is_rdma
    }

    fn is_delivered(&self) -> bool {
        match &self.state {
            LazyState::Connected(link) => link.is_delivered(),
            LazyState::Unconnected { .. } | LazyState::Left { .. } => true,
        }
    }

    fn probe_peer(&mut self) {
        if let Some(link) = self.connected_link() {
            link.probe_peer();
        }
    }

    fn arm(&mut self, wants_room: bool) -> Result<Armed<'_>, LinkError> {
        if let LazyState::Unconnected { connector, .. } = &self.state {
            connector.drain_wakeups();
        }
        // The event may concern a link that was armed before this one.
        if self.take_arrival()? {
            return Ok(Armed::Ready);
        }
        match &mut self.state {
            LazyState::Connected(link) => Ok(match link.arm(wants_room)? {
                Armed::Watch(watched) => {
                    let instead_of = watched.instead_of.or(Some(self.arrivals.as_fd()));
                    Armed::Watch(WatchedFd { instead_of, ..watched })
                }
                other => other,
            }),
            LazyState::Unconnected { .. } => {
                let fd = self.arrivals.as_fd();
                Ok(Armed::Watch(WatchedFd { fd, writable: false, instead_of: None }))
            }
            LazyState::Left { is_reported: false } => Ok(Armed::Ready),
            LazyState::Left { is_reported: true } => Ok(Armed::NoFd),
        }
    }

    fn disarm(&mut self) {
        if let Some(link) = self.connected_link() {
            link.disarm();
        }
    }
    fn visit_fds(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        visit(self.arrivals.as_fd());
        if let LazyState::Connected(link) = &self.state {
            link.visit_fds(visit);
        }
    }

    fn peer_has_left(&mut self) {
        if let LazyState::Unconnected { connector, .. } = &self.state {
            connector.peer_has_left(self.peer);
        }
    }
}
