//! The line at a terminal: how much has arrived, how fast, the time left, and the slowest host with what limits it.

use super::reports::HostState;
use rlaunch_console::progress::show_step;
use rlaunch_copy::control::Limit;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time between two lines.
const REFRESH: Duration = Duration::from_millis(500);
/// Time over which the rate is measured.
const WINDOW: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct ProgressLine {
    /// What is done, such as `pushing`.
    verb: &'static str,
    shown: Option<Instant>,
    /// Bytes that the slowest host had, at times within the last [`WINDOW`].
    samples: VecDeque<(Instant, u64)>,
}

impl ProgressLine {
    pub(super) fn new(verb: &'static str) -> ProgressLine {
        ProgressLine { verb, shown: None, samples: VecDeque::new() }
    }

    /// Shows how far the copy is, unless the last line is new.
    pub(super) fn show(
        &mut self,
        hosts: &[String],
        ranks: &[HostState],
        local: &HostState,
        now: Instant,
    ) {
        let is_new = |shown: Instant| now.saturating_duration_since(shown) < REFRESH;
        if self.shown.is_some_and(is_new) {
            return;
        }
        self.shown = Some(now);
        if let Some(line) = self.line(hosts, ranks, local, now) {
            show_step(&line);
        }
    }

    /// Returns `None` before any host knows how much there is.
    fn line(
        &mut self,
        hosts: &[String],
        ranks: &[HostState],
        local: &HostState,
        now: Instant,
    ) -> Option<String> {
        let known = ranks.iter().enumerate().filter(|(_, state)| state.total > 0);
        let (slowest, state) = known.min_by_key(|(_, state)| permille(state))?;
        let left = state.total.saturating_sub(state.written);
        let (written, total) = (amount(state.written), amount(state.total));
        let percent = permille(state) / 10;
        let mut line = format!("{} {written} of {total} ({percent} %)", self.verb);
        if let Some(rate) = self.rate(now, state.written) {
            line += &format!(" · {}/s", amount(rate as u64));
            if rate >= 1.0 {
                line += &format!(" · {} left", time_left(left as f64 / rate));
            }
        }
        if let Some((who, limit)) = bottleneck(hosts, ranks, local, slowest) {
            line += &format!(" · slowest: {who} ({limit})");
        }
        Some(line)
    }

    /// Returns bytes per second of late; `None` while too little is known.
    fn rate(&mut self, now: Instant, bytes: u64) -> Option<f64> {
        // Another host is the slowest now, or the copy has begun anew.
        if self.samples.back().is_some_and(|(_, last)| *last > bytes) {
            self.samples.clear();
        }
        self.samples.push_back((now, bytes));
        while self.samples.len() > 2
            && self
                .samples
                .front()
                .is_some_and(|(at, _)| now.saturating_duration_since(*at) > WINDOW)
        {
            self.samples.pop_front();
        }
        let (began, first) = *self.samples.front()?;
        let seconds = now.saturating_duration_since(began).as_secs_f64();
        (seconds > 0.0).then(|| bytes.saturating_sub(first) as f64 / seconds)
    }
}

fn permille(state: &HostState) -> u64 {
    let share = u128::from(state.written) * 1000 / u128::from(state.total.max(1));
    u64::try_from(share).unwrap_or(1000).min(1000)
}

/// Follows who waits for whom from the host `start` on, and returns the host for which the others wait, with its own
/// limit.
fn bottleneck(
    hosts: &[String],
    ranks: &[HostState],
    local: &HostState,
    start: usize,
) -> Option<(String, &'static str)> {
    // The place in the chain; 0 is this machine.
    let mut place = start + 1;
    for _ in 0..=ranks.len() {
        let state = if place == 0 { local } else { ranks.get(place - 1)? };
        let limit = match state.waits_for? {
            Limit::Upstream if place > 0 => {
                place -= 1;
                continue;
            }
            Limit::Downstream if place < ranks.len() => {
                place += 1;
                continue;
            }
            Limit::Wire => "network",
            Limit::Disk => "disk",
            Limit::Cpu => "CPU",
            Limit::Upstream | Limit::Downstream | Limit::Nothing => return None,
        };
        let who = place.checked_sub(1).map_or("this machine", |rank| hosts[rank].as_str());
        return Some((who.to_owned(), limit));
    }
    None
}

/// Formats a number of bytes with a decimal unit: `12 B`, `340 kB`, `2.1 GB`.
pub(super) fn amount(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1e3;
    let mut unit = 0;
    // 999.9 would be rounded to 1000.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1e3;
        unit += 1;
    }
    let digits = usize::from(value < 9.95);
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Formats a time in its largest units: `8 s`, `3 min`, `2 h 5 min`.
fn time_left(seconds: f64) -> String {
    let seconds = seconds.ceil() as u64;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(written: u64, waits_for: Limit) -> HostState {
        HostState {
            received: written,
            written,
            total: 2_000_000_000,
            waits_for: Some(waits_for),
            ..HostState::default()
        }
    }

    fn hosts() -> Vec<String> {
        ["a", "b", "c"].map(str::to_owned).to_vec()
    }

    #[test]
    fn the_line_says_how_far_and_who_is_slow() {
        let mut line = ProgressLine::new("pushing");
        let local = HostState { waits_for: Some(Limit::Downstream), ..HostState::default() };
        let began = Instant::now();
        let at = |written: u64| {
            let disk = state(written, Limit::Disk);
            [state(1_500_000_000, Limit::Downstream), disk, state(written, Limit::Upstream)]
        };
        assert_eq!(line.line(&hosts(), &[], &local, began), None);
        let first = line.line(&hosts(), &at(800_000_000), &local, began).unwrap();
        assert_eq!(first, "pushing 800 MB of 2.0 GB (40 %) · slowest: b (disk)");
        let second =
            line.line(&hosts(), &at(1_000_000_000), &local, began + Duration::from_secs(1));
        let expected = "pushing 1.0 GB of 2.0 GB (50 %) · 200 MB/s · 5 s left · slowest: b (disk)";
        assert_eq!(second.unwrap(), expected);
    }

    #[test]
    fn whoever_waits_is_not_what_others_wait_for() {
        let ranks = [state(1, Limit::Upstream), state(1, Limit::Upstream)];
        let source = HostState { waits_for: Some(Limit::Cpu), ..HostState::default() };
        let found = bottleneck(&hosts(), &ranks, &source, 1);
        assert_eq!(found, Some(("this machine".to_owned(), "CPU")));
        // Two that wait for each other are no answer.
        let ranks = [state(1, Limit::Downstream), state(1, Limit::Upstream)];
        assert_eq!(bottleneck(&hosts(), &ranks, &source, 1), None);
        // The program here may not have reported yet.
        let ranks = [state(1, Limit::Upstream)];
        assert_eq!(bottleneck(&hosts(), &ranks, &HostState::default(), 0), None);
    }

    #[test]
    fn amounts_have_two_or_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (9_960, "10 kB"),
            (999_400, "999 kB"),
            (999_900, "1.0 MB"),
            (214_000_000, "214 MB"),
            (2_100_000_000, "2.1 GB"),
        ] {
            assert_eq!(amount(bytes), text);
        }
        assert_eq!([5.2, 130.0, 7500.0].map(time_left), ["6 s", "3 min", "2 h 5 min"]);
    }
}
