use super::super::testing::{Machine, line, lines, with_cluster};
use super::*;

fn found(machines: &[Machine]) -> Vec<String> {
    CHECKS.iter().flat_map(|check| lines(check.examine, machines)).collect()
}

fn three(name: &str, change: impl FnOnce(&mut Inventory)) -> [Machine; 3] {
    [Machine::recorded(name), Machine::recorded(name), Machine::recorded(name).change(change)]
}

const ALIKE: &str = "hosts of one cluster are usually alike";

#[test]
fn alike_hosts_are_not_odd() {
    for name in ["connectx3", "dgx", "spark", "sriov", "bond", "esxi-vm", "no-rdma", "siw", "rxe"] {
        let alike = found(&three(name, |_| ()));
        assert!(alike.is_empty(), "{name}: {alike:?}");
        assert!(found(&[Machine::recorded(name)]).is_empty());
    }
}

#[test]
fn the_firmware_of_one_model_is_compared() {
    let machines =
        three("bond", |inventory| inventory.rdma[0].firmware = Some("22.31.1014".into()));
    let odd = found(&machines);
    assert_eq!(odd.len(), 1, "{odd:?}");
    assert!(odd[0].starts_with("warn odd.firmware c: firmware of 15b3:"), "{odd:?}");
    assert!(odd[0].contains(" 22.31.1014 where a, b have 22.39.2048 — "), "{odd:?}");
    // Two hosts have no majority.
    let tie = found(&machines[1..]);
    assert_eq!(tie.len(), 1, "{tie:?}");
    assert!(tie[0].starts_with("note odd.firmware a,b: firmware of 15b3:"), "{tie:?}");
    assert!(tie[0].contains("22.39.2048 on a, 22.31.1014 on b"), "{tie:?}");
    // Another model has its own firmware.
    let [one, two, other] = machines;
    let other = other.change(|inventory| {
        inventory.rdma[0].pci.as_mut().unwrap().device = Some(0x1021);
    });
    assert!(found(&[one, two, other]).is_empty());
}

#[test]
fn versions_that_differ() {
    let odd = |name: &str, change: fn(&mut Inventory)| {
        let mut odd = found(&three(name, change));
        assert_eq!(odd.len(), 1, "{odd:?}");
        odd.remove(0)
    };
    assert_eq!(
        odd("no-rdma", |inventory| inventory.system.kernel = Some("6.1.0".into())),
        format!("note odd.kernel c: kernel 6.1.0 where a, b have 4.19.0-27-amd64 — {ALIKE}")
    );
    assert_eq!(
        odd("dgx", |inventory| inventory.system.drivers[0].1 = "550.1".into()),
        format!("note odd.driver c: driver nvidia 550.1 where a, b have 535.183.01 — {ALIKE}")
    );
    assert_eq!(
        odd("dgx", |inventory| inventory.gpus.truncate(7)).split(" — ").next().unwrap(),
        "note odd.hardware c: GPUs 7 of 10de:2330 where a, b have 8 of 10de:2330"
    );
    let rate = odd("bond", |inventory| {
        inventory.rdma[0].ports[0].rate = Some("25 Gb/sec (1X EDR)".into());
    });
    assert!(rate.starts_with("warn odd.rate c: rate of 15b3:"), "{rate}");
    assert!(rate.contains(" 25 Gb/sec (1X EDR) where a, b have "), "{rate}");
    let width = odd("connectx3", |inventory| {
        let links = &mut inventory.rdma[0].pci.as_mut().unwrap().links;
        links[0].current.as_mut().unwrap().width = 1;
    });
    assert!(width.starts_with("note odd.pcie c: PCIe width of 15b3:"), "{width}");
    assert!(width.contains(" x1 where a, b have x"), "{width}");
}

#[test]
fn libraries_that_differ() {
    let with = |nccl: &str, verbs: &str| {
        let libraries = vec![("libnccl".into(), nccl.into()), ("libibverbs".into(), verbs.into())];
        Machine::recorded("no-rdma").change(|inventory| inventory.system.libraries = libraries)
    };
    let machines = [with("2.27.3", "1.14"), with("2.27.3", "1.14"), with("2.30.7", "1.15")];
    assert_eq!(
        found(&machines),
        [
            format!("note odd.library c: libibverbs 1.15 where a, b have 1.14 — {ALIKE}"),
            "warn odd.library c: NCCL 2.30.7 where a, b have 2.27.3 — ranks with different versions \
             of NCCL cannot connect"
                .to_owned()
        ]
    );
}

#[test]
fn python_packages_that_differ() {
    let with = |torch: &str| {
        let python = vec![("python".into(), "3.12.3".into()), ("torch".into(), torch.into())];
        Machine::recorded("no-rdma").diagnosed(|state| state.python = python)
    };
    let machines = [with("2.9.0"), with("2.9.0"), with("2.8.0"), Machine::recorded("no-rdma")];
    assert_eq!(
        found(&machines),
        [
            "warn odd.python c: torch 2.8.0 where a, b have 2.9.0 — ranks with different versions may \
          hang or compute different results"
        ]
    );
}

#[test]
fn memory_that_is_missing_or_taken() {
    let machines = three("dgx", |inventory| inventory.numa_nodes[0].memory = Some(700 << 30));
    let odd = found(&machines);
    assert_eq!(odd.len(), 1, "{odd:?}");
    assert!(
        odd[0].starts_with("note odd.memory c: 1708.0 GiB of memory where a, b have 2016.0"),
        "{odd:?}"
    );
    let left = |gib: u64| {
        Machine::recorded("dgx").diagnosed(|state| state.memory_available = Some(gib << 30))
    };
    assert_eq!(
        found(&[left(1900), left(1700), left(300)]),
        [
            "note odd.memory c: 300.0 GiB of memory left where b, a have 1700.0 GiB — equal ranks need \
          equal memory"
        ]
    );
    assert!(found(&[left(1900), left(1000)]).is_empty());
}

fn clocks(offsets: &[(i64, u64)]) -> Vec<String> {
    let machines = vec![Machine::recorded("no-rdma"); offsets.len()];
    with_cluster(&machines, |cluster| {
        let mut cluster = cluster;
        for (host, offset) in cluster.hosts.iter_mut().zip(offsets) {
            host.clock_offset = Some(*offset);
        }
        clock(&cluster).iter().map(line).collect()
    })
}

#[test]
fn clocks_that_are_apart() {
    const SECOND: i64 = 1_000_000;
    const WHY: &str = "logs, checkpoints and certificates depend on the time";
    let warning = |rest: &str| format!("warn clock.offset {rest} — {WHY}");
    assert_eq!(
        clocks(&[(0, 9), (5, 9), (-90 * SECOND, 0)]),
        [warning("c: its clock is 1 min behind the other clocks")]
    );
    // All hosts agree, and only the clock here differs.
    assert!(clocks(&[(9 * SECOND, 5), (9 * SECOND, 5), (9 * SECOND + 200_000, 5)]).is_empty());
    assert_eq!(
        clocks(&[(3 * SECOND, 0), (0, 0)]),
        [warning("a: its clock is 3.0 s ahead of the other clocks")]
    );
    // The question took too long for a verdict.
    assert!(clocks(&[(3 * SECOND, 2_500_000), (0, 0)]).is_empty());
    assert_eq!(
        clocks(&[(2 * SECOND, 0)]),
        [format!("note clock.offset a: its clock is 2.0 s ahead of the clock here — {WHY}")]
    );
    assert!(clocks(&[(SECOND, 0)]).is_empty());
}
