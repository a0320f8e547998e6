//! Simulation of copies along a chain of hosts, in virtual time.
//!
//! The state machine is `rlaunch_copy::Hop`; manifests and messages go through their encoders and
//! decoders. Links have their bandwidths and latencies, disks their speeds. Hosts die at any chunk;
//! the copy then starts again without them, with what the others have.

mod attempt;
mod scenario;

pub use scenario::{Death, Host, Moment, Scenario};

use attempt::{Attempt, Ended};
use rlaunch_copy::ChunkSet;
use std::time::Duration;

/// Time after which the launcher starts the copy again.
const RESTART: Duration = Duration::from_secs(2);

/// Statistics of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyStats {
    /// Hosts that have all files at the end.
    pub hosts: usize,
    /// Hosts that died.
    pub died: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes over the busiest link downstream, all attempts and all messages together.
    pub max_link: u64,
    /// Virtual time until the last host had its last chunk.
    pub duration: Duration,
    /// The time that a pipeline needs which knows beforehand what everybody lacks. It is known for
    /// hosts that have nothing and do not die.
    pub ideal: Option<Duration>,
}

/// Runs the copy of `seed`. Fails with a report if an invariant is violated.
pub fn run(seed: u64) -> Result<CopyStats, String> {
    let scenario = Scenario::from_seed(seed);
    simulate(&scenario).map_err(|broken| {
        let (hosts, chunks) = (scenario.hosts.len(), scenario.manifest.chunk_count());
        let deaths = &scenario.deaths;
        format!(
            "copy of {chunks} chunks to {hosts} hosts: {broken}\n  {deaths:?}\n  \
             replay: cargo lab sim --from {seed} --seeds 1"
        )
    })
}

/// Runs a scenario to its end.
pub fn simulate(scenario: &Scenario) -> Result<CopyStats, String> {
    let mut written: Vec<ChunkSet> = scenario.hosts.iter().map(|host| host.had.clone()).collect();
    let mut alive: Vec<usize> = (0..scenario.hosts.len()).collect();
    let mut start = Duration::ZERO;
    let mut deaths = scenario.deaths.iter();
    let mut link_bytes = vec![0; scenario.hosts.len()];
    loop {
        let death = deaths.next().filter(|death| alive.contains(&death.host) && alive.len() > 1);
        let attempt = Attempt::new(scenario, &alive, &written, start, death);
        let ended = attempt.run().map_err(|broken| format!("{} hosts: {broken}", alive.len()))?;
        let Ended { time, host_lost, last_want, written: after, carried } = ended;
        for (host, (after, carried)) in alive.iter().zip(after.into_iter().zip(carried)) {
            written[*host] = after;
            link_bytes[*host] += carried;
        }
        if let Some(lost) = host_lost {
            alive.retain(|host| *host != lost);
            start = time + RESTART;
            continue;
        }
        let died = scenario.hosts.len() - alive.len();
        let ideal = scenario.ideal().filter(|_| died == 0);
        if let Some(ideal) = ideal {
            is_fast(time, last_want, ideal)?;
        }
        return Ok(CopyStats {
            hosts: alive.len(),
            died,
            bytes: scenario.manifest.bytes(),
            max_link: link_bytes.into_iter().max().unwrap_or(0),
            duration: time,
            ideal,
        });
    }
}

/// Checks that a copy took no longer than a pipeline that begins once everybody has asked.
fn is_fast(time: Duration, last_want: Duration, ideal: Duration) -> Result<(), String> {
    // Times of single frames are rounded to nanoseconds.
    let most = last_want + ideal.mul_f64(1.001) + Duration::from_micros(10);
    if time <= most { Ok(()) } else { Err(format!("took {time:?}, {most:?} at most")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hundred_seeds_hold() {
        let broken: Vec<String> = (0..200).filter_map(|seed| run(seed).err()).collect();
        assert!(broken.is_empty(), "{} of 200:\n{}", broken.len(), broken.join("\n"));
    }

    #[test]
    fn seeds_have_deaths_and_copies_that_are_timed() {
        let stats: Vec<CopyStats> = (0..200).map(|seed| run(seed).unwrap()).collect();
        assert!(stats.iter().filter(|stats| stats.died > 0).count() > 40);
        assert!(stats.iter().any(|stats| stats.died > 1));
        assert!(stats.iter().filter(|stats| stats.ideal.is_some()).count() > 10);
    }

    #[test]
    fn a_seed_means_one_run() {
        for seed in [7, 23] {
            assert_eq!(run(seed), run(seed));
        }
    }

    #[test]
    fn two_thousand_hosts_get_files_as_fast_as_a_pipeline() {
        let stats = simulate(&Scenario::large(1, 2000, 64)).unwrap();
        let ideal = stats.ideal.unwrap();
        assert!(stats.duration <= ideal.mul_f64(1.01), "{:?}, {ideal:?}", stats.duration);
        assert!(stats.max_link <= stats.bytes + stats.bytes / 1000, "{stats:?}");
    }

    #[test]
    fn a_death_at_any_chunk_costs_what_was_under_way() {
        for chunk in 0..=20 {
            let scenario = Scenario::with_death(5, 20, 2, chunk);
            let stats = simulate(&scenario).unwrap();
            assert_eq!((stats.hosts, stats.died), (4, 1), "{chunk}");
            // What the host after the dead one had not is sent again at most from where it was.
            let most = stats.bytes + stats.bytes / 4;
            assert!(stats.max_link <= most, "{chunk}: {} of {most}", stats.max_link);
        }
    }
}
