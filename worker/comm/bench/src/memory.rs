//! The memory of an act, filled so that a wrong result is seen.

use crate::act::Act;
use half::{bf16, f16};
use rlaunch_comm::raw::{self, CollectiveBuffers, CollectiveKind};
use rlaunch_comm::{CommError, Communicator, ElementType, Op};

const TAG: u32 = 1;
/// So many messages are on their way at once, or as many as fit into [`WINDOW_BYTES`].
const WINDOW: usize = 64;
const WINDOW_BYTES: usize = 64 << 20;

/// Ready to act.
pub(crate) struct Memory<'a> {
    comm: &'a Communicator,
    act: Act,
    what: (ElementType, Op),
    /// Of one message, or of each rank's part.
    bytes: usize,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl<'a> Memory<'a> {
    /// For messages or parts of so many elements.
    pub(crate) fn new(
        comm: &'a Communicator,
        act: Act,
        (element, op): (ElementType, Op),
        elements: usize,
    ) -> Memory<'a> {
        let (all, bytes) = (comm.size(), elements * element.size());
        let at = |root: usize, length: usize| if comm.rank() == root { length } else { 0 };
        let (input, output) = match act {
            Act::Latency => (bytes, bytes),
            Act::Bandwidth => (bytes, bytes * window(bytes)),
            Act::Collective(kind) => match kind {
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
        if let Act::Collective(CollectiveKind::Broadcast { root }) = act
            && comm.rank() == root
        {
            output.chunks_mut(one.len()).for_each(|element| element.copy_from_slice(&one));
        }
        Memory { comm, act, what: (element, op), bytes, input, output }
    }

    /// So many acts are in one repetition.
    pub(crate) fn acts(&self) -> f64 {
        match self.act {
            Act::Latency => 2.0,
            Act::Bandwidth => window(self.bytes) as f64,
            Act::Collective(_) => 1.0,
        }
    }

    /// Repeats it.
    pub(crate) fn repeat(&mut self, count: u64) -> Result<(), CommError> {
        match self.act {
            Act::Latency => (0..count).try_for_each(|_| self.ping_pong()),
            Act::Bandwidth => (0..count).try_for_each(|_| self.stream()),
            Act::Collective(kind) => (0..count).try_for_each(|_| self.collective(kind)),
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

    /// An empty message says that all have come.
    fn stream(&mut self) -> Result<(), CommError> {
        let (comm, count, bytes) = (self.comm, window(self.bytes), self.bytes.max(1));
        if comm.rank() == 0 {
            comm.scope(|scope| {
                let sends = (0..count).map(|_| scope.isend(&self.input, 1, TAG));
                let sends: Result<Vec<_>, _> = sends.collect();
                sends?.into_iter().try_for_each(|send| scope.wait(send).map(drop))
            })?;
            return comm.recv(&mut [0_u8; 0], 1, TAG).map(drop);
        }
        comm.scope(|scope| {
            let receives = self.output.chunks_mut(bytes).map(|part| scope.irecv(part, 0, TAG));
            let receives: Result<Vec<_>, _> = receives.collect();
            receives?.into_iter().try_for_each(|receive| scope.wait(receive).map(drop))
        })?;
        comm.send(&[0_u8; 0], 0, TAG)
    }

    fn collective(&mut self, kind: CollectiveKind) -> Result<(), CommError> {
        let given = match kind {
            CollectiveKind::Broadcast { .. } => CollectiveBuffers::InPlace(&mut self.output[..]),
            _ => CollectiveBuffers::Separate(&self.input[..], &mut self.output[..]),
        };
        raw::collective(self.comm, kind, self.what, given)
    }

    /// Whether what has come is what it should be.
    pub(crate) fn is_right(&self) -> bool {
        let (element, op) = self.what;
        let ranks = self.comm.size();
        let gets = match self.act {
            Act::Bandwidth => self.comm.rank() == 1,
            _ => true,
        };
        let value = if self.act.reduces() && op == Op::Sum { ranks as f64 } else { 1.0 };
        // Beyond that a sum of small numbers is rounded, or wraps around.
        let is_exact = ranks <= 128;
        let wanted = number(element, value);
        !gets || !is_exact || self.output.chunks(wanted.len()).all(|element| element == wanted)
    }
}

fn window(bytes: usize) -> usize {
    (WINDOW_BYTES / bytes.max(1)).clamp(1, WINDOW)
}

/// A small whole number as an element.
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
