//! Rate of many messages, as many at once as the queue pairs hold.

use super::ends::{Carried, Ends};
use super::send_queue::{Event, NextSend, PeakRate, SendQueues, credit_id};
use super::{StallTimer, Subject, TAG, VerbsBenchError};
use crate::matrix;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rlaunch_bootstrap::bench::{StreamRate, VerbsAmount, VerbsOperation};
use rlaunch_comm::Communicator;
use rlaunch_sys::Ticks;
use rlaunch_verbs::{CompletionBatch, VerbsError};
use std::time::Instant;

/// Size of a page, the smallest buffer, and distance of small messages, in bytes.
const PAGE: usize = 4096;
const CACHE_LINE: usize = 64;
/// Last byte of the last message of a queue pair, by which the receiver knows that it is the last.
const STOP: u8 = 255;
/// Last byte of other messages.
const MORE: u8 = 1;

/// Function that is called with the rate of each second of an endless stream.
pub(super) type EachSecond<'a> = &'a mut dyn FnMut(StreamRate) -> Result<(), VerbsBenchError>;

/// Measures on both ranks. Returns the rate of both together on both.
pub(super) fn measure(
    comm: &Communicator,
    ends: &mut Ends,
    subject: Subject,
    is_bidirectional: bool,
    ticks: &Ticks,
    each_second: EachSecond<'_>,
) -> Result<StreamRate, VerbsBenchError> {
    let sends = comm.rank() == 0 || is_bidirectional;
    let receives = ends.receives > 0 && (comm.rank() == 1 || is_bidirectional);
    let mut stream = Stream::new(ends, subject, sends, receives, ticks);
    matrix::barrier(comm)?;
    let (used, begin) = (processor_seconds(), Instant::now());
    stream.run(each_second)?;
    let usage = || (processor_seconds() - used) / begin.elapsed().as_secs_f64();
    // A rank that takes no part waits as long as the other one measures.
    let cpu = if sends || receives { usage() } else { f64::NAN };
    matrix::barrier(comm)?;
    let cpu = if cpu.is_nan() { usage() } else { cpu };
    let peer = 1 - comm.rank();
    if ends.receives > 0 {
        let sent: Vec<u64> = stream.carried.iter().map(|carried| carried.sent).collect();
        let mut theirs = vec![0; sent.len()];
        comm.sendrecv(&sent, (peer, TAG), &mut theirs, (peer, TAG))?;
        stream.drain(&theirs)?;
    }
    let own = stream.rate();
    let carried = stream.carried;
    ends.carried = carried;
    let own = [own.messages as f64, own.average_gb_s, own.peak_gb_s, own.messages_per_s, cpu];
    let mut theirs = [0.0; 5];
    comm.sendrecv(&own, (peer, TAG), &mut theirs, (peer, TAG))?;
    let sum = |index: usize| own[index] + theirs[index];
    let cpu = if comm.rank() == 0 { [cpu, theirs[4]] } else { [theirs[4], cpu] };
    Ok(StreamRate {
        messages: sum(0) as u64,
        average_gb_s: sum(1),
        peak_gb_s: Some(sum(2)),
        messages_per_s: sum(3),
        cpu: cpu.map(Some),
    })
}

/// Returns the processor time that this process has used, in seconds.
fn processor_seconds() -> f64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return 0.0 };
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    micros as f64 / 1e6
}

/// Rate in one direction.
struct OwnRate {
    messages: u64,
    average_gb_s: f64,
    peak_gb_s: f64,
    messages_per_s: f64,
}

/// Messages of this rank's queue pairs.
struct Stream<'a> {
    ends: &'a Ends,
    subject: Subject,
    ticks: &'a Ticks,
    seconds_per_tick: f64,
    /// Messages to send; `None` if this rank only receives, or takes no part.
    queues: Option<SendQueues>,
    /// State of what each queue pair receives; empty if this rank receives nothing.
    receiving: Vec<Receiving>,
    /// Counts of each queue pair since it was connected.
    carried: Vec<Carried>,
    /// Messages other than the last one, and the last one, if they are copied into the request.
    inline: Option<[Vec<u8>; 2]>,
    peak: PeakRate,
    /// Times of the first post and of the last completion, in ticks.
    first: u64,
    last: u64,
}

/// State of what a queue pair receives.
#[derive(Clone, Copy, Debug, Default)]
struct Receiving {
    has_last: bool,
    /// Whether a request that tells the peer the count of messages is outstanding.
    is_crediting: bool,
}

impl<'a> Stream<'a> {
    fn new(
        ends: &'a Ends,
        subject: Subject,
        sends: bool,
        receives: bool,
        ticks: &'a Ticks,
    ) -> Stream<'a> {
        let (qps, Subject { bytes, amount, .. }) = (ends.pairs.len(), subject);
        for qp in 0..qps {
            ends.region.write(ends.layout.output(qp) + bytes - 1, &[MORE]);
            ends.region.write(ends.layout.last_output(qp) + bytes - 1, &[STOP]);
            // The peer has not begun to send: it waits for this rank.
            ends.region.write(ends.layout.input(qp) + bytes - 1, &[0]);
        }
        let is_inline =
            subject.operation != VerbsOperation::Read && bytes <= ends.max_inline() as usize;
        Stream {
            ends,
            subject,
            ticks,
            seconds_per_tick: ticks.seconds_per_tick(),
            queues: sends.then(|| SendQueues::new(qps, ends.depth, bytes, amount)),
            receiving: vec![Receiving::default(); if receives { qps } else { 0 }],
            carried: ends.carried.clone(),
            inline: is_inline.then(|| [vec![MORE; bytes], vec![STOP; bytes]]),
            peak: PeakRate::new(),
            first: 0,
            last: 0,
        }
    }

    /// Sends and receives until all messages have completed.
    fn run(&mut self, each_second: EachSecond<'_>) -> Result<(), VerbsBenchError> {
        let second = (1.0 / self.seconds_per_tick) as u64;
        let end = match self.subject.amount {
            VerbsAmount::Messages(_) | VerbsAmount::Endless => u64::MAX,
            VerbsAmount::Seconds(seconds) => (seconds / self.seconds_per_tick) as u64,
        };
        let is_endless = self.subject.amount == VerbsAmount::Endless;
        let mut batch = <CompletionBatch>::default();
        let mut stalled = StallTimer::new(self.subject);
        self.first = self.ticks.now();
        let (mut counted, mut before) = (0, self.first);
        while !self.is_over() {
            self.post()?;
            let ended = self.ends.completions.poll_into(&mut batch)?;
            stalled.polled(ended.len() > 0)?;
            if ended.len() == 0 && !is_endless && end == u64::MAX {
                continue;
            }
            let now = self.ticks.now();
            for done in ended {
                let done = self.subject.checked(done)?;
                self.take(Event::from_id(done.id()), now)?;
            }
            if now.saturating_sub(self.first) >= end {
                self.queues.iter_mut().for_each(SendQueues::close);
            }
            if let Some(queues) =
                self.queues.as_ref().filter(|_| is_endless && now.saturating_sub(before) >= second)
            {
                let messages = queues.all_completed() - counted;
                each_second(self.second(messages, now.saturating_sub(before)))?;
                (counted, before) = (counted + messages, now);
            }
        }
        Ok(())
    }

    /// Takes the completions of all messages that the peer has sent over each queue pair since it was
    /// connected. The last message may be seen before it and those before it have completed.
    fn drain(&mut self, sent: &[u64]) -> Result<(), VerbsBenchError> {
        let mut batch = <CompletionBatch>::default();
        let mut stalled = StallTimer::new(self.subject);
        let is_drained = |stream: &Self| {
            let counts = stream.carried.iter().zip(sent);
            counts.into_iter().all(|(carried, sent)| carried.received >= *sent)
                && stream.receiving.iter().all(|receiving| !receiving.is_crediting)
        };
        while !is_drained(self) {
            let ended = self.ends.completions.poll_into(&mut batch)?;
            stalled.polled(ended.len() > 0)?;
            for done in ended {
                let done = self.subject.checked(done)?;
                self.take(Event::from_id(done.id()), self.last)?;
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.queues.as_ref().is_none_or(SendQueues::are_over)
            && self.receiving.iter().all(|qp| qp.has_last && !qp.is_crediting)
    }

    /// Posts as many messages as the queue pairs take.
    fn post(&mut self) -> Result<(), VerbsBenchError> {
        let Some(mut queues) = self.queues.take() else { return Ok(()) };
        for qp in 0..self.ends.pairs.len() {
            let room = self.room(qp);
            while let Some(next) = queues.next(qp, room) {
                let ticks = self.ticks;
                self.peak.posted(queues.all_posted(), || ticks.now());
                self.post_message(qp, next)?;
                queues.posted(qp, next);
            }
        }
        self.queues = Some(queues);
        Ok(())
    }

    /// Returns the number of messages of this stream for which the peer has had room so far.
    fn room(&self, qp: usize) -> u64 {
        let ends = self.ends;
        if !ends.has_credits {
            return u64::MAX;
        }
        let received = ends.region.read_u64(ends.layout.peer_received(qp)).unwrap_or(0);
        (received + u64::from(ends.receives)).saturating_sub(ends.carried[qp].sent)
    }

    fn post_message(&self, qp: usize, next: NextSend) -> Result<(), VerbsError> {
        let (ends, bytes, operation) = (self.ends, self.subject.bytes, self.subject.operation);
        let (pair, layout) = (&ends.pairs[qp], ends.layout);
        let NextSend { id, is_last, is_signalled } = next;
        let to = ends.remote(layout.input(qp));
        if let Some(messages) = &self.inline {
            let message = &messages[usize::from(is_last)];
            return match operation {
                VerbsOperation::Send => pair.send_inline(id, message, is_signalled),
                _ => pair.write_inline(id, message, to, is_signalled),
            };
        }
        let (own, peers) = (layout.output(qp), layout.input(qp));
        let shift = shift(bytes, id);
        match operation {
            VerbsOperation::Write => {
                let from = ends.slice(own + shift, bytes)?;
                pair.write_with(id, from, ends.remote(peers + shift), is_signalled)
            }
            VerbsOperation::Send => {
                let output = if is_last { layout.last_output(qp) } else { own };
                pair.send(id, ends.slice(output, bytes)?, is_signalled)
            }
            VerbsOperation::Read => {
                let into = ends.slice(peers + shift, bytes)?;
                pair.read_with(id, into, ends.remote(own + shift), is_signalled)
            }
        }
    }

    fn take(&mut self, event: Event, now: u64) -> Result<(), VerbsBenchError> {
        match event {
            Event::Sent { qp, message } => {
                if let Some(queues) = &mut self.queues {
                    let messages = queues.completed(qp, message);
                    self.peak.completed(messages, now);
                    self.carried[qp].sent += messages;
                    self.last = now;
                }
            }
            Event::Received { qp } => self.receive(qp)?,
            Event::Credited { qp } => {
                if let Some(receiving) = self.receiving.get_mut(qp) {
                    receiving.is_crediting = false;
                }
                // Messages that came meanwhile may be enough.
                self.credit(qp)?;
            }
        }
        Ok(())
    }

    /// Notes a message, posts the next receive, and tells the peer of the receives if it waits for
    /// them.
    fn receive(&mut self, qp: usize) -> Result<(), VerbsBenchError> {
        let (ends, bytes) = (self.ends, self.subject.bytes);
        ends.post_receive(qp)?;
        self.carried[qp].received += 1;
        let Some(receiving) = self.receiving.get_mut(qp) else { return Ok(()) };
        let mut last = [0];
        ends.region.read(ends.layout.input(qp) + bytes - 1, &mut last);
        receiving.has_last |= last == [STOP];
        self.credit(qp)
    }

    /// Tells the peer how many messages were received, if it waits for that and enough is new.
    fn credit(&mut self, qp: usize) -> Result<(), VerbsBenchError> {
        let ends = self.ends;
        let (Some(receiving), carried) = (self.receiving.get_mut(qp), &mut self.carried[qp]) else {
            return Ok(());
        };
        let uncredited = carried.received - carried.credited;
        let is_due = uncredited >= u64::from(ends.receives / 4) && !receiving.is_crediting;
        if !ends.has_credits || !is_due {
            return Ok(());
        }
        ends.region.write_u64(ends.layout.received(qp), carried.received);
        (carried.credited, receiving.is_crediting) = (carried.received, true);
        let count = ends.slice(ends.layout.received(qp), size_of::<u64>())?;
        let to = ends.remote(ends.layout.peer_received(qp));
        Ok(ends.pairs[qp].write(credit_id(qp), count, to)?)
    }

    fn second(&self, messages: u64, ticks: u64) -> StreamRate {
        let per_second = messages as f64 / (ticks as f64 * self.seconds_per_tick);
        StreamRate {
            messages,
            peak_gb_s: None,
            average_gb_s: per_second * self.subject.bytes as f64 / 1e9,
            messages_per_s: per_second,
            cpu: [None; 2],
        }
    }

    fn rate(&self) -> OwnRate {
        let messages = self.queues.as_ref().map_or(0, SendQueues::all_completed);
        let seconds = (self.last - self.first.min(self.last)) as f64 * self.seconds_per_tick;
        let per_second = if messages == 0 { 0.0 } else { messages as f64 / seconds };
        let bytes = self.subject.bytes as f64 / 1e9;
        let fastest = self.peak.fastest().map(|ticks| ticks * self.seconds_per_tick);
        OwnRate {
            messages,
            average_gb_s: per_second * bytes,
            peak_gb_s: fastest.map_or(0.0, |seconds| bytes / seconds),
            messages_per_s: per_second,
        }
    }
}

/// Returns how far into its buffer a write or read goes, in bytes. Messages of up to half a page move
/// through a page, as with perftest: if all of them met the same cache line, they would be slower.
fn shift(bytes: usize, message: u64) -> usize {
    let step = bytes.next_multiple_of(CACHE_LINE);
    let room = PAGE / step;
    if room < 2 { 0 } else { (message % room as u64) as usize * step }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_messages_move_through_a_page() {
        for bytes in [1, 63, 64, 65, 1000, 2048, 2049, 4096, 1 << 20] {
            let shifts: Vec<usize> = (0..100).map(|message| shift(bytes, message)).collect();
            assert_eq!(shifts.iter().any(|shift| *shift > 0), bytes <= 2048, "{bytes}");
            assert!(shifts.iter().all(|shift| *shift == 0 || shift + bytes <= PAGE), "{bytes}");
        }
    }
}
