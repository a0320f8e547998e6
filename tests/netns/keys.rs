//! Keys that an ssh-agent holds open hosts as files do.

use crate::support::{Field, launch_directory};
use rlaunch_lab::Account;
use std::fs;

/// No key files: what logs in is the agent's.
const CONFIG: &str = "Host *\n  IdentityFile none\n  StrictHostKeyChecking accept-new\n";

#[test]
fn a_key_that_only_an_agent_holds() {
    let field = Field::new();
    let directory = launch_directory();
    let config = directory.path().join("config");
    fs::write(&config, CONFIG).unwrap();
    // The agent ends with the command that it runs.
    let script = "ssh-add -q ~/.ssh/id_ed25519 && exec \"$@\"";
    for account in [Account::Root, Account::User] {
        let mut command = field.lab.exec_in(account, directory.path());
        command.args(["ssh-agent", "sh", "-c", script, "sh"]).arg(&field.rlaunch);
        command.arg("--ssh-config").arg(&config).args(["-H", "a,b", "hostname"]);
        let output = command.output().unwrap();
        let mut hosts: Vec<_> = output.stdout.split(|&byte| byte == b'\n').collect();
        hosts.sort_unstable();
        assert_eq!(hosts, [&b""[..], b"a", b"b"], "{output:?}");
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn without_the_agent_there_is_no_key() {
    let field = Field::new();
    let directory = launch_directory();
    let config = directory.path().join("config");
    fs::write(&config, CONFIG).unwrap();
    let run = field.rlaunch("--ssh-config").args([config.as_os_str()]).args(["-H", "a", "true"]);
    run.run().refused(201, &["a: root may not log in", "no key to try"]).hints("ssh-copy-id");
}
