//! Frames of native code. The registers and the top of the stack of a thread are copied; the copy is unwound afterwards,
//! by the tables that compilers leave for exceptions.
//!
//! A thread that sleeps in a system call is copied without a stop, which could interrupt the call. Its frame pointer is
//! unknown then, until a frame has saved it. Where it is needed earlier, it is looked for on the stack; a thread is only
//! stopped to learn it if the kernel restarts the call.

mod modules;
mod snapshot;

use crate::threads::{self, Found, Sleep, UNSTOPPABLE};
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{FrameAddress, Unwinder};
use modules::Modules;
use rlaunch_bootstrap::protocol::inspection::{StackFrame, ThreadStack};
use snapshot::{Snapshot, SnapshotError, UNKNOWN};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Maximum number of frames that are unwound.
const MAX_FRAMES: usize = 128;

/// Beginnings of the names of files that interpret Python's code.
const INTERPRETER: [&str; 2] = ["python", "libpython"];

/// Number of attempts to copy a thread that wakes meanwhile.
const ATTEMPTS: usize = 5;

/// Size of a word, and maximum size of a frame on the stack in which the frame pointer is looked for, in bytes.
const WORD: usize = 8;
const MAX_FRAME_SIZE: u64 = 16 << 10;

/// Reads the frames of all threads.
pub(crate) fn read(pid: u32) -> Found {
    match Reader::new(pid) {
        Ok(mut reader) => reader.all(),
        Err(error) => Found::nothing(format!("no native frames: {error}")),
    }
}

/// What is known of a process while its threads are read.
struct Reader {
    pid: u32,
    memory: File,
    modules: Modules,
    unwinder: UnwinderX86_64<Vec<u8>>,
}

/// Frames of a thread.
struct Stack {
    /// Addresses of instructions, that of the innermost frame first.
    addresses: Vec<u64>,
    /// False if it was left at a frame that needs the frame pointer, which is unknown.
    is_whole: bool,
}

impl Reader {
    fn new(pid: u32) -> io::Result<Reader> {
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        Ok(Reader { pid, memory, modules: Modules::read(pid)?, unwinder: UnwinderX86_64::new() })
    }

    /// Reads all threads.
    fn all(&mut self) -> Found {
        let (mut stacks, mut problem) = (Vec::new(), None);
        for tid in threads::ids(self.pid) {
            match self.stack(tid) {
                Ok(stack) => {
                    if !stack.is_whole {
                        problem = Some(format!(
                            "outer native frames of thread {tid} are unknown: to see them it \
                             would have to be stopped, which would interrupt its system call"
                        ));
                    }
                    stacks.push((tid, stack.addresses));
                }
                Err(_) if threads::has_ended(self.pid, tid) => {}
                Err(error) => problem = problem.or(Some(format!("no native frames: {error}"))),
            }
        }
        let addresses = stacks.iter().flat_map(|(_, addresses)| addresses).copied().collect();
        let frames = self.modules.frames(&addresses);
        let thread = |(tid, addresses): (u32, Vec<u64>)| {
            let frames = addresses.iter().filter_map(|address| frames.get(address).cloned());
            ThreadStack { tid, frames: frames.collect(), ..ThreadStack::default() }
        };
        Found { threads: stacks.into_iter().map(thread).collect(), problem }
    }

    /// Reads a thread, if possible while it sleeps.
    fn stack(&mut self, tid: u32) -> Result<Stack, SnapshotError> {
        for _ in 0..ATTEMPTS {
            let sleep = Sleep::of(self.pid, tid);
            let sleep = sleep.map_err(|cause| SnapshotError::Call { tid, cause })?;
            let Some(sleep) = sleep else {
                return self.stopped(tid);
            };
            let copy = Snapshot::of_sleeper(&self.memory, &sleep);
            if sleep.has_moved() {
                continue;
            }
            let stack = self.unwind(&copy);
            if stack.is_whole || !sleep.is_restarted() {
                return Ok(stack);
            }
            return self.stopped(tid).or(Ok(stack));
        }
        Err(SnapshotError::Wakes { tid })
    }

    /// Stops and reads a thread, unless it cannot be stopped.
    fn stopped(&mut self, tid: u32) -> Result<Stack, SnapshotError> {
        if let Some((_, UNSTOPPABLE)) = threads::state_of(self.pid, tid) {
            return Err(SnapshotError::Unstoppable { tid });
        }
        let copy = Snapshot::take(&self.memory, tid)?;
        Ok(self.unwind(&copy))
    }

    /// Unwinds a stack. Modules are loaded when a frame is in one.
    fn unwind(&mut self, snapshot: &Snapshot) -> Stack {
        let Snapshot { instruction, stack_pointer, frame_pointer, .. } = *snapshot;
        let mut registers = UnwindRegsX86_64::new(instruction, stack_pointer, frame_pointer);
        let mut address = FrameAddress::from_instruction_pointer(instruction);
        let mut addresses = Vec::new();
        while addresses.len() < MAX_FRAMES {
            let lookup = address.address_for_lookup();
            if let Some(module) = self.modules.load(lookup) {
                self.unwinder.add_module(module);
            }
            addresses.push(lookup);
            let mut next = self.caller(address, &mut registers, snapshot);
            if next.is_err() && registers.bp() == UNKNOWN {
                let Some(found) = self.frame_pointer(address, registers, snapshot) else {
                    return Stack { addresses, is_whole: false };
                };
                registers.set_bp(found);
                next = self.caller(address, &mut registers, snapshot);
            }
            let Ok(Some(next)) = next else { break };
            address = next;
        }
        Stack { addresses, is_whole: true }
    }

    /// Unwinds a frame: returns where it has been called, or `None` at the end of the stack, and sets the registers to
    /// those of its caller.
    fn caller(
        &self,
        address: FrameAddress,
        registers: &mut UnwindRegsX86_64,
        snapshot: &Snapshot,
    ) -> Result<Option<FrameAddress>, framehop::Error> {
        let mut read_stack = |address| snapshot.word(address).ok_or(());
        // A cache is of no use for a stack that is unwound once, and modules are added between its frames.
        let mut cache = CacheX86_64::<_>::new();
        let caller = self.unwinder.unwind_frame(address, registers, &mut cache, &mut read_stack);
        caller.map(|caller| caller.and_then(FrameAddress::from_return_address))
    }

    /// Looks for the frame pointer of a frame on the stack, beginning at its top: the first address for which the frame
    /// has been called by an instruction that calls the frame's function. Old return addresses, which may lie
    /// there as well, follow calls of other functions.
    fn frame_pointer(
        &self,
        address: FrameAddress,
        registers: UnwindRegsX86_64,
        snapshot: &Snapshot,
    ) -> Option<u64> {
        let function = self.modules.function_start(address.address_for_lookup())?;
        let from = registers.sp().next_multiple_of(WORD as u64);
        (from..from.saturating_add(MAX_FRAME_SIZE)).step_by(WORD).find(|&candidate| {
            let mut registers = registers;
            registers.set_bp(candidate);
            let caller = self.caller(address, &mut registers, snapshot).ok().flatten();
            caller.and_then(|caller| self.callee(caller.address())) == Some(function)
        })
    }

    /// Returns the function that the instruction before a return address calls, if the instruction names it: directly,
    /// through the table of a linker, or both.
    fn callee(&self, return_address: u64) -> Option<u64> {
        let code: [u8; 6] = self.bytes(return_address.checked_sub(6)?)?;
        match code {
            [_, 0xe8, offset @ ..] => {
                let target = relative(return_address, offset);
                Some(self.behind_stub(target).unwrap_or(target))
            }
            [0xff, 0x15, offset @ ..] => self.word(relative(return_address, offset)),
            _ => None,
        }
    }

    /// Returns the function behind a linker's stub: `jmp *offset(%rip)`, with or without prefixes.
    fn behind_stub(&self, address: u64) -> Option<u64> {
        const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
        const BND: u8 = 0xf2;
        let begin: [u8; 4] = self.bytes(address)?;
        let jump = if begin == ENDBR64 { address.checked_add(4)? } else { address };
        let [first] = self.bytes(jump)?;
        let jump = if first == BND { jump.checked_add(1)? } else { jump };
        match self.bytes::<6>(jump)? {
            [0xff, 0x25, offset @ ..] => self.word(relative(jump.checked_add(6)?, offset)),
            _ => None,
        }
    }

    fn word(&self, address: u64) -> Option<u64> {
        self.bytes(address).map(u64::from_ne_bytes)
    }

    /// Reads memory of the process.
    fn bytes<const LENGTH: usize>(&self, address: u64) -> Option<[u8; LENGTH]> {
        let mut bytes = [0; LENGTH];
        self.memory.read_exact_at(&mut bytes, address).ok()?;
        Some(bytes)
    }
}

/// Returns the address that an instruction with an offset means. `next` is the address of the instruction after it.
fn relative(next: u64, offset: [u8; 4]) -> u64 {
    next.wrapping_add_signed(i32::from_le_bytes(offset).into())
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
        // Without any, the stack is known as far as to a function that Python has called.
        let keeps = !frame.native || first.is_none_or(|first| at < first);
        at += 1;
        keeps
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    /// Python notes each signal that reaches it in a pipe. A child sends it signals that queue.
    const COUNTS_SIGNALS: &str = "\
import os, select, signal, time
read, write = os.pipe()
os.set_blocking(write, False)
signal.signal(signal.SIGRTMIN, lambda *_: None)
signal.set_wakeup_fd(write)
parent = os.getpid()
print('up', flush=True)
sender = os.fork()
if sender == 0:
    for number in range(1000):
        while True:
            try: os.kill(parent, signal.SIGRTMIN); break
            except BlockingIOError: time.sleep(0.001)
        if number % 10 == 0: time.sleep(0.0002)
    os._exit(0)
count, is_over = 0, False
while True:
    if select.select([read], [], [], 0.2)[0]: count += len(os.read(read, 4096))
    elif is_over: break
    else: is_over = os.waitpid(sender, os.WNOHANG)[0] != 0
print(count)
";

    #[test]
    fn a_thread_that_is_looked_at_gets_all_its_signals() {
        let mut command = Command::new("python3");
        let command = command.args(["-c", COUNTS_SIGNALS]).stdout(Stdio::piped());
        let mut python = command.spawn().unwrap();
        let mut lines = BufReader::new(python.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "up");
        let count = std::thread::spawn(move || lines.next().unwrap().unwrap());
        let memory = File::open(format!("/proc/{}/mem", python.id())).unwrap();
        let mut looks = 0;
        while !count.is_finished() {
            // It fails if the process ends.
            looks += u32::from(Snapshot::take(&memory, python.id()).is_ok());
            std::thread::sleep(Duration::from_micros(200));
        }
        assert_eq!(count.join().unwrap(), "1000", "after {looks} looks");
        assert!(python.wait().unwrap().success());
    }

    const WAITS: &str = "\
import ctypes, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
room, limit = ctypes.create_string_buffer(4096), (ctypes.c_long * 2)(1000, 0)
def shared(make, remove, *args):
    made = getattr(libc, make)(0, *args)
    if os.fork() == 0:
        os.read(0, 1)
        getattr(libc, remove)(made, 0, None)
        os._exit(0)
    return made
def semaphore(): return shared('semget', 'semctl', 1, 0o600)
down = struct.pack('HhH', 0, -1, 0)
libc.sigaddset(room, 10)
libc.sigprocmask(0, room, None)
ends = socket.socketpair()
ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bytes(limit))
one, aio = ctypes.c_long(1), ctypes.c_ulong()
";

    /// Calls that a stop interrupts, and parts of the names of the innermost functions.
    const CALLS: [(&str, &str); 9] = [
        ("libc.epoll_wait(libc.epoll_create1(0), room, 1, -1)", "epoll_wait"),
        ("libc.semop(semaphore(), down, 1)", "sem"),
        ("libc.semtimedop(semaphore(), down, 1, limit)", "sem"),
        (
            "libc.msgrcv(shared('msgget', 'msgctl', 0o600), room, ctypes.c_size_t(8), one, 0)",
            "msgrcv",
        ),
        ("libc.sigtimedwait(room, None, limit)", "sig"),
        ("libc.sigwaitinfo(room, None)", "sig"),
        (
            "libc.syscall(206, 1, ctypes.byref(aio)); libc.syscall(208, aio, one, one, room, None)",
            "syscall",
        ),
        ("libc.recv(ends[0].fileno(), room, 1, 0)", "recv"),
        ("libc.read(libc.inotify_init(), room, 4096)", "read"),
    ];

    /// Process that is killed when this is dropped; what it has made is removed when its stdin ends.
    struct Python(Child);

    impl Drop for Python {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_thread_that_is_looked_at_waits_on_in_calls_that_a_stop_interrupts() {
        for (call, expected) in CALLS {
            let mut command = Command::new("python3");
            let script = format!("{WAITS}print('up', flush=True)\n{call}\n");
            let command = command.args(["-c", &script]).stdin(Stdio::piped());
            let mut python = Python(command.stdout(Stdio::piped()).spawn().unwrap());
            let mut output = BufReader::new(python.0.stdout.take().unwrap());
            output.read_line(&mut String::new()).unwrap();
            let pid = python.0.id();
            let look = |reader: &mut Reader| -> Option<String> {
                let innermost = *reader.stack(pid).ok()?.addresses.first()?;
                Some(reader.modules.frames(&[innermost].into()).remove(&innermost)?.function)
            };
            let is_expected = |name: &String| name.contains(expected);
            let deadline = Instant::now() + Duration::from_secs(60);
            let mut reader = Reader::new(pid).unwrap();
            while !look(&mut reader).as_ref().is_some_and(is_expected) {
                assert!(Instant::now() < deadline, "{call}");
            }
            for _ in 0..100 {
                let name = look(&mut reader);
                assert!(name.as_ref().is_some_and(is_expected), "{call}: {name:?}");
                assert!(!threads::hold_all(pid).unwrap().has_moved(), "{call}");
            }
            assert!(python.0.try_wait().unwrap().is_none(), "interrupted: {call}");
        }
    }

    /// Memory that is a file: two functions, of which the second calls the first through a linker's stub, and another
    /// one, which it has called before.
    fn reader_of_a_file() -> Reader {
        let memory = tempfile::tempfile().unwrap();
        let write = |at: u64, bytes: &[u8]| memory.write_all_at(bytes, at).unwrap();
        let call =
            |target: i32, at: i32| [&[0xe8_u8][..], &(target - at - 5).to_le_bytes()[..]].concat();
        write(0x2010, &call(0x1800, 0x2010));
        write(0x2020, &call(0x2800, 0x2020));
        // `endbr64`, `bnd jmp *0x100(%rip)`.
        write(0x2800, &[0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0, 1, 0, 0]);
        write(0x280b + 0x100, &0x1000_u64.to_le_bytes());
        let starts = vec![0x1000, 0x1800, 0x2000];
        let modules = Modules::of_one(0x1000..0x3000, starts);
        Reader { pid: 0, memory, modules, unwinder: UnwinderX86_64::new() }
    }

    #[test]
    fn an_unknown_frame_pointer_is_found_by_the_call_of_the_function() {
        let mut reader = reader_of_a_file();
        // Variables, what an earlier call has left, and the frame's end.
        let words = [7_u64, 0x8028, 0x2015, 8, 9, 0, 0x2025, 0, 0];
        let stack: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        let snapshot =
            Snapshot { instruction: 0x1010, stack_pointer: 0x8000, frame_pointer: UNKNOWN, stack };
        let found = reader.unwind(&snapshot);
        assert_eq!((found.addresses, found.is_whole), (vec![0x1010, 0x2024], true));
    }

    #[test]
    fn frames_end_where_the_frame_pointer_is_not_found() {
        let mut reader = reader_of_a_file();
        let stack = vec![0; 64];
        let snapshot =
            Snapshot { instruction: 0x1010, stack_pointer: 0x8000, frame_pointer: UNKNOWN, stack };
        let found = reader.unwind(&snapshot);
        assert_eq!((found.addresses, found.is_whole), (vec![0x1010], false));
    }

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
        let functions = |frames: &[StackFrame]| -> Vec<String> {
            frames.iter().map(|frame| frame.function.clone()).collect()
        };
        drop_interpreter(&mut frames);
        assert_eq!(functions(&frames), ["read", "forward"]);
        // As far as to Python the stack is not always known.
        drop_interpreter(&mut frames);
        assert_eq!(functions(&frames), ["read", "forward"]);
    }
}
