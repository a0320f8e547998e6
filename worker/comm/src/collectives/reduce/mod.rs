//! Reduces elements that lie in memory as bytes.
//!
//! Every operation is commutative to the bit: that all ranks of an all-reduce get the same result
//! rests on it. So a result that is not a number is always the same one, and of two zeros -0 is the
//! lesser.

mod dispatch;
mod kernels;
mod number;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::types::element::{ElementType, Op};

/// Spans that cannot be folded element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{left} and {right} bytes do not fold to {result} bytes of {element_type}")]
pub struct Mismatch {
    element_type: ElementType,
    left: usize,
    right: usize,
    result: usize,
}

/// into = into ∘ from, element by element, at any alignment.
///
/// # Errors
///
/// When the lengths differ or end within an element; nothing is written then.
#[inline]
pub fn fold(
    op: Op,
    element_type: ElementType,
    into: &mut [u8],
    from: &[u8],
) -> Result<(), Mismatch> {
    check(element_type, into.len(), from.len(), into.len())?;
    dispatch::fold(op, element_type, into, from);
    Ok(())
}

/// out = a ∘ b, element by element, at any alignment.
///
/// # Errors
///
/// When the lengths differ or end within an element; nothing is written then.
#[inline]
pub fn fold_into(
    op: Op,
    element_type: ElementType,
    out: &mut [u8],
    a: &[u8],
    b: &[u8],
) -> Result<(), Mismatch> {
    check(element_type, a.len(), b.len(), out.len())?;
    dispatch::fold_into(op, element_type, out, a, b);
    Ok(())
}

#[inline]
fn check(
    element_type: ElementType,
    left: usize,
    right: usize,
    result: usize,
) -> Result<(), Mismatch> {
    // All sizes are powers of two.
    let within = result & (element_type.size() - 1);
    if left == result && right == result && within == 0 {
        return Ok(());
    }
    Err(Mismatch { element_type, left, right, result })
}
