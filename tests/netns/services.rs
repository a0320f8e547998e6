//! Services of agents for ranks, used from shell scripts: barriers, keys and aborts; and messages
//! to ranks and the user if a rank does not arrive.

use crate::support::{Field, Run};
use std::time::Duration;

fn job<'a>(field: &'a Field, script: &str) -> Run<'a> {
    field.rlaunch("-H a,b,c").sh(script)
}

#[test]
fn scripts_meet_and_share() {
    let field = Field::new();
    let script = "rlaunch kv get mine || echo none; rlaunch barrier first; \
                  rlaunch kv put --namespace n$RANK key value$RANK; rlaunch barrier; \
                  rlaunch kv get --namespace n$(( (RANK + 1) % 3 )) key";
    let ran = job(&field, script).run();
    let expected = ["none", "none", "none", "value0", "value1", "value2"];
    assert_eq!(ran.succeeded().sorted(), expected, "{ran}");
}

#[test]
fn nobody_passes_a_barrier_alone() {
    let field = Field::new();
    let script = "wait_for() { [ $RANK != 2 ] || until [ -e $1 ]; do sleep 0.05; done; }; \
                  wait_for /tmp/go; echo before; wait_for /tmp/on; rlaunch barrier; echo after";
    let mut running = job(&field, script).spawn();
    running.wait_for_text("before\n", 2);
    assert!(!running.has_ended());
    let _go = field.files(&["c"], "/tmp/go", "", 0o644);
    running.wait_for_text("before\n", 3);
    assert_eq!(running.out(), "before\n".repeat(3));
    let _on = field.files(&["c"], "/tmp/on", "", 0o644);
    let ran = running.finish();
    assert_eq!(ran.succeeded().out().matches("after\n").count(), 3, "{ran}");
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let field = Field::new();
    let script = "if [ $RANK = 2 ]; then until [ -e /tmp/go ]; do sleep 0.05; done; exit; fi; \
                  rlaunch barrier epoch";
    let mut running = job(&field, script).within(Duration::from_secs(60)).spawn();
    running.wait_for_stderr("barrier \"epoch\": waiting 1", 1);
    let _go = field.files(&["c"], "/tmp/go", "", 0o644);
    let ran = running.finish();
    ran.says(&[" s for rank 2 on c (pid ", "running, has never called)"]);
    // Rank 2 ends without having arrived, so the other ranks stop waiting.
    ran.says(&["rank 2 exited with code 0 without arriving"]);
    ran.refused(204, &[]);
}

#[test]
fn a_wait_ends_when_the_user_says_so() {
    let field = Field::new();
    let script = "if [ $RANK = 2 ]; then until [ -e /tmp/go ]; do sleep 0.05; done; exit; fi; \
                  rlaunch barrier epoch; echo $?";
    let mut running = job(&field, script).env("RLAUNCH_COMM_TIMEOUT", "4").spawn();
    running.wait_for_lines(2);
    let _go = field.files(&["c"], "/tmp/go", "", 0o644);
    let ran = running.finish();
    assert_eq!(ran.succeeded().sorted(), ["124", "124"], "{ran}");
    ran.says(&["barrier \"epoch\": not within 4 s: missing rank 2 (pid "]);
    let ran = job(&field, "rlaunch kv wait nothing --timeout 0.5; echo $?").run();
    assert_eq!(ran.succeeded().sorted(), ["124"; 3], "{ran}");
}

#[test]
fn a_key_that_nobody_puts_is_mentioned() {
    let field = Field::new();
    let script = "test $RANK = 0 || exit 0; rlaunch kv wait lost --timeout 14";
    let ran = job(&field, script).within(Duration::from_secs(60)).run();
    ran.refused(124, &[]).says(&["ranks have waited 1", " s for key \"lost\": no rank has put it"]);
}

#[test]
fn who_ends_early_leaves_nobody_waiting() {
    let field = Field::new();
    let script = "test $RANK = 1 && exit 0; rlaunch barrier; echo $?";
    let ran = job(&field, script).run();
    assert_eq!(ran.succeeded().sorted(), ["204", "204"], "{ran}");
    ran.says(&["rank 1 exited with code 0 without arriving"]).took_less_than(15);
}

#[test]
fn an_abort_reaches_all() {
    let field = Field::new();
    let script = "if [ $RANK = 1 ]; then sleep 0.5; rlaunch abort 'no data'; sleep 1000; fi; \
                  rlaunch barrier; sleep 1000";
    let ran = job(&field, script).run();
    ran.refused(1, &["rank 1 on b aborted the job: no data"]).took_less_than(15);
}

#[test]
fn clocks_are_compared_and_events_recorded() {
    let field = Field::new();
    let events = tempfile::NamedTempFile::new().unwrap();
    let script = "set -- $(rlaunch clock); test $2 -lt 1000000000 && rlaunch event \"at $RANK\"";
    let path = events.path().display().to_string();
    let ran = field.rlaunch("--events").args([&path, "-H", "a,b,c"]).sh(script).run();
    ran.succeeded();
    let text = std::fs::read_to_string(events.path()).unwrap();
    for rank in 0..3 {
        assert!(text.contains(&format!("\"text\":\"at {rank}\"")), "{text}");
    }
}

#[test]
fn outside_of_a_job_the_commands_say_so() {
    let field = Field::new();
    let ran = field.rlaunch("barrier").run();
    ran.ended_with(204).says(&["RLAUNCH_SOCKET is not set", "inside a rank"]);
    field.rlaunch("kv drop x").run().ended_with(200).says(&["unknown command `rlaunch kv drop x`"]);
    field.rlaunch("kv --help").run().succeeded();
}

/// Program that sends garbage to every socket of its job, and then calls a barrier.
const HOSTILE: &str = r#"
import os, random, re, socket, subprocess, sys
def knock(family, address, data, wait):
    s = socket.socket(family, socket.SOCK_STREAM)
    s.settimeout(3)
    try:
        s.connect(address)
        s.sendall(data)
        if wait: s.recv(100)
    except OSError:
        pass
    return s
random.seed(7)
rubbish = [b"", b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 64, random.randbytes(100000),
           b"rlaunch-edge" + bytes(26) + bytes(48), b"rlaunch-back" + bytes(16)]
open_still = []
path = os.environ["RLAUNCH_SOCKET"]
ports = set()
for line in open("/proc/net/tcp").read().splitlines()[1:]:
    local, state = line.split()[1], line.split()[3]
    port = int(local.split(":")[1], 16)
    if state == "0A" and 21000 <= port <= 21511:
        ports.add((socket.inet_ntoa(bytes.fromhex(local.split(":")[0])[::-1]), port))
for data in rubbish:
    open_still.append(knock(socket.AF_UNIX, path, data, bool(data)))
    for address in ports:
        open_still.append(knock(socket.AF_INET, address, data, False))
env = dict(os.environ, RLAUNCH_TOKEN="0" * 32)
wrong = subprocess.run(["rlaunch", "barrier"], env=env, capture_output=True, text=True)
assert wrong.returncode == 204 and "not a rank" in wrong.stderr, wrong
env = dict(os.environ, RLAUNCH_RANK="77")
assert subprocess.run(["rlaunch", "barrier"], env=env, capture_output=True).returncode == 204
other = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable, "-c",
         f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({path!r})"]
assert subprocess.run(other, capture_output=True).returncode != 0, "another user got in"
sys.exit(subprocess.run(["rlaunch", "barrier", "--timeout", "40"]).returncode)
"#;

#[test]
fn strangers_at_the_agents_doors_disturb_nobody() {
    let field = Field::new();
    let script = "/tmp/hostile/hostile.py";
    let _files = field.files(&["a", "b", "c"], script, HOSTILE, 0o644);
    let ran = field.rlaunch("-H a,b,c python3").args([script]).run();
    ran.succeeded().keeps_quiet_about(&["lost", "broke"]);
}
