//! In whatever way a job ends, everything that it started is gone when rlaunch returns.

use crate::running::Running;
use crate::support::{BOUND, Field, Run, Undo, state};
use crate::terminal::Terminal;
use nix::sys::signal::Signal;
use rlaunch_lab::command::wait_until;
use rlaunch_lab::{Account, Cut, Stopwatch};
use std::time::Duration;

/// Options of jobs that end at once. Silence alone would tell only after far longer that somebody is gone.
const PATIENT: &str = "-H a,b,c --node-timeout 60";
/// Script that ends on the first signal.
const MEEK: &str = "echo up; exec sleep 1000";
/// Script that ends on no signal, as does its helper in another session.
const STUBBORN: &str = "trap '' TERM INT HUP
    setsid sh -c 'trap \"\" TERM INT HUP; while :; do sleep 1; done' &
    echo up; while :; do sleep 1; done";

/// Starts a job on three hosts and waits until its ranks run.
fn up<'a>(run: Run<'a>, script: &str) -> Running<'a> {
    let mut running = run.sh(script).spawn();
    running.wait_for_text("up\n", 3);
    running
}

#[test]
fn each_signal_of_the_user_has_its_code() {
    let field = Field::new();
    let signals = [
        (Signal::SIGINT, 130, "interrupted: 3 ranks ended"),
        (Signal::SIGTERM, 143, "error: ended by SIGTERM"),
        (Signal::SIGHUP, 129, "error: ended by SIGHUP"),
        (Signal::SIGQUIT, 131, "error: ended by SIGQUIT"),
    ];
    for account in Account::ALL {
        for (signal, code, sentence) in signals {
            let running = up(field.rlaunch(PATIENT).account(account), MEEK);
            let asked = Stopwatch::start();
            running.signal(signal);
            running.finish_in(5, asked).ended_with(code).says(&[sentence]);
        }
    }
}

#[test]
fn the_message_after_ctrl_c_has_a_line_of_its_own() {
    let field = Field::new();
    field.warm("a", Account::Root);
    let (mut terminal, slave) = Terminal::open();
    let run = field.rlaunch("-H a").env("NO_COLOR", "1").sh(MEEK).at_terminal();
    let mut command = run.command();
    let shared = || slave.try_clone().unwrap();
    command.stdin(shared()).stdout(shared()).stderr(shared());
    let mut launcher = command.spawn().unwrap();
    terminal.wait_until(BOUND, "up", |shown| shown.contains("up\r\n"));
    terminal.write("\x03");
    assert_eq!(launcher.wait().unwrap().code(), Some(130), "{}", terminal.text());
    drop((command, slave));
    let shown = terminal.finish();
    assert!(shown.ends_with("up\r\n^C\r\ninterrupted: 1 rank ended\r\n"), "{shown:?}");
}

#[test]
fn ranks_that_will_not_end_are_killed_after_the_grace() {
    let field = Field::new();
    for account in Account::ALL {
        let run = field.rlaunch("-H a,b,c --kill-after 1").account(account);
        let running = up(run, STUBBORN);
        let asked = Stopwatch::start();
        running.signal(Signal::SIGINT);
        running.finish_in(5, asked).ended_with(130);
        assert!(
            asked.total_elapsed() >= Duration::from_millis(900),
            "no grace: {:?}",
            asked.total_elapsed()
        );
    }
}

#[test]
fn ranks_have_the_grace_to_save_their_work() {
    let field = Field::new();
    let works = "trap 'sleep 0.5; echo saved; exit 0' TERM; echo up; sleep 1000 & wait";
    // The rank is a shell that ends immediately, while the program that it has started does the
    // work.
    let wrapped = format!("sh -c \"{works}\"; echo never");
    for script in [works, &wrapped] {
        let running = up(field.rlaunch("-H a,b,c"), script);
        running.signal(Signal::SIGINT);
        let ran = running.finish();
        assert_eq!(ran.ended_with(130).out().matches("saved\n").count(), 3, "{ran}");
    }
}

/// What is passed on twice is one request: a terminal that closes, whose kernel and shell both send a
/// hangup, and a Ctrl-C that a program which has started rlaunch follows up.
#[test]
fn a_signal_that_comes_twice_by_itself_leaves_the_grace() {
    let field = Field::new();
    let works = "trap 'sleep 1; echo saved; exit 0' TERM; echo up; sleep 1000 & wait";
    // Two different ones that wait at the same time have no order.
    for (signals, codes) in [
        ([Signal::SIGHUP, Signal::SIGHUP], &[129][..]),
        ([Signal::SIGINT, Signal::SIGTERM], &[130, 143]),
        ([Signal::SIGINT, Signal::SIGINT], &[130]),
    ] {
        let running = up(field.rlaunch("-H a,b,c"), works);
        let asked = Stopwatch::start();
        signals.into_iter().for_each(|signal| running.signal(signal));
        let is_once = asked.total_elapsed() < Duration::from_millis(200);
        let ran = running.finish();
        // Where this process gets no processor between the two, they are two requests.
        let saved = ran.out().matches("saved\n").count();
        assert!(codes.contains(&ran.code), "{signals:?}: {ran}");
        assert!(saved == 3 || !is_once, "{signals:?}: {ran}");
    }
}

#[test]
fn a_hangup_that_is_ignored_from_the_start_ends_nothing() {
    let field = Field::new();
    let goes_on = "/tmp/goes-on";
    let _file = field.scratch(&["a", "b", "c"], goes_on);
    let script = format!("echo up; until [ -e {goes_on} ]; do sleep 0.1; done; echo over");
    let mut running = up(field.rlaunch("-H a,b,c").ignoring_hangups(), &script);
    running.signal(Signal::SIGHUP);
    for host in ["a", "b", "c"] {
        field.on(host, &format!("mkdir {goes_on}"));
    }
    running.wait_for_text("over\n", 3);
    running.finish().succeeded();
}

#[test]
fn asking_twice_means_now() {
    let field = Field::new();
    let script = "trap 'echo told' TERM; echo up; while :; do sleep 0.1; done";
    let mut running = up(field.rlaunch("-H a,b,c --kill-after 60"), script);
    running.signal(Signal::SIGINT);
    running.wait_for_text("told\n", 3);
    // Sooner it may be the same request, passed on.
    std::thread::sleep(Duration::from_millis(600));
    let asked = Stopwatch::start();
    running.signal(Signal::SIGINT);
    running.finish_in(10, asked).ended_with(130);
}

#[test]
fn other_signals_reach_the_ranks() {
    let field = Field::new();
    let script = "trap 'echo one' USR1; trap 'echo two; exit 0' USR2
        echo up; while :; do sleep 0.1; done";
    let mut running = up(field.rlaunch("-H a,b,c"), script);
    running.signal(Signal::SIGUSR1);
    running.wait_for_text("one\n", 3);
    running.signal(Signal::SIGUSR2);
    let ran = running.finish();
    assert_eq!(ran.succeeded().out().matches("two\n").count(), 3, "{ran}");
}

/// A host starts many ranks in turns, between which it hears signals. A rank that gets one before it has its trap dies of it.
#[test]
fn a_signal_that_comes_while_ranks_start_reaches_all_of_them() {
    const RANKS: usize = 120;
    let field = Field::new();
    let script = "trap 'echo told' USR1; echo up; while :; do sleep 1000 & wait $!; done";
    let run = field.rlaunch(&format!("-H a:{RANKS}")).within(2 * BOUND);
    let mut running = run.sh(script).spawn();
    running.wait_for_text("up\n", 1);
    running.signal(Signal::SIGUSR1);
    field.wait_for("all ranks to be told, or one to die of it", || {
        running.has_ended() || running.out().matches("told\n").count() == RANKS
    });
    if running.has_ended() {
        running.finish_first().ended_with(138);
    } else {
        running.signal(Signal::SIGTERM);
        running.finish().ended_with(143);
    }
}

/// Such a program blocks the signal and has no handler; the shell above it would die of it.
#[test]
fn a_signal_reaches_the_program_that_waits_for_it() {
    let field = Field::new();
    let program = "import signal as s
s.pthread_sigmask(s.SIG_BLOCK, {s.SIGUSR1})
print(\"up\", flush=True)
print(s.Signals(s.sigwait({s.SIGUSR1})).name)";
    let script = format!("python3 -c '{program}'; exit $?");
    let running = up(field.rlaunch("-H a,b,c"), &script);
    running.signal(Signal::SIGUSR1);
    let ran = running.finish();
    assert_eq!(ran.succeeded().out().matches("SIGUSR1\n").count(), 3, "{ran}");
}

#[test]
fn a_job_that_takes_too_long() {
    let field = Field::new();
    let ran = field.rlaunch("-H a,b,c --timeout 1 --kill-after 1").sh(STUBBORN).run();
    ran.ended_with(124).says(&["error: ", "--timeout"]).took_less_than(10);
    assert!(ran.took >= Duration::from_secs(1), "{ran}");
}

#[test]
fn the_others_go_on_where_that_is_asked_for() {
    let field = Field::new();
    let script = "if [ $RANK = 1 ]; then exit 5; fi
        while [ ! -e /tmp/go ]; do sleep 0.05; done; rm /tmp/go; echo done";
    let mut running = field.rlaunch("-H a,b,c --continue-on-error -v").sh(script).spawn();
    running.wait_for_stderr("exited rank=1", 1);
    for host in ["a", "c"] {
        field.lab.write_file(host, "/tmp/go".as_ref(), b"", 0o644).unwrap();
    }
    let ran = running.finish();
    ran.ended_with(5).says(&["rank 1 on b "]);
    assert_eq!(ran.out(), "done\ndone\n", "{ran}");
}

#[test]
fn a_suspended_job_goes_on_where_it_was() {
    /// Longer than the node timeout.
    const PAUSE: Duration = Duration::from_secs(8);
    let field = Field::new();
    let script = "echo up; while [ ! -e /tmp/go ]; do sleep 0.05; done; rm /tmp/go; echo done";
    let running = up(field.rlaunch("-H a,b,c"), script);
    running.signal(Signal::SIGTSTP);
    // A shell in state D has stopped too: it waits for a child that was stopped inside vfork.
    let stopped = || field.ranks().iter().all(|process| matches!(process.state, 'T' | 'D' | 'Z'));
    field.wait_for("everything to stop", || state(running.pid()) == 'T' && stopped());
    let since = Stopwatch::start();
    wait_until(PAUSE + BOUND, "the pause to end", || {
        assert!(state(running.pid()) == 'T' && stopped() && field.ranks().len() >= 3);
        Ok(since.total_elapsed() >= PAUSE)
    })
    .unwrap();
    running.signal(Signal::SIGCONT);
    for host in ["a", "b", "c"] {
        field.lab.write_file(host, "/tmp/go".as_ref(), b"", 0o644).unwrap();
    }
    let ran = running.finish();
    assert_eq!(ran.succeeded().out().matches("done\n").count(), 3, "{ran}");
}

#[test]
fn a_job_that_is_resumed_before_it_has_stopped_goes_on() {
    let field = Field::new();
    let script = "echo up; while [ ! -e /tmp/go ]; do sleep 0.05; done; rm /tmp/go; echo done";
    let running = up(field.rlaunch("-H a,b,c"), script);
    running.signal(Signal::SIGTSTP);
    running.signal(Signal::SIGCONT);
    for host in ["a", "b", "c"] {
        field.lab.write_file(host, "/tmp/go".as_ref(), b"", 0o644).unwrap();
    }
    let ran = running.finish();
    assert_eq!(ran.succeeded().out().matches("done\n").count(), 3, "{ran}");
}

/// A suspended launcher says nothing, and a host that is cut off does not learn that it has died. It hears nothing from
/// other hosts either.
#[test]
fn a_suspended_host_that_is_cut_off_from_all_others_ends_its_ranks() {
    let field = Field::new();
    let running =
        up(field.rlaunch("-H a,b,c --node-timeout 4"), "trap '' TSTP; echo up; sleep 1000");
    running.signal(Signal::SIGTSTP);
    field.wait_for("the job to stop", || state(running.pid()) == 'T');
    let heal = Undo(|| field.lab.heal("c"));
    field.lab.cut("c", Cut::Silent).unwrap();
    running.signal(Signal::SIGKILL);
    assert_eq!(running.finish_first().code, -9);
    field.wait_for("the ranks to end", || field.started().is_empty());
    drop(heal);
    field.lab.sshd("c").unwrap().kill_sessions().unwrap();
}

/// No process tells the agents; they notice that their channels have closed.
#[test]
fn nothing_outlives_a_killed_rlaunch() {
    let field = Field::new();
    for account in Account::ALL {
        for script in [MEEK, STUBBORN] {
            let run = field.rlaunch(PATIENT).args(["--kill-after", "1"]).account(account);
            let running = up(run, script);
            running.signal(Signal::SIGKILL);
            let killed = Stopwatch::start();
            assert_eq!(running.finish_first().code, -9);
            field.wait_for("the ranks to end", || field.started().is_empty());
            assert!(killed.elapsed() < Duration::from_secs(15), "{:?}", killed.elapsed());
            field.assert_idle();
        }
    }
}

/// The helper is a grandchild in another session, ignores SIGTERM and holds the rank's stdout open.
#[test]
fn helpers_neither_keep_a_job_nor_outlive_it() {
    let field = Field::new();
    let helpers = [
        "sleep 1000 & echo up",
        "setsid sleep 1000 & echo up",
        "setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & echo up",
        "(setsid sh -c '(sleep 1000 &) & exit 0' </dev/null >/dev/null 2>&1 &); echo up",
        "nohup setsid sh -c 'sleep 1000 & sleep 1000 & wait' >/dev/null 2>&1 & echo up",
    ];
    for account in Account::ALL {
        for script in helpers {
            let ran = field.rlaunch("-H a,b,c").account(account).sh(script).run();
            assert_eq!(ran.succeeded().out(), "up\nup\nup\n", "{script}: {ran}");
            ran.took_less_than(10);
        }
    }
}

/// Output of a helper that was printed before its rank ended is not lost.
#[test]
fn the_last_words_of_a_helper_are_kept() {
    let field = Field::new();
    let _said = field.scratch(&["a", "b", "c"], "/tmp/said");
    let script = "(seq 1 20000; mkdir /tmp/said; sleep 1000) & \
                  until [ -d /tmp/said ]; do sleep 0.02; done; exit 0";
    let ran = field.rlaunch("-H a,b,c").sh(script).run();
    assert_eq!(ran.succeeded().out().lines().count(), 60_000, "{:?}", ran.took);
}
