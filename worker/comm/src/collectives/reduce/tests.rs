use super::*;
use half::{bf16, f16};

/// Generator of random numbers (`SplitMix64`).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    /// Returns random bits, often a special value: zero, infinity, a subnormal, a tie.
    fn element(&mut self, element_type: ElementType) -> u64 {
        let special: &[u64] = match element_type {
            ElementType::F16 => &[0, 0x8000, 0x7c00, 0xfc00, 1, 0x8001, 0x3ff, 0x7bff, 0x3c01],
            ElementType::Bf16 => &[0, 0x8000, 0x7f80, 0xff80, 1, 0x8001, 0x7f, 0x7f7f, 0x3f81],
            ElementType::F32 => {
                &[0, 1 << 31, 0x7f80_0000, 0xff80_0000, 1, 0x7f7f_ffff, 0x7fc1_2345]
            }
            ElementType::F64 => &[0, 1 << 63, 0x7ff << 52, 0xfff << 52, 1, 0x7ff8_0000_0000_1234],
            _ => &[0, 1, u64::MAX, 1 << 31, 1 << 63, 0x7f, 0x80],
        };
        let index = (self.next() % (2 * special.len() as u64)) as usize;
        special.get(index).copied().unwrap_or_else(|| self.next())
    }

    fn elements(&mut self, element_type: ElementType, count: usize) -> Vec<u8> {
        let size = element_type.size();
        (0..count).flat_map(|_| self.element(element_type).to_le_bytes()[..size].to_vec()).collect()
    }
}

fn float<T: Copy + PartialOrd>(
    op: Op,
    a: T,
    b: T,
    nan: T,
    negative: fn(T) -> bool,
    by: [T; 2],
) -> T {
    let is_nan = |value: T| value.partial_cmp(&value).is_none();
    let result = match op {
        Op::Sum => by[0],
        Op::Product => by[1],
        _ if is_nan(a) || is_nan(b) => nan,
        // Equal operands have the same bits, or are +0 and -0.
        Op::Min if a == b => {
            if negative(a) {
                a
            } else {
                b
            }
        }
        Op::Max if a == b => {
            if negative(a) {
                b
            } else {
                a
            }
        }
        Op::Min => {
            if a < b {
                a
            } else {
                b
            }
        }
        Op::Max => {
            if a > b {
                a
            } else {
                b
            }
        }
    };
    if is_nan(result) { nan } else { result }
}

/// Computes one element by a plain definition instead of the vectorised code.
fn reference(op: Op, element_type: ElementType, a: &[u8], b: &[u8]) -> Vec<u8> {
    macro_rules! bits {
        ($type:ty) => {
            (
                <$type>::from_ne_bytes(a.try_into().unwrap()),
                <$type>::from_ne_bytes(b.try_into().unwrap()),
            )
        };
    }
    macro_rules! integer {
        ($type:ty) => {{
            let (a, b) = bits!($type);
            let result = match op {
                Op::Sum => a.wrapping_add(b),
                Op::Product => a.wrapping_mul(b),
                Op::Min => a.min(b),
                Op::Max => a.max(b),
            };
            result.to_ne_bytes().to_vec()
        }};
    }
    macro_rules! narrow {
        ($type:ty) => {{
            let (a, b) = bits!($type);
            let (x, y) = (f64::from(a), f64::from(b));
            // In f64, sums and products of 16-bit floats are exact, or far from any tie.
            let by = [<$type>::from_f64(x + y), <$type>::from_f64(x * y)];
            let result = float(op, a, b, <$type>::NAN, |value| value.is_sign_negative(), by);
            result.to_ne_bytes().to_vec()
        }};
    }
    match element_type {
        ElementType::F16 => narrow!(f16),
        ElementType::Bf16 => narrow!(bf16),
        ElementType::F32 => {
            let (a, b) = bits!(f32);
            float(op, a, b, f32::NAN, f32::is_sign_negative, [a + b, a * b]).to_ne_bytes().to_vec()
        }
        ElementType::F64 => {
            let (a, b) = bits!(f64);
            float(op, a, b, f64::NAN, f64::is_sign_negative, [a + b, a * b]).to_ne_bytes().to_vec()
        }
        ElementType::I32 => integer!(i32),
        ElementType::I64 => integer!(i64),
        ElementType::U8 => integer!(u8),
        ElementType::U64 => integer!(u64),
    }
}

fn all() -> impl Iterator<Item = (Op, ElementType)> {
    Op::ALL.into_iter().flat_map(|op| ElementType::ALL.map(|element_type| (op, element_type)))
}

/// Reduces with the vectorised and with the portable loops, checks that their results are equal,
/// and returns the result.
fn reduced(op: Op, element_type: ElementType, a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut results = [vec![0; a.len()], a.to_vec(), vec![0; a.len()], a.to_vec()];
    reduce_into(op, element_type, &mut results[0], a, b).unwrap();
    reduce_in_place(op, element_type, &mut results[1], b).unwrap();
    kernels::reduce_into(op, element_type, &mut results[2], a, b);
    kernels::reduce_in_place(op, element_type, &mut results[3], b);
    for result in &results {
        let unequal = result.iter().zip(&results[0]).position(|(is, first)| is != first);
        assert_eq!(unequal, None, "{op} of {element_type}: the first byte that differs");
    }
    results[0].clone()
}

#[test]
fn every_operation_on_every_type_is_what_it_says() {
    let mut random = Random(1);
    for (op, element_type) in all() {
        let size = element_type.size();
        for count in 0..70 {
            let a = random.elements(element_type, count);
            let b = random.elements(element_type, count);
            let result = reduced(op, element_type, &a, &b);
            for ((a, b), is) in a.chunks(size).zip(b.chunks(size)).zip(result.chunks(size)) {
                let wanted = reference(op, element_type, a, b);
                assert_eq!(is, wanted, "{op} of {element_type}: {a:x?} and {b:x?}");
            }
        }
    }
}

#[test]
fn operands_may_be_swapped_without_a_bit_changing() {
    let mut random = Random(2);
    for (op, element_type) in all() {
        let a = random.elements(element_type, 5000);
        let b = random.elements(element_type, 5000);
        let (ab, ba) = (reduced(op, element_type, &a, &b), reduced(op, element_type, &b, &a));
        assert!(ab == ba, "{op} of {element_type}");
    }
}

#[test]
fn memory_may_begin_anywhere_and_nothing_beside_it_changes() {
    let mut random = Random(3);
    for (op, element_type) in all() {
        let length = 37 * element_type.size();
        let a = random.elements(element_type, 37);
        let b = random.elements(element_type, 37);
        let wanted = reduced(op, element_type, &a, &b);
        for offset in 0..33 {
            let mut out = vec![0xa5; length + 100];
            let (mut left, mut right) = (vec![0; length + 100], vec![0; length + 100]);
            left[offset / 2..][..length].copy_from_slice(&a);
            right[32 - offset..][..length].copy_from_slice(&b);
            let (left, right) = (&left[offset / 2..][..length], &right[32 - offset..][..length]);
            reduce_into(op, element_type, &mut out[offset..][..length], left, right).unwrap();
            assert_eq!(out[offset..][..length], wanted, "{op} of {element_type} at {offset}");
            out[offset..][..length].fill(0xa5);
            assert!(out.iter().all(|byte| *byte == 0xa5), "{op} of {element_type} at {offset}");
        }
    }
}

#[test]
fn all_halves_survive_a_neutral_operation() {
    for (element_type, one) in [(ElementType::F16, 0x3c00), (ElementType::Bf16, 0x3f80_u16)] {
        let values: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
        let ones: Vec<u8> = (0..=u16::MAX).flat_map(|_| one.to_ne_bytes()).collect();
        let products = reduced(Op::Product, element_type, &values, &ones);
        for (value, product) in values.chunks(2).zip(products.chunks(2)) {
            let wanted = reference(Op::Product, element_type, value, &one.to_ne_bytes());
            assert_eq!(product, wanted, "{element_type} {value:x?}");
        }
    }
}

#[test]
fn sums_of_halves_are_rounded_to_the_nearest_even() {
    let mut random = Random(4);
    for element_type in [ElementType::F16, ElementType::Bf16] {
        for op in [Op::Sum, Op::Product] {
            let mut draw = || -> Vec<u8> { (0..200_000).map(|_| random.next() as u8).collect() };
            let (a, b) = (draw(), draw());
            let result = reduced(op, element_type, &a, &b);
            for ((a, b), is) in a.chunks(2).zip(b.chunks(2)).zip(result.chunks(2)) {
                let wanted = reference(op, element_type, a, b);
                assert_eq!(is, wanted, "{op} of {element_type}: {a:x?} and {b:x?}");
            }
        }
    }
}

#[test]
fn lengths_that_do_not_match_are_an_error_and_nothing_is_written() {
    let mut into = [1; 16];
    for (left, right, result) in [(16, 12, 16), (12, 16, 16), (16, 16, 12), (6, 6, 6)] {
        let (a, b) = ([2; 16], [3; 16]);
        let out = &mut into[..result];
        let failed = reduce_into(Op::Sum, ElementType::F32, out, &a[..left], &b[..right]);
        assert!(failed.is_err(), "{left} {right} {result}");
    }
    let failed = reduce_in_place(Op::Sum, ElementType::F32, &mut into, &[1; 8]).unwrap_err();
    assert_eq!(failed.to_string(), "16 and 8 bytes cannot be reduced to 16 bytes of f32");
    assert_eq!(into, [1; 16]);
}
