//! Highest rate of any part of a stream.

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
