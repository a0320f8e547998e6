//! PMI-1: lines of text, one request at a time.
//!
//! | file | contents |
//! |---|---|
//! | `line` | lines that clients send |
//! | `kvs` | values that ranks have put, and services that they publish |
//! | `environment` | environment of ranks; value of `PMI_process_mapping` |
//!
//! Clients know two ways to their process manager: a socket that they have inherited (`PMI_FD`), or a port
//! (`PMI_PORT`). Only the port is offered. All clients can use it: MPICH's is built with it unless
//! configured otherwise (`USE_PMI_PORT` in `src/pmi/simple/subconfigure.m4`, in newer versions in
//! `src/pmi/configure.ac`), MVAPICH 2 and 3 have the same file, and those of Intel MPI and Debian were tried.
//! A client with `PMI_FD` ignores the port, and that would be worse: older clients shut the socket down in
//! `MPI_Finalize`, so a shell could not run a second program, and interpreters close inherited sockets
//! when they start a program.
//!
//! Answers end at the first space of a value in old clients, which also read at most 1023 bytes of a line.
//!
//! This file has the state of a connection, and the answers to the lines that come on it.

mod environment;
mod kvs;
mod line;

pub use environment::{REMOVED, environment, environment_beside_pmix};

use crate::fence::{Fence, FenceArrival};
use crate::node::{ConnectionId, Family, Node, Protocol};
use crate::sorted_map::SortedMap;
use kvs::{KEY_MAX, ServiceReads, Stores, VALUE_MAX};
use line::{LINE_MAX, Pmi1Request, block_number};
use std::time::Instant;

/// Maximum length in bytes of the name of a key-value store, as announced to clients.
const KVSNAME_MAX: usize = 256;

/// Answer to a spawn; newer clients print the reason.
const NO_SPAWN: &str =
    "cmd=spawn_result rc=-1 msg=rlaunch_does_not_start_processes_for_MPI_Comm_spawn\n";

/// PMI-1 on a node.
#[derive(Debug)]
pub(crate) struct Pmi1 {
    clients: SortedMap<ConnectionId, Pmi1Client>,
    fence: Fence,
    stores: Stores,
    names: ServiceReads,
    /// Value of `PMI_process_mapping`.
    mapping: Option<String>,
}

impl Pmi1 {
    /// Creates the state for a node.
    pub(crate) fn new(node: &Node) -> Pmi1 {
        Pmi1 {
            clients: SortedMap::default(),
            fence: Fence::new(Family::Pmi1, node),
            stores: Stores::new(node.layout().world_size(), node.local_size()),
            names: ServiceReads::default(),
            mapping: environment::process_mapping(node.layout()),
        }
    }

    /// Executes a line.
    fn execute_line(
        &mut self,
        node: &mut Node,
        connection: ConnectionId,
        line: &[u8],
    ) -> Result<(), Violation> {
        let stage = self.clients.get(&connection).ok_or(Violation)?.stage;
        if stage == Stage::Aborted {
            return Ok(());
        }
        if let Stage::Running { local, run, busy: Busy::Spawn(mut block) } = stage {
            let busy = match block.add_line(line) {
                None => Busy::Spawn(block),
                Some(is_last) => {
                    if is_last {
                        node.send(connection, NO_SPAWN.into());
                    }
                    Busy::No
                }
            };
            self.set_stage(connection, Stage::Running { local, run, busy });
            return Ok(());
        }
        match (stage, line::parse(line).map_err(|_| Violation)?) {
            (Stage::Stranger, Pmi1Request::Identify { id }) => self.identify(node, connection, id),
            (
                Stage::Idle { local } | Stage::Running { local, .. },
                Pmi1Request::Abort { code, message },
            ) => {
                node.abort(local, code, message);
                self.set_stage(connection, Stage::Aborted);
                Ok(())
            }
            (
                Stage::Idle { local } | Stage::Running { local, busy: Busy::No, .. },
                Pmi1Request::Init { version },
            ) => {
                self.init(node, connection, local, version);
                Ok(())
            }
            (Stage::Running { local, run, busy: Busy::No }, request) => {
                self.execute(node, connection, Pmi1Caller { local, run }, request)
            }
            _ => Err(Violation),
        }
    }

    /// Finds the rank whose secret a client has sent.
    fn identify(
        &mut self,
        node: &mut Node,
        connection: ConnectionId,
        id: u32,
    ) -> Result<(), Violation> {
        let mut ids = node.layout().pmi_ids.iter().take(node.local_size());
        let local = ids.position(|&other| other == id).ok_or(Violation)?;
        node.identify(connection, local).ok_or(Violation)?;
        let (size, rank) = (node.layout().world_size(), node.rank(local));
        let answer = format!(
            "cmd=initack rc=0\ncmd=set size={size}\ncmd=set rank={rank}\ncmd=set debug=0\n"
        );
        node.send(connection, answer.into());
        self.set_stage(connection, Stage::Idle { local });
        Ok(())
    }

    /// Begins an MPI program of a local rank.
    fn init(&mut self, node: &mut Node, connection: ConnectionId, local: usize, version: i32) {
        let rc = if version == 1 { 0 } else { -1 };
        let answer = format!("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc={rc}\n");
        if version == 1 {
            let run = node.begin(connection, local);
            self.stores.reset(local);
            self.set_stage(connection, Stage::Running { local, run, busy: Busy::No });
        }
        node.send(connection, answer.into());
    }

    /// Executes a request of a running MPI program.
    fn execute(
        &mut self,
        node: &mut Node,
        connection: ConnectionId,
        caller: Pmi1Caller,
        request: Pmi1Request<'_>,
    ) -> Result<(), Violation> {
        let waiting = Stage::Running { local: caller.local, run: caller.run, busy: Busy::Waiting };
        let answer = match request {
            Pmi1Request::Barrier { is_world: true } => {
                let take = || self.stores.take(caller.local);
                let arrival = FenceArrival { connection, tag: 0, deadline: None };
                let entered = self.fence.enter(node, caller.local, arrival, take);
                entered.map_err(|_| Violation)?;
                self.set_stage(connection, waiting);
                None
            }
            Pmi1Request::Finalize => {
                node.finalized(caller.local);
                self.set_stage(connection, Stage::Idle { local: caller.local });
                Some("cmd=finalize_ack rc=0\n".to_owned())
            }
            Pmi1Request::Spawn => {
                let busy = Busy::Spawn(SpawnBlock::default());
                let Pmi1Caller { local, run } = caller;
                self.set_stage(connection, Stage::Running { local, run, busy });
                None
            }
            Pmi1Request::Publish { .. }
            | Pmi1Request::Lookup { .. }
            | Pmi1Request::Unpublish { .. } => {
                let answer = self.execute_service_request(node, connection, &request);
                if answer.is_none() {
                    self.set_stage(connection, waiting);
                }
                answer
            }
            Pmi1Request::Put { kvsname, key, value } => {
                Some(self.put(node, caller, kvsname, key, value))
            }
            Pmi1Request::Get { kvsname, key } => {
                let answer = self.get(node, caller, kvsname, key);
                node.send(connection, answer);
                None
            }
            request => {
                if request == Pmi1Request::KvsName {
                    let store = kvs_name(node, caller);
                    node.claim_mpich(&store);
                }
                Some(static_answer(node, caller, &request).ok_or(Violation)?)
            }
        };
        if let Some(answer) = answer {
            node.send(connection, answer.into());
        }
        Ok(())
    }

    /// Executes a request about a service. Returns the answer if it is known already.
    fn execute_service_request(
        &mut self,
        node: &mut Node,
        connection: ConnectionId,
        request: &Pmi1Request<'_>,
    ) -> Option<String> {
        match *request {
            Pmi1Request::Publish { service, port } => {
                self.names.publish(node, connection, service, port)
            }
            Pmi1Request::Unpublish { service } => self.names.unpublish(node, connection, service),
            Pmi1Request::Lookup { service } => self.names.look_up(node, connection, service),
            _ => None,
        }
    }

    fn put(
        &mut self,
        node: &Node,
        caller: Pmi1Caller,
        kvsname: &[u8],
        key: &[u8],
        value: &[u8],
    ) -> String {
        let stored = if kvsname == kvs_name(node, caller).as_bytes() {
            let put = self.stores.put(caller.local, caller.run, key, value);
            put.map_err(|error| error.to_string())
        } else {
            Err("unknown_kvsname".to_owned())
        };
        match stored {
            Ok(()) => "cmd=put_result rc=0 msg=success\n".to_owned(),
            Err(reason) => format!("cmd=put_result rc=-1 msg={reason}\n"),
        }
    }

    /// Returns the answer to a `get`. Clients take an empty value for an error, so it is not sent.
    fn get(&self, node: &Node, caller: Pmi1Caller, kvsname: &[u8], key: &[u8]) -> Vec<u8> {
        let value = if kvsname != kvs_name(node, caller).as_bytes() {
            None
        } else if key == b"PMI_process_mapping" {
            self.mapping.as_deref().map(str::as_bytes)
        } else {
            self.stores.get(caller.run, key)
        };
        match value.filter(|value| !value.is_empty()) {
            Some(value) => [b"cmd=get_result rc=0 msg=success value=", value, b"\n"].concat(),
            None => {
                let key = key.get(..KEY_MAX).unwrap_or(key);
                let after = b"_not_found value=unknown\n";
                [b"cmd=get_result rc=-1 msg=key_", key, after].concat()
            }
        }
    }

    fn set_stage(&mut self, connection: ConnectionId, stage: Stage) {
        if let Some(client) = self.clients.get_mut(&connection) {
            client.stage = stage;
        }
    }

    /// Sends the answer for which a client has waited.
    fn send_awaited(&mut self, node: &mut Node, connection: ConnectionId, answer: Vec<u8>) {
        if let Some(client) = self.clients.get_mut(&connection)
            && let Stage::Running { busy: busy @ Busy::Waiting, .. } = &mut client.stage
        {
            *busy = Busy::No;
            node.send(connection, answer);
        }
    }
}

/// Running MPI program that makes a request.
#[derive(Clone, Copy, Debug)]
struct Pmi1Caller {
    /// Local rank.
    local: usize,
    /// Number of the program in the rank's life.
    run: u32,
}

/// Returns the name of the caller's key-value store. MPICH makes it part of the names of shared memory,
/// which a killed program leaves behind, so each program of a rank has another.
fn kvs_name(node: &Node, caller: Pmi1Caller) -> String {
    format!("{}-{}", node.layout().namespace, caller.run)
}

/// Returns the answer to a request that changes nothing. Returns `None` if the request is not allowed.
fn static_answer(node: &Node, caller: Pmi1Caller, request: &Pmi1Request<'_>) -> Option<String> {
    let layout = node.layout();
    Some(match request {
        Pmi1Request::Maxes => format!(
            "cmd=maxes kvsname_max={KVSNAME_MAX} keylen_max={KEY_MAX} vallen_max={VALUE_MAX} rc=0\n"
        ),
        Pmi1Request::Appnum => {
            let rank = usize::try_from(node.rank(caller.local)).ok()?;
            let number = layout.application_of.get(rank).copied().unwrap_or(0);
            format!("cmd=appnum appnum={number} rc=0\n")
        }
        Pmi1Request::KvsName => {
            format!("cmd=my_kvsname kvsname={} rc=0\n", kvs_name(node, caller))
        }
        Pmi1Request::UniverseSize => {
            format!("cmd=universe_size size={} rc=0\n", layout.world_size())
        }
        Pmi1Request::Barrier { .. } => {
            "cmd=barrier_out rc=-1 msg=barriers_of_groups_need_PMI_1.2\n".to_owned()
        }
        Pmi1Request::Unknown(command) => format!("cmd={command}_result rc=-1 msg=not_supported\n"),
        _ => return None,
    })
}

impl Protocol for Pmi1 {
    fn received(
        &mut self,
        node: &mut Node,
        connection: ConnectionId,
        mut bytes: &[u8],
        _: Instant,
    ) {
        while !bytes.is_empty() && node.is_open(connection) {
            let client =
                self.clients.get_or_insert_with(connection, || Pmi1Client::new(Stage::Stranger));
            let done = match client.next_line(&mut bytes) {
                Ok(Some(line)) => self.execute_line(node, connection, &line),
                Ok(None) => Ok(()),
                Err(violation) => Err(violation),
            };
            if done.is_err() {
                node.close(connection);
            }
        }
    }

    fn closed(&mut self, _: &mut Node, connection: ConnectionId) {
        self.clients.remove(&connection);
        self.fence.withdraw(connection);
    }

    fn gathered(&mut self, node: &mut Node, request: u64, data: Option<Vec<Vec<u8>>>) {
        let Some(finished) = self.fence.finish(node, request, data) else { return };
        let stores = &mut self.stores;
        let is_merged = finished.data.is_some_and(|(run, data)| stores.merge(run, &data).is_ok());
        for FenceArrival { connection, .. } in finished.arrivals {
            if is_merged {
                self.send_awaited(node, connection, b"cmd=barrier_out rc=0\n".to_vec());
            } else {
                node.close(connection);
            }
        }
    }

    fn value(&mut self, node: &mut Node, request: u64, value: Option<Vec<u8>>) {
        if let Some((connection, answer)) = self.names.value(node, request, value) {
            self.send_awaited(node, connection, answer.into());
        }
    }

    fn rank_ended(&mut self, _: &mut Node, _: usize) {}

    fn handle_timeout(&mut self, _: &mut Node, _: Instant) {}

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

/// State of a PMI-1 connection.
#[derive(Debug)]
struct Pmi1Client {
    stage: Stage,
    /// Line whose end has not come yet.
    begun: Vec<u8>,
}

/// Progress of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The client has not yet said which rank it is.
    Stranger,
    /// The client has not begun with MPI, or has ended it.
    Idle {
        /// Local rank.
        local: usize,
    },
    /// An MPI program runs.
    Running {
        /// Local rank.
        local: usize,
        /// Number of the program in the rank's life.
        run: u32,
        /// Request that the client is in the middle of.
        busy: Busy,
    },
    /// The client has asked for the end of the job; further lines belong to its message.
    Aborted,
}

/// Request that a client is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Busy {
    /// Nothing: the next request may come.
    No,
    /// The client waits for an answer that is not known yet.
    Waiting,
    /// The lines of a spawn block are coming.
    Spawn(SpawnBlock),
}

/// Spawn block: the lines from `mcmd=spawn` to `endcmd`. A client sends one for each program that it
/// wants to start, and waits for an answer only after the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SpawnBlock {
    /// Number of blocks of this request.
    total: u32,
    /// Number of this block, from 1.
    number: u32,
}

impl SpawnBlock {
    /// Takes a line of the block. Returns whether an answer is due when the block ends here, otherwise
    /// `None`.
    fn add_line(&mut self, line: &[u8]) -> Option<bool> {
        if line == b"endcmd" {
            return Some(self.number >= self.total);
        }
        self.total = block_number(line, "totspawns").unwrap_or(self.total);
        self.number = block_number(line, "spawnssofar").unwrap_or(self.number);
        None
    }
}

impl Pmi1Client {
    /// Creates a client.
    fn new(stage: Stage) -> Pmi1Client {
        Pmi1Client { stage, begun: Vec::new() }
    }

    /// Takes the next line out of `bytes`, without its end. Returns `Ok(None)` and keeps the bytes if
    /// its end has not come yet. Returns an error if the line is longer than [`LINE_MAX`].
    fn next_line(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, Violation> {
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let part = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
        if self.begun.len() + part.len() > LINE_MAX {
            return Err(Violation);
        }
        self.begun.extend_from_slice(part);
        *bytes = end.and_then(|end| bytes.get(end + 1..)).unwrap_or_default();
        Ok(end.map(|_| std::mem::take(&mut self.begun)))
    }
}

/// Client has sent what it must not send: its connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Violation;

#[cfg(test)]
mod tests;
