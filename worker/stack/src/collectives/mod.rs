//! Positions of ranks in the collective operations of their groups, as libraries tell them.
//!
//! | file | source |
//! |---|---|
//! | `nccl_ras` | NCCL's RAS service, a socket of the rank's process |
//! | `flight_recorder` | torch's flight recorder, a file that the process writes on request |
//! | `pickle` | reader of its files |
//! | `process` | environment and process ids of ranks |

mod flight_recorder;
mod nccl_ras;
mod pickle;
mod process;

use process::RankProcess;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::{EnteredOperation, GroupPosition, GroupProgress};
use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of positions in an answer: 64 ranks in 64 groups each.
const MAX_POSITIONS: usize = 4096;
/// Maximum number of characters of a name in an answer.
const MAX_NAME: usize = 128;
/// Maximum number of kinds of operations in a position. NCCL has fewer than ten.
const MAX_KINDS: usize = 32;

/// Asks the libraries of these ranks' processes. What does not answer in time is left out.
pub(crate) fn carry_out(ranks: &[(Rank, Vec<u32>)], limit: Duration) -> Vec<GroupPosition> {
    let deadline = Instant::now() + limit;
    let of_rank = |(rank, pids): &(Rank, Vec<u32>)| -> Vec<RankProcess> {
        pids.iter().filter_map(|&pid| RankProcess::read(*rank, pid)).collect()
    };
    let processes: Vec<RankProcess> = ranks.iter().flat_map(of_rank).collect();
    let processes = &processes;
    let services: BTreeSet<&str> =
        processes.iter().filter_map(|process| process.ras_address.as_deref()).collect();
    let mut positions: Vec<GroupPosition> = thread::scope(|scope| {
        let ask = |address| move || nccl_ras::positions(address, processes, deadline);
        // The threads end at the deadline at the latest.
        let asked: Vec<_> = services.into_iter().map(|address| scope.spawn(ask(address))).collect();
        let dumped: Vec<_> = flight_recorder::recorders(processes)
            .into_iter()
            .map(|recorder| scope.spawn(move || recorder.positions(deadline)))
            .collect();
        // A source that cannot be read has no positions; the reason is of no use to the reader of a report.
        let answers = asked.into_iter().chain(dumped).filter_map(|thread| thread.join().ok());
        answers.filter_map(Result::ok).flatten().collect()
    });
    positions.truncate(MAX_POSITIONS);
    positions.iter_mut().for_each(shorten);
    positions
}

/// Shortens the names in a position.
fn shorten(position: &mut GroupPosition) {
    let shorten = |name: &mut String| {
        if let Some((end, _)) = name.char_indices().nth(MAX_NAME) {
            name.truncate(end);
        }
    };
    shorten(&mut position.group);
    match &mut position.progress {
        GroupProgress::Entered(EnteredOperation { name, caller, .. }) => {
            shorten(name);
            shorten(caller);
        }
        GroupProgress::Launched(counts) => {
            counts.truncate(MAX_KINDS);
            counts.iter_mut().for_each(|(name, _)| shorten(name));
        }
        GroupProgress::Missing { .. } => {}
    }
}
