//! Choice between AVX2 and portable code at run time.
//!
//! Vectors wider than AVX2's 32 bytes are not used: memory bandwidth limits reductions, and vectors
//! of 32 bytes already saturate it.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "only the caller can know that the processor has the vectors")
)]

use super::kernels;
use crate::types::element::{ElementType, Op};

/// Tells whether the processor has AVX2 and F16C. The standard library caches the answer.
#[cfg(target_arch = "x86_64")]
#[inline]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
}

#[inline]
pub(super) fn reduce_in_place(op: Op, element_type: ElementType, into: &mut [u8], from: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        // SAFETY: the processor has AVX2 and F16C, as just checked.
        return unsafe { super::x86::reduce_in_place(op, element_type, into, from) };
    }
    kernels::reduce_in_place(op, element_type, into, from);
}

#[inline]
pub(super) fn reduce_into(op: Op, element_type: ElementType, out: &mut [u8], a: &[u8], b: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        // SAFETY: the processor has AVX2 and F16C, as just checked.
        return unsafe { super::x86::reduce_into(op, element_type, out, a, b) };
    }
    kernels::reduce_into(op, element_type, out, a, b);
}
