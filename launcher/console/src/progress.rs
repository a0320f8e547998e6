//! Reports on stderr during waits of more than a second.

use super::prompt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tracing::Instrument;

/// Times at which a line is printed, in seconds from the start of the wait.
const REPORT_AT: [u64; 6] = [1, 3, 10, 30, 60, 120];
/// Number of names in a line.
const NAMED: usize = 6;

/// Hosts or tasks that are awaited, each with its stage.
#[derive(Clone)]
pub struct Progress(Arc<Mutex<Vec<(String, &'static str)>>>);

impl Progress {
    /// Lists `names`, each with the stage that it is in.
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

    /// Removes `name`, which is no longer awaited.
    pub fn done(&self, name: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|(n, _)| n != name);
    }

    /// Lists those that are awaited: `c (agent not started), d (connecting)`.
    pub fn pending(&self) -> String {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut named: Vec<String> =
            waiting.iter().take(NAMED).map(|(name, stage)| format!("{name} ({stage})")).collect();
        if waiting.len() > NAMED {
            named.push(format!("and {} more", waiting.len() - NAMED));
        }
        named.join(", ")
    }

    /// Runs all tasks at once, each under one of the names, which is done when the task is. Reports the
    /// pending names if that takes long. Returns the results in the order of `tasks`.
    pub async fn run_all<T, F>(&self, tasks: impl IntoIterator<Item = (String, F)>) -> Vec<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let mut running = JoinSet::new();
        for (index, (name, task)) in tasks.into_iter().enumerate() {
            let progress = self.clone();
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

    /// Runs `work`, and prints now and then what it waits for, unless the user is being asked.
    pub async fn report_while<T>(&self, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let mut work = std::pin::pin!(work);
        for second in REPORT_AT {
            let left = Duration::from_secs(second).saturating_sub(started.elapsed());
            match tokio::time::timeout(left, &mut work).await {
                Ok(done) => return done,
                Err(_) if prompt::is_open() => {}
                Err(_) => crate::messages::info(&format!(
                    "waiting {} s for: {}",
                    started.elapsed().as_secs(),
                    self.pending()
                )),
            }
        }
        work.await
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
        assert_eq!(progress.pending(), "");
    }

    #[test]
    fn the_missing_are_named_with_their_stage() {
        let progress = Progress::new((0..8).map(|n| format!("n{n}")), "connecting");
        progress.done("n0");
        progress.set_stage("n1", "agent not started");
        assert_eq!(
            progress.pending(),
            "n1 (agent not started), n2 (connecting), n3 (connecting), n4 (connecting), \
             n5 (connecting), n6 (connecting), and 1 more"
        );
    }
}
