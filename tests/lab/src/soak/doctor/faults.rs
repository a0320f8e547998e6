//! Faults of guests that `rlaunch doctor` is to find, each made and undone by shell lines.

/// Fault of one guest. In the lines, `$IF` is a fabric interface of the guest and `$OTHER` the other one;
/// files in `/run` keep what the undoing line needs.
#[derive(Debug)]
pub(super) struct Fault {
    /// Id of the finding that must come first.
    pub(super) id: &'static str,
    /// Severity of that finding; no other finding may have it.
    pub(super) severity: &'static str,
    pub(super) make: &'static str,
    pub(super) undo: &'static str,
}

/// Shell functions for the lines: `address` prints the IPv4 address of an interface with its prefix length,
/// and `bare` takes all IPv4 addresses from an interface.
pub(super) const FUNCTIONS: &str = "\
address() { ip -o -4 address show dev $1 | awk '{ print $4 }'; }
bare() { ip -4 address flush dev $1; }
";

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        id: "link.down",
        severity: "error",
        make: "address $IF > /run/fault && ip link set $IF down",
        undo: "ip link set $IF up && ip address replace $(cat /run/fault) dev $IF",
    },
    Fault {
        id: "fw.roce",
        severity: "error",
        make: "iptables -I INPUT -i $IF -p udp --dport 4791 -j DROP",
        undo: "iptables -D INPUT -i $IF -p udp --dport 4791 -j DROP",
    },
    Fault {
        id: "fw.ports",
        severity: "error",
        make: "iptables -I INPUT -p tcp --syn --dport 1024:65535 -j DROP",
        undo: "iptables -D INPUT -p tcp --syn --dport 1024:65535 -j DROP",
    },
    Fault {
        id: "mesh.cabling",
        severity: "error",
        make: "address $IF > /run/fault && address $OTHER > /run/other && bare $IF && bare $OTHER && \
               ip address add $(cat /run/fault) dev $OTHER && ip address add $(cat /run/other) dev $IF",
        undo: "bare $IF && bare $OTHER && ip address add $(cat /run/fault) dev $IF && \
               ip address add $(cat /run/other) dev $OTHER",
    },
    Fault {
        id: "mesh.subnet",
        severity: "warning",
        make: "address $IF > /run/fault && bare $IF && ip address add 192.168.177.9/24 dev $IF",
        undo: "bare $IF && ip address add $(cat /run/fault) dev $IF",
    },
    Fault {
        id: "roce.link-local",
        severity: "error",
        make: "address $IF > /run/fault && bare $IF",
        undo: "ip address add $(cat /run/fault) dev $IF",
    },
    Fault {
        id: "mtu.mismatch",
        severity: "warning",
        make: "cat /sys/class/net/$IF/mtu > /run/fault && ip link set $IF mtu 1500",
        undo: "ip link set $IF mtu $(cat /run/fault)",
    },
    Fault {
        id: "dev.provider",
        severity: "error",
        make: "mv /usr/lib/*/libibverbs/librxe-rdmav*.so /run/",
        undo: "mv /run/librxe-rdmav*.so /usr/lib/$(uname -m)-linux-gnu/libibverbs/",
    },
    Fault {
        id: "dev.rdma-cm",
        severity: "error",
        make: "rmmod rdma_ucm",
        undo: "modprobe rdma_ucm",
    },
    Fault {
        id: "dev.uverbs",
        severity: "error",
        make: "mv /dev/infiniband /dev/away",
        undo: "mv /dev/away /dev/infiniband",
    },
    Fault {
        id: "clock.offset",
        severity: "warning",
        make: "date -s @$(($(date +%s) + 90))",
        undo: "date -s @$(($(date +%s) - 90))",
    },
    Fault {
        id: "lim.shm",
        severity: "warning",
        make: "head -c 4G /dev/zero > /dev/shm/full 2> /dev/null || true",
        undo: "rm /dev/shm/full",
    },
    Fault {
        id: "net.name",
        severity: "warning",
        make: "cp /etc/hosts /run/fault && (echo 192.0.2.7 $(hostname); cat /run/fault) > /etc/hosts",
        undo: "cat /run/fault > /etc/hosts",
    },
];
