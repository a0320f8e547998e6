//! The smallest job: one command on every host.

use crate::support::{Field, launch_directory};
use rlaunch_lab::Account;

#[test]
fn every_host_answers_once() {
    let field = Field::new();
    for account in Account::ALL {
        field.warm("a,b,c", account);
        let ran = field.rlaunch("-H a,b,c -np 3 hostname").account(account).run();
        ran.succeeded();
        assert_eq!(ran.sorted(), ["a", "b", "c"], "{ran}");
        ran.says_nothing();
    }
}

#[test]
fn ranks_run_as_the_account_that_logs_in() {
    let field = Field::new();
    let ran = field.rlaunch("-H a,user@b -np 2").sh("echo $(id -un) $HOME").run();
    let root = format!("root {}", Account::Root.home().display());
    assert_eq!(ran.succeeded().sorted(), [root.as_str(), "user /home/user"], "{ran}");
}

#[test]
fn slots_are_filled_in_the_order_of_the_hosts() {
    let field = Field::new();
    let ran = field.rlaunch("-H a:2,b,c:2 -np 4").sh("echo $RANK $(hostname)").run();
    assert_eq!(ran.succeeded().sorted(), ["0 a", "1 a", "2 b", "3 c"], "{ran}");
    let ran = field.rlaunch("-H a,b --oversubscribe -np 4").sh("echo $RANK $(hostname)").run();
    assert_eq!(ran.succeeded().sorted(), ["0 a", "1 a", "2 b", "3 b"], "{ran}");
}

#[test]
fn a_directory_that_hosts_have_is_the_ranks_directory() {
    let field = Field::new();
    let ran = field.rlaunch("-H a,b pwd").in_directory("/usr/bin".as_ref()).run();
    assert_eq!(ran.succeeded().out(), "/usr/bin\n/usr/bin\n", "{ran}");
    let ran = field.rlaunch("-H a,b --wdir /usr/lib pwd").run();
    assert_eq!(ran.succeeded().out(), "/usr/lib\n/usr/lib\n", "{ran}");
}

#[test]
fn a_directory_that_hosts_lack_is_told_once_and_again_when_a_rank_fails() {
    let field = Field::new();
    let (here, state) = (launch_directory(), tempfile::tempdir().unwrap());
    let run = |hosts: &str, script: &str| {
        let run = field.rlaunch("-H").args([hosts]).in_directory(here.path()).sh(script);
        run.env("XDG_STATE_HOME", state.path().to_str().unwrap()).run()
    };
    let line = "rlaunch: this directory is not on a, b: the ranks there run in /root";
    assert_eq!(run("a,b", "exit 0").succeeded().said(), [line]);
    run("a,b", "exit 0").succeeded().says_nothing();
    let line = "rlaunch: this directory is not on b: the ranks there run in /root";
    assert_eq!(run("b", "exit 0").succeeded().said(), [line]);
    let failed = run("b", "exit 3");
    failed.ended_with(3).says(&["  this directory is not on b: the ranks there ran in /root\n"]);
    failed.keeps_quiet_about(&["rlaunch: this"]);
}

#[test]
fn eight_hosts_take_no_longer_than_one_needs() {
    let field = Field::new();
    let hosts = field.lab.hosts().join(",");
    field.warm(&hosts, Account::Root);
    let ran = field.rlaunch("-H").args([&hosts, "hostname"]).run();
    assert_eq!(ran.succeeded().sorted(), field.lab.hosts(), "{ran}");
    ran.took_less_than(5);
}

/// Each meets what the one before has left. `cargo lab soak launch` starts hundreds.
#[test]
fn launches_in_a_row_all_work() {
    let field = Field::new();
    field.warm("a,b,c", Account::Root);
    for round in 0..20 {
        let ran = field.rlaunch("-H a,b,c -np 3 hostname").spawn().finish_first();
        assert_eq!(ran.succeeded().sorted(), ["a", "b", "c"], "launch {round}: {ran}");
        ran.says_nothing();
    }
}
