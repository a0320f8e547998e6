//! The page as lines: a pure function of what has happened, of what the user looks at, and of the size of the terminal.

use super::grid::{Cell, Column, Grid, Look};
use super::history::{History, Recent, Tail};
use super::sample::{Activity, HostActivity, PortActivity, RankActivity};
use super::state::{Extent, Shown, State, TABLES, Table};
use super::tables;
use ratatui::layout::Size;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::inventory::traffic::GpuUsage;
use rlaunch_text::text;

/// Keys in the last line. Those that a narrow terminal leaves out are in the help.
const JOB_KEYS: &str = "? help  q quit  ↑↓ rank  l output  s stack  x shell  e end the job";
const HOST_KEYS: &str = "? help  q quit  ↑↓ rows  Tab table";
const OUTPUT_KEYS: &str = "? help  q quit  Esc back  ↑↓ lines  End newest";
const CONFIRM: &str = "end the job? y: yes, any other key: no";

/// Lines of the help.
pub(super) const HELP: &[&str] = &[
    "↑ ↓ PgUp PgDn    move in the table, or in the output",
    "Home End         to its beginning, to its end",
    "Tab              to the next table",
    "l                output of the job, and back",
    "s                stack of the selected rank",
    "x                shell in the place of the rank",
    "e, y             end the job",
    "Esc              back",
    "q                quit; the job runs on",
    "",
    "Graphs show the last 60 s, from 0 to the",
    "highest value in them. The slowest rank is",
    "yellow, or bold without colours, if it is 5 %",
    "slower than the fastest.",
];

/// Least part by which the slowest rank is slower than the fastest. Ranks that go in step print nearly equal
/// speeds, of which another one is the lowest each time.
const LEAST_GAP: f64 = 0.05;
/// Lines of a table that it has before others get more: its header, three rows, and an empty line.
const LEAST_LINES: usize = 5;

// Columns of several tables.
const HOST: Column = Column::text("HOST", 9);
const MEMORY: Column = Column::text("MEMORY", 7).at_least(20);
const BAR: Column = Column::graph("", 3, 24);
const TRAFFIC: Column = Column::graph("60 s", 4, 30);
const PACKETS: Column = Column::text("", 2).at_least(17);
const PACKET_SIZE: Column = Column::text("", 1).at_least(13);

const HOSTS: [Column; 5] = [HOST, Column::text("CPUS", 8).at_least(10), BAR, MEMORY, BAR];
const GPUS: [Column; 8] = [
    HOST,
    Column::text("GPU", 9),
    Column::text("USE", 8).at_least(5),
    BAR,
    MEMORY,
    BAR,
    Column::text("POWER", 6).at_least(6),
    Column::text("TEMP", 5).at_least(6),
];
const PORTS: [Column; 10] = [
    HOST,
    Column::text("PORT", 9),
    Column::text("RECEIVED", 8).at_least(10),
    TRAFFIC,
    PACKETS,
    PACKET_SIZE,
    Column::text("SENT", 8).at_least(10),
    TRAFFIC,
    PACKETS,
    PACKET_SIZE,
];
const RANKS: [Column; 9] = [
    Column::text("RANK", 9),
    Column::text("HOST", 8),
    Column::text("SPEED", 7).at_least(14),
    Column::graph("60 s", 5, 30),
    Column::text("CPU", 6).at_least(6),
    Column::text("WAITING", 3),
    Column::text("MEMORY", 4).at_least(9),
    Column::text("PROCESSES", 1),
    Column::text("STATE", 2).at_least(6),
];

/// Returns the keys that a line has room for, each with its whole text.
fn whole_keys(keys: &str, width: usize) -> String {
    let mut shown = String::new();
    for key in keys.split("  ") {
        let gap = if shown.is_empty() { "" } else { "  " };
        if !shown.is_empty() && shown.chars().count() + gap.len() + key.chars().count() > width {
            break;
        }
        shown.push_str(gap);
        shown.push_str(key);
    }
    shown
}

/// Readings of what a port has received and sent.
type PortReadings<'a> = [Recent<'a>; 2];

/// What is seen, and how.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) activity: &'a Activity<'a>,
    pub(super) history: &'a History,
    pub(super) tail: &'a Tail,
    pub(super) look: Look,
    pub(super) size: Size,
}

impl<'a> View<'a> {
    /// Makes all lines of the page.
    pub(super) fn lines(&self, state: &State) -> Vec<Line<'static>> {
        let height = self.height();
        let mut lines = match state.shown {
            Shown::Figures => self.figures(state, &self.extent()),
            Shown::Output => self.output(state.back.min(self.lines_above())),
        };
        lines.resize(height, Line::default());
        let keys = match (state.is_confirming, state.shown, self.activity.job) {
            (true, ..) => CONFIRM,
            (_, Shown::Output, _) => OUTPUT_KEYS,
            (_, Shown::Figures, Some(_)) => JOB_KEYS,
            (_, Shown::Figures, None) => HOST_KEYS,
        };
        let keys = whole_keys(&self.look.text(keys), usize::from(self.size.width));
        lines.push(Line::styled(keys, Style::new().reversed()));
        lines
    }

    /// Returns how far the user can move.
    pub(super) fn extent(&self) -> Extent {
        let hosts = &self.activity.hosts;
        let gpus = hosts.iter().map(|host| host.gpus.len()).sum();
        let ports = hosts.iter().map(|host| self.ports(host).count()).sum();
        Extent {
            rows: [hosts.len(), gpus, ports, self.activity.ranks.len()],
            lines_above: self.lines_above(),
            has_job: self.activity.job.is_some(),
        }
    }

    /// Returns the number of lines above the line of keys.
    fn height(&self) -> usize {
        usize::from(self.size.height.saturating_sub(1))
    }

    /// Returns the number of lines of output that fit below the title.
    fn output_lines(&self) -> usize {
        self.height().saturating_sub(1)
    }

    fn lines_above(&self) -> usize {
        self.tail.len().saturating_sub(self.output_lines())
    }

    fn width(&self) -> usize {
        usize::from(self.size.width)
    }

    fn figures(&self, state: &State, extent: &Extent) -> Vec<Line<'static>> {
        let mut lines = self.job();
        let chosen = state.table(extent);
        // Below the rows of each are a header and an empty line.
        let wanted = extent.rows.map(|rows| if rows > 0 { rows + 2 } else { 0 });
        let left = self.height().saturating_sub(lines.len());
        let shares = share_lines(wanted, chosen as usize, left);
        for (table, share) in TABLES.into_iter().zip(shares) {
            let Some(visible) = share.checked_sub(2).filter(|visible| *visible > 0) else {
                continue;
            };
            // Keys about a rank are about the bold one while another table is chosen.
            let style = match table {
                _ if table == chosen => Style::new().reversed(),
                Table::Ranks => Style::new().bold(),
                Table::Hosts | Table::Gpus | Table::Ports => Style::new(),
            };
            lines.extend(self.table(table, state.cursor(table, extent), style, visible));
        }
        lines
    }

    /// Describes the job, in as many lines as that takes.
    fn job(&self) -> Vec<Line<'static>> {
        let text = self.activity.job.map(tables::describe_job).unwrap_or_default();
        let (phase, program) = text.split_once('\n').unwrap_or_default();
        let mut lines = wrapped(phase, self.width());
        lines.extend(program.lines().map(str::to_owned));
        lines.iter().map(|line| Line::from(self.look.text(line))).collect()
    }

    /// Makes the lines of a table. `visible` rows are shown, of which the one at `cursor` has a style of its own.
    fn table(
        &self,
        table: Table,
        cursor: usize,
        style: Style,
        visible: usize,
    ) -> Vec<Line<'static>> {
        let grid = self.grid(table);
        let all = grid.rows.len();
        let first = (cursor + 1).saturating_sub(visible);
        let end = all.min(first + visible);
        let mut lines = grid.lines(self.look, self.width(), first..end);
        if let Some(line) = lines.get_mut(1 + cursor - first) {
            line.style = style;
        }
        let is_whole = end - first == all;
        let rows = format!("rows {}-{end} of {all}", first + 1);
        let below = if is_whole { Line::default() } else { Line::styled(rows, Style::new().dim()) };
        lines.push(below);
        lines
    }

    fn grid(&self, table: Table) -> Grid<'a> {
        let hosts = self.activity.hosts.iter();
        let (columns, rows): (&'static [Column], Vec<_>) = match table {
            Table::Hosts => (&HOSTS, hosts.map(|host| self.host(host)).collect()),
            Table::Gpus => {
                let gpus =
                    hosts.flat_map(|host| host.gpus.iter().map(|gpu| self.gpu(host.host, gpu)));
                (&GPUS, gpus.collect())
            }
            Table::Ports => {
                let ports = hosts.flat_map(|host| {
                    self.ports(host).map(|(port, recent)| self.port(host.host, port, recent))
                });
                (&PORTS, ports.collect())
            }
            Table::Ranks => {
                let slowest = slowest(&self.activity.ranks);
                let rank = |rank| self.rank(rank, slowest);
                (&RANKS, self.activity.ranks.iter().map(rank).collect())
            }
        };
        Grid { columns, rows }
    }

    fn host(&self, host: &HostActivity<'_>) -> Vec<Cell<'a>> {
        let [name, cpus, memory] = tables::host_cells(host);
        let busy = host.busy_cpus.zip(host.cpus).map(|(busy, all)| busy / f64::from(all));
        vec![
            self.name(&name),
            Cell::text(cpus),
            Cell::bar(busy, self.look.bar_style()),
            Cell::text(memory),
            self.memory_bar(host.memory_used, host.memory),
        ]
    }

    fn gpu(&self, host: &str, gpu: &GpuUsage) -> Vec<Cell<'a>> {
        let [index, busy, memory, power, temperature] = tables::gpu_cells(gpu);
        let share = gpu.busy_percent.map(|percent| f64::from(percent) / 100.0);
        vec![
            self.name(host),
            Cell::text(index),
            Cell::text(busy),
            Cell::bar(share, self.look.bar_style()),
            Cell::text(memory),
            self.memory_bar(gpu.memory_used, gpu.memory),
            Cell::text(power),
            Cell::text(temperature),
        ]
    }

    fn memory_bar(&self, used: Option<u64>, all: Option<u64>) -> Cell<'a> {
        let share = used.zip(all).map(|(used, all)| used as f64 / all as f64);
        Cell::bar(share, self.look.memory_style(share))
    }

    /// Returns the ports of a host with their readings: those for RDMA, and interfaces that had traffic in the last minute.
    fn ports(
        &self,
        host: &'a HostActivity<'a>,
    ) -> impl Iterator<Item = (&'a PortActivity, Option<PortReadings<'a>>)> {
        host.ports.iter().filter_map(move |port| {
            let recent = self.history.port(host.host, port);
            let is_idle = recent.is_none_or(|both| both.into_iter().all(Recent::is_idle));
            (port.is_rdma || !is_idle).then_some((port, recent))
        })
    }

    fn port(
        &self,
        host: &str,
        port: &PortActivity,
        recent: Option<PortReadings<'a>>,
    ) -> Vec<Cell<'a>> {
        let mut cells = vec![self.name(host), Cell::text(&port.name)];
        for (direction, rate) in [port.received, port.sent].into_iter().enumerate() {
            let [bytes, packets, size] = tables::rate_cells(rate);
            // Soft RoCE counts packets alone.
            let (amount, packets) =
                if bytes.is_empty() { (packets, bytes) } else { (bytes, packets) };
            let recent = recent.map(|both| both[direction]);
            cells.extend([
                Cell::text(amount),
                Cell::sparkline(recent, self.look.sparkline_style()),
                Cell::text(packets),
                Cell::text(size),
            ]);
        }
        cells
    }

    fn rank(&self, rank: &RankActivity<'_>, slowest: Option<Rank>) -> Vec<Cell<'a>> {
        let id = rank.usage.rank;
        let [number, host, cpu, waiting, speed, memory, processes, state] =
            tables::rank_cells(rank);
        let is_slowest = slowest == Some(id);
        let style = if is_slowest { self.look.striking_style() } else { Style::new() };
        vec![
            Cell::text(number).styled(style),
            self.name(&host),
            Cell::text(speed).styled(style),
            Cell::sparkline(self.history.speed(id), self.look.sparkline_style()),
            Cell::text(cpu),
            Cell::text(waiting),
            Cell::text(memory),
            Cell::text(processes),
            Cell::text(state),
        ]
    }

    /// Makes the cell of a host's name, which may take a quarter of the width.
    fn name(&self, host: &str) -> Cell<'a> {
        let most = (self.width() / 4).max(8);
        match host.char_indices().nth(most) {
            Some(_) => Cell::text(host.chars().take(most - 1).chain(['…']).collect::<String>()),
            None => Cell::text(host),
        }
    }

    /// Makes the lines of the output's page, which leaves out the last `back` ones.
    fn output(&self, back: usize) -> Vec<Line<'static>> {
        let title = match (self.tail.len(), back) {
            (0, _) => "no output yet".to_owned(),
            (_, 0) => "output of the job".to_owned(),
            _ => format!("output of the job, {} below", text::count(back, "line")),
        };
        let ranks = self.activity.job.map_or(1, |job| job.ranks);
        let width = ranks.saturating_sub(1).to_string().len();
        let line = |(rank, line): (u32, String)| {
            let tag = if ranks > 1 { format!("{rank:<width$} ") } else { String::new() };
            let line = Span::raw(self.look.text(&line));
            Line::from_iter([Span::styled(tag, self.look.sparkline_style()), line])
        };
        let shown = self.tail.lines(self.output_lines(), back).into_iter().map(line);
        std::iter::once(Line::styled(title, Style::new().bold())).chain(shown).collect()
    }
}

/// Breaks a line between its parts, which have two blanks between them.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in text.split("  ").filter(|part| !part.is_empty()) {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 2 + part.chars().count() <= width => {
                line.push_str("  ");
                line.push_str(part);
            }
            _ => lines.push(part.to_owned()),
        }
    }
    lines
}

/// Shares lines among tables that want so many: a few for each, then as many as there are, the one at `first` before others.
fn share_lines<const N: usize>(wanted: [usize; N], first: usize, lines: usize) -> [usize; N] {
    let (mut shares, mut left) = ([0; N], lines);
    for most in [LEAST_LINES, usize::MAX] {
        for at in std::iter::once(first).chain((0..N).filter(|at| *at != first)) {
            let more = wanted[at].min(most).saturating_sub(shares[at]).min(left);
            shares[at] += more;
            left -= more;
        }
    }
    shares
}

/// Finds the rank that is slower than others, among those whose speeds have the most frequent unit.
fn slowest(ranks: &[RankActivity<'_>]) -> Option<Rank> {
    let speeds = ranks.iter().filter_map(|rank| {
        let (speed, unit) = rank.speed?.per_second();
        Some((unit, (rank.usage.rank, speed)))
    });
    let (_, speeds) = text::grouped(speeds).into_iter().max_by_key(|(_, ranks)| ranks.len())?;
    let (rank, lowest) = speeds.iter().min_by(|(_, one), (_, other)| one.total_cmp(other))?;
    let highest = speeds.iter().map(|(_, speed)| *speed).fold(0.0, f64::max);
    (*lowest <= (1.0 - LEAST_GAP) * highest).then_some(*rank)
}

#[cfg(test)]
mod tests {
    use super::super::sample::Sample;
    use super::super::sample::tests::{job, samples, usage};
    use super::*;
    use crossterm::event::KeyCode;
    use rlaunch_engine::run::live::PrintedSpeed;
    use rlaunch_engine::run::live::messages::RankSpeed;
    use rlaunch_engine::run::output::{OutputPart, RecordedChunk};
    use rlaunch_plan::testing::is_golden;
    use std::time::Duration;

    const UNICODE: Look = Look { has_colours: true, is_unicode: true };
    const ASCII: Look = Look { has_colours: false, is_unicode: false };

    fn speed(rank: u32, value: f64) -> RankSpeed {
        let speed = PrintedSpeed { value, unit: "images/s".into() };
        RankSpeed { rank, speed, seconds_ago: 0.5 }
    }

    /// Makes two samples of a job, and the history of a minute in which a rank got faster.
    fn job_samples() -> ([Sample; 2], History) {
        let [before, mut now] = samples();
        now.job = Some(job());
        now.hosts[0].counters.as_mut().unwrap().gpus[0].temperature = Some(64);
        let mut history = History::new(before.at);
        for step in 1..=30 {
            let speeds = vec![speed(0, 10.0 * f64::from(step)), speed(1, 812.5)];
            now.job.as_mut().unwrap().speeds = speeds;
            let at = before.at + Duration::from_secs(2) * step;
            history.add(at, &now.since(&before));
        }
        ([before, now], history)
    }

    fn lines(
        ([before, now], history): &([Sample; 2], History),
        state: &State,
        look: Look,
        (width, height): (u16, u16),
    ) -> Vec<Line<'static>> {
        let (activity, tail) = (now.since(before), Tail::default());
        let size = Size { width, height };
        View { activity: &activity, history, tail: &tail, look, size }.lines(state)
    }

    fn printed(lines: &[Line<'_>], width: usize) -> String {
        let line = |line: &Line<'_>| line.to_string().chars().take(width).collect::<String>();
        lines.iter().map(|shown| format!("{}\n", line(shown).trim_end())).collect()
    }

    #[test]
    fn columns_give_way_as_the_terminal_narrows() {
        let seen = job_samples();
        for (width, look) in [(60, ASCII), (80, UNICODE), (140, UNICODE), (200, UNICODE)] {
            let lines = lines(&seen, &State::default(), look, (width, 20));
            is_golden(&format!("monitor-{width}"), &printed(&lines, usize::from(width)));
        }
    }

    #[test]
    fn the_slowest_rank_stands_out() {
        let seen = job_samples();
        for look in [UNICODE, ASCII] {
            let lines = lines(&seen, &State::default(), look, (80, 20));
            let is_striking = |line: &&Line<'_>| {
                line.spans.iter().any(|span| {
                    span.style == look.striking_style() && span.content == "300 images/s"
                })
            };
            assert_eq!(lines.iter().filter(is_striking).count(), 1);
        }
        let of = |speeds: &[(u32, f64)]| {
            let [before, mut now] = samples();
            let speeds = speeds.iter().map(|(rank, value)| speed(*rank, *value)).collect();
            now.job = Some(job());
            now.job.as_mut().unwrap().speeds = speeds;
            slowest(&now.since(&before).ranks)
        };
        assert_eq!(of(&[(0, 100.0), (1, 90.0)]), Some(Rank(1)));
        // Ranks in step, and a rank that nothing can be compared with.
        assert_eq!(of(&[(0, 100.0), (1, 99.0)]), None);
        assert_eq!((of(&[(0, 100.0)]), of(&[])), (None, None));
    }

    #[test]
    fn rows_scroll_and_the_selected_rank_stays_in_sight() {
        let ([before, mut now], history) = job_samples();
        now.hosts[1].ranks = (2..50).map(|rank| usage(rank, 0)).collect();
        let seen = ([before, now], history);
        let mut state = State::default();
        let extent = Extent { rows: [2, 1, 2, 50], lines_above: 0, has_job: true };
        for _ in 0..4 {
            state.on_key(KeyCode::PageDown.into(), &extent);
        }
        let text = printed(&lines(&seen, &state, UNICODE, (100, 16)), 100);
        assert!(text.contains("\n40 ") && !text.contains("\n41 "), "{text}");
        assert!(text.contains("-41 of 50") && text.contains(JOB_KEYS), "{text}");
        // Any size will do.
        for (width, height) in [(0, 0), (1, 1), (3, 2), (200, 3), (7, 60), (60, 5)] {
            let lines = lines(&seen, &state, UNICODE, (width, height));
            assert_eq!(lines.len(), usize::from(height.max(1)));
        }
    }

    #[test]
    fn lines_are_shared_fairly() {
        assert_eq!(share_lines([4, 3, 4, 4], 3, 40), [4, 3, 4, 4]);
        assert_eq!(share_lines([50, 0, 50, 50], 3, 40), [5, 0, 5, 30]);
        assert_eq!(share_lines([50, 0, 50, 50], 0, 40), [30, 0, 5, 5]);
        assert_eq!(share_lines([50, 50, 50, 50], 3, 7), [2, 0, 0, 5]);
        assert_eq!(share_lines([4, 0, 4, 9], 3, 19), [4, 0, 4, 9]);
    }

    #[test]
    fn output_has_the_rank_in_front() {
        let [before, mut now] = samples();
        now.job = Some(job());
        let (activity, history) = (now.since(&before), History::new(before.at));
        let mut tail = Tail::default();
        let chunk = |rank: u32, text: &str| RecordedChunk {
            rank,
            stream: "stdout".into(),
            text: text.into(),
        };
        let chunks = vec![chunk(0, "a\nb\n"), chunk(1, "é\n")];
        tail.add(&OutputPart { first: chunks, ..OutputPart::default() });
        let size = Size { width: 40, height: 4 };
        let view = View { activity: &activity, history: &history, tail: &tail, look: ASCII, size };
        let mut state = State::default();
        state.on_key(KeyCode::Char('l').into(), &view.extent());
        // What has no room is left out whole: `End newest`.
        let newest = "output of the job\n0 b\n1 ?\n? help  q quit  Esc back  ^v lines\n";
        assert_eq!(printed(&view.lines(&state), 40), newest);
        // Not further back than there is output.
        state.back = 7;
        let above = printed(&view.lines(&state), 40);
        assert!(above.starts_with("output of the job, 1 line below\n0 a\n0 b\n"), "{above}");
        assert_eq!(view.extent().lines_above, 1);
    }

    #[test]
    fn a_long_line_breaks_between_its_parts() {
        assert_eq!(wrapped("a b  c  dddd", 6), ["a b  c", "dddd"]);
        assert_eq!(wrapped("aaaaaaaaaa  b", 3), ["aaaaaaaaaa", "b"]);
        assert!(wrapped("", 10).is_empty());
    }
}
