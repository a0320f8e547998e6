//! The guardian: the process that the launcher started, with the agent as its child.
//!
//! The guardian has one task. When the agent dies, for whatever reason, the guardian inherits all
//! of the agent's descendants (it is their nearest subreaper) and ends them. If the agent did not
//! end in order, the descendants first get the rest of their grace period, in which threads of the guardian read
//! their output. Until then it has no threads; it opens no files and waits in one system call, so that
//! little can go wrong.
//!
//! Agent and guardian share the grace period, and the time when it ends, in memory ([`Grace`]), so that
//! the guardian knows how much is left when the agent dies.

use crate::cleanup::cgroup::Cgroup;
use crate::cleanup::outputs::{self, Outputs};
use crate::cleanup::processes::{self, Children};
use crate::cleanup::workspace::Workspace;
use crate::console::errln;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, dup2_stdin, dup2_stdout, setsid};
use rlaunch_bootstrap::deadline::{CHECK_INTERVAL, Deadline};
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_sys::{Fork, SharedMemory};
use std::ffi::CStr;
use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time that killed processes have to disappear. After that, the guardian exits without waiting for
/// them any longer.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval at which the guardian looks whether the agent has died without a word: no SIGCHLD comes as long as one of its
/// threads sleeps in the kernel, at a pipe that a rank holds.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Runs `agent` in a child process, and cleans up after its end.
pub(crate) fn guard(agent: impl FnOnce(&Workspace, Grace) -> ExitCode) -> ExitCode {
    let (workspace, grace) = (Workspace::choose(), Grace::share());
    let watched = SigSet::from_iter(WATCHED);
    // Blocked before the fork, so that no signal is lost; the child unblocks them.
    if let Err(error) = prctl::set_child_subreaper(true).and_then(|()| watched.thread_block()) {
        errln!("rlaunch-worker: cannot supervise the agent: {error}");
        return agent(&workspace, grace);
    }
    match rlaunch_sys::fork() {
        Ok(Fork::Child) => {
            // A fork inherits neither setting. The agent must adopt leftovers before the guardian
            // does, so that the agent sees them; and it ends the job in order if the guardian dies.
            let _ = prctl::set_child_subreaper(true);
            let _ = prctl::set_pdeathsig(Signal::SIGTERM);
            // One session for the agent and all its ranks, without a terminal: if the kernel
            // schedules by session (autogroup), ranks that share processors then yield to each
            // other. Cannot fail, since a forked child does not lead a process group.
            let _ = setsid();
            let _ = watched.thread_unblock();
            agent(&workspace, grace)
        }
        Ok(Fork::Parent(pid)) => {
            let code = guard_until_end(Pid::from_raw(pid), &watched, workspace.tag(), &grace);
            workspace.remove();
            code
        }
        Err(error) => {
            let limit = processes::reached_limit(&error).map(|limit| format!("; {limit}"));
            errln!("rlaunch-worker: cannot fork: {error}{}", limit.unwrap_or_default());
            ExitCode::FAILURE
        }
    }
}

/// Signals that the guardian waits for. Slurm sends the last two to the first process of a task, for the ranks.
const WATCHED: [Signal; 6] = [
    Signal::SIGCHLD,
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Waits until the agent ends, meanwhile forwards signals to it, and then ends the processes that
/// the agent has left. Returns the agent's exit code.
fn guard_until_end(agent: Pid, watched: &SigSet, tag: &str, grace: &Grace) -> ExitCode {
    release_channel();
    let watched_numbers = WATCHED.map(|signal| signal as i32);
    let mut was_dead = false;
    loop {
        let signal = rlaunch_sys::wait_for_signal(&watched_numbers, LOOK_INTERVAL)
            .and_then(|number| Signal::try_from(number).ok());
        if let Some(signal) = signal.filter(|signal| *signal != Signal::SIGCHLD) {
            let _ = kill(agent, signal);
        }
        let is_stuck = was_dead && signal.is_none();
        let stuck = || is_stuck.then_some(ExitCode::FAILURE);
        if let Some(code) = reap_looking_for(agent).or_else(stuck) {
            // An agent that has run the job to its end has removed its cgroup.
            let has_seen_it_out = code == ExitCode::SUCCESS;
            let cgroup = if has_seen_it_out { None } else { Cgroup::find_by_tag(tag) };
            // A TERM after the agent's death ends the grace period: its sender has waited already.
            if !has_seen_it_out && signal != Some(Signal::SIGTERM) {
                wait_out_grace(agent, cgroup.as_ref(), grace, watched);
            }
            clear_up(cgroup.as_ref());
            if let Some(cgroup) = cgroup {
                cgroup.remove();
            }
            return code;
        }
        was_dead = processes::has_ended(agent);
    }
}

/// Waits until all processes that the agent has left have ended, the grace period is over, or
/// SIGTERM arrives.
fn wait_out_grace(agent: Pid, cgroup: Option<&Cgroup>, grace: &Grace, watched: &SigSet) {
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let Ok(signals) = SignalFd::with_flags(watched, flags) else { return };
    let limit = match grace.remaining(Instant::now()) {
        Remaining::Wait(limit) => limit,
        Remaining::Term(limit) => {
            processes::signal_each(|pid| processes::term_signals(pid, agent), &[]);
            limit
        }
    };
    let mut deadline = Deadline::after(limit, Instant::now()).checked_every(CHECK_INTERVAL);
    grace.outputs.take().into_iter().for_each(outputs::drain);
    loop {
        drop(processes::reap());
        let now = Instant::now();
        if is_over(cgroup) || deadline.has_expired(now) {
            return;
        }
        let pause = PollTimeout::try_from(deadline.next_check() - now).unwrap_or(PollTimeout::ZERO);
        let _ = poll(&mut [PollFd::new(signals.as_fd(), PollFlags::POLLIN)], pause);
        while let Ok(Some(signal)) = signals.read_signal() {
            if signal.ssi_signo == Signal::SIGTERM as u32 {
                return;
            }
        }
    }
}

/// Tells whether no process of the job is left, according to the kernel.
fn is_over(cgroup: Option<&Cgroup>) -> bool {
    Children::now() == Children::None && !cgroup.is_some_and(Cgroup::is_populated)
}

/// Replaces the guardian's stdin and stdout by `/dev/null`. The agent then has the only copies, so
/// the channel to the launcher closes when the agent exits.
fn release_channel() {
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
    }
}

/// Reaps all children that have ended. Returns the agent's exit code if the agent is among them.
fn reap_looking_for(agent: Pid) -> Option<ExitCode> {
    let (_, status) = processes::reap().into_iter().find(|(pid, _)| *pid == agent)?;
    Some(match status {
        ExitStatus::Code(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        ExitStatus::Signal(_) => ExitCode::FAILURE,
    })
}

/// Kills all processes that the agent has left, until the kernel reports that none exists or
/// [`KILL_TIMEOUT`] has passed.
fn clear_up(cgroup: Option<&Cgroup>) {
    let mut deadline = Deadline::after(KILL_TIMEOUT, Instant::now());
    while !is_over(cgroup) {
        // Processes that cannot be killed, or hang in the kernel, never end.
        if deadline.has_expired(Instant::now()) {
            let left = processes::describe_left(&[]).join(", ");
            return errln!("rlaunch-worker: could not end {left}");
        }
        if let Some(cgroup) = cgroup {
            cgroup.kill();
        }
        // Killed processes become children of the guardian when their parents end.
        processes::kill_all(&[], || drop(processes::reap()));
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Name that the agent gives its process once it has sent SIGTERM to its ranks.
pub(crate) const ENDING: &CStr = c"rlaunch-ending";
/// Grace period if the shared memory could not be created.
const DEFAULT_GRACE: Duration = Duration::from_secs(2);
/// Length of the memory in bytes: one page.
const LENGTH: usize = 4096;
/// Offset in bytes of the word with the grace period, which is set once ranks run.
const GRACE: usize = 0;
/// Offset in bytes of the word with the time of SIGKILL, which is set once SIGTERM was sent.
const KILL_AT: usize = 8;

/// Grace period of a node's ranks, and what they print in it if their agent is dead. Each word of the
/// memory holds milliseconds plus one; zero means unset.
#[derive(Clone, Debug)]
pub(crate) struct Grace {
    begin: Instant,
    memory: Option<SharedMemory>,
    pub(crate) outputs: Outputs,
}

/// Rest of the grace period before SIGKILL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remaining {
    /// Send SIGTERM and wait this long.
    Term(Duration),
    /// Wait this long; SIGTERM was sent.
    Wait(Duration),
}

impl Grace {
    /// Creates the memory, which this process shares with processes that it forks later.
    pub(crate) fn share() -> Grace {
        let memory = SharedMemory::unnamed(LENGTH, LENGTH);
        let memory = memory.and_then(|memory| memory.reserve(0..LENGTH).map(|()| memory));
        Grace { begin: Instant::now(), memory: memory.ok(), outputs: Outputs::share() }
    }

    /// Sets the grace period of ranks that are told to end from now on.
    pub(crate) fn grant(&self, grace: Duration) {
        self.write(GRACE, grace);
    }

    /// Records that SIGTERM was sent, and when SIGKILL follows.
    pub(crate) fn kill_at(&self, at: Instant) {
        self.write(KILL_AT, at.saturating_duration_since(self.begin));
    }

    /// Returns what remains of the grace period at `now`.
    pub(crate) fn remaining(&self, now: Instant) -> Remaining {
        if self.memory.is_none() {
            return Remaining::Term(DEFAULT_GRACE);
        }
        match (self.read(GRACE), self.read(KILL_AT)) {
            (None, _) => Remaining::Wait(Duration::ZERO),
            (Some(grace), None) => Remaining::Term(grace),
            (_, Some(kill_at)) => {
                Remaining::Wait((self.begin + kill_at).saturating_duration_since(now))
            }
        }
    }

    fn write(&self, offset: usize, time: Duration) {
        if let Some(memory) = &self.memory {
            let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            memory.word(offset).store(time.saturating_add(1), Ordering::Release);
        }
    }

    fn read(&self, offset: usize) -> Option<Duration> {
        let word = self.memory.as_ref()?.word(offset).load(Ordering::Acquire);
        word.checked_sub(1).map(|time| Duration::from_millis(time.min(u32::MAX.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(5);

    #[test]
    fn a_guardian_gives_what_the_agent_has_not() {
        let of_guardian = Grace::share();
        let of_agent = of_guardian.clone();
        let now = Instant::now();
        assert_eq!(of_guardian.remaining(now), Remaining::Wait(Duration::ZERO), "no rank runs yet");
        of_agent.grant(GRACE);
        assert_eq!(of_guardian.remaining(now), Remaining::Term(GRACE));
        of_agent.kill_at(now + GRACE);
        let left = of_guardian.remaining(now + GRACE / 2);
        let is_half = |left: Duration| left <= GRACE / 2 && left + GRACE / 100 >= GRACE / 2;
        assert!(matches!(left, Remaining::Wait(left) if is_half(left)), "{left:?}");
        of_agent.kill_at(now);
        assert_eq!(of_guardian.remaining(now + GRACE), Remaining::Wait(Duration::ZERO));
    }

    #[test]
    fn a_guardian_without_knowledge_gives_a_short_one() {
        let outputs = Outputs::share();
        let grace = Grace { begin: Instant::now(), memory: None, outputs };
        grace.grant(GRACE);
        assert_eq!(grace.remaining(Instant::now()), Remaining::Term(DEFAULT_GRACE));
    }
}
