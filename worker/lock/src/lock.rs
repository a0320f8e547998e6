//! The lock: its guard, buffers that are lent for a call or a scope, and regions.
//!
//! A *region* is memory that RDMA devices register once; buffers that are lent inside the region
//! use the region's registrations, its *attachments*.

use crate::attachment;
use crate::attachment::{Memory, RawBuffer};
use crate::buffers::{BufferId, BufferTable};
use rlaunch_sys::{ForkGeneration, Pages};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Data that the lock protects.
#[derive(Debug)]
struct Inner<T> {
    engine: T,
    buffers: BufferTable,
}

/// Lock around an engine and the buffers that are lent to it.
#[derive(Debug)]
pub struct EngineLock<T> {
    inner: ManuallyDrop<Mutex<Inner<T>>>,
    /// Notified by [`EngineLock::wake_all`].
    wakes: Condvar,
    /// Number of threads that wait for the lock.
    waiting: AtomicUsize,
    on_release: fn(&mut T),
    created_in: ForkGeneration,
    /// Number that identifies this lock in the process. Each [`RegionId`] contains the number of
    /// its lock.
    id: u64,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

impl<T> EngineLock<T> {
    /// Creates a lock around `engine`, to which no buffer is lent yet. `on_release` runs each time
    /// before a thread releases the lock, including releases by [`EngineGuard::wait`].
    pub fn new(engine: T, on_release: fn(&mut T)) -> EngineLock<T> {
        EngineLock {
            inner: ManuallyDrop::new(Mutex::new(Inner { engine, buffers: BufferTable::default() })),
            wakes: Condvar::new(),
            waiting: AtomicUsize::new(0),
            on_release,
            created_in: ForkGeneration::current(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Tells whether this process is a fork(2) child of the process that created the lock. The
    /// child has a copy of the lock, which must not be used: its connections and device memory
    /// belong to the parent, and the lock may be held by a thread that does not exist in the child.
    /// Dropping the copy drops nothing.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.created_in.is_inherited()
    }

    /// Acquires the lock, waiting for the thread that holds it.
    ///
    /// # Panics
    /// Panics in a process that [has inherited the lock](EngineLock::is_inherited).
    #[inline]
    pub fn lock(&self) -> EngineGuard<'_, T> {
        EngineGuard { lock: self, guard: Some(self.acquire()) }
    }

    /// Wakes every thread that waits in [`EngineGuard::wait`].
    #[inline]
    pub fn wake_all(&self) {
        self.wakes.notify_all();
    }

    /// Acquires the lock. Ignores poison: after a panic of a thread that held the lock, the engine
    /// is still consistent; at most one of its operations never ends.
    #[inline]
    fn acquire(&self) -> MutexGuard<'_, Inner<T>> {
        assert!(!self.is_inherited(), "this lock belongs to the parent of this process");
        match self.inner.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.acquire_contended(),
        }
    }

    #[cold]
    fn acquire_contended(&self) -> MutexGuard<'_, Inner<T>> {
        // Relaxed: the count is only a hint to release the lock soon and guards nothing.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Acquires the lock and lends `memory` while `works` runs. `works` gets the guard and the ids
    /// of the lent buffers.
    #[inline]
    pub fn lend<const N: usize, R>(
        &self,
        mut memory: [Memory<'_>; N],
        works: impl FnOnce(&mut EngineGuard<'_, T>, [BufferId; N]) -> R,
    ) -> R {
        let raws = memory.each_mut().map(Memory::raw);
        let mut guard = self.lock();
        let inner = guard.inner();
        let ids = raws.map(|raw| inner.buffers.insert(raw));
        // Dropped after `works`, also when it panics, and before `memory`.
        let mut reclaim = ReclaimCall { lock: self, guard, ids };
        works(&mut reclaim.guard, ids)
    }

    /// Runs `works`, which may lend memory through the scope and acquire the lock any number of
    /// times. Takes all memory that was lent through the scope back before returning.
    pub fn scope<'env, R>(
        &'env self,
        works: impl for<'scope> FnOnce(&'scope LendingScope<'scope, 'env, T>) -> R,
    ) -> R {
        let lent = Rc::new(RefCell::new(Vec::new()));
        // Dropped after `scope`, also when `works` panics.
        let _reclaim = ReclaimScope { lock: self, lent: lent.clone() };
        let scope = LendingScope { lock: self, lent, scope: PhantomData, env: PhantomData };
        works(&scope)
    }

    /// Lends `length` bytes at `first` until they are [taken back](EngineLock::take_back).
    ///
    /// # Safety
    ///
    /// Until [`EngineLock::take_back`] has returned for this buffer, the bytes stay readable, and, if
    /// `writable`, nothing else reads or writes them.
    pub unsafe fn lend_raw(&self, first: *mut u8, length: usize, writable: bool) -> BufferId {
        self.acquire().buffers.insert(RawBuffer::new(first, length, writable))
    }

    /// Takes a lent buffer back: neither the engine nor a device accesses its memory afterwards.
    pub fn take_back(&self, buffer: BufferId) {
        // An inherited copy touches no memory anyway, and its lock may be held for ever.
        if !self.is_inherited() {
            self.acquire().buffers.remove(buffer);
        }
    }

    /// Registers a region: `length` bytes at `first` that stay in place, so that each device
    /// registers them only once. Buffers that are lent inside the region use the region's
    /// [attachments](BufferTable::with_attachment).
    ///
    /// `attach` is called with the region's id, to request attachments for the devices that already
    /// exist. The engine cannot access bytes by the region's id, only by the ids of buffers that
    /// are lent inside the region.
    ///
    /// # Safety
    ///
    /// Until [`EngineLock::unregister`] has succeeded for the region, or [`EngineLock::revoke`] has
    /// returned, the bytes stay mapped, writable if `writable` is set.
    pub unsafe fn register_raw(
        &self,
        (first, length, writable): (*mut u8, usize, bool),
        attach: impl FnOnce(&mut T, &BufferTable, BufferId),
    ) -> RegionId {
        let mut guard = self.lock();
        let (engine, buffers) = guard.attach_and_split();
        let buffer = buffers.insert_region(RawBuffer::new(first, length, writable));
        attach(engine, buffers, buffer);
        RegionId { lock: self.id, buffer }
    }

    /// Registers pages of this process as a region, as [`EngineLock::register_raw`] does.
    pub fn register_pages(
        &self,
        pages: Pages,
        attach: impl FnOnce(&mut T, &BufferTable, BufferId),
    ) -> RegionPages {
        let memory = (pages.as_ptr(), pages.length(), true);
        // SAFETY: the pages stay in place until `unregister_pages` drops them, after the region is
        // unregistered. If the returned value is merely dropped, the pages are leaked.
        let region = unsafe { self.register_raw(memory, attach) };
        RegionPages { pages: ManuallyDrop::new(pages), region }
    }

    /// Unregisters a region: devices drop their registrations of the region. Returns the region
    /// unchanged, as an error, while a lent buffer uses these registrations, if the region belongs
    /// to another lock, or in a process that has inherited the lock.
    pub fn unregister(&self, region: RegionId) -> Result<(), RegionId> {
        if region.lock != self.id || self.is_inherited() {
            return Err(region);
        }
        let inner = self.acquire();
        if inner.buffers.is_in_use(region.buffer) {
            return Err(region);
        }
        inner.buffers.remove(region.buffer);
        Ok(())
    }

    /// Unregisters a region even while it is in use: a transfer in which a device still accesses
    /// the region fails, together with its queue pair. Does nothing for a region of another lock.
    pub fn revoke(&self, region: RegionId) {
        if region.lock == self.id {
            self.take_back(region.buffer);
        }
    }

    /// Unregisters a region's pages and frees them. Leaks the pages if [`EngineLock::unregister`]
    /// fails for the region.
    pub fn unregister_pages(&self, region: RegionPages) {
        let RegionPages { pages, region } = region;
        if self.unregister(region).is_ok() {
            drop(ManuallyDrop::into_inner(pages));
        }
    }
}

/// Drops nothing in a fork(2) child, because the connections and devices there belong to the parent
/// process.
impl<T> Drop for EngineLock<T> {
    fn drop(&mut self) {
        if !self.is_inherited() {
            // SAFETY: it is dropped only here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

/// Id of a region, from [`EngineLock::register_raw`]. Does not unregister the region when dropped.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "only its lock can unregister it"]
pub struct RegionId {
    /// [`EngineLock::id`] of the lock that the region belongs to.
    lock: u64,
    buffer: BufferId,
}

/// Pages of this process that are a region, from [`EngineLock::register_pages`]. If this value is
/// dropped instead of being passed to [`EngineLock::unregister_pages`], the pages are leaked.
#[derive(Debug)]
#[must_use = "only its lock can free it"]
pub struct RegionPages {
    pages: ManuallyDrop<Pages>,
    region: RegionId,
}

impl RegionPages {
    /// Returns the bytes of the pages. While the returned slice exists, no message is received into
    /// the pages, because receiving borrows this value mutably.
    pub fn bytes(&self) -> &[u8] {
        self.pages.bytes()
    }

    /// Returns the bytes of the pages for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.pages.bytes_mut()
    }
}

/// Buffers that one call of [`EngineLock::lend`] has lent. Dropping this value takes them back.
struct ReclaimCall<'l, T, const N: usize> {
    lock: &'l EngineLock<T>,
    guard: EngineGuard<'l, T>,
    ids: [BufferId; N],
}

impl<T, const N: usize> Drop for ReclaimCall<'_, T, N> {
    fn drop(&mut self) {
        // The caller's closure had `&mut` to the guard, and may have swapped it with the guard of
        // another lock.
        if std::ptr::eq(self.guard.lock, self.lock)
            && let Some(guard) = &self.guard.guard
        {
            self.ids.iter().for_each(|id| guard.buffers.remove(*id));
            return;
        }
        self.guard.release();
        self.ids.iter().for_each(|id| self.lock.take_back(*id));
    }
}

/// Exclusive access to the engine; releases the lock when dropped.
#[derive(Debug)]
pub struct EngineGuard<'l, T> {
    lock: &'l EngineLock<T>,
    guard: Option<MutexGuard<'l, Inner<T>>>,
}

impl<'l, T> EngineGuard<'l, T> {
    #[inline]
    fn inner(&mut self) -> &mut Inner<T> {
        self.guard.get_or_insert_with(|| self.lock.acquire())
    }

    /// Returns the engine and the buffers that the engine may access. If
    /// [attachments](BufferTable::with_attachment) were requested, releases the lock first, and
    /// acquires it again after making them.
    #[inline]
    pub fn attach_and_split(&mut self) -> (&mut T, &BufferTable) {
        if let Some(jobs) = self.inner().buffers.take_jobs() {
            self.unlocked(|| jobs.into_iter().for_each(attachment::Job::run));
        }
        let inner = self.inner();
        (&mut inner.engine, &inner.buffers)
    }

    /// Tells whether another thread waits for the lock.
    #[inline]
    pub fn is_contended(&self) -> bool {
        self.lock.waiting.load(Ordering::Relaxed) > 0
    }

    #[inline]
    fn release(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            (self.lock.on_release)(&mut guard.engine);
        }
    }

    /// Releases the lock, waits until [`EngineLock::wake_all`] is called, for at most `longest`,
    /// and acquires the lock again.
    pub fn wait(&mut self, longest: Duration) {
        if let Some(mut guard) = self.guard.take() {
            (self.lock.on_release)(&mut guard.engine);
            let waited = self.lock.wakes.wait_timeout(guard, longest);
            self.guard = Some(waited.unwrap_or_else(PoisonError::into_inner).0);
        }
    }

    /// Releases the lock while `works` runs, then acquires it again.
    pub fn unlocked<R>(&mut self, works: impl FnOnce() -> R) -> R {
        self.release();
        let result = works();
        self.guard = Some(self.lock.acquire());
        result
    }
}

impl<T> Drop for EngineGuard<'_, T> {
    fn drop(&mut self) {
        let jobs = self.guard.as_ref().and_then(|guard| guard.buffers.take_jobs());
        self.release();
        jobs.into_iter().flatten().for_each(attachment::Job::run);
    }
}

/// Scope that lends memory to the engine until the scope ends, see [`EngineLock::scope`].
#[derive(Debug)]
pub struct LendingScope<'scope, 'env: 'scope, T> {
    lock: &'env EngineLock<T>,
    lent: Rc<RefCell<Vec<BufferId>>>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'scope, 'env, T> LendingScope<'scope, 'env, T> {
    /// Lends memory until the scope ends.
    pub fn lend(&'scope self, mut memory: Memory<'env>) -> BufferId {
        let buffer = self.lock.acquire().buffers.insert(memory.raw());
        self.lent.borrow_mut().push(buffer);
        buffer
    }
}

/// Buffers that were lent through a [`LendingScope`]. Dropping this value takes them back.
struct ReclaimScope<'l, T> {
    lock: &'l EngineLock<T>,
    lent: Rc<RefCell<Vec<BufferId>>>,
}

impl<T> Drop for ReclaimScope<'_, T> {
    fn drop(&mut self) {
        if self.lock.is_inherited() {
            return;
        }
        let inner = self.lock.acquire();
        self.lent.borrow_mut().drain(..).for_each(|buffer| inner.buffers.remove(buffer));
    }
}
