//! One host of the chain: what it asks for and sends, and when it is done.

use std::ops::Range;

use crate::chunks::{ChunkId, ChunkSet};

/// What a host is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask the host before for these chunks, in one [`crate::Message::Want`].
    Ask(Vec<Range<u32>>),
    /// Tell the host before that nothing more will be wanted.
    AskEnd,
    /// Send this chunk to the host after: from memory if it has just come, else from the file.
    Send(ChunkId),
    /// All chunks are there: give the files their names, then call [`Hop::on_finished`].
    Complete,
    /// This host and all after it have all files: tell the host before ([`crate::Message::Have`]).
    Done,
}

/// One host of the chain. Events come in by methods whose names begin with `on_`, steps go out by
/// [`Hop::next`].
#[derive(Debug)]
pub struct Hop {}

impl Hop {
    /// Makes the host that the files come from, which has all chunks of the manifest.
    pub fn source(chunks: u32) -> Hop {
        todo!()
    }

    /// Makes a host that receives, and sends on if another host is after it.
    pub fn receiver(chunks: u32, has_downstream: bool) -> Hop {
        todo!()
    }

    /// Chunks were found in local files.
    pub fn on_have(&mut self, ids: &ChunkSet) {
        todo!()
    }

    /// All local files were looked at: what is not had is wanted.
    pub fn on_scanned(&mut self) {
        todo!()
    }

    /// The host after asks for chunks. What the manifest does not have is ignored.
    pub fn on_want(&mut self, ids: &[Range<u32>]) {
        todo!()
    }

    /// The host after will ask for nothing more.
    pub fn on_want_end(&mut self) {
        todo!()
    }

    /// Tells whether a chunk has been asked for and has not come: no other may be accepted.
    pub fn awaits(&self, id: ChunkId) -> bool {
        todo!()
    }

    /// A chunk came from the host before, and is checked and written.
    pub fn on_chunk(&mut self, id: ChunkId) {
        todo!()
    }

    /// All files of this host have their names.
    pub fn on_finished(&mut self) {
        todo!()
    }

    /// The host after and all after it are done ([`crate::Message::Have`]).
    pub fn on_downstream_done(&mut self) {
        todo!()
    }

    /// Returns what is to be done next; `None` until something happens.
    pub fn next(&mut self) -> Option<Step> {
        todo!()
    }

    /// Returns how many chunks this host has.
    pub fn had(&self) -> u32 {
        todo!()
    }

    /// Returns how many chunks have been asked for and have not come.
    pub fn awaited(&self) -> u32 {
        todo!()
    }

    /// Returns how many chunks the host after has asked for and has not been sent.
    pub fn to_send(&self) -> u32 {
        todo!()
    }
}
