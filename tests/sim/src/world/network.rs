//! Edges between nodes: carriers that break and are replaced by relays, delays, duplicate frames.

use super::{BREAK_DETECTION, Event, World};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::rendezvous::link::{Frame, Head};
use rlaunch_bootstrap::rendezvous::node::NodeInput;
use std::time::Duration;

/// Connection that carries frames from a node to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    None,
    Tcp,
    Relay,
}

/// One direction of an edge.
#[derive(Debug)]
pub(super) struct EdgeDirection {
    pub(super) carrier: Carrier,
    pub(super) latency: Duration,
    /// Arrival of the latest frame; later frames arrive later.
    pub(super) last_arrival: Duration,
    /// Time after which frames on the broken TCP connection are lost.
    pub(super) lost_after: Option<Duration>,
}

impl World<'_> {
    pub(super) fn edge_up(
        &mut self,
        id: NodeId,
        peer: NodeId,
        carrier: Carrier,
    ) -> Result<(), String> {
        if let Some(direction) =
            self.edges.get_mut(&(id, peer)).filter(|w| w.carrier == Carrier::None)
        {
            direction.carrier = carrier;
            if let Some(link) = self.nodes[id.index()].links.get_mut(&peer) {
                link.carrier_up();
            }
        }
        self.process_outputs(id)
    }

    pub(super) fn edge_broke(&mut self, id: NodeId, peer: NodeId) -> Result<(), String> {
        if !self.nodes[id.index()].is_alive {
            return Ok(());
        }
        if let Some(direction) =
            self.edges.get_mut(&(id, peer)).filter(|w| w.carrier == Carrier::Tcp)
        {
            direction.carrier = Carrier::Relay;
            if let Some(link) = self.nodes[id.index()].links.get_mut(&peer) {
                link.carrier_down();
                link.carrier_up();
            }
        }
        self.process_outputs(id)
    }

    pub(super) fn arrive(
        &mut self,
        from: NodeId,
        to: NodeId,
        carrier: Carrier,
        frame: Frame,
    ) -> Result<(), String> {
        if !self.nodes[to.index()].is_alive || self.is_over {
            return Ok(());
        }
        let cut = self.edges.get(&(from, to)).and_then(|direction| direction.lost_after);
        let Some(back) = self.edges.get_mut(&(to, from)) else { return Ok(()) };
        let node = &mut self.nodes[to.index()];
        let Some(link) = node.links.get_mut(&from) else { return Ok(()) };
        match (carrier, back.carrier) {
            // The receiver uses the relay already, or the frame was lost with the connection.
            (Carrier::Tcp, Carrier::Relay) => return Ok(()),
            (Carrier::Tcp, _) if cut.is_some_and(|cut| self.now > cut) => return Ok(()),
            (Carrier::Relay, Carrier::Tcp | Carrier::None) => {
                back.carrier = Carrier::Relay;
                link.carrier_up();
            }
            _ => {}
        }
        match link.receive(frame) {
            Ok(Some(packet)) => {
                let now = self.clock(to);
                let handled =
                    self.nodes[to.index()].node.handle(now, NodeInput::Packet(from, packet));
                self.check_violation(&[from, to], handled, || format!("node {to}"))?;
            }
            Ok(None) => {}
            Err(violation) => {
                self.check_violation(&[from, to], Err(violation), || format!("{to} from {from}"))?;
            }
        }
        self.process_outputs(to)
    }

    /// Passes a violation on as an error, unless one of the nodes has restarted without its state; its
    /// neighbours are right to complain then.
    pub(super) fn check_violation<E: std::fmt::Display>(
        &self,
        who: &[NodeId],
        handled: Result<(), E>,
        place: impl Fn() -> String,
    ) -> Result<(), String> {
        match handled {
            Err(error) if !who.iter().any(|&id| self.has_lost_state(id)) => {
                Err(format!("{}: {error}", place()))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn has_lost_state(&self, id: NodeId) -> bool {
        self.nodes[id.index()].has_lost_state
    }

    pub(super) fn break_edge(&mut self, child: NodeId) {
        let Some(parent) = self.shape.parent(child) else { return };
        for (from, to) in [(child, parent), (parent, child)] {
            // Frames in transit may still arrive, up to some point.
            let in_transit = self.scenario.latency.mul_f64(self.rng.f64() * 2.0);
            let noticed = self.now + BREAK_DETECTION.mul_f64(self.rng.f64());
            if let Some(direction) =
                self.edges.get_mut(&(from, to)).filter(|direction| direction.lost_after.is_none())
            {
                direction.lost_after = Some(self.now + in_transit);
                self.schedule(noticed, Event::EdgeBroke(from, to));
            }
        }
    }

    pub(super) fn transmit(&mut self, id: NodeId) {
        let node = &mut self.nodes[id.index()];
        let mut frames = Vec::new();
        for (&peer, link) in &mut node.links {
            while let Some(frame) = link.poll_frame() {
                frames.push((peer, frame));
            }
        }
        for (to, frame) in frames {
            let jitter = Duration::from_nanos(self.rng.u64(..50_000));
            let slow = self.nodes[to.index()].delay_per_frame;
            let Some(direction) = self.edges.get_mut(&(id, to)) else { continue };
            let carrier = direction.carrier;
            let latency =
                if carrier == Carrier::Relay { direction.latency * 2 } else { direction.latency };
            direction.last_arrival = direction.last_arrival.max(self.now + latency + jitter) + slow;
            let when = direction.last_arrival;
            let twice = !self.scenario.faults.is_empty() && self.rng.u32(..50) == 0;
            if twice && matches!(frame.head, Head::Packet { .. }) {
                let frame = frame.clone();
                self.schedule(when, Event::Frame { from: id, to, carrier, frame });
            }
            self.schedule(when, Event::Frame { from: id, to, carrier, frame });
        }
    }
}
