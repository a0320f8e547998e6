//! Calls of collectives: checks of the buffers, and execution by the engine or, for short buffers,
//! on the caller's stack. A [`Schedule`] lists the steps of one rank's part of a collective.

use crate::api::communicator::Communicator;
use crate::api::scope::{Request, Scope};
use crate::collectives::CollectiveKind;
use crate::collectives::ScheduleKey;
use crate::collectives::schedule::Schedule;
use crate::progress::engine::matching::CollectiveArgs;
use crate::progress::engine::out_of_step::CancelledCollective;
use crate::progress::engine::{Engine, Owner, SlabKey};
use crate::transport::LocalSlice;
use crate::types::{Cause, CommError, Element, ElementType, Op, Operation};
use rlaunch_lock::{BufferTable, Memory};
use std::borrow::Cow;
use std::sync::Arc;

/// Collective call that has been checked and is about to run.
#[derive(Debug)]
pub(crate) struct PreparedCollective<'a> {
    pub(crate) operation: Operation,
    pub(crate) schedule: Cow<'a, Arc<Schedule>>,
    /// Context of the communicator's collectives, and the sequence number of this collective, which
    /// is the tag of its messages.
    pub(crate) number: (u32, u32),
    pub(crate) element: ElementType,
    pub(crate) op: Op,
}

/// Input and output of a collective.
#[derive(Debug)]
pub enum CollectiveBuffers<'a, T> {
    /// Separate input and output. A buffer that this rank does not use may be empty.
    Separate(&'a [T], &'a mut [T]),
    /// One buffer that is both input and output.
    InPlace(&'a mut [T]),
}

impl<'a, T: Element> CollectiveBuffers<'a, T> {
    fn bytes(self) -> CollectiveBuffers<'a, u8> {
        match self {
            CollectiveBuffers::Separate(input, output) => CollectiveBuffers::Separate(
                bytemuck::cast_slice(input),
                bytemuck::cast_slice_mut(output),
            ),
            CollectiveBuffers::InPlace(data) => {
                CollectiveBuffers::InPlace(bytemuck::cast_slice_mut(data))
            }
        }
    }
}

impl CollectiveBuffers<'_, u8> {
    /// Returns the lengths of input and output in elements, and whether both are the same buffer.
    fn lengths(&self, element: ElementType) -> (usize, usize, bool) {
        // Element sizes are powers of two.
        let shift = element.size().trailing_zeros();
        match self {
            CollectiveBuffers::Separate(input, output) => {
                (input.len() >> shift, output.len() >> shift, false)
            }
            CollectiveBuffers::InPlace(data) => (data.len() >> shift, data.len() >> shift, true),
        }
    }
}

impl Communicator {
    /// Checks that the buffers fit the collective and returns the key of its schedule.
    #[inline]
    pub(crate) fn schedule_key(
        &self,
        kind: CollectiveKind,
        element: ElementType,
        buffers: &CollectiveBuffers<'_, u8>,
    ) -> Result<ScheduleKey, Cause> {
        self.check_not_forked()?;
        let size = self.size();
        if let Some(root) = kind.root().filter(|root| *root >= size) {
            return Err(Cause::NoSuchRank { rank: root, size });
        }
        let (input, output, in_place) = buffers.lengths(element);
        let is_root = kind.root() == Some(self.rank());
        let fits = |what, length, expected| {
            if length == expected {
                Ok(())
            } else {
                Err(Cause::BufferLength { what, length, expected })
            }
        };
        let blocks = |what, length: usize| {
            if length.is_multiple_of(size) {
                Ok(length / size)
            } else {
                Err(Cause::BufferLength { what, length, expected: length.next_multiple_of(size) })
            }
        };
        let count = match (kind, in_place) {
            (CollectiveKind::Barrier, _) => 0,
            (CollectiveKind::Broadcast { .. }, _) => output,
            (CollectiveKind::Reduce { .. }, false) if !is_root => input,
            (CollectiveKind::Reduce { .. } | CollectiveKind::AllReduce, _) => {
                fits("output", output, input)?;
                input
            }
            (CollectiveKind::Gather { .. }, true) if is_root => blocks("data", output)?,
            (CollectiveKind::Scatter { .. }, true) if is_root => blocks("data", input)?,
            (CollectiveKind::Gather { .. }, _) => {
                fits("output", if is_root { output } else { input * size }, input * size)?;
                input
            }
            (CollectiveKind::Scatter { .. }, _) => {
                fits("input", if is_root { input } else { output * size }, output * size)?;
                output
            }
            (
                CollectiveKind::AllGather
                | CollectiveKind::ReduceScatter
                | CollectiveKind::AllToAll,
                true,
            ) => blocks("data", output)?,
            (CollectiveKind::AllGather, false) => {
                fits("output", output, input * size)?;
                input
            }
            (CollectiveKind::ReduceScatter, false) => {
                fits("input", input, output * size)?;
                output
            }
            (CollectiveKind::AllToAll, false) => {
                fits("output", output, input)?;
                blocks("input", input)?
            }
        };
        // In a collective with a root, only the root can work in place: another rank has only an
        // input or only an output.
        let in_place = in_place && kind.root().is_none_or(|_| is_root);
        Ok(ScheduleKey { kind, count, element, in_place })
    }

    pub(crate) fn prepare(&self, key: ScheduleKey, op: Op) -> PreparedCollective<'_> {
        PreparedCollective {
            operation: Operation::Collective(key.kind.name()),
            schedule: self.schedules.get(key),
            number: self.next_collective(),
            element: key.element,
            op,
        }
    }

    pub(crate) fn collective_args(
        &self,
        collective: PreparedCollective<'_>,
        input: LocalSlice,
        output: LocalSlice,
    ) -> CollectiveArgs {
        let PreparedCollective { schedule, number: (context, tag), element, op, .. } = collective;
        let (schedule, ranks) = (schedule.into_owned(), self.group.ranks.clone());
        CollectiveArgs { schedule, ranks, context, tag, element, op, input, output }
    }

    pub(crate) fn collective<T: Element>(
        &self,
        kind: CollectiveKind,
        op: Op,
        buffers: CollectiveBuffers<'_, T>,
    ) -> Result<(), CommError> {
        self.collective_bytes(kind, T::TYPE, op, buffers.bytes())
    }

    /// Runs a collective on buffers of bytes, which contain elements of type `element`.
    pub(crate) fn collective_bytes(
        &self,
        kind: CollectiveKind,
        element: ElementType,
        op: Op,
        buffers: CollectiveBuffers<'_, u8>,
    ) -> Result<(), CommError> {
        let operation = Operation::Collective(kind.name());
        let key = self
            .schedule_key(kind, element, &buffers)
            .map_err(|cause| CommError { operation, cause })?;
        // If this rank is not the root of a collective with a root, its single buffer is only input
        // or only output.
        let is_in_place = matches!(buffers, CollectiveBuffers::InPlace(_));
        let (input, output): (&[u8], &mut [u8]) = match buffers {
            CollectiveBuffers::Separate(input, output) => (input, output),
            CollectiveBuffers::InPlace(data) => (&[], data),
        };
        let collective = self.prepare(key, op);
        let scratch = collective.schedule.scratch * key.element.size();
        let lengths = (input.len(), output.len());
        if lengths.0.max(lengths.1).max(scratch) <= self.progress.short {
            let input = (!is_in_place).then_some(input);
            let result = self.run_short(&collective, input, output);
            return result.map_err(|cause| {
                self.cancel_collective(&collective, &cause);
                self.progress.explain(operation, cause)
            });
        }
        let memory = [Memory::Shared(input), Memory::Exclusive(output)];
        let result = self.progress.engine.lend(memory, |guard, [input, output]| {
            let output = LocalSlice::all(output, lengths.1);
            let input = if is_in_place { output } else { LocalSlice::all(input, lengths.0) };
            let args = self.collective_args(collective, input, output);
            let (engine, buffers) = guard.attach_and_split();
            let key = engine.start(operation, args, buffers);
            self.progress.wait(guard, key)
        });
        result.map(drop).map_err(|cause| self.progress.explain(operation, cause))
    }

    /// Cancels a collective that runs on the caller's stack, and notifies the other ranks.
    #[cold]
    fn cancel_collective(&self, collective: &PreparedCollective<'_>, cause: &Cause) {
        let PreparedCollective { number: (context, number), operation, .. } = *collective;
        let ranks = &self.group.ranks;
        let mut guard = self.progress.engine.lock();
        let (engine, buffers) = guard.attach_and_split();
        engine.cancel_collective(
            CancelledCollective { context, number, operation, ranks, cause },
            buffers,
        );
    }
}

impl<'env> Scope<'_, 'env> {
    pub(crate) fn collective<T: Element>(
        &self,
        kind: CollectiveKind,
        op: Op,
        buffers: CollectiveBuffers<'env, T>,
    ) -> Result<Request, CommError> {
        let operation = Operation::Collective(kind.name());
        let buffers = buffers.bytes();
        let key = self.comm.schedule_key(kind, T::TYPE, &buffers);
        let key = key.map_err(|cause| CommError { operation, cause })?;
        let (input, output) = match buffers {
            CollectiveBuffers::Separate(input, output) => {
                (self.lend_shared(input), self.lend_exclusive(output))
            }
            CollectiveBuffers::InPlace(data) => {
                let data = self.lend_exclusive(data);
                (data, data)
            }
        };
        let args = self.comm.collective_args(self.comm.prepare(key, op), input, output);
        Ok(self.begin::<T>(operation, |engine, buffers| engine.start(operation, args, buffers)))
    }
}

impl Engine {
    /// Creates a request and begins its collective. The request fails at once if the engine has
    /// failed, or if an earlier collective of the communicator was cancelled.
    pub(crate) fn start(
        &mut self,
        operation: Operation,
        args: CollectiveArgs,
        buffers: &BufferTable,
    ) -> SlabKey {
        let request = self.request(operation);
        if let Some(cause) = self.matching.out_of_step(args.context, args.tag) {
            self.matching.complete(Owner::Request(request), Err(cause));
        } else if self.matching.fault.is_none() {
            let collective = self.begin(operation, args, request, buffers);
            self.matching.set_collective(request, collective);
        }
        request
    }
}

/// Defines each collective twice: blocking on [`Communicator`], nonblocking on [`Scope`].
macro_rules! collectives {
    ($(
        $(#[$doc:meta])*
        $name:ident, $later:ident($($buffer:ident: &$($mutable:ident)? [T]),* $(; $($extra:ident: $type:ty),*)?)
            = $kind:expr, $op:expr, $buffers:expr;
    )*) => {
        impl Communicator {
            $(
                $(#[$doc])*
                pub fn $name<T: Element>(
                    &self,
                    $($buffer: collectives!(@buffer '_ $($mutable)?),)*
                    $($($extra: $type,)*)?
                ) -> Result<(), CommError> {
                    self.collective($kind, $op, $buffers)
                }
            )*
        }

        impl<'env> Scope<'_, 'env> {
            $(
                #[doc = concat!("Begins [`Communicator::", stringify!($name), "`].")]
                pub fn $later<T: Element>(
                    &self,
                    $($buffer: collectives!(@buffer 'env $($mutable)?),)*
                    $($($extra: $type,)*)?
                ) -> Result<Request, CommError> {
                    self.collective($kind, $op, $buffers)
                }
            )*
        }
    };
    (@buffer $life:lifetime mut) => { &$life mut [T] };
    (@buffer $life:lifetime) => { &$life [T] };
}

collectives! {
    /// Copies `data` of rank `root` to `data` of all ranks. All buffers have the same length.
    broadcast, ibroadcast(data: &mut [T]; root: usize)
        = CollectiveKind::Broadcast { root }, Op::Sum, CollectiveBuffers::Separate(&[], data);
    /// Reduces the `input` of all ranks element by element into `output` of rank `root`. All inputs
    /// and the root's output have the same length; `output` of other ranks is unused.
    reduce, ireduce(input: &[T], output: &mut [T]; op: Op, root: usize)
        = CollectiveKind::Reduce { root }, op, CollectiveBuffers::Separate(input, output);
    /// Reduces `data` of all ranks element by element into `data` of rank `root`; `data` of other
    /// ranks stays unchanged. All buffers have the same length.
    reduce_in_place, ireduce_in_place(data: &mut [T]; op: Op, root: usize)
        = CollectiveKind::Reduce { root }, op, CollectiveBuffers::InPlace(data);
    /// Reduces the `input` of all ranks element by element into `output` of every rank. All buffers
    /// have the same length, and all ranks get bitwise equal results.
    all_reduce, iall_reduce(input: &[T], output: &mut [T]; op: Op)
        = CollectiveKind::AllReduce, op, CollectiveBuffers::Separate(input, output);
    /// Reduces `data` of all ranks element by element into `data` of every rank. All buffers have
    /// the same length, and all ranks get bitwise equal results.
    all_reduce_in_place, iall_reduce_in_place(data: &mut [T]; op: Op)
        = CollectiveKind::AllReduce, op, CollectiveBuffers::InPlace(data);
    /// Concatenates the `input` of all ranks, in rank order, in `output` of rank `root`. All inputs
    /// have the same length, and the root's `output` is as long as all inputs together; `output` of
    /// other ranks is unused.
    gather, igather(input: &[T], output: &mut [T]; root: usize)
        = CollectiveKind::Gather { root }, Op::Sum, CollectiveBuffers::Separate(input, output);
    /// Gathers one block from each rank into `data` of rank `root`, in rank order. The root's
    /// `data` has a block for each rank, and the root's own block must already be at its position;
    /// `data` of another rank is the block that it sends. All blocks have the same length.
    gather_in_place, igather_in_place(data: &mut [T]; root: usize)
        = CollectiveKind::Gather { root }, Op::Sum, CollectiveBuffers::InPlace(data);
    /// Splits `input` of rank `root` into one block for each rank, in rank order, and copies each
    /// block to `output` of its rank. All blocks and outputs have the same length; `input` of other
    /// ranks is unused.
    scatter, iscatter(input: &[T], output: &mut [T]; root: usize)
        = CollectiveKind::Scatter { root }, Op::Sum, CollectiveBuffers::Separate(input, output);
    /// Splits `data` of rank `root` into one block for each rank, in rank order, and copies each
    /// block to `data` of its rank, except the root's own block: the root's `data` stays unchanged.
    /// All blocks have the same length.
    scatter_in_place, iscatter_in_place(data: &mut [T]; root: usize)
        = CollectiveKind::Scatter { root }, Op::Sum, CollectiveBuffers::InPlace(data);
    /// Concatenates the `input` of all ranks, in rank order, in `output` of every rank. All inputs
    /// have the same length, and each `output` is as long as all inputs together.
    all_gather, iall_gather(input: &[T], output: &mut [T])
        = CollectiveKind::AllGather, Op::Sum, CollectiveBuffers::Separate(input, output);
    /// Gathers one block from each rank into `data` of every rank, in rank order. `data` has a
    /// block for each rank, and a rank's own block must already be at its position. All blocks have
    /// the same length.
    all_gather_in_place, iall_gather_in_place(data: &mut [T])
        = CollectiveKind::AllGather, Op::Sum, CollectiveBuffers::InPlace(data);
    /// Reduces the `input` of all ranks element by element, and stores block `i` of the result in
    /// `output` of rank `i`. Each `input` has one block for each rank; a block is as long as
    /// `output`.
    reduce_scatter, ireduce_scatter(input: &[T], output: &mut [T]; op: Op)
        = CollectiveKind::ReduceScatter, op, CollectiveBuffers::Separate(input, output);
    /// Reduces `data` of all ranks element by element, and stores block `i` of the result at the
    /// front of `data` of rank `i`; the rest of `data` is undefined afterwards. Each `data` has one
    /// block for each rank; all blocks have the same length.
    reduce_scatter_in_place, ireduce_scatter_in_place(data: &mut [T]; op: Op)
        = CollectiveKind::ReduceScatter, op, CollectiveBuffers::InPlace(data);
    /// Sends block `i` of `input` to rank `i`, and receives the block from rank `i` as block `i` of
    /// `output`. Both buffers have one block for each rank; all blocks have the same length.
    all_to_all, iall_to_all(input: &[T], output: &mut [T])
        = CollectiveKind::AllToAll, Op::Sum, CollectiveBuffers::Separate(input, output);
    /// Exchanges blocks within `data`: block `i` is sent to rank `i` and replaced by the block from
    /// rank `i`. `data` has one block for each rank; all blocks have the same length.
    all_to_all_in_place, iall_to_all_in_place(data: &mut [T])
        = CollectiveKind::AllToAll, Op::Sum, CollectiveBuffers::InPlace(data);
}

impl Communicator {
    /// Waits until every rank of the communicator has called this function.
    pub fn barrier(&self) -> Result<(), CommError> {
        self.collective::<u8>(
            CollectiveKind::Barrier,
            Op::Sum,
            CollectiveBuffers::Separate(&[], &mut []),
        )
    }
}

impl Scope<'_, '_> {
    /// Begins a nonblocking [`Communicator::barrier`].
    pub fn ibarrier(&self) -> Result<Request, CommError> {
        self.collective::<u8>(
            CollectiveKind::Barrier,
            Op::Sum,
            CollectiveBuffers::Separate(&[], &mut []),
        )
    }
}
