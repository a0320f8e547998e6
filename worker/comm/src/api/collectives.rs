//! Collectives as the program calls them: whether the buffers fit, and which schedule they take.

use crate::api::communicator::Communicator;
use crate::api::scope::{Request, Scope};
use crate::collectives::choice::{
    AllGather, AllToAll, Barrier, Choice, Gather, ReduceScatter, Scatter as ScatterBy, Topology,
};
use crate::collectives::kind::CollectiveKind;
use crate::collectives::schedule::Schedule;
use crate::progress::engine::collective::CollectiveArgs;
use crate::progress::engine::{Engine, Owner, SlabKey};
use crate::transport::LocalSlice;
use crate::types::element::{Element, ElementType, Op};
use crate::types::error::{Cause, CommError, Operation};
use rlaunch_lock::{BufferTable, Memory};
use std::sync::{Arc, Mutex, PoisonError};

/// What is asked for: one schedule does for all that are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScheduleKey {
    kind: CollectiveKind,
    /// Elements of a block, as the schedule counts them.
    count: usize,
    element: ElementType,
    in_place: bool,
}

impl ScheduleKey {
    fn schedule(self, topology: &Topology) -> Schedule {
        let ScheduleKey { kind, count, element, in_place } = self;
        let bytes = count * element.size();
        let all = bytes * topology.me().size;
        let me = topology.me();
        match kind {
            CollectiveKind::Barrier => Barrier::choose(topology).schedule(topology),
            CollectiveKind::Broadcast { root } => {
                Choice::broadcast(topology, bytes).schedule(topology, count, root)
            }
            CollectiveKind::Reduce { root } => {
                Choice::reduce(topology, bytes).schedule(topology, count, root, in_place)
            }
            CollectiveKind::AllReduce => {
                Choice::all_reduce(topology, bytes).schedule(topology, count, in_place)
            }
            CollectiveKind::Gather { root } => {
                Gather::choose(topology, bytes).schedule(me, count, root, in_place)
            }
            CollectiveKind::Scatter { root } => {
                ScatterBy::choose(topology, bytes).schedule(me, count, root, in_place)
            }
            CollectiveKind::AllGather => {
                AllGather::choose(topology, all).schedule(me, count, in_place)
            }
            CollectiveKind::ReduceScatter => {
                ReduceScatter::choose(topology, all).schedule(me, count, in_place)
            }
            CollectiveKind::AllToAll => {
                AllToAll::choose(topology, bytes).schedule(me, count, in_place)
            }
        }
    }
}

/// Schedules that were made, the latest last: programs ask for the same ones again and again.
#[derive(Debug)]
pub(crate) struct ScheduleCache {
    topology: Topology,
    made: Mutex<Vec<(ScheduleKey, Arc<Schedule>)>>,
}

impl ScheduleCache {
    /// So many are kept.
    const KEPT: usize = 32;

    pub(crate) fn new(topology: Topology) -> ScheduleCache {
        ScheduleCache { topology, made: Mutex::default() }
    }

    fn get(&self, key: ScheduleKey) -> Arc<Schedule> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, schedule)) = made.iter().rev().find(|(known, _)| *known == key) {
            return schedule.clone();
        }
        if made.len() == ScheduleCache::KEPT {
            made.remove(0);
        }
        let schedule = Arc::new(key.schedule(&self.topology));
        made.push((key, schedule.clone()));
        schedule
    }
}

/// A collective that is about to begin.
#[derive(Debug)]
pub(crate) struct PreparedCollective {
    pub(crate) operation: Operation,
    pub(crate) schedule: Arc<Schedule>,
    /// The context and the tag of its messages.
    pub(crate) number: (u32, u32),
    pub(crate) element: ElementType,
    pub(crate) op: Op,
}

/// The program's memory.
#[derive(Debug)]
pub enum CollectiveBuffers<'a, T> {
    /// Two buffers. What a rank neither gives nor gets may be empty.
    Separate(&'a [T], &'a mut [T]),
    /// One that is both.
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
    /// In elements.
    fn lengths(&self, element: ElementType) -> (usize, usize, bool) {
        // Sizes are powers of two.
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
    /// What a collective on these buffers is; fails where they do not fit together.
    #[inline]
    pub(crate) fn schedule_key(
        &self,
        kind: CollectiveKind,
        element: ElementType,
        given: &CollectiveBuffers<'_, u8>,
    ) -> Result<ScheduleKey, Cause> {
        self.check_not_forked()?;
        let size = self.size();
        if let Some(root) = kind.root().filter(|root| *root >= size) {
            return Err(Cause::NoSuchRank { rank: root, size });
        }
        let (input, output, in_place) = given.lengths(element);
        let is_root = kind.root() == Some(self.rank());
        let fits = |what, length, expected| match length == expected {
            true => Ok(()),
            false => Err(Cause::BufferLength { what, length, expected }),
        };
        let blocks = |what, length: usize| match length.is_multiple_of(size) {
            true => Ok(length / size),
            false => {
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
        // Who is no root has nothing that is both.
        let in_place = in_place && kind.root().is_none_or(|_| is_root);
        Ok(ScheduleKey { kind, count, element, in_place })
    }

    pub(crate) fn prepare(&self, key: ScheduleKey, op: Op) -> PreparedCollective {
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
        collective: PreparedCollective,
        input: LocalSlice,
        output: LocalSlice,
    ) -> CollectiveArgs {
        let PreparedCollective { schedule, number: (context, tag), element, op, .. } = collective;
        let ranks = self.group.ranks.clone();
        CollectiveArgs { schedule, ranks, context, tag, element, op, input, output }
    }

    /// Runs a collective.
    pub(crate) fn collective<T: Element>(
        &self,
        kind: CollectiveKind,
        op: Op,
        given: CollectiveBuffers<'_, T>,
    ) -> Result<(), CommError> {
        self.collective_bytes(kind, (T::TYPE, op), given.bytes())
    }

    /// The same for elements that are named at run time.
    pub(crate) fn collective_bytes(
        &self,
        kind: CollectiveKind,
        (element, op): (ElementType, Op),
        given: CollectiveBuffers<'_, u8>,
    ) -> Result<(), CommError> {
        let operation = Operation::Collective(kind.name());
        let key = self
            .schedule_key(kind, element, &given)
            .map_err(|cause| CommError { operation, cause })?;
        // One buffer of a rank that is no root is what it gives and gets.
        let is_one = matches!(given, CollectiveBuffers::InPlace(_));
        let (input, output): (&[u8], &mut [u8]) = match given {
            CollectiveBuffers::Separate(input, output) => (input, output),
            CollectiveBuffers::InPlace(data) => (&[], data),
        };
        let collective = self.prepare(key, op);
        let scratch = collective.schedule.scratch * key.element.size();
        let lengths = (input.len(), output.len());
        if lengths.0.max(lengths.1).max(scratch) <= self.progress.short {
            let input = (!is_one).then_some(input);
            let ran = self.run_short(&collective, (input, output));
            return ran.map_err(|cause| {
                self.cancel_collective(&collective, &cause);
                self.progress.explain(operation, cause)
            });
        }
        let memory = [Memory::Shared(input), Memory::Exclusive(output)];
        let ran = self.progress.engine.lend(memory, |guard, [input, output]| {
            let output = LocalSlice::all(output, lengths.1);
            let input = if is_one { output } else { LocalSlice::all(input, lengths.0) };
            let args = self.collective_args(collective, input, output);
            let (engine, buffers) = guard.parts();
            let key = engine.start(operation, args, buffers);
            self.progress.wait(guard, key)
        });
        ran.map(drop).map_err(|cause| self.progress.explain(operation, cause))
    }
}

impl<'env> Scope<'_, 'env> {
    /// Begins a collective.
    pub(crate) fn collective<T: Element>(
        &self,
        kind: CollectiveKind,
        op: Op,
        given: CollectiveBuffers<'env, T>,
    ) -> Result<Request, CommError> {
        let operation = Operation::Collective(kind.name());
        let given = given.bytes();
        let key = self.comm.schedule_key(kind, T::TYPE, &given);
        let key = key.map_err(|cause| CommError { operation, cause })?;
        let (input, output) = match given {
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
    /// Begins a collective as a request.
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

/// The same calls twice: those that wait, and those that are waited for.
macro_rules! collectives {
    ($(
        $(#[$doc:meta])*
        $name:ident, $later:ident($($buffer:ident: &$($mutable:ident)? [T]),* $(; $($extra:ident: $type:ty),*)?)
            = $kind:expr, $op:expr, $given:expr;
    )*) => {
        impl Communicator {
            $(
                $(#[$doc])*
                pub fn $name<T: Element>(
                    &self,
                    $($buffer: collectives!(@buffer '_ $($mutable)?),)*
                    $($($extra: $type,)*)?
                ) -> Result<(), CommError> {
                    self.collective($kind, $op, $given)
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
                    self.collective($kind, $op, $given)
                }
            )*
        }
    };
    (@buffer $life:lifetime mut) => { &$life mut [T] };
    (@buffer $life:lifetime) => { &$life [T] };
}

collectives! {
    /// Gives everyone what `root` has in `data`; all ranks' are equally long.
    broadcast, ibroadcast(data: &mut [T]; root: usize)
        = CollectiveKind::Broadcast { root }, Op::Sum, CollectiveBuffers::Separate(&[], data);
    /// Reduces what all have to `output` of `root`; the others' may be empty.
    reduce, ireduce(input: &[T], output: &mut [T]; op: Op, root: usize)
        = CollectiveKind::Reduce { root }, op, CollectiveBuffers::Separate(input, output);
    /// Reduces what all have in `data` to that of `root`; the others' stays.
    reduce_in_place, ireduce_in_place(data: &mut [T]; op: Op, root: usize)
        = CollectiveKind::Reduce { root }, op, CollectiveBuffers::InPlace(data);
    /// Reduces what all have, for all. The results are equal to the bit.
    all_reduce, iall_reduce(input: &[T], output: &mut [T]; op: Op)
        = CollectiveKind::AllReduce, op, CollectiveBuffers::Separate(input, output);
    /// Reduces what all have in `data`, for all.
    all_reduce_in_place, iall_reduce_in_place(data: &mut [T]; op: Op)
        = CollectiveKind::AllReduce, op, CollectiveBuffers::InPlace(data);
    /// Puts what all have, by rank, to `output` of `root`; the others' may be empty.
    gather, igather(input: &[T], output: &mut [T]; root: usize)
        = CollectiveKind::Gather { root }, Op::Sum, CollectiveBuffers::Separate(input, output);
    /// The same, where `data` of `root` has its own part in place already, and is long enough for
    /// all. That of the others is their part.
    gather_in_place, igather_in_place(data: &mut [T]; root: usize)
        = CollectiveKind::Gather { root }, Op::Sum, CollectiveBuffers::InPlace(data);
    /// Gives each rank its part of what `root` has; the others' `input` may be empty.
    scatter, iscatter(input: &[T], output: &mut [T]; root: usize)
        = CollectiveKind::Scatter { root }, Op::Sum, CollectiveBuffers::Separate(input, output);
    /// The same, where `data` of `root` has the parts of all and keeps its own where it is. That of
    /// the others is for their part.
    scatter_in_place, iscatter_in_place(data: &mut [T]; root: usize)
        = CollectiveKind::Scatter { root }, Op::Sum, CollectiveBuffers::InPlace(data);
    /// Puts what all have, by rank, to everyone's `output`.
    all_gather, iall_gather(input: &[T], output: &mut [T])
        = CollectiveKind::AllGather, Op::Sum, CollectiveBuffers::Separate(input, output);
    /// The same, where each rank's own part is in its place already.
    all_gather_in_place, iall_gather_in_place(data: &mut [T])
        = CollectiveKind::AllGather, Op::Sum, CollectiveBuffers::InPlace(data);
    /// Reduces what all have, and gives each rank its part, by rank.
    reduce_scatter, ireduce_scatter(input: &[T], output: &mut [T]; op: Op)
        = CollectiveKind::ReduceScatter, op, CollectiveBuffers::Separate(input, output);
    /// The same, with the part at the front of `data` afterwards, and anything behind it.
    reduce_scatter_in_place, ireduce_scatter_in_place(data: &mut [T]; op: Op)
        = CollectiveKind::ReduceScatter, op, CollectiveBuffers::InPlace(data);
    /// Sends a part of `input` to each rank, and gets a part from each, by rank.
    all_to_all, iall_to_all(input: &[T], output: &mut [T])
        = CollectiveKind::AllToAll, Op::Sum, CollectiveBuffers::Separate(input, output);
    /// The same, where what comes takes the place of what goes.
    all_to_all_in_place, iall_to_all_in_place(data: &mut [T])
        = CollectiveKind::AllToAll, Op::Sum, CollectiveBuffers::InPlace(data);
}

impl Communicator {
    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<(), CommError> {
        self.collective::<u8>(
            CollectiveKind::Barrier,
            Op::Sum,
            CollectiveBuffers::Separate(&[], &mut []),
        )
    }
}

impl Scope<'_, '_> {
    /// Begins [`Communicator::barrier`].
    pub fn ibarrier(&self) -> Result<Request, CommError> {
        self.collective::<u8>(
            CollectiveKind::Barrier,
            Op::Sum,
            CollectiveBuffers::Separate(&[], &mut []),
        )
    }
}
