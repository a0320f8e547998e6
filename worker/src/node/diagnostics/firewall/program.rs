//! Running a program that prints the rules of the packet filter.

use crate::node::diagnostics::background::Background;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum output, in bytes.
const MAX_OUTPUT: u64 = 8 << 20;
/// Time between two looks whether a program that has closed its output has ended.
const PAUSE: Duration = Duration::from_millis(2);
/// Directories in which the program is looked for; a user's PATH often lacks them.
const DIRECTORIES: &[&str] = &["/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"];

/// Finds a program by its name.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let mut places = DIRECTORIES.iter().map(|directory| Path::new(directory).join(name));
    places.find(|path| path.is_file())
}

/// Runs a program and returns its output. Returns `None` if it cannot be run, it fails, it prints
/// more than [`MAX_OUTPUT`] or takes longer than [`TIMEOUT`].
pub(super) fn output(program: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let started = Instant::now();
    let printed = child.stdout.take().and_then(|stdout| {
        let read = Background::start(move || {
            let mut bytes = Vec::new();
            stdout.take(MAX_OUTPUT).read_to_end(&mut bytes).map(|_| bytes)
        });
        read.wait(TIMEOUT)?.ok()
    });
    let has_worked = end(&mut child, started + TIMEOUT);
    printed.filter(|_| has_worked).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Waits until the program ends, and kills it if it does not. Returns whether it has succeeded.
fn end(child: &mut Child, deadline: Instant) -> bool {
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
