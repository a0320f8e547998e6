//! Measures messages and collectives: `measure SECONDS BATCHES BENCHMARK/BYTES/COUNT...`
//!
//! For each BENCHMARK/BYTES/COUNT, rank 0 prints a line: `BENCHMARK/BYTES`, the seconds per
//! operation (median over the batches), the repetitions per batch, and the seconds per operation of
//! the fastest batch. A batch has at least COUNT repetitions, and enough to take SECONDS.

use std::error::Error;
use std::time::Duration;

use rlaunch_comm::Communicator;
use rlaunch_comm::measure::{Measured, Plan, measure};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let mut word = || words.next().ok_or("usage: measure SECONDS BATCHES BENCHMARK/BYTES/COUNT...");
    let at_least = Duration::try_from_secs_f64(word()?.parse()?)?;
    let batches = word()?.parse()?;
    let rows: Vec<String> = words.collect();
    let comm = Communicator::from_env()?;
    for row in &rows {
        let mut parts = row.split('/');
        let mut part = || parts.next().ok_or_else(|| format!("{row}: not BENCHMARK/BYTES/COUNT"));
        let (benchmark, bytes, count) = (part()?.parse()?, part()?.parse()?, part()?.parse()?);
        let measured = measure(&comm, &Plan { benchmark, bytes, at_least, batches, count })?;
        if comm.rank() == 0 {
            let Measured { seconds, least, count } = measured;
            println!("{benchmark}/{bytes} {seconds:.4e} {count} {least:.4e}");
        }
    }
    Ok(())
}
