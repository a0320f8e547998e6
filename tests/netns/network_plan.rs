//! `rlaunch network` on hosts with cables between them, which are pairs of virtual Ethernet
//! interfaces.

use crate::support::{Field, Undo};
use nix::sys::signal::Signal;
use rlaunch_lab::setup::unpacked::{netplan_generator, nmcli};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// Option that makes software interfaces ports for cables.
pub(crate) const CABLES: &str = "--if cable*";
/// Time limit for a discovery, changes, and probes that get no answer within 5 s.
pub(crate) const BOUND: Duration = Duration::from_secs(90);

/// Plugs cables between hosts. They are unplugged when the guard is dropped.
pub(crate) fn plug<'a>(field: &'a Field, pairs: &'a [(&'a str, &'a str)]) -> impl Drop + use<'a> {
    for (one, other) in pairs {
        field.lab.plug(one, other).unwrap();
    }
    Undo(move || pairs.iter().try_for_each(|(one, other)| field.lab.unplug(one, other)))
}

/// Returns the IPv4 addresses of a host's ends of cables, each as `cable-b 192.168.100.2/24`.
fn addresses(field: &Field, host: &str) -> Vec<String> {
    let listed: Value = serde_json::from_str(&field.on(host, "ip -j -4 address show")).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let interfaces = listed.as_array().unwrap().iter();
    let lines = interfaces.flat_map(|one| {
        let infos = one["addr_info"].as_array().into_iter().flatten();
        infos.map(move |info| {
            let address = format!("{}/{}", text(&info["local"]), info["prefixlen"]);
            format!("{} {address}", text(&one["ifname"]))
        })
    });
    lines.filter(|line| line.starts_with("cable-")).collect()
}

/// Makes a host drop UDP over IPv4 from cables, so that probes fail. Beacons pass.
pub(crate) fn drop_probes<'a>(field: &'a Field, host: &'a str) -> impl Drop + use<'a> {
    let chain = "{ type filter hook input priority 0; }";
    let line = format!(
        "nft add table inet probes && nft add chain inet probes c '{chain}' && \
         nft add rule inet probes c iifname 'cable*' ip protocol udp drop"
    );
    field.on(host, &line);
    Undo(move || {
        field.on(host, "nft delete table inet probes");
        Ok::<(), String>(())
    })
}

#[test]
fn cables_without_addresses_are_found() {
    let field = Field::new();
    let _cables = plug(&field, &[("a", "b"), ("a", "c"), ("b", "c")]);
    let ran = field.rlaunch(&format!("network discover -H a,b,c {CABLES}")).within(BOUND).run();
    let out = ran.succeeded().out().into_owned();
    for cable in ["a cable-b ── b cable-a", "a cable-c ── c cable-a", "b cable-c ── c cable-b"]
    {
        assert!(out.lines().any(|line| line.starts_with(cable)), "{cable}: {ran}");
    }
    assert!(out.ends_with("\n3 hosts, 3 cables: a full mesh\n"), "{ran}");
    let words = format!("network discover -H a,b,c {CABLES} --json");
    let ran = field.rlaunch(&words).within(BOUND).run();
    let found: Value = serde_json::from_str(&ran.succeeded().out()).unwrap();
    assert_eq!(found["links"].as_array().unwrap().len(), 3, "{ran}");
    assert_eq!(found["is_full_mesh"], true, "{ran}");
}

/// Every host is at the bridge with its `eth0`, which carries SSH.
#[test]
fn the_network_of_all_hosts_is_a_switch() {
    let field = Field::new();
    let ran = field.rlaunch("network discover -H a,b,c --all --if eth0").within(BOUND).run();
    let out = ran.succeeded().out().into_owned();
    assert!(out.starts_with("switch: a eth0, b eth0, c eth0 "), "{ran}");
    let ran = field.rlaunch("network discover -H a,b,c --if eth0").within(BOUND).run();
    let out = ran.succeeded().out().into_owned();
    assert_eq!(out.matches("carries SSH, not asked").count(), 3, "{ran}");
    assert!(out.ends_with(", 0 cables: none between a and b, a and c, b and c\n"), "{ran}");
}

#[test]
fn an_interface_that_is_down_is_asked_only_if_the_user_wants_that() {
    let field = Field::new();
    let _cables = plug(&field, &[("a", "b")]);
    field.on("a", "ip link set cable-b down");
    let ran = field.rlaunch(&format!("network discover -H a,b {CABLES}")).within(BOUND).run();
    assert!(ran.succeeded().out().contains("down, not asked"), "{ran}");
    ran.says(&["--up"]);
    let ran = field.rlaunch(&format!("network discover -H a,b {CABLES} --up")).within(BOUND).run();
    assert!(ran.succeeded().out().starts_with("a cable-b ── b cable-a"), "{ran}");
    ran.says(&["a: cable-b set up for the time of the discovery"]);
    let state = field.on("a", "cat /sys/class/net/cable-b/flags");
    assert_eq!(u32::from_str_radix(state.trim().trim_start_matches("0x"), 16).unwrap() & 1, 0);
}

#[test]
fn addresses_are_given_and_answer() {
    let field = Field::new();
    let _cables = plug(&field, &[("a", "b"), ("a", "c"), ("b", "c")]);
    let words = format!("network mesh -H a,b,c {CABLES} --apply");
    let ran = field.rlaunch(&words).within(BOUND).run();
    ran.succeeded().says(&["6 changes made; 3 links answered", "until the next boot"]);
    let of = |host| addresses(&field, host);
    assert_eq!(of("a"), ["cable-b 192.168.101.2/24", "cable-c 192.168.100.2/24"]);
    assert_eq!(of("b"), ["cable-a 192.168.101.3/24", "cable-c 192.168.102.2/24"]);
    assert_eq!(of("c"), ["cable-a 192.168.100.3/24", "cable-b 192.168.102.3/24"]);
    let greeting = "exec 3<>/dev/tcp/192.168.101.3/22; head -c 4 <&3";
    assert_eq!(field.on("a", &format!("timeout 5 bash -c '{greeting}'")), "SSH-");
    let again = field.rlaunch(&words).within(BOUND).run();
    again.succeeded().says(&["0 changes made; 3 links answered"]);
}

#[test]
fn a_plan_whose_links_do_not_answer_is_rolled_back() {
    let field = Field::new();
    let _cables = plug(&field, &[("a", "b")]);
    let _dropped = drop_probes(&field, "b");
    // Without this setting, the second address goes together with the first.
    field.on("b", "sysctl -qw net.ipv4.conf.all.promote_secondaries=0");
    field.on("b", "sysctl -qw net.ipv4.conf.cable-a.promote_secondaries=0");
    let others = ["192.168.103.9/24", "192.168.103.10/24"];
    others.iter().for_each(|own| drop(field.on("b", &format!("ip address add {own} dev cable-a"))));
    let words = format!("network mesh -H a,b {CABLES} --apply --mtu 4000");
    let ran = field.rlaunch(&words).within(BOUND).run();
    ran.ended_with(204).says(&["rolled back on a, b", "2 of 2 directions do not answer"]);
    assert_eq!(addresses(&field, "a"), [""; 0], "{ran}");
    let mut left = addresses(&field, "b");
    left.sort();
    assert_eq!(left, ["cable-a 192.168.103.10/24", "cable-a 192.168.103.9/24"], "{ran}");
    assert_eq!(field.on("a", "cat /sys/class/net/cable-b/mtu"), "1500\n");
}

#[test]
fn a_launcher_killed_before_it_confirms_leaves_no_address() {
    let field = Field::new();
    let _cables = plug(&field, &[("a", "b")]);
    let _dropped = drop_probes(&field, "b");
    let words = format!("network mesh -H a,b {CABLES} --apply");
    let running = field.rlaunch(&words).within(BOUND).spawn();
    let both = || [addresses(&field, "a"), addresses(&field, "b")].concat();
    let given = ["cable-b 192.168.100.2/24", "cable-a 192.168.100.3/24"];
    field.wait_for("addresses on a and b", || both() == given);
    running.signal(Signal::SIGKILL);
    field.wait_for("no addresses on a and b", || both().is_empty());
    running.finish_first();
}

/// A suspended launcher neither confirms the changes nor closes its connections.
#[test]
fn changes_that_are_not_confirmed_in_time_are_undone() {
    let field = Field::new();
    let _cables = plug(&field, &[("a", "b")]);
    let _dropped = drop_probes(&field, "b");
    let words = format!("network mesh -H a,b {CABLES} --apply --confirm-timeout 10");
    let running = field.rlaunch(&words).within(BOUND).spawn();
    let both = || [addresses(&field, "a"), addresses(&field, "b")].concat();
    field.wait_for("addresses on a and b", || both().len() == 2);
    running.signal(Signal::SIGSTOP);
    field.wait_for("no addresses on a and b", || both().is_empty());
    running.signal(Signal::SIGCONT);
    running.finish_first().ended_with(204);
}

#[test]
fn interfaces_that_are_down_are_set_up_to_stay() {
    let field = Field::new();
    let _cables = plug(&field, &[("a", "b")]);
    field.on("a", "ip link set cable-b down");
    let words = format!("network mesh -H a,b {CABLES} --up --apply");
    let ran = field.rlaunch(&words).within(BOUND).run();
    ran.succeeded().says(&["3 changes made; 1 link answered, 2 directions"]);
    assert_eq!(addresses(&field, "a"), ["cable-b 192.168.100.2/24"]);
}

#[test]
fn addresses_of_a_base_that_a_host_has_elsewhere_are_refused() {
    let field = Field::new();
    let _cables = plug(&field, &[("a", "b")]);
    let own = field.lab.address("a").unwrap().octets();
    let base = format!("{}.{}.0.0/16", own[0], own[1]);
    let words = format!("network mesh -H a,b {CABLES} --apply --base {base}");
    let ran = field.rlaunch(&words).within(BOUND).run();
    ran.refused(200, &[&format!("{base} overlaps {base} on a (eth0)"), "is free on all hosts"]);
    assert_eq!(addresses(&field, "a"), [""; 0], "{ran}");
}

#[test]
fn an_account_without_rights_is_told_before_anything_is_changed() {
    let field = Field::new();
    let _cables = plug(&field, &[("a", "b")]);
    let words = format!("network mesh -H a,b {CABLES} --apply");
    let account = rlaunch_lab::Account::User;
    let ran = field.rlaunch(&words).account(account).within(BOUND).run();
    ran.refused(200, &["--apply needs root or sudo without a password on a, b"]);
    // Without --apply, rights are not needed.
    let ran = field.rlaunch(&format!("network mesh -H a,b {CABLES}")).account(account);
    let ran = ran.within(BOUND).run();
    assert!(ran.succeeded().out().contains("- 192.168.100.2/24"), "{ran}");
}

/// Returns what `rlaunch network mesh` writes for each of three hosts, from the file with which its own tests compare it.
fn written(format: &str) -> Vec<String> {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../launcher/goldens");
    let text = fs::read_to_string(goldens.join(format!("network-{format}.txt"))).unwrap();
    let files = text.split("=== ").skip(1).map(|file| file.split_once('\n').unwrap().1.to_owned());
    let files: Vec<String> = files.collect();
    assert_eq!(files.len(), 3, "{text}");
    files
}

/// Lets netplan generate the files of systemd-networkd; returns them in one text, or the error.
fn generated(file: &str) -> Result<String, String> {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("etc/netplan/99-rdma-mesh.yaml");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, file).unwrap();
    // As the administrator is to write it, or netplan warns.
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let mut netplan = netplan_generator().unwrap();
    let output = netplan.arg("--root-dir").arg(root.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() || said.contains("rror") {
        return Err(said);
    }
    let made = fs::read_dir(root.path().join("run/systemd/network")).unwrap().flatten();
    Ok(made.map(|file| fs::read_to_string(file.path()).unwrap()).collect())
}

/// Other programs read what `rlaunch network mesh` writes for them, and refuse what is wrong in it.
#[test]
fn netplan_and_nmcli_accept_what_is_written_for_them() {
    netplan_accepts_its_files();
    nmcli_accepts_its_commands();
}

fn netplan_accepts_its_files() {
    for file in written("netplan") {
        let made = generated(&file).unwrap();
        let addresses = file.lines().filter_map(|line| line.trim().strip_prefix("- "));
        let addresses: Vec<&str> = addresses.collect();
        assert_eq!(addresses.len(), 2, "{file}");
        for address in addresses {
            assert!(made.contains(&format!("Address={address}\n")), "{file}\n{made}");
        }
        generated(&file.replace("/24", "/99")).unwrap_err();
    }
}

fn nmcli_accepts_its_commands() {
    let profile = |line: &str| {
        let mut nmcli = nmcli().unwrap();
        // None of these words is quoted.
        let output = nmcli.arg("--offline").args(line.split(' ').skip(1)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() { Ok(text) } else { Err(said) }
    };
    let files = written("nmcli").concat();
    let lines = files.lines().filter(|line| line.contains(" connection add "));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), 6, "{files}");
    for line in lines {
        let text = profile(line).unwrap();
        let has_line = |wanted: &str| text.lines().any(|line| line == wanted);
        let is_ib = line.contains(" type infiniband ");
        assert!(has_line(if is_ib { "type=infiniband" } else { "type=ethernet" }), "{text}");
        assert!(has_line("method=manual"), "{text}");
        assert_eq!(has_line("transport-mode=datagram"), is_ib, "{text}");
        assert_eq!(has_line("mtu=9000"), !is_ib, "{text}");
        profile(&line.replace("/24", "/99")).unwrap_err();
    }
}
