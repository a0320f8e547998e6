//! `--detach`: a job that outlives its terminal.
//!
//! Before this process has a thread, it forks. The child runs the job, at first at the terminal, so that it can ask for
//! passwords there. Once all ranks have started, it leaves the session and tells the parent the job's name; the parent prints
//! it and exits. If the child ends before that, it has printed why, and the parent exits with its code. If the parent is
//! killed before that, the job ends, since its name was never printed.

use crate::run::logout;
use crate::run::output::store::OutputStore;
use crate::run::record::RecordStore;
use crate::run::signals;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, dup2_stderr, dup2_stdin, dup2_stdout, setsid};
use rlaunch_console::messages;
use rlaunch_console::signals::EndSignals;
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::job::name::JobName;
use rlaunch_sys::Fork;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};

/// Process after the fork.
pub enum Side {
    /// The process for which the user waits.
    Parent(StartingJob),
    /// The process that runs the job.
    Child(Detaching),
}

/// Job whose launcher has not left the terminal.
pub struct StartingJob {
    launcher: Pid,
    started: PipeReader,
}

/// End of the wait for a job's start.
#[derive(Debug, PartialEq, Eq)]
pub enum Start {
    /// All ranks have started.
    Runs {
        /// Name of the job.
        name: String,
        /// Whether the job ends when the user logs out.
        until_logout: bool,
    },
    /// The launcher has ended with this code.
    Ended(Exit),
}

/// Handle by which the launcher leaves its terminal, once. Clones share it.
#[derive(Clone, Debug)]
pub struct Detaching(Arc<DetachState>);

#[derive(Debug)]
struct DetachState {
    /// `None` once the parent has been told.
    parent: Mutex<Option<PipeWriter>>,
    /// File with the output of all attempts.
    store: OnceLock<OutputStore>,
    /// Whether the job ends when the user logs out.
    until_logout: AtomicBool,
}

impl DetachState {
    fn new(parent: PipeWriter) -> DetachState {
        DetachState {
            parent: Mutex::new(Some(parent)),
            store: OnceLock::new(),
            until_logout: AtomicBool::new(false),
        }
    }
}

/// What follows the name of a job that ends when the user logs out, on the way to the parent.
const UNTIL_LOGOUT: &str = " until logout";

/// Forks this process, which must have no other thread.
pub fn fork() -> Result<Side, Failed> {
    // Both ends are closed in programs that either process starts.
    let (started, parent) = io::pipe().map_err(|error| failed(&error))?;
    match rlaunch_sys::fork().map_err(|error| failed(&error))? {
        Fork::Parent(pid) => {
            Ok(Side::Parent(StartingJob { launcher: Pid::from_raw(pid), started }))
        }
        Fork::Child => Ok(Side::Child(Detaching(Arc::new(DetachState::new(parent))))),
    }
}

fn failed(error: &io::Error) -> Failed {
    Failed::new(Exit::BUG, format!("cannot detach the job: {error}"))
        .hint(Some("without --detach it runs at this terminal"))
}

impl StartingJob {
    /// Waits until the job has started, or its launcher has ended. Meanwhile passes signals on to the launcher.
    pub fn wait(self) -> Result<Start, Failed> {
        let StartingJob { launcher, started } = self;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let told = runtime.and_then(|runtime| runtime.block_on(read_told(launcher, started)));
        let told = told.map_err(|error| failed(&error))?;
        if told.is_empty() {
            return Ok(Start::Ended(exit_of(launcher)));
        }
        let name = told.strip_suffix(UNTIL_LOGOUT);
        let until_logout = name.is_some();
        Ok(Start::Runs { name: name.unwrap_or(&told).to_owned(), until_logout })
    }
}

/// Reads the job's name from the launcher, and what follows it; empty if the launcher has ended without sending one.
async fn read_told(launcher: Pid, started: PipeReader) -> io::Result<String> {
    let mut ends = EndSignals::install()?;
    let mut user1 = signal(SignalKind::user_defined1())?;
    let mut user2 = signal(SignalKind::user_defined2())?;
    fcntl(&started, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    // The check that this is a pipe calls a function that old versions of the C library lack.
    let mut started = pipe::Receiver::from_owned_fd_unchecked(started.into())?;
    let mut told = String::new();
    loop {
        // `told` holds what has been read so far, whichever branch ends first.
        let passed_on = tokio::select! {
            read = read_some(&mut started, &mut told) => match read? {
                0 => return Ok(told),
                _ => continue,
            },
            // From a terminal it comes to the launcher twice, which counts it once.
            end = ends.next() => end,
            _ = user1.recv() => Signal::SIGUSR1,
            _ = user2.recv() => Signal::SIGUSR2,
        };
        // An error means that the launcher has ended, which the pipe tells.
        let _ = kill(launcher, passed_on);
    }
}

/// Adds what the launcher has sent to `told`, and returns its length. Cancel-safe.
async fn read_some(started: &mut pipe::Receiver, told: &mut String) -> io::Result<usize> {
    let mut buffer = [0; 64];
    let length = started.read(&mut buffer).await?;
    told.push_str(&String::from_utf8_lossy(&buffer[..length]));
    Ok(length)
}

/// Waits for the end of the launcher.
fn exit_of(launcher: Pid) -> Exit {
    loop {
        return match waitpid(launcher, None) {
            Ok(WaitStatus::Exited(_, code)) => Exit(u8::try_from(code).unwrap_or(Exit::BUG.0)),
            Ok(WaitStatus::Signaled(_, signal, _)) => Exit::signal(signal as i32),
            Ok(_) | Err(Errno::EINTR) => continue,
            Err(_) => Exit::BUG,
        };
    }
}

impl Detaching {
    /// Makes that of a launcher whose parent has been killed.
    #[cfg(test)]
    pub(crate) fn from_killed_parent() -> Detaching {
        let (_, parent) = io::pipe().unwrap();
        Detaching(Arc::new(DetachState::new(parent)))
    }

    /// Creates the file with the output of the job, which also gets what rlaunch says from now on.
    pub(crate) fn keep_output(&self, job: &JobSpec) -> Result<(), Failed> {
        let store = RecordStore::for_user()
            .map_err(|error| Failed::from_error(Exit::FILES, &error).hint(error.hint()))?;
        let store = store.create_output(job).map_err(|error| {
            let hint = "XDG_STATE_HOME=DIR keeps it elsewhere; without --detach it is shown here";
            Failed::new(Exit::FILES, format!("cannot keep the job's output: {error}"))
                .hint(Some(hint))
        })?;
        let keeper = store.clone();
        messages::keep_by(move |lines| keeper.message(lines));
        // An error would mean a second call, which a job does not make.
        let _ = self.0.store.set(store);
        Ok(())
    }

    /// Sees to it that the job outlives the user's logout, before it starts anything; notes if it does not.
    pub(crate) fn outlive_logout(&self, job: &JobSpec) {
        self.0.until_logout.store(!logout::outlive(job), Ordering::Relaxed);
    }

    /// Returns the file with the output of all attempts.
    pub(crate) fn store(&self) -> Option<&OutputStore> {
        self.0.store.get()
    }

    /// Tells whether this process has not left its terminal.
    pub(crate) fn is_due(&self) -> bool {
        self.parent().is_some()
    }

    /// Leaves the terminal, and tells the parent that the job of this name has started. Returns `false` if the parent has
    /// been killed, so that the name cannot be printed.
    pub(crate) fn detach(&self, name: &JobName) -> bool {
        let Some(mut parent) = self.parent().take() else { return true };
        // While there is a terminal, the user sees why the job ends.
        if has_reader(&parent) {
            messages::settle();
            if let Err(error) = leave_terminal() {
                messages::warn(&format!("the job may end with its terminal: {error}"));
            }
            signals::ignore_hangups();
            let until = self.0.until_logout.load(Ordering::Relaxed);
            let told = format!("{name}{}", if until { UNTIL_LOGOUT } else { "" });
            if parent.write_all(told.as_bytes()).is_ok() {
                return true;
            }
        }
        messages::warn("the job ends: the process that was to print its name has been killed");
        false
    }

    fn parent(&self) -> MutexGuard<'_, Option<PipeWriter>> {
        self.0.parent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells whether the other end of a pipe is open. Where the kernel does not say, it is.
fn has_reader(pipe: &PipeWriter) -> bool {
    // A reader that is gone is told of without being asked for.
    let mut polled = [PollFd::new(pipe.as_fd(), PollFlags::empty())];
    let _ = poll(&mut polled, PollTimeout::ZERO);
    polled[0].revents().is_none_or(|events| !events.contains(PollFlags::POLLERR))
}

/// Makes this process one without a terminal, which holds nothing open for the reader of its output.
fn leave_terminal() -> io::Result<()> {
    // Cannot fail, since a forked child does not lead a process group.
    setsid()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// Starts a launcher that does what the script says, and holds the pipe open until it ends.
    fn starting(script: &str) -> (Child, StartingJob, PipeWriter) {
        let (started, parent) = io::pipe().unwrap();
        let held = parent.try_clone().unwrap();
        let child = Command::new("sh").args(["-c", script]).stdout(held).spawn().unwrap();
        let launcher = Pid::from_raw(i32::try_from(child.id()).unwrap());
        (child, StartingJob { launcher, started }, parent)
    }

    #[test]
    fn a_launcher_that_ends_before_the_start_gives_its_code() {
        for (script, code) in [("exit 201", 201), ("kill -9 $$", 137)] {
            let (_child, job, parent) = starting(script);
            drop(parent);
            assert_eq!(job.wait().unwrap(), Start::Ended(Exit(code)));
        }
    }

    #[test]
    fn signals_before_the_start_are_for_the_launcher() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // The launcher may send one before the wait begins.
        runtime.block_on(async {
            drop(EndSignals::install().unwrap());
            drop(signal(SignalKind::user_defined1()).unwrap());
            drop(signal(SignalKind::user_defined2()).unwrap());
        });
        for sent in [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGALRM, Signal::SIGXCPU] {
            let number = sent as i32;
            let script = format!(
                "trap 'exit 41' {number}; while :; do kill -{number} $PPID; sleep 0.05; done"
            );
            let (_child, job, parent) = starting(&script);
            drop(parent);
            assert_eq!(job.wait().unwrap(), Start::Ended(Exit(41)), "{sent}");
        }
    }

    #[test]
    fn a_parent_that_was_killed_is_noticed_at_the_terminal() {
        let (started, parent) = io::pipe().unwrap();
        assert!(has_reader(&parent));
        drop(started);
        assert!(!has_reader(&parent));
        let detaching = Detaching::from_killed_parent();
        let name: JobName = "amber-fox".parse().unwrap();
        assert!(!detaching.detach(&name));
        // It is said once.
        assert!(!detaching.is_due() && detaching.detach(&name));
    }

    #[test]
    fn a_job_that_has_started_gives_its_name() {
        for (told, until_logout) in [("amber-fox", false), ("amber-fox until logout", true)] {
            let (_child, job, mut parent) = starting("exit 0");
            let launcher = job.launcher;
            parent.write_all(told.as_bytes()).unwrap();
            drop(parent);
            let name = "amber-fox".into();
            assert_eq!(job.wait().unwrap(), Start::Runs { name, until_logout });
            assert_eq!(exit_of(launcher), Exit::SUCCESS);
        }
    }
}
