//! Nodes of a Slurm job, which are reached by steps of `srun` in place of SSH: within the job's limits and accounting, and
//! gone with the job.
//!
//! The agents of a job start by one step for all its nodes. srun puts the number of a task in front of each of its lines,
//! and the task's first line says on which node it runs; so each node has a stream of its own ([`StepReader`]). Everything
//! else, such as the cleanup after a lost agent, is a step of one task. Streams of srun are not encrypted: no secret goes
//! that way, and an agent calls the launcher back as on hosts whose shell passes on no stdin.
//!
//! Such a step also holds nodes that are reached by SSH ([`super::tether`]).

use crate::connect::channel::{AgentChannel, AgentReader, AgentWriter, CommandStatus, Incoming};
use crate::connect::connector::rsh::{after_colon, describe_end, last_lines};
use bytes::Bytes;
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_console::{deadline, messages};
use rlaunch_plan::hosts::{self, Host};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Words with which the first line of a task begins; its number, its architecture and the name of its node follow.
pub(super) const TASK_LINE: &str = "rlaunch-install task ";
/// Variables of Slurm that its commands get: where the controller is. All others would change a step, as
/// `SRUN_CPUS_PER_TASK`, `SLURM_EXACT` and `SLURM_KILL_BAD_EXIT` do.
const KEPT: &[&str] =
    &["SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_WORKING_CLUSTER", "SLURM_EXPORT_ENV", "SLURM_JWT"];
/// Options of each step: it shares what the job has with other steps, binds no CPUs, and goes on when a task or a node fails.
const OPTIONS: &[&str] = &[
    "--overlap", "--ntasks-per-node=1", "--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=0",
    "--wait=0", "--no-kill", "--job-name=rlaunch",
];
/// Maximum number of lines of each [`Kind`] that wait to be read in the stream of a task.
const UNREAD_LINES: usize = 64;
/// Maximum length of a line, in bytes. Longer ones are cut.
const MAX_LINE: usize = 16 << 10;
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

    /// Waits for the end of the step, once nobody reads the streams of its tasks.
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
        let (open, all_gone) = mpsc::channel(1);
        let streams = nodes.iter().map(|node| {
            let (lines, unread) = unread();
            let reader = StepReader { unread, _open: open.clone() };
            ((node.clone(), lines), (node.clone(), reader))
        });
        let (senders, waiting): (HashMap<_, _>, HashMap<_, _>) = streams.unzip();
        // Slurm also says that it cancels a step to which it sends a signal that this one withstands.
        let is_ended = input == Input::Open;
        let tasks = Tasks { unplaced: senders, is_ended, ..Tasks::default() };
        let reading = tokio::spawn(distribute(reader, stdin, tasks, all_gone));
        Ok(SharedStep { waiting, status, reading })
    }
}

/// Stream of one task of a step that has several.
pub struct StepReader {
    unread: Arc<Unread>,
    /// Dropped with the reader. The step ends with the last one.
    _open: mpsc::Sender<()>,
}

impl StepReader {
    /// Returns the next line; `None` once the task has ended, or the whole step. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Incoming> {
        loop {
            // A notification that comes before the wait for it is kept.
            match self.unread.lines().take() {
                Taken::Line(line) => return Some(line),
                Taken::Ended => return None,
                Taken::Nothing => {}
            }
            self.unread.changed.notified().await;
        }
    }
}

/// Source of a line. Each has its own share of a stream, so that a task that writes much pushes out nothing else.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// stdout of a task: what an agent says, which is little. Later lines are dropped.
    Output,
    /// stderr of a task. The oldest lines are dropped.
    Words,
    /// srun itself. The oldest lines are dropped.
    Srun,
}

/// Lines of a task that are not read yet.
#[derive(Default)]
struct Unread {
    lines: Mutex<UnreadLines>,
    changed: Notify,
}

#[derive(Default)]
struct UnreadLines {
    waiting: VecDeque<(Kind, Incoming)>,
    is_ended: bool,
}

enum Taken {
    Line(Incoming),
    Nothing,
    Ended,
}

impl Unread {
    fn lines(&self) -> MutexGuard<'_, UnreadLines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnreadLines {
    fn take(&mut self) -> Taken {
        match self.waiting.pop_front() {
            Some((_, line)) => Taken::Line(line),
            None if self.is_ended => Taken::Ended,
            None => Taken::Nothing,
        }
    }

    fn add(&mut self, kind: Kind, line: Incoming) {
        if self.waiting.iter().filter(|(other, _)| *other == kind).count() >= UNREAD_LINES {
            if kind == Kind::Output {
                return;
            }
            let oldest = self.waiting.iter().position(|(other, _)| *other == kind);
            oldest.map(|at| self.waiting.remove(at));
        }
        self.waiting.push_back((kind, line));
    }
}

/// Makes a stream of lines: the end that writes, and the one that reads.
fn unread() -> (LineSender, Arc<Unread>) {
    let unread = Arc::new(Unread::default());
    (LineSender(Arc::clone(&unread)), unread)
}

/// Writing end of the stream of a task, which ends when this is dropped.
struct LineSender(Arc<Unread>);

impl LineSender {
    fn send(&self, kind: Kind, text: &str) {
        let bytes: Bytes = format!("{text}\n").into();
        let line = match kind {
            Kind::Output => Incoming::Data(bytes),
            Kind::Words | Kind::Srun => Incoming::Diagnostics(bytes),
        };
        self.0.lines().add(kind, line);
        self.0.changed.notify_one();
    }
}

impl Drop for LineSender {
    fn drop(&mut self) {
        self.0.lines().is_ended = true;
        self.0.changed.notify_one();
    }
}

/// Reads what srun prints until it ends or all readers are gone. Then the tasks read a line, and srun gets SIGTERM, unless
/// it ends soon, and ends the tasks.
async fn distribute(
    mut srun: AgentReader,
    stdin: Option<AgentWriter>,
    mut tasks: Tasks,
    mut all_gone: mpsc::Receiver<()>,
) {
    let (mut stdout, mut stderr) = (Lines::default(), Lines::default());
    loop {
        let incoming = tokio::select! {
            incoming = srun.next() => incoming,
            _ = all_gone.recv() => break,
        };
        match incoming {
            Some(Incoming::Data(bytes)) => stdout.push(&bytes, |line| tasks.on_output(line)),
            Some(Incoming::Diagnostics(bytes)) => stderr.push(&bytes, |line| tasks.on_words(line)),
            None => break,
        }
    }
    stdout.finish(|line| tasks.on_output(line));
    stderr.finish(|line| tasks.on_words(line));
    if let Some(mut stdin) = stdin {
        let _ = stdin.send(Bytes::from_static(b"\n")).await;
    }
    // The ends of the streams tell the readers, which must come after srun's exit status is known.
    drop(tasks);
    srun.reap().await;
}

/// Bytes up to the end of a line.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn push(&mut self, bytes: &[u8], mut on_line: impl FnMut(&str)) {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let room = MAX_LINE.saturating_sub(self.0.len());
            self.0.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                on_line(String::from_utf8_lossy(&self.0).trim_end());
                self.0.clear();
            }
        }
    }

    /// Passes on a last line that has no newline.
    fn finish(&mut self, on_line: impl FnOnce(&str)) {
        let rest = std::mem::take(&mut self.0);
        if !rest.is_empty() {
            on_line(String::from_utf8_lossy(&rest).trim_end());
        }
    }
}

/// Tasks of a step whose streams are open.
#[derive(Default)]
struct Tasks {
    /// Nodes whose task has not said its number yet.
    unplaced: HashMap<String, LineSender>,
    /// Streams by the number of the task.
    placed: HashMap<u32, LineSender>,
    /// Whether the user is told no more that Slurm ends the step.
    is_ended: bool,
}

impl Tasks {
    /// Passes a line of stdout to the reader of its task.
    fn on_output(&mut self, line: &str) {
        let Some((task, text)) = labelled(line) else { return };
        if let Some(of) = text.strip_prefix(TASK_LINE)
            && let Some((_, node)) = of.rsplit_once(' ')
            && let Some(lines) = self.unplaced.remove(node)
        {
            self.placed.insert(task, lines);
        }
        if let Some(lines) = self.placed.get(&task) {
            lines.send(Kind::Output, text);
        }
    }

    /// Passes a line of stderr to the reader of its task, or a line of srun itself to all that it is about.
    fn on_words(&mut self, line: &str) {
        if let Some(why) = ended_by_slurm(line)
            && !std::mem::replace(&mut self.is_ended, true)
        {
            messages::warn(&format!("Slurm ends the job: {why}"));
        }
        if let Some((task, text)) = labelled(line) {
            if let Some(lines) = self.placed.get(&task) {
                lines.send(Kind::Words, text);
            }
            return;
        }
        let Some((nodes, tasks)) = ended_tasks(line) else {
            let all = self.placed.values().chain(self.unplaced.values());
            return all.for_each(|lines| lines.send(Kind::Srun, line));
        };
        let placed = tasks.into_iter().filter_map(|task| self.placed.remove(&task));
        // Tasks that failed before their first line.
        let unplaced = nodes.iter().filter_map(|node| self.unplaced.remove(node));
        placed.chain(unplaced).for_each(|lines| lines.send(Kind::Srun, line));
    }
}

/// Splits `12: text`, as `srun --label` prints the lines of task 12. Numbers are padded to the same width.
fn labelled(line: &str) -> Option<(u32, &str)> {
    let (task, text) = line.split_once(':')?;
    Some((task.trim_start().parse().ok()?, text.strip_prefix(' ').unwrap_or(text)))
}

/// Returns what Slurm says in a line such as `slurmstepd: error: *** STEP 7.0 ON a CANCELLED AT 2026-11-29T19:11:10 DUE TO TIME
/// LIMIT ***`.
pub(super) fn ended_by_slurm(line: &str) -> Option<&str> {
    let (_, said) = line.split_once("*** ")?;
    let (said, _) = said.split_once(" ***")?;
    (said.starts_with("STEP ") || said.starts_with("JOB ")).then_some(said)
}

/// Returns the nodes and the tasks of a line by which srun says that tasks have ended, such as
/// `srun: error: h[2-3]: tasks 1-2: Exited with exit code 1`.
fn ended_tasks(line: &str) -> Option<(Vec<String>, Vec<u32>)> {
    let (_, text) = line.split_once("error: ")?;
    let (nodes, rest) = text.split_once(": task")?;
    let (tasks, _) = rest.strip_prefix('s').unwrap_or(rest).trim_start().split_once(": ")?;
    let numbers = hosts::parse(&[format!("t[{tasks}]")]).ok()?;
    let numbers = numbers.iter().filter_map(|name| name.name.strip_prefix('t')?.parse().ok());
    let names = |listed: Vec<Host>| listed.into_iter().map(|host| host.name).collect();
    let nodes = hosts::parse(&[nodes.to_owned()]).map_or_else(|_| vec![nodes.to_owned()], names);
    Some((nodes, numbers.collect()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Writing end of the stream of a task.
    pub(in crate::connect::connector) struct TaskLines(LineSender);

    impl TaskLines {
        pub(in crate::connect::connector) fn output(&self, line: &str) {
            self.0.send(Kind::Output, line);
        }

        pub(in crate::connect::connector) fn srun(&self, line: &str) {
            self.0.send(Kind::Srun, line);
        }
    }

    /// Makes the stream of a task.
    pub(in crate::connect::connector) fn stream() -> (TaskLines, StepReader) {
        let (lines, unread) = unread();
        (TaskLines(lines), StepReader { unread, _open: mpsc::channel(1).0 })
    }

    fn tasks(nodes: &[&str]) -> (Tasks, HashMap<String, Arc<Unread>>) {
        let channels = nodes.iter().map(|node| {
            let (lines, unread) = unread();
            (((*node).to_owned(), lines), ((*node).to_owned(), unread))
        });
        let (unplaced, unread) = channels.unzip();
        (Tasks { unplaced, ..Tasks::default() }, unread)
    }

    /// Returns all that waits in a stream; the last word says whether it is open.
    fn read(unread: &Unread) -> String {
        let mut text = String::new();
        loop {
            match unread.lines().take() {
                Taken::Line(Incoming::Data(line)) => text += &String::from_utf8_lossy(&line),
                Taken::Line(Incoming::Diagnostics(line)) => {
                    text += &format!("! {}", String::from_utf8_lossy(&line));
                }
                Taken::Nothing => return text + "open",
                Taken::Ended => return text + "ended",
            }
        }
    }

    #[test]
    fn each_node_reads_the_lines_of_its_task() {
        let (mut tasks, unread) = tasks(&["h1", "h2", "h3"]);
        for line in [
            " 1: rlaunch-install task 1 x h3", " 0: rlaunch-install task 0 x h1", " 1: at: x",
            "stray",
        ] {
            tasks.on_output(line);
        }
        tasks.on_words(" 0: sh: no");
        tasks.on_words("srun: busy");
        assert_eq!(read(&unread["h3"]), "rlaunch-install task 1 x h3\nat: x\n! srun: busy\nopen");
        let of_first = "rlaunch-install task 0 x h1\n! sh: no\n! srun: busy\nopen";
        assert_eq!(read(&unread["h1"]), of_first);
        assert_eq!(read(&unread["h2"]), "! srun: busy\nopen");
    }

    #[test]
    fn a_task_that_has_ended_ends_its_stream_alone() {
        let (mut tasks, unread) = tasks(&["h1", "h2", "h3", "h4"]);
        for task in 0..3 {
            tasks.on_output(&format!("{task}: rlaunch-install task {task} x h{}", task + 1));
        }
        let ended = "srun: error: h[2-3]: tasks 1-2: Exited with exit code 1";
        tasks.on_words(ended);
        tasks.on_words("srun: error: h4: task 3: Bus error");
        let last = |node: &str| read(&unread[node]).lines().last().unwrap().to_owned();
        assert_eq!(["h1", "h2", "h3", "h4"].map(last), ["open", "ended", "ended", "ended"]);
    }

    #[test]
    fn tasks_of_several_nodes_that_end_before_their_first_line_end_their_streams() {
        let (mut tasks, unread) = tasks(&["h1", "h2", "h3"]);
        let ended = "srun: error: h[2-3]: tasks 1-2: Exited with exit code 1";
        tasks.on_words(ended);
        let ends = ["h1", "h2", "h3"].map(|node| read(&unread[node]));
        assert_eq!(
            ends,
            ["open".to_owned(), format!("! {ended}\nended"), format!("! {ended}\nended")]
        );
    }

    #[test]
    fn what_a_task_writes_pushes_out_only_its_own_older_words() {
        let (mut tasks, unread) = tasks(&["h1"]);
        tasks.on_output("0: rlaunch-install task 0 x h1");
        tasks.on_words("srun: first");
        for number in 0..10 * UNREAD_LINES {
            tasks.on_words(&format!("0: noise {number}"));
        }
        tasks.on_output("0: rlaunch-install key");
        tasks.on_words("srun: last");
        let seen = read(&unread["h1"]);
        let begin =
            format!("rlaunch-install task 0 x h1\n! srun: first\n! noise {}\n", 9 * UNREAD_LINES);
        assert!(seen.starts_with(&begin), "{seen}");
        assert!(seen.ends_with("rlaunch-install key\n! srun: last\nopen"), "{seen}");
        assert_eq!(seen.lines().count(), UNREAD_LINES + 5);
    }

    #[tokio::test]
    async fn a_reader_is_woken_by_a_line_and_by_the_end() {
        let (open, _gone) = mpsc::channel(1);
        let (lines, unread) = unread();
        let mut reader = StepReader { unread, _open: open };
        let reading = tokio::spawn(async move {
            let first = reader.next().await;
            (matches!(first, Some(Incoming::Data(_))), reader.next().await.is_none())
        });
        tokio::task::yield_now().await;
        lines.send(Kind::Output, "x");
        tokio::task::yield_now().await;
        drop(lines);
        assert_eq!(reading.await.unwrap(), (true, true));
    }

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
    fn slurms_reason_for_the_end_is_found() {
        let line = "slurmstepd-a: error: *** STEP 2.0 ON a CANCELLED AT 2026-11-29T19:11:10 DUE TO TIME LIMIT ***";
        let why = "STEP 2.0 ON a CANCELLED AT 2026-11-29T19:11:10 DUE TO TIME LIMIT";
        assert_eq!(ended_by_slurm(line), Some(why));
        assert_eq!(ended_by_slurm("srun: *** note ***"), None);
    }

    #[test]
    fn lines_come_in_any_pieces_and_have_a_limit() {
        let (mut lines, mut seen) = (Lines::default(), Vec::new());
        for part in ["0: a", "b\n1: ", "c\n"] {
            lines.push(part.as_bytes(), |line| seen.push(line.to_owned()));
        }
        lines.push(&vec![b'x'; 10 * MAX_LINE], |_| ());
        lines.push(b"\n", |line| seen.push(line.len().to_string()));
        lines.push(b"1: last words", |_| ());
        lines.finish(|line| seen.push(line.to_owned()));
        lines.finish(|line| seen.push(line.to_owned()));
        let longest = MAX_LINE.to_string();
        assert_eq!(seen, ["0: ab", "1: c", &longest, "1: last words"]);
    }

    #[test]
    fn a_host_of_another_user_or_job_is_no_node() {
        let job = SlurmJob { id: "7".into(), nodes: vec!["h1".into(), "h2".into()] };
        let foreign = |hosts: &str| {
            let hosts = hosts::parse(&[hosts.into()]).unwrap();
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
