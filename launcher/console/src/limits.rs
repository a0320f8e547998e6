//! Limits of this process: of open files (RLIMIT_NOFILE), of processes and threads (RLIMIT_NPROC of a user, `pids.max` of a
//! control group), and of the size of files (RLIMIT_FSIZE).
//!
//! A job with many hosts needs more open files than the usual soft limit of 1024, so the launcher raises
//! the soft limit, at most to the hard limit. Programs that the launcher starts get the original limit
//! back, because programs that call select(2) fail with file descriptors above 1023.

use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use rlaunch_text::text;
use std::fs::File;
use std::io;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Upper bound on the files that the launcher has open independently of the number of hosts: standard
/// streams, the async runtime, records, input files.
const BASE_FILES: u64 = 32;
/// Maximum number of open files per host. With `--rsh`, a host takes three pipes and a process; a name
/// lookup and key files are open for a short time in addition.
const PER_HOST: u64 = 8;
/// Minimum hard limit; the launcher does not start with a lower one.
const REQUIRED: u64 = 10;
/// Minimum number of files that the launcher needs in addition to one per host. The launcher warns if the
/// hard limit allows fewer files.
const MIN_BASE_FILES: u64 = 11;

/// Soft limit that this process was started with; set once the limit has been raised.
static ORIGINAL: OnceLock<u64> = OnceLock::new();
/// Number of hosts of the job, for the text of hints.
static HOSTS: AtomicUsize = AtomicUsize::new(1);

/// Hard limit of open files that is too low for the launcher to start.
#[derive(Debug, thiserror::Error)]
#[error("no more than {0} open files are allowed here")]
pub struct LimitTooLow(u64);

impl LimitTooLow {
    /// Returns advice on how to raise the limit.
    pub fn hint(&self) -> String {
        raise_hint(1)
    }
}

/// Raises the soft limit to what a job with one host needs. Returns an error if the hard limit is too low
/// for any job.
pub fn raise_for_any_job() -> Result<(), LimitTooLow> {
    raise(1);
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((_, hard)) if hard < REQUIRED => Err(LimitTooLow(hard)),
        _ => Ok(()),
    }
}

/// Raises the soft limit to what a job with `hosts` hosts needs. Returns a warning for the user if the hard
/// limit is too low for that.
#[must_use]
pub fn raise_for(hosts: usize) -> Option<String> {
    HOSTS.store(hosts, Ordering::Relaxed);
    raise(hosts);
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    (hard < MIN_BASE_FILES + hosts as u64).then(|| too_low(hosts, hard))
}

fn raise(hosts: usize) {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let raised = wanted(hosts).min(hard);
    if soft < raised && setrlimit(Resource::RLIMIT_NOFILE, raised, hard).is_ok() {
        // Only the first call that raises the limit finds the user's own limit.
        let _ = ORIGINAL.set(soft);
    }
}

fn wanted(hosts: usize) -> u64 {
    BASE_FILES + PER_HOST * hosts as u64
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

/// Makes `command` start with the soft limit that this process itself was started with.
pub fn restore_open_files(command: &mut Command) {
    if let Some(original) = ORIGINAL.get() {
        rlaunch_sys::limit_open_files(command, *original);
    }
}

/// Returns a hint if `error`, the text of an error with its causes, says that a limit of open files was
/// reached.
pub fn open_files_hint(error: &str) -> Option<String> {
    // Compares texts and not error codes, because some causes were converted to text before, such as the
    // reason why a key was not used.
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
    let more = if hard < wanted {
        ", once root has raised the hard limit in /etc/security/limits.conf"
    } else {
        ""
    };
    format!(
        "rlaunch may have {soft} files open here, and {} up to {wanted}: `ulimit -n {wanted}` in this \
         shell allows that{more}",
        hosts_take(hosts)
    )
}

/// Returns EMFILE in place of `error` if this process cannot open another file. Some functions of the C
/// library, such as name lookup, do not report this cause themselves.
pub fn or_open_file_limit(error: io::Error) -> io::Error {
    let is_limit = |error: &io::Error| error.raw_os_error() == Some(Errno::EMFILE as i32);
    File::open("/dev/null").err().filter(is_limit).unwrap_or(error)
}

/// Returns a hint if the system refuses a process or a thread with an error of this number because of a limit, or because
/// of a filter.
pub fn process_hint(code: i32) -> Option<String> {
    match Errno::from_raw(code) {
        Errno::EAGAIN => Some(format!(
            "no more processes or threads are allowed here: `ulimit -u` is {}, and counts all of this user; a \
             container may have fewer (`cat /sys/fs/cgroup/pids.max`)",
            process_limit()
        )),
        Errno::EPERM => Some(
            "a filter forbids clone3, as older container engines do: a newer one, or one started with \
             --security-opt seccomp=unconfined, permits it"
                .to_owned(),
        ),
        _ => None,
    }
}

fn process_limit() -> String {
    match getrlimit(Resource::RLIMIT_NPROC) {
        Ok((soft, _)) if soft != RLIM_INFINITY => soft.to_string(),
        _ => "unlimited".to_owned(),
    }
}

/// Makes writes beyond the limit of the size of files fail, where the kernel would end this process by SIGXFSZ. Programs
/// that this process starts are ended as before.
pub fn survive_file_size() {
    rlaunch_sys::survive_file_size_limit();
}

/// Returns a hint if `error`, the text of an error with its causes, says that a file has become too large, here or on a
/// host.
pub fn file_size_hint(error: &str) -> Option<String> {
    // Compares texts, since those of hosts have no error codes. They have the same words.
    let hint = "`ulimit -f` shows the limit of the size of files, there or in this shell; `ulimit -f unlimited` lifts it, \
                if the hard limit allows that";
    error.contains(Errno::EFBIG.desc()).then(|| hint.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_want_of_files_is_found_among_the_causes() {
        let message = |errno: Errno| format!("b: cannot connect: {}", io::Error::from(errno));
        let advice = open_files_hint(&message(Errno::EMFILE)).unwrap();
        assert!(advice.contains("`ulimit -n "), "{advice}");
        assert!(open_files_hint(&message(Errno::ENFILE)).unwrap().contains("fs.file-max"));
        assert!(open_files_hint(&message(Errno::ECONNREFUSED)).is_none());
    }

    #[test]
    fn a_limit_that_is_too_low_is_told_with_figures() {
        let message = too_low(100, 60);
        assert!(
            message
                .starts_with("100 hosts take up to 832 open files here, and no more than 60 are")
        );
    }

    #[test]
    fn a_file_that_is_too_large_is_found_among_the_causes() {
        let error = |errno: Errno| format!("cannot write /a: {}", io::Error::from(errno));
        assert!(
            file_size_hint(&error(Errno::EFBIG)).is_some_and(|hint| hint.contains("`ulimit -f`"))
        );
        assert_eq!(file_size_hint(&error(Errno::ENOSPC)), None);
    }
}
