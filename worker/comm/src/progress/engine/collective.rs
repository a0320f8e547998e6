//! Execution of a collective's schedule, step by step.

use super::matching::{CollectiveArgs, Owner, RunningCollective, SlabKey, Target, TargetReduction};
use super::out_of_step::CancelledCollective;
use super::{Engine, Envelope};
use crate::collectives::schedule::{Buffer, Exchange, Local, Span};
use crate::transport::LocalSlice;
use crate::types::{Cause, Operation};
use rlaunch_lock::BufferTable;

impl RunningCollective {
    fn slice(&self, span: Span) -> Option<LocalSlice> {
        let size = self.args.element.size();
        let whole = match span.buffer {
            Buffer::Input => self.args.input,
            Buffer::Output => self.args.output,
            Buffer::Scratch => LocalSlice::all(self.scratch?, self.args.schedule.scratch * size),
        };
        Some(whole.part(span.start * size, span.length * size))
    }

    /// Describes the reduction of received bytes with the span `with`. The result goes to the span
    /// `into`, which may be `with` itself.
    fn reduction(&self, with: Span, into: Span) -> Option<TargetReduction> {
        let with = if with == into { None } else { Some(self.slice(with)?) };
        Some(TargetReduction { op: self.args.op, element: self.args.element, with })
    }

    fn local(&self, local: Local, buffers: &BufferTable) -> Option<()> {
        let (from, into, reduction) = match local {
            Local::Copy { from, to } => (from, to, None),
            Local::Reduce { from, with, into } => (from, into, self.reduction(with, into)),
        };
        let (from, into) = (self.slice(from)?, self.slice(into)?);
        let target = Target { into, reduction };
        if from.buffer != into.buffer {
            return from.read(buffers, |bytes| target.put(buffers, 0, bytes))?;
        }
        // Source and destination are in one buffer, and a second operand may be in it too. The
        // bytes that are copied aside for this case are few.
        match reduction {
            None => {
                let ranges = (into.range(), from.range());
                buffers.read_write(into.buffer, ranges, <[u8]>::copy_from_slice)
            }
            Some(_) => {
                let bytes = from.read(buffers, <[u8]>::to_vec)?;
                target.put(buffers, 0, &bytes)
            }
        }
    }
}

impl Engine {
    /// Begins a collective. Its result completes `request`.
    pub(crate) fn begin(
        &mut self,
        operation: Operation,
        args: CollectiveArgs,
        request: SlabKey,
        buffers: &BufferTable,
    ) -> SlabKey {
        let bytes = args.schedule.scratch * args.element.size();
        let scratch = (bytes > 0).then(|| buffers.allocate(bytes));
        let (step, pending, failed, is_cancelled) = (0, 0, None, false);
        let collective = RunningCollective {
            args,
            scratch,
            step,
            pending,
            failed,
            operation,
            request,
            is_cancelled,
        };
        let key = self.matching.collectives.insert(collective);
        self.run(key, buffers);
        key
    }

    /// Executes the steps of a collective until a step has to wait for messages.
    pub(crate) fn run(&mut self, key: SlabKey, buffers: &BufferTable) {
        loop {
            let Some(collective) = self.matching.collectives.get_mut(key) else { return };
            let step = collective.step;
            if collective.failed.is_some() {
                return self.fail(key, buffers);
            }
            if step == collective.args.schedule.steps.len() {
                return self.end(key, buffers);
            }
            collective.step += 1;
            let schedule = collective.args.schedule.clone();
            let Some(step) = schedule.steps.get(step) else { return };
            for local in &step.local {
                if collective.local(*local, buffers).is_none() {
                    collective.failed = Some(Cause::Cancelled);
                }
            }
            // One more than the number of messages, so that messages that complete immediately do
            // not end the step.
            collective.pending = step.exchange.len() + 1;
            for exchange in &step.exchange {
                self.exchange(key, *exchange, buffers);
            }
            let Some(collective) = self.matching.collectives.get_mut(key) else { return };
            collective.pending -= 1;
            if collective.pending > 0 {
                return;
            }
        }
    }

    fn exchange(&mut self, key: SlabKey, exchange: Exchange, buffers: &BufferTable) {
        let Some(collective) = self.matching.collectives.get_mut(key) else { return };
        let nothing = collective.args.input.part(0, 0);
        let slice = |span| collective.slice(span).unwrap_or(nothing);
        let copied = |into| Target { into, reduction: None };
        let (peer, slice, target) = match exchange {
            Exchange::Send { to, span } => (to, Some(slice(span)), None),
            Exchange::Signal { to } => (to, Some(nothing), None),
            Exchange::Receive { from, span } => (from, None, Some(copied(slice(span)))),
            Exchange::Await { from } => (from, None, Some(copied(nothing))),
            Exchange::ReceiveReduce { from, with, span } => {
                let target =
                    Target { into: slice(span), reduction: collective.reduction(with, span) };
                (from, None, Some(target))
            }
        };
        let args = &collective.args;
        let message = Envelope { peer: args.ranks[peer], context: args.context, tag: args.tag };
        let owner = Owner::Collective(key);
        if let Some(from) = slice {
            self.send(message, from, owner, buffers);
        } else if let Some(target) = target {
            self.receive(message, target, owner, buffers);
        }
    }

    /// Removes a collective and frees its scratch memory.
    pub(crate) fn drop_collective(
        &mut self,
        key: SlabKey,
        buffers: &BufferTable,
    ) -> Option<RunningCollective> {
        let collective = self.matching.collectives.remove(key)?;
        if let Some(scratch) = collective.scratch {
            buffers.free(scratch);
        }
        Some(collective)
    }

    /// Fails a running collective if `matches` returns `true` for its parameters.
    pub(super) fn fail_collective(
        &mut self,
        key: SlabKey,
        cause: &Cause,
        matches: impl Fn(&CollectiveArgs) -> bool,
        buffers: &BufferTable,
    ) {
        let Some(collective) = self.matching.collectives.get_mut(key) else { return };
        if collective.failed.is_none() && matches(&collective.args) {
            collective.failed = Some(cause.clone());
            self.fail(key, buffers);
        }
    }

    fn end(&mut self, key: SlabKey, buffers: &BufferTable) {
        let Some(collective) = self.drop_collective(key, buffers) else { return };
        self.matching.complete(Owner::Request(collective.request), Ok(Default::default()));
    }

    /// Cancels the messages of a failed collective. Completes the collective's request, with the
    /// error, if no RDMA device uses the collective's buffers any more.
    fn fail(&mut self, key: SlabKey, buffers: &BufferTable) {
        let Some(collective) = self.matching.collectives.get_mut(key) else { return };
        let cause = collective.failed.clone().unwrap_or(Cause::Cancelled);
        if !std::mem::replace(&mut collective.is_cancelled, true) {
            let CollectiveArgs { context, tag: number, ranks, .. } = collective.args.clone();
            let operation = collective.operation;
            let cancelled =
                CancelledCollective { context, number, operation, ranks: &ranks, cause: &cause };
            self.cancel_collective(cancelled, buffers);
            let notice = self.matching.notice_for(context, number);
            let with_device = self.cancel_messages(Owner::Collective(key), notice, buffers);
            let Some(collective) = self.matching.collectives.get_mut(key) else { return };
            collective.pending = with_device;
        }
        let is_over = |collective: &mut RunningCollective| collective.pending == 0;
        if self.matching.collectives.get_mut(key).is_some_and(is_over)
            && let Some(collective) = self.drop_collective(key, buffers)
        {
            self.matching.complete(Owner::Request(collective.request), Err(cause));
        }
    }
}
