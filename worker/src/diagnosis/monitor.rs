//! `rlaunch-worker monitor`: answers questions about this host until the launcher leaves.
//!
//! The agent sends its counters first, which tells the launcher that it has started. Then each
//! [`Inspection`] on stdin is answered by an [`InspectionResult`] on stdout.

use super::WRITE_TIMEOUT;
use crate::console::{self, errln};
use crate::network::channel::open_stdio;
use crate::network::frames::{self, FrameEvent};
use crate::node::diagnostics::{self, GpuMonitor};
use crate::node::inventory::Root;
use rlaunch_bootstrap::inventory::traffic::HostCounters;
use rlaunch_bootstrap::protocol::control::encode;
use rlaunch_bootstrap::protocol::inspection::{Inspection, InspectionResult};
use std::io;
use std::process::{Child, ExitCode};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Time without a question after which the agent ends. A launcher whose host is gone does not close
/// stdin; one that is suspended may come back.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// Implements `rlaunch-worker monitor`.
pub(crate) fn monitor() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.and_then(|runtime| runtime.block_on(serve_readings())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            errln!("rlaunch-worker: cannot answer: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Sends the counters, then answers each question.
async fn serve_readings() -> io::Result<()> {
    let mut host = Host::new();
    console::write_message(&host.answer(&Inspection::Counters));
    host.gpus.await_first();
    let (input, mut output) = open_stdio(&[])?;
    let (sender, mut events) = mpsc::channel::<FrameEvent<Inspection>>(1);
    tokio::spawn(frames::read_all(input, Vec::new(), sender));
    while let Ok(Some(FrameEvent::Message(question))) = timeout(IDLE_TIMEOUT, events.recv()).await {
        send_reading(&mut output, &host.answer(&question)).await?;
    }
    Ok(())
}

async fn send_reading(output: &mut pipe::Sender, answer: &InspectionResult) -> io::Result<()> {
    let frame = encode(answer).map_err(io::Error::other)?;
    timeout(WRITE_TIMEOUT, output.write_all(&frame)).await?
}

/// Host that questions are about.
struct Host {
    root: Root,
    gpus: GpuMonitor,
    /// Programs that read the use of GPUs. Each ends by itself when it prints to a closed pipe.
    programs: Vec<Child>,
}

impl Host {
    fn new() -> Host {
        Host { root: Root::live(), gpus: GpuMonitor::new(), programs: Vec::new() }
    }

    fn answer(&mut self, question: &Inspection) -> InspectionResult {
        match question {
            Inspection::Counters => {
                let (gpus, started) = self.gpus.read_or_start();
                self.programs.extend(started);
                // Nothing else here waits for those that have ended.
                self.programs.retain_mut(|program| matches!(program.try_wait(), Ok(None)));
                let traffic = diagnostics::read_traffic(&self.root);
                InspectionResult::Counters(HostCounters { gpus, ..traffic })
            }
            Inspection::Usage | Inspection::Stacks { .. } | Inspection::Collectives => {
                InspectionResult::Failed("this agent runs no ranks".to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn only_counters_are_answered_without_ranks() {
        let mut host = Host::new();
        let counters = host.answer(&Inspection::Counters);
        assert!(matches!(counters, InspectionResult::Counters(_)), "{counters:?}");
        assert!(matches!(host.answer(&Inspection::Usage), InspectionResult::Failed(_)));
    }

    #[test]
    fn a_program_that_has_ended_is_waited_for() {
        let mut host = Host::new();
        let program = std::process::Command::new("true").spawn().unwrap();
        let pid = program.id();
        host.programs.push(program);
        // A zombie would stay there.
        while Path::new(&format!("/proc/{pid}")).exists() {
            host.answer(&Inspection::Counters);
        }
    }
}
