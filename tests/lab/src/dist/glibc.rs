//! Linking what travels so that hosts with older C libraries than this machine's load it as well:
//! against stand-ins for the C library and its mathematics, in which every symbol has a version that
//! those have.

use super::machine::TargetMachine;
use crate::LabError;
use crate::command::run;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A version of glibc: 2.2.5, or 2.34 and 0.
type Version = (u32, u32, u32);

/// Of a symbol's versions, the newest that is not newer than this: what came later did so for what
/// Rust does not use, and the oldest of all have other layouts.
const NEWEST_TAKEN: Version = (2, 17, 0);
/// What the oldest hosts have.
const OLDEST_HOST: Version = (2, 28, 0);

/// What stand-ins are made for, as their programs ask for them.
const LIBRARIES: [&str; 2] = ["libc.so.6", "libm.so.6"];

/// Functions that were inline before 2.33.
const STAT_FUNCTIONS: &str = "
struct stat64;
int __xstat64(int version, const char *path, struct stat64 *into);
int __lxstat64(int version, const char *path, struct stat64 *into);
int __fxstat64(int version, int descriptor, struct stat64 *into);
int __fxstatat64(int version, int at, const char *path, struct stat64 *into, int flags);
#if defined(__x86_64__)
#define VERSION 1
#else
#define VERSION 0
#endif
#define HIDDEN __attribute__((visibility(\"hidden\")))
HIDDEN int stat64(const char *path, struct stat64 *into)
{
    return __xstat64(VERSION, path, into);
}
HIDDEN int lstat64(const char *path, struct stat64 *into)
{
    return __lxstat64(VERSION, path, into);
}
HIDDEN int fstat64(int descriptor, struct stat64 *into)
{
    return __fxstat64(VERSION, descriptor, into);
}
HIDDEN int fstatat64(int at, const char *path, struct stat64 *into, int flags)
{
    return __fxstatat64(VERSION, at, path, into, flags);
}
";

/// Before 2.34 it was the program that ran its own constructors, by a function that it handed to
/// the C library; newer ones still call such a function in place of their own.
const STARTUP: &str = "
#include <stddef.h>
#define HIDDEN __attribute__((visibility(\"hidden\")))
typedef void constructor(int count, char **words, char **environment);
extern constructor *__init_array_start[] HIDDEN, *__init_array_end[] HIDDEN;
void _init(void) HIDDEN;
int __real___libc_start_main(int (*main)(int, char **, char **), int count, char **words,
    constructor *init, void (*fini)(void), void (*loader)(void), void *stack);
static void construct(int count, char **words, char **environment)
{
    size_t at, all = (size_t)(__init_array_end - __init_array_start);
    _init();
    for (at = 0; at < all; at++)
        __init_array_start[at](count, words, environment);
}
HIDDEN int __wrap___libc_start_main(int (*main)(int, char **, char **), int count, char **words,
    constructor *init, void (*fini)(void), void (*loader)(void), void *stack)
{
    return __real___libc_start_main(main, count, words, init ? init : construct, fini, loader, stack);
}
";

/// What is linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BinaryKind {
    /// What other programs load.
    Library,
    /// What is executed.
    Program,
}

/// The stand-ins, as rustc is told of them.
#[derive(Debug, Default)]
pub(super) struct StubLibraries {
    /// For all.
    words: Vec<String>,
    /// For programs beside those.
    start: Vec<String>,
}

impl StubLibraries {
    /// Makes them in `directory`, for what `machine` has.
    pub(super) fn make(
        machine: &TargetMachine,
        directory: &Path,
    ) -> Result<StubLibraries, LabError> {
        for library in LIBRARIES {
            make_stub(machine, directory, library)?;
        }
        // Their own script names the loader, which has a few symbols.
        let own = find(machine, "libc.so")?;
        let own =
            fs::read_to_string(&own).map_err(LabError::io(format!("read {}", own.display())))?;
        let loader = own.find("AS_NEEDED").and_then(|at| own[at..].split_once(')'));
        let loader = loader.map_or(String::new(), |(loader, _)| format!("{loader})"));
        let [c, mathematics] = LIBRARIES.map(|library| directory.join(library));
        write(directory, "libc.so", &format!("GROUP ( {} {loader} )\n", c.display()))?;
        write(directory, "libm.so", &format!("GROUP ( {} )\n", mathematics.display()))?;
        // There these are libraries of their own; here they are empty.
        let apart = "-Wl,--no-as-needed,-l:libpthread.so.0,-l:libdl.so.2,--as-needed";
        let inline = compile(machine, directory, "inline", STAT_FUNCTIONS)?;
        let words = [format!("-L{}", directory.display()), inline, apart.into()];
        // This machine's libgcc_s wants more of the C library; the host's own will not.
        let options = "-Wl,--wrap=__libc_start_main,--allow-shlib-undefined";
        let start = [compile(machine, directory, "start", STARTUP)?, options.into()];
        Ok(StubLibraries { words: words.into(), start: start.into() })
    }

    /// What rustc is told to link with them.
    pub(super) fn words(&self, kind: BinaryKind) -> Vec<String> {
        let start = self.start.iter().filter(|_| kind == BinaryKind::Program);
        let words = self.words.iter().chain(start);
        words.flat_map(|word| ["-C".into(), format!("link-arg={word}")]).collect()
    }
}

/// Makes one of them.
fn make_stub(machine: &TargetMachine, directory: &Path, library: &str) -> Result<(), LabError> {
    let exported = |section: &str| !["*UND*", "*ABS*"].contains(&section);
    let exported = symbols(machine, &find(machine, library)?, exported)?;
    let symbols = chosen(&exported);
    let source = write(directory, &format!("{library}.s"), &assembly(&symbols))?;
    let map = write(directory, &format!("{library}.map"), &versions(&symbols))?;
    let mut cc = Command::new(machine.compiler());
    cc.args(["-shared", "-nostdlib", &format!("-Wl,-soname,{library}"), "-o"]);
    cc.arg(directory.join(library)).arg(source);
    cc.arg(format!("-Wl,--version-script={}", map.display()));
    run(&format!("link the stand-in for {library}"), &mut cc).map(drop)
}

/// Compiles a source of this name; gives the object.
fn compile(
    machine: &TargetMachine,
    directory: &Path,
    name: &str,
    text: &str,
) -> Result<String, LabError> {
    let source = write(directory, &format!("{name}.c"), text)?;
    let object = source.with_extension("o");
    let mut cc = Command::new(machine.compiler());
    cc.args(["-O2", "-fPIC", "-c", "-o"]).args([&object, &source]);
    run(&format!("compile {}", source.display()), &mut cc)?;
    Ok(object.display().to_string())
}

fn write(directory: &Path, name: &str, text: &str) -> Result<PathBuf, LabError> {
    let path = directory.join(name);
    let operation = format!("write {}", path.display());
    fs::create_dir_all(directory)
        .and_then(|()| fs::write(&path, text))
        .map_err(LabError::io(operation))?;
    Ok(path)
}

/// Fails where a library or program needs more than the oldest hosts have.
pub(super) fn check(machine: &TargetMachine, built: &Path) -> Result<(), LabError> {
    let needed = symbols(machine, built, |section| section == "*UND*")?;
    let needed = needed.into_iter().max_by_key(|(_, version, _)| *version);
    match needed.filter(|(_, version, _)| *version > OLDEST_HOST) {
        None => Ok(()),
        Some((name, version, _)) => {
            let (built, version, oldest) = (built.display(), shown(version), shown(OLDEST_HOST));
            Err(LabError::Unexpected(format!(
                "{built} needs {name} of {version}, hosts have {oldest}"
            )))
        }
    }
}

/// Where the compiler has a library.
fn find(machine: &TargetMachine, name: &str) -> Result<PathBuf, LabError> {
    let mut cc = Command::new(machine.compiler());
    let found = run("look for the C library", cc.arg(format!("-print-file-name={name}")))?;
    Ok(PathBuf::from(String::from_utf8_lossy(&found.stdout).trim()))
}

/// A symbol's name and version, and whether it is an object.
type Symbol = (String, Version, bool);

/// The versioned symbols of a library that are in such sections, as objdump lists them.
fn symbols(
    machine: &TargetMachine,
    library: &Path,
    wanted: fn(&str) -> bool,
) -> Result<Vec<Symbol>, LabError> {
    let mut objdump = Command::new(machine.objdump());
    let listed = run("list symbols", objdump.arg("-T").arg(library))?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    Ok(listed.lines().filter_map(|line| parse(line, wanted)).collect())
}

/// `000000000009a8a0 g    DF .text  0000000000000123 (GLIBC_2.2.5) pthread_key_create`
fn parse(line: &str, wanted: fn(&str) -> bool) -> Option<Symbol> {
    // Flags stand in seven columns, some of them empty.
    let (_, rest) = line.split_once(' ')?;
    let (flags, rest) = rest.split_at_checked(7)?;
    let mut words = rest.split_whitespace();
    words.next().filter(|section| wanted(section))?;
    let (version, name) = (words.nth(1)?, words.next()?);
    let version = version.trim_matches(['(', ')']).strip_prefix("GLIBC_")?;
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    let version = (numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or(0));
    Some((name.to_owned(), version, flags.ends_with('O')))
}

fn shown(version: Version) -> String {
    match version {
        (major, minor, 0) => format!("GLIBC_{major}.{minor}"),
        (major, minor, patch) => format!("GLIBC_{major}.{minor}.{patch}"),
    }
}

/// Each symbol once. Those that only newer hosts have are not among them.
fn chosen(symbols: &[Symbol]) -> BTreeMap<&str, (Version, bool)> {
    let mut chosen: BTreeMap<&str, (Version, bool)> = BTreeMap::new();
    for (name, version, is_object) in symbols.iter().filter(|(_, v, _)| *v <= OLDEST_HOST) {
        let best = chosen.entry(name).or_insert((*version, *is_object));
        let (had, new) = (best.0, *version);
        let is_better =
            if had > NEWEST_TAKEN { new < had } else { new > had && new <= NEWEST_TAKEN };
        if is_better {
            *best = (new, *is_object);
        }
    }
    chosen
}

/// The stand-in's symbols, which do nothing: nothing is ever run with it.
fn assembly(symbols: &BTreeMap<&str, (Version, bool)>) -> String {
    let mut text = ".text\n".to_owned();
    for (name, _) in symbols.iter().filter(|(_, (_, is_object))| !is_object) {
        let _ = writeln!(text, ".globl {name}\n.type {name},%function\n{name}:");
    }
    text.push_str("ret\n.bss\n");
    for (name, _) in symbols.iter().filter(|(_, (_, is_object))| *is_object) {
        let _ =
            writeln!(text, ".globl {name}\n.type {name},%object\n.size {name},8\n{name}: .zero 8");
    }
    text.push_str(".section .note.GNU-stack,\"\",%progbits\n");
    text
}

/// The linker's script that gives them their versions.
fn versions(symbols: &BTreeMap<&str, (Version, bool)>) -> String {
    let mut by_version: BTreeMap<Version, Vec<&str>> = BTreeMap::new();
    for (name, (version, _)) in symbols {
        by_version.entry(*version).or_default().push(name);
    }
    let node = |(version, names): (&Version, &Vec<&str>)| {
        format!("{} {{ global: {}; }};\n", shown(*version), names.join("; "))
    };
    by_version.iter().map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_has_a_version_that_old_hosts_have() {
        let lines = "\
00000000000861f0 g    DF .text\t0000000000000123  GLIBC_2.34  pthread_key_create
00000000000861f0 g    DF .text\t0000000000000123 (GLIBC_2.2.5) pthread_key_create
000000000009a8a0 g   iD  .text\t0000000000000100  GLIBC_2.14  memcpy
000000000009a8a0 g    DF .text\t0000000000000100 (GLIBC_2.2.5) memcpy
00000000000d5c20  w   DF .text\t0000000000000010  GLIBC_2.33  stat64
00000000001d4700 g    DO .bss\t0000000000000008  GLIBC_2.2.5 stderr
0000000000000000 g    DO *ABS*\t0000000000000000  GLIBC_2.3.4 GLIBC_2.3.4
0000000000000000      DO *UND*\t0000000000000000  GLIBC_2.2.5 _rtld_global";
        let wanted = |section: &str| !["*UND*", "*ABS*"].contains(&section);
        let symbols: Vec<Symbol> = lines.lines().filter_map(|line| parse(line, wanted)).collect();
        let chosen = super::chosen(&symbols);
        let expected = [
            ("memcpy", ((2, 14, 0), false)),
            ("pthread_key_create", ((2, 2, 5), false)),
            ("stderr", ((2, 2, 5), true)),
        ];
        assert_eq!(chosen.clone().into_iter().collect::<Vec<_>>(), expected);
        let script = versions(&chosen);
        assert!(script.starts_with("GLIBC_2.2.5 { global: pthread_key_create; stderr; };\n"));
        assert!(script.ends_with("GLIBC_2.14 { global: memcpy; };\n"), "{script}");
    }
}
