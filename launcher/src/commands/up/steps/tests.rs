//! Plans for the machines of the guides, which are recordings, compared with `launcher/goldens/up-*.txt`.

use super::*;
use crate::commands::doctor::for_up;
use crate::commands::network::testing::{Cable, recorded_cables};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::diagnostics::{
    FilterProtocol, Firewall, FirewallRule, RdmaPortState,
};
use rlaunch_bootstrap::inventory::net::NetdevKind;
use rlaunch_bootstrap::inventory::rdma::PortState;
use rlaunch_bootstrap::protocol::diagnosis::Diagnosis;
use rlaunch_plan::testing::{inventory, is_golden, pair, triangle};
use rlaunch_plan::up::Facts;
use std::collections::BTreeSet;

/// Hosts of a guide.
struct Guide<'a> {
    machines: Vec<(&'a str, Inventory)>,
    /// What doctor learns of each.
    diagnoses: Vec<Diagnosis>,
    cables: Vec<Cable<'a>>,
    /// What each host prints of itself, but for names.
    facts: &'a str,
}

/// Change to what doctor learns of a host.
type Fault = fn(&mut Diagnosis);

impl<'a> Guide<'a> {
    fn new(
        names: &[&'a str],
        machines: impl IntoIterator<Item = Inventory>,
        facts: &'a str,
    ) -> Self {
        let machines: Vec<_> = names.iter().copied().zip(machines).collect();
        let diagnosis = |(_, inventory): &(&str, Inventory)| Diagnosis {
            inventory: inventory.clone(),
            ..Diagnosis::default()
        };
        let diagnoses = machines.iter().map(diagnosis).collect();
        Guide { machines, diagnoses, cables: Vec::new(), facts }
    }

    /// Changes what doctor learns of the hosts with these indices.
    fn with_faults(mut self, faults: &[(usize, Fault)]) -> Self {
        faults.iter().for_each(|(at, change)| change(&mut self.diagnoses[*at]));
        self
    }

    fn with_cables(self, cables: &[Cable<'a>]) -> Self {
        Guide { cables: cables.to_vec(), ..self }
    }

    /// Makes the plan as `up` prints it, with what it says of faults and the table of cables. A host knows no other one by its
    /// name.
    fn plan(&self) -> String {
        let cabled = recorded_cables(&self.machines, &self.cables);
        let own = "hosts\n127.0.0.1 localhost\n";
        let host = |(at, (name, _)): (usize, &(&str, Inventory))| UpHost {
            name: (*name).to_owned(),
            bare: (*name).to_owned(),
            address: cabled.address(at),
            facts: Facts::parse(&format!("{}name {name} 127.0.1.1\n{own}", self.facts)),
            cabled: cabled.interfaces(at),
        };
        let hosts: Vec<UpHost> = self.machines.iter().enumerate().map(host).collect();
        let names = self.machines.iter().map(|(name, _)| *name);
        let diagnosed: Vec<(&str, &Diagnosis)> = names.zip(&self.diagnoses).collect();
        let fixes = up::safe_fixes(for_up::fixes_of(&diagnosed), &hosts);
        let said = fixes.iter().map(|fix| fix.seen() + "\n").collect::<String>();
        let fixes = up::fixes(&fixes, &hosts);
        let steps = plan(&hosts, &cabled, fixes, &vec![Kept::Missing; hosts.len()]);
        said + &cabled.table().unwrap_or_default() + &up::to_text(&steps, &hosts)
    }
}

/// Takes addresses and large packets from all cards but the one with the default route, as on a new machine.
fn bare(mut machine: Inventory, uplink: &str) -> Inventory {
    for netdev in machine.netdevs.iter_mut().filter(|netdev| netdev.name != uplink) {
        if netdev.kind == NetdevKind::Physical {
            netdev.mtu = 1500;
        }
        netdev.addresses.clear();
    }
    machine.routes.retain(|route| route.netdev == uplink);
    machine
}

/// Numbers the hosts of one recording: each has the next address on its uplink, and a card of its own.
fn numbered(machine: &Inventory, uplink: &str, count: u8) -> Vec<Inventory> {
    let numbered = (0..count).map(|number| {
        let mut machine = machine.clone();
        let own = machine.netdevs.iter_mut().filter(|netdev| netdev.name == uplink);
        for (address, _) in own.flat_map(|netdev| &mut netdev.addresses) {
            if let std::net::IpAddr::V4(v4) = address {
                *address =
                    std::net::IpAddr::from((u32::from(*v4) + u32::from(number)).to_be_bytes());
            }
        }
        machine
    });
    numbered.collect()
}

const FEDORA: &str = "keeper nmcli\nwall firewalld\n";
const SPARK: &str = "keeper netplan\nwall ufw\n";

#[test]
fn two_small_computers_wait_for_a_subnet_manager_and_get_addresses_then() {
    const CABLE: Cable<'static> = ((0, "ibp195s0"), (1, "ibp195s0"));
    let fresh = pair().map(|machine| bare(machine, "eno1"));
    let waiting = fresh.clone().map(|mut machine| {
        machine.rdma[0].ports[0].state = PortState::Init;
        machine
            .netdevs
            .iter_mut()
            .filter(|one| one.name == "ibp195s0")
            .for_each(|one| one.running = false);
        machine
    });
    let names = ["pc1", "pc2"];
    let facts = format!("{FEDORA}fabric waits\n");
    let first = Guide::new(&names, waiting, &facts).plan();
    let second = Guide::new(&names, fresh, FEDORA).with_cables(&[CABLE]).plan();
    is_golden("up-connectx3", &format!("{first}=== again, since its first sweep\n{second}"));
}

#[test]
fn three_computers_with_three_cables() {
    let names = ["n1", "n2", "n3"];
    let cables = [
        ((0, "enp1s0f0np0"), (1, "enp1s0f0np0")),
        ((0, "enp1s0f1np1"), (2, "enp1s0f0np0")),
        ((1, "enp1s0f1np1"), (2, "enp1s0f1np1")),
    ];
    let spark = bare(inventory("spark"), "enP7s7");
    let machines = numbered(&spark, "enP7s7", 3);
    is_golden("up-triangle", &Guide::new(&names, machines, SPARK).with_cables(&cables).plan());
    // What is there and fits stays.
    let cables = [
        ((0, "enp1s0f0np0"), (1, "enp1s0f0np0")),
        ((1, "enp1s0f1np1"), (2, "enp1s0f0np0")),
        ((0, "enp1s0f1np1"), (2, "enp1s0f1np1")),
    ];
    let plan = Guide::new(&names, triangle(), SPARK).with_cables(&cables).plan();
    assert!(plan.contains("addresses, on trial until every link answers: done already:"), "{plan}");
}

fn few_files(of: &mut Diagnosis) {
    of.inventory.limits.open_files = Some(512);
    of.inventory.limits.open_files_hard = Some(512);
}

/// A login with limits, kernels and cards that were set otherwise, and a filter, which is left to doctor and its question. What
/// is wrong with a cable's own port is a matter of the steps for cables.
#[test]
fn faults_that_doctor_finds_are_in_the_plan() {
    let spark = bare(inventory("spark"), "enP7s7");
    let machines = numbered(&spark, "enP7s7", 3);
    let cables = [
        ((0, "enp1s0f0np0"), (1, "enp1s0f0np0")),
        ((0, "enp1s0f1np1"), (2, "enp1s0f0np0")),
        ((1, "enp1s0f1np1"), (2, "enp1s0f1np1")),
    ];
    let guide = Guide::new(&["n1", "n2", "n3"], machines, SPARK).with_cables(&cables);
    let computers = guide.with_faults(&[
        (0, |of| {
            of.diagnostics.uid = 1000;
            of.inventory.limits.locked_memory = Some(8 << 20);
        }),
        (0, few_files),
        (1, few_files),
        (1, |of| of.diagnostics.kernel.max_map_count = Some(1000)),
        (2, |of| {
            let device = of.inventory.rdma[0].name.clone();
            of.diagnostics.rdma_ports = vec![RdmaPortState {
                device,
                port: 1,
                cm_roce_mode: Some("IB/RoCE v1".into()),
                counters: Vec::new(),
            }];
        }),
        (2, |of| {
            let rule = FirewallRule {
                text: "drop".into(),
                chain: "inet t c".into(),
                is_input: true,
                protocol: Some(FilterProtocol::Tcp),
                ports: vec![(1024, 65535)],
                ..FirewallRule::default()
            };
            let rules = vec![rule];
            let read_by = "nft".into();
            of.diagnostics.firewall = Some(Firewall { read_by, rules, ..Firewall::default() });
        }),
    ]);
    let mut instances = numbered(&inventory("erdma-compat"), "eth0", 2);
    for instance in &mut instances {
        instance.gpus = inventory("ack-node").gpus;
        instance.netdevs.iter_mut().for_each(|netdev| netdev.mtu = 1500);
    }
    let instances = Guide::new(&["n1", "n2"], instances, "keeper networkd\n").with_faults(&[
        (0, |of| of.diagnostics.kernel.ephemeral_ports = Some((1024, 65535))),
        (1, |of| {
            of.diagnostics.kernel.ephemeral_ports = Some((1024, 65535));
            of.diagnostics.kernel.reserved_ports = vec![(8080, 8080)];
        }),
    ]);
    is_golden("up-faults", &format!("{}=== eRDMA\n{}", computers.plan(), instances.plan()));
}

/// The two functions of a card share its sockets, and hear each other.
#[test]
fn a_ring_with_both_ports_of_each_card() {
    let names = ["n1", "n2", "n3", "n4"];
    let spark = bare(inventory("spark"), "enP7s7");
    let functions = [("enp1s0f0np0", "enp1s0f1np1"), ("enP2p1s0f0np0", "enP2p1s0f1np1")];
    // The second port of each is cabled to the first one of the next, and both functions of a port send.
    let mut cables = Vec::new();
    for at in 0..names.len() {
        for (_, from) in functions {
            for (to, _) in functions {
                cables.push(((at, from), ((at + 1) % names.len(), to)));
            }
        }
    }
    let machines = numbered(&spark, "enP7s7", 4);
    let plan = Guide::new(&names, machines, SPARK).with_cables(&cables).plan();
    let lines = |word: &str| plan.lines().filter(|line| line.contains(word)).count();
    // Four cables of two functions each: more subnets than the usual network has.
    assert_eq!((lines(" ── "), lines("ip address add ")), (8, 16), "{plan}");
    let subnets: BTreeSet<&str> =
        plan.split_whitespace().filter(|word| word.ends_with(".0/24")).collect();
    assert_eq!(subnets.len(), 8, "{plan}");
}

/// The one interface of an instance is its uplink: there is no cable to give addresses to.
#[test]
fn instances_with_erdma_have_no_cable() {
    let machines = numbered(&inventory("erdma-standard"), "eth0", 2);
    let facts = "keeper networkd\n";
    is_golden("up-erdma", &Guide::new(&["n1", "n2"], machines, facts).plan());
}

#[test]
fn guests_behind_a_switch_share_a_subnet() {
    let machines = numbered(&bare(inventory("esxi-vm"), "ens192"), "ens192", 3);
    let switch = [
        ((0, "ens224"), (1, "ens224")),
        ((1, "ens224"), (2, "ens224")),
        ((0, "ens224"), (2, "ens224")),
    ];
    let guide = Guide::new(&["g1", "g2", "g3"], machines, "keeper networkd\nwall iptables\n");
    is_golden("up-guests", &guide.with_cables(&switch).plan());
}

/// Hosts of containers are set up as hosts, and pods are not.
#[test]
fn hosts_of_containers_and_pods() {
    let hosts = numbered(&inventory("no-rdma"), "eno1", 2);
    let hosts = Guide::new(&["a", "b"], hosts, "keeper ifupdown\nwall nft\n").plan();
    let pod = Facts::parse("hosts\n# Kubernetes-managed hosts file.\n127.0.0.1 localhost\n");
    let pods = ["rl-worker-0", "rl-worker-1"].map(|name| (name, &pod));
    let refused = up::refuse_pods(pods).unwrap();
    let pods = format!("error: {}\nhint: {}\n", refused.message, refused.hints.join("\nhint: "));
    is_golden("up-containers", &format!("{hosts}=== pods\n{pods}"));
}
