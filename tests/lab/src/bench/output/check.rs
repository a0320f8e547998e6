//! Damage of lines on their way to the reader.

use sha2::{Digest, Sha256};
use std::fmt;

/// Length of a line in bytes, with its newline.
pub(super) const LINE: usize = 100;
/// Length of `RR NNNNNNNN `, rank and number, before the dots that fill a line.
const HEAD: usize = 12;

/// Returns the lines of one rank, as its host prints them.
pub(super) fn lines_of(rank: usize, lines: usize) -> Vec<u8> {
    let mut all = Vec::with_capacity(lines * LINE);
    for number in 0..lines {
        all.extend_from_slice(format!("{rank:02} {number:08} ").as_bytes());
        all.resize((number + 1) * LINE - 1, b'.');
        all.push(b'\n');
    }
    all
}

/// Damage of the received output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Damage {
    /// Number of lines that no rank printed.
    torn: usize,
    /// Number of lines that did not arrive whole.
    lost: usize,
    /// Number of ranks for which the lines that arrived whole differ from the printed lines, in
    /// content or order.
    disordered: usize,
}

impl Damage {
    pub(super) fn is_none(self) -> bool {
        self == Damage::default()
    }

    /// Returns the number of lines that are torn or lost, or of ranks whose lines differ otherwise.
    pub(super) fn count(self) -> usize {
        (self.torn + self.lost).max(self.disordered)
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return write!(f, "nothing");
        }
        let Damage { torn, lost, disordered } = self;
        write!(f, "{torn} torn, {lost} lost, {disordered} ranks differ by hash")
    }
}

/// Checks the output of ranks that printed `lines` lines each, tagged with these tags.
pub(super) fn check(arrived: &[u8], tags: &[String], lines: usize) -> Damage {
    let mut damage = Damage::default();
    let mut hashes: Vec<Sha256> = tags.iter().map(|_| Sha256::new()).collect();
    let mut whole = vec![0_usize; tags.len()];
    for line in arrived.split_inclusive(|&byte| byte == b'\n') {
        match source(line, tags) {
            Some((rank, line)) => {
                whole[rank] += 1;
                hashes[rank].update(line);
            }
            None => damage.torn += 1,
        }
    }
    for ((rank, whole), hash) in whole.into_iter().enumerate().zip(hashes) {
        damage.lost += lines.saturating_sub(whole);
        let expected = Sha256::digest(lines_of(rank, lines));
        damage.disordered += usize::from(hash.finalize() != expected);
    }
    damage
}

/// Returns the rank that printed a line, and the line without its tag.
fn source<'a>(line: &'a [u8], tags: &[String]) -> Option<(usize, &'a [u8])> {
    let begins = |(_, tag): &(usize, &String)| line.starts_with(tag.as_bytes());
    tags.iter().enumerate().filter(begins).find_map(|(rank, tag)| {
        let line = &line[tag.len()..];
        let (head, rest) = line.split_at_checked(HEAD).filter(|_| line.len() == LINE)?;
        let (body, end) = rest.split_at(LINE - HEAD - 1);
        let number = head.strip_prefix(format!("{rank:02} ").as_bytes())?;
        let (digits, space) = number.split_at(number.len() - 1);
        let is_whole = digits.iter().all(u8::is_ascii_digit)
            && space == b" "
            && body.iter().all(|&byte| byte == b'.')
            && end == b"\n";
        is_whole.then_some((rank, line))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 20;

    /// Lines of two ranks in turn.
    fn mixed(tags: &[String]) -> Vec<Vec<u8>> {
        let ranks: Vec<Vec<u8>> = (0..2).map(|rank| lines_of(rank, COUNT)).collect();
        let line = |number: usize, rank: usize| {
            let line = &ranks[rank][number * LINE..][..LINE];
            [tags[rank].as_bytes(), line].concat()
        };
        (0..COUNT).flat_map(|number| [line(number, 0), line(number, 1)]).collect()
    }

    #[test]
    fn what_is_wrong_is_counted() {
        for tags in [["", ""], ["[0,a] ", "[1,b] "], ["[0] ", "[1] "]] {
            let tags = tags.map(str::to_owned);
            let lines = mixed(&tags);
            let judge = |lines: &[Vec<u8>]| check(&lines.concat(), &tags, COUNT);
            assert!(judge(&lines).is_none(), "{tags:?}: {}", judge(&lines));
            // The last line is missing.
            let lost = Damage { torn: 0, lost: 1, disordered: 1 };
            assert_eq!(judge(&lines[..lines.len() - 1]), lost);
            // Two lines of one rank have changed places.
            let mut swapped = lines.clone();
            swapped.swap(4, 6);
            assert_eq!(judge(&swapped), Damage { torn: 0, lost: 0, disordered: 1 });
            // One line is inside another.
            let mut torn = lines.clone();
            let (inner, outer) = (torn.remove(5), torn[4].clone());
            torn[4] = [&outer[..30], &inner, &outer[30..]].concat();
            assert_eq!(judge(&torn), Damage { torn: 2, lost: 2, disordered: 2 });
        }
    }
}
