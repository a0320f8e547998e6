//! Servers of the process management interfaces by which MPI libraries find the ranks of their job: PMI-1
//! (MPICH, Intel MPI, MVAPICH) and PMIx (Open MPI).
//!
//! An agent drives one [`Server`] for the ranks of its node. The server takes bytes from connections and
//! results from the other agents, and returns actions; the agent owns the sockets and the tree of agents.
//!
//! | file | contents |
//! |---|---|
//! | `layout` | which ranks run on which nodes |
//! | `node` | actions that a server asks of its agent; what both families share: ranks, open connections, queued actions, files in shared memory; how a family plugs into the server |
//! | `fence` | ranks of this node that have arrived at a fence, and the data they bring |
//! | `pmi1/` | PMI-1: lines of text, one request at a time |
//! | `pmix/` | PMIx: binary messages in the encoding of version 3 |
//! | `sorted_map` | a map that needs little code |

mod fence;
mod layout;
mod node;
pub mod pmi1;
pub mod pmix;
mod sorted_map;
#[cfg(test)]
mod testing;

pub use layout::{JobLayout, NodeLayout, RankPlace};
pub use node::{ConnectionId, Family, Output};

use node::{Node, Protocol};
use pmi1::Pmi1;
use pmix::Pmix;
use std::time::Instant;

/// Server of a node, which hands the events that the agent reports to the family they are for.
#[derive(Debug)]
pub struct Server {
    node: Node,
    pmi1: Pmi1,
    pmix: Pmix,
}

impl Server {
    /// Creates the server of the node `layout.here`.
    pub fn new(layout: JobLayout) -> Server {
        let node = Node::new(layout);
        Server { pmi1: Pmi1::new(&node), pmix: Pmix::new(&node), node }
    }

    /// Returns the layout of the job.
    pub fn layout(&self) -> &JobLayout {
        self.node.layout()
    }

    /// Adds a connection that the agent has accepted on its port; the client will say which rank it is.
    pub fn connected(&mut self, connection: ConnectionId) {
        self.node.open(connection);
        self.settle();
    }

    /// Takes bytes of a connection, in any split.
    pub fn received(&mut self, connection: ConnectionId, bytes: &[u8], now: Instant) {
        if let Some(family) = self.node.family(connection, bytes) {
            self.with(family, |state, node| state.received(node, connection, bytes, now));
        }
    }

    /// Takes notice that a connection no longer exists.
    pub fn closed(&mut self, connection: ConnectionId) {
        if let Some(Some(family)) = self.node.forget(connection) {
            self.with(family, |state, node| state.closed(node, connection));
        }
    }

    /// Takes the answer to [`Output::Gather`]: data by rank. Later answers to the same request are ignored.
    pub fn gathered(&mut self, request: u64, data: Vec<Vec<u8>>) {
        if let Some(family) = self.node.take_request(request) {
            self.with(family, |state, node| state.gathered(node, request, Some(data)));
        }
    }

    /// Takes the answer to [`Output::Get`]: `None` if the key has no value.
    pub fn value(&mut self, request: u64, value: Option<Vec<u8>>) {
        let value = value.filter(|value| !value.is_empty());
        if let Some(family) = self.node.take_request(request) {
            self.with(family, |state, node| state.value(node, request, value));
        }
    }

    /// Takes notice that a gather can never complete, or that a value cannot be read.
    pub fn failed(&mut self, request: u64) {
        if let Some(family) = self.node.take_request(request) {
            self.with(family, |state, node| {
                state.gathered(node, request, None);
                state.value(node, request, None);
            });
        }
    }

    /// Takes notice that the process of a rank has ended. The agent lets the gathers fail for which it has
    /// not arrived.
    pub fn rank_ended(&mut self, rank: u32) {
        if let Some(local) = self.node.layout().local_rank(rank) {
            self.node.end(local);
            self.with(Family::Pmi1, |state, node| state.rank_ended(node, local));
            self.with(Family::Pmix, |state, node| state.rank_ended(node, local));
        }
    }

    /// Does what is due at this time.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.with(Family::Pmi1, |state, node| state.handle_timeout(node, now));
        self.with(Family::Pmix, |state, node| state.handle_timeout(node, now));
    }

    /// Returns the time at which [`Server::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.pmi1.poll_timeout().into_iter().chain(self.pmix.poll_timeout()).min()
    }

    /// Returns the next action for the agent.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.node.poll_output()
    }

    fn with(&mut self, family: Family, act: impl FnOnce(&mut dyn Protocol, &mut Node)) {
        match family {
            Family::Pmi1 => act(&mut self.pmi1, &mut self.node),
            Family::Pmix => act(&mut self.pmix, &mut self.node),
        }
        self.settle();
    }

    /// Lets the families forget the connections that this server has closed.
    fn settle(&mut self) {
        while let Some((connection, family)) = self.node.take_dropped() {
            match family {
                Family::Pmi1 => self.pmi1.closed(&mut self.node, connection),
                Family::Pmix => self.pmix.closed(&mut self.node, connection),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::layout;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// What an agent may report, in any order.
    #[derive(Clone, Debug)]
    enum Event {
        Connected,
        Received(u64, Vec<u8>),
        Closed(u64),
        Gathered(u64, Vec<Vec<u8>>),
        Failed(u64),
        Value(u64, Option<Vec<u8>>),
        RankEnded(u32),
        Timeout,
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let lines = prop::sample::select(vec![
            "cmd=initack pmiid=1000\ncmd=init pmi_version=1\n",
            "cmd=initack pmiid=1001\ncmd=init pmi_version=1\n",
            "cmd=init pmi_version=1\ncmd=put kvsname=job-1 key=k value=v\ncmd=barrier_in\n",
            "cmd=barrier_in\n",
            "cmd=publish_name service=a port=b\n",
            "cmd=unpublish_name service=a\n",
            "cmd=abort\n",
            "cmd=finalize\n",
        ]);
        prop_oneof![lines.prop_map(|line| line.as_bytes().to_vec()), vec(any::<u8>(), 0..64)]
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let gathered = (0..4_u64, vec(vec(any::<u8>(), 0..12), 0..4));
        let value = (0..4_u64, prop::option::of(vec(any::<u8>(), 0..12)));
        let event = prop_oneof![
            2 => Just(Event::Connected),
            8 => (0..8_u64, bytes()).prop_map(|(connection, bytes)| Event::Received(connection, bytes)),
            1 => (0..8_u64).prop_map(Event::Closed),
            2 => gathered.prop_map(|(request, data)| Event::Gathered(request, data)),
            2 => value.prop_map(|(request, value)| Event::Value(request, value)),
            1 => (0..4_u64).prop_map(Event::Failed),
            1 => (0..4_u32).prop_map(Event::RankEnded),
            1 => Just(Event::Timeout),
        ];
        vec(event, 0..60)
    }

    fn report(server: &mut Server, connections: &mut u64, event: Event) {
        let mut connection = || {
            *connections += 1;
            ConnectionId(*connections - 1)
        };
        match event {
            Event::Connected => server.connected(connection()),
            Event::Received(connection, bytes) => {
                server.received(ConnectionId(connection), &bytes, Instant::now());
            }
            Event::Closed(connection) => server.closed(ConnectionId(connection)),
            Event::Gathered(request, data) => server.gathered(request, data),
            Event::Failed(request) => server.failed(request),
            Event::Value(request, value) => server.value(request, value),
            Event::RankEnded(rank) => server.rank_ended(rank),
            Event::Timeout => server.handle_timeout(Instant::now()),
        }
    }

    proptest! {
        #[test]
        fn any_events_are_survived(events in events()) {
            let mut server = Server::new(layout(&[&[0, 1], &[2]], 0));
            let (mut connections, mut closed) = (0, BTreeSet::new());
            for event in events {
                if let Event::Closed(connection) = event && connection < connections {
                    closed.insert(ConnectionId(connection));
                }
                report(&mut server, &mut connections, event);
                while let Some(output) = server.poll_output() {
                    match output {
                        Output::Send(connection, _) => prop_assert!(!closed.contains(&connection)),
                        Output::Close(connection) => prop_assert!(closed.insert(connection)),
                        Output::Gather { local_rank, name, blob, .. } => {
                            prop_assert!(name.len() <= 255 && local_rank < 2);
                            prop_assert!(blob.len() <= 64 * 1024);
                        }
                        Output::Put { key, .. } | Output::Get { key, .. } => {
                            prop_assert!(key.len() <= 255);
                        }
                        Output::Segment(name) => prop_assert!(!name.contains('/')),
                        Output::Abort { rank, .. }
                        | Output::Print { rank, .. }
                        | Output::Connected(rank, _)
                        | Output::Finalized(rank) => prop_assert!(rank < 2),
                    }
                }
            }
        }
    }
}
