//! What the page shows, and how keys change that.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Rows by which the keys of pages move.
const PAGE: isize = 10;

/// Table of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    Hosts,
    Gpus,
    Ports,
    Ranks,
}

/// All tables, from the top of the page to its end.
pub(super) const TABLES: [Table; 4] = [Table::Hosts, Table::Gpus, Table::Ports, Table::Ranks];

/// What takes up the terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Shown {
    #[default]
    Figures,
    Output,
}

/// State of the page.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) shown: Shown,
    /// Whether the keys are listed on top of it.
    pub(super) has_help: bool,
    /// Whether the next key confirms the end of the job.
    pub(super) is_confirming: bool,
    /// Number of lines of output below the last one that is shown.
    pub(super) back: usize,
    /// Table that the user has chosen, of which keys move the row.
    chosen: Option<Table>,
    /// Row of each table at which the user is.
    cursors: [usize; TABLES.len()],
}

/// Extent of what can be shown, which limits how far keys move.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extent {
    /// Number of rows of each table.
    pub(super) rows: [usize; TABLES.len()],
    /// Number of lines of output above the first one that fits on the page.
    pub(super) lines_above: usize,
    pub(super) has_job: bool,
}

/// Request of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Nothing,
    Quit,
    /// The output of the job.
    Output,
    /// A verb about the selected rank.
    Verb(RankVerb),
    EndJob,
}

/// Verb that the page runs for a rank, on the whole terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RankVerb {
    Stack,
    Exec,
}

impl State {
    /// Returns the table whose row keys move: the chosen one, or ranks, or hosts.
    pub(super) fn table(&self, extent: &Extent) -> Table {
        let has_rows = |table: &Table| extent.rows[*table as usize] > 0;
        let usual = if has_rows(&Table::Ranks) { Table::Ranks } else { Table::Hosts };
        self.chosen.filter(has_rows).unwrap_or(usual)
    }

    /// Returns the row of a table at which the user is.
    pub(super) fn cursor(&self, table: Table, extent: &Extent) -> usize {
        self.cursors[table as usize].min(extent.rows[table as usize].saturating_sub(1))
    }

    /// Keeps the same lines of output in sight, below which `added` ones are new.
    pub(super) fn keep_place(&mut self, added: usize) {
        if self.back > 0 {
            self.back += added;
        }
    }

    pub(super) fn on_key(&mut self, key: KeyEvent, extent: &Extent) -> Wish {
        let has_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if has_control && key.code == KeyCode::Char('c') {
            return Wish::Quit;
        }
        if std::mem::take(&mut self.is_confirming) {
            let is_yes = matches!(key.code, KeyCode::Char('y' | 'Y'));
            return if is_yes { Wish::EndJob } else { Wish::Nothing };
        }
        if key.code == KeyCode::Char('q') {
            return Wish::Quit;
        }
        if std::mem::take(&mut self.has_help) {
            return Wish::Nothing;
        }
        match key.code {
            KeyCode::Char('?') => self.has_help = true,
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1, extent),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1, extent),
            KeyCode::PageUp => self.move_by(-PAGE, extent),
            KeyCode::PageDown => self.move_by(PAGE, extent),
            KeyCode::Home => self.move_by(isize::MIN, extent),
            KeyCode::End => self.move_by(isize::MAX, extent),
            // As in htop, it leaves every page but the first one, where it is pressed by mistake.
            KeyCode::Esc => self.shown = Shown::Figures,
            code if extent.has_job => return self.on_job_key(code, extent),
            code => self.on_table_key(code, extent),
        }
        Wish::Nothing
    }

    fn on_job_key(&mut self, key: KeyCode, extent: &Extent) -> Wish {
        match (key, self.shown) {
            (KeyCode::Char('l'), Shown::Output) => self.shown = Shown::Figures,
            (KeyCode::Char('l'), Shown::Figures) => {
                (self.shown, self.back) = (Shown::Output, 0);
                return Wish::Output;
            }
            (KeyCode::Char('e'), _) => self.is_confirming = true,
            // These are about a rank, which must be in sight.
            (KeyCode::Char('s'), Shown::Figures) => return Wish::Verb(RankVerb::Stack),
            (KeyCode::Char('x'), Shown::Figures) => return Wish::Verb(RankVerb::Exec),
            (key, _) => self.on_table_key(key, extent),
        }
        Wish::Nothing
    }

    /// Chooses the next table that has rows, or the one before.
    fn on_table_key(&mut self, key: KeyCode, extent: &Extent) {
        let steps = match key {
            KeyCode::Tab => 1,
            KeyCode::BackTab => TABLES.len() - 1,
            _ => return,
        };
        let mut at = self.table(extent) as usize;
        for _ in TABLES {
            at = (at + steps) % TABLES.len();
            if extent.rows[at] > 0 {
                self.chosen = Some(TABLES[at]);
                return;
            }
        }
    }

    /// Moves down by rows of the table, or lines of the output.
    fn move_by(&mut self, rows: isize, extent: &Extent) {
        match self.shown {
            Shown::Output => {
                let back = self.back.min(extent.lines_above);
                let back = back.saturating_add_signed(rows.saturating_neg());
                self.back = back.min(extent.lines_above);
            }
            Shown::Figures => {
                let table = self.table(extent);
                let last = extent.rows[table as usize].saturating_sub(1);
                let row = self.cursor(table, extent).saturating_add_signed(rows);
                self.cursors[table as usize] = row.min(last);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: Extent = Extent { rows: [2, 0, 3, 50], lines_above: 30, has_job: true };
    const HOSTS: Extent = Extent { rows: [2, 0, 3, 0], lines_above: 0, has_job: false };

    fn press(state: &mut State, code: KeyCode, extent: &Extent) -> Wish {
        state.on_key(KeyEvent::new(code, KeyModifiers::NONE), extent)
    }

    fn letter(state: &mut State, letter: char) -> Wish {
        press(state, KeyCode::Char(letter), &JOB)
    }

    #[test]
    fn a_job_is_ended_after_a_second_key() {
        let mut state = State::default();
        assert_eq!(press(&mut state, KeyCode::Char('e'), &HOSTS), Wish::Nothing);
        assert!(!state.is_confirming, "hosts have no job");
        assert_eq!(letter(&mut state, 'e'), Wish::Nothing);
        assert_eq!(letter(&mut state, 'n'), Wish::Nothing);
        assert_eq!(letter(&mut state, 'y'), Wish::Nothing);
        assert_eq!(letter(&mut state, 'e'), Wish::Nothing);
        // Not even this key does anything else.
        assert_eq!(letter(&mut state, 'q'), Wish::Nothing);
        assert_eq!(letter(&mut state, 'e'), Wish::Nothing);
        assert_eq!(letter(&mut state, 'y'), Wish::EndJob);
    }

    #[test]
    fn escape_goes_back_and_never_quits() {
        let mut state = State::default();
        assert_eq!(press(&mut state, KeyCode::Esc, &JOB), Wish::Nothing);
        assert_eq!((letter(&mut state, 'l'), state.shown), (Wish::Output, Shown::Output));
        letter(&mut state, '?');
        assert!(state.has_help);
        press(&mut state, KeyCode::Esc, &JOB);
        assert_eq!((state.has_help, state.shown), (false, Shown::Output));
        assert_eq!(letter(&mut state, 's'), Wish::Nothing, "no rank is in sight");
        press(&mut state, KeyCode::Esc, &JOB);
        assert_eq!(state.shown, Shown::Figures);
        assert_eq!(letter(&mut state, 's'), Wish::Verb(RankVerb::Stack));
        letter(&mut state, '?');
        assert_eq!(letter(&mut state, 'q'), Wish::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(state.on_key(interrupt, &JOB), Wish::Quit);
    }

    #[test]
    fn keys_move_the_row_of_the_chosen_table() {
        let mut state = State::default();
        press(&mut state, KeyCode::PageDown, &JOB);
        letter(&mut state, 'j');
        assert_eq!((state.table(&JOB), state.cursor(Table::Ranks, &JOB)), (Table::Ranks, 11));
        // The next one is the first one again; hosts have no GPUs.
        press(&mut state, KeyCode::Tab, &JOB);
        assert_eq!(state.table(&JOB), Table::Hosts);
        press(&mut state, KeyCode::Tab, &JOB);
        press(&mut state, KeyCode::End, &JOB);
        assert_eq!((state.table(&JOB), state.cursor(Table::Ports, &JOB)), (Table::Ports, 2));
        press(&mut state, KeyCode::Home, &JOB);
        assert_eq!(state.cursor(Table::Ports, &JOB), 0);
        press(&mut state, KeyCode::BackTab, &JOB);
        assert_eq!(state.table(&JOB), Table::Hosts);
        assert_eq!(state.cursor(Table::Ranks, &JOB), 11);
        assert_eq!(State::default().table(&HOSTS), Table::Hosts);
    }

    #[test]
    fn output_is_scrolled_as_far_as_there_is_any() {
        let mut state = State::default();
        letter(&mut state, 'l');
        press(&mut state, KeyCode::Up, &JOB);
        press(&mut state, KeyCode::PageUp, &JOB);
        assert_eq!(state.back, 11);
        state.keep_place(2);
        assert_eq!(state.back, 13);
        press(&mut state, KeyCode::Home, &JOB);
        press(&mut state, KeyCode::Up, &JOB);
        assert_eq!(state.back, 30);
        press(&mut state, KeyCode::End, &JOB);
        state.keep_place(2);
        assert_eq!(state.back, 0, "the newest lines are in sight");
        assert_eq!(state.cursor(Table::Ranks, &JOB), 0);
    }
}
