//! Times of single messages. For writes and sends, the ranks answer each other's messages, and half
//! of the time from one message of rank 0 to its next one counts. Reads need no answer.
//!
//! Each message has a mark in its last byte. Rank 0 decides when the measurement is over, and gives
//! its last message the mark [`STOP`].

use super::ends::Ends;
use super::send_queue::Event;
use super::{StallTimer, Subject, Times, VerbsBenchError};
use crate::matrix;
use rlaunch_bootstrap::bench::{MessageTimes, VerbsAmount, VerbsOperation};
use rlaunch_comm::Communicator;
use rlaunch_sys::Ticks;

/// Number of different marks of messages that are not the last one, from 1.
const MARKS: u64 = 250;
/// Mark of the last message.
const STOP: u8 = 255;
/// Number of messages that are not timed, so that caches are warm and the peer does not sleep.
const WARM_UP: u64 = 4;

fn mark(message: u64) -> u8 {
    (message % MARKS) as u8 + 1
}

/// Measures on both ranks. Returns times on rank 0.
pub(super) fn measure(
    comm: &Communicator,
    ends: &Ends,
    subject: Subject,
    is_perftest: bool,
    ticks: &Ticks,
) -> Result<Option<MessageTimes>, VerbsBenchError> {
    let mut echo = Echo::new(ends, subject);
    let amount = Amount::new(subject.amount, ticks);
    matrix::barrier(comm)?;
    let times = match (subject.operation, comm.rank()) {
        (VerbsOperation::Read, 0) => Some((echo.read(ticks, amount)?, 1.0)),
        (VerbsOperation::Read, _) => None,
        (_, 0) => Some((echo.lead(ticks, amount)?, 0.5)),
        _ => echo.follow().map(|()| None)?,
    };
    matrix::barrier(comm)?;
    let microseconds = ticks.seconds_per_tick() * 1e6;
    Ok(times.map(|(times, part)| match is_perftest {
        true => times.summary_of_perftest(microseconds * part),
        false => times.summary(microseconds * part),
    }))
}

/// Number of messages, or length of the measurement in ticks.
#[derive(Clone, Copy)]
enum Amount {
    Messages(u64),
    Ticks(u64),
}

impl Amount {
    fn new(amount: VerbsAmount, ticks: &Ticks) -> Amount {
        match amount {
            VerbsAmount::Messages(messages) => Amount::Messages(messages),
            VerbsAmount::Seconds(seconds) => {
                Amount::Ticks((seconds / ticks.seconds_per_tick()) as u64)
            }
            // The launcher asks for streams alone if they have no end.
            VerbsAmount::Endless => Amount::Messages(1),
        }
    }

    /// Tells whether these many times, which took these many ticks together, are enough.
    fn is_enough(self, times: u64, ticks: u64) -> bool {
        match self {
            Amount::Messages(messages) => times >= messages,
            Amount::Ticks(most) => times > 0 && ticks >= most,
        }
    }
}

/// Times of messages, without the first ones.
struct MessageClock<'a> {
    ticks: &'a Ticks,
    amount: Amount,
    times: Times,
    /// Number of messages that have ended.
    messages: u64,
    /// Begin of the first time that counts, and end of the last message, in ticks.
    first: u64,
    before: u64,
}

impl<'a> MessageClock<'a> {
    fn new(ticks: &'a Ticks, amount: Amount) -> MessageClock<'a> {
        let now = ticks.now();
        MessageClock { ticks, amount, times: Times::new(), messages: 0, first: now, before: now }
    }

    /// Notes that a message has ended.
    #[inline]
    fn tick(&mut self) {
        let now = self.ticks.now();
        self.messages += 1;
        if self.messages > WARM_UP {
            self.times.push(now.saturating_sub(self.before));
        } else {
            self.first = now;
        }
        self.before = now;
    }

    fn is_over(&self) -> bool {
        let times = self.messages.saturating_sub(WARM_UP);
        self.messages >= WARM_UP
            && self.amount.is_enough(times, self.before.saturating_sub(self.first))
    }
}

struct Echo<'a> {
    ends: &'a Ends,
    subject: Subject,
    /// Message that is copied into the request; `None` if it is sent from registered memory.
    inline: Option<Vec<u8>>,
    /// Numbers of completed requests, and of filled receives, that were not waited for yet.
    completed: u64,
    received: u64,
}

impl<'a> Echo<'a> {
    fn new(ends: &'a Ends, subject: Subject) -> Echo<'a> {
        let is_inline = subject.bytes <= ends.max_inline() as usize;
        let inline = is_inline.then(|| vec![0; subject.bytes]);
        let echo = Echo { ends, subject, inline, completed: 0, received: 0 };
        // The peer has not begun to send: it waits for this rank.
        ends.region.write(echo.end_of_input(), &[0]);
        echo
    }

    /// Returns the position of the last byte of a message that the peer has sent.
    fn end_of_input(&self) -> usize {
        self.ends.layout.input(0) + self.subject.bytes - 1
    }

    /// Sends messages, and waits for the answer to each. Returns the times from one to the next.
    fn lead(&mut self, ticks: &Ticks, amount: Amount) -> Result<Times, VerbsBenchError> {
        let (mut clock, mut message) = (MessageClock::new(ticks, amount), 1);
        loop {
            let mark = if clock.is_over() { STOP } else { mark(message) };
            self.post(mark)?;
            self.wait_for_completion()?;
            self.wait_for(mark)?;
            if mark == STOP {
                return Ok(clock.times);
            }
            message += 1;
            clock.tick();
        }
    }

    /// Answers each message with one that has the same mark.
    fn follow(&mut self) -> Result<(), VerbsBenchError> {
        let mut message = 1;
        loop {
            let mark = self.wait_for(mark(message))?;
            self.post(mark)?;
            self.wait_for_completion()?;
            if mark == STOP {
                return Ok(());
            }
            message += 1;
        }
    }

    /// Reads messages one after the other, and returns the time of each.
    fn read(&mut self, ticks: &Ticks, amount: Amount) -> Result<Times, VerbsBenchError> {
        let (ends, layout) = (self.ends, self.ends.layout);
        let into = ends.slice(layout.input(0), self.subject.bytes)?;
        let mut clock = MessageClock::new(ticks, amount);
        while !clock.is_over() {
            ends.pairs[0].read(0, into, ends.remote(layout.output(0)))?;
            self.wait_for_completion()?;
            clock.tick();
        }
        Ok(clock.times)
    }

    fn post(&mut self, mark: u8) -> Result<(), VerbsBenchError> {
        let (ends, layout, bytes) = (self.ends, self.ends.layout, self.subject.bytes);
        let (pair, to) = (&ends.pairs[0], ends.remote(layout.input(0)));
        let is_send = self.subject.operation == VerbsOperation::Send;
        if let Some(message) = &mut self.inline {
            message[bytes - 1] = mark;
            let posted = if is_send {
                pair.send_inline(0, message, true)
            } else {
                pair.write_inline(0, message, to, true)
            };
            return Ok(posted?);
        }
        ends.region.write(layout.output(0) + bytes - 1, &[mark]);
        let from = ends.slice(layout.output(0), bytes)?;
        let posted = if is_send { pair.send(0, from, true) } else { pair.write(0, from, to) };
        Ok(posted?)
    }

    /// Waits for a message with this mark, or for the last one. Returns its mark.
    fn wait_for(&mut self, mark: u8) -> Result<u8, VerbsBenchError> {
        if self.subject.operation == VerbsOperation::Send {
            self.poll_until(|echo| echo.received > 0)?;
            self.received -= 1;
            self.ends.post_receive(0)?;
        }
        let (mut last, mut stalled) = ([0; 1], StallTimer::new(self.subject));
        loop {
            self.ends.region.read(self.end_of_input(), &mut last);
            if last == [mark] || last == [STOP] {
                return Ok(last[0]);
            }
            stalled.polled(false)?;
        }
    }

    /// Waits until a request that this rank has posted is complete.
    fn wait_for_completion(&mut self) -> Result<(), VerbsBenchError> {
        self.poll_until(|echo| echo.completed > 0)?;
        self.completed -= 1;
        Ok(())
    }

    /// Takes completions until a condition holds. An answer may come before the completion of the
    /// message that it answers.
    fn poll_until(&mut self, is_met: impl Fn(&Self) -> bool) -> Result<(), VerbsBenchError> {
        let mut stalled = StallTimer::new(self.subject);
        while !is_met(self) {
            match self.ends.completions.poll_one()? {
                None => stalled.polled(false)?,
                Some(done) => match Event::from_id(self.subject.checked(done)?.id()) {
                    Event::Received { .. } => self.received += 1,
                    Event::Sent { .. } | Event::Credited { .. } => self.completed += 1,
                },
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_differ_from_those_before_and_from_the_last() {
        for message in 1..1000 {
            let mark = mark(message);
            assert!(mark != 0 && mark != STOP && mark != super::mark(message + 1), "{message}");
        }
    }

    #[test]
    fn a_measurement_is_over_by_number_or_time() {
        assert!(!Amount::Messages(3).is_enough(2, u64::MAX) && Amount::Messages(3).is_enough(3, 0));
        assert!(!Amount::Ticks(10).is_enough(0, 11), "there must be one time");
        assert!(!Amount::Ticks(10).is_enough(9, 9) && Amount::Ticks(10).is_enough(1, 10));
    }

    #[test]
    fn first_messages_are_not_timed() {
        let ticks = Ticks::start();
        let mut clock = MessageClock::new(&ticks, Amount::Messages(3));
        while !clock.is_over() {
            clock.tick();
        }
        assert_eq!((clock.messages, clock.times.count()), (WARM_UP + 3, 3));
    }
}
