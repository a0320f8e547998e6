//! Proof of the mesh on this node, that is, of the RDMA paths to other nodes. A round proves
//! several paths at the same time, in steps. In each step the prover process works; between the
//! steps all agents synchronise:
//!
//! ```text
//! Idle ──Prove──▶ Preparing ──▶ Gathering ──▶ Connecting ──▶ Waiting ──▶ Proving ──▶ Idle
//! ```
//!
//! Preparing opens devices and queue pairs, Gathering exchanges their endpoints (a gather over the
//! tree of agents), Connecting connects them, Waiting is a barrier, and Proving sends test data. A
//! node without paths or without a running prover takes part in the gather and the barrier with
//! empty data, because the other nodes would otherwise wait forever.
//!
//! The agent starts the prover process here, and exchanges frames with it.

use crate::console::errln;
use crate::network::frames::{self, FrameEvent, FrameSender};
use crate::node::delivery::{HelperDownload, Located, spawn_helper};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_bootstrap::deadline::Deadline;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::job::Job;
use rlaunch_bootstrap::protocol::control::{self, FromAgent, Helper, HelperFile};
use rlaunch_bootstrap::protocol::mesh::{
    FromProver, NodeEndpoints, PathFault, PathOutcome, ProofRound, ProofStep, RoundCost, ToProver,
};
use rlaunch_bootstrap::rendezvous::message::CollectiveKind;
use rlaunch_bootstrap::rendezvous::node::Answer;
use rlaunch_bootstrap::rendezvous::payload::Gathered;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Additional time after a step's limit before this agent treats the prover as failed. The prover
/// enforces the limit itself, earlier, and reports a more precise cause. The prover also does not
/// count the time of a suspension, which the agent may fail to notice.
const STEP_SLACK: Duration = Duration::from_secs(1);
/// Interval between checks of a step's deadline. It is short, so that the agent detects every
/// suspension that the prover detects.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Collective operation to be run by all agents over the tree.
#[derive(Debug)]
pub(crate) struct AgentCollective {
    pub(crate) kind: CollectiveKind,
    pub(crate) name: String,
    /// Contribution of each rank of this node, by local rank.
    pub(crate) blobs: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundPhase {
    Idle,
    Preparing,
    Gathering,
    Connecting,
    Waiting,
    Proving,
}

/// State of the prover process.
enum ProverState {
    /// The launcher has not named a prover, since there is nothing to prove.
    Absent,
    /// The prover's file is being received.
    Downloading(HelperDownload),
    Running(Prover),
    /// The prover cannot run, or has ended, for this reason.
    Failed(String),
}

/// Proof of the mesh on this node: the prover process and the current round.
pub(crate) struct Mesh {
    prover: ProverState,
    phase: RoundPhase,
    round: Option<ProofRound>,
    /// Time after which the prover is treated as failed. `None` while the prover has nothing to do.
    deadline: Option<Deadline>,
    collectives: VecDeque<AgentCollective>,
    node: NodeId,
    world_size: u32,
    to_launcher: FrameSender,
}

impl Mesh {
    pub(crate) fn new(job: &Job, to_launcher: &FrameSender) -> Mesh {
        Mesh {
            prover: ProverState::Absent,
            phase: RoundPhase::Idle,
            round: None,
            deadline: None,
            collectives: VecDeque::new(),
            node: job.node,
            world_size: job.world_size,
            to_launcher: to_launcher.clone(),
        }
    }

    /// Starts the prover if its file is in the cache, else requests the file from the launcher.
    pub(crate) fn on_file(&mut self, file: HelperFile) {
        match HelperDownload::locate(Helper::Prover, file) {
            Ok(Located::Cached(path)) => self.start(&path),
            Ok(Located::Missing(download)) => {
                self.prover = ProverState::Downloading(download);
                self.to_launcher.send(&FromAgent::NeedsHelper(Helper::Prover));
            }
            Err(cause) => self.prover = ProverState::Failed(cause),
        }
    }

    /// Stores the next part of the prover's file, and starts the prover after the last one.
    pub(crate) fn on_part(&mut self, part: &[u8]) {
        let ProverState::Downloading(download) = &mut self.prover else { return };
        match download.receive(part) {
            Ok(None) => {}
            Ok(Some(path)) => self.start(&path),
            Err(cause) => self.prover = ProverState::Failed(cause),
        }
    }

    fn start(&mut self, path: &Path) {
        self.prover = match Prover::start(path, self.node) {
            Ok(prover) => ProverState::Running(prover),
            Err(error) => ProverState::Failed(format!("cannot start {}: {error}", path.display())),
        };
    }

    /// Starts to prove the paths of a round.
    pub(crate) fn prove(&mut self, round: ProofRound) {
        if self.phase != RoundPhase::Idle {
            let number = round.number;
            return errln!(
                "rlaunch-worker: round {number} of the mesh began before the previous one had ended"
            );
        }
        self.phase = RoundPhase::Preparing;
        self.deadline = Some(within(round.limits.connect_ms));
        let nothing_to_do = round.paths.is_empty();
        let is_proving = !nothing_to_do && self.send(&ToProver::Prove(round.clone()));
        self.round = Some(round);
        if !is_proving {
            self.start_gather(Vec::new());
        }
    }

    /// Tells the prover to watch the paths with these ids, with a beat every `beat_ms`
    /// milliseconds, and to close all other paths. If there are no ids, the prover exits.
    pub(crate) fn watch(&mut self, ids: Vec<u32>, beat_ms: u32) {
        if ids.is_empty() {
            self.shutdown();
        } else {
            self.send(&ToProver::Watch { ids, beat_ms });
        }
    }

    /// Tells the prover to close everything and exit.
    pub(crate) fn shutdown(&mut self) {
        if let ProverState::Running(prover) = &mut self.prover {
            prover.shutdown();
        }
    }

    /// Sends a message to the prover. Returns false if the prover does not run.
    fn send(&mut self, message: &ToProver) -> bool {
        let ProverState::Running(prover) = &self.prover else { return false };
        match prover.send(message) {
            Ok(()) => true,
            Err(cause) => {
                self.prover = ProverState::Failed(cause);
                false
            }
        }
    }

    /// Returns the next collective to be run over the tree of agents.
    pub(crate) fn poll_collective(&mut self) -> Option<AgentCollective> {
        self.collectives.pop_front()
    }

    /// Continues the round with the result of the gather or barrier.
    pub(crate) fn on_collective_done(&mut self, answer: Answer) {
        match (self.phase, answer) {
            (RoundPhase::Gathering, Answer::Gathered(payload)) => {
                let blobs = Gathered(payload).by_rank(self.world_size);
                let blobs = blobs.inspect_err(|error| errln!("rlaunch-worker: mesh: {error}"));
                self.connect(blobs.unwrap_or_default().iter().map(|blob| blob.to_vec()).collect());
            }
            (RoundPhase::Waiting, Answer::Done) => self.start_proving(),
            (RoundPhase::Gathering | RoundPhase::Waiting, other) => {
                let cause = format!("the agents could not synchronise: {}", reason(other));
                self.fail_round(ProofStep::Exchange, &cause);
            }
            // No collective runs in the other phases.
            _ => {}
        }
    }

    fn start_collective(&mut self, phase: RoundPhase, kind: CollectiveKind, blobs: Vec<Vec<u8>>) {
        let Some(round) = &self.round else { return };
        let (number, through_launcher) = (round.number, round.through_launcher);
        self.phase = phase;
        self.deadline = None;
        if through_launcher {
            self.to_launcher.send(&FromAgent::PathEndpoints { round: number, endpoints: blobs });
            return;
        }
        self.collectives.push_back(AgentCollective {
            kind,
            name: format!("rlaunch: mesh {number}"),
            blobs,
        });
    }

    fn start_gather(&mut self, blobs: Vec<Vec<u8>>) {
        self.start_collective(RoundPhase::Gathering, CollectiveKind::Gather, blobs);
    }

    fn start_barrier(&mut self) {
        self.start_collective(RoundPhase::Waiting, CollectiveKind::Barrier, Vec::new());
    }

    /// Continues a round in which only two nodes take part, synchronised by the launcher. Called
    /// when the peer node has reached the same step; `blobs` contains the peer's endpoints.
    pub(crate) fn on_peer_ready(&mut self, blobs: Vec<Vec<u8>>) {
        match self.phase {
            RoundPhase::Gathering => self.connect(blobs),
            RoundPhase::Waiting => self.start_proving(),
            // In the other phases this node waits for no peer.
            _ => {}
        }
    }

    /// Passes the endpoints of this node's peers to the prover.
    fn connect(&mut self, mut blobs: Vec<Vec<u8>>) {
        let Some(round) = &self.round else { return };
        let peers: BTreeSet<NodeId> = round.paths.iter().map(|path| path.peer).collect();
        blobs.retain(|blob| {
            NodeEndpoints::decode(blob).is_ok_and(|endpoints| peers.contains(&endpoints.node))
        });
        self.deadline = Some(within(round.limits.connect_ms));
        self.phase = RoundPhase::Connecting;
        if peers.is_empty() || !self.send(&ToProver::Connect(blobs)) {
            self.start_barrier();
        }
    }

    fn start_proving(&mut self) {
        let Some(round) = &self.round else { return };
        let limits = round.limits;
        self.deadline = Some(within(limits.token_ms + limits.block_ms + limits.measure_ms));
        self.phase = RoundPhase::Proving;
        // A node without paths ends its round as well, with no path that could have failed.
        if round.paths.is_empty() || !self.send(&ToProver::Go) {
            let cause = self.why_no_prover();
            self.fail_round(ProofStep::Prepare, &cause);
        }
    }

    /// Returns the reason why there is no answer of a prover.
    fn why_no_prover(&self) -> String {
        match &self.prover {
            ProverState::Failed(cause) => cause.clone(),
            ProverState::Absent | ProverState::Downloading(_) => {
                "rlaunch-prover was not received".to_owned()
            }
            ProverState::Running(_) => "rlaunch-prover did not answer".to_owned(),
        }
    }

    /// Ends the round, and reports to the launcher that all its paths have failed.
    fn fail_round(&mut self, step: ProofStep, cause: &str) {
        let paths = self.round.as_ref().map(|round| round.paths.clone()).unwrap_or_default();
        let fault = PathFault { step, cause: cause.to_owned(), hint: None, awaited_peer: false };
        let failed =
            paths.iter().map(|path| PathOutcome { id: path.id, result: Err(fault.clone()) });
        self.end_round(failed.collect(), RoundCost::default());
    }

    fn end_round(&mut self, outcomes: Vec<PathOutcome>, cost: RoundCost) {
        self.phase = RoundPhase::Idle;
        self.deadline = None;
        if let Some(round) = self.round.take() {
            self.to_launcher.send(&FromAgent::RoundDone { round: round.number, outcomes, cost });
        }
    }

    /// Waits for the prover's next event. Returns `Closed` if the prover has not finished its step
    /// by the deadline. Cancel-safe.
    pub(crate) async fn next_event(&mut self) -> FrameEvent<FromProver> {
        let event = async {
            match &mut self.prover {
                ProverState::Running(prover) => prover.next_event().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            event = event => event,
            () = expired(&mut self.deadline) => FrameEvent::Closed("it did not answer in time".to_owned()),
        }
    }

    /// Continues the round after an event of the prover.
    pub(crate) fn on_prover_event(&mut self, event: FrameEvent<FromProver>) {
        match (event, self.phase) {
            (FrameEvent::Message(FromProver::Prepared(parts)), RoundPhase::Preparing) => {
                self.start_gather(parts);
            }
            (FrameEvent::Message(FromProver::Connected), RoundPhase::Connecting) => {
                self.start_barrier();
            }
            (
                FrameEvent::Message(FromProver::RoundDone { outcomes, cost }),
                RoundPhase::Proving,
            ) => {
                self.end_round(outcomes, cost);
            }
            (FrameEvent::Message(FromProver::PathEvent(watched)), _) => {
                self.to_launcher.send(&FromAgent::PathEvent(watched));
            }
            (FrameEvent::Message(_), _) => self.on_prover_gone("it sent an unexpected message"),
            (FrameEvent::Closed(how), _) => self.on_prover_gone(&how),
        }
    }

    /// Continues the round without the prover, which has ended or broken the protocol.
    fn on_prover_gone(&mut self, how: &str) {
        if let ProverState::Running(prover) = &mut self.prover {
            prover.kill();
        }
        errln!("rlaunch-worker: rlaunch-prover: {how}");
        self.prover = ProverState::Failed(format!("rlaunch-prover: {how}"));
        match self.phase {
            RoundPhase::Preparing => self.start_gather(Vec::new()),
            RoundPhase::Connecting => self.start_barrier(),
            RoundPhase::Proving => {
                let cause = self.why_no_prover();
                self.fail_round(ProofStep::Token, &cause);
            }
            // The step after the other agents' answer finds no prover.
            RoundPhase::Idle | RoundPhase::Gathering | RoundPhase::Waiting => {}
        }
    }

    /// Returns the prover's process id while it runs.
    pub(crate) fn pid(&self) -> Option<Pid> {
        match &self.prover {
            ProverState::Running(prover) => Some(prover.pid()),
            _ => None,
        }
    }

    /// Shuts the prover down and waits until it has ended.
    pub(crate) async fn end(self) {
        if let ProverState::Running(prover) = self.prover {
            prover.end().await;
        }
    }
}

/// Tells why a collective of the agents has failed.
fn reason(answer: Answer) -> String {
    match answer {
        Answer::TimedOut(missing) => format!("not in time: missing {missing}"),
        Answer::Failed(failure) => failure.to_string(),
        Answer::Refused(refusal) => refusal.to_string(),
        Answer::Aborted { text, .. } => text,
        _ => "unexpected answer".to_owned(),
    }
}

/// Waits until a deadline has passed, for ever without one.
async fn expired(deadline: &mut Option<Deadline>) {
    let Some(deadline) = deadline else { return std::future::pending().await };
    loop {
        tokio::time::sleep_until(deadline.next_check().into()).await;
        if deadline.has_expired(tokio::time::Instant::now().into_std()) {
            return;
        }
    }
}

fn within(limit_ms: u32) -> Deadline {
    let limit = Duration::from_millis(limit_ms.into()) + STEP_SLACK;
    Deadline::after(limit, Instant::now()).checked_every(CHECK_INTERVAL)
}

/// Time limit for the prover to exit after its stdin is closed, and for its stderr to end after its
/// stdout has ended.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of bytes of the prover's stderr that are kept, counted from the end.
const MAX_STDERR: usize = 1024;

/// Running prover process.
pub(crate) struct Prover {
    pid: Pid,
    /// Frames for the prover's stdin. `None` after [`Prover::shutdown`], which closes stdin.
    commands: Option<mpsc::UnboundedSender<Vec<u8>>>,
    answers: mpsc::Receiver<FrameEvent<FromProver>>,
    /// Last line of the prover's stderr, sent when stderr ends.
    stderr_tail: oneshot::Receiver<String>,
    /// Reason why the prover's stdout ended, until [`Prover::next_event`] has reported it.
    gone: Option<String>,
}

impl Prover {
    /// Starts the prover of this node from its executable. The agent reaps the prover together with
    /// the ranks.
    pub(crate) fn start(path: &Path, node: NodeId) -> io::Result<Prover> {
        let (pid, stdin, [stdout, stderr]) =
            spawn_helper(Command::new(path).arg(node.to_string()))?;
        let (commands, queue) = mpsc::unbounded_channel();
        let (tail, stderr_tail) = oneshot::channel();
        let (answer, answers) = mpsc::channel(16);
        tokio::spawn(write_all(queue, stdin));
        tokio::spawn(frames::read_all(stdout, Vec::new(), answer));
        tokio::spawn(read_last_line(stderr, tail));
        Ok(Prover { pid, commands: Some(commands), answers, stderr_tail, gone: None })
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a message to the prover. Returns an error text if the message does not fit into a
    /// frame or the prover has ended.
    pub(crate) fn send(&self, message: &ToProver) -> Result<(), String> {
        let frame = control::encode(message).map_err(|error| error.to_string())?;
        let sent = self.commands.as_ref().is_some_and(|commands| commands.send(frame).is_ok());
        if sent { Ok(()) } else { Err("rlaunch-prover has ended".to_owned()) }
    }

    /// Waits for the prover's next event. `Closed` is returned once, with the last line of stderr,
    /// and never after a shutdown. Cancel-safe.
    pub(crate) async fn next_event(&mut self) -> FrameEvent<FromProver> {
        if self.gone.is_none() {
            match self.answers.recv().await {
                Some(FrameEvent::Closed(_)) if self.commands.is_none() => {
                    return std::future::pending().await;
                }
                Some(FrameEvent::Closed(how)) => self.gone = Some(how),
                Some(message) => return message,
                // The prover's end has been reported.
                None => std::future::pending().await,
            }
        }
        let tail = timeout(EXIT_TIMEOUT, &mut self.stderr_tail).await;
        let how = self.gone.take().unwrap_or_default();
        match tail {
            Ok(Ok(tail)) if !tail.is_empty() => FrameEvent::Closed(format!("{how}: {tail}")),
            _ => FrameEvent::Closed(how),
        }
    }

    /// Tells the prover to close everything and exit, by closing its stdin.
    pub(crate) fn shutdown(&mut self) {
        self.commands = None;
    }

    pub(crate) fn kill(&self) {
        // Fails if the prover has ended already.
        let _ = kill(self.pid, Signal::SIGKILL);
    }

    /// Shuts the prover down and waits until its stdout is closed. Kills the prover after
    /// [`EXIT_TIMEOUT`].
    pub(crate) async fn end(mut self) {
        self.shutdown();
        let gone = async { while self.answers.recv().await.is_some() {} };
        if timeout(EXIT_TIMEOUT, gone).await.is_err() {
            self.kill();
        }
    }
}

async fn write_all(mut queue: mpsc::UnboundedReceiver<Vec<u8>>, mut stdin: pipe::Sender) {
    while let Some(frame) = queue.recv().await {
        // A prover that has ended is noticed when its stdout closes.
        if stdin.write_all(&frame).await.is_err() {
            return;
        }
    }
}

/// Reads stderr to the end and sends its last line that is not blank.
async fn read_last_line(mut stderr: pipe::Receiver, tail: oneshot::Sender<String>) {
    let mut text = Vec::new();
    let mut part = [0; 1024];
    while let Ok(length @ 1..) = stderr.read(&mut part).await {
        text.extend_from_slice(&part[..length]);
        text.drain(..text.len().saturating_sub(MAX_STDERR));
    }
    let text = String::from_utf8_lossy(&text);
    let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    // The receiver is dropped at the end of the job.
    let _ = tail.send(last.unwrap_or_default().to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// A prover that needs a newer C library than the host has reports that on stderr.
    #[test]
    fn one_that_does_not_start_says_why() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("prover");
        fs::write(&path, "#!/bin/sh\necho first >&2; echo \"no GLIBC_2.34 here\" >&2; exit 1\n")
            .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let event = runtime.block_on(async {
            let mut prover = Prover::start(&path, NodeId(3)).unwrap();
            prover.next_event().await
        });
        let FrameEvent::Closed(how) = event else { panic!("{event:?}") };
        assert_eq!(how, "it has ended: no GLIBC_2.34 here");
    }
}
