use super::*;
use rlaunch_sys::Pages;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Prevents a test that panics on purpose and a test that forks from running at the same time. If a
/// process forks while a thread panics, the child inherits the locked panic hook and hangs.
fn panic_alone() -> MutexGuard<'static, ()> {
    static PANICS: Mutex<()> = Mutex::new(());
    PANICS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn what_is_lent_can_be_reached_and_what_was_lent_cannot() {
    let lock = EngineLock::new(None, |_| ());
    let mut memory = [1, 2, 3];
    lock.lend([Memory::Exclusive(&mut memory)], |guard, [buffer]| {
        let (state, buffers) = guard.attach_and_split();
        *state = Some(buffer);
        assert_eq!(buffers.write(buffer, 1..3, |bytes| bytes.fill(7)), Some(()));
        assert_eq!(buffers.read(buffer, 0..3, <[u8]>::to_vec), Some(vec![1, 7, 7]));
    });
    let mut guard = lock.lock();
    let (state, buffers) = guard.attach_and_split();
    assert_eq!(buffers.read(state.unwrap(), 0..1, <[u8]>::to_vec), None);
    assert_eq!(memory, [1, 7, 7]);
}

#[test]
fn a_slot_that_is_used_again_is_another_loan() {
    let lock = EngineLock::new((), |_| ());
    let old = lock.lend([Memory::Shared(b"old")], |_, [buffer]| buffer);
    lock.lend([Memory::Shared(b"new")], |guard, [buffer]| {
        let (_, buffers) = guard.attach_and_split();
        assert_eq!(buffers.read(old, 0..3, <[u8]>::to_vec), None);
        assert_eq!(buffers.read(buffer, 0..3, <[u8]>::to_vec), Some(b"new".to_vec()));
    });
}

#[test]
fn nothing_outside_and_nothing_read_only_is_written() {
    let lock = EngineLock::new((), |_| ());
    lock.lend([Memory::Shared(b"abc")], |guard, [buffer]| {
        let (_, buffers) = guard.attach_and_split();
        assert_eq!(buffers.write(buffer, 0..1, |_| ()), None);
        assert_eq!(buffers.read(buffer, 2..4, |_| ()), None);
        #[expect(clippy::reversed_empty_ranges, reason = "that is the case")]
        let backwards = 3..2;
        assert_eq!(buffers.read(buffer, backwards, |_| ()), None);
        assert_eq!(buffers.read(buffer, 3..3, <[u8]>::len), Some(0));
    });
}

#[test]
fn nobody_writes_what_somebody_else_has_a_reference_to() {
    let lock = EngineLock::new((), |_| ());
    let mut memory = [1, 2, 3, 4];
    lock.lend([Memory::Exclusive(&mut memory)], |guard, [buffer]| {
        let (_, buffers) = guard.attach_and_split();
        let nested = buffers.write(buffer, 0..2, |_| buffers.read(buffer, 2..4, |_| ()));
        assert_eq!(nested, Some(None));
        let nested = buffers.read(buffer, 0..2, |_| buffers.write(buffer, 2..4, |_| ()));
        assert_eq!(nested, Some(None));
        let nested = buffers.read(buffer, 0..2, |_| buffers.read(buffer, 0..4, |_| ()));
        assert_eq!(nested, Some(Some(())));
        let copied =
            buffers.read_write(buffer, (0..2, 2..4), |into, from| into.copy_from_slice(from));
        assert_eq!(copied, Some(()));
        assert_eq!(buffers.read_write(buffer, (0..2, 1..3), |_, _| ()), None);
    });
    assert_eq!(memory, [3, 4, 3, 4]);
}

#[test]
fn what_a_scope_lends_is_taken_back_at_its_end() {
    let lock = EngineLock::new((), |_| ());
    let mut memory = [0; 4];
    let buffer = lock.scope(|scope| {
        let buffer = scope.lend(Memory::Exclusive(&mut memory));
        let mut guard = lock.lock();
        guard.attach_and_split().1.write(buffer, 0..4, |bytes| bytes.fill(5));
        buffer
    });
    assert_eq!(lock.lock().attach_and_split().1.length(buffer), None);
    assert_eq!(memory, [5; 4]);
}

#[test]
fn what_is_lent_is_taken_back_when_somebody_panics() {
    let _alone = panic_alone();
    let lock = EngineLock::new(None, |_| ());
    let mut memory = [0; 4];
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        lock.lend([Memory::Exclusive(&mut memory)], |guard, [buffer]| {
            *guard.attach_and_split().0 = Some(buffer);
            panic!("on purpose");
        });
    }));
    assert!(panicked.is_err());
    let mut guard = lock.lock();
    let (state, buffers) = guard.attach_and_split();
    assert_eq!(buffers.length(state.unwrap()), None);
}

/// Attachment that records the length of its memory when it is dropped.
#[derive(Debug)]
struct Registration {
    pinned: PinnedBuffer,
    ended: Arc<Mutex<Vec<usize>>>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.ended.lock().unwrap().push(self.pinned.length());
    }
}

/// Simulated devices, identified by keys. Devices with a key of 9 or more refuse to register
/// memory.
#[derive(Clone, Debug, Default)]
struct Devices {
    made: Arc<AtomicUsize>,
    ended: Arc<Mutex<Vec<usize>>>,
}

impl Devices {
    /// Requests a device's attachment of a buffer. Returns the offset of the buffer in the memory
    /// that the device has registered.
    fn request(&self, buffers: &BufferTable, buffer: BufferId, key: usize) -> Attached<usize> {
        let Devices { made, ended } = self.clone();
        let makes = move |pinned| {
            made.fetch_add(1, Ordering::Relaxed);
            (key < 9).then(|| Registration { pinned, ended })
        };
        buffers.with_attachment(buffer, key, makes, |registration: &Registration, offset| {
            assert!(offset < registration.pinned.length());
            offset
        })
    }

    fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    fn ended(&self) -> Vec<usize> {
        self.ended.lock().unwrap().clone()
    }
}

#[test]
fn what_is_attached_is_made_once_and_dropped_before_the_memory_goes_back() {
    let (lock, devices) = (EngineLock::new((), |_| ()), Devices::default());
    let mut memory = [1, 2, 3];
    lock.lend([Memory::Exclusive(&mut memory)], |guard, [buffer]| {
        let (_, buffers) = guard.attach_and_split();
        for key in [1, 1, 2, 9] {
            assert_eq!(devices.request(buffers, buffer, key), Attached::Pending);
        }
        let (_, buffers) = guard.attach_and_split();
        assert_eq!(devices.request(buffers, buffer, 1), Attached::Used(0));
        assert_eq!(
            devices.request(buffers, buffer, 2),
            Attached::Used(0),
            "each device has its own"
        );
        assert_eq!(
            devices.request(buffers, buffer, 9),
            Attached::Unavailable,
            "a device may refuse"
        );
        assert_eq!((devices.made(), devices.ended()), (3, vec![]));
    });
    assert_eq!(devices.ended(), [3, 3]);
}

#[test]
fn devices_are_told_while_others_may_sit_at_the_desk() {
    let lock = Arc::new(EngineLock::new((), |_| ()));
    let mut memory = [0; 8];
    let sat = Arc::new(AtomicUsize::new(0));
    lock.lend([Memory::Exclusive(&mut memory)], |guard, [buffer]| {
        let (other, seen) = (lock.clone(), sat.clone());
        let makes = move |_: PinnedBuffer| {
            let sits = move || other.lock().attach_and_split().1.length(buffer).unwrap_or_default();
            seen.store(std::thread::spawn(sits).join().unwrap(), Ordering::Relaxed);
            Some(())
        };
        let first = guard.attach_and_split().1.with_attachment(buffer, 1, makes, |(), _| ());
        assert_eq!(first, Attached::Pending);
        let again = guard.attach_and_split().1.with_attachment(buffer, 1, |_| Some(()), |(), _| ());
        assert_eq!(again, Attached::Used(()));
    });
    assert_eq!(sat.load(Ordering::Relaxed), 8);
}

#[test]
fn memory_that_is_taken_back_waits_for_who_tells_of_it() {
    let (lock, devices) = (EngineLock::new((), |_| ()), Devices::default());
    let (begins, begun) = std::sync::mpsc::channel();
    let mut memory = [0; 8];
    // SAFETY: the memory is taken back before it is dropped.
    let buffer = unsafe { lock.lend_raw(memory.as_mut_ptr(), memory.len(), true) };
    let ended = devices.ended.clone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let makes = move |pinned: PinnedBuffer| {
                begins.send(()).unwrap();
                std::thread::yield_now();
                Some(Registration { pinned, ended })
            };
            let mut guard = lock.lock();
            let result = guard.attach_and_split().1.with_attachment(
                buffer,
                1,
                makes,
                |_: &Registration, _| (),
            );
            assert_eq!(result, Attached::Pending);
        });
        begun.recv().unwrap();
        lock.take_back(buffer);
        assert_eq!(devices.ended(), [8], "registered and dropped again");
    });
}

#[test]
fn memory_that_is_gone_is_told_of_to_nobody() {
    let (lock, devices) = (EngineLock::new((), |_| ()), Devices::default());
    let mut memory = [0; 8];
    lock.lend([Memory::Exclusive(&mut memory)], |guard, [buffer]| {
        assert_eq!(devices.request(guard.attach_and_split().1, buffer, 1), Attached::Pending);
    });
    assert_eq!(devices.made(), 0);
}

#[test]
fn a_maker_that_panics_has_made_nothing() {
    let _alone = panic_alone();
    let lock = EngineLock::new((), |_| ());
    let mut memory = [0; 8];
    lock.lend([Memory::Exclusive(&mut memory)], |guard, [buffer]| {
        let makes = |_: PinnedBuffer| -> Option<()> { panic!("on purpose") };
        assert_eq!(
            guard.attach_and_split().1.with_attachment(buffer, 1, makes, |(), _| ()),
            Attached::Pending
        );
        let runs_jobs = std::panic::AssertUnwindSafe(|| guard.attach_and_split().1.length(buffer));
        assert!(std::panic::catch_unwind(runs_jobs).is_err());
        let result =
            guard.attach_and_split().1.with_attachment(buffer, 1, |_| Some(()), |(), _| ());
        assert_eq!(result, Attached::Unavailable);
    });
}

#[test]
fn exposed_bytes_are_neither_read_nor_written() {
    let lock = EngineLock::new((), |_| ());
    let mut memory = [1, 2, 3, 4];
    lock.lend([Memory::Exclusive(&mut memory)], |guard, [buffer]| {
        let (_, buffers) = guard.attach_and_split();
        assert_eq!(buffers.read(buffer, 0..1, |_| buffers.expose(buffer, 2..4)), Some(false));
        assert!(buffers.expose(buffer, 2..4));
        assert!(!buffers.expose(buffer, 3..5), "the range ends outside the buffer");
        assert_eq!(buffers.read(buffer, 1..3, |_| ()), None);
        assert_eq!(buffers.write(buffer, 3..4, |_| ()), None);
        assert_eq!(buffers.read_write(buffer, (0..1, 2..3), |_, _| ()), None);
        assert_eq!(buffers.read_write(buffer, (2..3, 0..1), |_, _| ()), None);
        assert_eq!(buffers.write(buffer, 0..2, |bytes| bytes.fill(9)), Some(()));
        buffers.conceal(buffer, &(2..4));
        assert_eq!(buffers.read(buffer, 0..4, <[u8]>::to_vec), Some(vec![9, 9, 3, 4]));
    });
    lock.lend([Memory::Shared(&[1])], |guard, [buffer]| {
        assert!(!guard.attach_and_split().1.expose(buffer, 0..1));
    });
}

/// Lends `part` and requests a device's attachment of it; repeats the request once if the
/// attachment is pending.
fn use_part(
    lock: &EngineLock<()>,
    devices: &Devices,
    part: &mut [u8],
    key: usize,
) -> Attached<usize> {
    lock.lend([Memory::Exclusive(part)], |guard, [buffer]| {
        match devices.request(guard.attach_and_split().1, buffer, key) {
            Attached::Pending => devices.request(guard.attach_and_split().1, buffer, key),
            result => result,
        }
    })
}

#[test]
fn memory_of_a_lease_is_told_of_once() {
    let (lock, devices) = (EngineLock::new((), |_| ()), Devices::default());
    let pages = Pages::zeroed(100).unwrap();
    let mut pages = lock.register_pages(pages, |(), buffers, region| {
        assert_eq!(devices.request(buffers, region, 1), Attached::Pending);
    });
    for at in [0, 10, 99] {
        assert_eq!(use_part(&lock, &devices, &mut pages.bytes_mut()[at..], 1), Attached::Used(at));
    }
    assert_eq!(devices.made(), 1);
    // A device that is added later registers the whole region, too.
    assert_eq!(use_part(&lock, &devices, &mut pages.bytes_mut()[5..], 2), Attached::Used(5));
    assert_eq!(use_part(&lock, &devices, &mut pages.bytes_mut()[6..], 2), Attached::Used(6));
    assert_eq!((devices.made(), devices.ended()), (2, vec![]));
    lock.unregister_pages(pages);
    assert_eq!(devices.ended(), [100, 100]);
    let mut elsewhere = [0; 7];
    assert_eq!(use_part(&lock, &devices, &mut elsewhere, 1), Attached::Used(0));
    assert_eq!((devices.made(), devices.ended()), (3, vec![100, 100, 7]));
}

/// A stale registration must not be used for other memory that is mapped at the same address.
#[test]
fn memory_that_is_mapped_anew_where_a_lease_was_is_told_of_anew() {
    let (lock, devices) = (EngineLock::new((), |_| ()), Devices::default());
    let mut memory = [0_u8; 64];
    for round in 1..=3 {
        let raw = (memory.as_mut_ptr(), memory.len(), true);
        // SAFETY: the region is unregistered before the memory is used for anything else.
        let region = unsafe {
            lock.register_raw(raw, |(), buffers, region| {
                assert_eq!(devices.request(buffers, region, 1), Attached::Pending);
            })
        };
        lock.unregister(region).unwrap();
        assert_eq!(use_part(&lock, &devices, &mut memory, 1), Attached::Used(0));
        assert_eq!((devices.made(), devices.ended().len()), (2 * round, 2 * round));
    }
}

#[test]
fn a_lease_in_use_is_not_ended_and_another_desks_never() {
    let (lock, other, devices) =
        (EngineLock::new((), |_| ()), EngineLock::new((), |_| ()), Devices::default());
    let mut memory = [0_u8; 8];
    let (first, length) = (memory.as_mut_ptr(), memory.len());
    // SAFETY: the memory outlives the region.
    let region = unsafe { lock.register_raw((first, length, true), |(), _, _| ()) };
    // SAFETY: the memory outlives the loan, and nothing else uses it.
    let buffer = unsafe { lock.lend_raw(first, length, true) };
    assert_eq!(devices.request(lock.lock().attach_and_split().1, buffer, 1), Attached::Pending);
    assert_eq!(devices.request(lock.lock().attach_and_split().1, buffer, 1), Attached::Used(0));
    let region = lock.unregister(region).unwrap_err();
    lock.take_back(buffer);
    let region = other.unregister(region).unwrap_err();
    assert_eq!(devices.ended(), [] as [usize; 0]);
    lock.unregister(region).unwrap();
    assert_eq!(devices.ended(), [8]);
}

/// If a buffer is taken back while it is exposed, its peer could still write to it later. So
/// devices drop their registrations of the whole region.
#[test]
fn a_loan_that_goes_while_it_is_exposed_takes_the_registration_along() {
    let (lock, devices) = (EngineLock::new((), |_| ()), Devices::default());
    let mut pages = lock.register_pages(Pages::zeroed(8).unwrap(), |(), _, _| ());
    lock.lend([Memory::Exclusive(&mut pages.bytes_mut()[2..6])], |guard, [buffer]| {
        assert_eq!(devices.request(guard.attach_and_split().1, buffer, 1), Attached::Pending);
        let (_, buffers) = guard.attach_and_split();
        assert_eq!(devices.request(buffers, buffer, 1), Attached::Used(2));
        assert!(buffers.expose(buffer, 0..4));
        assert_eq!(devices.ended(), [] as [usize; 0]);
    });
    assert_eq!(devices.ended(), [8]);
    assert_eq!(use_part(&lock, &devices, pages.bytes_mut(), 1), Attached::Used(0));
    assert_eq!(devices.made(), 2);
    lock.unregister_pages(pages);
}

#[test]
fn memory_that_is_read_only_is_not_written_to_by_way_of_a_lease() {
    let (lock, devices) = (EngineLock::new((), |_| ()), Devices::default());
    let mut memory = [0_u8; 8];
    let (first, length) = (memory.as_mut_ptr(), memory.len());
    // SAFETY: the memory outlives the region.
    let region = unsafe { lock.register_raw((first, length, false), |(), _, _| ()) };
    assert_eq!(use_part(&lock, &devices, &mut memory, 1), Attached::Used(0));
    assert_eq!(devices.ended(), [8], "the buffer was registered by itself");
    lock.unregister(region).unwrap();
}

#[test]
fn leases_beyond_what_devices_are_told_of_at_once_are_told_of_anew() {
    let (lock, devices) = (EngineLock::new((), |_| ()), Devices::default());
    let mut regions: Vec<RegionPages> = (0..buffers::MAX_REGISTERED + 1)
        .map(|_| lock.register_pages(Pages::zeroed(1).unwrap(), |(), _, _| ()))
        .collect();
    for pages in &mut regions {
        assert_eq!(use_part(&lock, &devices, pages.bytes_mut(), 1), Attached::Used(0));
    }
    assert_eq!((devices.made(), devices.ended().len()), (regions.len(), 1));
    // The first region was evicted, the second was not.
    assert_eq!(use_part(&lock, &devices, regions[1].bytes_mut(), 1), Attached::Used(0));
    assert_eq!(devices.made(), regions.len());
    assert_eq!(use_part(&lock, &devices, regions[0].bytes_mut(), 1), Attached::Used(0));
    assert_eq!((devices.made(), devices.ended().len()), (regions.len() + 1, 2));
    regions.into_iter().for_each(|pages| lock.unregister_pages(pages));
    assert_eq!(devices.made(), devices.ended().len());
}

#[test]
fn own_memory_that_devices_know_is_used_again() {
    let (lock, devices) = (EngineLock::new((), |_| ()), Devices::default());
    let mut first = None;
    for _ in 0..3 {
        let mut guard = lock.lock();
        let own = guard.attach_and_split().1.allocate(16);
        assert_eq!(guard.attach_and_split().1.read(own, 0..16, <[u8]>::to_vec), Some(vec![0; 16]));
        devices.request(guard.attach_and_split().1, own, 1);
        let (_, buffers) = guard.attach_and_split();
        assert_eq!(devices.request(buffers, own, 1), Attached::Used(0));
        buffers.write(own, 0..16, |bytes| bytes.fill(7)).unwrap();
        let old = first.replace(own).filter(|old| *old != own);
        assert_eq!(old.and_then(|old| buffers.length(old)), None, "its id is stale");
        buffers.free(own);
        assert_eq!(buffers.length(own), None);
    }
    assert_eq!((devices.made(), devices.ended()), (1, vec![]));
    // A buffer that a peer may still write to is not reused.
    let mut guard = lock.lock();
    let (_, buffers) = guard.attach_and_split();
    let own = buffers.allocate(16);
    assert_eq!(devices.request(buffers, own, 1), Attached::Used(0));
    assert!(buffers.expose(own, 0..16));
    buffers.free(own);
    assert_eq!(devices.ended(), [16]);
}

/// Dropping the lock drops attachments before the memory of buffers that still exist.
#[test]
fn a_desk_that_goes_ends_what_is_attached_first() {
    const LENGTH: usize = 1 << 20;
    struct Registration(PinnedBuffer, Arc<AtomicUsize>);
    impl Drop for Registration {
        fn drop(&mut self) {
            // SAFETY: the memory stays until this is dropped, and nothing writes to it.
            let bytes = unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.length()) };
            self.1.store(bytes.iter().filter(|byte| **byte == 5).count(), Ordering::Relaxed);
        }
    }
    let seen = Arc::new(AtomicUsize::new(0));
    let lock = EngineLock::new((), |_| ());
    let mut guard = lock.lock();
    let (_, buffers) = guard.attach_and_split();
    let own = buffers.allocate(LENGTH);
    buffers.write(own, 0..LENGTH, |bytes| bytes.fill(5)).unwrap();
    let sees = seen.clone();
    let result = buffers.with_attachment(
        own,
        1,
        |pinned| Some(Registration(pinned, sees)),
        |_: &Registration, _| (),
    );
    assert_eq!(result, Attached::Pending);
    drop(guard);
    drop(lock);
    assert_eq!(seen.load(Ordering::Relaxed), LENGTH);
}

#[test]
fn a_forked_process_neither_uses_nor_drops_what_it_has_inherited() {
    struct Connection(*const AtomicUsize);
    // SAFETY: the number exists for as long as the test.
    unsafe impl Send for Connection {}
    impl Drop for Connection {
        fn drop(&mut self) {
            // SAFETY: as above.
            unsafe { &*self.0 }.fetch_add(1, Ordering::SeqCst);
        }
    }
    let closed = AtomicUsize::new(0);
    let lock = EngineLock::new(Connection(&raw const closed), |_| ());
    let mut memory = [0; 4];
    // SAFETY: the memory outlives the loan.
    let buffer = unsafe { lock.lend_raw(memory.as_mut_ptr(), 4, true) };
    // The lock is held, as it may be by another thread when a process forks.
    let guard = lock.lock();
    let _alone = panic_alone();
    // SAFETY: the child uses only atomics and its copy of this thread's memory, and leaves by
    // `_exit`. It allocates for the panic, which the C library permits after fork(2).
    let child = unsafe { libc::fork() };
    if child == 0 {
        std::mem::forget(guard);
        std::panic::set_hook(Box::new(|_| ()));
        lock.take_back(buffer);
        let uses = std::panic::AssertUnwindSafe(|| drop(lock.lock()));
        let is_refused = lock.is_inherited() && std::panic::catch_unwind(uses).is_err();
        drop(lock);
        let code = 40 + i32::from(is_refused) + 2 * closed.load(Ordering::SeqCst) as i32;
        // SAFETY: `_exit` ends the process at once, without running anything of the test harness.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: the child was forked here, and `status` is an int that lives until the call returns.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 41);
    drop(guard);
    lock.take_back(buffer);
    drop(lock);
    assert_eq!(closed.load(Ordering::SeqCst), 1);
}

#[test]
fn the_desks_own_memory_lasts_until_it_is_given_up() {
    let lock = EngineLock::new((), |_| ());
    let mut guard = lock.lock();
    let (_, buffers) = guard.attach_and_split();
    let own = buffers.allocate(16);
    assert_eq!(buffers.write(own, 0..16, |bytes| bytes.fill(1)), Some(()));
    buffers.free(own);
    assert_eq!(buffers.length(own), None);
}
