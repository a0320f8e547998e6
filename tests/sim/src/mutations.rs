//! Mutation test of the simulation: bugs put into the state machines, which the simulation must
//! detect.
//!
//! Each mutation replaces text in `bootstrap/`. `cargo lab sim --mutations` applies one after the other
//! to a copy of the sources and runs seeds until an invariant is violated.

use rlaunch_stopwatch::Stopwatch;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Replacement of one piece of source text.
#[derive(Clone, Copy, Debug)]
pub struct Mutation {
    /// Description of the bug.
    pub name: &'static str,
    /// File below `bootstrap`.
    pub file: &'static str,
    /// Original text, which occurs once in the file.
    pub from: &'static str,
    /// Replacement.
    pub to: &'static str,
}

const fn mutation(
    name: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
) -> Mutation {
    Mutation { name, file, from, to }
}

/// All mutations.
pub const MUTATIONS: &[Mutation] = &[
    mutation(
        "a node arrives without its children",
        "src/rendezvous/node/collective.rs",
        "&& open.children.len() == self.children.len();",
        "&& open.children.len() + 1 >= self.children.len();",
    ),
    mutation(
        "a node arrives without one of its ranks",
        "src/rendezvous/node/collective.rs",
        "open.arrived.len() as usize == self.locals.len()",
        "open.arrived.len() as usize + 1 >= self.locals.len()",
    ),
    mutation(
        "a child receives its own records",
        "src/rendezvous/node/collective.rs",
        "filter(|(id, _)| **id != child)",
        "filter(|(id, _)| **id != child || true)",
    ),
    mutation(
        "records from the parent are not sent to children",
        "src/rendezvous/node/collective.rs",
        "Payload::join([above, &ours].into_iter().chain(others)).shared()",
        "Payload::join([&ours].into_iter().chain(others)).shared()",
    ),
    mutation(
        "a release is not sent to all children",
        "src/rendezvous/node/collective.rs",
        "self.send_with(child, Message::Released(operation.clone()), payload);",
        "if child.0 % 7 != 3 { self.send_with(child, Message::Released(operation.clone()), payload); }",
    ),
    mutation(
        "every rank's first call counts twice",
        "src/rendezvous/node/collective.rs",
        "*count += 1;",
        "*count += 1 + u64::from(*count == 0 && rank.0 == 1);",
    ),
    mutation(
        "collectives do not fail for ended ranks",
        "src/rendezvous/node/collective.rs",
        "taken <= operation.sequence",
        "taken > operation.sequence",
    ),
    mutation(
        "collectives fail for ranks that arrived before they ended",
        "src/rendezvous/node/collective.rs",
        "taken <= operation.sequence",
        "taken <= operation.sequence + 1",
    ),
    mutation(
        "ended ranks are not reported to the parent",
        "src/rendezvous/node/mod.rs",
        "self.report_at.get_or_insert(now + REPORT_DELAY);",
        "let _ = now + REPORT_DELAY;",
    ),
    mutation(
        "failed collectives are not reported to children",
        "src/rendezvous/node/collective.rs",
        "self.send_down(&Message::Failed(operation.clone(), why.clone()).into());",
        "",
    ),
    mutation(
        "an abort is not sent to neighbours",
        "src/rendezvous/node/mod.rs",
        "self.send(id, Message::Abort { by, text: text.to_owned() });",
        "let _ = id;",
    ),
    mutation(
        "an abort does not answer waits for keys",
        "src/rendezvous/node/mod.rs",
        "let waiting = waiting.chain(self.store.abandon()).chain(self.clock.abandon());",
        "let waiting = waiting.chain(self.clock.abandon());",
    ),
    mutation(
        "missing ranks are not searched for",
        "src/rendezvous/node/collective.rs",
        "ask.push((operation.clone(), now.since(since)));",
        "let _ = now.since(since);",
    ),
    mutation(
        "arrived ranks are counted as missing", "src/rendezvous/node/stragglers.rs",
        "if !arrived.contains(*rank) {", "if arrived.contains(*rank) {",
    ),
    mutation(
        "a table that every child has is not confirmed",
        "src/rendezvous/node/mod.rs",
        "self.send(parent, Message::TableReceived { ranks });",
        "let _ = (parent, ranks);",
    ),
    mutation(
        "the table is not passed on to the last child",
        "src/rendezvous/node/mod.rs",
        "for child in &self.children {\n            self.outputs.push_back(NodeOutput::Send(child.id, packet.clone()));",
        "for child in self.children.iter().skip(1) {\n            self.outputs.push_back(NodeOutput::Send(child.id, packet.clone()));",
    ),
    mutation(
        "a put does not answer waits for its key",
        "src/rendezvous/node/store.rs",
        "self.deliver_to_all(&key, &value);",
        "let _ = &value;",
    ),
    mutation(
        "answers go to the wrong call",
        "src/rendezvous/node/store.rs",
        "self.store.next_request += 1;",
        "self.store.next_request += u64::from(request % 3 != 1);",
    ),
    mutation(
        "the error of an offset is too small",
        "src/rendezvous/node/clock.rs",
        "error: error.saturating_add(half_round_trip)",
        "error: error.saturating_add(half_round_trip / 8)",
    ),
    mutation(
        "unconfirmed packets are not sent again",
        "src/rendezvous/link.rs",
        "                    self.apply(CarrierEvent::Resumed);\n                    self.send_unconfirmed();",
        "                    self.apply(CarrierEvent::Resumed);",
    ),
    mutation(
        "a duplicate packet is accepted",
        "src/rendezvous/link.rs",
        "if number < self.expected {\n                    return Ok(None);\n                }",
        "if number < self.expected {\n                    return Ok(Some(Packet { message, payload: frame.payload }));\n                }",
    ),
    mutation(
        "an unconfirmed packet is dropped",
        "src/rendezvous/link.rs",
        "while self.confirmed < next {",
        "while self.confirmed < next + u64::from(next > 0 && self.unconfirmed.len() > 1) {",
    ),
    mutation(
        "what is there is asked for", "copy/src/hop.rs", "self.to_ask.subtract(&self.had);", "",
    ),
    mutation(
        "what is asked for is asked for again",
        "copy/src/hop.rs",
        "self.to_ask.remove_range(range.clone());",
        "",
    ),
    mutation(
        "a chunk that was sent is sent again", "copy/src/hop.rs", "self.ready.remove(id);", "",
    ),
    mutation(
        "a chunk that has come is not sent on", "copy/src/hop.rs", "self.ready.insert(id);", "",
    ),
    mutation(
        "a chunk below those that were sent is forgotten",
        "copy/src/hop.rs",
        "self.ready_from.min(id.0)",
        "self.ready_from",
    ),
    mutation(
        "a chunk is sent before it is there", "copy/src/hop.rs",
        "asked.intersect_with(&self.had);", "",
    ),
    mutation(
        "files get their names before all chunks are there",
        "copy/src/hop.rs",
        "&& self.had.is_full()",
        "&& self.awaited.count() < 2",
    ),
    mutation(
        "a host is done before those after it",
        "copy/src/hop.rs",
        "Downstream::None | Downstream::Done)",
        "Downstream::None | Downstream::Done | Downstream::Asked)",
    ),
];

/// Applies each mutation to a copy of the sources and runs the seeds `0..seeds`. Tells whether all
/// mutations were detected.
pub fn run(workspace: &Path, seeds: u64) -> bool {
    let copy = match Copy::make(workspace) {
        Ok(copy) => copy,
        Err(error) => {
            println!("cannot copy the machines: {error}");
            return false;
        }
    };
    let mut caught = 0;
    for mutation in MUTATIONS {
        let verdict = copy.run_mutant(mutation, seeds).unwrap_or_else(|error| error.to_string());
        caught += usize::from(verdict == CAUGHT);
        println!("{verdict}: {}", mutation.name);
    }
    println!("{caught} of {} mutations caught", MUTATIONS.len());
    caught == MUTATIONS.len()
}

const CAUGHT: &str = "caught";
/// Time after which a mutant counts as detected, because it does not terminate.
const ENDLESS: Duration = Duration::from_secs(120);

/// Parts of the workspace that the simulation is built from.
const PARTS: [&str; 3] = ["bootstrap", "tests/sim", "tests/stopwatch"];

/// Workspace with copies of these parts.
struct Copy {
    directory: TempDir,
    target: PathBuf,
}

impl Copy {
    fn make(workspace: &Path) -> io::Result<Copy> {
        let directory = tempfile::tempdir()?;
        for part in PARTS {
            copy_all(&workspace.join(part), &directory.path().join(part))?;
        }
        for file in ["Cargo.lock", "Cargo.toml"] {
            fs::copy(workspace.join(file), directory.path().join(file))?;
        }
        let manifest = directory.path().join("Cargo.toml");
        let text = fs::read_to_string(&manifest)?;
        let members = text.find("members = [").zip(text.find("\n]\n"));
        let (from, to) = members.ok_or_else(|| io::Error::other("the manifest has no members"))?;
        let members = format!("members = {PARTS:?}");
        fs::write(&manifest, format!("{}{members}{}", &text[..from], &text[to + 2..]))?;
        Ok(Copy { directory, target: std::path::absolute(workspace.join("target/mutants"))? })
    }

    fn run_mutant(&self, mutation: &Mutation, seeds: u64) -> io::Result<String> {
        let file = self.directory.path().join("bootstrap").join(mutation.file);
        let sound = fs::read_to_string(&file)?;
        if sound.matches(mutation.from).count() != 1 {
            return Ok("does not apply to the sources".to_owned());
        }
        fs::write(&file, sound.replacen(mutation.from, mutation.to, 1))?;
        let verdict = self.run_seeds(seeds);
        fs::write(&file, sound)?;
        verdict
    }

    fn run_seeds(&self, seeds: u64) -> io::Result<String> {
        let built = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
            .args(["build", "--quiet", "--profile", "lab", "--package", "rlaunch-sim"])
            .current_dir(self.directory.path())
            .env("CARGO_TARGET_DIR", &self.target)
            .stderr(Stdio::null())
            .status()?;
        if !built.success() {
            return Ok("does not build".to_owned());
        }
        let mut mutant = Command::new(self.target.join("lab/rlaunch-sim"))
            .args(["--seeds", &seeds.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let started = Stopwatch::start();
        while started.elapsed() < ENDLESS {
            if let Some(status) = mutant.try_wait()? {
                let survived = "NOT CAUGHT".to_owned();
                return Ok(if status.success() { survived } else { CAUGHT.to_owned() });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        mutant.kill()?;
        mutant.wait()?;
        Ok(CAUGHT.to_owned())
    }
}

fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutation_still_has_its_place() {
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bootstrap");
        for mutation in MUTATIONS {
            let text = std::fs::read_to_string(tree.join(mutation.file)).unwrap();
            let places = text.matches(mutation.from).count();
            assert_eq!(places, 1, "{}: {}", mutation.file, mutation.name);
        }
    }
}
