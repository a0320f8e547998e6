//! Output of ranks arrives completely, in order, and immediately.

use crate::running::said;
use crate::support::{BOUND, Field, launch_directory};
use rlaunch_lab::command::wait_until;
use rlaunch_lab::{Account, Stopwatch};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// Padding that makes a line 100 bytes long.
const PAD: &str =
    "........................................................................................";

/// Returns a shell command that prints `lines` numbered lines of 100 bytes.
pub(crate) fn flood(lines: usize) -> String {
    format!("seq -f \"$RANK %08.0f {PAD}\" 1 {lines}")
}

/// Checks that `bytes` are the output of [`flood`] of all ranks: each line is whole, none is
/// missing, and those of each rank are in order. `tag` returns the beginning of a rank's lines.
pub(crate) fn check_flood(bytes: &[u8], ranks: usize, lines: usize, tag: impl Fn(usize) -> String) {
    let starts: Vec<String> = (0..ranks).map(|rank| format!("{}{rank} ", tag(rank))).collect();
    let mut count = vec![0; ranks];
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        let shown = || String::from_utf8_lossy(&line[..line.len().min(300)]).into_owned();
        let rank = starts.iter().position(|start| line.starts_with(start.as_bytes()));
        let rank = rank.unwrap_or_else(|| panic!("a torn line: {}", shown()));
        count[rank] += 1;
        let expected = format!("{}{:08} {PAD}\n", starts[rank], count[rank]);
        assert_eq!(shown(), expected, "line {} of rank {rank}", count[rank]);
    }
    assert_eq!(count, vec![lines; ranks]);
}

#[test]
fn the_output_of_all_ranks_at_once() {
    const LINES: usize = 100_000;
    let field = Field::new();
    let ran = field.rlaunch("-H a,b,c -np 3").sh(&flood(LINES)).run();
    check_flood(&ran.succeeded().stdout, 3, LINES, |_| String::new());
    ran.says_nothing();
    let ran = field.rlaunch("-H a,b,c -np 3 --tag-output").sh(&flood(LINES)).run();
    let tag = |rank: usize| format!("[{rank},{}] ", ["a", "b", "c"][rank]);
    check_flood(&ran.succeeded().stdout, 3, LINES, tag);
}

#[test]
fn stdout_and_stderr_are_kept_apart() {
    const LINES: usize = 20_000;
    let field = Field::new();
    let script = format!("{} & {} >&2; wait", flood(LINES), flood(LINES + 1));
    let ran = field.rlaunch("-H a:2,b:2 -np 4").sh(&script).run();
    check_flood(&ran.succeeded().stdout, 4, LINES, |_| String::new());
    check_flood(&ran.stderr, 4, LINES + 1, |_| String::new());
}

#[test]
fn a_last_line_without_an_end_stays_without() {
    let field = Field::new();
    let ran = field.rlaunch("-H a printf").args(["no end"]).run();
    assert_eq!(ran.succeeded().out(), "no end");
    // The others' are ended where another rank's output follows.
    let ran = field.rlaunch("-H a,b,c").sh("printf 'whole\\nhalf of '$RANK").run();
    let expected = ["half of 0", "half of 1", "half of 2", "whole", "whole", "whole"];
    assert_eq!(ran.succeeded().sorted(), expected, "{ran}");
    assert!(!ran.out().ends_with('\n'), "{ran}");
    let ran = field.rlaunch("-H a,b --tag-output").sh("printf 'half of '$RANK").run();
    assert_eq!(ran.succeeded().sorted(), ["[0,a] half of 0", "[1,b] half of 1"], "{ran}");
}

#[test]
fn long_lines_are_not_torn() {
    const LENGTH: usize = 1 << 20;
    let field = Field::new();
    let script = format!("head -c {LENGTH} /dev/zero | tr '\\0' $RANK; echo");
    let ran = field.rlaunch("-H a,b,c").sh(&script).run();
    let lines = ran.succeeded().sorted();
    let expected: Vec<String> = ["0", "1", "2"].map(|rank| rank.repeat(LENGTH)).into();
    assert!(lines == expected, "torn: {:?}", lines.iter().map(String::len).collect::<Vec<_>>());
}

/// A line that waits for its turn must not block the line that is being printed.
#[test]
fn long_lines_of_one_host_do_not_hold_each_other_up() {
    /// Twice what a host may send before it has credit again, and no more: a line that takes over a second, as on a busy
    /// machine, loses its turn.
    const LENGTH: usize = 512 << 10;
    let field = Field::new();
    field.warm("a,b", Account::Root);
    // The second line of each rank is unfinished.
    let long = format!("head -c {LENGTH} /dev/zero | tr '\\0' $RANK >$TMPDIR/long.$RANK");
    let script = format!("{long}; cat $TMPDIR/long.$RANK; echo; cat $TMPDIR/long.$RANK");
    let ran = field.rlaunch("-H a:3,b -np 4").sh(&script).run();
    let mut counts = vec![0; 4];
    let out = &ran.succeeded().stdout;
    for run in out.split(|&byte| byte == b'\n').flat_map(|line| line.chunk_by(u8::eq)) {
        assert_eq!(run.len() % LENGTH, 0, "torn: {} times {}", run.len(), run[0]);
        counts[usize::from(run[0] - b'0')] += run.len();
    }
    assert_eq!(counts, vec![2 * LENGTH; 4]);
    ran.took_less_than(8);
}

/// Three files with lines of arbitrary bytes; each line begins with the rank.
#[test]
fn bytes_are_bytes() {
    let field = Field::new();
    let directory = launch_directory();
    let mut state = 1_u64;
    let mut random = move || {
        // Lehmer's generator. Any bytes will do, as long as every run has the same.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 56) as u8
    };
    let mut run = field.rlaunch("-H a,b,c").in_directory(directory.path());
    let mut files: Vec<Vec<u8>> = Vec::new();
    for rank in 0..3_u8 {
        let mut content = Vec::new();
        for _ in 0..3000 {
            content.push(b'0' + rank);
            content.extend((0..usize::from(random())).map(|_| random()).filter(|&b| b != b'\n'));
            content.push(b'\n');
        }
        fs::write(directory.path().join(format!("bytes-{rank}")), &content).unwrap();
        run = run.args([format!("--preload=bytes-{rank}")]);
        files.push(content);
    }
    let ran = run.sh("cat $RLAUNCH_PRELOAD_DIR/bytes-$RANK").run();
    let mut arrived = vec![Vec::new(); 3];
    for line in ran.succeeded().stdout.split_inclusive(|&byte| byte == b'\n') {
        arrived[usize::from(line[0] - b'0')].extend_from_slice(line);
    }
    assert!(arrived == files);
}

/// The ranks continue only when their first output has been read, so the test hangs if output is
/// held back until the end.
#[test]
fn what_is_printed_arrives_at_once() {
    let field = Field::new();
    let script = "echo ready; while [ ! -e /tmp/go ]; do sleep 0.05; done; rm /tmp/go; echo done";
    let mut running = field.rlaunch("-H a,b,c").sh(script).spawn();
    running.wait_for_text("ready\n", 3);
    for host in ["a", "b", "c"] {
        field.lab.write_file(host, Path::new("/tmp/go"), b"", 0o644).unwrap();
    }
    let ran = running.finish();
    assert_eq!(ran.succeeded().sorted(), ["done", "done", "done", "ready", "ready", "ready"]);
}

#[test]
fn a_prompt_of_a_single_rank_arrives_at_once() {
    let field = Field::new();
    let script = "printf 'name? '; while [ ! -e /tmp/go ]; do sleep 0.05; done; rm /tmp/go";
    let mut running = field.rlaunch("-H a").sh(script).spawn();
    running.wait_for_text("name? ", 1);
    field.lab.write_file("a", Path::new("/tmp/go"), b"", 0o644).unwrap();
    assert_eq!(running.finish().succeeded().out(), "name? ");
}

/// The program continues only when its last step was seen, and never pauses for long.
#[test]
fn a_progress_bar_is_seen_as_it_grows() {
    let field = Field::new();
    let script = "for step in 1 2 3; do while [ ! -e /tmp/go$step ]; do printf .; sleep 0.05; \
                  done; rm /tmp/go$step; printf \"\\rstep $step\"; done";
    let mut running = field.rlaunch("-H a").sh(script).spawn();
    running.wait_for_text("...", 1);
    for step in ["1", "2", "3"] {
        let go = format!("/tmp/go{step}");
        field.lab.write_file("a", Path::new(&go), b"", 0o644).unwrap();
        running.wait_for_text(&format!("\rstep {step}"), 1);
    }
    running.finish().succeeded();
}

#[test]
fn a_reader_that_has_enough_ends_the_job_quietly() {
    let field = Field::new();
    field.warm("a,b,c", Account::Root);
    let mut command = field.rlaunch("-H a,b,c --node-timeout 60 yes some words").command();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "some words\n");
    drop(stdout);
    let closed = Stopwatch::start();
    wait_until(BOUND, "rlaunch to end", || Ok(child.try_wait().unwrap().is_some())).unwrap();
    assert!(closed.elapsed() < Duration::from_secs(10), "{:?}", closed.elapsed());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().unwrap().code(), said(&stderr)), (Some(141), vec![]));
    let left = field.started();
    assert!(left.is_empty(), "{left:#?}");
}

/// While the reader pauses, ranks wait, memory does not grow, and no node counts as lost.
#[test]
fn a_reader_that_pauses_loses_nothing() {
    const LINES: usize = 200_000;
    /// Longer than every node timeout.
    const PAUSE: Duration = Duration::from_secs(8);
    let field = Field::new();
    let mut command = field.rlaunch("-H a,b,c").sh(&flood(LINES)).command();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let write = || field.ranks().iter().filter(|rank| rank.args[0] == "seq").count() == 3;
    field.wait_for("the ranks to write", write);
    let started = Stopwatch::start();
    let status = format!("/proc/{}/status", child.id());
    wait_until(PAUSE + BOUND, "the pause to end", || {
        let text = fs::read_to_string(&status).unwrap();
        let resident = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(kib < 64 << 10, "{kib} KiB");
        assert!(child.try_wait().unwrap().is_none(), "ended during the pause");
        Ok(started.total_elapsed() >= PAUSE)
    })
    .unwrap();
    assert!(write(), "the ranks did not wait");
    let mut bytes = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut bytes).unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().unwrap().code(), said(&stderr)), (Some(0), vec![]));
    check_flood(&bytes, 3, LINES, |_| String::new());
}

/// A disk that is full is said, whether the job is still running or has ended with its first line.
#[test]
fn output_that_cannot_be_written_is_an_error() {
    let field = Field::new();
    for script in ["exec yes", "echo short"] {
        for (name, merged) in [("stdout", ""), ("stderr", " >&2")] {
            let mut command = field.rlaunch("-H a,b").sh(&format!("{script}{merged}")).command();
            let full = fs::File::options().write(true).open("/dev/full").unwrap();
            let messages = launch_directory();
            let messages = messages.path().join("messages");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            match name {
                "stdout" => {
                    command.stdout(full).stderr(fs::File::create(&messages).unwrap());
                }
                _ => {
                    command.stderr(full);
                }
            }
            let mut child = command.spawn().unwrap();
            wait_until(BOUND, "rlaunch to end", || Ok(child.try_wait().unwrap().is_some()))
                .unwrap();
            let said = fs::read_to_string(&messages).unwrap_or_default();
            assert_eq!(child.wait().unwrap().code(), Some(203), "{script} to {name}: {said}");
            if name == "stdout" {
                let error = "cannot write the ranks' output to stdout: No space left on device";
                assert!(said.contains(error), "{script}: {said}");
            }
        }
    }
}
