//! File through which a rank tells its agent how long it has waited for other ranks, in calls of its communicator. A
//! file rather than a message, since a rank must never wait for its agent.

use crate::id::Rank;
use std::time::Duration;

/// Size of the file in bytes: one number of microseconds, in little-endian order.
pub const SIZE: usize = 8;

/// Returns the name of the file, which is in the directory of the rank table.
pub fn file_name(rank: Rank) -> String {
    format!("waited-{rank}")
}

/// Returns the content of the file.
pub fn encode(waited: Duration) -> [u8; SIZE] {
    u64::try_from(waited.as_micros()).unwrap_or(u64::MAX).to_le_bytes()
}

/// Reads the content of the file; `None` if it is not complete.
pub fn decode(content: &[u8]) -> Option<Duration> {
    Some(Duration::from_micros(u64::from_le_bytes(content.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_back() {
        let waited = Duration::from_micros(1_234_567);
        assert_eq!(decode(&encode(waited)), Some(waited));
        assert_eq!(decode(&[1, 2, 3]), None);
        assert_eq!(file_name(Rank(7)), "waited-7");
    }
}
