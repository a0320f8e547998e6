//! Files of one host: what is in a directory that is copied, and what a copy writes.
//!
//! | module | contents |
//! |---|---|
//! | [`walk`] | which files of a directory are copied; of the Hugging Face hub's cache, those of a model |
//! | [`index`] | what files contained when they were last read |
//! | [`kept`] | what copies have put on a host, and what of it nobody uses |
//! | [`hashing`] | a manifest, by several threads |
//! | [`original`] | chunks of the files that a manifest was made of |
//! | [`stage`] | files that are made at the destination |
//! | `unfinished` | names of files that are being made, and their locks |
//!
//! Files are opened, looked at and changed by the crate `rlaunch_files`.

pub mod hashing;
pub mod index;
pub mod kept;
pub mod original;
pub mod stage;
mod unfinished;
pub mod walk;

pub use hashing::{HashError, manifest};
pub use index::Index;
pub use original::{Original, OriginalError, Part};
pub use rlaunch_files::meta::{Meta, Stamp};
use rlaunch_files::{beneath, meta};
pub(crate) use stage::path_beside;
pub use stage::{Finished, Stage, StageError};
pub(crate) use unfinished::staging_name_of;
pub use walk::{Found, FoundKind, How, Walk, WalkError, walk};
