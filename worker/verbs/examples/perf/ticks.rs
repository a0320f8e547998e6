//! Clock that is cheap to read. On emulated hosts, reading the system's clock takes microseconds.

use std::time::Instant;

/// Timestamp counter of the processor, calibrated by the system's clock.
pub(crate) struct Ticks {
    first: u64,
    started: Instant,
}

impl Ticks {
    pub(crate) fn start() -> Ticks {
        Ticks { started: Instant::now(), first: now() }
    }

    /// Returns the current count of ticks.
    pub(crate) fn now(&self) -> u64 {
        now()
    }

    /// Returns the length of a tick in seconds, measured from the start of this clock until now.
    pub(crate) fn seconds_per_tick(&self) -> f64 {
        let ticks = now().wrapping_sub(self.first).max(1);
        self.started.elapsed().as_secs_f64() / ticks as f64
    }
}

#[cfg(target_arch = "x86_64")]
fn now() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it has no side effects.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Returns nanoseconds since the first call, by the system's clock, which is cheap to read on
/// architectures other than x86-64.
#[cfg(not(target_arch = "x86_64"))]
fn now() -> u64 {
    use std::sync::OnceLock;
    static FIRST: OnceLock<Instant> = OnceLock::new();
    u64::try_from(FIRST.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}
