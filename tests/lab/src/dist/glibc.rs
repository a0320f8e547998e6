//! Linking files that run on hosts with an older C library than this machine's.
//!
//! A program linked against glibc needs the newest version of each symbol that it uses. So files
//! that travel are linked against stubs of libc and libm, in which each symbol has only one
//! version, an old one. Nothing ever runs with the stubs: the host's own C library has these
//! versions as well.

use super::machine::TargetMachine;
use crate::command::{printed, run};
use crate::{LabError, files};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Version of glibc, such as 2.2.5; versions like 2.34 have a 0 at the end.
type Version = (u32, u32, u32);

/// Preferred limit: a stub has the newest version of a symbol up to this one. Later versions
/// changed nothing that Rust uses, and the oldest ones have other struct layouts.
const NEWEST_TAKEN: Version = (2, 17, 0);
/// Version of the oldest hosts.
const OLDEST_HOST: Version = (2, 28, 0);

/// Libraries that stubs are made of, by their names in programs.
const LIBRARIES: [&str; 2] = ["libc.so.6", "libm.so.6"];

/// C source of functions that were inline functions in the headers of glibc before 2.33.
const STAT_FUNCTIONS: &str = include_str!("glibc/inline.c");

/// C source of the start of a program for glibc before 2.34, which expected the program to pass a
/// function that runs its constructors. Newer versions call such a function instead of running the
/// constructors themselves.
const STARTUP: &str = include_str!("glibc/start.c");

/// Kind of file that is linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BinaryKind {
    /// Shared library.
    Library,
    /// Executable.
    Program,
}

/// Link arguments that select the stub libraries.
#[derive(Debug, Default)]
pub(super) struct StubLibraries {
    /// Arguments for libraries and programs.
    words: Vec<String>,
    /// Further arguments for programs.
    start: Vec<String>,
}

impl StubLibraries {
    /// Makes the stub libraries in `directory`, of the C library that `machine` has.
    pub(super) fn make(
        machine: &TargetMachine,
        directory: &Path,
    ) -> Result<StubLibraries, LabError> {
        for library in LIBRARIES {
            make_stub(machine, directory, library)?;
        }
        // The linker script of libc names the dynamic loader, which exports a few symbols.
        let own = find(machine, "libc.so")?;
        let own = files::read(&own)?;
        let loader = own.find("AS_NEEDED").and_then(|at| own[at..].split_once(')'));
        let loader = loader.map_or(String::new(), |(loader, _)| format!("{loader})"));
        let [c, mathematics] = LIBRARIES.map(|library| directory.join(library));
        write(directory, "libc.so", &format!("GROUP ( {} {loader} )\n", c.display()))?;
        write(directory, "libm.so", &format!("GROUP ( {} )\n", mathematics.display()))?;
        // Older versions have these as separate libraries; newer ones have empty files.
        let apart = "-Wl,--no-as-needed,-l:libpthread.so.0,-l:libdl.so.2,--as-needed";
        let inline = compile(machine, directory, "inline", STAT_FUNCTIONS)?;
        let words = [format!("-L{}", directory.display()), inline, apart.into()];
        // This machine's libgcc_s needs newer symbols; that of the host will not.
        let options = "-Wl,--wrap=__libc_start_main,--allow-shlib-undefined";
        let start = [compile(machine, directory, "start", STARTUP)?, options.into()];
        Ok(StubLibraries { words: words.into(), start: start.into() })
    }

    /// Returns the arguments of rustc.
    pub(super) fn words(&self, kind: BinaryKind) -> Vec<String> {
        let start = self.start.iter().filter(|_| kind == BinaryKind::Program);
        let words = self.words.iter().chain(start);
        words.flat_map(|word| ["-C".into(), format!("link-arg={word}")]).collect()
    }
}

/// Makes the stub of one library.
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
    run(&format!("link the stub of {library}"), &mut cc).map(drop)
}

/// Compiles a C source; returns the path of the object file.
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
    files::make_dir(directory)?;
    files::write(&path, text, 0o644)?;
    Ok(path)
}

/// Fails if a library or program needs a newer version of a symbol than the oldest hosts have.
pub(super) fn check(machine: &TargetMachine, built: &Path) -> Result<(), LabError> {
    let needed = symbols(machine, built, |section| section == "*UND*")?;
    let newest = needed.into_iter().max_by_key(|(_, version, _)| *version);
    match newest.filter(|(_, version, _)| *version > OLDEST_HOST) {
        None => Ok(()),
        Some((name, version, _)) => {
            let (built, version, oldest) = (built.display(), shown(version), shown(OLDEST_HOST));
            Err(LabError::Unexpected(format!(
                "{built} needs {name} of {version}, but the oldest hosts have {oldest}"
            )))
        }
    }
}

/// Finds the file that the compiler uses for a library.
fn find(machine: &TargetMachine, name: &str) -> Result<PathBuf, LabError> {
    let mut cc = Command::new(machine.compiler());
    let found = printed("look for the C library", cc.arg(format!("-print-file-name={name}")))?;
    Ok(PathBuf::from(found.trim()))
}

/// Name and version of a symbol, and whether it is an object rather than a function.
type Symbol = (String, Version, bool);

/// Lists the versioned symbols of a library in wanted sections, as `objdump -T` prints them.
fn symbols(
    machine: &TargetMachine,
    library: &Path,
    wanted: fn(&str) -> bool,
) -> Result<Vec<Symbol>, LabError> {
    let mut objdump = Command::new(machine.objdump());
    let listed = printed("list symbols", objdump.arg("-T").arg(library))?;
    Ok(listed.lines().filter_map(|line| parse(line, wanted)).collect())
}

/// Parses a line such as `000000000009a8a0 g    DF .text  0000000000000123 (GLIBC_2.2.5)
/// pthread_key_create`.
fn parse(line: &str, wanted: fn(&str) -> bool) -> Option<Symbol> {
    // Flags take seven columns, some of them blank.
    let (_, rest) = line.split_once(' ')?;
    let (flags, rest) = rest.split_at_checked(7)?;
    let mut words = rest.split_whitespace();
    words.next().filter(|section| wanted(section))?;
    let (version, name) = (words.nth(1)?, words.next()?);
    let version = parse_version(version.trim_matches(['(', ')']))?;
    Some((name.to_owned(), version, flags.ends_with('O')))
}

/// Parses a version such as `GLIBC_2.2.5`.
fn parse_version(text: &str) -> Option<Version> {
    let mut numbers = text.strip_prefix("GLIBC_")?.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or(0)))
}

fn shown(version: Version) -> String {
    match version {
        (major, minor, 0) => format!("GLIBC_{major}.{minor}"),
        (major, minor, patch) => format!("GLIBC_{major}.{minor}.{patch}"),
    }
}

/// Chooses one version for each symbol. Symbols that only newer hosts have are left out.
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

/// Returns assembly that defines the symbols of a stub. The functions are never executed.
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

/// Returns the version script of a stub for the linker.
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
