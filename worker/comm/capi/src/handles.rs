//! Communicators and requests, as C holds them.
#![expect(non_camel_case_types, reason = "they are C's")]

use crate::arguments::given;
use crate::errors::{Failure, call};
use crate::types::rl_result;
use rlaunch_comm::Communicator;
use rlaunch_comm::raw::Pending;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The ranks of a job, or some of them.
#[derive(Debug)]
pub struct rl_comm {
    pub(crate) comm: Arc<Communicator>,
    begun: Mutex<Begun>,
}

/// Requests that may be under way when their communicator is finalized.
#[derive(Debug, Default)]
struct Begun {
    requests: Vec<Weak<rl_request>>,
    /// At so many, those that are over are forgotten.
    full: usize,
}

/// Something that goes on.
#[derive(Debug)]
pub struct rl_request {
    /// `None` after its communicator was finalized.
    pending: Mutex<Option<Pending>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl rl_comm {
    fn new(comm: Communicator) -> *mut rl_comm {
        Box::into_raw(Box::new(rl_comm { comm: Arc::new(comm), begun: Mutex::default() }))
    }

    /// The rank and how many there are.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.comm.rank(), self.comm.size())
    }

    /// A handle for what was begun.
    pub(crate) fn hand_out(&self, pending: Pending) -> *mut rl_request {
        let request = Arc::new(rl_request { pending: Mutex::new(Some(pending)) });
        let mut begun = lock(&self.begun);
        if begun.requests.len() >= begun.full {
            begun.requests.retain(|request| request.strong_count() > 0);
            begun.full = (2 * begun.requests.len()).max(16);
        }
        begun.requests.push(Arc::downgrade(&request));
        Arc::into_raw(request).cast_mut()
    }
}

impl rl_request {
    /// What goes on, unless it was given up.
    pub(crate) fn pending(&self) -> MutexGuard<'_, Option<Pending>> {
        lock(&self.pending)
    }
}

/// Gives up what was begun and has not ended: nobody waits for it any more.
impl Drop for rl_comm {
    fn drop(&mut self) {
        let begun = self.begun.get_mut().unwrap_or_else(PoisonError::into_inner);
        for request in begun.requests.iter().filter_map(Weak::upgrade) {
            drop(request.pending().take());
        }
    }
}

/// Makes a communicator of all ranks of the job, or of this process alone if nobody launched it.
/// Waits until all ranks have called it.
#[unsafe(no_mangle)]
pub extern "C" fn rl_init(comm: Option<&mut MaybeUninit<*mut rl_comm>>) -> rl_result {
    call(|| {
        let comm = given(comm, "comm")?;
        comm.write(std::ptr::null_mut());
        comm.write(rl_comm::new(Communicator::from_env().map_err(Failure::Start)?));
        Ok(())
    })
}

/// Gives the communicator up, and with it what was begun and is not over. Its requests, which rl_wait
/// still takes, end with RL_GIVEN_UP. No other thread may use the communicator meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_finalize(comm: *mut rl_comm) -> rl_result {
    call(|| {
        if comm.is_null() {
            return Err(Failure::argument("comm is NULL"));
        }
        // SAFETY: C got it from `rl_comm::new` and does not use it any more.
        drop(unsafe { Box::from_raw(comm) });
        Ok(())
    })
}

/// Ends the job: rlaunch says `why`, in UTF-8, and ends all ranks, this one included. The end takes
/// a moment, so it returns: RL_ABORTED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_abort(comm: Option<&rl_comm>, why: *const c_char) -> rl_result {
    call(|| {
        if why.is_null() {
            return Err(Failure::argument("why is NULL"));
        }
        // SAFETY: C gives a string that ends with a zero, and keeps it for the call.
        let why = unsafe { CStr::from_ptr(why) };
        Err(given(comm, "comm")?.comm.abort(&why.to_string_lossy()).into())
    })
}

/// Makes a communicator of those ranks that give the same colour, ordered by key and then by their
/// rank here. Every rank has to call it. It is finalized like the first.
#[unsafe(no_mangle)]
pub extern "C" fn rl_split(
    comm: Option<&rl_comm>,
    colour: u32,
    key: i64,
    part: Option<&mut MaybeUninit<*mut rl_comm>>,
) -> rl_result {
    call(|| {
        let part = given(part, "part")?;
        part.write(std::ptr::null_mut());
        part.write(rl_comm::new(given(comm, "comm")?.comm.split(colour, key)?));
        Ok(())
    })
}

fn number(
    comm: Option<&rl_comm>,
    (number, name): (Option<&mut MaybeUninit<usize>>, &str),
    of: impl FnOnce(&Communicator) -> usize,
) -> rl_result {
    call(|| {
        given(number, name)?.write(of(&given(comm, "comm")?.comm));
        Ok(())
    })
}

/// This process's number, from 0.
#[unsafe(no_mangle)]
pub extern "C" fn rl_rank(
    comm: Option<&rl_comm>,
    rank: Option<&mut MaybeUninit<usize>>,
) -> rl_result {
    number(comm, (rank, "rank"), Communicator::rank)
}

/// How many ranks there are.
#[unsafe(no_mangle)]
pub extern "C" fn rl_size(
    comm: Option<&rl_comm>,
    size: Option<&mut MaybeUninit<usize>>,
) -> rl_result {
    number(comm, (size, "size"), Communicator::size)
}

/// This process's number among the ranks of its node.
#[unsafe(no_mangle)]
pub extern "C" fn rl_local_rank(
    comm: Option<&rl_comm>,
    rank: Option<&mut MaybeUninit<usize>>,
) -> rl_result {
    number(comm, (rank, "rank"), Communicator::local_rank)
}

/// How many ranks its node has.
#[unsafe(no_mangle)]
pub extern "C" fn rl_local_size(
    comm: Option<&rl_comm>,
    size: Option<&mut MaybeUninit<usize>>,
) -> rl_result {
    number(comm, (size, "size"), Communicator::local_size)
}
