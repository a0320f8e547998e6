//! State behind a lock that works on memory which is lent to it for a time.
//!
//! Messages are sent from and received into their callers' own memory, by whichever thread happens
//! to make progress. So the state keeps [`Loan`]s, which are mere numbers, and reaches the memory
//! behind one only as long as it is lent: [`Desk::lend`] and [`Desk::scope`] do not return before
//! they have taken theirs back, as `std::thread::scope` does not before its threads have ended.

use crate::held::Held;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ops::Range;
use std::rc::Rc;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

/// Memory that is lent, as a name for it. It may outlive the memory, and then stands for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    slot: u32,
    generation: u32,
}

/// Memory to be lent.
#[derive(Debug)]
pub enum Memory<'a> {
    /// To be read.
    Shared(&'a [u8]),
    /// To be read and written.
    Exclusive(&'a mut [u8]),
}

impl Memory<'_> {
    fn raw(&mut self) -> Raw {
        match self {
            Memory::Shared(bytes) => {
                Raw { first: bytes.as_ptr().cast_mut(), length: bytes.len(), writable: false }
            }
            Memory::Exclusive(bytes) => {
                Raw { first: bytes.as_mut_ptr(), length: bytes.len(), writable: true }
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Raw {
    first: *mut u8,
    length: usize,
    writable: bool,
}

impl Raw {
    const NONE: Raw = Raw { first: std::ptr::null_mut(), length: 0, writable: false };
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    raw: Option<Raw>,
    /// So many read it; [`WRITTEN`] where somebody writes it.
    readers: Cell<u32>,
    /// Where the memory is the desk's own.
    own: Option<Box<[u8]>>,
    /// What devices have been told of it, by who told them.
    attached: Vec<Attached>,
}

#[derive(Debug)]
struct Attached {
    key: usize,
    what: Box<dyn Any + Send>,
    alive: Weak<()>,
}

impl Slot {
    /// No device reaches the memory from here on, nor does anybody else.
    fn close(&mut self) {
        debug_assert!(self.readers.get() == 0, "memory is taken back while it is used");
        for Attached { what, alive, .. } in self.attached.drain(..) {
            drop(what);
            if alive.strong_count() > 0 {
                eprintln!("rlaunch: memory is taken back that a device may still write to");
                std::process::abort();
            }
        }
        self.own = None;
    }
}

/// In place of a number of readers.
const WRITTEN: u32 = u32::MAX;

/// All that is lent.
#[derive(Debug, Default)]
pub struct Loans {
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u32>>,
}

// SAFETY: the pointers are to bytes, which any thread may use while they are lent, and they are
// followed under the desk's lock alone.
unsafe impl Send for Loans {}

impl Loans {
    fn insert(&self, raw: Raw, own: Option<Box<[u8]>>) -> Loan {
        let mut slots = self.slots.borrow_mut();
        if let Some(at) = self.free.borrow_mut().pop() {
            let slot = &mut slots[at as usize];
            (slot.raw, slot.own) = (Some(raw), own);
            return Loan { slot: at, generation: slot.generation };
        }
        // Memory for 2^32 slots is more than there is.
        let at = slots.len() as u32;
        let readers = Cell::new(0);
        slots.push(Slot { generation: 0, raw: Some(raw), readers, own, attached: Vec::new() });
        Loan { slot: at, generation: 0 }
    }

    /// What stands for it stands for nothing from here on.
    fn remove(&self, loan: Loan) {
        let mut slots = self.slots.borrow_mut();
        if let Some(slot) = slots.get_mut(loan.slot as usize)
            && slot.generation == loan.generation
            && slot.raw.take().is_some()
        {
            slot.close();
            slot.generation = slot.generation.wrapping_add(1);
            self.free.borrow_mut().push(loan.slot);
        }
    }

    /// `length` zeros that belong to the desk until they are [given up](Loans::give_up).
    pub fn keep(&self, length: usize) -> Loan {
        let mut own = vec![0; length].into_boxed_slice();
        let raw = Raw { first: own.as_mut_ptr(), length, writable: true };
        self.insert(raw, Some(own))
    }

    /// Frees memory that [`Loans::keep`] has made; nothing where somebody else lends it, or where
    /// it is in use.
    pub fn give_up(&self, loan: Loan) {
        let is_own = self.slots.borrow().get(loan.slot as usize).is_some_and(|slot| {
            slot.generation == loan.generation && slot.own.is_some() && slot.readers.get() == 0
        });
        if is_own {
            self.remove(loan);
        }
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

    /// Runs `reads` on these bytes. `None` where they are not lent, or where a caller further up
    /// writes the same memory.
    #[inline]
    pub fn read<R>(
        &self,
        loan: Loan,
        range: Range<usize>,
        reads: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        let raw = within(self.raw(loan)?, &range)?;
        let _open = self.open(loan, |readers| (readers < WRITTEN - 1).then(|| readers + 1))?;
        // SAFETY: `within` has seen that the range lies inside the memory, which is lent: whoever
        // owns it has promised not to write to it, and waits for the desk's lock to take it back.
        // `open` keeps this desk from writing to it meanwhile.
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
        let _open = self.open(loan, |readers| (readers == 0).then_some(WRITTEN))?;
        // SAFETY: as above, and lent exclusively; `open` keeps this from being done twice at once.
        Some(writes(unsafe { slice::from_raw_parts_mut(raw.first, raw.length) }))
    }

    /// Hands to `uses` what `key` has attached to a loan: made by `attaches` the first time, and
    /// dropped before the memory goes back to its owner. `None` where nothing is lent, or where
    /// `attaches` makes nothing. One key attaches one type; neither closure comes back to the
    /// loans.
    pub fn attached<A: Any + Send, R>(
        &self,
        loan: Loan,
        key: usize,
        attaches: impl FnOnce(Held) -> Option<A>,
        uses: impl FnOnce(&A) -> R,
    ) -> Option<R> {
        let raw = self.raw(loan)?;
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get_mut(loan.slot as usize)?;
        let known = slot.attached.iter().position(|attached| attached.key == key);
        let at = match known {
            Some(at) => at,
            None => {
                let alive = Arc::new(());
                let watched = Arc::downgrade(&alive);
                let what = attaches(Held::new(raw.first, raw.length, raw.writable, alive));
                // Kept even where it is none: whoever let the memory escape is found out.
                let what: Box<dyn Any + Send> = Box::new(what);
                slot.attached.push(Attached { key, what, alive: watched });
                slot.attached.len() - 1
            }
        };
        slot.attached[at].what.downcast_ref::<Option<A>>()?.as_ref().map(uses)
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
        self.write(loan, into, |into| {
            // SAFETY: as in `read`, and `write` has found the loan in nobody else's use; the two
            // ranges have no byte in common. What lies between them is left alone, since a device
            // may be writing to it.
            does(into, unsafe { slice::from_raw_parts(raw.first, raw.length) })
        })
    }

    /// One more has a reference into it, if `also` says how many they are then.
    #[inline]
    fn open(&self, loan: Loan, also: impl FnOnce(u32) -> Option<u32>) -> Option<Open<'_>> {
        let slots = self.slots.borrow();
        let readers = &slots.get(loan.slot as usize)?.readers;
        let before = readers.get();
        readers.set(also(before)?);
        Some(Open { loans: self, slot: loan.slot, before })
    }
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

#[derive(Debug)]
struct Drawer<T> {
    state: T,
    loans: Loans,
}

/// State, and the memory that is lent to it.
#[derive(Debug)]
pub struct Desk<T> {
    drawer: Mutex<Drawer<T>>,
    bell: Condvar,
    /// So many wait for whoever is at it.
    waiting: AtomicUsize,
    leaves: fn(&mut T),
}

impl<T> Desk<T> {
    /// With nothing lent. Whoever leaves it, for good or for a time, does `leaves` last.
    pub fn new(state: T, leaves: fn(&mut T)) -> Desk<T> {
        let drawer = Mutex::new(Drawer { state, loans: Loans::default() });
        Desk { drawer, bell: Condvar::new(), waiting: AtomicUsize::new(0), leaves }
    }

    /// Waits for whoever is at it.
    #[inline]
    pub fn sit(&self) -> Sitting<'_, T> {
        Sitting { desk: self, guard: Some(self.lock()) }
    }

    /// Wakes everybody who [waits](Sitting::wait).
    #[inline]
    pub fn wake_all(&self) {
        self.bell.notify_all();
    }

    /// A state in which somebody has panicked is not unsound, only unfinished.
    #[inline]
    fn lock(&self) -> MutexGuard<'_, Drawer<T>> {
        match self.drawer.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.queue(),
        }
    }

    #[cold]
    fn queue(&self) -> MutexGuard<'_, Drawer<T>> {
        // A number that others read to be polite: it guards nothing.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.drawer.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Lends memory as long as `works` runs, which sits at the desk.
    #[inline]
    pub fn lend<const N: usize, R>(
        &self,
        mut memory: [Memory<'_>; N],
        works: impl FnOnce(&mut Sitting<'_, T>, [Loan; N]) -> R,
    ) -> R {
        let raws = memory.each_mut().map(Memory::raw);
        let mut sitting = self.sit();
        let drawer = sitting.drawer();
        let loans = raws.map(|raw| drawer.loans.insert(raw, None));
        // Dropped after `works`, however it ends, and before `memory`.
        let mut lent = Lent { desk: self, sitting, loans };
        works(&mut lent.sitting, loans)
    }

    /// Lends memory for as long as `works` runs, which may come and go.
    pub fn scope<'env, R>(
        &'env self,
        works: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env, T>) -> R,
    ) -> R {
        let lent = Rc::new(RefCell::new(Vec::new()));
        // Dropped after `scope`, however `works` ends.
        let _ends = Ends { desk: self, lent: lent.clone() };
        let scope = Scope { desk: self, lent, scope: PhantomData, env: PhantomData };
        works(&scope)
    }

    /// Lends memory until it is [taken back](Desk::take_back).
    ///
    /// # Safety
    ///
    /// `length` bytes at `first` are readable, and, if `writable`, written by nobody else, until
    /// [`Desk::take_back`] has returned for the loan.
    pub unsafe fn lend_raw(&self, first: *mut u8, length: usize, writable: bool) -> Loan {
        let raw = if length == 0 {
            Raw { writable, ..Raw::NONE }
        } else {
            Raw { first, length, writable }
        };
        self.lock().loans.insert(raw, None)
    }

    /// What the loan stands for is not touched any more.
    pub fn take_back(&self, loan: Loan) {
        self.lock().loans.remove(loan);
    }
}

/// Takes back what was lent for one call.
struct Lent<'d, T, const N: usize> {
    desk: &'d Desk<T>,
    sitting: Sitting<'d, T>,
    loans: [Loan; N],
}

impl<T, const N: usize> Drop for Lent<'_, T, N> {
    fn drop(&mut self) {
        // The sitting was in a caller's hands, who may have exchanged it for that of another desk.
        if std::ptr::eq(self.sitting.desk, self.desk)
            && let Some(guard) = &self.sitting.guard
        {
            self.loans.iter().for_each(|loan| guard.loans.remove(*loan));
            return;
        }
        self.sitting.leave();
        self.loans.iter().for_each(|loan| self.desk.take_back(*loan));
    }
}

/// Somebody is at the desk, and nobody else.
#[derive(Debug)]
pub struct Sitting<'d, T> {
    desk: &'d Desk<T>,
    guard: Option<MutexGuard<'d, Drawer<T>>>,
}

impl<'d, T> Sitting<'d, T> {
    #[inline]
    fn drawer(&mut self) -> &mut Drawer<T> {
        self.guard.get_or_insert_with(|| self.desk.lock())
    }

    /// The state, and the memory that it may work on.
    #[inline]
    pub fn parts(&mut self) -> (&mut T, &Loans) {
        let drawer = self.drawer();
        (&mut drawer.state, &drawer.loans)
    }

    /// Whether somebody waits for this to end.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.desk.waiting.load(Ordering::Relaxed) > 0
    }

    #[inline]
    fn leave(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            (self.desk.leaves)(&mut guard.state);
        }
    }

    /// Leaves the desk to others until [`Desk::wake_all`], `longest` at most.
    pub fn wait(&mut self, longest: Duration) {
        if let Some(mut guard) = self.guard.take() {
            (self.desk.leaves)(&mut guard.state);
            let waited = self.desk.bell.wait_timeout(guard, longest);
            self.guard = Some(waited.unwrap_or_else(PoisonError::into_inner).0);
        }
    }

    /// Leaves the desk to others while `does` runs.
    pub fn away<R>(&mut self, does: impl FnOnce() -> R) -> R {
        self.leave();
        let done = does();
        self.guard = Some(self.desk.lock());
        done
    }
}

impl<T> Drop for Sitting<'_, T> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// What is lent until its end.
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope, T> {
    desk: &'env Desk<T>,
    lent: Rc<RefCell<Vec<Loan>>>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'scope, 'env, T> Scope<'scope, 'env, T> {
    /// Lends memory until the scope ends.
    pub fn lend(&'scope self, mut memory: Memory<'env>) -> Loan {
        let loan = self.desk.lock().loans.insert(memory.raw(), None);
        self.lent.borrow_mut().push(loan);
        loan
    }

    /// The desk that it is lent to.
    pub fn desk(&self) -> &'env Desk<T> {
        self.desk
    }
}

/// Takes back what a scope has lent.
struct Ends<'d, T> {
    desk: &'d Desk<T>,
    lent: Rc<RefCell<Vec<Loan>>>,
}

impl<T> Drop for Ends<'_, T> {
    fn drop(&mut self) {
        let drawer = self.desk.lock();
        self.lent.borrow_mut().drain(..).for_each(|loan| drawer.loans.remove(loan));
    }
}

#[cfg(test)]
mod tests;
