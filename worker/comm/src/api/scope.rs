//! Nonblocking messages and collectives on borrowed memory, and memory that is registered with RDMA
//! devices once.
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

use crate::api::communicator::{Communicator, Received};
use crate::progress::engine::matching::Target;
use crate::progress::engine::{Engine, Owner, SlabKey};
use crate::progress::wait::Progress;
use crate::transport::LocalSlice;
use crate::types::{Cause, CommError, Element, Operation};
use rlaunch_lock::{BufferTable, LendingScope, Memory, RegionPages};
use rlaunch_sys::Pages;
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Nonblocking operation that was begun in a [`Scope`].
#[derive(Debug)]
#[must_use = "the scope waits for it at its end at the latest"]
pub struct Request {
    key: SlabKey,
    operation: Operation,
    /// Element size in bytes.
    size: usize,
}

/// Scope of nonblocking operations. When the scope ends, all its operations have completed or been
/// cancelled, so they may borrow memory that outlives the scope.
#[derive(Debug)]
pub struct Scope<'scope, 'env> {
    pub(crate) comm: &'env Communicator,
    memory: &'scope LendingScope<'scope, 'env, Engine>,
    pending: RefCell<Vec<(SlabKey, Operation)>>,
}

impl Communicator {
    /// Runs `body`, which begins nonblocking operations on memory that outlives the scope, and then
    /// waits for all of these operations.
    ///
    /// Fails if `body` or an operation fails. Operations that are still pending at that point are
    /// cancelled, with the effects of an [interrupted](Communicator::set_interrupt_check) call.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let comm = rlaunch_comm::Communicator::from_env()?;
    /// let (mine, mut theirs) = ([comm.rank() as u64], [0]);
    /// let right = (comm.rank() + 1) % comm.size();
    /// comm.scope(|scope| {
    ///     let sends = scope.isend(&mine, right, 0)?;
    ///     let receives = scope.irecv_any(&mut theirs, 0)?;
    ///     scope.wait(sends)?;
    ///     scope.wait(receives)
    /// })?;
    /// # Ok(()) }
    /// ```
    pub fn scope<'env, R>(
        &'env self,
        body: impl for<'scope> FnOnce(&Scope<'scope, 'env>) -> Result<R, CommError>,
    ) -> Result<R, CommError> {
        self.progress.engine.scope(|memory| {
            let scope = Scope { comm: self, memory, pending: RefCell::default() };
            let result = body(&scope)?;
            scope.finish()?;
            Ok(result)
        })
    }
}

impl<'env> Scope<'_, 'env> {
    /// Begins a nonblocking [`Communicator::send`].
    pub fn isend<T: Element>(
        &self,
        data: &'env [T],
        to: usize,
        tag: u32,
    ) -> Result<Request, CommError> {
        let operation = Operation::Send { to, tag };
        let message = self.comm.envelope(to, tag);
        let message = message.map_err(|cause| CommError { operation, cause })?;
        let from = self.lend_shared(data);
        Ok(self.begin::<T>(operation, |engine, buffers| {
            let key = engine.request(operation);
            engine.send(message, from, Owner::Request(key), buffers);
            key
        }))
    }

    /// Begins a nonblocking [`Communicator::recv`].
    pub fn irecv<T: Element>(
        &self,
        data: &'env mut [T],
        from: usize,
        tag: u32,
    ) -> Result<Request, CommError> {
        self.receive(data, Some(from), tag)
    }

    /// Begins a nonblocking [`Communicator::recv_any`].
    pub fn irecv_any<T: Element>(
        &self,
        data: &'env mut [T],
        tag: u32,
    ) -> Result<Request, CommError> {
        self.receive(data, None, tag)
    }

    fn receive<T: Element>(
        &self,
        data: &'env mut [T],
        from: Option<usize>,
        tag: u32,
    ) -> Result<Request, CommError> {
        let operation = Operation::Receive { from, tag };
        let source = self.comm.source(from, tag);
        let source = source.map_err(|cause| CommError { operation, cause })?;
        let target = Target { into: self.lend_exclusive(data), reduction: None };
        Ok(self.begin::<T>(operation, |engine, buffers| {
            let key = engine.request(operation);
            self.comm.post_receive(engine, source, tag, target, Owner::Request(key), buffers);
            key
        }))
    }

    pub(crate) fn lend_shared<T: Element>(&self, data: &'env [T]) -> LocalSlice {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        LocalSlice::all(self.memory.lend(Memory::Shared(bytes)), bytes.len())
    }

    pub(crate) fn lend_exclusive<T: Element>(&self, data: &'env mut [T]) -> LocalSlice {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(data);
        let length = bytes.len();
        LocalSlice::all(self.memory.lend(Memory::Exclusive(bytes)), length)
    }

    pub(crate) fn begin<T: Element>(
        &self,
        operation: Operation,
        begin: impl FnOnce(&mut Engine, &BufferTable) -> SlabKey,
    ) -> Request {
        let mut guard = self.comm.progress.engine.lock();
        let (engine, buffers) = guard.attach_and_split();
        let key = begin(engine, buffers);
        self.pending.borrow_mut().push((key, operation));
        Request { key, operation, size: T::TYPE.size() }
    }

    /// Waits for an operation and returns its result. The result of a send contains the destination
    /// and the length of the message.
    #[expect(clippy::needless_pass_by_value, reason = "it is waited for once")]
    pub fn wait(&self, request: Request) -> Result<Received, CommError> {
        let Request { key, operation, size } = request;
        self.comm.check_not_forked().map_err(|cause| CommError { operation, cause })?;
        self.pending.borrow_mut().retain(|(pending, _)| *pending != key);
        let mut guard = self.comm.progress.engine.lock();
        let status = self.comm.progress.wait(&mut guard, key);
        drop(guard);
        self.comm.received(status, operation, size)
    }

    /// Makes progress on all operations of the process. Returns the result of the operation
    /// `request`, or gives the request back in `Ok(Err(…))` if the operation is still pending.
    pub fn test(&self, request: Request) -> Result<Result<Received, Request>, CommError> {
        let operation = request.operation;
        self.comm.check_not_forked().map_err(|cause| CommError { operation, cause })?;
        let mut guard = self.comm.progress.engine.lock();
        let (engine, buffers) = guard.attach_and_split();
        engine.progress(buffers);
        let Some(status) = engine.take(request.key) else { return Ok(Err(request)) };
        drop(guard);
        self.pending.borrow_mut().retain(|(key, _)| *key != request.key);
        self.comm.received(status, request.operation, request.size).map(Ok)
    }

    fn finish(&self) -> Result<(), CommError> {
        loop {
            let Some((key, operation)) = self.pending.borrow_mut().pop() else { return Ok(()) };
            self.comm.check_not_forked().map_err(|cause| CommError { operation, cause })?;
            let mut guard = self.comm.progress.engine.lock();
            let ended = self.comm.progress.wait(&mut guard, key);
            drop(guard);
            ended.map_err(|cause| self.comm.progress.explain(operation, cause))?;
        }
    }
}

/// Cancels the operations that are still pending, because [`Communicator::scope`]'s `body` or an
/// operation failed, or `body` panicked.
impl Drop for Scope<'_, '_> {
    fn drop(&mut self) {
        let pending = self.pending.get_mut();
        if pending.is_empty() || self.comm.check_not_forked().is_err() {
            return;
        }
        let mut guard = self.comm.progress.engine.lock();
        for (key, _) in pending.drain(..) {
            self.comm.progress.cancel(&mut guard, key, &Cause::Cancelled);
        }
    }
}

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
