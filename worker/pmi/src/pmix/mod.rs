//! PMIx: binary messages in the encoding of version 3.
//!
//! Clients of all versions from 3.2 speak this encoding if the environment names only a server of
//! version 3 ([`environment()`]). A client connects, says which rank it is, and asks for the job's ranks
//! and nodes. It then commits what other ranks need to reach it, waits in a fence, and gets what they
//! have committed.
//!
//! | file | contents |
//! |---|---|
//! | `bfrops/` | encoding of values, status codes |
//! | `request` | the other messages of clients, decoded |
//! | `client` | connections and their ranks: messages, the first of which is a handshake |
//! | `job_info` | the job's ranks and nodes, as clients read them; environment of ranks |
//! | `data` | what ranks have committed |
//! | `gets` | clients that wait for what a rank has not committed yet |
//! | `names` | values that ranks publish |
//! | `collective` | fences and groups of some ranks, and what the members of a group share |

mod bfrops;
mod client;
mod collective;
mod data;
mod gets;
mod job_info;
mod names;
mod request;
pub use job_info::{REMOVED, environment};

use crate::fence::{Fence, FenceArrival};
use crate::node::{ConnectionId, Family, Node, Protocol};
use crate::sorted_map::SortedSet;
use bfrops::{Proc, Status, Writer};
use client::{Caller, Clients, Event, Version};
use collective::{Arrival, Call, Collectives, FinishedCall, Group, Groups, Kind};
use data::{Data, DataError, RankData, Stored, storage_key};
use gets::{Gets, Target, Waiting};
use names::Names;
use request::{Get, Request};
use std::time::Instant;

/// Number that stands for all ranks of a job.
const ALL_RANKS: u32 = u32::MAX - 1;

/// Number that stands for all ranks of the job on the client's node.
const LOCAL_RANKS: u32 = u32::MAX - 4;

/// Maximum number of requests of a connection that wait for data, in addition to one for each rank of
/// the job. Clients send a request for a rank's data only after the one before is answered.
const GETS_MAX: usize = 64;

/// Version from which clients expect the members of a group that they construct.
const WITH_MEMBERS: Version = Version(4, 2, 4);

/// Version from which clients expect to be told whether a group has a number.
const WITH_FLAG: Version = Version(6, 0, 0);

/// Maximum length in bytes of a text for the user.
const TEXT_MAX: usize = 4096;

/// PMIx on a node.
#[derive(Debug)]
pub(crate) struct Pmix {
    clients: Clients,
    /// Body of the answer that describes the job; empty until a client asks for it.
    job_info: Vec<u8>,
    fence: Fence,
    data: Data,
    gets: Gets,
    names: Names,
    collectives: Collectives,
    groups: Groups,
}

impl Pmix {
    /// Creates the PMIx state of a node.
    pub(crate) fn new(node: &Node) -> Pmix {
        Pmix {
            clients: Clients::default(),
            job_info: Vec::new(),
            fence: Fence::new(Family::Pmix, node),
            data: Data::new(node.local_size()),
            gets: Gets::default(),
            names: Names::default(),
            collectives: Collectives::default(),
            groups: Groups::default(),
        }
    }

    /// Executes a request. Returns the body of the answer if it is known already and the client waits
    /// for one.
    fn execute(
        &mut self,
        node: &mut Node,
        caller: Caller,
        request: Request<'_>,
        deadline: Option<Instant>,
        now: Instant,
    ) -> Option<Vec<u8>> {
        let arrival = |shared| Arrival { caller, deadline, shared };
        let status = match request {
            Request::JobInfo => return self.job_info(node, caller),
            Request::Get(get) => return self.answer_get(node, caller, &get, deadline),
            Request::DeregisterEvents => return None,
            Request::Abort { code, message } => {
                // Open MPI 4 has said why in a help message before, and gives no reason here.
                let reason = if message == b"N/A" { b"" } else { message };
                node.abort(caller.local, code, shortened(reason));
                // The rank waits until it is ended with the job. If it left by itself, ranks that lose their connection to
                // it would call MPI_Abort too, and the launcher might hear of that first.
                return None;
            }
            Request::Commit(sections) => {
                let stored = self.data.commit(caller.local, &sections, now);
                self.wake(node, Target { run: caller.run, rank: node.rank(caller.local) });
                Some(stored.map_or_else(DataError::status, |()| Status::SUCCESS))
            }
            Request::Fence(procs) => self.enter_fence(node, caller, &procs, deadline).err(),
            Request::Connect(procs) => {
                self.enter_group(node, arrival(Vec::new()), Kind::Connect, b"", &procs).err()
            }
            Request::Disconnect(procs) => {
                self.enter_group(node, arrival(Vec::new()), Kind::Disconnect, b"", &procs).err()
            }
            Request::Finalize => {
                node.finalized(caller.local);
                self.clients.finalize(caller.connection);
                Some(Status::SUCCESS)
            }
            Request::Publish(values) => self.names.publish(node, caller, &values, deadline).err(),
            Request::Lookup { keys, wait } => {
                self.names.look_up(node, caller, &keys, wait, deadline).err()
            }
            Request::Unpublish(keys) => self.names.unpublish(node, caller, &keys, deadline).err(),
            Request::RegisterEvents => Some(Status::SUCCESS),
            Request::GroupConstruct { id, procs, infos } => {
                let shared = infos.iter().flat_map(|info| info.encoded).copied().collect();
                self.enter_group(node, arrival(shared), Kind::Construct, id, &procs).err()
            }
            Request::GroupDestruct { id, procs } => {
                self.enter_group(node, arrival(Vec::new()), Kind::Destruct, id, &procs).err()
            }
            Request::Help(text) => {
                node.print(caller.local, shortened(text));
                Some(Status::SUCCESS)
            }
            Request::Cleanup(paths) => {
                let are_added = paths.into_iter().all(|path| node.claim_path(path));
                Some(if are_added { Status::SUCCESS } else { Status::NOT_SUPPORTED })
            }
            Request::Unsupported => Some(Status::NOT_SUPPORTED),
        };
        status.map(status_body)
    }

    /// Returns the answer that describes the job. A client asks for it once; since it may be large, one
    /// that asks again is closed.
    fn job_info(&mut self, node: &mut Node, caller: Caller) -> Option<Vec<u8>> {
        if !self.clients.may_ask_for_job(caller.connection) {
            node.close(caller.connection);
            return None;
        }
        if self.job_info.is_empty() {
            self.job_info = job_info::body(node.layout());
        }
        Some(self.job_info.clone())
    }

    /// Returns the answer to a request for a rank's data, or lets the client wait.
    fn answer_get(
        &mut self,
        node: &mut Node,
        caller: Caller,
        get: &Get<'_>,
        deadline: Option<Instant>,
    ) -> Option<Vec<u8>> {
        let Proc { namespace, rank } = get.target;
        let is_of_job = namespace == node.layout().namespace.as_bytes();
        let Some(of_node) = node.node_of(rank).filter(|_| is_of_job) else {
            return Some(status_body(Status::NOT_FOUND));
        };
        if let Some(context) = get.context {
            let items = self.groups.find(context, rank);
            return Some(data_body(node, rank, &items.unwrap_or_default()));
        }
        let target = Target { run: caller.run, rank };
        let may_wait = !get.immediate && !get.is_reserved();
        // A client that says for how long it waits wants this key; the others take what there is.
        let key = get.key.filter(|_| may_wait && deadline.is_some());
        let is_here = of_node == node.layout().here;
        if let Some(body) = self.data_of(node, target, key.filter(|_| is_here)) {
            return Some(body);
        }
        let world = usize::try_from(node.layout().world_size()).unwrap_or(usize::MAX);
        if !may_wait {
            return Some(status_body(Status::NOT_FOUND));
        } else if self.gets.count(caller.connection) >= world.saturating_add(GETS_MAX) {
            return Some(status_body(Status::OUT_OF_RESOURCE));
        }
        let waiting = Waiting {
            connection: caller.connection,
            tag: caller.tag,
            key: key.filter(|_| is_here).map(<[u8]>::to_vec),
            deadline,
        };
        self.gets.add(target, waiting);
        // If the client's rank is in a fence, the fence brings the data.
        if !is_here && !self.fence.has_entered(caller.local) {
            self.start_read(node, target);
        }
        None
    }

    /// Returns the answer to a request for a rank's data. Returns `None` if the rank has not committed
    /// yet, or not this key, and may still do so.
    fn data_of(&self, node: &Node, target: Target, key: Option<&[u8]>) -> Option<Vec<u8>> {
        let Some(local) = node.layout().local_rank(target.rank) else {
            return match self.data.remote(target.rank, target.run) {
                RankData::Committed(items) => Some(data_body(node, target.rank, &items)),
                RankData::Never => Some(status_body(Status::NOT_FOUND)),
                RankData::Unknown => None,
            };
        };
        let may_commit = node.is_alive(local);
        match self.data.near(local, target.run) {
            RankData::Committed(items) => {
                let is_there = key.is_none_or(|key| self.data.has_near(local, key));
                (is_there || !may_commit).then(|| data_body(node, target.rank, &items))
            }
            RankData::Unknown if may_commit => None,
            RankData::Unknown | RankData::Never => Some(status_body(Status::NOT_FOUND)),
        }
    }

    /// Answers the clients that wait for a rank's data, as far as it is there.
    fn wake(&mut self, node: &mut Node, target: Target) {
        let Some(body) = self.data_of(node, target, None) else { return };
        let local = node.layout().local_rank(target.rank);
        let may_commit = local.is_some_and(|local| node.is_alive(local));
        let data = &self.data;
        let is_done = |waiting: &Waiting| match (&waiting.key, local) {
            (Some(key), Some(local)) if may_commit => data.has_near(local, key),
            _ => true,
        };
        for waiting in self.gets.take(target, &is_done) {
            node.send(waiting.connection, client::framed(waiting.tag, &body));
        }
    }

    /// Answers the clients that wait for data of a local rank, from any of its MPI programs, as far as the
    /// data is there or will never be.
    fn wake_all(&mut self, node: &mut Node, local: usize) {
        let rank = node.rank(local);
        for target in self.gets.targets().into_iter().filter(|target| target.rank == rank) {
            self.wake(node, target);
        }
    }

    /// Asks for the data of a rank of another node if a client waits for it.
    fn start_read(&mut self, node: &mut Node, target: Target) {
        if self.gets.needs_read(target) && node.layout().local_rank(target.rank).is_none() {
            let request = node.get(Family::Pmix, storage_key(target.run, target.rank), true);
            self.gets.read(target, request);
        }
    }

    /// Lets a client enter a fence of all ranks or of some. Returns the status if it cannot.
    fn enter_fence(
        &mut self,
        node: &mut Node,
        caller: Caller,
        procs: &[Proc<'_>],
        deadline: Option<Instant>,
    ) -> Result<(), Status> {
        let members = named_members(node, procs)?;
        if u32::try_from(members.len()) != Ok(node.layout().world_size()) {
            let arrival = Arrival { caller, deadline, shared: Vec::new() };
            return self.enter(node, arrival, Kind::Fence, b"", members);
        }
        let take = || self.data.take(caller.local);
        let Caller { connection, tag, local, .. } = caller;
        let arrival = FenceArrival { connection, tag, deadline };
        let entered = self.fence.enter(node, local, arrival, take);
        entered.map_err(|_| Status::OUT_OF_RESOURCE)
    }

    fn enter_group(
        &mut self,
        node: &mut Node,
        arrival: Arrival,
        kind: Kind,
        id: &[u8],
        procs: &[Proc<'_>],
    ) -> Result<(), Status> {
        let members = named_members(node, procs)?;
        self.enter(node, arrival, kind, id, members)
    }

    fn enter(
        &mut self,
        node: &mut Node,
        arrival: Arrival,
        kind: Kind,
        id: &[u8],
        members: Vec<u32>,
    ) -> Result<(), Status> {
        let call = Call { kind, id: id.to_vec(), members, run: arrival.caller.run };
        let finished = self.collectives.enter(node, call, arrival)?;
        self.finish(node, finished);
        Ok(())
    }

    /// Answers the members of this node of collectives that are complete or have failed.
    fn finish(&mut self, node: &mut Node, finished: Vec<FinishedCall>) {
        for FinishedCall { call, arrivals, result } in finished {
            for Arrival { caller: Caller { connection, tag, .. }, .. } in arrivals {
                let body = match (&result, call.kind) {
                    (Ok(group), Kind::Construct) => {
                        let version = self.clients.version(connection);
                        group_body(node, &call.members, group, version)
                    }
                    (Ok(_), _) => status_body(Status::SUCCESS),
                    (&Err(status), _) => status_body(status),
                };
                node.send(connection, client::framed(tag, &body));
            }
            if let (Ok(group), Kind::Construct) = (result, call.kind) {
                self.groups.insert(group);
            }
        }
    }
}

impl Protocol for Pmix {
    fn received(
        &mut self,
        node: &mut Node,
        connection: ConnectionId,
        mut bytes: &[u8],
        now: Instant,
    ) {
        while !bytes.is_empty() && node.is_open(connection) {
            match self.clients.next(node, connection, &mut bytes) {
                Event::Nothing => {}
                Event::Began { local, run } => {
                    put_stored(node, self.data.begin(local, run));
                    self.wake_all(node, local);
                }
                Event::Request(caller, body) => {
                    let answer = match Request::decode(&body) {
                        Ok((request, timeout)) => {
                            let deadline = timeout.map(|timeout| now + timeout);
                            self.execute(node, caller, request, deadline, now)
                        }
                        Err(_) => Some(status_body(Status::UNPACK_FAILURE)),
                    };
                    if let Some(body) = answer {
                        node.send(connection, client::framed(caller.tag, &body));
                    }
                }
                Event::Refused => node.close(connection),
            }
        }
    }

    fn closed(&mut self, _: &mut Node, connection: ConnectionId) {
        self.clients.forget(connection);
        self.fence.withdraw(connection);
        self.gets.forget(connection);
        self.names.forget(connection);
        self.collectives.withdraw(connection);
    }

    fn gathered(&mut self, node: &mut Node, request: u64, data: Option<Vec<Vec<u8>>>) {
        let Some(finished) = self.fence.finish(node, request, data) else { return };
        let here = node.layout().ranks_here();
        let mut status = Status::PROC_ABORTED;
        if let Some((run, data)) = finished.data
            && self.data.merge(run, &data, |rank| here.contains(&rank)).is_ok()
        {
            for &local in &finished.locals {
                self.data.fenced(local, run);
            }
            status = Status::SUCCESS;
        }
        let body = status_body(status);
        for FenceArrival { connection, tag, .. } in finished.arrivals {
            node.send(connection, client::framed(tag, &body));
        }
        for target in self.gets.targets() {
            self.wake(node, target);
            self.start_read(node, target);
        }
    }

    fn value(&mut self, node: &mut Node, request: u64, value: Option<Vec<u8>>) {
        if let Some(target) = self.gets.finish_read(request) {
            let value = value.unwrap_or_default();
            // Data that is malformed reads as none.
            let _ = self.data.insert(target.run, target.rank, &value);
            self.wake(node, target);
            return;
        }
        for answer in self.names.value(node, request, value.as_deref()) {
            let Caller { connection, tag, .. } = answer.caller;
            node.send(connection, client::framed(tag, &answer.body));
        }
        let finished = self.collectives.value(node, request, value.as_deref());
        self.finish(node, finished);
    }

    fn rank_ended(&mut self, node: &mut Node, local: usize) {
        put_stored(node, self.data.end(local));
        self.wake_all(node, local);
        let finished = self.collectives.rank_ended(node, local);
        self.finish(node, finished);
    }

    fn handle_timeout(&mut self, node: &mut Node, now: Instant) {
        while let Some(stored) = self.data.due(now, |local| self.fence.has_entered(local)) {
            put_stored(node, Some(stored));
        }
        let body = status_body(Status::TIMEOUT);
        for waiting in self.gets.expire(now) {
            node.send(waiting.connection, client::framed(waiting.tag, &body));
        }
        let mut expired = self.names.expire(now);
        expired.append(&mut self.collectives.expire(now));
        for caller in expired {
            node.send(caller.connection, client::framed(caller.tag, &body));
        }
        for FenceArrival { connection, tag, .. } in self.fence.expire(now) {
            node.send(connection, client::framed(tag, &body));
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let deadlines = [
            self.data.next_due(),
            self.gets.next_deadline(),
            self.names.next_deadline(),
            self.collectives.next_deadline(),
            self.fence.next_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }
}

/// Stores data of a rank of this node where all nodes can read it.
fn put_stored(node: &mut Node, stored: Option<Stored>) {
    if let Some(Stored { local, run, value }) = stored {
        let key = storage_key(run, node.rank(local));
        node.put(key, value);
    }
}

/// Returns the ranks that a request names, in ascending order. Returns an error if there are none, or if
/// one is not of this job.
fn named_members(node: &Node, procs: &[Proc<'_>]) -> Result<Vec<u32>, Status> {
    let namespace = node.layout().namespace.as_bytes();
    let mut members = SortedSet::default();
    let (mut has_all, mut has_local) = (false, false);
    for proc in procs {
        if proc.namespace != namespace {
            return Err(Status::BAD_PARAM);
        }
        match proc.rank {
            ALL_RANKS => has_all = true,
            LOCAL_RANKS => has_local = true,
            rank if node.node_of(rank).is_some() => members.insert(rank, ()),
            _ => return Err(Status::BAD_PARAM),
        }
    }
    if has_all {
        return Ok((0..node.layout().world_size()).collect());
    }
    if has_local {
        for &rank in node.layout().ranks_here() {
            members.insert(rank, ());
        }
    }
    if members.is_empty() { Err(Status::BAD_PARAM) } else { Ok(members.keys().to_vec()) }
}

/// Returns a text for the user, or its beginning if it is long.
fn shortened(text: &[u8]) -> String {
    String::from_utf8_lossy(text.get(..TEXT_MAX).unwrap_or(text)).trim().to_owned()
}

/// Returns the body of an answer that is only a status.
fn status_body(status: Status) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.count(1).i32(status.0);
    writer.into_bytes()
}

/// Returns the body of the answer to a request for the data of a rank: items that are keys and values.
fn data_body(node: &Node, rank: u32, items: &[u8]) -> Vec<u8> {
    if items.is_empty() {
        return status_body(Status::NOT_FOUND);
    }
    let mut of_rank = Writer::new();
    of_rank.count(1).proc(&node.layout().namespace, rank).raw(items);
    let mut writer = Writer::new();
    writer.count(1).i32(Status::SUCCESS.0).count(1).byte_object(&of_rank.into_bytes());
    writer.into_bytes()
}

/// Returns the body of the answer to a client that has constructed a group.
fn group_body(node: &Node, members: &[u32], group: &Group, version: Version) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.count(1).i32(Status::SUCCESS.0);
    if version >= WITH_MEMBERS {
        writer.count(1).size(members.len() as u64).count(members.len());
        for &member in members {
            writer.proc(&node.layout().namespace, member);
        }
    }
    if version >= WITH_FLAG {
        writer.count(1).u8(1);
    }
    writer.count(1).size(group.context);
    writer.into_bytes()
}

#[cfg(test)]
mod tests;
