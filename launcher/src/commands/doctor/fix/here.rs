//! Fixes on this machine, and keys for hosts.

use crate::cli::args::SshArgs;
use crate::commands::doctor::DoctorArgs;
use crate::commands::ssh_setup::{self, SshSetupArgs};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, geteuid};
use rlaunch_console::deadline::Deadline;
use rlaunch_text::exit::Exit;
use std::io::{self, IsTerminal};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// Time for a line. No password is typed meanwhile.
const TIME: Duration = Duration::from_secs(120);

/// Runs a line in a shell. If sudo needs a password, it asks for that first, at the terminal.
pub(super) async fn run(line: &str) -> Result<(), String> {
    let line = as_root(line, geteuid().is_root());
    match run_unattended(&line).await {
        Err(words) if asks_for_password(&words) && io::stdin().is_terminal() => {
            let entered = Command::new("sudo").arg("-v").status().await;
            let entered = entered.map_err(|error| format!("sudo: {error}"))?;
            if entered.success() { run_unattended(&line).await } else { Err(words) }
        }
        done => done,
    }
}

/// Tells whether sudo has refused to do something without a password.
fn asks_for_password(words: &str) -> bool {
    // sudo, and the one that is written in Rust.
    ["password is required", "authentication is required"].iter().any(|word| words.contains(word))
}

/// Processes of a line, which are killed together unless it has ended.
struct LineGroup(Option<Pid>);

impl Drop for LineGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // They may have ended.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

/// Runs a line that cannot ask for anything.
async fn run_unattended(line: &str) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("{line}: {error}");
    let mut command = Command::new("sh");
    command.args(["-c", line]).env("LC_ALL", "C").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| failed(&error))?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    let mut group = LineGroup(group);
    let ran = Deadline::after(TIME).wait("its end", child.wait_with_output()).await;
    let output = ran.map_err(|late| failed(&late))?.map_err(|error| failed(&error))?;
    group.0 = None;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(if words.is_empty() { format!("{line}: {}", output.status) } else { words })
}

/// Leaves sudo out for root, and does not let it ask.
fn as_root(line: &str, is_root: bool) -> String {
    match line.strip_prefix("sudo ") {
        Some(plain) if is_root => plain.to_owned(),
        Some(plain) => format!("sudo -n {plain}"),
        None => line.to_owned(),
    }
}

/// Installs the user's key on hosts, by passwords that the user types.
pub(super) async fn install_key(hosts: &[String], args: &DoctorArgs) -> Result<(), String> {
    if hosts.is_empty() {
        return Ok(());
    }
    let ssh = SshArgs { port: args.connect.port, ssh_config: args.connect.ssh_config.clone() };
    let setup = SshSetupArgs {
        hosts: hosts.to_vec(),
        container: None,
        key: None,
        yes: true,
        dry_run: false,
        ssh,
    };
    match ssh_setup::run(setup).await {
        Ok(Exit::SUCCESS) => Ok(()),
        Ok(_) => Err("the key was not installed".to_owned()),
        Err(failed) => Err(failed.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_does_not_ask() {
        let line = "sudo chown $(id -u) /k";
        assert_eq!(as_root(line, true), "chown $(id -u) /k");
        assert_eq!(as_root(line, false), "sudo -n chown $(id -u) /k");
        assert_eq!(as_root("chmod 600 /k", false), "chmod 600 /k");
        assert!(asks_for_password("sudo: a password is required"));
        assert!(asks_for_password("sudo: interactive authentication is required"));
        assert!(!asks_for_password("sudo: k: command not found"));
    }

    /// What a line has started is not left behind.
    #[tokio::test]
    async fn a_line_that_is_given_up_ends_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        let line = format!("sleep 600 & echo $! > {0}.new; mv {0}.new {0}; wait", path.display());
        let noted = async {
            loop {
                if let Ok(text) = std::fs::read_to_string(&path) {
                    break text.trim().to_owned();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let pid = tokio::select! {
            pid = noted => pid,
            ended = run_unattended(&line) => panic!("{ended:?}"),
        };
        let mut deadline = Deadline::after(Duration::from_secs(60));
        let gone = async {
            // A process that has ended stays in /proc until its parent has waited for it.
            while std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .is_ok_and(|stat| !stat.contains(") Z "))
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        deadline.wait("the end of what the line has started", gone).await.unwrap();
    }

    #[tokio::test]
    async fn a_line_that_fails_says_why() {
        assert_eq!(run("true").await, Ok(()));
        assert_eq!(run("echo no such key >&2; exit 1").await, Err("no such key".to_owned()));
        assert!(run("exit 3").await.unwrap_err().contains("exit status: 3"));
    }
}
