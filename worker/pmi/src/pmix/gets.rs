//! Requests for the data of ranks that have not committed yet, which wait in [`Gets`].

use crate::node::ConnectionId;
use crate::sorted_map::{SortedMap, SortedSet};
use std::time::Instant;

/// Rank, and the number of one of the MPI programs that it runs one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    pub(super) run: u32,
    pub(super) rank: u32,
}

/// Request that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) connection: ConnectionId,
    /// Tag for the answer.
    pub(super) tag: u32,
    /// Key that must be there; `None` if the answer is due once the rank has committed.
    pub(super) key: Option<Vec<u8>>,
    /// Time after which the client no longer waits.
    pub(super) deadline: Option<Instant>,
}

/// Requests that wait for data, and the reads of other nodes' data for them.
#[derive(Debug, Default)]
pub(super) struct Gets {
    waiting: SortedMap<Target, Vec<Waiting>>,
    /// Number of requests that wait, by connection.
    counts: SortedMap<ConnectionId, usize>,
    /// Targets whose data is being read, by number of the read.
    reads: SortedMap<u64, Target>,
    reading: SortedSet<Target>,
}

impl Gets {
    /// Returns the number of requests of a connection that wait.
    pub(super) fn count(&self, connection: ConnectionId) -> usize {
        self.counts.get(&connection).copied().unwrap_or(0)
    }

    /// Adds a request.
    pub(super) fn add(&mut self, target: Target, waiting: Waiting) {
        *self.counts.get_or_insert_with(waiting.connection, || 0) += 1;
        self.waiting.get_or_insert_with(target, Vec::new).push(waiting);
    }

    /// Returns all ranks whose data some request waits for.
    pub(super) fn targets(&self) -> Vec<Target> {
        self.waiting.keys().to_vec()
    }

    /// Removes and returns the requests for a rank that `is_done` accepts.
    pub(super) fn take(
        &mut self,
        target: Target,
        is_done: &dyn Fn(&Waiting) -> bool,
    ) -> Vec<Waiting> {
        let Some(waiting) = self.waiting.get_mut(&target) else { return Vec::new() };
        let mut done = Vec::new();
        waiting.retain(|waiting| {
            let is_done = is_done(waiting);
            done.extend(is_done.then(|| waiting.clone()));
            !is_done
        });
        if waiting.is_empty() {
            self.waiting.remove(&target);
        }
        for waiting in &done {
            if let Some(count) = self.counts.get_mut(&waiting.connection) {
                *count -= 1;
            }
        }
        done
    }

    /// Removes and returns the requests whose clients no longer wait.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Waiting> {
        let is_over = |waiting: &Waiting| waiting.deadline.is_some_and(|deadline| deadline <= now);
        let mut expired = Vec::new();
        for target in self.targets() {
            expired.append(&mut self.take(target, &is_over));
        }
        expired
    }

    /// Returns the time at which a client no longer waits.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.waiting.values().flatten().filter_map(|waiting| waiting.deadline).min()
    }

    /// Forgets the requests of a connection.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        for target in self.targets() {
            self.take(target, &|waiting| waiting.connection == connection);
        }
        self.counts.remove(&connection);
    }

    /// Tells whether a rank's data is to be read: some request waits for it, and it is not being read.
    pub(super) fn needs_read(&self, target: Target) -> bool {
        self.waiting.contains_key(&target) && !self.reading.contains_key(&target)
    }

    /// Records that a rank's data is being read.
    pub(super) fn read(&mut self, target: Target, request: u64) {
        self.reads.insert(request, target);
        self.reading.insert(target, ());
    }

    /// Returns the rank whose data has been read; `None` if the read was for something else.
    pub(super) fn finish_read(&mut self, request: u64) -> Option<Target> {
        let target = self.reads.remove(&request)?;
        self.reading.remove(&target);
        Some(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const TARGET: Target = Target { run: 1, rank: 5 };

    fn waiting(connection: u64, deadline: Option<Instant>) -> Waiting {
        Waiting { connection: ConnectionId(connection), tag: 0, key: None, deadline }
    }

    #[test]
    fn requests_are_counted_by_connection() {
        let mut gets = Gets::default();
        gets.add(TARGET, waiting(1, None));
        gets.add(Target { run: 1, rank: 6 }, waiting(1, None));
        gets.add(TARGET, waiting(2, None));
        assert_eq!(gets.count(ConnectionId(1)), 2);
        assert_eq!(gets.take(TARGET, &|_| true).len(), 2);
        assert_eq!(gets.count(ConnectionId(1)), 1);
        gets.forget(ConnectionId(1));
        assert_eq!(gets.targets(), []);
        assert_eq!(gets.count(ConnectionId(1)), 0);
        assert_eq!(gets.count(ConnectionId(2)), 0);
    }

    #[test]
    fn clients_wait_until_their_deadline() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let mut gets = Gets::default();
        gets.add(TARGET, waiting(1, Some(now)));
        gets.add(TARGET, waiting(2, Some(later)));
        gets.add(TARGET, waiting(3, None));
        assert_eq!(gets.next_deadline(), Some(now));
        assert_eq!(gets.expire(now), [waiting(1, Some(now))]);
        assert_eq!(gets.next_deadline(), Some(later));
        assert_eq!(gets.expire(later), [waiting(2, Some(later))]);
        assert_eq!(gets.next_deadline(), None);
    }

    #[test]
    fn a_value_is_read_once_for_all() {
        let mut gets = Gets::default();
        assert!(!gets.needs_read(TARGET));
        gets.add(TARGET, waiting(1, None));
        assert!(gets.needs_read(TARGET));
        gets.read(TARGET, 70);
        assert!(!gets.needs_read(TARGET));
        assert_eq!(gets.finish_read(71), None);
        assert_eq!(gets.finish_read(70), Some(TARGET));
        assert!(gets.needs_read(TARGET));
    }
}
