//! Variables by which Horovod's ranks connect over Gloo: all or none. With some of them missing, some
//! releases of Horovod run as rank 0 of 1, others look for MPI.

use crate::env::{ReservedPorts, Variable};
use crate::map::RankMap;
use crate::options::{JobView, Options, RankPosition};
use rlaunch_bootstrap::env::horovod as names;
use rlaunch_bootstrap::job::EnvVar;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Time for which Horovod's ranks wait for each other, unless the user sets a limit. Ranks may read data sets
/// first, at different speeds, so Horovod's default of 30 s is too short.
const HOROVOD_TIMEOUT: Duration = Duration::from_secs(300);

/// Tells whether rlaunch may set Horovod's variables, because the user set none that conflict with them.
pub fn may_set_variables(env: &[EnvVar]) -> bool {
    let chosen = env.iter().find(|var| {
        let name = var.name.to_string_lossy();
        let by_us = [names::CONTROLLER, names::CPU_OPERATIONS].contains(&&*name);
        names::PER_LAUNCH.contains(&&*name) || (by_us && var.value != "gloo")
    });
    if let Some(EnvVar { name, .. }) = chosen {
        tracing::info!("{} is set: Horovod's ranks are not told where they meet", name.display());
    }
    chosen.is_none()
}

/// Tells whether agents serve the store through which Horovod's ranks connect. If so, every node reserves a
/// port for it.
pub(crate) fn is_served(options: &Options, map: &RankMap) -> bool {
    options.horovod && map.world_size > 1
}

/// Store through which Horovod's ranks connect, and the network interfaces that these ranks use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlooStore {
    /// Port on loopback, by node, at which the agent accepts requests to the store.
    pub ports: Vec<u16>,
    /// Name of the network interface for connections between ranks, by node.
    interfaces: Vec<String>,
    timeout: Duration,
}

impl GlooStore {
    /// Returns the store, or `None` if no store is wanted, if Horovod is built with MPI alone, or if the
    /// interface with some node's address is unknown. Horovod needs the names of these interfaces.
    pub fn new(options: &Options, seen: &JobView<'_>, ports: &[Vec<u16>]) -> Option<GlooStore> {
        if seen.inventories.iter().any(|inventory| inventory.system.horovod_needs_mpi) {
            tracing::info!("Horovod is built with MPI alone: its ranks meet by MPI");
            return None;
        }
        let store_ports = seen.map.nodes.iter().enumerate().map(|(index, node)| {
            ReservedPorts::for_node(options, seen.map, node).store(ports.get(index)?)
        });
        let ports = store_ports.collect::<Option<Vec<u16>>>()?;
        let nodes = seen.inventories.iter().zip(seen.addresses);
        let interfaces = nodes.map(|(inventory, &address)| {
            Some(inventory.netdev_with_address(address)?.name.clone())
        });
        Some(GlooStore {
            ports,
            interfaces: interfaces.collect::<Option<_>>()?,
            timeout: options.init_timeout.unwrap_or(HOROVOD_TIMEOUT),
        })
    }

    /// Returns all Horovod variables of a rank.
    pub fn variables(&self, seen: &JobView<'_>, place: RankPosition) -> Vec<Variable> {
        let Some(node) = seen.map.nodes.get(place.node) else { return Vec::new() };
        // Like RANK, these variables need no reason.
        let own = |name, value: String| Variable::new(name, value, "");
        let with_it = |other: usize| seen.map.nodes[other].ranks.len() > place.local_rank;
        let cross_rank = (0..place.node).filter(|&other| with_it(other)).count();
        let cross_size = (0..seen.map.nodes.len()).filter(|&other| with_it(other)).count();
        let served = format!("where the agent on {} lets Horovod's ranks meet", node.host);
        let by_gloo = "Horovod's ranks meet by Gloo, without MPI";
        let interface = &self.interfaces[place.node];
        let address = seen.addresses[place.node];
        let reached = format!("{address} of {interface} is how other ranks reach this node");
        let timeout_reason = "how long they wait for each other; --init-timeout";
        vec![
            own(names::RANK, place.rank.to_string()),
            own(names::SIZE, seen.map.world_size.to_string()),
            own(names::LOCAL_RANK, place.local_rank.to_string()),
            own(names::LOCAL_SIZE, node.ranks.len().to_string()),
            own(names::CROSS_RANK, cross_rank.to_string()),
            own(names::CROSS_SIZE, cross_size.to_string()),
            own(names::HOSTNAME, node.host.to_string()),
            Variable::new(names::CONTROLLER, "gloo", by_gloo),
            Variable::new(names::CPU_OPERATIONS, "gloo", by_gloo),
            Variable::new(names::RENDEZVOUS_ADDR, Ipv4Addr::LOCALHOST.to_string(), &served),
            Variable::new(names::RENDEZVOUS_PORT, self.ports[place.node].to_string(), &served),
            Variable::new(names::IFACE, &**interface, &reached),
            Variable::new(names::TIMEOUT, seconds(self.timeout), timeout_reason),
        ]
    }
}

/// Writes a time in whole seconds, rounded up, since Horovod does not read fractions.
fn seconds(time: Duration) -> String {
    time.as_secs_f64().ceil().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::Plan;
    use rlaunch_bootstrap::id::{JobId, Rank};
    use rlaunch_bootstrap::inventory::Inventory;
    use rlaunch_bootstrap::inventory::net::Netdev;
    use rlaunch_bootstrap::job::EnvRule;
    use std::net::IpAddr;

    const ADDRESSES: [[u8; 4]; 2] = [[10, 1, 0, 1], [10, 1, 0, 2]];

    fn node(interface: &str, address: IpAddr) -> Inventory {
        let addresses = vec![(address, 24)];
        let netdev = Netdev { name: interface.into(), addresses, ..Netdev::default() };
        Inventory { netdevs: vec![netdev], ..Inventory::default() }
    }

    /// Returns the variables of one rank of the job `a:2,b`.
    fn variables(
        options: &Options,
        addresses: &[IpAddr],
        place: (u32, usize, usize),
    ) -> Vec<String> {
        variables_of(&nodes(), options, addresses, place)
    }

    fn nodes() -> Vec<Inventory> {
        let own = [ADDRESSES[0].into(), ADDRESSES[1].into()];
        ["eth0", "eno1"].iter().zip(own).map(|(name, own)| node(name, own)).collect()
    }

    fn variables_of(
        inventories: &[Inventory],
        options: &Options,
        addresses: &[IpAddr],
        place: (u32, usize, usize),
    ) -> Vec<String> {
        let hosts = crate::hosts::parse(&["a:2,b".into()]).unwrap();
        let map = RankMap::by_slot(&hosts, None, false).unwrap();
        let plan = Plan::default();
        let seen = JobView { id: JobId(7), map: &map, inventories, plan: &plan, addresses };
        let ports = [vec![21_000, 21_001, 21_002], vec![21_003]];
        let Some(store) = GlooStore::new(options, &seen, &ports) else { return Vec::new() };
        let (rank, node, local_rank) = place;
        let set = store.variables(&seen, RankPosition { rank: Rank(rank), node, local_rank });
        set.iter().map(|variable| format!("{}={}", variable.name, variable.value)).collect()
    }

    fn served() -> Options {
        Options { horovod: true, ..Options::default() }
    }

    #[test]
    fn a_rank_is_told_everything() {
        let addresses = ADDRESSES.map(IpAddr::from);
        let set = |place| variables(&served(), &addresses, place);
        let wanted = [
            "HOROVOD_RANK=2", "HOROVOD_SIZE=3", "HOROVOD_LOCAL_RANK=0", "HOROVOD_LOCAL_SIZE=1",
            "HOROVOD_CROSS_RANK=1", "HOROVOD_CROSS_SIZE=2", "HOROVOD_HOSTNAME=b",
            "HOROVOD_CONTROLLER=gloo", "HOROVOD_CPU_OPERATIONS=gloo",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR=127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT=21003",
            "HOROVOD_GLOO_IFACE=eno1", "HOROVOD_GLOO_TIMEOUT_SECONDS=300",
        ];
        assert_eq!(set((2, 1, 0)), wanted);
        assert!(set((0, 0, 0)).contains(&"HOROVOD_GLOO_RENDEZVOUS_PORT=21001".to_owned()));
        // No other node has a second rank.
        let alone = ["HOROVOD_CROSS_RANK=0", "HOROVOD_CROSS_SIZE=1"];
        let second = set((1, 0, 1));
        assert!(alone.iter().all(|wanted| second.contains(&(*wanted).to_owned())), "{second:?}");
    }

    #[test]
    fn without_a_store_nothing_is_told() {
        let addresses = ADDRESSES.map(IpAddr::from);
        assert_eq!(variables(&Options::default(), &addresses, (0, 0, 0)), [""; 0]);
        let elsewhere = [ADDRESSES[0].into(), [10, 9, 0, 2].into()];
        assert_eq!(variables(&served(), &elsewhere, (0, 0, 0)), [""; 0], "no interface on b");
    }

    /// Horovod without Gloo crashes if it is told to use Gloo.
    #[test]
    fn a_build_with_mpi_alone_is_told_nothing() {
        let addresses = ADDRESSES.map(IpAddr::from);
        let mut nodes = nodes();
        nodes[1].system.horovod_needs_mpi = true;
        assert_eq!(variables_of(&nodes, &served(), &addresses, (0, 0, 0)), [""; 0]);
    }

    #[test]
    fn who_has_chosen_is_left_alone() {
        let env = |name: &str, value: &str| {
            vec![EnvVar { name: name.into(), value: value.into(), rule: EnvRule::Set }]
        };
        assert!(!may_set_variables(&env("HOROVOD_CONTROLLER", "mpi")));
        assert!(!may_set_variables(&env("HOROVOD_RANK", "3")));
        for own in [("HOROVOD_CONTROLLER", "gloo"), ("HOROVOD_FUSION_THRESHOLD", "0")] {
            assert!(may_set_variables(&env(own.0, own.1)), "{own:?}");
        }
    }
}
