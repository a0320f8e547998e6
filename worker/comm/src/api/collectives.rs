//! Collectives as the program calls them: whether the buffers fit, and which schedule they take.

use crate::api::communicator::Communicator;
use crate::api::scope::{Request, Scope};
use crate::collectives::choice::{
    AllGather, AllToAll, Barrier, Choice, Gather, Layout, ReduceScatter, Scatter as ScatterBy,
};
use crate::collectives::kind::Kind;
use crate::collectives::schedule::Schedule;
use crate::progress::engine::collective::Plan;
use crate::progress::engine::stretch::Stretch;
use crate::progress::engine::{Engine, Key, Owner};
use crate::types::element::{Element, ElementType, Op};
use crate::types::error::{Cause, CommError, Operation};
use rlaunch_lock::{BufferTable, Memory};
use std::sync::{Arc, Mutex, PoisonError};

/// What is asked for: one schedule does for all that are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    kind: Kind,
    /// Elements of a block, as the schedule counts them.
    count: usize,
    element: ElementType,
    in_place: bool,
}

impl Asked {
    fn schedule(self, layout: &Layout) -> Schedule {
        let Asked { kind, count, element, in_place } = self;
        let bytes = count * element.size();
        let all = bytes * layout.me().size;
        let me = layout.me();
        match kind {
            Kind::Barrier => Barrier::choose(layout).schedule(layout),
            Kind::Broadcast { root } => {
                Choice::broadcast(layout, bytes).schedule(layout, count, root)
            }
            Kind::Reduce { root } => {
                Choice::reduce(layout, bytes).schedule(layout, count, root, in_place)
            }
            Kind::AllReduce => Choice::all_reduce(layout, bytes).schedule(layout, count, in_place),
            Kind::Gather { root } => {
                Gather::choose(layout, bytes).schedule(me, count, root, in_place)
            }
            Kind::Scatter { root } => {
                ScatterBy::choose(layout, bytes).schedule(me, count, root, in_place)
            }
            Kind::AllGather => AllGather::choose(layout, all).schedule(me, count, in_place),
            Kind::ReduceScatter => ReduceScatter::choose(layout, all).schedule(me, count, in_place),
            Kind::AllToAll => AllToAll::choose(layout, bytes).schedule(me, count, in_place),
        }
    }
}

/// Schedules that were made, the latest last: programs ask for the same ones again and again.
#[derive(Debug)]
pub(crate) struct Schedules {
    layout: Layout,
    made: Mutex<Vec<(Asked, Arc<Schedule>)>>,
}

impl Schedules {
    /// So many are kept.
    const KEPT: usize = 32;

    pub(crate) fn new(layout: Layout) -> Schedules {
        Schedules { layout, made: Mutex::default() }
    }

    fn get(&self, asked: Asked) -> Arc<Schedule> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, schedule)) = made.iter().rev().find(|(known, _)| *known == asked) {
            return schedule.clone();
        }
        if made.len() == Schedules::KEPT {
            made.remove(0);
        }
        let schedule = Arc::new(asked.schedule(&self.layout));
        made.push((asked, schedule.clone()));
        schedule
    }
}

/// A collective that is about to begin.
#[derive(Debug)]
pub(crate) struct Collective {
    pub(crate) operation: Operation,
    pub(crate) schedule: Arc<Schedule>,
    /// The context and the tag of its messages.
    pub(crate) number: (u32, u32),
    pub(crate) element: ElementType,
    pub(crate) op: Op,
}

/// The program's memory.
#[derive(Debug)]
pub enum Given<'a, T> {
    /// Two buffers. What a rank neither gives nor gets may be empty.
    Apart(&'a [T], &'a mut [T]),
    /// One that is both.
    InPlace(&'a mut [T]),
}

impl<'a, T: Element> Given<'a, T> {
    fn bytes(self) -> Given<'a, u8> {
        match self {
            Given::Apart(input, output) => {
                Given::Apart(bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output))
            }
            Given::InPlace(data) => Given::InPlace(bytemuck::cast_slice_mut(data)),
        }
    }
}

impl Given<'_, u8> {
    /// In elements.
    fn lengths(&self, element: ElementType) -> (usize, usize, bool) {
        // Sizes are powers of two.
        let shift = element.size().trailing_zeros();
        match self {
            Given::Apart(input, output) => (input.len() >> shift, output.len() >> shift, false),
            Given::InPlace(data) => (data.len() >> shift, data.len() >> shift, true),
        }
    }
}

impl Communicator {
    /// What a collective on these buffers is; fails where they do not fit together.
    #[inline]
    pub(crate) fn asked(
        &self,
        kind: Kind,
        element: ElementType,
        given: &Given<'_, u8>,
    ) -> Result<Asked, Cause> {
        self.own()?;
        let size = self.size();
        if let Some(root) = kind.root().filter(|root| *root >= size) {
            return Err(Cause::NoSuchRank { rank: root, size });
        }
        let (input, output, in_place) = given.lengths(element);
        let is_root = kind.root() == Some(self.rank());
        let fits = |what, length, expected| match length == expected {
            true => Ok(()),
            false => Err(Cause::Length { what, length, expected }),
        };
        let blocks = |what, length: usize| match length.is_multiple_of(size) {
            true => Ok(length / size),
            false => Err(Cause::Length { what, length, expected: length.next_multiple_of(size) }),
        };
        let count = match (kind, in_place) {
            (Kind::Barrier, _) => 0,
            (Kind::Broadcast { .. }, _) => output,
            (Kind::Reduce { .. }, false) if !is_root => input,
            (Kind::Reduce { .. } | Kind::AllReduce, _) => {
                fits("output", output, input)?;
                input
            }
            (Kind::Gather { .. }, true) if is_root => blocks("data", output)?,
            (Kind::Scatter { .. }, true) if is_root => blocks("data", input)?,
            (Kind::Gather { .. }, _) => {
                fits("output", if is_root { output } else { input * size }, input * size)?;
                input
            }
            (Kind::Scatter { .. }, _) => {
                fits("input", if is_root { input } else { output * size }, output * size)?;
                output
            }
            (Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll, true) => {
                blocks("data", output)?
            }
            (Kind::AllGather, false) => {
                fits("output", output, input * size)?;
                input
            }
            (Kind::ReduceScatter, false) => {
                fits("input", input, output * size)?;
                output
            }
            (Kind::AllToAll, false) => {
                fits("output", output, input)?;
                blocks("input", input)?
            }
        };
        // Who is no root has nothing that is both.
        let in_place = in_place && kind.root().is_none_or(|_| is_root);
        Ok(Asked { kind, count, element, in_place })
    }

    pub(crate) fn prepare(&self, asked: Asked, op: Op) -> Collective {
        Collective {
            operation: Operation::Collective(asked.kind.name()),
            schedule: self.schedules.get(asked),
            number: self.next_collective(),
            element: asked.element,
            op,
        }
    }

    pub(crate) fn plan(&self, collective: Collective, input: Stretch, output: Stretch) -> Plan {
        let Collective { schedule, number: (context, tag), element, op, .. } = collective;
        let ranks = self.group.ranks.clone();
        Plan { schedule, ranks, context, tag, element, op, input, output }
    }

    /// Runs a collective.
    pub(crate) fn collective<T: Element>(
        &self,
        kind: Kind,
        op: Op,
        given: Given<'_, T>,
    ) -> Result<(), CommError> {
        self.collective_of(kind, (T::TYPE, op), given.bytes())
    }

    /// The same for elements that are named at run time.
    pub(crate) fn collective_of(
        &self,
        kind: Kind,
        (element, op): (ElementType, Op),
        given: Given<'_, u8>,
    ) -> Result<(), CommError> {
        let operation = Operation::Collective(kind.name());
        let asked =
            self.asked(kind, element, &given).map_err(|cause| CommError { operation, cause })?;
        // One buffer of a rank that is no root is what it gives and gets.
        let is_one = matches!(given, Given::InPlace(_));
        let (input, output): (&[u8], &mut [u8]) = match given {
            Given::Apart(input, output) => (input, output),
            Given::InPlace(data) => (&[], data),
        };
        let collective = self.prepare(asked, op);
        let scratch = collective.schedule.scratch * asked.element.size();
        let lengths = (input.len(), output.len());
        if lengths.0.max(lengths.1).max(scratch) <= self.station.inline {
            let input = (!is_one).then_some(input);
            let ran = self.run_inline(&collective, (input, output));
            return ran.map_err(|cause| {
                self.give_up(&collective, &cause);
                self.station.failed(operation, cause)
            });
        }
        let memory = [Memory::Shared(input), Memory::Exclusive(output)];
        let ran = self.station.engine.lend(memory, |guard, [input, output]| {
            let output = Stretch::all(output, lengths.1);
            let input = if is_one { output } else { Stretch::all(input, lengths.0) };
            let plan = self.plan(collective, input, output);
            let (engine, buffers) = guard.parts();
            let key = engine.start(operation, plan, buffers);
            self.station.wait(guard, key)
        });
        ran.map(drop).map_err(|cause| self.station.failed(operation, cause))
    }
}

impl<'env> Scope<'_, 'env> {
    /// Begins a collective.
    pub(crate) fn collective<T: Element>(
        &self,
        kind: Kind,
        op: Op,
        given: Given<'env, T>,
    ) -> Result<Request, CommError> {
        let operation = Operation::Collective(kind.name());
        let given = given.bytes();
        let asked = self.comm.asked(kind, T::TYPE, &given);
        let asked = asked.map_err(|cause| CommError { operation, cause })?;
        let (input, output) = match given {
            Given::Apart(input, output) => (self.lend_shared(input), self.lend_exclusive(output)),
            Given::InPlace(data) => {
                let data = self.lend_exclusive(data);
                (data, data)
            }
        };
        let plan = self.comm.plan(self.comm.prepare(asked, op), input, output);
        Ok(self.begin::<T>(operation, |engine, buffers| engine.start(operation, plan, buffers)))
    }
}

impl Engine {
    /// Begins a collective as a request.
    pub(crate) fn start(&mut self, operation: Operation, plan: Plan, buffers: &BufferTable) -> Key {
        let request = self.request(operation);
        if let Some(cause) = self.core.out_of_step(plan.context, plan.tag) {
            self.core.ended(Owner::Request(request), Err(cause));
        } else if self.core.fault.is_none() {
            let collective = self.begin(operation, plan, request, buffers);
            self.core.belongs(request, collective);
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
        = Kind::Broadcast { root }, Op::Sum, Given::Apart(&[], data);
    /// Reduces what all have to `output` of `root`; the others' may be empty.
    reduce, ireduce(input: &[T], output: &mut [T]; op: Op, root: usize)
        = Kind::Reduce { root }, op, Given::Apart(input, output);
    /// Reduces what all have in `data` to that of `root`; the others' stays.
    reduce_in_place, ireduce_in_place(data: &mut [T]; op: Op, root: usize)
        = Kind::Reduce { root }, op, Given::InPlace(data);
    /// Reduces what all have, for all. The results are equal to the bit.
    all_reduce, iall_reduce(input: &[T], output: &mut [T]; op: Op)
        = Kind::AllReduce, op, Given::Apart(input, output);
    /// Reduces what all have in `data`, for all.
    all_reduce_in_place, iall_reduce_in_place(data: &mut [T]; op: Op)
        = Kind::AllReduce, op, Given::InPlace(data);
    /// Puts what all have, by rank, to `output` of `root`; the others' may be empty.
    gather, igather(input: &[T], output: &mut [T]; root: usize)
        = Kind::Gather { root }, Op::Sum, Given::Apart(input, output);
    /// The same, where `data` of `root` has its own part in place already, and is long enough for
    /// all. That of the others is their part.
    gather_in_place, igather_in_place(data: &mut [T]; root: usize)
        = Kind::Gather { root }, Op::Sum, Given::InPlace(data);
    /// Gives each rank its part of what `root` has; the others' `input` may be empty.
    scatter, iscatter(input: &[T], output: &mut [T]; root: usize)
        = Kind::Scatter { root }, Op::Sum, Given::Apart(input, output);
    /// The same, where `data` of `root` has the parts of all and keeps its own where it is. That of
    /// the others is for their part.
    scatter_in_place, iscatter_in_place(data: &mut [T]; root: usize)
        = Kind::Scatter { root }, Op::Sum, Given::InPlace(data);
    /// Puts what all have, by rank, to everyone's `output`.
    all_gather, iall_gather(input: &[T], output: &mut [T])
        = Kind::AllGather, Op::Sum, Given::Apart(input, output);
    /// The same, where each rank's own part is in its place already.
    all_gather_in_place, iall_gather_in_place(data: &mut [T])
        = Kind::AllGather, Op::Sum, Given::InPlace(data);
    /// Reduces what all have, and gives each rank its part, by rank.
    reduce_scatter, ireduce_scatter(input: &[T], output: &mut [T]; op: Op)
        = Kind::ReduceScatter, op, Given::Apart(input, output);
    /// The same, with the part at the front of `data` afterwards, and anything behind it.
    reduce_scatter_in_place, ireduce_scatter_in_place(data: &mut [T]; op: Op)
        = Kind::ReduceScatter, op, Given::InPlace(data);
    /// Sends a part of `input` to each rank, and gets a part from each, by rank.
    all_to_all, iall_to_all(input: &[T], output: &mut [T])
        = Kind::AllToAll, Op::Sum, Given::Apart(input, output);
    /// The same, where what comes takes the place of what goes.
    all_to_all_in_place, iall_to_all_in_place(data: &mut [T])
        = Kind::AllToAll, Op::Sum, Given::InPlace(data);
}

impl Communicator {
    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<(), CommError> {
        self.collective::<u8>(Kind::Barrier, Op::Sum, Given::Apart(&[], &mut []))
    }
}

impl Scope<'_, '_> {
    /// Begins [`Communicator::barrier`].
    pub fn ibarrier(&self) -> Result<Request, CommError> {
        self.collective::<u8>(Kind::Barrier, Op::Sum, Given::Apart(&[], &mut []))
    }
}
