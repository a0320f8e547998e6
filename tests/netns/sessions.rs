//! Commands and debuggers beside the ranks of a running job: `rlaunch exec` and `rlaunch attach`.

use crate::running::{Outcome, Running};
use crate::support::{BOUND, Field, Run, State};
use crate::terminal::Terminal;
use nix::sys::signal::Signal;
use rlaunch_lab::Account;
use std::fs::File;
use std::io::Write;
use std::process::Stdio;

/// Marks at which a typist waits for the answer of a shell, not for the echo of the question.
const SIZE: &str = "echo $(stty size)$(echo .)\n";

struct Job<'a> {
    field: &'a Field,
    state: State,
    running: Running<'a>,
}

impl<'a> Job<'a> {
    /// Starts four ranks on two hosts, and waits until each has printed `up`.
    fn start(field: &'a Field, program: &[&str]) -> Job<'a> {
        let state = State::new();
        let run = field.rlaunch("-H a:2,b:2 -x GREETING=hello");
        let run = run.env("XDG_STATE_HOME", state.path()).args(program);
        let mut running = run.spawn();
        running.wait_for_text("up\n", 4);
        Job { field, state, running }
    }

    fn sleeping(field: &'a Field) -> Job<'a> {
        Job::start(field, &["sh", "-c", "cd /tmp; echo up; exec sleep 1000"])
    }

    fn verb(&self, words: &str) -> Run<'a> {
        self.field.rlaunch(words).env("XDG_STATE_HOME", self.state.path())
    }

    /// Starts a verb with this stdin.
    fn reading(&self, run: &Run<'a>, stdin: impl Into<Stdio>) -> Running<'a> {
        let mut command = run.command();
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::start(self.field, &mut command, BOUND)
    }

    /// Ends the job, and asserts that nothing is left.
    fn end(self) -> Outcome {
        self.running.signal(Signal::SIGTERM);
        let outcome = self.running.finish();
        outcome.ended_with(143);
        outcome
    }
}

#[test]
fn a_command_runs_in_the_place_of_its_rank() {
    let field = Field::new();
    let job = Job::sleeping(&field);
    let script = "echo $RLAUNCH_RANK $GREETING $(pwd) $(hostname); echo wrong >&2; exit 7";
    let ran = job.verb("exec 3 --").sh(script).spawn().finish_first();
    assert_eq!(ran.ended_with(7).out(), "3 hello /tmp b\n", "{ran}");
    assert_eq!(ran.err(), "wrong\n");
    // The same CPUs.
    let cpus = |pid: &str| format!("grep Cpus_allowed: /proc/{pid}/status");
    let own = job.verb("exec 2 --").sh(&cpus("self")).spawn().finish_first();
    let of_rank = field.ranks().into_iter().find(|process| process.host == "b").unwrap().host_pid;
    assert_eq!(own.out(), field.on("b", &cpus(&of_rank.to_string())), "{own}");

    let killed = job.verb("exec 0 -- sh -c").args(["kill -KILL $$"]).spawn().finish_first();
    killed.ended_with(137);
    job.verb("exec 0 -- no-such-program").spawn().finish_first().ended_with(127);
    job.end();
}

#[test]
fn a_command_reads_and_writes_pipes_byte_for_byte() {
    let field = Field::new();
    let job = Job::sleeping(&field);
    let mut file = tempfile::tempfile().unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(3 << 20).collect();
    file.write_all(&bytes).unwrap();
    let read = || {
        use std::io::Seek;
        let mut file: File = file.try_clone().unwrap();
        file.rewind().unwrap();
        file
    };
    let ran = job.reading(&job.verb("exec 1 -- cat"), read()).finish_first();
    assert!(ran.succeeded().stdout == bytes, "{} bytes", ran.stdout.len());
    // A command that does not read all of its input ends nevertheless.
    let ran = job.reading(&job.verb("exec 1 -- head -c 3"), read()).finish_first();
    assert_eq!(ran.succeeded().stdout, [0, 1, 2]);
    job.end();
}

#[test]
fn ranks_without_a_place_are_refused() {
    let field = Field::new();
    let program = ["sh", "-c", "echo up; [ $RLAUNCH_RANK = 1 ] || exec sleep 1000"];
    let job = Job::start(&field, &program);
    let exec = |words: &str| job.verb(words).spawn().finish_first();
    field.wait_for("rank 1 to end", || {
        exec("exec 1 -- true").err().contains("its process has ended")
    });
    exec("exec 4 -- true").ended_with(200).says(&["beside rank 4", "its last rank is 3"]);
    exec("exec three -- true").ended_with(200).says(&["`three` is not a rank"]);
    exec("exec 019 77 -- true").ended_with(200);
    let meant = "rank 2 is on b: rlaunch exec 2 -- hostname";
    exec("exec b hostname").ended_with(200).says(&["`hostname` is not a rank", meant]);
    exec("attach 0").ended_with(200).says(&["does not wait in breakpoint()"]);
    job.end();
    let state = State::new();
    let run = field.rlaunch("exec 0 -- true").env("XDG_STATE_HOME", state.path());
    run.run().ended_with(200).says(&["no job"]);
}

/// The processes of a command end with their client, or with the job, whichever is first, and also those that
/// ignore the signals that tell them to end.
#[test]
fn a_command_ends_with_its_client_and_with_the_job() {
    let field = Field::new();
    let job = Job::sleeping(&field);
    let stubborn = "trap '' HUP TERM INT; setsid sleep 2000 & echo up; sleep 3000; sleep 3000";
    let sleepers = |seconds: &str| {
        let mut processes = field.started();
        processes.retain(|process| process.args == ["sleep", seconds]);
        processes.len()
    };
    // The second has nothing by which it could be known.
    for daemon in ["sleep 5000", "env -i sleep 6000"] {
        let daemon = format!("(setsid {daemon} > /dev/null 2>&1 &)");
        job.verb("exec 2 --").sh(&daemon).spawn().finish_first().succeeded();
    }
    let mut client = job.verb("exec 3 --").sh(stubborn).spawn();
    client.wait_for_text("up\n", 1);
    field.wait_for("the command to sleep", || sleepers("3000") == 1);
    client.signal(Signal::SIGKILL);
    client.finish_first();
    field.wait_for("the command to end", || sleepers("3000") + sleepers("2000") == 0);
    let left = || sleepers("5000") + sleepers("6000");
    field.wait_for("what commands have left to end", || left() == 0);
    assert_eq!(sleepers("1000"), 4);

    let mut client = job.verb("exec 3 --").sh(stubborn).spawn();
    client.wait_for_text("up\n", 1);
    let ended = job.end();
    assert!(ended.took_awake.as_secs() < 60, "{ended}");
    client.finish_first().ended_with(129).says(&["the job has ended, and this session with it"]);
}

#[test]
fn a_command_under_nohup_outlives_the_terminal() {
    let field = Field::new();
    let job = Job::sleeping(&field);
    let script = "echo up; read word; echo $word";
    let run = job.verb("exec 3 --").sh(script).ignoring_hangups();
    let mut command = run.command();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (mut keyboard, mut client) = Running::with_keyboard(&field, &mut command, BOUND);
    client.wait_for_text("up\n", 1);
    client.signal(Signal::SIGHUP);
    keyboard.write_all(b"on\n").unwrap();
    assert_eq!(client.finish_first().succeeded().out(), "up\non\n");
    // Without it a hangup ends the session, and is named.
    let mut client = job.verb("exec 3 --").sh("echo up; sleep 1000").spawn();
    client.wait_for_text("up\n", 1);
    client.signal(Signal::SIGHUP);
    client.finish_first().ended_with(129).says(&["error: ended by SIGHUP"]);
    job.end();
}

#[test]
fn a_shell_at_a_terminal() {
    let field = Field::new();
    let job = Job::sleeping(&field);
    let (mut terminal, slave) = Terminal::open();
    terminal.resize(33, 101);
    let run = job.verb("exec -t 3 -- sh -i").env("TERM", "vt100").at_terminal();
    let mut command = run.command();
    let shared = || slave.try_clone().unwrap();
    command.stdin(shared()).stdout(shared()).stderr(shared());
    let mut client = command.spawn().unwrap();
    let wait = |terminal: &Terminal, text: &str| {
        terminal.wait_until(BOUND, text, |shown| shown.contains(text));
    };
    terminal.write(SIZE);
    wait(&terminal, "33 101.");
    terminal.resize(40, 120);
    // The size and what is typed travel by ways of their own.
    terminal.write(
        "until [ \"$(stty size)\" = '40 120' ]; do sleep 0.1; done; echo resized$(echo .)\n",
    );
    wait(&terminal, "resized.");
    terminal.write("echo $RLAUNCH_RANK$TERM\n");
    wait(&terminal, "3vt100");
    // Ctrl-C ends what the shell runs, and neither the shell nor the session.
    terminal.write("echo now$(echo .); sleep 4000\n");
    wait(&terminal, "now.");
    let sleeps = || field.started().iter().any(|process| process.args == ["sleep", "4000"]);
    field.wait_for("the command", sleeps);
    terminal.write("\x03");
    field.wait_for("the end of the command", || !sleeps());
    terminal.write("exit 5\n");
    assert_eq!(client.wait().unwrap().code(), Some(5), "{}", terminal.text());
    let modes = nix::sys::termios::tcgetattr(&slave).unwrap();
    assert!(modes.local_flags.contains(nix::sys::termios::LocalFlags::ICANON), "{modes:?}");
    drop((command, slave));
    terminal.finish();
    job.end();
}

#[test]
fn a_breakpoint_is_reached_and_left() {
    let field = Field::new();
    let program = "\
import os, sys
rank = int(os.environ['RLAUNCH_RANK'])
def step(loss):
    if rank == 3:
        breakpoint()
    return loss
print('up', flush=True)
print('loss', step(0.25 * rank), flush=True)
";
    let _script = field.files(&["a", "b"], "/tmp/train.py", program, 0o644);
    let mut job = Job::start(&field, &["python3", "/tmp/train.py"]);
    job.running.wait_for_stderr("rank 3 stops at train.py:5 in step: rlaunch attach 3", 1);
    let file = |text: &str| {
        use std::io::Seek;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.rewind().unwrap();
        file
    };
    // The end of the input leaves the rank where it is.
    let looked = job.reading(&job.verb("attach 3"), file("p 'seen', loss\n")).finish_first();
    looked.succeeded().says(&["rank 3 goes on waiting"]);
    assert!(looked.out().contains("('seen', 0.75)"), "{looked}");
    let gone = job.reading(&job.verb("attach 3"), file("loss = 9\nc\n")).finish_first();
    gone.succeeded();
    let outcome = job.running.finish();
    assert!(outcome.succeeded().out().contains("loss 9\n"), "{outcome}");
}

#[test]
fn an_ordinary_user_has_sessions_too() {
    let field = Field::new();
    let run = |words: &str| field.rlaunch(words).account(Account::User);
    let mut running = run("-H a").sh("echo up; exec sleep 1000").spawn();
    running.wait_for_text("up\n", 1);
    let ran = run("exec 0 -- id -un").spawn().finish_first();
    assert_eq!(ran.succeeded().out().trim_end(), Account::User.name());
    running.signal(Signal::SIGTERM);
    running.finish().ended_with(143);
}
