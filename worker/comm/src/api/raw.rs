//! Calls for other languages. Buffers are bytes, and the type of their elements is a run-time
//! value; the results of receives are lengths in elements. Each nonblocking operation returns a
//! [`Pending`] request, which needs no [scope](crate::Scope).

use crate::api::communicator::{Communicator, Received};
use crate::progress::engine::matching::Target;
use crate::progress::engine::{Engine, Owner, SlabKey};
use crate::transport::LocalSlice;
use crate::types::{Cause, CommError, ElementType, Op, Operation};
use rlaunch_lock::{BufferId, BufferTable, RegionId};
use std::sync::Arc;

pub use crate::api::collectives::CollectiveBuffers;
pub use crate::collectives::CollectiveKind;

/// Runs [`Communicator::recv`], or [`Communicator::recv_any`] if `from` is `None`.
pub fn receive(
    comm: &Communicator,
    (bytes, element): (&mut [u8], ElementType),
    (from, tag): (Option<usize>, u32),
) -> Result<Received, CommError> {
    let received = match from {
        Some(from) => comm.recv(bytes, from, tag),
        None => comm.recv_any(bytes, tag),
    }?;
    in_elements(received, element, Operation::Receive { from, tag })
}

/// Runs [`Communicator::sendrecv`]. `to` is the destination and the tag to send with; the last
/// argument is the source and the tag to receive.
pub fn exchange(
    comm: &Communicator,
    data: &[u8],
    to: (usize, u32),
    (into, element): (&mut [u8], ElementType),
    (from, tag): (usize, u32),
) -> Result<Received, CommError> {
    let received = comm.sendrecv(data, to, into, (from, tag))?;
    in_elements(received, element, Operation::Receive { from: Some(from), tag })
}

/// Runs the collective `kind`. `what` contains the element type and the reduction operation;
/// collectives without a reduction ignore the operation.
pub fn collective(
    comm: &Communicator,
    kind: CollectiveKind,
    what: (ElementType, Op),
    buffers: CollectiveBuffers<'_, u8>,
) -> Result<(), CommError> {
    let (element, op) = what;
    comm.collective_bytes(kind, element, op, buffers)
}

/// Converts the received length from bytes to elements. Fails if the length is not a whole number
/// of elements.
fn in_elements(
    received: Received,
    element: ElementType,
    operation: Operation,
) -> Result<Received, CommError> {
    let (length, size) = (received.length, element.size());
    if !length.is_multiple_of(size) {
        return Err(CommError { operation, cause: Cause::PartialElement { length, size } });
    }
    Ok(Received { length: length / size, ..received })
}

/// Nonblocking operation. Dropping this value cancels the operation if it is still pending; this
/// has the effects of an [interrupted](Communicator::set_interrupt_check) call.
#[derive(Debug)]
#[must_use = "dropping it cancels the operation"]
pub struct Pending {
    comm: Arc<Communicator>,
    key: SlabKey,
    operation: Operation,
    /// Element size in bytes.
    size: usize,
    is_over: bool,
    buffers: [Option<BufferId>; 2],
}

/// Begins a nonblocking [`Communicator::send`].
///
/// # Safety
///
/// `data` must stay readable, and nothing may write to it, until the returned request is dropped.
#[expect(unsafe_code, reason = "only the caller knows how long the memory is there")]
pub unsafe fn isend(
    comm: &Arc<Communicator>,
    data: &[u8],
    (to, tag): (usize, u32),
) -> Result<Pending, CommError> {
    let operation = Operation::Send { to, tag };
    let message = comm.envelope(to, tag).map_err(|cause| CommError { operation, cause })?;
    // SAFETY: `data` stays readable and unchanged until the request is dropped, and dropping the
    // request takes the buffer back.
    let buffer = unsafe { lend(comm, data.as_ptr().cast_mut(), data.len(), false) };
    let from = LocalSlice::all(buffer, data.len());
    Ok(Pending::begin(comm, operation, 1, [Some(buffer), None], |engine, buffers| {
        let key = engine.request(operation);
        engine.send(message, from, Owner::Request(key), buffers);
        key
    }))
}

/// Begins a nonblocking [`receive`].
///
/// # Safety
///
/// Nothing else may access `bytes` until the returned request is dropped.
#[expect(unsafe_code, reason = "only the caller knows how long the memory is there")]
pub unsafe fn ireceive(
    comm: &Arc<Communicator>,
    (bytes, element): (&mut [u8], ElementType),
    (from, tag): (Option<usize>, u32),
) -> Result<Pending, CommError> {
    let operation = Operation::Receive { from, tag };
    let source = comm.source(from, tag);
    let source = source.map_err(|cause| CommError { operation, cause })?;
    // SAFETY: nothing else accesses `bytes` until the request is dropped, and dropping the request
    // takes the buffer back.
    let buffer = unsafe { lend(comm, bytes.as_mut_ptr(), bytes.len(), true) };
    let target = Target { into: LocalSlice::all(buffer, bytes.len()), reduction: None };
    Ok(Pending::begin(comm, operation, element.size(), [Some(buffer), None], |engine, buffers| {
        let key = engine.request(operation);
        comm.post_receive(engine, source, tag, target, Owner::Request(key), buffers);
        key
    }))
}

/// Begins a nonblocking [`collective`].
///
/// # Safety
///
/// Until the returned request is dropped, nothing may write to the input and nothing else may
/// access the output.
#[expect(unsafe_code, reason = "only the caller knows how long the memory is there")]
pub unsafe fn icollective(
    comm: &Arc<Communicator>,
    kind: CollectiveKind,
    (element, op): (ElementType, Op),
    buffers: CollectiveBuffers<'_, u8>,
) -> Result<Pending, CommError> {
    let operation = Operation::Collective(kind.name());
    let key = comm.schedule_key(kind, element, &buffers);
    let key = key.map_err(|cause| CommError { operation, cause })?;
    let (input, output) = match buffers {
        CollectiveBuffers::Separate(input, output) => (Some(input), output),
        CollectiveBuffers::InPlace(data) => (None, data),
    };
    // SAFETY: nothing else accesses the output until the request is dropped, and dropping the
    // request takes the buffer back.
    let buffer = unsafe { lend(comm, output.as_mut_ptr(), output.len(), true) };
    let output = LocalSlice::all(buffer, output.len());
    let read = input.map(|input| {
        // SAFETY: nothing writes to the input until the request is dropped, and dropping the
        // request takes the buffer back.
        let buffer = unsafe { lend(comm, input.as_ptr().cast_mut(), input.len(), false) };
        (buffer, LocalSlice::all(buffer, input.len()))
    });
    let input = read.map_or(output, |(_, input)| input);
    let args = comm.collective_args(comm.prepare(key, op), input, output);
    let buffers = [Some(buffer), read.map(|(buffer, _)| buffer)];
    Ok(Pending::begin(comm, operation, 1, buffers, |engine, buffers| {
        engine.start(operation, args, buffers)
    }))
}

/// Registration of memory of the program with all RDMA devices, so that messages from and to any
/// part of this memory need no registration of their own. Dropping the value unregisters the
/// memory. If a device is still copying a message from or to the memory, the message fails, and its
/// peer counts as lost.
#[derive(Debug)]
pub struct Registration {
    comm: Arc<Communicator>,
    region: Option<RegionId>,
}

/// Registers `length` bytes of memory at `first` with all RDMA devices. Fails in a forked child.
///
/// # Safety
///
/// The bytes must stay mapped, and writable if `writable`, until the returned registration is
/// dropped. The program may access them whenever no message is sent from or received into them.
#[expect(unsafe_code, reason = "only the caller knows how long the memory is there")]
pub unsafe fn register(
    comm: &Arc<Communicator>,
    (first, length, writable): (*mut u8, usize, bool),
) -> Result<Registration, CommError> {
    comm.check_not_forked().map_err(|cause| CommError { operation: Operation::Register, cause })?;
    let register =
        |engine: &mut Engine, buffers: &BufferTable, region| engine.register(region, buffers);
    // SAFETY: the bytes stay mapped until the registration is dropped, and dropping the
    // registration unregisters them.
    let region = unsafe { comm.progress.engine.register_raw((first, length, writable), register) };
    Ok(Registration { comm: comm.clone(), region: Some(region) })
}

impl Registration {
    /// Unregisters the memory and returns `true`, also if it is unregistered already. Returns
    /// `false`, without any effect, while a message is sent from or received into the memory.
    pub fn end(&mut self) -> bool {
        let lock = &self.comm.progress.engine;
        self.region = self.region.take().and_then(|region| {
            if lock.is_inherited() { None } else { lock.unregister(region).err() }
        });
        self.region.is_none()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            self.comm.progress.engine.revoke(region);
        }
    }
}

/// Lends `length` bytes at `first` to the engine.
///
/// # Safety
///
/// The requirements of [`rlaunch_lock::EngineLock::lend_raw`] must hold until the buffer is taken
/// back.
#[expect(unsafe_code, reason = "only the caller knows how long the memory is there")]
unsafe fn lend(comm: &Communicator, first: *mut u8, length: usize, writable: bool) -> BufferId {
    // SAFETY: the caller meets the requirements of `lend_raw`, as documented above.
    unsafe { comm.progress.engine.lend_raw(first, length, writable) }
}

impl Pending {
    fn begin(
        comm: &Arc<Communicator>,
        operation: Operation,
        size: usize,
        buffers: [Option<BufferId>; 2],
        begin: impl FnOnce(&mut Engine, &BufferTable) -> SlabKey,
    ) -> Pending {
        let mut guard = comm.progress.engine.lock();
        let (engine, lent) = guard.attach_and_split();
        let key = begin(engine, lent);
        Pending { comm: comm.clone(), key, operation, size, is_over: false, buffers }
    }

    fn check_not_forked(&self) -> Result<(), CommError> {
        let operation = self.operation;
        self.comm.check_not_forked().map_err(|cause| CommError { operation, cause })
    }

    /// Waits for the operation and returns its result. The result of a send contains the
    /// destination and the length of the message in bytes.
    pub fn wait(mut self) -> Result<Received, CommError> {
        self.check_not_forked()?;
        let progress = &self.comm.progress;
        let status = progress.wait(&mut progress.engine.lock(), self.key);
        self.is_over = true;
        self.comm.received(status, self.operation, self.size)
    }

    /// Makes progress on all operations of the process. Returns the result of this operation, or
    /// `None` if it is still pending. After a result, the request can only be dropped.
    pub fn test(&mut self) -> Option<Result<Received, CommError>> {
        if let Err(error) = self.check_not_forked() {
            return Some(Err(error));
        }
        let progress = &self.comm.progress;
        let mut guard = progress.engine.lock();
        let (engine, buffers) = guard.attach_and_split();
        engine.progress(buffers);
        let status = engine.take(self.key)?;
        drop(guard);
        self.is_over = true;
        Some(self.comm.received(status, self.operation, self.size))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let lock = &self.comm.progress.engine;
        if lock.is_inherited() {
            return;
        }
        if !self.is_over {
            let progress = &self.comm.progress;
            progress.cancel(&mut lock.lock(), self.key, &Cause::Cancelled);
        }
        self.buffers.iter().flatten().for_each(|buffer| lock.take_back(*buffer));
    }
}

#[cfg(test)]
#[expect(unsafe_code, reason = "what is tested is called by other languages")]
mod tests {
    use super::*;

    fn alone() -> Arc<Communicator> {
        Arc::new(Communicator::from_env().unwrap())
    }

    #[test]
    fn what_is_begun_ends_and_says_how_many_elements_came() {
        let comm = alone();
        let (data, mut into) = (vec![7; 1 << 20], vec![0; 2 << 20]);
        // SAFETY: both buffers live longer than the requests.
        let mut receives =
            unsafe { ireceive(&comm, (&mut into, ElementType::F64), (None, 3)) }.unwrap();
        assert!(receives.test().is_none());
        // SAFETY: as above.
        let sends = unsafe { isend(&comm, &data, (0, 3)) }.unwrap();
        sends.wait().unwrap();
        let received = receives.wait().unwrap();
        assert_eq!(received, Received { from: 0, length: (1 << 20) / 8 });
        assert_eq!(into[..1 << 20], data);
    }

    #[test]
    fn what_is_dropped_takes_its_memory_back() {
        let comm = alone();
        let mut into = [0; 8];
        // SAFETY: the buffer lives longer than the request.
        let cancelled = unsafe { ireceive(&comm, (&mut into, ElementType::U8), (Some(0), 1)) };
        let buffer = cancelled.as_ref().unwrap().buffers[0].unwrap();
        assert_eq!(comm.progress.engine.lock().attach_and_split().1.length(buffer), Some(8));
        drop(cancelled);
        assert_eq!(comm.progress.engine.lock().attach_and_split().1.length(buffer), None);
        comm.send(&[9u8; 8], 0, 1).unwrap();
        assert_eq!(into, [0; 8]);
        comm.recv(&mut into, 0, 1).unwrap();
        assert_eq!(into, [9; 8]);
    }

    #[test]
    fn collectives_take_elements_by_their_number() {
        let comm = alone();
        let (input, mut output) = (5i32.to_ne_bytes(), [0; 4]);
        let what = (ElementType::I32, Op::Sum);
        let buffers = CollectiveBuffers::Separate(&input[..], &mut output[..]);
        collective(&comm, CollectiveKind::AllReduce, what, buffers).unwrap();
        assert_eq!(i32::from_ne_bytes(output), 5);
        let (long, mut copy) = (vec![3; 1 << 16], vec![0; 1 << 16]);
        let buffers = CollectiveBuffers::Separate(&long[..], &mut copy[..]);
        // SAFETY: both buffers live longer than the request.
        let pending =
            unsafe { icollective(&comm, CollectiveKind::AllGather, what, buffers) }.unwrap();
        pending.wait().unwrap();
        assert_eq!(copy, long);
    }

    /// Forks a child that does not run another program, as a data loader does, and that calls the
    /// communicator that it inherited.
    #[test]
    fn a_forked_process_is_refused_and_says_no_goodbye() {
        let comm = alone();
        let mut into = [0; 8];
        // SAFETY: the buffer lives longer than the request.
        let begun = unsafe { ireceive(&comm, (&mut into, ElementType::U8), (Some(0), 1)) };
        let mut begun = Some(begun.unwrap());
        let registered = comm.buffer::<u8>(64).unwrap();
        // SAFETY: in the child, the communicator takes no lock of the parent, and the C library
        // makes the allocator usable after a fork. The child ends by `_exit`.
        let forked = unsafe { nix::unistd::fork() }.unwrap();
        if let nix::unistd::ForkResult::Child = forked {
            let refusals = [
                comm.send(&[1u8], 0, 0).map(drop),
                comm.recv_any(&mut [0u8], 0).map(drop),
                comm.all_reduce(&[1u64], &mut [0], Op::Sum),
                comm.barrier(),
                comm.split(0, 0).map(drop),
                comm.buffer::<u8>(1).map(drop),
                begun
                    .as_mut()
                    .and_then(Pending::test)
                    .unwrap_or(Ok(Received { from: 0, length: 0 }))
                    .map(drop),
                Err(comm.abort("in a child")),
            ];
            let is_refused = |refusal: &Result<(), CommError>| {
                matches!(refusal, Err(CommError { cause: Cause::Forked, .. }))
            };
            let refused = refusals.iter().filter(|refusal| is_refused(refusal)).count();
            drop((begun, registered));
            let progress = Arc::downgrade(&comm.progress);
            drop(comm);
            let gone = usize::from(progress.upgrade().is_none());
            // SAFETY: `_exit` ends the child at once, without running anything of the test harness.
            unsafe { nix::libc::_exit((10 * gone + refused) as i32) };
        }
        let nix::unistd::ForkResult::Parent { child } = forked else { return };
        let status = nix::sys::wait::waitpid(child, None).unwrap();
        assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 18));
        comm.send(&[9u8; 8], 0, 1).unwrap();
        begun.take().map(Pending::wait).unwrap().unwrap();
        assert_eq!(into, [9; 8]);
    }

    #[test]
    fn half_an_element_is_none() {
        let comm = alone();
        comm.send(&[1u8; 6], 0, 0).unwrap();
        let mut into = [0; 8];
        let failed = receive(&comm, (&mut into, ElementType::F32), (Some(0), 0)).unwrap_err();
        assert!(matches!(failed.cause, Cause::PartialElement { length: 6, size: 4 }), "{failed}");
    }
}
