//! Tests of the tables `[hosts.NAME]` and `[groups]`.

use super::file;
use rlaunch_bootstrap::job::InterfaceAddress;
use rlaunch_plan::hosts::Host;
use rlaunch_plan::hosts::host_table::HostTable;
use std::path::Path;

fn table(text: &str) -> HostTable {
    let path = Path::new("rlaunch.toml");
    let file = file::parse(text, path).unwrap();
    HostTable { path: path.into(), entries: file.hosts, groups: file.groups }
}

#[test]
fn hosts_are_dialled_as_the_file_says() {
    let table = table("[hosts.t]\nssh = \"10.0.0.170\"\nuser = \"me\"\nport = 2222\n[hosts.s]\n");
    let way = |entry: &str| {
        let hosts = rlaunch_plan::hosts::parse(&[entry.to_owned()]).unwrap();
        let (host, port) = table.target_of(&hosts[0]);
        (host.to_string(), port)
    };
    assert_eq!(way("t"), ("me@10.0.0.170".to_owned(), Some(2222)));
    assert_eq!(way("you@t"), ("you@10.0.0.170".to_owned(), Some(2222)));
    assert_eq!(way("s"), ("s".to_owned(), None));
    assert_eq!(way("other"), ("other".to_owned(), None));
}

#[test]
fn slots_of_the_file_count_where_none_are_typed() {
    let table = table(
        "[hosts.t]\nslots = 4\n[hosts.\"fd00::2\"]\nslots = 2\n[hosts.s]\n\
                     [hosts.n02]\nslots = 3\n",
    );
    let parsed = |list: &str| {
        let hosts = table.parse_hosts(&[list.to_owned()]).unwrap();
        let shown = |host: &Host| format!("{host} {} {:?}", host.slots, host.slots_by);
        hosts.iter().map(shown).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(parsed("t,me@t,s,x"), "t 4 Given, me@t 4 Given, s 1 One, x 1 One");
    assert_eq!(parsed("t, t,t:1"), "t 9 Given");
    assert_eq!(parsed("[fd00::2],fd00::2,[fd00::2]:1"), "fd00::2 5 Given");
    assert_eq!(parsed("n[01-02,20],t:2"), "n01 1 One, n02 3 Given, n20 1 One, t 2 Given");
    // An error quotes what the user typed.
    let error = table.parse_hosts(&["t,b:two".to_owned()]).unwrap_err().to_string();
    assert_eq!(error, "in -H t,b:two: `b:two`: `two` is not a number of slots");
}

#[test]
fn a_group_stands_for_its_hosts() {
    let table = table(
        "[groups]\ngpu = [\"a\", \"me@b:4\", \"n[1-2]\"]\ncpu = \"c,d\"\n[hosts.a]\nslots = 3\n",
    );
    let parsed = |list: &str| {
        let hosts = table.parse_hosts(&[list.to_owned()]).map_err(|error| error.to_string())?;
        let shown = |host: &Host| format!("{host}:{}", host.slots);
        Ok::<_, String>(hosts.iter().map(shown).collect::<Vec<_>>().join(","))
    };
    assert_eq!(parsed("@gpu").unwrap(), "a:3,me@b:4,n1:1,n2:1");
    assert_eq!(parsed("d:2, @cpu:8,x").unwrap(), "d:10,c:8,x:1");
    let known = "there are @gpu (rlaunch.toml:2), @cpu (rlaunch.toml:3)";
    assert_eq!(parsed("@gpux"), Err(format!("`@gpux` is no group of hosts: {known}")));
    let listed = format!("in -H a,@x: `@x` is no group of hosts: {known}");
    assert_eq!(parsed("a,@x"), Err(listed));
    assert_eq!(parsed("@gpu:no"), Err("`@gpu:no`: `no` is not a number of slots".to_owned()));
    let none = rlaunch_plan::hosts::parse(&["@gpu".to_owned()]).unwrap_err().to_string();
    assert_eq!(none, "`@gpu` is no group of hosts: no configuration file that is read has any");
}

#[test]
fn a_fabric_address_that_is_nowhere_is_said() {
    let table = table("[hosts.t]\nmesh = [\"10.1.0.1\", \"10.1.0.2\"]\n");
    let own = [InterfaceAddress {
        interface: "eth1".into(),
        address: "10.1.0.1".parse().unwrap(),
        prefix: 24,
    }];
    let expected = "t has no address 10.1.0.2, its mesh in rlaunch.toml:2";
    assert_eq!(table.missing_address_warnings("t", &own), [expected]);
    assert!(table.missing_address_warnings("s", &own).is_empty());
    assert_eq!(table.fabric_addresses().len(), 2);
}
