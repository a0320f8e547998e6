//! Options of mpirun, mpiexec, torchrun and horovodrun, translated to options of rlaunch before clap
//! parses the command line.
//!
//! | file | subject |
//! |---|---|
//! | `translate` | translation of a command line, option by option, up to the program |
//! | `options` | the other launchers' options |
//! | `values` | what their values mean, as of `--bind-to` and `--map-by` |
//! | `files` | files of options and of programs: `--tune`, `--app`, `-configfile` |
//! | `tips` | options of other tools that are none here, and the command line that does the same |
//! | `mca` | `--mca NAME VALUE` of Open MPI and PRRTE |

mod files;
mod mca;
mod options;
#[cfg(test)]
mod tests;
mod tips;
mod translate;
mod values;

pub(crate) use files::with_programs_of_file;
pub(crate) use translate::translate;

use rlaunch_console::messages;
use std::ffi::OsString;

/// Effect of another launcher's option.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Effect {
    /// Sets the option of rlaunch with this long name, without dashes; a flag has no value.
    Set(&'static str, Option<OsString>),
    /// Sets an option unless another word sets it, or one of these.
    SetUnless(&'static [&'static str], &'static str, &'static str),
    /// Begins each line of output with the time.
    Timestamps,
    /// Copies the program to the hosts.
    CopyProgram,
    /// Each line is of a rank, in a file that `--hostfile` names.
    HostfileIsRankfile,
    /// No effect, which is reported to the user. The text names the option.
    Ignored(String),
    /// No effect, or a different one than in the other launcher. The text is a sentence for the user.
    Note(String),
}

impl Effect {
    fn flag(option: &'static str) -> Effect {
        Effect::Set(option, None)
    }

    fn value(option: &'static str, value: impl Into<OsString>) -> Effect {
        Effect::Set(option, Some(value.into()))
    }
}

/// Notices on the options of one command line, in the order of the options and without repeats.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notices {
    /// Options that have no effect in rlaunch.
    ignored: Vec<String>,
    /// Sentences on options that have a different meaning in rlaunch.
    notes: Vec<String>,
}

impl Notices {
    fn add_ignored(&mut self, option: String) {
        add(&mut self.ignored, option);
    }

    fn add_note(&mut self, sentence: String) {
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
