//! Element-wise reductions of byte slices.
//!
//! Every operation is bitwise commutative: swapping the operands does not change a bit of the
//! result. Otherwise an all-reduce could give ranks different results. Therefore all NaN results
//! have the same bits, and -0 counts as less than +0.
//!
//! AVX2 or portable code is chosen at run time. Vectors wider than AVX2's 32 bytes are not used:
//! memory bandwidth limits reductions, and vectors of 32 bytes already saturate it.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "only the caller can know that the processor has the vectors")
)]

mod kernels;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::types::{ElementType, Op};

/// Error of a reduction if the lengths in bytes of operands and result differ, or are not a whole
/// number of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{left} and {right} bytes cannot be reduced to {result} bytes of {element_type}")]
pub(crate) struct Mismatch {
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
pub(crate) fn reduce_in_place(
    op: Op,
    element_type: ElementType,
    into: &mut [u8],
    from: &[u8],
) -> Result<(), Mismatch> {
    check(element_type, into.len(), from.len(), into.len())?;
    dispatch_in_place(op, element_type, into, from);
    Ok(())
}

/// Computes `out = a ∘ b`, element by element, where ∘ is `op`. The slices may have any alignment.
///
/// # Errors
///
/// Fails, with nothing written, if the lengths differ or are not a whole number of elements.
#[inline]
pub(crate) fn reduce_into(
    op: Op,
    element_type: ElementType,
    out: &mut [u8],
    a: &[u8],
    b: &[u8],
) -> Result<(), Mismatch> {
    check(element_type, a.len(), b.len(), out.len())?;
    dispatch_into(op, element_type, out, a, b);
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

/// Tells whether the processor has AVX2 and F16C. The standard library caches the answer.
#[cfg(target_arch = "x86_64")]
#[inline]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
}

#[inline]
fn dispatch_in_place(op: Op, element_type: ElementType, into: &mut [u8], from: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        // SAFETY: the processor has AVX2 and F16C, as just checked.
        return unsafe { x86::reduce_in_place(op, element_type, into, from) };
    }
    kernels::reduce_in_place(op, element_type, into, from);
}

#[inline]
fn dispatch_into(op: Op, element_type: ElementType, out: &mut [u8], a: &[u8], b: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        // SAFETY: the processor has AVX2 and F16C, as just checked.
        return unsafe { x86::reduce_into(op, element_type, out, a, b) };
    }
    kernels::reduce_into(op, element_type, out, a, b);
}

#[cfg(test)]
mod tests;
