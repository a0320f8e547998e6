//! Causes by which jobs of the soak end, and what rlaunch may then say.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use fastrand::Rng;
use nix::sys::signal::Signal;

/// Pause of a launcher or an agent from which on its node may be given up: `--node-timeout` less a
/// beat, since the last word before the pause may be that old.
const LONG: Duration = Duration::from_secs(2);

/// Process of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Launcher,
    Guardian,
    Agent,
    Rank,
}
use Target::{Agent, Guardian, Launcher, Rank};

/// Cause of the end of a job. If a job survives it, the launcher gets SIGTERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    RankEnds,
    Signal(Target, Signal),
    /// SIGSTOP, and SIGCONT after that time.
    Pause(Target, Duration),
    /// A signal to the launcher, whose stdout (1) or stderr (2) nobody reads and a helper fills.
    Unread(i32, Signal),
    /// The sshd of the session is killed.
    Cut,
    /// The connection stalls or closes after a number of bytes up to the host or down from it.
    Connection(&'static str, &'static str, u32),
}

impl Cause {
    pub(super) fn draw(random: &mut Rng) -> Cause {
        let ends = [Signal::SIGTERM, Signal::SIGKILL, Signal::SIGINT, Signal::SIGHUP];
        let (of_user, of_other) = (ends[random.usize(..4)], ends[random.usize(..2)]);
        let targets = [Launcher, Guardian, Agent, Rank];
        let time = |most: u64, random: &mut Rng| Duration::from_millis(random.u64(..most));
        match random.u8(..12) {
            0 => Cause::RankEnds,
            1..=3 => Cause::Signal(Launcher, of_user),
            4 | 5 => Cause::Signal(targets[random.usize(1..4)], of_other),
            6 => Cause::Pause(targets[random.usize(..4)], time(1500, random)),
            7 => Cause::Pause(targets[random.usize(..4)], time(7000, random)),
            8 => Cause::Unread(random.i32(1..=2), of_user),
            9 => Cause::Cut,
            _ => {
                let then = ["stalls", "closes"][random.usize(..2)];
                // A job's start takes some 5 kB up and 20 kB down.
                let (way, most) = [("up", 8_000), ("down", 30_000)][random.usize(..2)];
                Cause::Connection(then, way, random.u32(..most))
            }
        }
    }

    /// Returns the kind of the cause, without its number.
    pub(super) fn kind(self) -> String {
        match self {
            Cause::Pause(target, time) if time < LONG => format!("short Pause({target:?})"),
            Cause::Pause(target, _) => format!("long Pause({target:?})"),
            Cause::Connection(then, way, _) => format!("Connection {then}, {way}"),
            other => format!("{other:?}"),
        }
    }

    /// Returns the signal that the launcher gets.
    pub(super) fn of_user(self) -> Option<Signal> {
        match self {
            Cause::Signal(Launcher, signal) | Cause::Unread(_, signal) => Some(signal),
            _ => None,
        }
    }

    /// Tells whether a launcher that runs to its end waits until all of a job whose ranks have run is gone.
    pub(super) fn is_waited_for(self) -> bool {
        let is_ours = |target| matches!(target, Launcher | Rank);
        match self {
            Cause::RankEnds | Cause::Unread(..) | Cause::Signal(Agent, _) => true,
            Cause::Signal(target, _) | Cause::Pause(target, _) => is_ours(target),
            Cause::Cut | Cause::Connection(..) => false,
        }
    }

    /// Returns the time in which the job has to end. rlaunch waits 30 s for an answer to a command.
    pub(super) fn limit(self) -> Duration {
        Duration::from_secs(if matches!(self, Cause::Connection(..)) { 45 } else { 15 })
    }

    /// Tells whether the job may end with this code because its node is lost or does not start.
    fn may_lose_the_node(self, code: i32) -> bool {
        match self {
            Cause::Cut | Cause::Connection(..) => true,
            Cause::Signal(Agent | Guardian, _) => code != 201,
            Cause::Pause(Launcher | Agent, time) => code == 206 && time >= LONG,
            _ => false,
        }
    }
}

/// End of a launcher, and what had been done to its job.
pub(super) struct End<'a> {
    pub(super) host: &'a str,
    pub(super) cause: Cause,
    /// Whether the cause may have come before the launcher had handlers of signals.
    pub(super) is_early: bool,
    /// What the rank does by itself, as an argument of hostile.c.
    pub(super) action: &'a str,
    /// Signals that the launcher got.
    pub(super) signals: Vec<Signal>,
    pub(super) status: ExitStatus,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl End<'_> {
    /// Tells whether exit code and message are true.
    pub(super) fn is_true(&self) -> bool {
        let Some(code) = self.status.code() else {
            let mut by = self.signals.iter().filter(|by| Some(**by as i32) == self.status.signal());
            // Only SIGKILL ends a launcher that has handlers.
            return by.any(|by| *by == Signal::SIGKILL || self.is_early);
        };
        let is_lost = || self.cause.may_lose_the_node(code);
        match code {
            0 => {
                let ran = matches!(self.cause, Cause::Unread(1, _)) || self.stdout.contains("up\n");
                self.action == "exit" && ran && !self.stderr.contains("error: ")
            }
            3 => self.action == "fail" && self.says("exited with code 3"),
            206 => is_lost() && self.says(&format!("error: node {} is lost: ", self.host)),
            201 | 202 => {
                let is_named = self.says(&format!("{}: ", self.host));
                is_lost() && (is_named || self.says("error: no answer"))
            }
            _ => Signal::try_from(code - 128).is_ok_and(|signal| self.is_by(signal)),
        }
    }

    /// Tells whether a signal ended the launcher or the rank, and the message says which.
    fn is_by(&self, signal: Signal) -> bool {
        let of_rank = self.cause == Cause::Signal(Rank, signal);
        let by_user = format!("error: ended by {signal}");
        let interrupted = signal == Signal::SIGINT && self.says("interrupted");
        self.signals.contains(&signal) && (interrupted || self.says(&by_user))
            || of_rank && self.says(&format!("was killed by signal {} ({signal})", signal as i32))
    }

    /// Tells whether the message contains `text`, as far as anybody has read it.
    fn says(&self, text: &str) -> bool {
        matches!(self.cause, Cause::Unread(2, _)) || self.stderr.contains(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_has_to_fit_what_was_done() {
        let lost = "error: node a is lost: its agent got signal 15 (SIGTERM) and ended\n";
        let by_user = "interrupted: 2 ranks ended\n";
        let int = Cause::Signal(Launcher, Signal::SIGINT);
        let term = Cause::Signal(Agent, Signal::SIGTERM);
        let short = Cause::Pause(Agent, Duration::from_millis(1999));
        for (cause, action, wait, stderr, is_true) in [
            (Cause::RankEnds, "exit", 0, "", true),
            (int, "stay", 0, "", false),
            (int, "stay", 130 << 8, by_user, true),
            (int, "stay", 130 << 8, "", false),
            (int, "stay", 143 << 8, by_user, false),
            (int, "stay", 2, "", false),
            (term, "stay", 206 << 8, lost, true),
            (term, "stay", 143 << 8, lost, false),
            (short, "stay", 206 << 8, lost, false),
        ] {
            let (status, signals) = (ExitStatus::from_raw(wait), cause.of_user());
            let (signals, host, is_early) = (signals.into_iter().collect(), "a", false);
            let (stdout, stderr) = ("up\n".into(), stderr.into());
            let end = End { host, cause, is_early, action, signals, status, stdout, stderr };
            assert_eq!(end.is_true(), is_true, "{cause:?}, {status}: {}", end.stderr);
        }
    }
}
