//! Standard input: every byte reaches the ranks that it is for, and no other rank, and is read no
//! faster than those ranks read.

use crate::output::{check_flood, flood};
use crate::running::Running;
use crate::support::{BOUND, Field, Run, launch_directory};
use crate::terminal::open_pair;
use nix::pty::OpenptyResult;
use nix::sys::termios::tcgetattr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Checksum of no bytes, as `sha256sum` prints it and `echo` joins the words.
const NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 -";
/// Script that prints the checksum of what a rank has read.
const SUM: &str = "echo $RANK $(sha256sum)";

/// Writes a file of `length` arbitrary bytes on the launching machine, and returns its path and its
/// checksum.
fn file(field: &Field, directory: &Path, length: usize) -> (PathBuf, String) {
    let path = directory.join("bytes");
    let mut state = 7_u64;
    let mut content = Vec::with_capacity(length + 8);
    while content.len() < length {
        // Lehmer's generator. Any bytes will do, as long as every run has the same.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        content.extend_from_slice(&(state >> 16).to_le_bytes());
    }
    content.truncate(length);
    fs::write(&path, content).unwrap();
    let sum = field.shell("sha256sum < bytes", directory);
    (path, sum.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Starts rlaunch with a pipe as stdin, and returns the other end of the pipe as well.
pub(crate) fn piped<'a>(field: &'a Field, run: &Run<'a>) -> (ChildStdin, Running<'a>) {
    let mut command = run.command();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::with_keyboard(field, &mut command, BOUND)
}

/// Starts rlaunch with this stdin.
fn reading<'a>(field: &'a Field, run: &Run<'a>, stdin: impl Into<Stdio>) -> Running<'a> {
    let mut command = run.command();
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start(field, &mut command, BOUND)
}

#[test]
fn rank_0_reads_a_pipe_byte_for_byte_and_its_end() {
    let field = Field::new();
    let directory = launch_directory();
    let (path, sum) = file(&field, directory.path(), 64 << 20);
    let run = field.rlaunch("-H a,b").sh(SUM);
    let (mut pipe, running) = piped(&field, &run);
    let writer = std::thread::spawn(move || {
        let mut file = File::open(path).unwrap();
        std::io::copy(&mut file, &mut pipe).map(|_| ())
    });
    let ran = running.finish();
    assert_eq!(ran.succeeded().sorted(), [format!("0 {sum}"), format!("1 {NOTHING}")], "{ran}");
    ran.says_nothing();
    writer.join().unwrap().unwrap();
}

#[test]
fn all_ranks_read_the_same_file() {
    let field = Field::new();
    let directory = launch_directory();
    let (path, sum) = file(&field, directory.path(), 4 << 20);
    // Rank 1 begins to read later than the others.
    let script = format!("[ $RANK != 1 ] || sleep 0.3; {SUM}");
    let run = field.rlaunch("-H a:2,b --stdin all").sh(&script);
    let ran = reading(&field, &run, File::open(&path).unwrap()).finish();
    let expected: Vec<String> = (0..3).map(|rank| format!("{rank} {sum}")).collect();
    assert_eq!(ran.succeeded().sorted(), expected, "{ran}");
    // Without the option, rank 0 reads a file, as it reads a pipe.
    let run = field.rlaunch("-H a,b").sh(SUM);
    let ran = reading(&field, &run, File::open(&path).unwrap()).finish();
    assert_eq!(ran.succeeded().sorted(), [format!("0 {sum}"), format!("1 {NOTHING}")], "{ran}");
}

#[test]
fn who_reads_what_is_the_users_to_say() {
    let field = Field::new();
    let directory = launch_directory();
    fs::write(directory.path().join("words"), "of the file\n").unwrap();
    for (options, expected) in [
        ("--stdin 1", ["0", "1 of the pipe"]),
        ("--stdin none", ["0", "1"]),
        ("--stdin words", ["0 of the file", "1"]),
    ] {
        let run = field.rlaunch("-H a,b").args(options.split(' ')).in_directory(directory.path());
        let run = run.sh("echo $RANK $(cat)");
        let (mut pipe, running) = piped(&field, &run);
        pipe.write_all(b"of the pipe\n").unwrap();
        drop(pipe);
        let ran = running.finish();
        assert_eq!(ran.succeeded().sorted(), expected, "{options}: {ran}");
    }
    let ran = field.rlaunch("-H a,b --stdin 2 cat").run();
    ran.refused(200, &["--stdin 2: ranks are 0 to 1"]).hints("./2");
    let ran = field.rlaunch("-H a,b --stdin no/such/file cat").run();
    ran.refused(203, &["cannot read no/such/file (--stdin): No such file"]);
}

/// Typed lines reach a rank while the job runs, not only at its end.
#[test]
fn a_line_is_answered_before_the_next_is_asked() {
    let field = Field::new();
    let run = field.rlaunch("-H a,b").sh("[ $RANK = 1 ] || while read -r x; do echo got $x; done");
    let (mut pipe, mut running) = piped(&field, &run);
    for number in 0..3 {
        writeln!(pipe, "{number}").unwrap();
        running.wait_for_text(&format!("got {number}\n"), 1);
    }
    drop(pipe);
    assert_eq!(running.finish().succeeded().out(), "got 0\ngot 1\ngot 2\n");
}

/// Input for a rank that does not read stays with the writer, and nothing else is blocked by it.
#[test]
fn a_rank_that_does_not_read_fills_no_memory_and_holds_up_nobody() {
    /// Maximum number of bytes between the writer and the rank: two pipes, the buffers of launcher
    /// and agent, and some reserve.
    const MOST: usize = 1 << 20;
    const LINES: usize = 50_000;
    let field = Field::new();
    let script = format!(
        "case $RANK in
            0) trap 'echo told' USR1; echo up
               until [ -e /tmp/go ]; do sleep 0.02; done; head -c 4; rm /tmp/go;;
            1) trap '' USR1; {};;
        esac",
        flood(LINES)
    );
    let run = field.rlaunch("-H a,b").sh(&script);
    let (mut pipe, mut running) = piped(&field, &run);
    let taken = Arc::new(AtomicUsize::new(0));
    let count = taken.clone();
    let writer = std::thread::spawn(move || {
        while let Ok(length) = pipe.write(&b"abc\n".repeat(1 << 10)) {
            count.fetch_add(length, Ordering::Relaxed);
        }
    });
    running.wait_for_lines(1 + LINES);
    // Signals still reach rank 0.
    running.signal(nix::sys::signal::Signal::SIGUSR1);
    running.wait_for_text("told\n", 1);
    // rlaunch has read as much as fits into the buffers.
    field.wait_for("stdin to be read", || taken.load(Ordering::Relaxed) >= 64 << 10);
    assert!(!running.has_ended());
    assert!(taken.load(Ordering::Relaxed) <= MOST, "{}", taken.load(Ordering::Relaxed));
    field.lab.write_file("a", Path::new("/tmp/go"), b"", 0o644).unwrap();
    let ran = running.finish();
    // The writer has ended, since no process reads the pipe any more.
    writer.join().unwrap();
    assert!(taken.load(Ordering::Relaxed) <= MOST, "{}", taken.load(Ordering::Relaxed));
    let out = ran.succeeded().out().into_owned();
    let (own, rest): (Vec<&str>, Vec<&str>) =
        out.split_inclusive('\n').partition(|line| !line.starts_with("1 "));
    assert_eq!(own.concat(), "up\ntold\nabc\n", "{ran}");
    // Checks the output of rank 1 as if it were the only one.
    let flood = rest.concat().replace("\n1 ", "\n0 ").replacen("1 ", "0 ", 1);
    check_flood(flood.as_bytes(), 1, LINES, |_| String::new());
}

#[test]
fn a_rank_that_has_enough_ends_well() {
    let field = Field::new();
    let run = field.rlaunch("-H a,b head -n 1");
    let (mut pipe, running) = piped(&field, &run);
    let writer = std::thread::spawn(move || while pipe.write_all(&[b'\n'; 8 << 10]).is_ok() {});
    let ran = running.finish();
    assert_eq!(ran.succeeded().out(), "\n", "{ran}");
    ran.says_nothing();
    ran.took_less_than(8);
    writer.join().unwrap();
}

#[test]
fn a_terminal_is_read_when_that_was_asked_for_and_never_changed() {
    let field = Field::new();
    let OpenptyResult { master, slave } = open_pair();
    let before = tcgetattr(&slave).unwrap();
    // Nothing is typed, and the job does not wait for it.
    let run = field.rlaunch("-H a cat");
    let ran = reading(&field, &run, slave.try_clone().unwrap()).finish();
    assert_eq!(ran.succeeded().out(), "", "{ran}");
    let run = field.rlaunch("-H a --stdin 0 cat");
    let mut running = reading(&field, &run, slave.try_clone().unwrap());
    let mut keyboard = File::from(master);
    keyboard.write_all(b"typed\n").unwrap();
    running.wait_for_text("typed\n", 1);
    assert!(tcgetattr(&slave).unwrap() == before, "the terminal was changed while it ran");
    // Ctrl-D
    keyboard.write_all(b"\x04").unwrap();
    assert_eq!(running.finish().succeeded().out(), "typed\n");
    assert!(tcgetattr(&slave).unwrap() == before, "the terminal was changed");
    // The terminal has echoed what was typed, as usual.
    let mut echoed = [0; 7];
    keyboard.read_exact(&mut echoed).unwrap();
    assert_eq!(&echoed, b"typed\r\n");
}

/// A rank that waits for input that never comes does not keep the failed job from ending.
#[test]
fn a_job_that_fails_does_not_wait_for_its_input() {
    let field = Field::new();
    let run = field.rlaunch("-H a,b --stdin all").sh("[ $RANK = 0 ] || exit 3; cat > /dev/null");
    let (pipe, running) = piped(&field, &run);
    let ran = running.finish();
    ran.ended_with(3).took_less_than(8);
    drop(pipe);
}
