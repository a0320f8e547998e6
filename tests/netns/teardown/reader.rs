//! Readers of a job's output that pause or leave.

use super::{PROMPT, as_each, nothing_left};
use crate::output::{check_flood, flood};
use crate::running::Outcome;
use crate::support::BOUND;
use rlaunch_lab::Stopwatch;
use rlaunch_lab::command::wait_until;
use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Limit of rlaunch's peak memory in KiB, without pages of its file but with its constants that hold
/// addresses: 1.7 MiB in the lab's build, and more with each verb.
const MEMORY: u64 = 10 << 10;

/// While the reader pauses, ranks wait, memory does not grow, and no node counts as lost.
#[test]
fn a_reader_pauses() {
    const LINES: usize = 200_000;
    /// Longer than the default node timeout.
    const PAUSE: Duration = Duration::from_millis(8500);
    as_each(|field, account| {
        field.warm("a,b,c,d", account);
        let mut command = field.rlaunch("-H a,b,c,d").account(account).sh(&flood(LINES)).command();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        field.wait_for("the ranks to write", || field.ranks().len() >= 4);
        let began = Stopwatch::start();
        wait_until(PAUSE + BOUND, "the pause to end", || {
            assert!(child.try_wait().unwrap().is_none(), "ended during the pause");
            Ok(began.total_elapsed() >= PAUSE)
        })
        .unwrap();
        assert!(field.ranks().len() >= 4, "the ranks did not wait: {:#?}", field.ranks());
        let (bytes, peak) = read_all(&mut child);
        let ran = outcome(child, bytes, began);
        check_flood(&ran.succeeded().stdout, 4, LINES, |_| String::new());
        ran.says_nothing();
        nothing_left(field, Duration::ZERO, &ran);
        assert!(peak <= MEMORY, "rlaunch took {peak} KiB");
    });
}

/// Returns all of stdout, and the peak memory of the process in KiB, as last read.
fn read_all(child: &mut Child) -> (Vec<u8>, u64) {
    let mut stdout = child.stdout.take().unwrap();
    let (mut bytes, mut peak) = (Vec::new(), 0);
    while (&mut stdout).take(4 << 20).read_to_end(&mut bytes).unwrap() > 0 {
        peak = peak_memory(child.id()).unwrap_or(peak);
    }
    (bytes, peak)
}

/// Returns the peak memory of a process in KiB, without pages of its file; `None` if the process
/// has ended.
pub(crate) fn peak_memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = |name: &str| -> Option<u64> {
        let value = status.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().trim_end_matches(" kB").parse().ok()
    };
    Some(kib("VmHWM:")? - kib("RssFile:")?)
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
