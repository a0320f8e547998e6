//! Fences and groups of some ranks of the job.
//!
//! Once all members of this node have arrived, the node stores its part under a key that the other nodes
//! know, and reads theirs. The key has a hash of what the members do together, and a number that counts
//! how often they have done so: parts of different times are not confused.
//!
//! Groups: the information that their members share, and the parts of it that nodes exchange.

use super::bfrops::{DecodeError, Item, Reader, Status, Writer};
use super::client::Caller;
use crate::fence::ENTERED_MAX;
use crate::node::{ConnectionId, Family, Node};
use crate::sorted_map::{SortedMap, SortedSet};
use std::time::Instant;

/// Maximum number of different collectives that are counted, at about 48 bytes each. Open MPI gives each
/// group another name.
const COUNTED_MAX: usize = 64 * 1024;

/// Maximum length in bytes of a group's name. MPI programs choose names of 1 KiB at most, to which Open
/// MPI adds a few bytes.
const ID_MAX: usize = 4096;

/// Maximum size in bytes of the infos that a member shares with the others. Open MPI shares a number, in
/// 50 bytes.
const SHARED_MAX: usize = 4096;

/// Kind of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Fence,
    Connect,
    Disconnect,
    /// Construction of a group, which gets a number.
    Construct,
    /// Destruction of a group.
    Destruct,
}

/// Collective in which a rank takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) kind: Kind,
    /// Name of the group; empty for other collectives.
    pub(super) id: Vec<u8>,
    /// Ranks, in ascending order.
    pub(super) members: Vec<u32>,
    /// Number of the members' MPI programs in their lives.
    pub(super) run: u32,
}

/// Rank that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) caller: Caller,
    /// Time after which the client no longer waits.
    pub(super) deadline: Option<Instant>,
    /// Infos that the rank shares with the other members, encoded one after the other.
    pub(super) shared: Vec<u8>,
}

/// Collective that is complete or has failed, for the members of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FinishedCall {
    pub(super) call: Call,
    pub(super) arrivals: Vec<Arrival>,
    pub(super) result: Part,
}

/// Collectives of a node.
#[derive(Debug, Default)]
pub(super) struct Collectives {
    active: SortedMap<Hash, Collective>,
    /// Number of times that each collective has begun.
    counts: SortedMap<Hash, u64>,
    /// Collective and node whose part is being read, by number of the read.
    reads: SortedMap<u64, (Hash, usize)>,
    /// Keys of this node's parts in the construction of groups that still exist.
    constructed: SortedMap<Hash, String>,
    /// Number of groups that this node has given numbers to.
    groups: u32,
}

/// Collective that some member of this node has entered.
#[derive(Debug)]
struct Collective {
    call: Call,
    /// Arrivals of the members of this node, by local rank, oldest first: a rank may have entered
    /// several times.
    entered: SortedMap<usize, Vec<Arrival>>,
    exchange: Option<Exchange>,
}

/// Exchange of the nodes' parts.
#[derive(Debug)]
struct Exchange {
    /// Arrivals of the members of this node whose clients wait.
    arrivals: Vec<Arrival>,
    /// Key of this node's part.
    key: String,
    /// Nodes whose parts have not come.
    missing: SortedSet<usize>,
    /// Sum of the parts that have come.
    sum: Part,
}

impl Collectives {
    /// Lets a client enter a collective, or the one that it has stopped waiting for. Returns those that are
    /// complete now, or the status if the client cannot enter.
    pub(super) fn enter(
        &mut self,
        node: &mut Node,
        call: Call,
        arrival: Arrival,
    ) -> Result<Vec<FinishedCall>, Status> {
        let local = arrival.caller.local;
        if call.members.binary_search(&node.rank(local)).is_err() {
            return Err(Status::BAD_PARAM);
        }
        let hash = Hash::compute(&call);
        let exchange = self.active.get_mut(&hash).and_then(|active| active.exchange.as_mut());
        if let Some(exchange) = exchange
            && exchange.arrivals.iter().all(|other| other.caller.local != local)
        {
            exchange.arrivals.push(arrival);
            return Ok(Vec::new());
        }
        let is_counted = self.counts.contains_key(&hash) || self.counts.len() < COUNTED_MAX;
        let entered: usize = self.active.values().map(|active| active.entered_by(local)).sum();
        let fits = call.id.len() <= ID_MAX && arrival.shared.len() <= SHARED_MAX;
        if !is_counted || !fits || entered >= ENTERED_MAX {
            return Err(Status::OUT_OF_RESOURCE);
        }
        let active = self.active.get_or_insert_with(hash, || Collective::new(node, call));
        active.entered.get_or_insert_with(local, Vec::new).push(arrival);
        Ok(self.advance(node, hash))
    }

    /// Takes a part that was read. Returns the collectives that are complete now.
    pub(super) fn value(
        &mut self,
        node: &mut Node,
        read: u64,
        value: Option<&[u8]>,
    ) -> Vec<FinishedCall> {
        let Some((hash, from)) = self.reads.remove(&read) else { return Vec::new() };
        let Some(active) = self.active.get_mut(&hash) else { return Vec::new() };
        let Some(exchange) = &mut active.exchange else { return Vec::new() };
        exchange.missing.remove(&from);
        add_part(&mut exchange.sum, decode_part(value.unwrap_or_default()));
        if !exchange.missing.is_empty() {
            return Vec::new();
        }
        let mut finished = Vec::new();
        if let Some(Exchange { arrivals, key, sum, .. }) = active.exchange.take() {
            let call = active.call.clone();
            self.remove_parts(node, hash, &call, key);
            finished.push(FinishedCall { call, arrivals, result: sum });
        }
        finished.append(&mut self.advance(node, hash));
        finished
    }

    /// Remembers the key of this node's part in a construction, and removes the part once the members
    /// have destroyed the group: then all nodes have read it.
    fn remove_parts(&mut self, node: &mut Node, hash: Hash, call: &Call, key: String) {
        if call.kind == Kind::Construct {
            self.constructed.insert(hash, key);
        } else if call.kind == Kind::Destruct {
            let construction = Hash::compute(&Call { kind: Kind::Construct, ..call.clone() });
            if let Some(key) = self.constructed.remove(&construction) {
                node.put(key, Vec::new());
            }
        }
    }

    /// Takes notice that a local rank has ended. Returns the collectives that have failed by this.
    pub(super) fn rank_ended(&mut self, node: &mut Node, local: usize) -> Vec<FinishedCall> {
        let with_rank =
            self.active.iter().filter(|(_, active)| active.entered.contains_key(&local));
        let hashes: Vec<Hash> = with_rank.map(|(&hash, _)| hash).collect();
        let mut finished = Vec::new();
        for hash in hashes {
            finished.append(&mut self.advance(node, hash));
        }
        finished
    }

    /// Forgets arrivals whose connection is closed, unless the nodes exchange their parts already.
    pub(super) fn withdraw(&mut self, connection: ConnectionId) {
        self.active.retain(|_, active| {
            for arrivals in active.entered.values_mut() {
                arrivals.retain(|arrival| arrival.caller.connection != connection);
            }
            active.is_entered()
        });
    }

    /// Removes and returns the clients that no longer wait. A rank whose node exchanges its part already
    /// has still arrived.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Caller> {
        let mut expired = Vec::new();
        let mut still_waits = |arrival: &Arrival| {
            let is_over = arrival.deadline.is_some_and(|deadline| deadline <= now);
            if is_over {
                expired.push(arrival.caller);
            }
            !is_over
        };
        self.active.retain(|_, active| {
            active.entered.values_mut().for_each(|arrivals| arrivals.retain(&mut still_waits));
            if let Some(exchange) = &mut active.exchange {
                exchange.arrivals.retain(&mut still_waits);
            }
            active.is_entered()
        });
        expired
    }

    /// Returns the time at which a client no longer waits.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for active in self.active.values() {
            let exchanged = active.exchange.as_ref().map(|exchange| &exchange.arrivals);
            for arrivals in active.entered.values().chain(exchanged) {
                for deadline in arrivals.iter().filter_map(|arrival| arrival.deadline) {
                    next = Some(next.map_or(deadline, |next| next.min(deadline)));
                }
            }
        }
        next
    }

    /// Starts the collective if all members of this node have entered it, as often as they have. Returns
    /// those that are complete at once.
    fn advance(&mut self, node: &mut Node, hash: Hash) -> Vec<FinishedCall> {
        let mut finished = Vec::new();
        while let Some(active) = self.active.get_mut(&hash) {
            if active.exchange.is_some() {
                break;
            }
            if active.entered.values().all(Vec::is_empty) {
                self.active.remove(&hash);
                break;
            }
            let Some(is_whole) = active.is_whole(node) else { break };
            let call = active.call.clone();
            let (arrivals, shared) = active.take_arrivals(node);
            let number = self.counts.get_or_insert_with(hash, || 0);
            let prefix = format!("pmix:grp:{:032x}:{number}:", hash.0);
            *number += 1;
            let mut sum = if is_whole {
                Ok(Group { context: self.context(node, &call), shared })
            } else {
                Err(Status::PROC_ABORTED)
            };
            let encoded = encode_part(&mut sum);
            let missing = call.other_nodes(node);
            if missing.is_empty() {
                finished.push(FinishedCall { call, arrivals, result: sum });
                continue;
            }
            let key = format!("{prefix}{}", node.layout().here);
            node.put(key.clone(), encoded);
            for &other in missing.keys() {
                let read = node.get(Family::Pmix, format!("{prefix}{other}"), true);
                self.reads.insert(read, (hash, other));
            }
            if let Some(active) = self.active.get_mut(&hash) {
                active.exchange = Some(Exchange { arrivals, key, missing, sum });
            }
        }
        finished
    }

    /// Returns a number for a group, or 0 if another node gives it: the node of the lowest member does.
    /// The upper half of the number is that of the node plus 1, so no two groups of the job have the same,
    /// and none has 0, which is the number of `MPI_COMM_WORLD`.
    fn context(&mut self, node: &Node, call: &Call) -> u64 {
        let first = call.members.first().and_then(|&rank| node.node_of(rank));
        let here = node.layout().here;
        if call.kind != Kind::Construct || first != Some(here) {
            return 0;
        }
        self.groups = self.groups.wrapping_add(1);
        ((here as u64 + 1) << 32) | u64::from(self.groups)
    }
}

impl Call {
    /// Returns the numbers of the other nodes that have members.
    fn other_nodes(&self, node: &Node) -> SortedSet<usize> {
        let nodes = self.members.iter().filter_map(|&rank| node.node_of(rank));
        nodes.filter(|&other| other != node.layout().here).map(|other| (other, ())).collect()
    }
}

impl Collective {
    fn new(node: &Node, call: Call) -> Collective {
        let here = node.layout().ranks_here().iter().enumerate();
        let is_member = |rank: &u32| call.members.binary_search(rank).is_ok();
        let members = here.filter(|(_, rank)| is_member(rank));
        let entered = members.map(|(local, _)| (local, Vec::new())).collect();
        Collective { call, entered, exchange: None }
    }

    /// Returns how often a local rank has entered the collective without its completion.
    fn entered_by(&self, local: usize) -> usize {
        let exchanged = usize::from(self.exchange.is_some());
        self.entered.get(&local).map_or(0, |arrivals| arrivals.len() + exchanged)
    }

    /// Tells whether members of this node have entered the collective without its completion.
    fn is_entered(&self) -> bool {
        self.exchange.is_some() || !self.entered.values().all(Vec::is_empty)
    }

    /// Tells whether all members of this node have arrived: `Some(false)` if they never will because one
    /// has ended, `None` if some are missing.
    fn is_whole(&self, node: &Node) -> Option<bool> {
        let mut missing = self.entered.iter().filter(|(_, arrivals)| arrivals.is_empty());
        if missing.clone().any(|(&local, _)| !node.is_alive(local)) {
            return Some(false);
        }
        missing.next().is_none().then_some(true)
    }

    /// Removes the oldest arrival of each member. Returns them, and the infos that they share, by rank.
    fn take_arrivals(&mut self, node: &Node) -> (Vec<Arrival>, SortedMap<u32, Vec<u8>>) {
        let mut arrivals = Vec::new();
        let mut shared = SortedMap::default();
        for entered in self.entered.values_mut().filter(|entered| !entered.is_empty()) {
            let mut arrival = entered.remove(0);
            let rank = node.rank(arrival.caller.local);
            shared.insert(rank, std::mem::take(&mut arrival.shared));
            arrivals.push(arrival);
        }
        (arrivals, shared)
    }
}

/// Hash of a [`Call`], equal on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Hash(u128);

impl Hash {
    /// Computes a hash, FNV-1a of 128 bits.
    fn compute(call: &Call) -> Hash {
        const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let mut hash = OFFSET;
        let mut add = |bytes: &[u8]| {
            for &byte in bytes {
                hash = (hash ^ u128::from(byte)).wrapping_mul(PRIME);
            }
        };
        add(&[call.kind as u8]);
        add(&call.run.to_be_bytes());
        add(&(call.members.len() as u64).to_be_bytes());
        for member in &call.members {
            add(&member.to_be_bytes());
        }
        add(&call.id);
        Hash(hash)
    }
}

/// Maximum size in bytes of a part: that of a stored value.
const PART_MAX: usize = 64 * 1024;

/// First byte of a part of a node whose members have all arrived.
const WHOLE: u8 = 1;

/// First byte of a part of a node whose members cannot take part.
const FAILED: u8 = 0;

/// Maximum size in bytes of the infos of all groups that are remembered. Open MPI shares 50 bytes for
/// each member, and may ask for them as long as the program runs.
const REMEMBERED_MAX: usize = 64 * 1024 * 1024;

/// Bytes that each member costs beside its infos: an estimate.
const MEMBER_COST: usize = 64;

/// Directive of an info that tells apart values with the same key.
const QUALIFIER: u32 = 8;

/// Information that the members of a group share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    /// Number of the group, 0 if it is not known here.
    pub(super) context: u64,
    /// Infos that each member shares with the others, encoded one after the other, by rank.
    pub(super) shared: SortedMap<u32, Vec<u8>>,
}

/// Group, as far as some nodes know it, or the reason why it is not formed.
pub(super) type Part = Result<Group, Status>;

/// Adds the part of another node.
fn add_part(sum: &mut Part, part: Part) {
    match (&mut *sum, part) {
        (Ok(group), Ok(part)) => {
            group.context = group.context.max(part.context);
            for (rank, shared) in part.shared.into_entries() {
                group.shared.insert(rank, shared);
            }
        }
        (Ok(_), failed @ Err(_)) => *sum = failed,
        (Err(_), _) => {}
    }
}

/// Encodes a part. It becomes a failure if it is too long.
fn encode_part(part: &mut Part) -> Vec<u8> {
    let encoded = encode_any(part);
    if encoded.len() <= PART_MAX {
        return encoded;
    }
    *part = Err(Status::OUT_OF_RESOURCE);
    encode_any(part)
}

fn encode_any(part: &Part) -> Vec<u8> {
    let mut writer = Writer::new();
    match part {
        Ok(group) => {
            writer.u8(WHOLE).raw(&group.context.to_be_bytes());
            for (&rank, shared) in group.shared.iter() {
                writer.u32(rank).byte_object(shared);
            }
        }
        Err(status) => {
            writer.u8(FAILED).i32(status.0);
        }
    }
    writer.into_bytes()
}

/// Decodes a part. One that is malformed or missing is a failure.
fn decode_part(encoded: &[u8]) -> Part {
    decode_any(encoded).unwrap_or(Err(Status::PROC_ABORTED))
}

fn decode_any(encoded: &[u8]) -> Result<Part, DecodeError> {
    let mut reader = Reader::new(encoded);
    if reader.u8()? != WHOLE {
        return Ok(Err(Status(reader.i32()?)));
    }
    let mut group = Group { context: reader.u64()?, shared: SortedMap::default() };
    while !reader.is_at_end() {
        let rank = reader.u32()?;
        group.shared.insert(rank, reader.byte_object()?.to_vec());
    }
    Ok(Ok(group))
}

/// Groups whose members may still ask for the infos of the others.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Infos of the members, by number of the group and by rank.
    shared: SortedMap<u64, SortedMap<u32, Vec<u8>>>,
    /// Numbers of the groups, oldest first.
    order: Vec<u64>,
    /// Size in bytes of all infos.
    size: usize,
}

impl Groups {
    /// Remembers a group. Forgets the oldest if there are too many.
    pub(super) fn insert(&mut self, group: Group) {
        if group.context == 0 || self.shared.contains_key(&group.context) {
            return;
        }
        self.size += cost(&group.shared);
        self.shared.insert(group.context, group.shared);
        self.order.push(group.context);
        while self.size > REMEMBERED_MAX
            && let Some(&oldest) = self.order.first()
        {
            self.order.remove(0);
            self.size -= self.shared.remove(&oldest).map_or(0, |shared| cost(&shared));
        }
    }

    /// Returns the infos that a member shares with the others of a group, as items that are keys and
    /// values.
    pub(super) fn find(&self, context: u64, rank: u32) -> Option<Vec<u8>> {
        let mut reader = Reader::new(self.shared.get(&context)?.get(&rank)?);
        let mut writer = Writer::new();
        while !reader.is_at_end() {
            let info = reader.info().ok()?;
            writer.qualified(info.encoded, |writer| {
                writer.info("pmix.grp.ctxid", QUALIFIER, Item::Size(context));
            });
        }
        let items = writer.into_bytes();
        (!items.is_empty()).then_some(items)
    }
}

fn cost(shared: &SortedMap<u32, Vec<u8>>) -> usize {
    shared.values().map(|shared| shared.len() + MEMBER_COST).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(context: u64, shared: &[(u32, &[u8])]) -> Group {
        let shared = shared.iter().map(|&(rank, shared)| (rank, shared.to_vec())).collect();
        Group { context, shared }
    }

    #[test]
    fn parts_are_encoded_and_decoded() {
        for part in [
            Ok(group(1 << 40, &[(3, b"abc"), (4, b"")])),
            Ok(group(0, &[])),
            Err(Status::PROC_ABORTED),
            Err(Status(-1234)),
        ] {
            let encoded = encode_part(&mut part.clone());
            assert_eq!(decode_part(&encoded), part);
            assert!(!encoded.is_empty());
        }
        for malformed in [&b""[..], &[1, 0], &[0, 0], &[1, 0, 0, 0, 0, 0, 0, 0, 0, 7]] {
            assert_eq!(decode_part(malformed), Err(Status::PROC_ABORTED));
        }
    }

    #[test]
    fn a_part_that_is_too_long_is_a_failure() {
        let mut part = Ok(group(1, &[(0, &[0; 40_000]), (1, &[0; 40_000])]));
        let encoded = encode_part(&mut part);
        assert_eq!(part, Err(Status::OUT_OF_RESOURCE));
        assert_eq!(decode_part(&encoded), Err(Status::OUT_OF_RESOURCE));
    }

    #[test]
    fn parts_are_added() {
        let mut sum = Ok(group(0, &[(1, b"a")]));
        add_part(&mut sum, Ok(group(9, &[(2, b"b")])));
        add_part(&mut sum, Ok(group(0, &[(3, b"c")])));
        assert_eq!(sum, Ok(group(9, &[(1, b"a"), (2, b"b"), (3, b"c")])));
        add_part(&mut sum, Err(Status::PROC_ABORTED));
        add_part(&mut sum, Err(Status::OUT_OF_RESOURCE));
        add_part(&mut sum, Ok(group(9, &[])));
        assert_eq!(sum, Err(Status::PROC_ABORTED));
    }

    #[test]
    fn infos_are_found_by_group_and_rank() {
        let mut shared = Writer::new();
        shared.info("pmix.grp.lclid", 0, Item::Size(3));
        let shared = shared.into_bytes();
        let mut groups = Groups::default();
        groups.insert(group(5, &[(1, &shared), (2, b"")]));
        groups.insert(group(5, &[(1, b"x")]));
        groups.insert(group(0, &[(1, &shared)]));
        let items = groups.find(5, 1).unwrap();
        let mut reader = Reader::new(&items);
        reader.count(1).unwrap();
        assert_eq!(reader.string(), Ok(&b"pmix.qual.val"[..]));
        let infos = reader.value().unwrap().infos().unwrap();
        assert_eq!((infos[0].key, infos[0].value.integer()), (&b"pmix.grp.lclid"[..], Some(3)));
        assert_eq!((infos[1].key, infos[1].value.integer()), (&b"pmix.grp.ctxid"[..], Some(5)));
        assert!(infos[1].encoded.windows(4).any(|flags| flags == [0, 0, 0, 8]));
        assert!(reader.is_at_end());
        for (context, rank) in [(5, 2), (5, 3), (0, 1), (6, 1)] {
            assert_eq!(groups.find(context, rank), None);
        }
    }

    #[test]
    fn old_groups_are_forgotten() {
        let mut groups = Groups::default();
        let most = vec![0; REMEMBERED_MAX / 2];
        for context in 1..=3 {
            groups.insert(group(context, &[(0, &most)]));
        }
        assert_eq!(groups.shared.keys(), [3]);
        assert_eq!(groups.size, most.len() + MEMBER_COST);
    }
}
