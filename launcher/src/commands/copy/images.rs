//! `rlaunch images`: which host has which image.

use super::ask;
use super::attempt::Origin;
use super::image::{Engines, canonical, is_same, take_engine};
use super::progress::amount;
use super::sources::shown;
use crate::cli::args::ConnectArgs;
use crate::cli::command_line::CommandLine;
use crate::commands::output;
use clap::Parser;
use rlaunch_bootstrap::job::PortRange;
use rlaunch_console::{messages, stdout};
use rlaunch_copy::control::{ImageInfo, Question};
use rlaunch_text::columns::{lay_out, row};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use serde::Serialize;
use std::collections::BTreeMap;

/// Version of the output of `--json`.
const VERSION: u32 = 1;
/// Number of digits of an id that are shown, as engines do.
const DIGITS: usize = 12;

/// List the container images of hosts, and who has which.
///
/// Images that are not the same on all hosts come first, with the hosts that lack them. Two are the same if a digest of
/// them is: their ids may differ where engines or their storage do.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch images -H a,b                all images of both
  rlaunch images -H a,b vllm:0.11      this one
  rlaunch push -H a,b image:vllm:0.11  send it to those that lack it")]
pub(crate) struct ImagesArgs {
    /// Name of an image, with or without a tag
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Hosts, as for a job
    #[arg(short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST,...")]
    pub(crate) hosts: Vec<String>,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// One content of a name.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    name: String,
    /// Id in the engine of the first host; `None` for hosts that have no image of this name.
    id: Option<String>,
    size: u64,
    hosts: Vec<String>,
}

#[derive(Serialize)]
struct ImagesReport<'a> {
    v: u32,
    images: &'a [Row],
}

/// Asks all hosts and prints a table.
pub(crate) async fn run(mut args: ImagesArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let engine = take_engine(&mut args.connect).map(str::to_owned);
    let origin = Origin::Verb {
        hosts: &args.hosts,
        connect: &args.connect,
        ports: PortRange::DEFAULT,
        config: &line.config,
    };
    let question = Question::Images { engine };
    let answered = ask::hosts(origin, &question).await?;
    let hosts: Vec<(String, Engines)> =
        answered.into_iter().map(|(host, answers)| (host, Engines::new(answers))).collect();
    let mut exit = Exit::SUCCESS;
    for (host, engines) in hosts.iter().filter(|(_, engines)| engines.answering.is_empty()) {
        exit = Exit::FILES;
        messages::warn(&format!("{host}: {}", engines.refusal()));
    }
    let rows = rows(&hosts, args.name.as_deref());
    if args.json {
        stdout::print(&output::json(&ImagesReport { v: VERSION, images: &rows })?);
    } else {
        stdout::print(&table(&rows));
    }
    if rows.is_empty() && exit == Exit::SUCCESS {
        messages::info("no images");
    }
    Ok(exit)
}

/// Lists what hosts have: names with more than one content first.
fn rows(hosts: &[(String, Engines)], wanted: Option<&str>) -> Vec<Row> {
    let mut by_name: BTreeMap<String, Vec<(&ImageInfo, Vec<String>)>> = BTreeMap::new();
    let with_engine = || hosts.iter().filter_map(|(host, of)| Some((host, of.answering.first()?)));
    for (host, engine) in with_engine() {
        for image in &engine.images {
            for name in image.names.iter().map(|name| canonical(name)) {
                if wanted.is_some_and(|wanted| !is_meant(&name, wanted)) {
                    continue;
                }
                let contents = by_name.entry(name).or_default();
                match contents.iter_mut().find(|(other, _)| is_same(other, image)) {
                    Some((_, hosts)) => hosts.push(host.clone()),
                    None => contents.push((image, vec![host.clone()])),
                }
            }
        }
    }
    if let Some(wanted) = wanted.filter(|_| by_name.is_empty()) {
        // Then all hosts lack it.
        by_name.insert(canonical(wanted), Vec::new());
    }
    let (mut differing, mut same) = (Vec::new(), Vec::new());
    for (name, contents) in by_name {
        let has = |host: &String| contents.iter().any(|(_, hosts)| hosts.contains(host));
        let lacking: Vec<String> =
            with_engine().map(|(host, _)| host.clone()).filter(|host| !has(host)).collect();
        let is_same_everywhere = contents.len() == 1 && lacking.is_empty();
        let rows = if is_same_everywhere { &mut same } else { &mut differing };
        rows.extend(contents.into_iter().map(|(image, hosts)| Row {
            name: name.clone(),
            id: Some(image.id.clone()),
            size: image.size,
            hosts,
        }));
        if !lacking.is_empty() {
            rows.push(Row { name, id: None, size: 0, hosts: lacking });
        }
    }
    differing.append(&mut same);
    differing
}

/// Tells whether a word means an image: one without a tag means all tags.
fn is_meant(name: &str, wanted: &str) -> bool {
    let meant = canonical(wanted);
    let repository = meant.strip_suffix(":latest").filter(|_| !wanted.ends_with(":latest"));
    let is_tag_of = |repository: &str| {
        name.strip_prefix(repository).and_then(|rest| rest.strip_prefix(':')).is_some()
    };
    name == meant || repository.is_some_and(is_tag_of)
}

fn table(rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let cells = rows.iter().map(|Row { name, id, size, hosts }| {
        let (name, hosts) = (shown(name.as_ref()), shown(text::list(hosts).as_ref()));
        let id = id.as_ref().map(|id| shown(id.get(..DIGITS).unwrap_or(id).as_ref()));
        let size = id.as_ref().map(|_| amount(*size)).unwrap_or_default();
        vec![name, id.unwrap_or_else(|| "missing".to_owned()), size, hosts]
    });
    let header = row(["IMAGE", "ID", "SIZE", "HOSTS"]);
    lay_out(&[header].into_iter().chain(cells).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_copy::control::EngineImages;

    fn engines(images: &[(&str, &str)]) -> Engines {
        let images = images.iter().map(|(name, id)| ImageInfo {
            names: vec![(*name).to_owned()],
            id: format!("{id}0123456789abcdef"),
            size: 214_000_000,
            ..ImageInfo::default()
        });
        let engine =
            EngineImages { name: "docker".into(), takes_parts: true, images: images.collect() };
        Engines { answering: vec![engine], refusals: Vec::new() }
    }

    fn listed(wanted: Option<&str>) -> String {
        let hosts = [
            ("a", engines(&[("same:1", "f"), ("other:1", "a"), ("alone:1", "c")])),
            ("b", engines(&[("localhost/same:1", "f"), ("other:1", "b")])),
            ("c", Engines::default()),
        ];
        let hosts = hosts.map(|(host, engines)| (host.to_owned(), engines));
        table(&rows(&hosts, wanted))
    }

    #[test]
    fn what_differs_comes_first() {
        let expected = "\
IMAGE    ID            SIZE    HOSTS
alone:1  c0123456789a  214 MB  a
alone:1  missing               b
other:1  a0123456789a  214 MB  a
other:1  b0123456789a  214 MB  b
same:1   f0123456789a  214 MB  a, b
";
        assert_eq!(listed(None), expected);
        assert_eq!(listed(Some("same")).lines().count(), 2);
        assert_eq!(listed(Some("same:2")), "IMAGE   ID       HOSTS\nsame:2  missing  a, b\n");
    }

    #[test]
    fn a_name_without_a_tag_means_all_of_them() {
        for (name, wanted, expected) in [
            ("x:1", "x", true),
            ("x:latest", "x", true),
            ("x:1", "x:latest", false),
            ("xy:1", "x", false),
            ("x:1", "localhost/x:1", true),
        ] {
            assert_eq!(is_meant(name, wanted), expected, "{name} {wanted}");
        }
    }
}
