//! Types of elements as Python's protocols name them.

use rlaunch_comm::ElementType;
use std::fmt;

/// What kind of number it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Signed,
    Unsigned,
    Float,
    Bfloat,
    Complex,
    Bool,
}

/// The type of a buffer's elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Dtype {
    /// One that can be reduced.
    Element(ElementType),
    /// One that can only be moved: its name, and its size in bytes.
    Other(String, usize),
}

/// Numbers of a machine with the other byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Swapped;

impl Dtype {
    fn of(class: Class, size: usize) -> Dtype {
        let element = match (class, size) {
            (Class::Float, 2) => ElementType::F16,
            (Class::Bfloat, 2) => ElementType::Bf16,
            (Class::Float, 4) => ElementType::F32,
            (Class::Float, 8) => ElementType::F64,
            (Class::Signed, 4) => ElementType::I32,
            (Class::Signed, 8) => ElementType::I64,
            (Class::Unsigned, 1) => ElementType::U8,
            (Class::Unsigned, 8) => ElementType::U64,
            _ => return Dtype::Other(name(class, size), size),
        };
        Dtype::Element(element)
    }

    /// As the buffer protocol writes it: `f`, `<q`.
    pub(crate) fn from_format(format: &str, size: usize) -> Result<Dtype, Swapped> {
        let (order, letters) = match format.as_bytes() {
            [order @ (b'@' | b'=' | b'<' | b'>' | b'!'), ..] => (*order, &format[1..]),
            _ => (b'@', format),
        };
        if size > 1 && is_foreign(order) {
            return Err(Swapped);
        }
        let class = match letters {
            "b" | "h" | "i" | "l" | "q" | "n" => Class::Signed,
            "B" | "H" | "I" | "L" | "Q" | "N" | "c" => Class::Unsigned,
            "e" | "f" | "d" | "g" => Class::Float,
            "Zf" | "Zd" | "Zg" => Class::Complex,
            "?" => Class::Bool,
            _ => return Ok(Dtype::Other(format.to_owned(), size)),
        };
        Ok(Dtype::of(class, size))
    }

    /// As `__array_interface__` writes it: `<f4`, `|u1`. None where it is none.
    pub(crate) fn from_typestr(typestr: &str) -> Option<Result<Dtype, Swapped>> {
        let order = *typestr.as_bytes().first()?;
        let kind = typestr.get(1..2)?;
        let size: usize = typestr.get(2..)?.parse().ok().filter(|size| *size > 0)?;
        if size > 1 && is_foreign(order) {
            return Some(Err(Swapped));
        }
        let class = match kind {
            "i" => Class::Signed,
            "u" => Class::Unsigned,
            "f" => Class::Float,
            "c" => Class::Complex,
            "b" => Class::Bool,
            _ => return Some(Ok(Dtype::Other(typestr.to_owned(), size))),
        };
        Some(Ok(Dtype::of(class, size)))
    }

    /// As DLPack writes it. None where elements are no whole bytes.
    pub(crate) fn from_dlpack(code: u8, bits: u8, lanes: u16) -> Option<Dtype> {
        let bytes = u32::from(bits) * u32::from(lanes);
        let size = usize::try_from(bytes / 8).ok().filter(|size| *size > 0 && bytes % 8 == 0)?;
        let class = match code {
            0 => Class::Signed,
            1 => Class::Unsigned,
            2 => Class::Float,
            4 => Class::Bfloat,
            5 => Class::Complex,
            6 => Class::Bool,
            _ => return Some(Dtype::Other(format!("type {code} of DLPack"), size)),
        };
        if lanes != 1 {
            return Some(Dtype::Other(format!("vector of {lanes}"), size));
        }
        Some(Dtype::of(class, size))
    }

    pub(crate) fn bytes() -> Dtype {
        Dtype::Element(ElementType::U8)
    }

    pub(crate) fn bfloat16() -> Dtype {
        Dtype::Element(ElementType::Bf16)
    }

    /// In bytes.
    pub(crate) fn size(&self) -> usize {
        match self {
            Dtype::Element(element) => element.size(),
            Dtype::Other(_, size) => *size,
        }
    }

    /// What its address has to be a multiple of.
    pub(crate) fn alignment(&self) -> usize {
        match self {
            Dtype::Element(element) => element.size(),
            Dtype::Other(..) => 1,
        }
    }
}

fn is_foreign(order: u8) -> bool {
    match order {
        b'>' | b'!' => cfg!(target_endian = "little"),
        b'<' => cfg!(target_endian = "big"),
        _ => false,
    }
}

fn name(class: Class, size: usize) -> String {
    let class = match class {
        Class::Signed => "int",
        Class::Unsigned => "uint",
        Class::Float => "float",
        Class::Bfloat => "bfloat",
        Class::Complex => "complex",
        Class::Bool => return "bool".to_owned(),
    };
    format!("{class}{}", 8 * size)
}

/// As numpy names it.
impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::Element(ElementType::F16) => "float16",
            Dtype::Element(ElementType::Bf16) => "bfloat16",
            Dtype::Element(ElementType::F32) => "float32",
            Dtype::Element(ElementType::F64) => "float64",
            Dtype::Element(ElementType::I32) => "int32",
            Dtype::Element(ElementType::I64) => "int64",
            Dtype::Element(ElementType::U8) => "uint8",
            Dtype::Element(ElementType::U64) => "uint64",
            Dtype::Other(name, _) => name,
        })
    }
}
