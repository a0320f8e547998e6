//! Questions to the user that are open, during which nothing else is printed.

use std::sync::atomic::{AtomicUsize, Ordering};

static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Question without an answer yet. Dropping it ends the question.
#[derive(Debug)]
pub struct Prompt(());

impl Prompt {
    /// Notes that a question is open.
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

/// Tells whether a question is open.
pub fn is_open() -> bool {
    OPEN.load(Ordering::Relaxed) > 0
}
