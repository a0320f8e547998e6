//! Groups: the information that their members share, and the parts of it that nodes exchange.

use super::bfrops::{DecodeError, Item, Reader, Writer};
use super::status::Status;
use crate::sorted_map::SortedMap;

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
pub(super) fn add(sum: &mut Part, part: Part) {
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
pub(super) fn encode(part: &mut Part) -> Vec<u8> {
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
pub(super) fn decode(encoded: &[u8]) -> Part {
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
            let encoded = encode(&mut part.clone());
            assert_eq!(decode(&encoded), part);
            assert!(!encoded.is_empty());
        }
        for malformed in [&b""[..], &[1, 0], &[0, 0], &[1, 0, 0, 0, 0, 0, 0, 0, 0, 7]] {
            assert_eq!(decode(malformed), Err(Status::PROC_ABORTED));
        }
    }

    #[test]
    fn a_part_that_is_too_long_is_a_failure() {
        let mut part = Ok(group(1, &[(0, &[0; 40_000]), (1, &[0; 40_000])]));
        let encoded = encode(&mut part);
        assert_eq!(part, Err(Status::OUT_OF_RESOURCE));
        assert_eq!(decode(&encoded), Err(Status::OUT_OF_RESOURCE));
    }

    #[test]
    fn parts_are_added() {
        let mut sum = Ok(group(0, &[(1, b"a")]));
        add(&mut sum, Ok(group(9, &[(2, b"b")])));
        add(&mut sum, Ok(group(0, &[(3, b"c")])));
        assert_eq!(sum, Ok(group(9, &[(1, b"a"), (2, b"b"), (3, b"c")])));
        add(&mut sum, Err(Status::PROC_ABORTED));
        add(&mut sum, Err(Status::OUT_OF_RESOURCE));
        add(&mut sum, Ok(group(9, &[])));
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
