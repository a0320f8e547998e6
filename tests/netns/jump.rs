//! Hosts behind jump hosts, hosts that refuse logins or appear late, and a launcher that is
//! suspended.

use crate::support::{Field, Undo, launch_directory};
use nix::sys::signal::Signal;
use rlaunch_lab::Stopwatch;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Writes an ssh configuration for hosts of the lab, with common settings, and returns its path.
fn configuration(directory: &Path, hosts: &str) -> String {
    let path = directory.join("config");
    fs::write(&path, format!("{hosts}\nHost *\n  IdentityFile ~/.ssh/id_ed25519\n")).unwrap();
    path.display().to_string()
}

/// Logins that the sshds of some hosts have logged since this value was made.
struct Logins<'a> {
    field: &'a Field,
    /// Hosts, each with the previous length of its log in bytes.
    before: Vec<(&'a str, usize)>,
}

impl<'a> Logins<'a> {
    fn of(field: &'a Field, hosts: &[&'a str]) -> Logins<'a> {
        let length = |host| field.lab.sshd(host).unwrap().log().len();
        Logins { field, before: hosts.iter().map(|&host| (host, length(host))).collect() }
    }

    /// Lists the logins as `b from a`, by the addresses in the logs, sorted.
    fn all(&self) -> Vec<String> {
        let mut all = Vec::new();
        for &(host, before) in &self.before {
            let log = self.field.lab.sshd(host).unwrap().log();
            for line in log[before..].lines().filter(|line| line.contains("Accepted publickey")) {
                let peer = line.split(" from ").nth(1).unwrap().split(' ').next().unwrap();
                all.push(format!("{host} from {}", self.name_of(peer)));
            }
        }
        all.sort();
        all
    }

    fn name_of(&self, peer: &str) -> String {
        let lab = &self.field.lab;
        let mut hosts = lab.hosts().into_iter();
        let host = hosts.find(|host| lab.address(host).unwrap().to_string() == peer);
        host.unwrap_or_else(|| "launch".to_owned())
    }
}

/// Tells whether a process on this machine has all of `words` among its arguments.
fn runs(words: &[&str]) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.into_iter().any(|line| {
        let arguments: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        words.iter().all(|word| arguments.contains(&word.as_bytes()))
    })
}

#[test]
fn hosts_behind_jump_hosts_which_are_logged_in_to_once() {
    let field = Field::new();
    let directory = launch_directory();
    let at = |host| field.lab.address(host).unwrap();
    let hosts = format!(
        "Host far-b\n HostName {b}\n ProxyJump a\n\
         Host far-c\n HostName {c}\n ProxyJump root@a:22\n\
         Host far-e\n HostName {e}\n ProxyJump d,a\n\
         Host far-f\n HostName {f}\n ProxyJump inner\n\
         Host inner\n HostName {a}\n ProxyJump d\n\
         Host far-g\n HostName {g}\n ProxyCommand ssh -W %h:%p a\n",
        a = at("a"),
        b = at("b"),
        c = at("c"),
        e = at("e"),
        f = at("f"),
        g = at("g"),
    );
    let config = configuration(directory.path(), &format!("{hosts}Host a\n User root\n"));
    let logins = Logins::of(&field, &["a", "b", "c", "d", "e", "f", "g"]);
    let run = field.rlaunch("-H far-b,far-c,far-e,far-f,far-g --ssh-fanout 2 --ssh-config");
    let ran = run.args([&*config, "hostname"]).run();
    assert_eq!(ran.succeeded().sorted(), ["b", "c", "e", "f", "g"], "{ran}");
    let expected = [
        // One login each for b and c, for the ProxyCommand of g, for e, and for f.
        "a from d", "a from d", "a from launch", "a from launch", "b from a", "c from a",
        "d from launch", "e from a", "f from a", "g from a",
    ];
    assert_eq!(logins.all(), expected, "{ran}");
    let proxied = format!("{}:22", at("g"));
    field.wait_for("the ProxyCommand to be gone", || !runs(&["ssh", "-W", &proxied]));
}

#[test]
fn what_is_wrong_on_the_way_is_said_of_the_hop_that_is_wrong() {
    let field = Field::new();
    let directory = launch_directory();
    let sshd = field.lab.sshd("d").unwrap();
    let _restore = Undo(|| sshd.restart(&[]));
    sshd.restart(&["AllowTcpForwarding no"]).unwrap();
    let at = |host| field.lab.address(host).unwrap();
    let hosts = format!(
        "Host lost\n ProxyJump nowhere\n\
         Host second\n ProxyJump a,nowhere\n\
         Host shut\n HostName {b}\n Port 2\n ProxyJump a\n\
         Host barred\n HostName {c}\n ProxyJump d\n\
         Host circle\n ProxyJump circle\n\
         Host closed\n ProxyCommand sh -c 'echo the bastion is closed >&2; exit 7'\n\
         Host typo\n ProxyCommand no-such-program %h\n\
         Host crowded\n ConnectTimeout 1\n ProxyCommand sh -c 'read id; echo Exceeded MaxStartups'\n",
        b = at("b"),
        c = at("c"),
    );
    let config = configuration(directory.path(), &hosts);
    let run = field.rlaunch("-H lost,second,shut,barred,circle,closed,typo,crowded,e --ssh-config");
    let ran = run.args([&*config, "hostname"]).run();
    let shut = format!("  shut: jump host a cannot connect to {}:2", at("b"));
    ran.refused(
        201,
        &[
            "8 of 9 hosts",
            "  lost: through jump host nowhere: cannot look up `nowhere`",
            "  second: through jump host nowhere: jump host a cannot connect to nowhere:22",
            &shut,
            "  barred: jump host d does not forward connections",
            "  circle: its jump hosts form a loop: circle through circle",
            "  closed: its ProxyCommand `sh -c",
            "exited with code 7: the bastion is closed",
            "  typo: its ProxyCommand `no-such-program typo` exited with code 127",
            "  crowded: tried ",
            "the server at crowded:22 drops connections (Exceeded MaxStartups)",
        ],
    );
    ran.hints("AllowTcpForwarding yes").hints("MaxStartups 100:30:200").hints("--ssh-fanout");
    ran.hints("ProxyJump none").took_less_than(10);
}

#[test]
fn logins_that_are_turned_away_are_tried_again() {
    let field = Field::new();
    let directory = launch_directory();
    let sshds = ["b", "c"].map(|host| field.lab.sshd(host).unwrap());
    let _restore = Undo(|| sshds.iter().try_for_each(|sshd| sshd.restart(&[])));
    for sshd in &sshds {
        sshd.restart(&["MaxStartups 2:50:4"]).unwrap();
    }
    let (mut hosts, mut names) = (String::new(), Vec::new());
    for number in 0..32 {
        let address = field.lab.address(["b", "c"][number % 2]).unwrap();
        write!(hosts, "Host m{number}\n HostName {address}\n").unwrap();
        names.push(format!("m{number}"));
    }
    let config = configuration(directory.path(), &hosts);
    let turned_away = || {
        let logs = sshds.iter().map(|sshd| sshd.log().matches("MaxStartups").count());
        logs.sum::<usize>()
    };
    let before = turned_away();
    // More names than slots: the names stand for only two machines.
    let run = field.rlaunch("--oversubscribe -H").args([&names.join(","), "--ssh-config", &config]);
    let ran = run.args(["hostname"]).within(Duration::from_secs(90)).run();
    let expected = [["b"; 16], ["c"; 16]].concat();
    assert_eq!(ran.succeeded().sorted(), expected, "{ran}");
    assert!(turned_away() > before, "nobody was turned away: this proves nothing");
}

/// Like a notebook that sleeps during a login: the answer comes while rlaunch is stopped.
#[test]
fn a_login_goes_on_after_a_standstill() {
    let field = Field::new();
    let directory = launch_directory();
    let [asked, open] = ["asked", "open"].map(|name| directory.path().join(name));
    let hosts = format!(
        "Host slow\n HostName {b}\n ConnectTimeout 3\n ProxyCommand sh -c \
         'touch {asked}; until [ -e {open} ]; do sleep 0.1; done; exec ssh -W %h:%p a'\n",
        b = field.lab.address("b").unwrap(),
        asked = asked.display(),
        open = open.display(),
    );
    let config = configuration(directory.path(), &hosts);
    let running = field.rlaunch("-H slow --ssh-config").args([&*config, "hostname"]).spawn();
    field.wait_for("the login to begin", || asked.exists());
    running.signal(Signal::SIGSTOP);
    let stopped = Stopwatch::start();
    fs::write(open, "").unwrap();
    field.wait_for("its time to pass", || stopped.total_elapsed() > Duration::from_secs(5));
    running.signal(Signal::SIGCONT);
    assert_eq!(running.finish().succeeded().out(), "b\n");
}

#[test]
fn hosts_that_come_late_are_waited_for() {
    let field = Field::new();
    let directory = launch_directory();
    let sshd = field.lab.sshd("b").unwrap();
    let _forget = Undo(|| field.lab.refresh_known_hosts());
    let _restore = Undo(|| sshd.restart(&[]));
    sshd.stop().unwrap();
    let config = configuration(directory.path(), "Host b\n ConnectionAttempts 20\n");
    let run = field.rlaunch("-H b,late-worker-0.late.default.svc --ssh-config");
    let mut running = run.args([&*config, "hostname"]).spawn();
    running.wait_for_stderr("b (it accepts no connections yet)", 1);
    running.wait_for_stderr("late-worker-0.late.default.svc (its name is not in DNS yet)", 1);
    sshd.restart(&[]).unwrap();
    let name = format!("{} late-worker-0.late.default.svc", field.lab.address("c").unwrap());
    // Changed in place, since the file is mounted on every node.
    let hosts = |line: &str| field.shell(line, Path::new("/"));
    let _unname = Undo(|| {
        hosts("t=$(grep -v late-worker-0 /etc/hosts) && echo \"$t\" >/etc/hosts");
        Ok::<(), String>(())
    });
    hosts(&format!("echo '{name}' >>/etc/hosts"));
    let ran = running.finish();
    assert_eq!(ran.succeeded().sorted(), ["b", "c"], "{ran}");
}

#[test]
fn connections_come_from_the_address_that_is_asked_for() {
    let field = Field::new();
    let directory = launch_directory();
    let net = field.lab.address("b").unwrap().octets();
    let second = format!("{}.{}.255.77", net[0], net[1]);
    let change = |verb: &str| {
        field.shell(&format!("ip addr {verb} {second}/16 dev br0"), Path::new("/"));
        Ok::<(), String>(())
    };
    let _undo = Undo(|| change("del"));
    change("add").unwrap();
    let text = format!("Host b\n BindAddress {second}\nHost c\n BindAddress 192.0.2.1\n");
    let config = configuration(directory.path(), &text);
    let before = field.lab.sshd("b").unwrap().log().len();
    let run = field.rlaunch("-H b --ssh-config").args([&*config, "hostname"]);
    assert_eq!(run.run().succeeded().sorted(), ["b"]);
    let log = field.lab.sshd("b").unwrap().log();
    assert!(log[before..].contains(&format!("from {second} ")), "{}", &log[before..]);
    let run = field.rlaunch("-H c --ssh-config").args([&*config, "hostname"]);
    run.run().refused(201, &["c: cannot connect from BindAddress 192.0.2.1"]).hints("ip addr");
}
