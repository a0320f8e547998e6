//! What the kernel executes in place of a program: the interpreter that the first line of a script names,
//! or the loader of an executable. If that is missing, execve(2) says that the program does not exist. Also executables
//! that are cut off, which execve(2) may start until they fail, and those of other machines; and files that the kernel does
//! not know, of which a shell would make nonsense.

use crate::node::elf::{self, Executable};
use crate::ranks::paths::{self, find_on_path};
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use rlaunch_bootstrap::job::{HiddenBy, PathDefect, ProgramDefect};
use std::env::consts::ARCH;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Number of bytes of a script that the kernel reads (`BINPRM_BUF_SIZE`).
const HEAD: usize = 256;

/// Number of bytes in which the interpreter of a script is looked for that the kernel does not see.
const LONG_HEAD: usize = 8 << 10;

/// First bytes of what Git LFS leaves in place of a file that it has not fetched.
const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// Number of scripts that may be each other's interpreters. The kernel takes one more.
const MAX_SCRIPTS: usize = 4;

/// Checks that the program has its interpreter or loader. Of interpreters, only those of scripts are checked in turn.
/// `directory` is that of the ranks, and `search_path` their PATH, in which env(1) looks for the interpreter
/// that it is given.
pub(super) fn check(
    program: &Path,
    directory: &Path,
    search_path: &OsStr,
) -> Result<(), ProgramDefect> {
    let Some(head) = head(program, LONG_HEAD) else { return Ok(()) };
    check_unknown(&head)?;
    let Some(line) = first_line_of(&head) else { return check_binary(program) };
    // The kernel takes no other line for that of a script.
    let Some((name, argument)) = split_line(&line) else { return Ok(()) };
    let at = |name: &[u8]| {
        let path = directory.join(OsStr::from_bytes(name));
        paths::check_executable(&path).map(|()| path).map_err(|defect| lacking(name, defect))
    };
    let path: PathBuf = at(name)?;
    check_interpreter(&path, name, directory)?;
    // A script called `env` does with its arguments what it likes.
    if path.file_name() != Some(OsStr::new("env")) || first_line(&path).is_some() {
        return Ok(());
    }
    let Some(name) = given_to_env(argument) else { return Ok(()) };
    if name.contains(&b'/') {
        return at(name).map(drop);
    }
    // Without PATH env(1) looks in places of its own, and that of a template is not known yet.
    let is_known =
        !search_path.is_empty() && !search_path.as_bytes().windows(2).any(|two| two == b"{{");
    match find_on_path(OsStr::from_bytes(name), search_path, directory) {
        None if is_known => Err(match lacking(name, PathDefect::Missing) {
            ProgramDefect::NoInterpreter { .. } => {
                ProgramDefect::NotOnPath { interpreter: word(name) }
            }
            defect => defect,
        }),
        _ => Ok(()),
    }
}

/// Checks that no shell would execute what is not meant for one. A file that the kernel does not know is executed by a shell.
fn check_unknown(head: &[u8]) -> Result<(), ProgramDefect> {
    if head.starts_with(LFS_POINTER) {
        return Err(ProgramDefect::LfsPointer);
    }
    let marked = head.strip_prefix("\u{feff}".as_bytes());
    let script = marked.unwrap_or(head).trim_ascii_start();
    let Some(line) = script.strip_prefix(b"#!") else { return Ok(()) };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii_end();
    let Some((name, argument)) = split_line(line) else { return Ok(()) };
    let blanks = line.iter().take_while(|byte| is_blank(byte)).count();
    let by = match marked {
        Some(_) => HiddenBy::ByteOrderMark,
        None if script.len() < head.len() => HiddenBy::Blanks,
        // A byte that ends the name has to be among those that the kernel reads.
        None if "#!".len() + blanks + name.len() >= HEAD => HiddenBy::Length,
        None => return Ok(()),
    };
    let of_env = given_to_env(argument).filter(|_| file_name(name) == b"env");
    let interpreter = file_name(of_env.unwrap_or(name));
    // A shell executes what is meant for another, as a rule.
    if interpreter.ends_with(b"sh") {
        return Ok(());
    }
    Err(ProgramDefect::HiddenInterpreter { interpreter: word(interpreter), by })
}

/// Returns what is behind the last slash.
fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// Returns the defect of a program whose interpreter has this one.
fn lacking(name: &[u8], defect: PathDefect) -> ProgramDefect {
    match name.strip_suffix(b"\r") {
        Some(name) if defect == PathDefect::Missing => {
            ProgramDefect::CarriageReturn { interpreter: word(name) }
        }
        _ => ProgramDefect::NoInterpreter { interpreters: vec![word(name)], defect },
    }
}

fn word(name: &[u8]) -> OsString {
    OsStr::from_bytes(name).to_owned()
}

/// Checks that an interpreter that is a script has its own interpreter, and so on. `name` is that in the first line of
/// the program.
fn check_interpreter(file: &Path, name: &[u8], directory: &Path) -> Result<(), ProgramDefect> {
    let (mut file, mut interpreters) = (file.to_owned(), vec![word(name)]);
    for _ in 0..MAX_SCRIPTS {
        let Some(line) = first_line(&file) else { break };
        let Some((name, _)) = split_line(&line) else { break };
        interpreters.push(word(name));
        file = directory.join(OsStr::from_bytes(name));
        if let Err(defect) = paths::check_executable(&file) {
            return Err(ProgramDefect::NoInterpreter { interpreters, defect });
        }
    }
    Ok(())
}

/// Checks that an executable is whole, and that its loader exists, if it has one.
fn check_binary(file: &Path) -> Result<(), ProgramDefect> {
    let Some(executable) = Executable::open(file) else { return Ok(()) };
    if let Some((length, whole)) = executable.cut_off() {
        return Err(ProgramDefect::CutOff { length, whole });
    }
    // An emulator that runs this agent may find loaders elsewhere; the host's own programs are then of
    // another machine.
    let is_emulated = || elf::machine(Path::new("/bin/sh")) != Some(ARCH);
    let machine = executable.machine().filter(|machine| *machine != ARCH);
    if let Some(machine) = machine.filter(|_| !is_emulated() && is_unknown(file)) {
        let (machine, host) = (machine.to_owned(), ARCH.to_owned());
        return Err(ProgramDefect::OtherMachine { machine, host });
    }
    match executable.loader().filter(|loader| !loader.exists() && !is_emulated()) {
        Some(loader) => Err(ProgramDefect::NoLoader { loader: loader.into() }),
        None => Ok(()),
    }
}

/// Tells whether the kernel knows no way to execute programs like this executable of another machine. An emulator may be
/// registered (binfmt_misc), which a container need not show, so a copy of the header alone is executed. An emulator ends
/// at once where nothing follows.
fn is_unknown(file: &Path) -> bool {
    let copy = || -> io::Result<File> {
        let mut header = Vec::new();
        File::open(file)?.take(elf::HEADER).read_to_end(&mut header)?;
        let mut copy = File::from(memfd_create("header", MFdFlags::MFD_CLOEXEC)?);
        copy.write_all(&header)?;
        Ok(copy)
    };
    let Ok(copy) = copy() else { return false };
    let mut command = Command::new(format!("/proc/self/fd/{}", copy.as_raw_fd()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match rlaunch_sys::spawn(&mut command) {
        Ok(mut emulator) => {
            let _ = emulator.wait();
            false
        }
        Err(error) => error.raw_os_error() == Some(Errno::ENOEXEC as i32),
    }
}

/// Returns the first line of a script without its `#!`. `None` for other files. Of a line that is too long
/// for the kernel, returns the words that are whole.
fn first_line(file: &Path) -> Option<Vec<u8>> {
    first_line_of(&head(file, HEAD)?)
}

/// Returns that of a file which begins with these bytes.
fn first_line_of(head: &[u8]) -> Option<Vec<u8>> {
    let head = &head[..head.len().min(HEAD)];
    let line = head.strip_prefix(b"#!")?;
    let end = line.iter().position(|byte| [b'\n', 0].contains(byte));
    let end = match end {
        None if head.len() == HEAD => line.iter().rposition(is_blank).unwrap_or(0),
        end => end.unwrap_or(line.len()),
    };
    Some(line[..end].to_owned())
}

/// Reads the first `most` bytes of a file; `None` if that fails.
fn head(file: &Path, most: usize) -> Option<Vec<u8>> {
    let mut head = Vec::with_capacity(most);
    File::open(file).ok()?.take(most as u64).read_to_end(&mut head).ok()?;
    Some(head)
}

/// Splits a first line into the interpreter and its only argument, which may be empty.
fn split_line(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_word = |byte: &u8| !is_blank(byte);
    let line = &line[line.iter().position(is_word)?..=line.iter().rposition(is_word)?];
    let end = line.iter().position(is_blank).unwrap_or(line.len());
    let argument = line.iter().skip(end).position(is_word).map_or(line.len(), |at| end + at);
    Some((&line[..end], &line[argument..]))
}

/// Tells whether a byte separates the words of a first line. A carriage return does not.
fn is_blank(byte: &u8) -> bool {
    [b' ', b'\t'].contains(byte)
}

/// Returns the program that env(1) runs for a first line's argument. Without `-S` the whole argument is its
/// name. `None` if there is none, or if env(1) would interpret more than we do here.
fn given_to_env(argument: &[u8]) -> Option<&[u8]> {
    if argument.starts_with(b"-") {
        let split = argument.strip_prefix(b"-S").or(argument.strip_prefix(b"--split-string="))?;
        let mut words = split.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        return words.next().filter(|word| word.iter().all(|byte| is_plain(*byte)));
    }
    Some(argument).filter(|argument| !argument.is_empty() && !argument.contains(&b'='))
}

/// Tells whether env(1) takes a byte of an option as it is.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/._+".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// Checks a program with this content, in a directory where there is another script, `tool`.
    fn check_of(content: &[u8]) -> Result<(), ProgramDefect> {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &[u8]| {
            let path = directory.path().join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        write("tool", b"#!/no/such/tool\n");
        write("fine", b"#!/bin/sh\n");
        write("env", b"#!/bin/sh\n");
        let program = write("program", content);
        check(&program, directory.path(), directory.path().as_os_str())
    }

    #[test]
    fn a_script_whose_interpreter_is_missing_cannot_start() {
        let cannot = |line: &str, names: &[&str], defect| {
            let interpreters = names.iter().map(OsString::from).collect();
            let defect = ProgramDefect::NoInterpreter { interpreters, defect };
            assert_eq!(check_of(line.as_bytes()), Err(defect), "{line:?}");
        };
        let lacks = |line: &str, name: &str| cannot(line, &[name], PathDefect::Missing);
        lacks("#!/opt/venv/bin/python\nimport os\n", "/opt/venv/bin/python");
        lacks("#! \t/no/such/sh -e\n", "/no/such/sh");
        lacks("#!/no/such/sh", "/no/such/sh");
        cannot("#!/tmp\n", &["/tmp"], PathDefect::NotAFile { is_directory: true });
        cannot("#!/etc/passwd\n", &["/etc/passwd"], PathDefect::NotExecutable);
        cannot("#!./tool\n", &["./tool", "/no/such/tool"], PathDefect::Missing);
        lacks("#!/usr/bin/env /no/such/python\n", "/no/such/python");
        let not_on_path = |line: &str, name: &str| {
            let defect = ProgramDefect::NotOnPath { interpreter: name.into() };
            assert_eq!(check_of(line.as_bytes()), Err(defect), "{line:?}");
        };
        not_on_path("#!/usr/bin/env python9\n", "python9");
        not_on_path("#!/usr/bin/env fine -u\n", "fine -u");
        not_on_path("#!/usr/bin/env -S python9 -u\n", "python9");
    }

    #[test]
    fn no_shell_executes_what_another_interpreter_is_for() {
        let hidden = |text: &str, name: &str, by| {
            let defect = ProgramDefect::HiddenInterpreter { interpreter: name.into(), by };
            assert_eq!(check_of(text.as_bytes()), Err(defect), "{text:?}");
        };
        let python = "#!/usr/bin/env python3\nimport os\n";
        hidden(&format!("\u{feff}{python}"), "python3", HiddenBy::ByteOrderMark);
        for blanks in [" ", "\n", "\r\n\n"] {
            hidden(&format!("{blanks}{python}"), "python3", HiddenBy::Blanks);
        }
        hidden("\n#! /opt/bin/perl -w\r\n", "perl", HiddenBy::Blanks);
        let long = |length: usize| format!("#!{:/>length$}\n", "/python3.12");
        for (length, is_hidden) in [(253, false), (254, true), (400, true)] {
            let found = check_of(long(length).as_bytes());
            let (interpreter, by) = ("python3.12".into(), HiddenBy::Length);
            let defect = ProgramDefect::HiddenInterpreter { interpreter, by };
            assert_eq!(found == Err(defect), is_hidden, "{length}: {found:?}");
        }
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0f\nsize 12\n";
        assert_eq!(check_of(pointer), Err(ProgramDefect::LfsPointer));
    }

    #[test]
    fn line_ends_of_windows_are_named() {
        let crlf = |line: &str, name: &str| {
            let defect = ProgramDefect::CarriageReturn { interpreter: name.into() };
            assert_eq!(check_of(line.as_bytes()), Err(defect), "{line:?}");
        };
        crlf("#!/bin/sh\r\necho\r\n", "/bin/sh");
        crlf("#!/no/such/sh\r\n", "/no/such/sh");
        crlf("#!/usr/bin/env fine\r\n", "fine");
        // The interpreter gets the carriage return with its argument, which perl permits; env(1) takes it for
        // a blank.
        for line in ["#!/bin/sh -w\r\n", "#!/usr/bin/env -S fine -u\r\n"] {
            assert_eq!(check_of(line.as_bytes()), Ok(()), "{line:?}");
        }
    }

    #[test]
    fn what_the_kernel_or_a_shell_starts_is_left_alone() {
        let long = format!("#!/{}/bin/bash\n", "x".repeat(400));
        let option = format!("#!/bin/sh {}\n", "x".repeat(400));
        for content in [
            "", "#", "#!", "#!\n", "#! \n", "echo\n", "\n#!/no/such/sh\n", "#!/bin/sh\n",
            "\u{feff}#!/bin/sh\n", "\u{feff}\n#!/usr/bin/env bash\n", "\u{feff}import os\n",
            " #!\n", " # #!/x\n", "#!/usr/bin/env\n", "#!/usr/bin/env fine\n",
            "#!/usr/bin/env A=b fine\n", "#!/usr/bin/env -i python9\n",
            "#!/usr/bin/env -S A=b python9\n", "#!fine\n",
            // What this one lacks itself is not told from here: env(1) may find another one.
            "#!/usr/bin/env tool\n", "#!./env python9\n", &long, &option,
        ] {
            assert_eq!(check_of(content.as_bytes()), Ok(()), "{content:?}");
        }
        let program = tempfile::tempdir().unwrap();
        let program = program.path().join("program");
        fs::write(&program, "#!/usr/bin/env python9\n").unwrap();
        for unknown in ["", "/opt/{{host.name}}/bin:/bin"] {
            assert_eq!(check(&program, Path::new("/"), OsStr::new(unknown)), Ok(()));
        }
        for program in ["/bin/sh", "/nonexistent", "/"] {
            assert_eq!(check(Path::new(program), Path::new("/"), OsStr::new("/bin")), Ok(()));
        }
    }

    #[test]
    fn an_executable_whose_loader_is_missing_cannot_start() {
        let shell = fs::read("/bin/sh").unwrap();
        let loader = Executable::open(Path::new("/bin/sh")).unwrap().loader().unwrap();
        let name = loader.as_os_str().as_bytes();
        let at = shell.windows(name.len()).position(|window| window == name).unwrap();
        let mut moved = shell.clone();
        moved[at + 1..at + 4].copy_from_slice(b"no/");
        let missing: OsString = OsStr::from_bytes(&moved[at..at + name.len()]).to_owned();
        assert_eq!(check_of(&moved), Err(ProgramDefect::NoLoader { loader: missing }));
        assert_eq!(check_of(&shell), Ok(()));
    }

    /// The machine that runs the tests may have an emulator of one of them.
    #[test]
    fn an_executable_of_another_machine_cannot_start_without_an_emulator() {
        let mut shell = fs::read("/bin/sh").unwrap();
        let others = [(21, "powerpc64"), (62, "x86_64"), (183, "aarch64"), (243, "riscv64")];
        for (number, machine) in others.into_iter().filter(|(_, machine)| *machine != ARCH) {
            shell[18] = number;
            let defect = ProgramDefect::OtherMachine { machine: machine.into(), host: ARCH.into() };
            let is_emulated = fs::read_dir("/proc/sys/fs/binfmt_misc")
                .is_ok_and(|mut entries| entries.any(|entry| entry.is_ok()));
            let found = check_of(&shell);
            assert!(found == Err(defect) || is_emulated && found == Ok(()), "{machine}: {found:?}");
        }
    }

    /// A shell would execute what is left of it.
    #[test]
    fn an_executable_that_is_cut_off_cannot_start() {
        let shell = fs::read("/bin/sh").unwrap();
        for length in [40, 1000, shell.len() / 2] {
            let found = check_of(&shell[..length]);
            let Err(ProgramDefect::CutOff { length: found, whole }) = found else {
                panic!("{length}: {found:?}");
            };
            assert_eq!(found, length as u64);
            assert!(found < whole && whole <= shell.len() as u64, "{whole}");
        }
    }
}
