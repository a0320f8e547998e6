//! Python exceptions for errors of the communicator, and for Python's signal handlers, such as that of
//! Ctrl-C, which interrupt waits.
//!
//! Python runs signal handlers only when the interpreter is asked to. A waiting call asks it
//! regularly ([`is_pending`]). If a handler raises an exception, the call ends with that exception
//! ([`take_exception`]).

pub(crate) use raised::{Error, PeerLost, TimedOut};

use pyo3::exceptions::PyRuntimeError;
use pyo3::{PyErr, Python};
use rlaunch_comm::{Cause, CommError, StartError, error_chain};
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

// The macro generates public items, so they are in a module of their own.
mod raised {
    use super::PyRuntimeError;

    pyo3::create_exception!(
        rlaunch,
        Error,
        PyRuntimeError,
        "A call of the communicator failed. The message names the operation, the rank and the cause."
    );
    pyo3::create_exception!(
        rlaunch,
        PeerLost,
        Error,
        "A rank has died or left, or the connection to it has failed."
    );
    pyo3::create_exception!(
        rlaunch,
        TimedOut,
        Error,
        "A call has waited for RLAUNCH_COMM_TIMEOUT seconds. The message names the missing ranks."
    );
}

/// Converts an error of the communicator to the Python exception of its kind.
pub(crate) fn to_exception(error: &CommError) -> PyErr {
    let sentence = error.to_string();
    match &error.cause {
        Cause::Interrupted => take_exception().unwrap_or_else(|| Error::new_err(sentence)),
        Cause::Lost { .. } | Cause::Left(_) => PeerLost::new_err(sentence),
        Cause::TimedOut { .. } => TimedOut::new_err(sentence),
        _ => Error::new_err(sentence),
    }
}

/// Converts an error of starting the communicator to a Python exception, with its causes and its hint.
pub(crate) fn start_exception(error: &StartError) -> PyErr {
    let sentence = match error.hint() {
        Some(hint) => format!("{}; {hint}", error_chain(error)),
        None => error_chain(error),
    };
    Error::new_err(sentence)
}

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
