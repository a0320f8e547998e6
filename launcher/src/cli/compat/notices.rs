//! Notices on other launchers' options that have no effect in rlaunch, or a different one.

use rlaunch_console::messages;

/// Notices on the options of one command line, in the order of the options and without repeats.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notices {
    /// Options that have no effect in rlaunch.
    ignored: Vec<String>,
    /// Sentences on options that have a different meaning in rlaunch.
    notes: Vec<String>,
}

impl Notices {
    pub(super) fn add_ignored(&mut self, option: String) {
        add(&mut self.ignored, option);
    }

    pub(super) fn add_note(&mut self, sentence: String) {
        add(&mut self.notes, sentence);
    }

    /// Adds the notices of another program on the same command line.
    pub(crate) fn extend(&mut self, other: Notices) {
        other.ignored.into_iter().for_each(|option| self.add_ignored(option));
        other.notes.into_iter().for_each(|sentence| self.add_note(sentence));
    }

    /// Prints one line for all ignored options, and one for each note.
    pub(crate) fn print(&self) {
        if !self.ignored.is_empty() {
            messages::ignored(&self.ignored.join(", "));
        }
        self.notes.iter().for_each(|sentence| messages::info(sentence));
    }
}

fn add(texts: &mut Vec<String>, text: String) {
    if !texts.contains(&text) {
        texts.push(text);
    }
}

#[cfg(test)]
impl std::fmt::Display for Notices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.ignored.iter().try_for_each(|option| write!(f, " ignored({option})"))?;
        self.notes.iter().try_for_each(|sentence| write!(f, " note({sentence})"))
    }
}
