//! One attempt of a copy: a chain of hosts until all have everything, or one has died.

use super::scenario::{Death, Host, Moment, Scenario, taken};
use fastrand::Rng;
use rlaunch_copy::wire::{Assembly, PREFIX, manifest_parts};
use rlaunch_copy::{CHUNK, ChunkId, ChunkSet, Hop, Manifest, Message, Step};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

#[derive(Debug)]
enum Event {
    /// A frame from the node before comes, of which this is the head and the payload's length.
    Down { to: usize, frame: Vec<u8>, payload: usize },
    /// A frame from the node after comes.
    Up { to: usize, frame: Vec<u8> },
    /// The link that leads to this node has sent everything.
    LinkFree(usize),
    /// All local files were looked at.
    Scanned(usize),
    /// A chunk is checked and on the disk.
    Written(usize, ChunkId),
    /// Files have their names.
    Finished(usize),
}

/// The source or a host, with the link that leads to it.
struct Node {
    /// Index among all hosts, unless it is the source.
    host: Option<usize>,
    /// Not before the manifest has come.
    hop: Option<Hop>,
    assembly: Assembly,
    written: ChunkSet,
    /// Number of chunks that were written in this attempt.
    written_now: u32,
    asked: ChunkSet,
    /// Chunks that came over the link.
    crossed: ChunkSet,
    last_crossed: Option<ChunkId>,
    /// Bytes that the link has sent.
    carried: u64,
    /// When the link, its other direction and the disk have done what they were given.
    link_free: Duration,
    up_free: Duration,
    disk_free: Duration,
    is_alive: bool,
    has_finished: bool,
    is_done: bool,
}

/// How an attempt ended.
pub(super) struct Ended {
    /// When the last chunk was written; if a host died, when the others stopped.
    pub(super) time: Duration,
    /// Index of the host that died.
    pub(super) host_lost: Option<usize>,
    /// When the last host had asked for what it lacked.
    pub(super) last_want: Duration,
    /// What each host has then.
    pub(super) written: Vec<ChunkSet>,
    /// Bytes that went over the link to each host.
    pub(super) carried: Vec<u64>,
}

pub(super) struct Attempt<'a> {
    scenario: &'a Scenario,
    death: Option<&'a Death>,
    /// Whether chunks stay in order.
    is_ordered: bool,
    rng: Rng,
    now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    events: BTreeMap<u64, Event>,
    next_event: u64,
    /// Source, and hosts in their order.
    nodes: Vec<Node>,
    last_want: Duration,
    last_written: Duration,
    /// Index of the host that died, and when the others stop.
    lost: Option<(usize, Duration)>,
}

impl<'a> Attempt<'a> {
    /// Sets up a chain of the hosts `alive`, which have what they have written before.
    pub(super) fn new(
        scenario: &'a Scenario,
        alive: &[usize],
        written: &[ChunkSet],
        start: Duration,
        death: Option<&'a Death>,
    ) -> Attempt<'a> {
        let chunks = scenario.manifest.chunk_count();
        let node = |host: Option<usize>, written: ChunkSet| Node {
            host,
            hop: None,
            assembly: Assembly::default(),
            written,
            written_now: 0,
            asked: ChunkSet::new(chunks),
            crossed: ChunkSet::new(chunks),
            last_crossed: None,
            carried: 0,
            link_free: start,
            up_free: start,
            disk_free: start,
            is_alive: true,
            has_finished: false,
            is_done: false,
        };
        let mut source = node(None, ChunkSet::full(chunks));
        source.hop = Some(Hop::source(chunks));
        source.has_finished = true;
        let hosts = alive.iter().map(|host| node(Some(*host), written[*host].clone()));
        let has_order =
            |host: &usize| written[*host].is_empty() && scenario.hosts[*host].jitter.is_zero();
        Attempt {
            scenario,
            death,
            is_ordered: alive.iter().all(has_order),
            rng: Rng::with_seed(scenario.seed ^ start.as_nanos() as u64),
            now: start,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            nodes: std::iter::once(source).chain(hosts).collect(),
            last_want: start,
            last_written: start,
            lost: None,
        }
    }

    /// Runs the attempt to its end. Fails if an invariant is violated.
    pub(super) fn run(mut self) -> Result<Ended, String> {
        for part in manifest_parts(&self.scenario.manifest) {
            self.send_down(1, &part, 0)?;
        }
        while let Some(Reverse((when, number))) = self.queue.pop() {
            if self.lost.is_some_and(|(_, end)| when > end) || self.nodes[0].is_done {
                break;
            }
            self.now = when;
            let Some(event) = self.events.remove(&number) else { continue };
            self.handle(event).map_err(|broken| format!("at {when:?}: {broken}"))?;
        }
        if self.lost.is_none() {
            self.check_end()?;
        }
        let hosts = self.nodes.drain(1..);
        let (written, carried) = hosts.map(|node| (node.written, node.carried)).unzip();
        Ok(Ended {
            time: self.lost.map_or(self.last_written, |(_, end)| end),
            host_lost: self.lost.map(|(host, _)| host),
            last_want: self.last_want,
            written,
            carried,
        })
    }

    fn check_end(&self) -> Result<(), String> {
        for (at, node) in self.nodes.iter().enumerate() {
            if !node.is_done || !node.has_finished || !node.written.is_full() {
                let (has, of) = (node.written.count(), node.written.len());
                return Err(format!("stuck: node {at} has {has} of {of} chunks: {:?}", node.hop));
            }
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        let (Event::Down { to: at, .. }
        | Event::Up { to: at, .. }
        | Event::LinkFree(at)
        | Event::Scanned(at)
        | Event::Written(at, _)
        | Event::Finished(at)) = event;
        // The node before sends on when a link is free.
        let at = if matches!(event, Event::LinkFree(_)) { at - 1 } else { at };
        if !self.nodes[at].is_alive {
            return Ok(());
        }
        match event {
            Event::Down { frame, payload, .. } => self.on_down(at, &frame, payload)?,
            Event::Up { frame, .. } => self.on_up(at, &frame)?,
            Event::LinkFree(_) => {}
            Event::Scanned(_) => {
                let node = &mut self.nodes[at];
                let hop = node.hop.as_mut().ok_or("looked at files without a manifest")?;
                hop.on_have(&node.written);
                hop.on_scanned();
            }
            Event::Written(_, id) => {
                let node = &mut self.nodes[at];
                if !node.written.insert(id) {
                    return Err(format!("node {at} wrote {id:?} twice"));
                }
                node.written_now += 1;
                self.last_written = self.now;
                node.hop.as_mut().ok_or("wrote a chunk without a manifest")?.on_chunk(id);
            }
            Event::Finished(_) => {
                self.nodes[at].has_finished = true;
                self.nodes[at].hop.as_mut().ok_or("finished without a manifest")?.on_finished();
            }
        }
        if self.nodes[at].is_alive { self.drive(at) } else { Ok(()) }
    }

    fn on_down(&mut self, at: usize, frame: &[u8], payload: usize) -> Result<(), String> {
        let message = Message::decode(&frame[PREFIX..], payload).map_err(|e| e.to_string())?;
        match message {
            Message::Manifest { ref part, last } => {
                if self.dies(at, Moment::Manifest) {
                    return Ok(());
                }
                let came = self.nodes[at].assembly.push(part, last).map_err(|e| e.to_string())?;
                if at + 1 < self.nodes.len() {
                    self.send_down(at + 1, &message, 0)?;
                }
                came.map_or(Ok(()), |manifest| self.on_manifest(at, &manifest))
            }
            Message::Chunk { id } => self.on_chunk(at, id, payload),
            other => Err(format!("node {at} was sent {other:?} from above")),
        }
    }

    fn on_manifest(&mut self, at: usize, manifest: &Manifest) -> Result<(), String> {
        if *manifest != self.scenario.manifest {
            return Err(format!("node {at} has another manifest"));
        }
        let disk = self.host(at).disk;
        let has_downstream = at + 1 < self.nodes.len();
        let node = &mut self.nodes[at];
        node.hop = Some(Hop::receiver(manifest.chunk_count(), has_downstream));
        let scanned = self.now + taken(u64::from(node.written.count()) * CHUNK, disk);
        self.schedule(scanned, Event::Scanned(at));
        Ok(())
    }

    fn on_chunk(&mut self, at: usize, id: ChunkId, payload: usize) -> Result<(), String> {
        let written_now = self.nodes[at].written_now;
        if self.dies(at, Moment::Chunks(written_now)) {
            return Ok(());
        }
        let disk = self.host(at).disk;
        let node = &mut self.nodes[at];
        if !node.hop.as_ref().is_some_and(|hop| hop.awaits(id)) || node.written.contains(id) {
            return Err(format!("node {at} was sent {id:?}, which it does not lack"));
        }
        if !node.crossed.insert(id) {
            return Err(format!("{id:?} came to node {at} twice"));
        }
        if self.is_ordered && node.last_crossed.is_some_and(|last| last > id) {
            return Err(format!("{id:?} came to node {at} after {:?}", node.last_crossed));
        }
        node.last_crossed = Some(id);
        node.disk_free = node.disk_free.max(self.now) + taken(payload as u64, disk);
        let written = node.disk_free;
        self.schedule(written, Event::Written(at, id));
        Ok(())
    }

    fn on_up(&mut self, at: usize, frame: &[u8]) -> Result<(), String> {
        let message = Message::decode(&frame[PREFIX..], 0).map_err(|e| e.to_string())?;
        let hop = self.nodes[at].hop.as_mut().ok_or("was asked before it had the manifest")?;
        match message {
            Message::Want(ids) => hop.on_want(&ids),
            Message::WantEnd => hop.on_want_end(),
            Message::Have => {
                hop.on_downstream_done();
                return Ok(());
            }
            other => return Err(format!("node {at} was sent {other:?} from below")),
        }
        self.last_want = self.now;
        Ok(())
    }

    /// Takes the steps of a node; sends a chunk if its link is free.
    fn drive(&mut self, at: usize) -> Result<(), String> {
        while let Some(step) = self.nodes[at].hop.as_mut().and_then(Hop::next_other) {
            match step {
                Step::Ask(ids) => {
                    let node = &mut self.nodes[at];
                    for id in ids.iter().cloned().flatten().map(ChunkId) {
                        if node.written.contains(id) || !node.asked.insert(id) {
                            return Err(format!("node {at} asks for {id:?} without need"));
                        }
                    }
                    self.send_up(at, &Message::Want(ids))?;
                }
                Step::AskEnd => self.send_up(at, &Message::WantEnd)?,
                Step::Send(id) => return Err(format!("{id:?} was to be sent by another thread")),
                Step::Complete => {
                    if !self.nodes[at].written.is_full() {
                        return Err(format!("node {at} is to finish without all chunks"));
                    }
                    if self.dies(at, Moment::Finish) {
                        return Ok(());
                    }
                    let finished = self.now + self.host(at).finish;
                    self.schedule(finished, Event::Finished(at));
                }
                Step::Done => self.done(at)?,
            }
        }
        self.send_chunk(at)
    }

    fn done(&mut self, at: usize) -> Result<(), String> {
        let is_rest_done = self.nodes.get(at + 1).is_none_or(|node| node.is_done);
        if !self.nodes[at].has_finished || !is_rest_done {
            return Err(format!("node {at} is done before itself or the node after it"));
        }
        self.nodes[at].is_done = true;
        if at > 0 { self.send_up(at, &Message::Have) } else { Ok(()) }
    }

    fn send_chunk(&mut self, at: usize) -> Result<(), String> {
        let is_free = |node: &Node| node.link_free <= self.now;
        if !self.nodes.get(at + 1).is_some_and(is_free) {
            return Ok(());
        }
        let Some(id) = self.nodes[at].hop.as_mut().and_then(Hop::next_send) else { return Ok(()) };
        if !self.nodes[at].written.contains(id) {
            return Err(format!("node {at} sends {id:?}, which it does not have"));
        }
        let length = self.scenario.manifest.chunk(id).length;
        self.send_down(at + 1, &Message::Chunk { id }, length as usize)
    }

    /// Gives a message to the link that leads to node `to`.
    fn send_down(&mut self, to: usize, message: &Message, payload: usize) -> Result<(), String> {
        let frame = message.encode(payload).map_err(|e| e.to_string())?;
        let bytes = (frame.len() + payload) as u64;
        let host = self.host(to);
        let (latency, bandwidth) = (host.latency, host.bandwidth);
        // Messages but for chunks go over the first connection alone, and stay in order.
        let most = if payload > 0 { host.jitter.as_nanos() as u64 } else { 0 };
        let jitter = Duration::from_nanos(self.rng.u64(..=most));
        let node = &mut self.nodes[to];
        node.link_free = node.link_free.max(self.now) + taken(bytes, bandwidth);
        node.carried += bytes;
        let free = node.link_free;
        self.schedule(free, Event::LinkFree(to));
        self.schedule(free + latency + jitter, Event::Down { to, frame, payload });
        Ok(())
    }

    fn send_up(&mut self, from: usize, message: &Message) -> Result<(), String> {
        let frame = message.encode(0).map_err(|e| e.to_string())?;
        let host = self.host(from);
        let (latency, bandwidth) = (host.latency, host.bandwidth);
        let node = &mut self.nodes[from];
        node.up_free = node.up_free.max(self.now) + taken(frame.len() as u64, bandwidth);
        let arrival = node.up_free + latency;
        self.schedule(arrival, Event::Up { to: from - 1, frame });
        Ok(())
    }

    /// Lets a node die if this is the moment that the scenario says.
    fn dies(&mut self, at: usize, moment: Moment) -> bool {
        let host = self.nodes[at].host;
        let death = self.death.filter(|death| Some(death.host) == host && death.at == moment);
        if let Some(death) = death {
            self.nodes[at].is_alive = false;
            self.lost = Some((death.host, self.now + death.unnoticed));
        }
        death.is_some()
    }

    fn host(&self, at: usize) -> &'a Host {
        // The source has no link that leads to it, and neither scans nor finishes.
        let index = self.nodes[at].host.unwrap_or(0);
        &self.scenario.hosts[index]
    }

    fn schedule(&mut self, when: Duration, event: Event) {
        self.queue.push(Reverse((when.max(self.now), self.next_event)));
        self.events.insert(self.next_event, event);
        self.next_event += 1;
    }
}
