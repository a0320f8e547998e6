//! `rlaunch up` and `down` on three computers that are cabled to each other, have no addresses on their cables, and let
//! nobody in without a password.

use crate::support::{ADDRESSES, ALL, Field, Ran, Undo, without_addresses};
use rlaunch_lab::command::wait_until;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const PASSWORD: &str = "open sesame";
/// Hash of [`PASSWORD`] for `/etc/shadow`.
const HASHED: &str = "$6$rlaunchlab$4moi636pCHCxai2XPa0YZRlkvwEXPt9szX/L6bDzk8L0HsMoxYSmRG.HYeLX9w2e7FJkZckB3pL1L/U8lVqjZ.";
/// Settings of jobs: limits for emulated computers, and RDMA by every cable or none of it.
const JOBS: &str = "RLAUNCH_NODE_TIMEOUT=60 RLAUNCH_MESH_TIMEOUT=40 RLAUNCH_RDMA_RETRIES=4 RLAUNCH_OOB_IF=eth0 \
                    RLAUNCH_HCA=rxe RLAUNCH_TRANSPORT=rdma RLAUNCH_SHOW=mesh";
/// Time limit for a kernel to take what belonged to an address out of its tables.
const SETTLED: Duration = Duration::from_secs(60);

/// Makes guests as they are after an installation: root has a password, nobody knows the others, and ifupdown, with an empty
/// configuration, is what sets cables up. The lab's own key stays.
fn as_installed(field: &Field) -> impl Drop + use<'_> {
    let guard = Undo(move || {
        if std::thread::panicking() {
            field.verb(&format!("down -H {ALL}"), &[]);
        }
        let restore = "cd /var/tmp/before && cp -p shadow hosts /etc && cp -p authorized_keys /root/.ssh && \
                       rm -rf /var/tmp/before /etc/network/interfaces";
        ALL.split(',').try_for_each(|guest| field.restore(guest, restore))
    });
    let make = format!(
        "mkdir -p /var/tmp/before && cd /var/tmp/before && cp -p /etc/shadow /etc/hosts /root/.ssh/authorized_keys . && \
         sed -i 's|^root:[^:]*:|root:{HASHED}:|' /etc/shadow && echo '127.0.0.1 localhost' > /etc/hosts && \
         echo 'source /etc/network/interfaces.d/*' > /etc/network/interfaces"
    );
    ALL.split(',').for_each(|guest| drop(field.on(guest, &make)));
    guard
}

/// Home of somebody who has names for the guests, and neither a key nor a host that is known.
struct Newcomer(TempDir);

impl Newcomer {
    fn new() -> Newcomer {
        let home = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str, mode: u32| {
            let path = home.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let named = ["n1", "n2", "n3"]
            .map(|name| format!("Host {name}\n  HostName 10.77.0.{}\n", &name[1..]));
        let config = named.concat() + "Host *\n  User root\n  ConnectTimeout 60\n";
        write(".ssh/config", &config, 0o600);
        // What types the password notes each question.
        let program = format!("#!/bin/sh\necho \"$1\" >> ~/asked\necho '{PASSWORD}'\n");
        write("askpass", &program, 0o755);
        Newcomer(home)
    }

    fn home(&self) -> &Path {
        self.0.path()
    }

    /// Runs a shell line in that home.
    fn runs(&self, field: &Field, line: &str) -> Ran {
        let home = self.home().display();
        let variables = "HOME=$PWD XDG_STATE_HOME=$PWD/state SSH_ASKPASS=$PWD/askpass SSH_ASKPASS_REQUIRE=force";
        field.line(&format!("cd {home} && export {variables} {JOBS}; {line}"))
    }

    fn questions(&self) -> String {
        fs::read_to_string(self.home().join("asked")).unwrap_or_default()
    }
}

/// Beginnings of settings that differ from one boot to the next, or by themselves: counts, random numbers, and sizes that the
/// kernel derives from the memory that is free at its start.
const VOLATILE: [&str; 5] = [
    r"kernel\.(random\.|ns_last_pid|pty\.nr|threads-max|perf_)",
    r"fs\.(dentry-state|file-|inode-|epoll|inotify|aio|quota)",
    r"user\.|vm\.(min_free|lowmem|user_reserve|admin_reserve)",
    r"net\.ipv4\.(tcp_(mem|max_orphans|max_tw|fastopen_key)|udp_mem|route\.)",
    r"net\.core\.netdev_rss_key|net\.netfilter\.nf_conntrack_(count|max|buckets)",
];

/// Returns what `up` may change on a guest: addresses, links, routes, rules, GIDs, settings of the kernel, and files with
/// their modes. Lifetimes are left out, and keys, which stay, and mounts that other tests change and a boot undoes.
fn dump(field: &Field, guest: &str) -> String {
    let volatile = VOLATILE.join("|");
    let lines = format!(
        "ip -o address show | sed 's/valid_lft.*//'; ip -o link show; ip route show table all; ip rule; ip -6 rule; \
         iptables -S; ip6tables -S; \
         grep -rs . /sys/class/infiniband/*/ports/1/gids | grep -v ':0000:0000:0000:0000:0000:0000:0000:0000$' | sort; \
         sysctl -a 2>/dev/null | grep -vE '^({volatile})'; grep -v ' /dev/shm \\| /run/netns \\| /var/lib/containers ' /proc/mounts; \
         find /etc /var/lib/rlaunch -xdev -type f -exec sha256sum {{}} + 2>/dev/null | sort -k2; \
         find /etc -xdev -printf '%p %M %U %G %l\\n' | sort; ls -A /var/lib"
    );
    field.on(guest, &lines)
}

fn dumps(field: &Field) -> Vec<String> {
    ALL.split(',').map(|guest| dump(field, guest)).collect()
}

/// Lists the lines of two dumps that differ.
fn difference(before: &[String], after: &[String]) -> String {
    let only = |sign: char, these: &str, those: &str| -> String {
        let lines = these.lines().filter(|line| !those.lines().any(|other| other == *line));
        lines.map(|line| format!("{sign} {line}\n")).collect()
    };
    let guests = ALL.split(',').zip(before.iter().zip(after));
    let of_guest = |(guest, (before, after)): (&str, (&String, &String))| {
        let lines = only('-', before, after) + &only('+', after, before);
        if lines.is_empty() { lines } else { format!("{guest}:\n{lines}") }
    };
    guests.map(of_guest).collect()
}

/// Returns guest, interface and address of all ends of cables.
fn addresses(field: &Field) -> Vec<String> {
    let line = "ip -o -4 address show | awk '$2 ~ /^eth[12]$/ { print $2, $4 }'";
    let of_guest = |guest| -> Vec<String> {
        field.on(guest, line).lines().map(|line| format!("{guest} {line}")).collect()
    };
    ALL.split(',').flat_map(of_guest).collect()
}

#[test]
fn a_password_leads_to_a_mesh_that_is_there_after_a_boot() {
    let field = Field::new();
    let _addresses = without_addresses(&field);
    let _guests = as_installed(&field);
    for (guest, interface, _) in ADDRESSES {
        let device = if interface == "eth1" { "rxe0" } else { "rxe1" };
        field.await_gid(guest, (device, 1), None).unwrap();
    }
    let newcomer = Newcomer::new();
    let before = dumps(&field);
    let planned =
        ADDRESSES.map(|(guest, interface, address)| format!("{guest} {interface} {address}/24"));

    let ran = newcomer.runs(&field, &format!("rlaunch up -H {ALL} --yes"));
    let hosts: Vec<&str> = ran.succeeded().out.lines().filter(|line| line.len() == 2).collect();
    assert_eq!(hosts.iter().filter(|host| ALL.contains(**host)).count(), 3, "the first job: {ran}");
    ran.says("n1, n2, n3 accept your key").says("3 links answered, 6 directions");
    ran.says("mesh: 6/6 paths up, RoCE v2, 3 subnets").says("rlaunch.toml: written and trusted");
    let question = "password of root@n1 (also tried on n2, n3):\n";
    assert_eq!(newcomer.questions(), question, "once, for all: {ran}");
    assert_eq!(addresses(&field), planned, "{ran}");
    assert!(field.on("n1", "cat /etc/hosts").contains("\n10.77.0.3 n3\n"), "{ran}");

    field.lab.reboot().unwrap();
    assert_eq!(addresses(&field), planned, "after the boot");
    // Its first job proves the mesh again.
    let ran = newcomer.runs(&field, "rlaunch up --yes");
    ran.succeeded().says("there is nothing to change on the hosts").says("mesh: 6/6 paths up");
    let since = newcomer.runs(&field, "rlaunch doctor --since-up --strict");
    let same = ALL.split(',').map(|guest| format!("{guest}: as `rlaunch up` has left it\n"));
    assert_eq!(since.succeeded().out, same.collect::<String>(), "{since}");

    let undone = newcomer.runs(&field, "rlaunch down");
    undone.succeeded();
    // GIDs go a moment after their addresses.
    let _ = wait_until(SETTLED, "the state before", || Ok(dumps(&field) == before));
    assert_eq!(difference(&before, &dumps(&field)), "", "{undone}");
    assert_eq!(newcomer.questions(), question, "the key is enough since");
}
