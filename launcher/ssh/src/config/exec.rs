//! `Match exec`: the exit code of a command on this machine decides whether a block applies.

use rlaunch_console::limits;
use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

/// Time limit for a command of `Match exec`. ssh(1) has none.
const EXEC_TIMEOUT: Duration = Duration::from_secs(5);

/// Results of the commands of `Match exec`, by command line. Each command runs only once.
#[derive(Debug, Default)]
pub(super) struct ExecCache(Mutex<HashMap<String, Result<bool, String>>>);

impl ExecCache {
    /// Tells whether the command, run by the user's shell, exits with code 0. Blocks until the command has
    /// exited. Returns an error if the command cannot be run, is killed, or exceeds the time limit.
    pub(super) fn succeeds(&self, command: &str) -> Result<bool, String> {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(decided) = known().get(command).cloned() {
            return decided;
        }
        let decided = run(command, EXEC_TIMEOUT);
        known().insert(command.to_owned(), decided.clone());
        decided
    }
}

fn run(command: &str, deadline: Duration) -> Result<bool, String> {
    let cannot = |error: std::io::Error| format!("cannot run `{command}`: {error}");
    let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
    let mut shell = Command::new(shell.unwrap_or_else(|| "/bin/sh".into()));
    limits::restore_open_files(&mut shell);
    let mut child = shell
        .arg("-c")
        .arg(command)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // A separate process group, so that children of the command are killed with it.
        .process_group(0)
        .spawn()
        .map_err(cannot)?;
    let pid = Pid::from_raw(child.id().cast_signed());
    let (notify, exited) = mpsc::channel();
    let waiting = std::thread::Builder::new().spawn(move || {
        // WNOWAIT leaves the child unreaped, so that its process id cannot belong to another process below.
        let how = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        while waitid(Id::Pid(pid), how) == Err(Errno::EINTR) {}
        let _ = notify.send(());
    });
    let in_time = waiting.is_ok() && exited.recv_timeout(deadline).is_ok();
    if !in_time {
        let _ = killpg(pid, Signal::SIGKILL);
    }
    let status = child.wait().map_err(cannot)?;
    match status.code() {
        _ if !in_time => {
            Err(format!("`{command}` did not exit within {} s", deadline.as_secs_f32()))
        }
        Some(code) => Ok(code == 0),
        None => Err(format!("`{command}` was killed by {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// Time limit for the test. The command would run for 1000 seconds, so the test finishes within this
    /// limit only if the command is killed. The limit is generous because the test machine may be suspended.
    const BOUND: Duration = Duration::from_secs(60);

    #[test]
    fn a_code_decides_once() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let commands = ExecCache::default();
        let line = format!("echo x >>{}", log.display());
        for _ in 0..2 {
            assert_eq!(commands.succeeds(&line), Ok(true));
            assert_eq!(commands.succeeds("exit 3"), Ok(false));
        }
        assert_eq!(std::fs::read_to_string(log).unwrap(), "x\n");
    }

    #[test]
    fn what_does_not_end_is_ended_with_what_it_started() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let line = format!("sleep 1000 & echo $! >{}; wait", file.display());
        let (begun, mut deadline) = (Instant::now(), Duration::from_millis(250));
        // On a busy machine the command may not have written its file before the deadline.
        let pid: i32 = loop {
            let error = run(&line, deadline).unwrap_err();
            let late = format!("did not exit within {} s", deadline.as_secs_f32());
            assert!(error.ends_with(&late), "{error}");
            assert!(begun.elapsed() < BOUND);
            match std::fs::read_to_string(&file).unwrap_or_default().trim().parse() {
                Ok(pid) => break pid,
                Err(_) => deadline *= 2,
            }
        };
        let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // State Z: the process was killed, and the process that adopted it has not reaped it yet.
        while !stat().is_empty() && !stat().contains(") Z ") {
            assert!(begun.elapsed() < BOUND, "{}", stat());
            std::thread::yield_now();
        }
        let error = run("kill -9 $$", BOUND).unwrap_err();
        assert!(error.contains("was killed by signal: 9"), "{error}");
    }
}
