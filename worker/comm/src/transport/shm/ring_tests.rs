//! Tests of the ring over real memory.

use super::memory::{Bytes, Memory};
use super::ring::{LINE, Receiver, RingLayout, Sender};
use crate::transport::{Header, PacketKind};
use crate::types::LinkError;
use rlaunch_sys::{OwnedBytes, SharedMemory};
use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::thread;

const LAYOUT: RingLayout = RingLayout { first_line: 4096, count: 64, head: 0 };

fn memory() -> (OwnedBytes, OwnedBytes) {
    memory_for(LAYOUT)
}

fn memory_for(layout: RingLayout) -> (OwnedBytes, OwnedBytes) {
    let (ours, theirs) = SharedMemory::pair(layout.first_line, layout.bytes().end).unwrap();
    (ours.claim(layout.bytes()).unwrap(), theirs.claim(layout.bytes()).unwrap())
}

fn words(length: usize) -> [u64; 2] {
    let length = length as u32;
    Header { kind: PacketKind::Data, context: 7, tag: 9, transfer: 5, length }.to_words()
}

/// Generator of the same pseudo-random numbers in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.0 >> 33) as usize) % limit
    }
}

fn bytes(numbers: &mut Numbers) -> Vec<u8> {
    let length = if numbers.below(2) == 0 { 64 } else { LAYOUT.max_payload() };
    let length = numbers.below(length + 1);
    (0..length).map(|_| numbers.below(256) as u8).collect()
}

#[test]
fn records_of_any_length_arrive_whole_and_in_order() {
    for seed in 0..20 {
        let (ours, theirs) = memory();
        let other = thread::spawn(move || {
            let (mut numbers, mut sender) = (Numbers(seed), Sender::new(LAYOUT));
            for record in 0..2_000 {
                let payload = bytes(&mut numbers);
                let [first, _] = words(payload.len());
                while !sender.send(&theirs, [first, record], &payload).unwrap() {
                    thread::yield_now();
                }
                sender.prepare(&theirs);
                if record % 3 == 0 {
                    sender.idle(&theirs);
                }
            }
        });
        let (mut numbers, mut receiver) = (Numbers(seed), Receiver::new(LAYOUT));
        for record in 0..2_000 {
            let expected = bytes(&mut numbers);
            let check = |words: [u64; 2], payload: &[u8]| {
                assert_eq!(words[1], record, "seed {seed}");
                assert_eq!(payload, expected, "seed {seed}");
                assert!(payload.as_ptr().addr().is_multiple_of(16));
                Ok(())
            };
            while receiver.receive(&ours, check).unwrap().is_none() {
                thread::yield_now();
            }
            receiver.release(&ours);
        }
        other.join().unwrap();
        assert!(!receiver.has_record(&ours));
    }
}

#[test]
fn a_full_ring_takes_nothing_until_there_is_room() {
    let (ours, theirs) = memory();
    let (mut sender, mut receiver) = (Sender::new(LAYOUT), Receiver::new(LAYOUT));
    let mut sent = 0;
    while sender.send(&ours, words(8), &[1; 8]).unwrap() {
        sent += 1;
    }
    assert_eq!(sent, LAYOUT.count - 1);
    assert!(!sender.has_room(&ours, 8).unwrap());
    let mut told = 0;
    while receiver.receive(&theirs, |_, _| Ok(())).unwrap().is_some() {
        told += usize::from(receiver.release(&theirs));
    }
    assert!((1..=8).contains(&told), "{told}");
    assert!(sender.has_room(&ours, LAYOUT.max_payload()).unwrap());
    assert!(sender.send(&ours, words(8), &[2; 8]).unwrap());
    let taken = receiver.receive(&theirs, |_, bytes| Ok(bytes.to_vec())).unwrap();
    assert_eq!(taken, Some(vec![2; 8]));
}

/// Memory that keeps the offsets of the lines that were fetched for writing.
struct Watched(OwnedBytes, RefCell<Vec<usize>>);

impl Memory for Watched {
    fn load(&self, word: usize, order: Ordering) -> u64 {
        self.0.load(word, order)
    }

    fn store(&self, word: usize, value: u64, order: Ordering) {
        self.0.store(word, value, order);
    }

    fn compare_exchange(&self, word: usize, current: u64, value: u64) -> Result<u64, u64> {
        Memory::compare_exchange(&self.0, word, current, value)
    }

    fn fence(&self) {
        Memory::fence(&self.0);
    }

    fn acquire(&self) {
        Memory::acquire(&self.0);
    }

    fn prefetch_for_write(&self, word: usize) {
        self.0.prefetch_for_write(word);
        self.1.borrow_mut().push(word);
    }
}

impl Bytes for Watched {
    fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.write(offset, bytes);
    }

    fn with<T>(&self, offset: usize, length: usize, f: impl FnOnce(&[u8]) -> T) -> T {
        self.0.with(offset, length, f)
    }
}

#[test]
fn a_line_is_fetched_before_it_is_cleared_and_never_while_its_record_is_unread() {
    let (ours, theirs) = memory();
    let ours = Watched(ours, RefCell::default());
    let (mut sender, mut receiver) = (Sender::new(LAYOUT), Receiver::new(LAYOUT));
    let at = |position: usize| LAYOUT.first_line + position % LAYOUT.count * LINE;
    let (mut sent, mut received) = (0, 0);
    let mut fetched = 0;
    for unread in (0..LAYOUT.count).chain([0, 1, 2, 1, 0]).cycle().take(20 * LAYOUT.count) {
        while sent - received < unread.max(1) && sender.send(&ours, words(0), &[]).unwrap() {
            sent += 1;
            sender.prepare(&ours);
            for line in ours.1.take() {
                fetched += 1;
                assert!((received..sent).all(|record| at(record) != line), "record {sent}");
                assert!((1..16).any(|distance| at(sent + distance) == line), "record {sent}");
            }
        }
        while sent - received > unread {
            assert!(receiver.receive(&theirs, |_, _| Ok(())).unwrap().is_some());
            receiver.release(&theirs);
            received += 1;
        }
    }
    assert!(fetched > sent / 2, "{fetched} of {sent} lines");
}

#[test]
fn the_longest_records_never_wait_for_each_other() {
    let (ours, theirs) = memory();
    for before in 0..LAYOUT.count {
        let (mut sender, mut receiver) = (Sender::new(LAYOUT), Receiver::new(LAYOUT));
        ours.write(LAYOUT.first_line, &[0; LAYOUT.count * LINE]);
        ours.store(LAYOUT.head, 0, Ordering::Relaxed);
        let mut pass = |payload: &[u8]| {
            assert!(sender.send(&ours, words(payload.len()), payload).unwrap(), "{before}");
            assert!(receiver.receive(&theirs, |_, _| Ok(())).unwrap().is_some());
            receiver.release(&theirs);
        };
        for _ in 0..before {
            pass(&[]);
        }
        for _ in 0..16 {
            pass(&vec![3; LAYOUT.max_payload()]);
        }
    }
}

#[test]
fn a_record_that_cannot_be_sent_is_refused() {
    let (ours, _) = memory();
    let payload = vec![0; LAYOUT.max_payload() + 1];
    let error = Sender::new(LAYOUT).send(&ours, words(payload.len()), &payload).unwrap_err();
    assert!(matches!(error, LinkError::Protocol(_)), "{error}");
}

#[test]
fn a_record_that_the_sink_refuses_stays() {
    let (ours, theirs) = memory();
    let (mut sender, mut receiver) = (Sender::new(LAYOUT), Receiver::new(LAYOUT));
    sender.send(&ours, words(1), &[1]).unwrap();
    let refuse = |_, _: &[u8]| Err::<(), _>(LinkError::UnknownPacket(0));
    receiver.receive(&theirs, refuse).unwrap_err();
    assert_eq!(receiver.receive(&theirs, |_, bytes| Ok(bytes[0])).unwrap(), Some(1));
}

/// Returns the receiver's error for a ring whose lines begin with these words.
fn garbled(first_words: &[u64]) -> String {
    let (ours, theirs) = memory();
    for (line, word) in first_words.iter().enumerate() {
        ours.store(LAYOUT.first_line + line * LINE, *word, Ordering::Release);
    }
    let mut receiver = Receiver::new(LAYOUT);
    let error = receiver.receive(&theirs, |_, _| Ok(())).unwrap_err().to_string();
    assert_eq!(receiver.receive(&theirs, |_, _| Ok(())).unwrap_err().to_string(), error);
    error
}

#[test]
fn a_garbled_ring_is_an_error() {
    let leaves = "it broke the protocol: a record extends past the end of its ring";
    assert_eq!(garbled(&[words(LAYOUT.max_payload() + 1)[0]]), leaves);
    assert_eq!(garbled(&[words(u32::MAX as usize)[0]]), leaves);
    assert_eq!(garbled(&[u64::MAX]), leaves);
    assert_eq!(garbled(&[0xff << 32]), "it broke the protocol: no record follows a pad");
}

#[test]
fn a_record_across_the_end_is_an_error() {
    let (ours, theirs) = memory();
    let (mut sender, mut receiver) = (Sender::new(LAYOUT), Receiver::new(LAYOUT));
    for _ in 0..LAYOUT.count - 1 {
        assert!(sender.send(&ours, words(0), &[]).unwrap());
        assert!(receiver.receive(&theirs, |_, _| Ok(())).unwrap().is_some());
    }
    let last = LAYOUT.first_line + (LAYOUT.count - 1) * LINE;
    ours.store(last, words(64)[0], Ordering::Release);
    receiver.receive(&theirs, |_, _| Ok(())).unwrap_err();
}

#[test]
fn a_receiver_that_claims_too_much_is_an_error() {
    let (ours, _) = memory();
    let mut sender = Sender::new(LAYOUT);
    while sender.send(&ours, words(8), &[1; 8]).unwrap() {}
    ours.store(LAYOUT.head, LAYOUT.count as u64, Ordering::Release);
    sender.send(&ours, words(8), &[1; 8]).unwrap_err();
}

#[test]
fn records_of_one_length_go_around_for_ever() {
    for count in [8, 64, 8192] {
        let layout = RingLayout { first_line: 4096, count, head: 0 };
        for length in
            (0..10).map(|lines| lines * LINE).filter(|length| *length <= layout.max_payload())
        {
            let (ours, theirs) = memory_for(layout);
            let (mut sender, mut receiver) = (Sender::new(layout), Receiver::new(layout));
            for record in 0..3 * count as u64 {
                let words = [words(length)[0], record];
                assert!(sender.send(&ours, words, &vec![1; length]).unwrap(), "{record}");
                sender.prepare(&ours);
                sender.idle(&ours);
                let taken = receiver.receive(&theirs, |words, _| Ok(words[1])).unwrap();
                assert_eq!(taken, Some(record), "{length} bytes, {count} lines");
                receiver.release(&theirs);
                assert!(!receiver.has_record(&theirs));
            }
        }
    }
}
