//! One host of the chain: what it asks for and sends, and when it is done.

use std::ops::Range;

use crate::chunks::{ChunkId, ChunkSet};
use crate::wire::MAX_RANGES;

/// Next step of a host.
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
///
/// What a host lacks is decided once, when it has looked at its files, and all of it is asked for.
/// What the host after asks for is therefore either there or on its way, and changes nothing
/// upstream.
#[derive(Debug)]
pub struct Hop {
    had: ChunkSet,
    /// Chunks that are lacking and not yet asked for.
    to_ask: ChunkSet,
    /// Chunks that have been asked for and have not come.
    awaited: ChunkSet,
    asking: Asking,
    /// Chunks that the host after asked for and has not been sent.
    wanted: ChunkSet,
    /// Those of `wanted` that are there.
    ready: ChunkSet,
    /// No chunk of `ready` is below.
    ready_from: u32,
    /// Chunks that the host after has been sent.
    sent: ChunkSet,
    files: Files,
    downstream: Downstream,
    is_done: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    /// Local files are being looked at.
    Scanning,
    Open,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Files {
    Lacking,
    /// [`Step::Complete`] has been taken.
    Finishing,
    Finished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Downstream {
    /// This host is the last one.
    None,
    /// It may ask for more.
    Open,
    /// It has asked for everything.
    Asked,
    Done,
}

impl Hop {
    /// Makes the host that the files come from, which has all chunks of the manifest.
    pub fn source(chunks: u32) -> Hop {
        let mut hop = Hop::receiver(chunks, true);
        hop.had = ChunkSet::full(chunks);
        hop.asking = Asking::Ended;
        hop.files = Files::Finished;
        hop
    }

    /// Makes a host that receives, and sends on if another host is after it.
    pub fn receiver(chunks: u32, has_downstream: bool) -> Hop {
        let none = ChunkSet::new(chunks);
        Hop {
            had: none.clone(),
            to_ask: none.clone(),
            awaited: none.clone(),
            asking: Asking::Scanning,
            wanted: none.clone(),
            ready: none.clone(),
            ready_from: 0,
            sent: none,
            files: Files::Lacking,
            downstream: if has_downstream { Downstream::Open } else { Downstream::None },
            is_done: false,
        }
    }

    /// Chunks were found in local files.
    pub fn on_have(&mut self, ids: &ChunkSet) {
        self.had.union_with(ids);
        self.to_ask.subtract(ids);
        let mut ready = self.wanted.clone();
        ready.intersect_with(ids);
        self.add_ready(&ready);
    }

    /// All local files were looked at: what is not had is wanted.
    pub fn on_scanned(&mut self) {
        if self.asking == Asking::Scanning {
            self.asking = Asking::Open;
            self.to_ask = ChunkSet::full(self.had.len());
            self.to_ask.subtract(&self.had);
        }
    }

    /// The host after asks for chunks. What the manifest does not have, and what it has been sent
    /// already, is ignored.
    pub fn on_want(&mut self, ids: &[Range<u32>]) {
        if self.downstream != Downstream::Open {
            return;
        }
        let mut asked = ChunkSet::new(self.had.len());
        ids.iter().for_each(|range| asked.insert_range(range.clone()));
        asked.subtract(&self.sent);
        self.wanted.union_with(&asked);
        asked.intersect_with(&self.had);
        self.add_ready(&asked);
    }

    /// The host after will ask for nothing more.
    pub fn on_want_end(&mut self) {
        if self.downstream == Downstream::Open {
            self.downstream = Downstream::Asked;
        }
    }

    /// Tells whether a chunk has been asked for and has not come: no other may be accepted.
    pub fn awaits(&self, id: ChunkId) -> bool {
        self.awaited.contains(id)
    }

    /// A chunk came from the host before, and is checked and written. One that nobody asked for is
    /// ignored.
    pub fn on_chunk(&mut self, id: ChunkId) {
        if !self.awaited.remove(id) {
            return;
        }
        self.had.insert(id);
        if self.wanted.contains(id) {
            self.ready.insert(id);
            self.ready_from = self.ready_from.min(id.0);
        }
    }

    /// All files of this host have their names.
    pub fn on_finished(&mut self) {
        if self.files == Files::Finishing {
            self.files = Files::Finished;
        }
    }

    /// The host after and all after it are done ([`crate::Message::Have`]).
    pub fn on_downstream_done(&mut self) {
        if self.downstream != Downstream::None {
            self.downstream = Downstream::Done;
        }
    }

    /// Returns what is to be done next; `None` until something happens.
    ///
    /// What other hosts wait for comes first: giving files their names takes long, and the host
    /// after can do the same meanwhile.
    #[expect(clippy::should_implement_trait, reason = "it goes on after None")]
    pub fn next(&mut self) -> Option<Step> {
        if self.asking == Asking::Open {
            return Some(self.ask());
        }
        self.next_send().map(Step::Send).or_else(|| self.next_other())
    }

    /// Returns the next chunk for the host after, as [`Hop::next`] does, for a thread that only
    /// sends.
    pub fn next_send(&mut self) -> Option<ChunkId> {
        let id = self.ready.first_from(self.ready_from)?;
        self.ready_from = id.0 + 1;
        self.ready.remove(id);
        self.wanted.remove(id);
        self.sent.insert(id);
        Some(id)
    }

    /// Returns what is to be done next but for sending chunks, for the thread that does the rest.
    pub fn next_other(&mut self) -> Option<Step> {
        if self.asking == Asking::Open {
            return Some(self.ask());
        }
        if self.files == Files::Lacking && self.asking == Asking::Ended && self.had.is_full() {
            self.files = Files::Finishing;
            return Some(Step::Complete);
        }
        let is_end = matches!(self.downstream, Downstream::None | Downstream::Done);
        if self.files == Files::Finished && is_end && !self.is_done {
            self.is_done = true;
            return Some(Step::Done);
        }
        None
    }

    /// Returns how many chunks this host has.
    pub fn had(&self) -> u32 {
        self.had.count()
    }

    /// Tells whether no chunk is there that the host after asked for and was not sent.
    pub fn is_idle(&self) -> bool {
        self.ready.is_empty()
    }

    fn ask(&mut self) -> Step {
        let ranges: Vec<_> = self.to_ask.ranges().take(MAX_RANGES).collect();
        if ranges.is_empty() {
            self.asking = Asking::Ended;
            return Step::AskEnd;
        }
        for range in &ranges {
            self.to_ask.remove_range(range.clone());
            self.awaited.insert_range(range.clone());
        }
        Step::Ask(ranges)
    }

    fn add_ready(&mut self, ids: &ChunkSet) {
        if let Some(first) = ids.first_from(0) {
            self.ready_from = self.ready_from.min(first.0);
            self.ready.union_with(ids);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn set(len: u32, ids: &[u32]) -> ChunkSet {
        let mut set = ChunkSet::new(len);
        ids.iter().for_each(|id| assert!(set.insert(ChunkId(*id))));
        set
    }

    fn one(range: Range<u32>) -> Vec<Range<u32>> {
        Vec::from([range])
    }

    fn steps(hop: &mut Hop) -> Vec<Step> {
        std::iter::from_fn(|| hop.next()).collect()
    }

    #[test]
    fn what_is_lacking_is_asked_for_once_all_files_were_looked_at() {
        let mut hop = Hop::receiver(6, false);
        hop.on_have(&set(6, &[1]));
        assert_eq!(steps(&mut hop), []);
        hop.on_have(&set(6, &[4, 5]));
        hop.on_scanned();
        assert_eq!(steps(&mut hop), [Step::Ask(vec![0..1, 2..4]), Step::AskEnd]);
        assert_eq!(hop.had(), 3);
        hop.on_scanned();
        assert_eq!(steps(&mut hop), []);
    }

    #[test]
    fn many_ranges_are_asked_for_in_several_messages() {
        let chunks = 3 * 2 * MAX_RANGES as u32;
        let mut hop = Hop::receiver(chunks, false);
        let odd: Vec<u32> = (0..chunks).filter(|id| id % 2 == 1).collect();
        hop.on_have(&set(chunks, &odd));
        hop.on_scanned();
        let steps = steps(&mut hop);
        let lengths =
            steps.iter().map(|step| if let Step::Ask(ids) = step { ids.len() } else { 0 });
        assert_eq!(lengths.collect::<Vec<_>>(), [MAX_RANGES, MAX_RANGES, MAX_RANGES, 0]);
    }

    #[test]
    fn a_chunk_goes_on_at_once_and_only_once() {
        let mut hop = Hop::receiver(4, true);
        hop.on_have(&set(4, &[3]));
        hop.on_scanned();
        steps(&mut hop);
        hop.on_want(&[0..1, 3..4]);
        assert_eq!(steps(&mut hop), [Step::Send(ChunkId(3))]);
        hop.on_chunk(ChunkId(1));
        assert_eq!(steps(&mut hop), []);
        hop.on_chunk(ChunkId(0));
        assert!(!hop.is_idle());
        assert_eq!(steps(&mut hop), [Step::Send(ChunkId(0))]);
        assert!(hop.is_idle());
        // Wanted again, or after it has come.
        hop.on_want(&one(0..2));
        assert_eq!(steps(&mut hop), [Step::Send(ChunkId(1))]);
        hop.on_want_end();
        hop.on_want(&one(2..3));
        hop.on_chunk(ChunkId(2));
        assert_eq!(steps(&mut hop), [Step::Complete]);
    }

    #[test]
    fn the_lowest_chunk_goes_first() {
        let mut hop = Hop::source(200);
        hop.on_want(&one(150..152));
        assert_eq!(hop.next(), Some(Step::Send(ChunkId(150))));
        hop.on_want(&[7..8, 160..161]);
        let order: Vec<_> = std::iter::from_fn(|| hop.next_send()).map(|id| id.0).collect();
        assert_eq!(order, [7, 151, 160]);
    }

    #[test]
    fn a_host_is_done_when_all_after_it_are() {
        let mut hop = Hop::receiver(1, true);
        hop.on_scanned();
        steps(&mut hop);
        hop.on_chunk(ChunkId(0));
        assert_eq!(steps(&mut hop), [Step::Complete]);
        hop.on_finished();
        assert_eq!(steps(&mut hop), []);
        hop.on_downstream_done();
        assert_eq!(steps(&mut hop), [Step::Done]);
        assert_eq!(steps(&mut hop), []);

        let mut last = Hop::receiver(0, false);
        last.on_scanned();
        assert_eq!(steps(&mut last), [Step::AskEnd, Step::Complete]);
        last.on_finished();
        assert_eq!(steps(&mut last), [Step::Done]);

        let mut source = Hop::source(0);
        assert_eq!(steps(&mut source), []);
        source.on_downstream_done();
        assert_eq!(steps(&mut source), [Step::Done]);
    }

    #[test]
    fn what_a_neighbour_makes_up_changes_nothing() {
        let mut hop = Hop::receiver(4, true);
        hop.on_have(&set(4, &[0]));
        hop.on_scanned();
        steps(&mut hop);
        assert!(hop.awaits(ChunkId(1)) && !hop.awaits(ChunkId(0)) && !hop.awaits(ChunkId(9)));
        hop.on_chunk(ChunkId(9));
        hop.on_chunk(ChunkId(u32::MAX));
        hop.on_chunk(ChunkId(0));
        let reversed = |start, end| start..end;
        hop.on_want(&[9..10, reversed(5, 2), u32::MAX - 1..u32::MAX]);
        hop.on_finished();
        assert_eq!((steps(&mut hop), hop.had()), (vec![], 1));
        hop.on_chunk(ChunkId(1));
        assert!(!hop.awaits(ChunkId(1)), "it comes once");
        let mut last = Hop::receiver(1, false);
        last.on_want(&one(0..1));
        last.on_downstream_done();
        assert_eq!(steps(&mut last), []);
    }

    #[test]
    fn a_chunk_that_turns_up_locally_is_not_asked_for_but_sent() {
        let mut hop = Hop::receiver(3, true);
        hop.on_scanned();
        hop.on_want(&one(0..3));
        hop.on_have(&set(3, &[1]));
        assert_eq!(
            steps(&mut hop),
            [Step::Ask(vec![0..1, 2..3]), Step::AskEnd, Step::Send(ChunkId(1))]
        );
        // Asked for, then found: it may still come, and is sent no second time.
        hop.on_have(&set(3, &[0]));
        assert_eq!(steps(&mut hop), [Step::Send(ChunkId(0))]);
        hop.on_chunk(ChunkId(0));
        assert_eq!(steps(&mut hop), []);
    }

    /// What happens to a host.
    #[derive(Debug)]
    enum Event {
        Scan,
        Want(Vec<Range<u32>>),
        WantEnd,
        Chunk(ChunkId),
        Finish,
        DownstreamDone,
    }

    proptest! {
        /// Whatever is slow, everybody gets everything, and no chunk goes over a link twice. Events
        /// of one host, and messages of one link and kind, stay in order.
        #[test]
        fn every_order_of_events_ends(
            chunks in 0..140_u32,
            had in prop::collection::vec(prop::collection::vec(any::<bool>(), 140), 1..6),
            order in prop::collection::vec(any::<prop::sample::Index>(), 64),
        ) {
            let hosts = had.len();
            let mut hops = vec![Hop::source(chunks)];
            hops.extend((0..hosts).map(|host| Hop::receiver(chunks, host + 1 < hosts)));
            // Four of each host: its own events, what is wanted, chunks, and ends of those after it.
            let mut lanes: Vec<VecDeque<Event>> = Vec::new();
            lanes.resize_with(4 * (hosts + 1), VecDeque::new);
            for lane in lanes.chunks_mut(4).skip(1) {
                lane[0].push_back(Event::Scan);
            }
            let mut crossed = vec![ChunkSet::new(chunks); hosts + 1];
            let mut is_done = vec![false; hosts + 1];
            let mut order = order.iter().cycle();
            loop {
                let is_filled = |lane: &usize| !lanes[*lane].is_empty();
                let filled: Vec<usize> = (0..lanes.len()).filter(is_filled).collect();
                if filled.is_empty() {
                    break;
                }
                let lane = *order.next().unwrap().get(&filled);
                let (host, event) = (lane / 4, lanes[lane].pop_front().unwrap());
                match event {
                    Event::Scan => {
                        for id in (0..chunks).filter(|id| had[host - 1][*id as usize]) {
                            hops[host].on_have(&set(chunks, &[id]));
                        }
                        hops[host].on_scanned();
                    }
                    Event::Want(ids) => hops[host].on_want(&ids),
                    Event::WantEnd => hops[host].on_want_end(),
                    Event::Chunk(id) => {
                        prop_assert!(hops[host].awaits(id));
                        prop_assert!(!had[host - 1][id.0 as usize]);
                        prop_assert!(crossed[host].insert(id));
                        hops[host].on_chunk(id);
                    }
                    Event::Finish => hops[host].on_finished(),
                    Event::DownstreamDone => hops[host].on_downstream_done(),
                }
                while let Some(step) = hops[host].next() {
                    match step {
                        Step::Ask(ids) => lanes[4 * (host - 1) + 1].push_back(Event::Want(ids)),
                        Step::AskEnd => lanes[4 * (host - 1) + 1].push_back(Event::WantEnd),
                        Step::Send(id) => lanes[4 * (host + 1) + 2].push_back(Event::Chunk(id)),
                        Step::Complete => lanes[4 * host].push_back(Event::Finish),
                        Step::Done if host > 0 => {
                            lanes[4 * (host - 1) + 3].push_back(Event::DownstreamDone);
                            is_done[host] = true;
                        }
                        Step::Done => is_done[0] = true,
                    }
                }
            }
            prop_assert_eq!(is_done, vec![true; hosts + 1]);
            for ((hop, had), crossed) in hops[1..].iter().zip(&had).zip(&crossed[1..]) {
                prop_assert_eq!(hop.had(), chunks);
                let lacked = had[..chunks as usize].iter().filter(|had| !**had).count();
                prop_assert_eq!(crossed.count() as usize, lacked);
            }
        }
    }
}
