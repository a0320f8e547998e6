//! Element types of messages and operations of reductions.

use half::{bf16, f16};
use std::fmt;

/// Element type as a run-time value, for callers in C and Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ElementType {
    /// IEEE 754 half precision.
    F16 = 0,
    /// bfloat16: the upper 16 bits of an [`ElementType::F32`].
    Bf16 = 1,
    /// IEEE 754 single precision.
    F32 = 2,
    /// IEEE 754 double precision.
    F64 = 3,
    /// Signed 32-bit integer.
    I32 = 4,
    /// Signed 64-bit integer.
    I64 = 5,
    /// Unsigned 8-bit integer, also used for raw bytes.
    U8 = 6,
    /// Unsigned 64-bit integer.
    U64 = 7,
}

impl ElementType {
    /// All element types, each at the index of its discriminant.
    pub const ALL: [ElementType; 8] = [
        ElementType::F16,
        ElementType::Bf16,
        ElementType::F32,
        ElementType::F64,
        ElementType::I32,
        ElementType::I64,
        ElementType::U8,
        ElementType::U64,
    ];

    /// Returns the size of an element in bytes.
    pub fn size(self) -> usize {
        match self {
            ElementType::U8 => 1,
            ElementType::F16 | ElementType::Bf16 => 2,
            ElementType::F32 | ElementType::I32 => 4,
            ElementType::F64 | ElementType::I64 | ElementType::U64 => 8,
        }
    }

    /// Returns the short name that errors and `rlaunch bench` use, such as `f32`.
    pub fn name(self) -> &'static str {
        match self {
            ElementType::F16 => "f16",
            ElementType::Bf16 => "bf16",
            ElementType::F32 => "f32",
            ElementType::F64 => "f64",
            ElementType::I32 => "i32",
            ElementType::I64 => "i64",
            ElementType::U8 => "u8",
            ElementType::U64 => "u64",
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reduction operation. All operations are commutative, and integers wrap around on overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// Sum.
    Sum = 0,
    /// Product.
    Product = 1,
    /// Minimum; NaN if either operand is NaN.
    Min = 2,
    /// Maximum; NaN if either operand is NaN.
    Max = 3,
}

impl Op {
    /// All operations, each at the index of its discriminant.
    pub const ALL: [Op; 4] = [Op::Sum, Op::Product, Op::Min, Op::Max];

    /// Returns the name that the Python interface uses, such as `sum`.
    pub fn name(self) -> &'static str {
        match self {
            Op::Sum => "sum",
            Op::Product => "prod",
            Op::Min => "min",
            Op::Max => "max",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// Rust type of the elements that messages and collectives transfer.
pub trait Element: sealed::Sealed + bytemuck::Pod + Send + Sync + 'static {
    /// Run-time value that stands for this type.
    const TYPE: ElementType;
}

macro_rules! elements {
    ($($rust:ty => $name:ident),*) => {
        $(
            impl sealed::Sealed for $rust {}
            impl Element for $rust {
                const TYPE: ElementType = ElementType::$name;
            }
        )*
    };
}

elements!(f16 => F16, bf16 => Bf16, f32 => F32, f64 => F64, i32 => I32, i64 => I64, u8 => U8, u64 => U64);
