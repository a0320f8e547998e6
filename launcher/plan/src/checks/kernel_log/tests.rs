use super::super::testing::{Machine, line, with_cluster};
use super::*;

/// Runs all checks of the log on a host whose log has these lines, the first of them newest.
fn found(recorded: &str, log: &[&str]) -> Vec<String> {
    let log_line =
        |(at, text): (usize, &&str)| LogLine { age: 90 + 60 * at as u32, text: (*text).into() };
    let log = log.iter().enumerate().map(log_line).collect();
    let machine = Machine::recorded(recorded).diagnosed(|state| state.kernel_log = Some(log));
    with_cluster(&[machine], |cluster| {
        CHECKS.iter().flat_map(|check| (check.examine)(&cluster)).map(|f| line(&f)).collect()
    })
}

#[test]
fn a_quiet_log() {
    assert!(found("dgx", &[]).is_empty());
    let usual = [
        "mlx5_core 0000:15:00.0: firmware version: 28.39.1002",
        "mlx5_core 0000:15:00.0: Port module event: module 0, Cable plugged",
        "mlx5_core 0000:15:00.0 enp21s0np0: Link down",
        "mlx5_core 0000:15:00.0 enp21s0np0: Link up",
        "pcieport 0000:00:01.0: AER: enabled with IRQ 30",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.183.01",
        "EXT4-fs error (device sda1): fatal error",
    ];
    assert_eq!(found("dgx", &usual), Vec::<String>::new());
}

#[test]
fn errors_of_gpus() {
    let xid =
        |number: u32| format!("NVRM: Xid (PCI:0000:3b:00): {number}, pid='<unknown>', name=x");
    let first = |number| found("dgx", &[&xid(number)]).remove(0);
    assert_eq!(
        first(79),
        "error log.xid a 0000:3b:00.0: Xid 79 (GPU has fallen off the bus), 1 min ago — this GPU \
         cannot be trusted"
    );
    for number in [48, 64, 74, 95, 119, 120] {
        assert!(first(number).starts_with("error log.xid"), "{number}");
    }
    for number in [63, 94] {
        assert!(first(number).starts_with("warn log.xid"), "{number}");
    }
    for number in [13, 31, 43, 45, 109] {
        assert!(first(number).starts_with("note log.xid"), "{number}");
    }
    let often = found("dgx", &[&xid(31), &xid(31), &xid(31)]);
    assert_eq!(often.len(), 1);
    assert!(often[0].contains("3 times, the last one 1 min ago"), "{often:?}");
}

#[test]
fn errors_of_pcie() {
    let corrected = [
        "pcieport 0000:00:01.0: AER: Corrected error message received from 0000:15:00.0",
        "mlx5_core 0000:15:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    ];
    assert_eq!(
        found("dgx", &corrected),
        [
            "note log.aer a 0000:15:00.0: corrected PCIe errors, 2 times, the last one 1 min ago — they \
          were repaired; many of them cost speed"
        ]
    );
    let severe =
        "mlx5_core 0000:15:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Data Link";
    let severe = found("dgx", &[severe]);
    assert_eq!(severe.len(), 1, "{severe:?}");
    assert!(severe[0].starts_with("error log.aer a 0000:15:00.0: uncorrected"), "{severe:?}");
}

#[test]
fn failures_of_cards() {
    let health = [
        "mlx5_core 0000:15:00.0: device's health compromised - reached miss count",
        "mlx5_core 0000:15:00.0: print_health_info:424:(pid 0): assert_var[0] 0xfc3fc043",
    ];
    let failed = found("dgx", &health);
    assert!(failed.iter().all(|line| line.starts_with("error log.nic a 0000:15:00.0: ")));
    assert_eq!(failed.len(), 2, "{failed:?}");
    assert_eq!(
        found("dgx", &["NETDEV WATCHDOG: enp21s0np0 (mlx5_core): transmit queue 3 timed out"]),
        [
            "warn log.nic a enp21s0np0: a transmit queue timed out, 1 min ago — packets are lost or late"
        ]
    );
}

#[test]
fn links_that_go_down_again_and_again() {
    let down = "mlx5_core 0000:15:00.0 enp21s0np0: Link down";
    let log = [down, "mlx5_core 0000:15:00.0 enp21s0np0: Link up", down];
    assert_eq!(
        found("dgx", &log),
        [
            "warn log.link a enp21s0np0: its link went down 2 times, the last one 1 min ago — packets \
          are lost until it is up again, and RDMA gives up"
        ]
    );
    assert!(found("dgx", &[down]).is_empty());
    assert!(found("dgx", &["veth9: Link down", "veth9: Link down"]).is_empty());
}

#[test]
fn processes_that_were_killed() {
    let killed = "Memory cgroup out of memory: Killed process 71 (python3) total-vm:99kB";
    assert_eq!(
        found("no-rdma", &[killed]),
        [
            "note log.oom a: the kernel killed python3 for lack of memory, 1 min ago — ranks on this \
          host may run out of memory, too"
        ]
    );
}
