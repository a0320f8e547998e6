//! Tethers of nodes that belong to a Slurm job and are reached by SSH all the same.
//!
//! sshd starts an agent outside of the job: it may use all CPUs of the node, and nothing ends it with the job. So a step of
//! the job has a task on each node that only waits. The agent keeps to that task's CPUs, and its ranks end when the task
//! does. The task itself ends with the launcher, from which srun has its stdin.

use crate::connect::channel::Incoming;
use crate::connect::connector::step::{Input, StepReader, Steps, TASK_LINE, ended_by_slurm};
use rlaunch_console::{deadline, messages};
use rlaunch_plan::hosts::Host;
use rlaunch_text::printable;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Script of a task, which says what process it is on what node, and waits. What `scancel -s` sends to ranks leaves it alone.
const SCRIPT: &str = r#"trap '' USR1 USR2
echo "rlaunch-install task $SLURM_PROCID $$ $SLURMD_NODENAME"
exec cat >/dev/null"#;
/// Time limit for a task to start once its node is reached by SSH, which takes about as long.
const START_TIMEOUT: Duration = Duration::from_secs(8);

/// Tethers of a job's nodes. Their tasks are one step.
pub(super) struct Tethers {
    steps: Arc<Steps>,
    /// Whether the user knows that a node has none.
    has_warned: AtomicBool,
}

/// Tether of a node.
pub(crate) struct Tether {
    pub(super) steps: Arc<Steps>,
    reader: StepReader,
    /// Process of the task on its node.
    process: u32,
    /// Last that Slurm has said of the task.
    said: String,
}

impl Tethers {
    pub(super) fn new(steps: Steps) -> Tethers {
        Tethers { steps: Arc::new(steps), has_warned: AtomicBool::new(false) }
    }

    /// Returns tethers of the same job, for its nodes among `hosts`.
    pub(super) fn for_nodes(&self, hosts: &[&Host]) -> Tethers {
        Tethers::new(self.steps.for_nodes(hosts))
    }

    /// Starts the tasks of all nodes, unless that was done. `None` for a host that is no node of the job, or with a warning
    /// if srun cannot be run.
    pub(super) fn start(&self, host: &Host) -> Option<Tether> {
        let words = || Some(["sh", "-c", SCRIPT].map(str::to_owned).to_vec());
        match self.steps.join(host, Input::Open, words) {
            Ok(joined) => {
                let (reader, _) = joined?;
                let steps = Arc::clone(&self.steps);
                Some(Tether { steps, reader, process: 0, said: String::new() })
            }
            Err(error) => {
                self.warn(host, &messages::error_chain(&error));
                None
            }
        }
    }

    /// Waits until the task of a node runs. `None`, with a warning, if it does not: the node was to be reached by SSH.
    pub(super) async fn tied(&self, host: &Host, mut tether: Tether) -> Option<Tether> {
        let why = match deadline::within(START_TIMEOUT, tether.find_process()).await {
            Some(true) => return Some(tether),
            _ if !tether.said.is_empty() => tether.said,
            Some(false) => "its task has ended at once".to_owned(),
            None => format!("it did not start within {} s", START_TIMEOUT.as_secs()),
        };
        self.warn(host, &why);
        None
    }

    fn warn(&self, host: &Host, why: &str) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            let job = self.steps.job_id();
            messages::warn(&format!(
                "{host}: no step of Slurm's job {job} holds the ranks, which may use more CPUs than it has and may outlive \
                 it: {why}"
            ));
        }
    }
}

impl Tether {
    /// Returns the words by which an agent keeps to the CPUs of the task.
    pub(super) fn agent_words(&self) -> String {
        format!("--within {} {}", self.steps.job_id(), self.process)
    }

    /// Reads up to the task's first line. Returns whether it came.
    async fn find_process(&mut self) -> bool {
        while let Some(incoming) = self.reader.next().await {
            match incoming {
                Incoming::Data(line) => {
                    let line = String::from_utf8_lossy(&line);
                    let number = line.strip_prefix(TASK_LINE).and_then(|of| of.split(' ').nth(1));
                    if let Some(process) = number.and_then(|number| number.parse().ok()) {
                        self.process = process;
                        return true;
                    }
                }
                Incoming::Diagnostics(line) => self.note(&line),
            }
        }
        false
    }

    /// Waits for the end of the task, and returns a sentence about it. Cancel-safe.
    pub(crate) async fn end(&mut self) -> String {
        while let Some(incoming) = self.reader.next().await {
            if let Incoming::Diagnostics(line) = incoming {
                self.note(&line);
            }
        }
        let (job, said) = (self.steps.job_id(), &self.said);
        let separator = if said.is_empty() { "" } else { ": " };
        format!("its task in Slurm's job {job} has ended{separator}{said}")
    }

    /// Keeps a line of Slurm, unless a better one is known.
    fn note(&mut self, line: &[u8]) {
        let line = printable::first_line(&String::from_utf8_lossy(line));
        match ended_by_slurm(&line) {
            Some(reason) => self.said = reason.to_owned(),
            None if self.said.starts_with("STEP ") || self.said.starts_with("JOB ") => {}
            None => self.said = line,
        }
    }

    /// Gives up the task. The last tether of a job waits for the end of the step.
    pub(crate) async fn close(self) {
        let Tether { steps, reader, .. } = self;
        drop(reader);
        if let Some(steps) = Arc::into_inner(steps) {
            steps.end().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::connector::step::SlurmJob;
    use crate::connect::connector::step::tests::stream;

    #[tokio::test]
    async fn the_end_of_a_task_is_said_in_words_of_slurm() {
        let job = SlurmJob { id: "7".to_owned(), nodes: vec!["a".to_owned()] };
        let (lines, reader) = stream();
        let steps = Arc::new(Steps::new(job));
        let mut tether = Tether { steps, reader, process: 0, said: String::new() };
        lines.output("a banner");
        lines.output("rlaunch-install task 3 4711 a");
        assert!(tether.find_process().await);
        assert_eq!(tether.agent_words(), "--within 7 4711");
        lines.srun("slurmstepd: error: *** STEP 7.0 ON a CANCELLED AT 2026-11-30T02:00:00 ***");
        lines.srun("srun: error: a: task 3: Terminated");
        drop(lines);
        let end =
            "its task in Slurm's job 7 has ended: STEP 7.0 ON a CANCELLED AT 2026-11-30T02:00:00";
        assert_eq!(tether.end().await, end);
        assert_eq!(tether.end().await, end);
    }
}
