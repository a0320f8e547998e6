//! Common code of the tests: the guests, and rlaunch, which runs on this machine beside them: on an
//! emulated processor it alone would take as long as the rest of a job.

use rlaunch_lab::command::wait_until;
use rlaunch_lab::vm::VmLab;
use rlaunch_lab::{LabError, VmUnderTest};
use serde_json::Value;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

/// Time limit for rlaunch. An emulated computer takes seconds for a key exchange, and many times that
/// where its processor is shared. Only a failure waits this long.
const BOUND: Duration = Duration::from_secs(300);

/// All guests, in the format of `-H`.
pub(crate) const ALL: &str = "n1,n2,n3";

/// Addresses of the guests' ends of cables, which are also those that `rlaunch up` plans.
pub(crate) const ADDRESSES: [(&str, &str, &str); 6] = [
    ("n1", "eth1", "192.168.101.2"),
    ("n1", "eth2", "192.168.100.2"),
    ("n2", "eth1", "192.168.101.3"),
    ("n2", "eth2", "192.168.102.2"),
    ("n3", "eth1", "192.168.100.3"),
    ("n3", "eth2", "192.168.102.3"),
];

/// Options for a mesh of emulated computers. Soft RoCE answers by a guest's single processor, which
/// may be busy for a second. The time limits of all steps grow with `--mesh-timeout`.
pub(crate) const PATIENT: &str = "--mesh-timeout 40 --rdma-retries 4";

/// Option for agents, which need that processor too.
pub(crate) const SILENCE: &str = "--node-timeout 60";

/// Option that makes agents connect over the ordinary network. Otherwise they also try the cables
/// if there is no answer for 200 ms.
pub(crate) const ORDINARY: &str = "--oob-if eth0";

/// Time limit for a guest's kernel to put an address into a GID table.
const NOTICED: Duration = Duration::from_secs(60);

/// Guests, and the directory with rlaunch and what jobs send.
pub(crate) struct Field {
    pub(crate) lab: VmLab,
    share: PathBuf,
}

impl Field {
    pub(crate) fn new() -> Field {
        let VmUnderTest { lab, share } = VmUnderTest::from_env().unwrap();
        Field { lab, share }
    }

    /// Returns the path of a file that rlaunch is installed with.
    pub(crate) fn shared(&self, name: &str) -> String {
        self.share.join(name).into_os_string().into_string().unwrap()
    }

    /// Runs a job with `words`, which are split at blanks, and the arguments `more`.
    pub(crate) fn rlaunch(&self, words: &str, more: &[&str]) -> Ran {
        self.verb(&format!("{SILENCE} {words}"), more)
    }

    /// Runs rlaunch with `words`, which are split at blanks, without quotes, and the arguments
    /// `more`.
    pub(crate) fn verb(&self, words: &str, more: &[&str]) -> Ran {
        let rlaunch = self.shared("rlaunch");
        let mut line = vec![rlaunch.as_str()];
        line.extend(words.split_whitespace());
        line.extend(more);
        Ran::of(self.lab.run_on_head(&line, BOUND).unwrap())
    }

    /// Runs a shell line, in which `rlaunch` is the one under test.
    pub(crate) fn line(&self, line: &str) -> Ran {
        Ran::of(self.lab.run_on_head(&["sh", "-c", &self.with_rlaunch(line)], BOUND).unwrap())
    }

    /// Runs a shell line as [`Field::line`] does, and returns its stdout, whatever its exit code.
    pub(crate) fn shell(&self, line: &str) -> String {
        self.line(line).out
    }

    /// Makes a command of a shell line as [`Field::shell`] runs it.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = self.lab.head();
        command.args(["sh", "-c", &self.with_rlaunch(line)]);
        command
    }

    fn with_rlaunch(&self, line: &str) -> String {
        format!("PATH={}:$PATH; {line}", self.share.display())
    }

    /// Runs a shell line on a guest and returns its stdout. Panics if it fails.
    pub(crate) fn on(&self, guest: &str, line: &str) -> String {
        let ran = self.tries(guest, line);
        assert_eq!(ran.code, Some(0), "{line} on {guest}: {ran}");
        ran.out
    }

    /// Runs a shell line that may fail on a guest.
    pub(crate) fn tries(&self, guest: &str, line: &str) -> Ran {
        Ran::of(self.lab.run(guest, &["sh", "-c", line]).unwrap())
    }

    /// Runs a shell line on a guest that undoes a change.
    pub(crate) fn restore(&self, guest: &str, line: &str) -> Result<(), LabError> {
        self.lab.checked(guest, &["sh", "-c", line]).map(drop)
    }

    /// Waits until an entry of a GID table is `address`, or empty if that is `None`.
    pub(crate) fn await_gid(
        &self,
        guest: &str,
        (device, index): (&str, u16),
        address: Option<IpAddr>,
    ) -> Result<(), LabError> {
        let wanted = address.map_or(Ipv6Addr::UNSPECIFIED, |address| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        });
        let file = format!("/sys/class/infiniband/{device}/ports/1/gids/{index}");
        let what = format!("GID {index} of {device} on {guest} to be {wanted}");
        wait_until(NOTICED, &what, || {
            let found = self.lab.checked(guest, &["cat", &file])?;
            Ok(found.trim().parse() == Ok(wanted))
        })
    }

    /// Returns the names of `hosts` with their inventories.
    pub(crate) fn inventories(&self, hosts: &str) -> Vec<(String, Value)> {
        let ran = self.verb(&format!("topo -H {hosts} --json"), &[]);
        let nodes: Value = serde_json::from_str(&ran.succeeded().out).unwrap();
        let node = |node: &Value| (text(&node["host"]), node["inventory"].clone());
        let nodes: Vec<_> = list(&nodes).iter().map(node).collect();
        assert_eq!(nodes.len(), hosts.split(',').count(), "{ran}");
        nodes
    }
}

/// Exit code and output of a program that has ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn of(output: Output) -> Ran {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    pub(crate) fn succeeded(&self) -> &Ran {
        assert_eq!(self.code, Some(0), "{self}");
        self
    }

    /// Asserts that stderr contains `text`.
    pub(crate) fn says(&self, text: &str) -> &Ran {
        assert!(self.err.contains(text), "not said: {text}\n{self}");
        self
    }

    /// Asserts that stderr does not contain `text`.
    pub(crate) fn does_not_say(&self, text: &str) -> &Ran {
        assert!(!self.err.contains(text), "said: {text}\n{self}");
        self
    }

    /// Returns the first line of stderr that contains `text`.
    pub(crate) fn line_with(&self, text: &str) -> &str {
        let found = self.err.lines().find(|line| line.contains(text));
        found.unwrap_or_else(|| panic!("not said: {text}\n{self}"))
    }

    /// Asserts that the job was refused because RDMA is missing.
    pub(crate) fn refused(&self) -> &Ran {
        assert_eq!(self.code, Some(205), "{self}");
        self
    }

    /// Returns the cells of the table on stdout, without its header.
    pub(crate) fn rows(&self) -> Vec<Vec<&str>> {
        let cells = |row| -> Vec<&str> {
            let cells = str::split(row, "  ").map(str::trim);
            cells.filter(|cell| !cell.is_empty()).collect()
        };
        self.succeeded().out.lines().skip(1).map(cells).collect()
    }

    /// Returns the lines of stdout in alphabetical order, since ranks print in any order.
    pub(crate) fn sorted(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = self.out.lines().collect();
        lines.sort_unstable();
        lines
    }
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ended with {:?}\nstdout:\n{}\nstderr:\n{}", self.code, self.out, self.err)
    }
}

/// Guard that undoes a change when it is dropped, also when the test fails.
pub(crate) struct Undo<F: FnMut() -> Result<(), LabError>>(pub(crate) F);

impl<F: FnMut() -> Result<(), LabError>> Drop for Undo<F> {
    fn drop(&mut self) {
        let undone = (self.0)();
        assert!(std::thread::panicking() || undone.is_ok(), "{undone:?}");
    }
}

/// Takes all IPv4 addresses from the cables. They are given back when the guard is dropped.
pub(crate) fn without_addresses(field: &Field) -> Undo<impl FnMut() -> Result<(), LabError>> {
    let guard = Undo(|| {
        for of_guest in ADDRESSES.chunks(2) {
            let add = |(_, interface, address): &(&str, &str, &str)| {
                format!("ip address replace {address}/24 dev {interface}")
            };
            let lines: Vec<String> = of_guest.iter().map(add).collect();
            field.restore(of_guest[0].0, &lines.join(" && "))?;
        }
        for (guest, interface, address) in ADDRESSES {
            let device = if interface == "eth1" { "rxe0" } else { "rxe1" };
            field.await_gid(guest, (device, 1), address.parse().ok())?;
        }
        Ok(())
    });
    for guest in ALL.split(',') {
        field.on(guest, "ip -4 address flush dev eth1 && ip -4 address flush dev eth2");
    }
    guard
}

/// Leaves Soft-iWARP alone on the cables of `guests` until the guard is dropped: the connection manager takes
/// the device that was added first, and that is soft RoCE, at the same addresses. Therefore they are also
/// added again in the order in which a guest's init adds them.
pub(crate) fn soft_iwarp<'a>(field: &'a Field, guests: &'static str) -> impl Drop + use<'a> {
    let restore = "for at in 0 1; do for kind in rxe siw; do
            rdma link delete $kind$at 2>/dev/null
        done; done
        for at in 0 1; do for kind in rxe siw; do
            rdma link add $kind$at type $kind netdev eth$((at + 1)) || exit 1
        done; done
        for at in 0 1; do
            gid=/sys/class/infiniband/rxe$at/ports/1/gids/1
            for try in $(seq 100); do grep -q :ffff: $gid && break; sleep 0.5; done
            grep -q :ffff: $gid || exit 1
        done";
    let guard = Undo(move || guests.split(',').try_for_each(|guest| field.restore(guest, restore)));
    for guest in guests.split(',') {
        field.on(guest, "rdma link delete rxe0 && rdma link delete rxe1");
    }
    guard
}

/// Returns the elements of a JSON array.
pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

/// Returns the text of a JSON string.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no string: {value}")).to_owned()
}
