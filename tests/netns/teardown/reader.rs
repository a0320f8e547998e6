//! Readers of a job's output that pause or leave.

use super::{PROMPT, as_each, nothing_left};
use crate::output::{check_flood, flood};
use crate::running::Outcome;
use crate::support::{BOUND, Field};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_lab::Account;
use rlaunch_lab::Stopwatch;
use rlaunch_lab::command::wait_until;
use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Limit of rlaunch's memory in KiB, without pages of its file. On a busy machine it takes up to 11.5 MiB, of which 1.7 are
/// constants that hold addresses in the lab's build; ranks print 80 MB.
const MEMORY: u64 = 16 << 10;

/// Pause of a reader, longer than the default node timeout.
const PAUSE: Duration = Duration::from_millis(8500);

/// While the reader pauses, ranks wait, memory does not grow, and no node counts as lost.
#[test]
fn a_reader_pauses() {
    const LINES: usize = 200_000;
    as_each(|field, account| {
        field.warm("a,b,c,d", account);
        let mut command = field.rlaunch("-H a,b,c,d").account(account).sh(&flood(LINES)).command();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let write = || field.ranks().iter().filter(|rank| rank.args[0] == "seq").count() == 4;
        field.wait_for("the ranks to write", write);
        let began = Stopwatch::start();
        wait_until(PAUSE + BOUND, "the pause to end", || {
            assert!(child.try_wait().unwrap().is_none(), "ended during the pause");
            Ok(began.total_elapsed() >= PAUSE)
        })
        .unwrap();
        assert!(write(), "the ranks did not wait: {:#?}", field.ranks());
        let (bytes, peak) = read_all(&mut child);
        let ran = outcome(child, bytes, began);
        check_flood(&ran.succeeded().stdout, 4, LINES, |_| String::new());
        ran.says_nothing();
        nothing_left(field, Duration::ZERO, &ran);
        assert!(peak <= MEMORY, "rlaunch took {peak} KiB");
    });
}

/// The output that is left when a rank has failed waits for its reader, but not against the user's will.
#[test]
fn a_reader_that_never_reads_holds_nobody_who_interrupts() {
    as_each(|field, account| {
        field.warm("a,b", account);
        let script = "[ $RANK = 0 ] && exec yes
            until [ -e /tmp/fail ]; do sleep 0.1; done; sleep 0.5; exit 3";
        let mut command = field.rlaunch("-H a,b").account(account).sh(script).command();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let writes = || field.lab.processes("a").unwrap().iter().any(|p| p.args[0] == "yes");
        field.wait_for("rank 0 to write", writes);
        let _fail = field.files(&["b"], "/tmp/fail", "", 0o644);
        field.wait_for("rank 0 to be ended", || !writes());
        // Longer than nodes have to report their end.
        let pause = Stopwatch::start();
        wait_until(PAUSE + BOUND, "the pause to end", || Ok(pause.total_elapsed() >= PAUSE))
            .unwrap();
        assert!(child.try_wait().unwrap().is_none(), "it did not wait for its reader");
        interrupt(&child);
        let ran = ends_unread(child);
        ran.ended_with(3).says(&["of the ranks' output is dropped", "all processes ended on a, b"]);
        nothing_left(field, Duration::ZERO, &ran);
    });
}

/// A job that a signal ends is not a success, although every rank exited with 0.
#[test]
fn a_reader_that_never_reads_holds_nobody_when_all_ranks_have_ended() {
    let field = Field::new();
    // More than a pipe holds, and less than a rank may print before its output is read.
    let done = "/tmp/unread";
    let _done = field.scratch(&["a"], done);
    let mut command = field.rlaunch("-H a").sh(&format!("seq 20000; mkdir {done}")).command();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let list = format!("ls -d {done} || :");
    field.wait_for("the rank to print", || !field.on("a", &list).is_empty());
    field.wait_for("the rank to end", || field.ranks().is_empty());
    interrupt(&child);
    let ran = ends_unread(child);
    ran.ended_with(130).says(&["of the ranks' output is dropped", "error: ended by SIGINT"]);
}

/// The time limit of a job holds although its output is not read.
#[test]
fn a_reader_that_never_reads_holds_no_time_limit() {
    let field = Field::new();
    field.warm("a,b", Account::Root);
    let mut command = field.rlaunch("-H a,b --timeout 8 yes").command();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let ran = ends_unread(child);
    ran.ended_with(124).says(&["of the ranks' output is dropped", "all processes ended on a, b"]);
}

/// Messages that are not read delay neither a signal nor a time limit.
#[test]
fn a_reader_of_messages_that_never_reads_delays_no_end() {
    as_each(|field, account| {
        field.warm("a,b", account);
        // The ranks' own lines fill the pipe.
        for (options, code) in [("-vv", 130), ("-vv --timeout 8", 124)] {
            let run = field.rlaunch(options).args(["-H", "a,b"]).account(account);
            let mut command = run.sh("yes >&2 & sleep 1000").command();
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            let stderr = child.stderr.take().unwrap();
            field.wait_for("the ranks to start", || field.ranks().len() >= 4);
            if code == 130 {
                interrupt(&child);
            }
            field.wait_for("the ranks to end", || field.ranks().is_empty());
            // The last message of a job that nobody interrupts waits for its reader.
            let reader = (code == 124).then(|| std::thread::spawn(move || read_text(stderr)));
            let ended =
                wait_until(BOUND, "rlaunch to end", || Ok(child.try_wait().unwrap().is_some()));
            let _ = child.kill();
            assert!(ended.is_ok(), "{options}");
            assert_eq!(child.wait().unwrap().code(), Some(code), "{options}");
            if let Some(reader) = reader {
                let said = reader.join().unwrap();
                let last = said.lines().rev().take(9).collect::<Vec<_>>().join("\n");
                assert!(last.contains("error: not done within 8 s (--timeout)"), "{last}");
            }
            assert!(field.started().is_empty(), "{options}: {:#?}", field.started());
        }
    });
}

fn read_text(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn interrupt(child: &Child) {
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
}

/// Waits for the end of a launcher whose stdout is not read.
fn ends_unread(mut child: Child) -> Outcome {
    let began = Stopwatch::start();
    let ended = wait_until(BOUND, "rlaunch to end", || Ok(child.try_wait().unwrap().is_some()));
    let _ = child.kill();
    let ran = outcome(child, Vec::new(), began);
    ended.unwrap_or_else(|error| panic!("{error}: {ran}"));
    ran
}

/// Returns all of stdout, and the most memory that the process was seen to have, in KiB.
fn read_all(child: &mut Child) -> (Vec<u8>, u64) {
    let mut stdout = child.stdout.take().unwrap();
    let mut bytes = Vec::new();
    let mut peak = memory(child.id()).unwrap_or(0);
    while (&mut stdout).take(4 << 20).read_to_end(&mut bytes).unwrap() > 0 {
        peak = peak.max(memory(child.id()).unwrap_or(0));
    }
    (bytes, peak)
}

/// Returns the memory of a process in KiB, without pages of its file, which the kernel takes back when it likes; `None` if
/// the process has ended.
pub(crate) fn memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    value.trim().trim_end_matches(" kB").parse().ok()
}

fn outcome(mut child: Child, stdout: Vec<u8>, since: Stopwatch) -> Outcome {
    let mut stderr = Vec::new();
    child.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    let code = child.wait().unwrap().code().unwrap();
    Outcome { code, stdout, stderr, took: since.total_elapsed(), took_awake: since.elapsed() }
}

/// Like `rlaunch … | head`.
#[test]
fn a_reader_leaves() {
    as_each(|field, account| {
        field.warm("a,b,c,d", account);
        let mut command = field.rlaunch("-H a,b,c,d yes some words").account(account).command();
        let began = Stopwatch::start();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let head = Command::new("head").stdin(child.stdout.take().unwrap()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&head.stdout), "some words\n".repeat(10));
        let left = Stopwatch::start();
        wait_until(BOUND, "rlaunch to end", || Ok(child.try_wait().unwrap().is_some())).unwrap();
        assert!(left.elapsed() < PROMPT, "{:?}", left.elapsed());
        let ran = outcome(child, Vec::new(), began);
        ran.ended_with(141).says_nothing();
        nothing_left(field, Duration::ZERO, &ran);
    });
}
