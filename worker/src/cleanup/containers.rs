//! Containers that a job has left on this host: those with the labels that the launcher gives them. Their engine may have been
//! away when the job ended, or their processes belong to another user, whom only the engine may disturb.

use nix::unistd::Uid;
use rlaunch_bootstrap::protocol::housekeeping::ENGINE_MARK;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Programs that understand docker's command line.
const ENGINES: [&str; 3] = ["docker", "podman", "nerdctl"];
/// Time that all engines have to answer; one that hangs is left behind.
const LIMIT: Duration = Duration::from_secs(10);

/// Removes the containers of a job, or of all jobs of this user for `all`, and returns their number. Engines that have started
/// none for this user are not asked.
pub(crate) fn remove(job: &str) -> usize {
    let program = std::env::current_exe().unwrap_or_default();
    let marks = program.parent().and_then(Path::parent);
    let engines = ENGINES.into_iter().filter(|engine| {
        marks.is_some_and(|marks| marks.join(format!("{ENGINE_MARK}{engine}")).exists())
    });
    let engines: Vec<&str> = engines.collect();
    if engines.is_empty() { 0 } else { remove_by_all(&engines, job) }
}

fn remove_by_all(engines: &[&'static str], job: &str) -> usize {
    let filter = match job {
        "all" => format!("label=rlaunch.uid={}", Uid::effective()),
        id => format!("label=rlaunch.job={id}"),
    };
    let (sender, removed) = mpsc::channel();
    for &engine in engines {
        let (sender, filter) = (sender.clone(), filter.clone());
        // Without a thread, the containers stay until the next job there.
        let _ = thread::Builder::new().spawn(move || {
            let _ = sender.send(remove_by(Path::new(engine), &filter));
        });
    }
    drop(sender);
    std::iter::from_fn(|| removed.recv_timeout(LIMIT).ok()).sum()
}

/// Removes the containers with a label by their engine, and returns the number of those that it says are gone.
fn remove_by(engine: &Path, filter: &str) -> usize {
    let listed = run(engine, &["ps", "-aq", "--filter", filter]);
    let ids: Vec<&str> = listed.split_ascii_whitespace().collect();
    if ids.is_empty() {
        return 0;
    }
    let words = [&["rm", "-f"][..], &ids].concat();
    run(engine, &words).split_ascii_whitespace().count()
}

/// Runs a command of an engine, and returns what it prints.
fn run(engine: &Path, words: &[&str]) -> String {
    let mut command = Command::new(engine);
    command.args(words).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn containers_with_the_label_are_removed_by_their_engine() {
        let scratch = tempfile::tempdir().unwrap();
        let engine = scratch.path().join("docker");
        let script = "#!/bin/sh\ncase $1 in ps) [ $4 = label=rlaunch.job=7 ] && echo a b;; rm) shift 2; echo $*;; esac\n";
        std::fs::write(&engine, script).unwrap();
        std::fs::set_permissions(&engine, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(remove_by(&engine, "label=rlaunch.job=7"), 2);
        assert_eq!(remove_by(&engine, "label=rlaunch.job=8"), 0);
        assert_eq!(remove_by(Path::new("/no/engine"), "label=rlaunch.job=7"), 0);
    }
}
