//! Element types, converted from the notations of Python's buffer protocols.

use rlaunch_comm::ElementType;
use std::fmt;

/// Kind of number, regardless of its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberKind {
    Signed,
    Unsigned,
    Float,
    Bfloat,
    Complex,
    Bool,
}

/// Type of a buffer's elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Dtype {
    /// Type that can be reduced.
    Element(ElementType),
    /// Type that cannot be reduced: its name, and its size in bytes. Elements are transferred as
    /// bytes.
    Other(String, usize),
}

/// Error that elements are not in native byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NonNativeOrder;

impl Dtype {
    fn new(kind: NumberKind, size: usize) -> Dtype {
        let element = match (kind, size) {
            (NumberKind::Float, 2) => ElementType::F16,
            (NumberKind::Bfloat, 2) => ElementType::Bf16,
            (NumberKind::Float, 4) => ElementType::F32,
            (NumberKind::Float, 8) => ElementType::F64,
            (NumberKind::Signed, 4) => ElementType::I32,
            (NumberKind::Signed, 8) => ElementType::I64,
            (NumberKind::Unsigned, 1) => ElementType::U8,
            (NumberKind::Unsigned, 8) => ElementType::U64,
            _ => return Dtype::Other(numpy_name(kind, size), size),
        };
        Dtype::Element(element)
    }

    /// Parses a format of the buffer protocol (module `struct`), like `f` or `<q`.
    pub(crate) fn from_format(format: &str, size: usize) -> Result<Dtype, NonNativeOrder> {
        let (order, letters) = match format.as_bytes() {
            [order @ (b'@' | b'=' | b'<' | b'>' | b'!'), ..] => (*order, &format[1..]),
            _ => (b'@', format),
        };
        if size > 1 && is_non_native(order) {
            return Err(NonNativeOrder);
        }
        let kind = match letters {
            "b" | "h" | "i" | "l" | "q" | "n" => NumberKind::Signed,
            "B" | "H" | "I" | "L" | "Q" | "N" | "c" => NumberKind::Unsigned,
            "e" | "f" | "d" | "g" => NumberKind::Float,
            "Zf" | "Zd" | "Zg" => NumberKind::Complex,
            "?" => NumberKind::Bool,
            _ => return Ok(Dtype::Other(format.to_owned(), size)),
        };
        Ok(Dtype::new(kind, size))
    }

    /// Parses a typestr of `__array_interface__`, like `<f4` or `|u1`; `None` if it is invalid.
    pub(crate) fn from_typestr(typestr: &str) -> Option<Result<Dtype, NonNativeOrder>> {
        let order = *typestr.as_bytes().first()?;
        let letter = typestr.get(1..2)?;
        let size: usize = typestr.get(2..)?.parse().ok().filter(|size| *size > 0)?;
        if size > 1 && is_non_native(order) {
            return Some(Err(NonNativeOrder));
        }
        let kind = match letter {
            "i" => NumberKind::Signed,
            "u" => NumberKind::Unsigned,
            "f" => NumberKind::Float,
            "c" => NumberKind::Complex,
            "b" => NumberKind::Bool,
            _ => return Some(Ok(Dtype::Other(typestr.to_owned(), size))),
        };
        Some(Ok(Dtype::new(kind, size)))
    }

    /// Converts a DLPack type; `None` if an element is not a whole number of bytes.
    pub(crate) fn from_dlpack(code: u8, bits: u8, lanes: u16) -> Option<Dtype> {
        let bytes = u32::from(bits) * u32::from(lanes);
        let size = usize::try_from(bytes / 8).ok().filter(|size| *size > 0 && bytes % 8 == 0)?;
        let kind = match code {
            0 => NumberKind::Signed,
            1 => NumberKind::Unsigned,
            2 => NumberKind::Float,
            4 => NumberKind::Bfloat,
            5 => NumberKind::Complex,
            6 => NumberKind::Bool,
            _ => return Some(Dtype::Other(format!("type {code} of DLPack"), size)),
        };
        if lanes != 1 {
            return Some(Dtype::Other(format!("vector of {lanes}"), size));
        }
        Some(Dtype::new(kind, size))
    }

    pub(crate) fn bytes() -> Dtype {
        Dtype::Element(ElementType::U8)
    }

    pub(crate) fn bfloat16() -> Dtype {
        Dtype::Element(ElementType::Bf16)
    }

    /// Returns the size in bytes.
    pub(crate) fn size(&self) -> usize {
        match self {
            Dtype::Element(element) => element.size(),
            Dtype::Other(_, size) => *size,
        }
    }

    /// Returns the alignment that addresses of elements need, in bytes.
    pub(crate) fn alignment(&self) -> usize {
        match self {
            Dtype::Element(element) => element.size(),
            Dtype::Other(..) => 1,
        }
    }
}

fn is_non_native(order: u8) -> bool {
    match order {
        b'>' | b'!' => cfg!(target_endian = "little"),
        b'<' => cfg!(target_endian = "big"),
        _ => false,
    }
}

fn numpy_name(kind: NumberKind, size: usize) -> String {
    let kind = match kind {
        NumberKind::Signed => "int",
        NumberKind::Unsigned => "uint",
        NumberKind::Float => "float",
        NumberKind::Bfloat => "bfloat",
        NumberKind::Complex => "complex",
        NumberKind::Bool => return "bool".to_owned(),
    };
    format!("{kind}{}", 8 * size)
}

/// Writes numpy's name of the type.
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
