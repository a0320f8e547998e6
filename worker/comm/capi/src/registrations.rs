//! Memory that devices are told of once. Safety: see the crate.
#![expect(non_camel_case_types, reason = "they are C's")]

use crate::arguments::given;
use crate::errors::{Failure, call};
use crate::handles::rl_comm;
use crate::memory::output;
use crate::types::rl_result;
use rlaunch_comm::raw::{self, Registration};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

/// Memory that devices were told of.
#[derive(Debug)]
pub struct rl_registration {
    registration: Registration,
}

/// Tells all RDMA devices of memory that will be sent from and received into again and again, so that
/// they need not be told for each long message. The memory may be read and written, and is not freed
/// or mapped anew before rl_unregister. It is as fast as before where there is no RDMA.
///
/// On Linux before 5.12, forked processes do not have the pages that the memory lies on, not even
/// parts of them that are not registered: there it should begin and end at pages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_register(
    comm: Option<&rl_comm>,
    data: *mut c_void,
    bytes: usize,
    registration: Option<&mut MaybeUninit<*mut rl_registration>>,
) -> rl_result {
    call(|| {
        let registration = given(registration, "registration")?;
        registration.write(ptr::null_mut());
        let comm = given(comm, "comm")?;
        // SAFETY: C's promise. The slice is gone at once.
        let first = unsafe { output(data, bytes, "data") }?.as_mut_ptr();
        // SAFETY: the memory stays until the registration is given back, and dropped by that.
        let made = unsafe { raw::register(&comm.comm, (first, bytes, true)) }?;
        registration.write(Box::into_raw(Box::new(rl_registration { registration: made })));
        Ok(())
    })
}

/// Has devices forget the memory, which may be freed then, and sets the registration to NULL. Fails with
/// RL_INVALID, and changes nothing, while something that was begun sends from or receives into it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rl_unregister(
    registration: Option<&mut *mut rl_registration>,
) -> rl_result {
    call(|| {
        let handle = given(registration, "registration")?;
        if handle.is_null() {
            return Err(Failure::argument("the registration was given back already"));
        }
        // SAFETY: C got it from `rl_register`, and has not given it back.
        let made = unsafe { &mut **handle };
        if !made.registration.end() {
            return Err(Failure::argument("the memory is in use: a request on it is not over"));
        }
        let handle = std::mem::replace(handle, ptr::null_mut());
        // SAFETY: as above, and C has NULL now.
        drop(unsafe { Box::from_raw(handle) });
        Ok(())
    })
}
