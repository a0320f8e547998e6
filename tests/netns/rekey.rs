//! Both ends of an SSH connection change keys very often, under load, without effect on the job.

use crate::output::{check_flood, flood};
use crate::support::{Field, Undo, launch_directory};
use nix::sys::signal::Signal;
use rlaunch_lab::Account;
use std::time::Duration;

/// Number of lines per rank: with 100 bytes each and three ranks, more than 64 MiB.
const LINES: usize = 224_000;
const HOSTS: [&str; 3] = ["a", "b", "c"];

#[test]
fn output_and_signals_survive_new_keys() {
    let field = Field::new();
    field.warm("a,b,c", Account::Root);
    let lines = ["RekeyLimit 1M 2s", "LogLevel DEBUG1"];
    let restart =
        |lines: &[&str]| HOSTS.iter().try_for_each(|host| field.lab.sshd(host)?.restart(lines));
    let _restore = Undo(|| restart(&[]));
    restart(&lines).unwrap();
    let rekeyed =
        || HOSTS.map(|host| field.lab.sshd(host).unwrap().log().matches("rekeying").count());
    let before = rekeyed();

    let directory = launch_directory();
    let config = directory.path().join("ssh_config");
    std::fs::write(&config, "RekeyLimit 1M 2s\nIdentityFile ~/.ssh/id_ed25519\n").unwrap();
    // The signals that the shell counts must not kill the writer.
    let script = format!(
        "trap 'echo signal >&2' USR1
         (trap '' USR1; echo begin >&2; {}; while [ ! -e /tmp/go ]; do sleep 0.05; done; rm /tmp/go) &
         while kill -0 $! 2>/dev/null; do wait $!; done",
        flood(LINES)
    );
    let run = field.rlaunch("-H a,b,c --ssh-config").args([&config]).sh(&script);
    let mut running = run.within(Duration::from_secs(180)).spawn();
    for round in 1..=5 {
        running.wait_for_stderr("begin\n", 3);
        running.signal(Signal::SIGUSR1);
        running.wait_for_stderr("signal\n", 3 * round);
    }
    // By now the time limit has passed, or it passes while there is no output.
    running.wait_for_lines(3 * LINES);
    for host in HOSTS {
        field.lab.write_file(host, "/tmp/go".as_ref(), b"", 0o644).unwrap();
    }
    let ran = running.finish();
    check_flood(&ran.succeeded().stdout, 3, LINES, |_| String::new());
    for (before, after) in before.into_iter().zip(rekeyed()) {
        assert!(after - before >= 10, "too few new keys to prove anything: {}", after - before);
    }
}
