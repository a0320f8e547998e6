//! Encoding of messages: `bfrops v3` with buffers that do not describe their contents (`NON_DESC`).
//!
//! Integers are big-endian and of fixed width. Each item of a message is preceded by a count, which is 1
//! but for arrays. Some values carry a 16-bit type; the types of the others follow from the command.
//! `size_t`, `int` and the like carry the type of the integer in which the sender has stored them.
//!
//! PMIx never changes this encoding: its newer versions have encodings of their own.

mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub(super) use reader::{DecodeError, Info, Proc, Reader, Value};
pub(super) use writer::{Item, Writer};

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
