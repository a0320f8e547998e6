//! Programs that copy files in the bench: rlaunch, and those that people use in its place. A copy is done when the files
//! are on the disks of all hosts.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::command::background::Background;
use crate::command::{at_once, last_lines, run};
use crate::{Account, Lab, LabError};

/// Time limit of a copy.
const LIMIT: Duration = Duration::from_secs(900);
/// Cipher with the least CPU time, where processors have instructions for it.
const CIPHER: &str = "ssh -c aes128-gcm@openssh.com";
/// Scripts for hosts of a chain. Arguments: file, and the address of the next host.
const PASS_ON: &str = "socat -u -b 262144 TCP-LISTEN:9000,reuseaddr STDOUT | tee \"$1\" \
                       | socat -u -b 262144 STDIN TCP:\"$2\":9000; exec sync -f \"$1\"";
const KEEP: &str =
    "socat -u -b 262144 TCP-LISTEN:9000,reuseaddr CREATE:\"$1\"; exec sync -f \"$1\"";
/// Script that waits for a host of the chain.
const LISTENS: &str =
    "timeout 10 sh -c 'until ss -Hltn sport = :9000 | grep -q .; do sleep 0.02; done'";

/// Program that copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copier {
    Push,
    /// Without encryption.
    PushPlain,
    /// To the first host only: what the link can do with one of them.
    Scp,
    /// Each host passes on what it receives, without any protection. The hosts listen before the time begins.
    Socat,
    /// To each host, all at once.
    Rsync,
    /// The same.
    Clush,
}

impl Copier {
    pub(super) fn name(self) -> &'static str {
        match self {
            Copier::Push => "push",
            Copier::PushPlain => "push --plain",
            Copier::Scp => "scp",
            Copier::Socat => "socat",
            Copier::Rsync => "rsync",
            Copier::Clush => "clush",
        }
    }

    /// Tells whether this machine sends a file as often as there are hosts.
    pub(super) fn sends_to_each(self) -> bool {
        matches!(self, Copier::Rsync | Copier::Clush)
    }

    /// Returns those of `hosts` that it copies to.
    pub(super) fn reached(self, hosts: &[String]) -> &[String] {
        if self == Copier::Scp { &hosts[..hosts.len().min(1)] } else { hosts }
    }
}

/// Copy of a file or a directory into a directory of hosts, which exists.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task<'a> {
    pub(super) lab: &'a Lab,
    pub(super) rlaunch: &'a Path,
    /// Directory below which rlaunch keeps its index.
    pub(super) cache: &'a Path,
    pub(super) source: &'a Path,
    pub(super) hosts: &'a [String],
    pub(super) to: &'a Path,
}

impl Task<'_> {
    /// Copies; returns the seconds that it takes.
    pub(super) fn run(&self, copier: Copier) -> Result<f64, LabError> {
        let (source, to) = (self.source.display(), self.to.display());
        let (from, list) = (source.to_string(), self.hosts.join(","));
        if copier == Copier::Socat {
            return self.by_chain();
        }
        let began = Instant::now();
        match copier {
            Copier::Push | Copier::PushPlain => {
                let mut words = vec!["push".to_owned(), "-H".to_owned(), list];
                words.extend((copier == Copier::PushPlain).then(|| "--plain".to_owned()));
                words.push(format!("{source}:{to}"));
                let mut push = self.here(self.rlaunch, &words);
                run("push", push.env("XDG_CACHE_HOME", self.cache))?;
                return Ok(began.elapsed().as_secs_f64());
            }
            Copier::Clush => {
                let words = ["-q", "-w", &list, "--copy", &from, "--dest"];
                run("copy by clush", self.here("clush", &words).arg(self.to))?;
            }
            _ => {
                let name = copier.name();
                let options: &[&str] =
                    if copier == Copier::Rsync { &["-a", "-e", CIPHER] } else { &["-q"] };
                at_once(self.hosts, |host| {
                    let mut command = self.here(name, options);
                    command.arg(self.source).arg(format!("{host}:{to}/"));
                    run(&format!("copy by {name}"), &mut command)
                })?;
            }
        }
        at_once(self.hosts, |host| {
            let mut sync = self.lab.on(host, Account::Root)?;
            run("write to the disk", sync.args(["sync", "-f"]).arg(self.to))
        })?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Makes a command of the launch node.
    fn here(&self, program: impl AsRef<Path>, words: &[impl AsRef<str>]) -> Command {
        let mut command = self.lab.exec_in(Account::Root, Path::new("/"));
        command.arg(program.as_ref()).args(words.iter().map(AsRef::as_ref));
        command
    }

    /// Copies a file by a chain of socats.
    fn by_chain(&self) -> Result<f64, LabError> {
        let mut links = Vec::new();
        // The last one first, so that each finds the one behind it.
        for (at, host) in self.hosts.iter().enumerate().rev() {
            links.push(Background::start(self.link(host, self.hosts.get(at + 1))?)?);
            let mut listens = self.lab.on(host, Account::Root)?;
            run("wait for a chain", listens.args(["sh", "-c", LISTENS]))?;
        }
        let Some(first) = self.hosts.first() else { return Ok(0.0) };
        let began = Instant::now();
        let to = format!("TCP:{}:9000", self.lab.address(first)?);
        let mut send = self.here("socat", &["-u", "-b", "262144"]);
        run("send by socat", send.arg(self.source).arg(to))?;
        for link in &mut links {
            if !link.wait(LIMIT)?.is_some_and(|status: ExitStatus| status.success()) {
                let said = last_lines(&link.stderr(), 5);
                return Err(LabError::Unexpected(format!("a chain of socats failed\n{said}")));
            }
        }
        Ok(began.elapsed().as_secs_f64())
    }

    /// Makes the command of a host of the chain.
    fn link(&self, host: &str, next: Option<&String>) -> Result<Command, LabError> {
        let file: PathBuf = self.to.join(self.source.file_name().unwrap_or_default());
        let mut link = self.lab.on(host, Account::Root)?;
        link.args(["sh", "-c", if next.is_some() { PASS_ON } else { KEEP }, "sh"]).arg(file);
        if let Some(next) = next {
            link.arg(self.lab.address(next)?.to_string());
        }
        Ok(link)
    }
}
