//! What a host spends its time on, and so what limits it.

use rlaunch_copy::control::Limit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time of all threads together, by what they waited for or did.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Waiting for the host before.
    upstream: AtomicU64,
    /// Waiting for the host after to take bytes, or the wire to it.
    wire: AtomicU64,
    disk: AtomicU64,
    /// Hashing, encrypting and decrypting.
    cpu: AtomicU64,
}

/// Times that a [`Meter`] had at one moment, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    upstream: u64,
    wire: u64,
    disk: u64,
    cpu: u64,
}

/// Least time that counts as waiting, in nanoseconds.
const NOTHING: u64 = 1_000_000;

impl Meter {
    pub(crate) fn upstream(&self, time: Duration) {
        add(&self.upstream, time);
    }

    pub(crate) fn wire(&self, time: Duration) {
        add(&self.wire, time);
    }

    pub(crate) fn disk(&self, time: Duration) {
        add(&self.disk, time);
    }

    pub(crate) fn cpu(&self, time: Duration) {
        add(&self.cpu, time);
    }

    pub(crate) fn read(&self) -> Times {
        let get = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let (upstream, wire) = (get(&self.upstream), get(&self.wire));
        Times { upstream, wire, disk: get(&self.disk), cpu: get(&self.cpu) }
    }
}

fn add(to: &AtomicU64, time: Duration) {
    // As nanoseconds, 64 bits last for centuries.
    to.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
}

impl Times {
    /// Returns what most of the time since `before` went to. A host that sends but does not receive
    /// is limited by its wire; whether the host after it is slow, that one knows.
    pub(crate) fn limit(self, before: Times, is_source: bool) -> Limit {
        let sending = if is_source { Limit::Wire } else { Limit::Downstream };
        let all = [
            (self.upstream - before.upstream, Limit::Upstream),
            (self.wire - before.wire, sending),
            (self.disk - before.disk, Limit::Disk),
            (self.cpu - before.cpu, Limit::Cpu),
        ];
        let most = all.into_iter().max_by_key(|(time, _)| *time);
        most.filter(|(time, _)| *time >= NOTHING).map_or(Limit::Nothing, |(_, limit)| limit)
    }

    /// Returns what most of the time went to if files were read and hashed, whatever others waited for meanwhile.
    pub(crate) fn limit_of_reading(self, before: Times) -> Limit {
        if self.cpu - before.cpu > self.disk - before.disk { Limit::Cpu } else { Limit::Disk }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_is_the_limit() {
        let meter = Meter::default();
        meter.disk(Duration::from_secs(5));
        let before = meter.read();
        assert_eq!(before.limit(before, true), Limit::Nothing);
        meter.wire(Duration::from_millis(20));
        meter.cpu(Duration::from_millis(10));
        assert_eq!(meter.read().limit(before, true), Limit::Wire);
        assert_eq!(meter.read().limit(before, false), Limit::Downstream);
        assert_eq!(meter.read().limit(Times::default(), true), Limit::Disk);
        meter.upstream(Duration::from_millis(30));
        assert_eq!(meter.read().limit(before, false), Limit::Upstream);
        assert_eq!(meter.read().limit_of_reading(before), Limit::Cpu);
        assert_eq!(meter.read().limit_of_reading(Times::default()), Limit::Disk);
    }
}
