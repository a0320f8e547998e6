//! State of a node that both families use: ranks, open connections, queued actions; the
//! actions that a server asks of its agent.
//!
//! How a family plugs into the server of a node.
//!
//! Each family has one state per node, which implements [`Protocol`]. The server finds out the family of
//! a connection from its first byte and from then on hands every event of that connection to the family's
//! state, together with the [`Node`]: what both families share. A family returns nothing; it queues its
//! actions by the functions of `Node` (`send`, `close`, `gather`, `put`, `get`, `begin`, `finalized`,
//! `abort`). Answers to `gather` and `get` come back to the family that asked, by the request's number.
//!
//! A family counts the ranks that arrive at a fence over all ranks by a [`Fence`](crate::fence::Fence).
//!
//! Files in the directory for shared memory that MPI libraries make, and leave there if a rank is killed.

use crate::layout::JobLayout;
use crate::sorted_map::{SortedMap, SortedSet};
use std::collections::VecDeque;
use std::time::Instant;

/// Maximum number of open connections that have not yet said which rank they are, in addition to one
/// for each rank of the node. Any process of the host can connect to the agent's port; when strangers
/// hold this many connections, the oldest is closed for the next one.
pub(crate) const STRANGERS_MAX: usize = 64;

/// State of a node that both families use.
#[derive(Debug)]
pub(crate) struct Node {
    layout: JobLayout,
    /// Number of the node of each rank, by rank; empty if the layout is not complete.
    node_of: Vec<usize>,
    /// Ranks of this node, by local rank.
    ranks: Vec<RankState>,
    connections: SortedMap<ConnectionId, Connection>,
    /// Open connections without a rank, oldest first.
    strangers: Vec<ConnectionId>,
    /// Connections that this server has closed and whose family has not been told yet.
    dropped: Vec<(ConnectionId, Family)>,
    outputs: VecDeque<Output>,
    next_request: u64,
    /// Family that waits for the answer to each request.
    requests: SortedMap<u64, Family>,
    segments: Segments,
}

/// State of a rank.
#[derive(Debug)]
struct RankState {
    /// Whether the process that the agent started still runs.
    alive: bool,
    /// Number of MPI programs that have started in this rank: a shell may run several, one after the other.
    run: u32,
    /// Connection of the MPI program.
    connection: Option<ConnectionId>,
}

/// State of an open connection.
#[derive(Clone, Copy, Debug)]
struct Connection {
    /// Family, `None` until the first byte has come.
    family: Option<Family>,
    /// Local rank, `None` until the client has said which rank it is.
    local: Option<usize>,
}

impl Node {
    /// Creates the state of a node without connections.
    pub(crate) fn new(layout: JobLayout) -> Node {
        let rank = || RankState { alive: true, run: 0, connection: None };
        Node {
            node_of: layout.node_of_ranks().unwrap_or_default(),
            ranks: layout.ranks_here().iter().map(|_| rank()).collect(),
            segments: Segments::new(layout.ranks_here().len()),
            layout,
            connections: SortedMap::default(),
            strangers: Vec::new(),
            dropped: Vec::new(),
            outputs: VecDeque::new(),
            next_request: 0,
            requests: SortedMap::default(),
        }
    }

    /// Returns the layout of the job.
    pub(crate) fn layout(&self) -> &JobLayout {
        &self.layout
    }

    /// Returns the number of ranks of this node.
    pub(crate) fn local_size(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the rank at a local rank.
    pub(crate) fn rank(&self, local: usize) -> u32 {
        self.layout.ranks_here().get(local).copied().unwrap_or(u32::MAX)
    }

    /// Returns the number of the node of a rank, or `None` if there is no such rank.
    pub(crate) fn node_of(&self, rank: u32) -> Option<usize> {
        self.node_of.get(usize::try_from(rank).ok()?).copied()
    }

    /// Tells whether the process of a local rank still runs.
    pub(crate) fn is_alive(&self, local: usize) -> bool {
        self.ranks.get(local).is_some_and(|rank| rank.alive)
    }

    /// Returns the number of MPI programs that have started in a local rank, the present one included.
    pub(crate) fn run(&self, local: usize) -> u32 {
        self.ranks.get(local).map_or(0, |rank| rank.run)
    }

    /// Tells whether a connection is open. A family must ignore further bytes of a closed one.
    pub(crate) fn is_open(&self, connection: ConnectionId) -> bool {
        self.connections.contains_key(&connection)
    }

    /// Records that the program at the other end of a connection belongs to a local rank and begins with
    /// MPI. Closes the connection of the rank's previous program if that is still open. Returns the number
    /// of this program in the rank's life, from 1.
    pub(crate) fn begin(&mut self, connection: ConnectionId, local: usize) -> u32 {
        let Some(family) = self.identify(connection, local) else { return 0 };
        let rank = self.rank(local);
        let Some(state) = self.ranks.get_mut(local) else { return 0 };
        state.run = state.run.saturating_add(1);
        let run = state.run;
        let previous = state.connection.replace(connection);
        if let Some(previous) = previous.filter(|&previous| previous != connection) {
            self.close(previous);
        }
        self.outputs.push_back(Output::Connected(rank, family));
        run
    }

    /// Records which local rank a connection belongs to, before its program begins with MPI. Returns the
    /// family, or `None` if the connection is closed.
    pub(crate) fn identify(&mut self, connection: ConnectionId, local: usize) -> Option<Family> {
        let state = self.connections.get_mut(&connection)?;
        state.local = Some(local);
        let family = state.family;
        self.strangers.retain(|&stranger| stranger != connection);
        family
    }

    /// Tells the agent that the program of a local rank has called `MPI_Finalize`.
    pub(crate) fn finalized(&mut self, local: usize) {
        self.outputs.push_back(Output::Finalized(self.rank(local)));
    }

    /// Tells the agent that a local rank asks for the end of the job.
    pub(crate) fn abort(&mut self, local: usize, code: i32, message: String) {
        self.outputs.push_back(Output::Abort { rank: self.rank(local), code, message });
    }

    /// Asks the agent to print a text of a local rank's MPI library.
    pub(crate) fn print(&mut self, local: usize, text: String) {
        self.outputs.push_back(Output::Print { rank: self.rank(local), text });
    }

    /// Sends bytes on a connection unless it is closed.
    pub(crate) fn send(&mut self, connection: ConnectionId, bytes: Vec<u8>) {
        if self.is_open(connection) {
            self.outputs.push_back(Output::Send(connection, bytes));
        }
    }

    /// Closes a connection. The server calls [`Protocol::closed`](Protocol::closed) of
    /// its family once the present call has returned.
    pub(crate) fn close(&mut self, connection: ConnectionId) {
        if let Some(family) = self.forget(connection) {
            self.outputs.push_back(Output::Close(connection));
            if let Some(family) = family {
                self.dropped.push((connection, family));
            }
        }
    }

    /// Asks the agent to let a local rank take part in a gather. `request` is from [`Node::new_request`].
    pub(crate) fn gather(&mut self, request: u64, local_rank: usize, name: String, blob: Vec<u8>) {
        self.outputs.push_back(Output::Gather { request, local_rank, name, blob });
    }

    /// Stores a value where every node can read it.
    pub(crate) fn put(&mut self, key: String, value: Vec<u8>) {
        self.outputs.push_back(Output::Put { key, value });
    }

    /// Reads a value that some node has stored; the server passes the answer to a family. Returns the
    /// number of the request.
    pub(crate) fn get(&mut self, family: Family, key: String, wait: bool) -> u64 {
        let request = self.new_request(family);
        self.outputs.push_back(Output::Get { request, key, wait });
        request
    }

    /// Tells the agent that a file in shared memory belongs to the job, once for each file. Returns false
    /// if the path is not that of one, or if there are too many.
    pub(crate) fn claim_path(&mut self, path: &[u8]) -> bool {
        name_of(path).is_some_and(|name| self.claim(name))
    }

    /// Tells the agent which files in shared memory MPICH makes on this node.
    pub(crate) fn claim_mpich(&mut self, store: &str) {
        for name in of_mpich(store, self.layout.here) {
            self.claim(&name);
        }
    }

    fn claim(&mut self, name: &str) -> bool {
        let added = self.segments.add(name);
        if added == Some(true) {
            self.outputs.push_back(Output::Segment(name.to_owned()));
        }
        added.is_some()
    }

    /// Returns the number of a new request, whose answer the server passes to a family.
    pub(crate) fn new_request(&mut self, family: Family) -> u64 {
        let request = self.next_request;
        self.next_request += 1;
        self.requests.insert(request, family);
        request
    }

    // What follows is for the server alone.

    /// Adds a connection.
    pub(crate) fn open(&mut self, connection: ConnectionId) {
        self.connections.insert(connection, Connection { family: None, local: None });
        self.strangers.push(connection);
        if self.strangers.len() > STRANGERS_MAX + self.ranks.len() {
            self.close(self.strangers[0]);
        }
    }

    /// Returns the family of an open connection that has received bytes; the first byte decides.
    pub(crate) fn family(&mut self, connection: ConnectionId, bytes: &[u8]) -> Option<Family> {
        let state = self.connections.get_mut(&connection)?;
        if state.family.is_none() {
            state.family = Family::of_first_byte(*bytes.first()?).into();
        }
        state.family
    }

    /// Removes a connection. Returns `None` if there was none, otherwise its family if that is known.
    pub(crate) fn forget(&mut self, connection: ConnectionId) -> Option<Option<Family>> {
        let state = self.connections.remove(&connection)?;
        self.strangers.retain(|&stranger| stranger != connection);
        if let Some(rank) = state.local.and_then(|local| self.ranks.get_mut(local))
            && rank.connection == Some(connection)
        {
            rank.connection = None;
        }
        Some(state.family)
    }

    /// Returns a connection that this server has closed and whose family has not been told yet.
    pub(crate) fn take_dropped(&mut self) -> Option<(ConnectionId, Family)> {
        self.dropped.pop()
    }

    /// Returns the family that waits for the answer to a request, once.
    pub(crate) fn take_request(&mut self, request: u64) -> Option<Family> {
        self.requests.remove(&request)
    }

    /// Records that the process of a local rank has ended.
    pub(crate) fn end(&mut self, local: usize) {
        if let Some(rank) = self.ranks.get_mut(local) {
            rank.alive = false;
        }
    }

    /// Returns the next action for the agent.
    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }
}

/// State of a family on a node. All functions get the state that the families share.
pub(crate) trait Protocol {
    /// Takes bytes of a connection, in any split. The first call for a connection is also the notice that
    /// it exists. Once [`Node::is_open`] returns false, the rest of the bytes is to be dropped.
    fn received(&mut self, node: &mut Node, connection: ConnectionId, bytes: &[u8], now: Instant);

    /// Forgets a connection, which no longer exists in the node.
    fn closed(&mut self, node: &mut Node, connection: ConnectionId);

    /// Takes the answer to [`Node::gather`]: data by rank, `None` if the gather can never complete.
    fn gathered(&mut self, node: &mut Node, request: u64, data: Option<Vec<Vec<u8>>>);

    /// Takes the answer to [`Node::get`]: `None` if the key has no value.
    fn value(&mut self, node: &mut Node, request: u64, value: Option<Vec<u8>>);

    /// Takes notice that the process of a local rank has ended; [`Node::is_alive`] already says so.
    fn rank_ended(&mut self, node: &mut Node, local: usize);

    /// Does what is due at this time.
    fn handle_timeout(&mut self, node: &mut Node, now: Instant);

    /// Returns the time at which [`Protocol::handle_timeout`] has something to do.
    fn poll_timeout(&self) -> Option<Instant>;
}

/// Directory for shared memory.
const DIRECTORY: &str = "/dev/shm/";

/// Maximum number of names for each rank of a node.
const PER_RANK: usize = 64;

/// Maximum length in bytes of a name.
const NAME_MAX: usize = 255;

/// Names of files that belong to the job.
#[derive(Debug)]
pub(crate) struct Segments {
    names: SortedSet<String>,
    max: usize,
}

impl Segments {
    /// Creates an empty set for a number of ranks.
    pub(crate) fn new(ranks: usize) -> Segments {
        Segments { names: SortedSet::default(), max: ranks.saturating_mul(PER_RANK) }
    }

    /// Adds a name. Returns whether it is new, or `None` if it is not one of a file, or if there are too
    /// many.
    pub(crate) fn add(&mut self, name: &str) -> Option<bool> {
        let is_name = !name.is_empty() && name.len() <= NAME_MAX && !name.starts_with('.');
        if !is_name || name.contains(['/', '\0', '\n']) {
            return None;
        } else if self.names.contains_key(name) {
            return Some(false);
        }
        if self.names.len() >= self.max {
            return None;
        }
        self.names.insert(name.to_owned(), ());
        Some(true)
    }
}

/// Returns the name of a file that a rank has named by its path, or `None` if the file is not in the
/// directory for shared memory.
pub(crate) fn name_of(path: &[u8]) -> Option<&str> {
    std::str::from_utf8(path).ok()?.strip_prefix(DIRECTORY)
}

/// Returns the names of the files that MPICH may make on a node, which follow from the name of the key-value
/// store. Later versions append a number to it, which grows when a program begins with MPI again.
pub(crate) fn of_mpich(store: &str, node: usize) -> Vec<String> {
    let mut names = Vec::new();
    for number in ["", "-1", "-2", "-3"] {
        let hash = fnv1a(format!("{store}{number}").as_bytes());
        for kind in ["shm", "vci"] {
            names.push(format!("mpich_{kind}_{hash:x}_{node}"));
        }
    }
    names
}

fn fnv1a(bytes: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(16_777_619);
    bytes.iter().fold(2_166_136_261, step)
}

/// Number of a connection, chosen by the agent and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Process management interface that a rank uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// PMI-1.
    Pmi1,
    /// PMIx.
    Pmix,
}

impl Family {
    /// Returns the family whose clients begin with this byte. PMI-1 clients begin with `cmd=` or `mcmd=`,
    /// PMIx clients with a binary header.
    pub(crate) fn of_first_byte(byte: u8) -> Family {
        match byte {
            b'c' | b'm' => Family::Pmi1,
            _ => Family::Pmix,
        }
    }

    /// Returns the family whose fences are gathers of this name, or `None` if it is another gather.
    pub fn of_gather(name: &str) -> Option<Family> {
        [Family::Pmi1, Family::Pmix].into_iter().find(|family| family.fence() == name)
    }

    /// Returns the name of the gathers that are fences over all ranks.
    pub(crate) fn fence(self) -> String {
        format!("{}:fence", self.prefix())
    }

    /// Returns the beginning of the names and keys that belong to this family.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Family::Pmi1 => "pmi1",
            Family::Pmix => "pmix",
        }
    }
}

/// Action for the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send bytes on a connection. Agents stop reading from a connection whose peer does not take what
    /// was sent: the server answers each request at once and keeps no queue of its own.
    Send(ConnectionId, Vec<u8>),
    /// Close a connection once everything before is sent. Calling
    /// [`Server::closed`](crate::Server::closed) for it is allowed but not necessary.
    Close(ConnectionId),
    /// Let a rank of this node take part in a gather of all ranks of the job. The gathers of a name are
    /// counted: the first that a rank takes part in is the first of each other rank. The agent answers
    /// by [`Server::gathered`](crate::Server::gathered) once all ranks have taken part, or by
    /// [`Server::failed`](crate::Server::failed) if one never will, for example because it has ended.
    Gather {
        /// Number for the answer, equal for all ranks of this node: one answer is enough.
        request: u64,
        local_rank: usize,
        /// Name of the gather, equal for all ranks and at most 255 bytes.
        name: String,
        /// Data of the rank, at most 64 KiB.
        blob: Vec<u8>,
    },
    /// Store a value where every node can read it. Agents keep the order of what a server stores and
    /// reads: once a later [`Output::Get`] of this server for the same key is answered, all nodes read
    /// this value or a newer one.
    Put {
        /// Key, at most 255 bytes.
        key: String,
        /// Value, at most 64 KiB; empty if it is removed.
        value: Vec<u8>,
    },
    /// Read a value that some node has stored. The agent answers by
    /// [`Server::value`](crate::Server::value), or by [`Server::failed`](crate::Server::failed) if it
    /// cannot.
    Get {
        /// Number for the answer.
        request: u64,
        /// Key, at most 255 bytes.
        key: String,
        /// Whether to wait until the key has a value.
        wait: bool,
    },
    /// End the job because a rank asked for it (`MPI_Abort`).
    Abort {
        /// Rank that asked.
        rank: u32,
        /// Exit code for the job, as given by the program.
        code: i32,
        /// Text for the user; may be empty.
        message: String,
    },
    /// Print a text of a rank's MPI library on the standard error of the rank. The library hands such
    /// texts to its process manager and does not print them itself.
    Print {
        /// Rank whose library wants the text printed.
        rank: u32,
        /// Text of at most 4 KiB, before its last line break.
        text: String,
    },
    /// Remove this file in `/dev/shm` when no process of the job is left: the MPI library of a rank has
    /// made it or may make it, and leaves it there if the rank is killed. The text is its name.
    Segment(String),
    /// A rank has connected and said which rank it is.
    Connected(u32, Family),
    /// A rank has called `MPI_Finalize`; until then its exit with code 0 is an error.
    Finalized(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_shared_memory_are_taken() {
        let add = |path: &str| name_of(path.as_bytes()).and_then(|name| Segments::new(1).add(name));
        assert_eq!(add("/dev/shm/sm_segment.a.0.97830000.0"), Some(true));
        for path in [
            "/tmp/x", "/dev/shm/", "/dev/shm/..", "/dev/shm/a/b", "/dev/shm/../etc/passwd",
            "/dev/shm/\0", "/dev/shm/a\nb", "x",
        ] {
            assert_eq!(add(path), None, "{path}");
        }
    }

    #[test]
    fn names_are_limited() {
        let mut segments = Segments::new(1);
        for number in 0..100 {
            assert_eq!(segments.add(&number.to_string()), (number < 64).then_some(true));
        }
        assert_eq!(segments.add("63"), Some(false));
    }

    /// The name is one that MPICH 5.0.2 has made.
    #[test]
    fn names_of_mpich_follow_from_its_store() {
        let names = of_mpich("rlaunch-1cd549a92fa56ef4bfaa385f47d84780-1", 1);
        assert!(names.contains(&"mpich_shm_c605d8f2_1".to_owned()));
    }

    #[test]
    fn the_first_byte_tells_the_family() {
        assert_eq!(Family::of_first_byte(b'c'), Family::Pmi1);
        assert_eq!(Family::of_first_byte(b'm'), Family::Pmi1);
        assert_eq!(Family::of_first_byte(0), Family::Pmix);
        assert_eq!(Family::of_first_byte(0xff), Family::Pmix);
    }
}
