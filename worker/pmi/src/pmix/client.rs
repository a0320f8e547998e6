//! Connections, and the ranks at their other ends.

use super::frame::Frames;
use super::handshake::{self, Hello, Version};
use super::status::Status;
use crate::node::Node;
use crate::output::ConnectionId;
use crate::sorted_map::SortedMap;

/// Client that has sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) connection: ConnectionId,
    /// Tag for the answer.
    pub(super) tag: u32,
    /// Local rank.
    pub(super) local: usize,
    /// Number of the client's MPI program in the rank's life.
    pub(super) run: u32,
}

/// Result of reading from a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The message is not complete yet.
    Nothing,
    /// A local rank has begun this run.
    Began {
        /// Local rank.
        local: usize,
        /// Number of the MPI program in the rank's life.
        run: u32,
    },
    /// A client has sent a request with this body.
    Request(Caller, Vec<u8>),
    /// The connection is to be closed.
    Refused,
}

/// Connections of a node.
#[derive(Debug, Default)]
pub(super) struct Clients {
    clients: SortedMap<ConnectionId, Client>,
}

/// State of a connection.
#[derive(Debug, Default)]
struct Client {
    frames: Frames,
    /// Rank at the other end; `None` until its first message has come.
    rank: Option<Rank>,
}

/// Rank at the other end of a connection.
#[derive(Clone, Copy, Debug)]
struct Rank {
    /// Local rank.
    local: usize,
    /// Number of the client's MPI program in the rank's life.
    run: u32,
    version: Version,
    has_asked_for_job: bool,
    has_finalized: bool,
}

impl Clients {
    /// Takes the next message of a connection out of `bytes`.
    pub(super) fn next(
        &mut self,
        node: &mut Node,
        connection: ConnectionId,
        bytes: &mut &[u8],
    ) -> Event {
        let client = self.clients.get_or_insert_with(connection, Client::default);
        let frame = match client.frames.next(bytes) {
            Ok(Some(frame)) => frame,
            Ok(None) => return Event::Nothing,
            Err(_) => return Event::Refused,
        };
        match client.rank {
            // The client closes its connection after it has finalized.
            Some(Rank { has_finalized: true, .. }) => Event::Refused,
            Some(Rank { local, run, .. }) => {
                Event::Request(Caller { connection, tag: frame.tag, local, run }, frame.body)
            }
            None => client.greet(node, connection, &frame.body).unwrap_or(Event::Refused),
        }
    }

    /// Tells whether a client may ask for the description of the job: it may do so once.
    pub(super) fn may_ask_for_job(&mut self, connection: ConnectionId) -> bool {
        let rank = self.clients.get_mut(&connection).and_then(|client| client.rank.as_mut());
        rank.is_some_and(|rank| !std::mem::replace(&mut rank.has_asked_for_job, true))
    }

    /// Records that a client has finalized.
    pub(super) fn finalize(&mut self, connection: ConnectionId) {
        let client = self.clients.get_mut(&connection);
        if let Some(rank) = client.and_then(|client| client.rank.as_mut()) {
            rank.has_finalized = true;
        }
    }

    /// Returns the version of a client's library.
    pub(super) fn version(&self, connection: ConnectionId) -> Version {
        let rank = self.clients.get(&connection).and_then(|client| client.rank);
        rank.map_or(Version(0, 0, 0), |rank| rank.version)
    }

    /// Forgets a connection.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.clients.remove(&connection);
    }
}

impl Client {
    /// Takes the first message of a connection. Returns `None` if it is not of a rank of this node.
    fn greet(&mut self, node: &mut Node, connection: ConnectionId, body: &[u8]) -> Option<Event> {
        let hello = Hello::decode(body).ok()?;
        if !handshake::is_equal(node.layout().namespace.as_bytes(), hello.namespace) {
            return None;
        }
        let local = node.layout().local_rank(hello.rank)?;
        let status = hello.status();
        node.send(connection, handshake::answer(status, hello.rank));
        if status != Status::SUCCESS {
            return None;
        }
        let run = node.begin(connection, local);
        self.rank = Some(Rank {
            local,
            run,
            version: hello.version,
            has_asked_for_job: false,
            has_finalized: false,
        });
        Some(Event::Began { local, run })
    }
}
