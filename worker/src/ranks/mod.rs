//! The ranks of this node while they run: started together, reaped, ended, and cleared up after.

pub(crate) mod awaited_ports;
pub(crate) mod child;
pub(crate) mod exec_rank;
pub(crate) mod library;
pub(crate) mod prepare;
pub(crate) mod pump;
pub(crate) mod rank_files;
pub(crate) mod singleton;
pub(crate) mod stdin;

use crate::cleanup::cgroup::Cgroup;
use crate::cleanup::grace::{ENDING, Grace};
use crate::cleanup::processes::{self, Children, TERM};
use crate::cleanup::shm;
use crate::network::outbox::Outbox;
use crate::node::environment;
use crate::node::oom;
use crate::ranks::child::Streams;
use crate::ranks::prepare::Prepared;
use crate::ranks::pump::{RankStream, pump};
use crate::ranks::rank_files::RankFiles;
use crate::ranks::stdin::Stdin;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_bootstrap::deadline::{Deadline, LOOK};
use rlaunch_bootstrap::id::{JobId, Rank};
use rlaunch_bootstrap::job::{AwaitedPort, ExitStatus, Job, RankSetup, RankSpec, Singleton};
use rlaunch_bootstrap::protocol::control::{FromAgent, Receipt, Stream};
use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Between two mpi_checks at what KILL has left.
const KILL_RETRY: Duration = Duration::from_millis(20);
/// How long a killed process may take to vanish before it is reported instead.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the prover may take to end once it was prover_kill_at.
const PROVER_EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long helpers that outlive a rank may take to end on TERM.
const LEFTOVER_GRACE: Duration = Duration::from_millis(200);

/// Where the ranks are on their way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// TERM was sent; KILL follows after this.
    Ending(Deadline),
    /// KILL has been sent; what is there after `vanish` is given up.
    Killing {
        vanish: Deadline,
        again: Instant,
    },
    /// No process is left; output is on its way.
    Draining,
    Over,
}

/// The running ranks of a node.
pub(crate) struct Ranks {
    job: JobId,
    prepared: Prepared,
    setup: StartConfig,
    running: Vec<(Rank, Pid)>,
    /// Those of applications that wait for others, with the number of their application.
    waiting: Vec<(u32, RankSpec)>,
    files: RankFiles,
    /// Where they run, and beside whom.
    context: ProcessContext,
    /// When the prover is killed, once nothing else is left.
    prover_kill_at: Option<Instant>,
    prover_killed: bool,
    pumps: JoinSet<()>,
    stdin: Stdin,
    /// Output says when it was read.
    stamped: bool,
    /// Standard error of ranks comes with their standard output.
    merged: bool,
    /// Set when no process of the job is left.
    abandoned: watch::Sender<bool>,
    outbox: Outbox,
    hello_at: Instant,
    /// When the ranks started.
    started_at: SystemTime,
    oom_kills: oom::OomKillCount,
    kill_after: Duration,
    phase: Phase,
    /// The processes that have had TERM.
    sent_term: HashSet<Pid>,
    receipt: Receipt,
    /// Whether running ranks are looked at for MPI.
    checks_for_mpi: bool,
    /// When that is, latest first.
    mpi_checks: Vec<Instant>,
    changes: VecDeque<RankChange>,
}

/// What was known only when every node was prepared.
#[derive(Debug)]
pub(crate) struct StartConfig {
    /// Variables for every rank.
    pub(crate) env: Vec<(String, String)>,
    /// By local rank.
    pub(crate) ranks: Vec<RankSetup>,
    /// The port of this node by which its Horovod ranks reach their store.
    pub(crate) horovod: Option<u16>,
    /// What applications wait for and this node mpi_checks for.
    pub(crate) ports: Vec<AwaitedPort>,
    /// Applications that need not wait any more.
    pub(crate) released: Vec<u32>,
}

/// Where ranks run on this node.
#[derive(Debug)]
pub(crate) struct ProcessContext {
    /// The prover, which is not of the program: a child of this process that is left alone.
    pub(crate) prover: Option<Pid>,
    /// Their cgroup, where they may have one.
    pub(crate) cgroup: Option<Cgroup>,
    /// Memory by which the guardian knows their grace.
    pub(crate) grace: Grace,
}

/// What became of a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RankChange {
    Started(Rank, u32),
    Ended(Rank, ExitStatus),
}

impl Ranks {
    /// Starts every rank of the node but those whose application waits. One that cannot be spawned
    /// counts as ended with 126.
    pub(crate) fn start(
        job: &Job,
        mut prepared: Prepared,
        setup: StartConfig,
        outbox: &Outbox,
        hello_at: Instant,
        context: ProcessContext,
    ) -> Ranks {
        // Released as late as can be: the ranks bind them next.
        prepared.held_ports.clear();
        let checks_for_mpi = job.world_size > 1 && job.singleton != Singleton::Ignore;
        let mut ranks = Ranks {
            job: job.id,
            prepared,
            setup,
            waiting: Vec::new(),
            files: RankFiles::default(),
            running: Vec::with_capacity(job.ranks.len()),
            context,
            prover_kill_at: None,
            prover_killed: false,
            pumps: JoinSet::new(),
            stdin: Stdin::new(outbox),
            stamped: job.stamp_output,
            merged: job.merge_stderr,
            abandoned: watch::Sender::new(false),
            outbox: outbox.clone(),
            hello_at,
            started_at: SystemTime::now(),
            oom_kills: oom::OomKillCount::now(),
            kill_after: Duration::from_millis(job.kill_after_ms.into()),
            phase: Phase::Running,
            sent_term: HashSet::new(),
            receipt: Receipt::default(),
            checks_for_mpi,
            mpi_checks: mpi_checks(checks_for_mpi),
            changes: VecDeque::new(),
        };
        ranks.context.grace.grant(ranks.kill_after);
        for spec in &job.ranks {
            let application = job.applications.get(spec.application as usize);
            match application.filter(|a| a.waits && !ranks.setup.released.contains(&a.index)) {
                Some(application) => ranks.waiting.push((application.index, spec.clone())),
                None => ranks.start_one(spec),
            }
        }
        ranks.stdin.begin();
        ranks.advance();
        ranks
    }

    /// Starts the ranks of an application that had to wait, unless the job is ending.
    pub(crate) fn start_application(&mut self, index: u32) {
        if self.phase != Phase::Running {
            return;
        }
        let waiting = std::mem::take(&mut self.waiting);
        let (due, waiting): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(of, _)| *of == index);
        self.waiting = waiting;
        due.iter().for_each(|(_, spec)| self.start_one(spec));
        self.mpi_checks = mpi_checks(self.checks_for_mpi);
        self.advance();
    }

    fn start_one(&mut self, spec: &RankSpec) {
        let rank = spec.rank;
        let own = self.setup.ranks.get(spec.local_rank.index()).cloned().unwrap_or_default();
        let Some(program) = self.prepared.programs.get(spec.application as usize) else { return };
        let told = self.setup.env.iter().chain(&spec.env);
        let mut env = environment::for_rank(&program.env, told, &own.defaults);
        env.extend(own.env.iter().cloned());
        let streams = Streams { stdin: spec.stdin, merged: self.merged };
        let written = self.files.write(&own.files, &program.directory);
        let cgroup = self.context.cgroup.as_mut();
        match written.and_then(|()| child::spawn(program, &own, &env, streams, cgroup)) {
            Ok(mut child) => {
                let pid = child.pid.as_raw().cast_unsigned();
                self.outbox.send(&FromAgent::Started { rank, pid });
                self.changes.push_back(RankChange::Started(rank, pid));
                self.running.push((rank, child.pid));
                if spec.stdin {
                    self.stdin.add(child.stdin.take());
                }
                let stderr = child.stderr.map(|stderr| (Stream::Stderr, stderr));
                for (stream, pipe) in [(Stream::Stdout, child.stdout)].into_iter().chain(stderr) {
                    let source = RankStream { rank, stream, stamped: self.stamped };
                    let abandoned = self.abandoned.subscribe();
                    self.pumps.spawn(pump(source, pipe, self.outbox.clone(), abandoned));
                }
            }
            Err(error) => {
                let program = program.path.display();
                let line = format!("rlaunch: cannot start {program}: {error}\n").into_bytes();
                let outbox = self.outbox.clone();
                self.pumps.spawn(async move {
                    outbox.output((rank, Stream::Stderr), None, line).await;
                });
                if spec.stdin {
                    self.stdin.add(None);
                }
                self.report(rank, Pid::from_raw(0), ExitStatus::Code(126));
            }
        }
    }

    /// Standard input, for those ranks that read it; nothing ends it.
    pub(crate) fn feed(&mut self, data: Vec<u8>) {
        self.stdin.push(data);
    }

    /// What the neighbours have not been told yet.
    pub(crate) fn poll_change(&mut self) -> Option<RankChange> {
        self.changes.pop_front()
    }

    fn report(&mut self, rank: Rank, pid: Pid, status: ExitStatus) {
        self.changes.push_back(RankChange::Ended(rank, status));
        let at_us = u64::try_from(self.hello_at.elapsed().as_micros()).unwrap_or(u64::MAX);
        let pid = pid.as_raw().cast_unsigned();
        let killed = status == ExitStatus::Signal(Signal::SIGKILL as i32);
        let out_of_memory = killed && self.phase == Phase::Running && self.oom_kills.have_grown();
        self.outbox.send(&FromAgent::Exited { rank, pid, status, out_of_memory, at_us });
    }

    /// Collects children that ended, reports the ranks among them, and goes on from there.
    pub(crate) fn reap(&mut self) {
        self.collect();
        self.advance();
    }

    fn collect(&mut self) {
        for (pid, status) in child::reap() {
            if self.context.prover == Some(pid) {
                self.context.prover = None;
            }
            let Some(at) = self.running.iter().position(|&(_, running)| running == pid) else {
                continue;
            };
            let (rank, pid) = self.running.swap_remove(at);
            self.report(rank, pid, status);
        }
    }

    /// Whether every rank has ended, and none is to be started; what they started may be left.
    pub(crate) fn have_ended(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Moves on when the last rank has ended, and again when the last helper has.
    fn advance(&mut self) {
        if !self.have_ended() || matches!(self.phase, Phase::Draining | Phase::Over) {
            return;
        }
        let cgroup = self.context.cgroup.as_ref().filter(|cgroup| cgroup.is_populated());
        let children = Children::now();
        let left = match (children, cgroup) {
            (Children::None, None) => return self.drain(),
            (Children::None, Some(cgroup)) => cgroup.members(),
            _ => processes::descendants(self.context.prover),
        };
        if left.is_empty() && children == Children::Ended {
            // A signal is on its way that has it collected.
            return;
        }
        if left.is_empty() && self.context.prover.is_some() {
            self.prover_kill_at.get_or_insert_with(|| Instant::now() + PROVER_EXIT_TIMEOUT);
            return;
        }
        match self.phase {
            Phase::Running => {
                self.receipt.leftovers_ended = u32::try_from(left.len()).unwrap_or(u32::MAX);
                self.terminate(LEFTOVER_GRACE.min(self.kill_after));
            }
            Phase::Ending(_) => self.terminate_orphans(&left),
            _ => {}
        }
    }

    /// Sends TERM to helpers that have not had it and whose parents have ended. Those that are told keep
    /// the grace: a rank that is a shell ends at once, and what it has started does the work. What that
    /// starts in order to end well is its own.
    fn terminate_orphans(&mut self, left: &[Pid]) {
        for &pid in left {
            if processes::parent(pid) == Some(Pid::this()) && self.sent_term.insert(pid) {
                processes::signal_one(pid, TERM);
            }
        }
    }

    /// No process is left; what they have written is waited for.
    fn drain(&mut self) {
        self.phase = if self.pumps.is_empty() { Phase::Over } else { Phase::Draining };
        self.abandoned.send_replace(true);
    }

    /// Kills the prover, which was prover_kill_at and has not ended. One that cannot be killed is left to
    /// the guardian.
    fn end_prover(&mut self) {
        self.prover_kill_at = None;
        let is_child = |pid: &Pid| processes::parent(*pid) == Some(Pid::this());
        match self.context.prover.filter(is_child) {
            Some(prover) if !std::mem::replace(&mut self.prover_killed, true) => {
                let _ = kill(prover, Signal::SIGKILL);
                self.advance();
            }
            Some(_) if self.phase != Phase::Over => self.drain(),
            Some(_) => {}
            None => {
                self.context.prover = None;
                self.advance();
            }
        }
    }

    /// Ends every rank and whatever it started: TERM now and KILL after the grace, or KILL now.
    pub(crate) fn end(&mut self, now: bool) {
        match self.phase {
            Phase::Running if !now => self.terminate(self.kill_after),
            Phase::Running | Phase::Ending(_) if now => self.kill_all(),
            _ => {}
        }
        if !self.waiting.is_empty() {
            // Perhaps nothing runs here yet whose end would be noticed.
            self.waiting.clear();
            self.advance();
        }
    }

    fn terminate(&mut self, grace: Duration) {
        // The dead would only be in the way.
        self.collect();
        self.sent_term = processes::signal_all(TERM, self.context.prover);
        // Whoever finds this agent hanging sees that it needs not be done again.
        let _ = prctl::set_name(ENDING);
        self.end_by(Deadline::after(grace, Instant::now()).often(LOOK));
    }

    fn end_by(&mut self, term: Deadline) {
        self.context.grace.kill_at(term.due());
        self.phase = Phase::Ending(term);
    }

    fn kill_all(&mut self) {
        let now = Instant::now();
        let (vanish, is_first) = match self.phase {
            Phase::Killing { vanish, .. } => (vanish, false),
            _ => (Deadline::after(KILL_TIMEOUT, now).often(LOOK), true),
        };
        self.context.grace.kill_at(now);
        self.phase = Phase::Killing { vanish, again: now + KILL_RETRY };
        let has_cgroup = self.context.cgroup.as_ref().map(Cgroup::kill).is_some();
        if !(has_cgroup && is_first) {
            processes::kill_all(self.context.prover, || self.collect());
            self.advance();
        }
    }

    /// Passes a signal of the user's on to every rank, not to what it started: a shell forwards
    /// what it wants to.
    pub(crate) fn signal(&self, signal: i32) {
        if let Ok(signal) = Signal::try_from(signal) {
            for &(_, pid) in &self.running {
                let _ = kill(pid, signal);
            }
        }
    }

    /// Sends these to every process of the job.
    pub(crate) fn signal_all(&self, signals: &[Signal]) {
        processes::signal_all(signals, self.context.prover);
    }

    /// When [`Ranks::on_time`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let of_phase = match self.phase {
            Phase::Ending(term) => Some(term.look()),
            Phase::Killing { again, .. } => Some(again),
            Phase::Running => self.mpi_checks.last().copied(),
            Phase::Draining | Phase::Over => None,
        };
        of_phase.into_iter().chain(self.prover_kill_at).min()
    }

    /// Does what is due.
    pub(crate) fn on_deadline(&mut self) {
        let now = Instant::now();
        if self.prover_kill_at.is_some_and(|at| now >= at) {
            self.end_prover();
        }
        match self.phase {
            Phase::Running => self.check_for_mpi(now),
            Phase::Ending(term) if now >= term.look() => self.check_grace(term, now),
            Phase::Killing { mut vanish, again } if now >= again => {
                let is_over = vanish.is_over(now);
                self.phase = Phase::Killing { vanish, again };
                self.reap();
                if is_over { self.give_up() } else { self.kill_more() }
            }
            Phase::Draining if self.pumps.is_empty() => self.phase = Phase::Over,
            _ => {}
        }
    }

    /// KILLs when the grace is over. While the node stood still nothing of the job could act on TERM.
    fn check_grace(&mut self, mut term: Deadline, now: Instant) {
        let before = term.times_anew();
        if term.is_over(now) {
            return self.kill_all();
        }
        self.end_by(term);
        if term.times_anew() > before {
            self.outbox.send(&FromAgent::GraceAnew);
        }
    }

    /// Reports the first process that runs MPI; nobody serves it, so it believes to be alone.
    fn check_for_mpi(&mut self, now: Instant) {
        if self.mpi_checks.last().is_none_or(|&due| due > now) {
            return;
        }
        self.mpi_checks.pop();
        if let Some((pid, what)) = singleton::find_in_processes() {
            self.mpi_checks.clear();
            self.outbox.send(&FromAgent::Unserved { pid: pid.as_raw().cast_unsigned(), what });
        }
    }

    fn kill_more(&mut self) {
        if matches!(self.phase, Phase::Killing { .. }) {
            self.kill_all();
        }
    }

    /// Some process does not vanish, KILL or not: name it and leave without it.
    fn give_up(&mut self) {
        if matches!(self.phase, Phase::Killing { .. }) {
            self.receipt.left = processes::left(self.context.prover);
            let members = self.context.cgroup.as_ref().map(Cgroup::members).unwrap_or_default();
            if self.receipt.left.is_empty() {
                self.receipt.left = members.into_iter().map(processes::describe).collect();
            }
            for (rank, pid) in std::mem::take(&mut self.running) {
                self.report(rank, pid, ExitStatus::Signal(Signal::SIGKILL as i32));
            }
            self.pumps.abort_all();
            self.phase = Phase::Draining;
        }
    }

    /// Resolves once the streams have ended, when that is what is being waited for.
    pub(crate) async fn drained(&mut self) {
        if self.phase != Phase::Draining {
            return std::future::pending().await;
        }
        while self.pumps.join_next().await.is_some() {}
    }

    /// Whether every rank has ended, nothing is left of it and its output is on its way.
    pub(crate) fn are_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// What was verified at the end.
    pub(crate) async fn finish(mut self) -> Receipt {
        self.pumps.shutdown().await;
        self.stdin.shut_down().await;
        self.files.remove();
        drop(self.context.cgroup.take());
        let swept = shm::sweep(self.started_at);
        self.receipt.segments_removed = swept.removed + shm::sweep_job(&self.job.to_string());
        self.receipt.segments_unclaimed = swept.unclaimed;
        self.receipt
    }
}

/// When to look for MPI from now on; never, where one rank is all there is or the user does not
/// care.
fn mpi_checks(wanted: bool) -> Vec<Instant> {
    let now = Instant::now();
    let mpi_checks = singleton::CHECK_AFTER.iter().rev().map(|&after| now + after);
    mpi_checks.filter(|_| wanted).collect()
}
