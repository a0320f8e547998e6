//! Table of times, and ratios with their bars.

use super::{JobTimes, LibraryResults, Results, SHORTEST};
use crate::bench::Series;
use crate::bench::interval::Interval;

/// Maximum ratio of the time in `MPI_Init` to that under the library's own launcher.
const INIT_BAR: f64 = 1.0;
/// Maximum memory in MiB that MPI may add to an agent.
const MEMORY_BAR: f64 = 2.0;

/// Prints results; returns whether every bar is met.
pub(super) fn print(results: &Results, rounds: usize) -> bool {
    println!(
        "\n{} ranks on {} hosts, median (min–max) of {rounds} rounds",
        results.ranks, results.hosts
    );
    println!(
        "{:<20}{:>22}{:>22}{:>22}{:>24}",
        "", "wall s", "less floor s", "CPU s", "MPI_Init ms"
    );
    print_row(SHORTEST, &results.shortest, None);
    for library in &results.libraries {
        let name = |launcher: &str| format!("{:<11}{launcher}", library.library.name());
        print_row(&name("floor"), &library.floor, None);
        print_row(&name("rlaunch"), &library.own, Some(&library.floor));
        print_row(&name(library.library.launcher()), &library.peer, Some(&library.floor));
    }
    println!("\nratios of rlaunch to the library's own launcher: median, 90 % interval");
    let met: Vec<bool> = results
        .libraries
        .iter()
        .flat_map(|library| print_ratios(library, &results.shortest))
        .collect();
    met.into_iter().all(|met| met)
}

fn print_row(name: &str, times: &JobTimes, floor: Option<&JobTimes>) {
    let less = floor.map_or("–".into(), |floor| times.wall.minus(&floor.wall).summary());
    let (wall, cpu) = (times.wall.summary(), times.cpu.summary());
    let init = times.init.scaled(1e3).summary_to(0);
    println!("{name:<20}{wall:>22}{less:>22}{cpu:>22}{init:>24}");
}

/// Prints the ratios of a library and the growth of its agents; returns for each that has a bar
/// whether it is met.
fn print_ratios(results: &LibraryResults, shortest: &JobTimes) -> Vec<bool> {
    let LibraryResults { library, floor, own, peer, agent_growth } = results;
    let programs = floor.wall.minus(&shortest.wall);
    let less = |part: &Series| ratios(&own.wall.minus(part), &peer.wall.minus(part));
    let rows = [
        ("wall less floor", less(&floor.wall), Some(library.wall_bar())),
        ("MPI_Init", ratios(&own.init, &peer.init), Some(INIT_BAR)),
        ("wall less programs", less(&programs), None),
        ("wall", ratios(&own.wall, &peer.wall), None),
        ("CPU less floor", ratios(&own.cpu.minus(&floor.cpu), &peer.cpu.minus(&floor.cpu)), None),
        ("CPU", ratios(&own.cpu, &peer.cpu), None),
    ];
    let mut met = Vec::new();
    for (what, ratios, bar) in rows {
        let ratio = ratios.as_ref().and_then(Series::median);
        let shown = ratio.map_or("–".into(), |ratio| format!("{ratio:.3}"));
        let interval = ratios.as_ref().and_then(Interval::from_series);
        let interval = interval.map_or("too few rounds".into(), |interval| {
            format!("{:.3} to {:.3}", interval.lower, interval.upper)
        });
        let row = format!("{:<11}{what:<20}{shown:>7}  {interval:<16}", library.name());
        let Some(bar) = bar else {
            println!("{}", row.trim_end());
            continue;
        };
        met.push(ratio.is_some_and(|ratio| ratio <= bar));
        println!("{row}(bar {bar:.2}: {})", verdict(&met));
    }
    met.push(*agent_growth <= MEMORY_BAR);
    println!(
        "{:<11}{:<20}{agent_growth:>7.2} MiB more       (bar {MEMORY_BAR:.2}: {})",
        library.name(),
        "memory of an agent",
        verdict(&met)
    );
    met
}

/// Returns the word for the last of several bars.
fn verdict(met: &[bool]) -> &'static str {
    if met.last() == Some(&true) { "met" } else { "MISSED" }
}

/// Returns the ratio of each round, or nothing if a value of the peer's is not positive: then a
/// ratio means nothing.
fn ratios(own: &Series, peer: &Series) -> Option<Series> {
    peer.0.iter().all(|value| *value > 0.0).then(|| own.ratios_to(peer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_takes_no_time_is_not_compared() {
        let series = |values: &[f64]| Series(values.to_vec());
        assert!(ratios(&series(&[1.0, 1.0]), &series(&[2.0, -0.1])).is_none());
        let ratio = ratios(&series(&[-1.0, 1.0]), &series(&[2.0, 4.0])).unwrap();
        assert_eq!(ratio.0, [-0.5, 0.25]);
    }
}
