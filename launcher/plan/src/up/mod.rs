//! `rlaunch up`: what is to be done on hosts so that they are a cluster, as values.
//!
//! A step is done already, or is a list of changes to hosts, each of which is printed as the command that a person would
//! type, or cannot be done for a reason. To add one, write a function that makes it from what the hosts are, and call it where
//! the others are called, in `launcher/src/commands/up/mod.rs`.

mod facts;
mod snapshot;

pub use facts::{Facts, Keeper, Wall, survey};
pub use snapshot::{Cables, Snapshot};

use crate::findings::Fix;
use crate::fixes::{Class, PlannedFix};
use rlaunch_bootstrap::protocol::changes::Change;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::fmt::Write as _;
use std::net::IpAddr;

/// Lines around what `up` writes into a file of others.
const MARKS: (&str, &str) = ("# rlaunch up: names of hosts", "# rlaunch up: end");

/// Why addresses cannot be kept on a host, and what helps.
pub const NO_KEEPER: &str =
    "there is none of netplan, NetworkManager, systemd-networkd, and ifupdown with interfaces.d";
pub const NO_KEEPER_HINT: &str =
    "rlaunch network mesh --format ip prints commands that last until the next boot";

/// Host, as far as steps need it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpHost {
    /// Name by which the user calls it, with the login name.
    pub name: String,
    /// Name without the login name.
    pub bare: String,
    /// Address at which it is reached.
    pub address: Option<IpAddr>,
    pub facts: Facts,
    /// Interfaces that are ends of cables.
    pub cabled: Vec<String>,
}

/// Step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub id: StepId,
    pub state: State,
}

/// Name of a step, in the order in which they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepId {
    Names,
    Fixes,
    Firewall,
    Manager,
    Addresses,
    Keep,
}

impl StepId {
    pub fn title(self) -> &'static str {
        match self {
            StepId::Names => "names of the hosts",
            StepId::Fixes => "limits, kernel settings and other safe fixes of `rlaunch doctor`",
            StepId::Firewall => "ports of the cables",
            StepId::Manager => "a subnet manager for InfiniBand",
            StepId::Addresses => "addresses, on trial until every link answers",
            StepId::Keep => "addresses kept for the next boot",
        }
    }

    /// Tells whether this step makes no sense if the other one has failed.
    pub fn needs(self, other: StepId) -> bool {
        (self, other) == (StepId::Keep, StepId::Addresses)
    }
}

/// What a step asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing: it says why, as `done already: …` or `not needed: …`.
    Done(String),
    /// Changes of each host, in the order of the hosts.
    Will(Vec<Vec<Change>>),
    /// It cannot be done: why, and a command that helps.
    Cannot { why: String, fix: String },
}

impl Step {
    /// Makes a step of changes; without any there is nothing to do, and `done` says why.
    pub fn of(id: StepId, changes: Vec<Vec<Change>>, done: impl Into<String>) -> Step {
        let state = if changes.iter().all(Vec::is_empty) {
            State::Done(done.into())
        } else {
            State::Will(changes)
        };
        Step { id, state }
    }

    /// Returns the changes of the hosts; `None` if there are none.
    pub fn changes(&self) -> Option<&[Vec<Change>]> {
        match &self.state {
            State::Will(changes) => Some(changes),
            State::Done(_) | State::Cannot { .. } => None,
        }
    }
}

/// Refuses pods: their network is the cluster's, and their files are gone with them.
pub fn refuse_pods<'a>(hosts: impl IntoIterator<Item = (&'a str, &'a Facts)>) -> Option<Failed> {
    let pods = hosts.into_iter().filter(|(_, facts)| facts.is_pod());
    let pods: Vec<&str> = pods.map(|(name, _)| name).collect();
    let are = match pods.len() {
        0 => return None,
        1 => "is a pod",
        _ => "are pods",
    };
    let message = format!(
        "{} {are} of Kubernetes, where nothing is kept that `rlaunch up` would change",
        text::list(&pods)
    );
    let hint = format!(
        "`rlaunch doctor -H {}` says what jobs would lack there; `rlaunch up` is for the nodes below the pods",
        pods.join(",")
    );
    Some(Failed::new(Exit::USAGE, message).hint(Some(hint)))
}

/// Lets the hosts find each other by name: those that a host does not know, or knows elsewhere, stand in its /etc/hosts.
pub fn names(hosts: &[UpHost]) -> Step {
    let change = |host: &UpHost| {
        let named = || {
            let others = hosts.iter().filter_map(|other| Some((other.address?, &*other.bare)));
            others.filter(|(_, name)| name.parse::<IpAddr>().is_err())
        };
        let is_known = |(address, name): &(IpAddr, &str)| {
            let found = host.facts.names.iter().find(|(known, _)| known == name);
            // Many hosts have their own name at 127.0.1.1.
            let is_own = |at: &IpAddr| at.is_loopback() && *name == host.bare;
            found.is_some_and(|(_, at)| at.contains(address) || at.iter().any(is_own))
        };
        if named().all(|one| is_known(&one)) {
            return None;
        }
        let ours = block(&host.facts.hosts_file);
        let lines = named()
            .map(|(address, name)| (is_known(&(address, name)), format!("{address} {name}\n")));
        let lines = lines.filter(|(is_known, line)| !is_known || ours.contains(line.as_str()));
        let lines: String = lines.map(|(_, line)| line).collect();
        let present = &host.facts.hosts_file;
        let content = Some(with_block(present, &lines));
        let expected = Some(present.clone());
        Some(Change::File { path: "/etc/hosts".into(), mode: 0o644, content, expected })
    };
    if let Some((address, one, other)) = shared_address(hosts) {
        let why = format!("{one} and {other} have one address here, {address}");
        let fix = format!(
            "write the addresses by which the hosts reach each other to /etc/hosts on {one} and {other}"
        );
        return Step { id: StepId::Names, state: State::Cannot { why, fix } };
    }
    let changes = hosts.iter().map(|host| change(host).into_iter().collect()).collect();
    Step::of(StepId::Names, changes, "done already: every host finds the others by name")
}

/// Returns an address by which two hosts are reached from here, as behind the same router.
fn shared_address(hosts: &[UpHost]) -> Option<(IpAddr, &str, &str)> {
    hosts.iter().enumerate().find_map(|(at, host)| {
        let address = host.address?;
        let other = hosts[at + 1..].iter().find(|other| other.address == Some(address))?;
        Some((address, &*host.name, &*other.name))
    })
}

/// Returns the lines that were added to a file before.
fn block(file: &str) -> &str {
    let begin = file.split_once(MARKS.0).map_or("", |(_, rest)| rest);
    begin.split_once(MARKS.1).map_or("", |(lines, _)| lines)
}

/// Puts lines at the top of a file, in the place of those that were added before: the first address of a name wins.
fn with_block(file: &str, lines: &str) -> String {
    let (first, last) = MARKS;
    let all: Vec<&str> = file.split_inclusive('\n').collect();
    let find = |mark: &str| all.iter().position(|line| line.trim_end() == mark);
    // Without its end, nothing says which lines are of the block.
    let ours = find(first).zip(find(last)).map_or(0..0, |(begin, end)| begin..(end + 1).max(begin));
    let text: String = [&all[..ours.start], &all[ours.end..]].concat().concat();
    format!("{first}\n{lines}{last}\n{text}")
}

/// Chooses the fixes that need no question. Those of interfaces with a cable are left to the steps for cables.
pub fn safe_fixes(planned: Vec<PlannedFix>, hosts: &[UpHost]) -> Vec<PlannedFix> {
    let is_cabled = |name: &String, interface: &str| {
        let host = hosts.iter().find(|host| host.name == *name);
        host.is_some_and(|host| host.cabled.iter().any(|own| own == interface))
    };
    let is_of_cable = |(host, changes): &(String, Vec<Change>)| {
        changes.iter().any(|change| match change {
            Change::Network(change) => is_cabled(host, change.interface()),
            Change::File { .. }
            | Change::Edit { .. }
            | Change::Run { .. }
            | Change::RunUntilBoot { .. } => false,
        })
    };
    let is_safe = |fix: &PlannedFix| {
        fix.class == Class::Safe
            && !fix.changes().is_empty()
            && !fix.changes().iter().any(is_of_cable)
    };
    planned.into_iter().filter(is_safe).collect()
}

/// Makes the fixes that were chosen.
pub fn fixes(chosen: &[PlannedFix], hosts: &[UpHost]) -> Step {
    let on_host = |host: &UpHost| {
        let all = chosen.iter().flat_map(PlannedFix::changes);
        all.filter(|(name, _)| *name == host.name).flat_map(|(_, changes)| changes).collect()
    };
    let done = "not needed: doctor finds none";
    Step::of(StepId::Fixes, hosts.iter().map(on_host).collect(), done)
}

/// Lets in everything that comes by interfaces with a cable.
pub fn firewall(hosts: &[UpHost]) -> Step {
    let id = StepId::Firewall;
    let mut changes = Vec::new();
    for host in hosts {
        let mut of_host = Vec::new();
        let closed = host.cabled.iter().filter(|name| !host.facts.open.contains(*name));
        for (name, wall) in closed.filter_map(|name| Some((name, host.facts.wall?))) {
            let Some(change) = wall.admission(name) else {
                let why = format!("on {}: no rule can have the name {name:?}", host.name);
                let fix = "`ip link set NAME name OTHER` gives it another".to_owned();
                return Step { id, state: State::Cannot { why, fix } };
            };
            of_host.push(change);
        }
        changes.push(of_host);
    }
    let has_wall = hosts.iter().any(|host| host.facts.wall.is_some());
    let done = if has_wall {
        "done already: they are let in"
    } else {
        "not needed: there is no ufw, firewalld, or filter that drops by default; `rlaunch doctor` looks at each rule"
    };
    Step::of(id, changes, done)
}

/// Starts a subnet manager on one host, if InfiniBand ports wait for one.
pub fn subnet_manager(hosts: &[UpHost]) -> Step {
    let id = StepId::Manager;
    let Some(first) = hosts.iter().find(|host| host.facts.waits_for_manager) else {
        return Step { id, state: State::Done("not needed: no port waits for one".to_owned()) };
    };
    if let Some(managed) = hosts.iter().find(|host| host.facts.has_manager) {
        let why =
            format!("opensm runs on {}, and ports of {} still wait", managed.name, first.name);
        let fix = format!("ssh {} journalctl -u opensm -n 20", managed.name);
        return Step { id, state: State::Cannot { why, fix } };
    }
    // What doctor does about the same fault.
    let fix = Fix::subnet_manager(None);
    let of = |host: &UpHost| {
        if host.name == first.name { fix.changes().to_vec() } else { Vec::new() }
    };
    Step::of(id, hosts.iter().map(of).collect(), "")
}

/// Writes the plan for a person: each step, each host, each command.
pub fn to_text(steps: &[Step], hosts: &[UpHost]) -> String {
    let mut text = String::new();
    for step in steps {
        let title = step.id.title();
        match &step.state {
            State::Done(why) => {
                let _ = writeln!(text, "{title}: {why}");
            }
            State::Cannot { why, fix } => {
                let _ = writeln!(text, "{title}: cannot be done, {why}\n  {fix}");
            }
            State::Will(changes) => {
                let _ = writeln!(text, "{title}:");
                text.push_str(&commands(changes, hosts));
            }
        }
    }
    text
}

/// Lists the commands of hosts; those of hosts with the same ones stand together.
fn commands(changes: &[Vec<Change>], hosts: &[UpHost]) -> String {
    let mut groups: Vec<(Vec<&str>, &Vec<Change>)> = Vec::new();
    for (host, changes) in hosts.iter().zip(changes).filter(|(_, changes)| !changes.is_empty()) {
        match groups.iter_mut().find(|(_, known)| *known == changes) {
            Some((names, _)) => names.push(&host.name),
            None => groups.push((vec![&host.name], changes)),
        }
    }
    let mut text = String::new();
    for (names, changes) in groups {
        let _ = writeln!(text, "  on {}:", text::list(&names));
        for line in shown(changes).lines() {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

/// Writes the commands of changes. A line that does nothing but prepare its undoing is left out.
fn shown(changes: &[Change]) -> String {
    let is_shown =
        |change: &&Change| !matches!(change, Change::Run { line, .. } if line == ONLY_UNDO);
    changes.iter().filter(is_shown).map(|change| format!("{change}\n")).collect()
}

/// Line of a change that does nothing, and whose undoing comes behind that of the changes after it.
pub const ONLY_UNDO: &str = ":";

/// Writes the plan as a script with a part for each host that changes, for those who would rather type it.
pub fn to_script(steps: &[Step], hosts: &[UpHost]) -> String {
    let mut text = String::new();
    for (at, host) in hosts.iter().enumerate() {
        let mut of_host = String::new();
        for step in steps {
            let changes = step.changes().and_then(|changes| changes.get(at));
            if let Some(changes) = changes.filter(|changes| !changes.is_empty()) {
                let _ = write!(of_host, "# {}\n{}", step.id.title(), shown(changes));
            }
        }
        if !of_host.is_empty() {
            let _ = write!(text, "\n# {}\n{of_host}", host.name);
        }
    }
    if text.is_empty() {
        return "# there is nothing to change on the hosts\n".to_owned();
    }
    format!("# as root on each host\n{text}")
}

#[cfg(test)]
mod tests;
