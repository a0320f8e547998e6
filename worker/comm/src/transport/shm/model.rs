//! Loom models of the ring, the sleep handshake and the split copy. A model checks every order in
//! which the loads and stores of two ranks can take effect, with at most 2 preemptions. Run the
//! models with `cargo test -p rlaunch-comm shm::model`; `LOOM_MAX_PREEMPTIONS=4` checks more
//! orders.

use super::doorbell::{announce_sleep, sleep_number};
use super::memory::{Bytes, Memory};
use super::ring::{LINE, Receiver, RingLayout, Sender};
use super::split_copy::{
    CopyRequest, claim_front, close, help, request, requested, revoke, revoked, written,
};
use crate::transport::{Header, PacketKind};
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

const HEAD: usize = 0;
const SLEEPS: usize = LINE;
const LAYOUT: RingLayout = RingLayout { first_line: 2 * LINE, count: 8, head: HEAD };

/// Memory that consists of words whose accesses loom tracks. Payloads consist of whole words.
struct Model(Vec<AtomicU64>);

impl Model {
    /// Makes the memory of a ring that has been in use, with both ends at `position`. All lines
    /// except the one at `position` look like the start of a record, as lines of an earlier lap
    /// would.
    fn at(position: u64) -> Model {
        let stale = header(8).to_words()[0];
        let words = 2 * LINE / 8 + LAYOUT.count * LINE / 8;
        let model = Model((0..words).map(|_| AtomicU64::new(stale)).collect());
        model.store(HEAD, position, Ordering::Relaxed);
        model.store(SLEEPS, 0, Ordering::Relaxed);
        let next = LAYOUT.first_line + position as usize % LAYOUT.count * LINE;
        model.store(next, 0, Ordering::Relaxed);
        model
    }
}

impl Memory for Model {
    fn load(&self, word: usize, order: Ordering) -> u64 {
        self.0[word / 8].load(order)
    }

    fn store(&self, word: usize, value: u64, order: Ordering) {
        self.0[word / 8].store(value, order);
    }

    fn compare_exchange(&self, word: usize, current: u64, value: u64) -> Result<u64, u64> {
        self.0[word / 8].compare_exchange(current, value, Ordering::SeqCst, Ordering::SeqCst)
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn acquire(&self) {
        fence(Ordering::Acquire);
    }
}

impl Bytes for Model {
    fn write(&self, offset: usize, bytes: &[u8]) {
        for (index, word) in bytes.chunks_exact(8).enumerate() {
            let value = u64::from_ne_bytes(word.try_into().unwrap());
            self.store(offset + index * 8, value, Ordering::Relaxed);
        }
    }

    fn with<T>(&self, offset: usize, length: usize, f: impl FnOnce(&[u8]) -> T) -> T {
        let words = (0..length / 8).map(|index| self.load(offset + index * 8, Ordering::Relaxed));
        f(&words.flat_map(u64::to_ne_bytes).collect::<Vec<u8>>())
    }
}

fn header(length: u32) -> Header {
    Header { kind: PacketKind::Eager, context: 1, tag: 2, transfer: 0, length }
}

/// Makes a payload of `words` words, each of which looks like the start of a record.
fn payload(record: u64, words: usize) -> Vec<u8> {
    (0..words as u64)
        .flat_map(|word| (header(8).to_words()[0] + (record << 8) + word).to_ne_bytes())
        .collect()
}

fn send(sender: &mut Sender, memory: &Model, record: u64, words: usize) -> bool {
    let payload = payload(record, words);
    let [first, _] = header(payload.len() as u32).to_words();
    let sent = sender.send(memory, [first, record], &payload).unwrap();
    sender.prepare(memory);
    sender.idle(memory);
    sent
}

/// Receives a record, and returns its number and payload.
fn receive(receiver: &mut Receiver, memory: &Model) -> Option<(u64, Vec<u8>)> {
    receiver.receive(memory, |words, bytes| Ok((words[1], bytes.to_vec()))).unwrap()
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound.get_or_insert(2);
    builder.check(model);
}

/// Sends one record for each number in `records`, with a payload of that many words, and checks
/// that all records arrive. The ring has been in use up to `position`.
fn everything_arrives(position: u64, records: &'static [usize]) {
    check(move || {
        let memory = Arc::new(Model::at(position));
        let theirs = Arc::clone(&memory);
        let other = thread::spawn(move || {
            let mut sender = Sender::at(LAYOUT, position);
            for (record, words) in records.iter().enumerate() {
                while !send(&mut sender, &theirs, record as u64, *words) {
                    thread::yield_now();
                }
            }
        });
        let mut receiver = Receiver::at(LAYOUT, position);
        for (record, words) in records.iter().enumerate() {
            let taken = loop {
                match receive(&mut receiver, &memory) {
                    Some(taken) => break taken,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(taken, (record as u64, payload(record as u64, *words)));
            receiver.release(&*memory);
        }
        assert_eq!(receive(&mut receiver, &memory), None);
        other.join().unwrap();
    });
}

#[test]
fn short_records_arrive_whole_and_in_order() {
    everything_arrives(16, &[1, 0, 1]);
}

#[test]
fn records_of_several_lines_arrive_whole_and_in_order() {
    everything_arrives(16, &[7, 1, 8]);
}

#[test]
fn records_go_around_the_end() {
    everything_arrives(23, &[7, 1]);
    everything_arrives(22, &[7, 1]);
}

#[test]
fn a_full_ring_goes_on_when_there_is_room() {
    everything_arrives(16, &[8, 8, 8, 8]);
}

#[test]
fn a_receiver_that_sleeps_is_woken() {
    check(|| {
        let memory = Arc::new(Model::at(16));
        let theirs = Arc::clone(&memory);
        let other = thread::spawn(move || {
            assert!(send(&mut Sender::at(LAYOUT, 16), &theirs, 0, 1));
            sleep_number(&*theirs, SLEEPS) != 0
        });
        announce_sleep(&*memory, SLEEPS, 1);
        let slept = !Receiver::at(LAYOUT, 16).has_record(&*memory);
        let rung = other.join().unwrap();
        assert!(rung || !slept);
    });
}

/// Signals the other of two ranks, polls once for its signal, and only then looks whether the other
/// sleeps. Goes to sleep if there was no signal. Returns whether this rank has rung for the other,
/// and whether it sleeps. One word of each rank stands for the ring that it sends to.
fn signal_and_poll(memory: &Model, me: usize) -> (bool, bool) {
    const RINGS: [usize; 2] = [0, LINE];
    const SLEEP_WORDS: [usize; 2] = [2 * LINE, 3 * LINE];
    let other = 1 - me;
    let has_come = || memory.load(RINGS[other], Ordering::Acquire) != 0;
    memory.store(RINGS[me], 1, Ordering::Release);
    let came_at_once = has_come();
    let rings = sleep_number(memory, SLEEP_WORDS[other]) != 0;
    if came_at_once {
        return (rings, false);
    }
    announce_sleep(memory, SLEEP_WORDS[me], 1);
    (rings, !has_come())
}

/// Both may miss the other's signal when they first poll, since neither has fenced before. Whoever
/// then sleeps has polled again after its fence; if that missed the signal as well, the fence of the
/// other, which follows its signal, comes later and shows it the sleep word.
#[test]
fn ranks_that_poll_before_they_wake_each_other_are_woken() {
    check(|| {
        let words = (0..4 * LINE / 8).map(|_| AtomicU64::new(0));
        let memory = Arc::new(Model(words.collect()));
        let theirs = Arc::clone(&memory);
        let other = thread::spawn(move || signal_and_poll(&theirs, 1));
        let (we_ring, we_sleep) = signal_and_poll(&memory, 0);
        let (they_ring, they_sleep) = other.join().unwrap();
        assert!(they_ring || !we_sleep);
        assert!(we_ring || !they_sleep);
    });
}

#[test]
fn a_sender_that_sleeps_for_room_is_woken() {
    check(|| {
        let memory = Arc::new(Model::at(16));
        let mut sender = Sender::at(LAYOUT, 16);
        for record in 0..3 {
            assert!(send(&mut sender, &memory, record, 8));
        }
        assert!(!send(&mut sender, &memory, 3, 8));
        let theirs = Arc::clone(&memory);
        let other = thread::spawn(move || {
            let mut receiver = Receiver::at(LAYOUT, 16);
            assert!(receive(&mut receiver, &theirs).is_some());
            assert!(receiver.release(&*theirs));
            sleep_number(&*theirs, SLEEPS) != 0
        });
        announce_sleep(&*memory, SLEEPS, 1);
        let slept = !sender.has_room(&*memory, 64).unwrap();
        let rung = other.join().unwrap();
        assert!(rung || !slept);
    });
}

/// Checks that each slice of a split copy is copied once. Depending on the order of steps, the
/// sender copies some, all or none of the slices. `succeeds` says whether the sender's writes
/// succeed.
fn each_slice_is_copied_once(succeeds: bool) {
    check(move || {
        let memory = Arc::new(Model((0..16).map(|_| AtomicU64::new(0)).collect()));
        let theirs = Arc::clone(&memory);
        let other = thread::spawn(move || {
            let mut wrote = Vec::new();
            let number = requested(&*theirs, 0);
            if number != 0 {
                help(&*theirs, 0, number, |request, bytes| {
                    assert_eq!((request.source, request.target), (11, 12));
                    wrote.push(bytes);
                    succeeds
                });
            }
            wrote
        });
        let copy = CopyRequest::new(11, 12, 129, 64);
        request(&*memory, 0, 1, &copy);
        let mut read = Vec::new();
        while let Some(slice) = claim_front(&*memory, 0, copy.slices()) {
            read.push(copy.bytes(slice));
        }
        let claimed = close(&*memory, 0);
        let there = loop {
            match written(&*memory, 0, claimed) {
                Some(false) => thread::yield_now(),
                there => break there.is_some(),
            }
        };
        let wrote = other.join().unwrap();
        assert_eq!(wrote.len(), claimed);
        assert_eq!(there, succeeds || claimed == 0);
        read.extend(wrote.into_iter().rev());
        assert_eq!(read, [0..64, 64..128, 128..129]);
    });
}

#[test]
fn each_slice_is_copied_by_one_end() {
    each_slice_is_copied_once(true);
}

#[test]
fn a_sender_that_cannot_write_says_so() {
    each_slice_is_copied_once(false);
}

/// Checks fetches of a message that is revoked. One word of the model stands for the message, which
/// in reality the kernel copies.
#[test]
fn memory_that_was_given_up_is_not_taken_for_the_message() {
    const MESSAGE: usize = 2 * LINE;
    const OFFERED: u64 = 7;
    check(|| {
        let words = (0..3 * LINE / 8).map(|_| AtomicU64::new(0));
        let memory = Arc::new(Model(words.collect()));
        memory.store(MESSAGE, OFFERED, Ordering::Relaxed);
        let theirs = Arc::clone(&memory);
        let other = thread::spawn(move || {
            revoke(&*theirs, 0);
            theirs.store(MESSAGE, OFFERED + 1, Ordering::Relaxed);
        });
        let fetched = memory.load(MESSAGE, Ordering::Relaxed);
        if revoked(&*memory, 0) == 0 {
            assert_eq!(fetched, OFFERED);
        }
        other.join().unwrap();
        assert_eq!(revoked(&*memory, 0), 1);
    });
}
