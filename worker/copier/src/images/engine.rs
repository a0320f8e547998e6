//! Container engines, by their commands.

use rlaunch_copy::control::{EngineImages, ImageInfo};
use rlaunch_copy::hash;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Engines whose words are those of docker, in the order in which a host is asked for them.
const NAMES: [&str; 3] = ["docker", "podman", "nerdctl"];
/// Time in which an engine has to answer a question.
const ANSWER: Duration = Duration::from_secs(30);
/// Time between two looks at a command that has not ended.
const LOOK: Duration = Duration::from_millis(10);
/// Number of images that one command describes.
const AT_ONCE: usize = 200;
/// How a driver of docker is called that keeps layers as they were packed, and finds none by its content.
const PACKED: &str = "io.containerd.";
/// What is compared of an image's configuration: what both docker and podman tell.
const COMPARED: [&str; 9] = [
    "Cmd", "Entrypoint", "Env", "ExposedPorts", "Labels", "StopSignal", "User", "Volumes",
    "WorkingDir",
];
/// Longest text of an engine's refusal, in bytes.
const LONGEST: usize = 4096;

/// Container engine that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
    name: String,
}

/// Refusal of an engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("no container engine is there: {}", NAMES.join(", "))]
    None,
    #[error("{command} is not installed")]
    Missing { command: String },
    #[error("cannot start {command}: {cause}")]
    Start { command: String, cause: io::Error },
    #[error("{command} did not answer within {} s", ANSWER.as_secs())]
    Silent { command: String },
    #[error("{command}: {text}")]
    Refused { command: String, text: String },
    #[error("{command} said what is not understood: {cause}")]
    Answer { command: String, cause: serde_json::Error },
    #[error("cannot {operation} {}: {cause}", path.display())]
    Io { operation: &'static str, path: std::path::PathBuf, cause: io::Error },
    #[error("{} has room for {free} bytes, but the image has {needed}", path.display())]
    NoSpace { path: std::path::PathBuf, needed: u64, free: u64 },
    #[error("what {engine} saved has no {what}")]
    Lacking { engine: String, what: String },
}

impl EngineError {
    /// Returns what helps.
    pub fn hint(&self) -> Option<String> {
        match self {
            EngineError::NoSpace { path, .. } => Some(format!("df -h {}", path.display())),
            EngineError::Silent { command } => {
                let engine = command.split(' ').next().unwrap_or_default();
                Some(format!("{engine} info"))
            }
            _ => None,
        }
    }
}

/// Returns the engine of this name, or all in the order in which they are preferred, installed or not.
pub fn engines(named: Option<&str>) -> Vec<Engine> {
    let all = NAMES.map(str::to_owned).to_vec();
    let names = named.map_or(all, |name| vec![name.to_owned()]);
    names.into_iter().map(|name| Engine { name }).collect()
}

impl Engine {
    /// Returns the engine of this name.
    pub fn named(name: &str) -> Engine {
        Engine { name: name.to_owned() }
    }

    /// Returns the first engine that answers: the named one, if one is.
    pub fn find(named: Option<&str>) -> Result<Engine, EngineError> {
        let mut first = None;
        for engine in engines(named) {
            match engine.ids() {
                Ok(_) => return Ok(engine),
                Err(EngineError::Missing { .. }) if named.is_none() => {}
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or(EngineError::None))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what the engine has.
    pub fn images(&self) -> Result<EngineImages, EngineError> {
        let mut ids = self.ids()?;
        // An image has a line for each of its names.
        ids.sort_unstable();
        ids.dedup();
        let mut images = Vec::new();
        for ids in ids.chunks(AT_ONCE) {
            let words = ["image", "inspect"].into_iter().chain(ids.iter().map(String::as_str));
            images.extend(self.inspected(words)?);
        }
        let takes_parts = self.takes_parts()?;
        Ok(EngineImages { name: self.name.clone(), takes_parts, images })
    }

    fn ids(&self) -> Result<Vec<String>, EngineError> {
        let said = self.ask(["image", "ls", "-q", "--no-trunc"])?;
        Ok(String::from_utf8_lossy(&said).split_whitespace().map(str::to_owned).collect())
    }

    fn inspected<'a>(
        &self,
        words: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<ImageInfo>, EngineError> {
        let said = self.ask(words)?;
        let inspected = serde_json::from_slice::<Vec<Inspected>>(&said);
        let inspected = inspected.map_err(|cause| EngineError::Answer {
            command: self.command("image inspect"),
            cause,
        })?;
        Ok(inspected.into_iter().map(ImageInfo::from).collect())
    }

    /// Tells whether an image can be loaded without the layers that the engine has.
    fn takes_parts(&self) -> Result<bool, EngineError> {
        if self.name != NAMES[0] {
            return Ok(false);
        }
        let status = self.ask(["info", "--format", "{{json .DriverStatus}}"])?;
        Ok(!String::from_utf8_lossy(&status).contains(PACKED))
    }

    /// Starts a command of the engine that passes an image. Its stderr can be read until its end.
    pub(super) fn start(
        &self,
        words: &[&str],
        stdin: Stdio,
        stdout: Stdio,
    ) -> Result<Child, EngineError> {
        let mut command = Command::new(&self.name);
        command.args(words).stdin(stdin).stdout(stdout).stderr(Stdio::piped());
        command.spawn().map_err(|cause| self.no_start(words, cause))
    }

    /// Makes the error of a command that has failed, of what it wrote to stderr.
    pub(super) fn refused(&self, words: &[&str], said: &[u8], status: ExitStatus) -> EngineError {
        let text = String::from_utf8_lossy(&said[..said.len().min(LONGEST)]);
        let text = text.trim();
        let text = if text.is_empty() { status.to_string() } else { text.to_owned() };
        EngineError::Refused { command: self.command(&words.join(" ")), text }
    }

    fn command(&self, words: &str) -> String {
        format!("{} {words}", self.name)
    }

    fn no_start(&self, words: &[&str], cause: io::Error) -> EngineError {
        if cause.kind() == io::ErrorKind::NotFound {
            return EngineError::Missing { command: self.name.clone() };
        }
        EngineError::Start { command: self.command(&words.join(" ")), cause }
    }

    /// Returns what a command prints, which has [`ANSWER`] for it.
    fn ask<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Result<Vec<u8>, EngineError> {
        let words: Vec<&str> = words.into_iter().collect();
        let mut child = self.start(&words, Stdio::null(), Stdio::piped())?;
        let (out, err) = (collect(child.stdout.take()), collect(child.stderr.take()));
        let since = Instant::now();
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if since.elapsed() < ANSWER => thread::sleep(LOOK),
                Ok(None) => {
                    // Its pipes stay open if it cannot be killed.
                    let _ = child.kill();
                    let shown = words.get(..2).unwrap_or(&words).join(" ");
                    return Err(EngineError::Silent { command: self.command(&shown) });
                }
                Err(cause) => return Err(self.no_start(&words, cause)),
            }
        };
        let end = |reader: thread::JoinHandle<Vec<u8>>| reader.join().unwrap_or_default();
        let (out, err) = (end(out), end(err));
        if status.success() {
            return Ok(out);
        }
        // Not a thousand ids.
        Err(self.refused(words.get(..2).unwrap_or(&words), &err, status))
    }
}

/// Reads a pipe to its end.
pub(super) fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut said = Vec::new();
        // What came before an error is what there is.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut said));
        said
    })
}

/// Part of what `image inspect` says, in docker and in podman.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    repo_digests: Option<Vec<String>>,
    #[serde(default)]
    created: Option<String>,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    config: Option<BTreeMap<String, Value>>,
    #[serde(default)]
    size: u64,
    #[serde(default, rename = "RootFS")]
    root: Root,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Root {
    #[serde(default)]
    layers: Option<Vec<String>>,
}

/// Returns a digest of an image's configuration, which does not depend on whether an engine leaves out what is empty.
fn digest_of(config: &BTreeMap<String, Value>) -> String {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    let compared =
        |(name, value): &(&String, &Value)| COMPARED.contains(&name.as_str()) && !is_empty(value);
    let text: String =
        config.iter().filter(compared).map(|(name, value)| format!("{name}={value}\n")).collect();
    hash(text.as_bytes()).to_string()
}

impl From<Inspected> for ImageInfo {
    fn from(from: Inspected) -> ImageInfo {
        let id = from.id.strip_prefix("sha256:").unwrap_or(&from.id).to_owned();
        // An image of several names has its digest in each.
        let digests = from.repo_digests.unwrap_or_default().into_iter();
        let digest = |of: String| of.rsplit_once('@').map(|(_, digest)| digest.to_owned());
        let mut digests: Vec<String> = digests.filter_map(digest).collect();
        digests.sort_unstable();
        digests.dedup();
        ImageInfo {
            names: from.repo_tags.unwrap_or_default(),
            id,
            digests,
            layers: from.root.layers.unwrap_or_default(),
            created: from.created.unwrap_or_default(),
            architecture: from.architecture,
            config: digest_of(&from.config.unwrap_or_default()),
            size: from.size,
        }
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
