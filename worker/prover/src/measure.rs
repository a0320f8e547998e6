//! Measures the write bandwidth of proved paths, all at once: each dialling end writes to its peer's measured memory
//! as fast as the path allows, for a fixed time.
//!
//! Order in which the paths of an end read the blocks of their peers into the end's few read
//! buffers.
//!
//! At first, a single path to each peer reads. If its read fails, all other paths to the same peer
//! end with the same fault without being tried. Otherwise each of them would occupy a read buffer
//! until its timeout, and delay paths to other peers.

use crate::end::{DEPTH, End, Link, MEASURED, Request};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::mesh::PathFault;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which outstanding writes are awaited after the last one was posted.
const DRAIN: Duration = Duration::from_millis(500);

/// Writes of one path.
struct Stream<'a> {
    link: &'a Link,
    count: WriteCount,
}

/// Number of a stream's writes. Makes decisions only; the caller posts the writes.
#[derive(Clone, Copy, Debug)]
struct WriteCount {
    begin: Instant,
    /// Time of the last completion.
    last: Instant,
    posted: u64,
    done: u64,
    has_failed: bool,
}

impl WriteCount {
    fn new(begin: Instant) -> WriteCount {
        WriteCount { begin, last: begin, posted: 0, done: 0, has_failed: false }
    }

    /// Tells whether the queue pair has room for another write.
    fn has_room(&self) -> bool {
        !self.has_failed && self.posted - self.done < u64::from(DEPTH.send)
    }

    fn is_busy(&self) -> bool {
        !self.has_failed && self.posted > self.done
    }

    fn completed(&mut self, is_success: bool, now: Instant) {
        if is_success {
            (self.done, self.last) = (self.done + 1, now);
        } else {
            self.has_failed = true;
        }
    }

    /// Returns the bandwidth in Mb/s; `None` if a write has failed or is still outstanding.
    fn megabits(&self) -> Option<u32> {
        if self.has_failed || self.is_busy() {
            return None;
        }
        let bits = u128::from(self.done) * MEASURED as u128 * 8;
        // Bits in a microsecond are megabits in a second.
        let rate = bits.checked_div(self.last.duration_since(self.begin).as_micros())?;
        u32::try_from(rate).ok()
    }
}

/// Measures these paths for `time`. Returns the bandwidth of each in Mb/s; `None` if it could not be measured. Calls
/// `meanwhile` regularly.
pub(crate) fn measure<E>(
    links: &[&Link],
    time: Duration,
    mut meanwhile: impl FnMut() -> Result<(), E>,
) -> Result<Vec<Option<u32>>, E> {
    let begin = Instant::now();
    let mut streams: Vec<Stream<'_>> =
        links.iter().map(|link| Stream { link, count: WriteCount::new(begin) }).collect();
    loop {
        let passed = begin.elapsed();
        for stream in streams.iter_mut().filter(|_| passed < time) {
            stream.post();
        }
        for end in ends(links) {
            take_completions(end, &mut streams);
        }
        let is_busy = streams.iter().any(|stream| stream.count.is_busy());
        if (passed >= time && !is_busy) || passed >= time + DRAIN {
            break;
        }
        meanwhile()?;
    }
    Ok(streams.iter().map(|stream| stream.count.megabits()).collect())
}

impl Stream<'_> {
    /// Posts as many writes as the queue pair takes.
    fn post(&mut self) {
        while self.count.has_room() {
            match self.link.write_measured() {
                Ok(()) => self.count.posted += 1,
                Err(_) => self.count.has_failed = true,
            }
        }
    }
}

/// Returns the ends of paths, without duplicates.
fn ends<'a>(links: &[&'a Link]) -> Vec<&'a Arc<End>> {
    let mut ends: Vec<&Arc<End>> = Vec::new();
    for link in links {
        if !ends.iter().any(|end| Arc::ptr_eq(end, &link.end)) {
            ends.push(&link.end);
        }
    }
    ends
}

fn take_completions(end: &Arc<End>, streams: &mut [Stream<'_>]) {
    let own = streams.iter_mut().filter(|stream| Arc::ptr_eq(&stream.link.end, end));
    let Ok(completions) = end.resources.completions.poll() else {
        own.for_each(|stream| stream.count.has_failed = true);
        return;
    };
    let now = Instant::now();
    let mut own: Vec<&mut Stream<'_>> = own.collect();
    for completion in completions {
        let (slot, request) = Request::from_completion(&completion);
        let stream = own.iter_mut().find(|stream| stream.link.slot == slot);
        if let Some(stream) = stream.filter(|_| request == Request::Measured) {
            stream.count.completed(completion.status.is_success(), now);
        }
    }
}

/// Free read buffers of one end, and the reachability of its peers.
#[derive(Debug)]
pub(crate) struct ReadSchedule {
    free: Vec<usize>,
    peers: HashMap<NodeId, Peer>,
}

#[derive(Debug)]
enum Peer {
    /// One path reads, to find out whether the peer can be reached.
    Probing,
    Reachable,
    Unreachable(PathFault),
}

impl ReadSchedule {
    pub(crate) fn new(buffers: usize) -> ReadSchedule {
        ReadSchedule { free: (0..buffers).rev().collect(), peers: HashMap::new() }
    }

    /// Returns the fault of another path to this peer, if that makes further reads pointless.
    pub(crate) fn fault_of(&self, peer: NodeId) -> Option<&PathFault> {
        match self.peers.get(&peer) {
            Some(Peer::Unreachable(fault)) => Some(fault),
            _ => None,
        }
    }

    /// Takes the read buffer that a path to this peer may read into now, if there is one.
    pub(crate) fn take(&mut self, peer: NodeId) -> Option<usize> {
        if matches!(self.peers.get(&peer), Some(Peer::Probing | Peer::Unreachable(_))) {
            return None;
        }
        let buffer = self.free.pop()?;
        self.peers.entry(peer).or_insert(Peer::Probing);
        Some(buffer)
    }

    /// Frees a read buffer after a path to this peer has read into it; `failed` is the fault if the
    /// read failed.
    pub(crate) fn release(&mut self, peer: NodeId, buffer: usize, failed: Option<&PathFault>) {
        self.free.push(buffer);
        match (self.peers.get(&peer), failed) {
            (Some(Peer::Probing), Some(fault)) => {
                self.peers.insert(peer, Peer::Unreachable(fault.clone()));
            }
            (_, None) => {
                self.peers.insert(peer, Peer::Reachable);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::protocol::mesh::ProofStep;

    #[test]
    fn bandwidth_is_what_was_acknowledged_in_the_time_until_then() {
        let begin = Instant::now();
        let mut count = WriteCount::new(begin);
        assert_eq!(count.megabits(), None, "nothing was written");
        while count.has_room() {
            count.posted += 1;
        }
        assert_eq!(count.posted, u64::from(DEPTH.send));
        for _ in 0..count.posted {
            assert_eq!(count.megabits(), None);
            count.completed(true, begin + Duration::from_millis(1));
        }
        // Four writes of 512 KiB in a millisecond.
        assert_eq!(count.megabits(), Some(16_777));
        count.completed(false, begin);
        assert!(!count.has_room() && count.megabits().is_none());
    }

    const A: NodeId = NodeId(1);

    const B: NodeId = NodeId(2);

    fn fault() -> PathFault {
        PathFault {
            step: ProofStep::Block,
            cause: "status 12".to_owned(),
            hint: None,
            awaited_peer: false,
        }
    }

    #[test]
    fn one_path_of_each_peer_reads_first() {
        let mut schedule = ReadSchedule::new(2);
        assert_eq!(schedule.take(A), Some(0));
        assert_eq!(schedule.take(A), None);
        assert_eq!(schedule.take(B), Some(1));
        schedule.release(A, 0, None);
        assert_eq!(schedule.take(A), Some(0));
        assert_eq!(schedule.take(A), None, "no read buffer is free");
        schedule.release(B, 1, Some(&fault()));
        assert_eq!(schedule.take(B), None);
        assert_eq!(schedule.fault_of(B), Some(&fault()));
        assert_eq!(schedule.take(A), Some(1), "of a peer that answers several read at once");
    }

    #[test]
    fn a_peer_that_has_answered_is_not_given_up() {
        let mut schedule = ReadSchedule::new(1);
        assert_eq!(schedule.take(A), Some(0));
        schedule.release(A, 0, None);
        assert_eq!(schedule.take(A), Some(0));
        schedule.release(A, 0, Some(&fault()));
        assert_eq!(schedule.fault_of(A), None);
        assert_eq!(schedule.take(A), Some(0));
    }
}
