//! Questions to the user that are not answered yet. No progress line is printed during a question.

use std::sync::atomic::{AtomicUsize, Ordering};

static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Open question to the user. Dropping the value ends the question.
#[derive(Debug)]
pub struct Prompt(());

impl Prompt {
    /// Marks a question as open until the returned value is dropped.
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

/// Tells whether any question to the user is open.
pub fn is_open() -> bool {
    OPEN.load(Ordering::Relaxed) > 0
}
