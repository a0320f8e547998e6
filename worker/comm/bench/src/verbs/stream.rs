//! Rate of many messages, as many at once as the queue pairs hold.

use super::ends::{Carried, Ends};
use super::pace::Pace;
use super::stall::StallTimer;
use super::turns::{Event, Turn, Turns, credit_id};
use super::{Subject, TAG, VerbsBenchError};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rlaunch_bootstrap::bench::{StreamRate, VerbsAmount, VerbsOperation};
use rlaunch_comm::Communicator;
use rlaunch_sys::Ticks;
use rlaunch_verbs::{CompletionBatch, VerbsError};
use std::time::Instant;

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
    let mut stream = Stream::new(ends, subject, (sends, receives), ticks);
    comm.barrier()?;
    let (used, begin) = (processor_seconds(), Instant::now());
    stream.run(each_second)?;
    comm.barrier()?;
    let cpu = (processor_seconds() - used) / begin.elapsed().as_secs_f64();
    let own = stream.rate();
    let carried = stream.carried;
    ends.carried = carried;
    let own = [own.messages as f64, own.average_gb_s, own.peak_gb_s, own.messages_per_s, cpu];
    let (mut theirs, peer) = ([0.0; 5], 1 - comm.rank());
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
    turns: Option<Turns>,
    /// State of what each queue pair receives; empty if this rank receives nothing.
    receiving: Vec<Receiving>,
    /// Counts of each queue pair since it was connected.
    carried: Vec<Carried>,
    /// Messages other than the last one, and the last one, if they are copied into the request.
    inline: Option<[Vec<u8>; 2]>,
    pace: Pace,
    /// Times of the first post and of the last completion, in ticks.
    first: u64,
    last: u64,
}

/// State of what a queue pair receives.
#[derive(Clone, Copy, Debug, Default)]
struct Receiving {
    has_last: bool,
    /// Whether a request that tells the peer the count of messages is outstanding.
    is_telling: bool,
}

impl<'a> Stream<'a> {
    fn new(
        ends: &'a Ends,
        subject: Subject,
        (sends, receives): (bool, bool),
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
            turns: sends.then(|| Turns::new(qps, ends.depth, bytes, amount)),
            receiving: vec![Receiving::default(); if receives { qps } else { 0 }],
            carried: ends.carried.clone(),
            inline: is_inline.then(|| [vec![MORE; bytes], vec![STOP; bytes]]),
            pace: Pace::new(),
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
        let (mut counted, mut told) = (0, self.first);
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
            if now - self.first >= end {
                self.turns.iter_mut().for_each(Turns::close);
            }
            if let Some(turns) = self.turns.as_ref().filter(|_| is_endless && now - told >= second)
            {
                let messages = turns.all_completed() - counted;
                each_second(self.second(messages, now - told))?;
                (counted, told) = (counted + messages, now);
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.turns.as_ref().is_none_or(Turns::are_over)
            && self.receiving.iter().all(|qp| qp.has_last && !qp.is_telling)
    }

    /// Posts as many messages as the queue pairs take.
    fn post(&mut self) -> Result<(), VerbsBenchError> {
        let Some(mut turns) = self.turns.take() else { return Ok(()) };
        for qp in 0..self.ends.pairs.len() {
            let room = self.room(qp);
            while let Some(turn) = turns.next(qp, room) {
                let ticks = self.ticks;
                self.pace.posted(turns.all_posted(), || ticks.now());
                self.post_message(qp, turn)?;
                turns.posted(qp, turn);
            }
        }
        self.turns = Some(turns);
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

    fn post_message(&self, qp: usize, turn: Turn) -> Result<(), VerbsError> {
        let (ends, bytes, operation) = (self.ends, self.subject.bytes, self.subject.operation);
        let (pair, layout) = (&ends.pairs[qp], ends.layout);
        let Turn { id, is_last, is_signalled } = turn;
        let to = ends.remote(layout.input(qp));
        if let Some(messages) = &self.inline {
            let message = &messages[usize::from(is_last)];
            return match operation {
                VerbsOperation::Send => pair.send_inline(id, message, is_signalled),
                _ => pair.write_inline(id, message, to, is_signalled),
            };
        }
        let output = if is_last { layout.last_output(qp) } else { layout.output(qp) };
        let from = ends.slice(output, bytes)?;
        match operation {
            VerbsOperation::Write => pair.write_with(id, from, to, is_signalled),
            VerbsOperation::Send => pair.send(id, from, is_signalled),
            VerbsOperation::Read => {
                let into = ends.slice(layout.input(qp), bytes)?;
                pair.read_with(id, into, ends.remote(layout.output(qp)), is_signalled)
            }
        }
    }

    fn take(&mut self, event: Event, now: u64) -> Result<(), VerbsBenchError> {
        match event {
            Event::Sent { qp, message } => {
                if let Some(turns) = &mut self.turns {
                    let messages = turns.completed(qp, message);
                    self.pace.completed(messages, now);
                    self.carried[qp].sent += messages;
                    self.last = now;
                }
            }
            Event::Received { qp } => self.receive(qp)?,
            Event::Credited { qp } => {
                if let Some(receiving) = self.receiving.get_mut(qp) {
                    receiving.is_telling = false;
                }
            }
        }
        Ok(())
    }

    /// Notes a message, posts the next receive, and tells the peer of the receives if it waits for
    /// them.
    fn receive(&mut self, qp: usize) -> Result<(), VerbsBenchError> {
        let (ends, bytes) = (self.ends, self.subject.bytes);
        ends.post_receive(qp)?;
        let (Some(receiving), carried) = (self.receiving.get_mut(qp), &mut self.carried[qp]) else {
            return Ok(());
        };
        carried.received += 1;
        let mut last = [0];
        ends.region.read(ends.layout.input(qp) + bytes - 1, &mut last);
        receiving.has_last |= last == [STOP];
        let untold = carried.received - carried.told;
        if !ends.has_credits || receiving.is_telling || untold < u64::from(ends.receives / 4) {
            return Ok(());
        }
        ends.region.write_u64(ends.layout.received(qp), carried.received);
        (carried.told, receiving.is_telling) = (carried.received, true);
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
        let messages = self.turns.as_ref().map_or(0, Turns::all_completed);
        let seconds = (self.last - self.first.min(self.last)) as f64 * self.seconds_per_tick;
        let per_second = if messages == 0 { 0.0 } else { messages as f64 / seconds };
        let bytes = self.subject.bytes as f64 / 1e9;
        let fastest = self.pace.fastest().map(|ticks| ticks * self.seconds_per_tick);
        OwnRate {
            messages,
            average_gb_s: per_second * bytes,
            peak_gb_s: fastest.map_or(0.0, |seconds| bytes / seconds),
            messages_per_s: per_second,
        }
    }
}
