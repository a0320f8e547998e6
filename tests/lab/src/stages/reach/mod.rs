//! The reach of a change: which crates, and which tests on hosts and guests, are worth being run
//! after some files changed.
//!
//! Nothing here runs anything. In reading order: [`changes`] lists the files, [`crates`] and
//! [`readers`] say which crates they are compiled into, [`table`] which tests on hosts and guests
//! are about them, [`fuzz`] which targets feed them.

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
