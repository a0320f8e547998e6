//! Last lines of each rank, which the report of a failure quotes.

use rlaunch_bootstrap::id::Rank;
use std::collections::HashMap;

/// Minimum number of bytes that are kept from the end of each rank's output; at most twice as many are kept.
const KEPT: usize = 4 << 10;
/// Maximum number of lines that are quoted.
const LINES: usize = 10;

/// Last bytes that each rank wrote to stderr or, if ranks write only one stream, to that stream.
#[derive(Debug, Default)]
pub struct Tails(HashMap<Rank, Vec<u8>>);

impl Tails {
    pub fn add(&mut self, rank: Rank, data: &[u8]) {
        let tail = self.0.entry(rank).or_default();
        tail.extend_from_slice(&data[data.len().saturating_sub(KEPT)..]);
        if tail.len() > 2 * KEPT {
            tail.drain(..tail.len() - KEPT);
        }
    }

    /// Returns the last lines of a rank, oldest first, without blank lines and colours.
    pub fn lines(&self, rank: Rank) -> Vec<String> {
        let tail = self.0.get(&rank).map(|tail| String::from_utf8_lossy(tail)).unwrap_or_default();
        let lines: Vec<&str> = tail.lines().filter(|line| !line.trim().is_empty()).collect();
        let plain = |line: &&str| anstream::adapter::strip_str(line).to_string();
        lines[lines.len().saturating_sub(LINES)..].iter().map(plain).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_end() {
        let mut tails = Tails::default();
        for n in 0..100_000 {
            tails.add(Rank(1), format!("line {n}\n").as_bytes());
        }
        assert!(tails.0[&Rank(1)].len() <= 2 * KEPT);
        let lines = tails.lines(Rank(1));
        assert_eq!(lines.len(), LINES);
        assert_eq!(lines[LINES - 1], "line 99999");
        assert!(tails.lines(Rank(0)).is_empty());
    }
}
