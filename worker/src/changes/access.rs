//! The way to root: a login as root, sudo, or sudo with the account's password.
//!
//! The password arrives through the launcher's encrypted channel and goes to sudo through a pipe: it is on no command line
//! and in no file.

use super::run_as_root;
use crate::console::errln;
use nix::unistd::Uid;
use rlaunch_bootstrap::protocol::changes::{Access, ChangeOrder, ChangeReply};
use rlaunch_bootstrap::protocol::control::{FrameReader, HELLO_MAGIC, encode};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitCode, Stdio};

/// Question by which sudo is known to wait for a password.
const PROMPT: &str = "[rlaunch: password] ";
/// Sign on stderr that the process of root has started, so that sudo reads no more.
const STARTED: &str = "[rlaunch: started]\n";
/// Word that asks root's process for the sign.
const SIGN: &str = "sign";

/// Tells the launcher what this account may, and becomes root's process, or starts it and passes on what the launcher sends.
pub(crate) fn run() -> ExitCode {
    let access = examine();
    let greeted = io::stdout().write_all(HELLO_MAGIC).and_then(|()| tell(access.clone()));
    if greeted.is_err() {
        return ExitCode::FAILURE;
    }
    match access {
        Access::Root => run_as_root(None),
        Access::Sudo => {
            // This process stays, since root's process starts from its program.
            let started = agent_by_sudo(&["-n"]).and_then(|mut sudo| rlaunch_sys::spawn(&mut sudo));
            started.map_or_else(
                |error| {
                    errln!("rlaunch-worker: cannot run sudo: {error}");
                    ExitCode::FAILURE
                },
                end_of,
            )
        }
        Access::Password => by_password(),
        Access::Refused(_) => ExitCode::FAILURE,
    }
}

fn tell(access: Access) -> io::Result<()> {
    let frame = encode(&ChangeReply::Access(access)).map_err(io::Error::other)?;
    let mut stdout = io::stdout();
    stdout.write_all(&frame).and_then(|()| stdout.flush())
}

fn examine() -> Access {
    if Uid::effective().is_root() {
        return Access::Root;
    }
    let mut sudo = Command::new("sudo");
    sudo.args(["-n", "true"]).env("LC_ALL", "C").stdin(Stdio::null());
    match rlaunch_sys::spawn(sudo.stdout(Stdio::null()).stderr(Stdio::piped()))
        .and_then(Child::wait_with_output)
    {
        Ok(output) if output.status.success() => Access::Sudo,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            if asks_for_password(&said) {
                Access::Password
            } else {
                Access::Refused(said.trim().replace('\n', "; "))
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Access::Refused("there is no sudo on the host".to_owned())
        }
        Err(error) => Access::Refused(format!("cannot run sudo: {error}")),
    }
}

/// Tells whether `sudo -n` would have asked: the message of sudo, and that of sudo-rs.
fn asks_for_password(said: &str) -> bool {
    said.contains("password is required") || said.contains("authentication is required")
}

fn agent_by_sudo(options: &[&str]) -> io::Result<Command> {
    let mut sudo = Command::new("sudo");
    sudo.args(options).arg("--").arg(own_program()?).arg("__changes").env("LC_ALL", "C");
    Ok(sudo)
}

/// Returns a path by which root starts this program. It leads to the program itself: another account may have renamed the
/// directories above a shared cache since, and root may not enter a home directory on NFS.
fn own_program() -> io::Result<PathBuf> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    if root_may_trace(&status) {
        Ok(PathBuf::from(format!("/proc/{}/exe", std::process::id())))
    } else {
        std::env::current_exe()
    }
}

/// Tells whether root here has `CAP_SYS_PTRACE`, as it has outside of containers. Without it, root may not follow
/// `/proc/PID/exe` of another account. `status` is `/proc/self/status`.
fn root_may_trace(status: &str) -> bool {
    const CAP_SYS_PTRACE: u64 = 1 << 19;
    let bounds = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let bounds = bounds.and_then(|bounds| u64::from_str_radix(bounds.trim(), 16).ok());
    bounds.is_some_and(|bounds| bounds & CAP_SYS_PTRACE != 0)
}

/// Asks the launcher for passwords until sudo takes one, and passes on what follows.
fn by_password() -> ExitCode {
    let mut stdin = io::stdin();
    let mut frames = FrameReader::default();
    let mut buffer = vec![0; 4096];
    loop {
        let password = loop {
            match frames.next_frame() {
                Ok(Some(ChangeOrder::Password(password))) => break password,
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => return ExitCode::FAILURE,
            }
            match stdin.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return ExitCode::FAILURE,
                Ok(length) => frames.push(&buffer[..length]),
            }
        };
        match start(&password.0) {
            Ok((child, stderr)) => return pass_on(child, stderr),
            Err(access) if tell(access.clone()).is_err() => return ExitCode::FAILURE,
            Err(Access::Password) => {}
            Err(_) => return ExitCode::FAILURE,
        }
    }
}

/// Starts root's process by sudo with a password. An error says what the account may after all.
fn start(password: &str) -> Result<(Child, ChildStderr), Access> {
    let refused = |error: io::Error| Access::Refused(format!("cannot run sudo: {error}"));
    // With -k, sudo asks whatever it remembers, so that the password never goes to the process of root.
    let mut sudo = agent_by_sudo(&["-k", "-S", "-p", PROMPT]).map_err(refused)?;
    sudo.arg(SIGN).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = rlaunch_sys::spawn(&mut sudo).map_err(refused)?;
    let (Some(mut stderr), Some(mut stdin)) = (child.stderr.take(), child.stdin.take()) else {
        return Err(Access::Refused("there is no pipe to sudo".to_owned()));
    };
    let (mut said, mut buffer, mut answered) = (Vec::new(), [0; 512], 0);
    loop {
        let length = stderr.read(&mut buffer).unwrap_or(0);
        said.extend_from_slice(buffer.get(..length).unwrap_or_default());
        let text = String::from_utf8_lossy(&said);
        if text.contains(STARTED) {
            child.stdin = Some(stdin);
            return Ok((child, stderr));
        }
        let asked = text.matches(PROMPT).count();
        if asked > 1 || length == 0 {
            // It ends by itself without an answer.
            drop(stdin);
            let _ = child.wait();
            let last = text.replace(PROMPT, "").trim().replace('\n', "; ");
            let is_wrong = asked > 1 || last.contains("try again") || last.contains("incorrect");
            return Err(if is_wrong { Access::Password } else { Access::Refused(last) });
        }
        if asked > answered {
            answered = asked;
            stdin.write_all(format!("{password}\n").as_bytes()).map_err(refused)?;
        }
    }
}

/// Passes on what the launcher sends to root's process, until that ends.
fn pass_on(mut child: Child, mut stderr: ChildStderr) -> ExitCode {
    let to = child.stdin.take();
    std::thread::spawn(move || {
        if let Some(mut to) = to {
            // Either end may be gone; then the other learns of it by the end of the pipe.
            let _ = copy(&mut io::stdin(), &mut to);
        }
    });
    std::thread::spawn(move || drop(copy(&mut stderr, &mut io::stderr())));
    end_of(child)
}

fn end_of(mut child: Child) -> ExitCode {
    match child.wait() {
        Ok(status) => ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)),
        Err(_) => ExitCode::FAILURE,
    }
}

/// Copies bytes as they come, without a buffer that would hold them back.
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => {
                to.write_all(&buffer[..length])?;
                to.flush()?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Gives the sign that root's process has started, if `word` asks for it.
pub(super) fn give_sign(word: Option<&str>) {
    if word == Some(SIGN) {
        let _ = io::stderr().write_all(STARTED.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sudos_are_understood() {
        assert!(asks_for_password("sudo: a password is required\n"));
        assert!(asks_for_password("sudo: interactive authentication is required\n"));
        assert!(!asks_for_password("sudo: a terminal is required\n"));
    }

    #[test]
    fn root_starts_this_very_program() {
        assert!(root_may_trace("Name:\tx\nCapBnd:\t000001ffffffffff\n"));
        // As Docker has it.
        assert!(!root_may_trace("CapBnd:\t00000000a80425fb\n"));
        let program = std::fs::read(own_program().unwrap()).unwrap();
        assert!(program == std::fs::read(std::env::current_exe().unwrap()).unwrap());
    }
}
