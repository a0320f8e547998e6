//! Units of the kernel's numbers.

use nix::unistd::{SysconfVar, sysconf};

/// Units of the numbers in `/proc/stat` and `/proc/PID/stat`.
pub(crate) struct Units {
    pub(crate) ticks_per_second: u64,
    pub(crate) page_size: u64,
}

impl Units {
    /// Asks the C library for them.
    pub(crate) fn of_system() -> Units {
        let read = |name, default| {
            let value = sysconf(name).ok().flatten().and_then(|value| u64::try_from(value).ok());
            value.filter(|value| *value > 0).unwrap_or(default)
        };
        Units {
            ticks_per_second: read(SysconfVar::CLK_TCK, 100),
            page_size: read(SysconfVar::PAGE_SIZE, 4096),
        }
    }
}
