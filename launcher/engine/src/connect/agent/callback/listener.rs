//! Authentication of incoming connections, and transfers of the agent's file to hosts that request it.
//!
//! A peer has [`AUTH_TIMEOUT`] to identify itself. An agent may connect once, if it proves that it has the
//! key which it announced over SSH. A host that requests the agent's executable by its hash receives the
//! file, which is not secret; only a few hosts receive it at the same time. All other peers are
//! disconnected without an answer. A flood of connections from one address does not displace peers from
//! other addresses.

use crate::connect::agent::host_file::HostFile;
use crate::connect::channel::AgentCallback;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::security::callback::{
    CallbackError, CallbackHello, FetchRequest, FirstMessage, KeyPair, MAX_FIRST_MESSAGE,
    PublicKey, SharedStream,
};
use rlaunch_bootstrap::security::{AdmissionQueue, source_network};
use rlaunch_console::deadline::Deadline;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

/// Time limit for a peer to authenticate. It includes the wait for the agent's announcement, which travels
/// over SSH and may arrive after the agent's TCP connection.
pub(super) const AUTH_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of unauthenticated connections for each address on which the launcher listens.
const MAX_UNAUTHENTICATED: usize = 256;
/// Time limit for a file transfer to wait for a slot, and separately for the transfer itself.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause after a failed accept(2), for example because no file descriptor is left.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Listening sockets, with the tasks that accept their connections. The tasks end when this is dropped.
pub(super) struct CallbackListener {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    listening: Vec<AbortHandle>,
}

struct Shared {
    own: KeyPair,
    auth_timeout: Duration,
    expected: Mutex<HashMap<NodeId, ExpectedAgent>>,
    /// Notified when an agent is added to `expected`.
    expected_changed: watch::Sender<()>,
    served: Mutex<Vec<Arc<HostFile>>>,
    transfers: TransferSlots,
}

/// Agent that has announced its key and has not connected yet.
struct ExpectedAgent {
    key: PublicKey,
    to: oneshot::Sender<AgentCallback>,
}

impl CallbackListener {
    /// Starts to accept connections, whose peers have `auth_timeout` to authenticate.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    pub(super) fn open(
        own: KeyPair,
        listeners: Vec<TcpListener>,
        auth_timeout: Duration,
    ) -> CallbackListener {
        let addresses = listeners.iter().filter_map(|listener| listener.local_addr().ok());
        let addresses = addresses.collect();
        let shared = Arc::new(Shared {
            own,
            auth_timeout,
            expected: Mutex::default(),
            expected_changed: watch::Sender::new(()),
            served: Mutex::default(),
            transfers: TransferSlots::new(),
        });
        let listening = listeners.into_iter();
        let listening =
            listening.map(|l| tokio::spawn(accept_peers(l, shared.clone())).abort_handle());
        let listening = listening.collect();
        CallbackListener { shared, addresses, listening }
    }

    /// Returns the launcher's public key.
    pub(super) fn key(&self) -> PublicKey {
        self.shared.own.public()
    }

    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Permits peers to download `file`, which they request by its SHA-256.
    pub(super) fn serve(&self, file: &Arc<HostFile>) {
        let mut served = self.shared.served.lock().unwrap_or_else(PoisonError::into_inner);
        if !served.iter().any(|other| other.sha256 == file.sha256) {
            served.push(file.clone());
        }
    }

    /// Permits the agent of `node`, which announced the public key `key`, to connect until the returned
    /// value is dropped.
    pub(super) fn expect(&self, node: NodeId, key: PublicKey) -> PendingCallback {
        let (to, called) = oneshot::channel();
        self.shared.expected().insert(node, ExpectedAgent { key, to });
        self.shared.expected_changed.send_replace(());
        PendingCallback { shared: self.shared.clone(), node, called }
    }
}

impl Drop for CallbackListener {
    fn drop(&mut self) {
        self.listening.iter().for_each(AbortHandle::abort);
    }
}

/// Expected connection of an agent. Dropping this withdraws the permission to connect.
pub struct PendingCallback {
    shared: Arc<Shared>,
    node: NodeId,
    called: oneshot::Receiver<AgentCallback>,
}

impl PendingCallback {
    /// Waits for the agent's connection; `None` if the agent is no longer expected. Cancel-safe.
    pub async fn called(&mut self) -> Option<AgentCallback> {
        (&mut self.called).await.ok()
    }
}

impl Drop for PendingCallback {
    fn drop(&mut self) {
        self.shared.expected().remove(&self.node);
    }
}

/// Reason for disconnecting a peer.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    CallbackHello(#[from] CallbackError),
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("the peer closed the connection")]
    Disconnected,
    #[error("the agent of node {0} is already connected")]
    AlreadyConnected(NodeId),
    #[error("there is no file {0}")]
    NoFile(String),
    #[error("too many file transfers are waiting")]
    Busy,
}

/// Accepts connections, and disconnects peers that exceed the limits on those that are not authenticated.
async fn accept_peers(listener: TcpListener, shared: Arc<Shared>) {
    let mut unauthenticated = JoinSet::new();
    let mut admission: AdmissionQueue<AbortHandle> = AdmissionQueue::new(MAX_UNAUTHENTICATED);
    loop {
        let (tcp, address) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!("cannot accept: {error}");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            },
            Some(_) = unauthenticated.join_next() => continue,
        };
        let shared = shared.clone();
        let peer = unauthenticated.spawn(async move {
            if let Err(refusal) = shared.receive(tcp, address.ip()).await {
                tracing::debug!(%address, "refused: {refusal}");
            }
        });
        admission.retain(|peer| !peer.is_finished());
        if let Some(peer) = admission.admit(address.ip(), peer) {
            peer.abort();
        }
    }
}

impl Shared {
    async fn receive(self: Arc<Self>, mut tcp: TcpStream, from: IpAddr) -> Result<(), Refusal> {
        let mut deadline = Deadline::after(self.auth_timeout);
        let late = || Refusal::Io(io::ErrorKind::TimedOut.into());
        let first_message = deadline.run(first_message(&mut tcp)).await.ok_or_else(late)??;
        match first_message {
            FirstMessage::Callback(call) => {
                deadline.run(self.authenticate(tcp, &call)).await.ok_or_else(late)?
            }
            FirstMessage::Fetch(fetch) => {
                let file =
                    self.find_served(&fetch.digest).ok_or(Refusal::NoFile(fetch.digest.clone()))?;
                let transfer = self.transfers.enqueue(from).ok_or(Refusal::Busy)?;
                // Runs as a separate task, since a transfer takes longer than an unauthenticated peer may
                // stay connected.
                tokio::spawn(async move { send(tcp, &file, &fetch, transfer).await });
                Ok(())
            }
        }
    }

    /// Completes the handshake with an agent and passes its connection to the [`PendingCallback`].
    async fn authenticate(&self, mut tcp: TcpStream, call: &CallbackHello) -> Result<(), Refusal> {
        tcp.set_nodelay(true)?;
        let key = self.await_key_of(call.node).await;
        let (answer, stream) = call.answer(&self.own, &key)?;
        tcp.write_all(&answer).await?;
        let secure_stream = SharedStream::new(stream);
        let (mut decrypted, mut received) = (Vec::new(), Vec::with_capacity(4 << 10));
        // A peer that replays a recorded handshake gets this far, but cannot encrypt a packet.
        while decrypted.is_empty() {
            received.clear();
            if tcp.read_buf(&mut received).await? == 0 {
                return Err(Refusal::Disconnected);
            }
            secure_stream.open(&received, &mut decrypted).map_err(CallbackError::from)?;
        }
        let slot = {
            let mut expected = self.expected();
            match expected.get(&call.node) {
                Some(slot) if slot.key == key => expected.remove(&call.node),
                _ => None,
            }
        };
        let called = AgentCallback { tcp, secure_stream, decrypted };
        let already_connected = || Refusal::AlreadyConnected(call.node);
        let slot = slot.ok_or_else(already_connected)?;
        slot.to.send(called).map_err(|_| already_connected())
    }

    /// Waits until the agent of `node` has announced its key, and returns the key.
    async fn await_key_of(&self, node: NodeId) -> PublicKey {
        let mut expected_changed = self.expected_changed.subscribe();
        loop {
            if let Some(key) = self.expected().get(&node).map(|slot| slot.key) {
                return key;
            }
            // Cannot fail: `self` holds the sender.
            let _ = expected_changed.changed().await;
        }
    }

    fn find_served(&self, digest: &str) -> Option<Arc<HostFile>> {
        let served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        served.iter().find(|file| file.sha256.eq_ignore_ascii_case(digest)).cloned()
    }

    fn expected(&self) -> std::sync::MutexGuard<'_, HashMap<NodeId, ExpectedAgent>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends a file once the transfer has a slot.
async fn send(mut tcp: TcpStream, file: &HostFile, fetch: &FetchRequest, transfer: QueuedTransfer) {
    let Ok(Some(_turn)) = timeout(SEND_TIMEOUT, transfer.acquire()).await else {
        return tracing::debug!("cannot send the agent: too many are sent it");
    };
    let sending = async {
        let content = file.payload(false).map_err(io::Error::other)?;
        if fetch.http {
            let length = content.len();
            let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {length}\r\n\r\n");
            tcp.write_all(head.as_bytes()).await?;
        }
        tcp.write_all(&content).await?;
        tcp.shutdown().await?;
        // Waits until the peer has read the whole file and closes the connection.
        while tcp.read(&mut [0; 64]).await? > 0 {}
        io::Result::Ok(())
    };
    match timeout(SEND_TIMEOUT, sending).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("cannot send the agent: {error}"),
        Err(_) => tracing::debug!("cannot send the agent: too slow"),
    }
}

async fn first_message(tcp: &mut TcpStream) -> Result<FirstMessage, Refusal> {
    let mut received = Vec::with_capacity(MAX_FIRST_MESSAGE);
    loop {
        if let Some(message) = FirstMessage::read(&received)? {
            return Ok(message);
        }
        // `FirstMessage::read` has already refused messages longer than `MAX_FIRST_MESSAGE`.
        let mut room =
            (&mut *tcp).take((MAX_FIRST_MESSAGE - received.len().min(MAX_FIRST_MESSAGE)) as u64);
        if room.read_buf(&mut received).await? == 0 {
            return Err(Refusal::Disconnected);
        }
    }
}

/// Maximum number of simultaneous transfers.
const MAX_TRANSFERS: usize = 32;
/// Maximum number of simultaneous transfers to one address; hosts behind a NAT router share an address.
const MAX_PER_ADDRESS: usize = 4;
/// Maximum number of connections that have a transfer or wait for one.
const MAX_QUEUED: usize = 512;
/// Maximum number of connections from one address that have a transfer or wait for one.
const MAX_QUEUED_PER_ADDRESS: usize = 64;

/// Slots for transfers, and the queue of connections that wait for one; clones share both. The hosts that request
/// files are not authenticated and may read slowly; the limits keep them from blocking each other.
#[derive(Clone)]
struct TransferSlots {
    total: Arc<Semaphore>,
    origins: Arc<Mutex<HashMap<IpAddr, AddressSlots>>>,
}

/// Number of connections from one address, and the slots of this address.
struct AddressSlots {
    connections: usize,
    transfers: Arc<Semaphore>,
}

/// Connection that has a transfer or waits for one. Dropping this removes the connection from the queue.
struct QueuedTransfer {
    slots: TransferSlots,
    from: IpAddr,
    transfers: Arc<Semaphore>,
}

impl TransferSlots {
    fn new() -> TransferSlots {
        TransferSlots { total: Arc::new(Semaphore::new(MAX_TRANSFERS)), origins: Arc::default() }
    }

    /// Adds a connection from `address` to the queue; `None` if the queue or the share of the address is
    /// full.
    fn enqueue(&self, address: IpAddr) -> Option<QueuedTransfer> {
        let from = source_network(address);
        let mut origins = self.origins.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = origins.values().map(|origin| origin.connections).sum();
        let own = origins.get(&from).map_or(0, |origin| origin.connections);
        if total >= MAX_QUEUED || own >= MAX_QUEUED_PER_ADDRESS {
            return None;
        }
        let fresh = || AddressSlots {
            connections: 0,
            transfers: Arc::new(Semaphore::new(MAX_PER_ADDRESS)),
        };
        let entry = origins.entry(from).or_insert_with(fresh);
        entry.connections += 1;
        Some(QueuedTransfer { slots: self.clone(), from, transfers: entry.transfers.clone() })
    }
}

impl QueuedTransfer {
    /// Waits for a slot. The slot is occupied until both returned permits are dropped.
    async fn acquire(&self) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
        // The permit of the address is acquired first, so that only a few transfers of an address can wait
        // for a permit of the total.
        let own = self.transfers.clone().acquire_owned().await.ok()?;
        Some((own, self.slots.total.clone().acquire_owned().await.ok()?))
    }
}

impl Drop for QueuedTransfer {
    fn drop(&mut self) {
        let mut origins = self.slots.origins.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(origin) = origins.get_mut(&self.from) {
            origin.connections -= 1;
            if origin.connections == 0 {
                origins.remove(&self.from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u16) -> IpAddr {
        let [high, low] = number.to_be_bytes();
        IpAddr::from([10, 0, high, low])
    }

    /// Returns the slot if one is free within a second; tests with a paused clock wait in virtual time.
    async fn has_turn(
        transfer: &QueuedTransfer,
    ) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
        timeout(Duration::from_secs(1), transfer.acquire()).await.ok().flatten()
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_keeps_no_other_waiting() {
        let transfers = TransferSlots::new();
        let greedy: Vec<QueuedTransfer> =
            (0..MAX_TRANSFERS).filter_map(|_| transfers.enqueue(host(1))).collect();
        let mut held = Vec::new();
        for transfer in &greedy {
            held.extend(has_turn(transfer).await);
        }
        assert_eq!(held.len(), MAX_PER_ADDRESS);
        let other = transfers.enqueue(host(2)).unwrap();
        assert!(has_turn(&other).await.is_some());
        // The next transfer to the greedy address starts when one of its transfers ends.
        held.pop();
        assert!(has_turn(&greedy[MAX_PER_ADDRESS]).await.is_some());
    }

    #[tokio::test]
    async fn connections_that_wait_are_bounded() {
        let transfers = TransferSlots::new();
        let mut queued: Vec<QueuedTransfer> =
            (0..=MAX_QUEUED_PER_ADDRESS).map_while(|_| transfers.enqueue(host(1))).collect();
        assert_eq!(queued.len(), MAX_QUEUED_PER_ADDRESS);
        queued.extend((2..).map_while(|number| transfers.enqueue(host(number))));
        assert_eq!(queued.len(), MAX_QUEUED);
        assert!(transfers.enqueue(host(1)).is_none());
        drop(queued);
        assert!(transfers.enqueue(host(1)).is_some());
        assert!(transfers.origins.lock().unwrap().is_empty(), "the transfer has gone as well");
    }
}
