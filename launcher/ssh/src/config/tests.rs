use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;

mod against_ssh;

fn resolve(text: &str, alias: &str) -> HostConfig {
    let config = SshConfig::parse(text, Path::new("/test/config")).unwrap();
    config.resolve(alias).unwrap()
}

fn local() -> Local {
    Local::current()
}

#[test]
fn first_value_wins_per_host() {
    let text = "# comment\n\nUSER=zero\n\
        Host a? !ab \"c d\"\n  Port = 2201 # why\n  IdentityFile /k1\n\
        Host *.example b*\n\tHostName %h.Example\n\tPort 2202\n\
        Host *\n Port 2203\n IdentityFile \"/k 2\"\n IdentityFile /k1\n User late";
    let table = [
        ("aa", "aa", 2201, &["/k1", "/k 2"][..]),
        ("ab", "ab", 2203, &["/k 2", "/k1"]),
        ("Bx", "bx", 2203, &["/k 2", "/k1"]),
        ("bx", "bx.example", 2202, &["/k 2", "/k1"]),
        ("n.example", "n.example.example", 2202, &["/k 2", "/k1"]),
    ];
    for (alias, hostname, port, files) in table {
        let host = resolve(text, alias);
        assert_eq!((host.hostname.as_str(), host.port), (hostname, Some(port)), "{alias}");
        assert_eq!(host.user.as_deref(), Some("zero"));
        assert_eq!(host.identity_files, files.iter().map(PathBuf::from).collect::<Vec<_>>());
    }
}

#[test]
fn nothing_configured() {
    let host = resolve("Nonsense \"unclosed\nMacs x", "Node1");
    let home = local().home;
    assert_eq!(host, HostConfig::new("node1", &home));
    assert_eq!((host.port, host.user.as_ref()), (None, None));
    assert_eq!(host.strict_host_key_checking, StrictHostKeyChecking::AcceptNew);
    assert_eq!(host.user_known_hosts_files[0], home.join(".ssh/known_hosts"));
    assert_eq!(host.identity_files_or_default(&home)[0], home.join(".ssh/id_ed25519"));
    let none = resolve("IdentityFile none", "n");
    assert!(none.identity_files_or_default(&home).is_empty());
}

#[test]
fn typed_values() {
    let host = resolve(
        "ConnectTimeout 1m30\nConnectionAttempts 3\nServerAliveInterval 15\n\
         ServerAliveCountMax 0\nRekeyLimit 1M 2s\nProxyJump u@a:2,ssh://b/,[::1]:3,fe80::1\n\
         ProxyCommand never\nAddressFamily INET6\nBindAddress ::1\nIdentitiesOnly Yes\n\
         IdentityAgent none\nStrictHostKeyChecking off\nUserKnownHostsFile /dev/null\n\
         GlobalKnownHostsFile none\nHostKeyAlias key\nKexAlgorithms -x,y\nCiphers ^z\n\
         HostKeyAlgorithms +q\nPubkeyAcceptedKeyTypes old\nPubkeyAcceptedAlgorithms new\n\
         CertificateFile /c1\nCertificateFile /c2",
        "n",
    );
    let hop = |user: Option<&str>, host: &str, port| JumpHop {
        user: user.map(str::to_owned),
        host: host.into(),
        port,
    };
    let hops = vec![
        hop(Some("u"), "a", Some(2)),
        hop(None, "b", None),
        hop(None, "::1", Some(3)),
        hop(None, "fe80::1", None),
    ];
    let expected = HostConfig {
        hostname: "n".into(),
        connect_timeout: Some(Duration::from_secs(90)),
        connection_attempts: Some(3),
        server_alive_interval: Some(Duration::from_secs(15)),
        server_alive_count_max: Some(0),
        rekey_limit: RekeyLimit { bytes: Some(1 << 20), after: Some(Duration::from_secs(2)) },
        proxy: Proxy::Jump(hops),
        address_family: AddressFamily::Inet6,
        bind_address: Some("::1".into()),
        identities_only: true,
        identity_agent: IdentityAgent::None,
        strict_host_key_checking: StrictHostKeyChecking::No,
        user_known_hosts_files: vec!["/dev/null".into()],
        host_key_alias: Some("key".into()),
        kex_algorithms: Some("-x,y".into()),
        ciphers: Some("^z".into()),
        host_key_algorithms: Some("+q".into()),
        pubkey_accepted_algorithms: Some("old".into()),
        certificate_files: vec!["/c1".into(), "/c2".into()],
        ..HostConfig::default()
    };
    assert_eq!(host, expected);
    assert_eq!(resolve("RekeyLimit default none", "n").rekey_limit, RekeyLimit::default());
    let proxy = resolve("ProxyCommand nc -q \"0\" %h %p # in\nProxyJump x\nPort 7", "N").proxy;
    assert_eq!(proxy, Proxy::Command("nc -q \"0\" n 7 # in".into()));
    assert_eq!(resolve("ProxyCommand none\nProxyJump x", "n").proxy, Proxy::Direct);
}

#[test]
fn tokens_follow_the_final_host() {
    let Local { home, user, uid, hostname } = local();
    let user = user.unwrap_or_else(|| uid.clone());
    let text = "ProxyJump u@gate:7,last\nIdentityFile ~/k/%n-%h-%p-%r-%%-%j\nIdentityFile %d/%u.%i.%l.%L\n\
        IdentityFile ${HOME}/$x\nIdentityAgent %k.sock\nHostName %h.cluster\nPort 2022\nUser me";
    let host = resolve(text, "Node");
    let short = hostname.split('.').next().unwrap();
    let expected = vec![
        home.join("k/Node-node.cluster-2022-me-%-last"),
        home.join(format!("{user}.{uid}.{hostname}.{short}")),
        PathBuf::from(std::env::var("HOME").unwrap()).join("$x"),
    ];
    assert_eq!(host.identity_files, expected);
    assert_eq!(host.identity_agent, IdentityAgent::Socket("Node.sock".into()));
    let config = SshConfig::parse(text, Path::new("c")).unwrap();
    let host = config.resolve_as("Node", Some("cli"), Some(9)).unwrap();
    assert_eq!(host.identity_files[0], home.join("k/Node-node.cluster-9-cli-%-last"));
    assert_eq!((host.user.as_deref(), host.port), (Some("cli"), Some(9)));
}

/// A container that runs under any uid has USER of its image, often root.
#[test]
fn an_account_without_a_name_has_no_login_name() {
    let text = "Match localuser root,1*\n Port 7\nHost b\n User me\nHost *\n IdentityFile /k/%u";
    let mut config = SshConfig::parse(text, Path::new("c")).unwrap();
    (config.local.user, config.local.uid) = (None, "12345".into());
    let host = config.resolve("a").unwrap();
    assert_eq!((host.port, config.user_for(&host)), (None, None));
    assert_eq!(host.identity_files, [PathBuf::from("/k/12345")]);
    assert!(config.show("a", &host).iter().all(|(keyword, _)| *keyword != "user"));
    let host = config.resolve("b").unwrap();
    assert_eq!(config.user_for(&host), Some("me"));
    assert!(config.show("b", &host).contains(&("user", "me".into())));
}

#[test]
fn match_blocks() {
    let text = "Host x\n HostName Gate.Example\n User deep\n\
        Match host gate.* user deep\n Port 1\nMatch !originalhost x,y\n Port 2\n\
        Match tagged y exec true\n Port 3\nMatch host=z* !localnetwork 10.0.0.0/8\n Port 3\n\
        Match originalhost Y,!q\n Port 4\nMatch all\n Port 5";
    let table = [("x", 1), ("other", 2), ("y", 4)];
    for (alias, port) in table {
        assert_eq!(resolve(text, alias).port, Some(port), "{alias}");
    }
    assert_eq!(
        resolve("Match localuser nobody-here\n Port 1\nMatch all\n Port 2", "h").port,
        Some(2)
    );
}

#[test]
fn commands_decide_about_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let text = format!(
        "Match host b exec \"echo not this\"\n Port 1\n\
         Match tagged x exec \"echo nor this >>{0}\"\n Port 2\n\
         Match exec \"echo %n %h %p %r >>{0}\"\n User me\n Port 7\n\
         Match !exec \"test %p = 7\"\n Port 8\nHost a\n HostName %h.Example\n\
         Match final exec=\"echo %n %h %p %r >>{0}\"\n ConnectTimeout 3",
        log.display()
    );
    let config = SshConfig::parse(&text, Path::new("/c")).unwrap();
    assert!(config.runs_commands() && !SshConfig::empty().runs_commands());
    for _ in 0..2 {
        let host = config.resolve_as("a", Some("you"), None).unwrap();
        assert_eq!((host.port, host.user.as_deref()), (Some(7), Some("you")));
        assert_eq!(host.connect_timeout, Some(Duration::from_secs(3)));
    }
    // The command runs once in each of the two passes, because its tokens have different values in them.
    // The second call of `resolve_as` does not run it again.
    let ran = fs::read_to_string(&log).unwrap();
    assert_eq!(ran, "a a 22 you\na a.example 7 you\n");
    let wrong = SshConfig::parse("Port 1\nMatch exec \"echo %x\"", Path::new("/c")).unwrap();
    let error = wrong.resolve("a").unwrap_err().to_string();
    assert!(error.starts_with("/c:2: match: %x cannot be used here"), "{error}");
}

#[test]
fn includes() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("d")).unwrap();
    fs::write(at("d/2.conf"), "Port 2").unwrap();
    fs::create_dir(at("d/3.conf")).unwrap();
    fs::write(at("d/1.conf"), "Host n\n Port 1\nHost *\n User inner").unwrap();
    fs::write(at("d/.3.conf"), "bad\nPort nine").unwrap();
    let glob = at("d/[0-9]*.conf");
    let text = format!("Host n m\nInclude {} /missing\nUser outer", glob.display());
    fs::write(at("main"), text).unwrap();
    let config = SshConfig::load(&[at("none"), at("main")]).unwrap();
    let seen = |alias| {
        let host = config.resolve(alias).unwrap();
        (host.port, host.user)
    };
    assert_eq!(seen("n"), (Some(1), Some("inner".into())));
    assert_eq!(seen("m"), (Some(2), Some("inner".into())));
    assert_eq!(seen("o"), (None, None));

    fs::write(at("loop"), format!("\nInclude {0}\nInclude {0}", at("loop").display())).unwrap();
    let error = SshConfig::load(&[at("loop")]).unwrap_err();
    assert!(error.to_string().contains("loop:2: include: files include each other"), "{error}");
    let error = SshConfig::load(&[at("d")]).unwrap_err();
    assert!(error.to_string().starts_with("read ssh configuration"), "{error}");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "it is a directory, and no file");
}

#[test]
fn bad_values_name_their_line() {
    let table = [
        ("Port 0", "port: `0` is not a port"),
        ("Port 22 x", "port: `x` is an extra value"),
        ("Port", "port: the value is missing"),
        ("User \"\"", "user: the value is missing"),
        ("User \"a", "user: a quote is not closed"),
        ("ConnectTimeout 1x", "connecttimeout: `1x` is not a time"),
        ("ConnectTimeout 99999999999", "not a time"),
        ("ServerAliveInterval -1", "not a time"),
        ("RekeyLimit 5", "too few"),
        ("RekeyLimit 99999999999G", "not a size"),
        ("RekeyLimit 1G 2s x", "at most one time"),
        ("StrictHostKeyChecking maybe", "none of yes"),
        ("IdentitiesOnly 1", "neither yes nor no"),
        ("ConnectionAttempts 0", "a number from 1 up"),
        ("AddressFamily ipx", "none of any"),
        ("UserKnownHostsFile none /x", "other files"),
        ("IdentityFile ~no-such-user-here/x", "there is no user"),
        ("Match", "missing"),
        ("Match host", "needs a pattern"),
        ("Match final exec", "exec needs a command"),
        ("HostName %x", "%x cannot be used here"),
        ("IdentityFile /%Z", "%Z cannot be used here"),
        ("IdentityFile /%", "at the end"),
        ("IdentityFile ${NO_SUCH_VARIABLE_1}", "is not set"),
        ("ProxyJump a,,b", "is not a host"),
        ("ProxyJump a:b", "is not a port"),
        ("ProxyCommand", "no command"),
    ];
    for (text, expected) in table {
        let text = format!("# one\n{text}");
        let parsed = SshConfig::parse(&text, Path::new("/c"));
        let error = parsed.and_then(|config| config.resolve("n")).unwrap_err();
        let shown = error.to_string();
        assert!(shown.starts_with("/c:2: ") && shown.contains(expected), "{text}: {shown}");
        assert!(error.hint().is_some());
    }
    // Blocks for other hosts are checked as well.
    assert!(SshConfig::parse("Host other\nPort x", Path::new("c")).is_err());
}

#[test]
fn connections_have_short_names() {
    let config = "IdentityAgent /run/%C.sock\nHostName h\nPort 2022\nUser me";
    let IdentityAgent::Socket(socket) = resolve(config, "n").identity_agent else { panic!() };
    let plain = format!("{}h2022me", local().hostname);
    let hash = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, plain.as_bytes());
    let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(socket, PathBuf::from(format!("/run/{hash}.sock")));
}

#[test]
fn what_was_read_and_what_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let (main, part) = (directory.path().join("main"), directory.path().join("part"));
    fs::write(&part, "Match localnetwork \"10.0.0.0/8\" user me\n Port 2").unwrap();
    fs::write(&main, format!("Include {}\nMatch tagged\n Port 3", part.display())).unwrap();
    let config = SshConfig::load(&[main.clone(), "/missing".into()]).unwrap();
    assert_eq!(config.files(), [main.clone(), part.clone()]);
    let notes = config.notes();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].starts_with(&format!("{}:1: ", part.display())), "{notes:?}");
    assert!(notes[0].contains("`match localnetwork \"10.0.0.0/8\" user me`"), "{notes:?}");
    assert!(notes[1].starts_with(&format!("{}:2: ", main.display())), "{notes:?}");
    assert_eq!(config.resolve("a").unwrap().port, None);
}

#[test]
fn endless_files_are_refused() {
    let cause = |path: PathBuf| {
        let error = SshConfig::load(&[path]).unwrap_err();
        std::error::Error::source(&error).unwrap().to_string()
    };
    assert_eq!(cause("/dev/zero".into()), "it is a device, and no file");
    let directory = tempfile::tempdir().unwrap();
    let long = directory.path().join("long");
    fs::File::create(&long).unwrap().set_len((4 << 20) + 1).unwrap();
    assert!(cause(long).contains("4 MiB"));
    let file = directory.path().join("twice");
    let itself = file.display();
    fs::write(&file, format!("Include {itself} {itself}")).unwrap();
    assert!(SshConfig::load(&[file]).is_err());
}

#[test]
fn files_that_others_may_write_are_refused_as_by_ssh() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(".ssh").join(name);
    fs::create_dir(home.path().join(".ssh")).unwrap();
    let write = |name: &str, text: &str, mode| {
        fs::write(at(name), text).unwrap();
        fs::set_permissions(at(name), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    let load = |named: Option<&str>| {
        let named = named.map(at);
        SshConfig::load_for_user(named.as_deref(), home.path()).map(drop)
    };
    let refused = |named: Option<&str>, name: &str| {
        let error = load(named).unwrap_err();
        let begin = format!("bad owner or permissions on {}: ", at(name).display());
        assert!(error.to_string().starts_with(&begin), "{error}");
        assert!(error.hint().unwrap().contains("chmod go-w"), "{error:?}");
    };
    write("part", "Port 7", 0o644);
    write("config", &format!("Include {}", at("part").display()), 0o644);
    load(None).unwrap();
    for mode in [0o666, 0o664, 0o646] {
        write("config", "ProxyCommand id", mode);
        refused(None, "config");
        load(Some("config")).unwrap();
    }
    // As in ssh(1), the permissions of an included file are checked even if those of the including file are
    // not.
    write("config", &format!("Include {}", at("part").display()), 0o600);
    write("part", "Port 7", 0o666);
    refused(None, "part");
    refused(Some("config"), "part");
    let ssh = std::process::Command::new("ssh").arg("-GF").arg(at("config")).arg("a").output();
    if let Ok(ssh) = ssh {
        let said = String::from_utf8_lossy(&ssh.stderr).into_owned();
        assert!(said.contains("Bad owner or permissions on"), "{said}");
    }
}

#[test]
fn names_of_jump_hosts_run_nothing() {
    for (jump, alias) in [("`id`", "n"), ("me;id@a", "n"), ("a,$(id)", "n"), ("gate-%n", "a;id")] {
        let parsed = SshConfig::parse(&format!("ProxyJump {jump}"), Path::new("/c"));
        let error = parsed.and_then(|config| config.resolve(alias)).unwrap_err().to_string();
        let means = "has a character that means something to a shell";
        assert!(error.starts_with("/c:1: proxyjump: ") && error.ends_with(means), "{error}");
    }
}
