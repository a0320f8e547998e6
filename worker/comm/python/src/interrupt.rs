//! Ctrl-C while a rank waits.

use pyo3::{PyErr, Python};
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// A thread asks no more often: to ask takes the interpreter from other threads.
const PAUSE: Duration = Duration::from_millis(50);

thread_local! {
    static ASKED: Cell<Option<Instant>> = const { Cell::new(None) };
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Whether a signal has come whose handler raised an exception; it is kept for [`raised`].
pub(crate) fn is_pending() -> bool {
    let now = Instant::now();
    if ASKED.get().is_some_and(|asked| now.duration_since(asked) < PAUSE) {
        return false;
    }
    ASKED.set(Some(now));
    #[expect(clippy::redundant_closure_for_method_calls, reason = "the method is of one lifetime")]
    let checked = Python::try_attach(|py| py.check_signals());
    match checked {
        Some(Err(error)) => {
            RAISED.set(Some(error));
            true
        }
        _ => false,
    }
}

/// What the handler raised.
pub(crate) fn raised() -> Option<PyErr> {
    RAISED.take()
}
