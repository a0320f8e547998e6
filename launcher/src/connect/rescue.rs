//! Rescue of a node whose agent is lost: over a second channel of the same connection, what it
//! left is ended, and the agent itself if it hangs there.

use crate::connect::channel::{AgentChannel, Ending, Incoming};
use crate::connect::route::{CONTAINER_GONE, Program, RemoteCommand, Route};
use crate::console::deadline;
use rlaunch_bootstrap::id::JobId;
use rlaunch_bootstrap::reaped;
use std::time::Duration;
use tokio::process::Command;

/// How long a second channel may take to end what a lost agent left.
const REAP_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a host that fell silent may take to show that it is not the host which is lost.
const FIRST_WORD: Duration = Duration::from_millis(1500);
/// Time that an agent that hangs has beyond its ranks' grace.
const AGENT_SLACK: Duration = Duration::from_millis(300);

/// Outcome for a node whose agent was lost.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reaped {
    /// Whatever was found of the job there was ended, as the host's own words say.
    Clean(String),
    /// These processes could not be ended.
    Left(String),
    /// The host answered, and not with either.
    Unclear(String),
    /// The host did not answer.
    Unreachable,
}

/// A node whose agent is lost.
pub(crate) struct Rescue<'a> {
    /// `None` where it is this machine.
    pub(crate) route: Option<&'a Route>,
    /// The agent's path there.
    pub(crate) agent: &'a Program,
    pub(crate) job: JobId,
    /// The agent's process and its ranks' grace, where it has fallen silent and its channel stands.
    pub(crate) silent: Option<(u32, Duration)>,
}

impl Rescue<'_> {
    /// Ends what there is, as far as the host can be reached.
    pub(crate) async fn attempt(&self) -> Reaped {
        if self.route.is_some_and(|route| !route.is_open()) {
            return Reaped::Unreachable;
        }
        let grace = self.silent.map_or(Duration::ZERO, |(_, grace)| grace + AGENT_SLACK);
        let mut words = String::new();
        let _ = deadline::within(REAP_TIMEOUT + grace, self.listen(grace, &mut words)).await;
        judge(&words)
    }

    /// Collects what is said there.
    async fn listen(&self, grace: Duration, words: &mut String) -> Option<()> {
        let reap = match self.silent {
            Some((pid, _)) => format!("reap {} {pid} {}", self.job, grace.as_millis()),
            None => format!("reap {}", self.job),
        };
        let opening = self.open(&reap);
        let mut channel = match self.silent {
            Some(_) => deadline::within(FIRST_WORD, opening).await??,
            None => opening.await?,
        };
        // An engine says nothing before a container is gone.
        let says_at_once = self.route.is_none_or(|route| !route.starts_containers());
        let mut heard = match self.silent {
            Some(_) if says_at_once => {
                deadline::within(FIRST_WORD, next_words(&mut channel)).await?
            }
            _ => next_words(&mut channel).await,
        };
        while let Some(more) = heard {
            words.push_str(&more);
            heard = next_words(&mut channel).await;
        }
        Some(())
    }

    async fn open(&self, reap: &str) -> Option<AgentChannel> {
        match self.route {
            Some(route) => route.clean_up(&RemoteCommand::Become(self.agent, reap)).await.ok(),
            None => {
                let Program::At(agent) = self.agent else { return None };
                let mut command = Command::new(agent);
                command.args(reap.split(' '));
                AgentChannel::over_child(command, Ending::default()).ok()
            }
        }
    }
}

async fn next_words(channel: &mut AgentChannel) -> Option<String> {
    loop {
        if let Incoming::Data(bytes) = channel.next().await? {
            return Some(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}

/// Only the last line counts, and only if it is one that says what was done.
fn judge(words: &str) -> Reaped {
    let Some(last) = words.lines().last() else { return Reaped::Unreachable };
    match last.parse() {
        Ok(clean @ reaped::Reaped::Clean { .. }) => Reaped::Clean(clean.to_string()),
        Ok(reaped::Reaped::Left(processes)) => Reaped::Left(processes),
        Err(_) if last == CONTAINER_GONE => Reaped::Clean(last.to_owned()),
        Err(_) => Reaped::Unclear(last.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_words_say_that_nothing_is_left() {
        let clean = Reaped::Clean("2 ended, 1 segments removed".to_owned());
        assert_eq!(judge("Welcome!\nlooking\n2 ended, 1 segments removed\n"), clean);
        assert_eq!(judge("left: 7 x (state D)\n"), Reaped::Left("7 x (state D)".to_owned()));
        assert_eq!(judge("its container is gone\n"), Reaped::Clean(CONTAINER_GONE.to_owned()));
        for unclear in ["looking", "sh: 1: rlaunch-worker: not found", "This account is closed."] {
            assert_eq!(judge(unclear), Reaped::Unclear(unclear.to_owned()));
        }
        assert_eq!(judge(""), Reaped::Unreachable);
    }
}
