//! Portable loops, which are inlined into functions compiled for different vector extensions, and the
//! arithmetic on elements: without branches, so that the compiler can vectorise the loops.

use crate::types::{ElementType, Op};
use half::{bf16, f16};
use std::hint::black_box;

#[inline(always)]
pub(super) fn reduce_in_place(op: Op, element_type: ElementType, into: &mut [u8], from: &[u8]) {
    match op {
        Op::Sum => reduce_by::<Sum>(element_type, into, from),
        Op::Product => reduce_by::<Product>(element_type, into, from),
        Op::Min => reduce_by::<Min>(element_type, into, from),
        Op::Max => reduce_by::<Max>(element_type, into, from),
    }
}

#[inline(always)]
fn reduce_by<O: Reduction>(element_type: ElementType, into: &mut [u8], from: &[u8]) {
    match element_type {
        ElementType::F16 => reduce_as::<2, f16, O>(into, from),
        ElementType::Bf16 => reduce_as::<2, bf16, O>(into, from),
        ElementType::F32 => reduce_as::<4, f32, O>(into, from),
        ElementType::F64 => reduce_as::<8, f64, O>(into, from),
        ElementType::I32 => reduce_as::<4, i32, O>(into, from),
        ElementType::I64 => reduce_64::<i64, O>(into, from),
        ElementType::U8 => reduce_as::<1, u8, O>(into, from),
        ElementType::U64 => reduce_64::<u64, O>(into, from),
    }
}

#[inline(always)]
fn reduce_as<const N: usize, T: Number<N>, O: Reduction>(into: &mut [u8], from: &[u8]) {
    let into = into.as_chunks_mut::<N>().0;
    for (into, from) in into.iter_mut().zip(from.as_chunks::<N>().0) {
        *into = O::apply(T::load(*into), T::load(*from)).store();
    }
}

/// Reduces 64-bit integers. AVX2 can compare 64-bit integers, but has no minimum or maximum of
/// them, so the compiler selects elements by a mask. By itself it would store only the elements
/// that change, with a masked store, which takes three times as long on some processors.
/// `black_box` prevents that: the compiler then does not know which elements equal those in memory.
#[inline(always)]
fn reduce_64<T: Number<8>, O: Reduction>(into: &mut [u8], from: &[u8]) {
    let zero = black_box(0_u64);
    let into = into.as_chunks_mut::<8>().0;
    for (into, from) in into.iter_mut().zip(from.as_chunks::<8>().0) {
        let there = (u64::from_ne_bytes(*into) ^ zero).to_ne_bytes();
        *into = O::apply(T::load(there), T::load(*from)).store();
    }
}

#[inline(always)]
pub(super) fn reduce_into(op: Op, element_type: ElementType, out: &mut [u8], a: &[u8], b: &[u8]) {
    match op {
        Op::Sum => reduce_into_by::<Sum>(element_type, out, a, b),
        Op::Product => reduce_into_by::<Product>(element_type, out, a, b),
        Op::Min => reduce_into_by::<Min>(element_type, out, a, b),
        Op::Max => reduce_into_by::<Max>(element_type, out, a, b),
    }
}

#[inline(always)]
fn reduce_into_by<O: Reduction>(element_type: ElementType, out: &mut [u8], a: &[u8], b: &[u8]) {
    match element_type {
        ElementType::F16 => reduce_into_as::<2, f16, O>(out, a, b),
        ElementType::Bf16 => reduce_into_as::<2, bf16, O>(out, a, b),
        ElementType::F32 => reduce_into_as::<4, f32, O>(out, a, b),
        ElementType::F64 => reduce_into_as::<8, f64, O>(out, a, b),
        ElementType::I32 => reduce_into_as::<4, i32, O>(out, a, b),
        ElementType::I64 => reduce_into_as::<8, i64, O>(out, a, b),
        ElementType::U8 => reduce_into_as::<1, u8, O>(out, a, b),
        ElementType::U64 => reduce_into_as::<8, u64, O>(out, a, b),
    }
}

#[inline(always)]
fn reduce_into_as<const N: usize, T: Number<N>, O: Reduction>(out: &mut [u8], a: &[u8], b: &[u8]) {
    let (a, b) = (a.as_chunks::<N>().0, b.as_chunks::<N>().0);
    for ((out, a), b) in out.as_chunks_mut::<N>().0.iter_mut().zip(a).zip(b) {
        *out = O::apply(T::load(*a), T::load(*b)).store();
    }
}

/// Number stored in `N` bytes.
pub(super) trait Number<const N: usize>: Copy {
    fn load(bytes: [u8; N]) -> Self;
    fn store(self) -> [u8; N];
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
}

/// Reduction operation as a type instead of a value of [`Op`](crate::types::Op), so that a
/// loop is compiled for each operation.
pub(super) trait Reduction {
    fn apply<const N: usize, T: Number<N>>(a: T, b: T) -> T;
}

macro_rules! operations {
    ($($name:ident => $method:ident),*) => {
        $(
            pub(super) struct $name;

            impl Reduction for $name {
                #[inline(always)]
                fn apply<const N: usize, T: Number<N>>(a: T, b: T) -> T {
                    a.$method(b)
                }
            }
        )*
    };
}

operations!(Sum => sum, Product => product, Min => min, Max => max);

macro_rules! integers {
    ($($rust:ty: $size:literal),*) => {
        $(
            impl Number<$size> for $rust {
                #[inline(always)]
                fn load(bytes: [u8; $size]) -> Self {
                    <$rust>::from_ne_bytes(bytes)
                }
                #[inline(always)]
                fn store(self) -> [u8; $size] {
                    self.to_ne_bytes()
                }
                #[inline(always)]
                fn sum(self, other: Self) -> Self {
                    self.wrapping_add(other)
                }
                #[inline(always)]
                fn product(self, other: Self) -> Self {
                    self.wrapping_mul(other)
                }
                #[inline(always)]
                fn min(self, other: Self) -> Self {
                    Ord::min(self, other)
                }
                #[inline(always)]
                fn max(self, other: Self) -> Self {
                    Ord::max(self, other)
                }
            }
        )*
    };
}

integers!(u8: 1, i32: 4, i64: 8, u64: 8);

macro_rules! floats {
    ($($rust:ty: $size:literal),*) => {
        $(
            impl Number<$size> for $rust {
                #[inline(always)]
                fn load(bytes: [u8; $size]) -> Self {
                    <$rust>::from_ne_bytes(bytes)
                }
                #[inline(always)]
                fn store(self) -> [u8; $size] {
                    self.to_ne_bytes()
                }
                #[inline(always)]
                fn sum(self, other: Self) -> Self {
                    one_nan(self + other)
                }
                #[inline(always)]
                fn product(self, other: Self) -> Self {
                    one_nan(self * other)
                }
                #[inline(always)]
                fn min(self, other: Self) -> Self {
                    let (left, right) = (
                        if self < other { self } else { other },
                        if other < self { other } else { self },
                    );
                    // `left` and `right` have the same bits, unless the operands are +0 and -0, of
                    // which -0 is the minimum.
                    let bits = left.to_bits() | right.to_bits();
                    unless_nan(self, other, <$rust>::from_bits(bits))
                }
                #[inline(always)]
                fn max(self, other: Self) -> Self {
                    let (left, right) = (
                        if self > other { self } else { other },
                        if other > self { other } else { self },
                    );
                    let bits = left.to_bits() & right.to_bits();
                    unless_nan(self, other, <$rust>::from_bits(bits))
                }
            }

            impl Float for $rust {
                const NAN: Self = <$rust>::NAN;
                #[inline(always)]
                fn is_nan(self) -> bool {
                    self.is_nan()
                }
            }
        )*
    };
}

trait Float: Copy {
    const NAN: Self;
    fn is_nan(self) -> bool;
}

/// Replaces any NaN by one fixed NaN. Otherwise the bits of a NaN would depend on the order of
/// operands: some processors return the first operand's NaN and others the second's, and compilers
/// swap operands.
#[inline(always)]
fn one_nan<T: Float>(result: T) -> T {
    if result.is_nan() { T::NAN } else { result }
}

#[inline(always)]
fn unless_nan<T: Float>(a: T, b: T, result: T) -> T {
    // `||` would be a branch.
    if a.is_nan() | b.is_nan() { T::NAN } else { result }
}

floats!(f32: 4, f64: 8);

macro_rules! narrow_floats {
    ($($rust:ty: $widen:ident, $narrow:ident);*) => {
        $(
            impl Number<2> for $rust {
                #[inline(always)]
                fn load(bytes: [u8; 2]) -> Self {
                    <$rust>::from_ne_bytes(bytes)
                }
                #[inline(always)]
                fn store(self) -> [u8; 2] {
                    self.to_ne_bytes()
                }
                #[inline(always)]
                fn sum(self, other: Self) -> Self {
                    $narrow($widen(self).sum($widen(other)))
                }
                #[inline(always)]
                fn product(self, other: Self) -> Self {
                    $narrow($widen(self).product($widen(other)))
                }
                #[inline(always)]
                fn min(self, other: Self) -> Self {
                    $narrow(Number::min($widen(self), $widen(other)))
                }
                #[inline(always)]
                fn max(self, other: Self) -> Self {
                    $narrow(Number::max($widen(self), $widen(other)))
                }
            }
        )*
    };
}

// f32 has at least 2p + 2 binary digits for the p digits of these types, so rounding to f32 and
// then to the narrow type equals rounding once. The exception is products of bf16 that are
// subnormal in f32 too: those just below a tie may be rounded up.
narrow_floats!(f16: widen_f16, narrow_f16; bf16: widen_bf16, narrow_bf16);

#[inline(always)]
fn widen_bf16(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

/// Rounds to the nearest bf16, ties to even.
#[inline(always)]
fn narrow_bf16(value: f32) -> bf16 {
    // The lower 16 bits of the NaN from `one_nan` are zero, so rounding keeps the NaN.
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    bf16::from_bits((rounded >> 16) as u16)
}

/// Difference between the exponent biases of f32 and f16, shifted to the exponent's position in an
/// f32.
const REBIAS: u32 = (127 - 15) << 23;
/// Bits of 2⁻¹⁴ as an f32; 2⁻¹⁴ is the smallest normal f16.
const NORMAL: u32 = (127 - 14) << 23;

#[inline(always)]
fn widen_f16(value: f16) -> f32 {
    let bits = u32::from(value.to_bits());
    let sign = (bits & 0x8000) << 16;
    let magnitude = (bits & 0x7fff) << 13;
    let normal = magnitude + REBIAS;
    // The subtraction normalises a subnormal f16. None of its operands is subnormal in f32:
    // subnormal operands are slow on some processors, or flushed to zero.
    let subnormal = (f32::from_bits(magnitude + NORMAL) - f32::from_bits(NORMAL)).to_bits();
    let finite = if magnitude < 1 << 23 { subnormal } else { normal };
    let all = if magnitude < 0x1f << 23 { finite } else { magnitude | 0xff << 23 };
    f32::from_bits(all | sign)
}

/// Rounds to the nearest f16, ties to even.
#[inline(always)]
fn narrow_f16(value: f32) -> f16 {
    /// Bits of 0.5 as an f32. The last bit of its significand is worth 2⁻²⁴, like the last bit of a
    /// subnormal f16.
    const ALIGN: u32 = (127 - 1) << 23;
    let sign = value.to_bits() >> 16 & 0x8000;
    let magnitude = value.to_bits() & 0x7fff_ffff;
    let even = magnitude >> 13 & 1;
    let normal = magnitude.wrapping_sub(REBIAS).wrapping_add(0xfff + even) >> 13;
    let subnormal =
        (f32::from_bits(magnitude) + f32::from_bits(ALIGN)).to_bits().wrapping_sub(ALIGN);
    let small = if magnitude < NORMAL { subnormal } else { normal };
    let large = if magnitude > 0xff << 23 { 0x7e00 } else { 0x7c00 };
    let all = if magnitude < (127 + 16) << 23 { small } else { large };
    f16::from_bits((all | sign) as u16)
}
