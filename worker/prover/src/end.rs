//! A local end of paths: one port, and the registered memory that its peers read and write.
//!
//! ```text
//! control line of slot 0 │ … │ send line of slot 0 │ … │ pad │ block │ measured │ read buffer 0 │ …
//! ```
//!
//! Each path has a slot, with two cache lines. The peer writes its tokens and heartbeats to the
//! *control line*; tokens and heartbeats for the peer are written from the *send line*. Peers read
//! the *block*; their blocks are read into the *read buffers*, which the paths share. The
//! *measured* memory, in rounds that measure, is written to that of the peers.
//!
//! A [`Link`] is a path with a connected queue pair.

use crate::fault;
use crate::machine::Tokens;
use rlaunch_bootstrap::protocol::mesh::{
    BLOCK, LocalPort, MeshPath, PathAdvert, PathFault, PortAdvert, ProofStep,
};
use rlaunch_verbs::{
    Completion, CompletionQueue, Connected, Context, Depth, Device, Listener, MemoryRegion,
    MrSlice, PortAttributes, ProtectionDomain, QueuePair, RemoteAddr, Resources, VerbsError,
};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// Maximum number of blocks that are read at the same time.
const MAX_READ_BUFFERS: usize = 4;
/// Capacities of a queue pair. While a path is proved, two writes and a read are outstanding; while
/// it is watched, a heartbeat. Nothing is received, but some devices reject a queue pair without
/// receives.
pub(crate) const DEPTH: Depth = Depth { send: 4, receive: 1, inline: 0 };
/// Size of a completion queue entry, in bytes.
const COMPLETION: u64 = 64;
/// Size of the measured memory, in bytes: so much that the writes that a queue pair takes are more
/// than is on the way at 400 Gb/s, and little beside a limit of 8 MiB for locked memory.
pub(crate) const MEASURED: usize = 512 << 10;
const PAGE: usize = 4096;
/// Size of a control line and of a send line, in bytes.
const CACHE_LINE: usize = 64;
/// Offsets of token, echo and heartbeat in a control line and in a send line, in bytes.
const TOKEN: usize = 0;
const ECHO: usize = 8;
pub(crate) const BEAT: usize = 16;

/// Opened port of this node, with its memory and its completion queue.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) resources: Resources,
    region: MemoryRegion,
    layout: Layout,
    pub(crate) context: Arc<Context>,
    pub(crate) port: PortAttributes,
    /// Address for peers: the port's GID, or for the connection manager the IP address that it
    /// listens at.
    gid: Option<Ipv6Addr>,
    pub(crate) local: LocalPort,
}

/// Layout of an end's memory, with offsets in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    paths: usize,
    pub(crate) read_buffers: usize,
    /// Whether there is measured memory.
    measures: bool,
}

impl Layout {
    pub(crate) fn new(paths: usize, measures: bool) -> Layout {
        Layout { paths, read_buffers: paths.clamp(1, MAX_READ_BUFFERS), measures }
    }

    pub(crate) fn control_offset(self, slot: usize) -> usize {
        CACHE_LINE * slot
    }

    fn send_offset(self, slot: usize) -> usize {
        CACHE_LINE * (self.paths + slot)
    }

    pub(crate) fn block_offset(self) -> usize {
        (2 * CACHE_LINE * self.paths).next_multiple_of(PAGE)
    }

    fn read_buffer(self, index: usize) -> usize {
        let measured = if self.measures { MEASURED } else { 0 };
        self.block_offset() + BLOCK + measured + BLOCK * index
    }

    pub(crate) fn size(self) -> usize {
        self.read_buffer(self.read_buffers)
    }
}

/// Generates the words of the block in the memory with this address and rkey. Different ends have
/// different blocks, and the words of a block differ from each other.
fn pattern(address: u64, key: u32) -> impl Iterator<Item = [u8; 8]> {
    let mut word = address ^ (u64::from(key) << 32);
    let next = move || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word.to_le_bytes()
    };
    std::iter::repeat_with(next).take(BLOCK / 8)
}

impl End {
    /// Opens the device, and allocates memory and a completion queue for `paths` queue pairs. If
    /// the connection manager serves the end, returns a listener as well. `on_device` is the number
    /// of queue pairs that all ends on the same device need together; `measures` adds the measured
    /// memory.
    pub(crate) fn open(
        local: &LocalPort,
        paths: usize,
        on_device: usize,
        measures: bool,
    ) -> Result<(End, Option<Listener>), PathFault> {
        let failed = |error: VerbsError| fault::from_verbs(ProofStep::Prepare, &error);
        let (context, listener) =
            open_device(local, paths).map_err(|error| fault::opening(&local.device, &error))?;
        fault::check_queue_pairs(&context, on_device)?;
        let port = context.port(local.port).map_err(failed)?;
        let gid = advertised_gid(&context, local).map_err(failed)?;
        let layout = Layout::new(paths, measures);
        let domain = ProtectionDomain::allocate(&context).map_err(failed)?;
        let region = MemoryRegion::register(&domain, layout.size())
            .map_err(|error| fault::memory(&error, layout.size()))?;
        let completions = CompletionQueue::create(&context, queue_entries(paths))
            .map_err(|error| fault::memory(&error, layout.size()))?;
        let resources = Resources { domain, completions, depth: DEPTH };
        let block: Vec<_> = pattern(region.address(), region.rkey()).collect();
        region.write(layout.block_offset(), block.as_flattened());
        let end = End { resources, region, layout, context, port, gid, local: local.clone() };
        Ok((end, listener))
    }

    /// Returns the data that peers need of this end. The number `end` is this end's index in the
    /// round.
    pub(crate) fn advert(&self, end: u32, listener: Option<u16>) -> PortAdvert {
        PortAdvert {
            port_index: end,
            lid: self.port.lid,
            gid: self.gid,
            mtu: self.port.mtu.bytes(),
            address: self.region.address(),
            key: self.region.rkey(),
            block: u32::try_from(self.layout.block_offset()).unwrap_or(u32::MAX),
            listener,
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the size of this end's memory and completion queue together, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let completions = u64::from(queue_entries(self.layout.paths)) * COMPLETION;
        self.region.size() as u64 + completions
    }

    fn word(&self, offset: usize) -> u64 {
        self.region.read_u64(offset).unwrap_or(0)
    }

    /// Returns the tokens that the peer of a path has written.
    pub(crate) fn tokens_received(&self, slot: usize) -> Tokens {
        let at = self.layout.control_offset(slot);
        Tokens { token: self.word(at + TOKEN), echo: self.word(at + ECHO) }
    }

    /// Returns the number of the last heartbeat that the peer of a path has written.
    pub(crate) fn beats_received(&self, slot: usize) -> u64 {
        self.word(self.layout.control_offset(slot) + BEAT)
    }
}

/// Sources and targets of work requests.
impl End {
    /// Stores tokens in a path's send line, and returns the range to write to the peer.
    pub(crate) fn set_tokens(
        &self,
        slot: usize,
        tokens: Tokens,
    ) -> Result<MrSlice<'_>, VerbsError> {
        let at = self.layout.send_offset(slot);
        self.region.write_u64(at + TOKEN, tokens.token);
        self.region.write_u64(at + ECHO, tokens.echo);
        self.region.slice(at + TOKEN, 16)
    }

    /// Stores a heartbeat in a path's send line, and returns the range to write to the peer.
    pub(crate) fn set_beat(&self, slot: usize, count: u64) -> Result<MrSlice<'_>, VerbsError> {
        let at = self.layout.send_offset(slot) + BEAT;
        self.region.write_u64(at, count);
        self.region.slice(at, 8)
    }

    /// Returns the measured memory. Fails if there is none.
    pub(crate) fn measured(&self) -> Result<MrSlice<'_>, VerbsError> {
        self.region.slice(self.layout.block_offset() + BLOCK, MEASURED)
    }

    /// Clears a read buffer, so that a block read earlier cannot pass for the next, and returns it.
    pub(crate) fn clear_read_buffer(&self, index: usize) -> Result<MrSlice<'_>, VerbsError> {
        let at = self.layout.read_buffer(index);
        self.region.fill(at, BLOCK, 0);
        self.region.slice(at, BLOCK)
    }

    /// Tells whether a read buffer contains the block of the memory with this address and rkey.
    pub(crate) fn holds_block_of(&self, index: usize, address: u64, key: u32) -> bool {
        let mut block = vec![0; BLOCK];
        self.region.read(self.layout.read_buffer(index), &mut block);
        block.as_chunks::<8>().0.iter().copied().eq(pattern(address, key))
    }
}

/// Opens the device of an end, and a listener if the connection manager serves the end.
fn open_device(
    local: &LocalPort,
    paths: usize,
) -> Result<(Arc<Context>, Option<Listener>), VerbsError> {
    let Some(address) = local.cm_address else {
        return Ok((Device::by_name(&local.device)?.open()?, None));
    };
    // iWARP resets connect requests that exceed the backlog.
    let backlog = u32::try_from(paths).unwrap_or(u32::MAX);
    let listener =
        Listener::bind(SocketAddr::new(address, 0), backlog)?.require_device(&local.device)?;
    Ok((listener.context().clone(), Some(listener)))
}

fn advertised_gid(context: &Context, local: &LocalPort) -> Result<Option<Ipv6Addr>, VerbsError> {
    match (local.cm_address, local.gid_index) {
        (Some(IpAddr::V4(v4)), _) => Ok(Some(v4.to_ipv6_mapped())),
        (Some(IpAddr::V6(v6)), _) => Ok(Some(v6)),
        (None, Some(index)) => Ok(context.gid(local.port, index)?.map(|entry| entry.value)),
        (None, None) => Ok(None),
    }
}

fn queue_entries(paths: usize) -> u32 {
    let each = DEPTH.send + DEPTH.receive;
    u32::try_from(paths).unwrap_or(u32::MAX).saturating_mul(each)
}

/// This node's end of a path with a connected queue pair.
#[derive(Debug)]
pub(crate) struct Link {
    pair: QueuePair<Connected>,
    pub(crate) path: MeshPath,
    /// Slot of the path in the memory of `end`.
    pub(crate) slot: usize,
    peer: RemoteMemory,
    /// Path MTU in bytes; `None` if the connection manager chose it.
    pub(crate) mtu: Option<u32>,
    pub(crate) end: Arc<End>,
}

/// Memory of the peer's end, and the offsets of the parts of it that one path uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteMemory {
    address: u64,
    key: u32,
    /// Offset of the path's control line, in bytes.
    control: u64,
    /// Offset of the block, in bytes.
    block: u64,
}

impl RemoteMemory {
    pub(crate) fn new(end: &PortAdvert, path: &PathAdvert) -> RemoteMemory {
        let (control, block) = (path.control.into(), end.block.into());
        RemoteMemory { address: end.address, key: end.key, control, block }
    }

    fn at(self, offset: u64) -> RemoteAddr {
        RemoteAddr::new(self.address.wrapping_add(offset), self.key)
    }
}

/// Kind of a work request, encoded in its id together with the path's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Tokens,
    Read,
    Beat,
    Measured,
}

const REQUESTS: [Request; 4] = [Request::Tokens, Request::Read, Request::Beat, Request::Measured];

impl Request {
    fn id(self, slot: usize) -> u64 {
        slot as u64 * REQUESTS.len() as u64 + self as u64
    }

    /// Returns the slot and the kind of the work request that has completed.
    pub(crate) fn from_completion(completion: &Completion) -> (usize, Request) {
        let (id, kinds) = (completion.id(), REQUESTS.len() as u64);
        ((id / kinds) as usize, REQUESTS[(id % kinds) as usize])
    }
}

impl Link {
    pub(crate) fn new(
        pair: QueuePair<Connected>,
        path: MeshPath,
        slot: usize,
        end: Arc<End>,
        peer: RemoteMemory,
        mtu: Option<u32>,
    ) -> Link {
        Link { pair, path, slot, peer, mtu, end }
    }

    /// Writes tokens to the peer's control line.
    pub(crate) fn write(&self, tokens: Tokens) -> Result<(), VerbsError> {
        let from = self.end.set_tokens(self.slot, tokens)?;
        self.pair.write(Request::Tokens.id(self.slot), from, self.peer.at(self.peer.control))
    }

    /// Reads the peer's block into a read buffer.
    pub(crate) fn read(&self, into: usize) -> Result<(), VerbsError> {
        let into = self.end.clear_read_buffer(into)?;
        self.pair.read(Request::Read.id(self.slot), into, self.peer.at(self.peer.block))
    }

    /// Writes the measured memory to that of the peer, which has it behind its block.
    pub(crate) fn write_measured(&self) -> Result<(), VerbsError> {
        let to = self.peer.at(self.peer.block + BLOCK as u64);
        self.pair.write(Request::Measured.id(self.slot), self.end.measured()?, to)
    }

    /// Tells whether a read buffer contains the peer's block unchanged.
    pub(crate) fn is_intact(&self, buffer: usize) -> bool {
        self.end.holds_block_of(buffer, self.peer.address, self.peer.key)
    }

    /// Writes a heartbeat to the peer's control line.
    pub(crate) fn beat(&self, count: u64) -> Result<(), VerbsError> {
        let from = self.end.set_beat(self.slot, count)?;
        let to = self.peer.at(self.peer.control + BEAT as u64);
        self.pair.write(Request::Beat.id(self.slot), from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_the_memory_overlaps() {
        for (paths, measures) in
            [1, 3, 32, 128, 4096].into_iter().zip([true, false].into_iter().cycle())
        {
            let layout = Layout::new(paths, measures);
            let mut parts = Vec::new();
            for slot in 0..paths {
                parts.push((layout.control_offset(slot), CACHE_LINE));
                parts.push((layout.send_offset(slot), CACHE_LINE));
            }
            parts.push((layout.block_offset(), BLOCK + if measures { MEASURED } else { 0 }));
            parts.extend((0..layout.read_buffers).map(|index| (layout.read_buffer(index), BLOCK)));
            parts.sort_unstable();
            assert!(parts.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "{paths}");
            assert!(parts.last().is_some_and(|last| last.0 + last.1 <= layout.size()));
        }
        assert!(Layout::new(128, false).size() < 128 * (8 << 10), "leaves room for queue pairs");
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
