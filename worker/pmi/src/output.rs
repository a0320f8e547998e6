//! Actions that a server asks of its agent, and the names of connections and families.

/// Number of a connection, chosen by the agent and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Process management interface that a rank uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// PMI-1.
    Pmi1,
    /// PMIx.
    Pmix,
}

impl Family {
    /// Returns the family whose clients begin with this byte. PMI-1 clients begin with `cmd=` or `mcmd=`,
    /// PMIx clients with a binary header.
    pub(crate) fn of_first_byte(byte: u8) -> Family {
        match byte {
            b'c' | b'm' => Family::Pmi1,
            _ => Family::Pmix,
        }
    }

    /// Returns the family whose fences are gathers of this name, or `None` if it is another gather.
    pub fn of_gather(name: &str) -> Option<Family> {
        [Family::Pmi1, Family::Pmix].into_iter().find(|family| family.fence() == name)
    }

    /// Returns the name of the gathers that are fences over all ranks.
    pub(crate) fn fence(self) -> String {
        format!("{}:fence", self.prefix())
    }

    /// Returns the beginning of the names and keys that belong to this family.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Family::Pmi1 => "pmi1",
            Family::Pmix => "pmix",
        }
    }
}

/// Action for the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send bytes on a connection. Agents stop reading from a connection whose peer does not take what
    /// was sent: the server answers each request at once and keeps no queue of its own.
    Send(ConnectionId, Vec<u8>),
    /// Close a connection once everything before is sent. Calling
    /// [`Server::closed`](crate::Server::closed) for it is allowed but not necessary.
    Close(ConnectionId),
    /// Let a rank of this node take part in a gather of all ranks of the job. The gathers of a name are
    /// counted: the first that a rank takes part in is the first of each other rank. The agent answers
    /// by [`Server::gathered`](crate::Server::gathered) once all ranks have taken part, or by
    /// [`Server::failed`](crate::Server::failed) if one never will, for example because it has ended.
    Gather {
        /// Number for the answer, equal for all ranks of this node: one answer is enough.
        request: u64,
        local_rank: usize,
        /// Name of the gather, equal for all ranks and at most 255 bytes.
        name: String,
        /// Data of the rank, at most 64 KiB.
        blob: Vec<u8>,
    },
    /// Store a value where every node can read it. Agents keep the order of what a server stores and
    /// reads: once a later [`Output::Get`] of this server for the same key is answered, all nodes read
    /// this value or a newer one.
    Put {
        /// Key, at most 255 bytes.
        key: String,
        /// Value, at most 64 KiB; empty if it is removed.
        value: Vec<u8>,
    },
    /// Read a value that some node has stored. The agent answers by
    /// [`Server::value`](crate::Server::value), or by [`Server::failed`](crate::Server::failed) if it
    /// cannot.
    Get {
        /// Number for the answer.
        request: u64,
        /// Key, at most 255 bytes.
        key: String,
        /// Whether to wait until the key has a value.
        wait: bool,
    },
    /// End the job because a rank asked for it (`MPI_Abort`).
    Abort {
        /// Rank that asked.
        rank: u32,
        /// Exit code for the job, as given by the program.
        code: i32,
        /// Text for the user; may be empty.
        message: String,
    },
    /// Print a text of a rank's MPI library on the standard error of the rank. The library hands such
    /// texts to its process manager and does not print them itself.
    Print {
        /// Rank whose library wants the text printed.
        rank: u32,
        /// Text of at most 4 KiB, before its last line break.
        text: String,
    },
    /// Remove this file in `/dev/shm` when no process of the job is left: the MPI library of a rank has
    /// made it or may make it, and leaves it there if the rank is killed. The text is its name.
    Segment(String),
    /// A rank has connected and said which rank it is.
    Connected(u32, Family),
    /// A rank has called `MPI_Finalize`; until then its exit with code 0 is an error.
    Finalized(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_tells_the_family() {
        assert_eq!(Family::of_first_byte(b'c'), Family::Pmi1);
        assert_eq!(Family::of_first_byte(b'm'), Family::Pmi1);
        assert_eq!(Family::of_first_byte(0), Family::Pmix);
        assert_eq!(Family::of_first_byte(0xff), Family::Pmix);
    }
}
