//! Server of a node's MPI ranks, with the agent, the clients and the other nodes played by the input.

use crate::stream::acts;
use rlaunch_pmi::{ConnectionId, Family, JobLayout, NodeLayout, Output, Server};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Name of the job, which PMIx clients must know.
pub(crate) const NAMESPACE: &str = "job-of-71828";

/// Numbers that PMI-1 clients must know, by local rank.
pub(crate) const PMI_IDS: [u32; 2] = [271_828_182, 314_159_265];

/// Ranks of each node. The server is that of the first.
const NODES: [&[u32]; 3] = [&[0, 1], &[2], &[3]];

/// Number of ranks in the job.
const WORLD: u32 = 4;

/// Maximum size in bytes of data in a gather, and of a stored value.
const DATA_MAX: usize = 64 * 1024;

/// Maximum length in bytes of names and keys.
const NAME_MAX: usize = 255;

/// Maximum size in bytes of an answer. An answer repeats nothing that clients have sent.
const ANSWER_MAX: usize = 256 * 1024;

/// Maximum number of values that one act makes the server store and read.
const STORED_AT_ONCE: usize = 4096;

/// Maximum number of answers after which the server has no more questions.
const ANSWERS_MAX: usize = 20_000;

/// Event that the agent reports.
#[derive(Serialize, Deserialize)]
pub(crate) enum Act {
    /// A client has connected to the port.
    Connect,
    /// A client has sent these bytes.
    Bytes(Sender, Vec<u8>),
    /// A client has sent a message: bytes to which the target adds what ends or heads them.
    Message(Sender, Vec<u8>),
    /// A client has closed this connection.
    Close(u8),
    /// This open gather is complete with the data of the ranks of other nodes, if all ranks of this node
    /// take part in it, or has failed.
    Gathered(u8, Option<Vec<Vec<u8>>>),
    /// A gather, which may not be open, is complete with this data, or has failed.
    ForgedGather(u64, Option<Vec<Vec<u8>>>),
    /// This open read has found what the server has stored.
    Stored(u8),
    /// This open read has found a value of another node, or nothing.
    Value(u8, Option<Vec<u8>>),
    /// A read, which may not be open, has found a value or nothing.
    ForgedValue(u64, Option<Vec<u8>>),
    /// The process of a rank has ended.
    Ended(u32),
    /// Time has passed, in milliseconds.
    Pass(u32),
    /// Time has passed until something is due.
    Due,
}

/// Connection on which bytes come, and the length of their parts.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Sender {
    /// Number of the connection.
    pub(crate) from: u8,
    /// Length of the parts in bytes, 0 for a single one.
    pub(crate) cut: u8,
}

/// Function that makes a message of bytes: of the first message of a connection if the number is zero.
type Framing = fn(number: u32, bytes: &[u8]) -> Vec<u8>;

/// Runs the server of a node. It obeys the rules of [`Output`] whatever comes, gives the same answers
/// however bytes are split, and tells nothing to clients without a rank's secret.
pub(crate) fn run(data: &[u8], framing: Framing) {
    let mut agent = Agent::new(framing);
    for act in acts(data) {
        agent.act(act);
    }
    agent.answer_all();
    for rank in 0..WORLD {
        agent.act(Act::Ended(rank));
    }
    agent.answer_all();
    for peer in agent.peers.iter().filter(|peer| !peer.is_closed) {
        peer.check_end();
    }
}

fn layout() -> JobLayout {
    let node = |(number, ranks): (usize, &&[u32])| NodeLayout {
        host: format!("host{number}"),
        ranks: ranks.to_vec(),
    };
    JobLayout {
        namespace: NAMESPACE.to_owned(),
        nodes: NODES.iter().enumerate().map(node).collect(),
        here: 0,
        application_of: vec![0, 0, 1, 1],
        directory: None,
        pmi_ids: PMI_IDS.to_vec(),
    }
}

/// Agent of the server.
struct Agent {
    /// Server that gets bytes in parts.
    server: Server,
    /// Server that gets the same bytes as a whole.
    at_once: Server,
    framing: Framing,
    now: Instant,
    peers: Vec<Peer>,
    /// Gathers that are not complete: number and data of the ranks of this node, by local rank.
    gathers: Vec<(u64, BTreeMap<usize, Vec<u8>>)>,
    /// Reads that are not answered: number and key.
    reads: Vec<(u64, String)>,
    stored: BTreeMap<String, Vec<u8>>,
    /// Numbers of all requests so far.
    requests: BTreeSet<u64>,
}

impl Agent {
    fn new(framing: Framing) -> Agent {
        Agent {
            server: Server::new(layout()),
            at_once: Server::new(layout()),
            framing,
            now: Instant::now(),
            peers: Vec::new(),
            gathers: Vec::new(),
            reads: Vec::new(),
            stored: BTreeMap::new(),
            requests: BTreeSet::new(),
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Connect => {
                let connection = ConnectionId(self.peers.len() as u64);
                self.peers.push(Peer::default());
                self.report(|server| server.connected(connection));
            }
            Act::Bytes(sender, bytes) => self.receive(sender, &bytes),
            Act::Message(sender, bytes) => {
                let number =
                    self.peers.get(self.place(sender.from)).map_or(0, |peer| peer.messages);
                self.receive(sender, &(self.framing)(number, &bytes));
            }
            Act::Close(connection) => {
                let place = self.place(connection);
                if let Some(peer) = self.peers.get_mut(place) {
                    peer.is_closed = true;
                }
                self.report(|server| server.closed(ConnectionId(place as u64)));
            }
            Act::Gathered(at, others) => {
                if let Some(at) = usize::from(at).checked_rem(self.gathers.len()) {
                    let (request, blobs) = self.gathers.remove(at);
                    let others = others.filter(|_| blobs.len() == NODES[0].len());
                    let data = others.map(|others| blobs.into_values().chain(others).collect());
                    self.gathered(request, data);
                }
            }
            Act::ForgedGather(request, data) => self.gathered(request, data),
            Act::Stored(at) => {
                if let Some(at) = usize::from(at).checked_rem(self.reads.len()) {
                    let (request, key) = self.reads.remove(at);
                    self.value(request, self.stored.get(&key).cloned());
                }
            }
            Act::Value(at, value) => {
                if let Some(at) = usize::from(at).checked_rem(self.reads.len()) {
                    let (request, _) = self.reads.remove(at);
                    self.value(request, value);
                }
            }
            Act::ForgedValue(request, value) => self.value(request, value),
            Act::Ended(rank) => self.report(|server| server.rank_ended(rank)),
            Act::Pass(milliseconds) => {
                self.wait_until(self.now + Duration::from_millis(milliseconds.into()));
            }
            Act::Due => self.wait_until(self.server.poll_timeout().unwrap_or(self.now)),
        }
    }

    /// Returns the position of a connection: any of those that exist, or one that does not.
    fn place(&self, connection: u8) -> usize {
        usize::from(connection) % (self.peers.len() + 1)
    }

    /// Reports bytes of a connection, and checks what the servers do.
    fn receive(&mut self, Sender { from, cut }: Sender, bytes: &[u8]) {
        let place = self.place(from);
        let connection = ConnectionId(place as u64);
        let (now, cut) = (self.now, if cut == 0 { usize::MAX } else { cut.into() });
        bytes.chunks(cut).for_each(|part| self.server.received(connection, part, now));
        self.at_once.received(connection, bytes, now);
        let outputs = self.outputs();
        match self.peers.get_mut(place).filter(|peer| !peer.is_closed) {
            Some(peer) => {
                peer.receive(bytes);
                if peer.ranks.is_empty() {
                    let is_silent = outputs.is_empty() || outputs == [Output::Close(connection)];
                    assert!(is_silent, "a stranger causes {outputs:?}");
                }
                self.check(outputs, Some(place));
            }
            None => assert_eq!(outputs, [], "{connection:?} is not open"),
        }
    }

    /// Reports the end of a gather, unless the number is that of an open read.
    fn gathered(&mut self, request: u64, data: Option<Vec<Vec<u8>>>) {
        if self.reads.iter().all(|(open, _)| *open != request) {
            self.gathers.retain(|(open, _)| *open != request);
            self.report(|server| match &data {
                Some(data) => server.gathered(request, data.clone()),
                None => server.failed(request),
            });
        }
    }

    /// Reports what was read, unless the number is that of an open gather.
    fn value(&mut self, request: u64, value: Option<Vec<u8>>) {
        if self.gathers.iter().all(|(open, _)| *open != request) {
            self.reads.retain(|(open, _)| *open != request);
            self.report(|server| server.value(request, value.clone()));
        }
    }

    fn wait_until(&mut self, time: Instant) {
        self.now = time;
        self.report(|server| server.handle_timeout(time));
        assert!(self.server.poll_timeout().is_none_or(|due| due > time), "due twice");
    }

    /// Answers everything that the server has asked for: gathers fail, and nothing is found.
    fn answer_all(&mut self) {
        for _ in 0..ANSWERS_MAX {
            let request = self.gathers.first().map(|(request, _)| *request);
            if let Some(request) = request {
                self.gathered(request, None);
            } else if let Some((request, _)) = self.reads.first() {
                self.value(*request, None);
            } else {
                return;
            }
        }
        panic!("the server asks again and again");
    }

    /// Reports an event that is not of a client, and checks what the servers do.
    fn report(&mut self, event: impl Fn(&mut Server)) {
        event(&mut self.server);
        event(&mut self.at_once);
        let outputs = self.outputs();
        self.check(outputs, None);
    }

    /// Returns what the servers want, which is the same.
    fn outputs(&mut self) -> Vec<Output> {
        let outputs: Vec<Output> = std::iter::from_fn(|| self.server.poll_output()).collect();
        let at_once: Vec<Output> = std::iter::from_fn(|| self.at_once.poll_output()).collect();
        assert_eq!(outputs, at_once, "the split of the bytes matters");
        assert_eq!(self.server.poll_timeout(), self.at_once.poll_timeout());
        outputs
    }

    /// Checks and executes what the server wants. `sender` is the position of the connection whose bytes
    /// are the cause.
    fn check(&mut self, outputs: Vec<Output>, sender: Option<usize>) {
        let is_of_store =
            |output: &&Output| matches!(output, Output::Put { .. } | Output::Get { .. });
        assert!(outputs.iter().filter(is_of_store).count() <= STORED_AT_ONCE);
        for output in outputs {
            match output {
                Output::Send(ConnectionId(to), bytes) => self.peers[to as usize].answer(&bytes),
                Output::Close(ConnectionId(connection)) => {
                    let peer = &mut self.peers[connection as usize];
                    assert!(!std::mem::replace(&mut peer.is_closed, true), "closed twice");
                }
                Output::Gather { request, local_rank, name, blob } => {
                    assert!(Family::of_gather(&name).is_some(), "gather {name:?}");
                    assert!(local_rank < NODES[0].len() && blob.len() <= DATA_MAX);
                    if self.requests.insert(request) {
                        self.gathers.push((request, BTreeMap::new()));
                    }
                    let open = self.gathers.iter_mut().find(|(open, _)| *open == request);
                    let (_, blobs) = open.expect("the gather is open");
                    assert!(blobs.insert(local_rank, blob).is_none(), "takes part twice");
                }
                Output::Put { key, value } => {
                    assert!(key.len() <= NAME_MAX && value.len() <= DATA_MAX);
                    self.stored.insert(key, value);
                }
                Output::Get { request, key, wait: _ } => {
                    assert!(key.len() <= NAME_MAX);
                    assert!(self.requests.insert(request), "request {request} is not new");
                    self.reads.push((request, key));
                }
                Output::Segment(name) => {
                    assert!(!name.is_empty() && name.len() <= NAME_MAX && !name.contains('/'));
                    assert!(sender.is_some(), "{name} is of no rank");
                }
                Output::Connected(rank, family) => {
                    let peer = self.sender(sender, rank);
                    assert_eq!(family, peer.family());
                }
                Output::Finalized(rank)
                | Output::Abort { rank, .. }
                | Output::Print { rank, .. } => {
                    self.sender(sender, rank);
                }
            }
        }
    }

    /// Returns the sender of a message that a rank has sent.
    fn sender(&self, sender: Option<usize>, rank: u32) -> &Peer {
        let peer = sender.and_then(|place| self.peers.get(place));
        let peer = peer.filter(|peer| peer.ranks.contains(&rank));
        peer.unwrap_or_else(|| panic!("it is not rank {rank} that has sent this"))
    }
}

/// Client at the other end of a connection.
#[derive(Default)]
struct Peer {
    is_closed: bool,
    /// Ranks whose secrets the client has sent.
    ranks: BTreeSet<u32>,
    received: Vec<u8>,
    /// Number of complete messages that have come.
    messages: u32,
    /// Number of answers to them.
    answers: u32,
    /// Number of bytes before the first message of PMIx that is not complete.
    read: usize,
    /// Tags of messages of PMIx that await an answer.
    open_tags: Vec<u32>,
}

impl Peer {
    fn family(&self) -> Family {
        match self.received.first() {
            Some(b'c' | b'm') => Family::Pmi1,
            _ => Family::Pmix,
        }
    }

    fn receive(&mut self, bytes: &[u8]) {
        let before = self.received.len();
        self.received.extend_from_slice(bytes);
        for (local, &rank) in NODES[0].iter().enumerate() {
            let secret = match self.family() {
                Family::Pmi1 => PMI_IDS[local].to_string().into_bytes(),
                Family::Pmix => [NAMESPACE.as_bytes(), &[0], &rank.to_be_bytes()].concat(),
            };
            let new = &self.received[before.saturating_sub(secret.len())..];
            if new.windows(secret.len()).any(|part| part == secret) {
                self.ranks.insert(rank);
            }
        }
        match self.family() {
            Family::Pmi1 => {
                self.messages += bytes.iter().filter(|&&byte| byte == b'\n').count() as u32
            }
            Family::Pmix => while self.read_message().is_some() {},
        }
    }

    /// Reads the next message of PMIx if it is complete.
    fn read_message(&mut self) -> Option<()> {
        let (header, rest) = self.received.get(self.read..)?.split_first_chunk::<16>()?;
        let [_, _, _, _, t0, t1, t2, t3, n0, n1, n2, n3, ..] = *header;
        let length = match self.messages {
            0 => u32::from_ne_bytes([n0, n1, n2, n3]),
            _ => u32::from_be_bytes([n0, n1, n2, n3]),
        };
        let body = rest.get(..length as usize)?;
        // Nothing answers a client that no longer wants to hear of events, and one that has aborted is ended.
        let is_answered = ![1, 14].iter().any(|command| body.starts_with(&[0, 0, 0, 1, *command]));
        if self.messages > 0 && is_answered {
            self.open_tags.push(u32::from_be_bytes([t0, t1, t2, t3]));
        }
        self.read += header.len() + body.len();
        self.messages += 1;
        Some(())
    }

    /// Checks that the client, whose connection is still open, has all its answers.
    fn check_end(&self) {
        let has = |word: &[u8]| self.received.windows(word.len()).any(|part| part == word);
        match self.family() {
            // These commands may have several lines, of which none or one is answered.
            Family::Pmi1 if has(b"cmd=abort") || has(b"mcmd=spawn") => {}
            Family::Pmi1 => assert_eq!(self.answers, self.messages, "a line is never answered"),
            Family::Pmix => {
                assert!(self.open_tags.is_empty(), "tags {:?} are never answered", self.open_tags);
            }
        }
    }

    /// Checks an answer: there is one at most to each message.
    fn answer(&mut self, bytes: &[u8]) {
        assert!(!self.is_closed, "sent on a closed connection");
        assert!(!self.ranks.is_empty(), "a stranger is told {bytes:?}");
        assert!(bytes.len() <= ANSWER_MAX);
        self.answers += 1;
        assert!(self.answers <= self.messages, "more answers than messages");
        match self.family() {
            Family::Pmi1 => assert!(bytes.starts_with(b"cmd=") && bytes.ends_with(b"\n")),
            Family::Pmix if self.answers == 1 => assert!(matches!(bytes.len(), 4 | 8)),
            Family::Pmix => {
                let Some((header, body)) = bytes.split_first_chunk::<16>() else {
                    panic!("{bytes:?} has no header");
                };
                let [_, _, _, _, t0, t1, t2, t3, n0, n1, n2, n3, ..] = *header;
                assert_eq!(u32::from_be_bytes([n0, n1, n2, n3]) as usize, body.len());
                let tag = u32::from_be_bytes([t0, t1, t2, t3]);
                let at = self.open_tags.iter().position(|open| *open == tag);
                assert!(
                    at.map(|at| self.open_tags.swap_remove(at)).is_some(),
                    "tag {tag} is not open"
                );
            }
        }
    }
}
