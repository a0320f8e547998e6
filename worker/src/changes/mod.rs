//! `rlaunch-worker changes`: changes this host as the launcher orders, and undoes that. The messages are those of
//! [`rlaunch_bootstrap::protocol::changes`].
//!
//! | file | contents |
//! |---|---|
//! | `access.rs` | the way to root: directly or by sudo |
//! | `live_host.rs` | files, commands and the network of this host; the file of the journal |
//! | `shell.rs` | lines that run by `sh -c` |

mod access;
mod live_host;
mod shell;

pub(crate) use access::run;

use crate::console::errln;
use crate::network::cabling::trial;
use live_host::LiveHost;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, setsid};
use rlaunch_bootstrap::protocol::changes::journal::Journal;
use rlaunch_bootstrap::protocol::changes::{Change, ChangeOrder, ChangeOutcome, ChangeReply};
use rlaunch_bootstrap::protocol::control::{FrameReader, encode};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

/// File whose lock is held by the one process that may change the host. Root alone can open it: whoever can open a file can
/// lock it, and would stop all changes. It goes with the next boot.
const LOCKED: &str = "/run/rlaunch.lock";
/// Time limit for the lock: another command ends, or a guardian undoes its changes.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
const LOCK_INTERVAL: Duration = Duration::from_millis(50);
/// Time limit for a line that changes nothing.
const ASK_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time for which changes stay unconfirmed, whatever the launcher orders.
const MAX_TRIAL: Duration = Duration::from_secs(3600);
/// Time that one change may take: a line that saves and one that changes.
const MAX_CHANGE: Duration = shell::TIMEOUT.saturating_mul(2);
/// Time after the end of a trial in which the agent is to undo it by itself.
const GUARDED_AFTER: Duration = Duration::from_secs(20);

/// What the guardian is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Watch {
    /// First change that is on trial; `None` if none is.
    from: Option<u64>,
    /// Time until they are undone, in milliseconds.
    left_ms: u64,
}

/// Obeys the launcher until its end, as root. Then undoes what was not confirmed.
pub(crate) fn run_as_root(word: Option<&str>) -> ExitCode {
    access::give_sign(word);
    trial::guard(
        |guardian| {
            // A signal to the terminal or group of the guardian is not for both.
            let _ = setsid();
            serve(guardian)
        },
        guard,
    )
}

fn serve(guardian: Option<PipeWriter>) -> ExitCode {
    let mut replies = Replies::new();
    let opened = lock(Path::new(LOCKED), LOCK_TIMEOUT)
        .and_then(|lock| Ok((lock, LiveHost::open().map_err(|e| e.to_string())?)));
    let (_lock, (host, journal)) = match opened {
        Ok(opened) => opened,
        Err(cause) => {
            replies.send(&ChangeReply::Unable(cause));
            return ExitCode::FAILURE;
        }
    };
    replies.send(&ChangeReply::Ready(journal.state()));
    let mut agent = ChangingAgent { host, journal, replies, guardian, trial: None };
    let orders = read_orders();
    loop {
        let next = match &agent.trial {
            None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(trial) => {
                orders.recv_timeout(trial.until.saturating_duration_since(Instant::now()))
            }
        };
        match next {
            Ok(Some(order)) => agent.obey(order),
            Ok(None) | Err(_) => break,
        }
    }
    let is_undone = agent.trial.is_none() || agent.roll_back();
    if is_undone { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Signals that tell a process to end.
fn ends() -> SigSet {
    let all = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGQUIT];
    all.into_iter().collect()
}

/// Acquires the right to change this host.
fn lock(path: &Path, limit: Duration) -> Result<Flock<File>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot lock {}: {error}", path.display());
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(path).map_err(|error| failed(&error))?;
    let deadline = Instant::now() + limit;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((unlocked, Errno::EWOULDBLOCK)) if Instant::now() < deadline => {
                file = unlocked;
                std::thread::sleep(LOCK_INTERVAL);
            }
            Err((_, Errno::EWOULDBLOCK)) => {
                let seconds = limit.as_secs();
                return Err(format!("another rlaunch has been changing this host for {seconds} s"));
            }
            Err((_, error)) => return Err(failed(&error)),
        }
    }
}

/// Reads orders in a thread of its own, until the launcher's end. `None` stands for a signal to end: the guardian is gone.
fn read_orders() -> mpsc::Receiver<Option<ChangeOrder>> {
    let (sender, orders) = mpsc::channel();
    let signals = ends();
    let _ = signals.thread_block();
    let ending = sender.clone();
    std::thread::spawn(move || {
        // Fails for no set.
        let _ = signals.wait();
        // The agent may be ending by itself.
        let _ = ending.send(None);
    });
    std::thread::spawn(move || {
        let (mut frames, mut stdin) = (FrameReader::default(), io::stdin().lock());
        let mut buffer = vec![0; 64 << 10];
        'frames: loop {
            match stdin.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
                Ok(length) => frames.push(&buffer[..length]),
            }
            loop {
                match frames.next_frame() {
                    Ok(Some(order)) => {
                        if sender.send(Some(order)).is_err() {
                            return;
                        }
                    }
                    Ok(None) => break,
                    Err(_) => break 'frames,
                }
            }
        }
        let _ = sender.send(None);
    });
    orders
}

/// Changes that are undone unless they are confirmed.
struct Trial {
    /// First change.
    from: u64,
    until: Instant,
}

/// Agent that carries out the launcher's orders, one at a time.
struct ChangingAgent {
    host: LiveHost,
    journal: Journal,
    replies: Replies,
    guardian: Option<PipeWriter>,
    trial: Option<Trial>,
}

impl ChangingAgent {
    fn obey(&mut self, order: ChangeOrder) {
        match order {
            // Whoever started this process as root has dealt with it.
            ChangeOrder::Password(_) => return,
            ChangeOrder::Ask(lines) => {
                for line in lines {
                    let printed = shell::ask(&line, ASK_TIMEOUT);
                    self.replies.send(&ChangeReply::Printed(printed));
                }
            }
            ChangeOrder::Apply { by, changes, trial_ms } => {
                let begun = trial_ms.map_or(Ok(()), |time| self.begin_trial(time));
                match begun {
                    Ok(()) => self.apply(&by, &changes),
                    Err(cause) => {
                        self.replies.send(&ChangeReply::Outcome(ChangeOutcome::Failed(cause)));
                    }
                }
            }
            ChangeOrder::Confirm => {
                self.trial = None;
                // Only a guardian that is gone cannot be told.
                let _ = self.tell_guardian(Duration::ZERO);
            }
            ChangeOrder::RollBack => {
                self.roll_back();
                return;
            }
            ChangeOrder::Undo => {
                self.undo(0);
                self.trial = None;
                let _ = self.tell_guardian(Duration::ZERO);
            }
        }
        self.finish();
    }

    fn begin_trial(&mut self, time_ms: u32) -> Result<(), String> {
        let time = Duration::from_millis(u64::from(time_ms)).min(MAX_TRIAL);
        let from = self.trial.as_ref().map_or(self.journal.next_id(), |trial| trial.from);
        self.trial = Some(Trial { from, until: Instant::now() + time });
        let told = self.tell_guardian(Duration::ZERO);
        told.map_err(|error| format!("cannot tell the guardian: {error}"))
    }

    fn apply(&mut self, by: &str, changes: &[Change]) {
        for change in changes {
            let is_late = self.trial.as_ref().is_some_and(|trial| Instant::now() >= trial.until);
            let outcome = if is_late {
                ChangeOutcome::Failed("the time of the trial is over".to_owned())
            } else {
                self.make(by, change)
            };
            let is_failure = matches!(outcome, ChangeOutcome::Failed(_));
            self.replies.send(&ChangeReply::Outcome(outcome));
            if is_failure {
                return;
            }
        }
    }

    /// Makes a change. The clock of the trial stands meanwhile: a line may take longer than a trial, and has a time limit of
    /// its own.
    fn make(&mut self, by: &str, change: &Change) -> ChangeOutcome {
        let begun = Instant::now();
        // A guardian that is gone tells by a signal.
        let _ = self.tell_guardian(MAX_CHANGE);
        let outcome = self.journal.apply(&mut self.host, change, by, now());
        if let Some(trial) = &mut self.trial {
            trial.until += begun.elapsed();
        }
        let _ = self.tell_guardian(Duration::ZERO);
        outcome
    }

    /// Undoes what is on trial, and tells the launcher. Returns whether all is undone.
    fn roll_back(&mut self) -> bool {
        let from = self.trial.take().map(|trial| trial.from);
        let is_undone = from.is_none_or(|from| self.undo(from));
        let _ = self.tell_guardian(Duration::ZERO);
        self.finish();
        is_undone
    }

    fn undo(&mut self, from: u64) -> bool {
        undo(&mut self.host, &mut self.journal, &mut self.replies, from)
    }

    fn finish(&mut self) {
        self.replies.send(&ChangeReply::Finished(self.journal.state()));
    }

    /// Tells the guardian what is on trial. `longer` is the time for which the clock of the trial may stand.
    fn tell_guardian(&mut self, longer: Duration) -> io::Result<()> {
        let Some(guardian) = &mut self.guardian else { return Ok(()) };
        let left = |trial: &Trial| trial.until.saturating_duration_since(Instant::now()) + longer;
        let left = self.trial.as_ref().map(left);
        let left_ms = left.map_or(0, |left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        let watch = Watch { from: self.trial.as_ref().map(|trial| trial.from), left_ms };
        guardian.write_all(&encode(&watch).map_err(io::Error::other)?)
    }
}

/// Undoes the changes of the journal from this one on, the last one first.
fn undo(host: &mut LiveHost, journal: &mut Journal, replies: &mut Replies, from: u64) -> bool {
    let mut is_undone = true;
    for id in journal.pending(from) {
        if let Some(undone) = journal.undo(host, id, now()) {
            is_undone &= undone.failure.is_none();
            replies.send(&ChangeReply::Undone(undone));
        }
    }
    if let Err(cause) = journal.clear(host) {
        errln!("rlaunch-worker: cannot remove the journal: {cause}");
    }
    is_undone
}

/// Returns the seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Replies to the launcher, which may be gone.
struct Replies(Box<dyn Write>);

impl Replies {
    fn new() -> Replies {
        Replies(Box::new(io::stdout()))
    }

    fn send(&mut self, reply: &ChangeReply) {
        match encode(reply) {
            Ok(frame) => drop(self.0.write_all(&frame).and_then(|()| self.0.flush())),
            Err(error) => errln!("rlaunch-worker: {error}"),
        }
    }
}

/// Watches the agent. If it is killed, or does not undo a trial in time, the guardian ends it, undoes the trial and sends
/// the last messages in its place.
fn guard(agent: Pid, watches: PipeReader) -> ExitCode {
    // Fails for no set.
    let _ = ends().thread_block();
    let from = last_watch(agent, watches);
    if let Ok(WaitStatus::Exited(_, code)) = waitpid(agent, None) {
        return ExitCode::from(u8::try_from(code).unwrap_or(1));
    }
    let Some(from) = from else { return ExitCode::FAILURE };
    // What the agent has begun must not come after its undoing.
    trial::reap_all(agent, shell::TIMEOUT);
    let mut replies = Replies::new();
    // Without the lock it is undone as well: nobody else will.
    let _lock = lock(Path::new(LOCKED), LOCK_TIMEOUT)
        .inspect_err(|cause| errln!("rlaunch-worker: {cause}"));
    match LiveHost::open() {
        Ok((mut host, mut journal)) => {
            undo(&mut host, &mut journal, &mut replies, from);
            replies.send(&ChangeReply::Finished(journal.state()));
        }
        Err(error) => replies.send(&ChangeReply::Unable(error.to_string())),
    }
    ExitCode::FAILURE
}

/// Reads what the agent tells until it ends, or has been late to undo a trial; then it is killed. Returns the first change
/// on trial.
fn last_watch(agent: Pid, mut watches: PipeReader) -> Option<u64> {
    let (mut frames, mut from, mut deadline) = (FrameReader::default(), None, None);
    let mut buffer = vec![0; 4096];
    loop {
        let left = deadline.map(|end: Instant| end.saturating_duration_since(Instant::now()));
        let left = left.map_or(PollTimeout::NONE, |left| {
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut [PollFd::new(watches.as_fd(), PollFlags::POLLIN)], left) {
            Ok(0) if deadline.is_some_and(|end| Instant::now() >= end) => {
                // It may have ended by itself just now.
                let _ = kill(agent, Signal::SIGKILL);
                return from;
            }
            Ok(0) | Err(Errno::EINTR) => continue,
            Ok(_) => {}
            Err(_) => return from,
        }
        match watches.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return from,
            Ok(length) => frames.push(&buffer[..length]),
        }
        while let Ok(Some(Watch { from: first, left_ms })) = frames.next_frame() {
            from = first;
            let end = Instant::now() + Duration::from_millis(left_ms) + GUARDED_AFTER;
            deadline = first.map(|_| end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what a guardian knows of an agent that has told it this and was killed while it wrote more.
    fn known(watches: &[Watch]) -> Option<u64> {
        let (reader, mut writer) = io::pipe().unwrap();
        for watch in watches {
            writer.write_all(&encode(watch).unwrap()).unwrap();
        }
        writer.write_all(&[9, 0]).unwrap();
        drop(writer);
        // No process has this id.
        last_watch(Pid::from_raw(i32::MAX), reader)
    }

    #[test]
    fn the_lock_is_root_s_alone_and_held_once() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let held = lock(&path, Duration::ZERO).unwrap();
        assert_eq!(held.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let refused = lock(&path, Duration::ZERO).unwrap_err();
        assert_eq!(refused, "another rlaunch has been changing this host for 0 s");
        drop(held);
        lock(&path, Duration::ZERO).unwrap();
    }

    #[test]
    fn the_clock_of_a_trial_stands_while_a_line_runs() {
        let directory = tempfile::tempdir().unwrap();
        let (host, journal) = LiveHost::open_at(directory.path()).unwrap();
        let until = Instant::now() + Duration::from_secs(3600);
        let trial = Some(Trial { from: 0, until });
        let (reader, writer) = io::pipe().unwrap();
        let replies = Replies(Box::new(io::sink()));
        let mut agent = ChangingAgent { host, journal, replies, guardian: Some(writer), trial };
        let line = Change::Run { line: "sleep 0.2".into(), save: None, undo: None };
        assert_eq!(agent.make("rlaunch up", &line), ChangeOutcome::Made);
        assert!(agent.trial.take().unwrap().until >= until + Duration::from_millis(200));
        drop(agent);
        let mut told = FrameReader::default();
        let bytes = io::Read::bytes(reader).collect::<Result<Vec<u8>, _>>().unwrap();
        told.push(&bytes);
        let before: Watch = told.next_frame().unwrap().unwrap();
        let after: Watch = told.next_frame().unwrap().unwrap();
        assert!(before.left_ms > after.left_ms, "{before:?} {after:?}");
    }

    #[test]
    fn a_guardian_knows_what_is_on_trial() {
        let on_trial = Watch { from: Some(3), left_ms: 60_000 };
        let confirmed = Watch { from: None, left_ms: 0 };
        assert_eq!(known(&[on_trial]), Some(3));
        assert_eq!(known(&[on_trial, confirmed]), None);
        assert_eq!(known(&[]), None);
    }
}
