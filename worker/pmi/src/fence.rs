//! Fences over all ranks of the job: ranks of this node that have arrived, and the data they bring.

use crate::node::Node;
use crate::output::Family;
use std::collections::VecDeque;
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

/// Fences of a family over all ranks of the job, one after the other. `A` tells where the answer to an
/// arrival goes.
#[derive(Debug)]
pub(crate) struct Fence<A> {
    family: Family,
    /// Number of the next gather; all nodes count alike.
    next: u64,
    /// Fences that each rank has entered, oldest first, by local rank.
    entered: Vec<VecDeque<A>>,
    /// Fence whose data is being gathered.
    gathering: Option<Gathering<A>>,
}

/// Fence that all ranks of this node have entered.
#[derive(Debug)]
struct Gathering<A> {
    request: u64,
    arrivals: Vec<(usize, A)>,
}

/// Result of a fence.
#[derive(Debug)]
pub(crate) struct Finished<A> {
    /// Arrivals to answer, with their local ranks.
    pub(crate) arrivals: Vec<(usize, A)>,
    /// Data that the ranks have brought, by rank, and the number of the MPI program that all of them run;
    /// empty for ranks that had ended. `None` if the fence has failed.
    pub(crate) data: Option<(u32, Vec<Vec<u8>>)>,
}

impl<A> Fence<A> {
    /// Creates the fences of a family on a node.
    pub(crate) fn new(family: Family, node: &Node) -> Fence<A> {
        let entered = (0..node.local_size()).map(|_| VecDeque::new()).collect();
        Fence { family, next: 0, entered, gathering: None }
    }

    /// Records that a local rank has entered its next fence. The caller then calls [`Fence::start`].
    pub(crate) fn enter(&mut self, local: usize, arrival: A) -> Result<(), TooManyFences> {
        let entered = self.entered.get_mut(local).ok_or(TooManyFences)?;
        if entered.len() >= ENTERED_MAX {
            return Err(TooManyFences);
        }
        entered.push_back(arrival);
        Ok(())
    }

    /// Tells whether a local rank has entered a fence that is not complete.
    pub(crate) fn has_entered(&self, local: usize) -> bool {
        let is_gathering =
            |gathering: &Gathering<A>| gathering.arrivals.iter().any(|(other, _)| *other == local);
        self.entered.get(local).is_some_and(|entered| !entered.is_empty())
            || self.gathering.as_ref().is_some_and(is_gathering)
    }

    /// Forgets arrivals whose connection is closed, unless the gather of their fence has started.
    pub(crate) fn withdraw(&mut self, is_gone: impl Fn(&A) -> bool) {
        for entered in &mut self.entered {
            entered.retain(|arrival| !is_gone(arrival));
        }
    }

    /// Starts the gather of the next fence if each rank of this node has entered it or has ended. `take`
    /// returns what a local rank brings, at most [`DATA_MAX`] bytes: everything that the rank has put
    /// since the gather before.
    pub(crate) fn start(&mut self, node: &mut Node, mut take: impl FnMut(usize) -> Vec<u8>) {
        let is_in =
            |local: usize, entered: &VecDeque<A>| !entered.is_empty() || !node.is_alive(local);
        let all_in = self.entered.iter().enumerate().all(|(local, entered)| is_in(local, entered));
        if self.gathering.is_some() || !all_in || self.entered.iter().all(VecDeque::is_empty) {
            return;
        }
        let mut arrivals = Vec::new();
        let mut blobs = Vec::with_capacity(self.entered.len());
        for (local, entered) in self.entered.iter_mut().enumerate() {
            let mut blob = Vec::new();
            if let Some(arrival) = entered.pop_front() {
                arrivals.push((local, arrival));
                blob.extend_from_slice(&node.run(local).to_be_bytes());
                blob.append(&mut take(local));
            }
            blobs.push(blob);
        }
        let name = format!("{}:fence:{}", self.family.prefix(), self.next);
        self.next += 1;
        self.gathering =
            Some(Gathering { request: node.gather(self.family, name, blobs), arrivals });
    }

    /// Takes the answer to a gather. Returns `None` if the request is not this fence's. The caller answers
    /// the arrivals and then calls [`Fence::start`], since ranks may have entered the next fence already.
    pub(crate) fn finish(
        &mut self,
        node: &Node,
        request: u64,
        data: Option<Vec<Vec<u8>>>,
    ) -> Option<Finished<A>> {
        let Gathering { arrivals, .. } =
            self.gathering.take_if(|gathering| gathering.request == request)?;
        let is_whole =
            |data: &Vec<Vec<u8>>| u32::try_from(data.len()) == Ok(node.layout().world_size());
        Some(Finished { arrivals, data: data.filter(is_whole).and_then(without_headers) })
    }
}

/// Removes the headers of what the ranks have brought. Returns `None` if they do not all run the same of
/// their MPI programs: then one has crashed under a shell that went on to the next.
fn without_headers(mut data: Vec<Vec<u8>>) -> Option<(u32, Vec<Vec<u8>>)> {
    let mut run = None;
    for blob in data.iter_mut().filter(|blob| !blob.is_empty()) {
        let (&header, _) = blob.split_first_chunk::<HEADER>()?;
        if *run.get_or_insert(header) != header {
            return None;
        }
        blob.drain(..HEADER);
    }
    Some((u32::from_be_bytes(run?), data))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Output;
    use crate::testing::layout;

    /// Node 0 of a job with ranks 0 and 1 here and rank 2 elsewhere, and its fences.
    fn fences() -> (Node, Fence<char>) {
        let node = Node::new(layout(&[&[0, 1], &[2]], 0));
        let fence = Fence::new(Family::Pmix, &node);
        (node, fence)
    }

    fn start(node: &mut Node, fence: &mut Fence<char>) -> Option<Output> {
        fence.start(node, |local| vec![b'a' + u8::try_from(local).unwrap()]);
        node.poll_output()
    }

    fn gather(request: u64, number: u32, blobs: [&[u8]; 2]) -> Option<Output> {
        let (name, blobs) = (format!("pmix:fence:{number}"), blobs.map(<[u8]>::to_vec).into());
        Some(Output::Gather { request, name, blobs })
    }

    #[test]
    fn fences_follow_each_other() {
        let (mut node, mut fence) = fences();
        fence.enter(0, 'a').unwrap();
        fence.enter(0, 'c').unwrap();
        assert_eq!(start(&mut node, &mut fence), None);
        fence.enter(1, 'b').unwrap();
        assert_eq!(start(&mut node, &mut fence), gather(0, 0, [b"\0\0\0\0a", b"\0\0\0\0b"]));
        fence.enter(1, 'd').unwrap();
        assert_eq!(start(&mut node, &mut fence), None);
        let data = [&b"\0\0\0\0a"[..], b"\0\0\0\0b", b"\0\0\0\0"].map(<[u8]>::to_vec);
        assert!(fence.finish(&node, 9, Some(data.to_vec())).is_none());
        let finished = fence.finish(&node, 0, Some(data.to_vec())).unwrap();
        assert_eq!(finished.arrivals, [(0, 'a'), (1, 'b')]);
        assert_eq!(finished.data.unwrap(), (0, vec![b"a".to_vec(), b"b".to_vec(), Vec::new()]));
        assert!(fence.finish(&node, 0, Some(data.to_vec())).is_none());
        assert_eq!(start(&mut node, &mut fence), gather(1, 1, [b"\0\0\0\0a", b"\0\0\0\0b"]));
    }

    #[test]
    fn a_rank_that_has_ended_brings_nothing() {
        let (mut node, mut fence) = fences();
        node.end(0);
        assert_eq!(start(&mut node, &mut fence), None);
        fence.enter(1, 'b').unwrap();
        assert_eq!(start(&mut node, &mut fence), gather(0, 0, [b"", b"\0\0\0\0b"]));
    }

    #[test]
    fn an_arrival_can_be_withdrawn_before_the_gather() {
        let (mut node, mut fence) = fences();
        fence.enter(0, 'a').unwrap();
        fence.withdraw(|&arrival| arrival == 'a');
        fence.enter(1, 'b').unwrap();
        assert_eq!(start(&mut node, &mut fence), None);
    }

    #[test]
    fn fences_of_a_rank_have_a_limit() {
        let (_, mut fence) = fences();
        for _ in 0..ENTERED_MAX {
            fence.enter(0, 'a').unwrap();
        }
        assert_eq!(fence.enter(0, 'a'), Err(TooManyFences));
        assert_eq!(fence.enter(1, 'a'), Ok(()));
        assert_eq!(fence.enter(2, 'a'), Err(TooManyFences));
    }

    #[test]
    fn a_fence_fails_without_the_data_of_all_ranks_in_the_same_program() {
        let failing: [Option<&[&[u8]]>; 6] = [
            None,
            Some(&[]),
            Some(&[b"\0\0\0\x01", b"\0\0\0\x01"]),
            Some(&[b"\0\0\0\x01", b"\0\0\0\x01", b"\0\0\0\x02"]),
            Some(&[b"\0\0\0\x01", b"\0\0\0", b"\0\0\0\x01"]),
            Some(&[b"", b"", b""]),
        ];
        for data in failing {
            let (mut node, mut fence) = fences();
            fence.enter(0, 'a').unwrap();
            fence.enter(1, 'b').unwrap();
            start(&mut node, &mut fence);
            let data = data.map(|data| data.iter().map(|blob| blob.to_vec()).collect());
            assert!(fence.finish(&node, 0, data).unwrap().data.is_none());
        }
    }
}
