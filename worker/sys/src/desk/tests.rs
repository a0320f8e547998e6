use super::*;

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

#[test]
fn what_is_attached_is_made_once_and_dropped_before_the_memory_goes_back() {
    #[derive(Debug)]
    struct Told(Held, Arc<Mutex<Vec<usize>>>);
    impl Drop for Told {
        fn drop(&mut self) {
            self.1.lock().unwrap().push(self.0.length());
        }
    }
    let desk = Desk::new((), |_| ());
    let dropped = Arc::new(Mutex::new(Vec::new()));
    let mut memory = [1, 2, 3];
    desk.lend([Memory::Exclusive(&mut memory)], |sitting, [loan]| {
        let (_, loans) = sitting.parts();
        let attach = |key| {
            let tell = |held: Held| (key < 9).then(|| Told(held, dropped.clone()));
            loans.attached(loan, key, tell, std::ptr::from_ref)
        };
        let first = attach(1);
        assert!(first.is_some());
        assert_eq!(attach(1), first, "it is told once");
        assert_ne!(attach(2), first, "by each");
        assert_eq!(attach(9), None, "a device may refuse");
        assert_eq!(*dropped.lock().unwrap(), []);
    });
    assert_eq!(*dropped.lock().unwrap(), [3, 3]);
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
