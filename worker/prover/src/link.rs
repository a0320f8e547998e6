//! A path with a connected queue pair.

use crate::end::{BEAT, End};
use crate::machine::Tokens;
use rlaunch_bootstrap::protocol::mesh::{BLOCK, MeshPath, PathAdvert, PortAdvert};
use rlaunch_verbs::{Completion, Connected, QueuePair, RemoteAddr, VerbsError};
use std::sync::Arc;

/// This node's end of a path with a connected queue pair.
#[derive(Debug)]
pub(crate) struct Link {
    pair: QueuePair<Connected>,
    pub(crate) path: MeshPath,
    /// Slot of the path in the memory of `end`.
    pub(crate) slot: usize,
    peer: RemoteMemory,
    /// Path MTU in bytes; `None` if the connection manager chose it.
    pub(crate) mtu: Option<u32>,
    pub(crate) end: Arc<End>,
}

/// Memory of the peer's end, and the offsets of the parts of it that one path uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteMemory {
    address: u64,
    key: u32,
    /// Offset of the path's control line, in bytes.
    control: u64,
    /// Offset of the block, in bytes.
    block: u64,
}

impl RemoteMemory {
    pub(crate) fn new(end: &PortAdvert, path: &PathAdvert) -> RemoteMemory {
        let (control, block) = (path.control.into(), end.block.into());
        RemoteMemory { address: end.address, key: end.key, control, block }
    }

    fn at(self, offset: u64) -> RemoteAddr {
        RemoteAddr::new(self.address.wrapping_add(offset), self.key)
    }
}

/// Kind of a work request, encoded in its id together with the path's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Tokens,
    Read,
    Beat,
    Measured,
}

const REQUESTS: [Request; 4] = [Request::Tokens, Request::Read, Request::Beat, Request::Measured];

impl Request {
    fn id(self, slot: usize) -> u64 {
        slot as u64 * REQUESTS.len() as u64 + self as u64
    }

    /// Returns the slot and the kind of the work request that has completed.
    pub(crate) fn from_completion(completion: &Completion) -> (usize, Request) {
        let (id, kinds) = (completion.id(), REQUESTS.len() as u64);
        ((id / kinds) as usize, REQUESTS[(id % kinds) as usize])
    }
}

impl Link {
    pub(crate) fn new(
        pair: QueuePair<Connected>,
        (path, slot): (MeshPath, usize),
        end: Arc<End>,
        peer: RemoteMemory,
        mtu: Option<u32>,
    ) -> Link {
        Link { pair, path, slot, peer, mtu, end }
    }

    /// Writes tokens to the peer's control line.
    pub(crate) fn write(&self, tokens: Tokens) -> Result<(), VerbsError> {
        let from = self.end.set_tokens(self.slot, tokens)?;
        self.pair.write(Request::Tokens.id(self.slot), from, self.peer.at(self.peer.control))
    }

    /// Reads the peer's block into a read buffer.
    pub(crate) fn read(&self, into: usize) -> Result<(), VerbsError> {
        let into = self.end.clear_read_buffer(into)?;
        self.pair.read(Request::Read.id(self.slot), into, self.peer.at(self.peer.block))
    }

    /// Writes the measured memory to that of the peer, which has it behind its block.
    pub(crate) fn write_measured(&self) -> Result<(), VerbsError> {
        let to = self.peer.at(self.peer.block + BLOCK as u64);
        self.pair.write(Request::Measured.id(self.slot), self.end.measured()?, to)
    }

    /// Tells whether a read buffer contains the peer's block unchanged.
    pub(crate) fn is_intact(&self, buffer: usize) -> bool {
        self.end.holds_block_of(buffer, self.peer.address, self.peer.key)
    }

    /// Writes a heartbeat to the peer's control line.
    pub(crate) fn beat(&self, count: u64) -> Result<(), VerbsError> {
        let from = self.end.set_beat(self.slot, count)?;
        let to = self.peer.at(self.peer.control + BEAT as u64);
        self.pair.write(Request::Beat.id(self.slot), from, to)
    }
}
