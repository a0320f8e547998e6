//! Slots for file transfers: a few per address and a number in total, with a bounded queue. The requesting
//! hosts are not authenticated and may read slowly.

use rlaunch_bootstrap::security::admission::source_network;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Upper limit of simultaneous transfers.
const MOST: usize = 32;
/// Upper limit of simultaneous transfers to one address; hosts behind a NAT router share an address.
const MOST_OF_ONE: usize = 4;
/// Upper limit of connections with a transfer or in the queue.
const MOST_WAITING: usize = 512;
/// Upper limit of connections from one address with a transfer or in the queue.
const MOST_WAITING_OF_ONE: usize = 64;

/// Transfers and their queue; clones share them.
#[derive(Clone)]
pub(super) struct Turns {
    total: Arc<Semaphore>,
    origins: Arc<Mutex<HashMap<IpAddr, Origin>>>,
}

/// Connections and slots of one address.
struct Origin {
    connections: usize,
    turns: Arc<Semaphore>,
}

/// Place of a connection in the queue.
pub(super) struct Guest {
    of: Turns,
    from: IpAddr,
    turns: Arc<Semaphore>,
}

impl Turns {
    pub(super) fn new() -> Turns {
        Turns { total: Arc::new(Semaphore::new(MOST)), origins: Arc::default() }
    }

    /// Adds a connection to the queue; `None` if the queue is full.
    pub(super) fn enter(&self, address: IpAddr) -> Option<Guest> {
        let from = source_network(address);
        let mut origins = self.origins.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = origins.values().map(|origin| origin.connections).sum();
        let own = origins.get(&from).map_or(0, |origin| origin.connections);
        if total >= MOST_WAITING || own >= MOST_WAITING_OF_ONE {
            return None;
        }
        let fresh = || Origin { connections: 0, turns: Arc::new(Semaphore::new(MOST_OF_ONE)) };
        let entry = origins.entry(from).or_insert_with(fresh);
        entry.connections += 1;
        Some(Guest { of: self.clone(), from, turns: entry.turns.clone() })
    }
}

impl Guest {
    /// Waits for a slot, which is held until the returned permits are dropped.
    pub(super) async fn turn(&self) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
        // The slot of the address comes first, so that no address has more than a few waiters for a
        // slot of the total.
        let own = self.turns.clone().acquire_owned().await.ok()?;
        Some((own, self.of.total.clone().acquire_owned().await.ok()?))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut origins = self.of.origins.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Returns the slot if there is one right away; paused-clock tests wait in virtual time.
    async fn has_turn(guest: &Guest) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
        timeout(Duration::from_secs(1), guest.turn()).await.ok().flatten()
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_keeps_no_other_waiting() {
        let turns = Turns::new();
        let greedy: Vec<Guest> = (0..MOST).filter_map(|_| turns.enter(host(1))).collect();
        let mut held = Vec::new();
        for guest in &greedy {
            held.extend(has_turn(guest).await);
        }
        assert_eq!(held.len(), MOST_OF_ONE);
        let other = turns.enter(host(2)).unwrap();
        assert!(has_turn(&other).await.is_some());
        // The next transfer to the greedy address starts when one of its own ends.
        held.pop();
        assert!(has_turn(&greedy[MOST_OF_ONE]).await.is_some());
    }

    #[tokio::test]
    async fn connections_that_wait_are_bounded() {
        let turns = Turns::new();
        let mut guests: Vec<Guest> =
            (0..=MOST_WAITING_OF_ONE).map_while(|_| turns.enter(host(1))).collect();
        assert_eq!(guests.len(), MOST_WAITING_OF_ONE);
        guests.extend((2..).map_while(|number| turns.enter(host(number))));
        assert_eq!(guests.len(), MOST_WAITING);
        assert!(turns.enter(host(1)).is_none());
        drop(guests);
        assert!(turns.enter(host(1)).is_some());
        assert!(turns.origins.lock().unwrap().is_empty(), "the guest has gone as well");
    }
}
