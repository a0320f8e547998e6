//! Frames of native code. A thread is stopped while its registers and the top of its stack are copied; the copy is
//! unwound afterwards, by the tables that compilers leave for exceptions.
//!
//! | file | subject |
//! |---|---|
//! | `snapshot` | registers and stack of a thread |
//! | `modules` | programs and libraries in memory: their tables, and names of functions |

mod modules;
mod snapshot;

use crate::threads::{self, UNSTOPPABLE};
use framehop::FrameAddress;
use framehop::Unwinder;
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use modules::Modules;
use rlaunch_bootstrap::protocol::inspection::{StackFrame, ThreadStack};
use snapshot::{Snapshot, SnapshotError};

/// Maximum number of frames that are unwound.
const MAX_FRAMES: usize = 128;

/// Beginnings of the names of files that interpret Python's code.
const INTERPRETER: [&str; 2] = ["python", "libpython"];

/// Reads the frames of all threads.
pub(crate) fn read(pid: u32) -> Result<Vec<ThreadStack>, String> {
    let mut modules = Modules::read(pid).map_err(|error| format!("no native frames: {error}"))?;
    let mut unwinder = UnwinderX86_64::new();
    let mut found = Vec::new();
    let mut problem = None;
    for tid in threads::ids(pid) {
        match snapshot(pid, tid) {
            Ok(snapshot) => {
                found.push((tid, unwind(&snapshot, &mut modules, &mut unwinder)));
            }
            Err(error) => problem = Some(format!("no native frames: {error}")),
        }
    }
    if let Some(problem) = problem.filter(|_| found.is_empty()) {
        return Err(problem);
    }
    let addresses = found.iter().flat_map(|(_, addresses)| addresses).copied().collect();
    let frames = modules.frames(&addresses);
    let thread = |(tid, addresses): (u32, Vec<u64>)| {
        let frames = addresses.iter().filter_map(|address| frames.get(address).cloned()).collect();
        ThreadStack { tid, frames, ..ThreadStack::default() }
    };
    Ok(found.into_iter().map(thread).collect())
}

/// Copies a thread, unless it cannot be stopped.
fn snapshot(pid: u32, tid: u32) -> Result<Snapshot, SnapshotError> {
    match threads::state_of(pid, tid) {
        Some((_, UNSTOPPABLE)) => Err(SnapshotError::Unstoppable { tid }),
        _ => Snapshot::take(pid, tid),
    }
}

/// Unwinds a stack. Returns addresses of instructions, that of the innermost frame first. Modules are loaded when a frame
/// is in one.
fn unwind(
    snapshot: &Snapshot,
    modules: &mut Modules,
    unwinder: &mut UnwinderX86_64<Vec<u8>>,
) -> Vec<u64> {
    let Snapshot { instruction, stack_pointer, frame_pointer, .. } = *snapshot;
    let mut registers = UnwindRegsX86_64::new(instruction, stack_pointer, frame_pointer);
    let mut read_stack = |address| snapshot.word(address).ok_or(());
    // A cache is of no use for a stack that is unwound once, and modules are added between its frames.
    let mut address = FrameAddress::from_instruction_pointer(instruction);
    let mut frames = Vec::new();
    while frames.len() < MAX_FRAMES {
        let lookup = address.address_for_lookup();
        if let Some(module) = modules.load(lookup) {
            unwinder.add_module(module);
        }
        frames.push(lookup);
        let mut cache = CacheX86_64::<_>::new();
        let next = unwinder.unwind_frame(address, &mut registers, &mut cache, &mut read_stack);
        let next = next.ok().flatten().and_then(FrameAddress::from_return_address);
        let Some(next) = next else { break };
        address = next;
    }
    frames
}

/// Drops the native frames of Python's interpreter and of what it was called by, so that what remains are the native
/// functions that the innermost frame of Python has called.
pub(crate) fn drop_interpreter(frames: &mut Vec<StackFrame>) {
    let is_interpreter = |frame: &StackFrame| {
        let file = frame.file.rsplit('/').next().unwrap_or_default();
        INTERPRETER.iter().any(|start| file.starts_with(start))
    };
    let first = frames.iter().position(|frame| frame.native && is_interpreter(frame));
    let mut at = 0;
    frames.retain(|frame| {
        let keeps = !frame.native || first.is_some_and(|first| at < first);
        at += 1;
        keeps
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_python_has_called_remains() {
        let frame = |function: &str, file: &str, native| StackFrame {
            function: function.to_owned(),
            file: file.to_owned(),
            line: 0,
            native,
        };
        let mut frames = vec![
            frame("read", "/lib/libc.so.6", true),
            frame("_PyEval_EvalFrameDefault", "/usr/bin/python3.11", true),
            frame("__libc_start_main", "/lib/libc.so.6", true),
            frame("forward", "train.py", false),
        ];
        drop_interpreter(&mut frames);
        let names: Vec<&str> = frames.iter().map(|frame| frame.function.as_str()).collect();
        assert_eq!(names, ["read", "forward"]);
    }
}
