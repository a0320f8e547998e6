//! The plan of `rlaunch up`, made of what the hosts have said.

use crate::commands::network::cabled::CabledHosts;
use rlaunch_bootstrap::protocol::changes::Change;
use rlaunch_plan::up::{self, State, Step, StepId, UpHost};

/// State of the files that keep the addresses of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    Missing,
    /// They are there, and the program that they are for has not read them.
    Unread,
    Read,
}

/// Makes the steps, in the order in which they are taken. `fixes` is what doctor fixes.
pub(super) fn plan(
    hosts: &[UpHost],
    cabled: &CabledHosts,
    fixes: Step,
    kept: &[Kept],
) -> Vec<Step> {
    let addresses = (0..hosts.len()).map(|host| cabled.changes(host)).collect();
    let done = if has_cables(hosts) { "done already: every cable has addresses" } else { NO_CABLE };
    vec![
        up::names(hosts),
        fixes,
        up::firewall(hosts),
        up::subnet_manager(hosts),
        Step::of(StepId::Addresses, addresses, done),
        keep(hosts, cabled, kept),
    ]
}

const NO_CABLE: &str = "not needed: there is no cable";

fn has_cables(hosts: &[UpHost]) -> bool {
    hosts.iter().any(|host| !host.cabled.is_empty())
}

/// Makes the step that keeps addresses in the configuration of each host.
fn keep(hosts: &[UpHost], cabled: &CabledHosts, kept: &[Kept]) -> Step {
    let id = StepId::Keep;
    for (at, host) in hosts.iter().enumerate() {
        let obstacle = host.facts.keeper.and_then(|keeper| cabled.obstacle(at, keeper));
        if let Some(obstacle) = obstacle {
            let why = format!("on {}: {}", host.name, obstacle.why);
            return Step { id, state: State::Cannot { why, fix: obstacle.fix } };
        }
    }
    let mut ends = hosts.iter().filter(|host| !host.cabled.is_empty());
    if let Some(host) = ends.find(|host| host.facts.keeper.is_none()) {
        let why = format!("on {}: {}", host.name, up::NO_KEEPER);
        let fix = up::NO_KEEPER_HINT.to_owned();
        return Step { id, state: State::Cannot { why, fix } };
    }
    let left = hosts.iter().zip(kept).enumerate().map(|(at, (host, kept))| {
        let files = files(host, cabled, at);
        match (host.facts.keeper.filter(|_| !files.is_empty()), kept) {
            (Some(keeper), Kept::Missing) => keeper.around(files, &host.cabled),
            (Some(keeper), Kept::Unread) => keeper.around(Vec::new(), &host.cabled),
            (None, _) | (_, Kept::Read) => Vec::new(),
        }
    });
    Step::of(
        id,
        left.collect(),
        if has_cables(hosts) { "done already: they are" } else { NO_CABLE },
    )
}

/// Returns the files that keep the addresses of the host with this index.
pub(super) fn files(host: &UpHost, cabled: &CabledHosts, at: usize) -> Vec<Change> {
    host.facts.keeper.map_or_else(Vec::new, |keeper| cabled.files(at, keeper))
}

#[cfg(test)]
mod tests;
