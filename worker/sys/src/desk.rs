//! State behind a lock that works on memory which is lent to it for a time.
//!
//! Messages are sent from and received into their callers' own memory, by whichever thread happens
//! to make progress. So the state keeps [`Loan`]s, which are mere numbers, and reaches the memory
//! behind one only as long as it is lent: [`Desk::lend`] and [`Desk::scope`] do not return before
//! they have taken theirs back, as `std::thread::scope` does not before its threads have ended.

mod attachment;
mod loans;

pub use attachment::Attached;
pub use loans::{Loan, Loans};

use crate::birth::Birth;
use crate::pages::Pages;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

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

    fn new(first: *mut u8, length: usize, writable: bool) -> Raw {
        if length == 0 { Raw { writable, ..Raw::NONE } } else { Raw { first, length, writable } }
    }

    /// Whether all of another lies in it, and may be written to here if there.
    fn contains(self, other: Raw) -> bool {
        let offset = other.first.addr().checked_sub(self.first.addr());
        let fits = offset
            .is_some_and(|offset| offset <= self.length && other.length <= self.length - offset);
        fits && other.length > 0 && (self.writable || !other.writable)
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
    drawer: ManuallyDrop<Mutex<Drawer<T>>>,
    bell: Condvar,
    /// So many wait for whoever is at it.
    waiting: AtomicUsize,
    leaves: fn(&mut T),
    birth: Birth,
    /// No two desks of a process have one.
    number: u64,
}

static NUMBERS: AtomicU64 = AtomicU64::new(0);

impl<T> Desk<T> {
    /// With nothing lent. Whoever leaves it, for good or for a time, does `leaves` last.
    pub fn new(state: T, leaves: fn(&mut T)) -> Desk<T> {
        let drawer = ManuallyDrop::new(Mutex::new(Drawer { state, loans: Loans::default() }));
        let (bell, waiting, birth) = (Condvar::new(), AtomicUsize::new(0), Birth::now());
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Desk { drawer, bell, waiting, leaves, birth, number }
    }

    /// Whether it belongs to the process that forked this one, which has a copy of it: connections
    /// and device memory in it are the parent's, and its lock may be held for ever. It is not to be
    /// used then, and nothing of it is dropped.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.birth.is_inherited()
    }

    /// Waits for whoever is at it.
    ///
    /// # Panics
    /// In a process that [has inherited it](Desk::is_inherited).
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
        assert!(!self.is_inherited(), "this belongs to the process that forked this one");
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
        let loans = raws.map(|raw| drawer.loans.insert(raw));
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
        self.lock().loans.insert(Raw::new(first, length, writable))
    }

    /// What the loan stands for is not touched any more.
    pub fn take_back(&self, loan: Loan) {
        // A copy of a parent's desk touches nothing anyway.
        if !self.is_inherited() {
            self.lock().loans.remove(loan);
        }
    }

    /// Takes memory whose owner keeps it where it is, so that devices need to be told of it once: loans
    /// of any part of it find what was [attached](Loans::attached) to it. `tell` attaches it to
    /// those that there are. The desk itself does not look at it.
    ///
    /// # Safety
    ///
    /// `length` bytes at `first` are mapped, and may be written to if `writable`, until
    /// [`Desk::end_lease`] has ended it; while they are part of no loan, devices do not touch them.
    pub unsafe fn lease_raw(
        &self,
        (first, length, writable): (*mut u8, usize, bool),
        tell: impl FnOnce(&mut T, &Loans, Loan),
    ) -> Lease {
        let mut sitting = self.sit();
        let (state, loans) = sitting.parts();
        let loan = loans.lease(Raw::new(first, length, writable));
        tell(state, loans, loan);
        Lease { desk: self.number, loan }
    }

    /// Takes memory of this process's own in the same way.
    pub fn lease(&self, pages: Pages, tell: impl FnOnce(&mut T, &Loans, Loan)) -> LeasedPages {
        let memory = (pages.as_ptr(), pages.length(), true);
        // SAFETY: the pages stay where they are until `end_lease_of` drops them, after the lease. Who
        // only drops what is returned leaks them.
        let lease = unsafe { self.lease_raw(memory, tell) };
        LeasedPages { pages: ManuallyDrop::new(pages), lease }
    }

    /// Has devices forget memory. Gives the lease back, and changes nothing, while messages are sent from
    /// or received into the memory, and where the lease is another desk's.
    pub fn end_lease(&self, lease: Lease) -> Result<(), Lease> {
        if lease.desk != self.number || self.is_inherited() {
            return Err(lease);
        }
        let drawer = self.lock();
        if drawer.loans.is_in_use(lease.loan) {
            return Err(lease);
        }
        drawer.loans.remove(lease.loan);
        Ok(())
    }

    /// Has devices forget memory, whoever uses it: what they still do with it fails, and their queue pairs
    /// with that.
    pub fn revoke(&self, lease: Lease) {
        if lease.desk == self.number {
            self.take_back(lease.loan);
        }
    }

    /// Frees own memory; leaks it while it is in use, and in a process that has inherited it.
    pub fn end_lease_of(&self, leased: LeasedPages) {
        let LeasedPages { pages, lease } = leased;
        if self.end_lease(lease).is_ok() {
            drop(ManuallyDrop::into_inner(pages));
        }
    }
}

/// A forked process has copies of its parent's things, which are not its own to give back.
impl<T> Drop for Desk<T> {
    fn drop(&mut self) {
        if !self.is_inherited() {
            // SAFETY: it is dropped here alone, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.drawer) };
        }
    }
}

/// Memory that devices were told of, until [`Desk::end_lease`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "only the desk can end it"]
pub struct Lease {
    /// Its number.
    desk: u64,
    loan: Loan,
}

/// Memory of this process's own that devices were told of, until [`Desk::end_lease_of`].
#[derive(Debug)]
#[must_use = "only the desk can free it"]
pub struct LeasedPages {
    pages: ManuallyDrop<Pages>,
    lease: Lease,
}

impl LeasedPages {
    /// Its bytes. No message is sent from or received into them: that would borrow this.
    pub fn bytes(&self) -> &[u8] {
        self.pages.bytes()
    }

    /// The same, to be written to.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.pages.bytes_mut()
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

    /// The state, and the memory that it may work on. What is to be [attached](Loans::attached) to that
    /// is made first, while others may sit here.
    #[inline]
    pub fn parts(&mut self) -> (&mut T, &Loans) {
        if let Some(jobs) = self.drawer().loans.take_jobs() {
            self.away(|| jobs.into_iter().for_each(attachment::Job::run));
        }
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
        let jobs = self.guard.as_ref().and_then(|guard| guard.loans.take_jobs());
        self.leave();
        jobs.into_iter().flatten().for_each(attachment::Job::run);
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
        let loan = self.desk.lock().loans.insert(memory.raw());
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
        if self.desk.is_inherited() {
            return;
        }
        let drawer = self.desk.lock();
        self.lent.borrow_mut().drain(..).for_each(|loan| drawer.loans.remove(loan));
    }
}

#[cfg(test)]
mod tests;
