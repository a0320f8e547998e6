//! Limit of open files of this process. Many hosts take more than the usual soft limit of 1024, so it is raised
//! as far as the hard limit allows. Programs that the launcher starts get the user's limit back, because
//! select(2) fails with file numbers above 1023.

use crate::text;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::fs::File;
use std::io;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Files that the launcher opens apart from its hosts: streams, runtime, records, input files.
const OWN: u64 = 32;
/// Most files per host: with `--rsh` three pipes, the process, a name lookup and key files.
const PER_HOST: u64 = 8;
/// Hard limit below which the launcher does not start.
const REQUIRED: u64 = 10;
/// Files that the launcher needs at least, apart from one per host; with fewer it warns.
const LEAST_OWN: u64 = 11;

/// Soft limit at the start of this process, once it was raised.
static ORIGINAL: OnceLock<u64> = OnceLock::new();
/// Number of hosts, for hints.
static HOSTS: AtomicUsize = AtomicUsize::new(1);

/// Hard limit that is too low to start.
#[derive(Debug, thiserror::Error)]
#[error("no more than {0} open files are allowed here")]
pub struct LimitTooLow(u64);

impl LimitTooLow {
    /// Tells the user how to raise the limit.
    pub fn hint(&self) -> String {
        raise_hint(1)
    }
}

/// Raises the soft limit for one host. Fails if the hard limit is too low for any job.
pub fn require() -> Result<(), LimitTooLow> {
    raise(1);
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((_, hard)) if hard < REQUIRED => Err(LimitTooLow(hard)),
        _ => Ok(()),
    }
}

/// Raises the soft limit for `hosts` hosts. Returns a warning if the hard limit is too low for them.
#[must_use]
pub fn raise_for(hosts: usize) -> Option<String> {
    HOSTS.store(hosts, Ordering::Relaxed);
    raise(hosts);
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    (hard < LEAST_OWN + hosts as u64).then(|| too_low(hosts, hard))
}

fn raise(hosts: usize) {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let raised = wanted(hosts).min(hard);
    if soft < raised && setrlimit(Resource::RLIMIT_NOFILE, raised, hard).is_ok() {
        // Only the first call sees the user's limit.
        let _ = ORIGINAL.set(soft);
    }
}

fn wanted(hosts: usize) -> u64 {
    OWN + PER_HOST * hosts as u64
}

fn hosts_take(hosts: usize) -> String {
    format!("{} {}", text::count(hosts, "host"), if hosts == 1 { "takes" } else { "take" })
}

fn too_low(hosts: usize, hard: u64) -> String {
    format!(
        "{} up to {} open files here, and no more than {hard} are allowed: some may not be reached; \
         `ulimit -H -n` shows the limit, which root raises in /etc/security/limits.conf",
        hosts_take(hosts),
        wanted(hosts)
    )
}

/// Makes a program start with the limit that this process was started with.
pub fn restore(command: &mut Command) {
    if let Some(original) = ORIGINAL.get() {
        rlaunch_sys::limit_open_files(command, *original);
    }
}

/// Returns a hint if the text of an error, with its causes, says that no more files can be opened.
pub fn hint(error: &str) -> Option<String> {
    // Texts are compared, because some causes are text by now, such as why a key was not used.
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
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
    let more = match hard < wanted {
        true => ", once root has raised the hard limit in /etc/security/limits.conf",
        false => "",
    };
    format!(
        "rlaunch may have {soft} files open here, and {} up to {wanted}: `ulimit -n {wanted}` in this \
         shell allows that{more}",
        hosts_take(hosts)
    )
}

/// Returns the cause of an error of the C library, which does not report that it could open no file.
pub fn cause(error: io::Error) -> io::Error {
    let is_limit = |error: &io::Error| error.raw_os_error() == Some(Errno::EMFILE as i32);
    File::open("/dev/null").err().filter(is_limit).unwrap_or(error)
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
