//! A token goes around: every rank adds its number and passes it on, and rank 0 says how long a
//! round took.

use rlaunch_comm::Communicator;
use std::time::Instant;

const ROUNDS: u32 = 1000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let comm = Communicator::from_env()?;
    let (me, size) = (comm.rank(), comm.size());
    let (left, right) = ((me + size - 1) % size, (me + 1) % size);
    comm.barrier()?;
    let begin = Instant::now();
    let mut token = [0_u64];
    for _ in 0..ROUNDS {
        if me == 0 {
            comm.send(&token, right, 0)?;
            comm.recv(&mut token, left, 0)?;
        } else {
            comm.recv(&mut token, left, 0)?;
            token[0] += me as u64;
            comm.send(&token, right, 0)?;
        }
    }
    if me == 0 {
        let each = begin.elapsed() / ROUNDS;
        println!("{size} ranks: the token is {}, a round takes {each:.1?}", token[0]);
    }
    Ok(())
}
