//! All ways in which a job of eight ranks on four hosts ends, as root and as an ordinary user:
//! rlaunch returns in time, names the cause, and no process, shared memory or temporary file of the
//! job is left on any host.

mod events;
mod lost;
mod reader;
mod reaping;

pub(crate) use reader::memory;

use crate::running::{Outcome, Running};
use crate::support::{BOUND, Field, Run, Undo, state};
use nix::sys::signal::Signal;
use rlaunch_lab::command::wait_until;
use rlaunch_lab::{Account, Process, Stopwatch};
use std::path::Path;
use std::time::Duration;

const HOSTS: [&str; 4] = ["a", "b", "c", "d"];
/// Options of the jobs. Rank 5 is on host c. The node timeout is longer than every limit here, so that a loss that only
/// silence tells of does not pass for one that is noticed at once.
const EIGHT: &str = "-H a:2,b:2,c:2,d:2 -np 8 --node-timeout 60";
/// The same with the default node timeout.
const EIGHT_BY_DEFAULT: &str = "-H a:2,b:2,c:2,d:2 -np 8";
/// Path of a file on each host that ranks wait for.
const GO: &str = "/tmp/teardown/go";
/// Maximum time between a failure that rlaunch or an agent has noticed and the return of rlaunch,
/// on a busy machine.
const PROMPT: Duration = Duration::from_secs(10);
/// Maximum time until nothing is left of a job whose end rlaunch could not wait for.
const SOON: Duration = Duration::from_secs(10);

/// Script of a rank that ends on the first signal.
const MEEK: &str = "echo up; exec sleep 1000";
/// Script of a rank with children, all of which end on the first signal.
const SHELL: &str = "sleep 1000 & sleep 1000 & echo up; wait";
/// Child of a rank in its own session, which only SIGKILL ends and which holds the rank's stdout.
const HELPER: &str = "setsid sh -c 'trap \"\" TERM INT HUP; while :; do sleep 1; done' & ";
/// Child of a rank without parent, terminal and streams.
const DAEMON: &str = "(setsid sh -c '(sleep 1000 &) & exit 0' </dev/null >/dev/null 2>&1 &); ";
/// Script of a rank that ignores every signal that can be ignored.
const STUBBORN: &str =
    "trap '' 1 2 3 4 5 6 7 8 10 11 12 13 14 15 16 18 20 21 22 23 24 25 26 27 28 29 30 31
    echo up; while :; do sleep 1; done";

/// Runs a test as root and as an ordinary user.
fn as_each(case: impl Fn(&Field, Account)) {
    for account in Account::ALL {
        println!("as {}", account.name());
        let field = Field::new();
        // Tests of other launchers leave segments too.
        clear_segments(&field).unwrap();
        let _segments = Undo(|| clear_segments(&field));
        case(&field, account);
    }
}

/// Starts a job and waits until its eight ranks have printed `up`.
fn up<'a>(run: Run<'a>, script: &str) -> Running<'a> {
    let mut running = run.sh(script).spawn();
    running.wait_for_text("up\n", 8);
    running
}

/// Returns a script in which rank 5 waits for [`GO`] and then runs `culprit`. All other ranks run
/// `others`.
fn one_of_eight(culprit: &str, others: &str) -> String {
    format!(
        "if [ $RANK = 5 ]; then echo up; echo pid $$; until [ -e {GO} ]; do sleep 0.02; done; {culprit}; fi
        {others}"
    )
}

/// Lets the ranks on `hosts` continue; the guard removes the files.
fn go(field: &Field, hosts: &[&str]) -> impl Drop {
    field.files(hosts, GO, "", 0o644)
}

/// Waits for the end of a job that rlaunch and all agents know about. Asserts that rlaunch returns
/// within `bound` after `since` and that nothing of the job is left.
fn ends(field: &Field, running: Running<'_>, since: Stopwatch, bound: Duration) -> Outcome {
    let outcome = running.finish_first();
    let took = since.elapsed();
    assert!(took < bound, "{took:?} rather than {bound:?}: {outcome}");
    nothing_left(field, Duration::ZERO, &outcome);
    outcome
}

/// Asserts that within `limit` no process, temporary file or shared memory of a job is left on any
/// host.
fn nothing_left(field: &Field, limit: Duration, outcome: &Outcome) {
    let mut left = Default::default();
    let gone = wait_until(limit, "the job to be gone", || {
        left = (field.started(), field.job_directories(), segments(field));
        let (processes, directories, segments) = &left;
        Ok(processes.is_empty() && directories.is_empty() && segments.is_empty())
    });
    assert!(gone.is_ok(), "left {limit:?} after rlaunch returned: {left:#?}\n{outcome}");
    field.assert_idle();
}

/// Lists the files in the `/dev/shm` of all hosts, as `HOST NAME`.
fn segments(field: &Field) -> Vec<String> {
    let mut found = Vec::new();
    for host in field.lab.hosts() {
        let directory = field.lab.path(&host, Path::new("/dev/shm")).unwrap();
        let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        found.extend(names.map(|name| format!("{host} {}", name.to_string_lossy())));
    }
    found
}

fn clear_segments(field: &Field) -> std::io::Result<()> {
    for segment in segments(field) {
        let (host, name) = segment.split_once(' ').unwrap();
        let directory = field.lab.path(host, Path::new("/dev/shm")).unwrap();
        std::fs::remove_file(directory.join(name))?;
    }
    Ok(())
}

/// Lists the processes on `host` except sshd.
fn started_on(field: &Field, host: &str) -> Vec<Process> {
    field.started().into_iter().filter(|process| process.host == host).collect()
}

/// Checks that the first of eight ranks to fail is named with its host, its process id and the
/// cause. The ranks that are ended afterwards are not named.
fn first_failure(culprit: &str, code: i32, cause: &str) {
    as_each(|field, account| {
        for others in [MEEK, SHELL] {
            let script = one_of_eight(culprit, others);
            let running = up(field.rlaunch(EIGHT).account(account), &script);
            assert_eq!(field.job_directories().len(), 4, "one for each host");
            let failed = Stopwatch::start();
            let _go = go(field, &["c"]);
            let ran = ends(field, running, failed, PROMPT);
            let pid =
                ran.out().lines().find_map(|line| line.strip_prefix("pid ")).unwrap().to_owned();
            let named = format!("error: rank 5 on c (pid {pid}) {cause}\n");
            ran.ended_with(code).says(&[&named, "all processes ended on a, b, c, d"]);
            ran.keeps_quiet_about(&["more rank"]);
        }
    });
}

#[test]
fn a_rank_exits() {
    first_failure("echo bad news >&2; exit 3", 3, "exited with code 3");
}

#[test]
fn a_rank_crashes() {
    first_failure("kill -SEGV $$; sleep 1", 139, "was killed by signal 11 (SIGSEGV)");
}

#[test]
fn a_rank_is_killed() {
    first_failure("kill -KILL $$; sleep 1", 137, "was killed by signal 9 (SIGKILL)");
}

#[test]
fn a_rank_exits_and_the_others_ignore_every_signal() {
    as_each(|field, account| {
        let run = field.rlaunch("--kill-after 1").args(EIGHT.split(' ')).account(account);
        let script = one_of_eight("exit 3", &format!("{HELPER} {STUBBORN}"));
        let running = up(run, &script);
        let failed = Stopwatch::start();
        let _go = go(field, &["c"]);
        let ran = ends(field, running, failed, Duration::from_secs(1) + PROMPT);
        assert!(failed.total_elapsed() >= Duration::from_secs(1), "no grace: {ran}");
        ran.ended_with(3).says(&["error: rank 5 on c ", "exited with code 3"]);
    });
}

#[test]
fn a_rank_exits_and_the_others_may_go_on() {
    as_each(|field, account| {
        let run = field.rlaunch("--continue-on-error").args(EIGHT.split(' ')).account(account);
        // Rank 5 fails while the other ranks wait. Later rank 2 fails with another code.
        let script = format!(
            "echo up; if [ $RANK = 5 ]; then echo failing; exit 3; fi
            until [ -e {GO} ]; do sleep 0.02; done; echo done; [ $RANK != 2 ] || exit 4"
        );
        let mut running = up(run, &script);
        running.wait_for_text("failing\n", 1);
        let shells = || started_on(field, "c").iter().filter(|p| p.args[0] == "sh").count();
        field.wait_for("rank 5 to be gone", || shells() == 1);
        let released = Stopwatch::start();
        let _go = go(field, &HOSTS);
        let ran = ends(field, running, released, PROMPT);
        ran.ended_with(3)
            .says(&["error: rank 5 on c ", "exited with code 3", "1 more rank failed"]);
        assert_eq!(ran.out().matches("done\n").count(), 7, "{ran}");
    });
}

#[test]
fn a_job_takes_too_long() {
    /// Ranks have started by then on a slow machine too.
    const LIMIT: Duration = Duration::from_secs(8);
    as_each(|field, account| {
        field.warm("a,b,c,d", account);
        let others = if account == Account::Root { MEEK } else { SHELL };
        let run = field.rlaunch("--timeout 8").args(EIGHT.split(' ')).account(account);
        let running = up(run, others);
        let began = Stopwatch::start();
        let ran = ends(field, running, began, LIMIT + PROMPT);
        assert!(ran.took >= LIMIT, "{ran}");
        ran.ended_with(124).says(&["error: not done within 8 s (--timeout)"]);
    });
}

#[test]
fn the_user_interrupts_or_terminates() {
    as_each(|field, account| {
        let ended = "all processes ended on a, b, c, d";
        for (signal, code, said) in [
            (Signal::SIGINT, 130, ["interrupted: 8 ranks ended\n"; 2]),
            (Signal::SIGTERM, 143, ["error: ended by SIGTERM\n", ended]),
        ] {
            for others in [MEEK, SHELL] {
                let running = up(field.rlaunch(EIGHT).account(account), others);
                let asked = Stopwatch::start();
                running.signal(signal);
                let ran = ends(field, running, asked, PROMPT);
                ran.ended_with(code).says(&said);
            }
        }
    });
}

/// The second signal ends the job immediately, whatever the ranks ignore and however long the grace
/// period is.
#[test]
fn the_user_interrupts_twice() {
    as_each(|field, account| {
        let run = field.rlaunch("--kill-after 60").args(EIGHT.split(' ')).account(account);
        let running = up(run, &format!("{HELPER} {STUBBORN}"));
        running.signal(Signal::SIGINT);
        let first = Stopwatch::start();
        wait_until(BOUND, "a while", || {
            assert!(field.ranks().len() >= 16, "ended before the grace: {:#?}", field.ranks());
            Ok(first.total_elapsed() >= Duration::from_secs(3))
        })
        .unwrap();
        let asked = Stopwatch::start();
        running.signal(Signal::SIGINT);
        ends(field, running, asked, PROMPT).ended_with(130).says(&["interrupted: 8 ranks ended"]);
    });
}

/// A launcher that was killed cannot report anything; agents notice by the end of their
/// connections.
#[test]
fn the_launcher_is_killed() {
    as_each(|field, account| {
        let stubborn = format!("{HELPER} {STUBBORN}");
        let scripts = [(MEEK, 0), (SHELL, 0), (stubborn.as_str(), 1)];
        for (script, grace) in scripts {
            let run = field.rlaunch("--kill-after 1").args(EIGHT.split(' ')).account(account);
            let running = up(run, script);
            running.signal(Signal::SIGKILL);
            let ran = running.finish_first();
            nothing_left(field, Duration::from_secs(grace) + SOON, ran.ended_with(-9));
        }
    });
}

/// Ranks get their grace period even if the launcher is killed.
#[test]
fn the_launcher_is_killed_and_ranks_save_their_work() {
    const SAVED: &str = "/tmp/teardown/saved";
    as_each(|field, account| {
        let script = format!(
            "trap 'sleep 0.3; echo saved >>{SAVED}; exit 0' TERM
            sleep 1000 & echo up; wait"
        );
        // Written by root, in root's directory; every account may write to it.
        let _files = field.files(&HOSTS, SAVED, "", 0o666);
        let running = up(field.rlaunch(EIGHT).account(account), &script);
        running.signal(Signal::SIGKILL);
        let ran = running.finish_first();
        nothing_left(field, 2 * SOON, ran.ended_with(-9));
        for host in HOSTS {
            let saved = field.on(host, &format!("cat {SAVED}"));
            assert_eq!(saved, "saved\n".repeat(2), "on {host}");
        }
    });
}

/// The pause is longer than the default node timeout.
#[test]
fn the_launcher_is_suspended() {
    const PAUSE: Duration = Duration::from_secs(8);
    as_each(|field, account| {
        let script = format!("{HELPER} echo up; until [ -e {GO} ]; do sleep 0.1; done; echo done");
        let running = up(field.rlaunch(EIGHT_BY_DEFAULT).account(account), &script);
        running.signal(Signal::SIGTSTP);
        let launcher = || state(running.pid());
        // A shell in state D has stopped too: it waits for a child that was stopped inside vfork.
        let stopped = || field.ranks().iter().all(|rank| matches!(rank.state, 'T' | 'D'));
        field.wait_for("everything to stop", || launcher() == 'T' && stopped());
        let since = Stopwatch::start();
        wait_until(PAUSE + SOON, "the pause to end", || {
            assert!(launcher() == 'T' && stopped(), "{:#?}", field.ranks());
            assert!(
                field.ranks().len() >= 16,
                "a rank or a helper was ended: {:#?}",
                field.ranks()
            );
            Ok(since.total_elapsed() >= PAUSE)
        })
        .unwrap();
        running.signal(Signal::SIGCONT);
        field.wait_for("the ranks to go on", || field.ranks().iter().all(|r| r.state != 'T'));
        let released = Stopwatch::start();
        let _go = go(field, &HOSTS);
        let ran = ends(field, running, released, PROMPT);
        assert_eq!(ran.succeeded().out().matches("done\n").count(), 8, "{ran}");
    });
}

/// Leftovers neither delay the end of the job nor survive it.
#[test]
fn helpers_and_daemons_of_ranks_that_are_done() {
    as_each(|field, account| {
        for helper in [HELPER, DAEMON] {
            let script = format!("{helper} echo up; until [ -e {GO} ]; do sleep 0.02; done");
            let running = up(field.rlaunch(EIGHT).account(account), &script);
            let released = Stopwatch::start();
            let _go = go(field, &HOSTS);
            let ran = ends(field, running, released, PROMPT);
            ran.succeeded().keeps_quiet_about(&["error", "warning"]);
        }
    });
}

#[test]
fn helpers_and_daemons_of_ranks_that_are_ended() {
    as_each(|field, account| {
        for helper in [HELPER, DAEMON] {
            let script = one_of_eight("exit 3", &format!("{helper} {MEEK}"));
            let run = field.rlaunch("--kill-after 1").args(EIGHT.split(' ')).account(account);
            let running = up(run, &script);
            let failed = Stopwatch::start();
            let _go = go(field, &["c"]);
            let ran = ends(field, running, failed, Duration::from_secs(1) + PROMPT);
            ran.ended_with(3).says(&["error: rank 5 on c ", "exited with code 3"]);
        }
    });
}

/// For rlaunch, the lab's hosts are containers. Files whose creator is unknown, or may be a process
/// of another container, are named and stay. A file of a living process is not mentioned.
#[test]
fn shared_memory_of_dead_ranks() {
    as_each(|field, account| {
        let files = ": >/dev/shm/torch_$$_1_0; : >/dev/shm/torch_1_1_0; : >/dev/shm/nccl-xyz";
        let script = one_of_eight(&format!("{files}; exit 3"), MEEK);
        let running = up(field.rlaunch(EIGHT).account(account), &script);
        let failed = Stopwatch::start();
        let _go = go(field, &["c"]);
        let ran = running.finish_first();
        assert!(failed.elapsed() < PROMPT, "{ran}");
        ran.ended_with(3).says(&["error: rank 5 on c "]);
        let of_c = ran
            .err()
            .lines()
            .find(|line| line.contains(" on c (in /dev/shm"))
            .unwrap_or_default()
            .to_owned();
        let pid = ran.out().lines().find_map(|l| l.strip_prefix("pid ")).unwrap().to_owned();
        let of_rank = format!("torch_{pid}_1_0");
        assert!(of_c.contains("nccl-xyz") && of_c.contains(&of_rank), "{ran}");
        ran.keeps_quiet_about(&["torch_1_1_0"]);
        let mut left = segments(field);
        left.sort_unstable();
        let mut all = ["nccl-xyz", "torch_1_1_0", &of_rank].map(|name| format!("c {name}"));
        all.sort_unstable();
        assert_eq!(left, all, "{ran}");
        clear_segments(field).unwrap();
        nothing_left(field, Duration::ZERO, &ran);
    });
}
