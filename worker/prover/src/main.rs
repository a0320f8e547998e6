//! The prover: creates RDMA queue pairs to other nodes, proves that they carry data in both
//! directions, and watches some of them while the job runs.
//!
//! The agent starts one prover per job and node, as `rlaunch-prover NODE` (the node's id), because
//! the agent cannot load libibverbs itself. Agent and prover exchange frames over the prover's
//! stdin and stdout, as described in [`rlaunch_bootstrap::protocol::mesh`]. The prover exits when
//! its stdin closes.
//!
//! A round proves a set of paths, in these steps, between which every node waits for the others:
//!
//! 1. `Prove`: opens ports, and creates queue pairs in state INIT ([`round`], [`end`]). Answers
//!    `Prepared`, with what peers need to connect.
//! 2. `Connect`: connects the queue pairs with those of the peers, out of band or by the RDMA
//!    connection manager ([`connect`]). Answers `Connected`.
//! 3. `Go`: moves a token and then a block in each direction of each path ([`prove`] carries out
//!    what [`machine`] decides). If the round says so, measures the bandwidth of the paths that
//!    carry data ([`measure`]). Answers `RoundDone`, with an outcome for each path.
//!
//! After a round, `Watch` names the paths to keep: each end then writes heartbeats to the other,
//! and reports paths that fail ([`watch`]). All other paths are closed.

mod connect;
mod end;
mod fault;
mod machine;
mod measure;
mod prove;
mod round;
mod watch;

use end::Link;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::control::{FrameError, FrameReader, encode};
use rlaunch_bootstrap::protocol::mesh::{FromProver, NodeEndpoints, ToProver};
use round::{ConnectedRound, PreparedRound};
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use std::{process, thread};
use watch::Watch;

/// Shortest interval between heartbeats: a shorter one would keep a processor busy.
const MIN_BEAT: Duration = Duration::from_millis(100);
/// Size of reads from stdin, in bytes.
const CHUNK: usize = 64 << 10;
/// Time that the main thread has to exit by itself after stdin has closed.
const GRACE: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    let node = std::env::args().nth(1).and_then(|word| word.parse().ok()).map(NodeId);
    let Some(node) = node else {
        eprintln!("rlaunch-prover is started by rlaunch's agent: rlaunch-prover NODE");
        return ExitCode::from(2);
    };
    // The process uses a few hundred KiB in scattered pieces; with transparent huge pages each
    // piece could take 2 MiB on every host. The call fails only on kernels without huge pages.
    let _ = nix::sys::prctl::set_thp_disable(true);
    match run(node) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rlaunch-prover: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Stage of the current round.
enum Stage {
    /// No round is in progress.
    Idle,
    Prepared(PreparedRound),
    Connected(ConnectedRound),
}

/// Runs rounds, and watches paths during and between them, until stdin closes.
fn run(node: NodeId) -> Result<(), PipeError> {
    let agent = AgentInput::open();
    let (mut stage, mut proven, mut watch) = (Stage::Idle, Vec::<Link>::new(), Watch::default());
    loop {
        let input = agent.next(watch.timeout())?;
        report_events(&mut watch)?;
        let frame = match input {
            Input::Frame(frame) => frame,
            Input::Timeout => continue,
            Input::Closed => return Ok(()),
        };
        stage = match (frame, stage) {
            (ToProver::Prove(round), Stage::Idle) => {
                let prepared = PreparedRound::new(round, node);
                send(&FromProver::Prepared(encode_all(&prepared.adverts())?))?;
                Stage::Prepared(prepared)
            }
            (ToProver::Connect(adverts), Stage::Prepared(prepared)) => {
                let connected = prepared.connect(&decode_all(&adverts)?);
                send(&FromProver::Connected)?;
                Stage::Connected(connected)
            }
            (ToProver::Go, Stage::Connected(connected)) => {
                let cost = connected.cost;
                let (links, outcomes) = connected.prove(|| report_events(&mut watch))?;
                proven.extend(links);
                send(&FromProver::RoundDone { outcomes, cost })?;
                Stage::Idle
            }
            (ToProver::Watch { ids, beat_ms }, Stage::Idle) => {
                let beat = Duration::from_millis(beat_ms.into()).max(MIN_BEAT);
                watch = watch.replace(std::mem::take(&mut proven), &ids, beat);
                Stage::Idle
            }
            (frame, _) => return Err(PipeError::Order(name(&frame))),
        };
    }
}

/// Sends the agent the events of watched paths.
fn report_events(watch: &mut Watch) -> Result<(), PipeError> {
    watch.poll().into_iter().try_for_each(|event| send(&FromProver::PathEvent(event)))
}

fn encode_all(adverts: &[NodeEndpoints]) -> Result<Vec<Vec<u8>>, PipeError> {
    let parts = adverts.iter().map(NodeEndpoints::encode);
    parts.collect::<Result<_, _>>().map_err(|error| FrameError::Encode(error).into())
}

fn decode_all(adverts: &[Vec<u8>]) -> Result<Vec<NodeEndpoints>, PipeError> {
    let decode = |bytes: &Vec<u8>| {
        let unreadable = |source| FrameError::Unreadable { length: bytes.len(), source };
        NodeEndpoints::decode(bytes).map_err(unreadable)
    };
    Ok(adverts.iter().map(decode).collect::<Result<_, _>>()?)
}

fn name(frame: &ToProver) -> &'static str {
    match frame {
        ToProver::Prove(_) => "Prove",
        ToProver::Connect(_) => "Connect",
        ToProver::Go => "Go",
        ToProver::Watch { .. } => "Watch",
    }
}

/// Failure of the communication with the agent, after which the prover exits.
#[derive(Debug, thiserror::Error)]
enum PipeError {
    /// A frame cannot be encoded or decoded.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// stdin cannot be read, or stdout cannot be written.
    #[error("cannot use the pipe to the agent: {0}")]
    Pipe(#[from] io::Error),
    /// A frame that the protocol does not allow in the current stage.
    #[error("unexpected frame {0}")]
    Order(&'static str),
}

/// Receiver of the agent's frames, which a thread reads from stdin.
#[derive(Debug)]
struct AgentInput(Receiver<Result<Input, PipeError>>);

/// Result of waiting for a frame.
#[derive(Debug)]
enum Input {
    Frame(ToProver),
    /// No frame arrived before the timeout.
    Timeout,
    /// stdin has closed: the agent is gone.
    Closed,
}

impl AgentInput {
    /// Starts the reading thread. When stdin closes, that thread ends the process after [`GRACE`],
    /// even if the main thread is blocked in an RDMA verb; the kernel then destroys the queue
    /// pairs.
    fn open() -> AgentInput {
        let (sender, receiver) = channel();
        thread::spawn(move || {
            let result = read_frames(|frame| sender.send(Ok(Input::Frame(frame))).is_ok());
            // Fails only if the main thread has dropped the receiver because the process is
            // exiting.
            let _ = sender.send(result.map(|()| Input::Closed));
            thread::sleep(GRACE);
            process::exit(0);
        });
        AgentInput(receiver)
    }

    /// Waits for the next frame, without limit if `timeout` is `None`.
    fn next(&self, timeout: Option<Duration>) -> Result<Input, PipeError> {
        let received = match timeout {
            Some(timeout) => self.0.recv_timeout(timeout),
            None => self.0.recv().map_err(RecvTimeoutError::from),
        };
        match received {
            Ok(input) => input,
            Err(RecvTimeoutError::Timeout) => Ok(Input::Timeout),
            Err(RecvTimeoutError::Disconnected) => Ok(Input::Closed),
        }
    }
}

/// Reads frames until stdin closes or `take` returns false.
fn read_frames(mut take: impl FnMut(ToProver) -> bool) -> Result<(), PipeError> {
    let (mut input, mut frames) = (io::stdin().lock(), FrameReader::default());
    let mut chunk = vec![0; CHUNK];
    loop {
        match input.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(length) => frames.push(&chunk[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        while let Some(frame) = frames.next_frame()? {
            if !take(frame) {
                return Ok(());
            }
        }
    }
}

/// Sends a frame to the agent.
fn send(frame: &FromProver) -> Result<(), PipeError> {
    let mut output = io::stdout().lock();
    output.write_all(&encode(frame)?)?;
    output.flush()?;
    Ok(())
}
