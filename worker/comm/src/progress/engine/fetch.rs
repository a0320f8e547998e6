//! Zero-copy transfer of long messages: this rank fetches them from their sender's memory, or
//! exposes memory for the sender's device to write.

use super::inbox::Fetch;
use super::matching::Status;
use super::{Engine, Peer};
use crate::transport::Exposure;
use crate::transport::packet::PacketKind;
use crate::types::error::LinkError;
use rlaunch_lock::BufferTable;

/// Maximum number of bytes in one fetch. After each fetch, the engine checks whether the peer has
/// cancelled a message and may have reused its memory.
const MAX_FETCH: usize = 4 << 20;
/// Maximum number of bytes in one fetch for a reduction: few enough to stay in the cache until they
/// are reduced. In tests the number is smaller, so that their messages are fetched in several
/// parts.
const MAX_REDUCED_FETCH: usize = if cfg!(test) { 2 << 10 } else { 128 << 10 };

enum Fetched {
    All,
    /// The kernel does not permit this rank to read the peer's memory.
    Forbidden,
    /// The peer has cancelled a message, possibly this one, so the fetched bytes may be wrong.
    Revoked,
}

impl Engine {
    /// Handles the long messages in [`Inbox::fetches`](super::inbox::Inbox::fetches) of peer `at`,
    /// in order: fetches each from the peer's memory, or exposes memory to which the peer's device
    /// writes it.
    pub(super) fn fetch(&mut self, at: usize, buffers: &BufferTable) {
        while let Some(mut fetch) = self.peers[at].inbox.fetches.pop_front() {
            if fetch.address == 0 {
                let into = fetch.target.into.part(0, fetch.length);
                let exposed = match self.peers[at].link.expose_write(buffers, into) {
                    Exposure::At(exposed) => Some(exposed),
                    Exposure::Refused => None,
                    Exposure::Pending => {
                        return self.peers[at].inbox.fetches.push_front(fetch);
                    }
                };
                match self.incoming(at, buffers).0.send_cts(&fetch, exposed) {
                    Ok(()) => drop(self.pump(at, buffers)),
                    Err(error) => return self.lose(at, error),
                }
                continue;
            }
            match self.fetch_one(at, &mut fetch, buffers) {
                Ok(Fetched::All) => {
                    self.peers[at]
                        .outbox
                        .push_control(PacketKind::Fin, fetch.origin.header.transfer);
                    self.matching
                        .complete(fetch.owner, Ok(Status { from: at, length: fetch.length }));
                    self.pump(at, buffers);
                }
                Ok(Fetched::Forbidden) => match self.incoming(at, buffers).0.send_cts(&fetch, None)
                {
                    Ok(()) => drop(self.pump(at, buffers)),
                    Err(error) => return self.lose(at, error),
                },
                // Wait for the peer's packet `Withdrawn`, which tells the message that was
                // cancelled. The other messages are fetched after it.
                Ok(Fetched::Revoked) => return self.peers[at].inbox.fetches.push_front(fetch),
                Err(error) => {
                    let cause = self.mark_lost(at, error);
                    self.matching.complete(fetch.owner, Err(cause.clone()));
                    return self.fail_all(&cause);
                }
            }
        }
    }

    fn fetch_one(
        &mut self,
        at: usize,
        fetch: &mut Fetch,
        buffers: &BufferTable,
    ) -> Result<Fetched, LinkError> {
        let Peer { link, inbox, .. } = &mut self.peers[at];
        let known = inbox.withdrawn;
        let Fetch { address, length, target, .. } = *fetch;
        let at_once = if target.reduction.is_some() { MAX_REDUCED_FETCH } else { MAX_FETCH };
        let scratch = &mut self.scratch;
        if target.reduction.is_some() && scratch.len() < at_once.min(length) {
            scratch.resize(at_once.min(length), 0);
        }
        if link.has_revoked(known) {
            return Ok(Fetched::Revoked);
        }
        while fetch.fetched < length {
            let part = at_once.min(length - fetch.fetched);
            let from = address + fetch.fetched as u64;
            let is_fetched = if target.reduction.is_some() {
                link.fetch(from, &mut scratch[..part])
            } else {
                let into = target.into.part(fetch.fetched, part);
                into.write(buffers, |memory| link.fetch(from, memory)).unwrap_or(Ok(true))
            };
            // The bytes just read, or the failure to read them, may stem from memory that the peer
            // has reused.
            if link.has_revoked(known) {
                return Ok(Fetched::Revoked);
            }
            if !is_fetched? {
                return Ok(Fetched::Forbidden);
            }
            if target.reduction.is_some() {
                let _ = target.put(buffers, fetch.fetched, &scratch[..part]);
            }
            fetch.fetched += part;
        }
        Ok(Fetched::All)
    }
}
