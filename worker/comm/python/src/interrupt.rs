//! Interruption of waits by Python's signal handlers, such as that of Ctrl-C.
//!
//! Python runs signal handlers only when the interpreter is asked to. A waiting call asks it
//! regularly ([`is_pending`]). If a handler raises an exception, the call ends with that exception
//! ([`take_exception`]).

use pyo3::{PyErr, Python};
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// Shortest time between two checks for signals by one thread. A check attaches the thread to the
/// interpreter, which delays other threads.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

thread_local! {
    static LAST_CHECK: Cell<Option<Instant>> = const { Cell::new(None) };
    static EXCEPTION: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Runs pending signal handlers. Tells whether one of them has raised an exception, which is kept
/// for [`take_exception`].
pub(crate) fn is_pending() -> bool {
    let now = Instant::now();
    if LAST_CHECK.get().is_some_and(|call| now.duration_since(call) < CHECK_INTERVAL) {
        return false;
    }
    LAST_CHECK.set(Some(now));
    #[expect(clippy::redundant_closure_for_method_calls, reason = "the method is of one lifetime")]
    let checked = Python::try_attach(|py| py.check_signals());
    match checked {
        Some(Err(error)) => {
            EXCEPTION.set(Some(error));
            true
        }
        _ => false,
    }
}

/// Takes the exception that a signal handler has raised in this thread.
pub(crate) fn take_exception() -> Option<PyErr> {
    EXCEPTION.take()
}
