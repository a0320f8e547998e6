//! The guardian: the process the launcher's command became, with the agent as its child.
//!
//! It does one thing. When the agent is gone, however it went, everything that descended from it
//! is given to the guardian (it is their nearest subreaper), and the guardian ends what is left.
//! It has no threads, opens nothing and waits in one system call, so there is little to go wrong.

use crate::cleanup::cgroup::Cgroup;
use crate::cleanup::processes::{self, Children};
use crate::cleanup::workspace::Workspace;
use crate::say::complain;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, dup2_stdin, dup2_stdout, setsid};
use rlaunch_bootstrap::awake::Deadline;
use rlaunch_sys::Fork;
use std::fs::OpenOptions;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long killed processes may take to vanish before the guardian leaves without them.
const VANISH: Duration = Duration::from_secs(2);

/// Runs `agent` in a child process and clears up behind it.
pub(crate) fn guard(agent: impl FnOnce(&Workspace) -> ExitCode) -> ExitCode {
    let workspace = Workspace::choose();
    let watched = watched_signals();
    // Blocked before the fork, so that none is lost; the child unblocks them again.
    if let Err(error) = prctl::set_child_subreaper(true).and_then(|()| watched.thread_block()) {
        complain!("rlaunch-worker: cannot watch over the agent: {error}");
        return agent(&workspace);
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
            agent(&workspace)
        }
        Ok(Fork::Parent(pid)) => {
            let code = watch(Pid::from_raw(pid), &watched, &workspace.tag());
            workspace.remove();
            code
        }
        Err(error) => {
            complain!("rlaunch-worker: cannot fork: {error}");
            ExitCode::FAILURE
        }
    }
}

fn watched_signals() -> SigSet {
    [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect()
}

/// Waits for the agent, passes on what it is told, and ends what the agent leaves.
fn watch(agent: Pid, watched: &SigSet, tag: &str) -> ExitCode {
    release_channel();
    loop {
        match watched.wait() {
            Ok(Signal::SIGCHLD) => {}
            Ok(signal) => {
                let _ = kill(agent, signal);
                continue;
            }
            Err(_) => continue,
        }
        if let Some(code) = reap(agent) {
            // An agent that has seen the job out has removed its cgroup as well.
            let cgroup = if code == ExitCode::SUCCESS { None } else { Cgroup::tagged(tag) };
            clear_up(cgroup.as_ref());
            if let Some(cgroup) = cgroup {
                cgroup.remove();
            }
            return code;
        }
    }
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
    let is_over = || Children::now() == Children::None && !cgroup.is_some_and(Cgroup::is_populated);
    let mut deadline = Deadline::after(VANISH, Instant::now());
    while !is_over() {
        // What cannot be killed, or hangs in the kernel, never ends, so waiting has a limit.
        if deadline.is_over(Instant::now()) {
            let left = processes::left(None).join(", ");
            return complain!("rlaunch-worker: could not end {left}");
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
