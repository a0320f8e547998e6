//! Starting the agent on a host, and taking it there first when it is not there yet.
//!
//! A warm start is one command that names the agent by its hash and executes it. When nothing
//! speaks, the agent is taken to the host by [`INSTALL`] and started again.

use super::store::{AGENT, AgentFile, Store, StoreError};
use crate::channel::{AgentChannel, Incoming, Reader};
use crate::route::{self, RemoteCommand, Route, RouteError};
use rlaunch_bootstrap::job::NodeFacts;
use rlaunch_bootstrap::wire::{FrameReader, FromAgent, HelloScanner, PROTOCOL_VERSION, WireError};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;

const INSTALL: &str = include_str!("install.sh");
/// How long an agent may take to speak once its command was accepted.
const HELLO_TIMEOUT: Duration = Duration::from_secs(8);
/// How long the agent may take to travel.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a shell that is sent nothing may take to end.
const FAREWELL: Duration = Duration::from_secs(1);
/// The installer says little; a shell that says more is not running it.
const MAX_ANSWER: usize = 64 << 10;

/// Why no agent runs on a host.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeliverError {
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the connection broke while the agent was sent")]
    Broken(#[source] io::Error),
    #[error("the host runs {system}, and the agent needs Linux")]
    System { system: String },
    #[error("cannot keep the agent there: {cause}")]
    Install { cause: String },
    #[error("the agent is there and does not speak within {} s{}", HELLO_TIMEOUT.as_secs(), said(.0))]
    Silent(String),
    #[error("the agent is there and does not start{}", said(.0))]
    NoStart(String),
    #[error("its shell runs no commands{}", said(.0))]
    Shell(String),
    #[error("the agent speaks another protocol: version {theirs}, this is {PROTOCOL_VERSION}")]
    Version { theirs: u16 },
    #[error("the agent's first words are not understood")]
    Wire(#[from] WireError),
}

fn said(words: &str) -> String {
    let words = route::last_words(words);
    if words.is_empty() { String::new() } else { format!("; what came back: {words}") }
}

impl DeliverError {
    /// What came back in place of an agent's words, when something may have.
    pub(crate) fn said(&self) -> Option<&str> {
        match self {
            DeliverError::Silent(words)
            | DeliverError::NoStart(words)
            | DeliverError::Shell(words) => Some(words),
            _ => None,
        }
    }

    /// What the user can do.
    pub(crate) fn hint(&self, host: &str) -> Option<String> {
        match self {
            DeliverError::Route(error) => error.hint(host),
            DeliverError::Store(error) => error.hint(),
            DeliverError::Install { .. } => Some(
                "--agent-dir DIR names another directory on the hosts, one that can be written \
                 and executed from"
                    .into(),
            ),
            DeliverError::NoStart(words) if words.contains("GLIBC") => {
                Some("build the agent with `cargo agent`: it needs no libc on the host".into())
            }
            DeliverError::Silent(_) | DeliverError::NoStart(_) | DeliverError::Shell(_) => {
                Some(format!("`ssh {host} echo hello` should print just that"))
            }
            DeliverError::Version { .. } => Some("--agent names an agent of another build".into()),
            DeliverError::System { .. } | DeliverError::Wire(_) | DeliverError::Broken(_) => None,
        }
    }
}

/// What all hosts' deliveries share.
pub(crate) struct Delivery {
    store: Store,
    native: Arc<AgentFile>,
    /// The cache on the hosts, as a shell there reads it.
    directory: String,
    /// The first host that lacks the agent gets it before the others ask again: hosts that share a
    /// home then find it there.
    first: OnceCell<()>,
}

/// A host whose agent has spoken.
pub(crate) struct Greeted {
    pub(crate) channel: AgentChannel,
    pub(crate) frames: FrameReader,
    pub(crate) facts: NodeFacts,
    /// The agent's path, as a shell on the host reads it.
    pub(crate) agent: String,
    /// Bytes that travelled when the agent had to be sent.
    pub(crate) sent: Option<usize>,
}

impl Delivery {
    /// `directory` must be safe in a shell: see [`check_directory`].
    pub(crate) fn new(store: Store, directory: Option<String>) -> Result<Delivery, StoreError> {
        let native = store.native()?;
        let directory = directory.unwrap_or_else(|| "~/.cache/rlaunch".to_owned());
        Ok(Delivery { store, native, directory, first: OnceCell::new() })
    }

    /// The agent for this machine itself.
    pub(crate) fn native(&self) -> &AgentFile {
        &self.native
    }

    /// Starts the agent on a host that was reached, sending it first if need be.
    pub(crate) async fn start(&self, route: &Route) -> Result<Greeted, DeliverError> {
        match self.execute(route, &self.native, None).await {
            Err(DeliverError::NoStart(_)) => {}
            started => return started,
        }
        let mut mine = None;
        self.first.get_or_init(async || mine = Some(self.install(route).await)).await;
        let (file, sent) = match mine {
            Some(installed) => installed?,
            None => self.install(route).await?,
        };
        self.execute(route, &file, sent).await
    }

    /// Makes sure that the agent is on a host, and returns its path as a shell there reads it.
    pub(crate) async fn place(&self, route: &Route) -> Result<String, DeliverError> {
        let (file, _) = self.install(route).await?;
        Ok(self.path_of(&file))
    }

    fn path_of(&self, file: &AgentFile) -> String {
        format!("{}/{}/{AGENT}", self.directory, file.hash)
    }

    /// One command that names the agent and becomes it.
    async fn execute(
        &self,
        route: &Route,
        file: &AgentFile,
        sent: Option<usize>,
    ) -> Result<Greeted, DeliverError> {
        let agent = self.path_of(file);
        let channel = route.exec(&RemoteCommand::Become(&agent, "agent")).await?;
        greet(channel, agent, sent).await
    }

    /// Takes the right agent to the host, unless it is there by now.
    async fn install(
        &self,
        route: &Route,
    ) -> Result<(Arc<AgentFile>, Option<usize>), DeliverError> {
        let installing = self.install_over(route);
        let late = |_| DeliverError::Install {
            cause: format!("not done within {} s", INSTALL_TIMEOUT.as_secs()),
        };
        tokio::time::timeout(INSTALL_TIMEOUT, installing).await.map_err(late)?
    }

    async fn install_over(
        &self,
        route: &Route,
    ) -> Result<(Arc<AgentFile>, Option<usize>), DeliverError> {
        let (script, words) = (one_line(INSTALL), [self.directory.as_str()]);
        let channel = route.exec(&RemoteCommand::Script(&script, &words)).await?;
        let AgentChannel { reader, mut writer } = channel;
        let mut answers = Answers { reader, text: String::new(), noise: String::new() };
        let file = match self.file_for(answers.next().await?) {
            Ok(file) => file,
            Err(error) => {
                // Its shell ends with its input, and is gone before rlaunch is.
                let ends =
                    async { while writer.end().await.is_ok() && answers.next().await.is_ok() {} };
                let _ = tokio::time::timeout(FAREWELL, ends).await;
                return Err(error);
            }
        };
        let size = file.size;
        let lost = |error: io::Error| DeliverError::Broken(error);
        writer.send(format!("{} {size}\n", file.hash).into()).await.map_err(lost)?;
        let mut sent = None;
        let mut answer = answers.next().await?;
        loop {
            match answer.split_once(' ').unwrap_or((&answer, "")) {
                ("present" | "installed", _) => return Ok((file, sent)),
                ("want", how) => {
                    let payload = file.payload(how == "gzip")?;
                    sent = Some(payload.len());
                    let sending = async {
                        writer.send(payload).await?;
                        writer.end().await
                    };
                    // A host that gives up, its disk being full, takes no more of it.
                    answer = tokio::select! {
                        early = answers.next() => early?,
                        _ = sending => answers.next().await?,
                    };
                }
                ("failed", cause) => {
                    return Err(DeliverError::Install { cause: cause.to_owned() });
                }
                _ => return Err(DeliverError::Shell(answer)),
            }
        }
    }
}

impl Delivery {
    /// The agent for a host that introduced itself as `host SYSTEM MACHINE`.
    fn file_for(&self, answer: String) -> Result<Arc<AgentFile>, DeliverError> {
        match answer.split_ascii_whitespace().collect::<Vec<_>>()[..] {
            ["host", "Linux", arch] => Ok(self.store.for_arch(arch)?),
            ["host", system, ..] => Err(DeliverError::System { system: system.to_owned() }),
            _ => Err(DeliverError::Shell(answer)),
        }
    }
}

/// Waits for the agent's first words.
pub(crate) async fn greet(
    mut channel: AgentChannel,
    agent: String,
    sent: Option<usize>,
) -> Result<Greeted, DeliverError> {
    let mut scanner = HelloScanner::default();
    let mut diagnostics = Vec::new();
    let hello = first_frame(&mut channel, &mut scanner, &mut diagnostics);
    let hello = tokio::time::timeout(HELLO_TIMEOUT, hello).await;
    let words = || format!("{} {}", scanner.noise(), String::from_utf8_lossy(&diagnostics));
    let (frames, version, facts) = match hello {
        Err(_) => return Err(DeliverError::Silent(words())),
        Ok(Ok(None)) => return Err(DeliverError::NoStart(words())),
        Ok(found) => match found? {
            Some(hello) => hello,
            None => return Err(DeliverError::NoStart(words())),
        },
    };
    if version != PROTOCOL_VERSION {
        return Err(DeliverError::Version { theirs: version });
    }
    Ok(Greeted { channel, frames, facts, agent, sent })
}

/// The hello; `None` when the channel ends without one.
async fn first_frame(
    channel: &mut AgentChannel,
    scanner: &mut HelloScanner,
    diagnostics: &mut Vec<u8>,
) -> Result<Option<(FrameReader, u16, NodeFacts)>, DeliverError> {
    let mut frames = FrameReader::default();
    let mut speaking = false;
    while let Some(incoming) = channel.next().await {
        match incoming {
            Incoming::Data(bytes) if speaking => frames.push(&bytes),
            Incoming::Data(bytes) => {
                if let Some(rest) = scanner.push(&bytes)? {
                    speaking = true;
                    frames.push(&rest);
                }
            }
            Incoming::Diagnostics(bytes) => {
                let room = MAX_ANSWER.saturating_sub(diagnostics.len());
                diagnostics.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
        }
        if let Some(FromAgent::Hello { version, facts }) = frames.next_frame()? {
            return Ok(Some((frames, version, facts)));
        }
    }
    Ok(None)
}

/// The installer's lines, without whatever else the shell prints.
struct Answers {
    reader: Reader,
    text: String,
    /// Lines that were none of the installer's: they say why, when it does not answer.
    noise: String,
}

impl Answers {
    /// The next answer. Safe to cancel.
    async fn next(&mut self) -> Result<String, DeliverError> {
        const MARK: &str = "rlaunch-install ";
        loop {
            while let Some((line, rest)) = self.text.split_once('\n') {
                let answer = line.trim_end().split_once(MARK).map(|(_, answer)| answer.to_owned());
                let line_was_noise = answer.is_none();
                let rest = rest.to_owned();
                if line_was_noise {
                    tracing::debug!("before the installer: {line}");
                    self.noise.push_str(line);
                    self.noise.push('\n');
                    if self.noise.len() > 2 * MAX_ANSWER {
                        self.noise.drain(..self.noise.ceil_char_boundary(MAX_ANSWER));
                    }
                }
                self.text = rest;
                if let Some(answer) = answer {
                    return Ok(answer);
                }
            }
            match self.reader.next().await {
                Some(Incoming::Data(bytes) | Incoming::Diagnostics(bytes))
                    if self.text.len() < MAX_ANSWER =>
                {
                    self.text.push_str(&String::from_utf8_lossy(&bytes));
                }
                _ => {
                    let words = std::mem::take(&mut self.noise) + &std::mem::take(&mut self.text);
                    return Err(DeliverError::Shell(words));
                }
            }
        }
    }
}

/// The script without its comments, as one line.
fn one_line(script: &str) -> String {
    let commands = script.lines().filter(|line| !line.starts_with('#'));
    commands.collect::<Vec<_>>().join(" ")
}

/// `--agent-dir` stands in commands that many kinds of shell read, so it may hold only what none
/// of them changes.
pub(crate) fn check_directory(directory: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@=,".contains(c);
    let path = directory.strip_prefix('~').unwrap_or(directory);
    if path.starts_with('/') && path.chars().all(plain) {
        return Ok(());
    }
    Err(format!(
        "--agent-dir {directory}: an absolute path, or one that starts with ~/, of letters, digits \
         and /._-+@=,"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installer_passes_through_any_shell() {
        let script = one_line(INSTALL);
        assert!(!script.contains(['\'', '\\', '!', '\n']), "{script}");
        assert!(script.len() < 3000, "{}", script.len());
        for line in INSTALL.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.ends_with(';'), "{line}");
        }
    }

    #[test]
    fn agent_directories_cannot_carry_commands() {
        assert!(check_directory("/tmp/agents").is_ok());
        assert!(check_directory("~/agents").is_ok());
        for bad in ["", "agents", "/tmp/a b", "/tmp/$(id)", "/tmp/a;b", "~root/x", "/tmp/a'b"] {
            assert!(check_directory(bad).is_err(), "{bad}");
        }
    }
}
