//! This node's part in proving the mesh: the prover works, and between its steps all agents meet.
//!
//! ```text
//! Idle ──Prove──▶ Preparing ──▶ Gathering ──▶ Connecting ──▶ Waiting ──▶ Proving ──▶ Idle
//! ```
//!
//! A node whose prover fails, or that has no paths, goes through the same meetings with nothing to
//! give, so that the others are not held up.

pub(crate) mod file;
mod prover;

use crate::network::frames::Arrival;
use crate::network::outbox::Outbox;
use crate::say::complain;
use nix::unistd::Pid;
use prover::Prover;
use rlaunch_bootstrap::deadline::Deadline;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::job::Job;
use rlaunch_bootstrap::protocol::control::FromAgent;
use rlaunch_bootstrap::protocol::mesh::{
    Cost, Endpoints, Fault, FromProver, Outcome, ProverFile, Round, Step, ToProver,
};
use rlaunch_bootstrap::rendezvous::gathered::Gathered;
use rlaunch_bootstrap::rendezvous::message::Kind;
use rlaunch_bootstrap::rendezvous::node::Answer;
use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

/// How much longer than it is given a step of the prover may take before it is given up: it has
/// deadlines of its own, and knows better what it was that took so long. More than a standstill lasts
/// that the prover leaves out and this process does not.
const SLACK: Duration = Duration::from_secs(1);
/// Between two looks whether a step takes too long: what the prover takes for a standstill is one here
/// as well.
const LOOK: Duration = Duration::from_millis(50);

/// A meeting that the mesh wants of all agents.
#[derive(Debug)]
pub(crate) struct Meeting {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    /// By local rank.
    pub(crate) given: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Preparing,
    Gathering,
    Connecting,
    Waiting,
    Proving,
}

/// Where the prover is.
enum Worker {
    /// Nobody has said that there is anything to prove.
    Absent,
    /// Its file is on the way.
    Arriving(file::Arriving),
    Running(Prover),
    /// It cannot run, or has ended, and why.
    Failed(String),
}

/// The mesh as this node's agent sees it.
pub(crate) struct Mesh {
    worker: Worker,
    phase: Phase,
    round: Option<Round>,
    /// When the prover is given up.
    deadline: Option<Deadline>,
    meetings: VecDeque<Meeting>,
    node: NodeId,
    world_size: u32,
    outbox: Outbox,
}

impl Mesh {
    pub(crate) fn new(job: &Job, outbox: &Outbox) -> Mesh {
        Mesh {
            worker: Worker::Absent,
            phase: Phase::Idle,
            round: None,
            deadline: None,
            meetings: VecDeque::new(),
            node: job.node,
            world_size: job.world_size,
            outbox: outbox.clone(),
        }
    }

    /// The launcher names the prover's file: starts it, or asks for it.
    pub(crate) fn on_file(&mut self, file: ProverFile) {
        match file::Arriving::expect(file) {
            Ok(file::Wanted::Here(path)) => self.start(&path),
            Ok(file::Wanted::Missing(arriving)) => {
                self.worker = Worker::Arriving(arriving);
                self.outbox.send(&FromAgent::WantsProver);
            }
            Err(cause) => self.worker = Worker::Failed(cause),
        }
    }

    /// More of that file.
    pub(crate) fn on_part(&mut self, part: &[u8]) {
        let Worker::Arriving(arriving) = &mut self.worker else { return };
        match arriving.receive(part) {
            Ok(None) => {}
            Ok(Some(path)) => self.start(&path),
            Err(cause) => self.worker = Worker::Failed(cause),
        }
    }

    fn start(&mut self, path: &Path) {
        self.worker = match Prover::start(path, self.node) {
            Ok(prover) => Worker::Running(prover),
            Err(error) => Worker::Failed(format!("cannot start {}: {error}", path.display())),
        };
    }

    /// The launcher wants these paths proved.
    pub(crate) fn prove(&mut self, round: Round) {
        if self.phase != Phase::Idle {
            let number = round.number;
            return complain!(
                "rlaunch-worker: round {number} of the mesh before the last has ended"
            );
        }
        self.phase = Phase::Preparing;
        self.deadline = Some(within(round.limits.connect_ms));
        let nothing_to_do = round.paths.is_empty();
        let asked = !nothing_to_do && self.tell(&ToProver::Prove(round.clone()));
        self.round = Some(round);
        if !asked {
            self.gather(Vec::new());
        }
    }

    /// The launcher wants these paths watched, and no others kept.
    pub(crate) fn watch(&mut self, ids: Vec<u32>, beat_ms: u32) {
        if ids.is_empty() {
            self.dismiss();
        } else {
            self.tell(&ToProver::Watch { ids, beat_ms });
        }
    }

    /// Has the prover close everything and end: nothing is left to do for it.
    pub(crate) fn dismiss(&mut self) {
        if let Worker::Running(prover) = &mut self.worker {
            prover.dismiss();
        }
    }

    /// Whether the prover runs and has been told.
    fn tell(&mut self, message: &ToProver) -> bool {
        let Worker::Running(prover) = &self.worker else { return false };
        match prover.tell(message) {
            Ok(()) => true,
            Err(cause) => {
                self.worker = Worker::Failed(cause);
                false
            }
        }
    }

    /// A meeting to be held.
    pub(crate) fn poll_meeting(&mut self) -> Option<Meeting> {
        self.meetings.pop_front()
    }

    /// Every agent has come to the last meeting.
    pub(crate) fn met(&mut self, answer: Answer) {
        match (self.phase, answer) {
            (Phase::Gathering, Answer::Gathered(payload)) => {
                let blobs = Gathered(payload).by_rank(self.world_size);
                let blobs = blobs.inspect_err(|error| complain!("rlaunch-worker: mesh: {error}"));
                self.connect(blobs.unwrap_or_default().iter().map(|blob| blob.to_vec()).collect());
            }
            (Phase::Waiting, Answer::Done) => self.go(),
            (Phase::Gathering | Phase::Waiting, other) => {
                self.fail(Step::Exchange, &format!("the agents did not meet: {other:?}"));
            }
            _ => {}
        }
    }

    fn meet(&mut self, phase: Phase, kind: Kind, given: Vec<Vec<u8>>) {
        let Some(round) = &self.round else { return };
        let (number, two_alone) = (round.number, round.through_launcher);
        self.phase = phase;
        self.deadline = None;
        if two_alone {
            self.outbox.send(&FromAgent::Meets { round: number, given });
            return;
        }
        self.meetings.push_back(Meeting { kind, name: format!("rlaunch: mesh {number}"), given });
    }

    fn gather(&mut self, given: Vec<Vec<u8>>) {
        self.meet(Phase::Gathering, Kind::Gather, given);
    }

    fn wait(&mut self) {
        self.meet(Phase::Waiting, Kind::Barrier, Vec::new());
    }

    /// The other end of a path that is proved anew has come as far.
    pub(crate) fn met_other(&mut self, given: Vec<Vec<u8>>) {
        match self.phase {
            Phase::Gathering => self.connect(given),
            Phase::Waiting => self.go(),
            _ => {}
        }
    }

    /// Tells the prover what its peers have said.
    fn connect(&mut self, mut told: Vec<Vec<u8>>) {
        let Some(round) = &self.round else { return };
        let peers: BTreeSet<NodeId> = round.paths.iter().map(|path| path.peer).collect();
        told.retain(|blob| {
            Endpoints::decode(blob).is_ok_and(|endpoints| peers.contains(&endpoints.node))
        });
        self.deadline = Some(within(round.limits.connect_ms));
        self.phase = Phase::Connecting;
        if peers.is_empty() || !self.tell(&ToProver::Connect(told)) {
            self.wait();
        }
    }

    fn go(&mut self) {
        let Some(round) = &self.round else { return };
        let limits = round.limits;
        self.deadline = Some(within(limits.token_ms + limits.block_ms));
        self.phase = Phase::Proving;
        if round.paths.is_empty() || !self.tell(&ToProver::Go) {
            let cause = self.cause();
            self.fail(Step::Prepare, &cause);
        }
    }

    /// Why there is no prover.
    fn cause(&self) -> String {
        match &self.worker {
            Worker::Failed(cause) => cause.clone(),
            Worker::Absent | Worker::Arriving(_) => "the prover did not arrive".to_owned(),
            Worker::Running(_) => "the prover did not answer".to_owned(),
        }
    }

    /// Reports the round as one in which nothing carries.
    fn fail(&mut self, step: Step, cause: &str) {
        let paths = self.round.as_ref().map(|round| round.paths.clone()).unwrap_or_default();
        let fault = Fault { step, cause: cause.to_owned(), hint: None, waited: false };
        let outcome = |path: &rlaunch_bootstrap::protocol::mesh::Path| Outcome {
            id: path.id,
            result: Err(fault.clone()),
        };
        self.report(paths.iter().map(outcome).collect(), Cost::default());
    }

    fn report(&mut self, outcomes: Vec<Outcome>, cost: Cost) {
        self.phase = Phase::Idle;
        self.deadline = None;
        if let Some(round) = self.round.take() {
            self.outbox.send(&FromAgent::Proved { round: round.number, outcomes, cost });
        }
    }

    /// Waits for the prover, or for the time at which it is given up. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Arrival<FromProver> {
        let deadline = &mut self.deadline;
        let late = async {
            let Some(deadline) = deadline else { return std::future::pending().await };
            loop {
                tokio::time::sleep_until(deadline.look().into()).await;
                if deadline.is_over(tokio::time::Instant::now().into_std()) {
                    return;
                }
            }
        };
        let heard = async {
            match &mut self.worker {
                Worker::Running(prover) => prover.hear().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            heard = heard => heard,
            () = late => Arrival::Gone("it did not answer in time".to_owned()),
        }
    }

    /// The prover said something, or never will.
    pub(crate) fn on_heard(&mut self, heard: Arrival<FromProver>) {
        match (heard, self.phase) {
            (Arrival::Message(FromProver::Prepared(parts)), Phase::Preparing) => self.gather(parts),
            (Arrival::Message(FromProver::Connected), Phase::Connecting) => self.wait(),
            (Arrival::Message(FromProver::Proved { outcomes, cost }), Phase::Proving) => {
                self.report(outcomes, cost);
            }
            (Arrival::Message(FromProver::Watching(watched)), _) => {
                self.outbox.send(&FromAgent::PathWatched(watched));
            }
            (Arrival::Message(_), _) => self.on_gone("it spoke out of turn"),
            (Arrival::Gone(how), _) => self.on_gone(&how),
        }
    }

    /// Goes on without the prover.
    fn on_gone(&mut self, how: &str) {
        if let Worker::Running(prover) = &mut self.worker {
            prover.kill();
        }
        complain!("rlaunch-worker: rlaunch-prover: {how}");
        self.worker = Worker::Failed(format!("rlaunch-prover: {how}"));
        match self.phase {
            Phase::Preparing => self.gather(Vec::new()),
            Phase::Connecting => self.wait(),
            Phase::Proving => {
                let cause = self.cause();
                self.fail(Step::Token, &cause);
            }
            Phase::Idle | Phase::Gathering | Phase::Waiting => {}
        }
    }

    /// The prover's process, while it lives.
    pub(crate) fn pid(&self) -> Option<Pid> {
        match &self.worker {
            Worker::Running(prover) => Some(prover.pid()),
            _ => None,
        }
    }

    /// Ends the prover and waits for it.
    pub(crate) async fn end(self) {
        if let Worker::Running(prover) = self.worker {
            prover.end().await;
        }
    }
}

fn within(limit_ms: u32) -> Deadline {
    let limit = Duration::from_millis(limit_ms.into()) + SLACK;
    Deadline::after(limit, Instant::now()).often(LOOK)
}
