//! Tests with C programs, which are built as users build them and run as a job of one rank.

#![expect(
    clippy::unwrap_used,
    reason = "where a helper cannot go on, its test has failed; clippy knows #[test] functions only"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};
use tempfile::TempDir;

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Installs the library, the header and the file for pkg-config in a folder.
fn install() -> TempDir {
    let folder = TempDir::new().unwrap();
    let put = |from: &Path, to: &str| {
        let to = folder.path().join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    };
    // Cargo builds the library into the folder of the test executable.
    let library = env::current_exe().unwrap().with_file_name("librlaunch.so");
    put(&library, "lib/librlaunch.so");
    put(&here().join("rlaunch.pc"), "lib/pkgconfig/rlaunch.pc");
    put(&here().join("include/rlaunch.h"), "include/rlaunch.h");
    folder
}

fn succeeds(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}{stderr}");
    stdout.into_owned()
}

/// Builds a program. `compiler` is the compiler command with its language options.
fn build(compiler: &[&str], source: &Path, installed: &Path, flags: &[&str]) -> PathBuf {
    let program = installed.join("program");
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).args(WARNINGS).arg(source).arg("-o").arg(&program).args(flags);
    succeeds(&mut command);
    program
}

fn flags(installed: &Path) -> [String; 3] {
    let at = installed.display();
    [format!("-I{at}/include"), format!("-L{at}/lib"), "-lrlaunch".to_owned()]
}

/// Makes a command that runs a program outside any job.
fn alone(program: &Path, installed: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", installed.join("lib"));
    command.env_remove("RLAUNCH_SOCKET").env_remove("RLAUNCH_HOST").env_remove("WORLD_SIZE");
    command
}

fn run(compiler: &[&str], source: &str) -> String {
    let installed = install();
    let flags = flags(installed.path());
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let program = build(compiler, &here().join(source), installed.path(), &flags);
    succeeds(&mut alone(&program, installed.path()))
}

const C: &[&str] = &["cc", "-std=c99"];
const CPP: &[&str] = &["g++", "-x", "c++", "-std=c++11"];
const EXAMPLE: &str = "../../../examples/all_reduce/main.c";

#[test]
fn every_call_does_what_it_says_in_c() {
    assert_eq!(run(C, "tests/calls.c"), "ok\n");
}

#[test]
fn every_call_does_what_it_says_in_cpp() {
    if Command::new(CPP[0]).arg("--version").output().is_err() {
        return eprintln!("SKIPPED: there is no {}", CPP[0]);
    }
    assert_eq!(run(CPP, "tests/calls.c"), "ok\n");
}

#[test]
fn arguments_that_make_no_sense_are_refused_in_a_sentence() {
    assert_eq!(run(C, "tests/refuses.c"), "ok\n");
}

// This job has one rank. `rlaunch -H localhost:4 -np 4` runs the program with several ranks.
#[test]
fn every_call_does_what_it_says_among_ranks() {
    assert_eq!(run(C, "tests/ranks.c"), "1 ranks: all as it should be\n");
}

#[test]
fn the_example_adds_up() {
    let printed = run(C, EXAMPLE);
    assert_eq!(printed, "1 ranks: 1048576 elements, sum 1 everywhere\n");
}

#[test]
fn the_example_says_who_is_there() {
    let printed = run(C, "../../../examples/hello/main.c");
    assert_eq!(printed, "rank 0 of 1, 0 of 1 on this host\n");
}

#[test]
fn the_example_says_why_it_cannot_start() {
    let installed = install();
    let flags = flags(installed.path());
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let program = build(C, &here().join(EXAMPLE), installed.path(), &flags);
    let ended = alone(&program, installed.path()).env("WORLD_SIZE", "4").output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let printed = String::from_utf8(ended.stderr).unwrap();
    assert!(printed.contains("RL_START") && printed.contains("WORLD_SIZE is 4"), "{printed}");
    assert!(printed.contains("hint: start it with: rlaunch"), "{printed}");
}

#[test]
fn pkg_config_finds_the_library_where_it_was_moved_to() {
    let installed = install();
    let moved = installed.path().join("moved");
    fs::create_dir(&moved).unwrap();
    for part in ["lib", "include"] {
        fs::rename(installed.path().join(part), moved.join(part)).unwrap();
    }
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", moved.join("lib/pkgconfig"));
    command.args(["--cflags", "--libs", "rlaunch"]);
    if command.output().is_err() {
        return eprintln!("SKIPPED: there is no pkg-config");
    }
    let flags = succeeds(&mut command);
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let program = build(C, &here().join(EXAMPLE), &moved, &flags);
    succeeds(&mut alone(&program, &moved));
}
