//! `rlaunch-worker monitor`: answers questions about this host until the launcher leaves.
//!
//! The agent sends its counters first, which tells the launcher that it has started. Then each
//! [`Inspection`] on stdin is answered by an [`InspectionResult`] on stdout.

use super::{WRITE_TIMEOUT, pipes};
use crate::console::errln;
use crate::network::frames::{self, FrameEvent};
use crate::node::diagnostics;
use crate::node::inventory::{self, Root};
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
    let root = Root::live();
    inventory::write(&answer(&root, &Inspection::Counters));
    let (input, mut output) = pipes()?;
    let (sender, mut events) = mpsc::channel::<FrameEvent<Inspection>>(1);
    tokio::spawn(frames::read_all(input, Vec::new(), sender));
    while let Ok(Some(FrameEvent::Message(question))) = timeout(IDLE_TIMEOUT, events.recv()).await {
        send(&mut output, &answer(&root, &question)).await?;
    }
    Ok(())
}

async fn send(output: &mut pipe::Sender, answer: &InspectionResult) -> io::Result<()> {
    let frame = encode(answer).map_err(io::Error::other)?;
    timeout(WRITE_TIMEOUT, output.write_all(&frame)).await?
}

fn answer(root: &Root, question: &Inspection) -> InspectionResult {
    match question {
        Inspection::Counters => InspectionResult::Counters(diagnostics::read_traffic(root)),
        Inspection::Usage | Inspection::Stacks { .. } => {
            InspectionResult::Failed("this agent runs no ranks".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_counters_are_answered_without_ranks() {
        let root = Root::live();
        let counters = answer(&root, &Inspection::Counters);
        assert!(matches!(counters, InspectionResult::Counters(_)), "{counters:?}");
        assert!(matches!(answer(&root, &Inspection::Usage), InspectionResult::Failed(_)));
    }
}
