//! What Python raises when the communicator fails.

use crate::interrupt;
use pyo3::PyErr;
use pyo3::exceptions::PyRuntimeError;
use rlaunch_comm::{Cause, CommError, StartError};

// What the macro writes is public.
mod raised {
    use super::PyRuntimeError;

    pyo3::create_exception!(
        rlaunch,
        Error,
        PyRuntimeError,
        "The communicator failed; says what was being done, with whom, and why it did not work."
    );
    pyo3::create_exception!(
        rlaunch,
        PeerLost,
        Error,
        "A rank is dead or has left, or the way to it is broken."
    );
    pyo3::create_exception!(
        rlaunch,
        TimedOut,
        Error,
        "RLAUNCH_COMM_TIMEOUT has passed; says who has not answered."
    );
}
pub(crate) use raised::{Error, PeerLost, TimedOut};

/// As Python's exception of the kind that fits.
pub(crate) fn raise(error: &CommError) -> PyErr {
    let sentence = error.to_string();
    match &error.cause {
        Cause::Interrupted => interrupt::raised().unwrap_or_else(|| Error::new_err(sentence)),
        Cause::Lost { .. } | Cause::Left(_) => PeerLost::new_err(sentence),
        Cause::TimedOut { .. } => TimedOut::new_err(sentence),
        _ => Error::new_err(sentence),
    }
}

/// The same for a process that has no communicator, with what to do about it.
pub(crate) fn raise_start(error: &StartError) -> PyErr {
    let sentence = match error.hint() {
        Some(hint) => format!("{error}; {hint}"),
        None => error.to_string(),
    };
    Error::new_err(sentence)
}
