//! The message that distributes the rank table: the table as JSON, for ranks, and a compact layout
//! of the ranks, for agents.
//!
//! ```text
//! length of the table: u32, little endian    table: JSON    layout: postcard
//! ```
//!
//! Agents read the layout only if MPI programs connect to them, and need no JSON parser for it.

use super::RankTable;
use crate::id::Rank;
use crate::rendezvous::payload::Payload;
use serde::{Deserialize, Serialize};

/// Nodes and programs of a job's ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankLayout {
    /// Nodes, in order of their numbers.
    pub nodes: Vec<NodeRanks>,
    /// First rank of each program except the first, in ascending order.
    pub first_ranks: Vec<Rank>,
}

/// Ranks of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRanks {
    /// Name of the host as the user typed it.
    pub host: String,
    /// Ranks, indexed by local rank.
    pub ranks: Vec<Rank>,
}

/// Error of reading a distributed table.
#[derive(Debug, thiserror::Error)]
pub enum TableMessageError {
    /// The message ends before the table does.
    #[error("the message with the rank table is incomplete")]
    CutOff,
    #[error("the layout of the ranks is invalid: {0}")]
    Layout(#[from] postcard::Error),
}

impl RankLayout {
    /// Makes the layout of a table. `first_ranks` has the first rank of each program except the
    /// first program.
    pub fn new(table: &RankTable, first_ranks: Vec<Rank>) -> RankLayout {
        let empty = |host: &str| NodeRanks { host: host.to_owned(), ranks: Vec::new() };
        let mut nodes: Vec<_> = table.nodes().iter().map(|row| empty(&row.host)).collect();
        let mut rows: Vec<_> = table.ranks().iter().collect();
        rows.sort_by_key(|row| row.local_rank);
        for row in rows {
            if let Some(node) = nodes.get_mut(row.node.index()) {
                node.ranks.push(row.rank);
            }
        }
        RankLayout { nodes, first_ranks }
    }

    /// Returns the index of the program that a rank runs.
    pub fn application_of(&self, rank: Rank) -> usize {
        self.first_ranks.partition_point(|first| *first <= rank)
    }

    /// Encodes the message that distributes a table: its JSON text, and this layout.
    pub fn encode_message(&self, json: &[u8]) -> Result<Vec<u8>, postcard::Error> {
        let mut message = u32::try_from(json.len()).unwrap_or(u32::MAX).to_le_bytes().to_vec();
        message.extend_from_slice(json);
        postcard::to_extend(self, message)
    }
}

/// Message with a rank table, as an agent receives it.
#[derive(Clone, Debug)]
pub struct TableMessage {
    bytes: Vec<u8>,
    /// Offset of the layout in the message, in bytes.
    layout: usize,
}

impl TableMessage {
    /// Length of the field that contains the length of the table, in bytes.
    const HEADER: usize = 4;

    /// Splits a message into table and layout. Fails if the table is incomplete. The layout is not
    /// decoded before [`TableMessage::layout()`].
    pub fn parse(message: &Payload) -> Result<TableMessage, TableMessageError> {
        let bytes = message.to_vec();
        let (header, rest) = bytes.split_first_chunk().ok_or(TableMessageError::CutOff)?;
        let length = u32::from_le_bytes(*header) as usize;
        if rest.len() < length {
            return Err(TableMessageError::CutOff);
        }
        Ok(TableMessage { layout: Self::HEADER + length, bytes })
    }

    /// Returns the table's JSON text.
    pub fn json(&self) -> &[u8] {
        &self.bytes[Self::HEADER..self.layout]
    }

    /// Reads the layout of the ranks.
    pub fn layout(&self) -> Result<RankLayout, TableMessageError> {
        Ok(postcard::from_bytes(&self.bytes[self.layout..])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> RankLayout {
        let node = |host: &str, ranks: &[u32]| NodeRanks {
            host: host.to_owned(),
            ranks: ranks.iter().copied().map(Rank).collect(),
        };
        RankLayout { nodes: vec![node("a", &[0, 2]), node("b", &[1])], first_ranks: vec![Rank(2)] }
    }

    #[test]
    fn a_message_has_the_table_and_the_layout() {
        let message = layout().encode_message(b"{}").unwrap();
        let message = TableMessage::parse(&message.into()).unwrap();
        assert_eq!(message.json(), b"{}");
        assert_eq!(message.layout().unwrap(), layout());
    }

    #[test]
    fn programs_follow_each_other() {
        let programs: Vec<usize> = (0..3).map(|rank| layout().application_of(Rank(rank))).collect();
        assert_eq!(programs, [0, 0, 1]);
    }

    #[test]
    fn messages_that_are_cut_off_are_refused() {
        let message = layout().encode_message(b"{\"version\":4}").unwrap();
        for length in 0..message.len() {
            let cut = TableMessage::parse(&message[..length].to_vec().into());
            assert!(cut.is_err() || cut.unwrap().layout().is_err(), "{length}");
        }
    }
}
