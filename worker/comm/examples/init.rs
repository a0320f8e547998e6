//! Measures how long this rank takes to create its communicator, and prints `ready MICROSECONDS`.
//! The optional argument is the time, in seconds since 1970, at which all ranks begin to create it.

use rlaunch_comm::Communicator;
use std::error::Error;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(moment) = std::env::args().nth(1) {
        let moment = UNIX_EPOCH + Duration::try_from_secs_f64(moment.parse()?)?;
        let left = moment.duration_since(SystemTime::now());
        sleep(left.map_err(|_| "this rank has started too late to begin with the others")?);
    }
    let begin = Instant::now();
    let comm = Communicator::from_env()?;
    println!("ready {}", begin.elapsed().as_micros());
    Ok(comm.barrier()?)
}
