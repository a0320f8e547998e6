//! Programs that hold the lock of a pipe to their agent: splice(2) keeps it while it waits for a socket. They hold up their
//! own stream alone.

use crate::lost::agents;
use crate::running::Running;
use crate::support::{BOUND, Field, State, launch_directory};
use nix::sys::signal::{Signal, kill};
use std::fs::{self, File};
use std::process::Stdio;

/// Lines that rank 0 prints, more of them than fit into the time after which a silent agent is lost (6 s).
const BEATS: usize = 80;
/// Its script, and the end of that script once there are as many lines.
const BEAT: &str = "i=0; while [ $((i += 1)) -le 80 ]; do echo beat $i; sleep 0.1; done";

/// Program that copies to its stdout what comes from a socket, which is silent after some lines. A pipe has lines before
/// the last splice begins to wait, as a rule; four ranks are enough for one that has.
const TO_STDOUT: &str = "
import os, signal, socket, sys, threading, time
if len(sys.argv) > 1: signal.signal(signal.SIGTERM, signal.SIG_IGN)
far, near = socket.socketpair()
def copy():
    while os.splice(near.fileno(), 1, 1 << 16): pass
copying = threading.Thread(target=copy)
copying.start()
for n in range(200):
    far.send(b'before\\n')
    time.sleep(0.002)
while not os.path.exists('/tmp/pipes/go'): time.sleep(0.05)
far.send(b'after\\n')
far.close()
copying.join()
";

/// Program that copies its stdin to a socket, from which nobody reads until there is a file.
const FROM_STDIN: &str = "
import os, socket, threading, time
far, near = socket.socketpair()
def copy():
    while os.splice(0, near.fileno(), 1 << 16): pass
    near.close()
copying = threading.Thread(target=copy)
copying.start()
print('up', flush=True)
while not os.path.exists('/tmp/pipes/go'): time.sleep(0.05)
total = 0
while part := far.recv(1 << 16): total += len(part)
print(total, 'bytes')
";

/// Starts a job of which rank 0 prints all the time, and four more ranks on the same host run the program.
fn beside<'a>(field: &'a Field, words: &str, program: &[&str]) -> Running<'a> {
    let run =
        field.rlaunch(words).args(["-H", "a:5", "-np", "1", "sh", "-c", BEAT, ":", "-np", "4"]);
    run.args(["python3", "-c"]).args(program).spawn()
}

#[test]
fn a_silent_socket_that_is_spliced_to_stdout() {
    let field = Field::new();
    let mut running = beside(&field, "", &[TO_STDOUT]);
    running.wait_for_text("beat ", BEATS);
    let _go = field.files(&["a"], "/tmp/pipes/go", "", 0o644);
    let ran = running.finish();
    ran.succeeded().says_nothing();
    for (line, count) in [("before", 4 * 200), ("after", 4)] {
        assert_eq!(ran.out().lines().filter(|shown| *shown == line).count(), count, "{ran}");
    }
}

#[test]
fn a_job_of_such_ranks_ends_when_it_is_told_to() {
    let field = Field::new();
    let mut running = beside(&field, "--kill-after 1", &[TO_STDOUT, "ignores TERM"]);
    running.wait_for_text("before\n", 4);
    running.wait_for_text("beat ", 10);
    running.signal(Signal::SIGTERM);
    running.finish().ended_with(143).took_less_than(30);
}

#[test]
fn a_guardian_ends_such_ranks_too() {
    let field = Field::new();
    let mut running = beside(&field, "--kill-after 1", &[TO_STDOUT, "ignores TERM"]);
    running.wait_for_text("before\n", 4);
    running.wait_for_text("beat ", 10);
    let (_, agent) = agents(&field, "a");
    kill(agent, Signal::SIGKILL).unwrap();
    // The drop of `field` asserts that nothing is left.
    running.finish().ended_with(206).says(&["error: node a is lost"]);
}

#[test]
fn a_guardian_ends_such_ranks_where_nobody_else_can() {
    let field = Field::new();
    let mut running = beside(&field, "--kill-after 1", &[TO_STDOUT, "ignores TERM"]);
    running.wait_for_text("before\n", 4);
    running.wait_for_text("beat ", 10);
    // The agent's thread sleeps at the pipe of a rank, so that the kernel reports its death to nobody.
    let (_, agent) = agents(&field, "a");
    running.signal(Signal::SIGKILL);
    kill(agent, Signal::SIGKILL).unwrap();
    running.finish_first();
    field.wait_for("the ranks to end", || field.started().is_empty());
}

#[test]
fn stdin_that_is_spliced_to_a_socket_that_nobody_reads() {
    let (field, directory) = (Field::new(), launch_directory());
    let input = directory.path().join("input");
    fs::write(&input, vec![b'x'; 4 << 20]).unwrap();
    let run = field.rlaunch("-H a:2 -np 1 python3 -c").args([FROM_STDIN]);
    let run = run.args([":", "-np", "1", "sh", "-c", BEAT]);
    let mut command = run.command();
    command.stdin(File::open(&input).unwrap()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(&field, &mut command, BOUND);
    running.wait_for_text("beat ", BEATS);
    let _go = field.files(&["a"], "/tmp/pipes/go", "", 0o644);
    let ran = running.finish();
    ran.succeeded();
    assert!(ran.out().contains("4194304 bytes\n"), "{ran}");
}

#[test]
fn a_command_beside_a_rank_that_splices_a_silent_socket() {
    let (field, state) = (Field::new(), State::new());
    let mut job = state.rlaunch(&field, "-H a").sh(&format!("echo up; {BEAT}; sleep 1000")).spawn();
    job.wait_for_text("up\n", 1);
    let commands: Vec<Running<'_>> = (0..4)
        .map(|_| {
            let run = state.rlaunch(&field, "exec 0 -- python3 -c").args([TO_STDOUT]);
            let mut command = run.spawn();
            command.wait_for_text("before\n", 100);
            command
        })
        .collect();
    job.wait_for_text("beat ", BEATS);
    assert!(!job.has_ended());
    // Their clients leave, and the agent closes pipes that are still locked.
    for command in commands {
        command.signal(Signal::SIGTERM);
        command.finish_first();
    }
    state.rlaunch(&field, "exec 0 -- true").spawn().finish_first().succeeded();
    job.signal(Signal::SIGTERM);
    job.finish().ended_with(143);
}
