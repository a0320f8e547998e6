//! Network interfaces of this host, and whether they can send beacons.
//!
//! Changes to the network by `ip`, each of which can be undone.

use crate::node;
use crate::node::inventory::{self, Root};
use nix::ifaddrs::getifaddrs;
use nix::unistd::Uid;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::net::{Netdev, NetdevKind};
use rlaunch_bootstrap::protocol::network::{
    ChangeFailure, HostInterface, HostNetwork, LinkLocal, NetworkChange, Privilege, RollBackReport,
};
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tokio::time::sleep;

const DIRECTORY: &str = "/sys/class/net";
/// Flag of an interface that is set up (`IFF_UP`).
const UP: u32 = 1;
/// Scope of a link-local address in `/proc/net/if_inet6`.
const LINK: u32 = 0x20;
/// Flags of an address that the kernel is still checking, and of one that another host has.
const TENTATIVE: u32 = 0x40;
const DUPLICATE: u32 = 0x08;
/// Time between two looks at interfaces that were set up.
const SETTLE_INTERVAL: Duration = Duration::from_millis(100);

/// Reads the network of this host. With `will_change` it also examines the right to change it.
pub(super) fn read(will_change: bool) -> HostNetwork {
    let inventory = inventory::read(&Root::live());
    let addresses = std::fs::read_to_string("/proc/net/if_inet6");
    let is_real = |netdev: &&Netdev| netdev.kind != NetdevKind::Loopback;
    let netdevs = inventory.netdevs.iter().filter(is_real);
    let interfaces = netdevs.map(|netdev| interface(&inventory, netdev, addresses.as_deref().ok()));
    HostNetwork {
        interfaces: interfaces.collect(),
        ssh_address: node::facts().ssh_address,
        ssh_client: std::env::var("SSH_CONNECTION").ok().and_then(|value| {
            // client-address client-port server-address server-port
            value.split(' ').next()?.parse().ok()
        }),
        privilege: if will_change { privilege() } else { Privilege::Unknown },
        routes: inventory.routes,
    }
}

fn interface(inventory: &Inventory, netdev: &Netdev, addresses: Option<&str>) -> HostInterface {
    let file = |name: &str| Path::new(DIRECTORY).join(&netdev.name).join(name);
    let text = |name: &str| std::fs::read_to_string(file(name)).ok();
    let flags = text("flags").and_then(|text| hexadecimal(text.trim().strip_prefix("0x")?));
    let master = std::fs::read_link(file("master")).ok();
    let has_it = |port: &rlaunch_bootstrap::inventory::rdma::Port| {
        port.netdev.as_ref() == Some(&netdev.name)
    };
    let devices: Vec<_> =
        inventory.rdma.iter().filter(|device| device.ports.iter().any(has_it)).collect();
    let guid = devices.iter().find_map(|device| device.image_guid.as_deref());
    let socket = guid.zip(netdev.port_name.as_deref());
    HostInterface {
        netdev: netdev.clone(),
        is_up: flags.is_some_and(|flags| flags & UP != 0),
        ipv6: link_local(&netdev.name, addresses),
        master: master.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned())),
        rdma: devices.iter().map(|device| device.name.clone()).collect(),
        socket: socket.map(|(guid, port)| format!("{guid} {port}")),
        ipoib_mode: text("mode").map(|mode| mode.trim().to_owned()),
    }
}

/// Judges IPv6 of an interface. `addresses` is the content of `/proc/net/if_inet6`.
fn link_local(name: &str, addresses: Option<&str>) -> LinkLocal {
    let Some(addresses) = addresses else { return LinkLocal::Unsupported };
    let disabled = std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"));
    match disabled {
        Ok(text) if text.trim() == "1" => LinkLocal::Disabled,
        _ => address_state(name, addresses),
    }
}

/// Finds the link-local address of an interface in the content of `/proc/net/if_inet6`: address,
/// index, prefix length, scope, flags, name.
fn address_state(name: &str, addresses: &str) -> LinkLocal {
    let flags = addresses.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, scope, flags, interface] = words[..] else { return None };
        let is_wanted = interface == name && hexadecimal(scope) == Some(LINK);
        is_wanted.then(|| hexadecimal(flags)).flatten()
    });
    let states = flags.filter(|flags| flags & DUPLICATE == 0);
    let state = |flags: u32| match flags & TENTATIVE {
        0 => LinkLocal::Usable,
        _ => LinkLocal::Tentative,
    };
    let found: Vec<LinkLocal> = states.map(state).collect();
    if found.contains(&LinkLocal::Usable) {
        LinkLocal::Usable
    } else {
        found.first().copied().unwrap_or(LinkLocal::Missing)
    }
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 16).ok()
}

fn privilege() -> Privilege {
    let answers = |privilege| command(privilege, &["-V".to_owned()]).is_ok();
    if !answers(Privilege::Root) {
        return Privilege::NoProgram;
    }
    match Uid::effective().is_root() {
        true => Privilege::Root,
        false if answers(Privilege::Sudo) => Privilege::Sudo,
        false => Privilege::Refused,
    }
}

/// Waits until all interfaces that were set up have a carrier, and no link-local address is being
/// checked, at most for `limit`. Returns the state of the host.
pub(super) async fn settle(changes: Vec<NetworkChange>, limit: Duration) -> HostNetwork {
    let deadline = tokio::time::Instant::now() + limit;
    let is_set_up = |name: &str| {
        changes.iter().any(|change| {
            change.interface() == name && matches!(change, NetworkChange::SetUp { up: true, .. })
        })
    };
    loop {
        let network = read(false);
        let is_ready = |one: &HostInterface| {
            if one.netdev.running {
                one.ipv6 != LinkLocal::Tentative
            } else {
                !is_set_up(&one.netdev.name)
            }
        };
        if network.interfaces.iter().all(is_ready) || tokio::time::Instant::now() >= deadline {
            return network;
        }
        sleep(SETTLE_INTERVAL).await;
    }
}

/// Directories of `ip`, which the PATH of an account other than root's may lack.
const SYSTEM_PATH: &str = "/usr/sbin:/sbin:/usr/bin:/bin";
/// Time limit for one `ip`. Drivers may take seconds to set an interface up.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(20);
/// Cause of a failure by [`COMMAND_TIMEOUT`].
const TOO_LONG: &str = "it did not end within 20 s";
/// Time between two looks whether a command has ended.
const COMMAND_INTERVAL: Duration = Duration::from_millis(1);

/// Changes that were made and not confirmed.
pub(super) struct Changes {
    privilege: Privilege,
    /// Changes that undo those made, in the order in which those were made.
    inverses: Vec<NetworkChange>,
}

impl Changes {
    pub(super) fn new(privilege: Privilege) -> Changes {
        Changes { privilege, inverses: Vec::new() }
    }

    /// Makes changes in order, up to the first that fails.
    pub(super) fn apply(&mut self, changes: &[NetworkChange]) -> Result<(), ChangeFailure> {
        for change in changes {
            let before = Before::read(change.interface());
            let addresses = addresses_of(change);
            let made = run_command(self.privilege, change);
            // A driver may still make a change that took too long.
            if made.as_ref().err().is_none_or(|failure| failure.cause == TOO_LONG) {
                self.inverses.extend(inverse(change, &before));
            }
            made?;
            self.restore(change, &addresses)?;
        }
        Ok(())
    }

    /// Adds the addresses again that the kernel has removed together with the one that was to be removed: without
    /// `promote_secondaries`, the other addresses of a network go with its first.
    fn restore(
        &mut self,
        change: &NetworkChange,
        before: &[(IpAddr, u8)],
    ) -> Result<(), ChangeFailure> {
        let NetworkChange::RemoveAddress { interface, address, prefix } = change else {
            return Ok(());
        };
        let left = addresses_of(change);
        let lost = before.iter().filter(|own| **own != (*address, *prefix) && !left.contains(own));
        let add = |&(address, prefix): &(IpAddr, u8)| {
            let interface = interface.clone();
            NetworkChange::AddAddress { interface, address, prefix }
        };
        let lost: Vec<NetworkChange> = lost.map(add).collect();
        let privilege = self.privilege;
        add_again(&lost, &mut self.inverses, |change| run_command(privilege, change))
    }

    /// Keeps the changes.
    pub(super) fn confirm(&mut self) {
        self.inverses.clear();
    }

    /// Undoes all changes that were not confirmed, the last one first.
    pub(super) fn roll_back(&mut self) -> RollBackReport {
        let mut report = RollBackReport::default();
        while let Some(change) = self.inverses.pop() {
            match run_command(self.privilege, &change) {
                Ok(()) => report.undone += 1,
                Err(failure) => report.failed.push(failure),
            }
        }
        report
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.roll_back();
    }
}

/// State of an interface before a change; `None` if it cannot be read.
#[derive(Debug, Default)]
struct Before {
    is_up: Option<bool>,
    mtu: Option<u32>,
    ipoib_mode: Option<String>,
}

impl Before {
    fn read(interface: &str) -> Before {
        let text = |file: &str| {
            let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/{file}"));
            text.ok().map(|text| text.trim().to_owned())
        };
        let flags = text("flags");
        let flags = flags.and_then(|text| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok());
        Before {
            is_up: flags.map(|flags| flags & 1 != 0),
            mtu: text("mtu").and_then(|text| text.parse().ok()),
            ipoib_mode: text("mode"),
        }
    }
}

/// Lists the addresses of the interface from which a change removes one, in the kernel's order; none for other changes.
fn addresses_of(change: &NetworkChange) -> Vec<(IpAddr, u8)> {
    let NetworkChange::RemoveAddress { interface, .. } = change else { return Vec::new() };
    let entries = getifaddrs().into_iter().flatten();
    // `eth0:1` is a label of an address of eth0.
    let own = entries.filter(|one| one.interface_name.split(':').next() == Some(&**interface));
    let address = |one: nix::ifaddrs::InterfaceAddress| {
        let mask = one.netmask.as_ref().and_then(inventory::ip);
        Some((one.address.as_ref().and_then(inventory::ip)?, inventory::prefix(mask)))
    };
    own.filter_map(address).collect()
}

/// Makes the changes that add lost addresses again. From the first that fails, they become inverses,
/// before that of the removal: it is undone before them, so that its address is the first again.
fn add_again(
    lost: &[NetworkChange],
    inverses: &mut Vec<NetworkChange>,
    mut make: impl FnMut(&NetworkChange) -> Result<(), ChangeFailure>,
) -> Result<(), ChangeFailure> {
    for (index, change) in lost.iter().enumerate() {
        if let Err(failure) = make(change) {
            let place = inverses.len().saturating_sub(1);
            inverses.splice(place..place, lost[index..].iter().rev().cloned());
            return Err(failure);
        }
    }
    Ok(())
}

/// Returns the change that undoes another, or `None` if there is nothing to undo.
fn inverse(change: &NetworkChange, before: &Before) -> Option<NetworkChange> {
    let interface = change.interface().to_owned();
    match change {
        NetworkChange::SetUp { up, .. } => {
            let was = before.is_up.filter(|was| was != up)?;
            Some(NetworkChange::SetUp { interface, up: was })
        }
        NetworkChange::SetMtu { mtu, .. } => {
            let was = before.mtu.filter(|was| was != mtu)?;
            Some(NetworkChange::SetMtu { interface, mtu: was })
        }
        NetworkChange::SetIpoibMode { mode, .. } => {
            let was = before.ipoib_mode.clone().filter(|was| was != mode)?;
            Some(NetworkChange::SetIpoibMode { interface, mode: was })
        }
        NetworkChange::AddAddress { address, prefix, .. } => {
            let (address, prefix) = (*address, *prefix);
            Some(NetworkChange::RemoveAddress { interface, address, prefix })
        }
        NetworkChange::RemoveAddress { address, prefix, .. } => {
            let (address, prefix) = (*address, *prefix);
            Some(NetworkChange::AddAddress { interface, address, prefix })
        }
    }
}

fn run_command(privilege: Privilege, change: &NetworkChange) -> Result<(), ChangeFailure> {
    let failure = |cause: String| ChangeFailure { line: change.to_string(), cause };
    command(privilege, &change.arguments()).map_err(failure)
}

/// Runs `ip` with the right that the account has. The error is what `ip` or sudo says.
pub(super) fn command(privilege: Privilege, arguments: &[String]) -> Result<(), String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = match privilege {
        Privilege::Sudo => {
            let mut sudo = Command::new("sudo");
            sudo.args(["-n", "ip"]);
            sudo
        }
        _ => Command::new("ip"),
    };
    command.args(arguments).env("PATH", format!("{path}:{SYSTEM_PATH}")).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    wait(command).map_err(|error| error.to_string())?
}

/// Waits for the end of a command, at most [`COMMAND_TIMEOUT`]. Its messages are few, so that they
/// fit the pipe.
fn wait(mut command: Command) -> io::Result<Result<(), String>> {
    let mut child = command.spawn()?;
    let deadline = Instant::now() + COMMAND_TIMEOUT;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() >= deadline => {
                child.kill()?;
                child.wait()?;
                return Ok(Err(TOO_LONG.to_owned()));
            }
            None => std::thread::sleep(COMMAND_INTERVAL),
        }
    };
    if status.success() {
        return Ok(Ok(()));
    }
    let mut said = String::new();
    child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut said)).transpose()?;
    let said = said.trim();
    Ok(Err(if said.is_empty() { status.to_string() } else { said.replace('\n', "; ") }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_addresses_are_found_among_others() {
        let text = "\
00000000000000000000000000000001 01 80 10 80       lo
fe800000000000000000000000000001 02 40 20 80     eth0
20010db8000000000000000000000001 03 40 00 80     eth1
fe800000000000000000000000000003 04 40 20 c0     eth2
fe800000000000000000000000000004 05 40 20 c8     eth3
rubbish
";
        let state = |name| address_state(name, text);
        assert_eq!(state("eth0"), LinkLocal::Usable);
        assert_eq!(state("eth1"), LinkLocal::Missing, "a global address alone");
        assert_eq!(state("eth2"), LinkLocal::Tentative);
        assert_eq!(state("eth3"), LinkLocal::Missing, "another host has it");
        assert_eq!(state("lo"), LinkLocal::Missing);
    }

    #[test]
    fn this_machine_is_read() {
        let network = read(false);
        assert!(network.interfaces.iter().all(|one| one.netdev.kind != NetdevKind::Loopback));
        assert_eq!(network.privilege, Privilege::Unknown);
    }

    fn set_up(up: bool) -> NetworkChange {
        NetworkChange::SetUp { interface: "eth1".into(), up }
    }

    #[test]
    fn inverses_restore_what_was() {
        let before =
            Before { is_up: Some(false), mtu: Some(1500), ipoib_mode: Some("connected".into()) };
        let interface = || "eth1".to_owned();
        assert_eq!(inverse(&set_up(true), &before), Some(set_up(false)));
        assert_eq!(inverse(&set_up(false), &before), None);
        let mtu = |mtu| NetworkChange::SetMtu { interface: interface(), mtu };
        assert_eq!(inverse(&mtu(9000), &before), Some(mtu(1500)));
        assert_eq!(inverse(&mtu(1500), &before), None);
        let mode =
            |mode: &str| NetworkChange::SetIpoibMode { interface: interface(), mode: mode.into() };
        assert_eq!(inverse(&mode("datagram"), &before), Some(mode("connected")));
        let (address, prefix) = ("192.168.101.2".parse().unwrap(), 24);
        let add = NetworkChange::AddAddress { interface: interface(), address, prefix };
        let remove = NetworkChange::RemoveAddress { interface: interface(), address, prefix };
        assert_eq!(inverse(&add, &before), Some(remove.clone()));
        assert_eq!(inverse(&remove, &before), Some(add));
    }

    #[test]
    fn addresses_that_cannot_be_added_again_are_left_to_the_roll_back() {
        let add = |address: &str| NetworkChange::AddAddress {
            interface: "eth1".into(),
            address: address.parse().unwrap(),
            prefix: 24,
        };
        let [first, second, third, fourth] =
            ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"].map(add);
        let mut inverses = vec![set_up(false), first.clone()];
        let make = |change: &NetworkChange| {
            if *change == third {
                Err(ChangeFailure { line: change.to_string(), cause: "busy".into() })
            } else {
                Ok(())
            }
        };
        let lost = [second, third.clone(), fourth.clone()];
        assert_eq!(add_again(&lost, &mut inverses, make).unwrap_err().cause, "busy");
        // They are undone from the last one on.
        assert_eq!(inverses, [set_up(false), fourth, third.clone(), first]);
        let before = inverses.clone();
        assert!(add_again(&lost, &mut inverses, |_| Ok(())).is_ok());
        assert_eq!(inverses, before);
    }

    #[test]
    fn a_change_that_fails_says_why() {
        let change = NetworkChange::SetUp { interface: "no-such-if".into(), up: true };
        let mut changes = Changes::new(Privilege::Root);
        let failure = changes.apply(&[change]).unwrap_err();
        assert_eq!(failure.line, "ip link set dev no-such-if up");
        assert!(!failure.cause.is_empty(), "{failure:?}");
        assert_eq!(changes.roll_back(), RollBackReport::default());
    }
}
