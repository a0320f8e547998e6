//! Hosts that cannot be reached or that refuse: each error names host and cause, and says what to
//! do.

use crate::running::is_about_a_wait;
use crate::support::{Field, Undo, launch_directory};
use nix::sys::signal::Signal;
use rlaunch_lab::{Account, Cut, Stopwatch};
use std::process::Command;
use std::time::Duration;

/// Writes an ssh configuration with additional `lines`, and returns its path.
fn configuration(directory: &std::path::Path, lines: &str) -> String {
    let path = directory.join("ssh_config");
    std::fs::write(&path, format!("{lines}\nHost *\n  IdentityFile ~/.ssh/id_ed25519\n")).unwrap();
    path.display().to_string()
}

#[test]
fn a_name_that_nobody_knows() {
    let field = Field::new();
    let ran = field.rlaunch("-H a,nowhere,c hostname").run();
    ran.refused(201, &["nowhere: cannot look up"]).hints("/etc/hosts").took_less_than(4);
}

#[test]
fn a_port_where_nobody_listens() {
    let field = Field::new();
    let sshd = field.lab.sshd("b").unwrap();
    let _restore = Undo(|| sshd.restart(&[]));
    sshd.stop().unwrap();
    let ran = field.rlaunch("-H a,b,c hostname").run();
    let address = format!("{}:22", field.lab.address("b").unwrap());
    ran.refused(201, &["b: ", &address, "refused"]).hints("--port").took_less_than(5);
}

#[test]
fn every_host_that_fails_is_listed_with_its_own_cause() {
    let field = Field::new();
    let sshd = field.lab.sshd("b").unwrap();
    let _restore = Undo(|| sshd.restart(&[]));
    sshd.stop().unwrap();
    let ran = field.rlaunch("-H a,b,nowhere,c hostname").run();
    ran.refused(201, &["2 of 4 hosts", "  b: ", "refused", "  nowhere: cannot look up"]);
    ran.keeps_quiet_about(&["  a: ", "  c: "]);
    let ran = field.rlaunch("--port 2 -H a,b,c hostname").run();
    ran.refused(201, &["3 of 3 hosts", "  a: ", "  b: ", "  c: ", ":2", "refused"]);
}

#[test]
fn a_silent_host_is_given_up() {
    let field = Field::new();
    // Before its hardware address is known, a host has no route, which is another error than no
    // answer.
    field.warm("a,b,c", Account::Root);
    let _restore = Undo(|| field.lab.heal("c"));
    field.lab.cut("c", Cut::Silent).unwrap();
    let ran = field.rlaunch("-H a,b,c hostname").run();
    ran.refused(201, &["c: ", "within", "waiting"]).hints("ConnectTimeout");
    ran.took_less_than(20);
    // On a slow machine, reachable hosts may also be waited for for more than a second, but only c
    // until the end.
    let err = ran.err();
    let last = err.lines().rfind(|line| is_about_a_wait(line)).unwrap();
    assert!(last.contains(" for: c ("), "{ran}");
}

#[test]
fn whoever_waits_for_a_silent_host_can_interrupt() {
    let field = Field::new();
    let _restore = Undo(|| field.lab.heal("c"));
    field.lab.cut("c", Cut::Silent).unwrap();
    let mut running = field.rlaunch("-H a,b,c hostname").spawn();
    running.wait_for_stderr(" for: c (connecting)", 1);
    let asked = Stopwatch::start();
    running.signal(Signal::SIGINT);
    let ran = running.finish_in(4, asked);
    ran.ended_with(130).says(&["interrupted before any rank was started"]);
}

/// A link that drops packets after the login holds the job only as long as rlaunch waits for the step that stalls.
#[test]
fn a_connection_that_stalls_after_the_login_ends_the_start_and_is_named() {
    let field = Field::new();
    field.warm("b", Account::Root);
    let directory = launch_directory();
    let stalls = |bytes: u32| {
        let config = directory.path().join(format!("config-{bytes}"));
        let text = format!(
            "ProxyCommand bash -c 'exec 3<>/dev/tcp/%h/%p 4<&0; \
             {{ dd bs=1 count={bytes} status=none >&3; cat >/dev/null; kill $$; }} <&4 & exec cat <&3'\n\
             IdentityFile ~/.ssh/id_ed25519\n"
        );
        std::fs::write(&config, text).unwrap();
        let run = field.rlaunch("--ssh-config").args([config.as_os_str()]);
        run.args(["-H", "b", "hostname"]).within(Duration::from_secs(90)).spawn()
    };
    // The login ends and the agent starts among these bytes.
    let running: Vec<_> = (1100..=2300).step_by(100).map(stalls).collect();
    let mut stages = [0; 5];
    for running in running {
        let ran = running.finish_first();
        let said = ran.err();
        let sentences = [
            "the SSH handshake does not complete within 10 s",
            "the login does not complete within 10 s",
            "stalls: no answer to a command within 30 s",
            "b: no hello from the agent within 8 s",
            // The agent hears no beats and ends.
            "node b is lost: ",
        ];
        let stage = sentences.iter().position(|sentence| said.contains(sentence));
        stages[stage.unwrap_or_else(|| panic!("{ran}"))] += 1;
    }
    assert!(stages[2] + stages[3] > 0, "none after the login: {stages:?}");
}

#[test]
fn a_key_that_opens_nothing() {
    let field = Field::new();
    let directory = launch_directory();
    let key = directory.path().join("other");
    let mut keygen = Command::new("ssh-keygen");
    keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key);
    assert!(keygen.status().unwrap().success());
    let config = directory.path().join("config");
    let known = field.lab.ssh_dir(Account::Root).join("known_hosts");
    let text = format!("IdentityFile {}\nUserKnownHostsFile {}\n", key.display(), known.display());
    std::fs::write(&config, text).unwrap();
    let ran = field.rlaunch("--ssh-config").args([config.as_os_str()]);
    let ran = ran.args(["-H", "a", "hostname"]).run();
    ran.refused(201, &["a: root may not log in", &key.display().to_string()]);
    ran.hints(&format!("add {}.pub to ~root/.ssh/authorized_keys", key.display()));
}

#[test]
fn a_host_key_that_changed() {
    let field = Field::new();
    let sshd = field.lab.sshd("b").unwrap();
    let _restore = Undo(|| field.lab.refresh_known_hosts());
    sshd.replace_host_key().unwrap();
    let ran = field.rlaunch("-H a,b,c hostname").run();
    ran.refused(201, &["b: its host key has changed", "known_hosts:"]).hints("ssh-keygen -R b");
    // The key of this host is known, so the setting for unknown hosts must not matter.
    let directory = launch_directory();
    let config = configuration(directory.path(), "StrictHostKeyChecking accept-new");
    let ran = field.rlaunch("-H b --ssh-config").args([&config, "hostname"]).run();
    ran.refused(201, &["b: its host key has changed"]);
}

#[test]
fn an_unknown_host_under_strict_checking() {
    let field = Field::new();
    let _restore = Undo(|| field.lab.refresh_known_hosts());
    field.lab.set_known_hosts("").unwrap();
    let directory = launch_directory();
    let config = configuration(directory.path(), "StrictHostKeyChecking yes");
    let ran = field.rlaunch("-H a,b --ssh-config").args([&config, "hostname"]).run();
    ran.refused(201, &["  a: its host key ", "  b: its host key ", "not known"]).hints("ssh a");
    let known = field.lab.ssh_dir(Account::Root).join("known_hosts");
    assert_eq!(std::fs::read_to_string(known).unwrap(), "");
}

#[test]
fn new_hosts_are_remembered() {
    let field = Field::new();
    let _restore = Undo(|| field.lab.refresh_known_hosts());
    field.lab.set_known_hosts("").unwrap();
    let hosts = field.lab.hosts().join(",");
    field.rlaunch("-H").args([&hosts, "hostname"]).run().succeeded();
    let known = field.lab.ssh_dir(Account::Root).join("known_hosts");
    let text = std::fs::read_to_string(known).unwrap();
    let mut names: Vec<&str> =
        text.lines().filter_map(|line| line.split([' ', ',']).next()).collect();
    names.sort_unstable();
    assert_eq!(names, field.lab.hosts(), "{text}");
    let directory = launch_directory();
    let config = configuration(directory.path(), "StrictHostKeyChecking yes");
    let ran = field.rlaunch("--ssh-config").args([&config, "-H", &hosts, "hostname"]).run();
    assert_eq!(ran.succeeded().sorted(), field.lab.hosts(), "{ran}");
}
