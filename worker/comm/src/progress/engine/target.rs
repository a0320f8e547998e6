//! Destination of received bytes: a plain copy, or a reduction.

use crate::collectives::reduce;
use crate::transport::LocalSlice;
use crate::types::element::{ElementType, Op};
use rlaunch_lock::BufferTable;

/// Reduction of received bytes with local ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fold {
    pub(crate) op: Op,
    pub(crate) element: ElementType,
    /// Operand, as long as the target; the target itself if `None`.
    pub(crate) with: Option<LocalSlice>,
}

/// Destination of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) into: LocalSlice,
    /// Reduction to apply; the bytes are copied if `None`.
    pub(crate) fold: Option<Fold>,
}

impl Target {
    /// Writes like [`Target::put`], but skips bytes of the message before offset `wanted`, which
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

    /// Writes `bytes` at `offset`, as whole elements if they are reduced. Returns `None` if the
    /// buffer is no longer lent.
    #[inline]
    pub(crate) fn put(&self, buffers: &BufferTable, offset: usize, bytes: &[u8]) -> Option<()> {
        let into = self.into.part(offset, bytes.len());
        let Some(fold) = self.fold else {
            return into.write(buffers, |memory| memory.copy_from_slice(bytes));
        };
        let (op, element) = (fold.op, fold.element);
        let Some(with) = fold.with.map(|with| with.part(offset, bytes.len())) else {
            return into.write(buffers, |memory| reduce::fold(op, element, memory, bytes))?.ok();
        };
        let three =
            |memory: &mut [u8], own: &[u8]| reduce::fold_into(op, element, memory, own, bytes).ok();
        if with.buffer == into.buffer {
            return buffers.read_write(into.buffer, (into.range(), with.range()), three)?;
        }
        into.write(buffers, |memory| with.read(buffers, |own| three(memory, own)))??
    }
}
