//! The program that copies on this machine, beside the job.

use super::progress::Source;
use super::reports::SharedReports;
use super::resume_hint;
use crate::commands::bench::own_program;
use nix::sys::signal::Signal;
use rlaunch_bootstrap::id::JobId;
use rlaunch_console::deadline::Deadline;
use rlaunch_console::messages;
use rlaunch_copy::control::Report;
use rlaunch_engine::connect::agent::store;
use rlaunch_engine::run::signals::{Companion, Signals, ended_by};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::path::Path;
use std::process::ExitStatus;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

/// Interval at which the program on this machine is looked after.
pub(super) const LOOK: Duration = Duration::from_millis(200);
/// Time after the job's end until a line says what the launcher waits for.
const SAID_AFTER: Duration = Duration::from_secs(3);
/// Time in which the program on this machine has to end once it is killed; it cannot while a disk keeps it.
const KILLED: Duration = Duration::from_secs(10);
/// Line for a shell on a rank's host that carries bytes between its stdin, its stdout and the port in `$0`.
const PIPE: &str = "exec \"$RLAUNCH_PRELOAD_DIR/rlaunch-copier\" pipe \"$0\"";

/// Program that copies on this machine. It is killed when this is dropped.
pub(super) struct LocalCopier {
    child: Child,
    reading: JoinHandle<()>,
    /// The ranks, with which it would lose patience, stand still as well.
    companion: Option<Companion>,
}

impl LocalCopier {
    /// Starts it, and writes its request. Also returns its stdin, where it reads of ranks.
    pub(super) fn start(
        word: &str,
        job: JobId,
        request: &[u8],
        agent: Option<&Path>,
        reports: &SharedReports,
    ) -> Result<(PipeWriter, LocalCopier), Failed> {
        let program = own_program(store::COPIER, agent)?;
        let (stdin, mut to_child) = io::pipe().map_err(|error| no_pipe(&error))?;
        let (from_child, stdout) = io::pipe().map_err(|error| no_pipe(&error))?;
        let started = Command::new(&program)
            .arg(word)
            .args(way_through_the_job(job)?)
            .stdin(stdin)
            .stdout(stdout)
            // A Ctrl-C is for this process, which ends the job in order, and so is a Ctrl-Z.
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let child = started.map_err(|error| {
            Failed::new(Exit::FILES, format!("cannot start {}: {error}", program.display()))
        })?;
        let reports = Arc::clone(reports);
        let reading = tokio::task::spawn_blocking(move || read_local(from_child, &reports));
        // Fails if the program has ended, which is noticed as that.
        let _ = to_child.write_all(request);
        let companion = child.id().map(Companion::new);
        Ok((to_child, LocalCopier { child, reading, companion }))
    }

    /// Waits until it has ended, and has reported all. Ends it if the job has failed, or if it makes no progress. Returns the
    /// end of the copy: that of the job, unless only this program has failed.
    pub(super) async fn conclude(
        self,
        ended: Result<Exit, Failed>,
        reports: &SharedReports,
    ) -> Result<Exit, Failed> {
        let LocalCopier { mut child, reading, companion: _companion } = self;
        if ended.is_err() {
            if let Ok(Some(status)) = child.try_wait()
                && status.code().is_none()
            {
                let failed = silent_end(&Ok(status));
                reports.lock().unwrap_or_else(PoisonError::into_inner).local_was_killed(&failed);
            }
            // Fails if it has ended.
            let _ = child.start_kill();
        }
        let patience = if ended.is_err() {
            KILLED
        } else {
            reports.lock().unwrap_or_else(PoisonError::into_inner).patience_with_local()
        };
        let mut signals = Signals::install()?;
        let finished = async {
            let _ = reading.await;
            child.wait().await
        };
        let status = tokio::select! {
            status = finished => status,
            signal = signals.end() => return Err(interrupted(signal)),
            // The child is killed as it is dropped.
            failed = without_progress(reports, patience) => {
                return Err(ended.err().unwrap_or(failed));
            }
        };
        ended?;
        let reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
        match status {
            Ok(status) if status.success() => Ok(Exit::SUCCESS),
            status => Err(reports.local_failure().unwrap_or_else(|| silent_end(&status))),
        }
    }
}

/// Returns an error once the program on this machine has made no progress for `patience`. Says meanwhile what is waited for.
async fn without_progress(reports: &SharedReports, patience: Duration) -> Failed {
    let look = || {
        let reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
        (reports.local_progress(), reports.local_wait())
    };
    let began = Instant::now();
    let ((mut before, _), mut is_said) = (look(), false);
    let mut deadline = Deadline::after(patience).checked_every(LOOK);
    loop {
        let is_late = deadline.run(tokio::time::sleep(LOOK)).await.is_none();
        let (progress, wait) = look();
        if progress != before {
            before = progress;
            deadline.restart();
        } else if is_late {
            return stuck(wait, patience);
        }
        if !is_said && began.elapsed() >= SAID_AFTER {
            is_said = true;
            messages::info(&format!("the job is over; waiting for {wait}…"));
        }
    }
}

fn stuck(wait: &str, patience: Duration) -> Failed {
    let seconds = patience.as_secs();
    let copier = store::COPIER;
    let message = format!(
        "gave up on {wait}, and killed {copier}: no progress for {seconds} s after the job"
    );
    let disks = "`dmesg | tail` and `cat /proc/pressure/io` tell of slow or broken disks";
    Failed::new(Exit::FILES, message).hint(Some(disks)).hint(Some(resume_hint()))
}

fn interrupted(signal: Signal) -> Failed {
    Failed { is_asked: signal == Signal::SIGINT, ..ended_by(signal, "") }.hint(Some(resume_hint()))
}

/// Describes the end of a program that has not said why it failed.
fn silent_end(status: &io::Result<ExitStatus>) -> Failed {
    let how = match status {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    Failed::new(Exit::BUG, format!("{} on this machine has ended: {how}", store::COPIER))
}

/// Returns the command by which the program here reaches a rank where TCP does not: it is carried by the job.
fn way_through_the_job(job: JobId) -> Result<Vec<OsString>, Failed> {
    let own = std::env::current_exe();
    let own = own.map_err(|error| Failed::new(Exit::BUG, format!("where is rlaunch? {error}")))?;
    let job = job.to_string();
    let words = ["exec", "-T", &job, "{rank}", "--", "sh", "-c", PIPE].map(OsString::from);
    Ok([OsString::from(own)].into_iter().chain(words).collect())
}

/// Reads what the program on this machine reports, until it ends.
fn read_local(pipe: PipeReader, reports: &SharedReports) {
    for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
        match serde_json::from_slice::<Report>(&line) {
            Ok(report) => {
                let mut reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
                reports.note(Source::Local, report);
            }
            Err(_) => messages::warn(&String::from_utf8_lossy(&line)),
        }
    }
    reports.lock().unwrap_or_else(PoisonError::into_inner).local_is_over();
}

pub(super) fn no_pipe(error: &io::Error) -> Failed {
    Failed::new(Exit::FILES, format!("cannot make a pipe for the copy: {error}"))
}

#[cfg(test)]
mod tests {
    use super::super::reports::Reports;
    use super::*;
    use rlaunch_copy::control::Limit;
    use std::sync::Mutex;

    #[test]
    fn the_way_through_a_job_ends_in_the_port() {
        let words = way_through_the_job(JobId(7)).unwrap();
        let words: Vec<String> =
            words[1..].iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let job = JobId(7).to_string();
        assert_eq!(words[..6], ["exec", "-T", &job, "{rank}", "--", "sh"].map(str::to_owned));
        assert!(words.last().unwrap().ends_with("pipe \"$0\""), "{words:?}");
    }

    #[tokio::test]
    async fn a_program_here_without_progress_is_not_waited_for() {
        let reports = Reports::new(vec!["a".into()], "fetching", Source::Local);
        let reports: SharedReports = Arc::new(Mutex::new(reports));
        let report = |written| Report::Progress {
            rank: 0,
            received: 9,
            written,
            total: 9,
            waits_for: Limit::Disk,
        };
        let note = |written| reports.lock().unwrap().note(Source::Local, report(written));
        note(1);
        // Much longer than this process may stand still.
        let patience = LOOK * 20;
        let progress = async {
            for written in 2..6 {
                tokio::time::sleep(LOOK * 2).await;
                note(written);
            }
            // A report of the same number is none of progress.
            for _ in 0..100 {
                tokio::time::sleep(LOOK).await;
                note(5);
            }
        };
        let began = Instant::now();
        let failed = tokio::select! {
            failed = without_progress(&reports, patience) => failed,
            () = progress => panic!("it is waited for without end"),
        };
        assert!(began.elapsed() >= LOOK * 26, "{:?}", began.elapsed());
        assert_eq!(failed.exit, Exit::FILES);
        let expected = "gave up on the disk of this machine, and killed rlaunch-copier: no progress \
                        for 4 s after the job";
        assert_eq!(failed.message, expected);
    }
}
