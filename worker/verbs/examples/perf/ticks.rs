//! Time as cheap as it can be read: emulated computers take microseconds for a system clock.

use std::time::Instant;

/// A clock of unknown speed, and when it was started.
pub(crate) struct Ticks {
    first: u64,
    started: Instant,
}

impl Ticks {
    pub(crate) fn start() -> Ticks {
        Ticks { started: Instant::now(), first: now() }
    }

    /// The clock's reading.
    pub(crate) fn now(&self) -> u64 {
        now()
    }

    /// How many seconds a tick takes, by the time since the start.
    pub(crate) fn seconds_per_tick(&self) -> f64 {
        let ticks = now().wrapping_sub(self.first).max(1);
        self.started.elapsed().as_secs_f64() / ticks as f64
    }
}

#[cfg(target_arch = "x86_64")]
fn now() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it changes nothing.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The system's clock in nanoseconds, where reading it is cheap anyway.
#[cfg(not(target_arch = "x86_64"))]
fn now() -> u64 {
    use std::sync::OnceLock;
    static FIRST: OnceLock<Instant> = OnceLock::new();
    u64::try_from(FIRST.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}
