//! Programs that hold the lock of a pipe to their agent, or to rlaunch: splice(2) keeps it while it waits for a socket. They
//! hold up their own stream alone.

use crate::lost::agents;
use crate::running::Running;
use crate::support::{BOUND, Field, State, launch_directory};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_lab::Account;
use rlaunch_lab::command::wait_until;
use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Lines that rank 0 prints, more of them than fit into the time after which a silent agent is lost (6 s).
const BEATS: usize = 80;
/// Its script, and the end of that script once there are as many lines.
const BEAT: &str = "i=0; while [ $((i += 1)) -le 80 ]; do echo beat $i; sleep 0.1; done";

/// Program that copies to its stdout what comes from a socket, which is silent after some lines. A pipe has lines before
/// the last splice begins to wait, as a rule; four ranks are enough for one that has.
const TO_STDOUT: &str = "
import os, signal, socket, sys, threading, time
go = os.environ.get('GO', '/tmp/pipes/go')
if len(sys.argv) > 1: signal.signal(signal.SIGTERM, signal.SIG_IGN)
far, near = socket.socketpair()
def copy():
    while os.splice(near.fileno(), 1, 1 << 16): pass
copying = threading.Thread(target=copy)
copying.start()
for n in range(200):
    far.send(b'before\\n')
    time.sleep(0.002)
while not os.path.exists(go): time.sleep(0.05)
far.send(b'after\\n')
far.close()
copying.join()
";

/// Rank that does the same with stdout, and with stderr if its agent has a second thread, until it holds up every thread but
/// the first. Then it takes from the agent the right to start others, until there is a file; once there is another, the
/// socket speaks. A thread is held up if it sleeps in the kernel at each of many looks: at one it may have waited for memory.
/// Nothing is sent meanwhile, since what is sent lets go of the pipe.
const WITHOUT_THREADS: &str = "
import os, resource, socket, sys, threading, time
agent = os.getppid()
def copy(near, stream):
    while os.splice(near.fileno(), stream, 1 << 16): pass
def look():
    seen = {}
    for _ in range(20):
        for thread in os.listdir(f'/proc/{agent}/task'):
            try: stat = open(f'/proc/{agent}/task/{thread}/stat').read()
            except OSError: continue
            if thread != str(agent): seen.setdefault(thread, set()).add(stat.rsplit(') ', 1)[1][0])
        time.sleep(0.02)
    return [''.join(states) for states in seen.values()]
def states():
    while not set(seen := look()) <= {'S', 'D'}: pass
    return seen
def until(path):
    while not os.path.exists(path): time.sleep(0.05)
# A thread closes the pipe of stdin. It is free again before another is needed.
sys.stdin.read()
sockets = []
for stream in 1, 2:
    far, near = socket.socketpair()
    copying = threading.Thread(target=copy, args=(near, stream))
    copying.start()
    sockets.append((far, copying))
    while states().count('D') < len(sockets): far.send(b'before\\n')
    if 'S' not in states(): break
soft, hard = resource.prlimit(agent, resource.RLIMIT_NPROC)
resource.prlimit(agent, resource.RLIMIT_NPROC, (1, hard))
if set(states()) != {'D'}: os._exit(70)
open('/tmp/pipes/held', 'w').close()
until('/tmp/pipes/more')
resource.prlimit(agent, resource.RLIMIT_NPROC, (soft, hard))
until('/tmp/pipes/go')
sockets[0][0].send(b'after\\n')
for far, copying in sockets:
    far.close()
    copying.join()
";

/// Rank beside it, which prints once every thread of its agent is held up. It lives on: what a rank has left in its pipe is
/// read without a thread.
const LATE: &str = "until [ -e /tmp/pipes/held ]; do sleep 0.1; done; echo late
    until [ -e /tmp/pipes/more ]; do sleep 0.1; done";

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

/// The same, of a reader of rlaunch, with the file as argument.
const READER: &str = "
import os, socket, sys, threading, time
far, near = socket.socketpair()
def copy():
    while os.splice(0, near.fileno(), 1 << 16): pass
    near.close()
copying = threading.Thread(target=copy)
copying.start()
while not os.path.exists(sys.argv[1]): time.sleep(0.05)
while far.recv(1 << 16): pass
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
    // A stopped launcher ends nothing, and the agent does not hear of its end.
    running.signal(Signal::SIGSTOP);
    kill(agent, Signal::SIGKILL).unwrap();
    running.signal(Signal::SIGKILL);
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

/// A thread that is held up is no reason that others are not read for ever: the agent says what it lacks, and goes on when
/// it may.
#[test]
fn ranks_that_hold_up_each_thread_where_no_other_may_start() {
    let field = Field::new();
    // The limit of processes does not apply to root.
    field.on("a", "install -d -m 777 /tmp/pipes");
    let _scratch = field.scratch(&["a"], "/tmp/pipes");
    let run = field.rlaunch("-H a:2 -np 1 python3 -c").args([WITHOUT_THREADS]);
    let run = run.args([":", "-np", "1"]).sh(LATE).account(Account::User);
    let mut running = run.spawn();
    running.wait_for_stderr("and another cannot be started: Resource temporarily unavailable", 1);
    running.wait_for_stderr("`ulimit -u` is 1;", 1);
    assert!(!running.out().contains("late"), "{}", running.out());
    field.on("a", "touch /tmp/pipes/more");
    running.wait_for_text("late\n", 1);
    field.on("a", "touch /tmp/pipes/go");
    let ran = running.finish();
    ran.succeeded();
    assert_eq!(ran.out().matches("after\n").count(), 1, "{ran}");
}

/// Returns how many bytes a process has written to anything.
fn written_by(process: Pid) -> u64 {
    let counters = fs::read_to_string(format!("/proc/{process}/io")).unwrap();
    let written = counters.lines().find_map(|line| line.strip_prefix("wchar: "));
    written.unwrap().parse().unwrap()
}

#[test]
fn output_whose_reader_splices_it_to_a_socket_that_nobody_reads() {
    let (field, directory) = (Field::new(), launch_directory());
    let (go, messages) = (directory.path().join("go"), directory.path().join("messages"));
    let mut reader = Command::new("python3");
    let mut reader = reader.args(["-c", READER]).arg(&go).stdin(Stdio::piped()).spawn().unwrap();
    let mut command = field.rlaunch("-H a,b yes").command();
    command.stdin(Stdio::null()).stdout(reader.stdin.take().unwrap());
    let mut child = command.stderr(File::create(&messages).unwrap()).spawn().unwrap();
    // It has the pipe open.
    drop(command);
    let launcher = Pid::from_raw(child.id().cast_signed());
    // Its thread sleeps at the pipe: for the lock or, if the pipe was full before the reader took that, for space.
    field.wait_for("the output to stand still", || {
        let before = written_by(launcher);
        std::thread::sleep(Duration::from_secs(2));
        before > 1 << 17 && written_by(launcher) == before
    });
    kill(launcher, Signal::SIGTERM).unwrap();
    let said = || fs::read_to_string(&messages).unwrap();
    // The job ends without its reader, with all that is to be said.
    let reader_is = format!("ends when python3 (pid {}) goes on or ends", reader.id());
    field.wait_for("rlaunch to say what it waits for", || said().contains(&reader_is));
    field.assert_idle();
    for text in [
        "the rest of the ranks' output is dropped, since its reader holds the pipe in the kernel",
        "standard output is a pipe that another process holds in the kernel",
    ] {
        assert!(said().contains(text), "{}", said());
    }
    assert!(!said().contains("was not reported"), "{}", said());
    fs::write(&go, "").unwrap();
    wait_until(BOUND, "rlaunch to end", || Ok(child.try_wait().unwrap().is_some())).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143), "{}", said());
    assert!(reader.wait().unwrap().success());
}

#[test]
fn input_into_which_a_silent_socket_is_spliced() {
    let (field, directory) = (Field::new(), launch_directory());
    let go = directory.path().join("go");
    let mut source = Command::new("python3");
    let source = source.args(["-c", TO_STDOUT]).env("GO", &go).stdout(Stdio::piped());
    let mut source = source.spawn().unwrap();
    let run = field.rlaunch("-H a,b -np 1 cat").args([":", "-np", "1"]).sh(BEAT);
    let mut command = run.command();
    command.stdin(source.stdout.take().unwrap()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(&field, &mut command, BOUND);
    drop(command);
    running.wait_for_text("before\n", 100);
    running.wait_for_text("beat ", BEATS);
    assert!(!running.has_ended());
    running.signal(Signal::SIGTERM);
    running.wait_for_stderr("standard input is a pipe that another process holds in the kernel", 1);
    running.wait_for_stderr(&format!("ends when python3 (pid {})", source.id()), 1);
    fs::write(&go, "").unwrap();
    running.finish().ended_with(143);
    source.wait().unwrap();
}
