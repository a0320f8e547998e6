//! Lines of the kernel's log that matter to jobs, from the last hour.

use crate::node::inventory::Root;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::time::{ClockId, clock_gettime};
use rlaunch_bootstrap::inventory::diagnostics::LogLine;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

/// Age of the oldest line, in seconds.
const MAX_AGE: u64 = 3600;
/// Maximum number of lines, and maximum length of each in bytes. If there are more, the last ones
/// count.
const MAX_LINES: usize = 200;
const MAX_TEXT: usize = 300;
/// Maximum length of a record (`PRINTK_MESSAGE_MAX`), in bytes.
const MAX_RECORD: usize = 8 << 10;
/// Time limit for reading a log, which may have a million records.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// Rows of words in lower case: a line matters if it has all words of a row.
const WANTED: &[&[&str]] = &[
    // GPUs, NVSwitches, and their links
    &["xid ("],
    &["nvrm", "fallen off the bus"],
    &["nvrm", "mismatch"],
    &["amdgpu", "gpu reset"],
    // PCIe
    &["aer:", "error"],
    &["pcie bus error"],
    &["available pcie bandwidth"],
    &["dmar:", "fault"],
    &["io_page_fault"],
    // NICs
    &["mlx5_core", "error"],
    &["mlx5_core", "fail"],
    &["mlx5_core", "timeout"],
    &["mlx5_core", "cable"],
    &["mlx5_core", "power"],
    &["mlx4_core", "error"],
    &["mlx4_core", "fail"],
    &["mlx4_ib", "fail"],
    &["erdma", "error"],
    &["erdma", "fail"],
    &["irdma", "fail"],
    &["bnxt_re", "fail"],
    &["health compromised"],
    &["assert_var"],
    &["poll_health"],
    &["fatal error"],
    &["fw fatal"],
    &["high temperature"],
    &["transmit queue"],
    &["tx timeout"],
    &["netdev watchdog"],
    // Links
    &["mlx5_core", "link down"],
    &["mlx5_core", "link up"],
    &["mlx4_en", "link down"],
    &["mlx4_en", "link up"],
    &["link is down"],
    &["link is up"],
    &["link status definitely"],
    // Memory
    &["out of memory:"],
    &["memory cgroup out of memory"],
    &["oom-kill:"],
];

pub(super) fn read(root: &Root) -> Option<Vec<LogLine>> {
    let text = root.asked_text("/kernel-log", || {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).ok()?;
        let now = u64::try_from(now.tv_sec()).ok()?;
        let mut log = OpenOptions::new();
        let log = log.read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open("/dev/kmsg").ok()?;
        Some(choose_lines(read_records(log), now))
    })?;
    let line = |line: &str| {
        let (age, text) = line.split_once(' ')?;
        Some(LogLine { age: age.parse().ok()?, text: text.to_owned() })
    };
    Some(text.lines().filter_map(line).collect())
}

/// Reads the records of the log, each by a read of its own.
fn read_records(mut log: File) -> impl Iterator<Item = String> {
    let until = Instant::now() + READ_TIMEOUT;
    let mut buffer = vec![0; MAX_RECORD];
    std::iter::from_fn(move || {
        while Instant::now() < until {
            match log.read(&mut buffer) {
                Ok(length) if length > 0 => {
                    return Some(String::from_utf8_lossy(&buffer[..length]).into_owned());
                }
                // Records were overwritten before they could be read.
                Err(error) if error.raw_os_error() == Some(Errno::EPIPE as i32) => {}
                _ => return None,
            }
        }
        None
    })
}

/// Returns a line `AGE TEXT` for each record that matters.
fn choose_lines(records: impl Iterator<Item = String>, now: u64) -> String {
    let mut lines: Vec<String> = records.filter_map(|record| parse_record(&record, now)).collect();
    let left_out = lines.len().saturating_sub(MAX_LINES);
    lines.drain(..left_out);
    lines.join("\n")
}

/// Reads a record like `6,1234,5678901,-;text`, where the third number is the time since the start
/// in microseconds, and further lines are details.
fn parse_record(record: &str, now: u64) -> Option<String> {
    let (head, text) = record.split_once(';')?;
    let micros: u64 = head.split(',').nth(2)?.parse().ok()?;
    let age = now.saturating_sub(micros / 1_000_000);
    let text = text.lines().next()?.trim();
    let text = &text[..text.floor_char_boundary(MAX_TEXT)];
    (age <= MAX_AGE && matters(text)).then(|| format!("{age} {text}"))
}

fn matters(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    WANTED.iter().any(|words| words.iter().all(|word| text.contains(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_matter_are_chosen() {
        for text in [
            "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.",
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0",
            "mlx5_core 0000:c3:00.0: poll_health:735:(pid 0): Fatal error 1 detected",
            "mlx5_core 0000:c3:00.0 ens1np0: Link down",
            "ixgbe 0000:01:00.0 eth0: NIC Link is Down",
            "Out of memory: Killed process 4711 (python3) total-vm:1kB",
        ] {
            assert_eq!(
                parse_record(&format!("3,7,5000000,-;{text}\n"), 9),
                Some(format!("4 {text}"))
            );
        }
        for text in [
            "ata1: SATA link up 6.0 Gbps (SStatus 133 SControl 300)",
            "IPv6: ADDRCONFIG(NETDEV_CHANGE): eth0: link becomes ready",
            "mlx5_core 0000:c3:00.0: firmware version: 22.31.1014",
            "mlx5_core 0000:c3:00.0: E-Switch: Total vports 2",
        ] {
            assert_eq!(parse_record(&format!("6,7,5000000,-;{text}"), 9), None, "{text}");
        }
    }

    #[test]
    fn old_and_broken_records_are_left_out() {
        let record = "3,7,5000000,-;oom-kill:x\n SUBSYSTEM=x";
        assert_eq!(parse_record(record, 3605), Some("3600 oom-kill:x".to_owned()));
        assert_eq!(parse_record(record, 3606), None);
        for record in ["", ";", "3;oom-kill:", "3,7,x,-;oom-kill:", "3,7,5000000,-"] {
            assert_eq!(parse_record(record, 9), None, "{record}");
        }
        let long = format!("3,7,5,-;oom-kill:{}", "ä".repeat(500));
        assert!(parse_record(&long, 0).unwrap().len() <= MAX_TEXT + 2);
        let many = choose_lines((0..300).map(|n| format!("3,7,{n}000000,-;oom-kill:{n}")), 300);
        let ages: Vec<&str> = many.lines().collect();
        assert_eq!((ages.len(), ages[0], ages[199]), (200, "200 oom-kill:100", "1 oom-kill:299"));
    }
}
