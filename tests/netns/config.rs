//! `rlaunch.toml`, what overrides it, and the sources of ranks' environments.

use crate::running::Outcome;
use crate::support::{Field, PATH, launch_directory};
use rlaunch_lab::Account;
use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

/// Writes a configuration of two hosts under other names, one by its address. To sshd, `b` and
/// `root@b` are the same.
fn cluster(field: &Field, directory: &Path) {
    let text = format!(
        "[defaults]\ntag-output = true\n\n\
         [hosts.titanic]\nssh = \"{0}\"\nslots = 2\nmesh = [\"{0}\"]\n\n\
         [hosts.olympic]\nssh = \"b\"\nuser = \"root\"\nmesh = [\"192.0.2.99\"]\n\n\
         [profile.apart]\ntag-output = false\nnp = 2\nmap-by = \"node\"\n",
        field.lab.address("a").unwrap()
    );
    fs::write(directory.join("rlaunch.toml"), text).unwrap();
}

#[test]
fn a_file_says_which_hosts_there_are_and_how_they_are_reached() {
    let field = Field::new();
    let directory = launch_directory();
    cluster(&field, directory.path());
    let state = directory.path().join("state");
    let run = |words: &str| {
        let run = field.rlaunch(words).in_directory(directory.path());
        run.env("XDG_STATE_HOME", state.to_str().unwrap())
    };
    let ran = run("--cluster rlaunch.toml -np 3 hostname").run();
    let expected = ["[0,titanic] a", "[1,titanic] a", "[2,olympic] b"];
    assert_eq!(ran.succeeded().sorted(), expected, "{ran}");
    ran.says(&["olympic has no address 192.0.2.99, its mesh in rlaunch.toml:12"]);
    run("trust").run().succeeded();
    // Options override the environment, the environment the profile, and the profile the defaults.
    let ran = run("--profile apart -v hostname").env("RLAUNCH_TAG_OUTPUT", "1").run();
    assert_eq!(ran.succeeded().sorted(), ["[0,titanic] a", "[1,olympic] b"], "{ran}");
    ran.says(&["defaults from ./rlaunch.toml"]);
    let run_of_two = run("--profile apart -H olympic,titanic:1 -np 1 hostname");
    assert_eq!(run_of_two.env("RLAUNCH_NP", "2").run().succeeded().out(), "b\n");
    // Names of hosts also work with the user's own remote shell and with other verbs.
    let ran = run("-H olympic hostname").env("RLAUNCH_RSH", "ssh -o BatchMode=yes").run();
    assert_eq!(ran.succeeded().out(), "[0,olympic] b\n", "{ran}");
    let ran = run("topo").run();
    let hosts = |line: &&str| line.starts_with("titanic: ") || line.starts_with("olympic: ");
    assert_eq!(ran.succeeded().out().lines().filter(hosts).count(), 2, "{ran}");
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_line() {
    let field = Field::new();
    let directory = launch_directory();
    let file = directory.path().join("rlaunch.toml");
    let with = |text: &str, words: &str| {
        fs::write(&file, text).unwrap();
        let state = directory.path().join("state");
        let run = field.rlaunch(words).in_directory(directory.path());
        run.env("XDG_STATE_HOME", state.to_str().unwrap()).run()
    };
    let ran = with("[hosts.a]\nslot = 2\n", "hostname");
    ran.refused(200, &["rlaunch.toml:2: unknown key `slot`: `slots` exists"]);
    let ran = with("[defaults]\n\ntag-outptu = true\n", "topo");
    ran.refused(200, &["rlaunch.toml:3: unknown key `tag-outptu`: `tag-output` exists"]);
    let ran = with("[profile.x]\ntransport = \"tpc\"\n", "hostname");
    ran.refused(200, &["rlaunch.toml:2: `transport` cannot be `tpc`: auto, rdma or tcp"]);
    // An error that is found only in the merged configuration names the file, not the command line.
    let list = "hosts = [\"a\", \"b,,c\"]\n";
    with(list, "trust").succeeded();
    let ran = with(list, "hostname");
    ran.refused(200, &["an empty host"]).hints("hosts (rlaunch.toml:1)");
    let ran = with("", "--profile x hostname");
    ran.refused(200, &["rlaunch.toml has no profile `x`"]);
    let run = field.rlaunch("hostname").env("RLAUNCH_NP", "none").run();
    run.refused(200, &["RLAUNCH_NP: `np` cannot be `none`: a number of ranks"]);
    // A file of another user could name commands to run.
    fs::write(&file, "[defaults]\nrsh = \"false\"\n").unwrap();
    chown(&file, Some(54321), None).unwrap();
    let run = |words: &str| field.rlaunch(words).in_directory(directory.path()).run();
    run("-H a hostname").refused(200, &["rlaunch.toml is not read: it belongs to uid 54321"]);
    assert_eq!(run("--cluster none -H a hostname").succeeded().out(), "a\n");
}

/// Tells whether a rank that ran `env` has printed this line.
fn has(ran: &Outcome, line: &str) -> bool {
    ran.out().lines().any(|own| own == line)
}

/// Returns the value of a variable, as a rank that ran `env` has printed it.
fn value(ran: &Outcome, name: &str) -> String {
    let out = ran.out();
    let mut values = out.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    values.next().unwrap_or_else(|| panic!("no {name}:\n{ran}")).to_owned()
}

#[test]
fn files_and_patterns_name_what_goes_along() {
    let field = Field::new();
    let directory = launch_directory();
    let file = directory.path().join("run.env");
    let text =
        "# of a run\nA=file # said\nexport B='two words'\nC=\"c\\\"\"\nNCCL_ALGO=Ring\nTAKEN\n";
    fs::write(&file, text).unwrap();
    let run = field.rlaunch("-H a --no-env --env-file run.env -x B=typed --show env -x NCCL_D*");
    let shell = [("A", "shell"), ("TAKEN", "here"), ("OTHER", "1"), ("NCCL_DEBUG", "WARN")];
    let own_path = format!("/launcher/bin:{PATH}");
    let run = run.env("PATH", &own_path).env("NCCL_IB_HCA", "mlx5_9");
    let run = shell.iter().fold(run, |run, (name, value)| run.env(name, value));
    let ran = run.in_directory(directory.path()).args(["env"]).run();
    ran.succeeded();
    for line in
        ["A=file", "B=typed", "C=c\"", "NCCL_ALGO=Ring", "TAKEN=here", "NCCL_DEBUG=WARN", "RANK=0"]
    {
        assert!(has(&ran, line), "no {line}:\n{ran}");
    }
    let out = ran.out();
    assert!(!out.contains("OTHER=1") && !out.contains("NCCL_IB_HCA=mlx5_9"), "{ran}");
    assert!(!value(&ran, "PATH").contains("/launcher/bin"), "{ran}");
    for marked in ["A=file", "B=typed", "NCCL_DEBUG=WARN", "TAKEN=here"] {
        let is_marked = |line: &str| line.split_whitespace().eq([marked, "0", "(yours)"]);
        assert!(out.lines().any(is_marked), "{marked} is not marked:\n{ran}");
    }
    // The same on this machine.
    let run = field.rlaunch("--no-env -x A env").env("A", "shell").env("OTHER", "1");
    let ran = run.run();
    assert!(has(ran.succeeded(), "A=shell") && !ran.out().contains("OTHER=1"), "{ran}");
    fs::write(&file, "A=1\n\n=2\n").unwrap();
    let run = field.rlaunch("-H a --env-file run.env hostname").in_directory(directory.path());
    run.run().refused(200, &["run.env:3: a variable's name is missing"]);
}

#[test]
fn a_login_decides_what_it_sets() {
    let field = Field::new();
    let profile = Account::Root.home().join(".bash_profile");
    let text = "echo Welcome to this host; echo so much to say >&2\n\
                export PATH=/login/bin:/usr/bin:/bin NCCL_DEBUG=VERSION OF_HOST=yes\n";
    let login = field.files(&["a"], profile.to_str().unwrap(), text, 0o644);
    let own_path = format!("/launcher/bin:{PATH}");
    let run = field.rlaunch("-H a --login --show env -x ASKED=1 env").env("PATH", &own_path);
    let ran = run.env("NCCL_DEBUG", "WARN").env("MINE", "1").run();
    for line in ["NCCL_DEBUG=VERSION", "OF_HOST=yes", "MINE=1", "ASKED=1"] {
        assert!(has(ran.succeeded(), line), "no {line}:\n{ran}");
    }
    let path = value(&ran, "PATH");
    assert!(path.starts_with("/login/bin:") && !path.contains("/launcher/bin"), "{path}");
    assert!(!ran.out().contains("Welcome"), "{ran}");
    let of_path = |line: &str| line.starts_with("PATH ") && line.contains("(host)");
    assert!(ran.out().lines().any(of_path), "{ran}");
    drop(login);
    // A login shell that exits in its start-up file.
    let closed = "echo this host is closed\nexit 3\n";
    let _login = field.files(&["a"], profile.to_str().unwrap(), closed, 0o644);
    let ran = field.rlaunch("-H a --login hostname").run();
    let words = ["a login by /bin/bash", "it ended and printed: this host is closed"];
    ran.refused(202, &words);
}
