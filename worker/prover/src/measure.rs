//! Measures the write bandwidth of proved paths, all at once: each dialling end writes to its peer's measured memory
//! as fast as the path allows, for a fixed time.

use crate::end::{DEPTH, End, MEASURED};
use crate::link::{Link, Request};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which outstanding writes are awaited after the last one was posted.
const DRAIN: Duration = Duration::from_millis(500);

/// Writes of one path.
struct Stream<'a> {
    link: &'a Link,
    count: WriteCount,
}

/// Number of a stream's writes. Makes decisions only; the caller posts the writes.
#[derive(Clone, Copy, Debug)]
struct WriteCount {
    begin: Instant,
    /// Time of the last completion.
    last: Instant,
    posted: u64,
    done: u64,
    has_failed: bool,
}

impl WriteCount {
    fn new(begin: Instant) -> WriteCount {
        WriteCount { begin, last: begin, posted: 0, done: 0, has_failed: false }
    }

    /// Tells whether the queue pair has room for another write.
    fn has_room(&self) -> bool {
        !self.has_failed && self.posted - self.done < u64::from(DEPTH.send)
    }

    fn is_busy(&self) -> bool {
        !self.has_failed && self.posted > self.done
    }

    fn completed(&mut self, is_success: bool, now: Instant) {
        if is_success {
            (self.done, self.last) = (self.done + 1, now);
        } else {
            self.has_failed = true;
        }
    }

    /// Returns the bandwidth in Mb/s; `None` if a write has failed or is still outstanding.
    fn megabits(&self) -> Option<u32> {
        if self.has_failed || self.is_busy() {
            return None;
        }
        let bits = u128::from(self.done) * MEASURED as u128 * 8;
        // Bits in a microsecond are megabits in a second.
        let rate = bits.checked_div(self.last.duration_since(self.begin).as_micros())?;
        u32::try_from(rate).ok()
    }
}

/// Measures these paths for `time`. Returns the bandwidth of each in Mb/s; `None` if it could not be measured. Calls
/// `meanwhile` regularly.
pub(crate) fn measure<E>(
    links: &[&Link],
    time: Duration,
    mut meanwhile: impl FnMut() -> Result<(), E>,
) -> Result<Vec<Option<u32>>, E> {
    let begin = Instant::now();
    let mut streams: Vec<Stream<'_>> =
        links.iter().map(|link| Stream { link, count: WriteCount::new(begin) }).collect();
    loop {
        let passed = begin.elapsed();
        for stream in streams.iter_mut().filter(|_| passed < time) {
            stream.post();
        }
        for end in ends(links) {
            take_completions(end, &mut streams);
        }
        let is_busy = streams.iter().any(|stream| stream.count.is_busy());
        if (passed >= time && !is_busy) || passed >= time + DRAIN {
            break;
        }
        meanwhile()?;
    }
    Ok(streams.iter().map(|stream| stream.count.megabits()).collect())
}

impl Stream<'_> {
    /// Posts as many writes as the queue pair takes.
    fn post(&mut self) {
        while self.count.has_room() {
            match self.link.write_measured() {
                Ok(()) => self.count.posted += 1,
                Err(_) => self.count.has_failed = true,
            }
        }
    }
}

/// Returns the ends of paths, without duplicates.
fn ends<'a>(links: &[&'a Link]) -> Vec<&'a Arc<End>> {
    let mut ends: Vec<&Arc<End>> = Vec::new();
    for link in links {
        if !ends.iter().any(|end| Arc::ptr_eq(end, &link.end)) {
            ends.push(&link.end);
        }
    }
    ends
}

fn take_completions(end: &Arc<End>, streams: &mut [Stream<'_>]) {
    let own = streams.iter_mut().filter(|stream| Arc::ptr_eq(&stream.link.end, end));
    let Ok(completions) = end.resources.completions.poll() else {
        own.for_each(|stream| stream.count.has_failed = true);
        return;
    };
    let now = Instant::now();
    let mut own: Vec<&mut Stream<'_>> = own.collect();
    for completion in completions {
        let (slot, request) = Request::from_completion(&completion);
        let stream = own.iter_mut().find(|stream| stream.link.slot == slot);
        if let Some(stream) = stream.filter(|_| request == Request::Measured) {
            stream.count.completed(completion.status.is_success(), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_is_what_was_acknowledged_in_the_time_until_then() {
        let begin = Instant::now();
        let mut count = WriteCount::new(begin);
        assert_eq!(count.megabits(), None, "nothing was written");
        while count.has_room() {
            count.posted += 1;
        }
        assert_eq!(count.posted, u64::from(DEPTH.send));
        for _ in 0..count.posted {
            assert_eq!(count.megabits(), None);
            count.completed(true, begin + Duration::from_millis(1));
        }
        // Four writes of 512 KiB in a millisecond.
        assert_eq!(count.megabits(), Some(16_777));
        count.completed(false, begin);
        assert!(!count.has_room() && count.megabits().is_none());
    }
}
