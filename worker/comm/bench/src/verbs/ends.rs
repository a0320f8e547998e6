//! Queue pairs and memory of this rank, connected with those of the peer.

use super::VerbsBenchError;
use super::connect::{Advert, Connecting, DEADLINE, EndOptions, ProvedPath};
use super::send_queue::receive_id;
use crate::matrix;
use rlaunch_bootstrap::bench::VerbsOperation;
use rlaunch_bootstrap::rank_table::{RankTable, Transport};
use rlaunch_comm::Communicator;
use rlaunch_verbs::{
    CompletionQueue, Connected, Context, Depth, MemoryRegion, MrSlice, ProtectionDomain, QueuePair,
    RemoteAddr, Resources, VerbsError,
};
use std::fs;
use std::sync::Arc;
use std::time::Instant;

/// Alignment of buffers in bytes.
const PAGE: usize = 4096;
/// Size of a counter of credits in bytes.
const COUNTER: usize = 8;
/// Number of receives that are posted at once, as in perftest.
const RECEIVES: u32 = 512;

/// Positions in the memory of an end, in bytes. They are the same at both ends.
///
/// Each queue pair has a buffer to send from and one to receive into. Behind them there is one for
/// the last message of each queue pair, which the peer recognises, if there are sends. At the end,
/// each queue pair has the count of messages received by this rank, and the peer's, which the peer
/// writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    buffer: usize,
    qps: usize,
    has_last: bool,
}

impl Layout {
    fn new(bytes: usize, qps: usize, has_last: bool) -> Layout {
        Layout { buffer: bytes.max(1).next_multiple_of(PAGE), qps, has_last }
    }

    pub(super) fn output(self, qp: usize) -> usize {
        2 * qp * self.buffer
    }

    pub(super) fn input(self, qp: usize) -> usize {
        self.output(qp) + self.buffer
    }

    /// Returns the position of the last message of a queue pair.
    pub(super) fn last_output(self, qp: usize) -> usize {
        if self.has_last { self.output(self.qps) } else { self.output(qp) }
    }

    /// Returns the position of the count of messages that this rank has received.
    pub(super) fn received(self, qp: usize) -> usize {
        self.output(self.qps) + usize::from(self.has_last) * self.buffer + 2 * COUNTER * qp
    }

    /// Returns the position of the count of messages that the peer has received.
    pub(super) fn peer_received(self, qp: usize) -> usize {
        self.received(qp) + COUNTER
    }

    fn size(self) -> usize {
        self.received(self.qps)
    }

    /// Fails if the buffers need more than half of this host's free memory, because they are locked.
    fn check_memory(self) -> Result<(), VerbsBenchError> {
        let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
        let kibibytes = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
        let (needed, free) = (self.size() as u64, kibibytes.unwrap_or(u64::MAX >> 10) << 10);
        if needed > free / 2 { Err(VerbsBenchError::Memory { needed, free }) } else { Ok(()) }
    }
}

/// Messages of streams over a queue pair since it was connected.
///
/// Counters are never set back, because a count that the peer has written may arrive late.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Carried {
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Number of received messages of which the peer was told.
    pub(super) credited: u64,
}

/// Connected queue pairs of this rank.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) pairs: Vec<QueuePair<Connected>>,
    pub(super) completions: Arc<CompletionQueue>,
    pub(super) region: MemoryRegion,
    pub(super) layout: Layout,
    /// Address of the peer's memory, and its key.
    remote: (u64, u32),
    pub(super) depth: u32,
    /// Maximum size of a message in bytes.
    bytes: usize,
    /// Number of receives of each queue pair; 0 if messages do not fill receives.
    pub(super) receives: u32,
    /// Whether a sender waits until the peer has posted receives. RoCE and InfiniBand repeat a
    /// message that comes too early; iWARP, which only the connection manager connects, closes the
    /// connection.
    pub(super) has_credits: bool,
    /// Messages of streams over each queue pair since it was connected.
    pub(super) carried: Vec<Carried>,
    /// MTU of the connections in bytes; `None` if the connection manager chooses it.
    pub(super) mtu: Option<u32>,
    /// Maximum number of outstanding reads of a queue pair.
    pub(super) reads: u8,
    /// Device and port of each rank.
    pub(super) ports: [String; 2],
    pub(super) by_manager: bool,
}

impl Ends {
    /// Connects with the peer, which calls this function with equal options at the same time.
    pub(super) fn connect(
        comm: &Communicator,
        table: &RankTable,
        options: EndOptions,
    ) -> Result<Ends, VerbsBenchError> {
        let path = ProvedPath::between(table, comm.rank())?;
        let (context, listener) = path.open(options.qps)?;
        let by_manager = listener.is_some();
        if by_manager && options.mtu.is_some() {
            return Err(VerbsBenchError::Mtu(path.own.device.clone()));
        }
        let domain = ProtectionDomain::allocate(&context)?;
        let is_send = options.operation == VerbsOperation::Send;
        let receives = if is_send { RECEIVES } else { 0 };
        let has_credits = is_send && path.own.transport == Transport::Iwarp;
        let depth = Depth {
            // With credits, one request more tells the peer how many messages were received.
            send: options.depth + u32::from(has_credits),
            receive: receives.max(1),
            inline: 0,
        };
        let completions = completion_queue(&context, options.qps, depth)?;
        let layout = Layout::new(options.bytes, options.qps, is_send);
        layout.check_memory()?;
        // The peer's counts of messages are watched, too.
        let region = if options.is_watched || has_credits {
            MemoryRegion::register(&domain, layout.size())?
        } else {
            MemoryRegion::register_relaxed(&domain, layout.size())?
        };
        let resources = Resources { depth, ..Resources::new(&domain, &completions) };
        let inline = path.inline(&resources, options.inline, by_manager)?;
        let resources = Resources { depth: Depth { inline, ..depth }, ..resources };
        let settings = path.settings(table, &context, options)?;
        let own = Advert::new(&region, listener.as_ref(), settings.reads)?;
        let connecting =
            Connecting { comm, path: &path, resources: &resources, settings: &settings };
        let (pairs, peer, mtu) = match &listener {
            None => connecting.by_exchange(options.qps, &own)?,
            Some(listener) => connecting.by_manager(options.qps, &own, listener)?,
        };
        let ends = Ends {
            pairs,
            completions,
            region,
            layout,
            remote: (peer.address, peer.key),
            depth: options.depth,
            bytes: options.bytes,
            receives,
            has_credits,
            carried: vec![Carried::default(); options.qps],
            mtu,
            reads: connecting.agreed(&peer).reads,
            ports: path.names(comm.rank()),
            by_manager,
        };
        for qp in 0..options.qps {
            (0..receives).try_for_each(|_| ends.post_receive(qp))?;
        }
        ends.send_first(comm)?;
        matrix::barrier(comm)?;
        Ok(ends)
    }

    /// Sends the first message over each connection of the connection manager, which must come from
    /// the end that requested it.
    fn send_first(&self, comm: &Communicator) -> Result<(), VerbsBenchError> {
        if !self.by_manager || comm.rank() != 0 {
            return Ok(());
        }
        let deadline = Instant::now() + DEADLINE;
        for (qp, pair) in self.pairs.iter().enumerate() {
            let count = self.region.slice(self.layout.received(qp), COUNTER)?;
            pair.write(0, count, self.remote(self.layout.peer_received(qp)))?;
            let done = loop {
                match self.completions.poll_one()? {
                    Some(done) => break done,
                    None if Instant::now() < deadline => {}
                    None => {
                        let (name, seconds) = ("first RDMA write", DEADLINE.as_secs());
                        return Err(VerbsBenchError::Stalled { name, bytes: COUNTER, seconds });
                    }
                }
            };
            if !done.status.is_success() {
                let (name, status) = ("first RDMA write", done.status.to_string());
                return Err(VerbsBenchError::Failed { name, bytes: COUNTER, status });
            }
        }
        Ok(())
    }

    /// Returns the address of a position in the peer's memory.
    pub(super) fn remote(&self, offset: usize) -> RemoteAddr {
        let (address, key) = self.remote;
        RemoteAddr::new(address.wrapping_add(offset as u64), key)
    }

    /// Returns the part of this rank's memory that begins at a position.
    pub(super) fn slice(&self, offset: usize, bytes: usize) -> Result<MrSlice<'_>, VerbsError> {
        self.region.slice(offset, bytes)
    }

    pub(super) fn max_inline(&self) -> u32 {
        self.pairs.iter().map(QueuePair::max_inline).min().unwrap_or(0)
    }

    /// Posts a receive. All receives of a queue pair fill the same buffer.
    pub(super) fn post_receive(&self, qp: usize) -> Result<(), VerbsError> {
        let into = self.region.slice(self.layout.input(qp), self.bytes)?;
        self.pairs[qp].receive(receive_id(qp), into)
    }
}

/// Creates the completion queue of all queue pairs.
fn completion_queue(
    context: &Arc<Context>,
    qps: usize,
    depth: Depth,
) -> Result<Arc<CompletionQueue>, VerbsBenchError> {
    let limits = context.limits()?;
    let limit = |what: &'static str, asked: u64, most: u64| {
        let device = context.name().to_owned();
        if asked > most {
            Err(VerbsBenchError::Limit { device, what, asked, most })
        } else {
            Ok(())
        }
    };
    let requests = u64::from(depth.send.max(depth.receive));
    limit("requests in a queue", requests, limits.requests.into())?;
    limit("queue pairs", qps as u64, limits.queue_pairs.into())?;
    let entries = qps as u64 * u64::from(depth.send + depth.receive);
    limit("requests in all queues together", entries, limits.completions.into())?;
    let entries = u32::try_from(entries).unwrap_or(u32::MAX);
    Ok(CompletionQueue::create(context, entries)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_do_not_overlap() {
        let layout = Layout::new(5000, 2, true);
        let starts = [
            layout.output(0),
            layout.input(0),
            layout.output(1),
            layout.input(1),
            layout.last_output(0),
            layout.received(0),
        ];
        assert!(starts.windows(2).all(|two| two[1] - two[0] == 8192), "{starts:?}");
        assert_eq!(layout.last_output(0), layout.last_output(1));
        let layout = Layout::new(5000, 2, false);
        assert_eq!(layout.last_output(1), layout.output(1));
        assert_eq!(layout.received(0) - layout.input(1), 8192);
        let counters = [
            layout.received(0),
            layout.peer_received(0),
            layout.received(1),
            layout.peer_received(1),
            layout.size(),
        ];
        assert!(counters.windows(2).all(|two| two[1] - two[0] == 8), "{counters:?}");
    }
}
