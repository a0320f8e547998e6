//! Changes to hosts that can be undone: agents that make them as root, and undo them.
//!
//! What is changed stands in a journal on the host first (`rlaunch_bootstrap::protocol::changes`). A change on trial is undone
//! by the host if it is not confirmed in time, whatever happens to this process or to the way between.

use crate::commands::agent_session::{AgentHosts, AgentSession, AgentStream};
use rlaunch_bootstrap::protocol::changes::{
    Access, Change, ChangeOrder, ChangeOutcome, ChangeReply, JournalState, Password, UndoneChange,
};
use rlaunch_console::messages;
use rlaunch_console::progress::Progress;
use rlaunch_engine::connect::connector::Reach;
use rlaunch_plan::hosts::Host;
use rlaunch_ssh::prompt::Prompter;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::time::Duration;
use tokio::task::JoinSet;

/// Time limit for the first message of an agent, counted from the end of the login.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for sudo, which waits after a wrong password, and for the lock of another command.
const ACCESS_TIMEOUT: Duration = Duration::from_secs(45);
/// Time limit for each change. The agent ends a command before that.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(330);
/// Number of times that a password is asked for.
const ASKED: usize = 3;

/// Hosts whose agents can change them, in the order of the hosts.
pub(crate) struct ChangingHosts {
    agents: Vec<ChangingHost>,
}

struct ChangingHost {
    name: String,
    journal: JournalState,
    stream: AgentStream,
}

/// What became of the changes of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// In the order of the changes, up to the first that failed.
    pub(crate) outcomes: Vec<ChangeOutcome>,
    /// Why there is no outcome of all: the agent was lost.
    pub(crate) lost: Option<String>,
}

/// What became of changes that were to be undone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restored {
    /// The last change first.
    pub(crate) undone: Vec<UndoneChange>,
    pub(crate) journal: JournalState,
    /// Why not all is known: the agent was lost.
    pub(crate) lost: Option<String>,
}

impl Changed {
    /// Returns the index of the change that failed, or was not reached, and why.
    pub(crate) fn failure(&self) -> Option<(usize, &str)> {
        let failed = self.outcomes.iter().enumerate().find_map(|(at, outcome)| match outcome {
            ChangeOutcome::Failed(cause) => Some((at, cause.as_str())),
            ChangeOutcome::Already | ChangeOutcome::Made => None,
        });
        failed.or_else(|| Some((self.outcomes.len(), self.lost.as_deref()?)))
    }

    /// Tells whether a change was made; those that were in effect are none.
    pub(crate) fn has_changed(&self) -> bool {
        self.outcomes.contains(&ChangeOutcome::Made)
    }
}

impl Restored {
    /// Tells whether the host is as it was.
    pub(crate) fn is_complete(&self) -> bool {
        self.lost.is_none() && self.undone.iter().all(|one| one.failure.is_none())
    }
}

impl ChangingHosts {
    /// Connects to hosts and starts their agents as root: by a login as root, by sudo, or by sudo with a password, which is
    /// asked for once. Returns those that answered, and why others did not.
    pub(crate) async fn open(
        hosts: &[Host],
        options: &Reach,
    ) -> Result<(ChangingHosts, Vec<Failed>), Failed> {
        let opened = AgentHosts::open(hosts, options, "changes", START_TIMEOUT).await?;
        let (mut started, mut failures) = (Vec::new(), Vec::new());
        for (host, opened) in hosts.iter().zip(opened) {
            match opened {
                Ok(AgentSession { name, first: ChangeReply::Access(access), stream, .. }) => {
                    started.push((
                        access,
                        ChangingHost { name, journal: JournalState::default(), stream },
                    ));
                }
                Ok(session) => {
                    let words = format!("{}: its agent began with another message", session.name);
                    failures.push(Failed::new(Exit::BUG, words));
                }
                Err(error) => {
                    let cause = messages::error_chain(&error);
                    let failed = Failed::new(Exit::HOST, format!("{host}: {cause}"));
                    failures.push(failed.hint(error.hint(&host.name)));
                }
            }
        }
        let mut password = None;
        let mut agents = Vec::new();
        for (access, mut host) in started {
            match host.become_root(access, &mut password).await {
                Ok(()) => agents.push(host),
                Err(failed) => {
                    host.stream.close().await;
                    failures.push(failed);
                }
            }
        }
        Ok((ChangingHosts { agents }, failures))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.agents.iter().map(|agent| agent.name.clone()).collect()
    }

    /// Returns the journals of the hosts, as they were when their agents last told.
    pub(crate) fn journals(&self) -> Vec<&JournalState> {
        self.agents.iter().map(|agent| &agent.journal).collect()
    }

    /// Runs lines that change nothing on each host, and returns what they print; an error says why not.
    pub(crate) async fn ask(
        &mut self,
        lines: Vec<Vec<String>>,
    ) -> Vec<Vec<Result<String, String>>> {
        let counts: Vec<usize> = lines.iter().map(Vec::len).collect();
        let orders = lines.into_iter().map(ChangeOrder::Ask).collect();
        let answers = self.order("asking", orders).await;
        let printed = |((replies, lost), count): (Answer, usize)| {
            let printed = replies.into_iter().filter_map(|reply| match reply {
                ChangeReply::Printed(printed) => Some(printed),
                _ => None,
            });
            let mut printed: Vec<_> = printed.collect();
            let cause = lost.unwrap_or_else(|| "its agent answered something else".to_owned());
            printed.resize(count, Err(cause));
            printed
        };
        answers.into_iter().zip(counts).map(printed).collect()
    }

    /// Makes the changes of each host, in order, up to the first that fails. With `trial` they are undone after that time
    /// unless they are confirmed.
    pub(crate) async fn apply(
        &mut self,
        changes: Vec<Vec<Change>>,
        by: &str,
        trial: Option<Duration>,
    ) -> Vec<Changed> {
        let trial_ms = trial.map(|time| u32::try_from(time.as_millis()).unwrap_or(u32::MAX));
        let order = |changes| ChangeOrder::Apply { by: by.to_owned(), changes, trial_ms };
        let orders: Vec<ChangeOrder> = changes.into_iter().map(order).collect();
        let answers = self.order("changing", orders).await;
        let changed = |(replies, lost): (Vec<ChangeReply>, Option<String>)| {
            let outcome = |reply| match reply {
                ChangeReply::Outcome(outcome) => Some(outcome),
                _ => None,
            };
            Changed { outcomes: replies.into_iter().filter_map(outcome).collect(), lost }
        };
        answers.into_iter().map(changed).collect()
    }

    /// Keeps the changes on trial. Returns why a host has not confirmed.
    pub(crate) async fn confirm(&mut self) -> Vec<Option<String>> {
        let answers = self.order_all("confirming", &ChangeOrder::Confirm).await;
        let unconfirmed = |(replies, lost): Answer| {
            // An agent whose time was over has answered before the order came.
            let is_undone = replies.iter().any(|reply| matches!(reply, ChangeReply::Undone(_)));
            let late = || "the time of the trial was over, and its changes are undone".to_owned();
            lost.or_else(|| is_undone.then(late))
        };
        answers.into_iter().map(unconfirmed).collect()
    }

    /// Undoes the changes on trial.
    pub(crate) async fn roll_back(&mut self) -> Vec<Restored> {
        self.restore("rolling back", &ChangeOrder::RollBack).await
    }

    /// Undoes all changes in the journals.
    pub(crate) async fn undo(&mut self) -> Vec<Restored> {
        self.restore("undoing changes", &ChangeOrder::Undo).await
    }

    async fn restore(&mut self, stage: &'static str, order: &ChangeOrder) -> Vec<Restored> {
        let answers = self.order_all(stage, order).await;
        let restored = |((replies, lost), agent): ((Vec<_>, _), &ChangingHost)| {
            let undone = replies.into_iter().filter_map(|reply| match reply {
                ChangeReply::Undone(one) => Some(one),
                _ => None,
            });
            Restored { undone: undone.collect(), journal: agent.journal.clone(), lost }
        };
        answers.into_iter().zip(&self.agents).map(restored).collect()
    }

    async fn order_all(&mut self, stage: &'static str, order: &ChangeOrder) -> Vec<Answer> {
        let orders = vec![order.clone(); self.agents.len()];
        self.order(stage, orders).await
    }

    /// Gives each agent its order, all at once, and waits for their answers.
    async fn order(&mut self, stage: &'static str, orders: Vec<ChangeOrder>) -> Vec<Answer> {
        let agents = std::mem::take(&mut self.agents);
        let progress = Progress::new(agents.iter().map(|agent| agent.name.clone()), stage);
        let tasks = agents.into_iter().zip(orders).map(|(mut agent, order)| {
            let name = agent.name.clone();
            (name, async move {
                let answer = agent.answer(&order).await;
                (agent, answer)
            })
        });
        let (agents, answers) = progress.run_all(tasks).await.into_iter().unzip();
        self.agents = agents;
        answers
    }

    pub(crate) async fn close(self) {
        let closing: JoinSet<()> =
            self.agents.into_iter().map(|agent| agent.stream.close()).collect();
        closing.join_all().await;
    }
}

/// Replies to an order but for its end, and why that did not come.
type Answer = (Vec<ChangeReply>, Option<String>);

impl ChangingHost {
    /// Waits until the agent works as root, with the password that sudo may ask for.
    async fn become_root(
        &mut self,
        mut access: Access,
        known: &mut Option<Password>,
    ) -> Result<(), Failed> {
        for round in 0..=ASKED {
            match access {
                Access::Root | Access::Sudo => {}
                Access::Refused(cause) => return Err(self.refused(&cause)),
                Access::Password => {
                    if round == ASKED {
                        return Err(self.refused("sudo did not take the password"));
                    }
                    // A password that another host has taken is tried first, without a question.
                    let password = match known.take().filter(|_| round == 0) {
                        Some(password) => password,
                        None => self.ask(round).await?,
                    };
                    *known = Some(password.clone());
                    // If that fails, nothing comes.
                    let _ = self.stream.send(&ChangeOrder::Password(password)).await;
                }
            }
            match self.receive(ACCESS_TIMEOUT).await {
                Ok(ChangeReply::Ready(journal)) => {
                    self.journal = journal;
                    return Ok(());
                }
                Ok(ChangeReply::Access(next)) => access = next,
                Ok(ChangeReply::Unable(cause)) | Err(cause) => return Err(self.failed(&cause)),
                Ok(_) => return Err(self.failed("its agent answered something else")),
            }
        }
        Err(self.refused("sudo did not take the password"))
    }

    async fn ask(&self, round: usize) -> Result<Password, Failed> {
        let again = if round > 0 { "wrong; " } else { "" };
        let prompter = Prompter::open().ok_or_else(|| {
            self.refused("sudo asks for a password, and there is no terminal to ask for it")
        })?;
        let answer = prompter.ask(&format!("{again}password for sudo on {}: ", self.name)).await;
        let answer = answer.ok_or_else(|| self.refused("sudo asks for a password"))?;
        Ok(Password(answer.to_string()))
    }

    fn refused(&self, cause: &str) -> Failed {
        let message = format!("{}: root is needed: {cause}", self.name);
        let hint = format!("log in as root (-H root@{}), or let the account use sudo", self.name);
        Failed::new(Exit::USAGE, message).hint(Some(hint))
    }

    fn failed(&self, cause: &str) -> Failed {
        Failed::new(Exit::HOST, format!("{}: {cause}", self.name))
    }

    /// Returns the replies to an order up to the one that ends them.
    async fn answer(&mut self, order: &ChangeOrder) -> Answer {
        let mut replies = Vec::new();
        // An agent that takes no more orders may have left a last message.
        let _ = self.stream.send(order).await;
        loop {
            match self.receive(CHANGE_TIMEOUT).await {
                Ok(ChangeReply::Finished(journal)) => {
                    self.journal = journal;
                    return (replies, None);
                }
                Ok(ChangeReply::Unable(cause)) | Err(cause) => return (replies, Some(cause)),
                Ok(reply) => replies.push(reply),
            }
        }
    }

    async fn receive(&mut self, limit: Duration) -> Result<ChangeReply, String> {
        let received = tokio::time::timeout(limit, self.stream.receive()).await;
        let late = |_| format!("no answer within {} s", limit.as_secs());
        let ended = || "its agent ended, or its shell passes it no input".to_owned();
        received.map_err(late)?.ok_or_else(ended)
    }
}

/// Prints what could not be undone.
pub(crate) fn report_failures(host: &str, restored: &Restored) {
    for one in &restored.undone {
        if let Some(cause) = &one.failure {
            messages::warn(&format!("{host}: not undone: {}: {cause}", one.change.title()));
        }
    }
    if restored.journal.unreadable > 0 {
        let lines = text::count(restored.journal.unreadable as usize, "line");
        messages::warn(&format!(
            "{host}: {lines} of /var/lib/rlaunch/journal cannot be read by this version; the version that wrote them can"
        ));
    }
}
