//! Table of the buffers that the engine may access, and the rules for accessing them.
//!
//! A *lent* buffer is memory of the program until it is taken back; other buffers are the engine's
//! own. An *attachment* is the registration of a buffer with an RDMA device. A *region* is memory
//! that is registered once; buffers that are lent inside the region use the region's attachments. A
//! range is *exposed* while a peer's device may write to it.

use crate::attachment::{Attached, Attachment, Job, PinnedBuffer, RawBuffer};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

/// Maximum number of spare buffers: buffers of the engine that were freed, and are kept with their
/// attachments for the next allocation of the same length. All spare buffers together have at most
/// [`MAX_SPARE_BYTES`].
const MAX_SPARE: usize = 8;
const MAX_SPARE_BYTES: usize = 32 << 20;
/// Maximum number of regions that have attachments at the same time. Before one more region is
/// attached, the attachments of the region that was used longest ago are dropped, and made again at
/// its next use. Regions that lent buffers are using are never chosen, even beyond this maximum.
pub(crate) const MAX_REGISTERED: usize = if cfg!(test) { 8 } else { 1024 };

/// Id of a buffer. After the buffer was taken back or freed, its id is stale, and every access with
/// the id fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferId {
    slot: u32,
    generation: u32,
}

#[derive(Debug)]
struct Slot {
    /// Number of buffers that the slot has had before, so that the ids of earlier buffers are
    /// stale.
    generation: u32,
    raw: Option<RawBuffer>,
    /// Number of readers, or [`WRITTEN`] while the bytes are borrowed for writing.
    readers: Cell<u32>,
    /// Allocation of a buffer that the engine owns: a `Box` as a raw pointer, because moving a
    /// `Box` would invalidate pointers to its bytes.
    allocation: Option<NonNull<[u8]>>,
    /// Registrations of the buffer, one for each device.
    attachments: Vec<Attachment>,
    /// Ranges to which a peer's device may write. A range is removed when the peer has reported
    /// that it was written.
    exposed: Vec<Range<usize>>,
    /// Slot of the region that contains the buffer, once the buffer uses the region's attachments;
    /// `None` otherwise.
    part_of: Option<u32>,
    region: Option<RegionUse>,
}

/// Use of a region by lent buffers inside it.
#[derive(Clone, Copy, Debug, Default)]
struct RegionUse {
    /// Number of lent buffers that use the region's attachments instead of attachments of their
    /// own.
    users: u32,
    /// Value of [`BufferTable::region_uses`] at the region's last use.
    last_used: u64,
}

impl Slot {
    fn free() -> Slot {
        Slot {
            generation: 0,
            raw: None,
            readers: Cell::new(0),
            allocation: None,
            attachments: Vec::new(),
            exposed: Vec::new(),
            part_of: None,
            region: None,
        }
    }

    /// Drops all attachments, and then frees the allocation, if there is one. In this order, no
    /// device can access freed memory.
    fn close(&mut self) {
        debug_assert!(self.readers.get() == 0, "memory is taken back while it is being accessed");
        self.detach();
        self.exposed.clear();
        if let Some(allocation) = self.allocation.take() {
            // SAFETY: `allocate` has taken a box apart for it, and nothing points to its bytes any
            // more: no borrow is left, and devices have dropped their registrations.
            drop(unsafe { Box::from_raw(allocation.as_ptr()) });
        }
    }

    /// Drops the registrations of all devices.
    fn detach(&mut self) {
        self.attachments.drain(..).for_each(Attachment::end);
    }
}

/// Closes a buffer that still exists when the lock is dropped.
impl Drop for Slot {
    fn drop(&mut self) {
        self.close();
    }
}

/// Value of [`Slot::readers`] while the bytes are borrowed for writing.
const WRITTEN: u32 = u32::MAX;

/// Buffers that are lent to the engine, and buffers of the engine's own.
///
/// Bytes are accessed in closures, so that no reference to them outlives the lock. If an access
/// could alias, it returns `None` and does not call the closure. An access could alias within
/// another access to the same buffer (unless both only read), or if its bytes are
/// [exposed](BufferTable::expose) to a peer's device.
#[derive(Default)]
pub struct BufferTable {
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u32>>,
    regions: RefCell<Vec<u32>>,
    /// Slots of the spare buffers (see [`MAX_SPARE`]), in the order in which they were freed.
    spare: RefCell<Vec<u32>>,
    /// Jobs that make attachments, to be run by a thread that has released the lock.
    jobs: RefCell<Vec<Job>>,
    /// Number of uses of all regions so far. Serves as a clock that tells which region was used
    /// longest ago.
    region_uses: Cell<u64>,
}

impl std::fmt::Debug for BufferTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BufferTable").field("slots", &self.slots).finish_non_exhaustive()
    }
}

// SAFETY: the pointers are to bytes that any thread may use while they are lent, and they are
// followed only by the holder of the lock, or by a job (see there).
unsafe impl Send for BufferTable {}

impl BufferTable {
    pub(crate) fn insert(&self, raw: RawBuffer) -> BufferId {
        let mut slots = self.slots.borrow_mut();
        let index = self.free.borrow_mut().pop().unwrap_or_else(|| {
            slots.push(Slot::free());
            // 2^32 slots would not fit into memory.
            (slots.len() - 1) as u32
        });
        let slot = &mut slots[index as usize];
        slot.raw = Some(raw);
        BufferId { slot: index, generation: slot.generation }
    }

    /// Removes a buffer; its id is stale from now on. Does nothing for a stale id.
    pub(crate) fn remove(&self, buffer: BufferId) {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(buffer.slot as usize) else { return };
        if slot.generation != buffer.generation || slot.raw.take().is_none() {
            return;
        }
        slot.generation = slot.generation.wrapping_add(1);
        let is_exposed = !slot.exposed.is_empty();
        let (part_of, was_region) = (slot.part_of.take(), slot.region.take().is_some());
        slot.close();
        if let Some(region) = part_of.and_then(|region| slots.get_mut(region as usize)) {
            if let Some(region_use) = &mut region.region {
                region_use.users -= 1;
            }
            // A peer that was allowed to write to the buffer and has not reported it could still
            // write later.
            if is_exposed {
                region.detach();
            }
        }
        if was_region {
            self.regions.borrow_mut().retain(|region| *region != buffer.slot);
            let parts = slots.iter_mut().filter(|slot| slot.part_of == Some(buffer.slot));
            parts.for_each(|part| part.part_of = None);
        }
        self.free.borrow_mut().push(buffer.slot);
    }

    /// Allocates a buffer of `length` zero bytes that the engine owns until it is
    /// [freed](BufferTable::free). Reuses a freed buffer of this length with its attachments, if
    /// one was kept.
    pub fn allocate(&self, length: usize) -> BufferId {
        let spare = self.take_spare(length);
        let allocation = match spare {
            Some((_, allocation)) => allocation,
            None => NonNull::from(Box::leak(vec![0; length].into_boxed_slice())),
        };
        let raw = RawBuffer { first: allocation.as_ptr().cast(), length, writable: true };
        match spare {
            Some((index, _)) => {
                // SAFETY: the bytes are the table's own and no buffer's yet, and no peer's device
                // may write to them: `free` keeps no buffer with exposed bytes.
                unsafe { raw.first.write_bytes(0, length) };
                let slot = &mut self.slots.borrow_mut()[index as usize];
                slot.raw = Some(raw);
                BufferId { slot: index, generation: slot.generation }
            }
            None => {
                let buffer = self.insert(raw);
                self.slots.borrow_mut()[buffer.slot as usize].allocation = Some(allocation);
                buffer
            }
        }
    }

    /// Frees a buffer from [`BufferTable::allocate`]. If devices have registered the buffer, it is
    /// kept for a while, for a later allocation of the same length. Does nothing if the buffer is
    /// lent by a caller, or is being accessed.
    pub fn free(&self, buffer: BufferId) {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(buffer.slot as usize) else { return };
        let is_own = slot.generation == buffer.generation && slot.allocation.is_some();
        if !is_own || slot.raw.is_none() || slot.readers.get() != 0 {
            return;
        }
        let length = slot.raw.map_or(0, |raw| raw.length);
        if slot.attachments.is_empty() || !slot.exposed.is_empty() || length > MAX_SPARE_BYTES {
            drop(slots);
            return self.remove(buffer);
        }
        slot.raw = None;
        slot.generation = slot.generation.wrapping_add(1);
        let mut spare = self.spare.borrow_mut();
        spare.push(buffer.slot);
        let bytes = |slots: &[Slot], spare: &[u32]| -> usize {
            let spare = spare.iter().filter_map(|index| slots[*index as usize].allocation);
            spare.map(|allocation| allocation.len()).sum()
        };
        while spare.len() > MAX_SPARE || bytes(&slots, &spare) > MAX_SPARE_BYTES {
            let oldest = spare.remove(0);
            slots[oldest as usize].close();
            self.free.borrow_mut().push(oldest);
        }
    }

    /// Takes the spare buffer of this length that was freed last, if there is one.
    fn take_spare(&self, length: usize) -> Option<(u32, NonNull<[u8]>)> {
        let (slots, mut spare) = (self.slots.borrow(), self.spare.borrow_mut());
        let fitting = |index: &u32| {
            let allocation = slots[*index as usize].allocation;
            allocation.filter(|allocation| allocation.len() == length)
        };
        let position = spare.iter().rposition(|index| fitting(index).is_some())?;
        let index = spare.remove(position);
        Some((index, fitting(&index)?))
    }

    /// Returns the length of a buffer in bytes, or `None` for a stale id.
    pub fn length(&self, buffer: BufferId) -> Option<usize> {
        self.raw(buffer).map(|raw| raw.length)
    }

    #[inline]
    fn raw(&self, buffer: BufferId) -> Option<RawBuffer> {
        let slots = self.slots.borrow();
        let slot = slots.get(buffer.slot as usize)?;
        if slot.generation == buffer.generation { slot.raw } else { None }
    }

    /// Runs `reads` on a range of bytes. Returns `None` if the id is stale, the range is not inside
    /// the buffer, or the access could [alias](BufferTable).
    #[inline]
    pub fn read<R>(
        &self,
        buffer: BufferId,
        range: Range<usize>,
        reads: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        let raw = within(self.raw(buffer)?, &range)?;
        let one_more = |readers| (readers < WRITTEN - 1).then(|| readers + 1);
        let _borrow = self.borrow(buffer, &range, one_more)?;
        // SAFETY: `within` has checked that the range is inside the memory, which is lent: its owner
        // has promised not to write to it, and waits for the lock to take it back. `borrow` has
        // checked that no device may write there, and prevents writes through this table meanwhile.
        Some(reads(unsafe { slice::from_raw_parts(raw.first, raw.length) }))
    }

    /// Runs `writes` on a range of bytes. Returns `None` if the id is stale, the range is not
    /// inside the buffer, the access could [alias](BufferTable), or the buffer was lent read-only.
    #[inline]
    pub fn write<R>(
        &self,
        buffer: BufferId,
        range: Range<usize>,
        writes: impl FnOnce(&mut [u8]) -> R,
    ) -> Option<R> {
        let raw = within(self.raw(buffer)?, &range)?;
        if !raw.writable {
            return None;
        }
        let _borrow = self.borrow(buffer, &range, |readers| (readers == 0).then_some(WRITTEN))?;
        // SAFETY: as in `read`, and lent exclusively; `borrow` makes this the only access.
        Some(writes(unsafe { slice::from_raw_parts_mut(raw.first, raw.length) }))
    }

    /// Runs `works` on two ranges of one buffer: it writes to the first range, `into`, and reads
    /// the second, `from`. Returns `None` in the cases in which [`BufferTable::write`] does, and if
    /// the ranges overlap.
    pub fn read_write<R>(
        &self,
        buffer: BufferId,
        (into, from): (Range<usize>, Range<usize>),
        works: impl FnOnce(&mut [u8], &[u8]) -> R,
    ) -> Option<R> {
        if into.start < from.end && from.start < into.end {
            return None;
        }
        let raw = within(self.raw(buffer)?, &from)?;
        // `write` checks only its own range for exposed bytes; this checks `from`.
        drop(self.borrow(buffer, &from, Some)?);
        self.write(buffer, into, |into| {
            // SAFETY: as in `read`, and `write` has made this the only access to the buffer. The two
            // ranges have no byte in common, and no device may write to either. The slices do not
            // cover the bytes between them, which may be exposed.
            works(into, unsafe { slice::from_raw_parts(raw.first, raw.length) })
        })
    }

    /// Exposes a range to a peer's device, which may then write to it. Until
    /// [`BufferTable::conceal`], the range cannot be read or written through this table. Returns
    /// `false`, without any effect, if the range is not inside the buffer, or if the buffer was
    /// lent read-only or is being accessed.
    pub fn expose(&self, buffer: BufferId, range: Range<usize>) -> bool {
        let is_writable =
            self.raw(buffer).and_then(|raw| within(raw, &range)).is_some_and(|raw| raw.writable);
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(buffer.slot as usize).filter(|_| is_writable) else {
            return false;
        };
        let is_free = slot.readers.get() == 0;
        if is_free {
            slot.exposed.push(range);
        }
        is_free
    }

    /// Ends the [exposure](BufferTable::expose) of a range, because the peer has reported that its
    /// device has written the bytes and will not write to them again. This report is trusted, like
    /// the peer's writes to shared memory: if the device writes again nevertheless, bytes change
    /// while they are read.
    pub fn conceal(&self, buffer: BufferId, range: &Range<usize>) {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get_mut(buffer.slot as usize);
        if let Some(slot) = slot.filter(|slot| slot.generation == buffer.generation)
            && let Some(at) = slot.exposed.iter().position(|exposed| exposed == range)
        {
            slot.exposed.swap_remove(at);
        }
    }

    /// Passes the attachment of device `key` to `uses`, with the offset at which the buffer begins in
    /// the attached memory.
    ///
    /// The first call requests the attachment and returns [`Attached::Pending`]. A thread that has
    /// released the lock then runs `makes`, and later calls find the result. The attachment is
    /// dropped before the buffer is taken back.
    ///
    /// If the buffer lies inside a region, the whole region is attached instead, once for all
    /// buffers inside it. All attachments of a device must have the same type `A`. Neither closure
    /// may use this table.
    pub fn with_attachment<A: Any + Send, R>(
        &self,
        buffer: BufferId,
        key: usize,
        makes: impl FnOnce(PinnedBuffer) -> Option<A> + Send + 'static,
        uses: impl FnOnce(&A, usize) -> R,
    ) -> Attached<R> {
        let Some(raw) = self.raw(buffer) else { return Attached::Unavailable };
        let mut slots = self.slots.borrow_mut();
        let holder = self.attachment_holder(&mut slots, buffer.slot, raw);
        let Some(whole) = slots[holder as usize].raw else { return Attached::Unavailable };
        let known = slots[holder as usize].attachments.iter().find(|known| known.key == key);
        if let Some(known) = known {
            return known.with(|made| uses(made, raw.first.addr() - whole.first.addr()));
        }
        if slots[holder as usize].region.is_some() {
            self.evict_regions(&mut slots, holder);
        }
        let (attachment, job) = Attachment::begin(key, whole, makes);
        slots[holder as usize].attachments.push(attachment);
        self.jobs.borrow_mut().push(job);
        Attached::Pending
    }

    /// Returns the slot that holds the attachments for a buffer: the slot of the region that
    /// contains the buffer, or else the buffer's own slot.
    fn attachment_holder(&self, slots: &mut [Slot], index: u32, raw: RawBuffer) -> u32 {
        let slot = &slots[index as usize];
        if slot.region.is_some() || (slot.part_of.is_none() && !slot.attachments.is_empty()) {
            return index;
        }
        let found = slot.part_of.or_else(|| {
            let regions = self.regions.borrow();
            regions.iter().rev().copied().find(|region| {
                slots[*region as usize].raw.is_some_and(|region| region.contains(raw))
            })
        });
        let Some(region) = found else { return index };
        let is_first = slots[index as usize].part_of.replace(region).is_none();
        self.region_uses.set(self.region_uses.get() + 1);
        if let Some(region_use) = &mut slots[region as usize].region {
            region_use.users += u32::from(is_first);
            region_use.last_used = self.region_uses.get();
        }
        region
    }

    /// Drops the attachments of idle regions, least recently used first, until the region
    /// `newcomer` can be attached without exceeding [`MAX_REGISTERED`], or no region is idle. A
    /// region is idle while no lent buffer uses its attachments.
    fn evict_regions(&self, slots: &mut [Slot], newcomer: u32) {
        loop {
            let regions = self.regions.borrow();
            let attached = regions.iter().copied().filter(|index| {
                *index != newcomer && !slots[*index as usize].attachments.is_empty()
            });
            let attached: Vec<u32> = attached.collect();
            let idle =
                |index: &u32| slots[*index as usize].region.filter(|region| region.users == 0);
            let oldest =
                attached.iter().filter_map(|index| Some((idle(index)?.last_used, *index))).min();
            match oldest {
                Some((_, oldest)) if attached.len() >= MAX_REGISTERED => {
                    slots[oldest as usize].detach();
                }
                _ => return,
            }
        }
    }

    /// Inserts a region, see [`EngineLock::register_raw`](crate::EngineLock::register_raw).
    pub(crate) fn insert_region(&self, raw: RawBuffer) -> BufferId {
        let buffer = self.insert(raw);
        self.region_uses.set(self.region_uses.get() + 1);
        let region_use = RegionUse { users: 0, last_used: self.region_uses.get() };
        self.slots.borrow_mut()[buffer.slot as usize].region = Some(region_use);
        self.regions.borrow_mut().push(buffer.slot);
        buffer
    }

    /// Tells whether any buffer lent to the engine lies in this region and uses the region's device
    /// registrations instead of its own.
    pub(crate) fn is_in_use(&self, region: BufferId) -> bool {
        let slots = self.slots.borrow();
        let slot =
            slots.get(region.slot as usize).filter(|slot| slot.generation == region.generation);
        slot.and_then(|slot| slot.region).is_some_and(|region| region.users > 0)
    }

    /// Takes the jobs that make attachments; the caller runs them after it has released the lock.
    /// Returns `None` if there are no jobs.
    pub(crate) fn take_jobs(&self) -> Option<Vec<Job>> {
        let mut jobs = self.jobs.borrow_mut();
        (!jobs.is_empty()).then(|| std::mem::take(&mut *jobs))
    }

    /// Begins an access to a range. `also` converts the present value of [`Slot::readers`] to the
    /// new value, or returns `None` if the accesses in progress do not permit another one.
    #[inline]
    fn borrow(
        &self,
        buffer: BufferId,
        range: &Range<usize>,
        also: impl FnOnce(u32) -> Option<u32>,
    ) -> Option<Borrow<'_>> {
        let slots = self.slots.borrow();
        let slot = slots.get(buffer.slot as usize)?;
        // The engine may not access a region's bytes, because the program may be accessing them.
        if slot.region.is_some() || slot.exposed.iter().any(|exposed| overlap(exposed, range)) {
            return None;
        }
        let before = slot.readers.get();
        slot.readers.set(also(before)?);
        Some(Borrow { table: self, slot: buffer.slot, before })
    }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

fn within(raw: RawBuffer, range: &Range<usize>) -> Option<RawBuffer> {
    if range.start > range.end || range.end > raw.length {
        return None;
    }
    if raw.length == 0 {
        let first = std::ptr::NonNull::dangling().as_ptr();
        return Some(RawBuffer { first, ..raw });
    }
    // SAFETY: the offset is not beyond the end of the memory.
    let first = unsafe { raw.first.add(range.start) };
    Some(RawBuffer { first, length: range.len(), writable: raw.writable })
}

/// Access in progress. Dropping this value ends the access: [`Slot::readers`] gets its previous
/// value again.
struct Borrow<'t> {
    table: &'t BufferTable,
    slot: u32,
    before: u32,
}

impl Drop for Borrow<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.table.slots.borrow().get(self.slot as usize) {
            slot.readers.set(self.before);
        }
    }
}
