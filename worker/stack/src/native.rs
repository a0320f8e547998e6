//! Frames of native code. A thread is stopped while its registers and the top of its stack are copied; the copy is
//! unwound afterwards, by the tables that compilers leave for exceptions.

use crate::threads::{self, UNSTOPPABLE};
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

/// Maximum size of the copy of a stack, in bytes. Frames further out are not seen.
const MAX_STACK: usize = 512 << 10;
/// Size of a page of memory: the end of a stack is found by reading page by page.
const PAGE: usize = 4 << 10;

/// Copy of a thread's registers and stack.
struct Snapshot {
    instruction: u64,
    stack_pointer: u64,
    frame_pointer: u64,
    stack: Vec<u8>,
}

/// Reason why a thread cannot be copied.
#[derive(Debug, thiserror::Error)]
enum SnapshotError {
    #[error("thread {tid} waits in the kernel and cannot be stopped")]
    Unstoppable { tid: u32 },
    #[error("cannot stop thread {tid}: {cause}")]
    Stop { tid: u32, cause: io::Error },
    #[error("cannot read the memory of process {pid}: {cause}")]
    Memory { pid: u32, cause: io::Error },
}

impl Snapshot {
    /// Copies a thread.
    fn take(pid: u32, tid: u32) -> Result<Snapshot, SnapshotError> {
        let memory = File::open(format!("/proc/{pid}/mem"));
        let memory = memory.map_err(|cause| SnapshotError::Memory { pid, cause })?;
        let failed = |cause| SnapshotError::Stop { tid, cause };
        let stopped = threads::stop(tid).map_err(failed)?;
        let registers = ptrace::getregs(Pid::from_raw(tid.cast_signed()));
        let registers = registers.map_err(|cause| failed(cause.into()))?;
        let stack = read_stack(&memory, registers.rsp);
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
        Some((Functions { bias, sorted }, tables))
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
    use std::process::{Command, Stdio};

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
        let mut looks = 0;
        while !count.is_finished() {
            // It fails if the process ends.
            looks += u32::from(Snapshot::take(python.id(), python.id()).is_ok());
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        assert_eq!(count.join().unwrap(), "1000", "after {looks} looks");
        assert!(python.wait().unwrap().success());
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
        drop_interpreter(&mut frames);
        let names: Vec<&str> = frames.iter().map(|frame| frame.function.as_str()).collect();
        assert_eq!(names, ["read", "forward"]);
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
