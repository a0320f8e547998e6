//! Images of container engines: what engines have, and images as files that are copied.
//!
//! An engine is asked by its own command, and what it says when it refuses is passed on as it is. `archive` makes files of
//! what an engine saves, and a stream of such files for the engine that loads them.

mod archive;
mod engine;

pub use archive::{load, save};
pub use engine::{Engine, EngineError, engines};
