//! Waiting until an agent sends its first message (the hello), or announces that it connects to the
//! launcher by TCP because nothing arrives on its stdin.

use super::callback::Callbacks;
use super::install::InstalledAgent;
use super::{DeployError, MAX_ANSWER};
use crate::connect::channel::{Abandoned, AgentCallback, AgentChannel, Incoming};
use crate::connect::connector::{AgentLocation, HELLO_TIMEOUT, SAYS, StartedContainer};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::job::NodeFacts;
use rlaunch_bootstrap::protocol::control::{
    self, FrameReader, FromAgent, HELLO_MAGIC, HelloScanner, PROTOCOL_VERSION, ToAgent,
};
use rlaunch_bootstrap::security::callback::{Announcement, AnnouncementScanner};
use rlaunch_console::deadline::{self, Deadline, Late};
use std::net::IpAddr;
use std::time::Duration;

/// Time limit for an agent that has announced a TCP connection: it must connect or report a failure.
const CALL_TIMEOUT: Duration = Duration::from_secs(8);
/// Time limit for the last line of a script that has started a container, once its agent has come. A shell whose stderr leads
/// elsewhere never prints it.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(1);
/// Name in errors of the thing that is waited for.
const HELLO: &str = "hello from the agent";

/// Running agent that has sent its hello.
pub struct StartedAgent {
    pub channel: AgentChannel,
    pub frames: FrameReader,
    pub facts: NodeFacts,
    /// Location of the agent's executable on the host.
    pub agent: AgentLocation,
    /// Number of bytes transferred to install the agent; `None` if the host had it already.
    pub sent: Option<usize>,
    /// Lines of the script that has started a container for the agent.
    pub(super) said: Vec<String>,
    /// That container.
    pub(crate) container: Option<StartedContainer>,
}

impl StartedAgent {
    /// Makes an agent for which no container was started.
    pub(crate) fn new(
        channel: AgentChannel,
        frames: FrameReader,
        facts: NodeFacts,
        agent: AgentLocation,
    ) -> StartedAgent {
        StartedAgent {
            channel,
            frames,
            facts,
            agent,
            sent: None,
            said: Vec::new(),
            container: None,
        }
    }
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
    let agent = InstalledAgent { program: AgentLocation::At(agent), sent: None };
    await_hello(channel, agent, None, HELLO_TIMEOUT, false).await
}

/// Waits at most `timeout` for the hello of `agent`. With a `callback`, the agent may connect by TCP instead. If a script
/// `starts_container`, what it says of that is heard as well.
pub(super) async fn await_hello(
    mut channel: AgentChannel,
    agent: InstalledAgent,
    callback: Option<CallbackContext<'_>>,
    timeout: Duration,
    starts_container: bool,
) -> Result<StartedAgent, DeployError> {
    let mut output = HelloReader::default();
    let first = async {
        if callback.is_some() {
            // This frame shows the agent that its stdin works. A send error is ignored: either the channel
            // ends, or the shell passes on no stdin and the agent connects by TCP. A server takes nothing
            // until it has started the command, so even these few bytes may wait for ever.
            let beat = control::encode(&ToAgent::Beat)?;
            let _ = channel.writer.send(beat.into()).await;
        }
        output.first_output(&mut channel).await
    };
    let first = Deadline::after(timeout).wait(HELLO, first).await;
    let first = match first.map_err(|late| output.silent(late)).flatten() {
        Ok(first) => first,
        Err(error) => return Err(error.with_shell(channel.abandon().await)),
    };
    let (mut channel, hello) = match (first, callback) {
        (FirstOutput::Hello(hello), _) => (channel, hello),
        (FirstOutput::Announced(announcement), Some(callback)) => {
            callback.hello_by_tcp(channel, announcement, &mut output).await?
        }
        (FirstOutput::Announced(_) | FirstOutput::None, _) => {
            return Err(DeployError::NoStart(output.text()));
        }
    };
    let Hello { mut frames, version, facts } = hello;
    if version != PROTOCOL_VERSION {
        channel.abandon().await;
        return Err(DeployError::Version { theirs: version });
    }
    if starts_container {
        let script = output.hear_script(&mut channel, &mut frames);
        deadline::within(SCRIPT_TIMEOUT, script).await;
    }
    let InstalledAgent { program, sent } = agent;
    let started = StartedAgent::new(channel, frames, facts, program);
    Ok(StartedAgent { sent, said: output.said(), ..started })
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
                Incoming::Diagnostics(bytes) => {
                    self.diagnose(&bytes);
                    self.check_stderr()?;
                }
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

    /// Refuses a shell by which the agent's hello has come on stderr.
    fn check_stderr(&self) -> Result<(), DeployError> {
        let has_hello = self.diagnostics.windows(HELLO_MAGIC.len()).any(|w| w == HELLO_MAGIC);
        if has_hello { Err(DeployError::Misdirected) } else { Ok(()) }
    }

    /// Reads up to the last line of the script that has started a container. It comes on stderr, and so may come behind what
    /// the container prints later on stdout.
    async fn hear_script(&mut self, channel: &mut AgentChannel, frames: &mut FrameReader) {
        while !self.said().iter().any(|line| line.starts_with("run ")) {
            match channel.next().await {
                Some(Incoming::Data(bytes)) => frames.push(&bytes),
                Some(Incoming::Diagnostics(bytes)) => self.diagnose(&bytes),
                None => break,
            }
        }
    }

    /// Returns the lines by which a script has told how it starts a container.
    fn said(&self) -> Vec<String> {
        let whole =
            self.diagnostics.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let text = String::from_utf8_lossy(&self.diagnostics[..whole]);
        text.lines()
            .filter_map(|line| Some(line.strip_prefix(SAYS)?.trim_end().to_owned()))
            .collect()
    }

    fn silent(&self, late: Late) -> DeployError {
        DeployError::Silent { words: self.text(), late, shell: Abandoned::Ended }
    }

    fn text(&self) -> String {
        format!("{} {}", self.scanner.noise(), String::from_utf8_lossy(&self.diagnostics))
    }
}

impl CallbackContext<'_> {
    /// Waits for the TCP connection that an agent announced, and for its hello there.
    async fn hello_by_tcp(
        &self,
        mut channel: AgentChannel,
        announcement: Announcement,
        output: &mut HelloReader,
    ) -> Result<(AgentChannel, Hello), DeployError> {
        let called = self.accept_callback(&mut channel, announcement, output).await?;
        let mut channel = channel.over_callback(called);
        let hello = callback_hello(&mut channel);
        let hello = Deadline::after(HELLO_TIMEOUT).wait(HELLO, hello).await;
        match hello.map_err(|late| output.silent(late)).flatten() {
            Ok(Some(hello)) => Ok((channel, hello)),
            Ok(None) => Err(DeployError::NoStart(output.text())),
            Err(error) => Err(error.with_shell(channel.abandon().await)),
        }
    }

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
        match Deadline::after(CALL_TIMEOUT).wait(HELLO, called).await {
            Ok(Ok(called)) => Ok(called),
            Ok(Err(Some(tried))) => Err(self.no_callback(tried)),
            // The agent ended before it connected.
            Ok(Err(None)) => Err(DeployError::NoStart(output.text())),
            Err(late) => Err(output.silent(late).with_shell(channel.abandon().await)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::fault_peer::{Fault, Step, channel_to_peer, length};
    use rlaunch_bootstrap::job::PortRange;
    use rlaunch_plan::hosts::addresses::AddressConstraints;
    use rlaunch_plan::testing;
    use tokio::time::Instant;

    /// Time in which any wait of rlaunch must have ended.
    const FOREVER: Duration = Duration::from_secs(3600);

    /// Exchange from the start of the agent up to its hello.
    fn exchange() -> Vec<Step> {
        let beat = control::encode(&ToAgent::Beat).unwrap();
        let facts = testing::facts();
        let hello = FromAgent::Hello { version: PROTOCOL_VERSION, facts };
        let mut said = b"Welcome!\n".to_vec();
        said.extend_from_slice(HELLO_MAGIC);
        said.extend(control::encode(&hello).unwrap());
        vec![Step::Hears(beat.len()), Step::Says(said)]
    }

    /// Waits for the hello of a peer that has a fault after some bytes. Returns the result and the time that it took.
    async fn hello_after(
        bytes: usize,
        fault: Fault,
    ) -> (Result<StartedAgent, DeployError>, Duration) {
        let callbacks =
            Callbacks::new(AddressConstraints::default(), PortRange { first: 21000, last: 21511 });
        let callback = CallbackContext { callbacks: &callbacks, node: NodeId(0), from: None };
        let channel = channel_to_peer(&exchange(), bytes, fault);
        let program = AgentLocation::At("/agent".to_owned());
        let agent = InstalledAgent { program, sent: None };
        let started = Instant::now();
        let hello = await_hello(channel, agent, Some(callback), HELLO_TIMEOUT, false);
        let hello = tokio::time::timeout(FOREVER, hello).await;
        (
            hello.unwrap_or_else(|_| panic!("{fault:?} after {bytes} bytes: no end")),
            started.elapsed(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn an_exchange_that_stalls_at_any_byte_ends_in_time_and_says_so() {
        let all = length(&exchange());
        for bytes in 0..all {
            let (hello, took) = hello_after(bytes, Fault::Stalls).await;
            let error = hello.err().unwrap().to_string();
            assert!(error.starts_with("no hello from the agent within 8 s"), "{bytes}: {error}");
            assert!(took <= HELLO_TIMEOUT + Duration::from_millis(10), "{bytes}: {took:?}");
        }
        assert!(hello_after(all, Fault::Stalls).await.0.is_ok());
    }

    #[tokio::test]
    async fn what_a_script_says_on_stderr_may_come_behind_the_hello() {
        let Some(Step::Says(hello)) = exchange().pop() else { panic!("no hello") };
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), hello).unwrap();
        let script =
            format!("cat \"$0\"; sleep 0.1; echo {SAYS}limits >&2; echo {SAYS}run x >&2; cat");
        let mut shell = tokio::process::Command::new("sh");
        shell.args(["-c", &script]).arg(file.path());
        let channel = AgentChannel::over_child(shell, None).unwrap();
        let program = AgentLocation::At("/agent".to_owned());
        let agent = InstalledAgent { program, sent: None };
        let started = await_hello(channel, agent, None, HELLO_TIMEOUT, true).await.unwrap();
        assert_eq!(started.said, ["limits", "run x"]);
    }

    #[test]
    fn a_hello_on_stderr_is_one_that_went_astray() {
        let mut output = HelloReader::default();
        output.diagnose(b"Welcome!\n");
        assert!(output.check_stderr().is_ok());
        let (begin, end) = HELLO_MAGIC.split_at(3);
        output.diagnose(begin);
        output.diagnose(end);
        assert!(matches!(output.check_stderr(), Err(DeployError::Misdirected)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_exchange_that_is_cut_at_any_byte_ends_at_once() {
        for bytes in 0..length(&exchange()) {
            let (hello, took) = hello_after(bytes, Fault::Closes).await;
            assert!(matches!(hello, Err(DeployError::NoStart(_))), "{bytes}");
            assert_eq!(took, Duration::ZERO, "{bytes}");
        }
    }
}
