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
//! | `beneath` | opening files below a directory without following links |
//! | `unfinished` | names of files that are being made, and their locks |
//! | `meta` | what the file system says about a file |

mod beneath;
pub mod hashing;
pub mod index;
pub mod kept;
mod meta;
pub mod original;
pub mod stage;
mod unfinished;
pub mod walk;

pub use hashing::{HashError, manifest};
pub use index::Index;
pub use meta::{Meta, Stamp};
pub use original::{Original, OriginalError, Part};
pub use stage::{Finished, Stage, StageError};
pub(crate) use unfinished::staging_name_of;
pub use walk::{Found, FoundKind, How, Walk, WalkError, walk};
