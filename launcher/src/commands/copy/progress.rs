//! The line at a terminal: how much has arrived, how fast, the time left, and the host or link that limits the copy.

use super::HostCopy;
use rlaunch_console::progress::show_step;
use rlaunch_copy::control::Limit;
use rlaunch_text::text;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Name of the machine of the launcher.
const HERE: &str = "this machine";
/// Time between two lines.
const REFRESH: Duration = Duration::from_millis(500);
/// Time over which the rate is measured.
const WINDOW: Duration = Duration::from_secs(5);

/// Program that reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Program on a host, a rank of the job.
    Rank,
    /// The one on this machine.
    Local,
}

/// How far the copy of a host, or of this machine, is.
#[derive(Clone, Debug, Default)]
pub(super) struct HostState {
    /// Bytes that a source has read before it sends any, and bytes that it reads.
    pub(super) read: u64,
    pub(super) to_read: u64,
    pub(super) received: u64,
    pub(super) written: u64,
    pub(super) total: u64,
    pub(super) waits_for: Option<Limit>,
    /// Limit of the program on this host that sends the files of a fetch.
    pub(super) source_waits_for: Option<Limit>,
    pub(super) done: Option<HostCopy>,
    /// Rank whose files are those of this host.
    pub(super) shares: Option<usize>,
    /// Engine that reads an image which is there.
    pub(super) loads: Option<String>,
}

#[derive(Debug)]
pub(super) struct ProgressLine {
    /// What is done, such as `pushing`.
    verb: &'static str,
    /// [`Source::Rank`] if hosts form a chain; otherwise each sends to this machine.
    of_progress: Source,
    shown: Option<Instant>,
    /// Bytes that the host with the least had, at times within the last [`WINDOW`].
    samples: VecDeque<(Instant, u64)>,
}

impl ProgressLine {
    pub(super) fn new(verb: &'static str, of_progress: Source) -> ProgressLine {
        ProgressLine { verb, of_progress, shown: None, samples: VecDeque::new() }
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

    /// Shows how far the copy is, which has come to what takes long without any more reports.
    pub(super) fn show_at_once(
        &mut self,
        hosts: &[String],
        ranks: &[HostState],
        local: &HostState,
    ) {
        self.shown = None;
        self.show(hosts, ranks, local, Instant::now());
    }

    /// Returns `None` before anybody knows how much there is.
    fn line(
        &mut self,
        hosts: &[String],
        ranks: &[HostState],
        local: &HostState,
        now: Instant,
    ) -> Option<String> {
        let known = ranks.iter().enumerate().filter(|(_, state)| state.total > 0);
        let Some((least, state)) = known.min_by_key(|(_, state)| permille(state)) else {
            return self.line_of_reading(ranks, local, now);
        };
        if state.written == state.total
            && let Some(line) = line_of_loading(hosts, ranks)
        {
            return Some(line);
        }
        let mut line = self.how_far(self.verb, (state.written, state.total), now);
        let slowest = match self.of_progress {
            Source::Rank => slowest_of_chain(hosts, ranks, local, least),
            Source::Local => hosts.get(least).and_then(|host| limit_of_fetch(host, state)),
        };
        if let Some((who, limit)) = slowest {
            line += &format!(" · slowest: {who} ({limit})");
        }
        Some(line)
    }

    /// Returns the line while a source reads its files, of which nothing has been sent yet.
    fn line_of_reading(
        &mut self,
        ranks: &[HostState],
        local: &HostState,
        now: Instant,
    ) -> Option<String> {
        let reading = ranks.iter().chain([local]).filter(|state| state.to_read > 0);
        let state = reading.min_by_key(|state| share(state.read, state.to_read))?;
        let what = format!("{}: reading", self.verb.trim_end_matches(':'));
        Some(self.how_far(&what, (state.read, state.to_read), now))
    }

    /// Formats bytes, rate and time left.
    fn how_far(&mut self, what: &str, (bytes, total): (u64, u64), now: Instant) -> String {
        let percent = share(bytes, total) / 10;
        let mut line = format!("{what} {} of {} ({percent} %)", amount(bytes), amount(total));
        if let Some(rate) = self.rate(now, bytes) {
            line += &format!(" · {}/s", amount(rate as u64));
            if rate >= 1.0 {
                let left = total.saturating_sub(bytes);
                line += &format!(" · {} left", time_left(left as f64 / rate));
            }
        }
        line
    }

    /// Returns bytes per second of late; `None` while too little is known.
    fn rate(&mut self, now: Instant, bytes: u64) -> Option<f64> {
        // Another host has the least now, or the copy has begun anew.
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

/// Returns the line while engines read an image that has arrived.
fn line_of_loading(hosts: &[String], ranks: &[HostState]) -> Option<String> {
    let loading = hosts.iter().zip(ranks);
    let loading = loading.filter_map(|(host, state)| Some((host, state.loads.as_ref()?)));
    let (hosts, engines): (Vec<&String>, Vec<&String>) = loading.unzip();
    Some(format!("loading: {} on {}", engines.first()?, text::list(&hosts)))
}

fn permille(state: &HostState) -> u64 {
    share(state.written, state.total)
}

/// Returns a part of a whole in thousandths.
fn share(part: u64, whole: u64) -> u64 {
    let share = u128::from(part) * 1000 / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(1000).min(1000)
}

/// Returns the host that the others wait for, or the link between two that wait for each other, and what limits it.
/// The search begins at the rank `start`. Rates cannot tell, since all hosts of a chain have the same.
fn slowest_of_chain(
    hosts: &[String],
    ranks: &[HostState],
    local: &HostState,
    start: usize,
) -> Option<(String, &'static str)> {
    // Places in the chain; 0 is this machine.
    let name = |place: usize| place.checked_sub(1).map_or(HERE, |rank| hosts[rank].as_str());
    let limit = |place: usize| -> Option<Limit> {
        place.checked_sub(1).map_or(Some(local), |rank| ranks.get(rank))?.waits_for
    };
    let mut place = start + 1;
    // Whether the host before `place`, or the one behind it, waits for that at `place`.
    let (mut is_sent_to, mut is_received_from) = (false, false);
    loop {
        match limit(place)? {
            Limit::Upstream if is_sent_to => return Some(link(name(place - 1), name(place))),
            Limit::Wire | Limit::Downstream if is_received_from => {
                return Some(link(name(place), name(place + 1)));
            }
            Limit::Upstream if place > 0 => {
                place -= 1;
                (is_sent_to, is_received_from) = (false, true);
            }
            // A source that cannot send does not know whether the network or the next host is slow.
            Limit::Wire | Limit::Downstream if place < ranks.len() => {
                place += 1;
                (is_sent_to, is_received_from) = (true, false);
            }
            Limit::Disk => return Some((name(place).to_owned(), "disk")),
            Limit::Cpu => return Some((name(place).to_owned(), "CPU")),
            Limit::Wire | Limit::Upstream | Limit::Downstream | Limit::Nothing => return None,
        }
    }
}

/// Returns what limits the fetch from a host, which depends on no other host.
fn limit_of_fetch(host: &str, state: &HostState) -> Option<(String, &'static str)> {
    match state.waits_for? {
        Limit::Disk => Some((HERE.to_owned(), "disk")),
        Limit::Cpu => Some((HERE.to_owned(), "CPU")),
        Limit::Upstream => match state.source_waits_for? {
            Limit::Disk => Some((host.to_owned(), "disk")),
            Limit::Cpu => Some((host.to_owned(), "CPU")),
            Limit::Wire | Limit::Downstream => Some(link(host, HERE)),
            Limit::Upstream | Limit::Nothing => None,
        },
        Limit::Wire | Limit::Downstream | Limit::Nothing => None,
    }
}

fn link(from: &str, to: &str) -> (String, &'static str) {
    (format!("{from} → {to}"), "network")
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
        let mut line = ProgressLine::new("pushing", Source::Rank);
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
    fn what_is_read_before_it_is_sent_has_a_line_too() {
        let mut line = ProgressLine::new("copying the working tree:", Source::Rank);
        let began = Instant::now();
        let reading = |read| HostState { read, to_read: 4_000_000_000, ..HostState::default() };
        let none = vec![HostState::default(); 3];
        assert_eq!(line.line(&hosts(), &none, &HostState::default(), began), None);
        line.line(&hosts(), &none, &reading(1_000_000_000), began).unwrap();
        let later = began + Duration::from_secs(1);
        let second = line.line(&hosts(), &none, &reading(2_000_000_000), later).unwrap();
        let expected =
            "copying the working tree: reading 2.0 GB of 4.0 GB (50 %) · 1.0 GB/s · 2 s left";
        assert_eq!(second, expected);
        // The first bytes that arrive are no step back.
        let arrived = [state(0, Limit::Upstream)];
        let third = line.line(&hosts(), &arrived, &reading(4_000_000_000), later).unwrap();
        assert_eq!(third, "copying the working tree: 0 B of 2.0 GB (0 %)");
    }

    #[test]
    fn hosts_that_load_are_named() {
        let mut line = ProgressLine::new("pushing", Source::Rank);
        let loads =
            HostState { loads: Some("docker".into()), ..state(2_000_000_000, Limit::Nothing) };
        let ranks = [loads.clone(), state(2_000_000_000, Limit::Nothing), loads];
        let line = line.line(&hosts(), &ranks, &HostState::default(), Instant::now());
        assert_eq!(line.unwrap(), "loading: docker on a, c");
    }

    /// Returns the slowest of a chain: this machine, which waits for `here`, and hosts, which wait for `limits`.
    fn slowest(here: Option<Limit>, limits: &[Limit]) -> Option<String> {
        let ranks: Vec<HostState> = limits.iter().map(|limit| state(1, *limit)).collect();
        let source = HostState { waits_for: here, ..HostState::default() };
        let found: Vec<Option<String>> = (0..ranks.len())
            .map(|start| slowest_of_chain(&hosts(), &ranks, &source, start))
            .map(|found| found.map(|(who, limit)| format!("{who} ({limit})")))
            .collect();
        assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "{found:?}");
        found.into_iter().next().flatten()
    }

    #[test]
    fn whoever_waits_is_not_what_others_wait_for() {
        use Limit::{Cpu, Disk, Downstream, Nothing, Upstream, Wire};
        let is = |text: &str| Some(text.to_owned());
        assert_eq!(slowest(Some(Cpu), &[Upstream, Upstream]), is("this machine (CPU)"));
        assert_eq!(slowest(Some(Wire), &[Downstream, Disk, Upstream]), is("b (disk)"));
        // Two that wait for each other have a slow link between them.
        assert_eq!(slowest(Some(Wire), &[Upstream, Upstream]), is("this machine → a (network)"));
        let late = slowest(Some(Wire), &[Downstream, Downstream, Upstream]);
        assert_eq!(late, is("b → c (network)"));
        // The source of the chain may be a rank.
        assert_eq!(slowest(None, &[Wire, Cpu, Upstream]), is("b (CPU)"));
        assert_eq!(slowest(None, &[Wire, Upstream]), is("a → b (network)"));
        // The program here may not have reported yet.
        assert_eq!(slowest(None, &[Upstream]), None);
        assert_eq!(slowest(Some(Wire), &[Nothing]), None);
    }

    #[test]
    fn hosts_of_a_fetch_do_not_wait_for_each_other() {
        let of = |here, there| HostState { source_waits_for: there, ..state(1, here) };
        let found = |here, there| {
            limit_of_fetch("b", &of(here, there)).map(|(who, limit)| format!("{who} ({limit})"))
        };
        let is = |text: &str| Some(text.to_owned());
        assert_eq!(found(Limit::Disk, Some(Limit::Wire)), is("this machine (disk)"));
        assert_eq!(found(Limit::Upstream, Some(Limit::Disk)), is("b (disk)"));
        assert_eq!(found(Limit::Upstream, Some(Limit::Wire)), is("b → this machine (network)"));
        assert_eq!(found(Limit::Upstream, None), None);
        let mut line = ProgressLine::new("fetching", Source::Local);
        let first = state(1_500_000_000, Limit::Disk);
        let second =
            HostState { source_waits_for: Some(Limit::Cpu), ..state(500_000_000, Limit::Upstream) };
        let line = line.line(&hosts(), &[first, second], &HostState::default(), Instant::now());
        assert_eq!(line.unwrap(), "fetching 500 MB of 2.0 GB (25 %) · slowest: b (CPU)");
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
