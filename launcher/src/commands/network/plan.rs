//! Addresses for the links between hosts: one subnet for each.

use super::Surveyed;
use super::links::{CableEnd, FoundLink, LinkKind};
use rlaunch_bootstrap::inventory::net::NetdevKind;
use rlaunch_bootstrap::protocol::network::{HostInterface, NetworkChange};
use rlaunch_plan::selection::Subnet;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

/// Mode of IPoIB interfaces. Only in this mode does hardware help with packets.
pub(super) const IPOIB_MODE: &str = "datagram";
/// Bases that are offered if the user's does not fit.
const OTHER_BASES: [[u8; 4]; 5] =
    [[192, 168, 100, 0], [10, 200, 0, 0], [172, 30, 0, 0], [10, 100, 0, 0], [192, 168, 200, 0]];

/// IPv4 network from which subnets are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Base {
    first: Ipv4Addr,
    prefix: u8,
}

impl Base {
    fn subnet(self) -> Subnet {
        Subnet::new(self.first.into(), self.prefix)
    }

    /// Returns the number of subnets with this prefix length.
    fn count(self, prefix: u8) -> usize {
        let bits = u32::from(prefix.saturating_sub(self.prefix));
        if prefix < self.prefix { 0 } else { 1_usize.checked_shl(bits).unwrap_or(usize::MAX) }
    }

    fn nth(self, index: usize, prefix: u8) -> Ipv4Addr {
        let size = 1_u64 << (32 - u32::from(prefix));
        let offset = (index as u64).wrapping_mul(size);
        Ipv4Addr::from_bits(self.first.to_bits().wrapping_add(offset as u32))
    }
}

/// Writes `192.168.100.0/22`.
impl std::fmt::Display for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

impl FromStr for Base {
    type Err = String;

    fn from_str(text: &str) -> Result<Base, String> {
        let wrong = || format!("`{text}` is not an IPv4 network like 192.168.100.0/22");
        let (first, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let first: Ipv4Addr = first.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        if !(8..=31).contains(&prefix) {
            return Err(format!("`{text}`: the prefix must be between 8 and 31 bits long"));
        }
        let network = Subnet::new(first.into(), prefix);
        match network.address() == IpAddr::V4(first) {
            true => Ok(Base { first, prefix }),
            false => Err(format!("`{text}` has bits behind its prefix; the network is {network}")),
        }
    }
}

/// Options of a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanOptions {
    pub(super) base: Base,
    /// Length of the prefix of each link's subnet, in bits.
    pub(super) prefix: u8,
    /// MTU of Ethernet interfaces; `None` leaves it as it is.
    pub(super) mtu: Option<u32>,
    /// With a network, a link that has addresses of a plan keeps them, whatever base they are from, and only addresses in
    /// this network are replaced.
    pub(super) keeps: Option<Base>,
}

/// Addresses of all links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MeshPlan {
    pub(super) links: Vec<PlannedLink>,
}

/// Subnet of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedLink {
    pub(super) subnet: Subnet,
    /// At most one interface of each host, in the order of hosts.
    pub(super) ends: Vec<PlannedEnd>,
}

/// Address of an interface, and how it comes there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedEnd {
    pub(super) end: CableEnd,
    pub(super) kind: NetdevKind,
    pub(super) address: Ipv4Addr,
    pub(super) prefix: u8,
    /// MTU to set; `None` leaves it as it is.
    pub(super) mtu: Option<u32>,
    /// Changes from the present state.
    pub(super) changes: Vec<NetworkChange>,
}

/// Reason why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PlanError {
    #[error("there is no cable between these hosts to give addresses to")]
    NoLink,
    #[error("{links} links need {links} subnets of /{prefix}, and {base} has {available}")]
    TooSmall { base: String, prefix: u8, links: usize, available: usize, larger: Option<String> },
    #[error("a /{0} has no two addresses for hosts: --prefix is between 8 and 31")]
    Prefix(u8),
    #[error("a /{prefix} has {addresses} addresses for the {hosts} hosts at a switch")]
    FewAddresses { prefix: u8, addresses: usize, hosts: usize },
    #[error("{base} overlaps {taken} on {host} ({interface})")]
    Overlap { base: String, taken: Subnet, host: String, interface: String, free: Option<String> },
    #[error("{base} contains {client}, from which {host} is reached by SSH")]
    CoversClient { base: String, client: IpAddr, host: String, free: Option<String> },
    #[error(
        "the plan would take {address} from {host} ({interface}), which is reached by SSH there"
    )]
    TakesSsh { address: IpAddr, host: String, interface: String },
}

impl PlanError {
    pub(super) fn hint(&self) -> Option<String> {
        match self {
            PlanError::NoLink => Some("`rlaunch network discover` shows what was found".into()),
            PlanError::TooSmall { larger, .. } => {
                larger.as_ref().map(|base| format!("--base {base} is large enough"))
            }
            PlanError::Overlap { free, .. } | PlanError::CoversClient { free, .. } => {
                free.as_ref().map(|base| format!("--base {base} is free on all hosts"))
            }
            PlanError::TakesSsh { .. } => {
                Some("--base with another network leaves it alone".to_owned())
            }
            PlanError::FewAddresses { .. } => Some("--prefix with fewer bits has more".to_owned()),
            PlanError::Prefix(_) => None,
        }
    }
}

/// Plans addresses for links. A link's hosts get .2 and .3 in their order. Addresses that fit are kept; others within
/// the base are replaced.
pub(super) fn plan(
    hosts: &[Surveyed],
    links: &[FoundLink],
    options: PlanOptions,
) -> Result<MeshPlan, PlanError> {
    let PlanOptions { base, prefix, .. } = options;
    if !(8..=31).contains(&prefix) {
        return Err(PlanError::Prefix(prefix));
    }
    let strands = strands(hosts.len(), links);
    if strands.is_empty() {
        return Err(PlanError::NoLink);
    }
    let assignment = Assignment { hosts, options };
    let given = assignment.given(&strands);
    let Some(chosen) = assignment.subnets(&strands, &given) else {
        return Err(too_small(base, prefix, strands.len(), base.count(prefix)));
    };
    if given.iter().any(Option::is_none) {
        check_base(hosts, &strands, options)?;
    }
    let most = strands.iter().map(Vec::len).max().unwrap_or(0);
    let addresses = host_addresses(Subnet::new(base.first.into(), prefix)).take(most).count();
    if addresses < most {
        return Err(PlanError::FewAddresses { prefix, addresses, hosts: most });
    }
    let plans = strands.into_iter().zip(chosen);
    let links = plans.map(|(ends, subnet)| assignment.link(ends, subnet));
    let plan = MeshPlan { links: links.collect() };
    check_ssh(hosts, &plan)?;
    Ok(plan)
}

fn too_small(base: Base, prefix: u8, links: usize, available: usize) -> PlanError {
    let bits = u8::try_from(links.next_power_of_two().trailing_zeros()).unwrap_or(u8::MAX);
    let needed = prefix.checked_sub(bits).filter(|needed| *needed >= 8);
    let larger = needed.map(|prefix| Subnet::new(base.first.into(), prefix).to_string());
    PlanError::TooSmall { base: base.to_string(), prefix, links, available, larger }
}

/// Returns the interfaces of each subnet. Cables come first, in the order of a ring: the last host with the first, the
/// first with the second, and so on, then those over larger distances. At a switch, one interface of each host counts.
fn strands(hosts: usize, links: &[FoundLink]) -> Vec<Vec<CableEnd>> {
    let key = |a: usize, b: usize| {
        let (forward, backward) = (b - a, hosts.saturating_sub(b - a));
        if forward < backward { (forward, b) } else { (backward, a) }
    };
    let cables = links.iter().filter(|link| link.kind == LinkKind::Cable);
    let mut strands: Vec<((usize, usize), Vec<CableEnd>)> = cables
        .flat_map(FoundLink::strands)
        .map(|(a, b)| (key(a.host, b.host), vec![a.clone(), b.clone()]))
        .collect();
    strands.sort();
    let switches = links.iter().filter(|link| link.kind == LinkKind::Switch);
    let at_switch = switches.filter(|link| !link.pairs().is_empty()).map(|link| {
        let mut seen = BTreeSet::new();
        link.ends.iter().filter(|end| seen.insert(end.host)).cloned().collect()
    });
    strands.into_iter().map(|(_, ends)| ends).chain(at_switch.collect::<Vec<_>>()).collect()
}

/// Checks that no other network of a host overlaps the base, nor the launcher's own address.
fn check_base(
    hosts: &[Surveyed],
    strands: &[Vec<CableEnd>],
    options: PlanOptions,
) -> Result<(), PlanError> {
    let conflict = |base: Base| {
        hosts.iter().enumerate().find_map(|(index, host)| {
            taken(host, base, &|name| is_planned(strands, index, name))
                .map(|taken| (host.name.clone(), taken))
        })
    };
    let Some((host, taken)) = conflict(options.base) else { return Ok(()) };
    let free = OTHER_BASES.iter().map(|first| {
        let prefix = options.base.prefix.max(16);
        Base { first: Ipv4Addr::from(*first), prefix }
    });
    let aligned = free.filter(|base| base.to_string().parse::<Base>().is_ok());
    let free = aligned.into_iter().find(|base| conflict(*base).is_none());
    let (free, base) = (free.map(|base| base.to_string()), options.base.to_string());
    Err(match taken {
        Taken::Network(taken, interface) => {
            PlanError::Overlap { base, taken, host, interface, free }
        }
        Taken::Client(client) => PlanError::CoversClient { base, client, host, free },
    })
}

fn is_planned(strands: &[Vec<CableEnd>], host: usize, name: &str) -> bool {
    strands.iter().flatten().any(|end| end.host == host && end.interface == name)
}

/// Reason why a base cannot be used on a host.
enum Taken {
    /// Network that the interface reaches.
    Network(Subnet, String),
    /// Address from which SSH comes.
    Client(IpAddr),
}

fn taken(host: &Surveyed, base: Base, is_planned: &dyn Fn(&str) -> bool) -> Option<Taken> {
    let base = base.subnet();
    let network = &host.network;
    let routes = network.routes.iter().filter(|route| {
        let is_own = is_planned(&route.netdev) && route.gateway.is_none();
        route.destination.is_ipv4() && route.prefix > 0 && !is_own
    });
    let routes =
        routes.map(|route| (Subnet::new(route.destination, route.prefix), route.netdev.clone()));
    let others = network.interfaces.iter().filter(|one| !is_planned(&one.netdev.name));
    let addresses = others.flat_map(|one| {
        let v4 = one.netdev.addresses.iter().filter(|(address, _)| address.is_ipv4());
        v4.map(|(address, prefix)| (Subnet::new(*address, *prefix), one.netdev.name.clone()))
    });
    let overlapping = routes.chain(addresses).find(|(subnet, _)| subnet.overlaps(&base));
    if let Some((subnet, interface)) = overlapping {
        return Some(Taken::Network(subnet, interface));
    }
    let at = |one: &&HostInterface| {
        one.netdev.addresses.iter().any(|(own, _)| Some(*own) == network.ssh_address)
    };
    let is_by_link =
        network.interfaces.iter().find(at).is_some_and(|one| is_planned(&one.netdev.name));
    let client = network.ssh_client.filter(|client| base.contains(*client) && !is_by_link);
    client.map(Taken::Client)
}

fn check_ssh(hosts: &[Surveyed], plan: &MeshPlan) -> Result<(), PlanError> {
    for end in plan.links.iter().flat_map(|link| &link.ends) {
        let Some(host) = hosts.get(end.end.host) else { continue };
        let taken = host.network.ssh_address.filter(|ssh| {
            end.changes.iter().any(|change| {
                matches!(change, NetworkChange::RemoveAddress { address, .. } if address == ssh)
            })
        });
        if let Some(address) = taken {
            let interface = end.end.interface.clone();
            return Err(PlanError::TakesSsh { address, host: host.name.clone(), interface });
        }
    }
    Ok(())
}

/// Assignment of subnets and addresses to links.
struct Assignment<'a> {
    hosts: &'a [Surveyed],
    options: PlanOptions,
}

impl Assignment<'_> {
    fn interface(&self, end: &CableEnd) -> Option<&HostInterface> {
        self.hosts.get(end.host)?.interface(&end.interface)
    }

    /// Lists the IPv4 addresses of an interface.
    fn addresses(&self, end: &CableEnd) -> Vec<(Ipv4Addr, u8)> {
        let own = self.interface(end).map(|one| &one.netdev.addresses);
        let v4 = own.into_iter().flatten().filter_map(|(address, prefix)| match address {
            IpAddr::V4(v4) => Some((*v4, *prefix)),
            IpAddr::V6(_) => None,
        });
        v4.collect()
    }

    /// Tells whether an address is one that a plan replaces if it does not fit.
    fn is_replaced(&self, address: Ipv4Addr) -> bool {
        self.options.keeps.unwrap_or(self.options.base).subnet().contains(address.into())
    }

    /// Returns the subnet that each link has from a plan before, if such are kept: its ends have the first addresses of a
    /// private network, which no other interface of their hosts reaches.
    fn given(&self, strands: &[Vec<CableEnd>]) -> Vec<Option<Subnet>> {
        let prefix = self.options.prefix;
        let is_given = |ends: &Vec<CableEnd>, subnet: &Subnet| {
            let first: BTreeSet<Ipv4Addr> = host_addresses(*subnet).take(ends.len()).collect();
            let own = |end| self.addresses(end).into_iter().find(|(one, _)| first.contains(one));
            let have: BTreeSet<Ipv4Addr> =
                ends.iter().filter_map(own).map(|(one, _)| one).collect();
            have == first
        };
        let is_free = |ends: &Vec<CableEnd>, first: Ipv4Addr| {
            let base = Base { first, prefix };
            ends.iter().all(|end| {
                let is_planned = |name: &str| is_planned(strands, end.host, name);
                self.hosts
                    .get(end.host)
                    .is_some_and(|host| taken(host, base, &is_planned).is_none())
            })
        };
        let mut used = BTreeSet::new();
        let mut given = |ends: &Vec<CableEnd>| {
            let own = self.addresses(ends.first()?).into_iter();
            let mut private = own.filter(|(one, bits)| *bits == prefix && one.is_private());
            private.find_map(|(address, _)| {
                let subnet = Subnet::new(address.into(), prefix);
                let IpAddr::V4(first) = subnet.address() else { return None };
                let is_kept = is_given(ends, &subnet) && is_free(ends, first);
                (is_kept && used.insert(subnet)).then_some(subnet)
            })
        };
        match self.options.keeps {
            Some(_) => strands.iter().map(&mut given).collect(),
            None => vec![None; strands.len()],
        }
    }

    /// Chooses a subnet for each link: one that it has already, or the first that is free. Returns `None` if there are too
    /// few.
    fn subnets(&self, strands: &[Vec<CableEnd>], given: &[Option<Subnet>]) -> Option<Vec<Subnet>> {
        let PlanOptions { base, prefix, .. } = self.options;
        let mut used: BTreeSet<Subnet> = given.iter().flatten().copied().collect();
        let mut claim = |(ends, given): (&Vec<CableEnd>, &Option<Subnet>)| {
            let own = ends.iter().flat_map(|end| self.addresses(end));
            let fitting = own.filter(|(address, bits)| {
                *bits == prefix && base.subnet().contains((*address).into())
            });
            let mut subnets = fitting.map(|(address, _)| Subnet::new(address.into(), prefix));
            given.or_else(|| subnets.find(|subnet| used.insert(*subnet)))
        };
        let claimed: Vec<Option<Subnet>> = strands.iter().zip(given).map(&mut claim).collect();
        let own = strands.iter().flatten().flat_map(|end| self.addresses(end));
        let staying: Vec<Ipv4Addr> =
            own.map(|(address, _)| address).filter(|one| !self.is_replaced(*one)).collect();
        let all = (0..base.count(prefix)).map(|index| base.nth(index, prefix));
        let mut free = all.map(|first| Subnet::new(first.into(), prefix)).filter(|subnet| {
            !used.contains(subnet) && !staying.iter().any(|one| subnet.contains((*one).into()))
        });
        claimed.into_iter().map(|claimed| claimed.or_else(|| free.next())).collect()
    }

    /// Gives the ends of a link addresses in its subnet.
    fn link(&self, ends: Vec<CableEnd>, subnet: Subnet) -> PlannedLink {
        let mut taken: BTreeSet<Ipv4Addr> = BTreeSet::new();
        let kept: Vec<Option<Ipv4Addr>> = ends
            .iter()
            .map(|end| {
                let own = self.addresses(end).into_iter();
                let mut fitting = own.filter(|(address, bits)| {
                    *bits == subnet.prefix() && subnet.contains((*address).into())
                });
                fitting.find(|(address, _)| taken.insert(*address)).map(|(address, _)| address)
            })
            .collect();
        let mut free = host_addresses(subnet);
        let mut next = || free.find(|address| taken.insert(*address));
        let ends = ends.into_iter().zip(kept).filter_map(|(end, kept)| {
            let address = kept.or_else(&mut next)?;
            self.end(end, address, subnet.prefix())
        });
        PlannedLink { subnet, ends: ends.collect() }
    }

    fn end(&self, end: CableEnd, address: Ipv4Addr, prefix: u8) -> Option<PlannedEnd> {
        let found = self.interface(&end)?;
        let kind = found.netdev.kind;
        // The subnet manager decides on the MTU of InfiniBand.
        let mtu = self.options.mtu.filter(|_| kind != NetdevKind::Ipoib);
        let interface = || end.interface.clone();
        let mut changes = Vec::new();
        if found.ipoib_mode.as_deref().is_some_and(|mode| mode != IPOIB_MODE) {
            let mode = IPOIB_MODE.to_owned();
            changes.push(NetworkChange::SetIpoibMode { interface: interface(), mode });
        }
        if let Some(mtu) = mtu.filter(|mtu| *mtu != found.netdev.mtu) {
            changes.push(NetworkChange::SetMtu { interface: interface(), mtu });
        }
        let was_down = |host: &Surveyed| host.down.contains(&end.interface);
        if !found.is_up || self.hosts.get(end.host).is_some_and(was_down) {
            changes.push(NetworkChange::SetUp { interface: interface(), up: true });
        }
        let wanted = (address, prefix);
        let own = self.addresses(&end);
        let stale = own.iter().filter(|own| **own != wanted && self.is_replaced(own.0));
        changes.extend(stale.map(|(address, prefix)| NetworkChange::RemoveAddress {
            interface: interface(),
            address: (*address).into(),
            prefix: *prefix,
        }));
        if !own.contains(&wanted) {
            let address = address.into();
            changes.push(NetworkChange::AddAddress { interface: interface(), address, prefix });
        }
        Some(PlannedEnd { end, kind, address, prefix, mtu, changes })
    }
}

/// Lists addresses for hosts: from .2 on, or all that a small subnet has.
fn host_addresses(subnet: Subnet) -> impl Iterator<Item = Ipv4Addr> {
    let first = match subnet.address() {
        IpAddr::V4(first) => first.to_bits(),
        IpAddr::V6(_) => 0,
    };
    let bits = 32_u32.saturating_sub(u32::from(subnet.prefix()));
    let (from, to) = match bits {
        0 | 1 => (0, 2),
        2 => (1, 3),
        _ => (2, (1_u64 << bits) - 1),
    };
    (from..to).map(move |offset| Ipv4Addr::from_bits(first.wrapping_add(offset as u32)))
}

#[cfg(test)]
mod tests;
