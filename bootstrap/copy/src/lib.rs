//! Copying of files along a chain of hosts, without sockets, files, clocks or threads.
//!
//! Files are cut into chunks of 1 MiB. A [`Manifest`] lists files with the hashes of their chunks and
//! goes down the chain first. Every host then asks the one before it for the chunks that it lacks,
//! and sends on what it receives at once, so that all links carry data at the same time and each
//! chunk crosses each link at most once.
//!
//! | module | contents |
//! |---|---|
//! | [`chunks`] | hashes, and sets of chunks |
//! | [`manifest`] | what a tree of files contains, checked |
//! | [`patch`] | a few small changes of a tree, which travel without a chain |
//! | [`wire`] | messages between two neighbours of the chain |
//! | [`hop`] | what one host asks for and sends, and when it is done |
//! | [`control`] | messages between the launcher and the programs that copy |

pub mod chunks;
pub mod control;
pub mod hop;
pub mod manifest;
pub mod patch;
pub mod wire;

pub use chunks::{CHUNK, ChunkId, ChunkSet, Hash, hash};
pub use hop::{Hop, Step};
pub use manifest::{ChunkPlace, Entry, Kind, Manifest, ManifestError, RelativePath, Time};
pub use patch::{Difference, Patch, PatchEntry, Put};
pub use wire::{Message, WireError};
