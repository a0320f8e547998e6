//! Place where a rank is: the thread of its processes that does the rank's work.

use rlaunch_bootstrap::protocol::inspection::{ProcessStacks, StackFrame, ThreadStack, Wait};

/// Parts of the paths of files whose code starts and watches other processes, which do the work.
const STARTERS: [&str; 5] = [
    "/torch/distributed/run.py",
    "/torch/distributed/launcher/",
    "/accelerate/commands/launch.py",
    "/deepspeed/launcher/",
    "/multiprocessing/resource_tracker.py",
];

/// Beginnings of the names of functions in which a process waits while it uses CPU: MPI libraries, NCCL, CUDA, gloo,
/// and the communicator of rlaunch.
const SPINNING: [&str; 14] = [
    "MPI_",
    "PMPI_",
    "ompi_",
    "opal_",
    "MPIR_",
    "MPIDI_",
    "MPID_",
    "ncclGroup",
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cuStreamSynchronize",
    "gloo::",
    "rl_",
];

/// End of the path of the file whose code waits for `rlaunch attach`.
const DEBUGGER: &str = "/rlaunch/_debugger.py";

/// Tells whether a thread of these processes stands at a breakpoint, where it waits for the user.
pub(super) fn is_at_breakpoint(processes: &[ProcessStacks]) -> bool {
    let mut threads = processes.iter().flat_map(|process| &process.threads);
    threads.any(|thread| thread.frames.iter().any(|frame| frame.file.ends_with(DEBUGGER)))
}

/// Tells whether a thread is in a function that waits for other ranks, even if it uses CPU meanwhile.
pub(super) fn waits_for_others(thread: &ThreadStack) -> bool {
    thread.frames.iter().any(is_waiting)
}

/// Returns the frames of a thread that stay while it waits: those of an interpreter if there are any, else those from the
/// outermost function that waits for other ranks on, since that function calls others while it spins.
pub(super) fn steady_frames(thread: &ThreadStack) -> Vec<&StackFrame> {
    let frames = &thread.frames;
    let interpreted: Vec<&StackFrame> = frames.iter().filter(|frame| !frame.native).collect();
    if !interpreted.is_empty() {
        return interpreted;
    }
    let outermost = frames.iter().rposition(is_waiting);
    frames[outermost.unwrap_or_default()..].iter().collect()
}

fn is_waiting(frame: &StackFrame) -> bool {
    SPINNING.iter().any(|start| frame.function.starts_with(start))
}

/// Returns the thread that does a rank's work: the main thread of its outermost process that does more than to wait for
/// others. Those that a program starts beside itself, such as the workers of a data loader, are further in. Processes
/// with frames are preferred.
pub(super) fn working_thread(processes: &[ProcessStacks]) -> Option<&ThreadStack> {
    let main_threads = || processes.iter().filter_map(|process| process.threads.first());
    let with_frames: Vec<&ThreadStack> =
        main_threads().filter(|thread| !thread.frames.is_empty()).collect();
    let candidates = if with_frames.is_empty() { main_threads().collect() } else { with_frames };
    let working = candidates.iter().find(|thread| !starts_others(thread));
    working.or(candidates.last()).copied()
}

/// Returns the process that a thread belongs to.
pub(super) fn process_of<'a>(
    thread: &ThreadStack,
    processes: &'a [ProcessStacks],
) -> Option<&'a ProcessStacks> {
    processes
        .iter()
        .find(|process| process.threads.first().is_some_and(|main| main.tid == thread.tid))
}

fn starts_others(thread: &ThreadStack) -> bool {
    let is_starter = |file: &str| STARTERS.iter().any(|part| file.contains(part));
    thread.waits_for == Some(Wait::Child)
        || thread.frames.iter().any(|frame| is_starter(&frame.file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, file: &str, waits_for: Option<Wait>) -> ProcessStacks {
        let frame = StackFrame { file: file.to_owned(), ..StackFrame::default() };
        let frames = Some(frame).filter(|frame| !frame.file.is_empty()).into_iter().collect();
        let thread = ThreadStack { tid: pid, waits_for, frames, ..ThreadStack::default() };
        ProcessStacks { pid, threads: vec![thread], ..ProcessStacks::default() }
    }

    fn working(processes: &[ProcessStacks]) -> Option<u32> {
        working_thread(processes).map(|thread| thread.tid)
    }

    #[test]
    fn workers_of_a_program_are_not_the_program() {
        let worker = |pid| process(pid, "/l/torch/utils/data/_utils/worker.py", None);
        let all = [process(1, "/home/u/train.py", None), worker(2), worker(3)];
        assert_eq!(working(&all), Some(1));
        assert_eq!(process_of(&all[1].threads[0], &all).unwrap().pid, 2);
    }

    #[test]
    fn programs_that_start_others_are_not_where_the_rank_is() {
        let train = process(3, "/home/u/train.py", None);
        let shell = process(1, "", Some(Wait::Child));
        let torchrun = process(2, "/l/torch/distributed/run.py", Some(Wait::Sleep));
        assert_eq!(working(&[shell, torchrun.clone(), train]), Some(3));
        assert_eq!(working(&[torchrun]), Some(2));
    }

    #[test]
    fn a_thread_that_spins_in_a_collective_stays_there() {
        let frame = |function: &str| StackFrame {
            function: function.to_owned(),
            native: true,
            ..StackFrame::default()
        };
        let frames = ["poll", "opal_progress", "MPI_Allreduce", "main"].map(frame).to_vec();
        let thread = ThreadStack { frames, ..ThreadStack::default() };
        let names: Vec<&str> =
            steady_frames(&thread).iter().map(|frame| frame.function.as_str()).collect();
        assert_eq!(names, ["MPI_Allreduce", "main"]);
        assert!(waits_for_others(&thread));
    }

    #[test]
    fn without_frames_the_first_that_does_not_wait_for_others_is_taken() {
        let sleeps = |pid| process(pid, "", Some(Wait::Sleep));
        assert_eq!(working(&[process(1, "", Some(Wait::Child)), sleeps(2), sleeps(3)]), Some(2));
        assert_eq!(working(&[]), None);
    }
}
