//! Cables between hosts for `rlaunch up`: found, given addresses on trial, and kept for the next boot.

use super::agents::HostAgents;
use super::apply;
use super::formats::{self, ConfigFormat};
use super::links::CableEnd;
use super::plan::{self, Base, MeshPlan, PlanError, PlanOptions, PlannedEnd};
use super::standing::Wanted;
use super::{ROCE_MTU, Surveyed};
use crate::commands::agent_session;
use crate::commands::changes::{self, Changed, ChangingHosts};
use rlaunch_bootstrap::inventory::net::NetdevKind;
use rlaunch_bootstrap::protocol::changes::Change;
use rlaunch_bootstrap::protocol::network::NetworkChange;
use rlaunch_engine::connect::connector::Reach;
use rlaunch_plan::hosts::Host;
use rlaunch_plan::up::{self, Cables, Facts, Keeper};
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
/// Time for which they listen once more, if a port with a link has heard nothing: a busy host may be late.
const LONG_WINDOW: Duration = Duration::from_secs(4);
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
            let windows = [WINDOW, LONG_WINDOW];
            let hosts = agents.survey(&wanted, &windows, will_set_up).await?;
            let plan = plan_of(&hosts, &wanted)?;
            Ok::<_, Failed>((hosts, plan))
        };
        match found.await {
            Ok((hosts, plan)) => Ok(CabledHosts { agents, hosts, plan }),
            Err(failed) => {
                agents.close().await;
                Err(failed)
            }
        }
    }

    /// Makes hosts of what was found on them before.
    #[cfg(test)]
    pub(super) fn without_agents(hosts: Vec<Surveyed>) -> Result<CabledHosts, Failed> {
        let plan = plan_of(&hosts, &Wanted::default())?;
        Ok(CabledHosts { agents: HostAgents::none(), hosts, plan })
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

    /// Returns the other ends of the cables of a host.
    pub(in crate::commands) fn cables(&self, host: usize, hosts: &[Host]) -> Cables {
        let mut cables = Cables::new();
        for link in self.plan.iter().flat_map(|plan| &plan.links) {
            let (own, others): (Vec<_>, Vec<_>) =
                link.ends.iter().map(|end| &end.end).partition(|end| end.host == host);
            let named =
                |end: &&CableEnd| Some((hosts.get(end.host)?.name.clone(), end.interface.clone()));
            let others: Vec<(String, String)> = others.iter().filter_map(named).collect();
            cables.extend(own.into_iter().map(|end| (end.interface.clone(), others.clone())));
        }
        cables
    }

    /// Returns the changes of a host to its addresses.
    pub(in crate::commands) fn changes(&self, host: usize) -> Vec<Change> {
        let changes = self.plan.iter().flat_map(|plan| apply::changes_of(plan, host));
        changes.map(Change::Network).collect()
    }

    /// Returns the files that keep the addresses of a host; none without cables.
    pub(in crate::commands) fn files(&self, host: usize, keeper: Keeper) -> Vec<Change> {
        self.plan.as_ref().map_or_else(Vec::new, |plan| files(plan, &self.hosts, host, keeper))
    }

    /// Returns why the addresses of a host cannot be kept by this program.
    pub(in crate::commands) fn obstacle(&self, host: usize, keeper: Keeper) -> Option<Obstacle> {
        obstacle(self.plan.as_ref()?, &self.hosts, host, keeper)
    }

    /// Makes the changes of all hosts, and keeps them once every link has answered; else they are undone. Returns a
    /// sentence on what was done.
    pub(in crate::commands) async fn try_addresses(
        &mut self,
        changing: &mut ChangingHosts,
        by: &str,
    ) -> Result<String, Failed> {
        match &self.plan {
            Some(plan) => {
                try_addresses(&mut self.agents, plan, &self.hosts, Journaled { changing, by }).await
            }
            None => Ok("there is no cable".to_owned()),
        }
    }

    pub(in crate::commands) async fn close(self) {
        self.agents.close().await;
    }
}

/// Hosts that note what is changed, and for which command.
pub(super) struct Journaled<'a> {
    pub(super) changing: &'a mut ChangingHosts,
    pub(super) by: &'a str,
}

/// Gives the addresses of a plan to all hosts on trial, and keeps them once every link has answered.
pub(super) async fn try_addresses(
    agents: &mut HostAgents,
    plan: &MeshPlan,
    hosts: &[Surveyed],
    Journaled { changing, by }: Journaled<'_>,
) -> Result<String, Failed> {
    let all: Vec<Vec<Change>> = (0..hosts.len())
        .map(|host| apply::changes_of(plan, host).into_iter().map(Change::Network).collect())
        .collect();
    let changed = changing.apply(all.clone(), by, Some(TRIAL)).await;
    let names = changing.names();
    let complaint = |((name, changes), changed): ((&String, &Vec<Change>), &Changed)| {
        Some(format!("{name}: {}", changed.complaint(changes)?))
    };
    let complaints = names.iter().zip(&all).zip(&changed).filter_map(complaint);
    let mut failures: Vec<String> = complaints.collect();
    let tried = if failures.is_empty() {
        match agents.settle().await {
            Ok(()) => apply::probe(agents, plan, hosts).await,
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
            let restored = changing.roll_back().await;
            changes::report_roll_back(&names, &restored, TRIAL);
            Err(failed)
        }
    }
}

/// Returns the files that keep the addresses of a host for the next boot.
fn files(plan: &MeshPlan, hosts: &[Surveyed], host: usize, keeper: Keeper) -> Vec<Change> {
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
    let files = format.files(plan, hosts, host).into_iter();
    let change = files.filter_map(|file| {
        let path = format!("{}/{}", file.directory?, file.name);
        Some(Change::File { path, mode, content: Some(file.text), expected: None })
    });
    change.collect()
}

fn ends_of(plan: &MeshPlan, host: usize) -> impl Iterator<Item = &PlannedEnd> {
    plan.links.iter().flat_map(|link| &link.ends).filter(move |end| end.end.host == host)
}

/// Why addresses cannot be kept on a host, and what helps.
pub(in crate::commands) struct Obstacle {
    pub(in crate::commands) why: String,
    pub(in crate::commands) fix: String,
}

/// Looks for what an interface would lose by the files that keep its address.
fn obstacle(plan: &MeshPlan, hosts: &[Surveyed], host: usize, keeper: Keeper) -> Option<Obstacle> {
    let surveyed = hosts.get(host)?;
    ends_of(plan, host).find_map(|end| {
        let name = &end.end.interface;
        match keeper {
            Keeper::NetworkManager if end.kind == NetdevKind::Bond => {
                let why = format!("{name} is a bond, whose connection has a name of its own");
                let fix = "`rlaunch network mesh --format nmcli` prints commands that find it";
                Some(Obstacle { why, fix: fix.to_owned() })
            }
            Keeper::Networkd => {
                let found = surveyed.interface(name)?;
                let file = found.network_file.as_ref().filter(|file| !file.is_for_one)?;
                let is_other = |(address, _): &(IpAddr, u8)| is_foreign(*address, end);
                let path = &file.path;
                found.netdev.addresses.iter().any(is_other).then(|| Obstacle {
                    why: format!(
                        "{name} has more addresses, by {path}, and a file for {name} would replace that one"
                    ),
                    fix: format!(
                        "give {name} a .network file of its own on {}, to which the address is added",
                        surveyed.name
                    ),
                })
            }
            _ => None,
        }
    })
}

/// Tells whether an address of an interface is neither planned nor replaced by the plan, nor made by the kernel.
fn is_foreign(address: IpAddr, end: &PlannedEnd) -> bool {
    let is_removed = end.changes.iter().any(|change| {
        matches!(change, NetworkChange::RemoveAddress { address: removed, .. } if *removed == address)
    });
    match address {
        IpAddr::V4(address) if address == end.address => false,
        IpAddr::V6(address) if address.is_unicast_link_local() => false,
        _ => !is_removed,
    }
}

/// Keeps the addresses of a plan on all hosts, by what each of them uses. Returns a sentence on it.
pub(super) async fn keep(
    plan: &MeshPlan,
    hosts: &[Surveyed],
    Journaled { changing, by }: Journaled<'_>,
) -> Result<String, Failed> {
    let printed = changing.ask(vec![vec![up::survey(&[])]; hosts.len()]).await;
    let (mut keepers, mut all) = (Vec::new(), Vec::new());
    for (at, (host, printed)) in hosts.iter().zip(printed).enumerate() {
        let printed = printed.into_iter().next().unwrap_or_else(|| Ok(String::new()));
        let failed = |cause: String| Failed::new(Exit::HOST, format!("{}: {cause}", host.name));
        let Some(keeper) = Facts::parse(&printed.map_err(failed)?).keeper else {
            return Err(failed(up::NO_KEEPER.to_owned()).hint(Some(up::NO_KEEPER_HINT)));
        };
        if let Some(Obstacle { why, fix }) = obstacle(plan, hosts, at, keeper) {
            return Err(failed(why).hint(Some(fix)));
        }
        keepers.push(keeper);
        all.push(files(plan, hosts, at, keeper));
    }
    let have = changing.have(&all).await;
    let left = all.into_iter().zip(keepers).zip(have).enumerate();
    let left = left.map(|(at, ((files, keeper), is_there))| {
        let interfaces = ends_of(plan, at).map(|end| end.end.interface.clone()).collect::<Vec<_>>();
        if is_there { Vec::new() } else { keeper.around(files, &interfaces) }
    });
    let left: Vec<Vec<Change>> = left.collect();
    if left.iter().all(Vec::is_empty) {
        return Ok("the addresses are kept already".to_owned());
    }
    let changed = changing.apply(left.clone(), by, None).await;
    let failed = |((host, changes), changed): ((&Surveyed, &Vec<Change>), &Changed)| {
        let message = format!("{}: {}", host.name, changed.complaint(changes)?);
        Some(Failed::new(Exit::FILES, message))
    };
    let failures = hosts.iter().zip(&left).zip(&changed).filter_map(failed);
    agent_session::conclude(failures.collect())?;
    Ok("the addresses are kept for the next boot; `rlaunch down` undoes all of it".to_owned())
}

/// Plans addresses for the cables; `None` if there are none. If the usual network is in use or too small, another one is
/// taken, for the links without addresses: how many links are heard is another number on another day.
fn plan_of(hosts: &[Surveyed], wanted: &Wanted) -> Result<Option<MeshPlan>, Failed> {
    let links = super::find_links(hosts, wanted);
    let base = BASE.parse::<Base>().map_err(|error| Failed::new(Exit::BUG, error))?;
    let mut options = PlanOptions { base, prefix: PREFIX, mtu: None, keeps: Some(base) };
    let mut planned = plan::plan(hosts, &links, options);
    // A larger network may be in use in its turn.
    for _ in 0..2 {
        let is_small = matches!(planned, Err(PlanError::TooSmall { .. }));
        let Err(
            PlanError::TooSmall { larger: Some(other), .. }
            | PlanError::Overlap { free: Some(other), .. }
            | PlanError::CoversClient { free: Some(other), .. },
        ) = &planned
        else {
            break;
        };
        options.base = other.parse().map_err(|error| Failed::new(Exit::BUG, error))?;
        // What a larger network has more of may be the addresses of others.
        if !is_small {
            options.keeps = Some(options.base);
        }
        planned = plan::plan(hosts, &links, options);
    }
    if planned == Err(PlanError::NoLink) {
        return Ok(None);
    }
    let planned = planned.map_err(|error| super::plan_failed(&error))?;
    options.mtu = wanted_mtu(&planned, hosts);
    plan::plan(hosts, &links, options).map(Some).map_err(|error| super::plan_failed(&error))
}

/// Returns the MTU that a plan is to set, so that RDMA packets of the largest size fit; the one that all have, if they do.
fn wanted_mtu(plan: &MeshPlan, hosts: &[Surveyed]) -> Option<u32> {
    let mtu = |end: &PlannedEnd| {
        let found = hosts.get(end.end.host)?.interface(&end.end.interface)?;
        let is_rdma = end.kind == NetdevKind::Physical && !found.rdma.is_empty();
        is_rdma.then_some(found.netdev.mtu)
    };
    let all: Vec<u32> = plan.links.iter().flat_map(|link| &link.ends).filter_map(mtu).collect();
    let first = *all.first()?;
    if all.iter().any(|mtu| *mtu < ROCE_MTU) {
        return Some(LARGE_MTU);
    }
    all.iter().all(|mtu| *mtu == first).then_some(first)
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

#[cfg(test)]
mod tests {
    use super::super::testing::{HostBuilder, interface, three_hosts, triangle, with_address};
    use super::*;
    use rlaunch_bootstrap::protocol::network::{
        BeaconReport, HeardBeacon, HostInterface, NetworkFile,
    };

    /// Hosts in a ring: `next` of each is cabled to `prev` of the following one.
    fn ring(count: usize) -> Vec<Surveyed> {
        let host = |at: usize| {
            let beacon = |on: &str, host: usize, interface: &str| HeardBeacon {
                on: on.into(),
                host: u32::try_from(host % count).unwrap(),
                interface: interface.into(),
            };
            let heard =
                vec![beacon("next", at + 1, "prev"), beacon("prev", at + count - 1, "next")];
            let network = HostBuilder::new(&format!("10.0.0.{}/24", at + 10));
            let network = network.with(["next", "prev"].map(interface)).build();
            let hearing = BeaconReport { heard, mute: Vec::new() };
            Surveyed { name: format!("n{at}"), network, hearing, down: Vec::new() }
        };
        (0..count).map(host).collect()
    }

    fn planned(hosts: &[Surveyed]) -> MeshPlan {
        plan_of(hosts, &Wanted::default()).unwrap().unwrap()
    }

    fn port<'a>(hosts: &'a mut [Surveyed], end: &CableEnd) -> &'a mut HostInterface {
        let all = &mut hosts[end.host].network.interfaces;
        all.iter_mut().find(|one| one.netdev.name == end.interface).unwrap()
    }

    /// Gives hosts the addresses of a plan.
    fn follow(hosts: &mut [Surveyed], plan: &MeshPlan) {
        for end in plan.links.iter().flat_map(|link| &link.ends) {
            let port = port(hosts, &end.end);
            *port = with_address(port.clone(), &format!("{}/{}", end.address, end.prefix));
        }
    }

    fn changes_of_all(plan: &MeshPlan) -> Vec<String> {
        let all = plan.links.iter().flat_map(|link| &link.ends).flat_map(|end| &end.changes);
        all.map(ToString::to_string).collect()
    }

    /// How many links are heard decides on the size of the network, and may be another number each time.
    #[test]
    fn links_keep_the_addresses_of_a_larger_network() {
        let mut hosts = ring(8);
        let whole = planned(&hosts);
        assert_eq!(whole.links.len(), 8);
        follow(&mut hosts, &whole);
        assert_eq!(changes_of_all(&planned(&hosts)), [""; 0]);
        // The cables between the last hosts are out, and their ports keep what they have.
        let mut half = hosts.clone();
        half.iter_mut().skip(4).for_each(|host| host.hearing.heard.clear());
        half[0].hearing.heard.retain(|beacon| beacon.on == "next");
        half[3].hearing.heard.retain(|beacon| beacon.on == "prev");
        assert_eq!(planned(&half).links.len(), 3);
        assert_eq!(changes_of_all(&planned(&half)), [""; 0]);
        let mut two = hosts[..2].to_vec();
        two.iter_mut().for_each(|host| host.hearing.heard.retain(|beacon| beacon.host < 2));
        assert_eq!(planned(&two).links.len(), 1);
        assert_eq!(changes_of_all(&planned(&two)), [""; 0]);
        // Another network has come to reach what a link has.
        let taken = whole.links.iter().find(|link| link.ends[0].end.host == 0).unwrap();
        let route = format!("eno1 {} via 10.0.0.1", taken.subnet).parse().unwrap();
        hosts[0].network.routes.push(route);
        assert_ne!(changes_of_all(&planned(&hosts)), [""; 0]);
    }

    /// A network that is larger because there are many links does not reach for the addresses of others.
    #[test]
    fn a_larger_network_replaces_no_more_addresses() {
        for (own, is_replaced) in [("192.168.98.7/30", false), ("192.168.102.5/30", true)] {
            let mut hosts = ring(7);
            let end = CableEnd { host: 3, interface: "next".to_owned() };
            let with_own = with_address(port(&mut hosts, &end).clone(), own);
            *port(&mut hosts, &end) = with_own;
            let plan = planned(&hosts);
            let changes = changes_of_all(&plan);
            let line = format!("ip address delete {own} dev next");
            assert_eq!(changes.contains(&line), is_replaced, "{changes:?}");
            let stays = plan.links.iter().all(|link| link.subnet.to_string() != "192.168.98.0/24");
            assert!(is_replaced || stays, "its network is given to no link");
        }
    }

    /// Nothing that an interface has is lost by what keeps its address.
    #[test]
    fn what_would_be_replaced_is_an_obstacle() {
        let mut hosts = three_hosts();
        let options =
            PlanOptions { base: BASE.parse().unwrap(), prefix: PREFIX, mtu: None, keeps: None };
        let mut plan = plan::plan(&hosts, &triangle(), options).unwrap();
        let why = |plan: &MeshPlan, hosts: &[Surveyed], keeper| {
            obstacle(plan, hosts, 0, keeper).map(|found| found.why)
        };
        let path = "/etc/systemd/network/20-wired.network".to_owned();
        let shared = NetworkFile { path: path.clone(), is_for_one: false };
        let name = plan.links[0].ends[0].end.interface.clone();
        let own = |hosts: &mut Vec<Surveyed>, file: NetworkFile, address: &str| {
            let all = &mut hosts[0].network.interfaces;
            let one = all.iter_mut().find(|one| one.netdev.name == name).unwrap();
            one.network_file = Some(file);
            *one = with_address(one.clone(), address);
        };
        own(&mut hosts, shared.clone(), "fe80::1/64");
        own(&mut hosts, shared.clone(), &format!("{}/24", plan.links[0].ends[0].address));
        assert_eq!(why(&plan, &hosts, Keeper::Networkd), None, "there is nothing to lose");
        own(&mut hosts, shared, "10.9.0.1/24");
        let found = why(&plan, &hosts, Keeper::Networkd).unwrap();
        assert!(found.starts_with(&format!("{name} has more addresses, by {path}")), "{found}");
        assert_eq!(why(&plan, &hosts, Keeper::Ifupdown), None);
        own(&mut hosts, NetworkFile { path, is_for_one: true }, "10.9.0.1/24");
        assert_eq!(why(&plan, &hosts, Keeper::Networkd), None, "it is added to");
        assert_eq!(why(&plan, &hosts, Keeper::NetworkManager), None);
        plan.links[0].ends[0].kind = NetdevKind::Bond;
        let found = why(&plan, &hosts, Keeper::NetworkManager).unwrap();
        assert!(found.contains("is a bond"), "{found}");
    }

    #[test]
    fn a_port_that_has_heard_nothing_is_asked_again() {
        let wanted = Wanted::default();
        let mut hosts = three_hosts();
        assert!(hosts[0].has_deaf_port(&wanted));
        let beacon = |on: &str| HeardBeacon { on: on.into(), host: 1, interface: "eth1".into() };
        hosts[0].hearing.heard = vec![beacon("enp1s0f0np0")];
        assert!(hosts[0].has_deaf_port(&wanted), "the other port has a link");
        hosts[0].network.interfaces[2].netdev.running = false;
        assert!(!hosts[0].has_deaf_port(&wanted), "and the one that carries SSH is not asked");
    }

    #[test]
    fn a_second_plan_has_the_mtu_of_the_first() {
        let mut hosts = three_hosts();
        let options =
            PlanOptions { base: BASE.parse().unwrap(), prefix: PREFIX, mtu: None, keeps: None };
        let wanted = |hosts: &[Surveyed]| {
            wanted_mtu(&plan::plan(hosts, &triangle(), options).unwrap(), hosts)
        };
        let all = |hosts: &mut Vec<Surveyed>, mtu: u32, rdma: Option<&str>| {
            for one in hosts.iter_mut().flat_map(|host| &mut host.network.interfaces) {
                one.netdev.mtu = mtu;
                one.rdma = rdma.into_iter().map(str::to_owned).collect();
            }
        };
        all(&mut hosts, 1500, None);
        assert_eq!(wanted(&hosts), None, "without RDMA it stays");
        all(&mut hosts, 1500, Some("mlx5_0"));
        assert_eq!(wanted(&hosts), Some(LARGE_MTU));
        all(&mut hosts, LARGE_MTU, Some("mlx5_0"));
        assert_eq!(wanted(&hosts), Some(LARGE_MTU), "so that the files stay as they are");
        hosts[0].network.interfaces.iter_mut().for_each(|one| one.netdev.mtu = 4200);
        assert_eq!(wanted(&hosts), None, "each has enough");
    }
}
