use super::*;
use rlaunch_bootstrap::frame::FrameReader;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::{ProcessStacks, ThreadStack};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Process that is killed at the end of a test.
struct Process(Child);

impl Process {
    fn start(program: &str, args: &[&str]) -> Process {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::null());
        Process(command.spawn().unwrap())
    }

    /// Waits until `is_there` holds for the process.
    fn until(self, is_there: impl Fn(&ProcessStacks) -> bool) -> ProcessStacks {
        self.once(is_there).1
    }

    /// Waits until `is_there` holds for the process, and keeps the process.
    fn once(self, is_there: impl Fn(&ProcessStacks) -> bool) -> (Process, ProcessStacks) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let stacks = self.read();
            if is_there(&stacks) {
                return (self, stacks);
            }
            assert!(Instant::now() < deadline, "{stacks:?}");
            thread::yield_now();
        }
    }

    fn read(&self) -> ProcessStacks {
        let processes = vec![(Rank(0), vec![self.0.id()])];
        // Large programs and slow machines take a while.
        carry_out(&processes, true, Duration::from_secs(3)).remove(0).processes.remove(0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn python(script: &str) -> Process {
    Process::start("python3", &["-c", script])
}

fn functions(stacks: &ProcessStacks) -> Vec<&str> {
    stacks.threads[0].frames.iter().map(|frame| frame.function.as_str()).collect()
}

fn is_in(stacks: &ProcessStacks, function: &str) -> bool {
    functions(stacks).contains(&function)
}

#[test]
fn a_python_process_that_sleeps_is_seen_to_sleep() {
    let script = "import time\ndef nap():\n  time.sleep(1000)\nnap()";
    let stacks = python(script)
        .until(|stacks| is_in(stacks, "nap") && stacks.threads[0].waits_for == Some(Wait::Sleep));
    let nap = stacks.threads[0].frames.iter().find(|frame| frame.function == "nap").unwrap();
    assert_eq!((nap.line, nap.native), (3, false), "{stacks:?}");
    assert_eq!(stacks.threads[0].holds_gil, Some(false));
}

#[test]
fn a_python_process_that_waits_for_a_lock_is_seen_to_wait() {
    let script = "import threading\ndef hold(lock):\n  lock.acquire()\n  lock.acquire()\n\
                  hold(threading.Lock())";
    let stacks = python(script)
        .until(|stacks| is_in(stacks, "hold") && stacks.threads[0].waits_for == Some(Wait::Futex));
    assert_eq!(stacks.problem, None, "{stacks:?}");
}

#[test]
fn a_python_process_that_loops_runs() {
    let script = "def spin():\n  while True:\n    pass\nspin()";
    // A `python3` that is a script executes Python later: what it waited for may be read before that, and frames after it.
    python(script).until(|stacks| is_in(stacks, "spin") && waits_for(stacks).is_none());
}

#[test]
fn a_process_that_reads_a_pipe_is_seen_to_wait_for_it() {
    let stacks = python("import os\nos.read(os.pipe()[0], 1)")
        .until(|stacks| matches!(stacks.threads[0].waits_for, Some(Wait::Pipe { .. })));
    let Some(Wait::Pipe { name }) = &stacks.threads[0].waits_for else { panic!("{stacks:?}") };
    assert!(name.starts_with("pipe:["), "{name}");
}

#[test]
fn a_process_that_reads_its_standard_input_is_seen_to_wait_for_that() {
    Process::start("cat", &[]).until(|stacks| waits_for(stacks) == Some(&Wait::Stdin));
    python("import select\nselect.select([0], [], [])")
        .until(|stacks| waits_for(stacks) == Some(&Wait::Stdin));
}

#[test]
fn what_a_rank_has_started_may_read_the_input_of_the_rank() {
    let rank = Process::start("sh", &["-c", "cat | cat; true"]);
    let children = format!("/proc/{0}/task/{0}/children", rank.0.id());
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let children = fs::read_to_string(&children).unwrap();
        let children = children.split_ascii_whitespace().map(|pid| pid.parse().unwrap());
        let processes: Vec<u32> = std::iter::once(rank.0.id()).chain(children).collect();
        let stacks = carry_out(&[(Rank(0), processes)], true, Duration::from_secs(3)).remove(0);
        let waits: Vec<_> = stacks.processes.iter().map(waits_for).collect();
        // The second one reads what the first one writes.
        if let [Some(Wait::Child), Some(Wait::Stdin), Some(Wait::Pipe { .. })] = waits[..] {
            return;
        }
        assert!(Instant::now() < deadline, "{stacks:?}");
        thread::yield_now();
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn native_frames_reach_the_program() {
    let stacks = Process::start("sleep", &["1000"])
        .until(|stacks| stacks.threads[0].waits_for == Some(Wait::Sleep));
    let names = functions(&stacks).join(" ");
    assert!(names.contains("nanosleep") && names.contains("__libc_start"), "{stacks:?}");
}

#[test]
fn a_process_that_has_ended_has_no_stacks() {
    let process = Process::start("true", &[]);
    let pid = process.0.id();
    drop(process);
    let stacks = carry_out(&[(Rank(3), vec![pid])], true, Duration::from_secs(1));
    assert_eq!(stacks, [RankStacks { rank: Rank(3), processes: Vec::new() }]);
}

#[test]
fn without_time_there_are_processes_but_no_stacks() {
    let process = Process::start("sleep", &["1000"]);
    let processes = vec![(Rank(0), vec![process.0.id()])];
    let stacks = carry_out(&processes, false, Duration::ZERO);
    assert_eq!(stacks[0].processes[0].pid, process.0.id());
    assert!(stacks[0].processes[0].problem.is_some());
}

/// FIFO that has no writer until this is dropped.
struct Fifo(PathBuf);

impl Fifo {
    fn new(name: &str) -> Fifo {
        let path = std::env::temp_dir().join(format!("rlaunch-{name}-{}", std::process::id()));
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        Fifo(path)
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        // Whatever waits for a writer goes on. Fails if nothing waits.
        let _ = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&self.0);
        let _ = fs::remove_file(&self.0);
    }
}

fn waits_for(stacks: &ProcessStacks) -> Option<&Wait> {
    stacks.threads.first()?.waits_for.as_ref()
}

#[test]
fn a_process_that_opens_or_reads_a_fifo_is_seen_to_wait_for_it() {
    let fifo = Fifo::new("opened");
    let expected = Wait::Pipe { name: fifo.path() };
    for words in ["open(path)", "os.read(os.open(path, os.O_RDWR), 1)"] {
        let script = format!("import os\npath = {:?}\n{words}", fifo.path());
        let stacks = python(&script).until(|stacks| waits_for(stacks) == Some(&expected));
        assert_eq!(stacks.problem, None, "{stacks:?}");
    }
}

#[test]
fn selecting_is_told_from_sleeping() {
    let script = "import select, socket\nends = socket.socketpair()\n";
    let one = python(&format!("{script}select.select([ends[0]], [], [])"));
    one.until(|stacks| waits_for(stacks) == Some(&Wait::Socket { peer: None, owner: None }));
    let several = python(&format!("{script}select.select(ends, [], [])"));
    several.until(|stacks| waits_for(stacks) == Some(&Wait::Descriptors));
    let none = python(&format!("{script}select.select([], [], [], 1000)"));
    none.until(|stacks| waits_for(stacks) == Some(&Wait::Sleep));
}

#[test]
fn a_process_that_was_stopped_stays_stopped() {
    let script = "import os, signal\ndef halt():\n  os.kill(os.getpid(), signal.SIGSTOP)\nhalt()";
    let process = python(script);
    let pid = process.0.id();
    let is_stopped =
        |stacks: &ProcessStacks| is_in(stacks, "halt") && waits_for(stacks) == Some(&Wait::Stopped);
    let process = process.once(is_stopped).0;
    assert_eq!(threads::state_of(pid, pid).unwrap().1, 'T');
    drop(process);
}

#[test]
fn a_process_that_cannot_be_stopped_is_read_while_it_waits() {
    let fifo = Fifo::new("spawned");
    // A parent waits in state D until its child has executed the program, here until it has opened a file.
    let script = format!(
        "import os\ndef start():\n  os.posix_spawn('/bin/true', ['true'], {{}}, \
         file_actions=[(os.POSIX_SPAWN_OPEN, 0, {:?}, os.O_RDONLY, 0)])\nstart()",
        fifo.path()
    );
    let stacks = python(&script)
        .until(|stacks| is_in(stacks, "start") && stacks.threads[0].state == UNSTOPPABLE);
    assert_eq!(waits_for(&stacks).map(|wait| matches!(wait, Wait::Kernel { .. })), Some(true));
}

#[test]
fn threads_of_python_have_frames() {
    let script = "import threading, time\ndef nap():\n  time.sleep(1000)\n\
                  threading.Thread(target=nap, name='helper').start()\nnap()";
    let stacks = python(script).until(|stacks| {
        let napping = stacks
            .threads
            .iter()
            .filter(|thread| thread.frames.iter().any(|frame| frame.function == "nap"));
        napping.count() == 2
    });
    let names: Vec<&str> = stacks.threads.iter().map(|thread| thread.name.as_str()).collect();
    assert_eq!(names, ["MainThread", "helper"]);
}

#[test]
fn many_processes_are_read_at_once() {
    let processes: Vec<Process> = (0..64).map(|_| Process::start("sleep", &["1000"])).collect();
    let ranks = (0..).map(Rank).zip(&processes);
    let ranks: Vec<_> = ranks.map(|(rank, process)| (rank, vec![process.0.id()])).collect();
    let stacks = carry_out(&ranks, true, Duration::from_secs(60));
    assert_eq!(stacks.len(), 64);
    let is_read =
        |rank: &RankStacks| rank.processes.iter().all(|process| process.problem.is_none());
    assert!(stacks.iter().all(is_read), "{stacks:?}");
}

fn answer(ranks: u32, frames: usize) -> Vec<RankStacks> {
    let mut thread = ThreadStack { state: 'S', ..ThreadStack::default() };
    thread.frames.resize_with(frames, Default::default);
    thread.frames.iter_mut().for_each(|frame| frame.function = "f".repeat(60));
    let threads = vec![thread; 100];
    let process = ProcessStacks { threads, ..ProcessStacks::default() };
    let rank = |rank| RankStacks { rank: Rank(rank), processes: vec![process.clone(); 4] };
    (0..ranks).map(rank).collect()
}

fn decoded(encoded: &[u8]) -> Vec<RankStacks> {
    let mut frames = FrameReader::default();
    frames.push(encoded);
    frames.next_frame().unwrap().unwrap()
}

#[test]
fn a_small_answer_is_whole() {
    let small = answer(1, 10);
    assert_eq!(decoded(&encode(small.clone()).unwrap()), small);
}

#[test]
fn a_large_answer_loses_its_outermost_frames() {
    let large = answer(64, 100);
    assert!(matches!(frame::encode(&large), Err(FrameError::TooLong(_))));
    let encoded = encode(large).unwrap();
    assert!(encoded.len() <= MAX_ANSWER);
    let shortened = decoded(&encoded);
    assert_eq!(shortened.len(), 64);
    let process = &shortened[63].processes[3];
    assert!(!process.threads[0].frames.is_empty());
    assert!(process.problem.as_ref().unwrap().contains("left out"), "{process:?}");
}
