//! All processes of an order, read at once within a time limit.

use crate::{native, python, threads};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::{
    MAX_STACK_PROCESSES, ProcessStacks, RankStacks, StackOrder, ThreadStack,
};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Number of processes that are read at a time. Most of the time passes while the kernel stops
/// threads, not on a CPU.
const WORKERS: usize = 8;

/// Maximum number of frames of a thread, and of threads of a process, in an answer.
const MAX_FRAMES: usize = 128;
const MAX_THREADS: usize = 128;

/// Reads the stacks. Processes that could not be read in time have threads without frames.
pub(crate) fn carry_out(order: &StackOrder) -> Vec<RankStacks> {
    let deadline = Instant::now() + Duration::from_millis(order.limit_ms.into());
    let mut answer: Vec<RankStacks> =
        order.processes.iter().map(|(rank, pids)| without_frames(*rank, pids)).collect();
    let places: Vec<(usize, usize, u32)> = answer.iter().enumerate().flat_map(places_of).collect();
    let (waiting, native) = (places.len(), order.native);
    let (done, results) = mpsc::channel();
    let queue = Arc::new(Mutex::new(places.into_iter()));
    for _ in 0..WORKERS.min(waiting) {
        let (queue, done) = (queue.clone(), done.clone());
        thread::spawn(move || {
            let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some((rank, process, pid)) = next() {
                // An error means that the time is up.
                let _ = done.send((rank, process, read_frames(pid, native)));
            }
        });
    }
    drop(done);
    for _ in 0..waiting {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((rank, process, frames)) = results.recv_timeout(left) else { break };
        let found = answer.get_mut(rank).and_then(|rank| rank.processes.get_mut(process));
        if let Some(found) = found {
            found.problem = frames.add_to(&mut found.threads);
        }
    }
    answer
}

/// Lists the processes of a rank by their places in the answer.
fn places_of((at, rank): (usize, &RankStacks)) -> Vec<(usize, usize, u32)> {
    let processes = rank.processes.iter().enumerate();
    processes.map(|(process, stacks)| (at, process, stacks.pid)).collect()
}

/// Describes the processes of a rank without frames, which takes microseconds.
fn without_frames(rank: Rank, pids: &[u32]) -> RankStacks {
    let pids = pids.iter().take(MAX_STACK_PROCESSES);
    let processes = pids.filter_map(|&pid| {
        let program = threads::name_of(pid)?;
        let mut threads = threads::list(pid);
        threads.truncate(MAX_THREADS);
        let problem = Some("its stack could not be read in time".to_owned());
        Some(ProcessStacks { pid, program, problem, threads })
    });
    RankStacks { rank, processes: processes.collect() }
}

/// Frames of the threads of a process.
struct ProcessFrames {
    python: Option<Result<Vec<ThreadStack>, String>>,
    native: Option<Result<Vec<ThreadStack>, String>>,
}

fn read_frames(pid: u32, wants_native: bool) -> ProcessFrames {
    let python = python::is_python(pid).then(|| python::read(pid));
    let native = wants_native.then(|| native::read(pid));
    ProcessFrames { python, native }
}

impl ProcessFrames {
    /// Adds the frames to the threads: the native ones that Python has called, then Python's. Returns the reason why
    /// frames are missing.
    fn add_to(self, threads: &mut [ThreadStack]) -> Option<String> {
        let mut problem = None;
        for found in [self.native, self.python].into_iter().flatten() {
            match found {
                Ok(found) => found.into_iter().for_each(|thread| add(thread, threads)),
                Err(cause) => problem = Some(cause),
            }
        }
        for thread in threads.iter_mut() {
            let is_python = thread.frames.iter().any(|frame| !frame.native);
            if is_python {
                native::drop_interpreter(&mut thread.frames);
            }
            thread.frames.truncate(MAX_FRAMES);
        }
        problem
    }
}

/// Adds the frames and the name of a thread to the same thread in the list.
fn add(found: ThreadStack, threads: &mut [ThreadStack]) {
    if let Some(thread) = threads.iter_mut().find(|thread| thread.tid == found.tid) {
        thread.frames.extend(found.frames);
        thread.holds_gil = thread.holds_gil.or(found.holds_gil);
        if !found.name.is_empty() {
            thread.name = found.name;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::protocol::inspection::Wait;
    use std::process::{Child, Command, Stdio};

    /// Process that is killed at the end of a test.
    struct Process(Child);

    impl Process {
        fn start(program: &str, args: &[&str]) -> Process {
            let mut command = Command::new(program);
            command.args(args).stdin(Stdio::piped()).stdout(Stdio::null());
            Process(command.spawn().unwrap())
        }

        /// Waits until `is_there` holds for the process.
        fn until(self, is_there: impl Fn(&ProcessStacks) -> bool) -> ProcessStacks {
            let deadline = Instant::now() + Duration::from_secs(60);
            loop {
                let stacks = self.read();
                if is_there(&stacks) {
                    return stacks;
                }
                assert!(Instant::now() < deadline, "{stacks:?}");
                thread::yield_now();
            }
        }

        fn read(&self) -> ProcessStacks {
            let processes = vec![(Rank(0), vec![self.0.id()])];
            let order = StackOrder { processes, native: true, limit_ms: 60_000 };
            carry_out(&order).remove(0).processes.remove(0)
        }
    }

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn python(script: &str) -> Process {
        Process::start("python3", &["-c", script])
    }

    fn functions(stacks: &ProcessStacks) -> Vec<&str> {
        stacks.threads[0].frames.iter().map(|frame| frame.function.as_str()).collect()
    }

    fn is_in(stacks: &ProcessStacks, function: &str) -> bool {
        functions(stacks).contains(&function)
    }

    #[test]
    fn a_python_process_that_sleeps_is_seen_to_sleep() {
        let script = "import time\ndef nap():\n  time.sleep(1000)\nnap()";
        let stacks = python(script).until(|stacks| {
            is_in(stacks, "nap") && stacks.threads[0].waits_for == Some(Wait::Sleep)
        });
        let nap = stacks.threads[0].frames.iter().find(|frame| frame.function == "nap").unwrap();
        assert_eq!((nap.line, nap.native), (3, false), "{stacks:?}");
        assert_eq!(stacks.threads[0].holds_gil, Some(false));
    }

    #[test]
    fn a_python_process_that_waits_for_a_lock_is_seen_to_wait() {
        let script = "import threading\ndef hold(lock):\n  lock.acquire()\n  lock.acquire()\n\
                      hold(threading.Lock())";
        let stacks = python(script).until(|stacks| {
            is_in(stacks, "hold") && stacks.threads[0].waits_for == Some(Wait::Futex)
        });
        assert_eq!(stacks.problem, None, "{stacks:?}");
    }

    #[test]
    fn a_python_process_that_loops_runs() {
        let script = "def spin():\n  while True:\n    pass\nspin()";
        let stacks = python(script).until(|stacks| is_in(stacks, "spin"));
        assert_eq!(stacks.threads[0].waits_for, None, "{stacks:?}");
    }

    #[test]
    fn a_process_that_reads_a_pipe_is_seen_to_wait_for_it() {
        let stacks = Process::start("cat", &[])
            .until(|stacks| matches!(stacks.threads[0].waits_for, Some(Wait::Pipe { .. })));
        let Some(Wait::Pipe { name }) = &stacks.threads[0].waits_for else { panic!("{stacks:?}") };
        assert!(name.starts_with("pipe:["), "{name}");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn native_frames_reach_the_program() {
        let stacks = Process::start("sleep", &["1000"])
            .until(|stacks| stacks.threads[0].waits_for == Some(Wait::Sleep));
        let names = functions(&stacks).join(" ");
        assert!(names.contains("nanosleep") && names.contains("__libc_start"), "{stacks:?}");
    }

    #[test]
    fn a_process_that_has_ended_has_no_stacks() {
        let process = Process::start("true", &[]);
        let pid = process.0.id();
        drop(process);
        let order =
            StackOrder { processes: vec![(Rank(3), vec![pid])], native: true, limit_ms: 1000 };
        assert_eq!(carry_out(&order), [RankStacks { rank: Rank(3), processes: Vec::new() }]);
    }

    #[test]
    fn without_time_there_are_states_but_no_frames() {
        let process = Process::start("sleep", &["1000"]);
        let processes = vec![(Rank(0), vec![process.0.id()])];
        let order = StackOrder { processes, native: false, limit_ms: 0 };
        let stacks = carry_out(&order);
        assert!(!stacks[0].processes[0].threads.is_empty());
    }
}
