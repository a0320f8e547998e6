//! Tests of the supervisor's transitions, written as scripts.

mod ending;
mod losses;
mod running;
mod script;

use script::{check, check_links};
