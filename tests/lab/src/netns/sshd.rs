//! The sshd of one host: its configuration, its key, its processes.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::accounts::make_key;
use super::processes;
use super::{Account, Lab, Process};
use crate::LabError;
use crate::command::{last_lines, run, wait_until};
use crate::files::write;

/// Directory of the sshd's files on the host.
const FILES: &str = "/run/rlaunch-lab";

/// Settings of every sshd. Both accounts can log in with the lab's key, and no limit delays 64
/// simultaneous connections.
const DEFAULTS: &[(&str, &str)] = &[
    ("Port", "22"),
    ("AddressFamily", "inet"),
    ("HostKey", "/run/rlaunch-lab/host_key"),
    ("AuthorizedKeysFile", "/run/rlaunch-lab/authorized_keys"),
    ("PidFile", "none"),
    ("PermitRootLogin", "yes"),
    ("PasswordAuthentication", "no"),
    ("KbdInteractiveAuthentication", "no"),
    ("StrictModes", "no"),
    ("UsePAM", "no"),
    ("UseDNS", "no"),
    ("MaxStartups", "4096:30:8192"),
    ("MaxSessions", "1024"),
    ("PrintMotd", "no"),
    ("PrintLastLog", "no"),
    ("AcceptEnv", "LANG LC_*"),
    ("Subsystem", "sftp internal-sftp"),
];

/// Handle to a host's sshd, which can be restarted, reconfigured or killed.
#[derive(Debug)]
pub struct Sshd<'a> {
    lab: &'a Lab,
    host: &'a str,
}

impl<'a> Sshd<'a> {
    pub(super) fn new(lab: &'a Lab, host: &'a str) -> Sshd<'a> {
        Sshd { lab, host }
    }

    /// Restarts the listening sshd. `lines` replace or extend its settings, for example
    /// `["MaxStartups 2:50:4", "Port 2222"]`. Open connections continue.
    pub fn restart(&self, lines: &[&str]) -> Result<(), LabError> {
        self.stop()?;
        write(&self.file("sshd_config"), config(lines), 0o644)?;
        let mut sshd = self.lab.on(self.host, Account::Root)?;
        sshd.args([
            "sh",
            "-c",
            r#"exec "$(command -v sshd)" -f "$1/sshd_config" -E "$1/sshd.log" $2"#,
        ]);
        sshd.args(["sh", FILES]).args(without_another_start());
        run(&format!("start the sshd of {}", self.host), &mut sshd)?;
        let port = port(lines);
        let init = self.lab.init(self.host)?;
        let what = format!("the sshd of {} to listen on port {port}", self.host);
        wait_until(Duration::from_secs(10), &what, || Ok(listens(init.pid, port)))
            .map_err(|error| with_detail(error, &self.log()))
    }

    /// Gives the host a new key and restarts its sshd. The launch node's known_hosts keep the old
    /// one until [`Lab::refresh_known_hosts`].
    pub fn replace_host_key(&self) -> Result<(), LabError> {
        for name in ["host_key", "host_key.pub"] {
            let path = self.file(name);
            fs::remove_file(&path).map_err(LabError::io(format!("remove {}", path.display())))?;
        }
        make_key(&self.file("host_key"), self.host)?;
        self.restart(&[])
    }

    /// Kills the listening sshd: new connections are refused, open ones continue.
    pub fn stop(&self) -> Result<(), LabError> {
        self.kill(Process::is_listening_sshd)
    }

    /// Kills the sshd of every open connection, as a crash of these processes would.
    pub fn kill_sessions(&self) -> Result<(), LabError> {
        self.kill(Process::is_ssh_session)
    }

    /// Returns the sshd's log since the lab came up.
    pub fn log(&self) -> String {
        fs::read_to_string(self.file("sshd.log")).unwrap_or_default()
    }

    fn kill(&self, chosen: impl Fn(&Process) -> bool) -> Result<(), LabError> {
        let init = self.lab.init(self.host)?;
        let of_host = || processes::all(&[(self.host, init.pid)]).into_iter();
        let victims: Vec<i32> = of_host().filter(&chosen).map(|process| process.pid).collect();
        victims.iter().for_each(|pid| processes::kill(*pid));
        let what = format!("the sshd of {} to end", self.host);
        wait_until(Duration::from_secs(10), &what, || {
            Ok(!of_host().any(|process| victims.contains(&process.pid) && process.state != 'Z'))
        })
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.lab.paths.host(self.host).join("sshd").join(name)
    }
}

/// Adds the last lines of a log to a timeout error.
pub(crate) fn with_detail(error: LabError, log: &str) -> LabError {
    match error {
        LabError::Deadline { what, seconds, .. } => {
            LabError::Deadline { what, seconds, detail: last_lines(log, 10) }
        }
        other => other,
    }
}

/// Returns the configuration with `lines` in place of default settings of the same name. Appending
/// them would not do: sshd uses the first value of a setting, but listens on every port that it
/// reads.
pub(super) fn config(lines: &[&str]) -> String {
    let replaced = |name: &str| lines.iter().any(|line| keyword(line).eq_ignore_ascii_case(name));
    let defaults = DEFAULTS.iter().filter(|(name, _)| !replaced(name));
    let defaults = defaults.map(|(name, value)| format!("{name} {value}\n"));
    defaults.chain(lines.iter().map(|line| format!("{line}\n"))).chain(penalties()).collect()
}

/// Returns the setting that disables penalties: since 9.8 sshd refuses addresses that fail often,
/// as tests of failures do.
fn penalties() -> Option<String> {
    (installed()? >= (9, 8)).then(|| "PerSourcePenalties no\n".into())
}

/// Returns the option by which an sshd does not start itself once more for each connection, which takes an eighth of the
/// connection's processor time. Since 9.8 another program serves connections.
fn without_another_start() -> Option<&'static str> {
    (installed()? < (9, 8)).then_some("-r")
}

/// Returns the version of OpenSSH.
fn installed() -> Option<(u32, u32)> {
    let output = Command::new("ssh").arg("-V").output().ok()?;
    version(&String::from_utf8_lossy(&output.stderr))
}

fn version(text: &str) -> Option<(u32, u32)> {
    let numbers = text.strip_prefix("OpenSSH_")?;
    let (major, rest) = numbers.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn keyword(line: &str) -> &str {
    line.split_whitespace().next().unwrap_or_default()
}

fn port(lines: &[&str]) -> u16 {
    let line = lines.iter().find(|line| keyword(line).eq_ignore_ascii_case("port"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(22)
}

/// Returns whether a process listens on `port` in the network namespace of `pid`.
pub(super) fn listens(pid: i32, port: u16) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let listening = format!(":{port:04X} 00000000:0000 0A");
    text.lines().any(|line| line.contains(&listening))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_replace_defaults() {
        let text = config(&["port 2222", "RekeyLimit 1M 2s"]);
        assert!(!text.contains("Port 22\n"), "{text}");
        assert!(text.contains("port 2222\nRekeyLimit 1M 2s\n"), "{text}");
        assert!(text.contains("UsePAM no\n"), "{text}");
        assert_eq!(port(&["UsePAM no", "Port 2222"]), 2222);
        assert_eq!(port(&[]), 22);
    }
}
