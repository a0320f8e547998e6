//! Conversion of the arguments that C passes, above all of its buffers to Rust slices. All
//! properties of a buffer that can be checked are checked.

use crate::errors::Failure;
use crate::types::*;
use rlaunch_comm::raw::{CollectiveBuffers, CollectiveKind};
use rlaunch_comm::{ElementType, Op};
use std::ffi::c_void;
use std::slice;

/// Returns the size of `count` elements in bytes. Fails if the size exceeds the address space.
pub(crate) fn bytes(element: ElementType, count: usize) -> Result<usize, Failure> {
    // Slices cannot be longer than isize::MAX.
    let bytes = count.checked_mul(element.size()).filter(|bytes| isize::try_from(*bytes).is_ok());
    bytes.ok_or_else(|| Failure::argument(format!("{count} elements exceed the address space")))
}

fn check(first: *const c_void, length: usize, name: &str) -> Result<(), Failure> {
    if first.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    if is_in_place(first) || first.addr().checked_add(length).is_none() {
        return Err(Failure::argument(format!("{name} is not a valid address of {length} bytes")));
    }
    Ok(())
}

/// Makes a slice of an input buffer. `name` is the name of the parameter, for errors.
///
/// # Safety
///
/// Unless the checks fail, `length` bytes at `first` must be valid for reads, and not be written,
/// during `'a`.
pub(crate) unsafe fn input<'a>(
    first: *const c_void,
    length: usize,
    name: &str,
) -> Result<&'a [u8], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    check(first, length, name)?;
    // SAFETY: the caller guarantees the bytes; the address is not NULL and the length fits an
    // isize.
    Ok(unsafe { slice::from_raw_parts(first.cast(), length) })
}

/// Makes a slice of an output buffer. `name` is the name of the parameter, for errors.
///
/// # Safety
///
/// Unless the checks fail, `length` bytes at `first` must be valid for writes, and not be accessed
/// otherwise, during `'a`.
pub(crate) unsafe fn output<'a>(
    first: *mut c_void,
    length: usize,
    name: &str,
) -> Result<&'a mut [u8], Failure> {
    if length == 0 {
        return Ok(&mut []);
    }
    check(first, length, name)?;
    // SAFETY: the caller guarantees the bytes; the address is not NULL and the length fits an
    // isize.
    Ok(unsafe { slice::from_raw_parts_mut(first.cast(), length) })
}

/// Fails if two buffers overlap. Must be called before slices of both are made, because overlapping
/// slices are undefined behaviour.
pub(crate) fn are_apart(
    (one, length): (*const c_void, usize),
    (other, other_length): (*const c_void, usize),
) -> Result<(), Failure> {
    let (first, second) = (one.addr(), other.addr());
    let overlap = first < second.saturating_add(other_length)
        && second < first.saturating_add(length)
        && length.min(other_length) > 0;
    if overlap {
        Err(Failure::argument("input and output overlap\nhint: pass RL_IN_PLACE as the input"))
    } else {
        Ok(())
    }
}

/// Buffers of a collective, as C passes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    pub(crate) input: *const c_void,
    pub(crate) output: *mut c_void,
    /// Number of elements in one rank's part.
    pub(crate) count: usize,
    pub(crate) element: rl_type,
}

impl Buffers {
    /// Converts the buffers for the rank `rank` of a communicator of `size` ranks.
    ///
    /// # Safety
    ///
    /// Both buffers must be valid as the header demands, for the lengths of [`lengths`], during
    /// `'a`.
    pub(crate) unsafe fn collective_buffers<'a>(
        self,
        kind: CollectiveKind,
        (rank, size): (usize, usize),
    ) -> Result<(ElementType, CollectiveBuffers<'a, u8>), Failure> {
        let element = element(self.element)?;
        let part = bytes(element, self.count)?;
        let all = bytes(element, self.count.saturating_mul(size))?;
        let in_place = is_in_place(self.input);
        let (reads, writes) = lengths(kind, kind.root() == Some(rank), in_place, (part, all));
        if in_place {
            // SAFETY: the caller guarantees it.
            let data = unsafe { output(self.output, writes, "output") }?;
            return Ok((element, CollectiveBuffers::InPlace(data)));
        }
        are_apart((self.input, reads), (self.output, writes))?;
        // SAFETY: the caller guarantees it.
        let input = unsafe { input(self.input, reads, "input") }?;
        // SAFETY: the caller guarantees it; the buffers do not overlap.
        let output = unsafe { output(self.output, writes, "output") }?;
        Ok((element, CollectiveBuffers::Separate(input, output)))
    }
}

/// Returns the lengths in bytes of this rank's input and output. `part` is the length of one rank's
/// part, and `all` the length of all parts together.
fn lengths(
    kind: CollectiveKind,
    is_root: bool,
    in_place: bool,
    (part, all): (usize, usize),
) -> (usize, usize) {
    let if_root = |bytes| if is_root { bytes } else { 0 };
    match (kind, in_place) {
        (CollectiveKind::Barrier, _) => (0, 0),
        (CollectiveKind::Broadcast { .. }, _) => (0, part),
        (CollectiveKind::Reduce { .. }, false) => (part, if_root(part)),
        (CollectiveKind::AllReduce, false) => (part, part),
        (CollectiveKind::Gather { .. }, false) => (part, if_root(all)),
        (CollectiveKind::Scatter { .. }, false) => (if_root(all), part),
        (CollectiveKind::AllGather, false) => (part, all),
        (CollectiveKind::ReduceScatter, false) => (all, part),
        (CollectiveKind::AllToAll, false) => (all, all),
        (CollectiveKind::Reduce { .. } | CollectiveKind::AllReduce, true) => (0, part),
        (CollectiveKind::Gather { .. } | CollectiveKind::Scatter { .. }, true) => {
            (0, if is_root { all } else { part })
        }
        (
            CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::AllToAll,
            true,
        ) => (0, all),
    }
}

pub(crate) fn element(number: rl_type) -> Result<ElementType, Failure> {
    let known = usize::try_from(number).ok().and_then(|at| ElementType::ALL.get(at));
    known.copied().ok_or_else(|| Failure::argument(format!("there is no rl_type {number}")))
}

pub(crate) fn op(number: rl_op) -> Result<Op, Failure> {
    let known = usize::try_from(number).ok().and_then(|at| Op::ALL.get(at));
    known.copied().ok_or_else(|| Failure::argument(format!("there is no rl_op {number}")))
}

/// Unwraps a pointer that C has passed. Fails with RL_INVALID if it is NULL. `name` is the name of
/// the parameter, for the error.
pub(crate) fn non_null<T>(pointer: Option<T>, name: &str) -> Result<T, Failure> {
    pointer.ok_or_else(|| Failure::argument(format!("{name} is NULL")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_no_root_needs_no_more_than_its_part() {
        let gather = CollectiveKind::Gather { root: 0 };
        assert_eq!(lengths(gather, true, false, (4, 16)), (4, 16));
        assert_eq!(lengths(gather, false, false, (4, 16)), (4, 0));
        assert_eq!(lengths(gather, true, true, (4, 16)), (0, 16));
        assert_eq!(lengths(gather, false, true, (4, 16)), (0, 4));
        let scatter = CollectiveKind::Scatter { root: 0 };
        assert_eq!(lengths(scatter, false, false, (4, 16)), (0, 4));
        assert_eq!(lengths(CollectiveKind::Reduce { root: 0 }, false, false, (4, 16)), (4, 0));
    }

    #[test]
    fn buffers_that_share_a_byte_are_not_apart() {
        let bytes = [0u8; 8];
        let at = |offset: usize| bytes[offset..].as_ptr().cast();
        assert!(are_apart((at(0), 4), (at(4), 4)).is_ok());
        assert!(are_apart((at(0), 5), (at(4), 4)).is_err());
        assert!(are_apart((at(4), 4), (at(0), 5)).is_err());
        assert!(are_apart((at(0), 0), (at(0), 4)).is_ok());
    }

    #[test]
    fn counts_that_no_memory_has_are_refused() {
        assert_eq!(bytes(ElementType::F64, 3).unwrap(), 24);
        assert!(bytes(ElementType::F64, usize::MAX / 2).is_err());
        assert!(bytes(ElementType::U8, usize::MAX).is_err());
    }

    #[test]
    fn types_and_operations_have_the_numbers_of_the_library() {
        let types = [RL_F16, RL_BF16, RL_F32, RL_F64, RL_I32, RL_I64, RL_U8, RL_U64];
        let named: Vec<_> = types.map(|number| element(number).unwrap().name()).into();
        assert_eq!(named, ["f16", "bf16", "f32", "f64", "i32", "i64", "u8", "u64"]);
        let ops = [RL_SUM, RL_PROD, RL_MIN, RL_MAX].map(|number| op(number).unwrap());
        assert_eq!(ops, Op::ALL);
        assert!(element(8).is_err() && element(-1).is_err() && op(4).is_err());
    }
}
