//! Which interfaces of a host are asked for the other end of their cable, and why others are not.

use rlaunch_bootstrap::inventory::net::NetdevKind;
use rlaunch_bootstrap::protocol::network::{HostInterface, HostNetwork, LinkLocal, NetworkChange};
use rlaunch_text::{glob, shell};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Length of the prefix of link-local addresses, in bits.
const LINK_LOCAL_PREFIX: u8 = 64;

/// Interfaces that the user wants.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    /// All interfaces, the one that carries SSH included.
    pub(super) all: bool,
    /// Patterns of names; if there are none, network cards are wanted.
    pub(super) patterns: Vec<String>,
}

/// Standing of an interface: it is asked, or there is a reason not to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is asked.
    Asked,
    /// It carries the SSH connection, or the default route if that is unknown.
    CarriesSsh,
    /// The default route leads through it: it is the way to everything else.
    HasDefaultRoute,
    /// It has no cable.
    Wireless,
    /// It is a part of this bond or bridge.
    PartOf(String),
    Down,
    NoCarrier,
    /// IPv6 is disabled on the interface with this name.
    Ipv6Disabled(String),
    Ipv6Unsupported,
    NoLinkLocal,
    /// The kernel refused to send: its message.
    Mute(String),
    /// It was asked, and nothing arrived.
    NothingHeard,
}

impl Standing {
    /// Judges an interface of a host. Returns `None` if it is not wanted.
    pub(super) fn of(
        interface: &HostInterface,
        network: &HostNetwork,
        wanted: &Wanted,
    ) -> Option<Standing> {
        let name = &interface.netdev.name;
        let is_named = wanted.patterns.iter().any(|pattern| glob::matches(pattern, name));
        let is_card = matches!(
            interface.netdev.kind,
            NetdevKind::Physical | NetdevKind::Thunderbolt | NetdevKind::Ipoib | NetdevKind::Bond
        );
        let is_wanted = match wanted.patterns.is_empty() {
            true => is_card || wanted.all,
            false => is_named,
        };
        let is_up = interface.is_up;
        let may_be_uplink = !wanted.all && !is_named;
        is_wanted.then(|| match interface.ipv6 {
            _ if interface.master.is_some() => {
                Standing::PartOf(interface.master.clone().unwrap_or_default())
            }
            _ if !wanted.all && carries_ssh(interface, network) => Standing::CarriesSsh,
            _ if may_be_uplink && interface.is_wireless => Standing::Wireless,
            _ if may_be_uplink && has_default_route(interface, network) => {
                Standing::HasDefaultRoute
            }
            LinkLocal::Disabled => Standing::Ipv6Disabled(name.clone()),
            LinkLocal::Unsupported => Standing::Ipv6Unsupported,
            _ if !is_up => Standing::Down,
            _ if !interface.netdev.running => Standing::NoCarrier,
            LinkLocal::Missing => Standing::NoLinkLocal,
            LinkLocal::Tentative | LinkLocal::Usable => Standing::Asked,
        })
    }

    /// Tells whether a cable may be plugged into the interface and give it a link.
    pub(super) fn is_port(&self) -> bool {
        let is_uplink =
            matches!(self, Standing::CarriesSsh | Standing::HasDefaultRoute | Standing::Wireless);
        !is_uplink && !matches!(self, Standing::PartOf(_))
    }

    /// Returns a line to paste that changes it.
    pub(super) fn fix(&self) -> Option<String> {
        match self {
            Standing::Ipv6Disabled(name) => {
                // With slashes, a name may have dots, as eth0.7 has.
                let setting = format!("net/ipv6/conf/{name}/disable_ipv6=0");
                Some(format!("sudo sysctl -w {}", shell::quoted(setting.as_ref())))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::Asked => f.write_str("asked"),
            Standing::CarriesSsh => f.write_str("carries SSH, not asked"),
            Standing::HasDefaultRoute => {
                f.write_str("has the default route, not asked without --if")
            }
            Standing::Wireless => f.write_str("wireless, not asked without --if"),
            Standing::PartOf(master) => write!(f, "part of {master}, not asked"),
            Standing::Down => f.write_str("down, not asked"),
            Standing::NoCarrier => f.write_str("no carrier"),
            Standing::Ipv6Disabled(_) => f.write_str("IPv6 is disabled, not asked"),
            Standing::Ipv6Unsupported => f.write_str("the kernel has no IPv6, not asked"),
            Standing::NoLinkLocal => f.write_str("no link-local address, not asked"),
            Standing::Mute(cause) => write!(f, "cannot send: {cause}"),
            Standing::NothingHeard => f.write_str("nothing heard"),
        }
    }
}

fn carries_ssh(interface: &HostInterface, network: &HostNetwork) -> bool {
    let has = |one: &HostInterface, address: IpAddr| {
        one.netdev.addresses.iter().any(|(own, _)| *own == address)
    };
    let known = network.ssh_address;
    let known = known.filter(|address| network.interfaces.iter().any(|one| has(one, *address)));
    match known {
        Some(address) => has(interface, address),
        None => has_default_route(interface, network),
    }
}

fn has_default_route(interface: &HostInterface, network: &HostNetwork) -> bool {
    let mut routes = network.routes.iter();
    routes.any(|route| route.prefix == 0 && route.netdev == interface.netdev.name)
}

/// Lists the interfaces of a host that are asked.
pub(super) fn asked(network: &HostNetwork, wanted: &Wanted) -> Vec<String> {
    let is_asked =
        |one: &&HostInterface| Standing::of(one, network, wanted) == Some(Standing::Asked);
    network.interfaces.iter().filter(is_asked).map(|one| one.netdev.name.clone()).collect()
}

/// Tells whether the kernel is still checking the address of an interface that is asked.
pub(super) fn has_tentative(network: &HostNetwork, wanted: &Wanted) -> bool {
    network.interfaces.iter().any(|one| {
        one.ipv6 == LinkLocal::Tentative
            && Standing::of(one, network, wanted) == Some(Standing::Asked)
    })
}

/// Returns changes that let more of the wanted interfaces be asked: those that are down are set up, and those without
/// a link-local address get one with a host part from `random`.
pub(super) fn preparation(
    network: &HostNetwork,
    wanted: &Wanted,
    mut random: impl FnMut() -> u64,
) -> Vec<NetworkChange> {
    let change = |interface: &HostInterface| {
        let name = interface.netdev.name.clone();
        match Standing::of(interface, network, wanted)? {
            Standing::Down => Some(NetworkChange::SetUp { interface: name, up: true }),
            Standing::NoLinkLocal => {
                let address = (0xfe80 << 112) | u128::from(random());
                let address = IpAddr::V6(Ipv6Addr::from_bits(address));
                let prefix = LINK_LOCAL_PREFIX;
                Some(NetworkChange::AddAddress { interface: name, address, prefix })
            }
            _ => None,
        }
    };
    network.interfaces.iter().filter_map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{HostBuilder, interface};
    use super::*;
    use rlaunch_bootstrap::inventory::net::Route;

    fn standings(host: &HostNetwork, wanted: &Wanted) -> Vec<String> {
        let line = |one: &HostInterface| {
            let standing = Standing::of(one, host, wanted)?;
            Some(format!("{}: {standing}", one.netdev.name))
        };
        host.interfaces.iter().filter_map(line).collect()
    }

    fn host() -> HostNetwork {
        let mut slave = interface("bonded");
        slave.master = Some("bond0".into());
        let mut down = interface("down");
        (down.is_up, down.netdev.running) = (false, false);
        let mut unplugged = interface("unplugged");
        unplugged.netdev.running = false;
        let mut disabled = interface("disabled");
        disabled.ipv6 = LinkLocal::Disabled;
        let mut bare = interface("bare");
        bare.ipv6 = LinkLocal::Missing;
        let mut software = interface("veth0");
        software.netdev.kind = NetdevKind::Virtual;
        let more = [interface("good"), slave, down, unplugged, disabled, bare, software];
        HostBuilder::new("10.0.0.170/24").with(more).build()
    }

    #[test]
    fn network_cards_that_do_not_carry_ssh_are_asked() {
        let wanted = [
            "eno1: carries SSH, not asked", "good: asked", "bonded: part of bond0, not asked",
            "down: down, not asked", "unplugged: no carrier",
            "disabled: IPv6 is disabled, not asked", "bare: no link-local address, not asked",
        ];
        assert_eq!(standings(&host(), &Wanted::default()), wanted);
        let fix = Standing::Ipv6Disabled("disabled".into()).fix().unwrap();
        assert_eq!(fix, "sudo sysctl -w net/ipv6/conf/disabled/disable_ipv6=0");
    }

    #[test]
    fn the_user_may_want_other_interfaces() {
        let all = Wanted { all: true, ..Wanted::default() };
        let found = standings(&host(), &all);
        assert!(found.contains(&"eno1: asked".into()) && found.contains(&"veth0: asked".into()));
        let named = Wanted { patterns: vec!["veth*".into(), "eno?".into()], ..Wanted::default() };
        assert_eq!(standings(&host(), &named), ["eno1: carries SSH, not asked", "veth0: asked"]);
    }

    #[test]
    fn the_default_route_stands_for_an_unknown_ssh_address() {
        let mut behind_nat = host();
        behind_nat.ssh_address = "203.0.113.7".parse().ok();
        assert_eq!(standings(&behind_nat, &Wanted::default())[0], "eno1: carries SSH, not asked");
        behind_nat.routes.clear();
        assert_eq!(standings(&behind_nat, &Wanted::default())[0], "eno1: asked");
    }

    /// What comes by an uplink is not from the other hosts alone.
    #[test]
    fn an_uplink_is_asked_only_if_it_is_named() {
        let mut wireless = interface("wlan0");
        wireless.is_wireless = true;
        let mut network =
            HostBuilder::new("10.0.0.170/24").with([wireless, interface("up0")]).build();
        network.routes.push(Route { netdev: "up0".into(), ..network.routes[0].clone() });
        let shown = [
            "eno1: carries SSH, not asked",
            "wlan0: wireless, not asked without --if",
            "up0: has the default route, not asked without --if",
        ];
        assert_eq!(standings(&network, &Wanted::default()), shown);
        let named = Wanted { patterns: vec!["wlan0".into(), "up*".into()], ..Wanted::default() };
        assert_eq!(standings(&network, &named), ["wlan0: asked", "up0: asked"]);
        let all = Wanted { all: true, ..Wanted::default() };
        assert!(standings(&network, &all).iter().all(|line| line.ends_with(": asked")));
        let standing = Standing::of(&network.interfaces[1], &network, &Wanted::default()).unwrap();
        assert!(!standing.is_port(), "no cable can be missing there");
    }

    #[test]
    fn only_interfaces_that_are_asked_are_waited_for() {
        let mut network = host();
        network.interfaces[0].ipv6 = LinkLocal::Tentative;
        assert!(!has_tentative(&network, &Wanted::default()), "it carries SSH");
        network.interfaces[1].ipv6 = LinkLocal::Tentative;
        assert!(has_tentative(&network, &Wanted::default()));
    }

    #[test]
    fn only_what_can_be_helped_is_prepared() {
        let changes = preparation(&host(), &Wanted::default(), || 0x1234);
        let lines: Vec<String> = changes.iter().map(ToString::to_string).collect();
        let wanted = ["ip link set dev down up", "ip address add fe80::1234/64 dev bare nodad"];
        assert_eq!(lines, wanted);
    }
}
