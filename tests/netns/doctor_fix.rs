//! `rlaunch doctor --fix` on hosts whose `/var/lib` is their own for the time of a test: a fault is seen, fixed, proved gone,
//! and back after `rlaunch down`.

use crate::network_plan::plug;
use crate::running::Outcome;
use crate::support::{Field, Undo, launch_directory};
use rlaunch_lab::Account;
use serde_json::Value;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// Time limit for two or three examinations and the changes between them.
const BOUND: Duration = Duration::from_secs(90);

/// Lets hosts keep a journal of their changes.
fn own_journals<'a>(field: &'a Field, hosts: &'a [&'a str]) -> impl Drop + use<'a> {
    for host in hosts {
        field.on(host, "mount -t tmpfs own /var/lib");
    }
    on_drop(field, hosts, "umount /var/lib")
}

/// Lets a host write to /etc.
fn own_etc<'a>(field: &'a Field, hosts: &'a [&'a str]) -> impl Drop + use<'a> {
    for host in hosts {
        field.on(
            host,
            "mkdir -p /run/etc/upper /run/etc/work && \
             mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work /etc",
        );
    }
    on_drop(field, hosts, "umount /etc && rm -rf /run/etc")
}

/// Runs a line on hosts when the guard is dropped.
fn on_drop<'a>(field: &'a Field, hosts: &'a [&'a str], line: &'a str) -> impl Drop + use<'a> {
    Undo(move || {
        hosts.iter().for_each(|host| drop(field.on(host, line)));
        Ok::<(), String>(())
    })
}

fn fix(field: &Field, words: &str) -> Outcome {
    field.rlaunch(&format!("doctor --probe=never {words}")).within(BOUND).run()
}

fn json(ran: &Outcome) -> Value {
    serde_json::from_str(&ran.out()).unwrap_or_else(|error| panic!("{error}: {ran}"))
}

/// Returns what came of the fixes, each as `ID HOSTS OUTCOME`.
fn outcomes(report: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let line = |fix: &Value| {
        let hosts: Vec<String> = fix["hosts"].as_array().unwrap().iter().map(text).collect();
        format!("{} {} {}", text(&fix["id"]), hosts.join(","), text(&fix["outcome"]))
    };
    report["fixes"].as_array().unwrap_or_else(|| panic!("{report:#}")).iter().map(line).collect()
}

fn has(report: &Value, id: &str) -> bool {
    report["findings"].as_array().unwrap().iter().any(|finding| finding["id"] == id)
}

/// Makes sure that `line` prints the same on a host before the fault is fixed, and after the fix is undone; that the fault is
/// found, fixed and proved gone; and that a second run finds nothing to do.
fn is_fixed_and_undone(field: &Field, id: &str, host: &str, line: &str) {
    let before = field.on(host, line);
    let ran = fix(field, &format!("--json -H a,{host}"));
    assert!(has(&json(&ran), id), "not seen: {ran}");
    let ran = fix(field, &format!("--json --fix {id} --yes -H a,{host}"));
    let report = json(&ran);
    assert_eq!(outcomes(&report), [format!("{id} {host} fixed")], "{ran}");
    assert!(!has(&report, id), "{ran}");
    assert_ne!(field.on(host, line), before, "{ran}");
    let again = fix(field, &format!("--fix {id} --yes -H a,{host}"));
    again.says(&["nothing here that rlaunch can fix by itself"]);
    let ran = field.rlaunch(&format!("down -H a,{host}")).within(BOUND).run();
    ran.succeeded();
    assert_eq!(field.on(host, line), before, "not as before: {ran}");
    let ran = fix(field, &format!("--json -H a,{host}"));
    assert!(has(&json(&ran), id), "not back: {ran}");
}

/// Drops the ports of agents on a host.
fn filter<'a>(field: &'a Field, host: &'a str) -> impl Drop + use<'a> {
    field.on(
        host,
        "nft add table inet t && nft add chain inet t c '{ type filter hook input priority 0; }' && \
         nft add rule inet t c tcp dport 1024-65535 drop",
    );
    Undo(move || {
        field.on(host, "nft delete table inet t");
        Ok::<(), String>(())
    })
}

#[test]
fn ports_are_opened_in_the_packet_filter_and_closed_again() {
    let field = Field::new();
    let _journals = own_journals(&field, &["a", "b"]);
    let _filter = filter(&field, "b");
    is_fixed_and_undone(&field, "fw.ports", "b", "nft list ruleset");
}

#[test]
fn what_others_may_notice_needs_consent() {
    let field = Field::new();
    let _journals = own_journals(&field, &["a", "b"]);
    let _filter = filter(&field, "b");
    let before = field.on("b", "nft list ruleset");
    let ran = fix(&field, "--json --fix fw -H a,b");
    assert_eq!(outcomes(&json(&ran)), ["fw.ports b skipped"], "{ran}");
    let ran = fix(&field, "--fix fw --dry-run -H a,b");
    let out = ran.succeeded().out().into_owned();
    let script =
        "# on b, as root\n# fw.ports\nnft insert rule inet t c tcp dport 21000-21511 accept\n";
    assert!(out.contains(script), "{ran}");
    assert_eq!(field.on("b", "nft list ruleset"), before);
    assert_eq!(field.on("b", "ls /var/lib"), "", "no journal");
}

/// Leads a host's own name to an address of another machine.
fn wrong_name<'a>(field: &'a Field, host: &'a str) -> impl Drop + use<'a> {
    let lines = "(echo 192.0.2.7 $(hostname); cat /etc/hosts) > /run/hosts";
    field.on(host, &format!("{lines} && mount --bind /run/hosts /etc/hosts"));
    Undo(move || {
        field.on(host, "umount /etc/hosts && rm /run/hosts");
        Ok::<(), String>(())
    })
}

#[test]
fn an_own_name_is_led_to_an_own_address() {
    let field = Field::new();
    let _journals = own_journals(&field, &["a", "b"]);
    let _hosts = wrong_name(&field, "b");
    is_fixed_and_undone(&field, "net.name", "b", "cat /etc/hosts");
}

/// The sshd of the lab does not use PAM, so that a new login has the limit of the sshd.
#[test]
fn a_limit_of_logins_that_only_a_new_sshd_gives_is_said() {
    let field = Field::new();
    let _journals = own_journals(&field, &["a", "b"]);
    let _etc = own_etc(&field, &["b"]);
    field.on("b", "prlimit --nofile=512:512 --pid $(pgrep -o sshd)");
    // Nothing here may raise the limit of a process.
    let _limit = Undo(|| field.lab.sshd("b")?.restart(&[]));
    let ran = fix(&field, "--json --fix lim.files -H a,b");
    let report = json(&ran);
    assert_eq!(outcomes(&report), ["lim.files b waits"], "{ran}");
    let why = report["fixes"][0]["why"].as_str().unwrap();
    assert!(why.starts_with("needs a reboot, or `sudo systemctl daemon-reload"), "{ran}");
    let file = "/etc/security/limits.d/90-rlaunch-nofile.conf";
    let lines = "* soft nofile 65536\nroot soft nofile 65536\n* hard nofile 524288\nroot hard nofile 524288\n";
    assert_eq!(field.on("b", &format!("cat {file}")), lines);
    field.rlaunch("down -H a,b").within(BOUND).run().succeeded();
    assert_eq!(
        field.on("b", &format!("ls {file} 2>&1 || true")).matches("No such file").count(),
        1
    );
}

/// Only the machine where rlaunch runs is changed, so that no journal is needed.
#[test]
fn a_key_that_others_may_read_is_corrected_here() {
    let field = Field::new();
    let directory = launch_directory();
    let (key, config) = (directory.path().join("key"), directory.path().join("config"));
    let begin =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    fs::write(&key, begin).unwrap();
    fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap();
    // The lab's own key logs in.
    let text = format!(
        "Host a b\n  IdentityFile ~/.ssh/id_ed25519\n  IdentityFile {}\n  StrictHostKeyChecking no\n  \
         UserKnownHostsFile /dev/null\n",
        key.display()
    );
    fs::write(&config, text).unwrap();
    let words = format!("--json --fix ssh.perms -H a,b --ssh-config {}", config.display());
    let ran = fix(&field, &words);
    let report = json(&ran);
    assert_eq!(outcomes(&report), ["ssh.perms  fixed"], "{ran}");
    assert!(!has(&report, "ssh.perms"), "{ran}");
    assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

/// The account of the lab is in no sudoers file.
#[test]
fn an_account_without_root_is_told_so_and_the_fault_stays() {
    let field = Field::new();
    let _hosts = wrong_name(&field, "b");
    let run = field.rlaunch("doctor --probe=never --json --fix net.name --yes -H a,b");
    let ran = run.account(Account::User).within(BOUND).run();
    let report = json(&ran);
    assert_eq!(outcomes(&report), ["net.name b failed"], "{ran}");
    ran.says(&["b: root is needed"]);
    assert!(has(&report, "net.name"), "{ran}");
}

#[test]
fn what_rlaunch_never_fixes_is_refused() {
    let field = Field::new();
    let refused = |id: &str, words: &[&str]| {
        field.rlaunch(&format!("doctor --fix {id} -H a,b")).run().refused(200, words);
    };
    refused("gpu.acs", &["gpu.acs is not fixed by rlaunch: ", "rlaunch help gpu.acs"]);
    refused(
        "mesh.subnet",
        &["mesh.subnet is not fixed by rlaunch", "rlaunch network mesh --apply"],
    );
    refused("net.arpp", &["no check has the id", "did you mean net.arp?"]);
    field.rlaunch("doctor --yes -H a").run().refused(200, &["--fix"]);
}

/// Gives a host an RDMA adapter in sysfs and /dev, at an interface that gets an address. There is no hardware behind it, and all
/// else is the host's own: interface, addresses, MTU, settings of the kernel.
fn adapter<'a>(
    field: &'a Field,
    host: &'static str,
    (name, driver): (&str, &str),
    (interface, address): (&str, Ipv4Addr),
) -> impl Drop + use<'a> {
    let [a, b, c, d] = address.octets();
    let gid = format!("0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}");
    let line = format!(
        "set -e; ip address add {address}/24 dev {interface}
         mkdir /run/rdma; mount -t tmpfs -o mode=755 own /run/rdma; cd /run/rdma; mkdir class kernel dev work1 work2 work3 new
         mount -t overlay own -o lowerdir=/sys/class,upperdir=class,workdir=work1 /sys/class
         mount -t overlay own -o lowerdir=/sys/kernel,upperdir=kernel,workdir=work2 /sys/kernel
         mount -t overlay own -o lowerdir=/dev,upperdir=dev,workdir=work3 new
         mkdir new/infiniband; touch new/infiniband/uverbs0 new/infiniband/rdma_cm; chmod 666 new/infiniband/*
         mount --rbind /dev/pts new/pts; mount --rbind /dev/shm new/shm; mount --rbind new /dev
         d=/sys/class/infiniband/{name}; p=$d/ports/1; v=/sys/class/infiniband_verbs/uverbs0
         mkdir -p $d/device $p/gids $p/gid_attrs/types $p/gid_attrs/ndevs $v
         ln -s /sys/bus/pci/drivers/{driver} $d/device/driver; echo '1: CA' > $d/node_type
         echo {name} > $v/ibdev; echo 1 > $v/abi_version
         echo '4: ACTIVE' > $p/state; echo '5: LinkUp' > $p/phys_state; echo Ethernet > $p/link_layer
         echo '100 Gb/sec (4X EDR)' > $p/rate; echo {gid} > $p/gids/0
         echo 'RoCE v2' > $p/gid_attrs/types/0; echo {interface} > $p/gid_attrs/ndevs/0"
    );
    field.on(host, &line);
    Undo(move || {
        let line = "umount -Rl /dev; umount -l /sys/kernel /sys/class; umount -Rl /run/rdma; rmdir /run/rdma";
        field.on(host, line);
        Ok::<(), String>(())
    })
}

/// Returns adapters at both ends of the cable between `a` and `b`.
fn adapters(field: &Field) -> (impl Drop + use<'_>, impl Drop + use<'_>) {
    let card = ("mlx5_0", "mlx5_core");
    (
        adapter(field, "a", card, ("cable-b", Ipv4Addr::new(192, 168, 60, 1))),
        adapter(field, "b", card, ("cable-a", Ipv4Addr::new(192, 168, 60, 2))),
    )
}

/// Returns the MTU of both ends of the cable between `a` and `b`.
fn mtus(field: &Field) -> [String; 2] {
    [("a", "cable-b"), ("b", "cable-a")]
        .map(|(host, end)| field.on(host, &format!("cat /sys/class/net/{end}/mtu")))
}

#[test]
fn ports_of_erdma_are_kept_from_programs_until_they_are_given_back() {
    let field = Field::new();
    let _journals = own_journals(&field, &["a", "b"]);
    let _etc = own_etc(&field, &["b"]);
    let _cable = plug(&field, &[("a", "b")]);
    let address = ("cable-a", Ipv4Addr::new(192, 168, 60, 2));
    let _adapter = adapter(&field, "b", ("erdma_0", "erdma"), address);
    let files = ["ip_local_port_range", "ip_local_reserved_ports"]
        .map(|name| format!("/proc/sys/net/ipv4/{name}"));
    let before = files.each_ref().map(|file| field.on("b", &format!("cat {file}")));
    let set = |values: &[&str]| {
        let both = files.iter().zip(values);
        both.for_each(|(file, value)| drop(field.on("b", &format!("echo '{value}' > {file}"))));
    };
    let _settings = Undo(|| {
        set(&[before[0].trim(), before[1].trim()]);
        Ok::<(), String>(())
    });
    // One that somebody else has reserved stays so.
    set(&["1024 65535", "8080"]);
    let reserved = format!("cat {}; ls /etc/sysctl.d", files[1]);
    is_fixed_and_undone(&field, "net.reserved", "b", &reserved);
}

#[test]
fn packets_become_large_and_the_connection_manager_uses_version_2() {
    let field = Field::new();
    let _journals = own_journals(&field, &["a", "b"]);
    let _cable = plug(&field, &[("a", "b")]);
    let _adapters = adapters(&field);
    let mode = "/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode";
    field.on("b", &format!("mkdir -p $(dirname {mode}) && echo 'IB/RoCE v1' > {mode}"));
    let words = "doctor --json --fix mtu.rdma,roce.cm-mode --yes -H a,b";
    let ran = field.rlaunch(words).within(BOUND).run();
    let mut fixed = outcomes(&json(&ran));
    fixed.sort_unstable();
    assert_eq!(fixed, ["mtu.rdma a fixed", "mtu.rdma b fixed", "roce.cm-mode b fixed"], "{ran}");
    assert_eq!(mtus(&field), ["9000\n"; 2], "{ran}");
    assert_eq!(field.on("b", &format!("cat {mode}")), "RoCE v2\n", "{ran}");
    let ran = field.rlaunch("down -H a,b").within(BOUND).run();
    ran.succeeded();
    assert_eq!(mtus(&field), ["1500\n"; 2], "{ran}");
    assert_eq!(field.on("b", &format!("cat {mode}")), "IB/RoCE v1\n", "{ran}");
}

/// A packet filter takes the place of a switch whose ports carry the usual packets alone.
#[test]
fn an_mtu_is_kept_only_if_its_packets_arrive() {
    let field = Field::new();
    let _journals = own_journals(&field, &["a", "b"]);
    let _cable = plug(&field, &[("a", "b")]);
    let _adapters = adapters(&field);
    field.on(
        "b",
        "nft add table inet t && nft add chain inet t c '{ type filter hook input priority 0; }' && \
         nft add rule inet t c iifname cable-a meta length gt 1600 drop",
    );
    let _switch = on_drop(&field, &["b"], "nft delete table inet t");
    let ran = field.rlaunch("doctor --json --fix mtu.rdma --yes -H a,b").within(BOUND).run();
    let report = json(&ran);
    assert_eq!(outcomes(&report), ["mtu.rdma a failed", "mtu.rdma b failed"], "{ran}");
    let why = report["fixes"][0]["why"].as_str().unwrap();
    let cause = "packets of that size get lost on the way: cable-b has MTU 1500 again";
    assert_eq!(why, cause, "{ran}");
    assert_eq!(mtus(&field), ["1500\n"; 2], "{ran}");
    assert!(has(&report, "mtu.rdma") && !has(&report, "mtu.path"), "{ran}");
    field.rlaunch("down -H a,b").within(BOUND).run().succeeded();
    assert_eq!(mtus(&field), ["1500\n"; 2]);

    [("a", "cable-b"), ("b", "cable-a")]
        .iter()
        .for_each(|(host, end)| drop(field.on(host, &format!("ip link set {end} mtu 9000"))));
    let ran = field.rlaunch("doctor --fix mtu.path --yes -H a,b").within(BOUND).run();
    let out = ran.out().into_owned();
    let is_fixed = |line: &str| line.starts_with("fixed ") && line.contains("mtu.path  a cable-b");
    assert!(out.lines().any(is_fixed), "{ran}");
    // The other end is changed as well.
    ran.says(&["`rlaunch down -H a,b` undoes what was changed there"]);
    assert_eq!(mtus(&field), ["1500\n"; 2], "{ran}");
    field.rlaunch("down -H a,b").within(BOUND).run().succeeded();
    assert_eq!(mtus(&field), ["9000\n"; 2]);
}
