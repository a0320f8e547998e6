//! Running a program of the host with a time limit.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum output, in bytes.
const MAX_OUTPUT: usize = 8 << 20;
/// Time between two looks whether a program that has closed its output has ended.
const PAUSE: Duration = Duration::from_millis(2);
/// Directories in which the program is looked for; a user's PATH often lacks them.
const DIRECTORIES: &[&str] = &["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"];

/// Finds a program by its name.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let mut places = DIRECTORIES.iter().map(|directory| Path::new(directory).join(name));
    places.find(|path| path.is_file())
}

/// Runs a program and returns its output. Returns `None` if it cannot be run, it fails, it prints
/// more than [`MAX_OUTPUT`] or takes longer than [`TIMEOUT`].
pub(super) fn run(program: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = rlaunch_sys::spawn(&mut command).ok()?;
    let deadline = Instant::now() + TIMEOUT;
    let printed = child.stdout.take().and_then(|stdout| read_until(deadline, stdout));
    let has_worked = wait_or_kill(&mut child, deadline);
    printed.filter(|_| has_worked).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads what a program prints, to its end or to [`MAX_OUTPUT`]. A program that has more to say fails, since
/// its output is closed. Returns `None` if it takes longer than the deadline.
fn read_until(deadline: Instant, mut stdout: ChildStdout) -> Option<Vec<u8>> {
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
    while bytes.len() < MAX_OUTPUT {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        match poll(&mut [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)], left) {
            Ok(1..) => {}
            Err(Errno::EINTR) => continue,
            _ => return None,
        }
        match stdout.read(&mut chunk).ok()? {
            0 => break,
            count => bytes.extend_from_slice(&chunk[..count]),
        }
    }
    Some(bytes)
}

/// Waits until the program ends, and kills it if it does not. Returns whether it has succeeded.
fn wait_or_kill(child: &mut Child, deadline: Instant) -> bool {
    while Instant::now() < deadline {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => sleep(PAUSE),
            Err(_) => return false,
        }
    }
    // Fails if it has ended.
    let _ = child.kill();
    let _ = child.wait();
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_or_fails_gives_nothing() {
        let run = |name: &str, argument| super::run(&find(name).unwrap(), &[argument]);
        assert_eq!(run("echo", "two words").as_deref(), Some("two words\n"));
        assert_eq!(run("false", ""), None);
        assert_eq!(run("yes", ""), None);
        assert_eq!(find("no-such-program"), None);
        assert_eq!(super::run(Path::new("/etc/passwd"), &[]), None);
        let started = Instant::now();
        assert_eq!(run("sleep", "600"), None);
        assert!(started.elapsed() < Duration::from_secs(30));
    }
}
