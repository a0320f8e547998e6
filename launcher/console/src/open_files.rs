//! How many files the launcher may have open. A job of many hosts takes more than the usual soft limit
//! of 1024, which is raised as far as the hard one allows; programs that the launcher starts are given
//! back what this shell has, since those that use select(2) fail with a number above 1023.

use crate::exit::Exit;
use crate::messages::{self, Failed};
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::fs::File;
use std::io;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Files that the launcher has open beside its hosts: its streams, the runtime, records, what is read.
const OWN: u64 = 32;
/// Most files that one host takes: where a command leads there, three pipes, its process, a name lookup and
/// key files.
const OF_HOST: u64 = 8;
/// Hard limit below which the launcher refuses to start.
const REQUIRED: u64 = 10;
/// Open files that the launcher needs at least, beside one for each host; below that it warns.
const LEAST_OWN: u64 = 11;

/// The soft limit that this process was started with, once it has another.
static BEFORE: OnceLock<u64> = OnceLock::new();
/// How many hosts there are.
static HOSTS: AtomicUsize = AtomicUsize::new(1);

/// Makes sure that there are enough to begin with.
pub fn require() -> Result<(), Failed> {
    raise(1);
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((_, hard)) if hard < REQUIRED => {
            let message = format!("no more than {hard} open files are allowed here");
            Err(Failed::new(Exit::USAGE, message).hint(Some(raise_hint(1))))
        }
        _ => Ok(()),
    }
}

/// Raises the soft limit to what this many hosts may take, and warns if even the hard limit is less than
/// they need at least.
pub fn raise_for(hosts: usize) {
    HOSTS.store(hosts, Ordering::Relaxed);
    raise(hosts);
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && hard < LEAST_OWN + hosts as u64
    {
        messages::warn(&too_low(hosts, hard));
    }
}

fn raise(hosts: usize) {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let raised = wanted(hosts).min(hard);
    if soft < raised && setrlimit(Resource::RLIMIT_NOFILE, raised, hard).is_ok() {
        // The first time counts.
        let _ = BEFORE.set(soft);
    }
}

fn wanted(hosts: usize) -> u64 {
    OWN + OF_HOST * hosts as u64
}

fn them(hosts: usize) -> String {
    if hosts == 1 { "a host takes".to_owned() } else { format!("{hosts} hosts take") }
}

fn too_low(hosts: usize, hard: u64) -> String {
    format!(
        "{} up to {} open files here, and no more than {hard} are allowed: not all may be reached; \
         `ulimit -H -n` shows the limit, which root raises in /etc/security/limits.conf",
        them(hosts),
        wanted(hosts)
    )
}

/// Has a program start with the limit that this process was started with.
pub fn restore(command: &mut Command) {
    if let Some(before) = BEFORE.get() {
        rlaunch_sys::limit_open_files(command, *before);
    }
}

/// Gives a hint where an error, with its causes, says that no more files can be opened.
pub fn hint(error: &str) -> Option<String> {
    // Some causes are words by now, such as why a key was of no use.
    let says = |errno: Errno| error.contains(&io::Error::from(errno).to_string());
    if says(Errno::ENFILE) {
        return Some(
            "all programs of this machine together have too many files open: `sysctl fs.file-max` \
             shows the limit, which root raises"
                .to_owned(),
        );
    }
    says(Errno::EMFILE).then(|| raise_hint(HOSTS.load(Ordering::Relaxed)))
}

fn raise_hint(hosts: usize) -> String {
    let wanted = wanted(hosts);
    let (now, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
    let more = match hard < wanted {
        true => ", once root has raised the hard limit in /etc/security/limits.conf",
        false => "",
    };
    format!(
        "rlaunch may have {now} files open here, and {} up to {wanted}: `ulimit -n {wanted}` in this \
         shell allows that{more}",
        them(hosts)
    )
}

/// The cause of an error of the C library's, which does not tell when it could open no file.
pub fn cause(error: io::Error) -> io::Error {
    let is_want = |error: &io::Error| error.raw_os_error() == Some(Errno::EMFILE as i32);
    File::open("/dev/null").err().filter(is_want).unwrap_or(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_want_of_files_is_found_among_the_causes() {
        let said = |errno: Errno| format!("b: cannot connect: {}", io::Error::from(errno));
        let advice = hint(&said(Errno::EMFILE)).unwrap();
        assert!(advice.contains("`ulimit -n "), "{advice}");
        assert!(hint(&said(Errno::ENFILE)).unwrap().contains("fs.file-max"));
        assert!(hint(&said(Errno::ECONNREFUSED)).is_none());
    }

    #[test]
    fn a_limit_that_is_too_low_is_told_with_figures() {
        let said = too_low(100, 60);
        assert!(
            said.starts_with("100 hosts take up to 832 open files here, and no more than 60 are")
        );
    }
}
