//! State of a PMI-1 connection, and the lines that come on it.

use super::line::{LINE_MAX, block_number};

/// State of a PMI-1 connection.
#[derive(Debug)]
pub(super) struct Pmi1Client {
    pub(super) stage: Stage,
    /// Line whose end has not come yet.
    begun: Vec<u8>,
}

/// Progress of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The client has not yet said which rank it is.
    Stranger,
    /// The client has not begun with MPI, or has ended it.
    Idle {
        /// Local rank.
        local: usize,
    },
    /// An MPI program runs.
    Running {
        /// Local rank.
        local: usize,
        /// Number of the program in the rank's life.
        run: u32,
        /// Pmi1Request that the client is in the middle of.
        busy: Busy,
    },
    /// The client has asked for the end of the job; further lines belong to its message.
    Aborted,
}

/// Pmi1Request that a client is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Busy {
    /// Nothing: the next request may come.
    No,
    /// The client waits for an answer that is not known yet.
    Waiting,
    /// The lines of a spawn block are coming.
    Spawn(SpawnBlock),
}

/// Spawn block: the lines from `mcmd=spawn` to `endcmd`. A client sends one for each program that it
/// wants to start, and waits for an answer only after the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SpawnBlock {
    /// Number of blocks of this request.
    total: u32,
    /// Number of this block, from 1.
    number: u32,
}

impl SpawnBlock {
    /// Takes a line of the block. Returns whether an answer is due when the block ends here, otherwise
    /// `None`.
    pub(super) fn line(&mut self, line: &[u8]) -> Option<bool> {
        if line == b"endcmd" {
            return Some(self.number >= self.total);
        }
        self.total = block_number(line, "totspawns").unwrap_or(self.total);
        self.number = block_number(line, "spawnssofar").unwrap_or(self.number);
        None
    }
}

impl Pmi1Client {
    /// Creates a client.
    pub(super) fn new(stage: Stage) -> Pmi1Client {
        Pmi1Client { stage, begun: Vec::new() }
    }

    /// Takes the next line out of `bytes`, without its end. Returns `Ok(None)` and keeps the bytes if
    /// its end has not come yet. Returns an error if the line is too long.
    pub(super) fn next_line(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, LineTooLong> {
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let part = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
        if self.begun.len() + part.len() > LINE_MAX {
            return Err(LineTooLong);
        }
        self.begun.extend_from_slice(part);
        *bytes = end.and_then(|end| bytes.get(end + 1..)).unwrap_or_default();
        Ok(end.map(|_| std::mem::take(&mut self.begun)))
    }
}

/// Line is longer than [`LINE_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineTooLong;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_in_any_split() {
        let mut client = Pmi1Client::new(Stage::Stranger);
        let mut bytes = &b"one\n\ntw"[..];
        assert_eq!(client.next_line(&mut bytes), Ok(Some(b"one".to_vec())));
        assert_eq!(client.next_line(&mut bytes), Ok(Some(Vec::new())));
        assert_eq!(client.next_line(&mut bytes), Ok(None));
        assert_eq!(bytes, b"");
        let mut bytes = &b"o\n"[..];
        assert_eq!(client.next_line(&mut bytes), Ok(Some(b"two".to_vec())));
    }

    #[test]
    fn a_line_has_a_limit() {
        let mut client = Pmi1Client::new(Stage::Stranger);
        assert_eq!(client.next_line(&mut &[b'x'; LINE_MAX][..]), Ok(None));
        assert_eq!(client.next_line(&mut &b"x"[..]), Err(LineTooLong));
    }

    #[test]
    fn only_the_last_of_several_spawn_blocks_is_answered() {
        let mut first = SpawnBlock::default();
        for line in [&b"nprocs=2"[..], b"totspawns=2", b"spawnssofar=1", b"arg1=endcmd"] {
            assert_eq!(first.line(line), None);
        }
        assert_eq!(first.line(b"endcmd"), Some(false));
        let mut second = SpawnBlock::default();
        assert_eq!(second.line(b"totspawns=2"), None);
        assert_eq!(second.line(b"spawnssofar=2"), None);
        assert_eq!(second.line(b"endcmd"), Some(true));
        assert_eq!(SpawnBlock::default().line(b"endcmd"), Some(true));
    }
}
