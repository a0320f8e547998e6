//! Frames of native code. The registers and the top of the stack of a thread are copied; the copy is unwound afterwards,
//! by the tables that compilers leave for exceptions.
//!
//! A thread that sleeps in a system call is copied without a stop, which could interrupt the call. Its frame pointer is
//! unknown then, until a frame has saved it. Where it is needed earlier, it is looked for on the stack; a thread is only
//! stopped to learn it if the kernel restarts the call.

use crate::threads::{self, Found, Sleep, UNSTOPPABLE};
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder};
use nix::sys::ptrace;
use nix::unistd::Pid;
use object::read::ReadCache;
use object::{
    Object, ObjectSection, ObjectSegment, ObjectSymbol, ObjectSymbolTable, SymbolIndex, SymbolKind,
};
use rlaunch_bootstrap::protocol::inspection::{StackFrame, ThreadStack};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Maximum number of frames that are unwound.
const MAX_FRAMES: usize = 128;

/// Beginnings of the names of files that interpret Python's code.
const INTERPRETER: [&str; 2] = ["python", "libpython"];

/// Number of attempts to copy a thread that wakes meanwhile.
const ATTEMPTS: usize = 5;

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

/// Maximum size of the copy of a stack, in bytes. Frames further out are not seen.
const MAX_STACK: usize = 512 << 10;
/// Size of a page of memory: the end of a stack is found by reading page by page.
const PAGE: usize = 4 << 10;

/// Frame pointer of a thread that has not been stopped: an address where no stack is, so that a frame that needs it
/// cannot be unwound.
const UNKNOWN: u64 = 0xdead << 48;

/// Size of a word, and maximum size of a frame on the stack in which the frame pointer is looked for, in bytes.
const WORD: usize = 8;
const MAX_FRAME_SIZE: u64 = 16 << 10;

/// Copy of a thread's registers and stack.
struct Snapshot {
    instruction: u64,
    stack_pointer: u64,
    /// May be [`UNKNOWN`].
    frame_pointer: u64,
    stack: Vec<u8>,
}

/// Reason why a thread cannot be copied.
#[derive(Debug, thiserror::Error)]
enum SnapshotError {
    #[error("thread {tid} waits in the kernel and cannot be stopped")]
    Unstoppable { tid: u32 },
    #[error("cannot read the system call of thread {tid}: {cause}")]
    Call { tid: u32, cause: io::Error },
    #[error("thread {tid} woke each time that it was read")]
    Wakes { tid: u32 },
    #[error("cannot stop thread {tid}: {cause}")]
    Stop { tid: u32, cause: io::Error },
}

impl Snapshot {
    /// Copies a thread that sleeps, and may wake meanwhile.
    fn of_sleeper(memory: &File, sleep: &Sleep) -> Snapshot {
        let (instruction, stack_pointer) = sleep.registers();
        let stack = read_stack(memory, stack_pointer);
        Snapshot { instruction, stack_pointer, frame_pointer: UNKNOWN, stack }
    }

    /// Stops and copies a thread.
    fn take(memory: &File, tid: u32) -> Result<Snapshot, SnapshotError> {
        let failed = |cause| SnapshotError::Stop { tid, cause };
        let stopped = threads::stop(tid).map_err(failed)?;
        let registers = ptrace::getregs(Pid::from_raw(tid.cast_signed()));
        let registers = registers.map_err(|cause| failed(cause.into()))?;
        let stack = read_stack(memory, registers.rsp);
        drop(stopped);
        let (instruction, stack_pointer) = (registers.rip, registers.rsp);
        Ok(Snapshot { instruction, stack_pointer, frame_pointer: registers.rbp, stack })
    }

    /// Returns the 8 bytes at an address of the stack.
    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.stack_pointer)?).ok()?;
        let bytes = self.stack.get(at..at.checked_add(8)?)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    }
}

/// Reads from an address to the end of the mapped memory.
fn read_stack(memory: &File, from: u64) -> Vec<u8> {
    let mut stack = Vec::new();
    let in_page = usize::try_from(from).unwrap_or_default() % PAGE;
    let mut part = PAGE - in_page;
    while stack.len() < MAX_STACK {
        let at = stack.len();
        stack.resize(at + part, 0);
        let address = from.saturating_add(at as u64);
        if memory.read_exact_at(&mut stack[at..], address).is_err() {
            stack.truncate(at);
            break;
        }
        part = PAGE;
    }
    stack
}

/// Maximum number of symbols of a module that are read.
const MAX_SYMBOLS: usize = 2_000_000;
/// Maximum length of a function's name, in characters. Names of templates may be much longer.
const MAX_NAME: usize = 120;

/// Modules of a process by the begin of their addresses.
struct Modules(BTreeMap<u64, LoadedModule>);

/// Program or library, mapped at some addresses.
struct LoadedModule {
    /// Path of the file, as the process sees it.
    path: String,
    /// Path by which this process can open the file.
    openable: PathBuf,
    addresses: Range<u64>,
    /// Functions; `None` until a frame is in the module.
    functions: Option<Functions>,
}

/// Functions of a module, without their names: large libraries have hundreds of thousands.
#[derive(Default)]
struct Functions {
    /// Difference between an address in memory and the same address in the file.
    bias: u64,
    /// Functions by their addresses.
    sorted: Vec<Function>,
    /// Addresses at which functions begin, sorted, also of those without a symbol.
    starts: Vec<u64>,
}

/// Function in a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Function {
    address: u64,
    /// Size in bytes; 0 if unknown, as of functions in assembler.
    size: u64,
    /// Whether its symbol is in the table for dynamic linking.
    is_dynamic: bool,
    /// Place of its symbol in the table.
    index: usize,
}

impl Modules {
    /// Reads the map of a process's memory.
    fn read(pid: u32) -> io::Result<Modules> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let mut modules: BTreeMap<u64, LoadedModule> = BTreeMap::new();
        for (addresses, path) in maps.lines().filter_map(parse_mapping) {
            // The mappings of a file follow each other.
            let last = modules.last_entry().filter(|last| last.get().path == path);
            if let Some(mut last) = last {
                last.get_mut().addresses.end = addresses.end;
                continue;
            }
            let openable = PathBuf::from(format!("/proc/{pid}/root{path}"));
            let begin = addresses.start;
            let module =
                LoadedModule { path: path.to_owned(), openable, addresses, functions: None };
            modules.insert(begin, module);
        }
        Ok(Modules(modules))
    }

    /// Loads the module at an address. Returns its tables if it was not loaded before.
    fn load(&mut self, address: u64) -> Option<Module<Vec<u8>>> {
        let module = self.at_mut(address)?;
        if module.functions.is_some() {
            return None;
        }
        let (functions, tables) = module.read().unwrap_or_default();
        let base = module.addresses.start;
        module.functions = Some(functions);
        Some(Module::new(module.path.clone(), module.addresses.clone(), base, tables))
    }

    /// Describes the frames at these addresses, but those at which no file is mapped. Opens each file once.
    fn frames(&self, addresses: &BTreeSet<u64>) -> HashMap<u64, StackFrame> {
        let mut frames = HashMap::new();
        for module in self.0.values() {
            let own: Vec<u64> = addresses.range(module.addresses.clone()).copied().collect();
            if own.is_empty() {
                continue;
            }
            let mut names = module.names(&own).unwrap_or_default();
            for address in own {
                let function = names.remove(&address).unwrap_or_else(|| "?".to_owned());
                let file = module.path.clone();
                frames.insert(address, StackFrame { function, file, line: 0, native: true });
            }
        }
        frames
    }

    /// Returns the address at which the function begins that an address is in; `None` if its module has not been loaded.
    fn function_start(&self, address: u64) -> Option<u64> {
        let (_, module) = self.0.range(..=address).next_back()?;
        module.functions.as_ref()?.start(address)
    }

    fn at_mut(&mut self, address: u64) -> Option<&mut LoadedModule> {
        let (_, module) = self.0.range_mut(..=address).next_back()?;
        module.addresses.contains(&address).then_some(module)
    }
}

impl LoadedModule {
    /// Reads the functions and the tables from the file.
    fn read(&self) -> Option<(Functions, ExplicitModuleSectionInfo<Vec<u8>>)> {
        let cache = ReadCache::new(File::open(&self.openable).ok()?);
        let file = object::File::parse(&cache).ok()?;
        let base_svma = file.segments().map(|segment| segment.address()).min()?;
        // Segments begin at pages.
        let base_svma = base_svma & !0xfff;
        let section = |name: &str| {
            let section = file.section_by_name(name)?;
            let range = section.address()..section.address() + section.size();
            Some((range, section.uncompressed_data().ok()?.into_owned()))
        };
        let (eh_frame_svma, eh_frame) = section(".eh_frame").unzip();
        let (eh_frame_hdr_svma, eh_frame_hdr) = section(".eh_frame_hdr").unzip();
        let range_of = |name: &str| {
            let section = file.section_by_name(name)?;
            Some(section.address()..section.address() + section.size())
        };
        let tables = ExplicitModuleSectionInfo {
            base_svma,
            text_svma: range_of(".text"),
            got_svma: range_of(".got"),
            eh_frame_svma,
            eh_frame,
            eh_frame_hdr_svma,
            eh_frame_hdr,
            ..ExplicitModuleSectionInfo::default()
        };
        let header = tables.eh_frame_hdr_svma.as_ref().zip(tables.eh_frame_hdr.as_ref());
        let starts = header.map(|(range, header)| starts(range.start, header)).unwrap_or_default();
        let bias = self.addresses.start.wrapping_sub(base_svma);
        let functions = [(false, file.symbols()), (true, file.dynamic_symbols())];
        let functions = functions.into_iter().flat_map(|(is_dynamic, symbols)| {
            let is_function = |symbol: &object::Symbol<'_, '_, _>| {
                symbol.kind() == SymbolKind::Text && symbol.is_definition()
            };
            symbols.filter(is_function).map(move |symbol| Function {
                address: symbol.address(),
                size: symbol.size(),
                is_dynamic,
                index: symbol.index().0,
            })
        });
        let mut sorted: Vec<Function> = functions.take(MAX_SYMBOLS).collect();
        sorted.sort_unstable();
        sorted.dedup_by_key(|function| function.address);
        Some((Functions { bias, sorted, starts }, tables))
    }

    /// Reads the names of the functions at these addresses in memory.
    fn names(&self, addresses: &[u64]) -> Option<HashMap<u64, String>> {
        let functions = self.functions.as_ref()?;
        let cache = ReadCache::new(File::open(&self.openable).ok()?);
        let file = object::File::parse(&cache).ok()?;
        let (all, dynamic) = (file.symbol_table(), file.dynamic_symbol_table());
        let name = |address: u64| {
            let Function { is_dynamic, index, .. } = functions.at(address)?;
            let table = if is_dynamic { dynamic.as_ref() } else { all.as_ref() };
            let symbol = table?.symbol_by_index(SymbolIndex(index)).ok()?;
            Some(readable(symbol.name().ok()?).chars().take(MAX_NAME).collect())
        };
        Some(addresses.iter().filter_map(|&address| Some((address, name(address)?))).collect())
    }
}

impl Functions {
    /// Returns the address in memory at which the function begins that an address in memory is in.
    fn start(&self, address: u64) -> Option<u64> {
        let address = address.wrapping_sub(self.bias);
        let after = self.starts.partition_point(|&start| start <= address);
        Some(self.starts.get(after.checked_sub(1)?)?.wrapping_add(self.bias))
    }

    /// Returns the function at an address in memory.
    fn at(&self, address: u64) -> Option<Function> {
        let address = address.wrapping_sub(self.bias);
        let after = self.sorted.partition_point(|function| function.address <= address);
        let function = *self.sorted.get(after.checked_sub(1)?)?;
        // Functions without a symbol lie between others.
        let is_within = function.size == 0 || address - function.address < function.size;
        is_within.then_some(function)
    }
}

/// Lists the addresses at which functions begin, by the table of the section `.eh_frame_hdr` at this address: pairs of
/// offsets from there, those of a function and of its description. Empty if the table has another form.
fn starts(section: u64, header: &[u8]) -> Vec<u64> {
    /// Version, and encodings: of a pointer and of a number, 4 bytes each, and of the table.
    const FORM: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
    const TABLE: usize = 12;
    let table = header.get(TABLE..).filter(|_| header.starts_with(&FORM)).unwrap_or_default();
    let start = |pair: &[u8; 8]| {
        let [a, b, c, d, ..] = *pair;
        section.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into())
    };
    table.as_chunks::<8>().0.iter().map(start).collect()
}

/// Returns the name of a function as it is written in C++ or Rust, without its parameters.
fn readable(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    // glibc's versions: `pthread_cond_wait@@GLIBC_2.3.2`.
    let name = name.split('@').next().unwrap_or(name);
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    let parsed = cpp_demangle::Symbol::new(name).ok();
    let demangled = parsed.and_then(|symbol| symbol.demangle_with_options(&options).ok());
    demangled.unwrap_or_else(|| name.to_owned())
}

/// Parses a line of `/proc/PID/maps`: the addresses and the path of a mapped file.
fn parse_mapping(line: &str) -> Option<(Range<u64>, &str)> {
    let path = &line[line.find('/')?..];
    let (begin, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    Some((number(begin)?..number(end)?, path))
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
        let functions = Some(Functions { starts, ..Functions::default() });
        let addresses = 0x1000..0x3000;
        let (path, openable) = ("/lib/a.so".to_owned(), PathBuf::new());
        let module = LoadedModule { path, openable, addresses, functions };
        let modules = Modules([(0x1000, module)].into());
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
    fn functions_begin_where_the_table_says() {
        let mut header = vec![1, 0x1b, 0x03, 0x3b, 0, 0, 0, 0, 2, 0, 0, 0];
        for offset in [-0x1000_i32, 0x10, 0x20, 0x30] {
            header.extend(offset.to_le_bytes());
        }
        assert_eq!(starts(0x8000, &header), [0x7000, 0x8020]);
        header[3] = 0xff;
        assert!(starts(0x8000, &header).is_empty());
        assert!(starts(0x8000, &[]).is_empty());
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

    #[test]
    fn mappings_of_files_are_read() {
        let line = "7f00-7f10 r-xp 00000000 fe:00 123   /usr/lib/a b.so";
        assert_eq!(parse_mapping(line), Some((0x7f00..0x7f10, "/usr/lib/a b.so")));
        assert_eq!(parse_mapping("7f00-7f10 rw-p 00000000 00:00 0   [heap]"), None);
    }

    #[test]
    fn names_are_readable() {
        assert_eq!(readable("MPI_Allreduce"), "MPI_Allreduce");
        assert_eq!(readable("pthread_cond_wait@@GLIBC_2.3.2"), "pthread_cond_wait");
        assert_eq!(readable("_ZN4gloo9allreduceERNS_16AllreduceOptionsE"), "gloo::allreduce");
    }
}
