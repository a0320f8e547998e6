//! Why calls failed: as a number, and in words that stay until the thread's next failure.

use crate::types::*;
use rlaunch_comm::{Cause, CommError, StartError, error_chain};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{self, AssertUnwindSafe};

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An argument makes no sense.
    Argument(String),
    /// The communicator's reason.
    Comm(CommError),
    /// There is no communicator.
    Start(StartError),
    /// The communicator was finalized before the request was done.
    GivenUp,
    /// What a panic said.
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
                "the request was given up when its communicator was finalized".to_owned()
            }
            Failure::Panic(text) => format!("a mistake in rlaunch: {text}"),
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
        // Nothing in C asks for an interruption.
        Cause::Cancelled | Cause::Interrupted | Cause::Withdrawn(_) | Cause::OutOfStep { .. } => {
            RL_GIVEN_UP
        }
        // A forked process has to begin for itself.
        Cause::Start(_) | Cause::Forked => RL_START,
    }
}

thread_local! {
    static LATEST: RefCell<CString> = RefCell::default();
}

/// Runs what a function does. A panic must not reach C, which cannot unwind.
pub(crate) fn call(works: impl FnOnce() -> Result<(), Failure>) -> rl_result {
    let ended = panic::catch_unwind(AssertUnwindSafe(works));
    let Err(failure) = ended.unwrap_or_else(|panic| Err(Failure::Panic(said(&*panic)))) else {
        return RL_OK;
    };
    let text: Vec<u8> = failure.text().bytes().filter(|byte| *byte != 0).collect();
    // A thread at its end has no more use for words.
    let _ = LATEST.try_with(|latest| latest.replace(CString::new(text).unwrap_or_default()));
    failure.code()
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no words").to_owned()
}

/// What went wrong in this thread's latest call that failed, in a sentence, and in a second line
/// what to do about it, if that is known; "" if none has failed. It stays until the thread's next
/// call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn rl_error() -> *const c_char {
    LATEST.try_with(|latest| latest.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The name of a result, as "RL_OK"; "RL_UNKNOWN" if there is none.
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
        assert_eq!(latest(), "a mistake in rlaunch: on purpose");
    }

    #[test]
    fn the_latest_failure_stays_until_the_next() {
        assert_eq!(call(|| Err(Failure::argument("one\0"))), RL_INVALID);
        assert_eq!(call(|| Ok(())), RL_OK);
        assert_eq!(latest(), "one");
        assert_eq!(std::thread::spawn(latest).join().unwrap(), "");
        assert_eq!(call(|| Err(Failure::GivenUp)), RL_GIVEN_UP);
        assert!(latest().contains("given up"));
    }

    #[test]
    fn a_start_that_failed_says_what_to_do() {
        let failure = Failure::Start(StartError::NotLaunched("4".into()));
        assert_eq!(failure.code(), RL_START);
        let text = failure.text();
        assert!(text.starts_with("WORLD_SIZE is 4") && text.contains("\nhint: start it"), "{text}");
    }
}
