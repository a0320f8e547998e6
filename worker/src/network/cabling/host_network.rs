//! Network interfaces of this host, and whether they can send beacons; running `ip`.

use crate::node;
use crate::node::inventory::{self, Root};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Uid;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::net::{Netdev, NetdevKind};
use rlaunch_bootstrap::inventory::rdma::RdmaDevice;
use rlaunch_bootstrap::protocol::network::{
    HostInterface, HostNetwork, LinkLocal, NetworkChange, NetworkFile, Privilege,
};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::time::sleep;

const DIRECTORY: &str = "/sys/class/net";
/// State of systemd-networkd, a file for the index of each interface.
const NETWORKD_LINKS: &str = "/run/systemd/netif/links";
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
    let interfaces =
        netdevs.map(|netdev| read_interface(&inventory, netdev, addresses.as_deref().ok()));
    HostNetwork {
        interfaces: interfaces.collect(),
        ssh_address: node::facts().ssh_address,
        ssh_client: std::env::var("SSH_CONNECTION").ok().and_then(|value| {
            // client-address client-port server-address server-port
            value.split(' ').next()?.parse().ok()
        }),
        privilege: if will_change { try_privilege() } else { Privilege::Unknown },
        routes: inventory.routes,
    }
}

/// Reads an interface. `addresses` is the content of `/proc/net/if_inet6`.
fn read_interface(
    inventory: &Inventory,
    netdev: &Netdev,
    addresses: Option<&str>,
) -> HostInterface {
    let file = |name: &str| Path::new(DIRECTORY).join(&netdev.name).join(name);
    let text = |name: &str| std::fs::read_to_string(file(name)).ok();
    let flags = text("flags").and_then(|text| hexadecimal(text.trim().strip_prefix("0x")?));
    let master = std::fs::read_link(file("master")).ok();
    let is_below = |device: &&RdmaDevice| {
        device.ports.iter().any(|port| port.netdev.as_ref() == Some(&netdev.name))
    };
    let devices: Vec<_> = inventory.rdma.iter().filter(is_below).collect();
    let guid = devices.iter().find_map(|device| device.image_guid.as_deref());
    // Both numbers together name one socket of one adapter, even if several interfaces share it.
    let socket = guid.zip(netdev.port_name.as_deref());
    HostInterface {
        netdev: netdev.clone(),
        is_up: flags.is_some_and(|flags| flags & UP != 0),
        ipv6: read_link_local(&netdev.name, addresses),
        master: master.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned())),
        rdma: devices.iter().map(|device| device.name.clone()).collect(),
        socket: socket.map(|(guid, port)| format!("{guid} {port}")),
        ipoib_mode: text("mode").map(|mode| mode.trim().to_owned()),
        is_wireless: file("wireless").exists() || file("phy80211").exists(),
        network_file: read_network_file(netdev),
    }
}

/// Returns the file by which systemd-networkd configures an interface, which it notes in its state.
fn read_network_file(netdev: &Netdev) -> Option<NetworkFile> {
    let state = std::fs::read_to_string(format!("{NETWORKD_LINKS}/{}", netdev.index)).ok()?;
    let path = state.lines().find_map(|line| line.strip_prefix("NETWORK_FILE="))?.to_owned();
    let is_for_one =
        std::fs::read_to_string(&path).is_ok_and(|text| matches_one(&text, &netdev.name));
    Some(NetworkFile { path, is_for_one })
}

/// Tells whether the text of a file of systemd-networkd can match no interface but this one.
fn matches_one(text: &str, name: &str) -> bool {
    let lines = text.lines().map(str::trim).skip_while(|line| *line != "[Match]").skip(1);
    let mut settings =
        lines.take_while(|line| !line.starts_with('[')).filter_map(|line| line.split_once('='));
    settings.any(|(key, value)| match key.trim() {
        "Name" => value.trim() == name,
        "MACAddress" | "PermanentMACAddress" => value.split_whitespace().count() == 1,
        _ => false,
    })
}

/// Judges IPv6 of an interface. `addresses` is the content of `/proc/net/if_inet6`.
fn read_link_local(name: &str, addresses: Option<&str>) -> LinkLocal {
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

/// Runs `ip -V`, directly and through sudo, to find by which right this account can change the network.
fn try_privilege() -> Privilege {
    let answers = |privilege| run_ip(privilege, &["-V"]).is_ok();
    if !answers(Privilege::Root) {
        Privilege::NoProgram
    } else if Uid::effective().is_root() {
        Privilege::Root
    } else if answers(Privilege::Sudo) {
        Privilege::Sudo
    } else {
        Privilege::Refused
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
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(20);
/// Cause of a failure by [`COMMAND_TIMEOUT`].
pub(super) const TOO_LONG: &str = "it did not end within 20 s";
/// Time between two looks whether a command has ended.
pub(super) const COMMAND_INTERVAL: Duration = Duration::from_millis(1);

/// Runs `ip` with the right that the account has, and returns what it lists. The error is what `ip` or sudo says.
pub(super) fn run_ip(
    privilege: Privilege,
    arguments: &[impl AsRef<OsStr>],
) -> Result<String, String> {
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
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    wait_for_list(command).map_err(|error| error.to_string())?
}

/// Waits for the end of a command, at most [`COMMAND_TIMEOUT`], and returns what it lists, or why it failed. Its messages
/// are few, so that they fit the pipe.
fn wait_for_list(mut command: Command) -> io::Result<Result<String, String>> {
    let mut child = rlaunch_sys::spawn(&mut command)?;
    let deadline = Instant::now() + COMMAND_TIMEOUT;
    let listed = child.stdout.take().map(|stdout| read_until(deadline, stdout)).transpose()?;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() >= deadline => {
                // Root's sudo cannot be killed by others, and what waits for a driver does not end at once. Both may
                // still make the change, and are reaped by the guardian.
                let _ = child.kill();
                std::thread::sleep(COMMAND_INTERVAL);
                let _ = child.try_wait();
                return Ok(Err(TOO_LONG.to_owned()));
            }
            None => std::thread::sleep(COMMAND_INTERVAL),
        }
    };
    if status.success() {
        let listed = listed.unwrap_or_default();
        return Ok(Ok(String::from_utf8_lossy(&listed).into_owned()));
    }
    let mut said = String::new();
    child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut said)).transpose()?;
    let said = said.trim();
    Ok(Err(if said.is_empty() { status.to_string() } else { said.replace('\n', "; ") }))
}

/// Reads what a command lists, until it closes its stdout or the deadline has passed.
fn read_until(deadline: Instant, mut stdout: ChildStdout) -> io::Result<Vec<u8>> {
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        match poll(&mut [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)], left) {
            Ok(0) => return Ok(bytes),
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match stdout.read(&mut chunk)? {
            0 => return Ok(bytes),
            length => bytes.extend_from_slice(&chunk[..length]),
        }
    }
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
    fn a_file_for_one_interface_is_told_from_others() {
        for text in [
            "[Match]\nName=eth1\n[Network]\nDHCP=yes\n",
            "# x\n[Match]\nType=ether\n Name = eth1\n",
            "[Match]\nMACAddress=02:00:00:00:00:01\n",
        ] {
            assert!(matches_one(text, "eth1"), "{text}");
        }
        for text in [
            "[Match]\nName=eth*\n",
            "[Match]\nName=eth1 eth2\n",
            "[Match]\nType=ether\n",
            "[Network]\nName=eth1\n",
            "[Match]\nName=!eth1\n[Link]\nName=eth1\n",
            "",
        ] {
            assert!(!matches_one(text, "eth1"), "{text}");
        }
    }

    #[test]
    fn this_machine_is_read() {
        let network = read(false);
        assert!(network.interfaces.iter().all(|one| one.netdev.kind != NetdevKind::Loopback));
        assert_eq!(network.privilege, Privilege::Unknown);
    }
}
