//! `rlaunch up` and `rlaunch down` on hosts with cables between them, whose `/etc` and `/var/lib` are their own for the time
//! of a test.

use crate::network_plan::{CABLES, drop_probes, plug};
use crate::running::Outcome;
use crate::support::{Field, Run, State, Undo};
use nix::sys::signal::Signal;
use rlaunch_lab::Account;
use std::path::Path;
use std::time::Duration;

/// Time limit for a plan, a discovery, a trial and a job.
pub(crate) const BOUND: Duration = Duration::from_secs(120);

/// Gives hosts directories of their own, and programs that say what keeps their addresses: ifupdown on `a`, and
/// systemd-networkd, whose programs note how they are called, on the others.
pub(crate) fn own_files<'a>(field: &'a Field, hosts: &'a [&'a str]) -> impl Drop + use<'a> {
    for host in hosts {
        field.on(
            host,
            "mkdir -p /run/up && mount -t tmpfs -o mode=755,size=8m own /run/up && mkdir /run/up/upper /run/up/work && \
             mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/up/upper,workdir=/run/up/work /etc && \
             mount -t tmpfs -o size=1m own /var/lib && mount -t tmpfs own /usr/local/sbin && \
             echo '127.0.0.1 localhost' > /etc/hosts && : > /etc/resolv.conf",
        );
        let programs = if *host == "a" {
            "mkdir -p /etc/network && echo 'source /etc/network/interfaces.d/*' > /etc/network/interfaces && \
             printf '#!/bin/sh\\n' > /usr/local/sbin/ifup"
        } else {
            "mkdir -p /etc/systemd/network && printf '#!/bin/sh\\nexit 0\\n' > /usr/local/sbin/systemctl && \
             printf '#!/bin/sh\\necho $* >> /run/up/networkctl\\n' > /usr/local/sbin/networkctl"
        };
        field.on(host, &format!("{programs} && chmod 755 /usr/local/sbin/*"));
    }
    Undo(move || {
        for host in hosts {
            field.on(host, "umount /etc /var/lib /usr/local/sbin /run/up && rmdir /run/up");
        }
        Ok::<(), String>(())
    })
}

/// Returns all that `up` may change on a host.
pub(crate) fn dump(field: &Field, host: &str) -> String {
    field.on(
        host,
        "ip -o address show | sed 's/valid_lft.*//' | grep -v ' inet6 fe80'; ip -o link show | grep -o '^.*mtu [0-9]*'; \
         ip route show table all | grep -v fe80; find /etc /var/lib -xdev -type f -exec sha256sum {} + | sort -k2; \
         find /etc /var/lib -xdev -type d | sort",
    )
}

fn addresses(field: &Field, host: &str) -> String {
    field.on(host, "ip -o -4 address show | awk '/cable/ {print $2, $4}'")
}

pub(crate) fn up<'a>(field: &'a Field, state: &State, words: &str) -> Run<'a> {
    let run = state.rlaunch(field, &format!("up {CABLES} {words}"));
    run.in_directory(Path::new(state.path())).within(BOUND)
}

pub(crate) fn down(field: &Field, state: &State, words: &str) -> Outcome {
    let run = state.rlaunch(field, &format!("down {words}"));
    run.in_directory(Path::new(state.path())).within(BOUND).run()
}

#[test]
fn hosts_become_a_cluster_that_stays_and_what_they_were() {
    let (field, state) = (Field::new(), State::new());
    let hosts = ["a", "b", "c"];
    let _files = own_files(&field, &hosts);
    let _cables = plug(&field, &[("a", "b"), ("a", "c"), ("b", "c")]);
    // A name that was somewhere else once.
    field.on("a", "echo 192.0.2.9 c >> /etc/hosts");
    let before = hosts.map(|host| dump(&field, host));
    let ran = up(&field, &state, "-H a,b,c --dry-run").run();
    let script = ran.succeeded().out().into_owned();
    assert!(script.contains("ip address add 192.168.101.2/24 dev cable-b"), "{ran}");
    assert_eq!(hosts.map(|host| dump(&field, host)), before, "a dry run changes nothing: {ran}");
    let ran = up(&field, &state, "-H a,b,c --yes").run();
    let out = ran.succeeded().out().into_owned();
    assert!(
        out.contains("install -D -m 644 /dev/stdin /etc/network/interfaces.d/rdma-mesh"),
        "{ran}"
    );
    assert!(
        ["a", "b", "c"].iter().all(|host| out.lines().any(|line| line == *host)),
        "the job: {ran}"
    );
    ran.says(&["3 links answered, 6 directions", "rlaunch.toml: written and trusted"]);
    ran.says(&["slowest pair ", "what the hardware can give is not known"]);
    assert!(field.on("a", "cat /etc/hosts").starts_with("# rlaunch up"), "its lines win: {ran}");
    assert_eq!(addresses(&field, "a"), "cable-b 192.168.101.2/24\ncable-c 192.168.100.2/24\n");
    let kept = field.on("a", "cat /etc/network/interfaces.d/rdma-mesh");
    assert!(kept.contains("iface cable-b inet static\n    address 192.168.101.2/24\n"), "{kept}");
    let kept = field.on("b", "cat /etc/systemd/network/10-rdma-mesh-cable-a.network");
    assert!(kept.contains("Address=192.168.101.3/24\n"), "{kept}");
    assert_eq!(field.on("b", "cat /run/up/networkctl"), "reload\n");
    assert!(!field.on("b", "getent hosts c").is_empty());
    // Jobs find the hosts without -H.
    let job = state.rlaunch(&field, "hostname").in_directory(Path::new(state.path())).run();
    assert_eq!(job.succeeded().sorted(), ["a", "b", "c"], "{job}");
    let between = hosts.map(|host| dump(&field, host));
    let ran = up(&field, &state, "-H a,b,c --yes").run();
    ran.succeeded().says(&["there is nothing to change on the hosts", "written already"]);
    assert!(!ran.err().contains("slowest pair"), "only links that were tested are measured: {ran}");
    assert_eq!(hosts.map(|host| dump(&field, host)), between, "{ran}");
    let ran = down(&field, &state, "");
    let out = ran.succeeded().out().into_owned();
    assert!(out.contains("a: undone: write /etc/hosts (rlaunch up)"), "{ran}");
    ran.says(&["rlaunch.toml here stays, and jobs run on its hosts"]);
    assert_eq!(hosts.map(|host| dump(&field, host)), before, "{ran}");
    let ran = down(&field, &state, "-H a,b,c");
    assert_eq!(ran.succeeded().out().matches("there is nothing to undo").count(), 3, "{ran}");
}

#[test]
fn what_has_changed_since_is_named() {
    let (field, state) = (Field::new(), State::new());
    let hosts = ["a", "b"];
    let _files = own_files(&field, &hosts);
    let _cables = plug(&field, &[("a", "b")]);
    let since = |words: &str| {
        let run = state.rlaunch(&field, &format!("doctor --since-up -H a,b {words}"));
        run.in_directory(Path::new(state.path())).within(BOUND).run()
    };
    since("")
        .refused(200, &["`rlaunch up` has not set up a, b from here"])
        .hints("rlaunch up -H a,b");
    up(&field, &state, "-H a,b --yes").run().succeeded();
    let ran = since("--strict");
    let same = "a: as `rlaunch up` has left it\nb: as `rlaunch up` has left it\n";
    assert_eq!(ran.succeeded().out(), same, "{ran}");
    field.on("b", "ip link set cable-a mtu 1400 && ip address add 192.0.2.1/24 dev cable-a");
    let ran = since("");
    let out = ran.succeeded().out().into_owned();
    assert!(out.contains("b: MTU of cable-a: 1400, was 1500\n"), "{ran}");
    assert!(out.contains("b: addresses of cable-a: 192.0.2.1/24, 192.168."), "{ran}");
    assert!(
        out.starts_with("a: as `rlaunch up` has left it\n") && out.lines().count() == 3,
        "{ran}"
    );
    since("--strict").ended_with(1);
    down(&field, &state, "-H a,b").succeeded();
}

/// A fault that doctor fixes without a question. The sshd of the lab does not use PAM, so that only a new one shows it.
#[test]
fn what_needs_no_question_is_fixed_and_undone() {
    let (field, state) = (Field::new(), State::new());
    let hosts = ["a", "b"];
    let _files = own_files(&field, &hosts);
    field.on("b", "prlimit --nofile=512:512 --pid $(pgrep -o sshd)");
    // Nothing here may raise the limit of a process.
    let _limit = Undo(|| field.lab.sshd("b")?.restart(&[]));
    let ran = up(&field, &state, "-H a,b --yes").run();
    assert!(ran.succeeded().out().contains("limits.d/90-rlaunch-nofile"), "{ran}");
    ran.says(&["lim.files on b", "done on b"]);
    let ran = up(&field, &state, "-H a,b --yes").run();
    ran.succeeded()
        .says(&["there is nothing to change on the hosts", "shows only after a reboot, or"]);
    down(&field, &state, "-H a,b").succeeded();
    assert_eq!(field.on("b", "ls /etc/security/limits.d | grep -c rlaunch || :"), "0\n");
}

/// `up` has died between the file and the reading, so that networkd knows the interface and no file for it.
#[test]
fn files_that_were_not_read_are_read_by_the_next_up() {
    let (field, state) = (Field::new(), State::new());
    let hosts = ["a", "b"];
    let _files = own_files(&field, &hosts);
    let _cables = plug(&field, &[("a", "b")]);
    up(&field, &state, "-H a,b --yes").run().succeeded();
    field.on(
        "b",
        "mkdir -p /run/systemd/netif/links && \
         echo ADMIN_STATE=unmanaged > /run/systemd/netif/links/$(cat /sys/class/net/cable-a/ifindex)",
    );
    let _links = Undo(|| {
        field.on("b", "rm -rf /run/systemd/netif");
        Ok::<(), String>(())
    });
    assert_eq!(field.on("b", "cat /run/up/networkctl"), "reload\n");
    let ran = up(&field, &state, "-H a,b --yes").run();
    assert!(ran.succeeded().out().contains("  on b:\n    networkctl reload\n"), "{ran}");
    assert_eq!(field.on("b", "cat /run/up/networkctl"), "reload\nreload\n", "{ran}");
    down(&field, &state, "-H a,b").succeeded();
}

/// The host undoes its addresses without a word from the launcher; what was done before stands in the journal.
#[test]
fn an_up_that_is_killed_in_its_midst_is_undone() {
    let (field, state) = (Field::new(), State::new());
    let hosts = ["a", "b"];
    let _files = own_files(&field, &hosts);
    let _cables = plug(&field, &[("a", "b")]);
    let before = hosts.map(|host| dump(&field, host));
    let dropped = drop_probes(&field, "b");
    let running = up(&field, &state, "-H a,b --yes").spawn();
    let both = || addresses(&field, "a") + &addresses(&field, "b");
    field.wait_for("addresses on a and b", || both().lines().count() == 2);
    running.signal(Signal::SIGKILL);
    field.wait_for("no addresses on a and b", || both().is_empty());
    running.finish_first();
    assert!(field.on("a", "cat /etc/hosts").contains("# rlaunch up"), "it was done before");
    down(&field, &state, "-H a,b").succeeded();
    assert_eq!(hosts.map(|host| dump(&field, host)), before);
    drop(dropped);
}

#[test]
fn links_that_do_not_answer_keep_no_address() {
    let (field, state) = (Field::new(), State::new());
    let hosts = ["a", "b"];
    let _files = own_files(&field, &hosts);
    let _cables = plug(&field, &[("a", "b")]);
    let before = hosts.map(|host| dump(&field, host));
    let _dropped = drop_probes(&field, "b");
    let ran = up(&field, &state, "-H a,b --yes").run();
    ran.ended_with(204)
        .says(&["rolled back on a, b", "do not answer", "left out, since", "rlaunch down"]);
    assert_eq!(addresses(&field, "a") + &addresses(&field, "b"), "", "{ran}");
    down(&field, &state, "-H a,b").succeeded();
    assert_eq!(hosts.map(|host| dump(&field, host)), before, "{ran}");
}

/// The agent is killed, and the launcher does not get to say anything: the guardian undoes the trial.
#[test]
fn an_agent_that_is_killed_leaves_no_address() {
    let (field, state) = (Field::new(), State::new());
    let hosts = ["a", "b"];
    let _files = own_files(&field, &hosts);
    let _cables = plug(&field, &[("a", "b")]);
    let _dropped = drop_probes(&field, "b");
    let running = up(&field, &state, "-H a,b --yes").spawn();
    let both = || addresses(&field, "a") + &addresses(&field, "b");
    field.wait_for("addresses on a and b", || both().lines().count() == 2);
    let newest = "pkill -9 -n -f 'rlaunch-worker changes$'";
    field.on("a", newest);
    field.wait_for("no addresses on a", || addresses(&field, "a").is_empty());
    running.finish_first();
    down(&field, &state, "-H a,b").succeeded();
}

/// A host that swaps, or is emulated, starts a program late. It is no dead one: sshd answers.
#[test]
fn a_host_that_is_slow_to_start_an_agent_is_waited_for() {
    let (field, state) = (Field::new(), State::new());
    let hosts = ["a", "b"];
    let _files = own_files(&field, &hosts);
    up(&field, &state, "-H a,b --yes").run().succeeded();
    let bashrc = Account::Root.home().join(".bashrc");
    // The variable is the command that sshd runs.
    let slow = "case $BASH_EXECUTION_STRING in *changes*) sleep 22 ;; esac\n";
    let _slow = field.files(&["b"], bashrc.to_str().unwrap(), slow, 0o644);
    down(&field, &state, "-H a,b").succeeded();
}

/// The hosts listen twice, since a port with a link hears nothing, and the cable's ports are set up meanwhile.
#[test]
fn a_cable_that_is_down_is_set_up_beside_a_port_that_hears_nothing() {
    let (field, state) = (Field::new(), State::new());
    let hosts = ["a", "b"];
    let _files = own_files(&field, &hosts);
    let _cables = plug(&field, &[("a", "b"), ("a", "c")]);
    field.on("a", "ip link set cable-b down");
    field.on("b", "ip link set cable-a down");
    let before = hosts.map(|host| dump(&field, host));
    let ran = up(&field, &state, "-H a,b --yes").run();
    let out = ran.succeeded().out().into_owned();
    assert!(out.contains("ip link set dev cable-b up"), "{ran}");
    ran.says(&["1 link answered, 2 directions"]);
    let count_of_up = |host: &str| field.on(host, "ip -o link show up | grep -c cable- || :");
    assert_eq!((&*count_of_up("a"), &*count_of_up("b")), ("2\n", "1\n"), "{ran}");
    down(&field, &state, "-H a,b").succeeded();
    assert_eq!((&*count_of_up("a"), &*count_of_up("b")), ("1\n", "0\n"), "{ran}");
    assert_eq!(hosts.map(|host| dump(&field, host)), before, "{ran}");
}

#[test]
fn addresses_of_a_mesh_are_kept_and_undone() {
    let (field, state) = (Field::new(), State::new());
    let hosts = ["a", "b"];
    let _files = own_files(&field, &hosts);
    let _cables = plug(&field, &[("a", "b")]);
    let before = hosts.map(|host| dump(&field, host));
    let words = format!("network mesh -H a,b {CABLES} --apply --keep --mtu 4000");
    let ran = field.rlaunch(&words).within(BOUND).run();
    ran.succeeded().says(&["1 link answered, 2 directions", "kept for the next boot"]);
    let kept = field.on("a", "cat /etc/network/interfaces.d/rdma-mesh");
    assert!(kept.contains("    mtu 4000\n"), "{kept}");
    let ran = down(&field, &state, "-H a,b");
    assert!(ran.succeeded().out().contains("(rlaunch network mesh)"), "{ran}");
    assert_eq!(hosts.map(|host| dump(&field, host)), before, "{ran}");
}

#[test]
fn without_a_terminal_and_consent_nothing_is_done() {
    let (field, state) = (Field::new(), State::new());
    let ran = up(&field, &state, "-H a,b").run();
    ran.refused(200, &["nothing was changed: standard input is not a terminal", "--yes"]);
}

/// Containers of a pod have an `/etc/hosts` that the kubelet writes.
#[test]
fn pods_are_refused_before_anything_is_changed() {
    let (field, state) = (Field::new(), State::new());
    let hosts = ["a", "b"];
    let _files = own_files(&field, &hosts);
    let _cables = plug(&field, &[("a", "b")]);
    field.on("b", "sed -i '1i # Kubernetes-managed hosts file.' /etc/hosts");
    let before = hosts.map(|host| dump(&field, host));
    for words in ["-H a,b --yes", "-H a,b --dry-run"] {
        let ran = up(&field, &state, words).run();
        ran.refused(200, &["b is a pod of Kubernetes, where nothing is kept"])
            .hints("`rlaunch doctor -H b` says what jobs would lack there");
    }
    assert_eq!(hosts.map(|host| dump(&field, host)), before);
    assert!(!Path::new(state.path()).join("rlaunch.toml").exists());
}

/// The file system of the host is read-only, as that of an appliance.
#[test]
fn a_host_that_takes_no_journal_is_not_changed() {
    let (field, state) = (Field::new(), State::new());
    let _cables = plug(&field, &[("a", "b")]);
    let ran = up(&field, &state, "-H a,b --yes").run();
    ran.ended_with(204)
        .says(&["cannot write the journal: /var/lib/rlaunch/journal: Read-only file system"]);
    assert_eq!(addresses(&field, "a"), "", "{ran}");
}
