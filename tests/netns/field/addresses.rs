//! Addresses that `rlaunch network mesh --apply` takes for a trial come back as they were.

use crate::network_plan::{BOUND, CABLES, drop_probes, plug};
use crate::support::{Field, kill_at_once};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rlaunch_lab::Process;

/// Options of a plan that replaces addresses with other prefixes. The subnet of a and b begins with 192.168.100.
const PLAN: &str = "--apply --prefix 28";

/// Returns what `ip` says of a host's addresses, routes and permanent neighbours, but for the seconds of lifetimes, which
/// run.
fn state(field: &Field, host: &str) -> String {
    let line = "ip -4 -d address show | sed -E 's/[0-9]+sec/Nsec/g'; ip -4 -d route show table all; \
                (ip neigh show nud permanent; ip neigh show proxy) | sort";
    field.on(host, line)
}

fn is_on_trial(field: &Field, host: &str) -> bool {
    field.on(host, "ip -4 address show").contains(" 192.168.100.")
}

/// Lists the agents of `rlaunch network` on all hosts, without their guardians, which are their parents.
fn agents(field: &Field) -> Vec<Process> {
    let mut all = field.lab.all_processes();
    all.retain(|one| one.command_line().ends_with("rlaunch-worker network change"));
    let parents: Vec<i32> = all.iter().map(|one| one.parent).collect();
    all.retain(|one| !parents.contains(&one.pid));
    all
}

/// An address is more than its number: label, broadcast, metric, lifetimes, primary or secondary, and the routes that
/// the kernel removes with it. Two interfaces share a network, so that the order of their routes decides.
#[test]
fn all_that_an_address_had_comes_back() {
    let field = Field::new();
    let _cables = plug(&field, &[("a", "b"), ("a", "c"), ("b", "c")]);
    let _dropped = drop_probes(&field, "b");
    let lines = [
        "sysctl -qw net.ipv4.conf.all.promote_secondaries=0",
        "sysctl -qw net.ipv4.conf.cable-a.promote_secondaries=0",
        "ip address add 192.168.102.8/24 dev cable-c",
        "ip address add 192.168.101.5/24 broadcast 192.168.101.255 metric 77 label cable-a:x \
         valid_lft 3000 preferred_lft 2000 dev cable-a",
        "ip address add 192.168.101.6/24 noprefixroute dev cable-a",
        "ip address add 192.168.102.7/24 dev cable-a",
        "ip route add 172.29.0.0/16 via 192.168.101.9 dev cable-a proto static metric 20 mtu 1400",
        "ip route add 172.28.0.0/16 dev cable-a table 77 src 192.168.101.6",
        "ip route add 172.27.0.0/16 nexthop via 192.168.101.9 dev cable-a weight 2 \
         nexthop via 192.168.102.9 dev cable-a",
    ];
    lines.iter().for_each(|line| drop(field.on("b", line)));
    let before = state(&field, "b");
    let words = format!("network mesh -H a,b,c {CABLES} {PLAN}");
    let running = field.rlaunch(&words).within(BOUND).spawn();
    field.wait_for("other addresses on b", || !field.on("b", "ip -4 address").contains(".101.5/"));
    running.signal(Signal::SIGKILL);
    running.finish_first();
    field.assert_idle();
    assert_eq!(state(&field, "b"), before);
    let listed = field.on("b", "ip -o -4 address show dev cable-a");
    let first = listed.lines().next().unwrap();
    let (_, rest) = first.split_once("valid_lft ").unwrap();
    let left: u32 = rest.split("sec").next().unwrap().parse().unwrap();
    assert!((2900..=3000).contains(&left), "{listed}");
}

/// An agent that is killed, for want of memory for example, is survived by its guardian. With the last IPv4 address of an
/// interface, the kernel removes its permanent neighbours.
#[test]
fn a_killed_agent_leaves_no_address_of_the_trial() {
    let field = Field::new();
    let _cables = plug(&field, &[("a", "b")]);
    let _dropped = drop_probes(&field, "b");
    let lines = [
        "ip address add 192.168.101.5/24 label cable-a:x dev cable-a",
        "ip neigh add 192.168.101.9 lladdr 02:00:00:00:00:09 nud permanent dev cable-a",
        "ip neigh add fe80::9 lladdr 02:00:00:00:00:09 router nud permanent dev cable-a",
        "ip neigh add proxy 192.168.101.77 dev cable-a",
    ];
    lines.iter().for_each(|line| drop(field.on("b", line)));
    let before = ["a", "b"].map(|host| state(&field, host));
    let words = format!("network mesh -H a,b {CABLES} {PLAN}");
    let running = field.rlaunch(&words).within(BOUND).spawn();
    let both = || ["a", "b"].iter().all(|host| is_on_trial(&field, host));
    field.wait_for("addresses of the trial on a and b", both);
    let agents = agents(&field);
    assert_eq!(agents.len(), 2, "{agents:#?}");
    let agents: Vec<Pid> = agents.iter().map(|agent| Pid::from_raw(agent.pid)).collect();
    kill_at_once(&agents);
    let ran = running.finish();
    ran.ended_with(204).says(&["rolled back on a, b"]);
    ran.keeps_quiet_about(&["no word from"]);
    assert_eq!(["a", "b"].map(|host| state(&field, host)), before, "{ran}");
}
