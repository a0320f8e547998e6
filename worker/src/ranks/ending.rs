//! End of ranks and of what they leave: SIGTERM, the grace period, SIGKILL, and what is cleaned up once no process is left.

use crate::cleanup::cgroup::Cgroup;
use crate::cleanup::guardian::ENDING;
use crate::cleanup::helpers::HelperState;
use crate::cleanup::processes::{self, Children, TERM};
use crate::cleanup::shm;
use crate::ranks::{Phase, Ranks, written};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rlaunch_bootstrap::deadline::{CHECK_INTERVAL, Deadline};
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_bootstrap::protocol::control::{CleanupReceipt, FromAgent};
use std::time::{Duration, Instant};

/// Interval at which processes that exist after SIGKILL are killed again.
const KILL_RETRY: Duration = Duration::from_millis(20);
/// Time that killed processes have to disappear; after that they are reported.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);
/// Grace period of leftovers, the processes that outlive the ranks.
const LEFTOVER_GRACE: Duration = Duration::from_millis(200);
/// Longest time by which the clock of a file system is behind the one of processes.
const CLOCK_TICK: Duration = Duration::from_millis(20);

impl Ranks {
    /// Moves on to the next phase if possible: first when the last rank has ended, and again when
    /// the last leftover has ended.
    pub(super) fn advance(&mut self) {
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
    pub(super) fn end_helpers(&mut self) {
        match self.context.helpers.end() {
            HelperState::Gone | HelperState::Killed => self.advance(),
            HelperState::Stuck if self.phase != Phase::Over => self.start_draining(),
            HelperState::Stuck => {}
        }
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

    /// Kills all processes when the grace period is over. The period starts again if the host was
    /// suspended, since no process could handle SIGTERM then.
    pub(super) fn check_grace(&mut self, mut term: Deadline, now: Instant) {
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
    pub(super) fn kill_more(&mut self) {
        if matches!(self.phase, Phase::Killing { .. }) {
            self.kill_all();
        }
    }

    /// Reports processes that do not disappear after SIGKILL, and no longer waits for them.
    pub(super) fn give_up(&mut self) {
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
