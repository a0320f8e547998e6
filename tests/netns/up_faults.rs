//! `rlaunch up` with a fault in its midst: afterwards every host is reached, and `rlaunch down` makes it what it was.
//!
//! The moments come from numbers, and a failure names its own: `RLAUNCH_UP_FAULTS=NUMBER` repeats that one.

use crate::network_plan::{CABLES, plug};
use crate::support::{Field, State, Undo};
use crate::up::{BOUND, dump, own_files};
use nix::sys::signal::Signal;
use rlaunch_lab::Account;
use rlaunch_lab::command::{feed, wait_until};
use std::fmt;
use std::os::unix::fs::chown;
use std::path::Path;
use std::time::Duration;

const HOSTS: [&str; 2] = ["a", "b"];
/// What `up` has said when a fault comes. Much is left to do behind the last one, the first job at least.
const MOMENTS: [&str; 4] = [
    "names of the hosts: done on",
    "addresses, on trial until every link answers: 1 link answered",
    "addresses kept for the next boot: done on",
    "rlaunch.toml: written and trusted",
];

/// Time limit for links after the last change.
const SETTLED: Duration = Duration::from_secs(30);

/// Programs by which an account becomes root, unless a file forbids it. `sudo` is for `/usr/local/bin`.
const SUDO: &str = r#"#!/bin/sh
[ ! -e /run/up/refused ] || { echo "sudo: $(id -un) is not in the sudoers file" >&2; exit 1; }
while :; do case $1 in -n) shift ;; --) shift; break ;; *) break ;; esac; done
exec /usr/local/bin/become --reuid 0 --regid 0 --clear-groups -- "$@"
"#;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    LauncherKilled,
    AgentsKilled,
    CableCut,
    Rebooted,
    DiskFull,
    SudoRefused,
}

impl Kind {
    const ALL: [Kind; 6] = [
        Kind::LauncherKilled,
        Kind::AgentsKilled,
        Kind::CableCut,
        Kind::Rebooted,
        Kind::DiskFull,
        Kind::SudoRefused,
    ];

    /// Lines for a host: one that makes the fault, and one that ends it.
    fn lines(self) -> (&'static str, &'static str) {
        match self {
            Kind::LauncherKilled => (":", ":"),
            Kind::AgentsKilled => ("pkill -9 -f 'rlaunch-worker[ ]changes' || :", ":"),
            Kind::CableCut => (
                "ip link set $(ls /sys/class/net | grep cable) down",
                "ip link set $(ls /sys/class/net | grep cable) up",
            ),
            // The running system is gone, and nothing had time to undo a change.
            Kind::Rebooted => (
                "pkill -9 -f '[r]launch-worker'; rm -f /run/rlaunch.lock; c=$(ls /sys/class/net | grep cable); \
                 ip link set $c down; ip address flush dev $c; ip link set $c mtu 1500 up",
                ":",
            ),
            Kind::DiskFull => (
                "dd if=/dev/zero of=/var/lib/full bs=16k 2>/dev/null; dd if=/dev/zero of=/run/up/full bs=16k 2>/dev/null; :",
                "rm -f /var/lib/full /run/up/full",
            ),
            Kind::SudoRefused => ("touch /run/up/refused", "rm -f /run/up/refused"),
        }
    }
}

/// Fault of a number: its kind, the host where it comes, and behind which words of `up`.
struct Fault {
    number: u64,
    kind: Kind,
    host: &'static str,
    after: &'static str,
}

impl Fault {
    fn of(number: u64) -> Fault {
        // The steps of splitmix64.
        let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let kinds = Kind::ALL.len() as u64;
        Fault {
            number,
            kind: Kind::ALL[usize::try_from(number % kinds).unwrap()],
            host: HOSTS[usize::try_from(mixed % 2).unwrap()],
            after: MOMENTS[usize::try_from((mixed >> 1) % MOMENTS.len() as u64).unwrap()],
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { number, kind, host, after } = self;
        write!(f, "RLAUNCH_UP_FAULTS={number} ({kind:?} on {host} after {after:?})")
    }
}

/// Lets the account `user` become root on the hosts.
fn with_sudo(field: &Field) -> impl Drop + use<'_> {
    let guard = Undo(move || {
        HOSTS.iter().for_each(|host| drop(field.on(host, "umount /usr/local/bin")));
        Ok::<(), String>(())
    });
    for host in HOSTS {
        // The host's own lines for the account lie below those of the test.
        let own = "echo user:x:4242:4242::/home/user:/bin/bash >> /etc/passwd && echo user:x:4242: >> /etc/group && \
                   echo 'user:*:19000::::::' >> /etc/shadow && mount -t tmpfs own /usr/local/bin && cat > /usr/local/bin/sudo && \
                   cp $(command -v setpriv) /usr/local/bin/become && chmod 4755 /usr/local/bin/become && \
                   chmod 755 /usr/local/bin/sudo /usr/local/bin";
        let mut command = field.lab.on(host, Account::Root).unwrap();
        feed("make a sudo", command.args(["sh", "-c", own]), SUDO).unwrap();
    }
    guard
}

/// Runs `up` with a fault, and `down`.
fn survives(field: &Field, fault: &Fault) {
    let state = State::new();
    let before = HOSTS.map(|host| dump(field, host));
    let account = match fault.kind {
        Kind::SudoRefused => Account::User,
        _ => Account::Root,
    };
    chown(state.path(), Some(account.id()), Some(account.id())).unwrap();
    let run = |words: &str| {
        let run = state.rlaunch(field, words).in_directory(Path::new(state.path()));
        run.account(account).within(BOUND)
    };
    let mut running = run(&format!("up {CABLES} -H a,b --yes")).spawn();
    running.wait_for_stderr(fault.after, 1);
    let (make, end) = fault.kind.lines();
    assert!(!running.has_ended(), "{fault}: it comes too late");
    if fault.kind == Kind::LauncherKilled {
        running.signal(Signal::SIGKILL);
    }
    field.on(fault.host, make);
    let ran = running.finish_first();
    field.on(fault.host, end);
    let reached = run("-H a,b hostname").spawn().finish_first();
    assert_eq!(reached.succeeded().sorted(), HOSTS, "{fault}: {ran}{reached}");
    let undone = run("down -H a,b").run();
    // A cable that was out has its link a moment later.
    let _ = wait_until(SETTLED, "the state before", || {
        Ok(HOSTS.map(|host| dump(field, host)) == before)
    });
    let left = HOSTS.map(|host| dump(field, host));
    assert_eq!(left, before, "{fault}: {ran}{undone}");
    undone.succeeded();
}

/// Runs `up` with the faults of these numbers, or with the one of the variable.
fn survive(numbers: impl IntoIterator<Item = u64>) {
    let field = Field::new();
    let _files = own_files(&field, &HOSTS);
    let _cables = plug(&field, &[("a", "b")]);
    let _sudo = with_sudo(&field);
    let one = std::env::var("RLAUNCH_UP_FAULTS").ok().and_then(|number| number.parse().ok());
    let numbers = match one {
        Some(number) => vec![number],
        None => numbers.into_iter().collect(),
    };
    numbers.into_iter().for_each(|number| survives(&field, &Fault::of(number)));
}

#[test]
fn a_fault_of_each_kind_leaves_nothing() {
    survive(0..Kind::ALL.len() as u64);
}

#[test]
#[ignore = "takes ten minutes: run before a release"]
fn forty_faults_leave_nothing() {
    survive(6..46);
}
