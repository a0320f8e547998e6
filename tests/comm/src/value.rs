//! Small integers, which every element type represents exactly.

use half::{bf16, f16};
use rlaunch_comm::{Element, Op};

/// Element type that small integers convert to.
pub(crate) trait Value: Element + std::fmt::Debug {
    fn from_number(number: u32) -> Self;
    fn reduced(op: Op, a: Self, b: Self) -> Self;
}

macro_rules! values {
    ($($type:ty: $from_number:expr, $sum:expr, $product:expr;)*) => {
        $(
            impl Value for $type {
                fn from_number(number: u32) -> $type {
                    ($from_number)(number)
                }

                fn reduced(op: Op, a: $type, b: $type) -> $type {
                    match op {
                        Op::Sum => ($sum)(a, b),
                        Op::Product => ($product)(a, b),
                        Op::Min => if a < b { a } else { b },
                        Op::Max => if a < b { b } else { a },
                    }
                }
            }
        )*
    };
}

values! {
    f16: |n| f16::from_f32(n as f32), |a, b| a + b, |a, b| a * b;
    bf16: |n| bf16::from_f32(n as f32), |a, b| a + b, |a, b| a * b;
    f32: |n| n as f32, |a, b| a + b, |a, b| a * b;
    f64: f64::from, |a, b| a + b, |a, b| a * b;
    i32: |n| n as i32, i32::wrapping_add, i32::wrapping_mul;
    i64: i64::from, i64::wrapping_add, i64::wrapping_mul;
    u8: |n| n as u8, u8::wrapping_add, u8::wrapping_mul;
    u64: u64::from, u64::wrapping_add, u64::wrapping_mul;
}

/// Returns element `at` of the input of `rank`. Sums and products over 8 ranks are exact with 8
/// bits of mantissa.
pub(crate) fn input_value<V: Value>(op: Op, rank: usize, at: usize) -> V {
    let number = match op {
        Op::Product => 1 + (rank + at) as u32 % 2,
        Op::Sum | Op::Min | Op::Max => ((rank * 5 + at * 3) % 11) as u32,
    };
    V::from_number(number)
}
