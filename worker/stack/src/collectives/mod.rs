//! Positions of ranks in the collective operations of their groups, as libraries tell them.
//!
//! | file | source |
//! |---|---|
//! | `nccl_ras` | NCCL's RAS service, a socket of the rank's process |
//! | `flight_recorder` | torch's flight recorder, a file that the process writes on request |
//! | `pickle` | reader of its files |
//! | `mod` | environment and process ids of ranks |

mod flight_recorder;
mod nccl_ras;
mod pickle;

use rlaunch_bootstrap::env::{RLAUNCH_JOB_ID, TORCHELASTIC_RUN_ID};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::{EnteredOperation, GroupPosition, GroupProgress};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

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

/// Variables that hold the prefix of the pipes by which a dump of torch's flight recorder is requested. Backends other
/// than NCCL read the second.
const PIPES: [&str; 2] = ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DEBUG_INFO_PIPE_FILE"];
/// Variables that hold the prefix of the dumps. torch before 2.8 reads only the second.
const DUMPS: [&str; 2] = ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"];
/// Prefix of the dumps below the user's cache directory, where torch writes them if no variable is set.
const DEFAULT_DUMP: &str = "torch/comm_lib_trace_rank_";
/// Prefix of the dumps where earlier versions of torch write them if no variable is set.
const EARLIER_DUMP: &str = "/tmp/nccl_trace_rank_";

/// Process of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RankProcess {
    rank: Rank,
    /// Number that a launcher which the rank runs has given to the process; `None` for the rank's own.
    started: Option<u32>,
    /// Process ids, here and in the process's own namespace.
    pids: Vec<u32>,
    /// Address of NCCL's RAS service, `NCCL_RAS_ADDR`.
    ras_address: Option<String>,
    /// Pipe of torch's flight recorder, and the paths at one of which it writes its dump.
    recorder: Option<(PathBuf, Vec<PathBuf>)>,
}

impl RankProcess {
    /// Reads what is needed from `/proc`; `None` if the process has ended or may not be read.
    fn read(rank: Rank, pid: u32) -> Option<RankProcess> {
        let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        Some(RankProcess::from_text(rank, pid, &environ, &status))
    }

    fn from_text(rank: Rank, pid: u32, environ: &[u8], status: &str) -> RankProcess {
        let variable = |name: &str| {
            let mut all = environ.split(|&byte| byte == 0);
            let value =
                all.find_map(|one| one.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
            Some(OsString::from_vec(value.to_vec())).filter(|value| !value.is_empty())
        };
        let first = |names: [&str; 2]| names.into_iter().find_map(variable);
        // The number in the names of the files is torch's, which is not that of the job under torchrun.
        let number = variable("RANK").and_then(|number| number.into_string().ok());
        let path = |prefix: OsString, suffix: &str| -> Option<PathBuf> {
            let mut path = prefix;
            path.push(number.as_deref()?);
            path.push(suffix);
            Some(path.into())
        };
        // torchrun numbers the ranks that it starts anew, over all hosts. Of this job's ranks it has the id of its run.
        let is_started = variable(TORCHELASTIC_RUN_ID) != variable(RLAUNCH_JOB_ID);
        let started =
            number.as_deref().filter(|_| is_started).and_then(|number| number.parse().ok());
        let pipe = first(PIPES).and_then(|prefix| path(prefix, ".pipe"));
        let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")));
        let default = cache.map(|cache| cache.join(DEFAULT_DUMP).into_os_string());
        let dumps = match first(DUMPS) {
            Some(prefix) => vec![prefix],
            None => default.into_iter().chain([EARLIER_DUMP.into()]).collect(),
        };
        let dumps = dumps.into_iter().filter_map(|prefix| path(prefix, "")).collect();
        let ras_address = variable("NCCL_RAS_ADDR").and_then(|address| address.into_string().ok());
        RankProcess {
            rank,
            started,
            pids: pids(pid, status),
            ras_address,
            recorder: pipe.map(|pipe| (pipe, dumps)),
        }
    }
}

/// Lists the ids of a process: that of this namespace, and that of the innermost one, which `NSpid` lists last.
fn pids(pid: u32, status: &str) -> Vec<u32> {
    let own = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let own: Option<u32> = own.and_then(|pids| pids.split_whitespace().last()?.parse().ok());
    let mut pids = vec![pid];
    pids.extend(own.filter(|own| *own != pid));
    pids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_where_libraries_answer_are_known_from_the_environment() {
        let environ =
            b"RANK=12\0NCCL_RAS_ADDR=localhost:21000\0TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/t/p_\0\
            TORCH_FR_DUMP_TEMP_FILE=/t/d_\0";
        let process = RankProcess::from_text(Rank(3), 70, environ, "Name:\tx\nNSpid:\t70\t7\n");
        assert_eq!(process.pids, [70, 7]);
        assert_eq!(process.ras_address.as_deref(), Some("localhost:21000"));
        assert_eq!(process.recorder, Some(("/t/p_12.pipe".into(), vec!["/t/d_12".into()])));
    }

    #[test]
    fn without_a_variable_dumps_are_where_torch_writes_them() {
        let environ = b"HOME=/h\0RANK=0\0TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/t/p_";
        let (_, dumps) = RankProcess::from_text(Rank(0), 7, environ, "").recorder.unwrap();
        let paths = ["/h/.cache/torch/comm_lib_trace_rank_0", "/tmp/nccl_trace_rank_0"];
        assert_eq!(dumps, paths.map(PathBuf::from));
    }

    #[test]
    fn ranks_of_torchrun_have_its_numbers() {
        let read = |run: &str, number: &str| {
            let environ = format!(
                "TORCHELASTIC_RUN_ID={run}\0RLAUNCH_JOB_ID=a1\0RANK={number}\0TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/t/p_"
            );
            let process = RankProcess::from_text(Rank(1), 7, environ.as_bytes(), "");
            (process.started, process.recorder.unwrap().0)
        };
        assert_eq!(read("none", "5"), (Some(5), "/t/p_5.pipe".into()));
        assert_eq!(read("a1", "1"), (None, "/t/p_1.pipe".into()));
    }

    #[test]
    fn a_process_without_variables_has_no_recorder() {
        let process = RankProcess::from_text(Rank(3), 70, b"TORCH_FR_DUMP_TEMP_FILE=/t/d_\0", "");
        assert_eq!((process.recorder, process.ras_address), (None, None));
        assert_eq!(process.pids, [70]);
    }
}
