//! Construction of schedules, operation by operation. The builder leaves out operations on no
//! elements and empty steps.

use super::{Buffer, Exchange, Local, Schedule, Span, Step};

#[derive(Debug, Default)]
pub(super) struct ScheduleBuilder {
    schedule: Schedule,
    step: Step,
}

impl ScheduleBuilder {
    /// Starts a new step: operations that are added later wait for the exchanges that were added
    /// before.
    pub(super) fn begin_step(&mut self) {
        if !self.step.local.is_empty() || !self.step.exchange.is_empty() {
            self.schedule.steps.push(std::mem::take(&mut self.step));
        }
    }

    /// Reserves `length` elements of scratch memory.
    pub(super) fn scratch(&mut self, length: usize) -> Span {
        let span = Span::new(Buffer::Scratch, self.schedule.scratch, length);
        self.schedule.scratch += length;
        span
    }

    pub(super) fn copy(&mut self, from: Span, to: Span) {
        debug_assert_eq!(from.length, to.length, "{from:?} {to:?}");
        if from.length == 0 || from == to {
            return;
        }
        self.before_exchange();
        // Merge this copy into the previous one if source and destination continue where those of
        // the previous copy end.
        if let Some(Local::Copy { from: f, to: t }) = self.step.local.last_mut()
            && follows(*f, from)
            && follows(*t, to)
        {
            f.length += from.length;
            t.length += to.length;
            return;
        }
        self.step.local.push(Local::Copy { from, to });
    }

    pub(super) fn reduce(&mut self, from: Span, with: Span, into: Span) {
        if into.length > 0 {
            self.before_exchange();
            self.step.local.push(Local::Reduce { from, with, into });
        }
    }

    pub(super) fn send(&mut self, to: usize, span: Span) {
        if span.length > 0 {
            self.step.exchange.push(Exchange::Send { to, span });
        }
    }

    pub(super) fn receive(&mut self, from: usize, span: Span) {
        if span.length > 0 {
            self.step.exchange.push(Exchange::Receive { from, span });
        }
    }

    pub(super) fn receive_reduce(&mut self, from: usize, with: Span, span: Span) {
        debug_assert_eq!(with.length, span.length, "{with:?} {span:?}");
        if span.length > 0 {
            let receive = Exchange::ReceiveReduce { from, with, span };
            self.step.exchange.push(receive);
        }
    }

    pub(super) fn signal(&mut self, to: usize) {
        self.step.exchange.push(Exchange::Signal { to });
    }

    pub(super) fn await_signal(&mut self, from: usize) {
        self.step.exchange.push(Exchange::Await { from });
    }

    /// Appends the steps of the schedule `part`. The functions `rank` and `span` translate the rank
    /// numbers and spans of `part` to those of this schedule.
    pub(super) fn append(
        &mut self,
        part: Schedule,
        rank: impl Fn(usize) -> usize,
        span: impl Fn(Span) -> Span,
    ) {
        self.begin_step();
        for mut step in part.steps {
            for local in &mut step.local {
                *local = translate_local(*local, &span);
            }
            for exchange in &mut step.exchange {
                *exchange = translate_exchange(*exchange, &rank, &span);
            }
            self.schedule.steps.push(step);
        }
        let scratch = span(Span::new(Buffer::Scratch, part.scratch, 0)).start;
        self.schedule.scratch = self.schedule.scratch.max(scratch);
    }

    pub(super) fn finish(mut self) -> Schedule {
        self.begin_step();
        self.schedule
    }

    /// Begins a new step if the current step has exchanges, because local operations come first in
    /// a step.
    fn before_exchange(&mut self) {
        if !self.step.exchange.is_empty() {
            self.begin_step();
        }
    }
}

fn follows(first: Span, second: Span) -> bool {
    first.buffer == second.buffer && first.start + first.length == second.start
}

fn translate_local(local: Local, span: impl Fn(Span) -> Span) -> Local {
    match local {
        Local::Copy { from, to } => Local::Copy { from: span(from), to: span(to) },
        Local::Reduce { from, with, into } => {
            Local::Reduce { from: span(from), with: span(with), into: span(into) }
        }
    }
}

fn translate_exchange(
    exchange: Exchange,
    rank: impl Fn(usize) -> usize,
    translate: impl Fn(Span) -> Span,
) -> Exchange {
    match exchange {
        Exchange::Send { to, span } => Exchange::Send { to: rank(to), span: translate(span) },
        Exchange::Receive { from, span } => {
            Exchange::Receive { from: rank(from), span: translate(span) }
        }
        Exchange::ReceiveReduce { from, with, span } => Exchange::ReceiveReduce {
            from: rank(from),
            with: translate(with),
            span: translate(span),
        },
        Exchange::Signal { to } => Exchange::Signal { to: rank(to) },
        Exchange::Await { from } => Exchange::Await { from: rank(from) },
    }
}
