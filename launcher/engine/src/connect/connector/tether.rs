//! Tethers of nodes that belong to a Slurm job and are reached by SSH all the same.
//!
//! sshd starts an agent outside of the job: it may use all CPUs of the node, and nothing ends it with the job. So a step of
//! the job has a task on each node that only waits. The agent keeps to that task's CPUs, and its ranks end when the task
//! does. The task itself ends with the launcher, from which srun has its stdin. Slurm has the node until it kills the task:
//! so long it is not another job's, and that is the grace of the ranks.

use crate::connect::channel::Incoming;
use crate::connect::connector::step::{
    Input, JobState, StepError, StepReader, Steps, TASK_LINE, ended_by_slurm,
};
use rlaunch_console::{deadline, messages};
use rlaunch_plan::hosts::Host;
use rlaunch_text::printable;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Script of a task, which says what process it is on what node, and waits for a line. What `scancel -s` and `--signal` send
/// leaves it alone, so that Slurm has the node until it kills the task. It fails if its stdin ends without a line: srun
/// says only of tasks that fail that they have ended.
const SCRIPT: &str = r#"trap '' TERM INT HUP QUIT ALRM USR1 USR2
echo "rlaunch-install task $SLURM_PROCID $$ $SLURMD_NODENAME"
read -r line"#;
/// Words by which srun says that it gives up the step, which then has Slurm's `KillWait`.
const ABORTED: &str = "Job step aborted";
/// Words by which srun says that the job is over.
const NO_JOB: [&str; 2] = ["Invalid job id", "already completing or completed"];
/// Time limit for a task to start once its node is reached by SSH, which takes about as long.
const START_TIMEOUT: Duration = Duration::from_secs(8);

/// Tethers of a job's nodes. Their tasks are one step.
pub(super) struct Tethers {
    steps: Arc<Steps>,
    /// Hosts without one, and why.
    unheld: Mutex<Vec<(String, String)>>,
}

/// Tether of a node.
pub(crate) struct Tether {
    pub(super) steps: Arc<Steps>,
    reader: StepReader,
    /// Process of the task on its node.
    process: u32,
    /// Last that Slurm has said of the task.
    said: String,
    /// Whether Slurm ends the step.
    is_aborted: bool,
    /// End of the task, as far as [`Tether::end`] has told it.
    told: Told,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    /// Slurm ends the task, which has a while left.
    Ending,
    Ended,
}

impl Tethers {
    pub(super) fn new(steps: Steps) -> Tethers {
        Tethers { steps: Arc::new(steps), unheld: Mutex::default() }
    }

    /// Returns tethers of the same job, for its nodes among `hosts`.
    pub(super) fn for_nodes(&self, hosts: &[&Host]) -> Tethers {
        Tethers::new(self.steps.for_nodes(hosts))
    }

    /// Starts the tasks of all nodes, unless that was done. `None` for a host that is no node of the job, or if srun
    /// cannot be run.
    pub(super) fn start(&self, host: &Host) -> Option<Tether> {
        let words = || Some(["sh", "-c", SCRIPT].map(str::to_owned).to_vec());
        match self.steps.join(host, Input::Open, words) {
            Ok(joined) => {
                let (reader, _) = joined?;
                let steps = Arc::clone(&self.steps);
                Some(Tether::new(steps, reader))
            }
            Err(error) => {
                self.note_unheld(host, messages::error_chain(&error));
                None
            }
        }
    }

    /// Waits until the task of a node runs. `None` if it does not: the node was to be reached by SSH. Returns an error if the
    /// job is over, since the node may then be another's.
    pub(super) async fn tied(
        &self,
        host: &Host,
        mut tether: Tether,
    ) -> Result<Option<Tether>, StepError> {
        let found = deadline::within(START_TIMEOUT, tether.find_process()).await;
        if found == Some(true) {
            return Ok(Some(tether));
        }
        if tether.is_refused() {
            let job = self.steps.job_id();
            let said = tether.said;
            return Err(StepError::Over(format!(
                "Slurm refuses or ends the step of job {job} that holds the node: {said}"
            )));
        }
        if let JobState::Over(why) = self.steps.state(false).await {
            return Err(StepError::Over(why));
        }
        let is_said = tether.said.starts_with("srun") || found.is_some() && !tether.said.is_empty();
        let why = match found {
            _ if is_said => tether.said,
            Some(_) => "its task has ended at once".to_owned(),
            None => format!("it did not start within {} s", START_TIMEOUT.as_secs()),
        };
        self.note_unheld(host, why);
        Ok(None)
    }

    fn note_unheld(&self, host: &Host, why: String) {
        let mut unheld = self.unheld.lock().unwrap_or_else(PoisonError::into_inner);
        unheld.push((host.to_string(), why));
    }

    /// Returns a sentence about all hosts without a tether, once.
    pub(super) fn take_unheld(&self) -> Option<String> {
        let unheld =
            std::mem::take(&mut *self.unheld.lock().unwrap_or_else(PoisonError::into_inner));
        let (_, why) = unheld.first()?;
        let hosts: Vec<&str> = unheld.iter().map(|(host, _)| host.as_str()).collect();
        Some(format!(
            "{}: no step of Slurm's job {} holds the ranks, which may use more CPUs than it has and may outlive it: {why}",
            hosts.join(", "),
            self.steps.job_id()
        ))
    }
}

impl Tether {
    fn new(steps: Arc<Steps>, reader: StepReader) -> Tether {
        let (said, told) = (String::new(), Told::Nothing);
        Tether { steps, reader, process: 0, said, is_aborted: false, told }
    }

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

    /// Waits until Slurm ends the task, and when called again until the task has ended. Returns a sentence about it.
    /// Never ends after that. Cancel-safe.
    pub(crate) async fn end(&mut self) -> String {
        if self.told == Told::Ended {
            std::future::pending::<()>().await;
        }
        let how = loop {
            match self.reader.next().await {
                Some(Incoming::Diagnostics(line)) => self.note(&line),
                Some(Incoming::Data(_)) => {}
                None => {
                    self.told = Told::Ended;
                    break "has ended";
                }
            }
            // Slurm's reason comes at about the same time. It also comes for a signal that ends nothing.
            if self.told == Told::Nothing && self.is_aborted && self.has_reason() {
                self.told = Told::Ending;
                break "is ended";
            }
        };
        let (job, said) = (self.steps.job_id(), &self.said);
        let separator = if said.is_empty() { "" } else { ": " };
        format!("its task in Slurm's job {job} {how}{separator}{said}")
    }

    fn has_reason(&self) -> bool {
        self.said.starts_with("STEP ") || self.said.starts_with("JOB ")
    }

    /// Tells whether Slurm does not let the task be, as when the job is over.
    fn is_refused(&self) -> bool {
        self.has_reason() || NO_JOB.iter().any(|words| self.said.contains(words))
    }

    /// Keeps a line of Slurm, unless a better one is known.
    fn note(&mut self, line: &[u8]) {
        let line = printable::first_line(&String::from_utf8_lossy(line));
        self.is_aborted |= line.contains(ABORTED);
        match ended_by_slurm(&line) {
            Some(reason) => self.said = reason.to_owned(),
            None if self.has_reason() => {}
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
    use crate::connect::connector::step::stream;

    fn steps() -> Arc<Steps> {
        Arc::new(Steps::new(SlurmJob { id: "7".to_owned(), nodes: vec!["a".to_owned()] }))
    }

    fn host(name: &str) -> Host {
        rlaunch_plan::hosts::parse(&[name.to_owned()]).unwrap().remove(0)
    }

    const CANCELLED: &str =
        "slurmstepd: error: *** STEP 7.0 ON a CANCELLED AT 2026-11-30T02:00:00 ***";

    #[tokio::test]
    async fn the_end_of_a_task_is_said_in_words_of_slurm() {
        let (lines, reader) = stream();
        let mut tether = Tether::new(steps(), reader);
        lines.output("a banner");
        lines.output("rlaunch-install task 3 4711 a");
        assert!(tether.find_process().await);
        assert_eq!(tether.agent_words(), "--within 7 4711");
        // A signal for ranks, as of `--signal=TERM@60`.
        lines.srun(CANCELLED);
        let early = deadline::within(Duration::from_millis(1), tether.end()).await;
        assert_eq!(early, None);
        lines.srun("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.");
        let task = "its task in Slurm's job 7";
        let why = "STEP 7.0 ON a CANCELLED AT 2026-11-30T02:00:00";
        assert_eq!(tether.end().await, format!("{task} is ended: {why}"));
        lines.srun("srun: error: a: task 3: Killed");
        drop(lines);
        assert_eq!(tether.end().await, format!("{task} has ended: {why}"));
        assert_eq!(deadline::within(Duration::from_millis(1), tether.end()).await, None);
    }

    #[tokio::test]
    async fn no_agent_starts_once_the_job_is_over() {
        let invalid =
            "srun: error: Unable to confirm allocation for job 7: Invalid job id specified";
        for said in [CANCELLED, invalid] {
            let (lines, reader) = stream();
            lines.srun(said);
            drop(lines);
            let tethers = Tethers { steps: steps(), unheld: Mutex::default() };
            let tied = tethers.tied(&host("a"), Tether::new(steps(), reader)).await;
            let error = tied.err().unwrap().to_string();
            assert!(error.starts_with("Slurm refuses or ends the step of job 7 "), "{error}");
        }
    }

    #[test]
    fn hosts_that_nothing_holds_are_said_in_one_line() {
        let tethers = Tethers { steps: steps(), unheld: Mutex::default() };
        for name in ["a", "b"] {
            tethers.note_unheld(&host(name), "its task has ended at once".to_owned());
        }
        let line = tethers.take_unheld().unwrap();
        assert!(line.starts_with("a, b: no step of Slurm's job 7 holds"), "{line}");
        assert!(line.ends_with("outlive it: its task has ended at once"), "{line}");
        assert_eq!(tethers.take_unheld(), None);
    }
}
