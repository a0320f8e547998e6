//! The page at a terminal: samples, keys, and what is drawn.

use super::grid::Look;
use super::history::{History, Tail};
use super::sample::{Sample, Source};
use super::state::{Extent, RankVerb, Shown, State, Table, Wish};
use super::view::{HELP, View};
use crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use nix::sys::signal::Signal;
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Constraint;
use ratatui::symbols::border;
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Clear, Padding, Paragraph};
use ratatui::{Frame, Terminal};
use rlaunch_bootstrap::id::Rank;
use rlaunch_console::messages;
use rlaunch_console::process_env::ProcessEnv;
use rlaunch_console::signals::EndSignals;
use rlaunch_engine::run::live::client::LiveError;
use std::io::{self, BufRead, BufWriter, Stdout};
use std::process::Command;
use std::time::{Duration, Instant};

/// Longest wait for a key, after which the end of this process is noticed.
const KEY_WAIT: Duration = Duration::from_millis(250);
/// Bytes that are written at once. What changes in a second is less, so that no half of it is ever seen.
const WRITTEN: usize = 64 << 10;
const ASCII_BORDER: border::Set<'_> = border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

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

/// Event at the terminal.
#[derive(Clone, Copy, Debug)]
enum Input {
    Key(KeyEvent),
    Resized,
}

type Screen = Terminal<CrosstermBackend<BufWriter<Stdout>>>;

/// Page at a terminal.
struct Page<'a> {
    screen: Screen,
    look: Look,
    source: &'a mut Source,
    interval: Duration,
    /// The last two samples.
    before: Sample,
    now: Sample,
    history: History,
    tail: Tail,
    state: State,
}

/// Shows the page until the user leaves it or the job ends. The terminal is restored before this returns.
pub(super) async fn show(source: &mut Source, interval: Duration) -> io::Result<PageEnd> {
    let now = match source.sample().await {
        Ok(sample) => sample,
        Err(error) => return Ok(PageEnd::Job(error)),
    };
    let mut page = Page {
        screen: open_screen()?,
        look: Look::of_stdout(&ProcessEnv::current()),
        source,
        interval,
        before: now.clone(),
        history: History::new(now.at),
        now,
        tail: Tail::default(),
        state: State::default(),
    };
    let ended = page.run().await;
    close_screen(&mut page.screen)?;
    ended
}

fn open_screen() -> io::Result<Screen> {
    // It also restores the terminal if this process panics. Its own writer would write each frame in pieces.
    drop(ratatui::try_init()?);
    Terminal::new(CrosstermBackend::new(BufWriter::with_capacity(WRITTEN, io::stdout())))
}

fn close_screen(screen: &mut Screen) -> io::Result<()> {
    screen.show_cursor()?;
    ratatui::try_restore()
}

impl Page<'_> {
    async fn run(&mut self) -> io::Result<PageEnd> {
        let mut ends = EndSignals::install()?;
        loop {
            let extent = self.draw()?;
            let due = self.now.at + self.interval;
            let input = tokio::select! {
                input = next_input(due) => input?,
                signal = ends.next() => return Ok(PageEnd::Signalled(signal)),
            };
            let wish = match input {
                Some(Input::Key(key)) => self.state.on_key(key, &extent),
                Some(Input::Resized) => Wish::Nothing,
                None => {
                    if let Err(error) = self.look_again().await {
                        return Ok(PageEnd::Job(error));
                    }
                    Wish::Nothing
                }
            };
            if wish == Wish::Quit {
                return Ok(PageEnd::Quit);
            }
            if let Err(error) = self.fulfil(wish, &extent).await? {
                return Ok(PageEnd::Job(error));
            }
        }
    }

    /// Draws the page, of which only what has changed is written. Returns how far the user can move in it.
    fn draw(&mut self) -> io::Result<Extent> {
        let activity = self.now.since(&self.before);
        let view = View {
            activity: &activity,
            history: &self.history,
            tail: &self.tail,
            look: self.look,
            size: self.screen.size()?,
        };
        let state = &self.state;
        self.screen.draw(|frame| draw(frame, &view, state))?;
        Ok(view.extent())
    }

    /// Takes a sample and, if the output is shown, what was printed since the last one.
    async fn look_again(&mut self) -> Result<(), LiveError> {
        let sample = self.source.sample().await?;
        self.before = std::mem::replace(&mut self.now, sample);
        self.history.add(self.now.at, &self.now.since(&self.before));
        if self.state.shown == Shown::Output {
            self.read_output().await?;
        }
        Ok(())
    }

    async fn read_output(&mut self) -> Result<(), LiveError> {
        if let Source::Job(job) = &mut *self.source {
            let part = job.output(self.tail.position).await?;
            self.state.keep_place(self.tail.add(&part));
        }
        Ok(())
    }

    /// Does what a key asks for. The inner error means that the job cannot be asked.
    async fn fulfil(&mut self, wish: Wish, extent: &Extent) -> io::Result<Result<(), LiveError>> {
        match wish {
            Wish::Nothing | Wish::Quit => Ok(Ok(())),
            Wish::Output => Ok(self.read_output().await),
            Wish::Verb(verb) => self.run_verb(verb, extent).await.map(Ok),
            Wish::EndJob => match &mut *self.source {
                Source::Job(job) => Ok(job.end().await),
                Source::Hosts(_) => Ok(Ok(())),
            },
        }
    }

    /// Leaves the terminal to a verb about the selected rank.
    async fn run_verb(&mut self, verb: RankVerb, extent: &Extent) -> io::Result<()> {
        let selected = self.state.cursor(Table::Ranks, extent);
        let activity = self.now.since(&self.before);
        let (Some(job), Some(rank)) = (activity.job, activity.ranks.get(selected)) else {
            return Ok(());
        };
        let words = verb.words(&job.job, rank.usage.rank);
        close_screen(&mut self.screen)?;
        tokio::task::spawn_blocking(move || run_verb(verb, &words)).await??;
        self.screen = open_screen()?;
        Ok(())
    }
}

/// Waits for a key, or another size of the terminal, until `due`.
async fn next_input(due: Instant) -> io::Result<Option<Input>> {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let poll = move || event::poll(left.min(KEY_WAIT))?.then(event::read).transpose();
        match tokio::task::spawn_blocking(poll).await?? {
            Some(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                return Ok(Some(Input::Key(key)));
            }
            Some(Event::Resize(..)) => return Ok(Some(Input::Resized)),
            _ => {}
        }
    }
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

fn draw(frame: &mut Frame<'_>, view: &View<'_>, state: &State) {
    frame.render_widget(Text::from(view.lines(state)), frame.area());
    if state.has_help {
        draw_help(frame, view.look);
    }
}

/// Draws the help on top of what is there.
fn draw_help(frame: &mut Frame<'_>, look: Look) {
    let help = Text::from_iter(HELP.iter().map(|line| Line::from(look.text(line))));
    let (width, height) = (help.width() + 4, help.height() + 2);
    let length = |length: usize| Constraint::Length(u16::try_from(length).unwrap_or(u16::MAX));
    let area = frame.area().centered(length(width), length(height));
    let border = if look.is_unicode { border::PLAIN } else { ASCII_BORDER };
    let block = Block::bordered().border_set(border).title(" any key: back ");
    let block = block.padding(Padding::horizontal(1));
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(help).block(block), area);
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::samples;
    use super::*;
    use crossterm::event::KeyCode;
    use ratatui::backend::TestBackend;
    use ratatui::layout::Size;

    #[test]
    fn the_help_lies_on_top_of_a_page_of_any_size() {
        let [before, now] = samples();
        let (activity, history) = (now.since(&before), History::new(before.at));
        let tail = Tail::default();
        let look = Look { has_colours: false, is_unicode: false };
        let mut state = State::default();
        state.on_key(KeyCode::Char('?').into(), &Extent::default());
        for (width, height) in [(80, 24), (20, 5), (1, 1)] {
            let size = Size { width, height };
            let view = View { activity: &activity, history: &history, tail: &tail, look, size };
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, &view, &state)).unwrap();
            let shown = terminal.backend().to_string();
            assert!(shown.is_ascii(), "{shown}");
            if width == 80 {
                assert!(shown.contains("any key: back") && shown.contains("shell in"), "{shown}");
                assert!(shown.contains("HOST") && shown.contains("q quit"), "{shown}");
            }
        }
    }
}
