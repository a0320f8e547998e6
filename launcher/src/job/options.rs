//! Options of a job as types: what is shown, read, tagged and restarted.

use crate::job::tag_pattern::Pattern;
use rlaunch_bootstrap::env as names;
use std::path::PathBuf;
use std::str::FromStr;

/// How dry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DryRun {
    /// Agents look for what the job needs
    Agents,
    /// No host is reached
    Offline,
}

/// Something to explain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    RankTable(Form),
    Mesh(Form),
    Placement,
    Env,
}

/// For whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Json,
}

impl FromStr for Show {
    type Err = String;

    fn from_str(text: &str) -> Result<Show, String> {
        match text {
            "rank-table" => Ok(Show::RankTable(Form::Text)),
            "rank-table=json" => Ok(Show::RankTable(Form::Json)),
            "mesh" => Ok(Show::Mesh(Form::Text)),
            "mesh=json" => Ok(Show::Mesh(Form::Json)),
            "placement" => Ok(Show::Placement),
            "env" => Ok(Show::Env),
            _ => Err("env, placement, mesh, mesh=json, rank-table or rank-table=json can be shown"
                .to_owned()),
        }
    }
}

/// How output is wanted.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputOptions {
    /// Tag that each line starts with.
    pub(crate) tag: Option<Pattern>,
    /// Directory in which each rank has files of its own.
    pub(crate) directory: Option<PathBuf>,
    /// Standard error of ranks comes with their standard output.
    pub(crate) merge_stderr: bool,
}

impl OutputOptions {
    /// Whether agents have to say when they read what they send.
    pub(crate) fn is_stamped(&self) -> bool {
        self.tag.as_ref().is_some_and(Pattern::has_time)
    }
}

/// How often a job may begin again, and how often it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Restarts {
    pub(crate) most: u32,
    pub(crate) done: u32,
}

impl Restarts {
    /// Counts the first attempt.
    pub(crate) fn up_to(most: u32) -> Restarts {
        Restarts { most, done: 0 }
    }

    /// Counts the next attempt, where there may be one.
    pub(crate) fn next(self) -> Option<Restarts> {
        (self.done < self.most).then_some(Restarts { done: self.done + 1, ..self })
    }

    /// Returns the variables that tell ranks of it, as torchrun's do, but for those that `-x` has set.
    pub(crate) fn env(self, explicit: &[String]) -> Vec<(String, String)> {
        let all = [
            (names::TORCHELASTIC_RESTART_COUNT, self.done),
            (names::TORCHELASTIC_MAX_RESTARTS, self.most),
            (names::RLAUNCH_RESTART_COUNT, self.done),
        ];
        let told = all.map(|(name, count)| (name.to_owned(), count.to_string()));
        told.into_iter().filter(|(name, _)| !explicit.contains(name)).collect()
    }
}
