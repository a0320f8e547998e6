//! A path whose queue pair can send.

use crate::end::{BEAT, End};
use crate::path::Words;
use rlaunch_bootstrap::protocol::mesh::{EndAdvert, MeshPath, PathAdvert};
use rlaunch_verbs::{Completion, Connected, QueuePair, RemoteAddr, VerbsError};
use std::sync::Arc;

/// This end of a path that is connected.
#[derive(Debug)]
pub(crate) struct Link {
    pair: QueuePair<Connected>,
    pub(crate) path: MeshPath,
    /// Which of its end's paths it is.
    pub(crate) place: usize,
    peer: Remote,
    /// The largest packet; unknown with the connection manager.
    pub(crate) mtu: Option<u32>,
    pub(crate) end: Arc<End>,
}

/// The peer's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    address: u64,
    key: u32,
    control: u64,
    block: u64,
}

impl Remote {
    pub(crate) fn told(end: &EndAdvert, path: &PathAdvert) -> Remote {
        let (control, block) = (path.control.into(), end.block.into());
        Remote { address: end.address, key: end.key, control, block }
    }

    fn at(self, offset: u64) -> RemoteAddr {
        RemoteAddr::new(self.address.wrapping_add(offset), self.key)
    }
}

/// What a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Words,
    Read,
    Beat,
}

const REQUESTS: [Request; 3] = [Request::Words, Request::Read, Request::Beat];

impl Request {
    fn id(self, place: usize) -> u64 {
        place as u64 * REQUESTS.len() as u64 + self as u64
    }

    /// Which it was, and of which place.
    pub(crate) fn of(completion: &Completion) -> (usize, Request) {
        let (id, kinds) = (completion.id(), REQUESTS.len() as u64);
        ((id / kinds) as usize, REQUESTS[(id % kinds) as usize])
    }
}

impl Link {
    pub(crate) fn new(
        pair: QueuePair<Connected>,
        (path, place): (MeshPath, usize),
        end: Arc<End>,
        peer: Remote,
        mtu: Option<u32>,
    ) -> Link {
        Link { pair, path, place, peer, mtu, end }
    }

    /// Writes tokens to the peer.
    pub(crate) fn write(&self, words: Words) -> Result<(), VerbsError> {
        let from = self.end.saying(self.place, words)?;
        self.pair.write(Request::Words.id(self.place), from, self.peer.at(self.peer.control))
    }

    /// Reads the peer's block into one of the end's places.
    pub(crate) fn read(&self, into: usize) -> Result<(), VerbsError> {
        let into = self.end.empty_place(into)?;
        self.pair.read(Request::Read.id(self.place), into, self.peer.at(self.peer.block))
    }

    /// Whether it came as it is there.
    pub(crate) fn is_intact(&self, place: usize) -> bool {
        self.end.holds_block_of(place, self.peer.address, self.peer.key)
    }

    /// Lets the peer know that this end is there.
    pub(crate) fn beat(&self, count: u64) -> Result<(), VerbsError> {
        let from = self.end.beating(self.place, count)?;
        let to = self.peer.at(self.peer.control + BEAT as u64);
        self.pair.write(Request::Beat.id(self.place), from, to)
    }
}
