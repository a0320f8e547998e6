//! `rlaunch doctor --fix` on emulated computers with soft RoCE: faults of RDMA are seen, fixed, proved gone, and back after
//! `rlaunch down`.
//!
//! An examination takes seconds there, so that one is of several faults.

use crate::support::{Field, Undo, list, text};
use serde_json::Value;

/// Guests with a cable between them.
const PAIR: &str = "n1,n2";

/// Fault that rlaunch fixes.
struct Fault {
    id: &'static str,
    /// Guest that has it.
    guest: &'static str,
    /// Lines that make it and take it back.
    make: &'static str,
    restore: &'static str,
    /// Line that prints what it is about.
    print: &'static str,
}

const SHARED_MEMORY: &str = "findmnt -no OPTIONS /dev/shm | tail -n 1 | tr , '\\n' | grep -E '^(ro|rw|size=.*|nr_inodes=.*)$' | sort";

/// Makes faults, fixes them, and undoes that. `hosts` are those of `-H`, and may have options behind them. `others` are faults that
/// are there as well, and stay. Returns what came of each fix.
fn are_fixed_and_undone(
    field: &Field,
    hosts: &str,
    faults: &[Fault],
    others: &[&str],
) -> Vec<String> {
    let restore = |fault: &Fault| field.restore(fault.guest, fault.restore);
    let _healthy = Undo(|| faults.iter().try_for_each(restore));
    faults.iter().for_each(|fault| drop(field.on(fault.guest, fault.make)));
    let print = || -> Vec<String> {
        faults.iter().map(|fault| field.on(fault.guest, fault.print)).collect()
    };
    let before = print();
    let ids: Vec<&str> =
        faults.iter().map(|fault| fault.id).chain(others.iter().copied()).collect();
    let words = format!("--probe=never --json --fix {} --yes", ids.join(","));
    let ran = field.verb(&format!("doctor -H {hosts} {words}"), &[]);
    let report: Value =
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran}"));
    let fixes = list(&report["fixes"]).iter();
    let mut outcomes: Vec<String> =
        fixes.map(|fix| text(&fix["id"]) + " " + &text(&fix["outcome"])).collect();
    outcomes.sort_unstable();
    let left = list(&report["findings"]).iter().map(|finding| text(&finding["id"]));
    let left: Vec<String> = left.filter(|id| ids.contains(&id.as_str())).collect();
    assert_eq!(left, others, "{ran}");
    for ((fault, before), after) in faults.iter().zip(&before).zip(print()) {
        assert_ne!(after, *before, "{}: {ran}", fault.id);
    }
    let undone = field.verb(&format!("down -H {hosts}"), &[]);
    undone.succeeded();
    assert_eq!(print(), before, "{ran}{undone}");
    outcomes
}

/// A clock is left to the time service, which guests do not have. The other faults are none of its business.
#[test]
fn faults_of_one_host_are_fixed_beside_one_that_cannot_be() {
    let field = Field::new();
    let _clock = Undo(|| field.restore("n2", "date -s @$(($(date +%s) - 90))"));
    field.on("n2", "date -s @$(($(date +%s) + 90))");
    let faults = [
        // The other cable has the usual MTU.
        Fault {
            id: "mtu.mismatch",
            guest: "n2",
            make: "ip link set eth1 mtu 1500",
            restore: "ip link set eth1 mtu $(cat /sys/class/net/eth2/mtu)",
            print: "cat /sys/class/net/eth1/mtu",
        },
        // An interface keeps its IPv4 address while it is down.
        Fault {
            id: "link.down",
            guest: "n2",
            make: "ip link set eth2 down",
            restore: "ip link set eth2 up",
            print: "ip -o link show eth2 | grep -o '[<,]UP[,>]' || echo down",
        },
        Fault {
            id: "fw.roce",
            guest: "n2",
            make: "iptables -I INPUT -i eth1 -p udp --dport 4791 -j DROP",
            restore: "iptables -D INPUT -i eth1 -p udp --dport 4791 -j DROP",
            print: "iptables -S INPUT",
        },
        Fault {
            id: "lim.shm",
            guest: "n2",
            make: "mount -o remount,size=1m /dev/shm",
            restore: "mount -o remount,size=50% /dev/shm",
            print: SHARED_MEMORY,
        },
    ];
    let outcomes = are_fixed_and_undone(&field, PAIR, &faults, &["clock.offset"]);
    let expected = [
        "clock.offset failed", "fw.roce fixed", "lim.shm fixed", "link.down fixed",
        "mtu.mismatch fixed",
    ];
    assert_eq!(outcomes, expected);
}

/// What the kernel lacks. Where the files of devices are missing, that of the connection manager is a consequence, so that it has
/// a round of its own.
#[test]
fn modules_files_and_settings_are_given_and_taken_back() {
    let field = Field::new();
    let faults = [
        // The adapter has the numbers of eRDMA's, and the module its name: an interface that does nothing, under that name.
        Fault {
            id: "dev.module",
            guest: "n1",
            make: "sed 's/dummy/erdma/g; s/~Module signature appended~/~module signature appended~/' $(modinfo -n dummy) \
                   > /run/erdma.ko && echo 'install erdma insmod /run/erdma.ko' > /etc/modprobe.d/erdma.conf && \
                   cd $(readlink -f /sys/class/net/eth0/device/..) && echo 0x1ded > /run/vendor && echo 0x107f > /run/device && \
                   mount --bind /run/vendor vendor && mount --bind /run/device device",
            restore: "cd $(readlink -f /sys/class/net/eth0/device/..) && umount vendor device; \
                      rmmod erdma 2>/dev/null; rm -f /etc/modprobe.d/erdma.conf /run/erdma.ko",
            print: "grep -c '^erdma ' /proc/modules; ls /etc/modules-load.d 2>&1 || :",
        },
        Fault {
            id: "mesh.duplicate",
            guest: "n1",
            make: "ip address add 192.168.101.9/24 dev eth2 && cd /sys/class/infiniband/rxe1/ports/1/gids && \
                   for try in $(seq 100); do grep -qs c0a8:6509 [0-9] && exit; sleep 0.2; done; exit 1",
            restore: "ip address delete 192.168.101.9/24 dev eth2",
            print: "sysctl net.ipv4.conf.all.arp_ignore net.ipv4.conf.all.arp_announce net.ipv4.conf.all.rp_filter; \
                    ls /etc/sysctl.d",
        },
        // An answer in fragments is sent while a packet is received, so that all of them wait in the queue.
        Fault {
            id: "net.udp-drops",
            guest: "n1",
            make: "sysctl -qw net.core.netdev_max_backlog=1 && ip netns add drops && \
                   ip link add drop0 type veth peer name drop1 netns drops && \
                   ip address add 198.51.100.1/30 dev drop0 && ip link set drop0 up && \
                   ip -n drops address add 198.51.100.2/30 dev drop1 && ip -n drops link set drop1 up && \
                   { setsid ping -i 0.1 -s 20000 198.51.100.2 </dev/null >/dev/null 2>&1 & echo $! > /run/drops.pid; }",
            restore: "kill $(cat /run/drops.pid); ip netns delete drops; sysctl -qw net.core.netdev_max_backlog=1000",
            print: "sysctl net.core.netdev_max_backlog; ls /etc/sysctl.d",
        },
        Fault {
            id: "dev.uverbs",
            guest: "n2",
            make: "rm /dev/infiniband/uverbs*",
            restore: "cd /dev/infiniband && for d in /sys/class/infiniband_verbs/uverbs*; do \
                      [ -e ${d##*/} ] || mknod -m 666 ${d##*/} c $(tr : ' ' < $d/dev); done",
            print: "ls -l /dev/infiniband | grep -o '[0-9]*, .*uverbs.*' || echo none",
        },
        Fault {
            id: "dev.rdma-cm",
            guest: "n2",
            make: "rmmod rdma_ucm",
            restore: "modprobe rdma_ucm",
            print: "grep -oE '^(rdma_ucm|rdma_cm|ib_cm|iw_cm) ' /proc/modules; ls /etc/modules-load.d 2>&1 || :",
        },
        Fault {
            id: "lim.maps",
            guest: "n2",
            make: "sysctl -qw vm.max_map_count=4096",
            restore: "sysctl -qw vm.max_map_count=65530",
            print: "sysctl vm.max_map_count; ls /etc/sysctl.d",
        },
    ];
    let fixed = [
        "dev.module fixed", "dev.rdma-cm fixed", "dev.uverbs fixed", "lim.maps fixed",
        "mesh.duplicate fixed", "net.udp-drops fixed",
    ];
    assert_eq!(are_fixed_and_undone(&field, PAIR, &faults, &[]), fixed);
}

/// The limit is one of PAM, which a new login has at once. The guests' own sshd has no PAM, and their image no sudo.
#[test]
fn an_account_may_lock_memory_from_its_next_login_on() {
    let field = Field::new();
    let fault = Fault {
        id: "lim.memlock",
        guest: "n2",
        make: r#"set -e
            useradd -m -s /bin/bash -p '*' alice
            install -d -m 700 -o alice ~alice/.ssh; install -m 600 -o alice ~/.ssh/authorized_keys ~alice/.ssh
            cp $(command -v setpriv) /usr/local/bin/become; chmod 4755 /usr/local/bin/become
            cat > /usr/local/bin/sudo <<'END'
#!/bin/sh
while :; do case $1 in -n) shift ;; --) shift; break ;; *) break ;; esac; done
exec /usr/local/bin/become --reuid 0 --regid 0 --clear-groups -- "$@"
END
            chmod 755 /usr/local/bin/sudo
            echo '* - memlock 8192' > /etc/security/limits.d/10-small.conf
            /usr/sbin/sshd -p 2222 -o UsePAM=yes -o UseDNS=no -o PrintMotd=no -o PrintLastLog=no \
                -o PidFile=/run/sshd-pam.pid -o KexAlgorithms=curve25519-sha256"#,
        restore: "kill $(cat /run/sshd-pam.pid); userdel -rf alice 2>/dev/null; \
                  rm -f /usr/local/bin/sudo /usr/local/bin/become /etc/security/limits.d/10-small.conf",
        print: "ssh -p 2222 alice@localhost 'ulimit -l'; ls -d /etc/systemd/system/ssh*.d /etc/security/limits.d/* 2>&1 || :",
    };
    let fixed = are_fixed_and_undone(&field, "alice@n2 --port 2222", &[fault], &[]);
    assert_eq!(fixed, ["lim.memlock fixed"]);
}

/// The other faults of /dev/shm.
#[test]
fn shared_memory_takes_files_again() {
    let field = Field::new();
    let faults = [
        ("mount -o remount,ro /dev/shm", "mount -o remount,rw /dev/shm"),
        // As many files as there are.
        (
            "mount -o remount,nr_inodes=$(df --output=iused /dev/shm | tail -n 1 | tr -d ' ') /dev/shm",
            "mount -o remount,nr_inodes=1m /dev/shm",
        ),
    ];
    for (make, restore) in faults {
        let fault = Fault { id: "lim.shm", guest: "n2", make, restore, print: SHARED_MEMORY };
        assert_eq!(are_fixed_and_undone(&field, "n2", &[fault], &[]), ["lim.shm fixed"], "{make}");
    }
}
