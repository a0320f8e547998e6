//! Whether the user is being asked something, so that nothing is printed meanwhile.

use std::sync::atomic::{AtomicUsize, Ordering};

static OPEN: AtomicUsize = AtomicUsize::new(0);

/// A question on the terminal that has no answer yet; it ends when this is dropped.
#[derive(Debug)]
pub struct Prompt(());

impl Prompt {
    /// Notes that a question was put.
    pub fn begin() -> Prompt {
        OPEN.fetch_add(1, Ordering::Relaxed);
        Prompt(())
    }
}

impl Drop for Prompt {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a question is open.
pub fn is_open() -> bool {
    OPEN.load(Ordering::Relaxed) > 0
}
