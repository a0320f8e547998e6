//! Agents of all hosts, which obey orders together.

use super::Surveyed;
use super::links::{CableEnd, Observation};
use super::standing::{self, Wanted};
use crate::commands::agent_session::{AgentHosts, AgentSession, AgentStream, START_TIMEOUT};
use rlaunch_bootstrap::protocol::network::{
    ChangeFailure, HostNetwork, NetworkChange, NetworkOrder, NetworkReply, Privilege,
    RollBackReport,
};
use rlaunch_console::messages;
use rlaunch_console::progress::Progress;
use rlaunch_engine::connect::connector::Reach;
use rlaunch_plan::hosts::Host;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::time::Duration;
use tokio::task::JoinSet;
use uuid::Uuid;

/// Time limit for the answer to an order, beyond the time that the order takes. An agent runs several programs.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which interfaces are set up for a discovery, in milliseconds.
const PREPARED_MS: u32 = 120_000;
/// Time that a link may take until it carries packets, after its interfaces were set up, in milliseconds.
pub(super) const SETTLE_MS: u32 = 8_000;

/// Agents of all hosts.
pub(super) struct HostAgents {
    agents: Vec<Agent>,
    /// Random bytes of this run.
    pub(super) token: [u8; 16],
}

struct Agent {
    name: String,
    network: HostNetwork,
    stream: AgentStream,
    /// Report that it, or its guardian, has sent in the place of an answer, as the last message.
    undone: Option<RollBackReport>,
}

/// Answer to an order; an error says why there is none.
pub(super) type OrderAnswer = Result<NetworkReply, String>;

impl HostAgents {
    /// Connects to hosts and starts their agents. Returns those that answered, and why others did not.
    pub(super) async fn open(
        hosts: &[Host],
        options: &Reach,
        will_change: bool,
    ) -> Result<(HostAgents, Vec<Failed>), Failed> {
        let words = if will_change { "network change" } else { "network" };
        let opened = AgentHosts::open(hosts, options, words, START_TIMEOUT).await?;
        let (mut agents, mut failures) = (Vec::new(), Vec::new());
        for (host, opened) in hosts.iter().zip(opened) {
            match opened {
                Ok(AgentSession { name, first: NetworkReply::State(network), stream, .. }) => {
                    let network = with_names(network);
                    agents.push(Agent { name, network, stream, undone: None });
                }
                Ok(session) => {
                    let words = format!("{}: its agent began with another message", session.name);
                    failures.push(Failed::new(Exit::BUG, words));
                }
                Err(error) => failures.push(error.failed(host)),
            }
        }
        Ok((HostAgents { agents, token: *Uuid::new_v4().as_bytes() }, failures))
    }

    /// Makes the agents of no hosts.
    #[cfg(test)]
    pub(super) fn none() -> HostAgents {
        HostAgents { agents: Vec::new(), token: [0; 16] }
    }

    /// Checks that every account may change the network of its host.
    pub(super) fn check_privilege(&self, option: &str) -> Result<(), Failed> {
        let with = |privilege| {
            let agents = self.agents.iter().filter(move |a| a.network.privilege == privilege);
            agents.map(|agent| agent.name.as_str()).collect::<Vec<_>>()
        };
        let (refused, lacking) = (with(Privilege::Refused), with(Privilege::NoProgram));
        if !refused.is_empty() {
            let names = text::list(&refused);
            let message = format!("{option} needs root or sudo without a password on {names}");
            let hint = format!(
                "log in as root (-H root@{}), or let the account run `ip` by sudo; nothing was changed",
                refused.first().unwrap_or(&"HOST")
            );
            return Err(Failed::new(Exit::USAGE, message).hint(Some(hint)));
        }
        if !lacking.is_empty() {
            let message = format!("{option} needs the program `ip` on {}", text::list(&lacking));
            let hint = "its package is iproute2, on Fedora iproute";
            return Err(Failed::new(Exit::FILES, message).hint(Some(hint)));
        }
        Ok(())
    }

    /// Gives an order to all agents at once and waits for their answers, each at most for `limit` and the time that
    /// every answer may take.
    pub(super) async fn order(
        &mut self,
        stage: &'static str,
        limit: Duration,
        orders: Vec<NetworkOrder>,
    ) -> Vec<OrderAnswer> {
        let agents = std::mem::take(&mut self.agents);
        let progress = Progress::new(agents.iter().map(|agent| agent.name.clone()), stage);
        let tasks = agents.into_iter().zip(orders).map(|(mut agent, order)| {
            let name = agent.name.clone();
            (name, async move {
                let answer = agent.answer(&order, limit + REPLY_TIMEOUT).await;
                (agent, answer)
            })
        });
        let (agents, answers) = progress.run_all(tasks).await.into_iter().unzip();
        self.agents = agents;
        answers
    }

    /// Gives the same order to all agents.
    pub(super) async fn order_all(
        &mut self,
        stage: &'static str,
        limit: Duration,
        order: &NetworkOrder,
    ) -> Vec<OrderAnswer> {
        let orders = vec![order.clone(); self.agents.len()];
        self.order(stage, limit, orders).await
    }

    /// Finds out which interface hears which. With `will_set_up` interfaces that are down are set up meanwhile. A second
    /// window is for ports with a link that have heard nothing in the first.
    pub(super) async fn survey(
        &mut self,
        wanted: &Wanted,
        windows: &[Duration],
        will_set_up: bool,
    ) -> Result<Vec<Surveyed>, Failed> {
        if !will_set_up {
            return self.listen(wanted, windows).await;
        }
        let before: Vec<HostNetwork> = self.agents.iter().map(|a| a.network.clone()).collect();
        let prepared = self.prepare(wanted).await;
        let surveyed = match prepared {
            Ok(()) => self.listen(wanted, windows).await,
            Err(failed) => Err(failed),
        };
        let undone = self
            .order_all("setting interfaces down", Duration::ZERO, &NetworkOrder::RollBack)
            .await;
        for (name, answer) in self.names().iter().zip(undone) {
            match answer {
                Ok(NetworkReply::RolledBack(report)) => report_failures(name, &report.failed),
                _ => messages::warn(&format!(
                    "{name}: no word that interfaces were set down again; `ip link` there shows them"
                )),
            }
        }
        let mut surveyed = surveyed?;
        for (host, before) in surveyed.iter_mut().zip(&before) {
            let down = before.interfaces.iter().filter(|one| !one.is_up);
            host.down = down.map(|one| one.netdev.name.clone()).collect();
        }
        Ok(surveyed)
    }

    /// Sets interfaces up, and gives those a link-local address that have none. The second round is for interfaces
    /// that turn out to have none after they were set up; the last one reads the state of those at the other ends.
    async fn prepare(&mut self, wanted: &Wanted) -> Result<(), Failed> {
        let random = || Uuid::new_v4().as_u64_pair().1;
        for _ in 0..2 {
            let changes =
                self.agents.iter().map(|a| standing::preparation(&a.network, wanted, random));
            let changes: Vec<Vec<NetworkChange>> = changes.collect();
            for (name, changes) in self.names().iter().zip(&changes) {
                announce(name, changes);
            }
            self.apply(changes, PREPARED_MS, SETTLE_MS).await?;
        }
        self.settle().await
    }

    /// Waits while the kernel checks link-local addresses, which takes two seconds after an interface was set up. It
    /// sends nothing from them until then.
    async fn await_addresses(&mut self, wanted: &Wanted) -> Result<(), Failed> {
        let is_tentative = |agent: &Agent| standing::has_tentative(&agent.network, wanted);
        if self.agents.iter().any(is_tentative) {
            self.settle().await?;
        }
        Ok(())
    }

    /// Reads the state of all hosts again, once their interfaces have settled.
    pub(super) async fn settle(&mut self) -> Result<(), Failed> {
        let none = vec![Vec::new(); self.agents.len()];
        self.apply(none, PREPARED_MS, SETTLE_MS).await
    }

    /// Applies changes on all hosts and stores their new states. Hosts without changes get the order as well.
    pub(super) async fn apply(
        &mut self,
        changes: Vec<Vec<NetworkChange>>,
        revert_ms: u32,
        settle_ms: u32,
    ) -> Result<(), Failed> {
        let order = |changes| NetworkOrder::Apply { changes, revert_ms, settle_ms };
        let orders = changes.into_iter().map(order).collect();
        let limit = Duration::from_millis(u64::from(settle_ms));
        let answers = self.order("changing addresses", limit, orders).await;
        let mut failures = Vec::new();
        for (agent, answer) in self.agents.iter_mut().zip(answers) {
            match answer {
                Ok(NetworkReply::State(network)) => {
                    let privilege = agent.network.privilege;
                    agent.network = HostNetwork { privilege, ..with_names(network) };
                }
                Ok(NetworkReply::ChangeFailed(failure, report)) => {
                    report_failures(&agent.name, &report.failed);
                    let (line, cause) = (failure.line, failure.cause);
                    failures.push(format!("{}: `{line}` failed: {cause}", agent.name));
                }
                other => failures.push(format!("{}: {}", agent.name, unexpected(other))),
            }
        }
        combine(failures)
    }

    async fn listen(
        &mut self,
        wanted: &Wanted,
        windows: &[Duration],
    ) -> Result<Vec<Surveyed>, Failed> {
        self.await_addresses(wanted).await?;
        let mut surveyed = Vec::new();
        for window in windows {
            surveyed = self.listen_for(wanted, *window).await?;
            if !surveyed.iter().any(|host| host.has_deaf_port(wanted)) {
                break;
            }
        }
        Ok(surveyed)
    }

    async fn listen_for(
        &mut self,
        wanted: &Wanted,
        window: Duration,
    ) -> Result<Vec<Surveyed>, Failed> {
        let window_ms = u32::try_from(window.as_millis()).unwrap_or(u32::MAX);
        let token = self.token;
        let order = |(index, agent): (usize, &Agent)| {
            let host = u32::try_from(index).unwrap_or(u32::MAX);
            let interfaces = standing::asked(&agent.network, wanted);
            NetworkOrder::Discover { token, host, interfaces, window_ms }
        };
        let orders = self.agents.iter().enumerate().map(order).collect();
        let answers = self.order("listening for cables", window, orders).await;
        let (mut surveyed, mut failures) = (Vec::new(), Vec::new());
        for (agent, answer) in self.agents.iter().zip(answers) {
            let (name, network) = (agent.name.clone(), agent.network.clone());
            match answer {
                Ok(NetworkReply::Heard(hearing)) => {
                    surveyed.push(Surveyed { name, network, hearing, down: Vec::new() });
                }
                other => failures.push(format!("{name}: {}", unexpected(other))),
            }
        }
        combine(failures).map(|()| surveyed)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.agents.iter().map(|agent| agent.name.clone()).collect()
    }

    pub(super) async fn close(self) {
        let closing: JoinSet<()> =
            self.agents.into_iter().map(|agent| agent.stream.close()).collect();
        closing.join_all().await;
    }
}

impl Agent {
    async fn answer(&mut self, order: &NetworkOrder, limit: Duration) -> OrderAnswer {
        let answer = self.exchange(order, limit).await;
        if *order == NetworkOrder::RollBack {
            let undone = self.undone.clone().map(NetworkReply::RolledBack);
            return answer.or_else(|cause| undone.ok_or(cause));
        }
        if let Ok(NetworkReply::RolledBack(report)) = &answer {
            self.undone = Some(report.clone());
        }
        answer
    }

    async fn exchange(&mut self, order: &NetworkOrder, limit: Duration) -> OrderAnswer {
        let ended = || "its agent ended, or its shell passes it no input".to_owned();
        // An agent that takes no more orders may have left a last message.
        let _ = self.stream.send(order).await;
        let received = tokio::time::timeout(limit, self.stream.receive()).await;
        let late = |_| format!("no answer within {} s", limit.as_secs());
        received.map_err(late)?.ok_or_else(ended)
    }
}

/// Maximum length of an interface's name, in bytes.
const MAX_NAME: usize = 15;

/// Leaves out interfaces with names that no kernel has. Names become names of files, and text in the configuration of
/// other hosts, which runs there.
fn with_names(mut network: HostNetwork) -> HostNetwork {
    network.interfaces.retain(|one| is_name(&one.netdev.name));
    network
}

fn is_name(name: &str) -> bool {
    let is_wrong = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    !matches!(name, "" | "." | "..") && name.len() <= MAX_NAME && !name.contains(is_wrong)
}

/// Prints what is changed on a host for the time of a discovery.
fn announce(host: &str, changes: &[NetworkChange]) {
    let (ups, others): (Vec<_>, Vec<_>) =
        changes.iter().partition(|change| matches!(change, NetworkChange::SetUp { .. }));
    for (changes, what) in [(ups, "set up"), (others, "given a link-local address")] {
        let names: Vec<&str> = changes.into_iter().map(NetworkChange::interface).collect();
        if !names.is_empty() {
            let list = text::list(&names);
            messages::info(&format!("{host}: {list} {what} for the time of the discovery"));
        }
    }
}

/// Describes an answer that is not the awaited one.
pub(super) fn unexpected(answer: OrderAnswer) -> String {
    match answer {
        Ok(NetworkReply::RolledBack(_)) => {
            "its agent was ended, or not told in time to keep its changes; they are undone".into()
        }
        Ok(_) => "its agent answered something else".into(),
        Err(cause) => cause,
    }
}

/// Warns of changes that could not be undone.
pub(super) fn report_failures(host: &str, failed: &[ChangeFailure]) {
    for failure in failed {
        let (line, cause) = (&failure.line, &failure.cause);
        messages::warn(&format!("{host}: not undone: `{line}`: {cause}"));
    }
}

fn combine(mut failures: Vec<String>) -> Result<(), Failed> {
    if failures.is_empty() {
        return Ok(());
    }
    let mut failed = Failed::new(Exit::RENDEZVOUS, failures.remove(0));
    failed.details = failures;
    Err(failed)
}

/// Returns what was heard as observations. Beacons that arrived on interfaces that were not asked, or that name an
/// interface that the sender does not have, are left out.
pub(super) fn observations(hosts: &[Surveyed], wanted: &Wanted) -> Vec<Observation> {
    let mut observations = Vec::new();
    for (index, host) in hosts.iter().enumerate() {
        let asked = standing::asked(&host.network, wanted);
        for beacon in host.hearing.heard.iter().filter(|beacon| asked.contains(&beacon.on)) {
            let sender = beacon.host as usize;
            if hosts.get(sender).is_some_and(|host| host.interface(&beacon.interface).is_some()) {
                let from = CableEnd { host: sender, interface: beacon.interface.clone() };
                let at = CableEnd { host: index, interface: beacon.on.clone() };
                observations.push(Observation { from, at });
            }
        }
    }
    observations
}

#[cfg(test)]
mod tests {
    use super::super::testing::{HostBuilder, interface};
    use super::*;
    use rlaunch_bootstrap::protocol::network::{BeaconReport, HeardBeacon};

    #[test]
    fn names_that_no_kernel_has_are_left_out() {
        let wrong = ["", "..", "../../x", "a b", "a\nrm -r x", "a\u{1b}[2J", "sixteen-letters-"];
        let names = wrong.into_iter().chain(["enp1s0f0np0", "a;$(b)"]);
        let network = HostBuilder::new("10.0.0.1/24").with(names.map(interface)).build();
        let network = with_names(network);
        let left: Vec<&str> = network.interfaces.iter().map(|one| &*one.netdev.name).collect();
        assert_eq!(left, ["eno1", "enp1s0f0np0", "a;$(b)"]);
    }

    #[test]
    fn beacons_of_interfaces_that_do_not_exist_are_left_out() {
        let network = HostBuilder::new("10.0.0.1/24").with([interface("eth1")]).build();
        let heard = |name: &str| HeardBeacon { on: "eth1".into(), host: 1, interface: name.into() };
        let heard = vec![heard("eth1"), heard("eth1\nreboot")];
        let hearing = BeaconReport { heard, mute: Vec::new() };
        let host = |name: &str, hearing| {
            let network = network.clone();
            Surveyed { name: name.into(), network, hearing, down: Vec::new() }
        };
        let hosts = [host("a", hearing), host("b", BeaconReport::default())];
        let found = observations(&hosts, &Wanted::default());
        let names: Vec<&str> = found.iter().map(|one| &*one.from.interface).collect();
        assert_eq!(names, ["eth1"]);
    }
}
