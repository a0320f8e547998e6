//! Packages: each is installed where nothing else of rlaunch is, used, and removed again.

use crate::running::Outcome;
use crate::support::{Field, PATH, launch_directory};
use rlaunch_lab::Account;
use rlaunch_lab::dist::{Profile, packages};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

/// Directory with all packages, which `cargo lab test` makes of the launcher under test.
static PACKAGES: LazyLock<PathBuf> = LazyLock::new(|| packages::directory(Profile::Lab).unwrap());
/// Time limit of `doctor --try`, which runs four jobs.
const PATIENCE: Duration = Duration::from_secs(60);
const HOSTS: [&str; 2] = ["a", "b"];

/// Finds the package whose name ends with `end`.
fn package(end: &str) -> PathBuf {
    let entries = fs::read_dir(&*PACKAGES).unwrap().map(|entry| entry.unwrap().path());
    let mut found = entries.filter(|path| path.to_string_lossy().ends_with(end));
    found.next().unwrap_or_else(|| panic!("no package {end}"))
}

/// Returns the field with another launcher.
fn with(rlaunch: PathBuf) -> Field {
    let mut field = Field::new();
    field.rlaunch = rlaunch;
    field
}

/// Runs a program on this machine as root.
fn run(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(output.status.success(), "{program} {words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs jobs with a launcher that has no files beside it, as a new user would, and removes what is left on the hosts.
fn try_out(field: &Field, account: Account) {
    field.forget_agents(&HOSTS, account);
    let start = |words: &str| field.rlaunch(words).account(account).within(PATIENCE);
    let import = "import rlaunch, socket; print(socket.gethostname())";
    let ran = start("-H a,b python3 -c").args([import]).run();
    let out = ran.succeeded().out();
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, HOSTS, "{ran}");
    tested(&start("doctor --try -H a,b").run());
    let cleaned = start("cache -H a,b --clean").run();
    for line in cleaned.succeeded().out().lines() {
        assert!(line.contains("  removed  "), "{cleaned}");
    }
    // An earlier test may have left agents in /tmp, where those of a read-only home are kept.
    for host in HOSTS {
        let kept = field.on(host, "find /tmp/.rlaunch-* -name rlaunch-worker 2>/dev/null || true");
        let is_own = |path: &&str| path.contains(&format!(".rlaunch-{}/", account.id()));
        assert_eq!(kept.lines().find(is_own), None, "{cleaned}");
        assert!(!field.cache(host, account).exists(), "{host} keeps something: {cleaned}");
    }
}

/// Checks the report of a trial of two hosts without RDMA.
fn tested(ran: &Outcome) {
    let out = ran.succeeded().out();
    let state = |name: &str| {
        let line = out.lines().find(|line| line.starts_with(&format!("{name} ")));
        let line = line.unwrap_or_else(|| panic!("no {name}: {ran}"));
        line[name.len()..].split_whitespace().next().unwrap().to_owned()
    };
    for name in ["hosts", "agents", "shared memory", "TCP", "Python"] {
        assert_eq!(state(name), "ok", "{name}: {ran}");
    }
    assert_eq!(state("RDMA"), "none", "{ran}");
    assert!(out.ends_with("jobs can run; the next step: rlaunch -H a,b PROGRAM\n"), "{ran}");
}

#[test]
fn one_file_is_all_of_it() {
    let directory = launch_directory();
    let rlaunch = directory.path().join("rlaunch");
    fs::copy(PACKAGES.join(std::env::consts::ARCH).join("rlaunch"), &rlaunch).unwrap();
    let field = with(rlaunch);
    try_out(&field, Account::Root);
    let files = field.rlaunch("version -v").run();
    for name in ["rlaunch-worker", "rlaunch-copier", "rlaunch-bench", "librlaunch.so"] {
        let carried = |line: &str| line.contains(name) && line.contains(" in rlaunch (");
        assert!(files.out().lines().any(carried), "{name}: {files}");
    }
    // Jobs on this machine alone start programs from copies in the account's cache.
    let local = field.rlaunch("-np 2 python3 -c").args(["import rlaunch; print(1)"]).run();
    assert_eq!(local.succeeded().out(), "1\n1\n", "{local}");
    let local = field.rlaunch("bench lat -np 2 --sizes 8 --iterations 10").run();
    local.succeeded();
    let cache = field.rlaunch("cache --clean").run();
    assert!(cache.succeeded().out().contains(" agent "), "{cache}");
    // Notes on copies stay: by them `rlaunch push --prune` finds what to remove.
    let left = field.shell("ls -A ~/.cache/rlaunch | grep -vx copy || :", Path::new("/"));
    assert_eq!(left, "", "{cache}");
}

#[test]
fn an_ordinary_user_unpacks_the_archive() {
    let directory = launch_directory();
    let archive = package("-linux.tar.gz");
    run("tar", &["-xzf", archive.to_str().unwrap(), "-C", directory.path().to_str().unwrap()]);
    let mut unpacked = fs::read_dir(directory.path()).unwrap();
    let root = unpacked.next().unwrap().unwrap().path();
    for file in ["share/man/man1/rlaunch-bench.1", "share/bash-completion/completions/rlaunch"] {
        assert!(root.join(file).is_file(), "{file}");
    }
    try_out(&with(root.join("bin/rlaunch")), Account::User);
}

#[test]
fn pip_installs_a_wheel() {
    let directory = launch_directory();
    let venv = directory.path().join("venv");
    run("python3", &["-m", "venv", venv.to_str().unwrap()]);
    let wheel = package(&format!("{}.whl", std::env::consts::ARCH));
    let pip = |words: &[&str]| run(venv.join("bin/pip").to_str().unwrap(), words);
    pip(&["install", "--quiet", "--no-index", "--no-deps", wheel.to_str().unwrap()]);
    let python = venv.join("bin/python");
    let python = python.to_str().unwrap();
    run(python, &["-c", "import rlaunch, rlaunch._rlaunch"]);
    try_out(&with(venv.join("bin/rlaunch")), Account::Root);
    pip(&["uninstall", "--quiet", "--yes", "rlaunch"]);
    let left = run("find", &[venv.to_str().unwrap(), "-name", "*rlaunch*"]);
    assert_eq!(left, "");
}

#[test]
fn dpkg_installs_and_removes_the_package() {
    let directory = launch_directory();
    let root = directory.path().join("root");
    for path in ["var/lib/dpkg/info", "var/lib/dpkg/updates"] {
        fs::create_dir_all(root.join(path)).unwrap();
    }
    fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
    let option = format!("--root={}", root.display());
    let dpkg = |words: &[&str]| {
        let forced = [&[&*option, "--force-depends", "--force-script-chrootless"], words].concat();
        let mut dpkg = Command::new("dpkg");
        let output = dpkg.args(forced).env("PATH", PATH).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    dpkg(&["--install", package(".deb").to_str().unwrap()]);
    let usr = root.join("usr");
    for file in [
        "share/man/man1/rlaunch.1",
        "share/man/man7/rlaunch-ssh.7",
        "share/zsh/vendor-completions/_rlaunch",
        "share/fish/vendor_completions.d/rlaunch.fish",
        "share/doc/rlaunch/copyright",
    ] {
        assert!(usr.join(file).is_file(), "{file}");
    }
    let version = with(usr.join("bin/rlaunch")).rlaunch("version").run();
    assert!(version.succeeded().out().starts_with("rlaunch "), "{version}");
    dpkg(&["--purge", "rlaunch"]);
    assert!(!usr.exists(), "left: {}", run("find", &[usr.to_str().unwrap()]));
}

#[test]
fn the_rpm_package_has_the_same_files() {
    let listed = run("rpm", &["-qlp", package(".rpm").to_str().unwrap()]);
    for file in [
        "/usr/bin/rlaunch", "/usr/share/man/man1/rlaunch.1",
        "/usr/share/zsh/site-functions/_rlaunch",
    ] {
        assert!(listed.lines().any(|line| line == file), "{file}: {listed}");
    }
}

/// Other tests cover the launcher; here a short file takes its place.
#[test]
fn packing_again_gives_the_same_bytes() {
    let directory = launch_directory();
    let texts = PACKAGES.with_file_name(std::env::consts::ARCH).join("share");
    let [first, second] = ["first", "second"].map(|name| {
        let (tree, output) = (directory.path().join(name), directory.path().join("out").join(name));
        fs::create_dir_all(tree.join("bin")).unwrap();
        fs::write(tree.join("bin/rlaunch"), "a launcher").unwrap();
        // The copies have other times than the originals.
        run("cp", &["-R", texts.to_str().unwrap(), tree.to_str().unwrap()]);
        packages::pack_tree(&tree, &output).unwrap();
        fs::read_to_string(output.join("SHA256SUMS")).unwrap()
    });
    assert_eq!(first.lines().count(), 4, "{first}");
    assert_eq!(first, second);
}
