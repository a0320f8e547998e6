//! Questions about this node's ranks: what they use, their stacks, and how far they are in collective operations. The
//! last two are answered by the program `rlaunch-stack`, which is fetched from the launcher when it is needed for the
//! first time.
//!
//! The launcher describes the program before its first question. Questions that come while the program is being
//! received, or while it runs, are answered after it.

use crate::network::frames::FrameSender;
use crate::node::delivery::{HelperDownload, Located, spawn_helper};
use crate::node::diagnostics::{self, GpuMonitor};
use crate::node::inventory::Root;
use crate::ranks::Ranks;
use nix::unistd::Pid;
use rlaunch_bootstrap::frame::{self, FrameReader, MAX_FRAME};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::inventory::traffic::HostCounters;
use rlaunch_bootstrap::protocol::control::{FromAgent, Helper, HelperFile, ToAgent};
use rlaunch_bootstrap::protocol::inspection::{
    Inspection, InspectionResult, StackOrder, StackSubject,
};
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Time limits of the program itself for stacks, and for libraries that it asks. The launcher gives a node 5 and 9 seconds.
const STACK_LIMIT: Duration = Duration::from_millis(2500);
const COLLECTIVE_LIMIT: Duration = Duration::from_secs(7);
/// Time for which the program is waited for beyond its limit.
const LEEWAY: Duration = Duration::from_secs(1);
/// Size of reads from the program's stdout, in bytes.
const PART: usize = 64 << 10;
/// Maximum number of bytes of the program's stderr that are read.
const MAX_WORDS: u64 = 4 << 10;
/// Maximum number of questions that wait.
const MAX_QUESTIONS: usize = 16;

/// Question that the program answers.
#[derive(Debug)]
struct Question {
    id: u32,
    ranks: Vec<Rank>,
    subject: StackSubject,
}

/// Answers to the launcher's questions about this node and its ranks.
pub(crate) struct Inspector {
    program: ProgramState,
    questions: VecDeque<Question>,
    running: Option<Running>,
    gpus: GpuMonitor,
    /// Process of the program that reads the use of GPUs, which was started last; it may have ended.
    gpu_program: Option<Pid>,
    to_launcher: FrameSender,
}

/// State of the program's file.
enum ProgramState {
    /// The launcher has not described it, since it has none for this node.
    Absent,
    Downloading(HelperDownload),
    Ready(PathBuf),
    /// It cannot be stored, or may not run, for this reason.
    Failed(String),
}

/// Task that reads the program's answer, or the reason why there is none.
type Reading = JoinHandle<Result<InspectionResult, String>>;

/// Program that runs.
struct Running {
    question: u32,
    pid: Pid,
    reading: Reading,
}

impl Inspector {
    pub(crate) fn new(to_launcher: &FrameSender) -> Inspector {
        Inspector {
            program: ProgramState::Absent,
            questions: VecDeque::new(),
            running: None,
            gpus: GpuMonitor::new(),
            gpu_program: None,
            to_launcher: to_launcher.clone(),
        }
    }

    /// Tells whether a message is a question about the ranks, or carries the program that answers it.
    pub(crate) fn is_inspection(message: &ToAgent) -> bool {
        matches!(
            message,
            ToAgent::Inspect { .. }
                | ToAgent::Helper(Helper::Stack, _)
                | ToAgent::HelperPart(Helper::Stack, _)
        )
    }

    /// Answers a question, or has the program answer it, or takes the program's file; see
    /// [`Inspector::is_inspection`].
    pub(crate) fn on_inspection(&mut self, message: ToAgent, ranks: &mut Ranks) {
        match message {
            ToAgent::Inspect { id, what: Inspection::Usage } => {
                let result = InspectionResult::Usage(ranks.usage());
                self.to_launcher.send(&FromAgent::Inspected { id, result });
            }
            ToAgent::Inspect { id, what: Inspection::Counters } => {
                let (gpus, started) = self.gpus.read_or_start();
                if let Some(program) = started {
                    let pid = Pid::from_raw(program.id().cast_signed());
                    ranks.add_helper(pid);
                    self.gpu_program = Some(pid);
                }
                let counters = HostCounters { gpus, ..diagnostics::read_traffic(&Root::live()) };
                let result = InspectionResult::Counters(counters);
                self.to_launcher.send(&FromAgent::Inspected { id, result });
            }
            ToAgent::Inspect { id, what: Inspection::Stacks { ranks: wanted, native } } => {
                self.ask_program(id, wanted, StackSubject::Stacks { native }, ranks);
            }
            ToAgent::Inspect { id, what: Inspection::Collectives } => {
                self.ask_program(id, Vec::new(), StackSubject::Collectives, ranks);
            }
            ToAgent::Helper(_, file) => self.on_file(file),
            ToAgent::HelperPart(_, part) => self.on_part(&part, ranks),
            // No inspection.
            _ => {}
        }
    }

    /// Looks for the program in the cache, or requests it from the launcher.
    fn on_file(&mut self, file: HelperFile) {
        self.program = match HelperDownload::locate(Helper::Stack, file) {
            Ok(Located::Cached(path)) => ProgramState::Ready(path),
            Ok(Located::Missing(download)) => {
                self.to_launcher.send(&FromAgent::NeedsHelper(Helper::Stack));
                ProgramState::Downloading(download)
            }
            Err(cause) => ProgramState::Failed(cause),
        };
    }

    /// Stores the next part of the program.
    fn on_part(&mut self, part: &[u8], ranks: &mut Ranks) {
        let ProgramState::Downloading(download) = &mut self.program else { return };
        match download.receive(part) {
            Ok(None) => return,
            Ok(Some(path)) => self.program = ProgramState::Ready(path),
            Err(cause) => self.program = ProgramState::Failed(cause),
        }
        self.start_next(ranks);
    }

    /// Queues a question for the program. It is answered at once if the program cannot run.
    fn ask_program(&mut self, id: u32, ranks: Vec<Rank>, subject: StackSubject, all: &mut Ranks) {
        if self.questions.len() >= MAX_QUESTIONS {
            return self.answer(id, Err("too many questions about ranks wait".to_owned()));
        }
        self.questions.push_back(Question { id, ranks, subject });
        self.start_next(all);
    }

    /// Starts the program for the next question, unless it runs or is being received.
    fn start_next(&mut self, ranks: &mut Ranks) {
        while self.running.is_none() {
            let path = match &self.program {
                ProgramState::Downloading(_) => return,
                ProgramState::Ready(path) => Ok(path.clone()),
                ProgramState::Failed(cause) => Err(cause.clone()),
                ProgramState::Absent => {
                    Err(format!("this rlaunch has no {} for this host", Helper::Stack.name()))
                }
            };
            let Some(question) = self.questions.pop_front() else { return };
            let started = path.and_then(|path| {
                let processes = ranks.processes_of(&question.ranks);
                start_program(&path, processes, question.subject)
            });
            match started {
                Ok((pid, reading)) => {
                    ranks.add_helper(pid);
                    self.running = Some(Running { question: question.id, pid, reading });
                }
                Err(cause) => self.answer(question.id, Err(cause)),
            }
        }
    }

    /// Waits until the program has answered; for ever if it does not run. Cancel-safe.
    pub(crate) async fn next_answer(&mut self) -> ProgramAnswer {
        let Some(running) = &mut self.running else { return std::future::pending().await };
        let answer = (&mut running.reading).await;
        ProgramAnswer(answer.unwrap_or_else(|error| Err(error.to_string())))
    }

    /// Ends the programs. None may run while ranks are being ended: that for stacks stops them for a moment.
    pub(crate) fn kill_programs(&mut self, ranks: &mut Ranks) {
        if let Some(running) = &self.running {
            ranks.kill_helper(running.pid);
        }
        if let Some(pid) = self.gpu_program {
            ranks.kill_helper(pid);
        }
        self.program = ProgramState::Failed("the ranks are being ended".to_owned());
        self.start_next(ranks);
    }

    /// Sends an answer to the launcher, and starts the program for the next question.
    pub(crate) fn on_answer(&mut self, ProgramAnswer(answer): ProgramAnswer, ranks: &mut Ranks) {
        if let Some(running) = self.running.take() {
            // It is not needed any more, and may not end by itself if a process keeps it waiting in the kernel.
            ranks.kill_helper(running.pid);
            // One that was killed has no words of its own for it.
            let answer = answer.map_err(|cause| match &self.program {
                ProgramState::Failed(reason) => reason.clone(),
                _ => cause,
            });
            self.answer(running.question, answer);
        }
        self.start_next(ranks);
    }

    fn answer(&self, id: u32, answer: Result<InspectionResult, String>) {
        let result = answer.unwrap_or_else(InspectionResult::Failed);
        self.to_launcher.send(&FromAgent::Inspected { id, result });
    }
}

/// Answer of the program.
pub(crate) struct ProgramAnswer(Result<InspectionResult, String>);

/// Starts the program. The agent reaps it together with the ranks.
fn start_program(
    path: &Path,
    processes: Vec<(Rank, Vec<u32>)>,
    subject: StackSubject,
) -> Result<(Pid, Reading), String> {
    let limit = match subject {
        StackSubject::Stacks { .. } => STACK_LIMIT,
        StackSubject::Collectives => COLLECTIVE_LIMIT,
    };
    let limit_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
    let order = frame::encode(&StackOrder { processes, subject, limit_ms });
    let order = order.map_err(|error| error.to_string())?;
    let failed = |error: io::Error| format!("cannot start {}: {error}", path.display());
    let (pid, stdin, [stdout, stderr]) = spawn_helper(&mut Command::new(path)).map_err(failed)?;
    let reading = tokio::spawn(async move {
        let conversation = async {
            Ok(match subject {
                StackSubject::Stacks { .. } => {
                    InspectionResult::Stacks(converse(order, stdin, stdout, stderr).await?)
                }
                StackSubject::Collectives => {
                    InspectionResult::Collectives(converse(order, stdin, stdout, stderr).await?)
                }
            })
        };
        let patience = limit + LEEWAY;
        let answer = timeout(patience, conversation).await;
        answer.unwrap_or_else(|_| Err(format!("no answer within {} s", patience.as_secs())))
    });
    Ok((pid, reading))
}

/// Sends the order to the program, and reads its answer or the reason why there is none.
async fn converse<T: DeserializeOwned>(
    order: Vec<u8>,
    mut stdin: pipe::Sender,
    mut stdout: pipe::Receiver,
    stderr: pipe::Receiver,
) -> Result<T, String> {
    // A program that has ended is noticed by the end of its stdout.
    let _ = stdin.write_all(&order).await;
    drop(stdin);
    // The answer's end is not that of the program, which ends late if a process keeps it waiting in the kernel.
    let (mut frames, mut received) = (FrameReader::default(), 0);
    let mut part = vec![0; PART];
    while received <= MAX_FRAME {
        let length = stdout.read(&mut part).await.map_err(|error| error.to_string())?;
        if length == 0 {
            break;
        }
        received += length;
        frames.push(&part[..length]);
        if let Some(answer) = frames.next_frame().map_err(|error| error.to_string())? {
            return Ok(answer);
        }
    }
    // What it has printed explains its end, if it printed anything.
    let mut words = Vec::new();
    let _ = stderr.take(MAX_WORDS).read_to_end(&mut words).await;
    let words = String::from_utf8_lossy(&words);
    let name = Helper::Stack.name();
    Err(match words.trim() {
        "" => format!("{name} has ended without an answer"),
        words => format!("{name} has ended: {words}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Runs a script as the program, and returns its answer.
    fn answer_of(script: &str) -> Result<InspectionResult, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (pid, reading) =
                start_program(&path, Vec::new(), StackSubject::Stacks { native: false }).unwrap();
            let answer = reading.await.unwrap();
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            let _ = nix::sys::wait::waitpid(pid, None);
            answer
        })
    }

    #[test]
    fn an_answer_is_taken_before_the_program_ends() {
        // A frame with an empty list.
        assert_eq!(
            answer_of("printf '\\001\\000\\000\\000\\000'; exec sleep 1000"),
            Ok(InspectionResult::Stacks(Vec::new()))
        );
    }

    #[test]
    fn a_program_without_an_answer_says_why() {
        let why = answer_of("echo no order >&2; exit 1").unwrap_err();
        assert_eq!(why, "rlaunch-stack has ended: no order");
        let why = answer_of("kill -KILL $$").unwrap_err();
        assert_eq!(why, "rlaunch-stack has ended without an answer");
    }
}
