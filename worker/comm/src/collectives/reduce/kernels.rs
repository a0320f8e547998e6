//! Portable loops, which are inlined into functions compiled for different vector extensions.

use super::number::{Max, Min, Number, Product, Reduction, Sum};
use crate::types::element::{ElementType, Op};
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
