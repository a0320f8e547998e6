//! `cargo lab soak doctor`: faults put into three guests, one at a time. `rlaunch doctor` must show the
//! fault first, with no other finding as severe, and nothing once it is undone.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::LabError;
use crate::command::wait_until;
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};
use crate::vm::{self, Topology, VmLab, VmOptions};

const LAB: &str = "doctor";
const GUESTS: [&str; 3] = ["n1", "n2", "n3"];
/// Path of rlaunch on guests.
const RLAUNCH: &str = "/share/rlaunch";
/// Interfaces of a guest that a cable connects with another guest.
const INTERFACES: [&str; 2] = ["eth1", "eth2"];
/// Time limit of a diagnosis; emulated computers are slow.
const BOUND: Duration = Duration::from_secs(120);
/// Time limit for guests to be healthy again after a fault.
const RECOVERY: Duration = Duration::from_secs(120);

/// Fault at its place.
#[derive(Debug)]
struct Placed {
    fault: &'static Fault,
    guest: &'static str,
    /// Index of the interface in [`INTERFACES`].
    interface: usize,
}

/// Makes `count` faults, which `seed` chooses, and prints a line for each; returns whether each was found.
pub(super) fn run(count: usize, seed: u64) -> Result<bool, LabError> {
    setup::install(PackageSet::Verbs)?;
    dist::build(Profile::Lab)?;
    vm::build()?;
    println!("starting {} guests", GUESTS.len());
    let share = Some(dist::directory(Profile::Lab)?);
    let guests = VmOptions { share, ..VmOptions::new(LAB, GUESTS.len(), Topology::Triangle) };
    let mut missed = 0;
    VmLab::with_fresh(&guests, |lab| {
        await_health(lab)?;
        for (number, placed) in choose(count, seed).iter().enumerate() {
            let started = Instant::now();
            placed.shell(lab, placed.fault.make)?;
            let report = diagnose(lab);
            placed.shell(lab, placed.fault.undo)?;
            let verdict = placed.judge(&report?);
            missed += usize::from(verdict.is_err());
            let seconds = started.elapsed().as_secs_f64();
            println!("{number}: {placed}: {} ({seconds:.1} s)", verdict.unwrap_or_else(|w| w));
            await_health(lab)?;
        }
        Ok(())
    })?;
    println!("{count} faults with seed {seed}: {} found first, {missed} missed", count - missed);
    Ok(missed == 0)
}

/// Chooses faults: all of them in a random order, then again, each at a random place.
fn choose(count: usize, seed: u64) -> Vec<Placed> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut order: Vec<&Fault> = Vec::new();
    let next = || {
        if order.is_empty() {
            order.extend(FAULTS);
            random.shuffle(&mut order);
        }
        let fault = order.pop()?;
        let guest = GUESTS[random.usize(..GUESTS.len())];
        Some(Placed { fault, guest, interface: random.usize(..INTERFACES.len()) })
    };
    std::iter::from_fn(next).take(count).collect()
}

impl Placed {
    /// Runs shell lines on the guest.
    fn shell(&self, lab: &VmLab, lines: &str) -> Result<(), LabError> {
        let (own, other) = (INTERFACES[self.interface], INTERFACES[1 - self.interface]);
        let script = format!("{FUNCTIONS}IF={own} OTHER={other}\n{lines}");
        lab.checked(self.guest, &["sh", "-c", &script]).map(drop)
    }

    /// Checks that the fault's finding is the first, about this guest, and that no other is as severe. Returns
    /// what was seen; fails with the whole report.
    fn judge(&self, report: &Value) -> Result<String, String> {
        let Fault { id, severity, .. } = self.fault;
        let none = Vec::new();
        let findings = report["findings"].as_array().unwrap_or(&none);
        let as_severe = findings.iter().filter(|finding| finding["severity"] == *severity).count();
        let first = findings.first().filter(|first| first["id"] == *id && as_severe == 1);
        // A finding about two hosts may name either as its own.
        let named = first.filter(|first| {
            let hosts = first["hosts"].as_array().into_iter().flatten();
            hosts.chain([&first["peer"]]).any(|host| host == self.guest)
        });
        match named {
            Some(first) => Ok(format!("found: {}", first["seen"].as_str().unwrap_or_default())),
            None => Err(format!("MISSED:\n{report:#}")),
        }
    }
}

impl std::fmt::Display for Placed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {} {}", self.fault.id, self.guest, INTERFACES[self.interface])
    }
}

/// Returns the report about all guests.
fn diagnose(lab: &VmLab) -> Result<Value, LabError> {
    let hosts = GUESTS.join(",");
    let words = [RLAUNCH, "doctor", "-H", &hosts, "--json", "--probe"];
    let output = lab.run_within("n1", &words, BOUND)?;
    serde_json::from_slice(&output.stdout).map_err(|error| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        LabError::Unexpected(format!("the report of rlaunch doctor: {error}\n{stderr}"))
    })
}

/// Waits until there is neither an error nor a warning. GID tables follow addresses with a delay.
fn await_health(lab: &VmLab) -> Result<(), LabError> {
    let mut last = Value::Null;
    let healthy = wait_until(RECOVERY, "rlaunch doctor to find nothing wrong", || {
        last = diagnose(lab)?;
        Ok(last["errors"] == 0 && last["warnings"] == 0)
    });
    healthy.map_err(|error| LabError::Unexpected(format!("{error}\n{last:#}")))
}

/// Fault of one guest. In the lines, `$IF` is a fabric interface of the guest and `$OTHER` the other one;
/// files in `/run` keep what the undoing line needs.
#[derive(Debug)]
struct Fault {
    /// Id of the finding that must come first.
    id: &'static str,
    /// Severity of that finding; no other finding may have it.
    severity: &'static str,
    make: &'static str,
    undo: &'static str,
}

/// Shell functions for the lines: `address` prints the IPv4 address of an interface with its prefix length,
/// and `bare` takes all IPv4 addresses from an interface.
const FUNCTIONS: &str = "\
address() { ip -o -4 address show dev $1 | awk '{ print $4 }'; }
bare() { ip -4 address flush dev $1; }
";

const FAULTS: &[Fault] = &[
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
