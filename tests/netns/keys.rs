//! Authentication: keys of every format, agents, passphrases, certificates, and accounts that no
//! key opens.

use crate::running::Running;
use crate::support::{BOUND, Field, Undo, launch_directory};
use rlaunch_lab::{Account, LabError};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// ssh configuration without key files, so that only keys of an agent are used.
const CONFIG: &str = "Host *\n  IdentityFile none\n  StrictHostKeyChecking accept-new\n";
/// Directory of a host's sshd files.
const SSHD: &str = "/run/rlaunch-lab";

/// Makes a key pair with the options `words` of ssh-keygen, and returns its public half.
fn make_key(path: &Path, words: &str) -> String {
    let mut keygen = Command::new("ssh-keygen");
    keygen.args(["-q", "-a", "1", "-C", "made"]).args(words.split(' ')).arg("-f").arg(path);
    if !words.contains("-N") {
        keygen.args(["-N", ""]);
    }
    assert!(keygen.status().unwrap().success(), "{words}");
    fs::read_to_string(path.with_extension("pub")).unwrap()
}

/// Authorises `keys` on `host` as well, until the guard is dropped.
fn let_in<'a>(field: &'a Field, host: &'a str, keys: &str) -> impl Drop + use<'a> {
    let path = Path::new(SSHD).join("authorized_keys");
    let before = field.on(host, &format!("cat {}", path.display()));
    let after = format!("{before}{keys}");
    field.lab.write_file(host, &path, after.as_bytes(), 0o644).unwrap();
    Undo(move || {
        field.lab.write_file(
            host,
            &Path::new(SSHD).join("authorized_keys"),
            before.as_bytes(),
            0o644,
        )
    })
}

/// Restarts a host's sshd with other settings, until the guard is dropped.
fn sshd_with<'a>(field: &'a Field, host: &'a str, lines: &[&str]) -> impl Drop + use<'a> {
    let sshd = move || field.lab.sshd(host);
    sshd().unwrap().restart(lines).unwrap();
    Undo(move || -> Result<(), LabError> { sshd()?.restart(&[]) })
}

/// Signs a key with an authority's key: `ssh-keygen -s`.
fn sign(authority: &Path, words: &str, key: &Path) {
    let mut keygen = Command::new("ssh-keygen");
    keygen.arg("-q").arg("-s").arg(authority).args(words.split(' ')).arg(key);
    assert!(keygen.status().unwrap().success(), "{words}");
}

#[test]
fn a_key_that_only_an_agent_holds() {
    let field = Field::new();
    let directory = launch_directory();
    let config = directory.path().join("config");
    fs::write(&config, CONFIG).unwrap();
    // The agent exits with the command that it runs.
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
    run.run()
        .refused(201, &["a: root may not log in", "no key to try"])
        .hints("ssh-keygen -t ed25519");
}

#[test]
fn an_agent_may_hold_too_many_keys_unless_one_is_named() {
    let field = Field::new();
    let directory = launch_directory();
    for name in ["1", "2", "3", "4", "5", "6", "7"] {
        make_key(&directory.path().join(name), "-t ed25519");
    }
    let config = directory.path().join("config");
    fs::write(&config, CONFIG).unwrap();
    let named = directory.path().join("named");
    let text = "Host *\n  IdentityFile ~/.ssh/id_ed25519\n  IdentitiesOnly yes\n";
    fs::write(&named, text).unwrap();
    let script = "ssh-add -q 1 2 3 4 5 6 7 ~/.ssh/id_ed25519 && shift &&
        \"$@\" --ssh-config config -H a hostname 2>&1; echo code $?
        \"$@\" --ssh-config named -H a hostname; echo code $?";
    let mut command = field.lab.exec_in(Account::Root, directory.path());
    command.args(["ssh-agent", "sh", "-c", script, "sh", "-"]).arg(&field.rlaunch);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for part in ["a: it closed the connection after 6 of root's keys", "IdentitiesOnly yes"] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    assert!(text.contains("\ncode 201\n") && text.ends_with("\na\ncode 0\n"), "{text}");
}

#[test]
fn keys_of_every_kind_and_format_open_hosts() {
    let field = Field::new();
    let directory = launch_directory();
    let kinds = [
        ("a", "-t ed25519", ""),
        ("b", "-t ecdsa -b 256 -m PEM", ""),
        ("c", "-t ecdsa -b 384 -m PKCS8", ""),
        ("d", "-t ecdsa -b 521 -m PEM", ""),
        ("e", "-t rsa -b 2048", ""),
        ("f", "-t rsa -b 2048 -m PEM", ""),
        ("g", "-t rsa -b 2048 -m PKCS8", ""),
        ("h", "-t rsa -b 2048", "PubkeyAcceptedAlgorithms rsa-sha2-256"),
    ];
    let mut config = String::new();
    let mut guards = Vec::new();
    for (host, words, line) in kinds {
        // The format is detected by the content, not by the name.
        let key = directory.path().join(format!("id_rsa_{host}"));
        guards.push(let_in(&field, host, &make_key(&key, words)));
        config +=
            &format!("Host k{host}\n HostName {host}\n IdentityFile {}\n {line}\n", key.display());
    }
    config += "Host *\n IdentitiesOnly yes\n IdentityAgent none\n StrictHostKeyChecking no\n \
               UserKnownHostsFile /dev/null\n";
    let path = directory.path().join("config");
    fs::write(&path, &config).unwrap();
    let run = field.rlaunch("-H ka,kb,kc,kd,ke,kf,kg,kh --ssh-config");
    let ran = run.args([path.as_os_str()]).args(["hostname"]).run();
    assert_eq!(ran.succeeded().sorted(), ["a", "b", "c", "d", "e", "f", "g", "h"], "{ran}");

    // A key that is not allowed or that others may read is not used, and that is reported.
    let exposed = directory.path().join("id_rsa_b");
    fs::set_permissions(&exposed, PermissionsExt::from_mode(0o644)).unwrap();
    let (any, only) =
        ("PubkeyAcceptedAlgorithms rsa-sha2-256", "PubkeyAcceptedAlgorithms ssh-ed25519");
    fs::write(&path, config.replace(any, only)).unwrap();
    let run = field.rlaunch("-H kb,kh --ssh-config").args([path.as_os_str()]).args(["hostname"]);
    let ran = run.run();
    ran.refused(201, &["id_rsa_b (not used, others may read it: chmod 600 /"]);
    ran.says(&["id_rsa_h (not among PubkeyAcceptedAlgorithms)"]);
}

#[test]
fn an_encrypted_key_is_asked_for_once_for_all_hosts() {
    let field = Field::new();
    let directory = launch_directory();
    let key = directory.path().join("locked");
    let public = make_key(&key, "-t ed25519 -N sesame");
    let _doors = [let_in(&field, "a", &public), let_in(&field, "b", &public)];
    let known = field.lab.ssh_dir(Account::Root).join("known_hosts");
    let config = directory.path().join("config");
    let text = format!("IdentityFile {}\nUserKnownHostsFile {}\n", key.display(), known.display());
    fs::write(&config, text).unwrap();
    let shown = key.display().to_string();

    // Without a terminal no passphrase can be asked for. On c, which does not accept the key, none
    // is mentioned.
    let run = field.rlaunch("-H a,c --ssh-config").args([config.as_os_str()]).args(["hostname"]);
    let ran = run.run();
    ran.refused(201, &["  a: ", &format!("{shown} (needs a passphrase: ssh-add it first)")]);
    ran.says(&["  c: ", &format!("tried {shown}\n")]);

    // An askpass program is called once as well.
    let helper = directory.path().join("askpass");
    let text = "#!/bin/sh\necho \"$1\" >>${0%/*}/asked\necho sesame\n";
    fs::write(&helper, text).unwrap();
    fs::set_permissions(&helper, PermissionsExt::from_mode(0o755)).unwrap();
    let run = || {
        let run = field.rlaunch("-H a,b --ssh-config").args([config.as_os_str()]);
        run.args(["hostname"]).env("SSH_ASKPASS", helper.to_str().unwrap())
    };
    let ran = run().env("SSH_ASKPASS_REQUIRE", "force").run();
    assert_eq!(ran.succeeded().sorted(), ["a", "b"], "{ran}");
    let asked = fs::read_to_string(directory.path().join("asked")).unwrap();
    assert_eq!(asked, format!("passphrase for {shown}:\n"));
    run().run().refused(201, &["(needs a passphrase: ssh-add it first)"]);

    // script(1) provides a terminal.
    let line = format!(
        "{} -H a,b --no-tag --ssh-config {} hostname",
        field.rlaunch.display(),
        config.display()
    );
    let mut command = field.lab.exec_in(Account::Root, directory.path());
    command.args(["script", "-qefc", &line, "/dev/null"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (mut keyboard, mut running) = Running::with_keyboard(&field, &mut command, BOUND);
    running.wait_for_text(&format!("passphrase for {shown}: "), 1);
    keyboard.write_all(b"sesamf\r").unwrap();
    running.wait_for_text(&format!("wrong passphrase; passphrase for {shown}: "), 1);
    keyboard.write_all(b"sesamf\x7fe\r").unwrap();
    let ran = running.finish();
    let out = ran.succeeded().out();
    assert_eq!(out.matches("passphrase for").count(), 2, "{ran}");
    assert!(!out.contains("sesam"), "{ran}");
    let mut hosts: Vec<&str> = out.lines().filter(|line| line.len() == 1).collect();
    hosts.sort_unstable();
    assert_eq!(hosts, ["a", "b"], "{ran}");
}

#[test]
fn certificates_vouch_for_users_and_for_hosts() {
    let field = Field::new();
    let directory = launch_directory();
    let at = |name: &str| directory.path().join(name);
    let authority = make_key(&at("ca"), "-t ed25519");
    make_key(&at("me"), "-t ecdsa");
    sign(&at("ca"), "-I me -n root", &at("me"));
    make_key(&at("other"), "-t ed25519");
    sign(&at("ca"), "-I other -n alice", &at("other"));
    let lines =
        ["TrustedUserCAKeys", "HostCertificate"].into_iter().zip(["ca.pub", "host_key-cert.pub"]);
    let lines: Vec<String> = lines.map(|(word, file)| format!("{word} {SSHD}/{file}")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let mut guards = Vec::new();
    for (host, principal) in [("a", "a"), ("b", "elsewhere")] {
        let public = field.on(host, &format!("cat {SSHD}/host_key.pub"));
        let key = at(&format!("host_{host}.pub"));
        fs::write(&key, public).unwrap();
        sign(&at("ca"), &format!("-h -I host -n {principal}"), &key);
        let for_users = field.files(&[host], &format!("{SSHD}/ca.pub"), &authority, 0o644);
        let text = fs::read_to_string(at(&format!("host_{host}-cert.pub"))).unwrap();
        let of_host = field.files(&[host], &format!("{SSHD}/host_key-cert.pub"), &text, 0o644);
        let sshd = sshd_with(&field, host, &lines);
        // The sshd is restored before its files are removed.
        guards.push((sshd, for_users, of_host));
    }
    fs::write(at("known"), format!("@cert-authority * {authority}")).unwrap();
    let known = at("known").display().to_string();
    let config = format!(
        "Host c\n IdentityFile {}\n StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n\
         Host *\n IdentityFile {}\n UserKnownHostsFile {known}\n StrictHostKeyChecking yes\n",
        at("other").display(),
        at("me").display(),
    );
    fs::write(at("config"), config).unwrap();
    let config = at("config").display().to_string();
    let ran = field.rlaunch("-H a --ssh-config").args([&config, "hostname"]).run();
    assert_eq!(ran.succeeded().sorted(), ["a"], "{ran}");
    let ran = field.rlaunch("-H a,b,c --ssh-config").args([&config, "hostname"]).run();
    ran.refused(201, &["  b: its host certificate is for elsewhere, not for b"]);
    ran.says(&["  c: root may not log in", "other-cert.pub (for alice, not for root)"]);
}

#[test]
fn a_host_that_takes_passwords_alone() {
    let field = Field::new();
    let _restore =
        sshd_with(&field, "b", &["PubkeyAuthentication no", "PasswordAuthentication yes"]);
    let ran = field.rlaunch("-H a,b hostname").run();
    ran.refused(201, &["b: root may not log in: the host accepts no keys, only password;"]);
    ran.hints("rlaunch ssh-setup -H root@b");
}

#[test]
fn what_a_host_says_of_a_refused_login_is_quoted() {
    let field = Field::new();
    let words = "Access denied by pam_slurm_adopt: you have no active jobs on this node";
    let _text = field.files(&["a"], "/tmp/said/text", &format!("{words}\n"), 0o644);
    let _sshd = sshd_with(&field, "a", &["Banner /tmp/said/text", "AllowUsers nobody"]);
    let ran = field.rlaunch("-H a true").run();
    ran.refused(201, &[&format!("; the server says {words:?}")]);
}

#[test]
fn an_account_without_a_login_shell() {
    let field = Field::new();
    let changed = "sed 's|^\\(user:.*\\):[^:]*$|\\1:/usr/sbin/nologin|' /etc/passwd >/run/passwd";
    field.on("a", &format!("{changed} && mount --bind /run/passwd /etc/passwd"));
    let _restore = Undo(|| {
        field.on("a", "umount /etc/passwd && rm /run/passwd");
        Ok::<(), LabError>(())
    });
    let ran = field.rlaunch("-H a,b hostname").account(Account::User).run();
    ran.ended_with(202).says(&["a: ", "came back: This account is currently not available."]);
    ran.hints("chsh -s /bin/bash");
}

#[test]
fn what_ssh_config_says_about_a_host() {
    let field = Field::new();
    let ran = field.rlaunch("ssh-config user@a").run();
    let out = ran.succeeded().out();
    let home = Account::Root.home();
    let head = format!("# read: {}", home.join(".ssh/config").display());
    assert!(out.starts_with(&head), "{ran}");
    let identity = format!("\nidentityfile {}\n", home.join(".ssh/id_ed25519").display());
    for part in ["\nhost a\nuser user\nhostname a\nport 22\n", &identity] {
        assert!(out.contains(part), "no `{part}` in {ran}");
    }
    ran.says_nothing();
    field.rlaunch("ssh-config --ssh-config /etc a").run().ended_with(200).says(&["/etc"]);
}
