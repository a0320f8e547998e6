//! The first thing to run: who is there. The same program in C and in Python is beside this one.

use rlaunch_comm::Communicator;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let comm = Communicator::from_env()?;
    let host = std::env::var("RLAUNCH_HOST").unwrap_or_else(|_| "this host".to_owned());
    println!(
        "rank {} of {}, {} of {} on {host}",
        comm.rank(),
        comm.size(),
        comm.local_rank(),
        comm.local_size()
    );
    comm.barrier()?;
    Ok(())
}
