//! Tests of the lab itself. Each makes a lab of its own, which needs root; `cargo lab test` runs
//! them beside the tests of rlaunch.

#![expect(
    clippy::unwrap_used,
    reason = "where a helper cannot go on, its test has failed; clippy knows #[test] functions only"
)]

use std::collections::HashSet;
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rlaunch_lab::command::wait_until;
use rlaunch_lab::{Account, Cut, Lab, LabError, Options, Process};

const NAME: &str = "selftest";
const SOON: Duration = Duration::from_secs(10);

/// Lab that goes down with the test.
struct Own(Lab);

impl Own {
    fn up(hosts: usize) -> Own {
        Own::with(&Options { net: [10, 93], ..Options::new(NAME, hosts) })
    }

    fn with(options: &Options) -> Own {
        Own(Lab::up(options).unwrap())
    }
}

impl Deref for Own {
    type Target = Lab;
    fn deref(&self) -> &Lab {
        &self.0
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let removed = Lab::down(self.name());
        assert!(std::thread::panicking() || removed.unwrap());
    }
}

/// Runs a command and returns its stdout. If it fails, panics with its stderr.
fn stdout(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn ssh(lab: &Lab, account: Account, words: &[&str]) -> Output {
    lab.exec(account).args(["ssh", "-o", "ConnectTimeout=2"]).args(words).output().unwrap()
}

fn ssh_works(lab: &Lab, host: &str) -> bool {
    ssh(lab, Account::Root, &[host, "true"]).status.success()
}

#[test]
fn both_accounts_reach_every_host_by_name() {
    let lab = Own::up(2);
    for account in Account::ALL {
        for host in lab.hosts() {
            let output = ssh(&lab, account, &[&host, "hostname; id -un; pwd"]);
            let home = account.home();
            let wanted = format!("{host}\n{}\n{}\n", account.name(), home.display());
            assert_eq!(String::from_utf8_lossy(&output.stdout), wanted);
        }
    }
    let name =
        stdout(lab.exec_in(Account::User, Path::new("/")).args(["sh", "-c", "hostname; id -un"]));
    assert_eq!(name, "launch\nuser\n");
}

#[test]
fn hosts_share_nothing_they_can_write_to() {
    let lab = Own::up(2);
    let home = Account::Root.home();
    let places =
        [home.as_path(), Path::new("/home/user"), Path::new("/tmp"), Path::new("/var/tmp")];
    for place in places.iter().chain([&Path::new("/dev/shm"), &Path::new("/run")]) {
        let file = place.join("mark");
        lab.write_file("a", &file, b"x", 0o644).unwrap();
        assert!(lab.path("a", &file).unwrap().exists(), "{}", file.display());
        assert!(!lab.path("b", &file).unwrap().exists(), "{}", file.display());
        assert!(!file.exists(), "{}", file.display());
    }
    let refused =
        lab.on("a", Account::Root).unwrap().args(["touch", "/etc/mark"]).output().unwrap();
    assert!(!refused.status.success());
    let checkout = lab.path("a", Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
    assert!(!checkout.exists());
}

#[test]
fn a_shared_home_is_shared() {
    let options = Options { shared_home: true, net: [10, 93], ..Options::new(NAME, 2) };
    let lab = Own::with(&options);
    for account in Account::ALL {
        lab.write_file("a", &account.home().join("mark"), b"x", 0o600).unwrap();
        let mut cat = lab.on("b", account).unwrap();
        assert_eq!(stdout(cat.args(["cat", "mark"])), "x");
    }
    assert!(lab.home("a", Account::User).unwrap().join("mark").exists());
}

#[test]
fn only_root_has_cgroups() {
    let lab = Own::up(1);
    let mkdir = |account| {
        let mut command = lab.on("a", account).unwrap();
        command.args(["mkdir", "/sys/fs/cgroup/mine"]).output().unwrap().status.success()
    };
    if lab.status().cgroup.is_some() {
        assert!(!mkdir(Account::User));
        assert!(mkdir(Account::Root));
        assert!(lab.cpu_usage().unwrap() > Duration::ZERO);
    }
}

#[test]
fn processes_are_seen_and_orphans_are_reaped() {
    let lab = Own::up(2);
    assert_eq!(lab.processes("a").unwrap(), []);
    ssh(&lab, Account::User, &["a", "setsid sleep 1000 >/dev/null 2>&1 </dev/null &"]);
    let mut found = Vec::new();
    wait_until(SOON, "the ssh session to leave an orphan", || {
        found = lab.processes("a")?;
        Ok(found.iter().map(Process::command_line).eq(["sleep 1000"]))
    })
    .unwrap();
    assert_eq!(lab.processes("b").unwrap(), []);
    let busy = lab.wait_until_idle(Duration::ZERO).unwrap_err().to_string();
    assert!(busy.contains("a: sleep 1000"), "{busy}");
    stdout(lab.on("a", Account::Root).unwrap().args(["kill", &found[0].host_pid.to_string()]));
    wait_until(SOON, "the orphan to be reaped", || {
        Ok(!Path::new(&format!("/proc/{}", found[0].pid)).exists())
    })
    .unwrap();
    lab.wait_until_idle(SOON).unwrap();
}

#[test]
fn clearing_ends_everything_but_the_hosts() {
    let lab = Own::up(2);
    for account in Account::ALL {
        let mut command = lab.on("a", account).unwrap();
        stdout(command.args(["sh", "-c", "trap '' TERM; setsid sleep 60 >/dev/null 2>&1 &"]));
        stdout(lab.exec(account).args(["sh", "-c", "setsid sleep 60 >/dev/null 2>&1 &"]));
    }
    let mut session = lab.exec(Account::Root).args(["ssh", "b", "sleep 60"]).spawn().unwrap();
    let seen = || lab.processes("b").unwrap().iter().any(|process| process.args[0] == "sleep");
    wait_until(SOON, "the session", || Ok(seen())).unwrap();
    lab.clear().unwrap();
    assert!(!session.wait().unwrap().success());
    lab.wait_until_idle(SOON).unwrap();
    assert!(ssh_works(&lab, "a") && ssh_works(&lab, "b"));
}

#[test]
fn links_break_and_heal() {
    let lab = Own::up(2);
    for kind in [Cut::Carrier, Cut::Silent] {
        lab.cut("a", kind).unwrap();
        assert!(!ssh_works(&lab, "a"), "{kind:?}");
        assert!(ssh_works(&lab, "b"), "{kind:?}");
        let carrier = lab.path("a", Path::new("/sys/class/net/eth0/carrier")).unwrap();
        let carrier = fs::read_to_string(carrier).unwrap();
        assert_eq!(carrier.trim() == "1", kind == Cut::Silent);
        lab.heal("a").unwrap();
        assert!(ssh_works(&lab, "a"), "{kind:?}");
    }
}

#[test]
fn a_crashed_host_boots_again() {
    let lab = Own::up(2);
    lab.write_file("a", Path::new("/tmp/mark"), b"x", 0o600).unwrap();
    lab.write_file("a", Path::new("/home/user/mark"), b"x", 0o600).unwrap();
    lab.crash("a").unwrap();
    assert!(matches!(lab.on("a", Account::Root), Err(LabError::HostDown { .. })));
    assert_eq!(lab.processes("a").unwrap(), []);
    assert!(!lab.status().hosts[0].up);
    assert!(!ssh_works(&lab, "a"));
    lab.boot("a").unwrap();
    assert!(ssh_works(&lab, "a"));
    assert!(!lab.path("a", Path::new("/tmp/mark")).unwrap().exists());
    assert!(lab.path("a", Path::new("/home/user/mark")).unwrap().exists());
}

#[test]
fn sshds_take_other_settings_and_keys() {
    let lab = Own::up(2);
    let sshd = lab.sshd("a").unwrap();
    sshd.restart(&["Port 2222", "RekeyLimit 1M 2s"]).unwrap();
    assert!(!ssh_works(&lab, "a"));
    assert!(
        ssh(&lab, Account::Root, &["-p", "2222", "-o", "StrictHostKeyChecking=no", "a", "true"])
            .status
            .success()
    );
    sshd.replace_host_key().unwrap();
    let output = ssh(&lab, Account::Root, &["a", "true"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("HOST IDENTIFICATION HAS CHANGED"), "{stderr}");
    lab.refresh_known_hosts().unwrap();
    assert!(ssh_works(&lab, "a"));

    let mut session = lab.exec(Account::Root).args(["ssh", "a", "sleep 1000"]).spawn().unwrap();
    let asleep = |lab: &Lab| lab.processes("a").unwrap().iter().any(|p| p.args[0] == "sleep");
    wait_until(SOON, "the session", || Ok(asleep(&lab))).unwrap();
    sshd.stop().unwrap();
    assert!(!ssh_works(&lab, "a"));
    assert!(session.try_wait().unwrap().is_none());
    sshd.kill_sessions().unwrap();
    assert!(!session.wait().unwrap().success());
}

#[test]
fn host_keys_are_distinct() {
    let lab = Own::up(3);
    let known = fs::read_to_string(lab.ssh_dir(Account::User).join("known_hosts")).unwrap();
    let keys: HashSet<_> = known.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    assert_eq!(keys.len(), 3);
}

#[test]
fn labs_grow_and_stand_beside_each_other() {
    let lab = Own::up(1);
    let other = Own::with(&Options { net: [10, 94], ..Options::new("selftest2", 1) });
    let grown = Lab::up(&Options { net: [10, 93], ..Options::new(NAME, 3) }).unwrap();
    assert_eq!(grown.hosts(), ["a", "b", "c"]);
    assert!(ssh_works(&grown, "c"));
    assert!(matches!(lab.address("b"), Err(LabError::NoHost { .. })));
    assert!(ssh_works(&other, "a"));
    drop(other);
    assert!(ssh_works(&grown, "a"));
}

#[test]
fn down_leaves_nothing_behind() {
    let threshold = || fs::read_to_string("/proc/sys/net/ipv4/neigh/default/gc_thresh3").ok();
    let before = threshold();
    let lab = Own::up(2);
    let status = lab.status();
    // Leftovers of an interrupted run: a process without a record, a host without its init file.
    let mut orphan = lab.exec(Account::Root).args(["sleep", "1000"]).spawn().unwrap();
    let members = status.cgroup.as_ref().map(|path| path.join("launch/cgroup.procs"));
    wait_until(SOON, "the orphan to be in the lab", || {
        let inside =
            |path: &PathBuf| fs::read_to_string(path).unwrap().contains(&orphan.id().to_string());
        Ok(members.as_ref().is_none_or(inside))
    })
    .unwrap();
    fs::remove_file(status.state.join("hosts/a/init")).unwrap();
    fs::remove_file(status.state.join("lab.json")).unwrap();
    drop(lab);
    assert!(!orphan.wait().unwrap().success());
    assert!(!status.state.exists());
    assert!(status.cgroup.is_none_or(|path| !path.exists()));
    assert!(!Lab::down(NAME).unwrap());
    let others = Path::new("/run/rlaunch-lab").exists();
    assert!(others || threshold() == before);
}
