//! Changes to hosts that can be undone: agents that make them as root, and undo them.
//!
//! What is changed stands in a journal on the host first (`rlaunch_bootstrap::protocol::changes`). A change on trial is undone
//! by the host if it is not confirmed in time, whatever happens to this process or to the way between.

use crate::commands::agent_session::{AgentHosts, AgentSession, AgentStream, START_TIMEOUT};
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
use rlaunch_text::{shell, text};
use std::time::Duration;
use tokio::task::JoinSet;

/// Why a host has undone changes by itself.
const TRIAL_IS_OVER: &str = "the time of the trial was over, and its changes are undone";
/// Time limit for sudo, which waits after a wrong password, and for the lock of another command.
const ACCESS_TIMEOUT: Duration = Duration::from_secs(45);
/// Time limit for each change. The agent allows 300 s for the line that saves and as many for the one that changes.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(660);
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

/// Password for sudo that a host has taken, and whether others are to try it.
struct SudoPassword {
    known: Option<Password>,
    is_for_many: bool,
}

/// What became of the changes of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// In the order of the changes, up to the first that failed.
    pub(crate) outcomes: Vec<ChangeOutcome>,
    /// Why not all is known or made: the agent was lost, or a trial was over.
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
    /// Judges the answer to an order with this number of changes.
    fn of((replies, lost): Answer, count: usize) -> Changed {
        let outcome = |reply| match reply {
            ChangeReply::Outcome(outcome) => Some(outcome),
            _ => None,
        };
        let outcomes: Vec<ChangeOutcome> = replies.into_iter().filter_map(outcome).collect();
        let has_failed = outcomes.iter().any(|one| matches!(one, ChangeOutcome::Failed(_)));
        let is_short = outcomes.len() < count && !has_failed;
        let short = || "its agent did not say what became of it".to_owned();
        Changed { lost: lost.or_else(|| is_short.then(short)), outcomes }
    }

    /// Returns a sentence on the change that failed, or was not reached.
    pub(crate) fn complaint(&self, changes: &[Change]) -> Option<String> {
        let (at, cause) = self.failure()?;
        let title = changes.get(at).map(|change| format!("{}: ", change.title()));
        Some(format!("{}{cause}", title.unwrap_or_default()))
    }

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
    /// Tells whether the host is as it was. What a journal says that cannot be read is not undone.
    pub(crate) fn is_complete(&self) -> bool {
        self.lost.is_none()
            && self.journal.unreadable == 0
            && self.undone.iter().all(|one| one.failure.is_none())
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
                Err(error) => failures.push(error.failed(host)),
            }
        }
        let mut password = SudoPassword { known: None, is_for_many: hosts.len() > 1 };
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

    /// Tells of each host whether the files among its changes are there.
    pub(crate) async fn have(&mut self, changes: &[Vec<Change>]) -> Vec<bool> {
        let files: Vec<Vec<(String, String)>> = changes.iter().map(|all| files_of(all)).collect();
        let lines = files.iter().map(|all| all.iter().map(|(line, _)| line.clone()).collect());
        let printed = self.ask(lines.collect()).await;
        let both = files.iter().zip(printed);
        let are_there = both.map(|(files, printed)| {
            let mut both = files.iter().zip(printed);
            both.all(|((_, content), printed)| printed.is_ok_and(|text| text == *content))
        });
        are_there.collect()
    }

    /// Makes the changes of each host, in order, up to the first that fails. With `trial` they are undone after that time
    /// unless they are confirmed.
    pub(crate) async fn apply(
        &mut self,
        changes: Vec<Vec<Change>>,
        by: &str,
        trial: Option<Duration>,
    ) -> Vec<Changed> {
        let counts: Vec<usize> = changes.iter().map(Vec::len).collect();
        let trial_ms = trial.map(|time| u32::try_from(time.as_millis()).unwrap_or(u32::MAX));
        let order = |changes| ChangeOrder::Apply { by: by.to_owned(), changes, trial_ms };
        let orders: Vec<ChangeOrder> = changes.into_iter().map(order).collect();
        let answers = self.order("changing", orders).await;
        let changed = |(answer, count)| Changed::of(answer, count);
        answers.into_iter().zip(counts).map(changed).collect()
    }

    /// Keeps the changes on trial. Returns why a host has not confirmed.
    pub(crate) async fn confirm(&mut self) -> Vec<Option<String>> {
        let answers = self.order_all("confirming", &ChangeOrder::Confirm).await;
        let unconfirmed = |(replies, lost): Answer| {
            // An agent whose time was over has answered before the order came.
            let is_undone = replies.iter().any(|reply| matches!(reply, ChangeReply::Undone(_)));
            lost.or_else(|| is_undone.then(|| TRIAL_IS_OVER.to_owned()))
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
        password: &mut SudoPassword,
    ) -> Result<(), Failed> {
        let mut tried = None;
        for round in 0..=ASKED {
            match access {
                Access::Root | Access::Sudo => {}
                Access::Refused(cause) => return Err(self.refused(&cause)),
                Access::Password => {
                    if round == ASKED {
                        return Err(self.refused("sudo did not take the password"));
                    }
                    // A password that another host has taken is tried first, without a question.
                    let next = match password.known.clone().filter(|_| round == 0) {
                        Some(known) => known,
                        None => self.ask_password(round, password.is_for_many).await?,
                    };
                    tried = Some(next.clone());
                    // If that fails, nothing comes.
                    let _ = self.stream.send(&ChangeOrder::Password(next)).await;
                }
            }
            match self.receive(ACCESS_TIMEOUT).await {
                Ok(ChangeReply::Ready(journal)) => {
                    self.journal = journal;
                    password.known = tried.or(password.known.take());
                    return Ok(());
                }
                Ok(ChangeReply::Access(next)) => access = next,
                Ok(ChangeReply::Unable(cause)) | Err(cause) => return Err(self.failed(&cause)),
                Ok(_) => return Err(self.failed("its agent answered something else")),
            }
        }
        Err(self.refused("sudo did not take the password"))
    }

    async fn ask_password(&self, round: usize, is_for_many: bool) -> Result<Password, Failed> {
        let prompter = Prompter::open().ok_or_else(|| {
            self.refused("sudo asks for a password, and there is no terminal to ask for it")
        })?;
        let answer = prompter.ask(&question(&self.name, round, is_for_many)).await;
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
        let (mut replies, mut cause) = (Vec::new(), None);
        // An agent that takes no more orders may have left a last message.
        let _ = self.stream.send(order).await;
        loop {
            match self.receive(CHANGE_TIMEOUT).await {
                Ok(ChangeReply::Finished(journal)) => {
                    self.journal = journal;
                    if !is_of_trial(order, &replies) {
                        return (replies, cause);
                    }
                    // The host has undone a trial before the order came, whose own answer is behind that.
                    cause = Some(TRIAL_IS_OVER.to_owned());
                    replies.clear();
                }
                Ok(ChangeReply::Unable(why)) | Err(why) => return (replies, cause.or(Some(why))),
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

/// Tells whether an answer is no answer to this order, but what a host has said at the end of a trial.
fn is_of_trial(order: &ChangeOrder, replies: &[ChangeReply]) -> bool {
    matches!(order, ChangeOrder::Apply { .. } | ChangeOrder::Ask(_))
        && replies.iter().any(|reply| matches!(reply, ChangeReply::Undone(_)))
}

/// Returns the question for a password.
fn question(host: &str, round: usize, is_for_many: bool) -> String {
    let again = if round > 0 { "wrong; " } else { "" };
    let others = if is_for_many { " (tried on the other hosts, too)" } else { "" };
    format!("{again}password for sudo on {host}{others}: ")
}

/// Lists the files that changes write: a line that prints each, and what it prints then.
fn files_of(changes: &[Change]) -> Vec<(String, String)> {
    let file = |change: &Change| match change {
        Change::File { path, content: Some(content), .. } => {
            // What is printed has lost the ends of its last line.
            let content = content.trim_end_matches('\n').to_owned();
            Some((format!("cat {} 2>/dev/null || :", shell::quoted_posix(path)), content))
        }
        _ => None,
    };
    changes.iter().filter_map(file).collect()
}

/// Prints what became of a roll-back. A host of which nothing is heard undoes it by itself within `trial`.
pub(crate) fn report_roll_back(names: &[String], restored: &[Restored], trial: Duration) {
    for (name, restored) in names.iter().zip(restored) {
        report_failures(name, restored);
        if restored.lost.is_some() {
            messages::warn(&format!(
                "{name}: no word that its changes are undone; it undoes them by itself within {} s",
                trial.as_secs()
            ));
        }
    }
    if restored.iter().all(Restored::is_complete) {
        messages::info(&format!("rolled back on {}", text::list(names)));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str) -> Change {
        Change::Run { line: line.into(), save: None, undo: None }
    }

    fn undone() -> ChangeReply {
        let one =
            UndoneChange { change: run("x"), by: "rlaunch up".into(), time: 1, failure: None };
        ChangeReply::Undone(one)
    }

    #[test]
    fn too_few_outcomes_are_a_failure() {
        let made = || ChangeReply::Outcome(ChangeOutcome::Made);
        let changes = [run("a"), run("b")];
        let all = Changed::of((vec![made(), made()], None), 2);
        assert_eq!(all.complaint(&changes), None);
        let short = Changed::of((vec![made()], None), 2);
        let why = "b: its agent did not say what became of it";
        assert_eq!(short.complaint(&changes).as_deref(), Some(why));
        let failed = ChangeReply::Outcome(ChangeOutcome::Failed("no".into()));
        let failed = Changed::of((vec![failed], None), 2);
        assert_eq!(failed.complaint(&changes).as_deref(), Some("a: no"));
        let late = Changed::of((vec![made(), made()], Some(TRIAL_IS_OVER.into())), 2);
        assert_eq!(late.complaint(&changes).as_deref(), Some(TRIAL_IS_OVER));
    }

    /// What a host says at the end of a trial may wait for whoever reads next.
    #[test]
    fn the_end_of_a_trial_is_no_answer_to_a_later_order() {
        let apply = ChangeOrder::Apply { by: String::new(), changes: Vec::new(), trial_ms: None };
        assert!(is_of_trial(&apply, &[undone()]));
        assert!(!is_of_trial(&apply, &[ChangeReply::Outcome(ChangeOutcome::Made)]));
        assert!(!is_of_trial(&ChangeOrder::RollBack, &[undone()]), "that is its answer");
    }

    #[test]
    fn a_journal_that_cannot_be_read_is_not_undone() {
        let mut restored = Restored::default();
        assert!(restored.is_complete());
        restored.journal.unreadable = 1;
        assert!(!restored.is_complete());
    }

    #[test]
    fn the_question_says_where_a_password_goes() {
        assert_eq!(question("a", 0, false), "password for sudo on a: ");
        let wrong = "wrong; password for sudo on a (tried on the other hosts, too): ";
        assert_eq!(question("a", 1, true), wrong);
    }

    #[test]
    fn files_are_read_as_they_are_written() {
        let file = Change::File {
            path: "/etc/a b".into(),
            mode: 0o644,
            content: Some("x\n\n".into()),
            expected: None,
        };
        let lines = [("cat '/etc/a b' 2>/dev/null || :".to_owned(), "x".to_owned())];
        assert_eq!(files_of(&[run("a"), file]), lines);
    }
}
