//! Frames of Python, read from the outside by py-spy.

use py_spy::config::{Config, LockingStrategy};
use py_spy::{PythonSpy, StackTrace};
use rlaunch_bootstrap::protocol::inspection::{StackFrame, ThreadStack};
use std::fs;

/// Tells whether a process runs Python: by the name of its program, or by a library that it has loaded.
pub(crate) fn is_python(pid: u32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let name = program.file_name().map(|name| name.to_string_lossy().into_owned());
    let maps = || fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    name.is_some_and(|name| name.contains("python")) || maps().contains("/libpython")
}

/// Reads the frames of all threads. The process is stopped meanwhile, if that is permitted.
pub(crate) fn read(pid: u32) -> Result<Vec<ThreadStack>, String> {
    let stopped = read_with(pid, LockingStrategy::Lock);
    // Without the right to stop the process its memory may still be readable.
    stopped.or_else(|cause| read_with(pid, LockingStrategy::NonBlocking).map_err(|_| cause))
}

fn read_with(pid: u32, blocking: LockingStrategy) -> Result<Vec<ThreadStack>, String> {
    let config = Config { blocking, ..Config::default() };
    let id = py_spy::Pid::try_from(pid).map_err(|error| error.to_string())?;
    let cause = |error| format!("no frames of Python: {error:#}");
    let mut process = PythonSpy::new(id, &config).map_err(cause)?;
    let traces = process.get_stack_traces().map_err(cause)?;
    let is_only = traces.len() == 1;
    Ok(traces.into_iter().filter_map(|trace| thread(pid, trace, is_only)).collect())
}

/// Converts a thread. Old versions of Python do not tell the thread's id; the only thread of a process is its main one.
fn thread(pid: u32, trace: StackTrace, is_only: bool) -> Option<ThreadStack> {
    let known = trace.os_thread_id.and_then(|tid| u32::try_from(tid).ok());
    let tid = known.or(is_only.then_some(pid))?;
    let frames = trace.frames.into_iter().map(|frame| StackFrame {
        function: frame.name,
        file: frame.filename,
        line: u32::try_from(frame.line).unwrap_or_default(),
        native: false,
    });
    Some(ThreadStack {
        tid,
        name: trace.thread_name.unwrap_or_default(),
        holds_gil: Some(trace.owns_gil),
        frames: frames.collect(),
        ..ThreadStack::default()
    })
}
