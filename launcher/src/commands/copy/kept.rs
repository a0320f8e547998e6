//! `rlaunch push --list` and `--prune`: what copies have put on hosts, and working trees that nobody uses any more.

use super::attempt::Origin;
use super::progress::amount;
use super::sources::shown;
use super::sync::{self, is_agreed, is_held};
use super::{CopyArgs, ask};
use crate::cli::config::LoadedConfig;
use crate::commands::output;
use rlaunch_console::{messages, stdout};
use rlaunch_copy::control::{Answer, CopyInfo, Pruned, Question};
use rlaunch_text::columns::{lay_out, row};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Version of the output of `--json`.
const VERSION: u32 = 1;

/// Equal copies of several hosts.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Kept {
    path: String,
    files: u64,
    bytes: u64,
    /// Seconds since the last copy.
    age: u64,
    is_tree: bool,
    is_used: bool,
    hosts: Vec<String>,
    #[serde(skip)]
    root: String,
}

#[derive(Serialize)]
struct KeptReport<'a> {
    v: u32,
    kept: &'a [Kept],
}

async fn ask_hosts(args: &CopyArgs, config: &LoadedConfig) -> Result<Vec<Kept>, Failed> {
    let answered = ask::hosts(Origin::of(args, config), &Question::Copies).await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let copies = answered.into_iter().flat_map(|(host, answers)| {
        let of_host = answers.into_iter().filter_map(|answer| match answer {
            Answer::Copies { copies, .. } => Some(copies),
            _ => None,
        });
        of_host.flatten().map(|copy| (host.clone(), copy)).collect::<Vec<_>>()
    });
    Ok(grouped(copies, now))
}

/// Puts copies together that differ in their hosts alone.
fn grouped(copies: impl Iterator<Item = (String, CopyInfo)>, now: u64) -> Vec<Kept> {
    let mut all: Vec<Kept> = Vec::new();
    for (host, copy) in copies {
        let CopyInfo { path, root, files, bytes, secs, is_tree, is_used } = copy;
        // Of this machine's jobs also those are known that have not started yet.
        let name = Path::new(&root).file_name().map(|name| name.to_string_lossy());
        let is_used = is_used || is_tree && name.is_some_and(|name| is_held(&name));
        let age = now.saturating_sub(u64::try_from(secs).unwrap_or(0));
        let is_same = |kept: &&mut Kept| {
            (&kept.path, kept.files, kept.bytes, kept.is_used) == (&path, files, bytes, is_used)
        };
        match all.iter_mut().find(is_same) {
            Some(kept) => {
                kept.age = kept.age.min(age);
                kept.hosts.push(host);
            }
            None => {
                let hosts = vec![host];
                all.push(Kept { path, files, bytes, age, is_tree, is_used, hosts, root });
            }
        }
    }
    all.sort_by(|a, b| (a.is_tree, &a.path).cmp(&(b.is_tree, &b.path)));
    all
}

/// Prints what copies have put on hosts.
pub(super) async fn list(args: &CopyArgs, config: &LoadedConfig) -> Result<Exit, Failed> {
    let kept = ask_hosts(args, config).await?;
    if args.json {
        stdout::print(&output::json(&KeptReport { v: VERSION, kept: &kept })?);
    } else if kept.is_empty() {
        messages::info("nothing was copied there, or it is gone");
    } else {
        stdout::print(&table(&kept));
    }
    Ok(Exit::SUCCESS)
}

fn table(kept: &[Kept]) -> String {
    let cells = kept.iter().map(|of| {
        let age = match of.age {
            0..60 => "just now".to_owned(),
            age => format!("{} ago", text::age(age)),
        };
        let last = match (of.is_tree, of.is_used) {
            (true, true) => format!("{age}, in use"),
            _ => age,
        };
        let path = shown(of.path.as_ref());
        let hosts = shown(text::list(&of.hosts).as_ref());
        vec![path, of.files.to_string(), amount(of.bytes), last, hosts]
    });
    let header = row(["PATH", "FILES", "SIZE", "COPIED", "HOSTS"]);
    lay_out(&[header].into_iter().chain(cells).collect::<Vec<_>>())
}

/// Removes working trees that no job uses, if the user agrees, and what copies have left unfinished.
pub(super) async fn prune(
    args: &CopyArgs,
    config: &LoadedConfig,
    is_agreed_already: bool,
) -> Result<Exit, Failed> {
    let kept = ask_hosts(args, config).await?;
    // Held until hosts have answered: a job that starts meanwhile gets another tree.
    let (trees, _held) = unused(kept, sync::hold_named);
    if !trees.is_empty() && !is_agreed_already {
        stdout::print(&table(&trees));
        let bytes = amount(trees.iter().map(|of| of.bytes * of.hosts.len() as u64).sum());
        let count = text::count(trees.len(), "working tree");
        let question = format!("remove {count}, {bytes}? What ranks have written there stays.");
        if !is_agreed(&question).await {
            let failed = Failed::new(Exit::USAGE, "nothing is removed without your consent");
            return Err(failed.hint(Some("--yes gives it")));
        }
    }
    let mut roots: Vec<String> = trees.into_iter().map(|of| of.root).collect();
    roots.dedup();
    for name in roots.iter().filter_map(|root| Path::new(root).file_name()?.to_str()) {
        sync::forget(name);
    }
    let question = Question::Prune { trees: roots };
    let answered = ask::hosts(Origin::of(args, config), &question).await?;
    for (host, answers) in answered {
        for answer in answers {
            if let Answer::Pruned { pruned, .. } = answer {
                stdout::print(&format!("{}\n", removed(&host, &pruned)));
            }
        }
    }
    Ok(Exit::SUCCESS)
}

/// Selects the trees that no host uses and that `hold` gives, and returns them with what holds them.
fn unused<H>(kept: Vec<Kept>, hold: impl Fn(&str) -> Option<H>) -> (Vec<Kept>, Vec<H>) {
    let trees = kept.into_iter().filter(|of| of.is_tree);
    let (used, mut free): (Vec<Kept>, Vec<Kept>) = trees.partition(|of| of.is_used);
    // Hosts may share a directory, so that one host's use counts for all.
    free.retain(|of| used.iter().all(|other| other.root != of.root));
    let mut held: BTreeMap<String, Option<H>> = BTreeMap::new();
    free.retain(|of| {
        let name = Path::new(&of.root).file_name().unwrap_or_default().to_string_lossy();
        held.entry(name.clone().into_owned()).or_insert_with(|| hold(&name)).is_some()
    });
    (free, held.into_values().flatten().collect())
}

fn removed(host: &str, pruned: &Pruned) -> String {
    let host = shown(host.as_ref());
    if pruned.files == 0 && pruned.trees == 0 {
        return format!("{host}: nothing to remove");
    }
    let count =
        |number: u64, what| text::count(usize::try_from(number).unwrap_or(usize::MAX), what);
    let (files, trees) = (count(pruned.files, "file"), count(pruned.trees, "working tree"));
    format!("{host}: removed {files}, {}; {trees} as a whole", amount(pruned.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(path: &str, secs: i64, is_tree: bool, is_used: bool) -> CopyInfo {
        CopyInfo {
            path: path.to_owned(),
            root: "/root/.cache/rlaunch/sync/no-such-key".into(),
            files: 12,
            bytes: 2_100_000_000,
            secs,
            is_tree,
            is_used,
        }
    }

    #[test]
    fn equal_copies_are_a_line() {
        let host = |host: &str, copy| (host.to_owned(), copy);
        let kept = grouped(
            [
                host("a", copy("/home/u/.cache/rlaunch/sync/ab/proj", 1000, true, true)),
                host("a", copy("/data/model", 1000, false, false)),
                host("b", copy("/data/model", 9000, false, false)),
            ]
            .into_iter(),
            10_000,
        );
        let expected = "\
PATH                                 FILES  SIZE    COPIED               HOSTS
/data/model                          12     2.1 GB  16 minutes ago       a, b
/home/u/.cache/rlaunch/sync/ab/proj  12     2.1 GB  2 hours ago, in use  a
";
        assert_eq!(table(&kept), expected);
    }

    #[test]
    fn a_tree_is_removed_only_where_nobody_can_have_it() {
        let of = |root: &str, is_used| {
            let one = CopyInfo { root: root.into(), ..copy("/p", 1, true, is_used) };
            grouped([("a".to_owned(), one)].into_iter(), 10).remove(0)
        };
        let all = || {
            vec![of("/s/ab", false), of("/s/ab", true), of("/s/cd", false), of("/s/ef.2", false)]
        };
        let (trees, held) = unused(all(), |name| (name != "cd").then_some(name.to_owned()));
        let roots: Vec<&str> = trees.iter().map(|of| of.root.as_str()).collect();
        assert_eq!((roots, held), (vec!["/s/ef.2"], vec!["ef.2".to_owned()]));
    }

    #[test]
    fn a_line_says_what_was_removed() {
        assert_eq!(removed("a", &Pruned::default()), "a: nothing to remove");
        let pruned = Pruned { trees: 1, files: 12, bytes: 3_000_000 };
        let expected = "a: removed 12 files, 3.0 MB; 1 working tree as a whole";
        assert_eq!(removed("a", &pruned), expected);
    }
}
