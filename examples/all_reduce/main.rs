//! Every rank gives a million numbers, and gets their sums. The same program in C and in Python is
//! beside this one.

use rlaunch_comm::{Communicator, Op};

const COUNT: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let comm = Communicator::from_env()?;
    let mut data = vec![(comm.rank() + 1) as f32; COUNT];
    comm.all_reduce_in_place(&mut data, Op::Sum)?;
    let size = comm.size();
    let expected = (size * (size + 1) / 2) as f32;
    if let Some(at) = data.iter().position(|sum| *sum != expected) {
        return Err(format!("element {at} is {}, not {expected}", data[at]).into());
    }
    if comm.rank() == 0 {
        println!("{size} ranks: {COUNT} elements, sum {expected} everywhere");
    }
    Ok(())
}
