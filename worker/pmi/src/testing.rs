//! A job of several nodes in memory, for tests: one server for each node, and an agent that joins them.

use crate::Server;
use crate::layout::{JobLayout, NodeLayout};
use crate::node::{ConnectionId, Output};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Layout of the job on the node `here`, whose nodes have these ranks. The PMI-1 id of a rank is 1000
/// plus the rank.
pub(crate) fn layout(nodes: &[&[u32]], here: usize) -> JobLayout {
    let node = |(number, ranks): (usize, &&[u32])| NodeLayout {
        host: format!("host{number}"),
        ranks: ranks.to_vec(),
    };
    let nodes: Vec<NodeLayout> = nodes.iter().enumerate().map(node).collect();
    let world: u32 = nodes.iter().map(|node| u32::try_from(node.ranks.len()).unwrap()).sum();
    let pmi_ids = nodes[here].ranks.iter().map(|rank| 1000 + rank).collect();
    let application_of = (0..world).map(|rank| rank % 2).collect();
    JobLayout { namespace: "job".to_owned(), nodes, here, application_of, pmi_ids, directory: None }
}

/// What a rank brings to a gather.
struct Part {
    node: usize,
    request: u64,
    rank: u32,
    blob: Vec<u8>,
}

/// Job of several nodes.
pub(crate) struct Job {
    pub(crate) servers: Vec<Server>,
    /// Node of each connection.
    nodes: BTreeMap<ConnectionId, usize>,
    /// What each connection has received and the test has not taken.
    sent: BTreeMap<ConnectionId, Vec<u8>>,
    closed: Vec<ConnectionId>,
    /// Values that some node has stored.
    pub(crate) stored: BTreeMap<String, Vec<u8>>,
    /// Nodes that wait for a value, with the request and the key.
    waiting: Vec<(usize, u64, String)>,
    /// What the ranks that take part in a gather bring to it, by `NAME:NUMBER`.
    gathers: BTreeMap<String, Vec<Part>>,
    /// Number of gathers of a name in which a rank has taken part.
    counts: BTreeMap<(String, u32), u64>,
    ended: BTreeSet<u32>,
    /// Gathers that are complete.
    pub(crate) gathered: Vec<String>,
    /// Actions that tell the agent about ranks.
    events: Vec<Output>,
    /// Nodes and names of files in shared memory.
    pub(crate) segments: Vec<(usize, String)>,
}

impl Job {
    /// Creates a job whose nodes have these ranks.
    pub(crate) fn new(nodes: &[&[u32]]) -> Job {
        let servers = (0..nodes.len()).map(|here| Server::new(layout(nodes, here))).collect();
        Job {
            servers,
            nodes: BTreeMap::new(),
            sent: BTreeMap::new(),
            closed: Vec::new(),
            stored: BTreeMap::new(),
            waiting: Vec::new(),
            gathers: BTreeMap::new(),
            counts: BTreeMap::new(),
            ended: BTreeSet::new(),
            gathered: Vec::new(),
            events: Vec::new(),
            segments: Vec::new(),
        }
    }

    /// Opens a connection to a node's port.
    pub(crate) fn connect(&mut self, node: usize) -> ConnectionId {
        let connection = ConnectionId(self.nodes.len() as u64);
        self.nodes.insert(connection, node);
        self.servers[node].connected(connection);
        self.settle();
        connection
    }

    /// Lets a client send bytes, and returns what it has received since the last time.
    pub(crate) fn send(&mut self, connection: ConnectionId, bytes: &[u8]) -> Vec<u8> {
        let node = self.nodes[&connection];
        self.servers[node].received(connection, bytes, Instant::now());
        self.settle();
        self.received(connection)
    }

    /// Returns what a client has received since the last time.
    pub(crate) fn received(&mut self, connection: ConnectionId) -> Vec<u8> {
        self.sent.remove(&connection).unwrap_or_default()
    }

    /// Lets a client close its connection.
    pub(crate) fn close(&mut self, connection: ConnectionId) {
        self.servers[self.nodes[&connection]].closed(connection);
        self.settle();
    }

    /// Lets the process of a rank end.
    pub(crate) fn end(&mut self, node: usize, rank: u32) {
        self.servers[node].rank_ended(rank);
        self.settle();
        self.ended.insert(rank);
        let open: Vec<String> = self.gathers.keys().cloned().collect();
        for gather in open {
            if self.gathers[&gather].iter().all(|part| part.rank != rank) {
                self.fail(&gather);
            }
        }
    }

    /// Tells whether the server has closed a connection.
    pub(crate) fn is_closed(&self, connection: ConnectionId) -> bool {
        self.closed.contains(&connection)
    }

    /// Returns what the servers have told their agents about ranks since the last time.
    pub(crate) fn events(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.events)
    }

    /// Lets a gather in which some ranks take part fail.
    pub(crate) fn fail(&mut self, gather: &str) {
        for part in self.gathers.remove(gather).unwrap() {
            self.servers[part.node].failed(part.request);
        }
        self.settle();
    }

    /// Executes the actions of all servers until there are none.
    pub(crate) fn settle(&mut self) {
        let mut next = 0;
        while next < self.servers.len() {
            match self.servers[next].poll_output() {
                Some(output) => {
                    self.execute(next, output);
                    next = 0;
                }
                None => next += 1,
            }
        }
    }

    fn execute(&mut self, node: usize, output: Output) {
        match output {
            Output::Send(connection, bytes) => {
                assert!(!self.is_closed(connection), "sends on a closed connection");
                self.sent.entry(connection).or_default().extend(bytes);
            }
            Output::Close(connection) => self.closed.push(connection),
            Output::Put { key, value } => {
                assert!(key.len() <= 255 && value.len() <= 64 * 1024);
                self.stored.insert(key, value);
                self.wake();
            }
            Output::Get { request, key, wait } => {
                assert!(key.len() <= 255);
                if wait {
                    self.waiting.push((node, request, key));
                    self.wake();
                } else {
                    let value = self.stored.get(&key).cloned();
                    self.servers[node].value(request, value);
                }
            }
            Output::Gather { request, local_rank, name, blob } => {
                let rank = self.servers[node].layout().ranks_here()[local_rank];
                self.gather(&name, Part { node, request, rank, blob });
            }
            Output::Segment(name) => self.segments.push((node, name)),
            event => self.events.push(event),
        }
    }

    /// Answers the nodes that wait for values that are there now.
    fn wake(&mut self) {
        for (node, request, key) in std::mem::take(&mut self.waiting) {
            match self.stored.get(&key).filter(|value| !value.is_empty()) {
                Some(value) => self.servers[node].value(request, Some(value.clone())),
                None => self.waiting.push((node, request, key)),
            }
        }
    }

    fn gather(&mut self, name: &str, part: Part) {
        assert!(name.len() <= 255 && part.blob.len() <= 64 * 1024);
        let count = self.counts.entry((name.to_owned(), part.rank)).or_default();
        let (number, gather) = (*count, format!("{name}:{count}"));
        *count += 1;
        let taken = |rank: &u32| self.counts.get(&(name.to_owned(), *rank)).copied().unwrap_or(0);
        let can_complete = self.ended.iter().all(|rank| taken(rank) > number);
        let parts = self.gathers.entry(gather.clone()).or_default();
        parts.push(part);
        if !can_complete {
            return self.fail(&gather);
        }
        let layout = self.servers[0].layout();
        if parts.len() < usize::try_from(layout.world_size()).unwrap() {
            return;
        }
        let mut parts = self.gathers.remove(&gather).unwrap();
        self.gathered.push(gather);
        parts.sort_by_key(|part| part.rank);
        let data: Vec<Vec<u8>> = parts.iter().map(|part| part.blob.clone()).collect();
        for part in parts {
            self.servers[part.node].gathered(part.request, data.clone());
        }
    }
}
