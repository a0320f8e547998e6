//! Frames of Python, read from the outside by py-spy.

use crate::threads;
use py_spy::config::{Config, LockingStrategy};
use py_spy::{PythonSpy, StackTrace};
use rlaunch_bootstrap::protocol::inspection::{StackFrame, ThreadStack};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Number of attempts to read a process that runs.
const ATTEMPTS: usize = 5;
/// Size of the data about a thread that is searched for the thread's id, in bytes. The id is 720 bytes behind the begin
/// in glibc for x86-64, 208 in glibc for aarch64, 48 in musl.
const THREAD_DATA: usize = 1 << 10;

/// Tells whether a process runs Python: by the name of its program, or by a library that it has loaded.
pub(crate) fn is_python(pid: u32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let name = program.file_name().map(|name| name.to_string_lossy().into_owned());
    let maps = || fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    name.is_some_and(|name| name.contains("python")) || maps().contains("/libpython")
}

/// Reads the frames of all threads. The process is stopped meanwhile, if that is permitted, but for threads whose system
/// calls a stop would interrupt.
pub(crate) fn read(pid: u32) -> Result<Vec<ThreadStack>, String> {
    if threads::has_unstoppable(pid) {
        // To stop it would take as long as it waits, and all its other threads would be stopped meanwhile.
        return read_running(pid);
    }
    let stopped = read_with(pid, true);
    // Without the right to stop the process its memory may still be readable.
    stopped.or_else(|cause| read_running(pid).map_err(|_| cause))
}

/// Reads the frames of a process that runs, which fails if it calls and returns meanwhile.
fn read_running(pid: u32) -> Result<Vec<ThreadStack>, String> {
    let mut attempts = (0..ATTEMPTS).map(|_| read_with(pid, false));
    let first = attempts.next().unwrap_or_else(|| Err(String::new()));
    first.or_else(|cause| attempts.find_map(Result::ok).ok_or(cause))
}

/// Reads the frames, for which the process may be stopped. py-spy would lose signals that queue, wait for ever for a
/// thread that cannot be stopped, and interrupt system calls.
fn read_with(pid: u32, stops: bool) -> Result<Vec<ThreadStack>, String> {
    let config = Config { blocking: LockingStrategy::NonBlocking, ..Config::default() };
    let id = py_spy::Pid::try_from(pid).map_err(|error| error.to_string())?;
    let cause = |error| format!("no frames of Python: {error:#}");
    let mut process = PythonSpy::new(id, &config).map_err(cause)?;
    let traces = if stops {
        traces_at_rest(&mut process, pid)?
    } else {
        process.get_stack_traces().map_err(cause)?
    };
    let count = traces.len();
    let mut ids = ThreadIds::of(pid, count);
    let threads = traces.into_iter().filter_map(|trace| Some(thread(ids.of_trace(&trace)?, trace)));
    let threads: Vec<ThreadStack> = threads.collect();
    if threads.is_empty() && count > 0 {
        Err("no frames of Python: the ids of its threads cannot be read".to_owned())
    } else {
        Ok(threads)
    }
}

/// Reads the frames while no thread of the process moves.
fn traces_at_rest(process: &mut PythonSpy, pid: u32) -> Result<Vec<StackTrace>, String> {
    for _ in 0..ATTEMPTS {
        let held = threads::hold_all(pid);
        let held = held.map_err(|error| format!("no frames of Python: cannot stop it: {error}"))?;
        let traces = process.get_stack_traces();
        if !held.has_moved() {
            return traces.map_err(|error| format!("no frames of Python: {error:#}"));
        }
    }
    Err("no frames of Python: its threads wake too often".to_owned())
}

/// Ids of the threads of a process that runs Python.
struct ThreadIds {
    pid: u32,
    /// Ids that no thread of Python has been found to have.
    free: Vec<u32>,
    /// Whether Python has one thread, the main one.
    is_only: bool,
}

impl ThreadIds {
    fn of(pid: u32, count: usize) -> ThreadIds {
        ThreadIds { pid, free: threads::ids(pid), is_only: count == 1 }
    }

    /// Returns the id of a thread. Python before 3.11 does not tell it, but the thread's address (`pthread_t`): there
    /// the C library keeps its data about the thread, the id among them.
    fn of_trace(&mut self, trace: &StackTrace) -> Option<u32> {
        let told = trace.os_thread_id.and_then(|tid| u32::try_from(tid).ok());
        let found =
            told.or_else(|| self.at(trace.thread_id)).or(self.is_only.then_some(self.pid))?;
        self.free.retain(|&free| free != found);
        Some(found)
    }

    fn at(&self, address: u64) -> Option<u32> {
        let mut data = [0; THREAD_DATA];
        let memory = File::open(format!("/proc/{}/mem", self.pid)).ok()?;
        memory.read_exact_at(&mut data, address).ok()?;
        find_id(&data, &self.free)
    }
}

/// Finds the first of these ids in a thread's data.
fn find_id(data: &[u8], ids: &[u32]) -> Option<u32> {
    let words =
        data.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    words.into_iter().find(|word| ids.contains(word))
}

/// Converts a thread.
fn thread(tid: u32, trace: StackTrace) -> ThreadStack {
    let frames = trace.frames.into_iter().map(|frame| StackFrame {
        function: frame.name,
        file: frame.filename,
        line: u32::try_from(frame.line).unwrap_or_default(),
        native: false,
    });
    ThreadStack {
        tid,
        name: trace.thread_name.unwrap_or_default(),
        holds_gil: Some(trace.owns_gil),
        frames: frames.collect(),
        ..ThreadStack::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_thread_is_found_in_its_data() {
        let mut data = [0; 64];
        data[40..44].copy_from_slice(&4711_u32.to_ne_bytes());
        assert_eq!(find_id(&data, &[4710, 4711]), Some(4711));
        assert_eq!(find_id(&data, &[4710]), None);
    }
}
