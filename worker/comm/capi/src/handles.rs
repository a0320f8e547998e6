//! Handles of communicators, requests and registered memory; the functions of communicators and of
//! registrations. The crate's documentation has the safety requirements.

#![expect(non_camel_case_types, reason = "they are C's")]

use crate::errors::{Failure, call};
use crate::memory::{non_null, output};
use crate::types::rl_result;
use rlaunch_comm::Communicator;
use rlaunch_comm::raw::{self, Pending, Registration};
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A communicator: a group of ranks that exchange messages. Messages of different communicators
/// never match.
#[derive(Debug)]
pub struct rl_comm {
    pub(crate) comm: Arc<Communicator>,
    open: Mutex<OpenRequests>,
}

/// Requests of a communicator that are in progress. They are cancelled when the communicator is
/// finalized.
#[derive(Debug, Default)]
struct OpenRequests {
    requests: Vec<Weak<rl_request>>,
    /// Number of entries of `requests` at which the entries of freed requests are removed.
    full: usize,
}

/// A nonblocking operation in progress. Freed by rl_wait, rl_cancel, or rl_test when it has
/// completed.
#[derive(Debug)]
pub struct rl_request {
    /// Operation in progress; `None` after the communicator was finalized.
    pending: Mutex<Option<Pending>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl rl_comm {
    fn new(comm: Communicator) -> *mut rl_comm {
        Box::into_raw(Box::new(rl_comm { comm: Arc::new(comm), open: Mutex::default() }))
    }

    pub(crate) fn rank_and_size(&self) -> (usize, usize) {
        (self.comm.rank(), self.comm.size())
    }

    /// Makes a handle for an operation that was started. The functions of [`crate::messages`] free
    /// the handle.
    pub(crate) fn new_request(&self, pending: Pending) -> *mut rl_request {
        let request = Arc::new(rl_request { pending: Mutex::new(Some(pending)) });
        let mut open = lock(&self.open);
        if open.requests.len() >= open.full {
            open.requests.retain(|request| request.strong_count() > 0);
            open.full = (2 * open.requests.len()).max(16);
        }
        open.requests.push(Arc::downgrade(&request));
        Arc::into_raw(request).cast_mut()
    }
}

impl rl_request {
    /// Locks the operation in progress. The operation is `None` if the communicator was finalized.
    pub(crate) fn pending(&self) -> MutexGuard<'_, Option<Pending>> {
        lock(&self.pending)
    }
}

/// Cancels all requests in progress, so that their buffers are not used after [`rl_finalize`].
impl Drop for rl_comm {
    fn drop(&mut self) {
        let open = self.open.get_mut().unwrap_or_else(PoisonError::into_inner);
        for request in open.requests.iter().filter_map(Weak::upgrade) {
            drop(request.pending().take());
        }
    }
}

/// Creates the communicator of all ranks of the job, and waits until all ranks have called it. In a
/// process that rlaunch has not started, the communicator has one rank. On failure *comm is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn rl_init(comm: Option<&mut MaybeUninit<*mut rl_comm>>) -> rl_result {
    call(|| {
        let comm = non_null(comm, "comm")?;
        comm.write(std::ptr::null_mut());
        comm.write(rl_comm::new(Communicator::from_env().map_err(Failure::Start)?));
        Ok(())
    })
}

/// Frees a communicator and cancels its requests in progress: rl_wait, rl_test and rl_cancel still
/// accept their handles, and rl_wait and rl_test return RL_GIVEN_UP for them. No other thread may
/// use the communicator during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_finalize(comm: *mut rl_comm) -> rl_result {
    call(|| {
        if comm.is_null() {
            return Err(Failure::argument("comm is NULL"));
        }
        // SAFETY: the handle comes from `rl_comm::new`, and C does not use it any more.
        drop(unsafe { Box::from_raw(comm) });
        Ok(())
    })
}

/// Ends the job: rlaunch prints `why` (UTF-8) as the cause, and terminates all ranks, this one
/// included. The call returns RL_ABORTED, because the termination takes a moment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_abort(comm: Option<&rl_comm>, why: *const c_char) -> rl_result {
    call(|| {
        if why.is_null() {
            return Err(Failure::argument("why is NULL"));
        }
        // SAFETY: C passes a string that ends with a zero and stays valid during the call.
        let why = unsafe { CStr::from_ptr(why) };
        Err(non_null(comm, "comm")?.comm.abort(&why.to_string_lossy()).into())
    })
}

/// Creates a communicator of the ranks that pass the same `colour`, like MPI_Comm_split. Its ranks
/// are ordered by `key`, and among equal keys by their rank in `comm`. Collective over `comm`. The
/// new communicator has to be freed by rl_finalize; on failure *part is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn rl_split(
    comm: Option<&rl_comm>,
    colour: u32,
    key: i64,
    part: Option<&mut MaybeUninit<*mut rl_comm>>,
) -> rl_result {
    call(|| {
        let part = non_null(part, "part")?;
        part.write(std::ptr::null_mut());
        part.write(rl_comm::new(non_null(comm, "comm")?.comm.split(colour, key)?));
        Ok(())
    })
}

fn number(
    comm: Option<&rl_comm>,
    (number, name): (Option<&mut MaybeUninit<usize>>, &str),
    of: impl FnOnce(&Communicator) -> usize,
) -> rl_result {
    call(|| {
        non_null(number, name)?.write(of(&non_null(comm, "comm")?.comm));
        Ok(())
    })
}

/// Stores the rank of this process, from 0 to size - 1.
#[unsafe(no_mangle)]
pub extern "C" fn rl_rank(
    comm: Option<&rl_comm>,
    rank: Option<&mut MaybeUninit<usize>>,
) -> rl_result {
    number(comm, (rank, "rank"), Communicator::rank)
}

/// Stores the number of ranks.
#[unsafe(no_mangle)]
pub extern "C" fn rl_size(
    comm: Option<&rl_comm>,
    size: Option<&mut MaybeUninit<usize>>,
) -> rl_result {
    number(comm, (size, "size"), Communicator::size)
}

/// Stores the rank of this process among the communicator's ranks on its node, from 0.
#[unsafe(no_mangle)]
pub extern "C" fn rl_local_rank(
    comm: Option<&rl_comm>,
    rank: Option<&mut MaybeUninit<usize>>,
) -> rl_result {
    number(comm, (rank, "rank"), Communicator::local_rank)
}

/// Stores the number of the communicator's ranks on the node of this process.
#[unsafe(no_mangle)]
pub extern "C" fn rl_local_size(
    comm: Option<&rl_comm>,
    size: Option<&mut MaybeUninit<usize>>,
) -> rl_result {
    number(comm, (size, "size"), Communicator::local_size)
}

/// Memory that is registered with the RDMA devices of a communicator.
#[derive(Debug)]
pub struct rl_registration {
    registration: Registration,
}

/// Registers `bytes` bytes at `data` with all RDMA devices of `comm`. This speeds up long messages
/// from and to any part of the memory, which otherwise register it for each message. It has no
/// effect without RDMA. The memory must be readable and writable, and must not be freed or remapped
/// before rl_unregister. On failure *registration is NULL.
///
/// On Linux before 5.12, the whole pages that contain the memory are missing in forked children, so
/// the memory should begin and end at page boundaries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_register(
    comm: Option<&rl_comm>,
    data: *mut c_void,
    bytes: usize,
    registration: Option<&mut MaybeUninit<*mut rl_registration>>,
) -> rl_result {
    call(|| {
        let registration = non_null(registration, "registration")?;
        registration.write(ptr::null_mut());
        let comm = non_null(comm, "comm")?;
        // SAFETY: C guarantees it. The slice is dropped at once.
        let first = unsafe { output(data, bytes, "data") }?.as_mut_ptr();
        // SAFETY: the memory stays valid until rl_unregister, which drops the registration.
        let made = unsafe { raw::register(&comm.comm, (first, bytes, true)) }?;
        registration.write(Box::into_raw(Box::new(rl_registration { registration: made })));
        Ok(())
    })
}

/// Deregisters the memory, which may be freed afterwards, frees the registration, and sets
/// *registration to NULL. Fails with RL_INVALID, without any effect, while a request in progress
/// uses the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_unregister(
    registration: Option<&mut *mut rl_registration>,
) -> rl_result {
    call(|| {
        let handle = non_null(registration, "registration")?;
        if handle.is_null() {
            return Err(Failure::argument("the memory was unregistered already"));
        }
        // SAFETY: the handle comes from `rl_register`, and was not freed yet.
        let made = unsafe { &mut **handle };
        if !made.registration.end() {
            return Err(Failure::argument(
                "the memory is in use: a request on it has not completed",
            ));
        }
        let handle = std::mem::replace(handle, ptr::null_mut());
        // SAFETY: as above, and C's variable is NULL now.
        drop(unsafe { Box::from_raw(handle) });
        Ok(())
    })
}
