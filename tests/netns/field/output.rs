//! A rank that does not end its lines keeps the output of no other rank waiting.

use crate::support::{BOUND, Field, launch_directory};
use crate::terminal::Terminal;
use rlaunch_lab::Stopwatch;
use rlaunch_lab::command::wait_until;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// Time within which a line has to be there: a turn, and the way.
const SOON: Duration = Duration::from_secs(2);

/// End of rank 0's script: it waits for a file, some 20 s at most.
const STOPPED: &str = "[ -e /tmp/stop ] || [ $((i += 1)) = 900 ]";

/// Returns a script in which rank 0 writes as `writer` says. Rank 1 prints a line once there is a file, rank 2 prints
/// all the time.
fn script(writer: &str) -> String {
    format!(
        "until_there() {{ until [ -e /tmp/go$RANK ]; do eval $1; sleep 0.05; done; rm /tmp/go$RANK; echo line $RANK; }}
        i=0
        case $RANK in
        0) {writer}; rm -f /tmp/stop; echo end;;
        1) until_there :;;
        2) until_there 'echo beat';;
        esac"
    )
}

/// Runs the script until rank 0 has written `bytes`. Asserts that lines of the others come soon, and that all bytes
/// come in order.
fn assert_lines_beside(words: &str, hosts: [&str; 3], writer: &str, bytes: u64) {
    let (field, directory) = (Field::new(), launch_directory());
    let run = field.rlaunch(words).args(["--output-dir", "D"]).in_directory(directory.path());
    let mut running = run.sh(&script(writer)).spawn();
    let file = directory.path().join("D/rank.0/stdout");
    let has_written = || fs::metadata(&file).is_ok_and(|file| file.len() >= bytes);
    field.wait_for("rank 0 to write", has_written);
    let touch = |host, path: &str| field.lab.write_file(host, Path::new(path), b"", 0o644).unwrap();
    for rank in [1, 2] {
        let asked = Stopwatch::start();
        touch(hosts[rank], &format!("/tmp/go{rank}"));
        running.wait_for_text(&format!("line {rank}\n"), 1);
        assert!(asked.elapsed() < SOON, "rank {rank} after {:?}", asked.elapsed());
    }
    touch(hosts[0], "/tmp/stop");
    let ran = running.finish();
    let out = ran.succeeded().out();
    for line in ["line 1", "line 2"] {
        assert_eq!(out.lines().filter(|shown| *shown == line).count(), 1, "{ran}");
    }
    let of_others = |line: &&str| ["line 1\n", "line 2\n", "beat\n"].contains(line);
    let rest: String = out.split_inclusive('\n').filter(|line| !of_others(line)).collect();
    let printed = fs::read_to_string(&file).unwrap();
    assert!(rest.replace('\n', "") == printed.replace('\n', ""), "{ran}");
    assert!(printed.ends_with("end\n") && printed.matches('\n').count() == 1, "{ran}");
}

/// As `tqdm` draws one in a log: 50 steps a second, of 2 kB so that it does not take long.
#[test]
fn a_progress_bar() {
    let bar = format!(
        "p=$(printf %02000d 0); until {STOPPED}; do printf '\\r%s %d%%' $p $i; sleep 0.02; done"
    );
    assert_lines_beside("-H a,b,c -np 3", ["a", "b", "c"], &bar, 100_000);
}

/// More than a frame, and then nothing for a long time.
#[test]
fn half_of_a_long_line() {
    let half = format!("printf %040000d 0; until {STOPPED}; do sleep 0.02; done");
    assert_lines_beside("-H a,b,c -np 3", ["a", "b", "c"], &half, 40_000);
}

/// A line without end, of a rank that shares its host with one of the others.
#[test]
fn a_flood_without_newline() {
    let flood =
        format!("p=$(printf %08000d 0); until {STOPPED}; do printf %s $p; sleep 0.01; done");
    assert_lines_beside("-H a:2,b -np 3", ["a", "a", "b"], &flood, 200_000);
}

/// The same, where everything is shown at once.
#[test]
fn a_flood_at_a_terminal() {
    let field = Field::new();
    let flood =
        format!("p=$(printf %08000d 0); until {STOPPED}; do printf %s $p; sleep 0.01; done");
    let (terminal, slave) = Terminal::open();
    let mut command = field.rlaunch("-H a:2 -np 2 --no-tag").sh(&script(&flood)).command();
    command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(slave);
    let mut child = command.spawn().unwrap();
    // It has the terminal open.
    drop(command);
    terminal.wait_until(BOUND, "the flood", |shown| shown.len() > 200_000);
    let touch = |path| field.lab.write_file("a", Path::new(path), b"", 0o644).unwrap();
    touch("/tmp/go1");
    let asked = Stopwatch::start();
    terminal.wait_until(BOUND, "a line of its own", |shown| shown.contains("\nline 1\r\n"));
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
    touch("/tmp/stop");
    wait_until(BOUND, "rlaunch to end", || Ok(child.try_wait().unwrap().is_some())).unwrap();
    assert!(terminal.finish().ends_with("0end\r\n"));
}
