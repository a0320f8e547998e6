//! The reach of a change: which crates, and which tests on hosts and guests, are worth running
//! after some files changed. Nothing here runs anything.
//!
//! | file | what |
//! |---|---|
//! | `changes` | changed files, from git |
//! | `crates`, `readers` | crates that files are compiled into, or that read them |
//! | `table`, `selection` | tests on hosts and guests that cover a file; sets of such tests |
//! | `fuzz` | fuzz targets that run a file |
//! | `choice` | all of this together |

mod changes;
mod choice;
mod crates;
mod fuzz;
mod paths;
mod readers;
mod selection;
mod table;

#[cfg(test)]
mod rot;
#[cfg(test)]
mod tests;

pub(crate) use changes::{changed_files, head, note_passed};
pub(crate) use choice::Reach;
pub(crate) use fuzz::fuzz_targets_changed;
