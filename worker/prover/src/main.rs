//! The prover: makes queue pairs to other nodes, proves that they carry, and watches some of them.
//!
//! An agent starts one per job on its node, as `rlaunch-prover NODE`, with the number that peers
//! know the node by. They talk over its stdin and stdout as [`rlaunch_bootstrap::protocol::mesh`] says. It
//! ends with its stdin.

mod connect;
mod conversation;
mod end;
mod fault;
mod link;
mod path;
mod prove;
mod round;
mod turns;
mod watch;
mod workers;

use conversation::{ConversationError, Heard, Inbox, say};
use link::Link;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::control::FrameError;
use rlaunch_bootstrap::protocol::mesh::{FromProver, NodeEndpoints, ToProver};
use round::{Connected, Prepared};
use std::process::ExitCode;
use std::time::Duration;
use watch::Watch;

/// Whoever asks for more would have this do nothing else.
const SHORTEST_BEAT: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    let node = std::env::args().nth(1).and_then(|word| word.parse().ok()).map(NodeId);
    let Some(node) = node else {
        eprintln!("rlaunch-prover is started by rlaunch's agent: rlaunch-prover NODE");
        return ExitCode::from(2);
    };
    // Its few hundred KiB lie scattered, and a huge page for some of them is 2 MiB of every host's.
    // A system that knows no huge pages gives none.
    let _ = nix::sys::prctl::set_thp_disable(true);
    match live(node) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rlaunch-prover: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Where a round is.
enum Stage {
    /// Between rounds.
    Idle,
    Prepared(Prepared),
    Connected(Connected),
}

/// Round after round, and the watch between and beside them, until stdin ends.
fn live(node: NodeId) -> Result<(), ConversationError> {
    let inbox = Inbox::open();
    let (mut stage, mut proven, mut watch) = (Stage::Idle, Vec::<Link>::new(), Watch::default());
    loop {
        let heard = inbox.next(watch.patience())?;
        tell_of(&mut watch)?;
        let frame = match heard {
            Heard::Frame(frame) => frame,
            Heard::Nothing => continue,
            Heard::End => return Ok(()),
        };
        stage = match (frame, stage) {
            (ToProver::Prove(round), Stage::Idle) => {
                let prepared = Prepared::make(round, node);
                say(&FromProver::Prepared(encoded(&prepared.told())?))?;
                Stage::Prepared(prepared)
            }
            (ToProver::Connect(told), Stage::Prepared(prepared)) => {
                let connected = prepared.connect(&decoded(&told)?);
                say(&FromProver::Connected)?;
                Stage::Connected(connected)
            }
            (ToProver::Go, Stage::Connected(connected)) => {
                let cost = connected.cost;
                let (links, outcomes) = connected.prove(|| tell_of(&mut watch))?;
                proven.extend(links);
                say(&FromProver::RoundDone { outcomes, cost })?;
                Stage::Idle
            }
            (ToProver::Watch { ids, beat_ms }, Stage::Idle) => {
                let beat = Duration::from_millis(beat_ms.into()).max(SHORTEST_BEAT);
                watch = watch.these(std::mem::take(&mut proven), &ids, beat);
                Stage::Idle
            }
            (frame, _) => return Err(ConversationError::Order(name(&frame))),
        };
    }
}

/// Tells the agent what has become of watched paths.
fn tell_of(watch: &mut Watch) -> Result<(), ConversationError> {
    watch.look().into_iter().try_for_each(|news| say(&FromProver::PathEvent(news)))
}

fn encoded(told: &[NodeEndpoints]) -> Result<Vec<Vec<u8>>, ConversationError> {
    let parts = told.iter().map(NodeEndpoints::encode);
    parts.collect::<Result<_, _>>().map_err(|error| FrameError::Encode(error).into())
}

fn decoded(told: &[Vec<u8>]) -> Result<Vec<NodeEndpoints>, ConversationError> {
    let decode = |bytes: &Vec<u8>| {
        let unreadable = |source| FrameError::Unreadable { length: bytes.len(), source };
        NodeEndpoints::decode(bytes).map_err(unreadable)
    };
    Ok(told.iter().map(decode).collect::<Result<_, _>>()?)
}

fn name(frame: &ToProver) -> &'static str {
    match frame {
        ToProver::Prove(_) => "Prove",
        ToProver::Connect(_) => "Connect",
        ToProver::Go => "Go",
        ToProver::Watch { .. } => "Watch",
    }
}
