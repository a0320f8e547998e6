use super::*;
use crate::checks::FoldedFinding;
use crate::findings::id;

#[test]
fn every_id_has_the_class_that_users_are_told() {
    let of = |wanted: fn(Class) -> bool| {
        let ids = id::ALL.iter().filter(|id| wanted(class(**id)));
        ids.map(|id| id.as_str()).collect::<Vec<_>>().join(" ")
    };
    let safe = "ssh.perms net.arp net.udp-drops net.reserved dev.module dev.uverbs dev.rdma-cm link.down roce.cm-mode \
                mtu.mismatch mesh.duplicate erdma.mtu gpu.peermem gpu.driver lim.memlock lim.shm lim.maps lim.files \
                clock.offset";
    assert_eq!(of(|class| class == Class::Safe), safe);
    let asked = "ssh.auth net.name fw.ports fw.roce dev.library dev.provider ib.no-sm roce.ecn mtu.rdma mtu.path \
                 erdma.standard erdma.mixed";
    assert_eq!(of(|class| matches!(class, Class::Asked(_))), asked);
    let by_mesh = "roce.gid-empty roce.no-v2 roce.link-local mesh.subnet";
    assert_eq!(of(|class| class == Class::ByMesh), by_mesh);
    let never = "ssh.hostkey fw.ephemeral gpu.acs";
    assert_eq!(of(|class| matches!(class, Class::Never(_))), never);
    let count = |words: &str| words.split(' ').count();
    let classed = count(safe) + count(asked) + count(by_mesh) + count(never);
    assert_eq!(count(&of(|class| class == Class::Printed)), id::ALL.len() - classed);
}

fn finding(id: CheckId, host: &str, fixes: &[Fix]) -> Finding {
    let found = Finding::warning(id, host, "seen", "matters");
    fixes.iter().cloned().fold(found, Finding::fixed_by)
}

fn alone(finding: Finding) -> FoldedFinding {
    FoldedFinding { finding, consequences: Vec::new() }
}

fn ids(planned: &[PlannedFix]) -> Vec<&'static str> {
    planned.iter().map(|fix| fix.id().as_str()).collect()
}

#[test]
fn only_what_rlaunch_may_fix_is_planned() {
    let arp = || Fix::sysctl("arp", &[("net.ipv4.conf.all.arp_ignore", "1")]);
    let found = [
        alone(finding(id::NET_ARP, "a", &[arp()])),
        alone(finding(id::GPU_ACS, "a", &[Fix::module("x")])),
        alone(finding(id::FW_ROCE, "b", &[Fix::module("y")])),
        // A finding that rlaunch may fix, and has no means for here.
        alone(finding(id::LINK_DOWN, "a", &[])),
    ];
    assert_eq!(ids(&plan(&found, &[])), ["net.arp", "fw.roce"]);
    assert_eq!(ids(&plan(&found, &[id::FW_ROCE])), ["fw.roce"]);
}

#[test]
fn a_consequence_waits_for_its_cause() {
    let with = |cause: Finding| FoldedFinding {
        finding: cause,
        consequences: vec![finding(id::NET_ARP, "a", &[Fix::module("x")])],
    };
    let fixable = with(finding(id::MESH_DUPLICATE, "a", &[Fix::module("y")]));
    assert_eq!(ids(&plan(&[fixable], &[])), ["mesh.duplicate"]);
    let other = with(finding(id::MESH_CABLING, "a", &[]));
    assert_eq!(ids(&plan(&[other], &[])), ["net.arp"]);
}

#[test]
fn one_subnet_manager_is_started_for_all_hosts() {
    let manager = || Fix::subnet_manager(None).on("b");
    let found = ["a", "b"].map(|host| alone(finding(id::IB_NO_SM, host, &[manager()])));
    let planned = plan(&found, &[]);
    assert_eq!(planned.len(), 1);
    let hosts: Vec<String> = planned[0].changes().into_iter().map(|(host, _)| host).collect();
    assert_eq!(hosts, ["b"]);
}

#[test]
fn a_script_has_a_part_for_each_host() {
    let mut two = finding(id::MTU_MISMATCH, "a", &[Fix::mtu("eth1", 9000)]);
    two.hosts.push("b".into());
    let found = [
        alone(finding(id::SSH_PERMS, "", &[Fix::here("chmod 600 /k".into())])),
        alone(two),
        alone(finding(id::LINK_DOWN, "b", &[Fix::interface_up("eth2")])),
        alone(finding(id::SSH_AUTH, "c", &[Fix::install_key()])),
    ];
    let expected = "\
# here
# ssh.perms
chmod 600 /k
# ssh.auth
rlaunch ssh-setup -H c
# on a, as root
# mtu.mismatch
ip link set dev eth1 mtu 9000
# on b, as root
# mtu.mismatch
ip link set dev eth1 mtu 9000
# link.down
ip link set dev eth2 up
";
    assert_eq!(script(&plan(&found, &[])), expected);
}
