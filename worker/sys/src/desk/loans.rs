//! Loans: numbers that stand for memory, as long as it is there.

use super::Raw;
use super::attachment::{Attached, Attachment, Job};
use crate::held::Held;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

/// Memory of the desk's own that devices know and nobody uses is kept for the next who wants as much:
/// so many pieces, and so many bytes.
const SPARE: usize = 8;
const SPARE_BYTES: usize = 32 << 20;
/// Leases that devices are told of at once; of those that are not in use, the one that was used longest
/// ago is told anew when it is next used.
pub(super) const LEASES: usize = if cfg!(test) { 8 } else { 1024 };

/// Memory that is lent, as a name for it. It may outlive the memory, and then stands for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    slot: u32,
    generation: u32,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    raw: Option<Raw>,
    /// So many read it; [`WRITTEN`] where somebody writes it.
    readers: Cell<u32>,
    /// Where the memory is the desk's own: a `Box`, taken apart so that it may be moved while its
    /// bytes are pointed to.
    own: Option<NonNull<[u8]>>,
    /// Its attachments, one for each device that was told of it.
    attachments: Vec<Attachment>,
    /// Bytes that a peer's device was allowed to write to and has not.
    exposed: Vec<Range<usize>>,
    /// Its memory is part of a lease's, and devices know it as that.
    part_of: Option<u32>,
    lease: Option<Leased>,
}

/// State of a lease beside its memory.
#[derive(Clone, Copy, Debug, Default)]
struct Leased {
    /// Loans that are part of it.
    users: u32,
    /// When it was last used, in uses of all leases.
    used: u64,
}

impl Slot {
    fn free() -> Slot {
        Slot {
            generation: 0,
            raw: None,
            readers: Cell::new(0),
            own: None,
            attachments: Vec::new(),
            exposed: Vec::new(),
            part_of: None,
            lease: None,
        }
    }

    /// No device reaches the memory from here on, nor does anybody else.
    fn close(&mut self) {
        debug_assert!(self.readers.get() == 0, "memory is taken back while it is used");
        self.forget();
        self.exposed.clear();
        if let Some(own) = self.own.take() {
            // SAFETY: `keep` has taken a box apart for it, and nothing points to its bytes any more:
            // what was lent of it is taken back, and devices have let go of it.
            drop(unsafe { Box::from_raw(own.as_ptr()) });
        }
    }

    /// Has all devices forget it.
    fn forget(&mut self) {
        self.attachments.drain(..).for_each(Attachment::end);
    }
}

/// What the desk has when it goes is taken back in the same order as what is taken back before: first
/// from devices, then from memory.
impl Drop for Slot {
    fn drop(&mut self) {
        self.close();
    }
}

/// In place of a number of readers.
const WRITTEN: u32 = u32::MAX;

/// All that is lent.
#[derive(Default)]
pub struct Loans {
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u32>>,
    /// Slots of leases.
    leases: RefCell<Vec<u32>>,
    /// Slots with own memory that stands for nothing now, the latest last.
    spare: RefCell<Vec<u32>>,
    /// Attachments to be made by somebody who has left the desk.
    jobs: RefCell<Vec<Job>>,
    /// How often leases were used.
    uses: Cell<u64>,
}

impl std::fmt::Debug for Loans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loans").field("slots", &self.slots).finish_non_exhaustive()
    }
}

// SAFETY: the pointers are to bytes, which any thread may use while they are lent, and they are
// followed under the desk's lock alone, or by a job (see there).
unsafe impl Send for Loans {}

impl Loans {
    pub(super) fn insert(&self, raw: Raw) -> Loan {
        let mut slots = self.slots.borrow_mut();
        let at = self.free.borrow_mut().pop().unwrap_or_else(|| {
            slots.push(Slot::free());
            // Memory for 2^32 slots is more than there is.
            (slots.len() - 1) as u32
        });
        let slot = &mut slots[at as usize];
        slot.raw = Some(raw);
        Loan { slot: at, generation: slot.generation }
    }

    /// What stands for it stands for nothing from here on.
    pub(super) fn remove(&self, loan: Loan) {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(loan.slot as usize) else { return };
        if slot.generation != loan.generation || slot.raw.take().is_none() {
            return;
        }
        slot.generation = slot.generation.wrapping_add(1);
        let is_exposed = !slot.exposed.is_empty();
        let (part_of, was_lease) = (slot.part_of.take(), slot.lease.take().is_some());
        slot.close();
        if let Some(lease) = part_of.and_then(|lease| slots.get_mut(lease as usize)) {
            if let Some(leased) = &mut lease.lease {
                leased.users -= 1;
            }
            // A peer that has not written yet shall not find its way there afterwards.
            if is_exposed {
                lease.forget();
            }
        }
        if was_lease {
            self.leases.borrow_mut().retain(|lease| *lease != loan.slot);
            let parts = slots.iter_mut().filter(|slot| slot.part_of == Some(loan.slot));
            parts.for_each(|part| part.part_of = None);
        }
        self.free.borrow_mut().push(loan.slot);
    }

    /// `length` zeros that belong to the desk until they are [given up](Loans::give_up).
    pub fn keep(&self, length: usize) -> Loan {
        let spare = self.take_spare(length);
        let own = match spare {
            Some((_, own)) => own,
            None => NonNull::from(Box::leak(vec![0; length].into_boxed_slice())),
        };
        let raw = Raw { first: own.as_ptr().cast(), length, writable: true };
        match spare {
            Some((at, _)) => {
                // SAFETY: the bytes are the desk's own and stand for nothing yet, and no peer's device
                // may write to them: `give_up` has seen to that.
                unsafe { raw.first.write_bytes(0, length) };
                let slot = &mut self.slots.borrow_mut()[at as usize];
                slot.raw = Some(raw);
                Loan { slot: at, generation: slot.generation }
            }
            None => {
                let loan = self.insert(raw);
                self.slots.borrow_mut()[loan.slot as usize].own = Some(own);
                loan
            }
        }
    }

    /// Gives up memory that [`Loans::keep`] has made; nothing where somebody else lends it, or where
    /// it is in use. What devices know of it is kept for some time.
    pub fn give_up(&self, loan: Loan) {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(loan.slot as usize) else { return };
        let is_own = slot.generation == loan.generation && slot.own.is_some();
        if !is_own || slot.raw.is_none() || slot.readers.get() != 0 {
            return;
        }
        let length = slot.raw.map_or(0, |raw| raw.length);
        if slot.attachments.is_empty() || !slot.exposed.is_empty() || length > SPARE_BYTES {
            drop(slots);
            return self.remove(loan);
        }
        slot.raw = None;
        slot.generation = slot.generation.wrapping_add(1);
        let mut spare = self.spare.borrow_mut();
        spare.push(loan.slot);
        let bytes = |slots: &[Slot], spare: &[u32]| -> usize {
            let own = spare.iter().filter_map(|at| slots[*at as usize].own);
            own.map(|own| own.len()).sum()
        };
        while spare.len() > SPARE || bytes(&slots, &spare) > SPARE_BYTES {
            let oldest = spare.remove(0);
            slots[oldest as usize].close();
            self.free.borrow_mut().push(oldest);
        }
    }

    /// The latest spare memory of this length.
    fn take_spare(&self, length: usize) -> Option<(u32, NonNull<[u8]>)> {
        let (slots, mut spare) = (self.slots.borrow(), self.spare.borrow_mut());
        let own = |at: &u32| slots[*at as usize].own.filter(|own| own.len() == length);
        let at = spare.iter().rposition(|at| own(at).is_some())?;
        let slot = spare.remove(at);
        Some((slot, own(&slot)?))
    }

    /// How long it is, in bytes; `None` where it stands for nothing.
    pub fn length(&self, loan: Loan) -> Option<usize> {
        self.raw(loan).map(|raw| raw.length)
    }

    #[inline]
    fn raw(&self, loan: Loan) -> Option<Raw> {
        let slots = self.slots.borrow();
        let slot = slots.get(loan.slot as usize)?;
        if slot.generation == loan.generation { slot.raw } else { None }
    }

    /// Runs `reads` on these bytes. `None` where they are not lent, where a peer's device may write to
    /// them, or where a caller further up writes the same memory.
    #[inline]
    pub fn read<R>(
        &self,
        loan: Loan,
        range: Range<usize>,
        reads: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        let raw = within(self.raw(loan)?, &range)?;
        let one_more = |readers| (readers < WRITTEN - 1).then(|| readers + 1);
        let _open = self.open(loan, &range, one_more)?;
        // SAFETY: `within` has seen that the range lies inside the memory, which is lent: whoever
        // owns it has promised not to write to it, and waits for the desk's lock to take it back.
        // `open` has seen that no device may write there, and keeps this desk from writing to it
        // meanwhile.
        Some(reads(unsafe { slice::from_raw_parts(raw.first, raw.length) }))
    }

    /// The same with bytes that may be written, which memory lent to be read has none of, and which
    /// nobody further up reads.
    #[inline]
    pub fn write<R>(
        &self,
        loan: Loan,
        range: Range<usize>,
        writes: impl FnOnce(&mut [u8]) -> R,
    ) -> Option<R> {
        let raw = within(self.raw(loan)?, &range)?;
        if !raw.writable {
            return None;
        }
        let _open = self.open(loan, &range, |readers| (readers == 0).then_some(WRITTEN))?;
        // SAFETY: as above, and lent exclusively; `open` keeps this from being done twice at once.
        Some(writes(unsafe { slice::from_raw_parts_mut(raw.first, raw.length) }))
    }

    /// Runs `does` on two parts of the same memory, the first to be written. `None` also where they
    /// overlap.
    pub fn both<R>(
        &self,
        loan: Loan,
        (into, from): (Range<usize>, Range<usize>),
        does: impl FnOnce(&mut [u8], &[u8]) -> R,
    ) -> Option<R> {
        if into.start < from.end && from.start < into.end {
            return None;
        }
        let raw = within(self.raw(loan)?, &from)?;
        // Looked at here, since `write` looks at its own range alone.
        drop(self.open(loan, &from, Some)?);
        self.write(loan, into, |into| {
            // SAFETY: as in `read`, and `write` has found the loan in nobody else's use; the two
            // ranges have no byte in common, and no device may write to either. What lies between
            // is left alone, since a device may be writing to it.
            does(into, unsafe { slice::from_raw_parts(raw.first, raw.length) })
        })
    }

    /// A peer's device may write to these bytes from here on. False, and nothing is changed, where they
    /// are not lent to be written to, or somebody has a reference into the loan.
    pub fn expose(&self, loan: Loan, range: Range<usize>) -> bool {
        let is_there =
            self.raw(loan).and_then(|raw| within(raw, &range)).is_some_and(|raw| raw.writable);
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(loan.slot as usize).filter(|_| is_there) else {
            return false;
        };
        let is_free = slot.readers.get() == 0;
        if is_free {
            slot.exposed.push(range);
        }
        is_free
    }

    /// The peer has said that it has written these bytes, which were [exposed](Loans::expose), and will
    /// not again. It is believed, as one that shares memory is: one that writes all the same makes bytes
    /// change while they are read.
    pub fn conceal(&self, loan: Loan, range: &Range<usize>) {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get_mut(loan.slot as usize);
        if let Some(slot) = slot.filter(|slot| slot.generation == loan.generation)
            && let Some(at) = slot.exposed.iter().position(|exposed| exposed == range)
        {
            slot.exposed.swap_remove(at);
        }
    }

    /// Hands to `uses` what `key` has attached to a loan, and where in that the loan's memory begins.
    /// The first time it is not there yet: `makes` is run by a thread that has left the desk, and
    /// what it makes is dropped before the memory goes back to its owner. Where the memory is part
    /// of a lease's, it is attached to that, and is there the next time. One key attaches one type;
    /// neither closure comes back to the loans.
    pub fn attached<A: Any + Send, R>(
        &self,
        loan: Loan,
        key: usize,
        makes: impl FnOnce(Held) -> Option<A> + Send + 'static,
        uses: impl FnOnce(&A, usize) -> R,
    ) -> Attached<R> {
        let Some(raw) = self.raw(loan) else { return Attached::Unable };
        let mut slots = self.slots.borrow_mut();
        let whole = self.whole(&mut slots, loan.slot, raw);
        let Some(told) = slots[whole as usize].raw else { return Attached::Unable };
        let known = slots[whole as usize].attachments.iter().find(|known| known.key == key);
        if let Some(known) = known {
            return known.used(|what| uses(what, raw.first.addr() - told.first.addr()));
        }
        if slots[whole as usize].lease.is_some() {
            self.make_room(&mut slots, whole);
        }
        let memory = (told.first, told.length, told.writable);
        let (attachment, job) = Attachment::begin(key, memory, makes);
        slots[whole as usize].attachments.push(attachment);
        self.jobs.borrow_mut().push(job);
        Attached::Later
    }

    /// The slot whose memory devices are told of for a loan: a lease's where it is part of one.
    fn whole(&self, slots: &mut [Slot], at: u32, raw: Raw) -> u32 {
        let own = &slots[at as usize];
        if own.lease.is_some() || (own.part_of.is_none() && !own.attachments.is_empty()) {
            return at;
        }
        let found =
            own.part_of.or_else(|| {
                let leases = self.leases.borrow();
                leases.iter().rev().copied().find(|lease| {
                    slots[*lease as usize].raw.is_some_and(|lease| lease.contains(raw))
                })
            });
        let Some(lease) = found else { return at };
        let is_first = slots[at as usize].part_of.replace(lease).is_none();
        self.uses.set(self.uses.get() + 1);
        if let Some(leased) = &mut slots[lease as usize].lease {
            leased.users += u32::from(is_first);
            leased.used = self.uses.get();
        }
        lease
    }

    /// Has devices forget leases that are not in use, those first that were used longest ago, until
    /// another than `but` may be told of.
    fn make_room(&self, slots: &mut [Slot], but: u32) {
        loop {
            let leases = self.leases.borrow();
            let told = leases.iter().filter(|at| !slots[**at as usize].attachments.is_empty());
            let told: Vec<u32> = told.copied().filter(|at| *at != but).collect();
            let idle = |at: &u32| slots[*at as usize].lease.filter(|leased| leased.users == 0);
            let oldest = told.iter().filter_map(|at| Some((idle(at)?.used, *at))).min();
            match oldest {
                Some((_, oldest)) if told.len() >= LEASES => slots[oldest as usize].forget(),
                _ => return,
            }
        }
    }

    /// Memory whose owner keeps it where it is for longer than one loan.
    pub(super) fn lease(&self, raw: Raw) -> Loan {
        let loan = self.insert(raw);
        self.uses.set(self.uses.get() + 1);
        let leased = Leased { users: 0, used: self.uses.get() };
        self.slots.borrow_mut()[loan.slot as usize].lease = Some(leased);
        self.leases.borrow_mut().push(loan.slot);
        loan
    }

    /// Whether loans of a lease's memory are in use by devices.
    pub(super) fn is_in_use(&self, lease: Loan) -> bool {
        let slots = self.slots.borrow();
        let slot =
            slots.get(lease.slot as usize).filter(|slot| slot.generation == lease.generation);
        slot.and_then(|slot| slot.lease).is_some_and(|leased| leased.users > 0)
    }

    /// Takes the jobs for a thread that has left the desk.
    pub(super) fn take_jobs(&self) -> Option<Vec<Job>> {
        let mut jobs = self.jobs.borrow_mut();
        (!jobs.is_empty()).then(|| std::mem::take(&mut *jobs))
    }

    /// One more has a reference into it, if `also` says how many they are then.
    #[inline]
    fn open(
        &self,
        loan: Loan,
        range: &Range<usize>,
        also: impl FnOnce(u32) -> Option<u32>,
    ) -> Option<Open<'_>> {
        let slots = self.slots.borrow();
        let slot = slots.get(loan.slot as usize)?;
        // A lease's memory is its owner's to look at: the desk only tells devices of it.
        if slot.lease.is_some() || slot.exposed.iter().any(|exposed| overlap(exposed, range)) {
            return None;
        }
        let before = slot.readers.get();
        slot.readers.set(also(before)?);
        Some(Open { loans: self, slot: loan.slot, before })
    }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

fn within(raw: Raw, range: &Range<usize>) -> Option<Raw> {
    if range.start > range.end || range.end > raw.length {
        return None;
    }
    if raw.length == 0 {
        let first = std::ptr::NonNull::dangling().as_ptr();
        return Some(Raw { first, ..raw });
    }
    // SAFETY: the offset is not beyond the end of the memory.
    let first = unsafe { raw.first.add(range.start) };
    Some(Raw { first, length: range.len(), writable: raw.writable })
}

/// A reference is in use; dropped with it.
struct Open<'l> {
    loans: &'l Loans,
    slot: u32,
    before: u32,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.loans.slots.borrow().get(self.slot as usize) {
            slot.readers.set(self.before);
        }
    }
}
