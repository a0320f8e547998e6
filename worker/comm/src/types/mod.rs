//! Types that all other folders use: elements, reduction operations and errors.

pub(crate) mod element;
pub(crate) mod error;
