//! Guard for the wait for a peer that is suspended while it may write to this rank's memory.
//!
//! During a [split copy](super::split_copy), a slice that the peer has claimed cannot be taken
//! back: whenever the peer continues, it writes the slice. So the wait ends only when the peer has
//! written the slice or is dead. If waits have a time limit, the guard sends SIGCONT to the peer
//! when the limit has passed. If the peer still does not finish, for example because a debugger has
//! stopped it or its cgroup is frozen, the guard kills it.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_bootstrap::deadline::Deadline;
use std::thread;
use std::time::{Duration, Instant};

/// Time after which a peer counts as suspended, and not merely as waiting for a processor.
const SUSPENDED_AFTER: Duration = Duration::from_millis(100);
/// Time that each check sleeps, once [`SUSPENDED_AFTER`] has passed.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Time after which the guard reports the wait on stderr.
const NOTICE_AFTER: Duration = Duration::from_secs(10);
/// Time for a resumed peer to finish writing the slice that it has claimed last.
const FINISH_TIME: Duration = Duration::from_secs(1);

/// Guard of this rank's wait for one peer: it resumes or kills a peer that is suspended for too
/// long.
#[derive(Debug)]
pub(super) struct StallGuard {
    pid: Pid,
    begin: Instant,
    limit: Option<Duration>,
    is_reported: bool,
    /// Whether the peer was stopped when SIGCONT was sent, and the deadline for it to finish;
    /// `None` before SIGCONT is sent.
    resumed: Option<(bool, Deadline)>,
    is_killed: bool,
}

impl StallGuard {
    pub(super) fn new(pid: Pid, limit: Option<Duration>) -> StallGuard {
        let begin = Instant::now();
        StallGuard { pid, begin, limit, is_reported: false, resumed: None, is_killed: false }
    }

    /// Reports the wait, or resumes or kills the peer, if the wait has lasted long enough. Sleeps
    /// for [`POLL_INTERVAL`] once [`SUSPENDED_AFTER`] has passed.
    pub(super) fn check(&mut self) {
        let lasted = self.begin.elapsed();
        if lasted > SUSPENDED_AFTER {
            thread::sleep(POLL_INTERVAL);
        }
        if lasted > NOTICE_AFTER && !self.is_reported {
            self.is_reported = true;
            let (seconds, pid) = (lasted.as_secs(), self.pid);
            eprintln!("rlaunch: waiting {seconds} s for process {pid} to finish a message");
        }
        let Some(limit) = self.limit else { return };
        if let Some((_, deadline)) = &mut self.resumed {
            if !self.is_killed && deadline.has_expired(Instant::now()) {
                self.is_killed = true;
                let _ = kill(self.pid, Signal::SIGKILL);
            }
        } else if lasted > limit {
            let deadline =
                Deadline::after(FINISH_TIME, Instant::now()).checked_every(POLL_INTERVAL);
            self.resumed = Some((is_stopped(self.pid), deadline));
            let _ = kill(self.pid, Signal::SIGCONT);
        }
    }
}

/// Stops the peer again if it was stopped before the guard resumed it.
impl Drop for StallGuard {
    fn drop(&mut self) {
        if self.resumed.is_some_and(|(was_stopped, _)| was_stopped) && !self.is_killed {
            let _ = kill(self.pid, Signal::SIGSTOP);
        }
    }
}

/// Returns whether the process is stopped by a signal.
fn is_stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The command name before the state may contain any characters.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// Timeout for expected events; generous, since a busy machine may be suspended for seconds.
    const BOUND: Duration = Duration::from_secs(50);

    struct Peer(Child);

    impl Peer {
        fn stopped() -> (Peer, Pid) {
            let child = Command::new("sleep").arg("60").spawn().unwrap();
            let pid = Pid::from_raw(child.id() as i32);
            kill(pid, Signal::SIGSTOP).unwrap();
            wait_for(|| is_stopped(pid));
            (Peer(child), pid)
        }
    }

    impl Drop for Peer {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn wait_for(mut condition: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !condition() {
            assert!(begin.elapsed() < BOUND);
            thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn who_stands_still_is_woken_after_the_limit_and_stopped_again() {
        let (_peer, pid) = Peer::stopped();
        let mut stall = StallGuard::new(pid, Some(Duration::from_millis(1)));
        thread::sleep(2 * POLL_INTERVAL);
        stall.check();
        wait_for(|| !is_stopped(pid));
        drop(stall);
        wait_for(|| is_stopped(pid));
    }

    #[test]
    fn who_did_not_look_for_long_leaves_it_its_time_to_go_on() {
        let (_peer, pid) = Peer::stopped();
        let mut stall = StallGuard::new(pid, Some(Duration::from_millis(1)));
        // This process was suspended before it sent SIGCONT.
        stall.begin -= 2 * FINISH_TIME;
        stall.check();
        stall.check();
        assert!(stall.resumed.is_some() && !stall.is_killed, "{stall:?}");
        wait_for(|| !is_stopped(pid));
    }

    #[test]
    fn who_goes_on_and_does_not_finish_is_ended() {
        let (mut peer, pid) = Peer::stopped();
        let mut stall = StallGuard::new(pid, Some(Duration::from_millis(1)));
        let ended = || {
            stall.check();
            peer.0.try_wait().unwrap().is_some()
        };
        wait_for(ended);
    }

    #[test]
    fn without_a_limit_it_is_left_alone() {
        let (_peer, pid) = Peer::stopped();
        let mut stall = StallGuard::new(pid, None);
        thread::sleep(2 * POLL_INTERVAL);
        stall.check();
        drop(stall);
        assert!(is_stopped(pid));
    }
}
