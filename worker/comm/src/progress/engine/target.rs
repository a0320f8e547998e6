//! Destinations of received bytes, which are copied or reduced.

use crate::collectives::reduce;
use crate::transport::LocalSlice;
use crate::types::element::{ElementType, Op};
use rlaunch_lock::BufferTable;

/// Reduction of received bytes with local bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TargetReduction {
    pub(crate) op: Op,
    pub(crate) element: ElementType,
    /// Local bytes with which the received bytes are reduced, as long as the target. If `None`, the
    /// received bytes are reduced with the target's present contents.
    pub(crate) with: Option<LocalSlice>,
}

/// Destination of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) into: LocalSlice,
    /// Reduction to apply. If `None`, the bytes are copied.
    pub(crate) reduction: Option<TargetReduction>,
}

impl Target {
    /// Works like [`Target::put`], but skips the bytes of the message before offset `wanted`, which
    /// were already reduced.
    #[inline]
    pub(crate) fn put_from(
        &self,
        wanted: usize,
        buffers: &BufferTable,
        offset: usize,
        bytes: &[u8],
    ) -> Option<()> {
        match bytes.get(wanted.saturating_sub(offset)..) {
            Some(rest) => self.put(buffers, offset.max(wanted), rest),
            None => Some(()),
        }
    }

    /// Copies or reduces `bytes` into the target, beginning at byte `offset`. Bytes to reduce must
    /// be whole elements. Returns `None` if the program has taken the target's buffer back.
    #[inline]
    pub(crate) fn put(&self, buffers: &BufferTable, offset: usize, bytes: &[u8]) -> Option<()> {
        let into = self.into.part(offset, bytes.len());
        let Some(reduction) = self.reduction else {
            return into.write(buffers, |memory| memory.copy_from_slice(bytes));
        };
        let (op, element) = (reduction.op, reduction.element);
        let Some(with) = reduction.with.map(|with| with.part(offset, bytes.len())) else {
            return into
                .write(buffers, |memory| reduce::reduce_in_place(op, element, memory, bytes))?
                .ok();
        };
        let three = |memory: &mut [u8], own: &[u8]| {
            reduce::reduce_into(op, element, memory, own, bytes).ok()
        };
        if with.buffer == into.buffer {
            return buffers.read_write(into.buffer, (into.range(), with.range()), three)?;
        }
        into.write(buffers, |memory| with.read(buffers, |own| three(memory, own)))??
    }
}
