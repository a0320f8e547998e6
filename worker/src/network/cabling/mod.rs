//! `rlaunch-worker network`: finds the cables of this host together with other agents, and changes
//! addresses on trial. The messages are those of [`rlaunch_bootstrap::protocol::network`].
//!
//! | file | contents |
//! |---|---|
//! | `host_network.rs` | interfaces of this host, and whether they can send beacons; running `ip` |
//! | `ip_lists.rs` | what `ip` lists, and the words by which it comes back |
//! | `record.rs` | what changes may cost, and how it comes back |
//! | `trial.rs` | changes on trial; the guardian that undoes them if the agent is killed |
//! | `probes.rs` | beacons that find the other end of a cable; probes between new addresses |

mod host_network;
mod ip_lists;
mod probes;
pub(crate) mod record;
pub(crate) mod trial;

use crate::console::errln;
use crate::network::channel::open_stdio;
use crate::network::frames::{self, FrameEvent};
use crate::network::until;
use rlaunch_bootstrap::protocol::control::{HELLO_MAGIC, encode};
use rlaunch_bootstrap::protocol::network::{NetworkOrder, NetworkReply, RollBackReport};
use std::ffi::OsString;
use std::future::Future;
use std::io::{self, PipeWriter};
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use trial::Changes;

/// Maximum duration of a step, whatever the launcher orders.
const MAX_STEP: Duration = Duration::from_secs(60);
/// Maximum time for which changes stay unconfirmed, whatever the launcher orders.
const MAX_TRIAL: Duration = Duration::from_secs(3600);

/// Step that takes time. It borrows nothing from the agent, so that the agent can undo its changes
/// meanwhile.
type Step = Pin<Box<dyn Future<Output = NetworkReply>>>;

/// Obeys the launcher until its end. `word` is `change` if the launcher means to change the
/// network. Returns success unless a change could not be undone.
pub(crate) fn run(word: Option<OsString>) -> ExitCode {
    if word.is_some_and(|word| word == "change") {
        trial::guard(|guardian| serve(true, guardian), trial::undo_after)
    } else {
        serve(false, None)
    }
}

fn serve(will_change: bool, guardian: Option<PipeWriter>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime.and_then(|runtime| runtime.block_on(obey_all(will_change, guardian)));
    match served {
        Ok(report) if report.failed.is_empty() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            errln!("rlaunch-worker: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Reports the network to the launcher and obeys its orders until it ends, this agent is told to end, or the trial's time
/// is up. Then undoes what was not confirmed.
async fn obey_all(will_change: bool, guardian: Option<PipeWriter>) -> io::Result<RollBackReport> {
    let (input, output) = open_stdio(HELLO_MAGIC)?;
    let (sender, mut orders) = mpsc::channel(16);
    tokio::spawn(frames::read_all(input, Vec::new(), sender));
    let mut hangup = signal(SignalKind::hangup())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let network = host_network::read(will_change);
    let changes = Changes::new(network.privilege, guardian);
    let mut agent = CablingAgent { output, changes, revert_at: None, step: None, echo: None };
    agent.reply(&NetworkReply::State(network)).await;
    loop {
        tokio::select! {
            biased;
            _ = hangup.recv() => break,
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            () = until(agent.revert_at) => break,
            order = orders.recv() => match order {
                Some(FrameEvent::Message(order)) => agent.obey(order).await,
                Some(FrameEvent::Closed(_)) | None => break,
            },
            reply = step_ended(&mut agent.step) => {
                agent.step = None;
                agent.reply(&reply).await;
            }
        }
    }
    let report = agent.changes.roll_back();
    if report != RollBackReport::default() {
        agent.reply(&NetworkReply::RolledBack(report.clone())).await;
    }
    Ok(report)
}

/// Waits for the end of a step, for ever without one.
async fn step_ended(step: &mut Option<Step>) -> NetworkReply {
    match step {
        Some(step) => step.await,
        None => std::future::pending().await,
    }
}

/// Agent that carries out the launcher's orders about the network, one at a time.
struct CablingAgent {
    output: pipe::Sender,
    changes: Changes,
    /// Time at which unconfirmed changes are undone.
    revert_at: Option<Instant>,
    step: Option<Step>,
    /// Task that sends back the probes of other agents.
    echo: Option<AbortHandle>,
}

impl CablingAgent {
    async fn obey(&mut self, order: NetworkOrder) {
        match order {
            NetworkOrder::Apply { changes, revert_ms, settle_ms } => {
                if !changes.is_empty() {
                    self.revert_at = Some(Instant::now() + milliseconds(revert_ms).min(MAX_TRIAL));
                }
                match self.changes.apply(&changes, self.revert_at.map(Instant::into_std)) {
                    Ok(()) => {
                        let settled = host_network::settle(changes, step_time(settle_ms));
                        self.step = Some(Box::pin(async { NetworkReply::State(settled.await) }));
                    }
                    Err(failure) => {
                        self.revert_at = None;
                        let report = self.changes.roll_back();
                        self.reply(&NetworkReply::ChangeFailed(failure, report)).await;
                    }
                }
            }
            NetworkOrder::Discover { token, host, interfaces, window_ms } => {
                let heard = probes::exchange_beacons(token, host, interfaces, step_time(window_ms));
                self.step = Some(Box::pin(async { NetworkReply::Heard(heard.await) }));
            }
            NetworkOrder::Probe { token, probes, limit_ms } => {
                self.echo.take().inspect(AbortHandle::abort);
                let echo = tokio::spawn(async move { drop(probes::serve_echo(token).await) });
                self.echo = Some(echo.abort_handle());
                let probed = probes::probe_all(token, probes, step_time(limit_ms));
                self.step = Some(Box::pin(async { NetworkReply::Probed(probed.await) }));
            }
            NetworkOrder::Confirm => {
                self.changes.confirm();
                self.revert_at = None;
                self.reply(&NetworkReply::Confirmed).await;
            }
            NetworkOrder::RollBack => {
                self.step = None;
                self.revert_at = None;
                let report = self.changes.roll_back();
                self.reply(&NetworkReply::RolledBack(report)).await;
            }
        }
    }

    /// Sends a message. The launcher may be gone; then the end of stdin ends the agent. It may also be cut off by the
    /// changes and read no more, which must not keep them from being undone in time.
    async fn reply(&mut self, reply: &NetworkReply) {
        match encode(reply) {
            Ok(frame) => tokio::select! {
                biased;
                _ = self.output.write_all(&frame) => {}
                () = until(self.revert_at) => {}
            },
            Err(error) => errln!("rlaunch-worker: {error}"),
        }
    }
}

fn milliseconds(number: u32) -> Duration {
    Duration::from_millis(u64::from(number))
}

fn step_time(number: u32) -> Duration {
    milliseconds(number).min(MAX_STEP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::protocol::network::Privilege;

    /// A launcher that the changes have cut off reads nothing, and its connection does not end.
    #[tokio::test]
    async fn a_launcher_that_reads_nothing_does_not_keep_changes() {
        let (output, _unread) = pipe::pipe().unwrap();
        output.writable().await.unwrap();
        while output.try_write(&[0; 4096]).is_ok() {}
        let changes = Changes::new(Privilege::Root, None);
        let deadline = Instant::now() + Duration::from_millis(50);
        let revert_at = Some(deadline);
        let mut agent = CablingAgent { output, changes, revert_at, step: None, echo: None };
        let replied = agent.reply(&NetworkReply::Confirmed);
        tokio::time::timeout(Duration::from_secs(60), replied).await.unwrap();
        assert!(Instant::now() >= deadline);
    }
}
