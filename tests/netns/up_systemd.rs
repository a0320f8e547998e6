//! `rlaunch up` on machines with a real systemd as process 1, which keep addresses by systemd-networkd, netplan or
//! NetworkManager, over reboots.

use crate::network_plan::{drop_probes, plug};
use crate::support::{Field, State, Undo};
use crate::systemd::{BOUND, Keeper, run_in};
use crate::up::{down, up};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_lab::command::wait_until;
use rlaunch_lab::setup::roots;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Script that becomes a machine in the network of a host.
const MACHINE: &str = include_str!("up/machine.sh");

/// Time limit for a machine to be what it was once rlaunch has returned: NetworkManager ends connections in the background.
const SETTLED: Duration = Duration::from_secs(40);

/// Program that keeps the addresses of a machine.
#[derive(Clone, Copy, Debug)]
enum KeptBy {
    Networkd,
    Netplan,
    NetworkManager,
}

impl KeptBy {
    /// Returns its name for the script, and its unit.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            KeptBy::Networkd => ("networkd", "systemd-networkd"),
            KeptBy::Netplan => ("netplan", "systemd-networkd"),
            KeptBy::NetworkManager => ("NetworkManager", "NetworkManager"),
        }
    }

    /// Returns a line that prints by which file or connection an interface has its addresses, and what that ends with.
    fn kept(self, interface: &str) -> (String, String) {
        let of_networkd = format!("networkctl status {interface} | grep 'Network File'");
        match self {
            KeptBy::Networkd => {
                (of_networkd, format!("/etc/systemd/network/10-rdma-mesh-{interface}.network\n"))
            }
            KeptBy::Netplan => {
                (of_networkd, format!("/run/systemd/network/10-netplan-{interface}.network\n"))
            }
            KeptBy::NetworkManager => (
                format!("nmcli -g GENERAL.CONNECTION device show {interface}"),
                format!("rdma-mesh-{interface}\n"),
            ),
        }
    }
}

/// Machine with a systemd in the place of a host. It has the host's name and its sshd.
struct Machine {
    host: &'static str,
    /// Unit of what sets its network up.
    unit: &'static str,
    keeper: Keeper,
    _directory: TempDir,
}

impl Machine {
    fn start(field: &Field, host: &'static str, kept_by: KeptBy) -> Machine {
        let (name, unit) = kept_by.names();
        field.lab.sshd(host).unwrap().stop().unwrap();
        let cgroup = field.lab.status().cgroup.unwrap().join(format!("machine-{host}"));
        fs::create_dir_all(&cgroup).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let (script, place) = (directory.path().join("machine.sh"), directory.path().join("disk"));
        fs::write(&script, MACHINE).unwrap();
        fs::create_dir(&place).unwrap();
        // The root directory of a host leads to the process whose namespaces are the host's.
        let root = field.lab.path(host, Path::new("/")).unwrap();
        let process = root.parent().unwrap();
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", process.join("ns/net").display()));
        command.arg(format!("--uts={}", process.join("ns/uts").display()));
        command.args(["unshare", "--mount", "sh"]).args([&script, &place, &cgroup]);
        command.arg(roots::NETWORKED.make().unwrap()).arg(root.join("run/rlaunch-lab"));
        command.arg(name);
        let outer = command.stdin(Stdio::piped()).spawn().unwrap();
        let keeper = Keeper { outer, cgroup };
        let mut machine = Machine { host, unit, keeper, _directory: directory };
        machine.boot();
        machine
    }

    /// Boots, and waits for an SSH server and for what sets the network up.
    fn boot(&mut self) {
        self.keeper.outer.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let line = format!("systemctl is-active lab-sshd {}", self.unit);
        wait_until(BOUND, &format!("{} to boot", self.host), || {
            Ok(self.process().is_some() && self.run(&line) == "active\nactive\n")
        })
        .unwrap();
    }

    /// Ends the machine, as its own `reboot` does at last, and boots it again.
    fn reboot(&mut self) {
        let before = self.process().unwrap();
        self.run("systemctl reboot");
        wait_until(BOUND, &format!("{} to end", self.host), || {
            Ok(!Path::new(&format!("/proc/{before}")).exists())
        })
        .unwrap();
        self.boot();
    }

    /// Returns process 1: the only child of the only child of the script.
    fn process(&self) -> Option<String> {
        let child = |of: &str| {
            let children = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).ok()?;
            children.split_whitespace().next().map(str::to_owned)
        };
        child(&child(&self.keeper.outer.id().to_string())?)
    }

    /// Runs a shell line as root, and returns what it prints.
    fn run(&self, line: &str) -> String {
        run_in(&self.process().unwrap_or_default(), line)
    }

    fn addresses(&self) -> String {
        self.run("ip -o -4 address show | awk '/cable/ {print $2, $4}'")
    }

    /// Returns all that `up` may change. What systemd notes for itself is left out, and what follows from the other end of a
    /// cable.
    fn dump(&self) -> String {
        self.run(
            "ip -o address show | sed 's/valid_lft.*//' | grep -v ' inet6 fe80'; ip -o link show | grep -o '^.*mtu [0-9]*' | sed 's/NO-CARRIER,//; s/,LOWER_UP//'; \
             ip route show table all | grep -v -e fe80 -e ff00::/8; ip rule; ls -A /run/systemd/network; \
             find /etc /var/lib/rlaunch -xdev -type f -exec sha256sum {} + 2>/dev/null | sort -k2; \
             find /etc -xdev ! -type f | sort; ls -A /var/lib; cat /proc/sys/net/ipv4/conf/*/arp_*",
        )
    }
}

/// `cargo lab test` leaves the tests of this file out where there are no cgroups of version 2.
#[test]
fn addresses_are_there_after_a_reboot_and_gone_after_down() {
    stay_until_down([KeptBy::Networkd, KeptBy::Netplan]);
}

#[test]
fn network_manager_keeps_addresses_and_lets_them_go() {
    stay_until_down([KeptBy::NetworkManager, KeptBy::NetworkManager]);
}

/// Sets two machines up, which keep their addresses by these programs; reboots them, and undoes it.
fn stay_until_down(kept_by: [KeptBy; 2]) {
    let (field, state) = (Field::new(), State::new());
    let hosts = ["a", "b"];
    let _sshds = Undo(|| hosts.iter().try_for_each(|host| field.lab.sshd(host)?.restart(&[])));
    let _cables = plug(&field, &[("a", "b")]);
    let mut a = Machine::start(&field, "a", kept_by[0]);
    let mut b = Machine::start(&field, "b", kept_by[1]);
    let before = [a.dump(), b.dump()];
    let ran = up(&field, &state, "-H a,b --yes").run();
    ran.succeeded().says(&["1 link answered, 2 directions", "rlaunch.toml: written and trusted"]);
    let given = ["cable-b 192.168.100.2/24\n", "cable-a 192.168.100.3/24\n"];
    assert_eq!([a.addresses(), b.addresses()], given, "{ran}");
    let ends = [(&a, "cable-b"), (&b, "cable-a")];
    for ((machine, interface), kept_by) in ends.into_iter().zip(kept_by) {
        let (line, end) = kept_by.kept(interface);
        let kept = machine.run(&line);
        assert!(kept.ends_with(&end), "{kept_by:?}: {kept}{ran}");
    }
    for machine in [&mut a, &mut b] {
        machine.reboot();
    }
    // What a boot has not lost, it gives the interfaces once more.
    field.wait_for("the addresses after the boot", || [a.addresses(), b.addresses()] == given);
    let ran = up(&field, &state, "-H a,b --yes").run();
    ran.succeeded().says(&["there is nothing to change on the hosts"]);
    let since = state.rlaunch(&field, "doctor --since-up --strict -H a,b");
    since.in_directory(Path::new(state.path())).within(BOUND).run().succeeded();
    let undone = down(&field, &state, "-H a,b");
    undone.succeeded();
    let _ = wait_until(SETTLED, "the state before", || Ok([a.dump(), b.dump()] == before));
    assert_eq!([a.dump(), b.dump()], before, "{undone}");
    for machine in [&mut a, &mut b] {
        machine.reboot();
    }
    assert_eq!([a.addresses(), b.addresses()], ["", ""], "{undone}");
}

/// The hosts lose their power while addresses are on trial, and boot. No link answers, so that they are on trial till then.
#[test]
fn an_up_that_ends_with_its_hosts_is_undone_after_their_boot() {
    let (field, state) = (Field::new(), State::new());
    let hosts = ["a", "b"];
    let _sshds = Undo(|| hosts.iter().try_for_each(|host| field.lab.sshd(host)?.restart(&[])));
    let _cables = plug(&field, &[("a", "b")]);
    let mut a = Machine::start(&field, "a", KeptBy::Networkd);
    let mut b = Machine::start(&field, "b", KeptBy::Netplan);
    let before = [a.dump(), b.dump()];
    let dropped = drop_probes(&field, "b");
    let mut running = up(&field, &state, "-H a,b --yes").spawn();
    field.wait_for("addresses on both", || !a.addresses().is_empty() && !b.addresses().is_empty());
    assert!(!running.has_ended(), "the trial is not over");
    let processes = [&a, &b].map(|machine| machine.process().unwrap());
    for process in &processes {
        kill(Pid::from_raw(process.parse().unwrap()), Signal::SIGKILL).unwrap();
    }
    running.finish_first();
    for (machine, process) in [&mut a, &mut b].into_iter().zip(&processes) {
        wait_until(BOUND, "a machine to end", || {
            Ok(!Path::new(&format!("/proc/{process}")).exists())
        })
        .unwrap();
        machine.boot();
    }
    drop(dropped);
    let undone = down(&field, &state, "-H a,b");
    undone.succeeded();
    let _ = wait_until(SETTLED, "the state before", || Ok([a.dump(), b.dump()] == before));
    assert_eq!([a.dump(), b.dump()], before, "{undone}");
}
