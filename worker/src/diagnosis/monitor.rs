//! `rlaunch-worker monitor`: answers questions about this host until the launcher leaves.
//!
//! The agent sends its counters first, which tells the launcher that it has started. Then each
//! [`Inspection`] on stdin is answered by an [`InspectionResult`] on stdout.

use super::{WRITE_TIMEOUT, pipes};
use crate::console::errln;
use crate::network::frames::{self, FrameEvent};
use crate::node::diagnostics;
use crate::node::gpu_usage::GpuMonitor;
use crate::node::inventory::{self, Root};
use rlaunch_bootstrap::inventory::traffic::HostCounters;
use rlaunch_bootstrap::protocol::control::encode;
use rlaunch_bootstrap::protocol::inspection::{Inspection, InspectionResult};
use std::io;
use std::process::ExitCode;
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
    match runtime.and_then(|runtime| runtime.block_on(serve())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            errln!("rlaunch-worker: cannot answer: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> io::Result<()> {
    let host = Host { root: Root::live(), gpus: GpuMonitor::new() };
    inventory::write(&host.answer(&Inspection::Counters));
    host.gpus.await_first();
    let (input, mut output) = pipes()?;
    let (sender, mut events) = mpsc::channel::<FrameEvent<Inspection>>(1);
    tokio::spawn(frames::read_all(input, Vec::new(), sender));
    while let Ok(Some(FrameEvent::Message(question))) = timeout(IDLE_TIMEOUT, events.recv()).await {
        send(&mut output, &host.answer(&question)).await?;
    }
    Ok(())
}

async fn send(output: &mut pipe::Sender, answer: &InspectionResult) -> io::Result<()> {
    let frame = encode(answer).map_err(io::Error::other)?;
    timeout(WRITE_TIMEOUT, output.write_all(&frame)).await?
}

/// Host that questions are about.
struct Host {
    root: Root,
    gpus: GpuMonitor,
}

impl Host {
    fn answer(&self, question: &Inspection) -> InspectionResult {
        match question {
            Inspection::Counters => {
                // The program that reads them ends by itself when it prints to a closed pipe.
                let (gpus, _) = self.gpus.usage();
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

    #[test]
    fn only_counters_are_answered_without_ranks() {
        let host = Host { root: Root::live(), gpus: GpuMonitor::new() };
        let counters = host.answer(&Inspection::Counters);
        assert!(matches!(counters, InspectionResult::Counters(_)), "{counters:?}");
        assert!(matches!(host.answer(&Inspection::Usage), InspectionResult::Failed(_)));
    }
}
