//! Watches proved paths: each end writes a heartbeat to the other end at a fixed interval, and
//! reports when the path fails. A path is down if a write fails, no heartbeat arrives for 2.5
//! intervals, or the device reports that the port or the device failed. The process sleeps between
//! polls.

use crate::end::{End, Link, Request};
use crate::fault;
use rlaunch_bootstrap::deadline::SUSPENSION_THRESHOLD;
use rlaunch_bootstrap::protocol::mesh::{PathEvent, ProofStep};
use rlaunch_verbs::{Completion, DeviceEvent, VerbsError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of polls per heartbeat interval.
const POLLS_PER_BEAT: u32 = 4;
/// Number of half heartbeat intervals without a received heartbeat after which a path is down.
const HALF_BEATS: u32 = 5;

/// Watched paths.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    paths: Vec<WatchedPath>,
    beat: Duration,
    polled_at: Option<Instant>,
}

#[derive(Debug)]
struct WatchedPath {
    link: Link,
    beats: Heartbeats,
    is_down: bool,
}

/// Heartbeats sent and received over a path. Makes decisions only; the caller posts the writes.
#[derive(Clone, Copy, Debug)]
struct Heartbeats {
    /// Number of the last heartbeat sent.
    sent: u64,
    sent_at: Option<Instant>,
    /// Set until the write of the last heartbeat has completed.
    is_sending: bool,
    /// Number of the last heartbeat received.
    received: u64,
    /// Time when `received` last changed.
    received_at: Instant,
}

impl Watch {
    /// Returns a watch of the paths with these ids, out of those watched so far and `more`. Other
    /// paths are closed. `beat` is the heartbeat interval.
    pub(crate) fn replace(self, more: Vec<Link>, ids: &[u32], beat: Duration) -> Watch {
        let now = Instant::now();
        let more = more.into_iter().map(|link| WatchedPath {
            beats: Heartbeats::new(now, link.end.beats_received(link.slot)),
            link,
            is_down: false,
        });
        let all = self.paths.into_iter().chain(more);
        let mut paths: Vec<_> = all.filter(|path| ids.contains(&path.link.path.id)).collect();
        for path in &mut paths {
            path.beats.received_at = now;
        }
        Watch { paths, beat, polled_at: None }
    }

    /// Returns the time until the next poll is due; `None` if no path is watched.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        if self.paths.is_empty() {
            return None;
        }
        let since = self.polled_at.map_or(self.poll_interval(), |polled_at| polled_at.elapsed());
        Some(self.poll_interval().saturating_sub(since))
    }

    fn poll_interval(&self) -> Duration {
        self.beat / POLLS_PER_BEAT
    }

    /// If a poll is due: sends heartbeats that are due, and returns new events of the paths.
    pub(crate) fn poll(&mut self) -> Vec<PathEvent> {
        let now = Instant::now();
        let soon = self.polled_at.is_some_and(|polled_at| now - polled_at < self.poll_interval());
        if soon || self.paths.is_empty() {
            return Vec::new();
        }
        let was_suspended =
            |polled_at| now - polled_at > self.poll_interval() + SUSPENSION_THRESHOLD;
        if self.polled_at.is_some_and(was_suspended) {
            // The process was suspended, so heartbeats could not be noticed: restart the silence.
            self.paths.iter_mut().for_each(|path| path.beats.received_at = now);
        }
        self.polled_at = Some(now);
        let mut events = Vec::new();
        for end in self.ends() {
            self.take_completions(&end, &mut events);
            self.take_events(&end, &mut events);
        }
        for path in self.paths.iter_mut().filter(|path| !path.is_down) {
            if let Some(cause) = path.beat(now, self.beat) {
                path.mark_down(cause, &mut events);
            }
        }
        events
    }

    /// Returns the ends of the watched paths, without duplicates.
    fn ends(&self) -> Vec<Arc<End>> {
        let mut ends: Vec<Arc<End>> = Vec::new();
        for path in &self.paths {
            if !ends.iter().any(|end| Arc::ptr_eq(end, &path.link.end)) {
                ends.push(path.link.end.clone());
            }
        }
        ends
    }

    fn paths_of(&mut self, end: &Arc<End>) -> impl Iterator<Item = &mut WatchedPath> {
        self.paths.iter_mut().filter(|path| Arc::ptr_eq(&path.link.end, end))
    }

    fn take_completions(&mut self, end: &Arc<End>, events: &mut Vec<PathEvent>) {
        loop {
            let completions = match end.resources.completions.poll() {
                Ok(completions) if completions.is_empty() => return,
                Ok(completions) => completions,
                Err(error) => {
                    let cause = describe(&error);
                    self.paths_of(end).for_each(|path| path.mark_down(cause.clone(), events));
                    return;
                }
            };
            for completion in completions {
                let (slot, request) = Request::from_completion(&completion);
                if let Some(path) = self.paths_of(end).find(|path| path.link.slot == slot) {
                    path.completed(request, &completion, events);
                }
            }
        }
    }

    /// Handles the device's asynchronous events.
    fn take_events(&mut self, end: &Arc<End>, events: &mut Vec<PathEvent>) {
        let (name, own) = (end.context.name(), end.port.number);
        loop {
            match end.context.next_event(Duration::ZERO) {
                Ok(Some(DeviceEvent::PortError(port))) if port == own => {
                    let cause = format!("{name} port {port}: link down");
                    self.paths_of(end).for_each(|path| path.mark_down(cause.clone(), events));
                }
                Ok(Some(DeviceEvent::PortActive(port))) if port == own => {
                    let up = self.paths_of(end).map(|path| path.link.path.id);
                    events.extend(up.map(|id| PathEvent::PortUp { id }));
                }
                Ok(Some(DeviceEvent::DeviceFatal)) => {
                    let cause = format!("{name}: the device has failed");
                    self.paths_of(end).for_each(|path| path.mark_down(cause.clone(), events));
                }
                // The failure of a queue pair shows in its completions, or as silence at the peer.
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }
}

impl WatchedPath {
    /// Marks the path as down, and reports that the first time.
    fn mark_down(&mut self, cause: String, events: &mut Vec<PathEvent>) {
        if !std::mem::replace(&mut self.is_down, true) {
            events.push(PathEvent::Down { id: self.link.path.id, how: cause });
        }
    }

    fn completed(
        &mut self,
        request: Request,
        completion: &Completion,
        events: &mut Vec<PathEvent>,
    ) {
        let status = completion.status;
        if status.is_retry_exceeded() {
            self.mark_down(format!("no answer: {status}"), events);
        } else if !status.is_success() {
            self.mark_down(status.to_string(), events);
        } else if request == Request::Beat {
            self.beats.is_sending = false;
        }
    }

    /// Sends a heartbeat if one is due. Returns the cause if the path is down.
    fn beat(&mut self, now: Instant, beat: Duration) -> Option<String> {
        self.beats.receive(self.link.end.beats_received(self.link.slot), now);
        if let Some(silence) = self.beats.silence(now, beat) {
            return Some(format!("no beat for {:.1} s", silence.as_secs_f64()));
        }
        let count = self.beats.send(now, beat)?;
        self.link.beat(count).err().map(|error| describe(&error))
    }
}

impl Heartbeats {
    fn new(now: Instant, received: u64) -> Heartbeats {
        Heartbeats { sent: 0, sent_at: None, is_sending: false, received, received_at: now }
    }

    /// Records the number of the peer's last heartbeat.
    fn receive(&mut self, count: u64, now: Instant) {
        if count != self.received {
            (self.received, self.received_at) = (count, now);
        }
    }

    /// Returns the time since the peer's last heartbeat, if it is so long that the path is down.
    fn silence(&self, now: Instant, beat: Duration) -> Option<Duration> {
        let silence = now.saturating_duration_since(self.received_at);
        (silence >= beat * HALF_BEATS / 2).then_some(silence)
    }

    /// Returns the number of the heartbeat to send now, if one is due.
    fn send(&mut self, now: Instant, beat: Duration) -> Option<u64> {
        let is_time = self.sent_at.is_none_or(|sent| now - sent >= beat);
        if self.is_sending || !is_time {
            return None;
        }
        (self.sent, self.sent_at, self.is_sending) = (self.sent + 1, Some(now), true);
        Some(self.sent)
    }
}

fn describe(error: &VerbsError) -> String {
    fault::from_verbs(ProofStep::Block, error).cause
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT: Duration = Duration::from_secs(2);

    #[test]
    fn it_beats_once_a_beat_and_never_twice_at_once() {
        let begin = Instant::now();
        let mut beats = Heartbeats::new(begin, 0);
        assert_eq!(beats.send(begin, BEAT), Some(1));
        assert_eq!(beats.send(begin + 2 * BEAT, BEAT), None, "the first is on its way");
        beats.is_sending = false;
        assert_eq!(beats.send(begin + BEAT / 2, BEAT), None);
        assert_eq!(beats.send(begin + BEAT, BEAT), Some(2));
    }

    #[test]
    fn silence_is_two_beats_and_a_half_without_a_change() {
        let begin = Instant::now();
        let mut beats = Heartbeats::new(begin, 7);
        beats.receive(7, begin + BEAT);
        assert_eq!(beats.silence(begin + 2 * BEAT, BEAT), None);
        let silence = Some(Duration::from_secs(5));
        assert_eq!(beats.silence(begin + Duration::from_secs(5), BEAT), silence);
        beats.receive(8, begin + Duration::from_secs(5));
        assert_eq!(beats.silence(begin + Duration::from_secs(9), BEAT), None);
    }
}
