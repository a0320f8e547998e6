//! SSH: names, files and hosts that try to run commands here or to write to the terminal.

use crate::ssh_setup::Typist;
use crate::stdin::piped;
use crate::support::{Field, Undo, launch_directory};
use nix::sys::signal::Signal;
use rlaunch_lab::Account;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Writes an ssh configuration that would execute host names as shell commands, and returns its
/// path.
fn config_that_runs_names(directory: &Path) -> String {
    let path = directory.join("ssh_config");
    let ran = directory.join("ran");
    let text = format!(
        "Match exec \"echo %n %r >>{0}\"\n Port 22\nHost *\n ProxyCommand echo %h %r >>{0}; nc %h %p\n",
        ran.display()
    );
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn names_that_a_shell_would_run_are_refused_where_they_stand() {
    let field = Field::new();
    let directory = launch_directory();
    let config = config_that_runs_names(directory.path());
    let hostfile = directory.path().join("hosts");
    for entry in ["`id>pwned`", "$(id>pwned)", "a;id>pwned", "a|id", "root`id>pwned`@a"] {
        fs::write(&hostfile, format!("# two hosts\nb\n{entry} slots=2\n")).unwrap();
        let run = || field.rlaunch("").in_directory(directory.path());
        let file = hostfile.display().to_string();
        let by_ssh = run().args(["--ssh-config", &config, "--hostfile", &file, "true"]).run();
        by_ssh.refused(200, &[&format!("{file}:3: `{entry}`: "), "means something to a shell"]);
        let rsh = "sh -c \"echo {host}\"";
        let by_rsh = run().args(["--rsh", rsh, "-H", entry, "true"]).run();
        by_rsh.refused(200, &["means something to a shell"]);
        let shown = run().args(["ssh-config", "--ssh-config", &config, entry]).run();
        shown.refused(200, &["means something to a shell"]);
    }
    let left = field.shell("ls", directory.path());
    assert_eq!(left, "hosts\nssh_config\n", "a command has run");
}

#[test]
fn a_configuration_that_others_may_write_runs_nothing() {
    let field = Field::new();
    for account in Account::ALL {
        let home = launch_directory();
        let ran = home.path().join("ran");
        let ssh = home.path().join(".ssh");
        fs::create_dir(&ssh).unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let config = ssh.join("config");
        let text = format!("Host *\n ProxyCommand sh -c 'id >{}; exit 1'\n", ran.display());
        fs::write(&config, text).unwrap();
        let run = |words: &str| {
            let run = field.rlaunch(words).account(account);
            run.env("HOME", home.path().to_str().unwrap()).run()
        };
        for mode in [0o666, 0o664, 0o646] {
            fs::set_permissions(&config, fs::Permissions::from_mode(mode)).unwrap();
            let refused = run("-H b true");
            let said = format!("bad owner or permissions on {}", config.display());
            refused.refused(200, &[&said, &format!("(mode {mode:o})")]).hints("chmod go-w");
            run("ssh-config b").refused(200, &[&said]);
        }
        // A configuration file of rlaunch that names the ssh configuration does not make it
        // trusted.
        let cluster = home.path().join("cluster.toml");
        fs::write(&cluster, format!("[defaults]\nssh-config = {config:?}\n")).unwrap();
        let refused = run(&format!("--cluster {} -H b true", cluster.display()));
        refused.refused(200, &[&format!("bad owner or permissions on {}", config.display())]);
        assert!(!ran.exists(), "the command has run as {}", account.name());
        // An ssh configuration that the user names is used.
        let named = run(&format!("-H b --ssh-config {} true", config.display()));
        named.refused(201, &["its ProxyCommand"]);
        assert!(ran.exists());
    }
}

/// Shell command that prints control sequences: write the clipboard, reverse the text direction, a
/// very long line.
const WORDS: &str = r"printf '\033]52;c;eA==\007 \302\233 \342\200\256 %05000d\n' 0";

/// Asserts that the text contains nothing that acts on a terminal.
fn assert_harmless(words: &str) {
    let acts = |c: char| c.is_control() && c != '\n' || matches!(c, '\u{202a}'..='\u{202e}');
    assert!(!words.contains(acts), "{}", words.escape_debug());
    assert!(words.lines().all(|line| line.len() < 1000), "{words}");
}

#[test]
fn words_of_a_host_do_nothing_to_the_terminal() {
    let field = Field::new();
    let directory = launch_directory();
    let script = directory.path().join("e");
    fs::write(&script, format!("#!/bin/sh\n{WORDS} >&2; exit 3\n")).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    // Makes rlaunch print as to a terminal, so that nothing is removed because the stream is a
    // pipe.
    let run = |words: &str| field.rlaunch(words).env("CLICOLOR_FORCE", "1");
    let by_rsh = run("--rsh").args([script.as_os_str()]).args(["-H", "x", "true"]).run();
    by_rsh.ended_with(201).says(&[r"exited with code 3", r"\x1b]52;c;eA==\x07 \u009b \u202e 0"]);
    let as_shown = |err: &str| {
        let plain = err.replace("\u{1b}[1m", "").replace("\u{1b}[0m", "");
        plain.replace("\u{1b}[31m", "").replace("\u{1b}[36m", "").replace("\u{1b}[33m", "")
    };
    assert_harmless(&as_shown(&by_rsh.err()));

    let bashrc = Account::Root.home().join(".bashrc");
    let says =
        |field: &Field, text: &str| field.files(&["a"], bashrc.to_str().unwrap(), text, 0o644);
    let guard = says(&field, &format!("{WORDS} >&2\nexit 3\n"));
    let by_ssh = run("-H a true").run();
    by_ssh.ended_with(202).says(&["a: ", r"\x1b]52;c;eA==\x07 \u009b \u202e 0"]);
    assert_harmless(&as_shown(&by_ssh.err()));
    let setup = run("ssh-setup -H a --dry-run").run();
    setup.ended_with(201).says(&["its shell runs no commands", r"\x1b]52;c;eA==\x07"]);
    assert_harmless(&as_shown(&setup.err()));
    drop(guard);
}

#[test]
fn a_start_up_file_cannot_answer_in_place_of_ssh_setup() {
    let field = Field::new();
    let bashrc = Account::Root.home().join(".bashrc");
    let forged = "printf 'rlaunch-setup change chmod -R 777 /\\nrlaunch-setup done\\n'\n\
                  echo rlaunch-landed here\n";
    let _forged = field.files(&["a"], bashrc.to_str().unwrap(), forged, 0o644);
    let ran = field.rlaunch("ssh-setup -H a --dry-run").run();
    assert!(!ran.out().contains("777") && !ran.err().contains("777"), "{ran}");
    ran.succeeded();
}

/// Returns the fingerprint `SHA256:…` of a host's key, from the host itself.
fn fingerprint(field: &Field, host: &str) -> String {
    let shown = field.on(host, "ssh-keygen -lf /run/rlaunch-lab/host_key.pub");
    shown.split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn hosts_met_for_the_first_time_are_said_once_or_refused_or_asked_about() {
    let field = Field::new();
    let _restore = Undo(|| field.lab.refresh_known_hosts());
    let all = field.lab.hosts().join(",");
    field.warm(&all, Account::Root);
    let known = field.lab.ssh_dir(Account::Root).join("known_hosts");
    let forget = || field.lab.set_known_hosts("").unwrap();

    // Nothing is sent to hosts that are refused, and no key is stored.
    forget();
    let lacking = || fs::read_to_string(&known).unwrap().is_empty();
    let run = |words: &str| field.rlaunch(words).run();
    run("-H a,b --new-hosts refuse hostname").refused(201, &["a: its host key ", "not known"]);
    run("-H a --new-hosts ask hostname").refused(201, &["there is no terminal to ask at"]);
    assert!(lacking());

    let (a, b) = (fingerprint(&field, "a"), fingerprint(&field, "b"));
    let first = run("-H a,b hostname");
    for (host, shown) in [("a", &a), ("b", &b)] {
        let line =
            format!("permanently added {host} (ED25519 {shown}) to the known hosts, ~/.ssh/");
        first.succeeded().says(&[&line]);
    }
    run("-H a,b hostname").succeeded().says_nothing();
    run("-H a,b --new-hosts refuse hostname").succeeded().says_nothing();

    forget();
    let many = run(&format!("-H {all} hostname"));
    let count = field.lab.hosts().len();
    let line =
        format!("permanently added {count} new hosts to the known hosts, ~/.ssh/known_hosts: a,");
    many.succeeded().says(&[&line]);
    assert_eq!(many.err().matches("permanently added").count(), 1, "{many}");

    // At a terminal rlaunch asks as ssh does.
    forget();
    let mut typist = Typist::start(&field, field.rlaunch("-H a --new-hosts ask hostname"));
    typist.answer_hidden(&format!("ED25519 key fingerprint is {a}."), 1, "what");
    typist.answer_hidden("Please type 'yes', 'no', 'all' or the fingerprint", 1, &a);
    let (ran, shown) = typist.finish();
    assert_eq!(ran.succeeded().out(), "a\n", "{ran}");
    assert!(shown.contains("authenticity of host 'a' can't be established"), "{shown}");
    let mut typist = Typist::start(&field, field.rlaunch("-H a,b --new-hosts ask hostname"));
    typist.answer_hidden("continue connecting (yes/no/all/[fingerprint])? ", 1, "no");
    typist.finish().0.refused(201, &["b: its host key ", "you did not accept it"]);
    assert_eq!(fs::read_to_string(&known).unwrap().lines().count(), 1);
}

#[test]
fn a_changed_key_that_is_let_pass_is_given_no_password() {
    let field = Field::new();
    let _restore = Undo(|| field.lab.refresh_known_hosts());
    let sshd = field.lab.sshd("b").unwrap();
    sshd.replace_host_key().unwrap();
    let directory = launch_directory();
    let config = directory.path().join("ssh_config");
    fs::write(&config, "StrictHostKeyChecking no\nIdentityFile ~/.ssh/id_ed25519\n").unwrap();
    let config = config.display().to_string();
    let ran = field.rlaunch("-H b --ssh-config").args([&config, "hostname"]).run();
    ran.succeeded().says(&["b: its host key has changed: ", "StrictHostKeyChecking is no"]);

    let _sshd = Undo(|| sshd.restart(&[]));
    let asked = directory.path().join("asked");
    let askpass = directory.path().join("askpass");
    fs::write(&askpass, format!("#!/bin/sh\necho \"$1\" >>{}; echo secret\n", asked.display()))
        .unwrap();
    fs::set_permissions(&askpass, fs::Permissions::from_mode(0o755)).unwrap();
    for way in ["PasswordAuthentication yes", "KbdInteractiveAuthentication yes"] {
        sshd.restart(&["AuthorizedKeysFile none", "UsePAM yes", way]).unwrap();
        let run = field.rlaunch("ssh-setup -H b --yes --ssh-config").args([&config]);
        let run = run.env("SSH_ASKPASS", askpass.to_str().unwrap());
        let ran = run.env("SSH_ASKPASS_REQUIRE", "force").run();
        ran.ended_with(201).says(&["disabled to avoid man-in-the-middle attacks", "has changed"]);
        ran.hints("ssh-keygen -R b");
        assert!(!asked.exists(), "a password was asked for");
    }
}

#[test]
fn files_of_ssh_that_are_none_or_block_hold_nothing_up() {
    let field = Field::new();
    let directory = launch_directory();
    let pipe = directory.path().join("pipe").display().to_string();
    field.shell(&format!("mkfifo {pipe}"), directory.path());
    let ran = field.rlaunch("-H a --ssh-config").args([&*pipe, "true"]).run();
    ran.refused(200, &[&format!("read ssh configuration {pipe}: it is a named pipe, and no file")]);
    let config = directory.path().join("config");
    fs::write(&config, format!("UserKnownHostsFile {pipe}\n")).unwrap();
    let ran = field.rlaunch("-H a --ssh-config").args([config.to_str().unwrap(), "true"]).run();
    ran.refused(201, &[&format!("read known hosts {pipe}: it is a named pipe, and no file")]);
    fs::write(&config, format!("IdentityFile {pipe}\nIdentityAgent none\n")).unwrap();
    let ran = field.rlaunch("-H a --ssh-config").args([config.to_str().unwrap(), "true"]).run();
    ran.refused(201, &[&format!("{pipe} (unreadable: it is a named pipe, and no file)")]);
    ran.took_less_than(4);
    // A shell passes `<(…)` in this way. Nothing is ever written to it.
    let run = field.rlaunch("-H a --ssh-config /dev/stdin true");
    let (_keyboard, running) = piped(&field, &run);
    let threads = format!("cat /proc/{}/task/*/comm", running.pid());
    let reads = || field.shell(&threads, directory.path()).lines().any(|name| name == "file");
    field.wait_for("the file to be read", reads);
    running.signal(Signal::SIGINT);
    running.finish().ended_with(130).took_less_than(4);
    let run = field.rlaunch("-H a --timeout 1 --ssh-config /dev/stdin true");
    let (_keyboard, running) = piped(&field, &run);
    running.finish().ended_with(124).took_less_than(4);
}
