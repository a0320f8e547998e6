//! Types of a job's options: dry runs, `--show`, output of ranks, hang watch, restarts.

use crate::job::tag_pattern::TagPattern;
use rlaunch_bootstrap::job::Pseudoterminals;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use strum::{EnumString, IntoStaticStr, VariantArray};

/// Extent of a dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum DryRun {
    /// Agents on the hosts check what the job needs
    Agents,
    /// No host is connected to
    Offline,
}

/// Value of `--show`: the subject to explain before ranks start, or once they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    RankTable(ShowFormat),
    Mesh(ShowFormat),
    Placement,
    /// Placement on stderr, where mpirun reports bindings.
    PlacementOnStderr,
    /// Placement as a picture in SVG, which other output would spoil.
    PlacementPicture,
    Env,
    /// The commands that have started containers.
    Container,
    /// Where the time of the start went, once ranks have started.
    Timing,
}

/// Output format of a subject of `--show`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShowFormat {
    Text,
    Json,
}

impl FromStr for Show {
    type Err = String;

    fn from_str(text: &str) -> Result<Show, String> {
        match text {
            "rank-table" => Ok(Show::RankTable(ShowFormat::Text)),
            "rank-table=json" => Ok(Show::RankTable(ShowFormat::Json)),
            "mesh" => Ok(Show::Mesh(ShowFormat::Text)),
            "mesh=json" => Ok(Show::Mesh(ShowFormat::Json)),
            "placement" => Ok(Show::Placement),
            "placement=stderr" => Ok(Show::PlacementOnStderr),
            "placement=svg" => Ok(Show::PlacementPicture),
            "env" => Ok(Show::Env),
            "container" => Ok(Show::Container),
            "timing" => Ok(Show::Timing),
            _ => Err("env, container, placement, placement=stderr, placement=svg, mesh, mesh=json, rank-table, \
                rank-table=json or timing can be shown"
                .to_owned()),
        }
    }
}

/// Watches of a running job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchOptions {
    /// `--hang-timeout`; `None` if hangs are not looked for.
    pub hang: Option<HangOptions>,
    /// `--straggler-report`: time over which ranks are compared; `None` if they are not.
    pub straggler_window: Option<Duration>,
}

/// `--hang-timeout` and `--hang-report`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HangOptions {
    /// Time without progress after which the job hangs.
    pub timeout: Duration,
    /// Whether the job is ended then, or only reported.
    pub ends_job: bool,
}

/// Report that is printed when `--timeout` ends a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeoutReport {
    /// `--hang-report`, or mpirun's `--report-state-on-timeout`.
    pub state: bool,
    /// `--hang-report`, or mpirun's `--get-stack-traces`.
    pub stacks: bool,
}

/// Lines of several ranks that are shown once at a terminal, whatever their ranks print beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Folding {
    /// Equal lines.
    Lines,
    /// Lines that differ in numbers alone.
    Numbers,
    /// No lines, nor equal bursts.
    None,
}

#[derive(Clone, Debug, Default)]
pub struct OutputOptions {
    /// Tag at the start of each line.
    pub tag: Option<TagPattern>,
    /// Whether lines have no tags at a terminal without `tag`.
    pub no_tag: bool,
    /// Output that is folded; `None` for bursts that are equal as a whole.
    pub fold: Option<Folding>,
    /// Directory for a copy of each rank's output.
    pub directory: Option<PathBuf>,
    /// Whether ranks' stderr goes to stdout.
    pub merge_stderr: bool,
    /// Ranks whose stdout is a pseudoterminal.
    pub pseudoterminals: Pseudoterminals,
}

impl OutputOptions {
    /// Tells whether agents have to send the time of each piece of output.
    pub fn needs_timestamps(&self) -> bool {
        self.tag.as_ref().is_some_and(TagPattern::has_time)
    }
}

/// Restarts of a job: how many are allowed, and how many were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restarts {
    pub max: u32,
    pub done: u32,
}

impl Restarts {
    /// Makes the count for the first attempt at a job: no restart was made, and `max` are allowed.
    pub fn up_to(max: u32) -> Restarts {
        Restarts { max, done: 0 }
    }

    /// Makes the count for the next attempt, with one more restart made; `None` if the limit is reached.
    pub fn next(self) -> Option<Restarts> {
        (self.done < self.max).then_some(Restarts { done: self.done + 1, ..self })
    }
}
