use super::*;
use proptest::prelude::*;

const WHOLE: &str = "\
# a cluster
[defaults]
transport = \"tcp\"
np = 3
kill-after = 0.5
tag-output = true
oob-if = [\"eth0\", \"eth1\"]

[profile.erdma]
hca = \"mlx5\"

[hosts.titanic]
ssh = \"10.0.0.170\"
user = \"nvidia\"
port = 2222
slots = 0x2
mesh = [
  \"192.168.100.2\",
  \"fd00::2\",
]

[hosts.\"a.b\"]
";

fn parsed(text: &str) -> Result<ConfigFile, ConfigError> {
    parse(text, Path::new("rlaunch.toml"))
}

fn error(text: &str) -> String {
    parsed(text).unwrap_err().to_string()
}

#[test]
fn everything_has_its_line() {
    let file = parsed(WHOLE).unwrap();
    let shown = |settings: &[Setting]| {
        settings.iter().map(|s| format!("{} {} {:?}", s.origin, s.key, s.value)).collect::<Vec<_>>()
    };
    let expected = [
        "rlaunch.toml:3 transport Text(\"tcp\")",
        "rlaunch.toml:4 np Text(\"3\")",
        "rlaunch.toml:5 kill-after Text(\"0.5\")",
        "rlaunch.toml:6 tag-output Flag(true)",
        "rlaunch.toml:7 oob-if List([\"eth0\", \"eth1\"])",
    ];
    assert_eq!(shown(&file.defaults), expected);
    assert_eq!(file.profiles[0].0, "erdma");
    assert_eq!(shown(&file.profiles[0].1), ["rlaunch.toml:10 hca Text(\"mlx5\")"]);
    let titanic = &file.hosts[0];
    assert_eq!((titanic.name.as_str(), titanic.line), ("titanic", 12));
    assert_eq!(titanic.ssh.as_deref(), Some("10.0.0.170"));
    assert_eq!((titanic.port, titanic.slots), (Some(2222), Some(2)));
    let mesh = [("192.168.100.2", 18), ("fd00::2", 19)];
    assert_eq!(titanic.fabric_addresses, mesh.map(|(a, line)| (a.parse().unwrap(), line)));
    // Without `hosts = [...]`, the list has all `[hosts.NAME]`, in the order of the file.
    let list = file.host_list.unwrap();
    assert_eq!(list.value, SettingValue::List(vec!["titanic".into(), "a.b".into()]));
    assert_eq!(list.origin.to_string(), "rlaunch.toml:12");
}

#[test]
fn a_list_of_hosts_stands_at_the_top() {
    let list = parsed("hosts = [\"a\", \"b:2\"]\n").unwrap().host_list.unwrap();
    assert_eq!(list.value, SettingValue::List(vec!["a".into(), "b:2".into()]));
    assert_eq!(parsed("[hosts.\"fd00::2\"]\n").unwrap().host_list.unwrap().value, {
        SettingValue::List(vec!["[fd00::2]".into()])
    });
    assert_eq!(parsed("").unwrap(), ConfigFile::default());
}

#[test]
fn mistakes_are_named_with_their_line() {
    assert_eq!(
        error("[hosts.a]\nssh = \"b\"\nslot = 2\n"),
        "rlaunch.toml:3: unknown key `slot`: `slots` exists"
    );
    assert_eq!(
        error("# x\nprofiles = 1\n"),
        "rlaunch.toml:2: unknown key `profiles`: `profile` exists"
    );
    assert_eq!(
        error("transport = \"tcp\"\n"),
        "rlaunch.toml:1: unknown key `transport`: there are defaults, groups, hosts, profile"
    );
    let cases = [
        ("defaults = 1", "rlaunch.toml:1: `defaults` is a table: [defaults]"),
        ("[hosts]\na = 1", "rlaunch.toml:2: `a` is a table: [hosts.a]"),
        ("[hosts.\"-o\"]", "rlaunch.toml:1: \"-o\" is not a name of a host or user"),
        (
            "[hosts.\"u@a\"]",
            "rlaunch.toml:1: `u@a` is not a host name; the key `user` names the user",
        ),
        ("[hosts.a]\nport = 65536", "rlaunch.toml:2: `port` is a number, 1 or more, 65535 at most"),
        ("[hosts.a]\nslots = 0", "rlaunch.toml:2: `slots` is a number, 1 or more"),
        ("[hosts.a]\nssh = 1", "rlaunch.toml:2: `ssh` is a string"),
        ("[hosts.a]\nuser = \"a b\"", "rlaunch.toml:2: \"a b\" is not a name of a host or user"),
        ("[hosts.a]\nuser = \"`id`\"", "rlaunch.toml:2: \"`id`\" is not a name of a host or user"),
        ("[hosts.a]\nssh = \"$(id)\"", "rlaunch.toml:2: \"$(id)\" is not a name of a host or user"),
        ("[hosts.\"a;id\"]", "rlaunch.toml:1: \"a;id\" is not a name of a host or user"),
        (
            "[hosts.a]\nmesh = [\"x\"]",
            "rlaunch.toml:2: `mesh` is a list of addresses, as [\"10.1.0.1\"]",
        ),
        (
            "[groups]\ng = 1979-05-27",
            "rlaunch.toml:2: `g` takes a string, a number, true or false, or a list of strings",
        ),
        ("[groups]\ng = []", "rlaunch.toml:2: `g` is a list of hosts, as [\"a\", \"b:4\"]"),
        ("[groups]\ng = [\"a:x\"]", "rlaunch.toml:2: `g`: `a:x`: `x` is not a number of slots"),
        (
            "[groups]\ng = [\"a\", \"@h\"]",
            "rlaunch.toml:2: `g`: `@h`: a group has hosts, and no other groups",
        ),
        (
            "[groups]\n\"a b\" = \"c\"",
            "rlaunch.toml:2: \"a b\" is not a name of a group: letters, digits and -_.",
        ),
        (
            "[defaults]\n\nnp = 1979-05-27",
            "rlaunch.toml:3: `np` takes a string, a number, true or false, or a list of strings",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(error(text), expected, "{text}");
    }
    // Errors of TOML's own syntax.
    assert!(error("[defaults]\nnp = \n").starts_with("rlaunch.toml:2: "), "{}", error("a = "));
    assert!(error("[defaults]\nnp = 1\nnp = 2").starts_with("rlaunch.toml:3: "));
}

proptest! {
    #[test]
    fn whatever_is_wrong_is_on_a_line_of_the_file(
        at in 0..WHOLE.len(),
        junk in "[\\[\\]=\"'.#a-z0-9\\n -]{0,6}",
    ) {
        let mut text = WHOLE.to_owned();
        text.insert_str(at, &junk);
        if let Err(error) = parsed(&text) {
            let shown = error.to_string();
            let line = shown.strip_prefix("rlaunch.toml:").and_then(|s| s.split(':').next());
            let line: usize = line.unwrap().parse().unwrap();
            prop_assert!((1..=text.lines().count()).contains(&line), "{}", shown);
        }
    }
}
