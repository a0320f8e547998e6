//! What a host says about itself for `rlaunch up`: a script that changes nothing, and its output.

use super::ONLY_UNDO;
use rlaunch_bootstrap::protocol::changes::Change;
use rlaunch_text::shell;
use std::net::IpAddr;

/// Script that prints a line for each fact. Names of hosts stand in front of it.
const SCRIPT: &str = r#"
has() { command -v "$1" >/dev/null 2>&1; }
if has netplan && ls /etc/netplan/*.yaml >/dev/null 2>&1; then echo keeper netplan
elif has nmcli && [ "$(nmcli -t -f RUNNING general 2>/dev/null)" = running ]; then echo keeper nmcli
elif has networkctl && systemctl -q is-active systemd-networkd 2>/dev/null; then echo keeper networkd
elif has ifup && grep -qs '^source.*interfaces\.d' /etc/network/interfaces; then echo keeper ifupdown
fi
if has ufw && ufw status 2>/dev/null | grep -q '^Status: active'; then
  echo wall ufw; ufw status | sed -n 's/^Anywhere on \([^ ]*\) .*ALLOW.*/open \1/p'
elif has firewall-cmd && firewall-cmd --state >/dev/null 2>&1; then
  echo wall firewalld; for i in $(firewall-cmd --zone=trusted --list-interfaces); do echo "open $i"; done
elif has nft && nft list chain inet filter input 2>/dev/null | grep -q 'policy drop'; then
  echo wall nft; nft list chain inet filter input | sed -n 's/.*iifname "\([^"]*\)" accept.*/open \1/p'
elif has iptables && iptables -S INPUT 2>/dev/null | grep -q '^-P INPUT DROP'; then
  echo wall iptables; iptables -S INPUT | sed -n 's/^-A INPUT -i \([^ ]*\) -j ACCEPT$/open \1/p'
fi
for port in /sys/class/infiniband/*/ports/*; do
  [ "$(cat "$port/link_layer" 2>/dev/null)" = InfiniBand ] || continue
  case $(cat "$port/state") in *INIT*) echo fabric waits ;; esac
done
if has pidof && pidof opensm >/dev/null; then echo fabric managed; fi
RES_OPTIONS='timeout:1 attempts:1'; export RES_OPTIONS
for name in $names; do echo "name $name" $(getent ahosts "$name" | cut -d' ' -f1 | sort -u); done
echo hosts; cat /etc/hosts 2>/dev/null
:
"#;

/// Beginning of the /etc/hosts that the kubelet writes for a pod.
const KUBELET: &str = "# Kubernetes-managed hosts file";

/// Facts of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// What keeps addresses for the next boot.
    pub keeper: Option<Keeper>,
    /// Packet filter that drops what is not let in.
    pub wall: Option<Wall>,
    /// Interfaces from which it lets everything in.
    pub open: Vec<String>,
    /// Whether an InfiniBand port is connected and waits for a subnet manager.
    pub waits_for_manager: bool,
    /// Whether a subnet manager runs on the host.
    pub has_manager: bool,
    /// Addresses that names have on the host.
    pub names: Vec<(String, Vec<IpAddr>)>,
    /// Content of /etc/hosts.
    pub hosts_file: String,
}

/// Program that sets up the network of a host at boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    Netplan,
    NetworkManager,
    Networkd,
    Ifupdown,
}

/// Program that manages a packet filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wall {
    Ufw,
    Firewalld,
    Nft,
    Iptables,
}

/// Returns the script whose output [`Facts::parse`] reads. `names` are the hosts that are to know each other.
pub fn survey(names: &[&str]) -> String {
    let names = shell::quoted_posix(&names.join(" "));
    format!("names={names}{SCRIPT}")
}

impl Facts {
    /// Reads what the script has printed. What is not known is left out.
    pub fn parse(printed: &str) -> Facts {
        let mut facts = Facts::default();
        let mut lines = printed.split_inclusive('\n');
        for line in lines.by_ref() {
            let mut words = line.split_whitespace();
            let word = words.next().unwrap_or_default();
            let value = words.next().unwrap_or_default();
            match word {
                "keeper" => facts.keeper = Keeper::parse(value),
                "wall" => facts.wall = Wall::parse(value),
                "fabric" => match value {
                    "waits" => facts.waits_for_manager = true,
                    _ => facts.has_manager = true,
                },
                "open" => facts.open.push(value.to_owned()),
                "name" => {
                    let addresses = words.filter_map(|word| word.parse().ok()).collect();
                    facts.names.push((value.to_owned(), addresses));
                }
                "hosts" => break,
                _ => {}
            }
        }
        facts.hosts_file = lines.collect();
        if !facts.hosts_file.is_empty() && !facts.hosts_file.ends_with('\n') {
            facts.hosts_file.push('\n');
        }
        facts
    }

    pub(super) fn is_pod(&self) -> bool {
        self.hosts_file.starts_with(KUBELET)
    }
}

impl Keeper {
    fn parse(word: &str) -> Option<Keeper> {
        match word {
            "netplan" => Some(Keeper::Netplan),
            "nmcli" => Some(Keeper::NetworkManager),
            "networkd" => Some(Keeper::Networkd),
            "ifupdown" => Some(Keeper::Ifupdown),
            _ => None,
        }
    }

    /// Returns a line that prints the interfaces whose file this program is known not to have read: `up` may have died
    /// between the file and the reading. Where that cannot be seen, nothing is printed.
    pub fn unread(self, interfaces: &[String]) -> String {
        let interfaces: Vec<String> =
            interfaces.iter().map(|name| shell::quoted_posix(name)).collect();
        let is_read = match self {
            // networkd notes the file of each interface that it manages.
            Keeper::Networkd => {
                "s=/run/systemd/netif/links/$(cat /sys/class/net/$i/ifindex 2>/dev/null); \
                 [ ! -f $s ] || grep -q ^NETWORK_FILE= $s"
            }
            // What netplan makes of its files is younger than they are.
            Keeper::Netplan => {
                "r=no; for s in /run/systemd/network/10-netplan-$i.network \
                 /run/NetworkManager/system-connections/netplan-$i.nmconnection; do \
                 if [ -f $s ] && [ ! /etc/netplan/99-rdma-mesh.yaml -nt $s ]; then r=yes; fi; done; [ $r = yes ]"
            }
            Keeper::NetworkManager => {
                "nmcli -t -f NAME connection show --active | grep -qxF rdma-mesh-$i"
            }
            Keeper::Ifupdown => ":",
        };
        format!("for i in {}; do {is_read} || echo $i; done", interfaces.join(" "))
    }

    /// Surrounds files with what makes this program read them: behind them now, and again once they are undone.
    pub fn around(self, files: Vec<Change>, interfaces: &[String]) -> Vec<Change> {
        let run = |line: String, undo: Option<String>| Change::Run { line, save: None, undo };
        let read = match self {
            Keeper::Netplan => {
                "netplan generate && { ! systemctl -q is-active systemd-networkd || networkctl reload; }"
            }
            Keeper::NetworkManager => "nmcli connection reload",
            Keeper::Networkd => "networkctl reload",
            // Its files are read at boot, and the addresses are there already.
            Keeper::Ifupdown => return files,
        };
        let mut changes = vec![run(ONLY_UNDO.to_owned(), Some(read.to_owned()))];
        changes.extend(files);
        changes.push(run(read.to_owned(), None));
        if self == Keeper::NetworkManager {
            changes.extend(interfaces.iter().map(|name| {
                let (device, own) = (shell::quoted_posix(name), format!("rdma-mesh-{name}"));
                let own = shell::quoted_posix(&own);
                // It displaces the connection that the interface has, which may not come back by itself.
                let save = format!(
                    "[ \"$(nmcli -e no -g GENERAL.CONNECTION device show {device})\" = {own} ] || \
                     nmcli -g GENERAL.CON-UUID device show {device} || :"
                );
                let undo = format!(
                    "nmcli connection down {own}; [ -z \"$SAVED\" ] || nmcli connection up uuid \"$SAVED\" || :"
                );
                let line = format!("nmcli connection up {own}");
                Change::Run { line, save: Some(save), undo: Some(undo) }
            }));
        }
        changes
    }
}

impl Wall {
    fn parse(word: &str) -> Option<Wall> {
        match word {
            "ufw" => Some(Wall::Ufw),
            "firewalld" => Some(Wall::Firewalld),
            "nft" => Some(Wall::Nft),
            "iptables" => Some(Wall::Iptables),
            _ => None,
        }
    }

    /// Returns the change that lets everything in from an interface; `None` for a name that a rule cannot have.
    pub(super) fn admission(self, interface: &str) -> Option<Change> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        if !interface.chars().all(is_plain) {
            return None;
        }
        let (line, undo) = match self {
            Wall::Ufw => (
                format!("ufw allow in on {interface}"),
                format!("ufw delete allow in on {interface} || :"),
            ),
            Wall::Firewalld => {
                let all = |operation: &str| {
                    let one =
                        format!("firewall-cmd --zone=trusted --{operation}-interface={interface}");
                    (format!("{one} --permanent"), one)
                };
                let ((kept, now), (taken, away)) = (all("add"), all("remove"));
                (format!("{kept} && {now}"), format!("{taken}; {away}; :"))
            }
            Wall::Nft => {
                let chain = "inet filter input";
                let handle = format!(
                    "$(nft -a list chain {chain} | sed -n 's/.*iifname \"{interface}\" accept # handle //p' | head -1)"
                );
                (
                    format!("nft insert rule {chain} iifname {interface} accept"),
                    format!("h={handle}; [ -z \"$h\" ] || nft delete rule {chain} handle $h"),
                )
            }
            Wall::Iptables => (
                format!("iptables -I INPUT -i {interface} -j ACCEPT"),
                format!("iptables -D INPUT -i {interface} -j ACCEPT 2>/dev/null || :"),
            ),
        };
        let (save, undo) = (None, Some(undo));
        Some(match self {
            Wall::Ufw | Wall::Firewalld => Change::Run { line, save, undo },
            Wall::Nft | Wall::Iptables => Change::RunUntilBoot { line, save, undo },
        })
    }
}
