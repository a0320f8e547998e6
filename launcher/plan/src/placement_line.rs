//! `placement: a 0-1 · b 2`: the line at the start of a job that shows which ranks run on which host. It is
//! printed if stderr is a terminal or if something is unusual.

use crate::hosts::{Host, SlotsBy};
use crate::map::{MapBy, RankMap};
use rlaunch_text::message::Message;
use rlaunch_text::text;

/// Maximum number of hosts named in the line, counted separately for hosts with and without ranks.
const HOSTS: usize = 8;
/// Maximum number of rank ranges shown for a host.
const RUNS: usize = 4;

/// Returns the line, for a terminal (`at_terminal`) or if something is unusual.
pub fn message(map: &RankMap, order: MapBy, at_terminal: bool) -> Option<Message> {
    let remarks = remarks(map, order);
    (at_terminal || !remarks.is_empty()).then(|| Message::Line(line(map, &remarks)))
}

fn line(map: &RankMap, remarks: &[String]) -> String {
    let used = map.nodes.iter().map(|node| {
        format!("{} {}", node.host, text::ranges(node.ranks.iter().map(|rank| rank.0), RUNS))
    });
    let idle = map.unused.iter().map(|host| format!("{host} none"));
    let mut parts = Vec::new();
    parts.extend(used.take(HOSTS));
    parts.extend(rest(map.nodes.len(), ""));
    parts.extend(idle.take(HOSTS));
    parts.extend(rest(map.unused.len(), " none"));
    let remarks = match remarks {
        [] => String::new(),
        remarks => format!(" — {}", remarks.join("; ")),
    };
    format!("placement: {}{remarks}", parts.join(" · "))
}

fn rest(hosts: usize, what: &str) -> Option<String> {
    (hosts > HOSTS).then(|| format!("and {} more{what}", hosts - HOSTS))
}

/// Lists what is unusual about a placement: idle hosts, and slots counted from GPUs.
fn remarks(map: &RankMap, order: MapBy) -> Vec<String> {
    let mut remarks = Vec::new();
    let (idle, used) = (map.unused.len(), map.nodes.len());
    if idle > 0 {
        remarks.push(format!("{idle} of {} hosts idle", idle + used));
        let is_crowded = map.nodes.iter().any(|node| node.ranks.len() > 1);
        if is_crowded && order != MapBy::Node {
            remarks.push("--map-by node spreads".to_owned());
        }
    }
    let hosts = || map.nodes.iter().map(|node| &node.host).chain(&map.unused);
    let by_gpus = hosts().filter(|host| host.slots_by == SlotsBy::Gpus);
    let by_gpus: Vec<String> = by_gpus.map(|host| format!("{host} {}", host.slots)).collect();
    if !by_gpus.is_empty() {
        remarks.push(format!("slots are GPUs: {}", text::list(&by_gpus)));
    }
    let without: Vec<&Host> = hosts().filter(|host| host.slots_by == SlotsBy::NoGpu).collect();
    if !without.is_empty() {
        remarks.push(format!("1 slot where there is no GPU: {}", text::list(&without)));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::{self, hostfile};

    fn shown_line(list: &str, order: MapBy, ranks: Option<u32>) -> String {
        let hosts = hosts::parse(&[list.to_owned()]).unwrap();
        let map = RankMap::by(order, &hosts, ranks, false).unwrap();
        line(&map, &remarks(&map, order))
    }

    #[test]
    fn hosts_without_ranks_are_said_with_what_helps() {
        assert_eq!(shown_line("a:2,b", MapBy::Slot, None), "placement: a 0-1 · b 2");
        assert_eq!(
            shown_line("a:8,b:8", MapBy::Slot, Some(2)),
            "placement: a 0-1 · b none — 1 of 2 hosts idle; --map-by node spreads"
        );
        assert_eq!(shown_line("a:8,b:8", MapBy::Node, Some(2)), "placement: a 0 · b 1");
        let idle = "placement: a 0 · b none · c none — 2 of 3 hosts idle";
        assert_eq!(shown_line("a,b,c", MapBy::Slot, Some(1)), idle);
        let idle = "placement: a 0 · b none — 1 of 2 hosts idle";
        assert_eq!(shown_line("a:2,b", MapBy::Node, Some(1)), idle);
    }

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(
            shown_line("a:3,b:1,c:2", MapBy::Node, None),
            "placement: a 0,3,5 · b 1 · c 2,4"
        );
        let expected = "placement: a 0,2,4,6 and 4 more · b 1,3,5,7 and 4 more";
        assert_eq!(shown_line("a:8,b:8", MapBy::Node, None), expected);
        let many = shown_line("n[1-12]:2", MapBy::Slot, Some(18));
        assert!(many.contains("· n8 14-15 · and 1 more · n10 none ·"), "{many}");
        let many = shown_line("n[1-20]", MapBy::Slot, Some(2));
        assert!(many.contains("· n10 none · and 10 more none — 18 of 20 hosts idle"), "{many}");
    }

    #[test]
    fn slots_that_nobody_gave_are_said() {
        let hosts = hostfile::parse("a\nb\nc slots=1\n").unwrap();
        let settled: Vec<Host> =
            hosts.iter().zip([2, 0, 8]).map(|(host, gpus)| host.settled(gpus)).collect();
        let map = RankMap::by(MapBy::Slot, &settled, None, false).unwrap();
        assert_eq!(
            line(&map, &remarks(&map, MapBy::Slot)),
            "placement: a 0-1 · b 2 · c 3 — slots are GPUs: a 2; 1 slot where there is no GPU: b"
        );
    }
}
