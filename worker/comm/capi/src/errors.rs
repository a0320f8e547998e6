//! Errors of calls. A call returns a number; the text of the error is kept for the thread until its
//! next failure.

use crate::types::*;
use rlaunch_comm::{Cause, CommError, StartError, error_chain};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{self, AssertUnwindSafe};

/// Error of a call.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An argument is invalid.
    Argument(String),
    /// The communicator failed.
    Comm(CommError),
    /// The process could not join the job.
    Start(StartError),
    /// The communicator was finalized before the request completed.
    GivenUp,
    /// A panic with this message, which is a bug in rlaunch.
    Panic(String),
}

impl Failure {
    pub(crate) fn argument(text: impl Into<String>) -> Failure {
        Failure::Argument(text.into())
    }

    fn code(&self) -> rl_result {
        match self {
            Failure::Argument(_) => RL_INVALID,
            Failure::Comm(error) => code(&error.cause),
            Failure::Start(_) => RL_START,
            Failure::GivenUp => RL_GIVEN_UP,
            Failure::Panic(_) => RL_INTERNAL,
        }
    }

    fn text(&self) -> String {
        match self {
            Failure::Argument(text) => text.clone(),
            Failure::Comm(error) => error_chain(error),
            Failure::Start(error) => match error.hint() {
                Some(hint) => format!("{}\nhint: {hint}", error_chain(error)),
                None => error_chain(error),
            },
            Failure::GivenUp => {
                "the request was cancelled when its communicator was finalized".to_owned()
            }
            Failure::Panic(text) => format!("bug in rlaunch: {text}"),
        }
    }
}

impl From<CommError> for Failure {
    fn from(error: CommError) -> Failure {
        Failure::Comm(error)
    }
}

fn code(cause: &Cause) -> rl_result {
    match cause {
        Cause::Lost { .. } => RL_LOST,
        Cause::Left(_) => RL_LEFT,
        Cause::Aborted(_) => RL_ABORTED,
        Cause::TimedOut { .. } => RL_TIMED_OUT,
        Cause::Truncated { .. } => RL_TRUNCATED,
        Cause::NoSuchRank { .. } => RL_NO_SUCH_RANK,
        Cause::BufferLength { .. } | Cause::PartialElement { .. } | Cause::CountMismatch { .. } => {
            RL_LENGTH
        }
        // Interruptions are requested only by the Python module.
        Cause::Cancelled | Cause::Interrupted | Cause::Withdrawn(_) | Cause::OutOfStep { .. } => {
            RL_GIVEN_UP
        }
        // A forked child has to call rl_init itself.
        Cause::Start(_) | Cause::Forked => RL_START,
    }
}

thread_local! {
    static LATEST: RefCell<CString> = RefCell::default();
}

/// Runs the body of an exported function, and keeps the text of its error for [`rl_error`]. Catches
/// panics, because unwinding into C is undefined behaviour.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> rl_result {
    let ended = panic::catch_unwind(AssertUnwindSafe(body));
    let Err(failure) = ended.unwrap_or_else(|panic| Err(Failure::Panic(panic_message(&*panic))))
    else {
        return RL_OK;
    };
    let text: Vec<u8> = failure.text().bytes().filter(|byte| *byte != 0).collect();
    // This fails only in destructors of an ending thread, which cannot read the text any more.
    let _ = LATEST.try_with(|latest| latest.replace(CString::new(text).unwrap_or_default()));
    failure.code()
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("panic without a message").to_owned()
}

/// Returns the error text of the calling thread's latest failed call, in UTF-8: one line, followed
/// by a line "hint: ..." if there is a usual remedy; "" if no call has failed in this thread. The
/// text is valid until the next call of this thread that fails, and must not be freed.
#[unsafe(no_mangle)]
pub extern "C" fn rl_error() -> *const c_char {
    LATEST.try_with(|latest| latest.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the name of a result, like "RL_OK"; "RL_UNKNOWN" for other numbers. The string is
/// static.
#[unsafe(no_mangle)]
pub extern "C" fn rl_result_name(result: rl_result) -> *const c_char {
    name(result).as_ptr()
}

fn name(result: rl_result) -> &'static CStr {
    match result {
        RL_OK => c"RL_OK",
        RL_INVALID => c"RL_INVALID",
        RL_NO_SUCH_RANK => c"RL_NO_SUCH_RANK",
        RL_LENGTH => c"RL_LENGTH",
        RL_TRUNCATED => c"RL_TRUNCATED",
        RL_LOST => c"RL_LOST",
        RL_LEFT => c"RL_LEFT",
        RL_TIMED_OUT => c"RL_TIMED_OUT",
        RL_ABORTED => c"RL_ABORTED",
        RL_GIVEN_UP => c"RL_GIVEN_UP",
        RL_START => c"RL_START",
        RL_INTERNAL => c"RL_INTERNAL",
        _ => c"RL_UNKNOWN",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latest() -> String {
        LATEST.with(|latest| latest.borrow().to_str().unwrap().to_owned())
    }

    #[test]
    fn a_panic_ends_the_call_and_says_what_it_was() {
        assert_eq!(call(|| panic!("on {}", "purpose")), RL_INTERNAL);
        assert_eq!(latest(), "bug in rlaunch: on purpose");
    }

    #[test]
    fn the_latest_failure_stays_until_the_next() {
        assert_eq!(call(|| Err(Failure::argument("one\0"))), RL_INVALID);
        assert_eq!(call(|| Ok(())), RL_OK);
        assert_eq!(latest(), "one");
        assert_eq!(std::thread::spawn(latest).join().unwrap(), "");
        assert_eq!(call(|| Err(Failure::GivenUp)), RL_GIVEN_UP);
        assert!(latest().contains("cancelled"));
    }

    #[test]
    fn a_start_that_failed_says_what_to_do() {
        let failure = Failure::Start(StartError::NotLaunched("4".into()));
        assert_eq!(failure.code(), RL_START);
        let text = failure.text();
        assert!(text.starts_with("WORLD_SIZE is 4") && text.contains("\nhint: start it"), "{text}");
    }
}
