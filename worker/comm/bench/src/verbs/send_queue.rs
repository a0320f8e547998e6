//! Counts of the messages of a stream, by queue pair. Makes decisions only; the caller posts.
//! Beside them, the highest rate of any part of a stream.

use rlaunch_bootstrap::bench::VerbsAmount;

/// Number of requests of which one is signalled, for messages of up to [`SMALL`] bytes. All
/// requests for longer messages are signalled. Both values are those of perftest.
const SIGNALLED_EVERY: u64 = 100;
const SMALL: usize = 8192;
/// Bits of a request's id: its kind, the queue pair, and the number of the message, from 1.
const RECEIVE: u64 = 1 << 63;
const CREDIT: u64 = 1 << 62;
/// Room for 1024 queue pairs, and for messages of a hundred days.
const QP_SHIFT: u32 = 52;

/// Event of which a completion tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// All messages of a queue pair up to this one have been sent.
    Sent { qp: usize, message: u64 },
    /// A message has filled a receive.
    Received { qp: usize },
    /// The peer has been told how many messages were received.
    Credited { qp: usize },
}

impl Event {
    pub(super) fn from_id(id: u64) -> Event {
        let qp = ((id & !(RECEIVE | CREDIT)) >> QP_SHIFT) as usize;
        if id & RECEIVE != 0 {
            Event::Received { qp }
        } else if id & CREDIT != 0 {
            Event::Credited { qp }
        } else {
            Event::Sent { qp, message: id & ((1 << QP_SHIFT) - 1) }
        }
    }
}

pub(super) fn receive_id(qp: usize) -> u64 {
    RECEIVE | (qp as u64) << QP_SHIFT
}

pub(super) fn credit_id(qp: usize) -> u64 {
    CREDIT | (qp as u64) << QP_SHIFT
}

/// Request that may be posted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NextSend {
    pub(super) id: u64,
    pub(super) is_last: bool,
    pub(super) is_signalled: bool,
}

/// Messages of one queue pair.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    posted: u64,
    completed: u64,
    has_last: bool,
}

/// Messages of all queue pairs in one direction.
#[derive(Debug)]
pub(super) struct SendQueues {
    depth: u64,
    /// Number of requests of which one is signalled.
    every: u64,
    /// Number of messages of each queue pair; `None` until [`SendQueues::close`].
    most: Option<u64>,
    is_closing: bool,
    qps: Vec<Counts>,
    posted: u64,
    completed: u64,
}

impl SendQueues {
    pub(super) fn new(qps: usize, depth: u32, bytes: usize, amount: VerbsAmount) -> SendQueues {
        let depth = u64::from(depth);
        let every = if bytes > SMALL { 1 } else { SIGNALLED_EVERY.min(depth) };
        let most = match amount {
            VerbsAmount::Messages(messages) => Some(messages.max(1)),
            VerbsAmount::Seconds(_) | VerbsAmount::Endless => None,
        };
        let counts = vec![Counts::default(); qps];
        SendQueues { depth, every, most, is_closing: false, qps: counts, posted: 0, completed: 0 }
    }

    /// Lets each queue pair post one more message, which is its last one.
    pub(super) fn close(&mut self) {
        self.is_closing = true;
    }

    /// Returns the request that a queue pair may post now; `None` if its queue is full, or all its
    /// messages are posted. `most` limits the number of messages for which the peer has room.
    pub(super) fn next(&self, qp: usize, most: u64) -> Option<NextSend> {
        let counts = self.qps[qp];
        let is_full = counts.posted - counts.completed >= self.depth || counts.posted >= most;
        if counts.has_last || is_full {
            return None;
        }
        let message = counts.posted + 1;
        let is_last = self.is_closing || self.most == Some(message);
        let is_signalled = is_last || message.is_multiple_of(self.every);
        Some(NextSend { id: (qp as u64) << QP_SHIFT | message, is_last, is_signalled })
    }

    pub(super) fn posted(&mut self, qp: usize, next: NextSend) {
        let counts = &mut self.qps[qp];
        counts.posted += 1;
        counts.has_last |= next.is_last;
        self.posted += 1;
    }

    /// Notes that all messages of a queue pair up to this one have completed. Returns the number of
    /// those that had not been known to have completed.
    pub(super) fn completed(&mut self, qp: usize, message: u64) -> u64 {
        let counts = &mut self.qps[qp];
        let more = message.saturating_sub(counts.completed);
        counts.completed += more;
        self.completed += more;
        more
    }

    /// Returns the number of messages of all queue pairs that were posted.
    pub(super) fn all_posted(&self) -> u64 {
        self.posted
    }

    /// Returns the number of messages of all queue pairs that have completed.
    pub(super) fn all_completed(&self) -> u64 {
        self.completed
    }

    pub(super) fn are_over(&self) -> bool {
        self.posted == self.completed && self.qps.iter().all(|counts| counts.has_last)
    }
}

/// Maximum number of messages of which the times are kept.
const SAMPLES: usize = 512;

/// Times of every n-th message of a stream, where n doubles as the stream goes on.
///
/// perftest keeps the times of all messages, so its streams are short, or have no peak.
#[derive(Debug)]
pub(super) struct PeakRate {
    /// Messages from one sample to the next.
    step: u64,
    /// Number of messages that have completed.
    completed: u64,
    /// Times of the posts of message 0, `step`, 2 `step` and so on, in ticks.
    posts: Vec<u64>,
    /// Times of the completions of the same messages.
    completions: Vec<u64>,
}

impl PeakRate {
    pub(super) fn new() -> PeakRate {
        PeakRate { step: 1, completed: 0, posts: Vec::new(), completions: Vec::new() }
    }

    /// Notes the post of the message with this number, from 0, in ticks.
    #[inline]
    pub(super) fn posted(&mut self, message: u64, now: impl FnOnce() -> u64) {
        if !message.is_multiple_of(self.step) {
            return;
        }
        self.posts.push(now());
        if self.posts.len() == SAMPLES {
            self.step *= 2;
            for times in [&mut self.posts, &mut self.completions] {
                let mut index = 0;
                times.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
            }
        }
    }

    /// Notes that `messages` more messages have completed, in ticks.
    #[inline]
    pub(super) fn completed(&mut self, messages: u64, now: u64) {
        self.completed += messages;
        while self.completions.len() < self.posts.len()
            && self.completions.len() as u64 * self.step < self.completed
        {
            self.completions.push(now);
        }
    }

    /// Returns the ticks per message of the fastest part of the stream, from the post of its first
    /// message to the completion of its last one; `None` if no part took any time.
    pub(super) fn fastest(&self) -> Option<f64> {
        let mut fastest: Option<f64> = None;
        for (last, end) in self.completions.iter().enumerate() {
            for (first, begin) in self.posts[..=last].iter().enumerate() {
                let messages = (last - first) as u64 * self.step + 1;
                let ticks = end.saturating_sub(*begin) as f64 / messages as f64;
                if ticks > 0.0 && fastest.is_none_or(|fastest| ticks < fastest) {
                    fastest = Some(ticks);
                }
            }
        }
        fastest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Posts all that may be posted, and returns the messages that are signalled.
    fn post(queues: &mut SendQueues, qp: usize, most: u64) -> Vec<u64> {
        let mut signalled = Vec::new();
        while let Some(next) = queues.next(qp, most) {
            let Event::Sent { qp: of, message } = Event::from_id(next.id) else { panic!() };
            assert_eq!(of, qp);
            signalled.extend(next.is_signalled.then_some(message));
            queues.posted(qp, next);
        }
        signalled
    }

    #[test]
    fn a_queue_is_filled_and_every_hundredth_small_message_is_signalled() {
        let mut queues = SendQueues::new(2, 128, 64, VerbsAmount::Messages(250));
        assert_eq!(post(&mut queues, 0, u64::MAX), [100]);
        assert_eq!((queues.all_posted(), queues.completed(0, 100)), (128, 100));
        assert_eq!(post(&mut queues, 0, u64::MAX), [200]);
        assert_eq!(queues.completed(0, 200), 100);
        assert_eq!(post(&mut queues, 0, u64::MAX), [250], "and the last one");
        queues.completed(0, 250);
        assert!(!queues.are_over(), "the second queue pair has sent nothing");
        while !queues.are_over() {
            let signalled = post(&mut queues, 1, u64::MAX);
            queues.completed(1, *signalled.last().unwrap());
        }
        assert_eq!(queues.all_completed(), 500);
    }

    #[test]
    fn large_messages_are_all_signalled_and_so_is_one_in_a_short_queue() {
        let mut large = SendQueues::new(1, 4, 1 << 20, VerbsAmount::Messages(3));
        assert_eq!(post(&mut large, 0, u64::MAX), [1, 2, 3]);
        let mut short = SendQueues::new(1, 4, 8, VerbsAmount::Messages(6));
        assert_eq!(post(&mut short, 0, u64::MAX), [4]);
    }

    #[test]
    fn a_stream_of_some_time_ends_with_a_signalled_message() {
        let mut queues = SendQueues::new(1, 8, 8, VerbsAmount::Seconds(1.0));
        assert_eq!(post(&mut queues, 0, 3), Vec::<u64>::new(), "room for three");
        queues.close();
        assert!(queues.next(0, 3).is_none() && !queues.are_over());
        assert_eq!(post(&mut queues, 0, 9), [4]);
        queues.completed(0, 4);
        assert!(queues.are_over());
    }

    #[test]
    fn ids_tell_events_apart() {
        assert_eq!(Event::from_id(receive_id(1023)), Event::Received { qp: 1023 });
        assert_eq!(Event::from_id(credit_id(7)), Event::Credited { qp: 7 });
    }

    /// Makes a stream whose message n is posted at 10 n and completes at `end(n)`.
    fn peak(messages: u64, end: impl Fn(u64) -> u64) -> PeakRate {
        let mut peak = PeakRate::new();
        for message in 0..messages {
            peak.posted(message, || 10 * message);
            peak.completed(1, end(message));
        }
        peak
    }

    #[test]
    fn the_fastest_part_is_from_a_post_to_a_completion() {
        assert_eq!(peak(0, |_| 0).fastest(), None);
        assert_eq!(peak(1, |_| 7).fastest(), Some(7.0));
        // Each message takes 25, but there are many at once.
        let fastest = peak(100, |message| 10 * message + 25).fastest().unwrap();
        assert!((fastest - (990.0 + 25.0) / 100.0).abs() < 1e-9, "{fastest}");
    }

    #[test]
    fn a_long_stream_keeps_few_samples() {
        let peak = peak(100_000, |message| 10 * message + 25);
        assert!(peak.posts.len() < SAMPLES && peak.completions.len() == peak.posts.len());
        assert!((peak.fastest().unwrap() - 10.0).abs() < 0.1);
    }
}
