//! Reading of encoded messages.

use super::kind;
use thiserror::Error;

/// Maximum number of values inside one another: arrays of arrays, or values of values. Clients have been
/// seen with two; the limit bounds the stack.
const DEPTH_MAX: u32 = 16;

/// Reason why bytes cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(in crate::pmix) enum DecodeError {
    /// The message ends inside an item.
    #[error("the message ends inside an item")]
    End,
    /// The type is not part of the encoding.
    #[error("a type is unknown")]
    Type,
    /// A count or length is not possible here.
    #[error("a count or length is not possible")]
    Count,
    /// A string does not end with a zero byte, or has another.
    #[error("a string does not end with its only zero byte")]
    Text,
    /// A string is missing that the request needs.
    #[error("a string is missing")]
    NoText,
    /// Values are nested too deeply.
    #[error("values are nested more than {DEPTH_MAX} times")]
    Depth,
}

/// Encoded bytes that have not been read yet.
#[derive(Clone, Copy, Debug)]
pub(in crate::pmix) struct Reader<'a> {
    rest: &'a [u8],
}

/// Name of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pmix) struct Proc<'a> {
    /// Name of its job.
    pub(in crate::pmix) namespace: &'a [u8],
    /// Its rank, or one of the numbers that stand for several ranks.
    pub(in crate::pmix) rank: u32,
}

/// Value with its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pmix) struct Value<'a> {
    /// Number of the type, see [`kind`].
    pub(in crate::pmix) kind: u16,
    /// Encoded value, without the type.
    pub(in crate::pmix) encoded: &'a [u8],
}

/// Key and value that qualify a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pmix) struct Info<'a> {
    pub(in crate::pmix) key: &'a [u8],
    pub(in crate::pmix) value: Value<'a>,
    /// Whole info as it was encoded.
    pub(in crate::pmix) encoded: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader of encoded bytes.
    pub(in crate::pmix) fn new(rest: &'a [u8]) -> Reader<'a> {
        Reader { rest }
    }

    /// Returns the bytes that have not been read.
    pub(in crate::pmix) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Tells whether everything has been read.
    pub(in crate::pmix) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads this number of bytes.
    pub(in crate::pmix) fn bytes(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::End)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(DecodeError::End)?;
        self.rest = rest;
        Ok(*bytes)
    }

    /// Reads a byte.
    pub(in crate::pmix) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(u8::from_be_bytes)
    }

    /// Reads a 16-bit number, for example a type.
    pub(in crate::pmix) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    /// Reads a 32-bit number, for example a rank.
    pub(in crate::pmix) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads a 64-bit number.
    pub(in crate::pmix) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads a signed 32-bit number, for example a status.
    pub(in crate::pmix) fn i32(&mut self) -> Result<i32, DecodeError> {
        self.array().map(i32::from_be_bytes)
    }

    /// Reads the count before an item of a message. Returns an error if it is not the expected one.
    pub(in crate::pmix) fn count(&mut self, expected: usize) -> Result<(), DecodeError> {
        let count = self.i32()?;
        if usize::try_from(count) == Ok(expected) { Ok(()) } else { Err(DecodeError::Count) }
    }

    /// Reads a string, without its end; `None` if the sender had none.
    pub(in crate::pmix) fn optional_string(&mut self) -> Result<Option<&'a [u8]>, DecodeError> {
        let length = self.i32()?;
        let length = usize::try_from(length).map_err(|_| DecodeError::Count)?;
        if length == 0 {
            return Ok(None);
        }
        match self.bytes(length)?.split_last() {
            Some((0, text)) if !text.contains(&0) => Ok(Some(text)),
            _ => Err(DecodeError::Text),
        }
    }

    /// Reads a string, without its end.
    pub(in crate::pmix) fn string(&mut self) -> Result<&'a [u8], DecodeError> {
        self.optional_string()?.ok_or(DecodeError::NoText)
    }

    /// Reads an integer that is preceded by its type.
    fn tagged(&mut self) -> Result<i64, DecodeError> {
        let tag = self.u16()?;
        self.integer(tag)
    }

    /// Reads an integer of a type of fixed width. Greater values than `i64::MAX` become that.
    fn integer(&mut self, tag: u16) -> Result<i64, DecodeError> {
        Ok(match tag {
            kind::INT8 => i8::from_be_bytes(self.array()?).into(),
            kind::UINT8 | kind::BYTE => self.u8()?.into(),
            kind::INT16 => i16::from_be_bytes(self.array()?).into(),
            kind::UINT16 => self.u16()?.into(),
            kind::INT32 => self.i32()?.into(),
            kind::UINT32 => self.u32()?.into(),
            kind::INT64 => i64::from_be_bytes(self.array()?),
            kind::UINT64 => i64::try_from(u64::from_be_bytes(self.array()?)).unwrap_or(i64::MAX),
            _ => return Err(DecodeError::Type),
        })
    }

    /// Reads a `size_t`.
    pub(in crate::pmix) fn size(&mut self) -> Result<usize, DecodeError> {
        let size = self.tagged()?;
        usize::try_from(size).map_err(|_| DecodeError::Count)
    }

    /// Reads a `size_t` and as many bytes.
    pub(in crate::pmix) fn byte_object(&mut self) -> Result<&'a [u8], DecodeError> {
        let size = self.size()?;
        self.bytes(size)
    }

    /// Reads a buffer: a byte that says how it is encoded, a `size_t`, and as many bytes.
    pub(in crate::pmix) fn buffer(&mut self) -> Result<&'a [u8], DecodeError> {
        self.u8()?;
        self.byte_object()
    }

    /// Reads the name of a process.
    pub(in crate::pmix) fn proc(&mut self) -> Result<Proc<'a>, DecodeError> {
        Ok(Proc { namespace: self.string()?, rank: self.u32()? })
    }

    /// Reads a value with its type.
    pub(in crate::pmix) fn value(&mut self) -> Result<Value<'a>, DecodeError> {
        self.value_at(0)
    }

    fn value_at(&mut self, depth: u32) -> Result<Value<'a>, DecodeError> {
        let kind = self.u16()?;
        let start = self.rest;
        if kind != kind::UNDEFINED {
            self.skip(kind, depth)?;
        }
        Ok(Value { kind, encoded: self.since(start) })
    }

    /// Reads an info.
    pub(in crate::pmix) fn info(&mut self) -> Result<Info<'a>, DecodeError> {
        self.info_at(0)
    }

    fn info_at(&mut self, depth: u32) -> Result<Info<'a>, DecodeError> {
        let start = self.rest;
        let key = self.string()?;
        self.u32()?;
        let value = self.value_at(depth)?;
        Ok(Info { key, value, encoded: self.since(start) })
    }

    /// Reads an item that is a `size_t` and, unless it is zero, an item of as many infos.
    pub(in crate::pmix) fn infos(&mut self) -> Result<Vec<Info<'a>>, DecodeError> {
        self.items(Reader::info)
    }

    /// Reads an item that is a `size_t` and, unless it is zero, an item of as many names of processes.
    pub(in crate::pmix) fn procs(&mut self) -> Result<Vec<Proc<'a>>, DecodeError> {
        self.items(Reader::proc)
    }

    fn items<T>(
        &mut self,
        mut read: impl FnMut(&mut Reader<'a>) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        self.count(1)?;
        let number = self.size()?;
        if number > 0 {
            self.count(number)?;
        }
        let mut items = Vec::new();
        for _ in 0..number {
            items.push(read(self)?);
        }
        Ok(items)
    }

    /// Reads a key and value. Returns the key and all bytes of both.
    pub(in crate::pmix) fn key_value(&mut self) -> Result<(&'a [u8], &'a [u8]), DecodeError> {
        let start = self.rest;
        let key = self.string()?;
        self.value()?;
        Ok((key, self.since(start)))
    }

    /// Returns the bytes that were read since `start` was not read yet.
    fn since(&self, start: &'a [u8]) -> &'a [u8] {
        start.get(..start.len() - self.rest.len()).unwrap_or_default()
    }

    fn strings(&mut self, number: i64) -> Result<(), DecodeError> {
        for _ in 0..number {
            self.optional_string()?;
        }
        Ok(())
    }

    /// Reads one item of a type, of which the server needs nothing but its end.
    fn skip(&mut self, kind: u16, depth: u32) -> Result<(), DecodeError> {
        if depth >= DEPTH_MAX {
            return Err(DecodeError::Depth);
        }
        if let Some(width) = width(kind) {
            return self.bytes(width).map(|_| ());
        }
        match kind {
            kind::SIZE | kind::PID | kind::INT | kind::UINT => self.tagged().map(|_| ())?,
            kind::STRING | kind::FLOAT | kind::DOUBLE => self.optional_string().map(|_| ())?,
            kind::BYTE_OBJECT | kind::COMPRESSED_STRING | kind::MODEX => {
                self.byte_object().map(|_| ())?;
            }
            kind::BUFFER => self.buffer().map(|_| ())?,
            kind::PROC => self.proc().map(|_| ())?,
            kind::VALUE => self.value_at(depth + 1).map(|_| ())?,
            kind::INFO => self.info_at(depth + 1).map(|_| ())?,
            kind::KVAL => {
                self.string()?;
                self.value_at(depth + 1)?;
            }
            kind::PDATA => {
                self.proc()?;
                self.string()?;
                self.value_at(depth + 1)?;
            }
            kind::ENVAR => {
                self.strings(2)?;
                self.u8()?;
            }
            kind::PROC_INFO => {
                self.proc()?;
                self.strings(2)?;
                self.tagged()?;
                self.u8()?;
            }
            kind::DATA_ARRAY => self.skip_array(depth)?,
            kind::INFO_ARRAY => self.skip_infos(depth)?,
            kind::QUERY => {
                let keys = self.i32()?;
                self.strings(keys.into())?;
                self.skip_infos(depth)?;
            }
            kind::APP => self.skip_app(depth)?,
            _ => return Err(DecodeError::Type),
        }
        Ok(())
    }

    /// Reads an array: the type of its elements, their number, and the elements.
    fn skip_array(&mut self, depth: u32) -> Result<(), DecodeError> {
        let element = self.u16()?;
        let number = self.size()?;
        if element != kind::UNDEFINED {
            // Each element has a byte at least, so that a great number ends the message soon.
            for _ in 0..number {
                self.skip(element, depth + 1)?;
            }
        }
        Ok(())
    }

    fn skip_infos(&mut self, depth: u32) -> Result<(), DecodeError> {
        for _ in 0..self.size()? {
            self.info_at(depth + 1)?;
        }
        Ok(())
    }

    /// Reads a program to spawn: command, arguments, environment, folder, number of processes, infos.
    fn skip_app(&mut self, depth: u32) -> Result<(), DecodeError> {
        self.optional_string()?;
        let arguments = self.tagged()?;
        self.strings(arguments)?;
        let variables = self.i32()?;
        self.strings(variables.into())?;
        self.optional_string()?;
        self.tagged()?;
        self.skip_infos(depth)
    }
}

/// Returns the size in bytes of an item of this type; `None` if it varies.
pub(super) fn width(kind: u16) -> Option<usize> {
    Some(match kind {
        kind::BOOL
        | kind::BYTE
        | kind::INT8
        | kind::UINT8
        | kind::PERSIST
        | kind::POINTER
        | kind::SCOPE
        | kind::DATA_RANGE
        | kind::COMMAND
        | kind::PROC_STATE
        | kind::ALLOC_DIRECTIVE => 1,
        kind::INT16 | kind::UINT16 | kind::DATA_TYPE | kind::IOF_CHANNEL => 2,
        kind::INT32 | kind::UINT32 | kind::STATUS | kind::INFO_DIRECTIVES | kind::PROC_RANK => 4,
        kind::INT64 | kind::UINT64 | kind::TIME => 8,
        kind::TIMEVAL => 16,
        _ => return None,
    })
}

impl<'a> Value<'a> {
    /// Tells whether a flag is set. A flag without value is set.
    pub(in crate::pmix) fn is_set(&self) -> bool {
        self.kind != kind::BOOL || self.encoded.first().is_some_and(|&byte| byte != 0)
    }

    /// Returns the value of an integer type; `None` for another type.
    pub(in crate::pmix) fn integer(&self) -> Option<i64> {
        let mut reader = Reader::new(self.encoded);
        match self.kind {
            kind::SIZE | kind::PID | kind::INT | kind::UINT => reader.tagged().ok(),
            kind::PERSIST => reader.u8().ok().map(i64::from),
            kind => reader.integer(kind).ok(),
        }
    }

    /// Returns the bytes of a byte object; `None` for another type.
    pub(in crate::pmix) fn bytes(&self) -> Option<&'a [u8]> {
        let mut reader = Reader::new(self.encoded);
        if self.kind == kind::BYTE_OBJECT { reader.byte_object().ok() } else { None }
    }

    /// Returns the bytes of a string; `None` for another type.
    pub(in crate::pmix) fn text(&self) -> Option<&'a [u8]> {
        if self.kind == kind::STRING { Reader::new(self.encoded).string().ok() } else { None }
    }

    /// Returns the infos of an array of infos; `None` for another type.
    pub(in crate::pmix) fn infos(&self) -> Option<Vec<Info<'a>>> {
        let mut reader = Reader::new(self.encoded);
        if self.kind != kind::DATA_ARRAY || reader.u16().ok()? != kind::INFO {
            return None;
        }
        let mut infos = Vec::new();
        for _ in 0..reader.size().ok()? {
            infos.push(reader.info().ok()?);
        }
        Some(infos)
    }
}
