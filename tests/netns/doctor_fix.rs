//! `rlaunch doctor --fix` on hosts whose `/var/lib` is their own for the time of a test: a fault is seen, fixed, proved gone,
//! and back after `rlaunch down`.

use crate::running::Outcome;
use crate::support::{Field, Undo, launch_directory};
use rlaunch_lab::Account;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// Time limit for two or three examinations and the changes between them.
const BOUND: Duration = Duration::from_secs(90);

/// Lets hosts keep a journal of their changes.
fn own_journals<'a>(field: &'a Field, hosts: &'a [&'a str]) -> impl Drop + use<'a> {
    for host in hosts {
        field.on(host, "mount -t tmpfs own /var/lib");
    }
    on_drop(field, hosts, "umount /var/lib")
}

/// Runs a line on hosts when the guard is dropped.
fn on_drop<'a>(field: &'a Field, hosts: &'a [&'a str], line: &'a str) -> impl Drop + use<'a> {
    Undo(move || {
        hosts.iter().for_each(|host| drop(field.on(host, line)));
        Ok::<(), String>(())
    })
}

fn fix(field: &Field, words: &str) -> Outcome {
    field.rlaunch(&format!("doctor --probe=never {words}")).within(BOUND).run()
}

fn json(ran: &Outcome) -> Value {
    serde_json::from_str(&ran.out()).unwrap_or_else(|error| panic!("{error}: {ran}"))
}

/// Returns what came of the fixes, each as `ID HOSTS OUTCOME`.
fn outcomes(report: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let line = |fix: &Value| {
        let hosts: Vec<String> = fix["hosts"].as_array().unwrap().iter().map(text).collect();
        format!("{} {} {}", text(&fix["id"]), hosts.join(","), text(&fix["outcome"]))
    };
    report["fixes"].as_array().unwrap_or_else(|| panic!("{report:#}")).iter().map(line).collect()
}

fn has(report: &Value, id: &str) -> bool {
    report["findings"].as_array().unwrap().iter().any(|finding| finding["id"] == id)
}

/// Makes sure that `line` prints the same on a host before the fault is fixed, and after the fix is undone; that the fault is
/// found, fixed and proved gone; and that a second run finds nothing to do.
fn is_fixed_and_undone(field: &Field, id: &str, host: &str, line: &str) {
    let before = field.on(host, line);
    let ran = fix(field, &format!("--json -H a,{host}"));
    assert!(has(&json(&ran), id), "not seen: {ran}");
    let ran = fix(field, &format!("--json --fix {id} --yes -H a,{host}"));
    let report = json(&ran);
    assert_eq!(outcomes(&report), [format!("{id} {host} fixed")], "{ran}");
    assert!(!has(&report, id), "{ran}");
    assert_ne!(field.on(host, line), before, "{ran}");
    let again = fix(field, &format!("--fix {id} --yes -H a,{host}"));
    again.says(&["nothing here that rlaunch can fix by itself"]);
    let ran = field.rlaunch(&format!("down -H a,{host}")).within(BOUND).run();
    ran.succeeded();
    assert_eq!(field.on(host, line), before, "not as before: {ran}");
    let ran = fix(field, &format!("--json -H a,{host}"));
    assert!(has(&json(&ran), id), "not back: {ran}");
}

/// Drops the ports of agents on a host.
fn filter<'a>(field: &'a Field, host: &'a str) -> impl Drop + use<'a> {
    field.on(
        host,
        "nft add table inet t && nft add chain inet t c '{ type filter hook input priority 0; }' && \
         nft add rule inet t c tcp dport 1024-65535 drop",
    );
    Undo(move || {
        field.on(host, "nft delete table inet t");
        Ok::<(), String>(())
    })
}

#[test]
fn ports_are_opened_in_the_packet_filter_and_closed_again() {
    let field = Field::new();
    let _journals = own_journals(&field, &["a", "b"]);
    let _filter = filter(&field, "b");
    is_fixed_and_undone(&field, "fw.ports", "b", "nft list ruleset");
}

#[test]
fn what_others_may_notice_needs_consent() {
    let field = Field::new();
    let _journals = own_journals(&field, &["a", "b"]);
    let _filter = filter(&field, "b");
    let before = field.on("b", "nft list ruleset");
    let ran = fix(&field, "--json --fix fw -H a,b");
    assert_eq!(outcomes(&json(&ran)), ["fw.ports b skipped"], "{ran}");
    let ran = fix(&field, "--fix fw --dry-run -H a,b");
    let out = ran.succeeded().out().into_owned();
    let script =
        "# on b, as root\n# fw.ports\nnft insert rule inet t c tcp dport 21000-21511 accept\n";
    assert!(out.contains(script), "{ran}");
    assert_eq!(field.on("b", "nft list ruleset"), before);
    assert_eq!(field.on("b", "ls /var/lib"), "", "no journal");
}

/// Leads a host's own name to an address of another machine.
fn wrong_name<'a>(field: &'a Field, host: &'a str) -> impl Drop + use<'a> {
    let lines = "(echo 192.0.2.7 $(hostname); cat /etc/hosts) > /run/hosts";
    field.on(host, &format!("{lines} && mount --bind /run/hosts /etc/hosts"));
    Undo(move || {
        field.on(host, "umount /etc/hosts && rm /run/hosts");
        Ok::<(), String>(())
    })
}

#[test]
fn an_own_name_is_led_to_an_own_address() {
    let field = Field::new();
    let _journals = own_journals(&field, &["a", "b"]);
    let _hosts = wrong_name(&field, "b");
    is_fixed_and_undone(&field, "net.name", "b", "cat /etc/hosts");
}

/// The sshd of the lab does not use PAM, so that a new login has the limit of the sshd.
#[test]
fn a_limit_of_logins_that_only_a_new_sshd_gives_is_said() {
    let field = Field::new();
    let _journals = own_journals(&field, &["a", "b"]);
    field.on(
        "b",
        "mkdir -p /run/etc/upper /run/etc/work && \
         mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work /etc",
    );
    let _etc = on_drop(&field, &["b"], "umount /etc && rm -rf /run/etc");
    field.on("b", "prlimit --nofile=512:512 --pid $(pgrep -o sshd)");
    // Nothing here may raise the limit of a process.
    let _limit = Undo(|| field.lab.sshd("b")?.restart(&[]));
    let ran = fix(&field, "--json --fix lim.files -H a,b");
    let report = json(&ran);
    assert_eq!(outcomes(&report), ["lim.files b waits"], "{ran}");
    let why = report["fixes"][0]["why"].as_str().unwrap();
    assert!(why.starts_with("needs a reboot, or `sudo systemctl daemon-reload"), "{ran}");
    let file = "/etc/security/limits.d/90-rlaunch-nofile.conf";
    assert_eq!(field.on("b", &format!("cat {file}")), "* - nofile 65536\nroot - nofile 65536\n");
    field.rlaunch("down -H a,b").within(BOUND).run().succeeded();
    assert_eq!(
        field.on("b", &format!("ls {file} 2>&1 || true")).matches("No such file").count(),
        1
    );
}

/// Only the machine where rlaunch runs is changed, so that no journal is needed.
#[test]
fn a_key_that_others_may_read_is_corrected_here() {
    let field = Field::new();
    let directory = launch_directory();
    let (key, config) = (directory.path().join("key"), directory.path().join("config"));
    let begin =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    fs::write(&key, begin).unwrap();
    fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap();
    // The lab's own key logs in.
    let text = format!(
        "Host a b\n  IdentityFile ~/.ssh/id_ed25519\n  IdentityFile {}\n  StrictHostKeyChecking no\n  \
         UserKnownHostsFile /dev/null\n",
        key.display()
    );
    fs::write(&config, text).unwrap();
    let words = format!("--json --fix ssh.perms -H a,b --ssh-config {}", config.display());
    let ran = fix(&field, &words);
    let report = json(&ran);
    assert_eq!(outcomes(&report), ["ssh.perms  fixed"], "{ran}");
    assert!(!has(&report, "ssh.perms"), "{ran}");
    assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

/// The account of the lab is in no sudoers file.
#[test]
fn an_account_without_root_is_told_so_and_the_fault_stays() {
    let field = Field::new();
    let _hosts = wrong_name(&field, "b");
    let run = field.rlaunch("doctor --probe=never --json --fix net.name --yes -H a,b");
    let ran = run.account(Account::User).within(BOUND).run();
    let report = json(&ran);
    assert_eq!(outcomes(&report), ["net.name b failed"], "{ran}");
    ran.says(&["b: root is needed"]);
    assert!(has(&report, "net.name"), "{ran}");
}

#[test]
fn what_rlaunch_never_fixes_is_refused() {
    let field = Field::new();
    let refused = |id: &str, words: &[&str]| {
        field.rlaunch(&format!("doctor --fix {id} -H a,b")).run().refused(200, words);
    };
    refused("gpu.acs", &["gpu.acs is not fixed by rlaunch: ", "rlaunch help gpu.acs"]);
    refused(
        "mesh.subnet",
        &["mesh.subnet is not fixed by rlaunch", "rlaunch network mesh --apply"],
    );
    refused("net.arpp", &["no check has the id", "did you mean net.arp?"]);
    field.rlaunch("doctor --yes -H a").run().refused(200, &["--fix"]);
}
