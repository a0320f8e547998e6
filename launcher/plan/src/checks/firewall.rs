//! Packet filters of hosts: ports of rlaunch, of RoCE v2, and those that the kernel chooses. Whether a filter lets packets
//! pass is in `verdict.rs`.

mod verdict;

use super::{Check, Cluster, ClusterHost, Needs, quoted};
use crate::checks::cluster::{ProbeKind, ProbeOutcome};
use crate::findings::{CheckId, Finding, Fix, Severity, id};
use rlaunch_bootstrap::inventory::diagnostics::{
    Diagnostics, FilterProtocol, Firewall, FirewallRule,
};
use rlaunch_bootstrap::inventory::rdma::{LinkLayer, NodeType};
use rlaunch_bootstrap::job::PortRange;
use verdict::{Packets, Verdict, verdict};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::FW_PORTS,
        about: "packet filters let rlaunch's TCP ports through",
        needs: Needs::Diagnostics,
        examine: own_ports,
        causes: &[id::NET_PAIR, id::NET_CALLBACK, id::FW_EPHEMERAL, id::FW_ROCE, id::MESH_SILENT],
        explanation: "\
Symptoms: a job of several hosts waits at `connecting the agents` and ends with `did not report`; `No route to host` \
between hosts that can ping each other.

Agents listen on TCP ports 21000-21511, or those of --port-range, for each other and for their ranks. rlaunch read \
the rules of the packet filter (nft or iptables) in their order: the finding means that new connections to most of \
these ports reach a rule that drops or rejects, or the end of a chain that does so by default. Rules with conditions \
that rlaunch does not understand, such as sets of addresses, give no finding. If connections between the agents \
failed as well, this is an error, otherwise a warning.

Open the ports by the program that manages the filter (firewalld, ufw), or trust the interface or network that \
connects the hosts.",
    },
    Check {
        id: id::FW_ROCE,
        about: "packet filters let RoCE v2 through (UDP port 4791)",
        needs: Needs::Diagnostics,
        examine: roce,
        causes: &[id::MESH_SILENT, id::MTU_PATH],
        explanation: "\
Symptoms: `transport retry counter exceeded` (status 12, vendor err 129) on the first message, although connecting \
worked; ibv_rc_pingpong hangs; ping between the same addresses is fine.

RoCE v2 packets are UDP datagrams to port 4791. Soft RoCE (rxe) receives and sends them through \
the kernel, so its packet filter sees them. Cards with RoCE in hardware bypass the filter; for \
these a rule is only a note, since it shows that RoCE is meant to be blocked here, and a virtual \
switch in the card may do that.

Accept UDP port 4791 before the rule that drops it, or remove that rule, on both hosts. Source ports vary, so a rule for established \
connections does not help.",
    },
    Check {
        id: id::FW_EPHEMERAL,
        about: "packet filters let the ports through that the kernel chooses for NCCL and Gloo",
        needs: Needs::Diagnostics,
        examine: ephemeral,
        causes: &[],
        explanation: "\
Symptoms: agents and ranks start, then init_process_group or the first all-reduce hangs; `NCCL WARN \
socketPollConnect: connect to 10.0.0.3<45123> timed out`.

NCCL, Gloo and MPI libraries listen on ports that the kernel chooses from net.ipv4.ip_local_port_range, usually \
32768-60999. A filter that opens only the ports of the rendezvous is not enough. rlaunch read the rules in order, \
and new connections to most ports of that range are dropped.

Trust the interface that connects the hosts, or make the kernel choose from ports that are open, by \
`sudo sysctl -w net.ipv4.ip_local_port_range=\"40000 50000\"` with the range that the filter accepts.",
    },
];

/// UDP port of RoCE v2.
const ROCE: u16 = 4791;
/// Range from which kernels choose ports if it was not changed.
const EPHEMERAL: (u16, u16) = (32768, 60999);

/// Ports that a filter closes to other hosts.
struct Closed<'a> {
    filter: &'a Firewall,
    rule: Option<&'a FirewallRule>,
    ports: (u16, u16),
    protocol: FilterProtocol,
}

/// Lists the hosts with a filter, if there are several hosts. A host alone needs no open ports.
fn filtered<'a, 'c>(
    cluster: &'c Cluster<'a>,
) -> impl Iterator<Item = (&'c ClusterHost<'a>, &'a Diagnostics, &'a Firewall)> {
    let several = cluster.hosts.len() + cluster.unreached.len() > 1;
    let hosts = cluster.diagnosed().filter(move |_| several);
    hosts.filter_map(|(host, state)| Some((host, state, state.firewall.as_ref()?)))
}

/// Returns the interface at which other hosts reach this one.
fn interface_for_others<'a>(host: &ClusterHost<'a>) -> Option<&'a str> {
    host.inventory.netdev_with_address(host.address?).map(|netdev| &*netdev.name)
}

/// Returns what keeps TCP connections of other hosts from ports of this one.
fn closed_to_others<'a>(
    host: &ClusterHost<'a>,
    filter: &'a Firewall,
    ports: (u16, u16),
) -> Option<Closed<'a>> {
    // The rules that were read are those for IPv4.
    if host.address.is_some_and(|address| address.is_ipv6()) {
        return None;
    }
    let protocol = FilterProtocol::Tcp;
    let packets = Packets { protocol, ports, arrive: true, interface: interface_for_others(host) };
    match verdict(filter, packets) {
        Verdict::Drops(rule) => Some(Closed { filter, rule, ports, protocol }),
        Verdict::Passes | Verdict::Unknown => None,
    }
}

fn own_ports(cluster: &Cluster<'_>) -> Vec<Finding> {
    let range = own_range(cluster);
    let finding = |(host, state, filter): (&ClusterHost<'_>, &Diagnostics, _)| {
        let closed = closed_to_others(host, filter, range)?;
        let severity = match is_reached(cluster, host) {
            Some(false) => Severity::Error,
            Some(true) | None => Severity::Warning,
        };
        let matters = "agents of the other hosts cannot connect to this one";
        Some(closed.finding(id::FW_PORTS, severity, host, state, matters))
    };
    filtered(cluster).filter_map(finding).collect()
}

/// Returns the first and the last TCP port that rlaunch uses.
fn own_range(cluster: &Cluster<'_>) -> (u16, u16) {
    cluster.port_range.unwrap_or((PortRange::DEFAULT.first, PortRange::DEFAULT.last))
}

/// Tells whether any other host has connected to this one by TCP; `None` if none has tried.
fn is_reached(cluster: &Cluster<'_>, host: &ClusterHost<'_>) -> Option<bool> {
    let probes = cluster.probes.unwrap_or_default().iter();
    let own = probes.filter(|probe| {
        probe.kind == ProbeKind::Tcp
            && cluster.hosts.get(probe.to).is_some_and(|to| to.name == host.name)
    });
    let is_reached = |outcome: &ProbeOutcome| {
        matches!(outcome, ProbeOutcome::Worked(_) | ProbeOutcome::OnlyShort)
    };
    let mut outcomes = own.map(|probe| is_reached(&probe.outcome)).peekable();
    outcomes.peek()?;
    Some(outcomes.any(|worked| worked))
}

fn ephemeral(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(host, state, filter): (&ClusterHost<'_>, &Diagnostics, _)| {
        let range = state.kernel.ephemeral_ports.unwrap_or(EPHEMERAL);
        let closed = closed_to_others(host, filter, range)?;
        let matters = "NCCL, Gloo and MPI listen on ports that the kernel chooses from these";
        let found = closed.finding(id::FW_EPHEMERAL, Severity::Warning, host, state, matters);
        Some(match interface_for_others(host) {
            Some(netdev) => found.advise(format!(
                "or trust {netdev} as a whole, if only hosts of the cluster are connected to it"
            )),
            None => found,
        })
    };
    filtered(cluster).filter_map(finding).collect()
}

fn roce(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(host, state, filter): (&ClusterHost<'_>, &Diagnostics, &Firewall)| {
        let mut closed: Vec<(RocePort<'_>, Closed<'_>)> = roce_ports(host)
            .filter_map(|port| Some((port, closed_to_roce(filter, port)?)))
            .collect();
        // If there are several ports, those of soft RoCE matter.
        closed.sort_by_key(|(port, _)| !port.is_software);
        let (port, closed) = closed.first()?;
        let is_named = closed.rule.is_some_and(|rule| !rule.ports.is_empty());
        let (severity, matters) = if port.is_software {
            (Severity::Error, "soft RoCE loses every packet")
        } else if is_named {
            // A card's packets do not pass the filter, so only a rule about RoCE is worth a word.
            (Severity::Note, "cards bypass the filter, soft RoCE does not")
        } else {
            return None;
        };
        Some(closed.finding(id::FW_ROCE, severity, host, state, matters))
    };
    filtered(cluster).filter_map(finding).collect()
}

/// RoCE port of a host.
#[derive(Clone, Copy)]
struct RocePort<'a> {
    is_software: bool,
    netdev: Option<&'a str>,
}

fn roce_ports<'a>(host: &ClusterHost<'a>) -> impl Iterator<Item = RocePort<'a>> + use<'a> {
    let ports = host.rdma_ports().filter(|(device, port)| {
        let is_roce =
            device.node_type == NodeType::ChannelAdapter && port.link_layer == LinkLayer::Ethernet;
        is_roce && device.driver.as_deref() != Some("erdma")
    });
    ports.map(|(device, port)| RocePort {
        is_software: device.driver.as_deref() == Some("rxe"),
        netdev: port.netdev.as_deref(),
    })
}

/// Returns what keeps RoCE packets from arriving at a port or from leaving it.
fn closed_to_roce<'a>(filter: &'a Firewall, port: RocePort<'_>) -> Option<Closed<'a>> {
    let (ports, protocol, interface) = ((ROCE, ROCE), FilterProtocol::Udp, port.netdev);
    let mut directions = [true, false].into_iter();
    directions.find_map(|arrive| {
        match verdict(filter, Packets { protocol, ports, arrive, interface }) {
            Verdict::Drops(rule) => Some(Closed { filter, rule, ports, protocol }),
            Verdict::Passes | Verdict::Unknown => None,
        }
    })
}

impl Closed<'_> {
    fn finding(
        &self,
        id: CheckId,
        severity: Severity,
        host: &ClusterHost<'_>,
        state: &Diagnostics,
        matters: &str,
    ) -> Finding {
        let what = format!("{} {}", self.protocol_word(), self.range("-"));
        let seen = match self.rule {
            Some(rule) => format!("the packet filter drops {what}: {}", rule.text.trim()),
            None => format!("the packet filter drops {what} by default"),
        };
        Finding::new(id, severity, host.name, seen, matters).fixed_by(self.cure(state))
    }

    /// Returns what opens the ports, by the program that manages the filter.
    fn cure(&self, state: &Diagnostics) -> Fix {
        let protocol = self.protocol_word().to_ascii_lowercase();
        let has_firewalld = state.services.iter().any(|service| service == "firewalld");
        if has_firewalld && !self.is_in_other_table("firewalld") {
            return accepted_by_firewalld(&format!("{}/{protocol}", self.range("-")));
        }
        if state.kernel.ufw_enabled && !self.is_in_other_table("filter") {
            return accepted_by_ufw(&format!("{}/{protocol}", self.range(":")));
        }
        // Deleting the rule that drops them may open more than these ports.
        let (chain, arrive) = match self.rule {
            Some(rule) => (&rule.chain, rule.is_input),
            None => (&self.filter.chain, true),
        };
        self.acceptance(chain, arrive)
    }

    /// Tells whether the ports are dropped in a table of nft that is not the manager's own, so that
    /// the manager cannot open them.
    fn is_in_other_table(&self, own: &str) -> bool {
        let chain = self.rule.map_or(&self.filter.chain, |rule| &rule.chain);
        // Chains of iptables have no table in their names.
        chain.split(' ').nth(1).is_some_and(|table| table != own)
    }

    /// Accepts the ports at the beginning of a chain. It has to be the chain that drops them: a rule that accepts in one
    /// chain does not keep another one from dropping.
    fn acceptance(&self, chain: &str, arrive: bool) -> Fix {
        let protocol = self.protocol_word().to_ascii_lowercase();
        // Names of nft's chains have a family and a table before them.
        let is_nft = match chain {
            "" => self.filter.read_by == "nft",
            chain => chain.contains(' '),
        };
        let (nft, iptables) = match arrive {
            true => ("inet filter input", "INPUT"),
            false => ("inet filter output", "OUTPUT"),
        };
        if is_nft {
            let (chain, ports) = (words(named(chain, nft)), self.range("-"));
            accepted_by_nft(&chain, &format!("{protocol} dport {ports} accept"))
        } else {
            let (chain, ports) = (quoted(named(chain, iptables)), self.range(":"));
            accepted_by_iptables(&format!("{chain} -p {protocol} --dport {ports} -j ACCEPT"))
        }
    }

    fn protocol_word(&self) -> &'static str {
        match self.protocol {
            FilterProtocol::Udp => "UDP",
            _ => "TCP",
        }
    }

    fn range(&self, between: &str) -> String {
        match self.ports {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}{between}{last}"),
        }
    }
}

fn accepted_by_firewalld(port: &str) -> Fix {
    // `firewall-cmd --reload` would take away what others have set without `--permanent`: admins, Docker, libvirt.
    let line = format!(
        "sudo firewall-cmd --permanent --add-port={port} && sudo firewall-cmd --add-port={port}"
    );
    let query = format!("firewall-cmd --query-port={port}");
    let save = format!("echo $({query} --permanent) $({query})");
    let remove = format!("firewall-cmd --remove-port={port}");
    let undo = format!(
        "case \"$SAVED\" in yes*) ;; *) {remove} --permanent ;; esac && case \"$SAVED\" in *yes) ;; *) {remove} ;; esac"
    );
    Fix::accept(&line, save, undo, true)
}

fn accepted_by_ufw(port: &str) -> Fix {
    let save = format!("ufw show added | grep -xF 'ufw allow {port}' || true");
    let undo = format!("[ -n \"$SAVED\" ] || ufw delete allow {port}");
    Fix::accept(&format!("sudo ufw allow {port}"), save, undo, true)
}

/// Inserts a rule of nft, which the next boot or the next load of the rules takes away.
fn accepted_by_nft(chain: &str, rule: &str) -> Fix {
    let handles = format!(
        "nft -a list chain {chain} 2>/dev/null | sed -n 's/.*{rule} # handle \\([0-9]*\\)$/\\1/p'"
    );
    let undo = format!(
        "for rule in $({handles}); do case \" $SAVED \" in *[!0-9]$rule[!0-9]*) ;; *) \
         nft delete rule {chain} handle $rule ;; esac; done"
    );
    let line = format!("sudo nft insert rule {chain} {rule}");
    Fix::accept(&line, format!("echo $({handles})"), undo, false)
}

fn accepted_by_iptables(rule: &str) -> Fix {
    let save = format!("if iptables -C {rule} 2>/dev/null; then echo there; fi");
    let undo =
        format!("[ \"$SAVED\" = there ] || ! iptables -C {rule} 2>/dev/null || iptables -D {rule}");
    Fix::accept(&format!("sudo iptables -I {rule}"), save, undo, false)
}

/// Quotes each word of an nft chain such as `inet filter input`.
fn words(chain: &str) -> String {
    chain.split(' ').map(quoted).collect::<Vec<_>>().join(" ")
}

/// Returns the name of a chain; the usual one if its name is not known.
fn named<'a>(chain: &'a str, usual: &'a str) -> &'a str {
    if chain.is_empty() { usual } else { chain }
}

#[cfg(test)]
mod tests {
    use super::super::cluster::Probe;
    use super::super::testing::{Machine, line, lines, with_cluster};
    use super::*;

    #[test]
    fn a_chain_is_not_a_program_for_the_shell() {
        assert_eq!(words("inet a;b input"), "inet 'a;b' input");
    }

    fn rule(text: &str, protocol: FilterProtocol, ports: &[(u16, u16)]) -> FirewallRule {
        FirewallRule {
            text: text.into(),
            is_input: !text.contains("OUTPUT"),
            accepts: text.contains("accept") || text.contains("ACCEPT"),
            protocol: Some(protocol),
            ports: ports.to_vec(),
            ..FirewallRule::default()
        }
    }

    fn machine(name: &str, drops_by_default: bool, rules: Vec<FirewallRule>) -> Machine {
        Machine::recorded(name).diagnosed(|state| {
            let read_by = "nft".to_owned();
            let filter = Firewall { read_by, drops_by_default, rules, ..Firewall::default() };
            state.firewall = Some(filter);
        })
    }

    /// Runs all checks of this file on a machine, and an open one beside it.
    fn found(machine: Machine) -> Vec<Finding> {
        with_cluster(&[machine, Machine::recorded("no-rdma")], |cluster| {
            CHECKS.iter().flat_map(|check| (check.examine)(&cluster)).collect()
        })
    }

    fn found_lines(machine: Machine) -> Vec<String> {
        found(machine).iter().map(line).collect()
    }

    #[test]
    fn a_filter_that_drops_by_default() {
        let closed = found(machine("rxe", true, vec![]));
        let ids: Vec<_> = closed.iter().map(|finding| finding.id.as_str()).collect();
        assert_eq!(ids, ["fw.ports", "fw.roce", "fw.ephemeral"]);
        assert_eq!(
            line(&closed[0]),
            "warn fw.ports a: the packet filter drops TCP 21000-21511 by default — agents of the \
             other hosts cannot connect to this one"
        );
        let folded = super::super::fold(&closed, &Cluster::default());
        assert_eq!((folded.len(), folded[0].finding.id), (1, id::FW_PORTS));
        let tcp = FilterProtocol::Tcp;
        let own = rule("tcp dport 21000-21511 accept", tcp, &[(21000, 21511)]);
        assert_eq!(
            found_lines(machine("no-rdma", true, vec![own])),
            [
                "warn fw.ephemeral a: the packet filter drops TCP 32768-60999 by default — NCCL, Gloo \
              and MPI listen on ports that the kernel chooses from these"
            ]
        );
        let all = rule("tcp accept", tcp, &[]);
        assert!(found(machine("no-rdma", true, vec![all])).is_empty());
    }

    #[test]
    fn a_filter_of_one_host_alone_is_its_own_business() {
        let alone = [machine("rxe", true, vec![])];
        assert!(CHECKS.iter().all(|check| lines(check.examine, &alone).is_empty()));
        assert!(found(machine("rxe", false, vec![])).is_empty());
        assert!(found(Machine::recorded("rxe")).is_empty());
        let closed = machine("no-rdma", true, vec![]);
        let over_ipv6 = with_cluster(&[closed, Machine::recorded("no-rdma")], |cluster| {
            let mut cluster = cluster;
            cluster.hosts[0].address = "fd00::1".parse().ok();
            own_ports(&cluster)
        });
        assert!(over_ipv6.is_empty());
    }

    #[test]
    fn failed_connections_make_it_an_error() {
        let machines = [machine("no-rdma", true, vec![]), Machine::recorded("no-rdma")];
        let severity = |outcome| {
            let (kind, netdev, address) = (ProbeKind::Tcp, None, None);
            let probes = [Probe { from: 1, to: 0, kind, netdev, address, outcome }];
            with_cluster(&machines, |cluster| {
                let mut cluster = cluster;
                cluster.probes = Some(&probes);
                own_ports(&cluster)[0].severity
            })
        };
        assert_eq!(severity(ProbeOutcome::Silent), Severity::Error);
        assert_eq!(severity(ProbeOutcome::Worked(80)), Severity::Warning);
    }

    #[test]
    fn a_rule_against_roce() {
        let drop = |text: &str| rule(text, FilterProtocol::Udp, &[(4791, 4791)]);
        let nft = FirewallRule { chain: "inet lab input".into(), ..drop("udp dport 4791 drop") };
        let dropped = found(machine("rxe", false, vec![nft]));
        assert_eq!(
            dropped.iter().map(line).collect::<Vec<_>>(),
            ["error fw.roce a: the packet filter drops UDP 4791: udp dport 4791 drop — soft RoCE \
              loses every packet"]
        );
        let accepted = "sudo nft insert rule inet lab input udp dport 4791 accept";
        assert_eq!(dropped[0].fix, [run(accepted)]);
        let iptables = machine("rxe", false, vec![drop("-A OUTPUT -p udp --dport 4791 -j DROP")])
            .diagnosed(|state| state.firewall.as_mut().unwrap().read_by = "iptables".into());
        let fix = found(iptables).remove(0).fix;
        assert_eq!(fix, [run("sudo iptables -I OUTPUT -p udp --dport 4791 -j ACCEPT")]);
        let on_second = FirewallRule {
            interface: Some("ens3".into()),
            ..drop("-A INPUT -i ens3 -p udp --dport 4791 -j DROP")
        };
        let two = machine("rxe", false, vec![on_second]).change(|inventory| {
            let mut second = inventory.rdma[0].clone();
            second.ports[0].netdev = Some("ens3".into());
            inventory.rdma.extend([second, inventory.rdma[0].clone()]);
        });
        assert!(found_lines(two)[0].starts_with("error fw.roce a: "));
        let card = found_lines(machine("bond", false, vec![drop("udp dport 4791 drop")]));
        assert!(card.len() == 1 && card[0].starts_with("note fw.roce a: "), "{card:?}");
        for other in ["siw", "connectx3", "erdma-compat", "no-rdma"] {
            let machine = machine(other, false, vec![drop("udp dport 4791 drop")]);
            assert!(found(machine).is_empty(), "{other}");
        }
    }

    #[test]
    fn ports_are_accepted_in_the_chain_that_drops_them() {
        let all = |chain: &str, text: &str| FirewallRule {
            chain: chain.into(),
            text: text.into(),
            is_input: true,
            ..FirewallRule::default()
        };
        let fix = |rule| found(machine("no-rdma", false, vec![rule])).remove(0).fix;
        let nft = "sudo nft insert rule inet filter input tcp dport 21000-21511 accept";
        assert_eq!(fix(all("inet filter input", "reject"))[0], run(nft));
        let iptables = "sudo iptables -I LAST -p tcp --dport 21000:21511 -j ACCEPT";
        assert_eq!(fix(all("LAST", "-A LAST -j DROP"))[0], run(iptables));
    }

    fn run(line: &str) -> crate::findings::Step {
        crate::findings::Step::Run(line.into())
    }

    #[test]
    fn every_manager_has_its_own_line() {
        let line = |change: fn(&mut Diagnostics)| {
            let mut steps = found(machine("no-rdma", true, vec![]).diagnosed(change)).remove(0).fix;
            steps.remove(0)
        };
        let firewalld = "sudo firewall-cmd --permanent --add-port=21000-21511/tcp";
        assert_eq!(line(|state| state.services = vec!["firewalld".into()]), run(firewalld));
        let ufw = "sudo ufw allow 21000:21511/tcp";
        assert_eq!(line(|state| state.kernel.ufw_enabled = true), run(ufw));
        let nft = "sudo nft insert rule inet filter input tcp dport 21000-21511 accept";
        assert_eq!(line(|_| ()), run(nft));
        let iptables = "sudo iptables -I INPUT -p tcp --dport 21000:21511 -j ACCEPT";
        let by_iptables =
            |state: &mut Diagnostics| state.firewall.as_mut().unwrap().read_by = "iptables".into();
        assert_eq!(line(by_iptables), run(iptables));
        let tcp = FilterProtocol::Tcp;
        let foreign = FirewallRule {
            chain: "inet lab input".into(),
            ..rule("tcp dport 1024-65535 drop", tcp, &[(1024, 65535)])
        };
        let beside = machine("no-rdma", false, vec![foreign])
            .diagnosed(|state| state.services = vec!["firewalld".into()]);
        let accepted = "sudo nft insert rule inet lab input tcp dport 21000-21511 accept";
        assert_eq!(found(beside).remove(0).fix[0], run(accepted));
    }
}
