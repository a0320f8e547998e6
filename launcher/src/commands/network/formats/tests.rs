use super::super::plan::{PlanOptions, plan};
use super::super::testing::{three_hosts, triangle, with_address};
use super::*;
use rlaunch_plan::testing::is_golden;
use std::path::Path;
use std::process::Command;

const FORMATS: [ConfigFormat; 6] = [
    ConfigFormat::Netplan,
    ConfigFormat::Nmcli,
    ConfigFormat::Networkd,
    ConfigFormat::Ifupdown,
    ConfigFormat::Keyfile,
    ConfigFormat::Ip,
];

/// Returns the plan of the guide for three hosts; the last cable of the last host is an IPoIB interface.
fn guide(mtu: Option<u32>) -> (Vec<Surveyed>, MeshPlan) {
    let mut hosts = three_hosts();
    let ib = &mut hosts[2].network.interfaces[2];
    *ib = with_address(ib.clone(), "192.168.102.77/30");
    ib.netdev.kind = NetdevKind::Ipoib;
    let base = "192.168.100.0/22".parse().unwrap();
    let plan =
        plan(&hosts, &triangle(), PlanOptions { base, prefix: 24, mtu, keeps: None }).unwrap();
    (hosts, plan)
}

/// Joins the files of all hosts.
fn all(format: ConfigFormat, mtu: Option<u32>) -> String {
    let (hosts, plan) = guide(mtu);
    let mut text = String::new();
    for (index, host) in hosts.iter().enumerate() {
        for file in format.files(&plan, &hosts, index) {
            let directory = file.directory.map(|directory| format!("{directory}/"));
            let path = format!("{}{}", directory.unwrap_or_default(), file.name);
            let _ = writeln!(text, "=== {}: {path}\n{}", host.name, file.text);
        }
    }
    text
}

#[test]
fn every_format_is_as_agreed() {
    for format in FORMATS {
        let name = format!("{format:?}").to_lowercase();
        is_golden(&format!("network-{name}"), &all(format, Some(9000)));
    }
    assert!(!all(ConfigFormat::Netplan, None).contains("mtu"));
}

/// A bond has a configuration already, whose name is known on its host only.
#[test]
fn the_configuration_of_a_bond_is_kept() {
    let (hosts, mut plan) = guide(Some(9000));
    plan.links[0].ends[0].end.interface = "bond 0".into();
    plan.links[0].ends[0].kind = NetdevKind::Bond;
    let text = |format: ConfigFormat| {
        let files = format.files(&plan, &hosts, 0);
        let text = files.into_iter().find(|file| file.text.contains("bond 0"));
        text.expect("a file about the bond").text
    };
    let script = text(ConfigFormat::Nmcli);
    let lines = "connection=$(nmcli -e no -g GENERAL.CONNECTION device show 'bond 0')\n\
                 nmcli connection modify \"$connection\" ipv4.method manual +ipv4.addresses 192.168.100.2/24\n\
                 nmcli connection up \"$connection\"\n";
    assert!(script.contains(lines), "{script}");
    let mut sh = Command::new("sh");
    assert!(sh.args(["-n", "-c", &script]).status().unwrap().success());
    let file = text(ConfigFormat::Networkd);
    assert!(
        file.contains("\n# put [Link] and [Network] into a drop-in")
            && file.contains("\n[Match]\nName=bond 0\n"),
        "{file}"
    );
    assert!(!all(ConfigFormat::Networkd, None).contains("drop-in"));
}

/// An interface keeps what it has by a file of its own; one that is for others as well is not touched.
#[test]
fn a_file_of_an_interface_is_added_to() {
    let (mut hosts, plan) = guide(Some(9000));
    let mut files = |path: &str, is_for_one| {
        for one in &mut hosts[0].network.interfaces {
            one.network_file = Some(NetworkFile { path: path.to_owned(), is_for_one });
        }
        ConfigFormat::Networkd.files(&plan, &hosts, 0)
    };
    let added = files("/run/systemd/network/50-eth1.network", true);
    assert_eq!(added[0].name, "50-eth1.network.d/rdma-mesh.conf");
    let text = "[Link]\nMTUBytes=9000\n\n[Network]\nAddress=192.168.101.2/24\n";
    assert!(added[0].text.ends_with(text), "{}", added[0].text);
    let own = "10-rdma-mesh-enp1s0f0np0.network";
    assert_eq!(files("/etc/systemd/network/20-wired.network", false)[0].name, own);
    assert_eq!(files(&format!("/etc/systemd/network/{own}"), true)[0].name, own);
}

#[test]
fn the_table_is_that_of_the_guide() {
    let (hosts, plan) = guide(None);
    is_golden("network-table", &table(&plan, &hosts));
}

#[test]
fn odd_names_are_quoted() {
    assert_eq!(yaml_key("enp1s0f0np0"), "enp1s0f0np0");
    for (name, quoted) in [("on", "'on'"), ("1e3", "'1e3'"), ("a'b", "'a''b'"), ("x#y", "'x#y'")] {
        assert_eq!(yaml_key(name), quoted);
    }
}

/// Writes a file as the administrator is to: for root alone. Returns its path.
fn write(directory: &Path, file: &SetupFile) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = directory.join(&file.name);
    std::fs::write(&path, &file.text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    path
}

#[test]
fn scripts_are_shell() {
    let (hosts, plan) = guide(Some(9000));
    let directory = tempfile::tempdir().unwrap();
    for format in [ConfigFormat::Nmcli, ConfigFormat::Ip] {
        for host in 0..hosts.len() {
            for file in format.files(&plan, &hosts, host) {
                let path = write(directory.path(), &file);
                assert!(Command::new("sh").arg("-n").arg(path).status().unwrap().success());
            }
        }
    }
}
