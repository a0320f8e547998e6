//! Communication patterns, their buffers and execution, and the conversion of their times to
//! bandwidth. Inputs are filled with values for which wrong results are detected.

use crate::matrix::{receive_window, send_window};
use half::{bf16, f16};
use rlaunch_comm::raw::{self, CollectiveBuffers, CollectiveKind};
use rlaunch_comm::{CommError, Communicator, ElementType, Op};

const TAG: u32 = 1;
/// Maximum number of messages in progress at once.
const WINDOW: usize = 64;
/// Maximum total length in bytes of the messages in progress at once.
const WINDOW_BYTES: usize = 64 << 20;

/// Communication pattern with its buffers, ready to run.
pub(crate) struct Workload<'a> {
    comm: &'a Communicator,
    pattern: Pattern,
    what: (ElementType, Op),
    /// Length of one message, vector or part, in bytes.
    bytes: usize,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl<'a> Workload<'a> {
    /// Allocates and fills the buffers of a pattern whose messages, vectors or parts have
    /// `elements` elements.
    pub(crate) fn new(
        comm: &'a Communicator,
        pattern: Pattern,
        element: ElementType,
        op: Op,
        elements: usize,
    ) -> Workload<'a> {
        let (all, bytes) = (comm.size(), elements * element.size());
        let at = |root: usize, length: usize| if comm.rank() == root { length } else { 0 };
        let (input, output) = match pattern {
            Pattern::Latency => (bytes, bytes),
            Pattern::Bandwidth => (bytes, bytes * window(bytes)),
            Pattern::Collective(kind) => match kind {
                CollectiveKind::Barrier => (0, 0),
                CollectiveKind::Broadcast { .. } => (0, bytes),
                CollectiveKind::Reduce { root } => (bytes, at(root, bytes)),
                CollectiveKind::AllReduce => (bytes, bytes),
                CollectiveKind::Gather { root } => (bytes, at(root, all * bytes)),
                CollectiveKind::Scatter { root } => (at(root, all * bytes), bytes),
                CollectiveKind::AllGather => (bytes, all * bytes),
                CollectiveKind::ReduceScatter => (all * bytes, bytes),
                CollectiveKind::AllToAll => (all * bytes, all * bytes),
            },
        };
        let one = number(element, 1.0);
        let input = one.iter().copied().cycle().take(input).collect();
        let mut output = vec![0; output];
        if let Pattern::Collective(CollectiveKind::Broadcast { root }) = pattern
            && comm.rank() == root
        {
            output.chunks_mut(one.len()).for_each(|element| element.copy_from_slice(&one));
        }
        Workload { comm, pattern, what: (element, op), bytes, input, output }
    }

    /// Returns the number of operations in one repetition, by which measured times are divided.
    pub(crate) fn operations(&self) -> f64 {
        match self.pattern {
            Pattern::Latency => 2.0,
            Pattern::Bandwidth => window(self.bytes) as f64,
            Pattern::Collective(_) => 1.0,
        }
    }

    pub(crate) fn repeat(&mut self, count: u64) -> Result<(), CommError> {
        match self.pattern {
            Pattern::Latency => (0..count).try_for_each(|_| self.ping_pong()),
            Pattern::Bandwidth => (0..count).try_for_each(|_| self.stream()),
            Pattern::Collective(kind) => (0..count).try_for_each(|_| self.collective(kind)),
        }
    }

    fn ping_pong(&mut self) -> Result<(), CommError> {
        let other = 1 - self.comm.rank();
        if self.comm.rank() == 0 {
            self.comm.send(&self.input, other, TAG)?;
        }
        self.comm.recv(&mut self.output, other, TAG)?;
        if self.comm.rank() == 1 {
            self.comm.send(&self.input, other, TAG)?;
        }
        Ok(())
    }

    /// Sends up to [`WINDOW`] messages from rank 0 to rank 1. Rank 1 confirms them all with one
    /// empty message.
    fn stream(&mut self) -> Result<(), CommError> {
        let (comm, count, bytes) = (self.comm, window(self.bytes), self.bytes.max(1));
        if comm.rank() == 0 {
            return send_window(comm, &self.input, count, (1, TAG));
        }
        receive_window(comm, self.output.chunks_mut(bytes), (0, TAG))
    }

    fn collective(&mut self, kind: CollectiveKind) -> Result<(), CommError> {
        let buffers = match kind {
            CollectiveKind::Broadcast { .. } => CollectiveBuffers::InPlace(&mut self.output[..]),
            _ => CollectiveBuffers::Separate(&self.input[..], &mut self.output[..]),
        };
        raw::collective(self.comm, kind, self.what, buffers)
    }

    /// Tells whether the output of the last repetition is correct. Returns `true` without a check
    /// on a rank that receives nothing, and for more than 128 ranks.
    pub(crate) fn is_correct(&self) -> bool {
        let (element, op) = self.what;
        let ranks = self.comm.size();
        let is_receiver = match self.pattern {
            Pattern::Bandwidth => self.comm.rank() == 1,
            _ => true,
        };
        let value = if self.pattern.reduces() && op == Op::Sum { ranks as f64 } else { 1.0 };
        // With more than 128 ranks, a sum may be rounded (bfloat16) or wrap around (u8).
        let is_exact = ranks <= 128;
        let wanted = number(element, value);
        !is_receiver
            || !is_exact
            || self.output.chunks(wanted.len()).all(|element| element == wanted)
    }
}

fn window(bytes: usize) -> usize {
    (WINDOW_BYTES / bytes.max(1)).clamp(1, WINDOW)
}

/// Encodes a small integer as an element.
fn number(element: ElementType, value: f64) -> Vec<u8> {
    match element {
        ElementType::F16 => f16::from_f64(value).to_ne_bytes().to_vec(),
        ElementType::Bf16 => bf16::from_f64(value).to_ne_bytes().to_vec(),
        ElementType::F32 => (value as f32).to_ne_bytes().to_vec(),
        ElementType::F64 => value.to_ne_bytes().to_vec(),
        ElementType::I32 => (value as i32).to_ne_bytes().to_vec(),
        ElementType::I64 => (value as i64).to_ne_bytes().to_vec(),
        ElementType::U8 => vec![value as u8],
        ElementType::U64 => (value as u64).to_ne_bytes().to_vec(),
    }
}

/// Pattern of communication that is repeated and timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// A message from rank 0 to rank 1, and then one back. The time is half of the round trip.
    Latency,
    /// Messages from rank 0 to rank 1, many in progress at once. The time is the mean per message.
    Bandwidth,
    Collective(CollectiveKind),
}

impl Pattern {
    /// Finds a pattern by its name in `rlaunch bench`.
    pub(crate) fn from_name(name: &str) -> Option<Pattern> {
        let root = 0;
        let kinds = [
            CollectiveKind::Barrier,
            CollectiveKind::Broadcast { root },
            CollectiveKind::Reduce { root },
            CollectiveKind::AllReduce,
            CollectiveKind::Gather { root },
            CollectiveKind::Scatter { root },
            CollectiveKind::AllGather,
            CollectiveKind::ReduceScatter,
            CollectiveKind::AllToAll,
        ];
        match name {
            "lat" => Some(Pattern::Latency),
            "bw" => Some(Pattern::Bandwidth),
            _ => kinds.into_iter().find(|kind| kind.name() == name).map(Pattern::Collective),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Pattern::Latency => "lat",
            Pattern::Bandwidth => "bw",
            Pattern::Collective(kind) => kind.name(),
        }
    }

    /// Tells whether the pattern reduces elements, so that their type and the operation matter.
    pub(crate) fn reduces(self) -> bool {
        let reduces = |kind| {
            matches!(
                kind,
                CollectiveKind::Reduce { .. }
                    | CollectiveKind::AllReduce
                    | CollectiveKind::ReduceScatter
            )
        };
        matches!(self, Pattern::Collective(kind) if reduces(kind))
    }

    /// Tells whether the size given for a measurement is the size of all ranks' parts together,
    /// rather than the size of one vector or message.
    pub(crate) fn size_is_total(self) -> bool {
        use CollectiveKind::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        matches!(
            self,
            Pattern::Collective(
                Gather { .. } | Scatter { .. } | AllGather | ReduceScatter | AllToAll
            )
        )
    }

    /// Returns the formula of the bus bandwidth for `n` ranks, as text for the output; `algbw` is
    /// the algorithm bandwidth.
    pub(crate) fn formula(self) -> &'static str {
        match self {
            Pattern::Collective(CollectiveKind::AllReduce) => "algbw * 2 (n - 1) / n",
            pattern if pattern.size_is_total() => "algbw * (n - 1) / n",
            _ => "algbw",
        }
    }

    /// Returns the ratio of bus bandwidth to algorithm bandwidth, as nccl-tests defines them. It is
    /// the number of bytes that must cross each rank's link, divided by the size of the data. For
    /// any number of ranks, bus bandwidth can be compared with the bandwidth of the link.
    pub(crate) fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks.max(1) as f64;
        match self {
            Pattern::Collective(CollectiveKind::AllReduce) => 2.0 * (n - 1.0) / n,
            pattern if pattern.size_is_total() => (n - 1.0) / n,
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_understood() {
        let names = "\
            lat bw barrier broadcast reduce all_reduce gather scatter all_gather reduce_scatter \
            all_to_all";
        for name in names.split(' ') {
            assert_eq!(Pattern::from_name(name).unwrap().name(), name);
        }
        assert_eq!(Pattern::from_name("allreduce"), None);
    }

    #[test]
    fn bus_bandwidth_is_what_each_link_carries() {
        let factor = |name, ranks| Pattern::from_name(name).unwrap().bus_factor(ranks);
        // In a ring of 4 ranks, 3 quarters of the data cross each link twice.
        assert_eq!(factor("all_reduce", 4), 1.5);
        assert_eq!(factor("all_reduce", 1), 0.0);
        for name in ["all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"] {
            assert_eq!(factor(name, 4), 0.75, "{name}");
        }
        for name in ["lat", "bw", "broadcast", "reduce"] {
            assert_eq!(factor(name, 4), 1.0, "{name}");
        }
    }
}
