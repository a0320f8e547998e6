//! A port that paths begin at, and the memory that is shared with its peers.

use crate::fault;
use crate::path::Words;
use rlaunch_bootstrap::protocol::mesh::{BLOCK, EndAdvert, LocalPort, PathFault, ProofStep};
use rlaunch_verbs::{
    CompletionQueue, Context, Depth, Device, Listener, MemoryRegion, MrSlice, PortAttributes,
    ProtectionDomain, Resources, VerbsError,
};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// Blocks that are read at once, at most.
const PLACES: usize = 4;
/// Requests of a queue pair at once: two writes and a read; a beat later. Nothing is received, but
/// some devices make no queue pair without the room.
pub(crate) const DEPTH: Depth = Depth { send: 4, receive: 1, inline: 0 };
/// What a completion takes in its queue, in bytes.
const COMPLETION: u64 = 64;
const PAGE: usize = 4096;
/// Of a path's control words, each on a line of its own as processors cache it.
const LINE: usize = 64;
const TOKEN: usize = 0;
const ECHO: usize = 8;
pub(crate) const BEAT: usize = 16;

/// One of a node's ports in use.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) resources: Resources,
    region: MemoryRegion,
    layout: Layout,
    pub(crate) context: Arc<Context>,
    pub(crate) port: PortAttributes,
    /// By which peers find it: the port's GID, or the address that the connection manager has.
    gid: Option<Ipv6Addr>,
    pub(crate) local: LocalPort,
}

/// Where things are in an end's memory: for each path a line that its peer writes to, for each path
/// a line that own writes are sent from, the block that peers read, places for theirs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    paths: usize,
    pub(crate) places: usize,
}

impl Layout {
    pub(crate) fn of(paths: usize) -> Layout {
        Layout { paths, places: paths.clamp(1, PLACES) }
    }

    /// What the peer of a path writes to.
    pub(crate) fn control(self, place: usize) -> usize {
        LINE * place
    }

    fn sending(self, place: usize) -> usize {
        LINE * (self.paths + place)
    }

    pub(crate) fn block(self) -> usize {
        (2 * LINE * self.paths).next_multiple_of(PAGE)
    }

    fn place(self, index: usize) -> usize {
        self.block() + BLOCK * (1 + index)
    }

    pub(crate) fn size(self) -> usize {
        self.place(self.places)
    }
}

/// The block, word by word, of the end with this memory: it is nobody else's, and no two of its
/// words are alike.
fn pattern(address: u64, key: u32) -> impl Iterator<Item = [u8; 8]> {
    let mut word = address ^ (u64::from(key) << 32);
    let next = move || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word.to_le_bytes()
    };
    std::iter::repeat_with(next).take(BLOCK / 8)
}

impl End {
    /// Opens the device and makes what `paths` queue pairs of it need. The connection manager
    /// listens for peers from then on.
    pub(crate) fn open(
        local: &LocalPort,
        paths: usize,
        on_device: usize,
    ) -> Result<(End, Option<Listener>), PathFault> {
        let failed = |error: VerbsError| fault::of(ProofStep::Prepare, &error);
        let (context, listener) =
            opened(local, paths).map_err(|error| fault::of_opening(&local.device, &error))?;
        fault::unless_enough(&context, on_device)?;
        let port = context.port(local.port).map_err(failed)?;
        let gid = gid_of(&context, local).map_err(failed)?;
        let layout = Layout::of(paths);
        let domain = ProtectionDomain::allocate(&context).map_err(failed)?;
        let region = MemoryRegion::register(&domain, layout.size())
            .map_err(|error| fault::of_memory(&error, layout.size()))?;
        let completions = CompletionQueue::create(&context, completions_of(paths))
            .map_err(|error| fault::of_memory(&error, layout.size()))?;
        let resources = Resources { domain, completions, depth: DEPTH };
        let block: Vec<_> = pattern(region.address(), region.rkey()).collect();
        region.write(layout.block(), block.as_flattened());
        let end = End { resources, region, layout, context, port, gid, local: local.clone() };
        Ok((end, listener))
    }

    /// What peers must know of it.
    pub(crate) fn told(&self, end: u32, listener: Option<u16>) -> EndAdvert {
        EndAdvert {
            end,
            lid: self.port.lid,
            gid: self.gid,
            mtu: self.port.mtu.bytes(),
            address: self.region.address(),
            key: self.region.rkey(),
            block: u32::try_from(self.layout.block()).unwrap_or(u32::MAX),
            listener,
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Its memory and completion queue, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let completions = u64::from(completions_of(self.layout.paths)) * COMPLETION;
        self.region.size() as u64 + completions
    }

    fn word(&self, offset: usize) -> u64 {
        self.region.read_u64(offset).unwrap_or(0)
    }

    /// What the peer of a path has written.
    pub(crate) fn seen(&self, place: usize) -> Words {
        let at = self.layout.control(place);
        Words { token: self.word(at + TOKEN), echo: self.word(at + ECHO) }
    }

    /// How often the peer of a path has let it know.
    pub(crate) fn beats_seen(&self, place: usize) -> u64 {
        self.word(self.layout.control(place) + BEAT)
    }
}

/// What own requests are about.
impl End {
    /// The words to be written to the peer of a path.
    pub(crate) fn saying(&self, place: usize, words: Words) -> Result<MrSlice<'_>, VerbsError> {
        let at = self.layout.sending(place);
        self.region.write_u64(at + TOKEN, words.token);
        self.region.write_u64(at + ECHO, words.echo);
        self.region.slice(at + TOKEN, 16)
    }

    /// The beat to be written to it.
    pub(crate) fn beating(&self, place: usize, count: u64) -> Result<MrSlice<'_>, VerbsError> {
        let at = self.layout.sending(place) + BEAT;
        self.region.write_u64(at, count);
        self.region.slice(at, 8)
    }

    /// A place for a block, with nothing of an earlier one left in it.
    pub(crate) fn empty_place(&self, index: usize) -> Result<MrSlice<'_>, VerbsError> {
        let at = self.layout.place(index);
        self.region.fill(at, BLOCK, 0);
        self.region.slice(at, BLOCK)
    }

    /// Whether a place holds the block of the end with this memory.
    pub(crate) fn holds_block_of(&self, index: usize, address: u64, key: u32) -> bool {
        let mut came = vec![0; BLOCK];
        self.region.read(self.layout.place(index), &mut came);
        came.as_chunks::<8>().0.iter().copied().eq(pattern(address, key))
    }
}

/// The device, and what listens at it where the connection manager serves it.
fn opened(local: &LocalPort, paths: usize) -> Result<(Arc<Context>, Option<Listener>), VerbsError> {
    let Some(address) = local.cm_address else {
        return Ok((Device::by_name(&local.device)?.open()?, None));
    };
    // iWARP resets those who knock beyond that.
    let backlog = u32::try_from(paths).unwrap_or(u32::MAX);
    let listener = Listener::bind(SocketAddr::new(address, 0), backlog)?;
    Ok((listener.context().clone(), Some(listener)))
}

fn gid_of(context: &Context, local: &LocalPort) -> Result<Option<Ipv6Addr>, VerbsError> {
    match (local.cm_address, local.gid_index) {
        (Some(IpAddr::V4(v4)), _) => Ok(Some(v4.to_ipv6_mapped())),
        (Some(IpAddr::V6(v6)), _) => Ok(Some(v6)),
        (None, Some(index)) => Ok(context.gid(local.port, index)?.map(|entry| entry.value)),
        (None, None) => Ok(None),
    }
}

fn completions_of(paths: usize) -> u32 {
    let each = DEPTH.send + DEPTH.receive;
    u32::try_from(paths).unwrap_or(u32::MAX).saturating_mul(each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_the_memory_overlaps() {
        for paths in [1, 3, 32, 128, 4096] {
            let layout = Layout::of(paths);
            let mut parts = Vec::new();
            for place in 0..paths {
                parts.push((layout.control(place), LINE));
                parts.push((layout.sending(place), LINE));
            }
            parts.push((layout.block(), BLOCK));
            parts.extend((0..layout.places).map(|index| (layout.place(index), BLOCK)));
            parts.sort_unstable();
            assert!(parts.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "{paths}");
            assert!(parts.last().is_some_and(|last| last.0 + last.1 <= layout.size()));
        }
        assert!(Layout::of(128).size() < 128 * (8 << 10), "leaves room for queue pairs");
    }

    #[test]
    fn every_end_has_a_block_of_its_own() {
        let one: Vec<_> = pattern(0x7f00_0000, 17).collect();
        let other: Vec<_> = pattern(0x7f00_0000, 18).collect();
        assert_eq!((one.as_flattened().len(), other.as_flattened().len()), (BLOCK, BLOCK));
        assert_ne!(one, other);
        assert_ne!(one[0], one[1]);
    }
}
