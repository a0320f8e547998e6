//! Fences over all ranks of the job: ranks of this node that have arrived, and the data they bring.
//!
//! Each rank takes part in the gather of a fence as soon as it arrives, so the agents know at any time
//! which ranks are missing. An arrival cannot be taken back. If a program ends in a fence, under a shell
//! that goes on to the next program, its arrival meets later ones of other ranks; they are told apart by
//! the number of the program that each brings.

use crate::node::{ConnectionId, Family, Node};
use crate::sorted_map::SortedMap;
use std::time::Instant;
use thiserror::Error;

/// Maximum size in bytes of what a rank brings to a fence, without the header that [`Fence`] adds. With
/// it, it is the 64 KiB that [`Output::Gather`](crate::Output::Gather) allows.
pub(crate) const DATA_MAX: usize = 64 * 1024 - HEADER;

/// Size in bytes of the header before a rank's data: the number of the rank's MPI program, big-endian.
const HEADER: usize = 4;

/// Maximum number of fences that a rank may have entered and that are not complete. PMI-1 clients wait
/// for each; PMIx clients may start several at once, but Open MPI has at most two.
pub(crate) const ENTERED_MAX: usize = 64;

/// Rank has entered too many fences that are not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("more than {ENTERED_MAX} fences are not complete")]
pub(crate) struct TooManyFences;

/// Client that has entered a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FenceArrival {
    pub(crate) connection: ConnectionId,
    /// Tag for the answer; 0 if the family has none.
    pub(crate) tag: u32,
    /// Time after which the client no longer waits.
    pub(crate) deadline: Option<Instant>,
}

/// Fences of a family over all ranks of the job, one after the other.
#[derive(Debug)]
pub(crate) struct Fence {
    family: Family,
    /// Number of fences that each rank has entered, by local rank.
    entered: Vec<u64>,
    /// Fences that ranks of this node have entered and that are not complete, by number: the first that
    /// a rank enters has the number 0.
    open: SortedMap<u64, OpenFence>,
}

/// Fence that is not complete.
#[derive(Debug)]
struct OpenFence {
    /// Number of the gather.
    request: u64,
    /// Ranks of this node that have arrived, by local rank.
    arrived: SortedMap<usize, Arrived>,
}

/// Client of a rank that has arrived.
#[derive(Clone, Copy, Debug)]
enum Arrived {
    /// The client waits for the answer.
    Waits(FenceArrival),
    /// The client has stopped waiting. Its next fence is this one again, unless this is complete then.
    TimedOut(FenceArrival),
    /// The connection is closed.
    Gone,
}

/// Contribution of a rank to a fence.
#[derive(Debug)]
struct Brought {
    /// Number of the rank's MPI program.
    run: u32,
    data: Vec<u8>,
}

/// Result of a fence.
#[derive(Debug)]
pub(crate) struct Finished {
    /// Arrivals to answer.
    pub(crate) arrivals: Vec<FenceArrival>,
    /// Local ranks that had arrived.
    pub(crate) locals: Vec<usize>,
    /// Data that the ranks have brought, by rank, and the number of the MPI program that all of them run.
    /// `None` if the fence has failed.
    pub(crate) data: Option<(u32, Vec<Vec<u8>>)>,
}

impl Fence {
    /// Creates the fences of a family on a node.
    pub(crate) fn new(family: Family, node: &Node) -> Fence {
        Fence { family, entered: vec![0; node.local_size()], open: SortedMap::default() }
    }

    /// Lets a local rank enter its next fence, or the one that its client has stopped waiting for. `take`
    /// returns what the rank brings to the next, at most [`DATA_MAX`] bytes: everything that it has put
    /// since the fence before.
    pub(crate) fn enter(
        &mut self,
        node: &mut Node,
        local: usize,
        arrival: FenceArrival,
        take: impl FnOnce() -> Vec<u8>,
    ) -> Result<(), TooManyFences> {
        let next = *self.entered.get(local).ok_or(TooManyFences)?;
        for open in self.open.values_mut() {
            if let Some(arrived @ Arrived::TimedOut(_)) = open.arrived.get_mut(&local) {
                *arrived = Arrived::Waits(arrival);
                return Ok(());
            }
        }
        if self.open.keys().iter().filter(|&&number| number < next).count() >= ENTERED_MAX {
            return Err(TooManyFences);
        }
        let brought = Brought { run: node.run(local), data: take() };
        self.arrive(node, local, Arrived::Waits(arrival), &brought);
        Ok(())
    }

    /// Lets a local rank take part in its next gather.
    fn arrive(&mut self, node: &mut Node, local: usize, arrived: Arrived, brought: &Brought) {
        let Some(next) = self.entered.get_mut(local) else { return };
        let open = self.open.get_or_insert_with(*next, || OpenFence {
            request: node.new_request(self.family),
            arrived: SortedMap::default(),
        });
        *next += 1;
        open.arrived.insert(local, arrived);
        // The agents count how often a rank has used the name.
        node.gather(open.request, local, self.family.fence(), brought.encoded());
    }

    /// Tells whether a client of a local rank waits for a fence.
    pub(crate) fn has_entered(&self, local: usize) -> bool {
        let mut arrived = self.open.values().filter_map(|open| open.arrived.get(&local));
        arrived.any(|arrived| matches!(arrived, Arrived::Waits(_)))
    }

    /// Returns the time at which a client no longer waits.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let arrived = self.open.values().flat_map(|open| open.arrived.values());
        arrived.filter_map(|arrived| arrived.waiting()?.deadline).min()
    }

    /// Stops to wait on behalf of the clients that no longer wait, and returns them. Their ranks have still
    /// arrived.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<FenceArrival> {
        let mut expired = Vec::new();
        for arrived in self.open.values_mut().flat_map(|open| open.arrived.values_mut()) {
            if let &mut Arrived::Waits(arrival) = arrived
                && arrival.deadline.is_some_and(|deadline| deadline <= now)
            {
                *arrived = Arrived::TimedOut(arrival);
                expired.push(arrival);
            }
        }
        expired
    }

    /// Forgets a client whose connection is closed. Its rank has still arrived.
    pub(crate) fn withdraw(&mut self, connection: ConnectionId) {
        for arrived in self.open.values_mut().flat_map(|open| open.arrived.values_mut()) {
            if let Arrived::Waits(arrival) | Arrived::TimedOut(arrival) = arrived
                && arrival.connection == connection
            {
                *arrived = Arrived::Gone;
            }
        }
    }

    /// Takes the answer to a gather. Returns `None` if the request is not this fence's. If the ranks are in
    /// different programs, the fence fails for those that are not in the newest, and the others take part
    /// in the next gather.
    pub(crate) fn finish(
        &mut self,
        node: &mut Node,
        request: u64,
        data: Option<Vec<Vec<u8>>>,
    ) -> Option<Finished> {
        let (&number, _) = self.open.iter().find(|(_, open)| open.request == request)?;
        let OpenFence { mut arrived, .. } = self.open.remove(&number)?;
        let locals = arrived.keys().to_vec();
        let world = usize::try_from(node.layout().world_size());
        let data = data.filter(|data| Ok(data.len()) == world);
        let brought = data.and_then(Brought::decode_all).unwrap_or_default();
        let newest = brought.iter().map(|brought| brought.run).max();
        let is_in_newest = |brought: &Brought| Some(brought.run) == newest;
        let data = if brought.iter().all(is_in_newest) {
            newest.map(|run| (run, brought.into_iter().map(|brought| brought.data).collect()))
        } else {
            let ranks = node.layout().ranks_here().to_vec();
            for (local, rank) in ranks.into_iter().enumerate() {
                let brought = usize::try_from(rank).ok().and_then(|rank| brought.get(rank));
                let Some(brought) = brought.filter(|brought| is_in_newest(brought)) else {
                    continue;
                };
                match arrived.remove(&local) {
                    None | Some(Arrived::Gone) => {}
                    Some(arrived) => self.arrive(node, local, arrived, brought),
                }
            }
            None
        };
        let arrivals = arrived.values().filter_map(Arrived::waiting).collect();
        Some(Finished { arrivals, locals, data })
    }
}

impl Brought {
    fn encoded(&self) -> Vec<u8> {
        [&self.run.to_be_bytes(), &*self.data].concat()
    }

    /// Returns the contributions of all ranks, by rank, or `None` if one is malformed.
    fn decode_all(blobs: Vec<Vec<u8>>) -> Option<Vec<Brought>> {
        let mut all = Vec::with_capacity(blobs.len());
        for mut data in blobs {
            let run = u32::from_be_bytes(*data.first_chunk()?);
            data.drain(..HEADER);
            all.push(Brought { run, data });
        }
        Some(all)
    }
}

impl Arrived {
    /// Returns the arrival if its client waits.
    fn waiting(&self) -> Option<FenceArrival> {
        match self {
            Arrived::Waits(arrival) => Some(*arrival),
            Arrived::TimedOut(_) | Arrived::Gone => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Output;
    use crate::testing::layout;

    /// Node 0 of a job with ranks 0 and 1 here and rank 2 elsewhere, and its fences.
    fn fences() -> (Node, Fence) {
        let node = Node::new(layout(&[&[0, 1], &[2]], 0));
        let fence = Fence::new(Family::Pmix, &node);
        (node, fence)
    }

    fn arrival(connection: u64) -> FenceArrival {
        FenceArrival { connection: ConnectionId(connection), tag: 0, deadline: None }
    }

    /// Lets a rank enter a fence, and returns what the server asks of its agent.
    fn enter(
        (node, fence): &mut (Node, Fence),
        local: usize,
        arrival: FenceArrival,
    ) -> Option<Output> {
        fence.enter(node, local, arrival, || vec![b'a' + u8::try_from(local).unwrap()]).unwrap();
        node.poll_output()
    }

    /// Completes a gather with this data. Returns the connections that are to be answered.
    fn finish(
        (node, fence): &mut (Node, Fence),
        request: u64,
        data: Option<[&[u8]; 3]>,
    ) -> (Vec<u64>, Finished) {
        let data = data.map(|data| data.map(Vec::from).into());
        let finished = fence.finish(node, request, data).unwrap();
        (finished.arrivals.iter().map(|arrival| arrival.connection.0).collect(), finished)
    }

    fn gather(request: u64, local_rank: usize, blob: &[u8]) -> Option<Output> {
        let (name, blob) = ("pmix:fence".to_owned(), blob.to_vec());
        Some(Output::Gather { request, local_rank, name, blob })
    }

    const WHOLE: Option<[&[u8]; 3]> = Some([b"\0\0\0\0a", b"\0\0\0\0b", b"\0\0\0\0c"]);

    #[test]
    fn each_rank_takes_part_as_soon_as_it_arrives() {
        let mut job = fences();
        assert_eq!(enter(&mut job, 1, arrival(7)), gather(0, 1, b"\0\0\0\0b"));
        assert!(job.1.has_entered(1) && !job.1.has_entered(0));
        // The next fence of the same rank.
        assert_eq!(enter(&mut job, 1, arrival(8)), gather(1, 1, b"\0\0\0\0b"));
        assert_eq!(enter(&mut job, 0, arrival(9)), gather(0, 0, b"\0\0\0\0a"));
        let (answered, finished) = finish(&mut job, 0, WHOLE);
        assert_eq!((answered, finished.locals), (vec![9, 7], vec![0, 1]));
        let (run, data) = finished.data.unwrap();
        assert_eq!((run, data), (0, vec![b"a".to_vec(), b"b".to_vec(), b"c".to_vec()]));
        assert!(job.1.finish(&mut job.0, 0, None).is_none());
        assert!(job.1.has_entered(1) && !job.1.has_entered(0));
    }

    #[test]
    fn a_client_that_has_stopped_waiting_may_enter_the_same_fence_again() {
        let mut job = fences();
        let now = Instant::now();
        let timed = FenceArrival { deadline: Some(now), ..arrival(7) };
        enter(&mut job, 0, timed);
        enter(&mut job, 1, arrival(8));
        assert_eq!(job.1.next_deadline(), Some(now));
        assert_eq!(job.1.expire(now), [timed]);
        assert_eq!((job.1.expire(now), job.1.next_deadline()), (vec![], None));
        assert!(!job.1.has_entered(0));
        assert_eq!(enter(&mut job, 0, arrival(9)), None);
        assert_eq!(finish(&mut job, 0, WHOLE).0, [9, 8]);
        assert_eq!(enter(&mut job, 0, timed), gather(1, 0, b"\0\0\0\0a"));
        job.1.expire(now);
        let (answered, finished) = finish(&mut job, 1, WHOLE);
        assert_eq!((answered, finished.locals), (vec![], vec![0]));
        // The fence is complete, so the rank enters the next.
        assert_eq!(enter(&mut job, 0, timed), gather(2, 0, b"\0\0\0\0a"));
    }

    #[test]
    fn a_closed_connection_gets_no_answer_and_its_rank_has_still_arrived() {
        let mut job = fences();
        let now = Instant::now();
        enter(&mut job, 0, FenceArrival { deadline: Some(now), ..arrival(7) });
        enter(&mut job, 1, arrival(8));
        job.1.expire(now);
        job.1.withdraw(ConnectionId(7));
        job.1.withdraw(ConnectionId(8));
        assert!(!job.1.has_entered(0) && !job.1.has_entered(1));
        assert_eq!(enter(&mut job, 0, arrival(9)), gather(1, 0, b"\0\0\0\0a"));
        let (answered, finished) = finish(&mut job, 0, None);
        assert_eq!((answered, finished.locals), (vec![], vec![0, 1]));
    }

    #[test]
    fn a_rank_that_is_late_for_a_fence_that_has_failed_fails_too() {
        let mut job = fences();
        enter(&mut job, 0, arrival(7));
        assert!(finish(&mut job, 0, None).1.data.is_none());
        assert_eq!(enter(&mut job, 1, arrival(8)), gather(1, 1, b"\0\0\0\0b"));
        assert_eq!(finish(&mut job, 1, None).0, [8]);
    }

    #[test]
    fn fences_of_a_rank_have_a_limit() {
        let mut job = fences();
        for _ in 0..ENTERED_MAX {
            enter(&mut job, 0, arrival(7));
        }
        let (node, fence) = &mut job;
        let mut enter = |fence: &mut Fence, local| fence.enter(node, local, arrival(7), Vec::new);
        assert_eq!(enter(fence, 0), Err(TooManyFences));
        assert_eq!(enter(fence, 1), Ok(()));
        assert_eq!(enter(fence, 2), Err(TooManyFences));
        fence.withdraw(ConnectionId(7));
        assert_eq!(enter(fence, 0), Err(TooManyFences));
        finish(&mut job, 0, None);
        assert_eq!(job.1.enter(&mut job.0, 0, arrival(7), Vec::new), Ok(()));
    }

    #[test]
    fn ranks_that_are_ahead_of_another_arrive_again() {
        let mut job = fences();
        enter(&mut job, 0, arrival(7));
        enter(&mut job, 1, arrival(8));
        let data: Option<[&[u8]; 3]> = Some([b"\0\0\0\x02a", b"\0\0\0\x01b", b"\0\0\0\x02c"]);
        let (answered, finished) = finish(&mut job, 0, data);
        assert_eq!((answered, finished.data), (vec![8], None));
        assert_eq!(job.0.poll_output(), gather(1, 0, b"\0\0\0\x02a"));
        assert_eq!(job.0.poll_output(), None);
        assert!(job.1.has_entered(0) && !job.1.has_entered(1));
        // One whose connection is closed does not.
        enter(&mut job, 1, arrival(8));
        job.1.withdraw(ConnectionId(7));
        assert!(finish(&mut job, 1, data).1.data.is_none());
        assert_eq!(job.0.poll_output(), None);
    }

    #[test]
    fn a_fence_fails_without_the_data_of_all_ranks() {
        let failing: [Option<&[&[u8]]>; 5] = [
            None,
            Some(&[]),
            Some(&[b"\0\0\0\x01", b"\0\0\0\x01"]),
            Some(&[b"\0\0\0\x01", b"\0\0\0", b"\0\0\0\x01"]),
            Some(&[b"\0\0\0\x01", b"", b"\0\0\0\x01"]),
        ];
        for data in failing {
            let mut job = fences();
            enter(&mut job, 0, arrival(7));
            let data = data.map(|data| data.iter().map(|blob| blob.to_vec()).collect());
            assert!(job.1.finish(&mut job.0, 0, data).unwrap().data.is_none());
        }
    }
}
