//! Measures reductions in GB/s for each element type and operation, with operands that fit into the
//! cache and operands that do not, and a plain copy for comparison. Reports the best of 40 short
//! runs, to exclude other load on the machine.
//!
//!     cargo run --release -p rlaunch-comm --example reduce

use rlaunch_comm::reduce::{reduce_in_place, reduce_into};
use rlaunch_comm::{ElementType, Op};
use std::hint::black_box;
use std::time::{Duration, Instant};

const SIZES: [usize; 3] = [8, 256 << 10, 16 << 20];

fn main() {
    println!("GB/s of operands' length; rows: two operands and three, sums; 8 B: ns per call");
    println!("{:>6} {:>6} {:>10} {:>10} {:>10}", "", "", "8 B [ns]", "256 KiB", "16 MiB");
    let copy = |out: &mut [u8], a: &[u8], _: &[u8]| out.copy_from_slice(a);
    print("copy", "", &copy);
    for element_type in ElementType::ALL {
        for op in Op::ALL {
            let two = |out: &mut [u8], a: &[u8], _: &[u8]| {
                reduce_in_place(op, element_type, out, a).expect("lengths are equal");
            };
            print(element_type.name(), op.name(), &two);
            let three = |out: &mut [u8], a: &[u8], b: &[u8]| {
                reduce_into(op, element_type, out, a, b).expect("lengths are equal");
            };
            print("", "into", &three);
        }
    }
}

/// Function to measure. It overwrites its first argument with the reduction of the other two, or
/// reduces its second argument into the first and ignores the third.
type Reduce<'r> = &'r dyn Fn(&mut [u8], &[u8], &[u8]);

fn print(name: &str, op: &str, run: Reduce<'_>) {
    let mut columns = Vec::new();
    for size in SIZES {
        // In every float type, these bytes are ordinary numbers: neither subnormal nor infinite.
        let (mut out, a, b) = (vec![0; size], vec![0x38; size], vec![0x36; size]);
        let best = (0..40).map(|_| time(|| run(&mut out, black_box(&a), &b))).min();
        let nanoseconds = best.unwrap_or_default().as_nanos() as f64 / 1e3;
        columns.push(if size == 8 { nanoseconds } else { size as f64 / nanoseconds });
        black_box(&out);
    }
    println!("{name:>6} {op:>6} {:>10.1} {:>10.1} {:>10.1}", columns[0], columns[1], columns[2]);
}

/// Returns the time of a thousand runs, calculated from a measurement that took at least 500 µs.
fn time(mut run: impl FnMut()) -> Duration {
    let mut runs = 1;
    loop {
        let start = Instant::now();
        for _ in 0..runs {
            run();
        }
        let elapsed = start.elapsed();
        if elapsed > Duration::from_micros(500) {
            return elapsed * 1000 / runs;
        }
        runs *= 4;
    }
}
