//! Connections between two neighbours of the chain.
//!
//! A [`Link`] is one or more streams to one neighbour. The first carries messages and chunks, the
//! others chunks alone, where one core does not fill the wire. Each stream begins with the handshake
//! of agents, by which both ends prove that they have the secret of this copy. Over what that has encrypted
//! they tell each other a key for each direction, and go on with records (AES-256-GCM).
//!
//! A neighbour that sends nothing for [`SILENCE`], and takes nothing of what waits for it, is lost.
//! While there is nothing to send, each end sends a [`Message::Beat`](rlaunch_copy::Message::Beat)
//! every [`BEAT`]. Time for which this process stood still does not count.
//!
//! | file | subject |
//! |---|---|
//! | `socket` | TCP, or one end of a pair of sockets with a command at the other |
//! | `handshake` | authentication, and the keys of records |
//! | `record` | messages as encrypted records |
//! | `dial`, `accept` | both ends of making a link |
//! | `pace` | `--limit` |

mod accept;
mod dial;
mod handshake;
mod pace;
#[cfg(test)]
pub(crate) mod proxy;
mod record;
mod socket;
#[cfg(test)]
mod tests;

pub use accept::Acceptor;
pub use dial::{Attempt, Peer, dial, over_command};
pub use handshake::{HandshakeError, Party};
pub use pace::Pace;
pub use record::{Incoming, Payload, Receiver, Sender};

use record::Pool;
use rlaunch_bootstrap::deadline::Deadline;
use rlaunch_copy::WireError;
use socket::Socket;
use std::io;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time after which a neighbour that neither sends nor takes anything is lost.
pub const SILENCE: Duration = Duration::from_secs(20);
/// Time after which an end that has nothing else to send sends a beat.
pub const BEAT: Duration = Duration::from_secs(2);
/// Maximum number of streams of a link.
pub const MAX_STREAMS: u32 = 64;

/// Time for which one call waits in the kernel. A check may come so late, which is less than what counts as
/// proof of a suspension.
const TICK: Duration = Duration::from_millis(250);
/// Planned time between two checks for silence.
const CHECK: Duration = Duration::from_secs(1);

/// Failure of a connection to a neighbour.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// This host cannot listen at any of its addresses.
    #[error("cannot listen at ports {first} to {last}")]
    Listen { first: u16, last: u16, source: io::Error },
    /// No address of the neighbour answers, or another program does.
    #[error("cannot connect to {host}: {}", attempts_text(.tried))]
    Unreachable { host: String, port: u16, tried: Vec<Attempt> },
    /// The neighbour has not connected in time.
    #[error("{host} did not connect to port {port} within {} s", .within.as_secs())]
    NotConnected { host: String, port: u16, within: Duration },
    /// The command that carries bytes to the neighbour cannot be run.
    #[error("cannot run {command:?} to reach {host}")]
    Command { command: String, host: String, source: io::Error },
    /// A connection by way of a command failed in its handshake.
    #[error("cannot connect to {host} by {command:?}")]
    ByCommand { command: String, host: String, source: HandshakeError },
    /// A system call failed.
    #[error("cannot {operation} {host}")]
    Socket { operation: &'static str, host: String, source: io::Error },
    /// The neighbour is lost.
    #[error("{host} has sent nothing for {} s", SILENCE.as_secs())]
    Silent { host: String },
    /// The neighbour's program ended, or something between cut the connection.
    #[error("the connection to {host} ended")]
    Closed { host: String },
    /// A record does not have the tag that its sender must have given it.
    #[error("what came from {host} was altered on the way")]
    Altered { host: String },
    /// A message cannot be encoded or decoded.
    #[error("what came from {host} cannot be read")]
    Wire { host: String, source: WireError },
    /// This end has closed the link.
    #[error("the link was closed")]
    Ended,
}

fn attempts_text(tried: &[Attempt]) -> String {
    let all: Vec<String> =
        tried.iter().map(|attempt| format!("{}: {}", attempt.address, attempt.why)).collect();
    if all.is_empty() { "it has no address".to_owned() } else { all.join(", ") }
}

impl LinkError {
    /// Returns advice to the user about the error, if there is any.
    pub fn hint(&self) -> Option<String> {
        match self {
            LinkError::Unreachable { host, port, .. } => Some(format!(
                "allow TCP to port {port} of {host}: `rlaunch doctor -H {host}` tells what blocks it"
            )),
            LinkError::NotConnected { host, port, .. } => Some(format!(
                "allow TCP from {host} to port {port}: `rlaunch help fw.ports` tells how"
            )),
            LinkError::Listen { .. } => {
                Some("--port-range FIRST-LAST gives other ports to listen at".to_owned())
            }
            LinkError::Altered { .. } => {
                Some("run it again: what has arrived whole is not sent again".to_owned())
            }
            _ => None,
        }
    }
}

/// Connection to a neighbour. Each sender and receiver may have a thread of its own.
#[derive(Debug)]
pub struct Link {
    /// Sending halves, one for each stream.
    pub senders: Vec<Sender>,
    /// Receiving halves, one for each stream.
    pub receivers: Vec<Receiver>,
    pub handle: Handle,
}

/// What all halves of a link have in common.
#[derive(Clone, Debug)]
pub struct Handle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    host: String,
    silence: Mutex<Deadline>,
    ended: AtomicBool,
    sockets: Vec<Arc<Socket>>,
}

impl Link {
    /// Makes a link of streams whose handshakes are done, in their order.
    fn new(host: String, is_plain: bool, streams: Vec<handshake::Stream>) -> Link {
        let deadline = Deadline::after(SILENCE, Instant::now()).checked_every(CHECK);
        let sockets = streams.iter().map(|stream| stream.socket.clone()).collect();
        let (silence, ended) = (Mutex::new(deadline), AtomicBool::new(false));
        let handle = Handle(Arc::new(Shared { host, silence, ended, sockets }));
        let pool = Arc::new(Pool::default());
        let mut link = Link { senders: Vec::new(), receivers: Vec::new(), handle };
        for handshake::Stream { socket, seals, opens } in streams {
            let handle = || link.handle.clone();
            let sender = Sender::new(socket.clone(), seals, handle(), is_plain);
            let receiver = Receiver::new(socket, opens, handle(), is_plain, pool.clone());
            link.senders.push(sender);
            link.receivers.push(receiver);
        }
        link
    }
}

impl Handle {
    /// Returns the neighbour's name.
    pub fn host(&self) -> &str {
        &self.0.host
    }

    /// Closes all streams. Threads that send or receive end with [`LinkError::Ended`].
    pub fn close(&self) {
        self.0.ended.store(true, Ordering::Release);
        for socket in &self.0.sockets {
            // One that the neighbour has closed is closed.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn has_ended(&self) -> bool {
        self.0.ended.load(Ordering::Acquire)
    }

    /// Notes that bytes came from the neighbour, or that it took some.
    fn heard(&self) {
        lock(&self.0.silence).restart(Instant::now());
    }

    /// Fails if the link was closed, or the neighbour has been silent for too long.
    fn check(&self) -> Result<(), LinkError> {
        if self.has_ended() {
            return Err(LinkError::Ended);
        }
        if lock(&self.0.silence).has_expired(Instant::now()) {
            return Err(LinkError::Silent { host: self.0.host.clone() });
        }
        Ok(())
    }

    /// Names the neighbour in an error of a system call.
    fn failed(&self, operation: &'static str, source: io::Error) -> LinkError {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        let host = self.0.host.clone();
        match source.kind() {
            _ if self.has_ended() => LinkError::Ended,
            BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof => {
                LinkError::Closed { host }
            }
            _ => LinkError::Socket { operation, host, source },
        }
    }
}

/// Locks a mutex whose data is whole even if a thread panicked while it held the lock.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
