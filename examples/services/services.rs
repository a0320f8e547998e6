//! What it costs ranks to meet: barriers and all-gathers among all ranks, and how long each took
//! rank 0. `services [ROUNDS]`; see the README beside this file.

use rlaunch_client::{Client, Credentials};
use std::error::Error;
use std::time::Instant;

/// Bytes that each rank gives to an all-gather.
const BLOBS: [usize; 2] = [64, 4096];

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(20), |word| word.parse())?;
    let credentials = Credentials::from_env()?;
    let rank = credentials.rank.0;
    let mut client = Client::connect(credentials)?;
    let ranks = client.world_size();
    client.barrier("start")?;
    if rank == 0 {
        println!("{ranks} ranks, {rounds} rounds: microseconds, median, least and most");
    }
    let barriers = measure(rounds, || Ok(client.barrier("barrier")?))?;
    show(rank, "barrier", barriers);
    for bytes in BLOBS {
        // What rank r gives is r, repeated.
        let own = u8::try_from(rank % 251)?;
        let name = format!("gather-{bytes}");
        let gathers = measure(rounds, || {
            let all = client.all_gather(&name, &vec![own; bytes])?;
            let right =
                |(rank, blob): (usize, &[u8])| blob.iter().all(|&b| usize::from(b) == rank % 251);
            let blobs = all.iter().map(|blob| &blob[..]);
            if !blobs.enumerate().all(right) {
                return Err("a rank's bytes came back changed".into());
            }
            Ok(())
        })?;
        show(rank, &name, gathers);
    }
    Ok(())
}

/// How long each round took, in microseconds.
fn measure(
    rounds: usize,
    mut call: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        call()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}

fn show(rank: u32, what: &str, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    if let (0, [least, .., most]) = (rank, &times[..]) {
        println!("{what:<12} {:.0} {least:.0} {most:.0}", times[times.len() / 2]);
    }
}
