//! What messages and reductions are made of.

use half::{bf16, f16};
use std::fmt;

/// The type of an element as it is named at run time: by C, by Python, on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ElementType {
    /// IEEE 754 half precision.
    F16 = 0,
    /// The upper half of an [`ElementType::F32`].
    Bf16 = 1,
    /// IEEE 754 single precision.
    F32 = 2,
    /// IEEE 754 double precision.
    F64 = 3,
    /// Signed, 32 bits.
    I32 = 4,
    /// Signed, 64 bits.
    I64 = 5,
    /// Unsigned, 8 bits: also plain bytes.
    U8 = 6,
    /// Unsigned, 64 bits.
    U64 = 7,
}

impl ElementType {
    /// All of them, by number.
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

    /// In bytes.
    pub fn size(self) -> usize {
        match self {
            ElementType::U8 => 1,
            ElementType::F16 | ElementType::Bf16 => 2,
            ElementType::F32 | ElementType::I32 => 4,
            ElementType::F64 | ElementType::I64 | ElementType::U64 => 8,
        }
    }

    /// `f32`, as Rust, numpy and torch know it.
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

/// How elements are reduced to one. All are commutative; integers wrap around.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// a + b
    Sum = 0,
    /// a · b
    Product = 1,
    /// The lesser; not a number when either is none.
    Min = 2,
    /// The greater; not a number when either is none.
    Max = 3,
}

impl Op {
    /// All of them, by number.
    pub const ALL: [Op; 4] = [Op::Sum, Op::Product, Op::Min, Op::Max];

    /// `sum`, as Python names it.
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

/// A type that messages are made of.
pub trait Element: sealed::Sealed + bytemuck::Pod + Send + Sync + 'static {
    /// Its name at run time.
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
