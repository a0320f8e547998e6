//! Programs and libraries that a process has mapped: their functions, and the tables by which stacks are unwound.

use framehop::{ExplicitModuleSectionInfo, Module};
use object::read::ReadCache;
use object::{
    Object, ObjectSection, ObjectSegment, ObjectSymbol, ObjectSymbolTable, SymbolIndex, SymbolKind,
};
use rlaunch_bootstrap::protocol::inspection::StackFrame;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// Maximum number of symbols of a module that are read.
const MAX_SYMBOLS: usize = 2_000_000;
/// Maximum length of a function's name, in characters. Names of templates may be much longer.
const MAX_NAME: usize = 120;

/// Modules of a process by the begin of their addresses.
pub(super) struct Modules(BTreeMap<u64, LoadedModule>);

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
    pub(super) fn read(pid: u32) -> io::Result<Modules> {
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
    pub(super) fn load(&mut self, address: u64) -> Option<Module<Vec<u8>>> {
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
    pub(super) fn frames(&self, addresses: &BTreeSet<u64>) -> HashMap<u64, StackFrame> {
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
    pub(super) fn function_start(&self, address: u64) -> Option<u64> {
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
impl Modules {
    /// Describes a process with one module, whose functions begin at `starts`.
    pub(super) fn of_one(addresses: Range<u64>, starts: Vec<u64>) -> Modules {
        let functions = Some(Functions { starts, ..Functions::default() });
        let (begin, path, openable) = (addresses.start, "/lib/a.so".to_owned(), PathBuf::new());
        Modules([(begin, LoadedModule { path, openable, addresses, functions })].into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
