use super::*;
use crate::held::Held;
use std::sync::Arc;

#[test]
fn what_is_lent_can_be_reached_and_what_was_lent_cannot() {
    let desk = Desk::new(None, |_| ());
    let mut memory = [1, 2, 3];
    desk.lend([Memory::Exclusive(&mut memory)], |sitting, [loan]| {
        let (state, loans) = sitting.parts();
        *state = Some(loan);
        assert_eq!(loans.write(loan, 1..3, |bytes| bytes.fill(7)), Some(()));
        assert_eq!(loans.read(loan, 0..3, <[u8]>::to_vec), Some(vec![1, 7, 7]));
    });
    let mut sitting = desk.sit();
    let (state, loans) = sitting.parts();
    assert_eq!(loans.read(state.unwrap(), 0..1, <[u8]>::to_vec), None);
    assert_eq!(memory, [1, 7, 7]);
}

#[test]
fn a_slot_that_is_used_again_is_another_loan() {
    let desk = Desk::new((), |_| ());
    let old = desk.lend([Memory::Shared(b"old")], |_, [loan]| loan);
    desk.lend([Memory::Shared(b"new")], |sitting, [loan]| {
        let (_, loans) = sitting.parts();
        assert_eq!(loans.read(old, 0..3, <[u8]>::to_vec), None);
        assert_eq!(loans.read(loan, 0..3, <[u8]>::to_vec), Some(b"new".to_vec()));
    });
}

#[test]
fn nothing_outside_and_nothing_read_only_is_written() {
    let desk = Desk::new((), |_| ());
    desk.lend([Memory::Shared(b"abc")], |sitting, [loan]| {
        let (_, loans) = sitting.parts();
        assert_eq!(loans.write(loan, 0..1, |_| ()), None);
        assert_eq!(loans.read(loan, 2..4, |_| ()), None);
        #[expect(clippy::reversed_empty_ranges, reason = "that is the case")]
        let backwards = 3..2;
        assert_eq!(loans.read(loan, backwards, |_| ()), None);
        assert_eq!(loans.read(loan, 3..3, <[u8]>::len), Some(0));
    });
}

#[test]
fn nobody_writes_what_somebody_else_has_a_reference_to() {
    let desk = Desk::new((), |_| ());
    let mut memory = [1, 2, 3, 4];
    desk.lend([Memory::Exclusive(&mut memory)], |sitting, [loan]| {
        let (_, loans) = sitting.parts();
        let nested = loans.write(loan, 0..2, |_| loans.read(loan, 2..4, |_| ()));
        assert_eq!(nested, Some(None));
        let nested = loans.read(loan, 0..2, |_| loans.write(loan, 2..4, |_| ()));
        assert_eq!(nested, Some(None));
        let nested = loans.read(loan, 0..2, |_| loans.read(loan, 0..4, |_| ()));
        assert_eq!(nested, Some(Some(())));
        let copied = loans.both(loan, (0..2, 2..4), |into, from| into.copy_from_slice(from));
        assert_eq!(copied, Some(()));
        assert_eq!(loans.both(loan, (0..2, 1..3), |_, _| ()), None);
    });
    assert_eq!(memory, [3, 4, 3, 4]);
}

#[test]
fn what_a_scope_lends_is_taken_back_at_its_end() {
    let desk = Desk::new((), |_| ());
    let mut memory = [0; 4];
    let loan = desk.scope(|scope| {
        let loan = scope.lend(Memory::Exclusive(&mut memory));
        let mut sitting = scope.desk().sit();
        sitting.parts().1.write(loan, 0..4, |bytes| bytes.fill(5));
        loan
    });
    assert_eq!(desk.sit().parts().1.length(loan), None);
    assert_eq!(memory, [5; 4]);
}

#[test]
fn what_is_lent_is_taken_back_when_somebody_panics() {
    let desk = Desk::new(None, |_| ());
    let mut memory = [0; 4];
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        desk.lend([Memory::Exclusive(&mut memory)], |sitting, [loan]| {
            *sitting.parts().0 = Some(loan);
            panic!("on purpose");
        });
    }));
    assert!(panicked.is_err());
    let mut sitting = desk.sit();
    let (state, loans) = sitting.parts();
    assert_eq!(loans.length(state.unwrap()), None);
}

/// An attachment that counts its end.
#[derive(Debug)]
struct Told {
    held: Held,
    ended: Arc<Mutex<Vec<usize>>>,
}

impl Drop for Told {
    fn drop(&mut self) {
        self.ended.lock().unwrap().push(self.held.length());
    }
}

/// Devices, by their keys: those from 9 on refuse.
#[derive(Clone, Debug, Default)]
struct Devices {
    told: Arc<AtomicUsize>,
    ended: Arc<Mutex<Vec<usize>>>,
}

impl Devices {
    /// Where the loan begins in what this device knows.
    fn ask(&self, loans: &Loans, loan: Loan, key: usize) -> Attached<usize> {
        let Devices { told, ended } = self.clone();
        let makes = move |held| {
            told.fetch_add(1, Ordering::Relaxed);
            (key < 9).then(|| Told { held, ended })
        };
        loans.attached(loan, key, makes, |told: &Told, offset| {
            assert!(offset < told.held.length());
            offset
        })
    }

    fn told(&self) -> usize {
        self.told.load(Ordering::Relaxed)
    }

    fn ended(&self) -> Vec<usize> {
        self.ended.lock().unwrap().clone()
    }
}

#[test]
fn what_is_attached_is_made_once_and_dropped_before_the_memory_goes_back() {
    let (desk, devices) = (Desk::new((), |_| ()), Devices::default());
    let mut memory = [1, 2, 3];
    desk.lend([Memory::Exclusive(&mut memory)], |sitting, [loan]| {
        let (_, loans) = sitting.parts();
        for key in [1, 1, 2, 9] {
            assert_eq!(devices.ask(loans, loan, key), Attached::Later);
        }
        let (_, loans) = sitting.parts();
        assert_eq!(devices.ask(loans, loan, 1), Attached::Used(0));
        assert_eq!(devices.ask(loans, loan, 2), Attached::Used(0), "by each");
        assert_eq!(devices.ask(loans, loan, 9), Attached::Unable, "a device may refuse");
        assert_eq!((devices.told(), devices.ended()), (3, vec![]));
    });
    assert_eq!(devices.ended(), [3, 3]);
}

#[test]
fn devices_are_told_while_others_may_sit_at_the_desk() {
    let desk = Arc::new(Desk::new((), |_| ()));
    let mut memory = [0; 8];
    let sat = Arc::new(AtomicUsize::new(0));
    desk.lend([Memory::Exclusive(&mut memory)], |sitting, [loan]| {
        let (other, seen) = (desk.clone(), sat.clone());
        let makes = move |_: Held| {
            let sits = move || other.sit().parts().1.length(loan).unwrap_or_default();
            seen.store(std::thread::spawn(sits).join().unwrap(), Ordering::Relaxed);
            Some(())
        };
        let first = sitting.parts().1.attached(loan, 1, makes, |(), _| ());
        assert_eq!(first, Attached::Later);
        let again = sitting.parts().1.attached(loan, 1, |_| Some(()), |(), _| ());
        assert_eq!(again, Attached::Used(()));
    });
    assert_eq!(sat.load(Ordering::Relaxed), 8);
}

#[test]
fn memory_that_is_taken_back_waits_for_who_tells_of_it() {
    let (desk, devices) = (Desk::new((), |_| ()), Devices::default());
    let (begins, begun) = std::sync::mpsc::channel();
    let mut memory = [0; 8];
    // SAFETY: the memory is taken back before it goes.
    let loan = unsafe { desk.lend_raw(memory.as_mut_ptr(), memory.len(), true) };
    let ended = devices.ended.clone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let makes = move |held: Held| {
                begins.send(()).unwrap();
                std::thread::yield_now();
                Some(Told { held, ended })
            };
            let mut sitting = desk.sit();
            let asked = sitting.parts().1.attached(loan, 1, makes, |_: &Told, _| ());
            assert_eq!(asked, Attached::Later);
        });
        begun.recv().unwrap();
        desk.take_back(loan);
        assert_eq!(devices.ended(), [8], "told, and forgotten again");
    });
}

#[test]
fn memory_that_is_gone_is_told_of_to_nobody() {
    let (desk, devices) = (Desk::new((), |_| ()), Devices::default());
    let mut memory = [0; 8];
    desk.lend([Memory::Exclusive(&mut memory)], |sitting, [loan]| {
        assert_eq!(devices.ask(sitting.parts().1, loan, 1), Attached::Later);
    });
    assert_eq!(devices.told(), 0);
}

#[test]
fn a_maker_that_panics_has_made_nothing() {
    let desk = Desk::new((), |_| ());
    let mut memory = [0; 8];
    desk.lend([Memory::Exclusive(&mut memory)], |sitting, [loan]| {
        let makes = |_: Held| -> Option<()> { panic!("on purpose") };
        assert_eq!(sitting.parts().1.attached(loan, 1, makes, |(), _| ()), Attached::Later);
        let tells = std::panic::AssertUnwindSafe(|| sitting.parts().1.length(loan));
        assert!(std::panic::catch_unwind(tells).is_err());
        let asked = sitting.parts().1.attached(loan, 1, |_| Some(()), |(), _| ());
        assert_eq!(asked, Attached::Unable);
    });
}

/// What a peer may write to is looked at by nobody here until it has.
#[test]
fn exposed_bytes_are_neither_read_nor_written() {
    let desk = Desk::new((), |_| ());
    let mut memory = [1, 2, 3, 4];
    desk.lend([Memory::Exclusive(&mut memory)], |sitting, [loan]| {
        let (_, loans) = sitting.parts();
        assert_eq!(loans.read(loan, 0..1, |_| loans.expose(loan, 2..4)), Some(false));
        assert!(loans.expose(loan, 2..4));
        assert!(!loans.expose(loan, 3..5), "not all of it is there");
        assert_eq!(loans.read(loan, 1..3, |_| ()), None);
        assert_eq!(loans.write(loan, 3..4, |_| ()), None);
        assert_eq!(loans.both(loan, (0..1, 2..3), |_, _| ()), None);
        assert_eq!(loans.both(loan, (2..3, 0..1), |_, _| ()), None);
        assert_eq!(loans.write(loan, 0..2, |bytes| bytes.fill(9)), Some(()));
        loans.conceal(loan, &(2..4));
        assert_eq!(loans.read(loan, 0..4, <[u8]>::to_vec), Some(vec![9, 9, 3, 4]));
    });
    desk.lend([Memory::Shared(&[1])], |sitting, [loan]| {
        assert!(!sitting.parts().1.expose(loan, 0..1));
    });
}

/// Lends a part of some memory, and asks for it until it is told of.
fn use_part(desk: &Desk<()>, devices: &Devices, part: &mut [u8], key: usize) -> Attached<usize> {
    desk.lend([Memory::Exclusive(part)], |sitting, [loan]| {
        match devices.ask(sitting.parts().1, loan, key) {
            Attached::Later => devices.ask(sitting.parts().1, loan, key),
            asked => asked,
        }
    })
}

#[test]
fn memory_of_a_lease_is_told_of_once() {
    let (desk, devices) = (Desk::new((), |_| ()), Devices::default());
    let pages = Pages::zeroed(100).unwrap();
    let mut leased = desk.lease(pages, |(), loans, lease| {
        assert_eq!(devices.ask(loans, lease, 1), Attached::Later);
    });
    for at in [0, 10, 99] {
        assert_eq!(use_part(&desk, &devices, &mut leased.bytes_mut()[at..], 1), Attached::Used(at));
    }
    assert_eq!(devices.told(), 1);
    // A device that comes later, and is told of all of it.
    assert_eq!(use_part(&desk, &devices, &mut leased.bytes_mut()[5..], 2), Attached::Used(5));
    assert_eq!(use_part(&desk, &devices, &mut leased.bytes_mut()[6..], 2), Attached::Used(6));
    assert_eq!((devices.told(), devices.ended()), (2, vec![]));
    desk.end_lease_of(leased);
    assert_eq!(devices.ended(), [100, 100]);
    let mut elsewhere = [0; 7];
    assert_eq!(use_part(&desk, &devices, &mut elsewhere, 1), Attached::Used(0));
    assert_eq!((devices.told(), devices.ended()), (3, vec![100, 100, 7]));
}

/// Nothing that was known of memory is used for what comes to lie there afterwards.
#[test]
fn memory_that_is_mapped_anew_where_a_lease_was_is_told_of_anew() {
    let (desk, devices) = (Desk::new((), |_| ()), Devices::default());
    let mut memory = [0_u8; 64];
    for round in 1..=3 {
        let raw = (memory.as_mut_ptr(), memory.len(), true);
        // SAFETY: the lease ends before the memory is used for anything else.
        let lease = unsafe {
            desk.lease_raw(raw, |(), loans, lease| {
                assert_eq!(devices.ask(loans, lease, 1), Attached::Later);
            })
        };
        desk.end_lease(lease).unwrap();
        assert_eq!(use_part(&desk, &devices, &mut memory, 1), Attached::Used(0));
        assert_eq!((devices.told(), devices.ended().len()), (2 * round, 2 * round));
    }
}

#[test]
fn a_lease_in_use_is_not_ended_and_another_desks_never() {
    let (desk, other, devices) = (Desk::new((), |_| ()), Desk::new((), |_| ()), Devices::default());
    let mut memory = [0_u8; 8];
    let (first, length) = (memory.as_mut_ptr(), memory.len());
    // SAFETY: the memory outlives the lease.
    let lease = unsafe { desk.lease_raw((first, length, true), |(), _, _| ()) };
    // SAFETY: the memory outlives the loan, and is used by nothing else.
    let loan = unsafe { desk.lend_raw(first, length, true) };
    assert_eq!(devices.ask(desk.sit().parts().1, loan, 1), Attached::Later);
    assert_eq!(devices.ask(desk.sit().parts().1, loan, 1), Attached::Used(0));
    let lease = desk.end_lease(lease).unwrap_err();
    desk.take_back(loan);
    let lease = other.end_lease(lease).unwrap_err();
    assert_eq!(devices.ended(), [] as [usize; 0]);
    desk.end_lease(lease).unwrap();
    assert_eq!(devices.ended(), [8]);
}

/// A peer that was let in and has not written could write after the loan: devices forget the lease.
#[test]
fn a_loan_that_goes_while_it_is_exposed_takes_the_registration_along() {
    let (desk, devices) = (Desk::new((), |_| ()), Devices::default());
    let mut leased = desk.lease(Pages::zeroed(8).unwrap(), |(), _, _| ());
    desk.lend([Memory::Exclusive(&mut leased.bytes_mut()[2..6])], |sitting, [loan]| {
        assert_eq!(devices.ask(sitting.parts().1, loan, 1), Attached::Later);
        let (_, loans) = sitting.parts();
        assert_eq!(devices.ask(loans, loan, 1), Attached::Used(2));
        assert!(loans.expose(loan, 0..4));
        assert_eq!(devices.ended(), [] as [usize; 0]);
    });
    assert_eq!(devices.ended(), [8]);
    assert_eq!(use_part(&desk, &devices, leased.bytes_mut(), 1), Attached::Used(0));
    assert_eq!(devices.told(), 2);
    desk.end_lease_of(leased);
}

#[test]
fn memory_that_is_read_only_is_not_written_to_by_way_of_a_lease() {
    let (desk, devices) = (Desk::new((), |_| ()), Devices::default());
    let mut memory = [0_u8; 8];
    let (first, length) = (memory.as_mut_ptr(), memory.len());
    // SAFETY: the memory outlives the lease.
    let lease = unsafe { desk.lease_raw((first, length, false), |(), _, _| ()) };
    assert_eq!(use_part(&desk, &devices, &mut memory, 1), Attached::Used(0));
    assert_eq!(devices.ended(), [8], "it was told of for itself");
    desk.end_lease(lease).unwrap();
}

#[test]
fn leases_beyond_what_devices_are_told_of_at_once_are_told_of_anew() {
    let (desk, devices) = (Desk::new((), |_| ()), Devices::default());
    let mut leases: Vec<LeasedPages> = (0..super::loans::LEASES + 1)
        .map(|_| desk.lease(Pages::zeroed(1).unwrap(), |(), _, _| ()))
        .collect();
    for leased in &mut leases {
        assert_eq!(use_part(&desk, &devices, leased.bytes_mut(), 1), Attached::Used(0));
    }
    assert_eq!((devices.told(), devices.ended().len()), (leases.len(), 1));
    // The first was forgotten, the second was not.
    assert_eq!(use_part(&desk, &devices, leases[1].bytes_mut(), 1), Attached::Used(0));
    assert_eq!(devices.told(), leases.len());
    assert_eq!(use_part(&desk, &devices, leases[0].bytes_mut(), 1), Attached::Used(0));
    assert_eq!((devices.told(), devices.ended().len()), (leases.len() + 1, 2));
    leases.into_iter().for_each(|leased| desk.end_lease_of(leased));
    assert_eq!(devices.told(), devices.ended().len());
}

#[test]
fn own_memory_that_devices_know_is_used_again() {
    let (desk, devices) = (Desk::new((), |_| ()), Devices::default());
    let mut first = None;
    for _ in 0..3 {
        let mut sitting = desk.sit();
        let own = sitting.parts().1.keep(16);
        assert_eq!(sitting.parts().1.read(own, 0..16, <[u8]>::to_vec), Some(vec![0; 16]));
        devices.ask(sitting.parts().1, own, 1);
        let (_, loans) = sitting.parts();
        assert_eq!(devices.ask(loans, own, 1), Attached::Used(0));
        loans.write(own, 0..16, |bytes| bytes.fill(7)).unwrap();
        let old = first.replace(own).filter(|old| *old != own);
        assert_eq!(old.and_then(|old| loans.length(old)), None, "it stands for nothing");
        loans.give_up(own);
        assert_eq!(loans.length(own), None);
    }
    assert_eq!((devices.told(), devices.ended()), (1, vec![]));
    // But not what a peer may still write to.
    let mut sitting = desk.sit();
    let (_, loans) = sitting.parts();
    let own = loans.keep(16);
    assert_eq!(devices.ask(loans, own, 1), Attached::Used(0));
    assert!(loans.expose(own, 0..16));
    loans.give_up(own);
    assert_eq!(devices.ended(), [16]);
}

/// The memory goes after what devices know of it, also where nobody has taken it back.
#[test]
fn a_desk_that_goes_ends_what_is_attached_first() {
    const LENGTH: usize = 1 << 20;
    struct Told(Held, Arc<AtomicUsize>);
    impl Drop for Told {
        fn drop(&mut self) {
            // SAFETY: the memory stays until this is dropped, and nothing writes to it.
            let bytes = unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.length()) };
            self.1.store(bytes.iter().filter(|byte| **byte == 5).count(), Ordering::Relaxed);
        }
    }
    let seen = Arc::new(AtomicUsize::new(0));
    let desk = Desk::new((), |_| ());
    let mut sitting = desk.sit();
    let (_, loans) = sitting.parts();
    let own = loans.keep(LENGTH);
    loans.write(own, 0..LENGTH, |bytes| bytes.fill(5)).unwrap();
    let sees = seen.clone();
    let asked = loans.attached(own, 1, |held| Some(Told(held, sees)), |_: &Told, _| ());
    assert_eq!(asked, Attached::Later);
    drop(sitting);
    drop(desk);
    assert_eq!(seen.load(Ordering::Relaxed), LENGTH);
}

/// A child has a copy of the desk, and of connections in it that are its parent's.
#[test]
fn a_forked_process_neither_uses_nor_drops_what_it_has_inherited() {
    struct Connection(*const AtomicUsize);
    // SAFETY: the number is there for as long as the test.
    unsafe impl Send for Connection {}
    impl Drop for Connection {
        fn drop(&mut self) {
            // SAFETY: as above.
            unsafe { &*self.0 }.fetch_add(1, Ordering::SeqCst);
        }
    }
    let closed = AtomicUsize::new(0);
    let desk = Desk::new(Connection(&raw const closed), |_| ());
    let mut memory = [0; 4];
    // SAFETY: the memory outlives the loan.
    let loan = unsafe { desk.lend_raw(memory.as_mut_ptr(), 4, true) };
    // The lock is held, as it may be by another thread when a process forks.
    let sitting = desk.sit();
    // SAFETY: the child only uses atomics and memory of its own, and leaves by `_exit`. What it
    // allocates for the panic's words may hang where another test's thread holds the allocator, which
    // the C library prevents for fork(2).
    let child = unsafe { libc::fork() };
    if child == 0 {
        std::mem::forget(sitting);
        std::panic::set_hook(Box::new(|_| ()));
        desk.take_back(loan);
        let uses = std::panic::AssertUnwindSafe(|| drop(desk.sit()));
        let is_refused = desk.is_inherited() && std::panic::catch_unwind(uses).is_err();
        drop(desk);
        let code = 40 + i32::from(is_refused) + 2 * closed.load(Ordering::SeqCst) as i32;
        // SAFETY: it ends the process at once, and runs nothing of the harness.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: the child is this thread's own, and the status an int that lives until then.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 41);
    drop(sitting);
    desk.take_back(loan);
    drop(desk);
    assert_eq!(closed.load(Ordering::SeqCst), 1);
}

#[test]
fn the_desks_own_memory_lasts_until_it_is_given_up() {
    let desk = Desk::new((), |_| ());
    let mut sitting = desk.sit();
    let (_, loans) = sitting.parts();
    let own = loans.keep(16);
    assert_eq!(loans.write(own, 0..16, |bytes| bytes.fill(1)), Some(()));
    loans.give_up(own);
    assert_eq!(loans.length(own), None);
}
