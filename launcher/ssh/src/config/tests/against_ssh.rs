//! Compares `rlaunch ssh-config` with the real `ssh -G` for a table of configurations.

use super::*;
use std::process::{Command, Stdio};

/// Content of an ssh_config file that a published guide recommends, copied unchanged.
const GUIDE: &str = "\
Host *
 User nvidia
 IdentityFile ~/.ssh/id_rsa_host
 StrictHostKeyChecking no
 UserKnownHostsFile=/dev/null
";
/// Content of the ssh_config file that the same guide recommends for containers.
const GUIDE_CONTAINER: &str = "\
Host *
 User nvidia
 IdentityFile /root/.ssh/id_rsa_cont
 StrictHostKeyChecking no
 UserKnownHostsFile=/dev/null
 LogLevel=Error
 ServerAliveInterval=30
";

const TABLE: &[&str] = &[
    "",
    GUIDE,
    GUIDE_CONTAINER,
    "Host a\nPort 1\nHost b\nPort 2\nHost *\nPort=3\nUser = u",
    "Host * !b\nHostName %h.%%X\nUser x\nHost ?\nUser y",
    "identityfile ~/k1\nIDENTITYFILE \"/k 2\"\nIdentityFile ~/k1\nHost b\nIdentityFile /k3",
    "UserKnownHostsFile ~/a /b\nHost *\nUserKnownHostsFile /c",
    "Match originalhost b\nHostName Z\nMatch host z\nPort 9\nMatch !host z user root\nPort 8",
    "StrictHostKeyChecking off\nConnectTimeout 1h1m30\nStrictHostKeyChecking yes",
    "Host b\nStrictHostKeyChecking yes\nConnectTimeout 0\nHost *\nConnectTimeout none",
    "Match all\n\tUser a#b # c\nPort 022\nHost \"a\" 'b'\nStrictHostKeyChecking accept-new",
    "User 'a \\'b\"'\nUserKnownHostsFile /a\\ b\r\nHost A\nPort 5",
    "Match host=a,!b,c\nPort 4\nMatch host *\nPort 6\n  User  \"two words\"  # x",
    "Host a b\nInclude PART\nPort 1\nHost *\nPort 2",
    "Include PART*\nInclude /nowhere/*\nConnectTimeout 9",
    "ProxyJump none\nHost *\nProxyJump never",
    "Host a\nProxyJump u@gate:2022,10.0.0.1\nHost b\nProxyJump gate\nHost *\nProxyCommand nc x 1",
    "Host a\nProxyCommand nc -q 0 gate 22\nProxyJump late\nHost b\nProxyCommand none",
    "ServerAliveInterval 2m\nServerAliveCountMax 0\nConnectionAttempts 5",
    "RekeyLimit 1G 1h\nHost *\nRekeyLimit 5M",
    "RekeyLimit default 30s\nAddressFamily inet6\nBindAddress ::1",
    "AddressFamily INET\nBindAddress 10.1.2.3\nHostKeyAlias Cluster",
    "IdentitiesOnly yes\nIdentityAgent none\nCertificateFile ~/c1\nCertificateFile /c2",
    "IdentityAgent ~/agents/%h.sock\nGlobalKnownHostsFile /g1 /g2\nUserKnownHostsFile ~/k-%n-%p",
    "UserKnownHostsFile none\nGlobalKnownHostsFile none",
    "Match user root\nUser late\nMatch localuser root,nobody\nPort 7",
    "Match !originalhost a,A\nPort 4\nMatch originalhost A\nPort 5\nMatch host a !user root\nPort 6",
    "Host a*\nHostName 192.0.2.7\nMatch host 192.0.2.*\nUser by-address",
    "Host [a]\nPort 1\nHost a?\nPort 2\nHost *A*\nPort 3",
    "KexAlgorithms ecdh-sha2-nistp256\nCiphers aes128-ctr,aes256-ctr\n\
     HostKeyAlgorithms ssh-ed25519,rsa-sha2-256\nPubkeyAcceptedAlgorithms ssh-ed25519",
    "KexAlgorithms curve25519-sha256,ecdh-sha2-nistp521\nCiphers aes256-gcm@openssh.com\n\
     HostKeyAlgorithms ssh-ed25519-cert-v01@openssh.com,ssh-ed25519\n\
     PubkeyAcceptedKeyTypes rsa-sha2-512,rsa-sha2-256",
    "Match exec true\nPort 3\nMatch exec \"false\"\nUser no\nMatch !exec \"exit 1\"\nUser yes",
    "Match exec \"test %n = a\"\nPort 4\nMatch originalhost b exec \"test %h-%p-%k = b-22-b\"\n\
     Port 5\nHost *\nPort 6\nMatch exec \"test %p = 6\"\nUser six",
    "Host a\nHostName z.Example\nMatch final host z.example\nUser last\nHost z.example\nPort 7\n\
     Match canonical\nConnectTimeout 8\nHost a\nUser never",
    "Match final all\nPort 9\nHostName never\nIdentityFile /k\nMatch all\nIdentityFile /k\n\
     User u\nMatch !final host b\nUser first\nMatch canonical host b\nConnectionAttempts 4",
    "Match canonical\nPort 3\nMatch !canonical\nUser one\nMatch all\nPort 4",
    "Host b\nHostName y\nMatch final exec \"test %n-%h-%p = b-y-2022\"\nUser found\n\
     Match final\nPort 1\nHost *\nPort 2022",
    "IdentityFile none\nGSSAPIAuthentication no\nSendEnv LANG LC_*\nHashKnownHosts yes",
];

/// Keywords that are compared only if the configuration sets them. Their defaults differ, because OpenSSH
/// has other ciphers and other key files.
const WHERE_NAMED: [&str; 5] =
    ["kexalgorithms", "ciphers", "hostkeyalgorithms", "pubkeyacceptedalgorithms", "identityfile"];

/// Filters the output of `ssh -G` or `rlaunch ssh-config`: drops keywords of [`WHERE_NAMED`] that the
/// configuration `text` does not set, and sorts the remaining lines.
fn comparable(lines: impl Iterator<Item = (String, String)>, text: &str) -> Vec<String> {
    let text = text.to_ascii_lowercase().replace("keytypes", "algorithms");
    let named = |key: &str| !WHERE_NAMED.contains(&key) || text.contains(key);
    let lines = lines.filter(|(key, _)| named(key));
    let mut lines: Vec<String> = lines.map(|(key, value)| format!("{key} {value}")).collect();
    lines.sort();
    lines
}

fn theirs(file: &Path, alias: &str, text: &str, words: &[String]) -> Vec<String> {
    let mut ssh = Command::new("ssh");
    ssh.args(["-G", "-F"]).args([file.as_os_str(), alias.as_ref()]).stdin(Stdio::null());
    let output = ssh.output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let home = local().home.display().to_string();
    // `ssh` takes the home directory from the password file, not from HOME. By default it asks about
    // unknown keys, whereas rlaunch accepts them.
    let account = nix::unistd::User::from_uid(nix::unistd::Uid::current()).unwrap().unwrap();
    let account = account.dir.display().to_string();
    let line = |line: &str| {
        let (key, value) = line.split_once(' ')?;
        let value = match (key, value) {
            ("stricthostkeychecking", "ask") => "accept-new".to_owned(),
            // rlaunch parses `none` as zero.
            ("connecttimeout", "none") if text.contains("ConnectTimeout none") => "0".to_owned(),
            _ => value.replace(&account, "~").replace('~', &home),
        };
        words.iter().any(|word| word == key).then(|| (key.to_owned(), value))
    };
    let mut lines: Vec<(String, String)> = shown.lines().filter_map(line).collect();
    // Versions of ssh before 9 print no `host` line.
    lines.retain(|(key, _)| key != "host");
    comparable(lines.into_iter(), text)
}

fn ours(file: &Path, alias: &str, text: &str) -> (Vec<String>, Vec<String>) {
    let config = SshConfig::load(&[file.to_owned()]).unwrap();
    let host = config.resolve(alias).unwrap();
    let names = crate::AlgorithmNames::for_host(&host).unwrap();
    let lists = [
        ("kexalgorithms", names.kex),
        ("ciphers", names.ciphers),
        ("hostkeyalgorithms", names.host_keys),
        ("pubkeyacceptedalgorithms", names.public_keys),
    ];
    let lines = config.show(alias, &host).into_iter().chain(lists);
    let lines: Vec<_> = lines.map(|(key, value)| (key.to_owned(), value)).collect();
    let words = lines.iter().map(|(key, _)| key.clone());
    // These keywords are printed only if they are configured. If one is missing in rlaunch's output, it
    // must be missing in that of `ssh` too.
    let words = words.chain(["proxyjump", "proxycommand", "bindaddress"].map(str::to_owned));
    let words =
        words.chain(["certificatefile", "identityagent", "hostkeyalias"].map(str::to_owned));
    let words = words.collect();
    (comparable(lines.into_iter().filter(|(key, _)| key != "host"), text), words)
}

#[test]
fn agrees_with_the_real_ssh() {
    if Command::new("ssh").arg("-V").output().is_err() {
        println!("skipped: no ssh");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let part = directory.path().join("part");
    fs::write(&part, "Host b\n Port 77\n User part\nHost *\n ConnectTimeout 8").unwrap();
    let file = directory.path().join("config");
    assert!(TABLE.len() >= 25);
    for text in TABLE {
        fs::write(&file, text.replace("PART", part.to_str().unwrap())).unwrap();
        for alias in ["a", "b", "A"] {
            let (ours, words) = ours(&file, alias, text);
            assert_eq!(ours, theirs(&file, alias, text, &words), "{alias} in\n{text}");
        }
    }
}
