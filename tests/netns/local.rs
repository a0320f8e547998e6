//! Ranks on the launching machine itself, which has no sshd.

use crate::support::Field;
use crate::terminal::open_pair;
use nix::pty::OpenptyResult;
use nix::sys::signal::Signal;
use rlaunch_lab::Account;
use std::fs;

/// Tells whether a process of this machine has `argument` on its command line.
fn runs(argument: &str) -> bool {
    fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.split(|&byte| byte == 0).any(|word| word == argument.as_bytes())
    })
}

#[test]
fn four_ranks_without_ssh() {
    let field = Field::new();
    for account in Account::ALL {
        for hosts in ["", "-H localhost:4 ", "-H 127.0.0.1:4 "] {
            let run = field.rlaunch(&format!("{hosts}-np 4")).account(account);
            let ran = run.sh("echo $RANK $LOCAL_RANK $WORLD_SIZE $(hostname)").run();
            let expected = ["0 0 4 launch", "1 1 4 launch", "2 2 4 launch", "3 3 4 launch"];
            assert_eq!(ran.succeeded().sorted(), expected, "{ran}");
            ran.says_nothing();
        }
    }
}

#[test]
fn the_codes_are_the_same() {
    let field = Field::new();
    field.rlaunch("-np 2 false").run().refused(1, &["exited with code 1"]);
    let ran = field.rlaunch("-np 2").sh("[ $RANK = 0 ] && exec sleep 1000; kill -SEGV $$").run();
    ran.refused(139, &["rank 1 on localhost", "SIGSEGV"]);
    field.rlaunch("-np 2 no-such-program").run().refused(127, &["no-such-program"]);
    field.rlaunch("-np 2 /etc/passwd").run().refused(126, &["/etc/passwd"]).hints("chmod");
    field.rlaunch("-np 2 --wdir /no/such/place true").run().refused(203, &["/no/such/place"]);
    field.rlaunch("-H localhost -np 2 true").run().refused(200, &["2 ranks need 2 slots"]);
}

#[test]
fn nothing_is_left_behind() {
    let field = Field::new();
    let nap = "86123.5";
    let script = format!(
        "trap '' TERM; setsid sh -c \"trap '' TERM; sleep {nap} & wait\" & echo up; sleep {nap}"
    );
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGKILL, -9)] {
        let mut running = field.rlaunch("-np 2 --kill-after 0.5").sh(&script).spawn();
        running.wait_for_text("up\n", 2);
        assert!(runs(nap));
        running.signal(signal);
        let ran = running.finish();
        ran.ended_with(code);
        if signal == Signal::SIGINT {
            assert!(!runs(nap), "left when rlaunch returned: {ran}");
        }
        field.wait_for("everything to end", || !runs(nap));
    }
    let ran = field.rlaunch("-np 2").sh(&format!("setsid sleep {nap} & echo up")).run();
    assert_eq!(ran.succeeded().out(), "up\nup\n", "{ran}");
    assert!(!runs(nap), "left when rlaunch returned: {ran}");
}

/// Ranks in one session yield to each other if the scheduler groups processes by session. The
/// terminal sends no signals to a group of one rank, or to any rank.
#[test]
fn ranks_of_a_host_share_a_session_without_a_terminal() {
    let field = Field::new();
    let script = "read -r pid _ _ _ group session terminal _ </proc/self/stat; \
                  echo $((pid == group)) $((pid == session)) $session $terminal";
    let OpenptyResult { master: _master, slave } = open_pair();
    let run = field.rlaunch("-np 2").sh(script).at_terminal();
    let ran = run.command().stdin(slave).output().unwrap();
    let local = String::from_utf8(ran.stdout).unwrap();
    let remote = field.rlaunch("-H a:2").sh(script).run().succeeded().out().into_owned();
    for out in [local, remote] {
        let ranks: Vec<Vec<&str>> = out.lines().map(|line| line.split(' ').collect()).collect();
        let [one, other] = &ranks[..] else { panic!("{out}") };
        assert_eq!(one, other);
        assert!(matches!(one[..], ["1", "0", _, "0"]), "{out}");
    }
}

#[test]
fn localhost_beside_others_goes_by_ssh() {
    let field = Field::new();
    // The launch node has no sshd, so this host is refused like any other.
    let ran = field.rlaunch("-H localhost,a hostname").run();
    ran.refused(201, &["localhost: cannot connect"]);
}
