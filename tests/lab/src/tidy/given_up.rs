//! Words that were given up, and those in their place.

use super::names::GivenUp;

/// The list.
pub(super) const GIVEN_UP: &[GivenUp] = &[];
