//! Nodes of a Slurm job, which are reached by steps of `srun` in place of SSH: within the job's limits and accounting, and
//! gone with the job.
//!
//! The agents of a job start by one step for all its nodes, of which each has a stream of its own ([`StepReader`]). Everything
//! else, such as the cleanup after a lost agent, is a step of one task. Streams of srun are not encrypted: no secret goes
//! that way, and an agent calls the launcher back as on hosts whose shell passes on no stdin.
//!
//! Such a step also holds nodes that are reached by SSH ([`super::tether`]).

mod streams;

use crate::connect::channel::{AgentChannel, AgentReader, AgentWriter, CommandStatus};
use crate::connect::connector::rsh::{after_colon, describe_end, last_lines};
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_console::{deadline, messages};
use rlaunch_plan::hosts::Host;
use std::collections::HashMap;
use std::io;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use streams::StepReader;
#[cfg(test)]
pub(super) use streams::tests::stream;
pub(super) use streams::{TASK_LINE, ended_by_slurm};

/// Variables of Slurm that its commands get: where the controller is. All others would change a step, as
/// `SRUN_CPUS_PER_TASK`, `SLURM_EXACT` and `SLURM_KILL_BAD_EXIT` do.
const KEPT: &[&str] =
    &["SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_WORKING_CLUSTER", "SLURM_EXPORT_ENV", "SLURM_JWT"];
/// Options of each step: it shares what the job has with other steps, binds no CPUs, and goes on when a task or a node fails.
const OPTIONS: &[&str] = &[
    "--overlap", "--ntasks-per-node=1", "--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=0",
    "--wait=0", "--no-kill", "--job-name=rlaunch",
];
/// Time limit for the end of a step, once nobody reads its streams.
const END_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit for squeue, whose controller may be busy.
const SQUEUE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which a state of the job counts, so that many nodes that are silent ask once.
pub(crate) const STATE_AGE: Duration = Duration::from_secs(4);
/// Time for which the last state counts while squeue does not answer. A controller that many jobs ask can be silent for a minute.
const STALE_STATE_AGE: Duration = Duration::from_secs(120);

/// By what agents start on the nodes of a Slurm job, as `--launcher` says.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "kebab-case")]
pub enum Launcher {
    /// By srun if all hosts are nodes of a Slurm job here, or else by SSH.
    #[default]
    Auto,
    Srun,
    Ssh,
}

/// Slurm job in which the launcher runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmJob {
    pub id: String,
    /// Names of its nodes.
    pub nodes: Vec<String>,
}

impl SlurmJob {
    /// Returns the first host that is no node of the job.
    pub fn foreign<'h>(&self, hosts: &'h [Host]) -> Option<&'h Host> {
        hosts.iter().find(|host| !self.has(host))
    }

    /// Tells whether a host is a node of the job. One with a user is none: steps run as the job's user.
    pub fn has(&self, host: &Host) -> bool {
        host.user.is_none() && self.nodes.contains(&host.name)
    }

    /// Tells whether srun is on PATH.
    pub fn has_srun() -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|directory| directory.join("srun").is_file())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let is_of_slurm = ["SLURM_", "SRUN_", "SLURMD_"].iter().any(|of| text.starts_with(of));
            if is_of_slurm && !KEPT.contains(&&*text) {
                command.env_remove(&name);
            }
        }
        command
    }

    /// Returns the command of a step with a task on each of `nodes`; the words of the task follow.
    fn srun(&self, nodes: &[String]) -> Command {
        let count = nodes.len();
        let mut command = self.command("srun");
        command
            .arg(format!("--jobid={}", self.id))
            .args([format!("-N{count}"), format!("-n{count}")]);
        command.args(OPTIONS).arg(format!("--nodelist={}", nodes.join(",")));
        command
    }

    async fn ask_state(&self) -> Option<String> {
        let mut squeue = self.command("squeue");
        squeue.args(["-h", "-t", "all", "-o", "%A %T", "-j", &self.id]);
        squeue.stdin(Stdio::null()).kill_on_drop(true);
        let answer = deadline::within(SQUEUE_TIMEOUT, squeue.output()).await?.ok()?;
        state_of(&self.id, &String::from_utf8_lossy(&answer.stdout))
    }
}

/// Finds the state of a job in what squeue prints. Asked for the first element of an array, or of a heterogeneous job, it
/// lists the others too.
fn state_of(id: &str, printed: &str) -> Option<String> {
    let lines = printed.lines().filter_map(|line| line.trim().split_once(' '));
    let (_, state) = lines.into_iter().find(|(job, _)| *job == id)?;
    Some(state.trim().to_owned()).filter(|state| !state.is_empty())
}

/// Reason why a step did not start an agent.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error("cannot run srun, by which Slurm's job {job} is reached")]
    Start { job: String, source: io::Error },
    #[error(
        "agents in a step of Slurm call the launcher, and it can listen on no address of this machine"
    )]
    NoAddress,
    #[error("srun of Slurm's job {job} {}no agent answered{}", describe_end(*ended), after_colon(words))]
    NoAgent { job: String, ended: Option<ExitStatus>, words: String },
    /// Nothing may start on the nodes any more; contains the sentence that says why.
    #[error("{0}")]
    Over(String),
}

impl StepError {
    pub fn hint(&self, host: &str) -> Option<String> {
        Some(match self {
            StepError::Over(_) => return None,
            StepError::Start { .. } => {
                "srun must be on PATH; --launcher ssh reaches the hosts by SSH".to_owned()
            }
            StepError::NoAddress => {
                "--oob-if, --oob-net and --port-range limit where the launcher listens".to_owned()
            }
            StepError::NoAgent { job, .. } => format!(
                "`srun --jobid={job} --overlap -N1 -n1 -w {host} hostname` should print its name; \
                 --launcher ssh reaches the hosts by SSH"
            ),
        })
    }
}

/// What Slurm says of a job from whose node nothing comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobState {
    Suspended,
    /// The job is over; contains the sentence that says so.
    Over(String),
    Other,
}

/// Steps of a Slurm job, shared by the connections to its nodes.
pub(crate) struct Steps {
    job: SlurmJob,
    /// Nodes of the step that starts the agents, or holds them.
    nodes: Vec<String>,
    shared: Mutex<Option<SharedStep>>,
    state: tokio::sync::Mutex<Option<KnownState>>,
}

/// State of the job that squeue has told.
#[derive(Clone)]
struct KnownState {
    /// When squeue was asked last, with or without an answer.
    asked: Instant,
    /// When it answered last.
    told: Instant,
    state: JobState,
}

impl KnownState {
    /// Returns what is known after an answer of squeue: the state before it if `answer` is none and that is not too old.
    fn after(
        before: Option<&KnownState>,
        id: &str,
        answer: Option<&str>,
        now: Instant,
    ) -> KnownState {
        let state = match answer {
            Some("SUSPENDED") => JobState::Suspended,
            Some("RUNNING" | "RESIZING" | "SIGNALING" | "STOPPED") => JobState::Other,
            Some(over) => JobState::Over(format!("Slurm's job {id} is {over}")),
            None => {
                let recent = before.filter(|known| now - known.told < STALE_STATE_AGE);
                return KnownState {
                    asked: now,
                    told: recent.map_or(now, |known| known.told),
                    state: recent.map_or(JobState::Other, |known| known.state.clone()),
                };
            }
        };
        KnownState { asked: now, told: now, state }
    }
}

/// Step with a task on each node, and the streams that no node has taken yet.
struct SharedStep {
    waiting: HashMap<String, StepReader>,
    status: CommandStatus,
    /// Ends with srun.
    reading: JoinHandle<()>,
}

impl Steps {
    pub(super) fn new(job: SlurmJob) -> Steps {
        Steps {
            job,
            nodes: Vec::new(),
            shared: Mutex::new(None),
            state: tokio::sync::Mutex::default(),
        }
    }

    /// Returns steps of the same job, one of which has a task on each of its nodes among `hosts`.
    pub(super) fn for_nodes(&self, hosts: &[&Host]) -> Steps {
        let own = hosts.iter().filter(|host| self.job.has(host));
        let nodes = own.map(|host| host.name.clone()).collect();
        Steps { nodes, ..Steps::new(self.job.clone()) }
    }

    /// Runs a line in a shell on a node, in a step of its own. `has_stdin` says whether the line reads stdin.
    pub(super) fn exec(
        &self,
        host: &Host,
        line: &str,
        has_stdin: bool,
        status: CommandStatus,
    ) -> Result<AgentChannel, StepError> {
        let mut srun = self.job.srun(std::slice::from_ref(&host.name));
        if !has_stdin {
            srun.arg("--input=none");
        }
        srun.args(["sh", "-c", line]);
        AgentChannel::over_child(srun, Some(status)).map_err(|source| self.not_started(source))
    }

    /// Starts the agents of all nodes by the `words` of a task, unless that was done, and returns the stream of one of them.
    /// `None` if the node has no task in that step.
    pub(super) fn join_agents(
        &self,
        host: &Host,
        words: impl FnOnce() -> Option<Vec<String>>,
    ) -> Result<Option<(AgentChannel, CommandStatus)>, StepError> {
        let Some((reader, status)) = self.join(host, Input::None, words)? else { return Ok(None) };
        let channel = AgentChannel { reader: AgentReader::Step(reader), writer: AgentWriter::Step };
        Ok(Some((channel, status)))
    }

    /// Starts the step with a task on each node, unless that was done, and returns the stream of one of them.
    pub(super) fn join(
        &self,
        host: &Host,
        input: Input,
        words: impl FnOnce() -> Option<Vec<String>>,
    ) -> Result<Option<(StepReader, CommandStatus)>, StepError> {
        if !self.job.has(host) || !self.nodes.contains(&host.name) {
            return Ok(None);
        }
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let step = match &mut *shared {
            Some(step) => step,
            None => {
                let words = words().ok_or(StepError::NoAddress)?;
                let step = SharedStep::start(&self.job, &self.nodes, input, &words);
                shared.insert(step.map_err(|source| self.not_started(source))?)
            }
        };
        let Some(reader) = step.waiting.remove(&host.name) else { return Ok(None) };
        Ok(Some((reader, step.status.clone())))
    }

    /// Waits for the end of the step, once the streams of its tasks have no reader.
    pub(super) async fn end(self) {
        let shared = self.shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        let Some(SharedStep { waiting, reading, .. }) = shared else { return };
        drop(waiting);
        deadline::within(END_TIMEOUT, reading).await;
    }

    pub(super) fn job_id(&self) -> &str {
        &self.job.id
    }

    fn not_started(&self, source: io::Error) -> StepError {
        StepError::Start { job: self.job.id.clone(), source }
    }

    /// Makes the error for a step that printed `output` and did not start an agent.
    pub(super) fn no_agent(&self, ended: Option<ExitStatus>, output: &str) -> StepError {
        StepError::NoAgent { job: self.job.id.clone(), ended, words: last_lines(output) }
    }

    /// Asks Slurm for the state of the job, at most once in [`STATE_AGE`] for all nodes. `waits` says whether a job that is
    /// suspended is waited for, which is said.
    pub(super) async fn state(&self, waits: bool) -> JobState {
        let mut known = self.state.lock().await;
        if let Some(known) = known.as_ref().filter(|known| known.asked.elapsed() < STATE_AGE) {
            return known.state.clone();
        }
        let id = &self.job.id;
        let answer = self.job.ask_state().await;
        let now = KnownState::after(known.as_ref(), id, answer.as_deref(), Instant::now());
        let was_suspended = known.as_ref().is_some_and(|known| known.state == JobState::Suspended);
        match (was_suspended, now.state == JobState::Suspended) {
            (false, true) if waits => messages::info(&format!(
                "Slurm's job {id} is suspended: its nodes are waited for until it runs again"
            )),
            (true, false) if waits => messages::info(&format!("Slurm's job {id} runs again")),
            _ => {}
        }
        known.insert(now).state.clone()
    }
}

/// stdin of the tasks of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    None,
    /// A line comes when all streams of the step are gone; it ends without one when the launcher does.
    Open,
}

impl SharedStep {
    /// Starts a step. Its streams are cut, and srun is ended, when all its readers are gone.
    fn start(
        job: &SlurmJob,
        nodes: &[String],
        input: Input,
        words: &[String],
    ) -> io::Result<SharedStep> {
        let mut srun = job.srun(nodes);
        srun.arg("--label");
        if input == Input::None {
            srun.arg("--input=none");
        }
        srun.args(words);
        let status = CommandStatus::default();
        let AgentChannel { reader, writer } = AgentChannel::over_child(srun, Some(status.clone()))?;
        let stdin = (input == Input::Open).then_some(writer);
        // Slurm also says that it cancels a step to which it sends a signal that this one withstands.
        let is_ended = input == Input::Open;
        let (waiting, reading) = streams::read(nodes, reader, stdin, is_ended);
        Ok(SharedStep { waiting, status, reading })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_that_of_the_job_and_not_of_others_of_its_array() {
        let printed = "12 PENDING\n10 SUSPENDED\n 7 COMPLETED\n";
        assert_eq!(state_of("10", printed).as_deref(), Some("SUSPENDED"));
        assert_eq!(state_of("7", printed).as_deref(), Some("COMPLETED"));
        assert_eq!(
            [state_of("1", printed), state_of("10", "10 \n"), state_of("10", "")],
            [None, None, None]
        );
    }

    #[test]
    fn a_job_stays_suspended_while_squeue_is_late() {
        let start = Instant::now();
        let after = |before: Option<&KnownState>, answer, seconds| {
            KnownState::after(before, "7", answer, start + Duration::from_secs(seconds))
        };
        let first = after(None, Some("SUSPENDED"), 0);
        let late = after(Some(&first), None, 5);
        assert_eq!(
            (&late.state, late.asked - start),
            (&JobState::Suspended, Duration::from_secs(5))
        );
        assert_eq!(after(Some(&late), None, 100).state, JobState::Suspended);
        assert_eq!(after(Some(&late), Some("RUNNING"), 9).state, JobState::Other);
        // Silence for long says nothing.
        assert_eq!(after(Some(&late), None, 121).state, JobState::Other);
        assert_eq!(after(None, None, 0).state, JobState::Other);
        let over = JobState::Over("Slurm's job 7 is CANCELLED".into());
        assert_eq!(after(Some(&late), Some("CANCELLED"), 9).state, over);
    }

    #[test]
    fn a_host_of_another_user_or_job_is_no_node() {
        let job = SlurmJob { id: "7".into(), nodes: vec!["h1".into(), "h2".into()] };
        let foreign = |hosts: &str| {
            let hosts = rlaunch_plan::hosts::parse(&[hosts.into()]).unwrap();
            job.foreign(&hosts).map(ToString::to_string)
        };
        assert_eq!(foreign("h2,h1:4"), None);
        assert_eq!(foreign("h1,h3"), Some("h3".to_owned()));
        assert_eq!(foreign("me@h1"), Some("me@h1".to_owned()));
    }

    #[test]
    fn a_step_shares_the_job_and_has_a_task_on_each_node() {
        let job = SlurmJob { id: "7".into(), nodes: Vec::new() };
        let srun = job.srun(&["h1".to_owned(), "h3".to_owned()]);
        let words: Vec<_> = srun.as_std().get_args().map(|word| word.to_string_lossy()).collect();
        assert_eq!(words[..3], ["--jobid=7", "-N2", "-n2"]);
        assert!(words.contains(&"--overlap".into()) && words.contains(&"--nodelist=h1,h3".into()));
    }
}
