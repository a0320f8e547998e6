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
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of positions in an answer: 64 ranks in 64 groups each.
const MAX_POSITIONS: usize = 4096;
/// Maximum number of characters of a name in an answer.
const MAX_NAME: usize = 128;
/// Maximum number of kinds of operations in a position. NCCL has fewer than ten.
const MAX_KINDS: usize = 32;

/// Asks the libraries of these ranks' processes. What does not answer in time is left out.
pub(crate) fn carry_out(ranks: Vec<(Rank, Vec<u32>)>, limit: Duration) -> Vec<GroupPosition> {
    let deadline = Instant::now() + limit;
    let (done, answers) = mpsc::channel();
    // Even reading /proc may wait for a process that waits itself, so nothing is done in this thread.
    start(move || ask(&ranks, deadline, &done));
    let left = || deadline.saturating_duration_since(Instant::now());
    let mut positions = Vec::new();
    while let Ok(found) = answers.recv_timeout(left()) {
        positions.extend::<Vec<GroupPosition>>(found);
    }
    positions.truncate(MAX_POSITIONS);
    positions.iter_mut().for_each(shorten);
    positions
}

/// Asks all sources at once. Their threads end with this program at the latest.
fn ask(ranks: &[(Rank, Vec<u32>)], deadline: Instant, done: &Sender<Vec<GroupPosition>>) {
    let of_rank = |(rank, pids): &(Rank, Vec<u32>)| -> Vec<RankProcess> {
        pids.iter().filter_map(|&pid| RankProcess::read(*rank, pid)).collect()
    };
    let processes: Arc<[RankProcess]> = ranks.iter().flat_map(of_rank).collect();
    let services: BTreeSet<String> =
        processes.iter().filter_map(|process| process.ras_address.clone()).collect();
    for address in services {
        let (processes, done) = (processes.clone(), done.clone());
        start(move || send(nccl_ras::positions(&address, &processes, deadline), &done));
    }
    for recorder in flight_recorder::recorders(&processes) {
        let done = done.clone();
        start(move || send(recorder.positions(deadline), &done));
    }
}

/// Passes positions on. The reason why a source has none is of no use to the reader of a report.
fn send(found: io::Result<Vec<GroupPosition>>, done: &Sender<Vec<GroupPosition>>) {
    // An error means that the time is up.
    let _ = found.map(|found| done.send(found));
}

fn start(work: impl FnOnce() + Send + 'static) {
    // Without a thread, its source has no answer.
    let _ = thread::Builder::new().spawn(work);
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
