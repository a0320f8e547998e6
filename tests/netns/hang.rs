//! Jobs that make no progress: `--hang-timeout` names the ranks for which the others wait, and `rlaunch stack` shows
//! where ranks are.

use crate::output::{check_flood, flood};
use crate::running::{Outcome, said};
use crate::stdin::piped;
use crate::support::{BOUND, Field, launch_directory};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_lab::command::wait_until;
use rlaunch_lab::{Account, Stopwatch, python};
use serde_json::Value;
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

/// Program of four ranks, of which rank 2 is lost in `lost` while the others wait for it.
const PROGRAM: &str = "import os, re, signal, socket, threading, time\n\
    def meet():\n    server = socket.socket(); server.bind(('127.0.0.1', 0)); server.listen()\n    \
    server.accept()\n";

/// Runs the program with this body of `lost` until rlaunch finds that it hangs.
fn hung(field: &Field, lost: &str) -> Outcome {
    let script = format!(
        "{PROGRAM}def lost():\n    {lost}\n(lost if os.environ['RANK'] == '2' else meet)()\n"
    );
    field.rlaunch("-H a:2,b:2 --hang-timeout 2").args(["/usr/bin/python3", "-c", &script]).run()
}

/// Asserts that the error of a job that hangs names rank 2 first, with this text, and the others in a line of their
/// own.
fn names_rank_2(outcome: &Outcome, place: &str) {
    outcome.refused(124, &["no progress for ", " s: rank 2 on b: ", place]);
    let said = outcome.err();
    let mut lines = said.lines().map(str::trim_start);
    let others = lines.find(|line| line.starts_with("ranks 0-1,3: "));
    assert!(others.is_some_and(|line| line.contains("meet <string>:4 < ")), "{outcome}");
}

#[test]
fn a_rank_that_waits_for_a_lock_of_its_own_is_named() {
    let field = Field::new();
    let lost = "lock = threading.Lock(); lock.acquire(); lock.acquire()";
    names_rank_2(&hung(&field, lost), "lost <string>:6 < <module> <string>:7 (waits for a lock");
}

#[test]
fn a_rank_that_reads_a_pipe_without_a_writer_is_named_with_the_pipe() {
    let field = Field::new();
    let lost = "os.mkfifo('/tmp/hang-fifo'); pipe = os.open('/tmp/hang-fifo', os.O_RDWR); \
                os.unlink('/tmp/hang-fifo'); os.read(pipe, 1)";
    names_rank_2(&hung(&field, lost), "(waits for the pipe /tmp/hang-fifo");
}

#[test]
fn a_rank_that_was_stopped_is_named() {
    let field = Field::new();
    names_rank_2(&hung(&field, "os.kill(os.getpid(), signal.SIGSTOP)"), "(is stopped by a signal)");
}

#[test]
fn a_rank_in_an_endless_loop_is_named() {
    let field = Field::new();
    names_rank_2(&hung(&field, "while True: pass"), "lost <string>:6 < <module> <string>:7 (runs)");
    // A regular expression that backtracks for years, in C.
    names_rank_2(&hung(&field, "re.match('(a+)+b', 'a' * 64)"), "(runs)");
}

/// A job of ranks that use 4 % of a CPU was ended as one that hangs.
#[test]
fn ranks_that_work_a_little_in_silence_make_progress() {
    let field = Field::new();
    let script = "import time\nfor step in range(48):\n    end = time.process_time() + 0.004\n    \
        while time.process_time() < end: pass\n    time.sleep(0.1)\nprint('done')";
    let run = field.rlaunch("-H a,b --hang-timeout 2");
    let outcome = run.args(["/usr/bin/python3", "-c", script]).run();
    assert_eq!(outcome.succeeded().out(), "done\ndone\n", "{outcome}");
}

/// Lets four times the time limit of a second pass. Asserts that the job has not ended then.
fn pause(mut has_ended: impl FnMut() -> bool) {
    let pause = Stopwatch::start();
    wait_until(BOUND, "the pause to end", || {
        assert!(!has_ended(), "it has ended after {:?}", pause.total_elapsed());
        Ok(pause.total_elapsed() >= Duration::from_secs(4))
    })
    .unwrap();
}

/// Who read page by page lost the job.
#[test]
fn output_that_waits_for_its_reader_is_not_a_hang() {
    const LINES: usize = 200_000;
    let field = Field::new();
    let mut command = field.rlaunch("-H a,b --hang-timeout 1").sh(&flood(LINES)).command();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let write = || field.ranks().iter().filter(|rank| rank.args[0] == "seq").count() == 2;
    field.wait_for("the ranks to write", write);
    pause(|| child.try_wait().unwrap().is_some());
    let ran = child.wait_with_output().unwrap();
    let said = said(&String::from_utf8_lossy(&ran.stderr));
    assert_eq!((ran.status.code(), said), (Some(0), vec![]));
    check_flood(&ran.stdout, 2, LINES, |_| String::new());
}

/// Who typed slowly lost the job.
#[test]
fn a_rank_that_waits_for_what_is_typed_is_not_a_hang() {
    let field = Field::new();
    for reader in ["read -r line; echo got $line", "sed -u 's/^/got /' | cat; true"] {
        let script = format!("[ $RANK = 1 ] || {{ {reader}; }}");
        let run = field.rlaunch("-H a,b --hang-timeout 1").sh(&script);
        let (mut keyboard, mut running) = piped(&field, &run);
        pause(|| running.has_ended());
        keyboard.write_all(b"x\n").unwrap();
        running.wait_for_text("got x\n", 1);
        drop(keyboard);
        running.finish().succeeded().says_nothing();
    }
    // An input that stays open, as below cron or another program, says nothing about ranks that do not read it.
    let run = field.rlaunch("-H a,b --hang-timeout 1").sh("exec sleep 1000");
    let (_keyboard, running) = piped(&field, &run);
    running.finish().refused(124, &["no progress for "]);
}

/// Training with gloo in which rank 2 skips a backward pass, so that the others wait for its gradients.
const SKIPPED: &str = "\
import os, sys, threading, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def skip():
    while True: time.sleep(1)

def record():
    # Where its backend is NCCL, torch does this by itself, in these words, and takes some seconds.
    pipe = os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE'] + os.environ['RANK'] + '.pipe'
    os.mkfifo(pipe)
    while open(pipe).read():
        print('[rank%d]:[E1 x.cpp:1] ProcessGroupNCCL preparing to dump debug info.' % dist.get_rank(), file=sys.stderr, flush=True)
        time.sleep(4)
        torch._C._distributed_c10d._dump_fr_trace_file(dist.get_rank(), True, True)

torch.set_num_threads(1)
dist.init_process_group('gloo')
threading.Thread(target=record, daemon=True).start()
model = DistributedDataParallel(torch.nn.Linear(8, 8))
for step in range(3):
    loss = model(torch.randn(4, 8)).sum()
    if step == 2 and dist.get_rank() == 2: skip()
    loss.backward()
print('done')
";

#[test]
fn torch_names_a_rank_that_skips_a_backward_pass() {
    let field = Field::new();
    // The launcher turns the recorder on where it sees GPUs, by a variable that only a rank's own environment has, as this one.
    let run =
        field.rlaunch("-H a:2,b:2 --hang-timeout 4 -x TORCH_FR_BUFFER_SIZE={{rank.index+100}}");
    let run = run.within(Duration::from_secs(240));
    let outcome = run.args([python::PROGRAM, "-c", SKIPPED]).run();
    outcome.refused(124, &["no progress for ", " s: rank 2 on b: skip <string>:5 < "]);
    let said = outcome.err();
    let mut lines = said.lines().map(str::trim_start);
    let others = lines.find(|line| line.starts_with("ranks 0-1,3: "));
    assert!(others.is_some_and(|line| line.contains("backward")), "{outcome}");
    // From the flight recorders of torch.
    let mut lines = said.lines().map(str::trim_start);
    let behind = "process group default_pg of 4 ranks: rank 2 on b has not entered all_reduce ";
    let line = lines.find(|line| line.starts_with(behind));
    assert!(line.is_some_and(|line| line.contains("which ranks 0-1,3 entered")), "{outcome}");
}

#[test]
fn a_hang_is_in_the_record() {
    let (field, state) = (Field::new(), launch_directory());
    let state = state.path().to_str().unwrap();
    let run = field.rlaunch("-H a,b --hang-timeout 1").env("XDG_STATE_HOME", state);
    run.sh("exec sleep 1000").run().ended_with(124);
    let report = field.rlaunch("report last").env("XDG_STATE_HOME", state).run();
    let out = report.succeeded().out();
    for text in ["has failed with exit code 124: no progress for ", "ranks 0-1: "] {
        assert!(out.contains(text), "{text}: {report}");
    }
}

#[test]
fn a_job_that_hangs_can_run_on() {
    let field = Field::new();
    let run = field.rlaunch("-H a,b --hang-timeout 1 --hang-report");
    let mut running = run.sh("test $RANK = 0 || exec sleep 1000; sleep 1001; echo on").spawn();
    running.wait_for_stderr("no progress for ", 1);
    // A rank that is interrupted in its sleep goes on.
    let asleep =
        field.started().into_iter().find(|process| process.args.iter().any(|arg| arg == "1001"));
    kill(Pid::from_raw(asleep.unwrap().pid), Signal::SIGTERM).unwrap();
    running.wait_for_text("on\n", 1);
    running.signal(Signal::SIGTERM);
    running.finish().ended_with(143);
}

#[test]
fn the_time_limit_reports_the_ranks() {
    let field = Field::new();
    // Ranks have started by then on a slow machine too.
    field.warm("a,b", Account::Root);
    let run = field.rlaunch("-H a,b --timeout 6 --hang-report");
    let outcome = run.sh("exec sleep 1000").run();
    let texts = ["not done within 6 s (--timeout)", "rank 1 on b (pid ", "waiting, 1 process"];
    outcome.refused(124, &texts);
    assert!(
        outcome.err().contains("ranks 0-1: ") && outcome.err().contains("(sleeps)"),
        "{outcome}"
    );
}

#[test]
fn the_rank_at_the_other_end_of_a_socket_is_named() {
    let (field, state) = (Field::new(), launch_directory());
    let state = state.path().to_str().unwrap();
    let script = "import os, socket, time\n\
        def serve():\n    server = socket.create_server(('', 4711)); end = server.accept()\n    \
        print('up', flush=True); time.sleep(1000)\n\
        def receive():\n    while True:\n        \
        try: end = socket.create_connection((os.environ['MASTER_ADDR'], 4711)); break\n        \
        except ConnectionRefusedError: time.sleep(0.05)\n    end.recv(1)\n\
        (serve if os.environ['RANK'] == '0' else receive)()\n";
    let run = field.rlaunch("-H a,b").env("XDG_STATE_HOME", state);
    let mut running = run.args(["/usr/bin/python3", "-c", script]).spawn();
    running.wait_for_text("up\n", 1);
    field.wait_for("rank 1 to wait for rank 0", || {
        let asked = field.rlaunch("stack").env("XDG_STATE_HOME", state).spawn().finish_first();
        asked.out().contains("rank 1 on b: receive <string>:")
            && asked.out().contains(":4711 (rank 0 on a))")
    });
    running.signal(Signal::SIGTERM);
    running.finish().ended_with(143);
}

#[test]
fn stacks_of_a_running_job() {
    let (field, state) = (Field::new(), launch_directory());
    let state = state.path().to_str().unwrap();
    let script = format!("{PROGRAM}print('up', flush=True)\nmeet()\n");
    let run = field.rlaunch("-H a:2,b").env("XDG_STATE_HOME", state);
    let mut running = run.args(["/usr/bin/python3", "-c", &script]).spawn();
    running.wait_for_text("up\n", 3);
    let ask = |words: &str| {
        let asked = field.rlaunch(words).env("XDG_STATE_HOME", state).spawn().finish_first();
        asked.ended_with(0);
        asked
    };
    field.wait_for("all ranks to meet", || {
        let asked = ask("stack");
        asked.out().starts_with("ranks 0-2: ") && asked.out().contains("meet <string>:4")
    });
    let full = ask("stack --rank 1 --full --native");
    for text in ["rank 1 on a\n", "MainThread", "waits at a socket", "meet (<string>:4)", "accept"]
    {
        assert!(full.out().contains(text), "{text}: {full}");
    }
    assert!(!full.out().contains("rank 0"), "{full}");
    let rows: Vec<Value> = serde_json::from_slice(&ask("stack --json").stdout).unwrap();
    assert_eq!((rows.len(), rows[2]["host"].as_str()), (3, Some("b")), "{rows:?}");
    let wrong = field.rlaunch("stack --rank 3").env("XDG_STATE_HOME", state).spawn();
    wrong.finish_first().refused(200, &["the job has no rank 3: its ranks are 0 to 2"]);
    running.signal(Signal::SIGTERM);
    running.finish().ended_with(143);
    let none = field.rlaunch("stack").env("XDG_STATE_HOME", state).run();
    none.refused(200, &["no job of yours runs from this machine"]);
}
