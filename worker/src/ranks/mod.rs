//! The ranks of this node while they run: start, exit statuses, signals, shutdown and clean-up.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | [`Ranks`]: the state machine of all ranks of the node |
//! | `start.rs`, `ending.rs` | how it starts ranks; how it ends them and what they leave |
//! | `prepare.rs`, `paths.rs`, `interpreter.rs`, `files.rs`, `library.rs` | what ranks need before they start |
//! | `holder.rs` | the process that holds what a command beside a rank starts |
//! | `child.rs` | a rank's process: spawned through its stub, which sets itself up and executes the program |
//! | `stdin.rs`, `output.rs` | input from the launcher, output to it |
//! | `stream_ends.rs` | the agent's ends of streams, which no program can block it with |
//! | `pseudoterminal.rs` | terminals of commands beside ranks, and for the stdout of ranks |
//! | `sealed.rs` | copies of working trees that are what their seals say |
//! | `written.rs` | what ranks have written in a working tree |
//! | `session/` | commands beside a rank, and its debugger |
//! | `mpi_library.rs` | the process management interface that a program needs; MPI programs that would each run alone |

pub(crate) mod child;
mod ending;
pub(crate) mod files;
mod holder;
mod interpreter;
pub(crate) mod library;
pub(crate) mod mpi_library;
mod output;
mod paths;
pub(crate) mod prepare;
mod pseudoterminal;
pub(crate) mod sealed;
mod session;
mod start;
pub(crate) mod stdin;
pub(crate) mod stream_ends;
mod written;

pub(crate) use start::StartConfig;

use crate::cleanup::cgroup::{self, Cgroup};
use crate::cleanup::guardian::Grace;
use crate::cleanup::helpers::Helpers;
use crate::cleanup::{processes, usage};
use crate::network::frames::FrameSender;
use crate::network::mpi::{MpiIdentity, UnfinalizedRanks};
use crate::ranks::prepare::PreparedRanks;
use crate::ranks::session::Sessions;
use crate::ranks::stdin::Stdin;
use files::RankFiles;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rlaunch_bootstrap::deadline::Deadline;
use rlaunch_bootstrap::id::{JobId, LocalRank, Rank};
use rlaunch_bootstrap::job::{ExitStatus, RankSpec, TerminalSize};
use rlaunch_bootstrap::protocol::control::{CleanupReceipt, FromAgent, MAX_ERROR_FILE, Stream};
use rlaunch_bootstrap::protocol::inspection::{MAX_STACK_PROCESSES, RankUsage};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Phase of the node's ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// SIGTERM was sent; SIGKILL follows at this deadline.
    Ending(Deadline),
    /// SIGKILL was sent, and is sent again at `again`. Processes that exist at `kill_deadline` are
    /// reported and no longer waited for.
    Killing {
        kill_deadline: Deadline,
        again: Instant,
    },
    /// No process is left, but not all output has been sent.
    Draining,
    Over,
}

/// Ranks of this node, in all phases from their start to their clean-up.
pub(crate) struct Ranks {
    job: JobId,
    /// Copy of a working tree in which ranks run.
    tree: Option<PathBuf>,
    prepared: PreparedRanks,
    setup: StartConfig,
    running: Vec<(Rank, Pid)>,
    /// Pseudoterminals of ranks that run.
    terminals: Vec<(Rank, OwnedFd)>,
    /// Size of the user's terminal, once it has changed.
    terminal_size: Option<TerminalSize>,
    /// Ranks that have not been started, because their application waits for another one. Each has
    /// the index of its own application.
    waiting: Vec<(u32, RankSpec)>,
    /// Ranks that are about to start.
    due: VecDeque<RankSpec>,
    /// Signals of the user that came meanwhile, in the order in which they came first.
    held_signals: Vec<Signal>,
    /// No credit for standard input was granted yet.
    awaits_input: bool,
    /// Numbers on the node of all ranks, by which `setup` has their settings.
    local_ranks: BTreeMap<Rank, LocalRank>,
    sessions: Sessions,
    files: RankFiles,
    /// Helper processes, cgroup and grace period of the ranks.
    context: ProcessContext,
    pumps: JoinSet<()>,
    stdin: Stdin,
    /// Whether output is sent with the time at which it was read.
    stamped: bool,
    /// Whether stderr of ranks is merged into their stdout.
    merged: bool,
    /// Becomes true when no process of the job is left.
    abandoned: watch::Sender<bool>,
    to_launcher: FrameSender,
    hello_at: Instant,
    /// Time at which the ranks started.
    started_at: SystemTime,
    oom_kills: cgroup::OomKillCount,
    kill_after: Duration,
    phase: Phase,
    /// Processes that have been sent SIGTERM.
    sent_term: HashSet<Pid>,
    /// Ranks' processes that were exiting already when the ranks were sent SIGTERM.
    exiting: HashSet<Pid>,
    receipt: CleanupReceipt,
    /// Whether running ranks are checked for MPI libraries.
    checks_for_mpi: bool,
    /// Whether ranks are offered a process manager.
    serves_mpi: bool,
    /// Times of the remaining checks for MPI, latest first.
    mpi_checks: Vec<Instant>,
    changes: VecDeque<RankChange>,
}

/// Processes and resources around the ranks: the helpers, the cgroup, the grace period, and the data
/// for MPI.
#[derive(Debug)]
pub(crate) struct ProcessContext {
    pub(crate) helpers: Helpers,
    /// Cgroup of the ranks, if one could be created.
    pub(crate) cgroup: Option<Cgroup>,
    /// Memory from which the guardian reads the grace period of the ranks.
    pub(crate) grace: Grace,
    /// Directory of the job on this node; `None` if it has none.
    pub(crate) workspace: Option<PathBuf>,
    /// Data for the environment of MPI ranks.
    pub(crate) mpi: MpiIdentity,
    pub(crate) unfinalized: UnfinalizedRanks,
    /// Time at which the job came, before which a working tree was copied to this node.
    pub(crate) job_at: SystemTime,
}

/// Change in the state of a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RankChange {
    Started(Rank, u32),
    Ended(Rank, ExitStatus),
}

impl Ranks {
    /// Returns the path of the file in which a rank may leave its error.
    fn error_file(&self, rank: Rank) -> Option<PathBuf> {
        self.context
            .workspace
            .as_ref()
            .map(|directory| directory.join(format!("error-{rank}.json")))
    }

    /// Prints a text on the standard error of a rank, as if the rank had printed it.
    pub(crate) fn print(&mut self, rank: Rank, text: &str) {
        let (to_launcher, text) = (self.to_launcher.clone(), format!("{text}\n").into_bytes());
        self.pumps.spawn(async move {
            to_launcher.output(rank, Stream::Stderr, None, text).await;
        });
    }

    /// Says that streams of this node wait for a thread, which is refused with this error.
    pub(crate) fn say_held_up(&mut self, error: &io::Error) {
        let Some(&(rank, _)) = self.running.first() else { return };
        let limit = processes::reached_limit(error);
        let hint = limit.map(|limit| format!("\nhint: {limit}")).unwrap_or_default();
        let text = "what ranks print here and read from stdin waits: programs hold up each thread that passes it on, by \
                    splice(2) with a socket, and another cannot be started";
        self.print(rank, &format!("rlaunch: {text}: {error}{hint}"));
    }

    /// Returns what the running ranks use.
    pub(crate) fn usage(&self) -> Vec<RankUsage> {
        usage::usage_of_ranks(&self.running, self.context.workspace.as_deref())
    }

    /// Queues input for the ranks that read stdin; empty data ends the input.
    pub(crate) fn feed_stdin(&mut self, data: Vec<u8>) {
        self.stdin.push(data);
    }

    /// Returns the next change in the state of a rank, to be reported over the tree of agents.
    pub(crate) fn poll_change(&mut self) -> Option<RankChange> {
        self.changes.pop_front()
    }

    /// Reports the end of a rank. Whether it has ended by itself depends on the phase of the job.
    fn report_end(&mut self, rank: Rank, pid: Pid, status: ExitStatus) {
        self.changes.push_back(RankChange::Ended(rank, status));
        self.terminals.retain(|(of, _)| *of != rank);
        let at_us = u64::try_from(self.hello_at.elapsed().as_micros()).unwrap_or(u64::MAX);
        let killed = status == ExitStatus::Signal(Signal::SIGKILL as i32);
        let out_of_memory = killed && self.phase == Phase::Running && self.oom_kills.has_grown();
        let unfinalized = self.context.unfinalized.borrow().contains(rank);
        self.context.unfinalized.borrow_mut().remove(rank);
        let by_itself = self.phase == Phase::Running || self.exiting.contains(&pid);
        let left = self.error_file(rank).filter(|_| !status.success());
        if let Some(content) = left.and_then(|path| files::read_small(&path, MAX_ERROR_FILE)) {
            self.to_launcher.send(&FromAgent::RankError { rank, content });
        }
        self.to_launcher.send(&FromAgent::Exited {
            rank,
            pid: pid.as_raw().cast_unsigned(),
            status,
            out_of_memory,
            unfinalized,
            by_itself,
            at_us,
        });
    }

    /// Reaps children that have ended, reports the ranks among them, and moves on to the next phase
    /// if possible.
    pub(crate) fn reap(&mut self) {
        self.reap_children();
        self.advance();
    }

    /// Reaps children that have ended, and reports the ranks among them.
    fn reap_children(&mut self) {
        for (pid, status) in processes::reap() {
            self.context.helpers.on_reaped(pid);
            self.sessions.on_child_ended(pid, status);
            let Some(at) = self.running.iter().position(|&(_, running)| running == pid) else {
                continue;
            };
            let (rank, pid) = self.running.swap_remove(at);
            self.report_end(rank, pid, status);
        }
    }

    /// Tells whether every rank has ended and no rank is waiting to start. Leftovers may still
    /// exist.
    pub(crate) fn have_ended(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.due.is_empty()
    }

    /// Adds a helper.
    pub(crate) fn add_helper(&mut self, pid: Pid) {
        self.context.helpers.add(pid);
    }

    /// Kills a helper, unless it has ended.
    pub(crate) fn kill_helper(&self, pid: Pid) {
        self.context.helpers.kill(pid);
    }

    /// Tells whether the ranks are being ended, or have ended.
    pub(crate) fn are_ending(&self) -> bool {
        self.phase != Phase::Running || self.have_ended()
    }

    /// Lists the running ranks that are asked for, or all for an empty list, each with its processes: its own first.
    pub(crate) fn processes_of(&self, wanted: &[Rank]) -> Vec<(Rank, Vec<u32>)> {
        let is_wanted = |rank: &Rank| wanted.is_empty() || wanted.contains(rank);
        let found = self.running.iter().filter(|(rank, _)| is_wanted(rank));
        let number = |pid: Pid| pid.as_raw().cast_unsigned();
        let found = found.map(|&(rank, pid)| {
            let below =
                processes::list_descendants_of(pid).into_iter().filter(|&other| other != pid);
            let all = std::iter::once(pid).chain(below).take(MAX_STACK_PROCESSES);
            (rank, all.map(number).collect())
        });
        found.collect()
    }

    /// Forwards a signal from the user to every rank: once the last has started, if some are starting.
    pub(crate) fn forward_signal(&mut self, signal: i32) {
        let Ok(signal) = Signal::try_from(signal) else { return };
        if !self.held_signals.contains(&signal) {
            self.held_signals.push(signal);
        }
        if !self.are_starting() {
            self.pass_held_signals();
        }
    }

    /// Sends the signals that were held to all ranks that run.
    fn pass_held_signals(&mut self) {
        for signal in std::mem::take(&mut self.held_signals) {
            self.running.iter().for_each(|&(_, pid)| processes::signal_rank(pid, signal));
        }
    }

    /// Gives the ranks' terminals the size of the user's, and tells all ranks. The kernel tells only processes that a
    /// terminal controls.
    pub(crate) fn resize(&mut self, size: TerminalSize) {
        self.terminal_size = Some(size);
        for (_, terminal) in &self.terminals {
            // Fails if the terminal is gone.
            let _ = pseudoterminal::set_size(terminal, size);
        }
        self.forward_signal(Signal::SIGWINCH as i32);
    }

    /// Sends signals to every process of the job.
    pub(crate) fn signal_all(&self, signals: &[Signal]) {
        processes::signal_all(signals, self.context.helpers.pids());
    }

    /// Returns the time at which [`Ranks::on_deadline`] must be called next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let of_phase = match self.phase {
            Phase::Ending(term) => Some(term.next_check()),
            Phase::Killing { again, .. } => Some(again),
            Phase::Running => self.mpi_checks.last().copied(),
            Phase::Draining | Phase::Over => None,
        };
        let timers = of_phase.into_iter().chain(self.context.helpers.kill_at());
        timers.chain(self.sessions.deadline()).min()
    }

    /// Performs the actions that are due by now.
    pub(crate) fn on_deadline(&mut self) {
        let now = Instant::now();
        if self.context.helpers.kill_at().is_some_and(|at| now >= at) {
            self.end_helpers();
        }
        self.sessions.on_deadline(now);
        match self.phase {
            Phase::Running => self.check_for_mpi(now),
            Phase::Ending(term) if now >= term.next_check() => self.check_grace(term, now),
            Phase::Killing { mut kill_deadline, again } if now >= again => {
                // A suspension of the host moves the deadline.
                let is_over = kill_deadline.has_expired(now);
                self.phase = Phase::Killing { kill_deadline, again };
                self.reap();
                if is_over { self.give_up() } else { self.kill_more() }
            }
            Phase::Draining if self.pumps.is_empty() => self.phase = Phase::Over,
            _ => {}
        }
    }

    /// Tells whether every rank has ended, no process of the job is left on this node, and all
    /// output is queued for the launcher.
    pub(crate) fn are_over(&self) -> bool {
        self.phase == Phase::Over
    }
}
