//! Reader of pickles that contain only dictionaries, lists, tuples, strings and numbers.
//!
//! It knows the operations that torch writes (`torch/csrc/jit/serialization/pickler.h`), which are those of Python's
//! protocol 2. All others, among them those that name classes and functions, are errors. The
//! crate serde-pickle takes real dumps for recursive, since frames are shared by several stacks.

use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Maximum depth of a value. That of a dump is 6.
const MAX_DEPTH: usize = 32;
/// Maximum number of single values and of copies. A dump of 2000 operations has 300,000.
const MAX_COUNT: usize = 4 << 20;

/// Reason why a pickle cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum PickleError {
    #[error("the pickle ends early")]
    Short,
    #[error("the pickle contains operation {0:#04x}, which is not data")]
    Operation(u8),
    #[error("an operation of the pickle does not fit its operands")]
    Operands,
    #[error("the pickle is nested too deeply, or repeats too much")]
    Size,
}

/// Size of a value.
#[derive(Clone, Copy)]
struct Size {
    depth: usize,
    /// Number of values in it, itself included.
    count: usize,
}

/// Size of a value that contains no others.
const SINGLE: Size = Size { depth: 1, count: 1 };

/// Value with its size.
type SizedValue = (Value, Size);

/// Value on the stack, or the mark at which a collection begins.
enum Item {
    Value(Value, Size),
    Mark,
}

/// State of the reader: the pickle's stack, and the values that may be repeated.
#[derive(Default)]
struct Reader<'a> {
    rest: &'a [u8],
    stack: Vec<Item>,
    memo: BTreeMap<u32, SizedValue>,
    /// Number of single values that were pushed, and of values that were copied to or from the memo. Strings and tuples
    /// are bounded by the length of the pickle.
    copied: usize,
}

/// Reads the value of a pickle.
pub(super) fn read(pickle: &[u8]) -> Result<Value, PickleError> {
    let mut reader = Reader { rest: pickle, ..Reader::default() };
    loop {
        let [operation] = reader.take()?;
        match operation {
            b'.' => return Ok(reader.pop()?.0),
            _ => reader.carry_out(operation)?,
        }
    }
}

impl<'a> Reader<'a> {
    /// Carries out an operation, named in the comments as in Python's `pickletools`.
    fn carry_out(&mut self, operation: u8) -> Result<(), PickleError> {
        match operation {
            // PROTO
            0x80 => self.take::<1>().map(drop),
            b'(' => self.mark(),
            // NONE, NEWTRUE, NEWFALSE
            b'N' => self.push(Value::Null),
            0x88 => self.push(true.into()),
            0x89 => self.push(false.into()),
            // BININT1, BININT2, BININT, LONG1, BINFLOAT
            b'K' => self.take().and_then(|[byte]| self.push(byte.into())),
            b'M' => self.take().and_then(|two| self.push(u16::from_le_bytes(two).into())),
            b'J' => self.take().and_then(|four| self.push(i32::from_le_bytes(four).into())),
            0x8a => self.long(),
            b'G' => self.take().and_then(|eight| self.push(f64::from_be_bytes(eight).into())),
            // BINUNICODE
            b'X' => self.take().and_then(|length| self.string(u32::from_le_bytes(length))),
            // EMPTY_DICT, EMPTY_LIST, EMPTY_TUPLE
            b'}' => self.push(Value::Object(Map::new())),
            b']' | b')' => self.push(Value::Array(Vec::new())),
            // BINPUT, LONG_BINPUT
            b'q' => self.take().and_then(|[number]| self.remember(number.into())),
            b'r' => self.take().and_then(|number| self.remember(u32::from_le_bytes(number))),
            // BINGET, LONG_BINGET
            b'h' => self.take().and_then(|[number]| self.repeat(number.into())),
            b'j' => self.take().and_then(|number| self.repeat(u32::from_le_bytes(number))),
            // APPEND, APPENDS, SETITEM, SETITEMS
            b'a' => self.pop().and_then(|value| self.extend(vec![value])),
            b'e' => self.pop_to_mark().and_then(|values| self.extend(values)),
            b's' => self.pop_many(2).and_then(|values| self.set(values)),
            b'u' => self.pop_to_mark().and_then(|values| self.set(values)),
            // TUPLE, TUPLE1, TUPLE2, TUPLE3
            b't' => self.pop_to_mark().and_then(|values| self.tuple(values)),
            0x85..=0x87 => {
                let count = usize::from(operation - 0x84);
                self.pop_many(count).and_then(|values| self.tuple(values))
            }
            _ => Err(PickleError::Operation(operation)),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(PickleError::Short)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn take_slice(&mut self, length: usize) -> Result<&'a [u8], PickleError> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(PickleError::Short)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Pushes a value that contains no others.
    fn push(&mut self, value: Value) -> Result<(), PickleError> {
        self.copied = within(self.copied.saturating_add(1))?;
        self.stack.push(Item::Value(value, SINGLE));
        Ok(())
    }

    fn mark(&mut self) -> Result<(), PickleError> {
        self.stack.push(Item::Mark);
        Ok(())
    }

    fn pop(&mut self) -> Result<SizedValue, PickleError> {
        match self.stack.pop() {
            Some(Item::Value(value, size)) => Ok((value, size)),
            Some(Item::Mark) | None => Err(PickleError::Operands),
        }
    }

    /// Takes the last `count` values, in the order in which they were pushed.
    fn pop_many(&mut self, count: usize) -> Result<Vec<SizedValue>, PickleError> {
        let mut values = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        values.reverse();
        Ok(values)
    }

    /// Takes the values above the last mark, and the mark.
    fn pop_to_mark(&mut self) -> Result<Vec<SizedValue>, PickleError> {
        let mark = self.stack.iter().rposition(|item| matches!(item, Item::Mark));
        let values = self.stack.split_off(mark.ok_or(PickleError::Operands)? + 1);
        self.stack.pop();
        let value = |item| match item {
            Item::Value(value, size) => Ok((value, size)),
            Item::Mark => Err(PickleError::Operands),
        };
        values.into_iter().map(value).collect()
    }

    /// Reads an integer of up to eight bytes.
    fn long(&mut self) -> Result<(), PickleError> {
        let [length] = self.take()?;
        let bytes = self.take_slice(length.into())?;
        let sign = if bytes.last().is_some_and(|last| *last >= 0x80) { 0xff } else { 0 };
        let mut number = [sign; 8];
        number.get_mut(..bytes.len()).ok_or(PickleError::Operands)?.copy_from_slice(bytes);
        self.push(i64::from_le_bytes(number).into())
    }

    fn string(&mut self, length: u32) -> Result<(), PickleError> {
        let bytes = self.take_slice(length.try_into().map_err(|_| PickleError::Short)?)?;
        let text = String::from_utf8_lossy(bytes).into_owned();
        // A long string takes the memory of many values.
        let size = Size { count: 1 + bytes.len() / 16, ..SINGLE };
        self.stack.push(Item::Value(text.into(), size));
        Ok(())
    }

    /// Copies the last value to the memo. What a collection gets later is missing from the copy; torch remembers a
    /// collection only when it is complete.
    fn remember(&mut self, number: u32) -> Result<(), PickleError> {
        let Some(Item::Value(value, size)) = self.stack.last() else {
            return Err(PickleError::Operands);
        };
        self.copied = within(self.copied.saturating_add(size.count))?;
        self.memo.insert(number, (value.clone(), *size));
        Ok(())
    }

    fn repeat(&mut self, number: u32) -> Result<(), PickleError> {
        let (value, size) = self.memo.get(&number).ok_or(PickleError::Operands)?;
        self.copied = within(self.copied.saturating_add(size.count))?;
        self.stack.push(Item::Value(value.clone(), *size));
        Ok(())
    }

    /// Appends values to the list below them.
    fn extend(&mut self, values: Vec<SizedValue>) -> Result<(), PickleError> {
        let Some(Item::Value(Value::Array(list), size)) = self.stack.last_mut() else {
            return Err(PickleError::Operands);
        };
        size.add(&values)?;
        list.extend(values.into_iter().map(|(value, _)| value));
        Ok(())
    }

    /// Adds keys and values to the dictionary below them.
    fn set(&mut self, values: Vec<SizedValue>) -> Result<(), PickleError> {
        let Some(Item::Value(Value::Object(map), size)) = self.stack.last_mut() else {
            return Err(PickleError::Operands);
        };
        size.add(&values)?;
        let mut values = values.into_iter().map(|(value, _)| value);
        while let (Some(key), value) = (values.next(), values.next()) {
            let (Value::String(key), Some(value)) = (key, value) else {
                return Err(PickleError::Operands);
            };
            map.insert(key, value);
        }
        Ok(())
    }

    fn tuple(&mut self, values: Vec<SizedValue>) -> Result<(), PickleError> {
        let mut size = SINGLE;
        size.add(&values)?;
        let values = values.into_iter().map(|(value, _)| value).collect();
        self.stack.push(Item::Value(values, size));
        Ok(())
    }
}

impl Size {
    /// Adds the sizes of values that a collection gets.
    fn add(&mut self, values: &[SizedValue]) -> Result<(), PickleError> {
        for (_, size) in values {
            self.depth = self.depth.max(size.depth + 1);
            self.count = self.count.saturating_add(size.count);
        }
        if self.depth <= MAX_DEPTH { Ok(()) } else { Err(PickleError::Size) }
    }
}

fn within(count: usize) -> Result<usize, PickleError> {
    if count <= MAX_COUNT { Ok(count) } else { Err(PickleError::Size) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_those_of_python() {
        // pickle.dumps({"a": [1, 300, -2, 2**40, None, True, 0.5], "b": ("x", "x")}, protocol=2)
        let pickle = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01M\x2c\x01J\xfe\xff\xff\xff\
            \x8a\x06\x00\x00\x00\x00\x00\x01N\x88G?\xe0\x00\x00\x00\x00\x00\x00eX\x01\x00\x00\x00bq\x03\
            X\x01\x00\x00\x00xq\x04h\x04\x86q\x05u.";
        let value = json!({ "a": [1, 300, -2, 1_u64 << 40, null, true, 0.5], "b": ["x", "x"] });
        assert_eq!(read(pickle), Ok(value));
    }

    #[test]
    fn code_is_an_error() {
        // Python would run this as os.system("true").
        assert_eq!(read(b"cos\nsystem\n(S'true'\ntR."), Err(PickleError::Operation(b'c')));
    }

    #[test]
    fn a_pickle_that_is_cut_is_an_error_at_every_length() {
        let pickle = include_bytes!("fixtures/torch-2.15-gloo.pickle");
        assert!(read(pickle).is_ok());
        for length in 0..pickle.len() {
            assert!(read(&pickle[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn a_pickle_that_is_changed_is_read_or_refused() {
        let pickle = include_bytes!("fixtures/torch-2.15-gloo.pickle");
        for at in 0..pickle.len() {
            for byte in [0, b'(', b'.', b'u', b'e', b't', 0x85, 0xff] {
                let mut changed = pickle.to_vec();
                changed[at] = byte;
                let _ = read(&changed);
            }
        }
    }

    #[test]
    fn a_value_that_repeats_itself_is_bounded() {
        // Each tuple contains the one before it twice, so sizes double.
        let mut pickle = b"]q\x00".to_vec();
        for number in 0..30 {
            pickle.extend([b'h', number, b'h', number, 0x86, b'q', number + 1]);
        }
        pickle.push(b'.');
        assert_eq!(read(&pickle), Err(PickleError::Size));
    }

    #[test]
    fn depth_is_bounded() {
        let deep = [&b"]"[..], &[0x85; 100_000], b"."].concat();
        assert_eq!(read(&deep), Err(PickleError::Size));
    }
}
