//! Transitions of the supervisor, as scripts.

mod ending;
mod losses;
mod running;
mod script;

use script::{check, check_links};
