//! `--dry-run`: what a job would be, with no rank started.
//!
//! It begins with lines that programs may read: what a line is about, then words as a shell takes
//! them.
//!
//! ```text
//! host a slots=2 ranks=0-1
//! host user@b slots=1 ranks=none
//! wdir preferred /home/user
//! env NCCL_DEBUG=INFO
//! program python3 train.py 'a b'
//! ```
//!
//! A host's ranks are in the order of their local ranks. The directory is `preferred` where ranks
//! run in their home without it, and `required` where it must be there. Values of what is called a
//! secret are left out. New kinds of lines may be added.

use crate::exit::Exit;
use crate::hosts::Host;
use crate::job::JobSpec;
use crate::map::RankMap;
use crate::record::without_secrets;
use crate::rendezvous::Joined;
use crate::report::Failed;
use crate::shell_words::quoted;
use crate::show::Show;
use rlaunch_bootstrap::env::shown;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::job::WorkingDir;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;

/// How dry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DryRun {
    /// Agents look for what the job needs
    Agents,
    /// No host is reached
    Offline,
}

/// Prints what follows from what was typed, and from this machine's files and environment.
pub(crate) fn offline(job: &JobSpec) -> Result<Exit, Failed> {
    let map = job.map_ranks().map_err(|error| Failed::from_error(Exit::USAGE, &error))?;
    map.warn_of_unused();
    // A reader that has gone does not need it.
    let _ = std::io::stdout().write_all(typed(job, &map).as_bytes());
    Ok(Exit::SUCCESS)
}

/// The same with what is known of the hosts: where ranks would run, what they would be told, and
/// what else `--show` asks for.
pub(crate) fn text(job: &JobSpec, map: &RankMap, joined: &Joined) -> String {
    const ALWAYS: [Show; 2] = [Show::Placement, Show::Env];
    let more = job.show.iter().filter(|show| !ALWAYS.contains(show));
    let parts = ALWAYS.iter().chain(more).map(|show| show.text(job, map, joined));
    std::iter::once(typed(job, map)).chain(parts).collect::<Vec<_>>().join("\n")
}

/// The lines for programs.
fn typed(job: &JobSpec, map: &RankMap) -> String {
    let mut lines = host_lines(&job.hosts, map);
    lines.push(match &job.wdir {
        WorkingDir::Launchers(path) => format!("wdir preferred {}", quoted(path.as_os_str())),
        WorkingDir::Required(path) => format!("wdir required {}", quoted(path.as_os_str())),
    });
    lines.extend(env_lines(job));
    lines.push(format!("program {}", program(&job.argv)));
    lines.into_iter().map(|line| line + "\n").collect()
}

/// In the order in which hosts were given.
fn host_lines(hosts: &[Host], map: &RankMap) -> Vec<String> {
    let key = |host: &Host| (host.user.clone(), host.name.clone());
    let nodes: HashMap<_, _> = map.nodes.iter().map(|node| (key(&node.host), node)).collect();
    let line = |host: &Host| {
        let ranks = nodes.get(&key(host)).map_or("none".to_owned(), |node| runs(&node.ranks));
        let name = quoted(host.to_string().as_ref());
        format!("host {name} slots={} ranks={ranks}", host.slots)
    };
    hosts.iter().map(line).collect()
}

/// `0-2,5`: those that follow each other are taken together.
fn runs(ranks: &[Rank]) -> String {
    let together = ranks.chunk_by(|one, next| one.0.checked_add(1) == Some(next.0));
    let run = |run: &[Rank]| match run {
        [first, .., last] => format!("{first}-{last}"),
        alone => alone.iter().map(ToString::to_string).collect(),
    };
    together.map(run).collect::<Vec<_>>().join(",")
}

/// What was asked for by `-x` and the like.
fn env_lines(job: &JobSpec) -> impl Iterator<Item = String> {
    let is_asked = |name: &OsStr| job.explicit.iter().any(|asked| *asked == name.to_string_lossy());
    job.env.iter().filter(move |var| is_asked(&var.name)).map(|var| {
        let (name, value) = (var.name.to_string_lossy(), var.value.to_string_lossy());
        let mut word = var.name.clone();
        word.push("=");
        match shown(&name, &value) {
            same if same == value => word.push(&var.value),
            hidden => word.push(hidden),
        }
        format!("env {}", quoted(&word))
    })
}

/// Word by word, as they are but for secrets.
fn program(argv: &[OsString]) -> String {
    let words = argv.iter().zip(without_secrets(argv)).map(|(word, safe)| {
        match word.to_string_lossy() == safe {
            true => quoted(word),
            false => quoted(safe.as_ref()),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
