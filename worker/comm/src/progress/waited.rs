//! Time for which this process has waited for other ranks. Its agent reads it from a file
//! ([`waited_time`]), for `rlaunch monitor` and for the search for stragglers.

use rlaunch_bootstrap::protocol::rank::WaitRecord;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Shortest time between two writes of the file. A write takes about a microsecond.
const INTERVAL: Duration = Duration::from_millis(100);

/// Time for which the threads of this process have waited, all together.
#[derive(Debug, Default)]
pub(crate) struct WaitedTime {
    micros: AtomicU64,
    /// Time of the last write of the file, in microseconds of the rank's clock.
    written_at: AtomicU64,
    file: OnceLock<File>,
}

impl WaitedTime {
    /// Begins to write the time to a file, which is created.
    pub(crate) fn publish(&self, path: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all_at(&WaitRecord(Duration::ZERO).encode(), 0)?;
        let _ = self.file.set(file);
        Ok(())
    }

    /// Adds a wait from `begin` to `end`, times of the rank's clock.
    pub(crate) fn add(&self, begin: Duration, end: Duration) {
        let waited = micros(end.saturating_sub(begin));
        let sum = self.micros.fetch_add(waited, Ordering::Relaxed) + waited;
        let Some(file) = self.file.get() else { return };
        let (now, last) = (micros(end), self.written_at.load(Ordering::Relaxed));
        if now.saturating_sub(last) < micros(INTERVAL) {
            return;
        }
        self.written_at.store(now, Ordering::Relaxed);
        // Another thread may write an older sum after this one. The next write corrects it.
        let _ = file.write_all_at(&WaitRecord(Duration::from_micros(sum)).encode(), 0);
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_sum_of_all_waits() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("waited-0");
        let at = Duration::from_millis;
        let waited = WaitedTime::default();
        waited.add(at(0), at(50));
        waited.publish(&path).unwrap();
        let published = || WaitRecord::decode(&std::fs::read(&path).unwrap()).unwrap().0;
        assert_eq!(published(), Duration::ZERO);
        waited.add(at(1000), at(1200));
        assert_eq!(published(), at(250));
        // Too soon after the last write.
        waited.add(at(1200), at(1250));
        assert_eq!(published(), at(250));
        waited.add(at(2000), at(2001));
        assert_eq!(published(), at(301));
    }
}
