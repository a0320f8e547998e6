//! Messages between the launcher and the programs that copy, each a line of JSON.
//!
//! A program reads one [`Request`] from its standard input, and writes [`Report`]s to its standard
//! output. The launcher's own child, which is in no job, then reads the [`Report::Listening`] of the
//! ranks that it has to connect to, as the launcher got them.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Secret of one copy, by which its hosts know each other. It is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

/// What the launcher asks of a program that copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// 64 hexadecimal digits.
    pub secret: Secret,
    /// Names of the ranks' hosts as the user knows them, for messages and for folders of a fetch.
    pub hosts: Vec<String>,
    /// Whether chunks are sent without encryption. All else is encrypted, the hashes by which chunks
    /// are checked included.
    pub plain: bool,
    /// Number of connections between two hosts.
    pub streams: u32,
    /// Directory that files go to. `~/` and relative paths are below the home directory.
    pub destination: String,
    /// Whether both ends read their files again and compare.
    pub verify: bool,
    /// Bytes per second that a host sends at most.
    pub limit: Option<u64>,
    /// Whether extended attributes are copied.
    pub xattrs: bool,
    pub role: Role,
}

/// What a program that copies has to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Receive, and send on to the next rank.
    Relay,
    /// Send these files and directories.
    Source { paths: Vec<String> },
}

/// What a program that copies tells the launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The rank can be connected to.
    Listening { rank: u32, addresses: Vec<IpAddr>, port: u16 },
    /// Bytes so far.
    Progress { rank: u32, received: u64, written: u64, total: u64, waits_for: Limit },
    /// All files are there.
    Done {
        rank: u32,
        files: u64,
        bytes: u64,
        /// Bytes that came over the network.
        received: u64,
        /// Bytes that were there before.
        unchanged: u64,
        seconds: f64,
        /// Directory that the files are in.
        root: String,
    },
    /// The rank cannot go on.
    Failed { rank: u32, text: String, hint: Option<String> },
    /// Something that the user may want to know.
    Note { rank: u32, text: String },
}

/// What a rank waits for most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    Wire,
    Disk,
    Cpu,
    /// The hosts before it.
    Upstream,
    /// The hosts after it.
    Downstream,
    Nothing,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
