//! Collectives with buffers of up to [`SHORT`] bytes, executed step by step on the caller's stack.
//! The engine executes longer collectives. For short ones, the engine's bookkeeping of lent buffers
//! and requests would take longer than the messages themselves.

use crate::api::collectives::PreparedCollective;
use crate::api::communicator::Communicator;
use crate::collectives::reduce;
use crate::collectives::schedule::{Buffer, Exchange, Local, Schedule, Span};
use crate::progress::engine::direct::SendOutcome;
use crate::progress::engine::{Engine, Envelope};
use crate::progress::wait::SHORT;
use crate::types::{Cause, ElementType, Op, Operation};
use rlaunch_lock::EngineGuard;
use std::ops::Range;

/// Buffers of a collective that runs on the caller's stack.
struct ShortBuffers<'a> {
    /// Input; `None` if the collective works in place, so that `output` contains the input at
    /// first.
    input: Option<&'a [u8]>,
    output: &'a mut [u8],
    scratch: &'a mut [u8],
    element: ElementType,
    op: Op,
}

impl ShortBuffers<'_> {
    fn range(&self, span: Span) -> Range<usize> {
        let size = self.element.size();
        span.start * size..(span.start + span.length) * size
    }

    #[inline]
    fn read(&self, span: Span) -> Option<&[u8]> {
        let range = self.range(span);
        match (span.buffer, self.input) {
            (Buffer::Input, Some(input)) => input.get(range),
            (Buffer::Scratch, _) => self.scratch.get(range),
            (Buffer::Input | Buffer::Output, _) => self.output.get(range),
        }
    }

    #[inline]
    fn write(&mut self, span: Span) -> Option<&mut [u8]> {
        let range = self.range(span);
        match span.buffer {
            Buffer::Scratch => self.scratch.get_mut(range),
            Buffer::Input | Buffer::Output => self.output.get_mut(range),
        }
    }

    /// Copies span `from` to span `to`. Returns `None` if a span is out of bounds.
    fn copy(&mut self, from: Span, to: Span) -> Option<()> {
        if let (Buffer::Input, Some(input), Buffer::Output) = (from.buffer, self.input, to.buffer) {
            let (from, to) = (self.range(from), self.range(to));
            self.output.get_mut(to)?.copy_from_slice(input.get(from)?);
            return Some(());
        }
        let mut bytes = [0; SHORT];
        let read = self.read(from)?;
        let bytes = bytes.get_mut(..read.len())?;
        bytes.copy_from_slice(read);
        self.put(to, None, bytes)
    }

    /// Writes `bytes` to span `to`, or their reduction with the contents of span `with` if `with`
    /// is given. Returns `None` if a span is out of bounds.
    #[inline]
    fn put(&mut self, to: Span, with: Option<Span>, bytes: &[u8]) -> Option<()> {
        let (element, op) = (self.element, self.op);
        match with {
            None => self.write(to)?.copy_from_slice(bytes),
            Some(with) => {
                if with != to {
                    self.copy(with, to)?;
                }
                reduce::reduce_in_place(op, element, self.write(to)?, bytes).ok()?;
            }
        }
        Some(())
    }

    fn local(&mut self, local: Local) -> Option<()> {
        match local {
            Local::Copy { from, to } => self.copy(from, to),
            Local::Reduce { from, with, into } => {
                let mut bytes = [0; SHORT];
                let read = self.read(from)?;
                let bytes = bytes.get_mut(..read.len())?;
                bytes.copy_from_slice(read);
                self.put(into, Some(with), bytes)
            }
        }
    }
}

impl Communicator {
    /// Runs a collective whose input, output and scratch memory have at most [`SHORT`] bytes each.
    pub(crate) fn run_short(
        &self,
        collective: &PreparedCollective<'_>,
        input: Option<&[u8]>,
        output: &mut [u8],
    ) -> Result<(), Cause> {
        let PreparedCollective { element, op, .. } = *collective;
        // Few schedules need scratch memory, and zeroing it takes time.
        let (mut none, mut all);
        let scratch: &mut [u8] = if collective.schedule.scratch == 0 {
            none = [];
            &mut none
        } else {
            all = [0; SHORT];
            &mut all
        };
        self.run_steps(collective, ShortBuffers { input, output, scratch, element, op })
    }

    fn run_steps(
        &self,
        collective: &PreparedCollective<'_>,
        mut buffers: ShortBuffers<'_>,
    ) -> Result<(), Cause> {
        let schedule: &Schedule = &collective.schedule;
        let element = collective.element;
        let mut guard = self.progress.engine.lock();
        let (context, number) = collective.number;
        if let Some(cause) = guard.attach_and_split().0.matching.out_of_step(context, number) {
            return Err(cause);
        }
        for step in &schedule.steps {
            for local in &step.local {
                buffers.local(*local).ok_or(Cause::Cancelled)?;
            }
            for exchange in &step.exchange {
                let (to, bytes) = match *exchange {
                    Exchange::Send { to, span } => {
                        (to, buffers.read(span).ok_or(Cause::Cancelled)?)
                    }
                    Exchange::Signal { to } => (to, &[][..]),
                    _ => continue,
                };
                let message = self.collective_envelope(collective, to);
                if guard.attach_and_split().0.send_short(&message, bytes) == SendOutcome::Failed {
                    return Err(guard.attach_and_split().0.failure(message.peer));
                }
            }
            for exchange in &step.exchange {
                let (from, span, with) = match *exchange {
                    Exchange::Receive { from, span } => (from, Some(span), None),
                    Exchange::ReceiveReduce { from, with, span } => (from, Some(span), Some(with)),
                    Exchange::Await { from } => (from, None, None),
                    _ => continue,
                };
                let message = self.collective_envelope(collective, from);
                let expected = span.map_or(0, |span| span.length * element.size());
                self.receive_short(
                    &mut guard,
                    &message,
                    collective.operation,
                    expected,
                    |bytes| span.map_or(Some(()), |span| buffers.put(span, with, bytes)),
                )?;
            }
        }
        for exchange in schedule.steps.last().map_or(&[][..], |step| &step.exchange) {
            if let Exchange::Send { to, .. } | Exchange::Signal { to } = *exchange {
                let peer = self.collective_envelope(collective, to).peer;
                if !guard.attach_and_split().0.has_sent(peer) {
                    self.flush(&mut guard, peer, collective.operation)?;
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn collective_envelope(&self, collective: &PreparedCollective<'_>, peer: usize) -> Envelope {
        let (context, tag) = collective.number;
        Envelope { peer: self.group.ranks[peer], context, tag }
    }

    #[inline]
    fn receive_short(
        &self,
        guard: &mut EngineGuard<'_, Engine>,
        message: &Envelope,
        operation: Operation,
        expected: usize,
        mut put: impl FnMut(&[u8]) -> Option<()>,
    ) -> Result<(), Cause> {
        let (mut received, mut stored) = (0, Some(()));
        let take = |bytes: &[u8]| {
            received = bytes.len();
            stored = if received == expected { put(bytes) } else { None };
        };
        let is_short = self.await_message(guard, message, operation, take)?;
        if is_short && received == expected {
            return stored.ok_or(Cause::Cancelled);
        }
        let engine = guard.attach_and_split().0;
        let offered = if is_short { None } else { engine.rts_length(message) };
        let length = offered.unwrap_or(received as u64);
        Err(engine.matching.count_mismatch(message.peer, length, expected))
    }
}
