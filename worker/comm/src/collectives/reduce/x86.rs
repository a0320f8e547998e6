//! Loops with AVX2 vectors of 32 bytes.
//!
//! Loops over 16-bit floats are written by hand, because the compiler would widen each element
//! separately. Vector instructions convert f16 to f32. A bf16 is the upper half of an f32, so a
//! shift or a mask is enough to convert it.

use super::kernels;
use crate::types::{ElementType, Op};
use std::arch::x86_64::{
    __m256, __m256i, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm256_add_epi32, _mm256_add_ps,
    _mm256_and_ps, _mm256_and_si256, _mm256_blend_epi16, _mm256_blendv_ps, _mm256_castps_si256,
    _mm256_castsi256_ps, _mm256_castsi256_si128, _mm256_cmp_ps, _mm256_cvtph_ps, _mm256_cvtps_ph,
    _mm256_extracti128_si256, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_or_ps,
    _mm256_set_m128i, _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi32, _mm256_srli_epi32,
};

#[target_feature(enable = "avx2,f16c")]
pub(super) fn reduce_in_place(op: Op, element_type: ElementType, into: &mut [u8], from: &[u8]) {
    match (element_type, op) {
        (ElementType::F16, Op::Sum) => reduce_narrow::<F16, SUM>(into, from),
        (ElementType::F16, Op::Product) => reduce_narrow::<F16, PRODUCT>(into, from),
        (ElementType::F16, Op::Min) => reduce_narrow::<F16, MIN>(into, from),
        (ElementType::F16, Op::Max) => reduce_narrow::<F16, MAX>(into, from),
        (ElementType::Bf16, Op::Sum) => reduce_narrow::<BF16, SUM>(into, from),
        (ElementType::Bf16, Op::Product) => reduce_narrow::<BF16, PRODUCT>(into, from),
        (ElementType::Bf16, Op::Min) => reduce_narrow::<BF16, MIN>(into, from),
        (ElementType::Bf16, Op::Max) => reduce_narrow::<BF16, MAX>(into, from),
        _ => kernels::reduce_in_place(op, element_type, into, from),
    }
}

#[target_feature(enable = "avx2,f16c")]
pub(super) fn reduce_into(op: Op, element_type: ElementType, out: &mut [u8], a: &[u8], b: &[u8]) {
    match (element_type, op) {
        (ElementType::F16, Op::Sum) => reduce_narrow_into::<F16, SUM>(out, a, b),
        (ElementType::F16, Op::Product) => reduce_narrow_into::<F16, PRODUCT>(out, a, b),
        (ElementType::F16, Op::Min) => reduce_narrow_into::<F16, MIN>(out, a, b),
        (ElementType::F16, Op::Max) => reduce_narrow_into::<F16, MAX>(out, a, b),
        (ElementType::Bf16, Op::Sum) => reduce_narrow_into::<BF16, SUM>(out, a, b),
        (ElementType::Bf16, Op::Product) => reduce_narrow_into::<BF16, PRODUCT>(out, a, b),
        (ElementType::Bf16, Op::Min) => reduce_narrow_into::<BF16, MIN>(out, a, b),
        (ElementType::Bf16, Op::Max) => reduce_narrow_into::<BF16, MAX>(out, a, b),
        _ => kernels::reduce_into(op, element_type, out, a, b),
    }
}

// Values of the const parameters that specialise each loop for an element type and an operation.
const F16: u8 = ElementType::F16 as u8;
const BF16: u8 = ElementType::Bf16 as u8;
const SUM: u8 = Op::Sum as u8;
const PRODUCT: u8 = Op::Product as u8;
const MIN: u8 = Op::Min as u8;
const MAX: u8 = Op::Max as u8;

#[target_feature(enable = "avx2,f16c")]
fn reduce_narrow<const TYPE: u8, const OP: u8>(into: &mut [u8], from: &[u8]) {
    let (into, into_rest) = into.as_chunks_mut::<32>();
    let (from, from_rest) = from.as_chunks::<32>();
    for (into, from) in into.iter_mut().zip(from) {
        *into = sixteen::<TYPE, OP>(*into, *from);
    }
    let (into_eights, into_twos) = into_rest.as_chunks_mut::<8>();
    let (eights, twos) = from_rest.as_chunks::<8>();
    for (into, from) in into_eights.iter_mut().zip(eights) {
        *into = few::<8, TYPE, OP>(*into, *from);
    }
    let twos = twos.as_chunks::<2>().0;
    for (into, from) in into_twos.as_chunks_mut::<2>().0.iter_mut().zip(twos) {
        *into = few::<2, TYPE, OP>(*into, *from);
    }
}

#[target_feature(enable = "avx2,f16c")]
fn reduce_narrow_into<const TYPE: u8, const OP: u8>(out: &mut [u8], a: &[u8], b: &[u8]) {
    let (out, out_rest) = out.as_chunks_mut::<32>();
    let (a, a_rest) = a.as_chunks::<32>();
    let (b, b_rest) = b.as_chunks::<32>();
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = sixteen::<TYPE, OP>(*a, *b);
    }
    let (out_eights, out_twos) = out_rest.as_chunks_mut::<8>();
    let (a_eights, a_twos) = a_rest.as_chunks::<8>();
    let (b_eights, b_twos) = b_rest.as_chunks::<8>();
    for ((out, a), b) in out_eights.iter_mut().zip(a_eights).zip(b_eights) {
        *out = few::<8, TYPE, OP>(*a, *b);
    }
    let (a, b) = (a_twos.as_chunks::<2>().0, b_twos.as_chunks::<2>().0);
    for ((out, a), b) in out_twos.as_chunks_mut::<2>().0.iter_mut().zip(a).zip(b) {
        *out = few::<2, TYPE, OP>(*a, *b);
    }
}

/// Reduces `N` bytes of 16-bit elements, less than the 32 bytes of a vector. `N` is a constant, so
/// that the bytes are passed in a register.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn few<const N: usize, const TYPE: u8, const OP: u8>(a: [u8; N], b: [u8; N]) -> [u8; N] {
    let (mut left, mut right, mut result) = ([0; 32], [0; 32], [0; N]);
    left[..N].copy_from_slice(&a);
    right[..N].copy_from_slice(&b);
    result.copy_from_slice(&sixteen::<TYPE, OP>(left, right)[..N]);
    result
}

/// Reduces sixteen 16-bit elements.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn sixteen<const TYPE: u8, const OP: u8>(a: [u8; 32], b: [u8; 32]) -> [u8; 32] {
    let (a, b): (__m256i, __m256i) = (bytemuck::cast(a), bytemuck::cast(b));
    let result = if TYPE == F16 {
        let (low, high) = (_mm256_castsi256_si128, _mm256_extracti128_si256::<1>);
        let low = eight::<OP>(_mm256_cvtph_ps(low(a)), _mm256_cvtph_ps(low(b)));
        let high = eight::<OP>(_mm256_cvtph_ps(high(a)), _mm256_cvtph_ps(high(b)));
        _mm256_set_m128i(
            _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(high),
            _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(low),
        )
    } else {
        let even = eight::<OP>(
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(a)),
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(b)),
        );
        let upper = _mm256_set1_epi32(0xffff << 16);
        let odd = eight::<OP>(
            _mm256_castsi256_ps(_mm256_and_si256(a, upper)),
            _mm256_castsi256_ps(_mm256_and_si256(b, upper)),
        );
        _mm256_blend_epi16::<0b1010_1010>(_mm256_srli_epi32::<16>(rounded(even)), rounded(odd))
    };
    bytemuck::cast(result)
}

/// Rounds each f32 to a bf16 in its upper 16 bits, ties to even. The lower 16 bits of the result
/// are meaningless.
#[target_feature(enable = "avx2")]
#[inline]
fn rounded(value: __m256) -> __m256i {
    let bits = _mm256_castps_si256(value);
    let even = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    _mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff)))
}

/// Reduces eight f32 exactly as [`Number`](super::kernels::Number) does.
#[target_feature(enable = "avx2")]
#[inline]
fn eight<const OP: u8>(a: __m256, b: __m256) -> __m256 {
    let (result, nan) = match OP {
        SUM | PRODUCT => {
            let result = if OP == SUM { _mm256_add_ps(a, b) } else { _mm256_mul_ps(a, b) };
            (result, _mm256_cmp_ps::<_CMP_UNORD_Q>(result, result))
        }
        // For +0 and -0 the instruction returns the second operand, so it is applied in both
        // orders.
        MIN => (
            _mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a)),
            _mm256_cmp_ps::<_CMP_UNORD_Q>(a, b),
        ),
        _ => (
            _mm256_and_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a)),
            _mm256_cmp_ps::<_CMP_UNORD_Q>(a, b),
        ),
    };
    _mm256_blendv_ps(result, _mm256_set1_ps(f32::NAN), nan)
}
