//! Answers to `rlaunch doctor`: the diagnosis of this host, then, once the launcher has those of all
//! hosts, what this host sees of the others and has of a program
//! ([`rlaunch_bootstrap::protocol::diagnosis`]).
//!
//! | file | contents |
//! |---|---|
//! | `server.rs` | answers to the probes of other agents; datagrams of both |
//! | `probes.rs` | probes of other agents |
//! | `program.rs` | files and libraries of a program |
//! | `monitor.rs` | `rlaunch-worker monitor`: answers to questions about this host |

mod monitor;
mod probes;
mod program;
mod server;

pub(crate) use monitor::monitor;

use crate::console::{self, errln};
use crate::network::channel::open_stdio;
use crate::network::frames::{self, FrameEvent};
use crate::node;
use crate::node::diagnostics::{self, HostState, unix_micros};
use crate::node::inventory::{self, Root};
use crate::ranks::child;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::diagnostics::Counter;
use rlaunch_bootstrap::inventory::net::NetdevKind;
use rlaunch_bootstrap::job::{InterfaceAddress, NodeFacts};
use rlaunch_bootstrap::protocol::control::encode;
use rlaunch_bootstrap::protocol::diagnosis::{Diagnosis, INQUIRY_TIMEOUT, Inquiry, InquiryAnswer};
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

/// Maximum time for which an agent answers others' probes after its own answer. The launcher closes stdin earlier,
/// once every host has answered.
const LINGER: Duration = Duration::from_secs(30);
/// Time limit for looking at a program's files.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for the launcher to read the answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time between two readings of counters.
const MAX_INTERVAL: Duration = Duration::from_secs(5);

/// Implements `rlaunch-worker diagnose [DIR]`: examines this host and answers the launcher's
/// inquiry, or examines a recorded host.
pub(crate) fn diagnose(recorded: Option<OsString>) -> ExitCode {
    if let Some(prefix) = recorded {
        return console::write_message(&of_recorded(&Root::recorded(Path::new(&prefix))));
    }
    child::raise_open_files();
    let state = diagnostics::read(&Root::live());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map(|runtime| runtime.block_on(answer(state))) {
        Ok(code) => code,
        Err(error) => {
            errln!("rlaunch-worker: cannot start to answer: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Describes a recorded host.
fn of_recorded(root: &Root) -> Diagnosis {
    let HostState { inventory, diagnostics, .. } = diagnostics::read(root);
    let facts = NodeFacts {
        hostname: diagnostics.own_name.hostname.clone(),
        uid: diagnostics.uid,
        addresses: usable_addresses(&inventory),
        gpus: u32::try_from(inventory::count_gpus(root)).unwrap_or(u32::MAX),
        ..NodeFacts::default()
    };
    Diagnosis { facts, inventory, diagnostics, probe_port: None }
}

/// Returns the addresses by which other hosts could reach a recorded one.
fn usable_addresses(inventory: &Inventory) -> Vec<InterfaceAddress> {
    let netdevs = inventory.netdevs.iter();
    let netdevs = netdevs.filter(|netdev| netdev.running && netdev.kind != NetdevKind::Loopback);
    let addresses = netdevs.flat_map(|netdev| {
        netdev.addresses.iter().map(|&(address, prefix)| InterfaceAddress {
            interface: netdev.name.clone(),
            address,
            prefix,
        })
    });
    addresses.filter(|own| node::is_usable(own.address)).collect()
}

/// Sends the diagnosis of this host, and answers an inquiry if one comes.
async fn answer(mut state: HostState) -> ExitCode {
    let (known, token) = watch::channel(None);
    let probe_port = server::start(&token);
    // Last, since the launcher compares it with its own clock when it gets the diagnosis.
    state.diagnostics.clock = unix_micros();
    let diagnosis = Diagnosis {
        facts: node::facts(),
        inventory: state.inventory.clone(),
        diagnostics: state.diagnostics.clone(),
        probe_port,
    };
    let code = console::write_message(&diagnosis);
    // Without a pipe for stdin there is no inquiry.
    let Ok((input, mut output)) = open_stdio(&[]) else { return code };
    let (sender, mut events) = mpsc::channel::<FrameEvent<Inquiry>>(1);
    tokio::spawn(frames::read_all(input, Vec::new(), sender));
    let Ok(Some(FrameEvent::Message(inquiry))) = timeout(INQUIRY_TIMEOUT, events.recv()).await
    else {
        return code;
    };
    // Fails only if no probe can be answered, for lack of a port.
    let _ = known.send(Some(inquiry.token));
    let answered = async {
        let answer = inquire(inquiry, state).await;
        let frame = encode(&answer).map_err(io::Error::other)?;
        timeout(WRITE_TIMEOUT, output.write_all(&frame)).await?
    };
    tokio::select! {
        written = answered => if let Err(error) = written {
            errln!("rlaunch-worker: cannot answer: {error}");
            return ExitCode::FAILURE;
        },
        // The launcher has left.
        () = stdin_ended(&mut events) => return code,
    }
    // Others may still send probes.
    let _ = timeout(LINGER, stdin_ended(&mut events)).await;
    code
}

/// Waits until stdin has ended.
async fn stdin_ended(events: &mut mpsc::Receiver<FrameEvent<Inquiry>>) {
    while let Some(FrameEvent::Message(_)) = events.recv().await {}
}

/// Does what an inquiry asks for, all at once.
async fn inquire(inquiry: Inquiry, state: HostState) -> InquiryAnswer {
    let Inquiry { token, probes, program, interval_ms } = inquiry;
    let locked_memory = state.inventory.limits.locked_memory;
    let login = state.login.clone();
    let program = async {
        let inquiry = program?;
        let report = in_thread(move || program::report(&inquiry, &login, locked_memory));
        timeout(PROGRAM_TIMEOUT, report).await.ok()?
    };
    let interval = Duration::from_millis(interval_ms.into()).min(MAX_INTERVAL);
    let (probes, program, (counters, interval_ms)) =
        tokio::join!(probes::probe_all(probes, token), program, count_again(state, interval));
    InquiryAnswer { probes, program, counters, interval_ms }
}

/// Runs work in a thread, so that the probes go on meanwhile. Returns `None` if the work panics.
async fn in_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, result) = oneshot::channel();
    node::in_thread(move || drop(sender.send(work())));
    result.await.ok()
}

/// Reads counters again, this long after the first time. Returns them and the time in between, in
/// milliseconds.
async fn count_again(
    mut state: HostState,
    interval: Duration,
) -> (Vec<(String, Vec<Counter>)>, u32) {
    if interval.is_zero() {
        return (Vec::new(), 0);
    }
    sleep(interval.saturating_sub(state.counted_at.elapsed())).await;
    let counters = diagnostics::read_again(&Root::live(), &mut state.diagnostics);
    let passed = Instant::now().duration_since(state.counted_at);
    (counters, u32::try_from(passed.as_millis()).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
