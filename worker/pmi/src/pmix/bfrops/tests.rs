use super::reader::width;
use super::*;
use proptest::prelude::*;

fn written(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::new();
    write(&mut writer);
    writer.into_bytes()
}

/// Returns the value that these bytes are, a type and what follows it; all bytes must belong to it.
fn value(bytes: &[u8]) -> Result<Value<'_>, DecodeError> {
    let mut reader = Reader::new(bytes);
    let value = reader.value()?;
    assert!(reader.is_at_end(), "{} bytes are left", reader.rest().len());
    Ok(value)
}

#[test]
fn numbers_have_fixed_widths_and_network_order() {
    let bytes = written(|writer| {
        writer.u8(1).u16(2).u32(3).i32(-46).size(7).string(b"ab").byte_object(b"xyz");
        writer.proc("job", 9);
    });
    let expected: &[u8] = &[
        1, 0, 2, 0, 0, 0, 3, 255, 255, 255, 210, 0, 15, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 3, b'a',
        b'b', 0, 0, 15, 0, 0, 0, 0, 0, 0, 0, 3, b'x', b'y', b'z', 0, 0, 0, 4, b'j', b'o', b'b', 0,
        0, 0, 0, 9,
    ];
    assert_eq!(bytes, expected);
    let mut reader = Reader::new(&bytes);
    assert_eq!(reader.u8(), Ok(1));
    assert_eq!(reader.u16(), Ok(2));
    assert_eq!(reader.u32(), Ok(3));
    assert_eq!(reader.i32(), Ok(-46));
    assert_eq!(reader.size(), Ok(7));
    assert_eq!(reader.string(), Ok(&b"ab"[..]));
    assert_eq!(reader.byte_object(), Ok(&b"xyz"[..]));
    assert_eq!(reader.proc(), Ok(Proc { namespace: b"job", rank: 9 }));
    assert!(reader.is_at_end());
    assert_eq!(reader.u8(), Err(DecodeError::End));
}

#[test]
fn strings_end_with_their_only_zero_byte() {
    let string = |bytes: &[u8]| Reader::new(bytes).string().map(<[u8]>::to_vec);
    assert_eq!(string(&[0, 0, 0, 1, 0]), Ok(Vec::new()));
    assert_eq!(string(&[0, 0, 0, 0]), Err(DecodeError::NoText));
    assert_eq!(Reader::new(&[0, 0, 0, 0]).optional_string(), Ok(None));
    assert_eq!(string(&[0, 0, 0, 2, b'a', b'b']), Err(DecodeError::Text));
    assert_eq!(string(&[0, 0, 0, 3, b'a', 0, 0]), Err(DecodeError::Text));
    assert_eq!(string(&[0, 0, 0, 3, b'a', 0]), Err(DecodeError::End));
    assert_eq!(string(&[255, 255, 255, 255]), Err(DecodeError::Count));
}

#[test]
fn sizes_have_the_type_in_which_the_sender_has_stored_them() {
    let size = |bytes: &[u8]| Reader::new(bytes).size();
    assert_eq!(size(&[0, 14, 0, 0, 1, 0]), Ok(256));
    assert_eq!(size(&[0, 13, 1, 1]), Ok(257));
    assert_eq!(size(&[0, 12, 5]), Ok(5));
    assert_eq!(size(&[0, 9, 255, 255, 255, 255]), Err(DecodeError::Count));
    assert_eq!(size(&[0, 3, 0, 0, 0, 0]), Err(DecodeError::Type));
}

#[test]
fn counts_must_be_the_expected_ones() {
    assert_eq!(Reader::new(&[0, 0, 0, 2]).count(2), Ok(()));
    assert_eq!(Reader::new(&[0, 0, 0, 3]).count(2), Err(DecodeError::Count));
    assert_eq!(Reader::new(&[255, 255, 255, 254]).count(2), Err(DecodeError::Count));
}

#[test]
fn integers_of_all_widths_are_read() {
    let integer = |bytes: &[u8]| value(bytes).unwrap().integer();
    assert_eq!(integer(&[0, 6, 0, 9, 255, 255, 255, 251]), Some(-5));
    assert_eq!(integer(&[0, 7, 255]), Some(-1));
    assert_eq!(integer(&[0, 8, 255, 254]), Some(-2));
    assert_eq!(integer(&[0, 10, 255, 255, 255, 255, 255, 255, 255, 253]), Some(-3));
    assert_eq!(integer(&[0, 12, 200]), Some(200));
    assert_eq!(integer(&[0, 13, 1, 0]), Some(256));
    assert_eq!(integer(&[0, 14, 255, 255, 255, 255]), Some(u32::MAX.into()));
    assert_eq!(integer(&[0, 15, 255, 255, 255, 255, 255, 255, 255, 255]), Some(i64::MAX));
    assert_eq!(integer(&[0, 30, 4]), Some(4));
    assert_eq!(integer(&[0, 3, 0, 0, 0, 1, 0]), None);
}

#[test]
fn a_flag_is_set_unless_it_is_false() {
    let is_set = |bytes: &[u8]| value(bytes).unwrap().is_set();
    assert!(is_set(&[0, 1, 1]));
    assert!(!is_set(&[0, 1, 0]));
    assert!(is_set(&[0, 0]));
}

#[test]
fn an_array_of_infos_is_read() {
    let bytes = written(|writer| {
        writer.value(Item::Infos(&[("a", Item::Size(5)), ("bc", Item::Text("x"))]));
    });
    let infos = value(&bytes).unwrap().infos().unwrap();
    assert_eq!(infos.len(), 2);
    assert_eq!((infos[0].key, infos[0].value.integer()), (&b"a"[..], Some(5)));
    assert_eq!((infos[1].key, infos[1].value.kind), (&b"bc"[..], kind::STRING));
    assert_eq!(
        infos[1].encoded,
        written(|writer| {
            writer.info("bc", 0, Item::Text("x"));
        })
    );
    assert_eq!(value(&[0, 39, 0, 14, 0, 12, 1, 0, 0, 0, 5]).unwrap().infos(), None);
}

/// One value of each type that clients can send, without its type.
fn samples() -> Vec<(u16, Vec<u8>)> {
    let string = written(|writer| {
        writer.string(b"text");
    });
    let size = written(|writer| {
        writer.size(0);
    });
    let info = written(|writer| {
        writer.info("key", 8, Item::U32(1));
    });
    let one_info = [&[0, 12, 1][..], &info].concat();
    let proc = written(|writer| {
        writer.proc("job", 1);
    });
    let int = [0, 9, 0, 0, 0, 1];
    let value = [0, 13, 0, 1];
    let app = [&string[..], &int, &string, &[0, 0, 0, 1], &string, &[0, 0, 0, 0], &int, &one_info]
        .concat();
    let array = [&[0, 24][..], &one_info].concat();
    let mut samples = vec![
        (kind::SIZE, size.clone()),
        (kind::PID, vec![0, 14, 0, 0, 0, 1]),
        (kind::INT, int.to_vec()),
        (kind::UINT, vec![0, 14, 0, 0, 0, 1]),
        (kind::STRING, string.clone()),
        (kind::FLOAT, string.clone()),
        (kind::DOUBLE, string.clone()),
        (kind::BYTE_OBJECT, vec![0, 12, 2, 7, 7]),
        (kind::COMPRESSED_STRING, vec![0, 12, 1, 7]),
        (kind::MODEX, vec![0, 12, 1, 7]),
        (kind::BUFFER, vec![1, 0, 12, 1, 7]),
        (kind::PROC, proc.clone()),
        (kind::VALUE, value.to_vec()),
        (kind::INFO, info.clone()),
        (kind::KVAL, [&string[..], &value].concat()),
        (kind::PDATA, [&proc[..], &string, &value].concat()),
        (kind::ENVAR, [&string[..], &string, b":"].concat()),
        (kind::PROC_INFO, [&proc[..], &string, &string, &int, &[1]].concat()),
        (kind::DATA_ARRAY, array),
        (kind::DATA_ARRAY, [&[0, 0][..], &size].concat()),
        (kind::INFO_ARRAY, one_info.clone()),
        (kind::QUERY, [&[0, 0, 0, 1][..], &string, &one_info].concat()),
        (kind::APP, app),
    ];
    let fixed = (1..=kind::ENVAR).filter_map(|kind| Some((kind, vec![0; width(kind)?])));
    samples.extend(fixed);
    samples
}

#[test]
fn values_of_all_types_are_passed_over_and_end_where_they_end() {
    for (kind, encoded) in samples() {
        let bytes = [&kind.to_be_bytes()[..], &encoded].concat();
        assert_eq!(value(&bytes), Ok(Value { kind, encoded: &encoded }), "type {kind}");
        for length in 0..bytes.len() {
            let end = Reader::new(&bytes[..length]).value();
            assert_eq!(end, Err(DecodeError::End), "type {kind}, {length} bytes");
        }
    }
    assert_eq!(value(&[0, 0]), Ok(Value { kind: 0, encoded: &[] }));
}

#[test]
fn all_types_of_the_encoding_are_known_and_no_others() {
    let mut known: Vec<u16> = samples().into_iter().map(|(kind, _)| kind).collect();
    known.sort_unstable();
    known.dedup();
    assert_eq!(known, (1..=46).collect::<Vec<u16>>());
    for unknown in [47, 52, 65, 500, u16::MAX] {
        let bytes = [&unknown.to_be_bytes()[..], &[0; 64]].concat();
        assert_eq!(Reader::new(&bytes).value(), Err(DecodeError::Type));
    }
}

#[test]
fn values_are_not_nested_without_end() {
    let nested = |depth: usize| [[0, 21].repeat(depth), vec![0, 12, 1]].concat();
    assert!(value(&nested(15)).is_ok());
    assert_eq!(value(&nested(16)), Err(DecodeError::Depth));
    assert_eq!(value(&nested(100_000)), Err(DecodeError::Depth));
    let arrays = [&[0, 39][..], &[0, 39, 0, 12, 1].repeat(100_000)].concat();
    assert_eq!(value(&arrays), Err(DecodeError::Depth));
}

#[test]
fn great_numbers_of_elements_need_as_many_bytes() {
    let most = [0, 15, 127, 255, 255, 255, 255, 255, 255, 255];
    for element in 1..=kind::ENVAR {
        let bytes = [&[0, 39][..], &element.to_be_bytes(), &most].concat();
        assert!(value(&bytes).is_err(), "type {element}");
    }
    let bytes = [&[0, 0, 0, 1][..], &most, &[0, 0, 0, 1]].concat();
    assert!(Reader::new(&bytes).infos().is_err());
}

#[test]
fn items_with_a_number_before_them_are_read() {
    let none = written(|writer| {
        writer.count(1).size(0);
    });
    assert_eq!(Reader::new(&none).infos(), Ok(Vec::new()));
    let two = written(|writer| {
        writer.count(1).size(2).count(2).proc("a", 1).proc("b", 2);
    });
    let procs = Reader::new(&two).procs().unwrap();
    assert_eq!(procs[1], Proc { namespace: b"b", rank: 2 });
    let wrong = written(|writer| {
        writer.count(1).size(2).count(1).proc("a", 1);
    });
    assert_eq!(Reader::new(&wrong).procs(), Err(DecodeError::Count));
}

proptest! {
    #[test]
    fn any_bytes_are_survived(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        kind in 0..50_u16,
    ) {
        let mut reader = Reader::new(&bytes);
        while let Ok(value) = reader.value() {
            let _ = (value.is_set(), value.integer(), value.bytes(), value.infos());
        }
        let _ = Reader::new(&[&kind.to_be_bytes()[..], &bytes].concat()).value();
        let _ = Reader::new(&bytes).infos();
        let _ = Reader::new(&bytes).procs();
        let _ = Reader::new(&bytes).key_value();
    }
}
