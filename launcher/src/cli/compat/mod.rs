//! Options of mpirun, mpiexec, torchrun and horovodrun, translated to options of rlaunch before clap
//! parses the command line.
//!
//! | file | subject |
//! |---|---|
//! | `translate` | translation of a command line, option by option, up to the program |
//! | `options` | table of the other launchers' options |
//! | `values` | options whose value decides what they mean in rlaunch, as `--bind-to` and `--map-by` |
//! | `mca` | `--mca NAME VALUE` of Open MPI and PRRTE |
//! | `notices` | messages on options that have no effect in rlaunch, or a different one |

mod mca;
mod notices;
mod options;
#[cfg(test)]
mod tests;
mod translate;
mod values;

pub(crate) use notices::Notices;
pub(crate) use translate::{translate, translate_job};

use std::ffi::OsString;

/// Effect of another launcher's option.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Effect {
    /// Sets the option of rlaunch with this long name, without dashes; a flag has no value.
    Set(&'static str, Option<OsString>),
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
