//! Encoding of messages: `bfrops v3` with buffers that do not describe their contents (`NON_DESC`).
//!
//! Integers are big-endian and of fixed width. Each item of a message is preceded by a count, which is 1
//! but for arrays. Some values carry a 16-bit type; the types of the others follow from the command.
//! `size_t`, `int` and the like carry the type of the integer in which the sender has stored them.
//!
//! PMIx never changes this encoding: its newer versions have encodings of their own.
//!
//! Writing of encoded messages.
//!
//! Status codes of PMIx, as they are sent to clients. They are frozen by the PMIx standard.

mod reader;

pub(super) use reader::{DecodeError, Info, Proc, Reader, Value};

/// Types of values, with their numbers.
pub(super) mod kind {
    pub(in crate::pmix) const UNDEFINED: u16 = 0;
    pub(in crate::pmix) const BOOL: u16 = 1;
    pub(in crate::pmix) const BYTE: u16 = 2;
    pub(in crate::pmix) const STRING: u16 = 3;
    pub(in crate::pmix) const SIZE: u16 = 4;
    pub(in crate::pmix) const PID: u16 = 5;
    pub(in crate::pmix) const INT: u16 = 6;
    pub(in crate::pmix) const INT8: u16 = 7;
    pub(in crate::pmix) const INT16: u16 = 8;
    pub(in crate::pmix) const INT32: u16 = 9;
    pub(in crate::pmix) const INT64: u16 = 10;
    pub(in crate::pmix) const UINT: u16 = 11;
    pub(in crate::pmix) const UINT8: u16 = 12;
    pub(in crate::pmix) const UINT16: u16 = 13;
    pub(in crate::pmix) const UINT32: u16 = 14;
    pub(in crate::pmix) const UINT64: u16 = 15;
    pub(in crate::pmix) const FLOAT: u16 = 16;
    pub(in crate::pmix) const DOUBLE: u16 = 17;
    pub(in crate::pmix) const TIMEVAL: u16 = 18;
    pub(in crate::pmix) const TIME: u16 = 19;
    pub(in crate::pmix) const STATUS: u16 = 20;
    pub(in crate::pmix) const VALUE: u16 = 21;
    pub(in crate::pmix) const PROC: u16 = 22;
    pub(in crate::pmix) const APP: u16 = 23;
    pub(in crate::pmix) const INFO: u16 = 24;
    pub(in crate::pmix) const PDATA: u16 = 25;
    pub(in crate::pmix) const BUFFER: u16 = 26;
    pub(in crate::pmix) const BYTE_OBJECT: u16 = 27;
    pub(in crate::pmix) const KVAL: u16 = 28;
    pub(in crate::pmix) const MODEX: u16 = 29;
    pub(in crate::pmix) const PERSIST: u16 = 30;
    pub(in crate::pmix) const POINTER: u16 = 31;
    pub(in crate::pmix) const SCOPE: u16 = 32;
    pub(in crate::pmix) const DATA_RANGE: u16 = 33;
    pub(in crate::pmix) const COMMAND: u16 = 34;
    pub(in crate::pmix) const INFO_DIRECTIVES: u16 = 35;
    pub(in crate::pmix) const DATA_TYPE: u16 = 36;
    pub(in crate::pmix) const PROC_STATE: u16 = 37;
    pub(in crate::pmix) const PROC_INFO: u16 = 38;
    pub(in crate::pmix) const DATA_ARRAY: u16 = 39;
    pub(in crate::pmix) const PROC_RANK: u16 = 40;
    pub(in crate::pmix) const QUERY: u16 = 41;
    pub(in crate::pmix) const COMPRESSED_STRING: u16 = 42;
    pub(in crate::pmix) const ALLOC_DIRECTIVE: u16 = 43;
    pub(in crate::pmix) const INFO_ARRAY: u16 = 44;
    pub(in crate::pmix) const IOF_CHANNEL: u16 = 45;
    pub(in crate::pmix) const ENVAR: u16 = 46;
}

/// Encoded bytes.
#[derive(Debug, Default)]
pub(in crate::pmix) struct Writer {
    bytes: Vec<u8>,
}

/// Value to write, with its type.
#[derive(Clone, Copy, Debug)]
pub(in crate::pmix) enum Item<'a> {
    U16(u16),
    U32(u32),
    Size(u64),
    Rank(u32),
    Text(&'a str),
    Bytes(&'a [u8]),
    /// Array of infos without directives.
    Infos(&'a [(&'a str, Item<'a>)]),
}

impl Writer {
    /// Creates an empty message.
    pub(in crate::pmix) fn new() -> Writer {
        Writer::default()
    }

    /// Returns the message.
    pub(in crate::pmix) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Writes bytes that are encoded already.
    pub(in crate::pmix) fn raw(&mut self, bytes: &[u8]) -> &mut Writer {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Writes a byte.
    pub(in crate::pmix) fn u8(&mut self, value: u8) -> &mut Writer {
        self.raw(&[value])
    }

    /// Writes a 16-bit number, for example a type.
    pub(in crate::pmix) fn u16(&mut self, value: u16) -> &mut Writer {
        self.raw(&value.to_be_bytes())
    }

    /// Writes a 32-bit number, for example a rank.
    pub(in crate::pmix) fn u32(&mut self, value: u32) -> &mut Writer {
        self.raw(&value.to_be_bytes())
    }

    /// Writes a signed 32-bit number, for example a status.
    pub(in crate::pmix) fn i32(&mut self, value: i32) -> &mut Writer {
        self.raw(&value.to_be_bytes())
    }

    /// Writes the count before an item of a message.
    pub(in crate::pmix) fn count(&mut self, count: usize) -> &mut Writer {
        self.u32(length(count))
    }

    /// Writes a string.
    pub(in crate::pmix) fn string(&mut self, text: &[u8]) -> &mut Writer {
        self.u32(length(text.len() + 1)).raw(text).u8(0)
    }

    /// Writes a `size_t`.
    pub(in crate::pmix) fn size(&mut self, size: u64) -> &mut Writer {
        self.u16(kind::UINT64).raw(&size.to_be_bytes())
    }

    /// Writes a `size_t` and as many bytes.
    pub(in crate::pmix) fn byte_object(&mut self, bytes: &[u8]) -> &mut Writer {
        self.size(bytes.len() as u64).raw(bytes)
    }

    /// Writes the name of a process.
    pub(in crate::pmix) fn proc(&mut self, namespace: &str, rank: u32) -> &mut Writer {
        self.string(namespace.as_bytes()).u32(rank)
    }

    /// Writes a value with its type.
    pub(in crate::pmix) fn value(&mut self, value: Item<'_>) -> &mut Writer {
        match value {
            Item::U16(value) => self.u16(kind::UINT16).u16(value),
            Item::U32(value) => self.u16(kind::UINT32).u32(value),
            Item::Size(value) => self.u16(kind::SIZE).size(value),
            Item::Rank(value) => self.u16(kind::PROC_RANK).u32(value),
            Item::Text(text) => self.u16(kind::STRING).string(text.as_bytes()),
            Item::Bytes(bytes) => self.u16(kind::BYTE_OBJECT).byte_object(bytes),
            Item::Infos(infos) => {
                self.u16(kind::DATA_ARRAY).u16(kind::INFO).size(infos.len() as u64);
                for &(key, value) in infos {
                    self.info(key, 0, value);
                }
                self
            }
        }
    }

    /// Writes an info with its directives.
    pub(in crate::pmix) fn info(&mut self, key: &str, flags: u32, value: Item<'_>) -> &mut Writer {
        self.string(key.as_bytes()).u32(flags).value(value)
    }

    /// Writes an item that is a value with a qualifier, which tells it apart from other values with its
    /// key. `info` is the encoded info with key and value, `qualify` writes the info that qualifies it.
    pub(in crate::pmix) fn qualified(
        &mut self,
        info: &[u8],
        qualify: impl FnOnce(&mut Writer),
    ) -> &mut Writer {
        self.count(1).string(b"pmix.qual.val").u16(kind::DATA_ARRAY).u16(kind::INFO);
        self.size(2).raw(info);
        qualify(self);
        self
    }

    /// Writes an item that is a key and value.
    pub(in crate::pmix) fn key_value(&mut self, key: &str, value: Item<'_>) -> &mut Writer {
        self.count(1).string(key.as_bytes()).value(value)
    }
}

/// Returns a length as the encoding has it. Messages of this server are far shorter than 4 GiB.
fn length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Status of a request; zero is success, the others are negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Status(pub(super) i32);

impl Status {
    /// `PMIX_SUCCESS`.
    pub(super) const SUCCESS: Status = Status(0);
    /// `PMIX_ERR_PROC_ABORTED`: another rank has ended before it took part.
    pub(super) const PROC_ABORTED: Status = Status(-7);
    /// `PMIX_ERR_UNPACK_FAILURE`: the request is malformed.
    pub(super) const UNPACK_FAILURE: Status = Status(-20);
    /// `PMIX_ERR_TIMEOUT`: the time that the client has set is over.
    pub(super) const TIMEOUT: Status = Status(-24);
    /// `PMIX_ERR_BAD_PARAM`: the request makes no sense.
    pub(super) const BAD_PARAM: Status = Status(-27);
    /// `PMIX_ERR_OUT_OF_RESOURCE`: a limit of this server is reached.
    pub(super) const OUT_OF_RESOURCE: Status = Status(-29);
    /// `PMIX_ERR_NOT_FOUND`.
    pub(super) const NOT_FOUND: Status = Status(-46);
    /// `PMIX_ERR_NOT_SUPPORTED`.
    pub(super) const NOT_SUPPORTED: Status = Status(-47);
}

#[cfg(test)]
mod tests;
