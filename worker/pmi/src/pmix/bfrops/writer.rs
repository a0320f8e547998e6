//! Writing of encoded messages.

use super::kind;

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
