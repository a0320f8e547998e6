//! Element-wise reductions of byte slices.
//!
//! Every operation is bitwise commutative: swapping the operands does not change a bit of the
//! result. Otherwise an all-reduce could give ranks different results. Therefore all NaN results
//! have the same bits, and -0 counts as less than +0.

mod dispatch;
mod kernels;
mod number;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::types::element::{ElementType, Op};

/// Error of a reduction if the lengths in bytes of operands and result differ, or are not a whole
/// number of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{left} and {right} bytes cannot be reduced to {result} bytes of {element_type}")]
pub struct Mismatch {
    element_type: ElementType,
    left: usize,
    right: usize,
    result: usize,
}

/// Computes `into = into ∘ from`, element by element, where ∘ is `op`. The slices may have any
/// alignment.
///
/// # Errors
///
/// Fails, with nothing written, if the lengths differ or are not a whole number of elements.
#[inline]
pub fn reduce_in_place(
    op: Op,
    element_type: ElementType,
    into: &mut [u8],
    from: &[u8],
) -> Result<(), Mismatch> {
    check(element_type, into.len(), from.len(), into.len())?;
    dispatch::reduce_in_place(op, element_type, into, from);
    Ok(())
}

/// Computes `out = a ∘ b`, element by element, where ∘ is `op`. The slices may have any alignment.
///
/// # Errors
///
/// Fails, with nothing written, if the lengths differ or are not a whole number of elements.
#[inline]
pub fn reduce_into(
    op: Op,
    element_type: ElementType,
    out: &mut [u8],
    a: &[u8],
    b: &[u8],
) -> Result<(), Mismatch> {
    check(element_type, a.len(), b.len(), out.len())?;
    dispatch::reduce_into(op, element_type, out, a, b);
    Ok(())
}

#[inline]
fn check(
    element_type: ElementType,
    left: usize,
    right: usize,
    result: usize,
) -> Result<(), Mismatch> {
    // Element sizes are powers of two.
    let within = result & (element_type.size() - 1);
    if left == result && right == result && within == 0 {
        return Ok(());
    }
    Err(Mismatch { element_type, left, right, result })
}
