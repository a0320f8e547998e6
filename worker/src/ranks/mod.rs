//! The ranks of this node while they run: start, exit statuses, signals, shutdown and clean-up.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | [`Ranks`]: the state machine of all ranks of the node |
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
pub(crate) mod stdin;
pub(crate) mod stream_ends;
mod written;

use crate::cleanup::cgroup::{self, Cgroup};
use crate::cleanup::guardian::{ENDING, Grace};
use crate::cleanup::helpers::{HelperState, Helpers};
use crate::cleanup::processes::{self, Children, TERM};
use crate::cleanup::{shm, usage};
use crate::network::frames::FrameSender;
use crate::network::mpi::{MpiIdentity, UnfinalizedRanks};
use crate::node::environment;
use crate::ranks::child::{Child, Streams};
use crate::ranks::prepare::{PreparedRanks, Program};
use crate::ranks::session::Sessions;
use crate::ranks::stdin::Stdin;
use files::RankFiles;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use output::{RankStream, pump};
use rlaunch_bootstrap::deadline::{CHECK_INTERVAL, Deadline};
use rlaunch_bootstrap::env::TORCHELASTIC_ERROR_FILE;
use rlaunch_bootstrap::id::{JobId, LocalRank, Rank};
use rlaunch_bootstrap::job::{
    AwaitedPort, ExitStatus, Job, MpiInterfaces, RankSetup, RankSpec, SingletonPolicy,
    TerminalSize, below_home,
};
use rlaunch_bootstrap::protocol::control::{CleanupReceipt, FromAgent, MAX_ERROR_FILE, Stream};
use rlaunch_bootstrap::protocol::inspection::{MAX_STACK_PROCESSES, RankUsage};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};
use std::{env, io};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Interval at which processes that exist after SIGKILL are killed again.
const KILL_RETRY: Duration = Duration::from_millis(20);
/// Time that killed processes have to disappear; after that they are reported.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);
/// Grace period of leftovers, the processes that outlive the ranks.
const LEFTOVER_GRACE: Duration = Duration::from_millis(200);

/// Longest time by which the clock of a file system is behind the one of processes.
const CLOCK_TICK: Duration = Duration::from_millis(20);
/// Time after which the start of further ranks waits for other events to be heard and said.
const START_SLICE: Duration = Duration::from_millis(200);

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

/// Configuration of the ranks that is known only after every node was prepared.
#[derive(Debug)]
pub(crate) struct StartConfig {
    /// Setup of each rank, by local rank.
    pub(crate) ranks: Vec<RankSetup>,
    /// Port of this node at which its Horovod ranks reach their key-value store.
    pub(crate) horovod: Option<u16>,
    /// Ports that this node has to try, because applications wait for them.
    pub(crate) ports: Vec<AwaitedPort>,
    /// Indices of the applications that were released before the start.
    pub(crate) released: Vec<u32>,
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
    /// Starts every rank of the node except those of applications that start only on request. A
    /// rank that cannot be spawned is reported with exit code 126.
    pub(crate) fn start(
        job: &Job,
        mut prepared: PreparedRanks,
        mut setup: StartConfig,
        to_launcher: &FrameSender,
        hello_at: Instant,
        context: ProcessContext,
    ) -> Ranks {
        // Freed as late as possible: the ranks bind these ports next.
        prepared.reserved_ports.clear();
        if !prepared.can_bind {
            // Memory of one node would be no nearer to CPUs of any.
            setup.ranks.iter_mut().for_each(|own| (own.cpus, own.memory_node) = (None, None));
        }
        let checks_for_mpi = job.world_size > 1 && job.singleton != SingletonPolicy::Ignore;
        let mut ranks = Ranks {
            job: job.id,
            tree: job.tree.as_ref().map(|tree| below_home(tree, env::var_os("HOME").as_deref())),
            prepared,
            setup,
            waiting: Vec::new(),
            due: VecDeque::new(),
            held_signals: Vec::new(),
            awaits_input: true,
            local_ranks: job.ranks.iter().map(|spec| (spec.rank, spec.local_rank)).collect(),
            sessions: Sessions::new(to_launcher, context.workspace.clone()),
            files: RankFiles::default(),
            running: Vec::with_capacity(job.ranks.len()),
            terminals: Vec::new(),
            terminal_size: None,
            context,
            pumps: JoinSet::new(),
            stdin: Stdin::new(to_launcher),
            stamped: job.stamp_output,
            merged: job.merge_stderr,
            abandoned: watch::Sender::new(false),
            to_launcher: to_launcher.clone(),
            hello_at,
            started_at: SystemTime::now(),
            oom_kills: cgroup::OomKillCount::now(),
            kill_after: Duration::from_millis(job.kill_after_ms.into()),
            phase: Phase::Running,
            sent_term: HashSet::new(),
            exiting: HashSet::new(),
            receipt: CleanupReceipt::default(),
            checks_for_mpi,
            serves_mpi: job.mpi != MpiInterfaces::None,
            mpi_checks: mpi_library::check_times(checks_for_mpi),
            changes: VecDeque::new(),
        };
        ranks.context.grace.grant(ranks.kill_after);
        for spec in &job.ranks {
            let application = job.applications.get(spec.application as usize);
            match application
                .filter(|a| a.starts_on_request && !ranks.setup.released.contains(&a.index))
            {
                Some(application) => ranks.waiting.push((application.index, spec.clone())),
                None => ranks.due.push_back(spec.clone()),
            }
        }
        ranks.start_due();
        ranks
    }

    /// Starts ranks that are due, those of the first moments: of many, the others follow when the caller has heard and said
    /// what there is, since a launcher that hears nothing for long counts the host as lost.
    pub(crate) fn start_due(&mut self) {
        let until = Instant::now() + START_SLICE;
        while let Some(spec) = self.due.pop_front() {
            self.start_one(&spec);
            if Instant::now() >= until && self.are_starting() {
                return;
            }
        }
        if std::mem::take(&mut self.awaits_input) {
            self.stdin.grant_first_credit();
        }
        self.pass_held_signals();
        self.mpi_checks = mpi_library::check_times(self.checks_for_mpi);
        self.advance();
    }

    /// Tells whether some ranks have not started yet that are due.
    pub(crate) fn are_starting(&self) -> bool {
        !self.due.is_empty()
    }

    /// Starts the ranks of an application that was waiting, unless the job is ending.
    pub(crate) fn start_application(&mut self, index: u32) {
        if self.phase != Phase::Running {
            return;
        }
        let waiting = std::mem::take(&mut self.waiting);
        let (due, waiting): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(of, _)| *of == index);
        self.waiting = waiting;
        self.due.extend(due.into_iter().map(|(_, spec)| spec));
        self.start_due();
    }

    /// Starts a rank, or reports that it cannot be started.
    fn start_one(&mut self, spec: &RankSpec) {
        let rank = spec.rank;
        let own = self.setup.ranks.get(spec.local_rank.index()).cloned().unwrap_or_default();
        let Some(program) = self.prepared.programs.get(spec.application as usize) else { return };
        let mut env = environment::for_rank(&program.env, spec.env.iter(), &own.defaults);
        if let Some(path) = self.error_file(rank) {
            env.entry(TORCHELASTIC_ERROR_FILE.into()).or_insert(path.into());
        }
        for (name, value) in self.mpi_environment(spec, program) {
            env.entry(name.into()).or_insert_with(|| value.into());
        }
        env.extend(own.rendered_env.iter().cloned());
        if let Some(workspace) = &self.context.workspace {
            environment::add_recorder_pipe(&mut env, workspace);
        }
        let streams = Streams { stdin: spec.stdin, stdout: program.stdout, merged: self.merged };
        let written = self.files.write(&own.files, &program.directory);
        let cgroup = self.context.cgroup.as_mut();
        match written.and_then(|()| child::spawn(program, &own, &env, streams, cgroup)) {
            Ok(child) => self.on_started(spec, child),
            Err(error) => {
                let program = program.path.display();
                let limit = processes::reached_limit(&error);
                let hint = limit.map(|limit| format!("\nhint: {limit}")).unwrap_or_default();
                self.print(rank, &format!("rlaunch: cannot start {program}: {error}{hint}"));
                if spec.stdin {
                    self.stdin.add(None);
                }
                // It has no process, and the exit code that a shell has for a program that cannot be executed.
                self.report_end(rank, Pid::from_raw(0), ExitStatus::Code(126));
            }
        }
    }

    fn on_started(&mut self, spec: &RankSpec, mut child: Child) {
        let (rank, pid) = (spec.rank, child.pid.as_raw().cast_unsigned());
        self.to_launcher.send(&FromAgent::Started { rank, pid });
        self.changes.push_back(RankChange::Started(rank, pid));
        self.running.push((rank, child.pid));
        if spec.stdin {
            self.stdin.add(child.stdin.take());
        }
        if let Some(terminal) = child.terminal() {
            if let Some(size) = self.terminal_size {
                // Fails if the terminal is gone.
                let _ = pseudoterminal::set_size(&terminal, size);
            }
            self.terminals.push((rank, terminal));
        }
        let stderr = child.stderr.map(|stderr| (Stream::Stderr, stderr));
        for (stream, pipe) in [(Stream::Stdout, child.stdout)].into_iter().chain(stderr) {
            let source = RankStream { rank, stream, stamped: self.stamped };
            let abandoned = self.abandoned.subscribe();
            self.context.grace.outputs.hand_over(pipe.as_fd());
            self.pumps.spawn(pump(source, pipe, self.to_launcher.clone(), abandoned));
        }
    }

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

    /// Returns the variables by which a rank finds its process manager, if the program runs MPI.
    fn mpi_environment(&self, spec: &RankSpec, program: &Program) -> Vec<(String, String)> {
        self.context.mpi.environment(spec, program.mpi)
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

    /// Moves on to the next phase if possible: first when the last rank has ended, and again when
    /// the last leftover has ended.
    fn advance(&mut self) {
        if !self.have_ended() || matches!(self.phase, Phase::Draining | Phase::Over) {
            return;
        }
        let cgroup = self.context.cgroup.as_ref().filter(|cgroup| cgroup.is_populated());
        let children = Children::now();
        let left = match (children, cgroup) {
            (Children::None, None) => return self.start_draining(),
            (Children::None, Some(cgroup)) => cgroup.members(),
            _ => processes::descendants(self.context.helpers.pids()),
        };
        if left.is_empty() && children == Children::Ended {
            // SIGCHLD for that child is pending, and leads back here.
            return;
        }
        if left.is_empty() && !self.context.helpers.pids().is_empty() {
            self.context.helpers.await_exit(Instant::now());
            return;
        }
        match self.phase {
            Phase::Running => {
                let of_ranks = left.iter().filter(|&&pid| !self.sessions.has_started(pid)).count();
                self.receipt.leftovers_ended = u32::try_from(of_ranks).unwrap_or(u32::MAX);
                self.terminate(LEFTOVER_GRACE.min(self.kill_after));
            }
            Phase::Ending(term) => {
                self.terminate_orphans(&left);
                // Commands beside ranks do not make the end of the job last longer.
                let soon = Deadline::after(LEFTOVER_GRACE, Instant::now());
                if soon.due() < term.due() && left.iter().all(|&pid| self.sessions.has_started(pid))
                {
                    self.kill_by(soon.checked_every(CHECK_INTERVAL));
                }
            }
            // `on_deadline` kills what is left again.
            _ => {}
        }
    }

    /// Sends SIGTERM to processes that have lost their parent, unless they have received it before.
    /// They get the rest of the grace period: if a rank is a shell, the shell ends immediately,
    /// while the programs that it has started do the work. Programs that are started in order to
    /// clean up still have a parent and get no signal.
    fn terminate_orphans(&mut self, left: &[Pid]) {
        for &pid in left {
            if processes::parent(pid) == Some(Pid::this()) && self.sent_term.insert(pid) {
                processes::signal_one(pid, TERM);
            }
        }
    }

    /// Stops waiting for processes. Output that they have written is still sent.
    fn start_draining(&mut self) {
        self.phase = if self.pumps.is_empty() { Phase::Over } else { Phase::Draining };
        self.abandoned.send_replace(true);
    }

    /// Ends helpers that were shut down and have not exited.
    fn end_helpers(&mut self) {
        match self.context.helpers.end() {
            HelperState::Gone | HelperState::Killed => self.advance(),
            HelperState::Stuck if self.phase != Phase::Over => self.start_draining(),
            HelperState::Stuck => {}
        }
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

    /// Ends every rank and the processes that it started: with SIGTERM, and with SIGKILL after the
    /// grace period; or with SIGKILL immediately if `now` is set.
    pub(crate) fn end(&mut self, now: bool) {
        // Those that run get what came before. The others never start.
        self.pass_held_signals();
        match self.phase {
            Phase::Running if !now => self.terminate(self.kill_after),
            Phase::Running | Phase::Ending(_) if now => self.kill_all(),
            // They are being ended already.
            _ => {}
        }
        if !self.waiting.is_empty() || self.are_starting() {
            // If nothing is running, no exit status will trigger the next phase.
            self.waiting.clear();
            self.due.clear();
            self.advance();
        }
    }

    /// Sends SIGTERM to every process of the job, and SIGKILL after this time.
    fn terminate(&mut self, grace: Duration) {
        // Exited processes need not be signalled.
        self.reap_children();
        let running = self.running.iter().map(|&(_, pid)| pid);
        self.exiting = running.filter(|&pid| processes::is_exiting(pid)).collect();
        self.sessions.hang_up();
        self.sent_term = processes::signal_all(TERM, self.context.helpers.pids());
        // A `reap` that finds this agent hanging sees by the name that TERM was already sent.
        let _ = prctl::set_name(ENDING);
        self.kill_by(Deadline::after(grace, Instant::now()).checked_every(CHECK_INTERVAL));
    }

    fn kill_by(&mut self, term: Deadline) {
        self.context.grace.kill_at(term.due());
        self.phase = Phase::Ending(term);
    }

    fn kill_all(&mut self) {
        let now = Instant::now();
        let (kill_deadline, is_first) = match self.phase {
            Phase::Killing { kill_deadline, .. } => (kill_deadline, false),
            _ => (Deadline::after(KILL_TIMEOUT, now).checked_every(CHECK_INTERVAL), true),
        };
        self.context.grace.kill_at(now);
        self.phase = Phase::Killing { kill_deadline, again: now + KILL_RETRY };
        if let Some(cgroup) = &self.context.cgroup {
            cgroup.kill();
        }
        // Killing by the cgroup is enough at first, and spares the helpers.
        if self.context.cgroup.is_none() || !is_first {
            let helpers = self.context.helpers.pids().to_vec();
            processes::kill_all(&helpers, || self.reap_children());
            self.advance();
        }
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

    /// Kills all processes when the grace period is over. The period starts again if the host was
    /// suspended, since no process could handle SIGTERM then.
    fn check_grace(&mut self, mut term: Deadline, now: Instant) {
        let before = term.restarts();
        if term.has_expired(now) {
            return self.kill_all();
        }
        self.kill_by(term);
        if term.restarts() > before {
            self.to_launcher.send(&FromAgent::GraceRestarted);
        }
    }

    /// Kills what is left, unless nothing was and the phase is another by now.
    fn kill_more(&mut self) {
        if matches!(self.phase, Phase::Killing { .. }) {
            self.kill_all();
        }
    }

    /// Reports processes that do not disappear after SIGKILL, and no longer waits for them.
    fn give_up(&mut self) {
        if matches!(self.phase, Phase::Killing { .. }) {
            self.receipt.left = processes::describe_left(self.context.helpers.pids());
            let members = self.context.cgroup.as_ref().map(Cgroup::members).unwrap_or_default();
            if self.receipt.left.is_empty() {
                self.receipt.left = members.into_iter().map(processes::describe).collect();
            }
            for (rank, pid) in std::mem::take(&mut self.running) {
                self.report_end(rank, pid, ExitStatus::Signal(Signal::SIGKILL as i32));
            }
            self.pumps.abort_all();
            self.phase = Phase::Draining;
        }
    }

    /// Resolves when all output is sent. Waits forever in phases other than `Draining`.
    pub(crate) async fn drained(&mut self) {
        if self.phase != Phase::Draining {
            return std::future::pending().await;
        }
        while self.pumps.join_next().await.is_some() {}
    }

    /// Tells whether every rank has ended, no process of the job is left on this node, and all
    /// output is queued for the launcher.
    pub(crate) fn are_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Removes files, cgroup and shared memory of the ranks. `segments` has names of files in shared memory
    /// that are the ranks'. Returns the result of the clean-up.
    pub(crate) async fn finish(mut self, segments: &[String]) -> CleanupReceipt {
        self.pumps.shutdown().await;
        self.stdin.shut_down().await;
        self.sessions.shut_down().await;
        self.files.remove();
        drop(self.context.cgroup.take());
        let of_job = shm::sweep_job(&self.job.to_string(), segments);
        let swept = shm::sweep(self.started_at);
        self.receipt.segments_removed = swept.removed + of_job;
        self.receipt.segments_unclaimed = swept.unclaimed;
        if let Some(tree) = &self.tree {
            let since = (self.started_at - CLOCK_TICK).max(self.context.job_at);
            self.receipt.written = written::since(tree, since);
        }
        self.receipt
    }
}
