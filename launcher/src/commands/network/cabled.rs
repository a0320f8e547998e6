//! Cables between hosts for `rlaunch up`: found, given addresses on trial, and kept for the next boot.

use super::agents::HostAgents;
use super::apply;
use super::formats::{self, ConfigFormat};
use super::plan::{self, Base, MeshPlan, PlanError, PlanOptions};
use super::standing::Wanted;
use super::{ROCE_MTU, Surveyed};
use crate::commands::agent_session;
use crate::commands::changes::{self, ChangingHosts};
use rlaunch_bootstrap::inventory::net::NetdevKind;
use rlaunch_bootstrap::protocol::changes::Change;
use rlaunch_console::messages;
use rlaunch_engine::connect::connector::Reach;
use rlaunch_plan::hosts::Host;
use rlaunch_plan::up::Keeper;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::net::IpAddr;
use std::time::Duration;

/// Network from which the subnets of cables are taken, if nothing else is there.
const BASE: &str = "192.168.100.0/22";
/// Length of the prefix of each subnet.
const PREFIX: u8 = 24;
/// MTU of interfaces that carry RDMA.
const LARGE_MTU: u32 = 9000;
/// Time for which all hosts listen for each other.
const WINDOW: Duration = Duration::from_millis(800);
/// Time after which a host undoes addresses that were not confirmed.
const TRIAL: Duration = Duration::from_secs(60);

/// Hosts with their cables, and the plan of their addresses.
pub(in crate::commands) struct CabledHosts {
    agents: HostAgents,
    hosts: Vec<Surveyed>,
    /// `None` if there is no cable.
    plan: Option<MeshPlan>,
}

impl CabledHosts {
    /// Finds the cables between hosts. With `may_set_up` interfaces that are down are set up meanwhile, where the account may
    /// do that without a password.
    pub(in crate::commands) async fn find(
        hosts: &[Host],
        reach: &Reach,
        patterns: &[String],
        may_set_up: bool,
    ) -> Result<CabledHosts, Failed> {
        let (mut agents, failures) = HostAgents::open(hosts, reach, may_set_up).await?;
        if !failures.is_empty() {
            agents.close().await;
            agent_session::conclude(failures)?;
            return Err(Failed::new(Exit::HOST, "a host was not reached"));
        }
        let wanted = Wanted { all: false, patterns: patterns.to_vec() };
        let will_set_up = may_set_up && agents.check_privilege("up").is_ok();
        let found = async {
            let hosts = agents.survey(&wanted, WINDOW, will_set_up).await?;
            let plan = plan_of(&hosts, &wanted)?;
            Ok((hosts, plan))
        };
        match found.await {
            Ok((hosts, plan)) => Ok(CabledHosts { agents, hosts, plan }),
            Err(failed) => {
                agents.close().await;
                Err(failed)
            }
        }
    }

    /// Returns links, subnets and addresses as a table; `None` without a cable.
    pub(in crate::commands) fn table(&self) -> Option<String> {
        self.plan.as_ref().map(|plan| formats::table(plan, &self.hosts))
    }

    /// Returns the address at which a host is reached.
    pub(in crate::commands) fn address(&self, host: usize) -> Option<IpAddr> {
        self.hosts.get(host)?.network.ssh_address
    }

    /// Lists the interfaces of a host that are ends of cables.
    pub(in crate::commands) fn interfaces(&self, host: usize) -> Vec<String> {
        let ends = self.plan.iter().flat_map(|plan| &plan.links).flat_map(|link| &link.ends);
        let own = ends.filter(|end| end.end.host == host);
        own.map(|end| end.end.interface.clone()).collect()
    }

    /// Returns the changes of a host to its addresses.
    pub(in crate::commands) fn changes(&self, host: usize) -> Vec<Change> {
        let changes = self.plan.iter().flat_map(|plan| apply::changes_of(plan, host));
        changes.map(Change::Network).collect()
    }

    /// Returns the files that keep the addresses of a host; none without cables.
    pub(in crate::commands) fn files(&self, host: usize, keeper: Keeper) -> Vec<Change> {
        let Some(plan) = &self.plan else { return Vec::new() };
        let format = match keeper {
            Keeper::Netplan => ConfigFormat::Netplan,
            Keeper::NetworkManager => ConfigFormat::Keyfile,
            Keeper::Networkd => ConfigFormat::Networkd,
            Keeper::Ifupdown => ConfigFormat::Ifupdown,
        };
        // Netplan warns of files that others may read, and NetworkManager reads none.
        let mode = match keeper {
            Keeper::Netplan | Keeper::NetworkManager => 0o600,
            Keeper::Networkd | Keeper::Ifupdown => 0o644,
        };
        let files = format.files(plan, &self.hosts, host).into_iter();
        let change = files.filter_map(|file| {
            let path = format!("{}/{}", file.directory?, file.name);
            Some(Change::File { path, mode, content: Some(file.text) })
        });
        change.collect()
    }

    /// Makes the changes of all hosts, and keeps them once every link has answered; else they are undone. Returns a
    /// sentence on what was done.
    pub(in crate::commands) async fn try_addresses(
        &mut self,
        changing: &mut ChangingHosts,
        by: &str,
    ) -> Result<String, Failed> {
        let Some(plan) = &self.plan else { return Ok("there is no cable".to_owned()) };
        let all = (0..self.hosts.len()).map(|host| self.changes(host)).collect::<Vec<_>>();
        let changed = changing.apply(all.clone(), by, Some(TRIAL)).await;
        let mut failures = Vec::new();
        for ((name, changes), changed) in changing.names().iter().zip(&all).zip(&changed) {
            if let Some((at, cause)) = changed.failure() {
                let line = changes.get(at).map(|change| format!("`{change}`: "));
                failures.push(format!("{name}: {}{cause}", line.unwrap_or_default()));
            }
        }
        let tried = if failures.is_empty() {
            match self.agents.settle().await {
                Ok(()) => apply::probe(&mut self.agents, plan, &self.hosts).await,
                Err(failed) => Err(failed),
            }
        } else {
            let mut failed = Failed::new(Exit::RENDEZVOUS, failures.remove(0));
            failed.details = failures;
            Err(failed)
        };
        match tried {
            Ok(directions) => {
                confirm(changing).await?;
                let links = text::count(plan.links.len(), "link");
                Ok(format!("{links} answered, {directions} directions"))
            }
            Err(failed) => {
                roll_back(changing).await;
                Err(failed)
            }
        }
    }

    pub(in crate::commands) async fn close(self) {
        self.agents.close().await;
    }
}

/// Plans addresses for the cables; `None` if there are none. If the usual network is in use, another one is taken.
fn plan_of(hosts: &[Surveyed], wanted: &Wanted) -> Result<Option<MeshPlan>, Failed> {
    let links = super::find_links(hosts, wanted);
    let failed = |error: &PlanError| super::plan_failed(error);
    let base = BASE.parse::<Base>().map_err(|error| Failed::new(Exit::BUG, error))?;
    let mut options = PlanOptions { base, prefix: PREFIX, mtu: None };
    let planned = match plan::plan(hosts, &links, options) {
        Err(PlanError::NoLink) => return Ok(None),
        Err(
            PlanError::Overlap { free: Some(free), .. }
            | PlanError::CoversClient { free: Some(free), .. },
        ) => {
            options.base = free.parse().map_err(|error| Failed::new(Exit::BUG, error))?;
            plan::plan(hosts, &links, options)
        }
        planned => planned,
    };
    let planned = planned.map_err(|error| failed(&error))?;
    let is_small = |end: &plan::PlannedEnd| {
        let found = hosts.get(end.end.host).and_then(|host| host.interface(&end.end.interface));
        let is_rdma = found.is_some_and(|one| !one.rdma.is_empty() && one.netdev.mtu < ROCE_MTU);
        end.kind == NetdevKind::Physical && is_rdma
    };
    if planned.links.iter().flat_map(|link| &link.ends).any(is_small) {
        options.mtu = Some(LARGE_MTU);
        return plan::plan(hosts, &links, options).map(Some).map_err(|error| failed(&error));
    }
    Ok(Some(planned))
}

async fn confirm(changing: &mut ChangingHosts) -> Result<(), Failed> {
    let lost = changing.confirm().await;
    let lost: Vec<String> = changing
        .names()
        .into_iter()
        .zip(lost)
        .filter_map(|(name, lost)| lost.map(|cause| format!("{name}: {cause}")))
        .collect();
    if lost.is_empty() {
        return Ok(());
    }
    let message = format!("not all hosts confirmed: {}", lost.join("; "));
    let hint = "run the command again: a host keeps its addresses as a whole or not at all";
    Err(Failed::new(Exit::NODE_LOST, message).hint(Some(hint)))
}

async fn roll_back(changing: &mut ChangingHosts) {
    let restored = changing.roll_back().await;
    let names = changing.names();
    for (name, restored) in names.iter().zip(&restored) {
        changes::report_failures(name, restored);
        if restored.lost.is_some() {
            messages::warn(&format!(
                "{name}: no word that its addresses are undone; it undoes them by itself within {} s",
                TRIAL.as_secs()
            ));
        }
    }
    if restored.iter().all(|one| one.is_complete()) {
        messages::info(&format!("rolled back on {}", text::list(&names)));
    }
}
