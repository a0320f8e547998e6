//! `--dry-run`: prints a job without starting any rank.
//!
//! The output begins with lines that programs can parse: a keyword, then words quoted as for a shell.
//!
//! ```text
//! host a slots=2 ranks=0-1
//! host user@b slots=1 ranks=none
//! wdir preferred /home/user
//! env NCCL_DEBUG=INFO
//! program python3 train.py 'a b'
//! ```
//!
//! A host's ranks are in the order of their local ranks. If a `preferred` directory is missing on a host,
//! ranks there run in their home directory; a `required` directory must exist on every host. Values with a
//! name that suggests a secret are replaced. New keywords may be added.

use crate::run::show::ShownPlan;
use rlaunch_bootstrap::env::redacted_value;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::job::WorkingDir;
use rlaunch_console::{messages, stdout};
use rlaunch_plan::hosts::{Host, SlotsBy};
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::job::apps::AppSpec;
use rlaunch_plan::job::options::Show;
use rlaunch_plan::map::RankMap;
use rlaunch_plan::placement_line;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::redact::without_secrets;
use rlaunch_text::shell::quoted;
use rlaunch_text::text;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};

/// Prints the job without connecting to any host. The output depends only on the command line and on the
/// files and environment of this machine.
pub fn offline(job: &JobSpec) -> Result<Exit, Failed> {
    if job.show.contains(&Show::PlacementPicture) {
        let message = "--show placement=svg draws the hosts' devices, but --dry-run=offline asks no host for them";
        let hint = "--dry-run without a value connects to the hosts, and starts no rank";
        return Err(Failed::new(Exit::USAGE, message).hint(Some(hint)));
    }
    let known = !job.has_slots_from_gpus();
    let map = known.then(|| job.map_ranks()).transpose();
    let map = map.map_err(|error| Failed::from_error(Exit::USAGE, &error))?;
    if let Some(map) = &map {
        messages::print(
            placement_line::message(map, job.map_by, io::stderr().is_terminal()).as_slice(),
        );
    }
    stdout::print(&program_lines(job, map.as_ref()));
    Ok(Exit::SUCCESS)
}

/// Describes a job after its hosts were connected: the lines that programs can parse, the placement, the
/// variables of ranks, and what `--show` asks for. If that is a picture, there is nothing else.
pub fn text(plan: &ShownPlan<'_>) -> String {
    const ALWAYS: [Show; 2] = [Show::Placement, Show::Env];
    let ShownPlan { job, map, .. } = *plan;
    if job.show.contains(&Show::PlacementPicture) {
        return job.show.iter().map(|show| plan.text(*show)).collect();
    }
    let more = job.show.iter().filter(|show| !ALWAYS.contains(show));
    let parts = ALWAYS.iter().chain(more).map(|show| plan.text(*show));
    std::iter::once(program_lines(job, Some(map))).chain(parts).collect::<Vec<_>>().join("\n")
}

/// Makes the lines that programs can parse. `map` is `None` if slots depend on GPUs that were not counted;
/// then slots and ranks of some hosts are unknown.
pub fn program_lines(job: &JobSpec, map: Option<&RankMap>) -> String {
    let mut lines = host_lines(&job.hosts, map);
    for (index, app) in job.apps.iter().enumerate() {
        if job.apps.len() > 1 {
            let ranks = map.map_or("?".to_owned(), |map| ranges(&ranks_of(map, index)));
            let name = app.name.as_deref().unwrap_or("-");
            lines.push(format!("application {} name={name} ranks={ranks}", index + 1));
        }
        lines.push(match &app.wdir {
            WorkingDir::SameAsLauncher(path) => {
                format!("wdir preferred {}", quoted(path.as_os_str()))
            }
            WorkingDir::Required(path) => format!("wdir required {}", quoted(path.as_os_str())),
        });
        lines.extend(env_lines(app));
        lines.push(format!("program {}", program(&app.argv)));
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

/// Lists the ranks of one of several programs.
fn ranks_of(map: &RankMap, application: usize) -> Vec<Rank> {
    let all = (0..map.world_size).map(Rank);
    all.filter(|rank| map.application_of(*rank) == application).collect()
}

/// Makes a line for each host, in the order in which hosts were given.
fn host_lines(hosts: &[Host], map: Option<&RankMap>) -> Vec<String> {
    let key = |host: &Host| (host.user.clone(), host.name.clone());
    let nodes = map.iter().flat_map(|map| &map.nodes);
    let nodes: HashMap<_, _> = nodes.map(|node| (key(&node.host), node)).collect();
    let idle = map.iter().flat_map(|map| &map.unused);
    let idle: HashMap<_, _> = idle.map(|host| (key(host), host)).collect();
    let line = |host: &Host| {
        let name = quoted(host.to_string().as_ref());
        let (slots, ranks) = match (nodes.get(&key(host)), idle.get(&key(host))) {
            (Some(node), _) => (node.host.slots.to_string(), ranges(&node.ranks)),
            (None, Some(idle)) => (idle.slots.to_string(), "none".to_owned()),
            (None, None) if host.slots_by == SlotsBy::Open => ("gpus".to_owned(), "?".to_owned()),
            (None, None) => (host.slots.to_string(), "?".to_owned()),
        };
        format!("host {name} slots={slots} ranks={ranks}")
    };
    hosts.iter().map(line).collect()
}

fn ranges(ranks: &[Rank]) -> String {
    text::ranges(ranks.iter().map(|rank| rank.0), usize::MAX)
}

/// Makes a line for each variable that `-x` or a similar option sets.
fn env_lines(app: &AppSpec) -> impl Iterator<Item = String> {
    let is_asked =
        |name: &OsStr| app.user_set_vars.iter().any(|asked| *asked == name.to_string_lossy());
    app.env.iter().filter(move |var| is_asked(&var.name)).map(|var| {
        let (name, value) = (var.name.to_string_lossy(), var.value.to_string_lossy());
        let mut word = var.name.clone();
        word.push("=");
        match redacted_value(&name, &value) {
            same if same == value => word.push(&var.value),
            hidden => word.push(hidden),
        }
        format!("env {}", quoted(&word))
    })
}

/// Quotes the words of a program, with secrets replaced.
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
mod tests {
    use super::*;

    #[test]
    fn ranks_that_follow_each_other_are_taken_together() {
        let shown = |ranks: &[u32]| ranges(&ranks.iter().copied().map(Rank).collect::<Vec<_>>());
        assert_eq!(shown(&[0, 1, 2, 5]), "0-2,5");
        assert_eq!(shown(&[0, 2, 4]), "0,2,4");
        assert_eq!(shown(&[3, 2]), "3,2");
        assert_eq!(shown(&[7]), "7");
    }
}
