//! Links between hosts as text and as JSON.

use super::Surveyed;
use super::links::{self, CableEnd, FoundLink, LinkKind};
use super::standing::{Standing, Wanted};
use crate::commands::output;
use rlaunch_bootstrap::protocol::network::{HostInterface, NETWORK_PORT};
use rlaunch_text::message::Failed;
use rlaunch_text::{columns, firewall, text};
use serde::Serialize;
use std::fmt::Write as _;
use std::net::IpAddr;

/// Hosts, and the links that were found between them.
pub(super) struct Picture<'a> {
    pub(super) hosts: &'a [Surveyed],
    pub(super) links: &'a [FoundLink],
    pub(super) wanted: &'a Wanted,
}

impl Picture<'_> {
    /// Formats cables, switches, interfaces without either, and a summary.
    pub(super) fn to_text(&self) -> String {
        let mut text = self.cables();
        for link in self.links.iter().filter(|link| link.kind == LinkKind::Switch) {
            let ends: Vec<String> = link.ends.iter().map(|end| self.end_name(end)).collect();
            let _ = writeln!(text, "switch: {}   {}", ends.join(", "), self.details(link));
        }
        let others: Vec<Vec<String>> = self.others().iter().map(Other::row).collect();
        if !others.is_empty() {
            text.push_str(if text.is_empty() { "" } else { "\n" });
            // `lay_out` takes the first row for a header.
            let header = vec![vec!["host".into(), "interface".into(), "without a link".into()]];
            text.push_str(&columns::lay_out(&[header, others].concat()));
        }
        let _ = writeln!(text, "{}{}", if text.is_empty() { "" } else { "\n" }, self.summary());
        text
    }

    fn cables(&self) -> String {
        let is_line = |link: &&FoundLink| link.kind != LinkKind::Switch;
        let lines: Vec<[String; 4]> =
            self.links.iter().filter(is_line).flat_map(|link| self.lines(link)).collect();
        let width = |column: usize| {
            lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)
        };
        let (first, second) = (width(0), width(2));
        let mut text = String::new();
        for [one, arrow, other, details] in &lines {
            let line = format!("{one:<first$} {arrow} {other:<second$}   {details}");
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }

    /// Returns a line for each pair of interfaces at the two ends of a cable.
    fn lines(&self, link: &FoundLink) -> Vec<[String; 4]> {
        let details = self.details(link);
        let line = |(index, (one, other)): (usize, (&CableEnd, &CableEnd))| {
            // Both ends of a loop are at one host.
            let is_of_one = |silent: &CableEnd| match link.kind {
                LinkKind::Loop => silent == one,
                LinkKind::Cable | LinkKind::Switch => silent.host == one.host,
            };
            let arrow = match &link.silent[..] {
                [silent] if is_of_one(&silent.from) => "◀─",
                [_] => "─▶",
                _ => "──",
            };
            let details = if index == 0 { details.clone() } else { "the same cable".to_owned() };
            [self.end_name(one), arrow.to_owned(), self.end_name(other), details]
        };
        link.strands().iter().enumerate().map(|(i, (a, b))| line((i, (a, b)))).collect()
    }

    fn end_name(&self, end: &CableEnd) -> String {
        let host = self.hosts.get(end.host).map_or("?", |host| &host.name);
        format!("{host} {}", end.interface)
    }

    fn interface(&self, end: &CableEnd) -> Option<&HostInterface> {
        self.hosts.get(end.host)?.interface(&end.interface)
    }

    /// Describes a link: `100 Gb/s, mtu 1500`. Values that differ between its ends are all named.
    fn details(&self, link: &FoundLink) -> String {
        let interfaces: Vec<&HostInterface> =
            link.ends.iter().filter_map(|end| self.interface(end)).collect();
        let speeds = interfaces.iter().filter_map(|one| one.netdev.speed.map(speed));
        let mtus = interfaces.iter().map(|one| one.netdev.mtu.to_string());
        let mut parts = Vec::new();
        parts.extend(distinct(speeds));
        parts.extend(distinct(mtus).map(|mtu| format!("mtu {mtu}")));
        if link.kind == LinkKind::Loop {
            parts.push("back to its own host".to_owned());
        }
        for silent in &link.silent {
            let (from, at) = (self.end_name(&silent.from), self.end_name(&silent.at));
            parts.push(format!("{at} does not hear {from}"));
        }
        parts.join(", ")
    }

    /// Lists the interfaces without a link.
    fn others(&self) -> Vec<Other> {
        let mut others = Vec::new();
        for (index, host) in self.hosts.iter().enumerate() {
            for interface in &host.network.interfaces {
                let name = interface.netdev.name.clone();
                let end = CableEnd { host: index, interface: name.clone() };
                if self.links.iter().any(|link| link.ends.contains(&end)) {
                    continue;
                }
                let Some(standing) = host.standing(interface, self.wanted) else { continue };
                others.push(Other { host: host.name.clone(), interface: name, standing });
            }
        }
        others
    }

    /// Summarizes the network: `3 hosts, 3 cables: a full mesh`.
    fn summary(&self) -> String {
        let count = |kind| self.links.iter().filter(|link| link.kind == kind).count();
        let mut parts = vec![text::count(self.hosts.len(), "host")];
        let kinds =
            [(LinkKind::Cable, "cable"), (LinkKind::Switch, "switch"), (LinkKind::Loop, "loop")];
        for (kind, noun) in kinds {
            let number = count(kind);
            if number > 0 || kind == LinkKind::Cable {
                parts.push(text::count(number, noun));
            }
        }
        let mut summary = parts.join(", ");
        if self.hosts.len() > 1 {
            let _ = write!(summary, ": {}", self.shape());
        }
        summary
    }

    fn shape(&self) -> String {
        let missing = links::missing_pairs(self.hosts.len(), self.links);
        if missing.is_empty() {
            return "a full mesh".to_owned();
        }
        let name = |host: usize| self.hosts.get(host).map_or("?", |host| &host.name);
        if let Some(ring) = links::find_ring(self.hosts.len(), self.links) {
            let names: Vec<&str> = ring.iter().map(|host| name(*host)).collect();
            return format!("a ring, {}", names.join(" "));
        }
        let pairs: Vec<String> =
            missing.iter().map(|(a, b)| format!("{} and {}", name(*a), name(*b))).collect();
        format!("none between {}", text::list(&pairs))
    }

    /// Returns advice on interfaces that can be asked after a change.
    pub(super) fn hints(&self) -> Vec<String> {
        let others = self.others();
        let mut hints = Vec::new();
        let has = |wanted: &dyn Fn(&Standing) -> bool| others.iter().any(|o| wanted(&o.standing));
        if has(&|standing| *standing == Standing::NothingHeard) {
            hints.push(format!(
                "where nothing is heard, the other end is not at one of these hosts, or a firewall drops beacons; to \
                 let them in:\n  sudo sh -c '{}'\nor\n  sudo ufw allow proto udp from fe80::/10 to any port {NETWORK_PORT}",
                firewall::admission(Some("fe80::/10"), "udp", (NETWORK_PORT, NETWORK_PORT))
            ));
        }
        // On one switch that is where all hosts meet.
        let has_missing = !links::missing_pairs(self.hosts.len(), self.links).is_empty();
        if has_missing && has(&|standing| *standing == Standing::CarriesSsh) {
            hints.push("--all asks the interfaces that carry SSH too".to_owned());
        }
        let is_uplink = |standing: &Standing| {
            matches!(standing, Standing::HasDefaultRoute | Standing::Wireless)
        };
        if has_missing && has(&is_uplink) {
            hints.push(
                "--if NAME asks an interface that is wireless or has the default route too"
                    .to_owned(),
            );
        }
        if has(&|standing| matches!(standing, Standing::Down | Standing::NoLinkLocal)) {
            hints.push("--up sets interfaces up for the time of the discovery, as root".to_owned());
        }
        hints
    }

    pub(super) fn to_json(&self) -> Result<String, Failed> {
        let link = |link: &FoundLink| LinkRecord {
            kind: match link.kind {
                LinkKind::Cable => "cable",
                LinkKind::Loop => "loop",
                LinkKind::Switch => "switch",
            },
            ends: link.ends.iter().map(|end| self.end_record(end)).collect(),
            silent: link.silent.iter().map(|o| [self.place(&o.from), self.place(&o.at)]).collect(),
        };
        let other = |other: &Other| OtherRecord {
            host: other.host.clone(),
            interface: other.interface.clone(),
            why: other.standing.to_string(),
        };
        let missing = links::missing_pairs(self.hosts.len(), self.links);
        let name = |host: usize| self.hosts.get(host).map(|host| host.name.clone());
        let record = PictureRecord {
            hosts: self.hosts.iter().map(|host| host.name.clone()).collect(),
            links: self.links.iter().map(link).collect(),
            without_link: self.others().iter().map(other).collect(),
            is_full_mesh: missing.is_empty(),
            missing: missing.iter().filter_map(|(a, b)| Some([name(*a)?, name(*b)?])).collect(),
        };
        output::json(&record)
    }

    fn place(&self, end: &CableEnd) -> [String; 2] {
        let host = self.hosts.get(end.host).map(|host| host.name.clone());
        [host.unwrap_or_default(), end.interface.clone()]
    }

    fn end_record(&self, end: &CableEnd) -> EndRecord {
        let [host, interface] = self.place(end);
        let found = self.interface(end);
        EndRecord {
            host,
            interface,
            speed_mbit: found.and_then(|one| one.netdev.speed),
            mtu: found.map(|one| one.netdev.mtu),
            rdma: found.map(|one| one.rdma.clone()).unwrap_or_default(),
            addresses: found.map(|one| one.netdev.addresses.clone()).unwrap_or_default(),
        }
    }
}

/// Interface without a link.
struct Other {
    host: String,
    interface: String,
    standing: Standing,
}

impl Other {
    fn row(&self) -> Vec<String> {
        let fix = self.standing.fix().map(|line| format!(": {line}")).unwrap_or_default();
        vec![self.host.clone(), self.interface.clone(), format!("{}{fix}", self.standing)]
    }
}

/// Formats a speed in Mb/s: `200 Gb/s`.
fn speed(megabits: u32) -> String {
    match megabits {
        1000.. => format!("{} Gb/s", f64::from(megabits) / 1000.0),
        _ => format!("{megabits} Mb/s"),
    }
}

/// Joins different values in their order; `None` without any.
fn distinct(values: impl Iterator<Item = String>) -> Option<String> {
    let mut kept: Vec<String> = Vec::new();
    for value in values {
        if !kept.contains(&value) {
            kept.push(value);
        }
    }
    (!kept.is_empty()).then(|| kept.join(" / "))
}

/// Output of `--json`.
#[derive(Serialize)]
struct PictureRecord {
    hosts: Vec<String>,
    links: Vec<LinkRecord>,
    without_link: Vec<OtherRecord>,
    is_full_mesh: bool,
    /// Pairs of hosts without a link.
    missing: Vec<[String; 2]>,
}

#[derive(Serialize)]
struct LinkRecord {
    kind: &'static str,
    ends: Vec<EndRecord>,
    /// Directions in which nothing arrived: from this interface of a host, at that one.
    silent: Vec<[[String; 2]; 2]>,
}

#[derive(Serialize)]
struct EndRecord {
    host: String,
    interface: String,
    speed_mbit: Option<u32>,
    mtu: Option<u32>,
    rdma: Vec<String>,
    addresses: Vec<(IpAddr, u8)>,
}

#[derive(Serialize)]
struct OtherRecord {
    host: String,
    interface: String,
    why: String,
}

#[cfg(test)]
mod tests {
    use super::super::links::Observation;
    use super::super::testing::{cable, end, interface, three_hosts, triangle};
    use super::*;
    use rlaunch_plan::testing::is_golden;

    fn text(hosts: &[Surveyed], links: &[FoundLink]) -> String {
        Picture { hosts, links, wanted: &Wanted::default() }.to_text()
    }

    #[test]
    fn a_triangle_is_a_full_mesh() {
        is_golden("network-triangle", &text(&three_hosts(), &triangle()));
    }

    /// One of each: a cable of two interfaces, one direction, a switch, a loop, and every reason for none.
    #[test]
    fn everything_that_can_be_found_has_a_line() {
        let mut hosts = three_hosts();
        let more = ["half1", "half2", "loop1", "loop2", "sw"];
        hosts[0].network.interfaces.extend(more.map(interface));
        hosts[1].network.interfaces.extend(["half1", "half2", "sw", "lone"].map(interface));
        let mut slow = interface("sw");
        (slow.netdev.speed, slow.netdev.mtu) = (Some(2500), 9000);
        hosts[2].network.interfaces.push(slow);
        hosts[2].hearing.mute = vec![("enp1s0f1np1".into(), "Permission denied".into())];
        let mut down = interface("down");
        (down.is_up, down.netdev.running) = (false, false);
        hosts[2].network.interfaces.push(down);
        let halves = [end(0, "half1"), end(0, "half2"), end(1, "half1"), end(1, "half2")];
        for host in &mut hosts[..2] {
            for one in &mut host.network.interfaces {
                one.socket = one.netdev.name.starts_with("half").then(|| "guid p0".to_owned());
            }
        }
        let mut one_way = cable((0, "enp1s0f0np0"), (1, "enp1s0f0np0"));
        let silent = Observation { from: end(1, "enp1s0f0np0"), at: end(0, "enp1s0f0np0") };
        one_way.silent = vec![silent];
        let link =
            |kind, ends: &[CableEnd]| FoundLink { kind, ends: ends.to_vec(), silent: Vec::new() };
        let links = [
            one_way,
            link(LinkKind::Cable, &halves),
            link(LinkKind::Loop, &[end(0, "loop1"), end(0, "loop2")]),
            link(LinkKind::Switch, &[end(0, "sw"), end(1, "sw"), end(2, "sw")]),
        ];
        is_golden("network-everything", &text(&hosts, &links));
        let picture = Picture { hosts: &hosts, links: &links, wanted: &Wanted::default() };
        let hints = picture.hints();
        assert!(hints[0].contains("udp dport 40000") && hints[1].contains("--up"), "{hints:?}");
        is_golden("network-everything-json", &picture.to_json().unwrap());
    }

    #[test]
    fn a_loop_has_an_arrow_for_one_direction() {
        let hosts = three_hosts();
        let [one, other] = ["enp1s0f0np0", "enp1s0f1np1"].map(|name| end(0, name));
        let shown = |silent: Vec<Observation>| {
            let ends = vec![one.clone(), other.clone()];
            let text = text(&hosts, &[FoundLink { kind: LinkKind::Loop, ends, silent }]);
            text.lines().next().unwrap_or_default().to_owned()
        };
        let silent = |from: &CableEnd, at: &CableEnd| {
            vec![Observation { from: from.clone(), at: at.clone() }]
        };
        let line = |arrow: &str| format!("titanic enp1s0f0np0 {arrow} titanic enp1s0f1np1   ");
        assert!(shown(silent(&one, &other)).starts_with(&line("◀─")));
        assert!(shown(silent(&other, &one)).starts_with(&line("─▶")));
        assert!(shown(Vec::new()).starts_with(&line("──")));
    }

    #[test]
    fn hosts_that_are_not_linked_may_meet_where_ssh_is() {
        let hosts = three_hosts();
        let hints = |links: &[FoundLink]| {
            Picture { hosts: &hosts, links, wanted: &Wanted::default() }.hints()
        };
        let asks_all = |hints: Vec<String>| hints.iter().any(|hint| hint.starts_with("--all "));
        assert!(asks_all(hints(&[])) && !asks_all(hints(&triangle())));
    }

    #[test]
    fn pairs_without_a_link_and_rings_are_named() {
        let hosts = three_hosts();
        let shown = text(&hosts, &triangle()[..1]);
        let last = "3 hosts, 1 cable: none between titanic and carpathia, iceberg and carpathia\n";
        assert!(shown.ends_with(last), "{shown}");
        let mut hosts = hosts;
        let mut fourth = hosts[0].clone();
        fourth.name = "olympic".into();
        hosts.push(fourth);
        let links = [(0, 1), (1, 2), (2, 3), (0, 3)];
        let links = links.map(|(a, b)| cable((a, "enp1s0f0np0"), (b, "enp1s0f1np1")));
        let shown = text(&hosts, &links);
        let last = "4 hosts, 4 cables: a ring, titanic iceberg carpathia olympic\n";
        assert!(shown.ends_with(last), "{shown}");
        let shown = text(&hosts[..1], &[]);
        assert!(shown.ends_with("\n1 host, 0 cables\n"), "{shown}");
    }
}
