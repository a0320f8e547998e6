//! Options of mpirun, mpiexec, torchrun and horovodrun, translated to options of rlaunch before clap
//! parses the command line.
//!
//! | file | subject |
//! |---|---|
//! | `translate` | translation of a command line, option by option, up to the program |
//! | `options` | table of the other launchers' options |
//! | `values` | options whose value decides what they mean here, as `--bind-to` and `--map-by` |
//! | `mca` | `--mca NAME VALUE` of Open MPI and PRRTE |
//! | `notices` | what to print on options that have no effect, or another one, here |

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
    /// An option of rlaunch, by its long name without dashes, is set.
    Set(&'static str, Option<OsString>),
    /// Nothing. The text names the option.
    Ignored(String),
    /// Nothing, or something else than in its own launcher. The text is a sentence for the user.
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
