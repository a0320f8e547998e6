//! Memory that is registered with RDMA devices once.
//!
//! Before a device reads or writes memory by itself, the memory must be registered, which pins its
//! pages and takes 50 to 100 µs plus time per MiB. By default every call that sends or receives a
//! long message registers its buffer. Memory that a program reuses can be registered once:
//! [`Communicator::buffer`] allocates registered memory, and Python and C register memory of their
//! own ([`crate::raw::register`]), as `ncclCommRegister` does for NCCL.
//!
//! There is no automatic registration cache. A cache keyed by address must notice every unmapping
//! and remapping of memory, or a device sends from pages that the program no longer uses. To notice
//! this, UCX and libfabric patch `munmap` and similar functions in the running process, or use
//! `userfaultfd`, which many containers forbid. Here a registration lasts only while the memory is
//! guaranteed to stay mapped.

use crate::api::communicator::Communicator;
use crate::progress::wait::Progress;
use crate::types::element::Element;
use crate::types::error::{Cause, CommError, Operation};
use rlaunch_lock::RegionPages;
use rlaunch_sys::Pages;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Elements in memory that is registered with all RDMA devices of this process, so that messages
/// from and to any part of this memory need no registration of their own. Created by
/// [`Communicator::buffer`].
pub struct Registered<T: Element> {
    progress: Arc<Progress>,
    /// `None` only while `drop` runs.
    pages: Option<RegionPages>,
    elements: PhantomData<T>,
}

impl Communicator {
    /// Allocates `length` elements, initially zero, and registers them with all RDMA devices.
    ///
    /// Fails if the memory cannot be allocated, or in a forked child of the process that created
    /// the communicator. On Linux before 5.12 with RDMA, forked children do not inherit the memory,
    /// and are killed if they access it.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let comm = rlaunch_comm::Communicator::from_env()?;
    /// let mut gradients = comm.buffer::<f32>(1 << 20)?;
    /// for _step in 0..100 {
    ///     gradients.fill(1.0);
    ///     comm.broadcast(&mut gradients, 0)?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn buffer<T: Element>(&self, length: usize) -> Result<Registered<T>, CommError> {
        let failed = |cause| CommError { operation: Operation::Register, cause };
        self.check_not_forked().map_err(failed)?;
        let pages = length.checked_mul(T::TYPE.size()).and_then(Pages::zeroed);
        let none = || failed(Cause::Start(format!("cannot allocate {length} elements").into()));
        let pages = pages.ok_or_else(none)?;
        let progress = self.progress.clone();
        let pages = progress
            .engine
            .register_pages(pages, |engine, buffers, region| engine.register(region, buffers));
        Ok(Registered { progress, pages: Some(pages), elements: PhantomData })
    }
}

impl<T: Element> Deref for Registered<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.pages.as_ref().map_or(&[], |pages| bytemuck::cast_slice(pages.bytes()))
    }
}

impl<T: Element> DerefMut for Registered<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.pages.as_mut().map_or(&mut [], |pages| bytemuck::cast_slice_mut(pages.bytes_mut()))
    }
}

impl<T: Element> fmt::Debug for Registered<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered").field("length", &self.len()).finish_non_exhaustive()
    }
}

impl<T: Element> Drop for Registered<T> {
    fn drop(&mut self) {
        if let Some(pages) = self.pages.take() {
            self.progress.engine.unregister_pages(pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::raw;

    #[test]
    fn registered_memory_is_memory() {
        let comm = Communicator::from_env().unwrap();
        let mut buffer = comm.buffer::<u64>(100_000).unwrap();
        assert_eq!(buffer[..], vec![0; 100_000]);
        buffer.fill(7);
        let mut into = comm.buffer::<u64>(100_000).unwrap();
        comm.sendrecv(&buffer, (0, 1), &mut into, (0, 1)).unwrap();
        assert_eq!(into[..], buffer[..]);
        assert!(comm.buffer::<f64>(usize::MAX / 4).is_err());
        assert!(comm.buffer::<u8>(0).unwrap().is_empty());
        drop(comm);
        into.fill(1);
    }

    #[test]
    #[expect(unsafe_code, reason = "what is tested is called by other languages")]
    fn a_registration_ends_once() {
        let comm = Arc::new(Communicator::from_env().unwrap());
        let mut memory = vec![0_u8; 1 << 16];
        let raw = (memory.as_mut_ptr(), memory.len(), true);
        // SAFETY: `memory` outlives the registration, and nothing else accesses it meanwhile.
        let mut registration = unsafe { raw::register(&comm, raw) }.unwrap();
        assert!(registration.end());
        assert!(registration.end());
    }
}
