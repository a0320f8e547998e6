//! The page at a terminal: figures once an interval, and keys that look into ranks.

use super::sample::{Activity, Source};
use super::tables;
use nix::sys::signal::Signal;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::Paragraph;
use rlaunch_bootstrap::id::Rank;
use rlaunch_console::messages;
use rlaunch_console::signals::EndSignals;
use rlaunch_engine::run::live::client::LiveError;
use std::io::{self, BufRead};
use std::process::Command;
use std::time::{Duration, Instant};

/// Longest wait for a key, after which the end of this process is noticed.
const KEY_WAIT: Duration = Duration::from_millis(250);
/// Rows of the rank table, with its header, that are kept free of hosts.
const MIN_RANK_ROWS: u16 = 6;
const JOB_KEYS: &str = "↑↓ rank  s stack  x shell  e end the job  q quit";
const HOST_KEYS: &str = "q quit";
const CONFIRM: &str = "end the job? y: yes, any other key: no";

/// Reason why the page was left.
#[derive(Debug)]
pub(super) enum PageEnd {
    /// The user has left it.
    Quit,
    /// This process was told to end.
    Signalled(Signal),
    /// The job cannot be asked any more.
    Job(LiveError),
}

/// State of the page.
#[derive(Debug, Default)]
struct Page {
    /// Place of the selected rank in the table.
    selected: usize,
    /// Whether the next key confirms the end of the job.
    is_confirming: bool,
}

/// Request of a key.
#[derive(Debug, PartialEq, Eq)]
enum Wish {
    Nothing,
    Quit,
    /// A verb about the selected rank.
    Verb(RankVerb),
    EndJob,
}

/// Verb that the page runs for a rank, on the whole terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RankVerb {
    Stack,
    Exec,
}

/// Shows the page until the user leaves it or the job ends. The terminal is restored before this returns.
pub(super) async fn show(source: &mut Source, interval: Duration) -> io::Result<PageEnd> {
    let mut terminal = ratatui::try_init()?;
    let ended = run(&mut terminal, source, interval).await;
    ratatui::try_restore()?;
    ended
}

async fn run(
    terminal: &mut ratatui::DefaultTerminal,
    source: &mut Source,
    interval: Duration,
) -> io::Result<PageEnd> {
    let mut ends = EndSignals::install()?;
    let mut page = Page::default();
    let mut now = match source.sample().await {
        Ok(sample) => sample,
        Err(error) => return Ok(PageEnd::Job(error)),
    };
    let mut before = now.clone();
    loop {
        let activity = now.since(&before);
        page.selected = page.selected.min(activity.ranks.len().saturating_sub(1));
        terminal.draw(|frame| page.draw(frame, &activity))?;
        let due = now.at + interval;
        let wish = tokio::select! {
            key = next_key(due) => key?.map_or(Wish::Nothing, |key| page.on_key(key, &activity)),
            signal = ends.next() => return Ok(PageEnd::Signalled(signal)),
        };
        match wish {
            Wish::Nothing => {}
            Wish::Quit => return Ok(PageEnd::Quit),
            Wish::Verb(verb) => {
                if let (Some(job), Some(rank)) = (activity.job, activity.ranks.get(page.selected)) {
                    let words = verb.words(&job.job, rank.usage.rank);
                    ratatui::try_restore()?;
                    tokio::task::spawn_blocking(move || run_verb(verb, &words)).await??;
                    *terminal = ratatui::try_init()?;
                }
            }
            Wish::EndJob => {
                if let Source::Job(job) = source
                    && let Err(error) = job.end().await
                {
                    return Ok(PageEnd::Job(error));
                }
            }
        }
        if Instant::now() >= due {
            match source.sample().await {
                Ok(sample) => before = std::mem::replace(&mut now, sample),
                Err(error) => return Ok(PageEnd::Job(error)),
            }
        }
    }
}

/// Waits for a key until `due`, or for a short time. Returns `None` if none was pressed.
async fn next_key(due: Instant) -> io::Result<Option<KeyEvent>> {
    let wait = due.saturating_duration_since(Instant::now()).min(KEY_WAIT);
    let read = tokio::task::spawn_blocking(move || {
        Ok(match event::poll(wait)?.then(event::read).transpose()? {
            Some(Event::Key(key)) if key.kind != KeyEventKind::Release => Some(key),
            _ => None,
        })
    });
    read.await?
}

impl RankVerb {
    /// Returns the words of this rlaunch for a rank.
    fn words(self, job: &str, rank: Rank) -> Vec<String> {
        let rank = rank.to_string();
        let words = match self {
            RankVerb::Stack => vec!["stack", job, "--full", "--rank", &rank],
            RankVerb::Exec => vec!["exec", "-t", job, &rank],
        };
        words.into_iter().map(str::to_owned).collect()
    }
}

/// Runs a verb of this executable with this terminal.
fn run_verb(verb: RankVerb, words: &[String]) -> io::Result<()> {
    let status = Command::new(std::env::current_exe()?).args(words).status()?;
    // A shell that has ended well leaves nothing to read.
    if verb == RankVerb::Stack || !status.success() {
        messages::info("press Enter to go back");
        io::stdin().lock().read_line(&mut String::new())?;
    }
    Ok(())
}

impl Page {
    fn on_key(&mut self, key: KeyEvent, activity: &Activity<'_>) -> Wish {
        if std::mem::take(&mut self.is_confirming) {
            let is_yes = matches!(key.code, KeyCode::Char('y' | 'Y'));
            return if is_yes { Wish::EndJob } else { Wish::Nothing };
        }
        let last = activity.ranks.len().saturating_sub(1);
        let has_job = activity.job.is_some();
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Wish::Quit;
            }
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.selected = (self.selected + 1).min(last),
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(10),
            KeyCode::PageDown => self.selected = (self.selected + 10).min(last),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = last,
            KeyCode::Char('s') if has_job => return Wish::Verb(RankVerb::Stack),
            KeyCode::Char('x') if has_job => return Wish::Verb(RankVerb::Exec),
            KeyCode::Char('e') if has_job => self.is_confirming = true,
            _ => {}
        }
        Wish::Nothing
    }

    fn draw(&self, frame: &mut Frame<'_>, activity: &Activity<'_>) {
        let job = activity.job.map(tables::describe_job).unwrap_or_default();
        let hosts = tables::hosts(activity);
        let rows = |text: &str| u16::try_from(text.lines().count()).unwrap_or(u16::MAX);
        let rank_rows = if activity.ranks.is_empty() { 0 } else { MIN_RANK_ROWS };
        let free = frame.area().height.saturating_sub(rows(&job) + 2 + rank_rows);
        let [top, upper, _, lower, keys] = Layout::vertical([
            Constraint::Length(rows(&job)),
            Constraint::Length(rows(&hosts).min(free)),
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(job), top);
        frame.render_widget(table(&hosts, None, upper), upper);
        if !activity.ranks.is_empty() {
            let ranks = tables::ranks(&activity.ranks);
            frame.render_widget(table(&ranks, Some(self.selected), lower), lower);
        }
        let help = match (self.is_confirming, activity.job) {
            (true, _) => CONFIRM,
            (false, Some(_)) => JOB_KEYS,
            (false, None) => HOST_KEYS,
        };
        frame.render_widget(Line::from(help).reversed(), keys);
    }
}

/// Makes a widget of a table: its header, and as many rows as fit around the selected one.
fn table(text: &str, selected: Option<usize>, area: Rect) -> Paragraph<'static> {
    let mut lines = text.lines();
    let header = Line::from(lines.next().unwrap_or_default().to_owned()).bold();
    let visible = usize::from(area.height.saturating_sub(1));
    let first = selected.map_or(0, |selected| (selected + 1).saturating_sub(visible));
    let rows = lines.enumerate().skip(first).take(visible).map(|(at, line)| {
        let style = if selected == Some(at) { Style::new().reversed() } else { Style::new() };
        Line::styled(line.to_owned(), style)
    });
    Paragraph::new(Text::from(std::iter::once(header).chain(rows).collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::super::sample::Sample;
    use super::super::sample::tests::{job, samples, usage};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn shown(page: &Page, before: &Sample, now: &Sample, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(120, height)).unwrap();
        terminal.draw(|frame| page.draw(frame, &now.since(before))).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_selected_rank_is_always_in_sight() {
        let [before, mut now] = samples();
        now.hosts[1].ranks = (2..50).map(|rank| usage(rank, 0)).collect();
        let page = Page { selected: 40, ..Page::default() };
        let text = shown(&page, &before, &now, 16);
        assert!(text.contains("40    b") && !text.contains("41    b"), "{text}");
        for word in ["erdma_0/1", "1413 B/packet", "RANK  HOST", HOST_KEYS] {
            assert!(text.contains(word), "{word} in {text}");
        }
        // Any size will do.
        for height in 1..8 {
            shown(&page, &before, &now, height);
        }
    }

    #[test]
    fn a_job_is_ended_after_a_second_key() {
        let [before, mut now] = samples();
        let key = |code| KeyEvent::new(KeyCode::Char(code), KeyModifiers::NONE);
        let mut page = Page::default();
        assert_eq!(page.on_key(key('e'), &now.since(&before)), Wish::Nothing);
        assert!(!page.is_confirming, "hosts have no job");
        now.job = Some(job());
        let activity = now.since(&before);
        assert_eq!(page.on_key(key('e'), &activity), Wish::Nothing);
        assert_eq!(page.on_key(key('n'), &activity), Wish::Nothing);
        assert_eq!(page.on_key(key('y'), &activity), Wish::Nothing);
        assert_eq!(page.on_key(key('e'), &activity), Wish::Nothing);
        assert!(shown(&page, &before, &now, 16).contains(CONFIRM));
        assert_eq!(page.on_key(key('y'), &activity), Wish::EndJob);
        page.on_key(key('j'), &activity);
        page.on_key(key('j'), &activity);
        assert_eq!(page.selected, 1);
        assert_eq!(page.on_key(key('s'), &activity), Wish::Verb(RankVerb::Stack));
    }
}
