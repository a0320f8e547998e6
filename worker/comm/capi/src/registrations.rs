//! Registration of memory with RDMA devices. The crate's documentation has the safety requirements.
#![expect(non_camel_case_types, reason = "they are C's")]

use crate::arguments::non_null;
use crate::errors::{Failure, call};
use crate::handles::rl_comm;
use crate::memory::output;
use crate::types::rl_result;
use rlaunch_comm::raw::{self, Registration};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

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
