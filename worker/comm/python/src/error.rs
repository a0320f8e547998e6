//! Python exceptions for errors of the communicator.

use crate::interrupt;
use pyo3::PyErr;
use pyo3::exceptions::PyRuntimeError;
use rlaunch_comm::{Cause, CommError, StartError};

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
pub(crate) use raised::{Error, PeerLost, TimedOut};

/// Converts an error of the communicator to the Python exception of its kind.
pub(crate) fn to_exception(error: &CommError) -> PyErr {
    let sentence = error.to_string();
    match &error.cause {
        Cause::Interrupted => {
            interrupt::take_exception().unwrap_or_else(|| Error::new_err(sentence))
        }
        Cause::Lost { .. } | Cause::Left(_) => PeerLost::new_err(sentence),
        Cause::TimedOut { .. } => TimedOut::new_err(sentence),
        _ => Error::new_err(sentence),
    }
}

/// Converts an error of starting the communicator to a Python exception, with its hint.
pub(crate) fn start_exception(error: &StartError) -> PyErr {
    let sentence = match error.hint() {
        Some(hint) => format!("{error}; {hint}"),
        None => error.to_string(),
    };
    Error::new_err(sentence)
}
