//! Fixes on this machine, and keys for hosts.

use crate::cli::args::SshArgs;
use crate::commands::doctor::DoctorArgs;
use crate::commands::ssh_setup::{self, SshSetupArgs};
use nix::unistd::geteuid;
use rlaunch_console::deadline::Deadline;
use rlaunch_text::exit::Exit;
use std::io::{self, IsTerminal};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// Time for a line, in which a password may be typed.
const TIME: Duration = Duration::from_secs(120);

/// Runs a line in a shell. sudo asks for its password at the terminal.
pub(super) async fn run(line: &str) -> Result<(), String> {
    let line = as_root(line, geteuid().is_root(), io::stdin().is_terminal());
    let mut command = Command::new("sh");
    command.args(["-c", &line]).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let ran = Deadline::after(TIME).wait("its end", command.output()).await;
    let output = ran.map_err(|late| format!("{line}: {late}"))?;
    let output = output.map_err(|error| format!("{line}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(if words.is_empty() { format!("{line}: {}", output.status) } else { words })
}

/// Leaves sudo out for root, and lets it ask only where somebody can answer.
fn as_root(line: &str, is_root: bool, is_terminal: bool) -> String {
    match line.strip_prefix("sudo ") {
        Some(plain) if is_root => plain.to_owned(),
        Some(plain) if !is_terminal => format!("sudo -n {plain}"),
        _ => line.to_owned(),
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
    fn sudo_asks_only_where_somebody_can_answer() {
        let line = "sudo chown $(id -u) /k";
        assert_eq!(as_root(line, true, true), "chown $(id -u) /k");
        assert_eq!(as_root(line, false, true), line);
        assert_eq!(as_root(line, false, false), "sudo -n chown $(id -u) /k");
        assert_eq!(as_root("chmod 600 /k", false, false), "chmod 600 /k");
    }

    #[tokio::test]
    async fn a_line_that_fails_says_why() {
        assert_eq!(run("true").await, Ok(()));
        assert_eq!(run("echo no such key >&2; exit 1").await, Err("no such key".to_owned()));
        assert!(run("exit 3").await.unwrap_err().contains("exit status: 3"));
    }
}
