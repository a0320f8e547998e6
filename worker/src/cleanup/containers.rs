//! Containers that a job has left on this host: those with the labels that the launcher gives them. Their engine may have been
//! away when the job ended, or their processes belong to another user, whom only the engine may disturb.

use crate::node::cache;
use nix::unistd::Uid;
use rlaunch_bootstrap::protocol::housekeeping::{ENGINE_MARK, UNASKED};
use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Programs that understand docker's command line.
const ENGINES: [&str; 3] = ["docker", "podman", "nerdctl"];
/// Time that an engine has to answer; one that hangs is left alone.
const LIMIT: Duration = Duration::from_secs(10);
/// Longest part of an engine's refusal that is passed on, in characters.
const LONGEST: usize = 200;

/// What became of containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removal {
    /// Number of those that are gone.
    pub(crate) removed: usize,
    /// Engines that may have some left, each with the reason; empty if there are none.
    pub(crate) unasked: String,
}

/// Removes the containers of a job, or of all jobs of this user for `all`. Engines that have started none for this user are
/// not asked.
pub(crate) fn remove(job: &str) -> Removal {
    let filter = match job {
        "all" => format!("label=rlaunch.uid={}", Uid::effective()),
        id => format!("label=rlaunch.job={id}"),
    };
    let engines = used_engines(&cache::caches());
    remove_by_all(&engines.iter().map(PathBuf::from).collect::<Vec<_>>(), &filter, LIMIT)
}

/// Returns the engines that have a mark in one of the caches of this account. The launcher puts it into the one below the home
/// directory, so that it is found by an agent that is somewhere else.
fn used_engines(caches: &[PathBuf]) -> Vec<&'static str> {
    let has_mark = |engine: &&str| {
        caches.iter().any(|cache| cache.join(format!("{ENGINE_MARK}{engine}")).exists())
    };
    ENGINES.into_iter().filter(has_mark).collect()
}

fn remove_by_all(engines: &[PathBuf], filter: &str, limit: Duration) -> Removal {
    let until = Instant::now() + limit;
    let tasks = engines.iter().map(|engine| {
        let (program, filter) = (engine.clone(), filter.to_owned());
        let task = thread::Builder::new().spawn(move || remove_by(&program, &filter, until));
        (engine.file_name().unwrap_or_default(), task)
    });
    let mut removal = Removal::default();
    for (name, task) in tasks.collect::<Vec<_>>() {
        let outcome = match task.map(thread::JoinHandle::join) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err("the question failed".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        match outcome {
            Ok(removed) => removal.removed += removed,
            Err(why) => removal.unasked.push_str(&unasked(name, &why)),
        }
    }
    let first = removal.unasked.strip_prefix("; ").unwrap_or_default().to_owned();
    Removal { unasked: first, ..removal }
}

/// Says why an engine may have containers left, behind a separator, which the reason itself does not have.
fn unasked(engine: &OsStr, why: &str) -> String {
    let plain = |c: char| if c == ';' || c.is_control() { ',' } else { c };
    let why: String = why.trim().chars().map(plain).take(LONGEST).collect();
    format!("; {}{UNASKED}{why}", engine.to_string_lossy())
}

/// Removes the containers with a label by their engine, and returns the number of those that it says are gone.
fn remove_by(engine: &Path, filter: &str, until: Instant) -> Result<usize, String> {
    let listed = run(engine, &["ps", "-aq", "--filter", filter], until)?;
    let ids: Vec<&str> = listed.split_ascii_whitespace().collect();
    if ids.is_empty() {
        return Ok(0);
    }
    let words = [&["rm", "-f"][..], &ids].concat();
    Ok(run(engine, &words, until)?.split_ascii_whitespace().count())
}

/// Runs a command of an engine, and returns what it prints, or the last line in which it says why it fails.
fn run(engine: &Path, words: &[&str], until: Instant) -> Result<String, String> {
    let mut command = Command::new(engine);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        // It was removed since, and its containers with it.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(String::new()),
        child => child.map_err(|error| format!("cannot start it: {error}"))?,
    };
    let (status, out, err) = match outcome_of(&mut child, until) {
        Ok(Some(outcome)) => outcome,
        Ok(None) => {
            // Its client alone: what hangs is the engine.
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("`{}` did not answer within {} s", words[0], LIMIT.as_secs()));
        }
        Err(error) => return Err(format!("`{}`: {error}", words[0])),
    };
    if status.success() {
        return Ok(out);
    }
    let said = err.lines().rfind(|line| !line.trim().is_empty());
    Err(said.map_or_else(|| format!("`{}`: {status}", words[0]), str::to_owned))
}

/// Waits for the end of a command, and returns its status and what it has written to stdout and stderr; `None` if it has not
/// ended by a time.
fn outcome_of(
    child: &mut Child,
    until: Instant,
) -> io::Result<Option<(ExitStatus, String, String)>> {
    let (sender, written) = mpsc::channel();
    read(0, child.stdout.take(), &sender)?;
    read(1, child.stderr.take(), &sender)?;
    let mut texts = [String::new(), String::new()];
    for _ in 0..texts.len() {
        match written.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok((stream, text)) => texts[stream] = text,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
    let [out, err] = texts;
    Ok(Some((child.wait()?, out, err)))
}

/// Reads a stream to its end in a thread of its own.
fn read(
    stream: usize,
    pipe: Option<impl Read + Send + 'static>,
    sender: &mpsc::Sender<(usize, String)>,
) -> io::Result<()> {
    let sender = sender.clone();
    let task = thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is what there is.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        let _ = sender.send((stream, String::from_utf8_lossy(&bytes).into_owned()));
    });
    task.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;

    const LONG: Duration = Duration::from_secs(60);

    fn engine(name: &str, script: &str) -> (TempDir, PathBuf) {
        let scratch = tempfile::tempdir().unwrap();
        let engine = scratch.path().join(name);
        std::fs::write(&engine, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&engine, PermissionsExt::from_mode(0o755)).unwrap();
        (scratch, engine)
    }

    fn removed(engine: &Path, job: &str, limit: Duration) -> Removal {
        remove_by_all(&[engine.to_owned()], &format!("label=rlaunch.job={job}"), limit)
    }

    #[test]
    fn containers_with_the_label_are_removed_by_their_engine() {
        let script = "case $1 in ps) [ $4 != label=rlaunch.job=7 ] || echo a b;; rm) shift 2; echo $*;; esac";
        let (_scratch, engine) = engine("docker", script);
        assert_eq!(removed(&engine, "7", LONG), Removal { removed: 2, unasked: String::new() });
        assert_eq!(removed(&engine, "8", LONG), Removal::default());
    }

    #[test]
    fn an_engine_that_fails_or_hangs_is_named_with_the_reason() {
        let refusal = "echo 'Cannot connect to the daemon; is it running?' >&2; exit 1";
        for (script, limit, why) in [
            (refusal, LONG, "Cannot connect to the daemon, is it running?"),
            ("exit 3", LONG, "`ps`: exit status: 3"),
            ("exec sleep 600", Duration::from_millis(100), "`ps` did not answer within 10 s"),
            ("case $1 in ps) echo a;; rm) exit 1;; esac", LONG, "`rm`: exit status: 1"),
        ] {
            let (_scratch, engine) = engine("podman", script);
            let unasked = format!("podman: may have some left: {why}");
            assert_eq!(removed(&engine, "7", limit), Removal { removed: 0, unasked });
        }
        assert_eq!(removed(Path::new("/no/docker"), "7", LONG), Removal::default());
    }

    #[test]
    fn an_engine_counts_as_used_by_a_mark_in_any_cache_of_the_account() {
        let (home, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let caches = [own.path().to_owned(), home.path().to_owned()];
        assert!(used_engines(&caches).is_empty());
        std::fs::write(home.path().join(".ran-podman"), "").unwrap();
        std::fs::write(own.path().join(".ran-other"), "").unwrap();
        assert_eq!(used_engines(&caches), ["podman"]);
    }
}
