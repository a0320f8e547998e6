//! An eye on paths that were proved: each end lets the other know that it is there, and says what
//! it notices. Between beats it sleeps.

use crate::end::End;
use crate::fault;
use crate::link::{Link, Request};
use rlaunch_bootstrap::deadline::SUSPENSION_THRESHOLD;
use rlaunch_bootstrap::protocol::mesh::{PathEvent, ProofStep};
use rlaunch_verbs::{Completion, DeviceEvent, VerbsError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often it looks for what has become of the paths, in a beat.
const LOOKS: u32 = 4;
/// No sign of the peer for so many half beats: it is gone.
const HALF_BEATS: u32 = 5;

/// The paths that are watched.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    paths: Vec<WatchedPath>,
    beat: Duration,
    looked: Option<Instant>,
}

#[derive(Debug)]
struct WatchedPath {
    link: Link,
    beats: Beats,
    is_down: bool,
}

/// What was sent over a path and what was heard: decisions alone.
#[derive(Clone, Copy, Debug)]
struct Beats {
    sent: u64,
    sent_at: Option<Instant>,
    /// It is on its way.
    is_sending: bool,
    heard: u64,
    heard_at: Instant,
}

impl Watch {
    /// Watches those of these ids, out of all that is open; the others are closed.
    pub(crate) fn these(self, more: Vec<Link>, ids: &[u32], beat: Duration) -> Watch {
        let now = Instant::now();
        let more = more.into_iter().map(|link| WatchedPath {
            beats: Beats::from(now, link.end.beats_seen(link.place)),
            link,
            is_down: false,
        });
        let all = self.paths.into_iter().chain(more);
        let mut paths: Vec<_> = all.filter(|path| ids.contains(&path.link.path.id)).collect();
        for path in &mut paths {
            path.beats.heard_at = now;
        }
        Watch { paths, beat, looked: None }
    }

    /// How long nothing has to be looked at; `None` for ever.
    pub(crate) fn patience(&self) -> Option<Duration> {
        if self.paths.is_empty() {
            return None;
        }
        let since = self.looked.map_or(self.look_every(), |looked| looked.elapsed());
        Some(self.look_every().saturating_sub(since))
    }

    fn look_every(&self) -> Duration {
        self.beat / LOOKS
    }

    /// Beats where it is time to, and says what has become of the paths.
    pub(crate) fn look(&mut self) -> Vec<PathEvent> {
        let now = Instant::now();
        let soon = self.looked.is_some_and(|looked| now - looked < self.look_every());
        if soon || self.paths.is_empty() {
            return Vec::new();
        }
        let is_late = |looked| now - looked > self.look_every() + SUSPENSION_THRESHOLD;
        if self.looked.is_some_and(is_late) {
            // What it has not heard while it did not run it could not have heard.
            self.paths.iter_mut().for_each(|path| path.beats.heard_at = now);
        }
        self.looked = Some(now);
        let mut news = Vec::new();
        for end in self.ends() {
            self.take_completions(&end, &mut news);
            self.take_events(&end, &mut news);
        }
        for path in self.paths.iter_mut().filter(|path| !path.is_down) {
            if let Some(how) = path.beat(now, self.beat) {
                path.down(how, &mut news);
            }
        }
        news
    }

    /// Each once.
    fn ends(&self) -> Vec<Arc<End>> {
        let mut ends: Vec<Arc<End>> = Vec::new();
        for path in &self.paths {
            if !ends.iter().any(|end| Arc::ptr_eq(end, &path.link.end)) {
                ends.push(path.link.end.clone());
            }
        }
        ends
    }

    fn of_end(&mut self, end: &Arc<End>) -> impl Iterator<Item = &mut WatchedPath> {
        self.paths.iter_mut().filter(|path| Arc::ptr_eq(&path.link.end, end))
    }

    fn take_completions(&mut self, end: &Arc<End>, news: &mut Vec<PathEvent>) {
        loop {
            let completions = match end.resources.completions.poll() {
                Ok(completions) if completions.is_empty() => return,
                Ok(completions) => completions,
                Err(error) => {
                    let how = cause(&error);
                    self.of_end(end).for_each(|path| path.down(how.clone(), news));
                    return;
                }
            };
            for completion in completions {
                let (place, request) = Request::of(&completion);
                if let Some(path) = self.of_end(end).find(|path| path.link.place == place) {
                    path.completed(request, &completion, news);
                }
            }
        }
    }

    /// What the device says of its ports.
    fn take_events(&mut self, end: &Arc<End>, news: &mut Vec<PathEvent>) {
        let (name, own) = (end.context.name(), end.port.number);
        loop {
            match end.context.next_event(Duration::ZERO) {
                Ok(Some(DeviceEvent::PortError(port))) if port == own => {
                    let how = format!("{name} port {port}: link down");
                    self.of_end(end).for_each(|path| path.down(how.clone(), news));
                }
                Ok(Some(DeviceEvent::PortActive(port))) if port == own => {
                    let up = self.of_end(end).map(|path| path.link.path.id);
                    news.extend(up.map(|id| PathEvent::PortUp { id }));
                }
                Ok(Some(DeviceEvent::DeviceFatal)) => {
                    let how = format!("{name}: the device has failed");
                    self.of_end(end).for_each(|path| path.down(how.clone(), news));
                }
                // A queue pair that fails says so by its completions, or its peer's silence does.
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }
}

impl WatchedPath {
    /// Said once.
    fn down(&mut self, how: String, news: &mut Vec<PathEvent>) {
        if !std::mem::replace(&mut self.is_down, true) {
            news.push(PathEvent::Down { id: self.link.path.id, how });
        }
    }

    fn completed(&mut self, request: Request, completion: &Completion, news: &mut Vec<PathEvent>) {
        let status = completion.status;
        if status.is_retry_exceeded() {
            self.down(format!("no answer: {status}"), news);
        } else if !status.is_success() {
            self.down(status.to_string(), news);
        } else if request == Request::Beat {
            self.beats.is_sending = false;
        }
    }

    /// Sends a beat if it is time to; how the path is dead, if it is.
    fn beat(&mut self, now: Instant, beat: Duration) -> Option<String> {
        self.beats.hear(self.link.end.beats_seen(self.link.place), now);
        if let Some(silence) = self.beats.silence(now, beat) {
            return Some(format!("no beat for {:.1} s", silence.as_secs_f64()));
        }
        let count = self.beats.send(now, beat)?;
        self.link.beat(count).err().map(|error| cause(&error))
    }
}

impl Beats {
    fn from(now: Instant, heard: u64) -> Beats {
        Beats { sent: 0, sent_at: None, is_sending: false, heard, heard_at: now }
    }

    /// The peer has beaten so often.
    fn hear(&mut self, count: u64, now: Instant) {
        if count != self.heard {
            (self.heard, self.heard_at) = (count, now);
        }
    }

    /// How long the peer has not beaten, if that is too long.
    fn silence(&self, now: Instant, beat: Duration) -> Option<Duration> {
        let silence = now.saturating_duration_since(self.heard_at);
        (silence >= beat * HALF_BEATS / 2).then_some(silence)
    }

    /// The number of the beat that is to be sent now.
    fn send(&mut self, now: Instant, beat: Duration) -> Option<u64> {
        let is_time = self.sent_at.is_none_or(|sent| now - sent >= beat);
        if self.is_sending || !is_time {
            return None;
        }
        (self.sent, self.sent_at, self.is_sending) = (self.sent + 1, Some(now), true);
        Some(self.sent)
    }
}

fn cause(error: &VerbsError) -> String {
    fault::of(ProofStep::Block, error).cause
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT: Duration = Duration::from_secs(2);

    #[test]
    fn it_beats_once_a_beat_and_never_twice_at_once() {
        let begin = Instant::now();
        let mut beats = Beats::from(begin, 0);
        assert_eq!(beats.send(begin, BEAT), Some(1));
        assert_eq!(beats.send(begin + 2 * BEAT, BEAT), None, "the first is on its way");
        beats.is_sending = false;
        assert_eq!(beats.send(begin + BEAT / 2, BEAT), None);
        assert_eq!(beats.send(begin + BEAT, BEAT), Some(2));
    }

    #[test]
    fn silence_is_two_beats_and_a_half_without_a_change() {
        let begin = Instant::now();
        let mut beats = Beats::from(begin, 7);
        beats.hear(7, begin + BEAT);
        assert_eq!(beats.silence(begin + 2 * BEAT, BEAT), None);
        let silence = Some(Duration::from_secs(5));
        assert_eq!(beats.silence(begin + Duration::from_secs(5), BEAT), silence);
        beats.hear(8, begin + Duration::from_secs(5));
        assert_eq!(beats.silence(begin + Duration::from_secs(9), BEAT), None);
    }
}
