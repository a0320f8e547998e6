//! Limits on file transfers: slots per address and in total, and a bounded queue. The hosts that request
//! files are not authenticated and may read slowly; the limits keep them from blocking each other.

use rlaunch_bootstrap::security::admission::source_network;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of simultaneous transfers.
const MAX_TRANSFERS: usize = 32;
/// Maximum number of simultaneous transfers to one address; hosts behind a NAT router share an address.
const MAX_PER_ADDRESS: usize = 4;
/// Maximum number of connections that have a transfer or wait for one.
const MAX_QUEUED: usize = 512;
/// Maximum number of connections from one address that have a transfer or wait for one.
const MAX_QUEUED_PER_ADDRESS: usize = 64;

/// Slots for transfers, and the queue of connections that wait for one; clones share both.
#[derive(Clone)]
pub(super) struct TransferSlots {
    total: Arc<Semaphore>,
    origins: Arc<Mutex<HashMap<IpAddr, AddressSlots>>>,
}

/// Number of connections from one address, and the slots of this address.
struct AddressSlots {
    connections: usize,
    transfers: Arc<Semaphore>,
}

/// Connection that has a transfer or waits for one. Dropping this removes the connection from the queue.
pub(super) struct QueuedTransfer {
    slots: TransferSlots,
    from: IpAddr,
    transfers: Arc<Semaphore>,
}

impl TransferSlots {
    pub(super) fn new() -> TransferSlots {
        TransferSlots { total: Arc::new(Semaphore::new(MAX_TRANSFERS)), origins: Arc::default() }
    }

    /// Adds a connection from `address` to the queue; `None` if the queue or the share of the address is
    /// full.
    pub(super) fn enqueue(&self, address: IpAddr) -> Option<QueuedTransfer> {
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
    pub(super) async fn acquire(&self) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
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
    use std::time::Duration;
    use tokio::time::timeout;

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
