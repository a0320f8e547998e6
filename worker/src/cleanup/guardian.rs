//! The guardian: the process that the launcher started, with the agent as its child.
//!
//! The guardian has one task. When the agent dies, for whatever reason, the guardian inherits all
//! of the agent's descendants (it is their nearest subreaper) and ends them. If the agent did not
//! end in order, the descendants first get the rest of their grace period. The guardian has no
//! threads, opens no files and waits in one system call, so that little can go wrong.

use crate::cleanup::cgroup::Cgroup;
use crate::cleanup::grace::{Grace, Remaining};
use crate::cleanup::processes::{self, Children};
use crate::cleanup::workspace::Workspace;
use crate::console::errln;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, dup2_stdin, dup2_stdout, setsid};
use rlaunch_bootstrap::deadline::{CHECK_INTERVAL, Deadline};
use rlaunch_sys::Fork;
use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time that killed processes have to disappear. After that, the guardian exits without waiting for
/// them any longer.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs `agent` in a child process, and cleans up after its end.
pub(crate) fn guard(agent: impl FnOnce(&Workspace, Grace) -> ExitCode) -> ExitCode {
    let (workspace, grace) = (Workspace::choose(), Grace::share());
    let watched = watched_signals();
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
            let code = watch(Pid::from_raw(pid), &watched, &workspace.tag(), &grace);
            workspace.remove();
            code
        }
        Err(error) => {
            errln!("rlaunch-worker: cannot fork: {error}");
            ExitCode::FAILURE
        }
    }
}

fn watched_signals() -> SigSet {
    [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect()
}

/// Waits until the agent ends, meanwhile forwards signals to it, and then ends the processes that
/// the agent has left. Returns the agent's exit code.
fn watch(agent: Pid, watched: &SigSet, tag: &str, grace: &Grace) -> ExitCode {
    release_channel();
    loop {
        let Ok(signal) = watched.wait() else { continue };
        if signal != Signal::SIGCHLD {
            let _ = kill(agent, signal);
        }
        if let Some(code) = reap(agent) {
            // An agent that has run the job to its end has removed its cgroup.
            let has_seen_it_out = code == ExitCode::SUCCESS;
            let cgroup = if has_seen_it_out { None } else { Cgroup::find_by_tag(tag) };
            // A TERM after the agent's death ends the grace period: its sender has waited already.
            if !has_seen_it_out && signal != Signal::SIGTERM {
                let_end(agent, cgroup.as_ref(), grace, watched);
            }
            clear_up(cgroup.as_ref());
            if let Some(cgroup) = cgroup {
                cgroup.remove();
            }
            return code;
        }
    }
}

/// Waits until all processes that the agent has left have ended, the grace period is over, or
/// SIGTERM arrives.
fn let_end(agent: Pid, cgroup: Option<&Cgroup>, grace: &Grace, watched: &SigSet) {
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let Ok(signals) = SignalFd::with_flags(watched, flags) else { return };
    let limit = match grace.remaining(Instant::now()) {
        Remaining::Wait(limit) => limit,
        Remaining::Term(limit) => {
            processes::signal_each(|pid| processes::term(pid, agent), &[]);
            limit
        }
    };
    let mut deadline = Deadline::after(limit, Instant::now()).checked_every(CHECK_INTERVAL);
    loop {
        collect();
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
fn reap(agent: Pid) -> Option<ExitCode> {
    let mut agent_ended = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == agent => {
                agent_ended = Some(ExitCode::from(u8::try_from(code).unwrap_or(1)));
            }
            Ok(WaitStatus::Signaled(pid, _, _)) if pid == agent => {
                agent_ended = Some(ExitCode::FAILURE);
            }
            Ok(WaitStatus::StillAlive) | Err(_) => return agent_ended,
            Ok(_) => {}
        }
    }
}

/// Kills all processes that the agent has left, until the kernel reports that none exists or
/// [`KILL_TIMEOUT`] has passed.
fn clear_up(cgroup: Option<&Cgroup>) {
    let mut deadline = Deadline::after(KILL_TIMEOUT, Instant::now());
    while !is_over(cgroup) {
        // Processes that cannot be killed, or hang in the kernel, never end.
        if deadline.has_expired(Instant::now()) {
            let left = processes::left(&[]).join(", ");
            return errln!("rlaunch-worker: could not end {left}");
        }
        if let Some(cgroup) = cgroup {
            cgroup.kill();
        }
        processes::kill_all(&[], collect);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Reaps all children that have ended. Killed processes become children of the guardian when their
/// parents end.
fn collect() {
    let look = WaitPidFlag::WNOHANG | WaitPidFlag::__WALL;
    while matches!(waitpid(None, Some(look)), Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)))
    {
    }
}
