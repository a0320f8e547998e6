//! Where bytes come from and go to.

use crate::collectives::reduce;
use crate::transport::LocalSlice;
use crate::types::element::{ElementType, Op};
use rlaunch_lock::BufferTable;

/// What is done with what comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fold {
    pub(crate) op: Op,
    pub(crate) element: ElementType,
    /// What it is reduced with; the target itself where it is `None`. As long as the target.
    pub(crate) with: Option<LocalSlice>,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) into: LocalSlice,
    /// Copied where it is `None`.
    pub(crate) fold: Option<Fold>,
}

impl Target {
    /// Like [`Target::put`], without those of the bytes that are before `wanted`.
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

    /// Puts `bytes` to `offset`, which are whole elements where they are reduced. `None` where the
    /// memory is not lent any more.
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
