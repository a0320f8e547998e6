//! Types that every part of the communicator uses: elements, operations and errors.

pub(crate) mod element;
pub(crate) mod error;
