//! Progress lines on stderr during waits of more than a second, and at a terminal a line that is gone when the step is.
//! None is printed while a question to the user is open.

use crate::messages;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tracing::Instrument;

/// Times at which a progress line is printed, in seconds since the start of the wait.
const REPORT_AT: [u64; 6] = [1, 3, 10, 30, 60, 120];
/// Maximum number of names in a progress line.
const NAMED: usize = 6;

/// Hosts or tasks that the launcher is waiting for, each with its current stage, such as `connecting`.
/// Clones share the list.
#[derive(Clone)]
pub struct Progress(Arc<Mutex<Vec<(String, &'static str)>>>);

impl Progress {
    /// Starts a list of `names`, all in the same stage.
    pub fn new(names: impl Iterator<Item = String>, stage: &'static str) -> Progress {
        Progress(Arc::new(Mutex::new(names.map(|name| (name, stage)).collect())))
    }

    /// Sets the stage of `name`.
    pub fn set_stage(&self, name: &str, stage: &'static str) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = waiting.iter_mut().find(|(n, _)| n == name) {
            entry.1 = stage;
        }
    }

    /// Removes `name` from the list.
    pub fn done(&self, name: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|(n, _)| n != name);
    }

    /// Returns the names in the list with their stages: `c (agent not started), d (connecting)`.
    pub fn describe_pending(&self) -> String {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut named: Vec<String> =
            waiting.iter().take(NAMED).map(|(name, stage)| format!("{name} ({stage})")).collect();
        if waiting.len() > NAMED {
            named.push(format!("and {} more", waiting.len() - NAMED));
        }
        named.join(", ")
    }

    /// Runs all tasks concurrently; each has a name, which leaves the list when the task ends. Prints
    /// progress lines with the remaining names if the tasks take long. Returns the results in the order of
    /// `tasks`.
    pub async fn run_all<T, F>(&self, tasks: impl IntoIterator<Item = (String, F)>) -> Vec<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let mut running = JoinSet::new();
        for (index, (name, task)) in tasks.into_iter().enumerate() {
            let progress = self.clone();
            // Without the box, each future around a task would hold it twice, before and during its run:
            // 50 KB for a host that is being connected.
            let task = Box::pin(task);
            let task = async move {
                let result = task.await;
                progress.done(&name);
                (index, result)
            };
            running.spawn(task.in_current_span());
        }
        let mut results = self.report_while(running.join_all()).await;
        results.sort_by_key(|(index, _)| *index);
        results.into_iter().map(|(_, result)| result).collect()
    }

    /// Runs `work`. Prints a progress line with the remaining names after 1, 3, 10, 30, 60 and 120 seconds, at a terminal one
    /// that changes every second and is gone with the wait, unless a question to the user is open.
    pub async fn report_while<T>(&self, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let mut work = std::pin::pin!(work);
        let is_live = has_steps();
        let last = if is_live { u64::MAX } else { REPORT_AT[REPORT_AT.len() - 1] };
        for second in (1..=last).filter(|second| is_live || REPORT_AT.contains(second)) {
            let left = Duration::from_secs(second).saturating_sub(started.elapsed());
            if let Ok(done) = tokio::time::timeout(left, &mut work).await {
                if is_live && second > 1 {
                    erase_step();
                }
                return done;
            }
            let pending = self.describe_pending();
            // The last one has come, and what it brought is being taken.
            if pending.is_empty() {
                continue;
            }
            let line = format!("waiting {second} s for: {pending}");
            if is_live {
                show_step(&line);
            } else if OPEN_QUESTIONS.load(Ordering::Relaxed) == 0 {
                messages::info(&line);
            }
        }
        work.await
    }
}

/// Shows at a terminal what takes time, until the next message, question or [`erase_step`]. Elsewhere the lines of
/// [`Progress`] say it, from a second on.
pub fn show_step(line: &str) {
    if has_steps() && OPEN_QUESTIONS.load(Ordering::Relaxed) == 0 {
        messages::write_transient(line);
    }
}

/// Tells whether stderr is a terminal on which a line can be erased.
fn has_steps() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stderr().is_terminal() && !is_dumb
}

/// Erases the line of [`show_step`], before others write to the terminal.
pub fn erase_step() {
    messages::erase_transient();
}

/// Number of open questions to the user.
static OPEN_QUESTIONS: AtomicUsize = AtomicUsize::new(0);

/// Open question to the user. Dropping the value ends the question.
#[derive(Debug)]
pub struct Question(());

impl Question {
    /// Marks a question as open until the returned value is dropped.
    pub fn begin() -> Question {
        OPEN_QUESTIONS.fetch_add(1, Ordering::Relaxed);
        erase_step();
        Question(())
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        OPEN_QUESTIONS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn results_are_in_the_order_of_the_tasks() {
        let progress = Progress::new(["a", "b"].into_iter().map(str::to_owned), "connecting");
        let wait = |millis| async move {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            millis
        };
        let tasks = [("a".to_owned(), wait(20)), ("b".to_owned(), wait(1))];
        assert_eq!(progress.run_all(tasks).await, [20, 1]);
        assert_eq!(progress.describe_pending(), "");
    }

    #[test]
    fn the_missing_are_named_with_their_stage() {
        let progress = Progress::new((0..8).map(|n| format!("n{n}")), "connecting");
        progress.done("n0");
        progress.set_stage("n1", "agent not started");
        assert_eq!(
            progress.describe_pending(),
            "n1 (agent not started), n2 (connecting), n3 (connecting), n4 (connecting), \
             n5 (connecting), n6 (connecting), and 1 more"
        );
    }
}
