//! Model that executes the schedules of all ranks against each other, for any element type.
//!
//! A step ends only when all messages that it sent have been received. On a real network, too, the
//! send of a long message may wait for the receiver. If a schedule violates the rules, the model
//! panics and names the rank.

use super::{Buffer, Exchange, Local, Schedule, Span, Step};
use std::collections::VecDeque;
use std::ops::Range;

#[derive(Clone, Debug)]
pub(super) struct Memory<T> {
    pub(super) input: Vec<T>,
    pub(super) output: Vec<T>,
    /// Whether the output buffer is also the input.
    pub(super) in_place: bool,
    scratch: Vec<T>,
}

impl<T: Clone + Default> Memory<T> {
    pub(super) fn apart(input: Vec<T>, output: usize) -> Memory<T> {
        Memory { input, output: vec![T::default(); output], in_place: false, scratch: Vec::new() }
    }

    pub(super) fn in_place(both: Vec<T>) -> Memory<T> {
        Memory { input: Vec::new(), output: both, in_place: true, scratch: Vec::new() }
    }

    fn buffer(&mut self, buffer: Buffer) -> &mut Vec<T> {
        match buffer {
            Buffer::Input => {
                assert!(!self.in_place, "in place there is only an output");
                &mut self.input
            }
            Buffer::Output => &mut self.output,
            Buffer::Scratch => &mut self.scratch,
        }
    }

    fn read(&mut self, span: Span) -> Vec<T> {
        self.buffer(span.buffer)[range(span)].to_vec()
    }

    fn write(&mut self, span: Span, values: &[T]) {
        assert!(span.buffer != Buffer::Input, "the input is written: {span:?}");
        self.buffer(span.buffer)[range(span)].clone_from_slice(values);
    }

    /// Tells whether two spans have elements in common.
    fn overlap(a: Span, b: Span) -> bool {
        a.buffer == b.buffer && a.start.max(b.start) < (a.start + a.length).min(b.start + b.length)
    }
}

fn range(span: Span) -> Range<usize> {
    span.start..span.start + span.length
}

/// Messages that have been sent but not received, for each pair of ranks.
struct Channels<T> {
    size: usize,
    between: Vec<VecDeque<Vec<T>>>,
}

impl<T> Channels<T> {
    fn new(size: usize) -> Channels<T> {
        Channels { size, between: (0..size * size).map(|_| VecDeque::new()).collect() }
    }

    fn between(&mut self, from: usize, to: usize) -> &mut VecDeque<Vec<T>> {
        &mut self.between[from * self.size + to]
    }
}

/// Execution state of a rank.
struct Progress {
    step: usize,
    /// Unfinished exchanges of the step. A send is finished once its message is in [`Channels`].
    open: Vec<Exchange>,
    /// Number of messages sent in this step that have not been received.
    unreceived: usize,
    begun: bool,
}

/// Executes all schedules to their end. `reduce` reduces two elements to one.
pub(super) fn run<T: Clone + Default>(
    schedules: &[Schedule],
    memories: &mut [Memory<T>],
    reduce: impl Fn(&T, &T) -> T,
) {
    let mut channels = Channels::new(schedules.len());
    let mut ranks: Vec<Progress> = Vec::new();
    for (schedule, memory) in schedules.iter().zip(memories.iter_mut()) {
        memory.scratch = vec![T::default(); schedule.scratch];
        ranks.push(Progress { step: 0, open: Vec::new(), unreceived: 0, begun: false });
    }
    loop {
        let mut moved = false;
        for rank in 0..schedules.len() {
            moved |= advance(rank, schedules, memories, &mut ranks, &mut channels, &reduce);
        }
        if !moved {
            break;
        }
    }
    for (rank, (progress, schedule)) in ranks.iter().zip(schedules).enumerate() {
        assert_eq!(
            progress.step,
            schedule.steps.len(),
            "rank {rank} waits for ever: {:?}",
            progress.open
        );
    }
    let left = channels.between.iter().position(|channel| !channel.is_empty());
    let pair = left.map(|index| (index / channels.size, index % channels.size));
    assert_eq!(pair, None, "nobody takes what goes from the first to the second");
}

/// Executes the current step of a rank as far as possible. Returns whether this changed anything.
fn advance<T: Clone + Default>(
    rank: usize,
    schedules: &[Schedule],
    memories: &mut [Memory<T>],
    ranks: &mut [Progress],
    channels: &mut Channels<T>,
    reduce: &impl Fn(&T, &T) -> T,
) -> bool {
    let Some(step) = schedules[rank].steps.get(ranks[rank].step) else {
        return false;
    };
    let memory = &mut memories[rank];
    let mut moved = false;
    if !ranks[rank].begun {
        check(rank, schedules.len(), step, memory);
        for local in &step.local {
            act(*local, memory, reduce);
        }
        ranks[rank].begun = true;
        ranks[rank].open.clone_from(&step.exchange);
        moved = true;
    }
    let mut open = Vec::new();
    // The first message from a rank goes to the first receive from that rank.
    let mut waited: Vec<usize> = Vec::new();
    for exchange in std::mem::take(&mut ranks[rank].open) {
        let (from, values) = match exchange {
            Exchange::Send { to, span } => {
                channels.between(rank, to).push_back(memory.read(span));
                ranks[rank].unreceived += 1;
                moved = true;
                continue;
            }
            Exchange::Signal { to } => {
                channels.between(rank, to).push_back(Vec::new());
                ranks[rank].unreceived += 1;
                moved = true;
                continue;
            }
            Exchange::Receive { from, .. }
            | Exchange::ReceiveReduce { from, .. }
            | Exchange::Await { from } => {
                let channel = channels.between(from, rank);
                match channel.pop_front() {
                    Some(values) if !waited.contains(&from) => (from, values),
                    other => {
                        other.into_iter().for_each(|values| channel.push_front(values));
                        waited.push(from);
                        open.push(exchange);
                        continue;
                    }
                }
            }
        };
        ranks[from].unreceived -= 1;
        moved = true;
        take(rank, exchange, &values, memory, reduce);
    }
    ranks[rank].open = open;
    if ranks[rank].open.is_empty() && ranks[rank].unreceived == 0 {
        ranks[rank].step += 1;
        ranks[rank].begun = false;
        moved = true;
    }
    moved
}

fn take<T: Clone + Default>(
    rank: usize,
    exchange: Exchange,
    values: &[T],
    memory: &mut Memory<T>,
    reduce: &impl Fn(&T, &T) -> T,
) {
    match exchange {
        Exchange::Receive { from, span } => {
            assert_eq!(span.length, values.len(), "rank {rank} receives from {from}");
            memory.write(span, values);
        }
        Exchange::ReceiveReduce { from, with, span } => {
            assert_eq!(span.length, values.len(), "rank {rank} receives from {from}");
            let with = memory.read(with);
            let reduced: Vec<T> = values.iter().zip(&with).map(|(a, b)| reduce(a, b)).collect();
            memory.write(span, &reduced);
        }
        Exchange::Await { from } => {
            assert!(values.is_empty(), "rank {rank} awaits a signal from {from}");
        }
        Exchange::Send { .. } | Exchange::Signal { .. } => {}
    }
}

fn act<T: Clone + Default>(local: Local, memory: &mut Memory<T>, reduce: &impl Fn(&T, &T) -> T) {
    match local {
        Local::Copy { from, to } => {
            let values = memory.read(from);
            memory.write(to, &values);
        }
        Local::Reduce { from, with, into } => {
            let (from, with) = (memory.read(from), memory.read(with));
            let reduced: Vec<T> = from.iter().zip(&with).map(|(a, b)| reduce(a, b)).collect();
            memory.write(into, &reduced);
        }
    }
}

/// Panics if a step violates the rules for schedules.
fn check<T: Clone + Default>(rank: usize, size: usize, step: &Step, memory: &mut Memory<T>) {
    assert!(!step.local.is_empty() || !step.exchange.is_empty(), "rank {rank} has an empty step");
    for local in &step.local {
        let (reads, write) = match *local {
            Local::Copy { from, to } => (vec![from], to),
            Local::Reduce { from, with, into } if with == into => (vec![from], into),
            Local::Reduce { from, with, into } => (vec![from, with], into),
        };
        for read in reads {
            assert_eq!(read.length, write.length, "rank {rank}: {local:?}");
            assert!(!Memory::<T>::overlap(read, write), "rank {rank}: {local:?}");
        }
        assert!(write.length > 0, "rank {rank}: {local:?}");
    }
    let mut spans: Vec<(Span, bool)> = Vec::new();
    for exchange in &step.exchange {
        let (peer, used) = match *exchange {
            Exchange::Send { to, span } => (to, vec![(span, false)]),
            Exchange::Receive { from, span } => (from, vec![(span, true)]),
            Exchange::ReceiveReduce { from, with, span } if with == span => {
                (from, vec![(span, true)])
            }
            Exchange::ReceiveReduce { from, with, span } => {
                assert_eq!(with.length, span.length, "rank {rank}: {exchange:?}");
                (from, vec![(with, false), (span, true)])
            }
            Exchange::Signal { to } => (to, Vec::new()),
            Exchange::Await { from } => (from, Vec::new()),
        };
        assert!(peer < size && peer != rank, "rank {rank}: {exchange:?}");
        for (span, _) in &used {
            let length = memory.buffer(span.buffer).len();
            assert!(range(*span).end <= length, "rank {rank}: {exchange:?} in {length}");
            assert!(span.length > 0, "rank {rank}: {exchange:?}");
        }
        spans.extend(used);
    }
    spans.sort_by_key(|(span, _)| span.start);
    for (index, (a, a_written)) in spans.iter().enumerate() {
        for (b, b_written) in &spans[index + 1..] {
            if b.start >= a.start + a.length {
                break;
            }
            let harmless = !a_written && !b_written;
            assert!(
                harmless || !Memory::<T>::overlap(*a, *b),
                "rank {rank} writes {a:?} and {b:?} at once: {step:?}"
            );
        }
    }
}
