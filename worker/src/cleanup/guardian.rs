//! The guardian: the process the launcher's command became, with the agent as its child.
//!
//! It does one thing. When the agent is gone, however it went, everything that descended from it
//! is given to the guardian (it is their nearest subreaper), and the guardian ends what is left: with the
//! grace that the agent owed them, where it did not end in order.
//! It has no threads, opens nothing and waits in one system call, so there is little to go wrong.

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

/// How long killed processes may take to vanish before the guardian leaves without them.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs `agent` in a child process and clears up behind it.
pub(crate) fn guard(agent: impl FnOnce(&Workspace, Grace) -> ExitCode) -> ExitCode {
    let (workspace, grace) = (Workspace::choose(), Grace::share());
    let watched = watched_signals();
    // Blocked before the fork, so that none is lost; the child unblocks them again.
    if let Err(error) = prctl::set_child_subreaper(true).and_then(|()| watched.thread_block()) {
        errln!("rlaunch-worker: cannot watch over the agent: {error}");
        return agent(&workspace, grace);
    }
    match rlaunch_sys::fork() {
        Ok(Fork::Child) => {
            // Helpers that lose their parent come to the agent first, so that it sees them; this
            // is not inherited. And without its guardian the agent ends the job in order.
            let _ = prctl::set_child_subreaper(true);
            let _ = prctl::set_pdeathsig(Signal::SIGTERM);
            // One session for the agent and all its ranks, and no terminal: a scheduler that groups
            // processes by session lets ranks that share processors give way to each other. A
            // child leads no group, so it does not fail.
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

/// Waits for the agent, passes on what it is told, and ends what the agent leaves.
fn watch(agent: Pid, watched: &SigSet, tag: &str, grace: &Grace) -> ExitCode {
    release_channel();
    loop {
        let Ok(signal) = watched.wait() else { continue };
        if signal != Signal::SIGCHLD {
            let _ = kill(agent, signal);
        }
        if let Some(code) = reap(agent) {
            // An agent that has seen the job out has removed its cgroup as well.
            let has_seen_it_out = code == ExitCode::SUCCESS;
            let cgroup = if has_seen_it_out { None } else { Cgroup::tagged(tag) };
            // A TERM that comes when the agent is gone already ends the grace: its sender has waited.
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

/// Lets what the agent has left end by itself, until its grace is over or this process is told to end.
fn let_end(agent: Pid, cgroup: Option<&Cgroup>, grace: &Grace, watched: &SigSet) {
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let Ok(signals) = SignalFd::with_flags(watched, flags) else { return };
    let limit = match grace.remaining(Instant::now()) {
        Remaining::Wait(limit) => limit,
        Remaining::Term(limit) => {
            processes::signal_each(|pid| processes::term(pid, agent), None);
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

/// Whether the kernel says that nothing is left.
fn is_over(cgroup: Option<&Cgroup>) -> bool {
    Children::now() == Children::None && !cgroup.is_some_and(Cgroup::is_populated)
}

/// The channel ends when the agent does, so the guardian must not hold it open.
fn release_channel() {
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
    }
}

/// Collects every child that ended; `Some` once the agent is among them.
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

/// Kills everything that descended from the agent, until the kernel says that no child is left.
fn clear_up(cgroup: Option<&Cgroup>) {
    let mut deadline = Deadline::after(KILL_TIMEOUT, Instant::now());
    while !is_over(cgroup) {
        // What cannot be killed, or hangs in the kernel, never ends, so waiting has a limit.
        if deadline.has_expired(Instant::now()) {
            let left = processes::left(None).join(", ");
            return errln!("rlaunch-worker: could not end {left}");
        }
        if let Some(cgroup) = cgroup {
            cgroup.kill();
        }
        processes::kill_all(None, collect);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Collects what has ended: the killed become children of the guardian.
fn collect() {
    let look = WaitPidFlag::WNOHANG | WaitPidFlag::__WALL;
    while matches!(waitpid(None, Some(look)), Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)))
    {
    }
}
