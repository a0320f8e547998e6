//! Waiting until an agent sends its first message (the hello), or announces that it connects to the
//! launcher by TCP because nothing arrives on its stdin.

use super::deploy::{DeployError, HELLO_TIMEOUT, MAX_ANSWER};
use crate::connect::callback::{AgentCallback, Callbacks};
use crate::connect::channel::{AgentChannel, Incoming};
use crate::connect::connector::AgentLocation;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::job::NodeFacts;
use rlaunch_bootstrap::protocol::control::{
    self, FrameReader, FromAgent, HelloScanner, PROTOCOL_VERSION, ToAgent,
};
use rlaunch_bootstrap::security::callback::{Announcement, AnnouncementScanner};
use rlaunch_console::deadline;
use std::net::IpAddr;
use std::time::Duration;

/// Time limit for an agent that has announced a TCP connection: it must connect or report a failure.
const CALL_TIMEOUT: Duration = Duration::from_secs(8);

/// Running agent that has sent its hello.
pub struct StartedAgent {
    pub channel: AgentChannel,
    pub frames: FrameReader,
    pub facts: NodeFacts,
    /// Location of the agent's executable on the host.
    pub agent: AgentLocation,
    /// Number of bytes transferred to install the agent; `None` if the host had it already.
    pub sent: Option<usize>,
}

/// TCP listener to which the agent of `node` may connect.
pub(super) struct CallbackContext<'a> {
    pub(super) callbacks: &'a Callbacks,
    pub(super) node: NodeId,
    /// IP address of the host, if known.
    pub(super) from: Option<IpAddr>,
}

/// Waits for the hello of an agent on this machine.
pub(crate) async fn local_hello(
    channel: AgentChannel,
    agent: String,
) -> Result<StartedAgent, DeployError> {
    await_hello(channel, (AgentLocation::At(agent), None), None, HELLO_TIMEOUT).await
}

/// Waits at most `timeout` for an agent's hello. `agent` is its location, `sent` the number of bytes
/// transferred to install it. With a `callback`, the agent may connect by TCP instead.
pub(super) async fn await_hello(
    mut channel: AgentChannel,
    (agent, sent): (AgentLocation, Option<usize>),
    callback: Option<CallbackContext<'_>>,
    timeout: Duration,
) -> Result<StartedAgent, DeployError> {
    if callback.is_some() {
        // This frame shows the agent that its stdin works. A send error is ignored: either the channel
        // ends, or the shell passes on no stdin and the agent connects by TCP.
        let beat = control::encode(&ToAgent::Beat)?;
        let _ = channel.writer.send(beat.into()).await;
    }
    let mut output = HelloReader::default();
    let silent =
        |output: &HelloReader, waited| DeployError::Silent { words: output.text(), waited };
    let first = deadline::within(timeout, output.first_output(&mut channel)).await;
    let (channel, hello) = match first {
        None => return Err(silent(&output, timeout)),
        Some(first) => match (first?, callback) {
            (FirstOutput::Hello(hello), _) => (channel, hello),
            (FirstOutput::Announced(announcement), Some(callback)) => {
                let called =
                    callback.accept_callback(&mut channel, announcement, &mut output).await?;
                let mut channel = channel.over_callback(called);
                let hello = deadline::within(HELLO_TIMEOUT, callback_hello(&mut channel)).await;
                match hello.ok_or_else(|| silent(&output, HELLO_TIMEOUT))?? {
                    Some(hello) => (channel, hello),
                    None => return Err(DeployError::NoStart(output.text())),
                }
            }
            (FirstOutput::Announced(_) | FirstOutput::None, _) => {
                return Err(DeployError::NoStart(output.text()));
            }
        },
    };
    let Hello { frames, version, facts } = hello;
    if version != PROTOCOL_VERSION {
        return Err(DeployError::Version { theirs: version });
    }
    Ok(StartedAgent { channel, frames, facts, agent, sent })
}

struct Hello {
    frames: FrameReader,
    version: u16,
    facts: NodeFacts,
}

enum FirstOutput {
    Hello(Hello),
    Announced(Announcement),
    /// The channel ended before the agent sent either of these.
    None,
}

/// Output of the remote command that precedes the agent's frames, kept for error messages.
#[derive(Default)]
struct HelloReader {
    scanner: HelloScanner,
    announcements: AnnouncementScanner,
    diagnostics: Vec<u8>,
}

impl HelloReader {
    /// Reads until the agent's hello, its announcement of a TCP connection, or the end of the channel.
    async fn first_output(
        &mut self,
        channel: &mut AgentChannel,
    ) -> Result<FirstOutput, DeployError> {
        let mut frames = FrameReader::default();
        let mut hello_begun = false;
        while let Some(incoming) = channel.next().await {
            match incoming {
                Incoming::Data(bytes) if hello_begun => frames.push(&bytes),
                Incoming::Data(bytes) => {
                    if let Some(rest) = self.scanner.push(&bytes)? {
                        hello_begun = true;
                        frames.push(&rest);
                    } else if let Some(announced) = self.announcements.push(&bytes).pop() {
                        return Ok(FirstOutput::Announced(announced));
                    }
                }
                Incoming::Diagnostics(bytes) => self.diagnose(&bytes),
            }
            if let Some(FromAgent::Hello { version, facts }) = frames.next_frame()? {
                return Ok(FirstOutput::Hello(Hello { frames, version, facts }));
            }
        }
        Ok(FirstOutput::None)
    }

    /// Reads until an agent that announced a TCP connection reports why it cannot connect. `None` if the
    /// channel ends without such a report.
    async fn failure(&mut self, channel: &mut AgentChannel) -> Option<String> {
        while let Some(incoming) = channel.next().await {
            match incoming {
                Incoming::Data(bytes) => {
                    if let Some(Announcement::Failed(why)) = self.announcements.push(&bytes).pop() {
                        return Some(why);
                    }
                }
                Incoming::Diagnostics(bytes) => self.diagnose(&bytes),
            }
        }
        None
    }

    fn diagnose(&mut self, bytes: &[u8]) {
        let room = MAX_ANSWER.saturating_sub(self.diagnostics.len());
        self.diagnostics.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn text(&self) -> String {
        format!("{} {}", self.scanner.noise(), String::from_utf8_lossy(&self.diagnostics))
    }
}

impl CallbackContext<'_> {
    /// Waits for the TCP connection that an agent announced.
    async fn accept_callback(
        &self,
        channel: &mut AgentChannel,
        announcement: Announcement,
        output: &mut HelloReader,
    ) -> Result<AgentCallback, DeployError> {
        let key = match announcement {
            Announcement::Dialing { version: PROTOCOL_VERSION, key } => key,
            Announcement::Dialing { version, .. } => {
                return Err(DeployError::Version { theirs: version });
            }
            Announcement::Failed(tried) => return Err(self.no_callback(tried)),
        };
        let Some(mut expected) = self.callbacks.expect(self.node, key) else {
            return Err(DeployError::NoStart(output.text()));
        };
        let called = async {
            tokio::select! {
                Some(called) = expected.called() => Ok(called),
                why = output.failure(channel) => Err(why),
            }
        };
        match deadline::within(CALL_TIMEOUT, called).await {
            Some(Ok(called)) => Ok(called),
            Some(Err(Some(tried))) => Err(self.no_callback(tried)),
            // The agent ended before it connected.
            Some(Err(None)) => Err(DeployError::NoStart(output.text())),
            None => Err(DeployError::Silent { words: output.text(), waited: CALL_TIMEOUT }),
        }
    }

    fn no_callback(&self, tried: String) -> DeployError {
        DeployError::NoCallback { tried, from: self.from, ports: self.callbacks.ports() }
    }
}

/// Reads the hello from a callback connection; `None` if the connection ended first.
async fn callback_hello(channel: &mut AgentChannel) -> Result<Option<Hello>, DeployError> {
    let mut frames = FrameReader::default();
    while let Some(incoming) = channel.next().await {
        if let Incoming::Data(bytes) = incoming {
            frames.push(&bytes);
        }
        if let Some(FromAgent::Hello { version, facts }) = frames.next_frame()? {
            return Ok(Some(Hello { frames, version, facts }));
        }
    }
    Ok(None)
}
