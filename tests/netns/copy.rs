//! `rlaunch push` and `rlaunch fetch`: trees on hosts, what is sent again, and hosts that fail meanwhile.

use crate::network_plan::plug;
use crate::running::Outcome;
use crate::support::{Field, Run, Undo, children, launch_directory, state};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_lab::{Account, Stopwatch, command};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const SCHEMA: &str = include_str!("../../launcher/schemas/copy.schema.json");
/// Directory of hosts that trees are pushed to.
const PLACE: &str = "/tmp/copied";
/// Lines about all that a tree has: content of files, targets of links, modes, and times of files.
const CONTENT: &str = "find . -type f | sort | xargs sha256sum
    find . -type l -printf '%p %l\\n' | sort
    find . ! -type l -printf '%p %m\\n' | sort
    find . -type f -printf '%p %T@\\n' | sort";

/// Tree on the launching machine.
struct Tree {
    directory: TempDir,
}

impl Tree {
    /// Makes a tree with a file of `bytes` bytes, and small ones of several kinds.
    fn new(bytes: usize) -> Tree {
        let tree = Tree { directory: launch_directory() };
        let top = tree.path();
        fs::create_dir_all(top.join("sub/deep")).unwrap();
        // No two parts of it are equal.
        let big: Vec<u8> = (0..bytes.div_ceil(8) as u64)
            .flat_map(|number| (number * 0x9e37_79b9).to_le_bytes())
            .collect();
        fs::write(top.join("big"), &big[..bytes]).unwrap();
        fs::write(top.join("sub/small"), "small\n").unwrap();
        fs::write(top.join("sub/deep/empty"), "").unwrap();
        fs::write(top.join("run"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(top.join("run"), PermissionsExt::from_mode(0o755)).unwrap();
        symlink("sub/small", top.join("link")).unwrap();
        tree
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("tree")
    }

    /// Returns `TREE:DESTINATION`.
    fn to(&self, destination: &str) -> String {
        format!("{}:{destination}", self.path().display())
    }

    /// Changes a byte of the large file.
    fn change(&self, at: u64) {
        let file = fs::OpenOptions::new().write(true).open(self.path().join("big")).unwrap();
        file.write_all_at(b"!", at).unwrap();
    }

    fn content(&self) -> String {
        let output = Command::new("sh").args(["-c", CONTENT]).current_dir(self.path()).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }

    /// Asserts that a host has the tree below `place`, and nothing that is half done.
    fn is_on(&self, field: &Field, host: &str, place: &str) {
        assert_eq!(content(field, host, &format!("{place}/tree")), self.content(), "{host}");
    }
}

fn content(field: &Field, host: &str, directory: &str) -> String {
    field.on(host, &format!("cd {directory} && {CONTENT}"))
}

fn push<'a>(field: &'a Field, words: &str, source: &str) -> Run<'a> {
    field.rlaunch(&format!("push {words}")).args([source])
}

/// Returns what each host has received, by the output of `--json`.
fn received(ran: &Outcome) -> Vec<(String, u64)> {
    let said: Value = serde_json::from_str(&ran.out()).unwrap_or_else(|_| panic!("{ran}"));
    let validator = jsonschema::validator_for(&serde_json::from_str(SCHEMA).unwrap()).unwrap();
    let errors: Vec<String> = validator.iter_errors(&said).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}: {ran}");
    let hosts = said["copies"][0]["hosts"].as_array().unwrap().iter();
    let of = |host: &Value| {
        (host["host"].as_str().unwrap().to_owned(), host["received"].as_u64().unwrap())
    };
    hosts.map(of).collect()
}

/// Kills what of rlaunch runs on a host.
fn kill_on(field: &Field, host: &str) {
    let mut found = field.lab.processes(host).unwrap();
    let is_ours =
        |name: &String| name.ends_with("rlaunch-worker") || name.ends_with("rlaunch-copier");
    found.retain(|process| process.args.first().is_some_and(is_ours));
    assert!(!found.is_empty(), "nothing of rlaunch runs on {host}");
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        for process in &found {
            let _ = kill(Pid::from_raw(process.pid), signal);
        }
    }
}

/// Waits until some bytes of a tree are on a host.
fn wait_for_bytes(field: &Field, host: &str) {
    let has_some =
        format!("test \"$(du -sk {PLACE} 2>/dev/null | cut -f1)\" -gt 1000 && echo yes || true");
    field.wait_for("bytes on the host", || field.on(host, &has_some) == "yes\n");
}

#[test]
fn a_tree_reaches_all_hosts_and_is_sent_once() {
    let field = Field::new();
    let hosts = ["a", "b", "c"];
    let _place = field.scratch(&hosts, PLACE);
    let tree = Tree::new((3 << 20) + 5);
    let ran = push(&field, "-H a,b,c", &tree.to(PLACE)).run();
    let out = ran.succeeded().out().into_owned();
    assert!(out.starts_with("pushed 4 files, 3.1 MB to /tmp/copied on a, b, c in "), "{ran}");
    assert!(out.ends_with("B/s)\n") && out.lines().count() == 1, "{ran}");
    ran.says_nothing();
    hosts.iter().for_each(|host| tree.is_on(&field, host, PLACE));
    let again = push(&field, "-H a,b,c", &tree.to(PLACE)).run();
    assert!(again.succeeded().out().ends_with(" s (all were there)\n"), "{again}");
    // Both ends read everything.
    let verified = push(&field, "-H a,b,c --verify --plain", &tree.to(PLACE)).run();
    assert!(verified.succeeded().out().ends_with(" s (all were there)\n"), "{verified}");
    hosts.iter().for_each(|host| tree.is_on(&field, host, PLACE));
}

#[test]
fn a_changed_byte_sends_one_part() {
    let field = Field::new();
    let _place = field.scratch(&["a", "b"], PLACE);
    let tree = Tree::new(5 << 20);
    let ran = push(&field, "-H a,b --json", &tree.to(PLACE)).run();
    ran.succeeded();
    let first = received(&ran);
    assert!(first.iter().all(|(_, bytes)| *bytes >= 5 << 20), "{ran}");
    tree.change((3 << 20) + 7);
    // A host that has lost a part gets that as well, and the other does not.
    field.on("b", &format!("printf x | dd of={PLACE}/tree/big bs=1 seek=9 conv=notrunc 2>&1"));
    let ran = push(&field, "-H a,b --json", &tree.to(PLACE)).run();
    ran.succeeded();
    let part = 1 << 20;
    for ((host, bytes), parts) in received(&ran).into_iter().zip([1, 2]) {
        let expected = parts * part..parts * part + part / 2;
        assert!(expected.contains(&bytes), "{host} received {bytes}: {ran}");
    }
    ["a", "b"].iter().for_each(|host| tree.is_on(&field, host, PLACE));
}

#[test]
fn files_go_where_the_words_say() {
    let field = Field::new();
    let tree = Tree::new(10);
    let here = tree.directory.path().display().to_string();
    let _places = field.scratch(&["a"], PLACE);
    let _same = field.scratch(&["a"], &here);
    let home = field.lab.home("a", Account::Root).unwrap();
    let below_home = ["copied", "tree"].map(|name| home.join(name));
    let _home = Undo(|| {
        let mut left = below_home.iter().filter(|path| path.exists());
        left.try_for_each(fs::remove_dir_all)
    });
    for (words, place) in [
        (tree.to(PLACE), PLACE),
        (tree.to("~/copied"), "/root/copied"),
        (tree.to("copied/deep"), "/root/copied/deep"),
        (tree.to(""), "/root"),
        (tree.path().display().to_string(), here.as_str()),
    ] {
        push(&field, "-H a", &words).run().succeeded();
        tree.is_on(&field, "a", place);
    }
    // Several at once, to two directories.
    let small = tree.path().join("sub/small");
    let run = push(&field, "-H a", &tree.to("~/copied"));
    let ran = run.args([format!("{}:{PLACE}/one", small.display())]).run();
    assert_eq!(ran.succeeded().out().lines().count(), 2, "{ran}");
    assert_eq!(field.on("a", &format!("cat {PLACE}/one/small")), "small\n");
    // What is only there stays.
    field.on("a", &format!("echo mine > {PLACE}/tree/mine"));
    push(&field, "-H a", &tree.to(PLACE)).run().succeeded();
    assert_eq!(field.on("a", &format!("cat {PLACE}/tree/mine")), "mine\n");
}

#[test]
fn a_host_passes_on_what_it_has() {
    let field = Field::new();
    let hosts = ["a", "b", "c"];
    let _place = field.scratch(&hosts, PLACE);
    let tree = Tree::new(2 << 20);
    push(&field, "-H b", &tree.to(PLACE)).run().succeeded();
    let ran = push(&field, "-H a,b,c --from b", &format!("{PLACE}/tree")).run();
    assert!(
        ran.succeeded().out().starts_with("pushed 4 files, 2.1 MB to /tmp/copied on a, c in "),
        "{ran}"
    );
    hosts.iter().for_each(|host| tree.is_on(&field, host, PLACE));
}

/// Returns the bytes that a host's interface has sent and received.
fn carried(field: &Field, host: &str, interface: &str) -> u64 {
    let counters = format!("cd /sys/class/net/{interface}/statistics && cat rx_bytes tx_bytes");
    field.on(host, &counters).lines().map(|line| line.parse::<u64>().unwrap()).sum()
}

#[test]
fn along_a_ring_of_cables_each_carries_a_file_at_most_once() {
    const RING: [(&str, &str); 4] = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")];
    const BYTES: u64 = 64 << 20;
    let field = Field::new();
    let hosts = ["a", "b", "c", "d"];
    let _place = field.scratch(&hosts, PLACE);
    let _source = field.scratch(&["a"], "/tmp/source");
    let _cables = plug(&field, &RING);
    for (number, (one, other)) in RING.iter().enumerate() {
        field.on(one, &format!("ip address add 10.99.{number}.1/30 dev cable-{other}"));
        field.on(other, &format!("ip address add 10.99.{number}.2/30 dev cable-{one}"));
    }
    field.on("a", &format!("mkdir /tmp/source && head -c {BYTES} /dev/urandom >/tmp/source/big"));
    // Hosts have rlaunch's programs afterwards.
    push(&field, "-H a,b,c,d", &Tree::new(10).to(PLACE)).run().succeeded();
    let management = || hosts.iter().map(|host| carried(&field, host, "eth0")).sum::<u64>();
    let before = management();
    let words = format!("/tmp/source/big:{PLACE}");
    push(&field, "-H a,b,c,d --from a", &words).run().succeeded();
    let sums: Vec<String> = hosts
        .iter()
        .map(|host| {
            let file = if *host == "a" { "/tmp/source/big" } else { "/tmp/copied/big" };
            field.on(host, &format!("sha256sum <{file}"))
        })
        .collect();
    assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");

    let cables = RING.map(|(one, other)| carried(&field, one, &format!("cable-{other}")));
    let (used, idle): (Vec<u64>, Vec<u64>) = cables.iter().partition(|bytes| **bytes >= BYTES);
    assert_eq!((used.len(), idle.len()), (3, 1), "{cables:?}");
    // Headers and acknowledgements are what is above the file itself.
    assert!(used.iter().all(|bytes| *bytes < BYTES + BYTES / 10), "{cables:?}");
    assert!(idle[0] < BYTES / 100, "{cables:?}");
    let managed = management() - before;
    assert!(managed < BYTES / 100, "{managed} bytes on the management network");
}

#[test]
fn a_host_that_is_lost_is_left_out() {
    let field = Field::new();
    let _place = field.scratch(&["a", "b", "c"], PLACE);
    let tree = Tree::new(24 << 20);
    let run = push(&field, "-H a,b,c --limit 4M", &tree.to(PLACE));
    let running = run.within(Duration::from_secs(120)).spawn();
    wait_for_bytes(&field, "c");
    kill_on(&field, "b");
    let ran = running.finish_first();
    ran.ended_with(206).says(&["going on with a, c", "error: not complete: b", "node b is lost"]);
    assert!(ran.out().starts_with("pushed 4 files, 25 MB to /tmp/copied on a, c in "), "{ran}");
    ran.hints("not sent again by rlaunch push");
    ["a", "c"].iter().for_each(|host| tree.is_on(&field, host, PLACE));
    // Files that are there are whole.
    let half = field.on("b", &format!("test -e {PLACE}/tree/big && echo whole || true"));
    if half == "whole\n" {
        tree.is_on(&field, "b", PLACE);
    }
    field.clear_job_directories();
    push(&field, "-H a,b,c", &tree.to(PLACE)).run().succeeded();
    tree.is_on(&field, "b", PLACE);
}

#[test]
fn a_host_without_space_is_left_out() {
    let field = Field::new();
    let _place = field.scratch(&["a", "b", "c"], PLACE);
    field.on("b", &format!("mkdir -p {PLACE} && mount -t tmpfs -o size=2m none {PLACE}"));
    let _mounted = Undo(|| {
        let mut umount = field.lab.on("b", Account::Root)?;
        command::run("unmount", umount.args(["umount", PLACE])).map(drop)
    });
    let tree = Tree::new(5 << 20);
    let ran = push(&field, "-H a,b,c", &tree.to(PLACE)).run();
    ran.ended_with(203).says(&["going on with a, c", "error: not complete: b", "\n  b: "]);
    ["a", "c"].iter().for_each(|host| tree.is_on(&field, host, PLACE));
    // Nothing was begun there.
    let left = field.on("b", &format!("find {PLACE} -type f -size +0"));
    assert_eq!(left, "", "{ran}");
}

#[test]
fn files_come_from_each_host() {
    let field = Field::new();
    let hosts = ["a", "b"];
    let _place = field.scratch(&hosts, PLACE);
    let tree = Tree::new(2 << 20);
    push(&field, "-H a,b", &tree.to(PLACE)).run().succeeded();
    field.on("b", &format!("echo b > {PLACE}/tree/sub/small"));
    let directory = launch_directory();
    let fetch = || field.rlaunch("fetch -H a,b").in_directory(directory.path());
    let ran = fetch().args([&*format!("{PLACE}/tree"), "results"]).run();
    let out = ran.succeeded().out().into_owned();
    assert!(out.starts_with("fetched 8 files, 4.2 MB from a, b into results in "), "{ran}");
    let local = |host: &str| {
        let path = directory.path().join("results").join(host).join("tree");
        let output = Command::new("sh").args(["-c", CONTENT]).current_dir(path).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    for host in hosts {
        assert_eq!(local(host), content(&field, host, &format!("{PLACE}/tree")), "{host}");
    }
    assert_ne!(local("a"), local("b"));
    let again = fetch().args([&*format!("{PLACE}/tree"), "results"]).run();
    assert!(again.succeeded().out().ends_with("(all were there)\n"), "{again}");
    // What one host lacks comes from the other.
    field.on("b", &format!("rm -r {PLACE}/tree"));
    let ran = fetch().args([&*format!("{PLACE}/tree"), "others"]).run();
    ran.ended_with(203).says(&["error: not complete: b"]);
    assert!(directory.path().join("others/a/tree/big").exists(), "{ran}");
}

/// Drops what comes to the ports of copies on a host, until the guard is dropped.
fn closed_ports<'a>(field: &'a Field, host: &'a str) -> impl Drop + 'a {
    let chain = "{ type filter hook input priority 0; }";
    field.on(
        host,
        &format!(
            "nft add table inet copied && nft add chain inet copied c '{chain}' && \
             nft add rule inet copied c iif != lo tcp dport 21000-21511 drop"
        ),
    );
    Undo(move || {
        field.on(host, "nft delete table inet copied");
        Ok::<(), std::io::Error>(())
    })
}

#[test]
fn behind_a_jump_host_the_job_carries_the_bytes() {
    let field = Field::new();
    let _place = field.scratch(&["b"], PLACE);
    let _closed = closed_ports(&field, "b");
    let directory = launch_directory();
    let config = directory.path().join("config");
    let address = field.lab.address("b").unwrap();
    let text = format!(
        "Host far\n HostName {address}\n ProxyJump a\nHost *\n IdentityFile ~/.ssh/id_ed25519\n"
    );
    fs::write(&config, text).unwrap();
    let tree = Tree::new(3 << 20);
    let words = format!("-H far --ssh-config {}", config.display());
    let ran = push(&field, &words, &tree.to(PLACE)).run();
    let out = ran.succeeded().out().into_owned();
    assert!(out.starts_with("pushed 4 files, 3.1 MB to /tmp/copied on far in "), "{ran}");
    // Why it may be slow.
    assert!(!ran.said().is_empty(), "{ran}");
    tree.is_on(&field, "b", PLACE);
}

#[test]
fn the_secret_of_a_copy_is_on_no_command_line() {
    let field = Field::new();
    let _place = field.scratch(&["a", "b"], PLACE);
    let tree = Tree::new(16 << 20);
    let started = Stopwatch::start();
    let running = push(&field, "-H a,b --limit 2M", &tree.to(PLACE)).spawn();
    wait_for_bytes(&field, "b");
    let mut seen = 0;
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
        let line = read("cmdline");
        if !String::from_utf8_lossy(&line).contains("rlaunch-copier") {
            continue;
        }
        seen += 1;
        for bytes in [line, read("environ")] {
            let longest = bytes.split(|byte| !byte.is_ascii_hexdigit()).map(<[u8]>::len).max();
            assert!(longest < Some(64), "{}", String::from_utf8_lossy(&bytes));
        }
    }
    assert!(seen >= 3, "{seen} programs copy");
    field.wait_for("some parts to arrive", || started.total_elapsed() > Duration::from_secs(4));
    // Ctrl-C ends all, and the next push goes on.
    running.signal(Signal::SIGINT);
    let ran = running.finish();
    ran.ended_with(130).hints("not sent again by rlaunch push");
    let ran = push(&field, "-H a,b --json", &tree.to(PLACE)).run();
    ran.succeeded();
    assert!(received(&ran).iter().all(|(_, bytes)| *bytes < 16 << 20), "{ran}");
    ["a", "b"].iter().for_each(|host| tree.is_on(&field, host, PLACE));
}

#[test]
fn a_dry_run_connects_to_no_host() {
    let field = Field::new();
    let tree = Tree::new(1500);
    let ran = push(&field, "-H nosuch,b -n", &tree.to("/data")).run();
    let expected = "   1.5 kB  tree/big
      0 B  tree/link
     10 B  tree/run
      0 B  tree/sub/deep/empty
      6 B  tree/sub/small
4 files, 1.5 kB would go to /data on nosuch, b
";
    assert_eq!(ran.succeeded().out(), expected, "{ran}");
    ran.says_nothing();
}

#[test]
fn what_cannot_be_meant_is_said_before_any_host_is_reached() {
    let field = Field::new();
    let tree = Tree::new(10);
    let here = tree.path().display().to_string();
    let small = tree.path().join("sub/small").display().to_string();
    let other = tree.directory.path().join("small").display().to_string();
    fs::write(&other, "").unwrap();
    for (words, code, said) in [
        (vec!["-H", "nosuch", "/none/such"], 203, "cannot read /none/such"),
        (vec![here.as_str()], 200, "no hosts are named"),
        (
            vec!["-H", "a", &format!("{small}:/x"), &format!("{other}:/x")],
            200,
            "would be one in /x",
        ),
        (vec!["-H", "a,b", "--from", "c", "/x"], 200, "--from c is not among the hosts: a, b"),
    ] {
        field.rlaunch("push").args(words).run().refused(code, &[said]);
    }
    field.rlaunch("push -H a").run().ended_with(200);
    field.rlaunch("copy").run().hints("rlaunch push -H HOSTS FILE");
}

#[test]
fn what_the_kernel_makes_is_refused() {
    let field = Field::new();
    let _place = field.scratch(&["a"], PLACE);
    let directory = launch_directory();
    let said = "the kernel makes /proc/version when it is read";
    for (verb, source) in
        [("push", format!("/proc/version:{PLACE}")), ("fetch", "/proc/version".to_owned())]
    {
        let run = field.rlaunch(&format!("{verb} -H a {source}"));
        let ran = run.in_directory(directory.path()).run();
        ran.ended_with(203).says(&[said]);
    }
}

/// Programs of other users do not read what is copied, even while it arrives.
#[test]
fn an_ordinary_user_copies_its_own_files() {
    let field = Field::new();
    let tree = Tree::new(2 << 20);
    fs::set_permissions(tree.directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let home = field.lab.home("a", Account::User).unwrap();
    let copied = home.join("copied");
    let _copied = Undo(|| if copied.exists() { fs::remove_dir_all(&copied) } else { Ok(()) });
    let run = push(&field, "-H a", &tree.to("~/copied")).account(Account::User);
    run.run().succeeded();
    assert_eq!(fs::read(copied.join("tree/big")).unwrap().len(), 2 << 20);
    let missing = Path::new("/root/copied");
    assert!(!field.lab.path("a", missing).unwrap().exists());
    // A directory of root.
    let ran = push(&field, "-H a", &tree.to("/root/copied")).account(Account::User).run();
    ran.ended_with(203).says(&["error: not complete: a", "\n  a: "]);
}

#[test]
fn hosts_that_share_the_directory_get_the_files_once() {
    let field = Field::new();
    // All hosts have the devices of this machine.
    let shared = tempfile::tempdir_in("/dev").unwrap();
    let place = shared.path().to_str().unwrap();
    let tree = Tree::new(2 << 20);
    let ran = push(&field, "-H a,b,c --json", &tree.to(place)).run();
    ran.succeeded();
    let bytes: Vec<u64> = received(&ran).into_iter().map(|(_, bytes)| bytes).collect();
    assert!(bytes[0] >= 2 << 20 && bytes[1..] == [0, 0], "{ran}");
    ran.says(&[&format!("b shares {place} with a"), &format!("c shares {place} with a")]);
    ["a", "b", "c"].iter().for_each(|host| tree.is_on(&field, host, place));
    let left: Vec<_> =
        fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["tree"]);
}

#[test]
fn hosts_listen_at_the_ports_that_were_asked_for() {
    let field = Field::new();
    let _place = field.scratch(&["a", "b"], PLACE);
    let tree = Tree::new(16 << 20);
    let words = "-H a,b --limit 2M --port-range 31000-31005";
    let running = push(&field, words, &tree.to(PLACE)).spawn();
    wait_for_bytes(&field, "b");
    for host in ["a", "b"] {
        let ports = field.on(host, "ss -Hltn | grep -c ':3100[0-5] ' || true");
        assert_ne!(ports, "0\n", "{host}");
    }
    running.signal(Signal::SIGINT);
    running.finish().ended_with(130);
}

/// Ranks are stopped by Ctrl-Z, and the program here would lose patience with them.
#[test]
fn the_program_here_stands_still_while_the_launcher_does() {
    let field = Field::new();
    let _place = field.scratch(&["a"], PLACE);
    let tree = Tree::new(16 << 20);
    let running = push(&field, "-H a --limit 4M", &tree.to(PLACE)).spawn();
    wait_for_bytes(&field, "a");
    let launcher = running.pid();
    let found = children(launcher);
    let [copier] = found[..] else { panic!("{found:?}") };
    running.signal(Signal::SIGTSTP);
    field.wait_for("the launcher to stop", || state(launcher) == 'T');
    assert_eq!(state(copier), 'T');
    running.signal(Signal::SIGCONT);
    field.wait_for("the program to go on", || state(copier) != 'T');
    running.finish().succeeded();
    tree.is_on(&field, "a", PLACE);
}

#[test]
fn a_directory_keeps_the_bit_that_gives_files_their_group() {
    let field = Field::new();
    let _place = field.scratch(&["a"], PLACE);
    let tree = Tree::new(10);
    fs::set_permissions(tree.path().join("sub"), PermissionsExt::from_mode(0o2775)).unwrap();
    field.on("a", &format!("mkdir -p {PLACE}/tree/sub/deep && chmod 2700 {PLACE}/tree/sub/deep"));
    push(&field, "-H a", &tree.to(PLACE)).run().succeeded();
    let modes = field.on("a", &format!("cd {PLACE}/tree && stat -c %a sub sub/deep"));
    assert_eq!(modes, "2775\n2755\n");
}
