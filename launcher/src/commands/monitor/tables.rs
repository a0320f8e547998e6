//! Activity as text: a line about the job, tables of hosts with their ports, of GPUs and of ranks.

use super::sample::{Activity, HostActivity, PortActivity, RankActivity, Rate};
use crate::commands::jobs::{duration, percent, program, short_id};
use rlaunch_bootstrap::inventory::traffic::GpuUsage;
use rlaunch_engine::run::live::messages::JobStatus;
use rlaunch_text::columns::{lay_out, row};

/// Describes the job in two lines; empty for hosts without one.
pub(super) fn describe_job(job: &JobStatus) -> String {
    let running = job.ranks_started.saturating_sub(job.ranks_ended);
    let output = job.last_output.map_or("no output yet".to_owned(), |output| {
        let ago = duration(output.seconds_ago);
        format!("last output {ago} ago by rank {}", output.rank)
    });
    let (name, id, age) = (&job.name, short_id(&job.job), duration(job.seconds));
    let phase = job.phase.word();
    format!(
        "job {name} ({id})  {phase} for {age}  {running} of {} ranks run  {output}\n{}\n",
        job.ranks,
        program(&job.program)
    )
}

/// Lists hosts, each with its ports below it. Interfaces without traffic are left out. GPUs follow in
/// a table of their own.
pub(super) fn hosts(activity: &Activity<'_>) -> String {
    let header = row(["HOST", "CPUS", "MEMORY", "PORT", "RECEIVED", "", "", "SENT", "", ""]);
    let mut rows = vec![header];
    for host in &activity.hosts {
        let shown = |port: &&PortActivity| {
            port.is_rdma || !(port.received.is_idle() && port.sent.is_idle())
        };
        let mut ports = host.ports.iter().filter(shown).map(port_cells);
        let first = ports.next().unwrap_or_default();
        rows.push(host_cells(host).into_iter().chain(first).collect());
        // The host's own columns are empty below its first port.
        rows.extend(ports.map(|port| vec![String::new(); 3].into_iter().chain(port).collect()));
    }
    lay_out(&rows) + &gpus(activity)
}

/// Lists GPUs below an empty line; empty if no host has one.
fn gpus(activity: &Activity<'_>) -> String {
    let header = row(["HOST", "GPU", "USE", "MEMORY", "POWER", "TEMPERATURE"]);
    let cells = |host: &str, gpu: &GpuUsage| {
        std::iter::once(host.to_owned()).chain(gpu_cells(gpu)).collect::<Vec<_>>()
    };
    let hosts = activity.hosts.iter();
    let rows = hosts.flat_map(|host| host.gpus.iter().map(|gpu| cells(host.host, gpu)));
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    format!("\n{}", lay_out(&std::iter::once(header).chain(rows).collect::<Vec<_>>()))
}

/// Lists ranks. The line after the header is the first rank's.
pub(super) fn ranks(ranks: &[RankActivity<'_>]) -> String {
    let header = row(["RANK", "HOST", "CPU", "WAITING", "SPEED", "MEMORY", "PROCESSES", "STATE"]);
    let rows = ranks.iter().map(|rank| rank_cells(rank).to_vec());
    lay_out(&std::iter::once(header).chain(rows).collect::<Vec<_>>())
}

/// Returns rank, host, CPU, share of waiting, speed, memory, number of processes and state.
pub(super) fn rank_cells(rank: &RankActivity<'_>) -> [String; 8] {
    let RankActivity { host, usage, cpus, waiting, speed } = rank;
    [
        usage.rank.to_string(),
        (*host).to_owned(),
        cpus.map(|cpus| percent(cpus, 1.0)).unwrap_or_default(),
        waiting.map(|share| percent(share, 1.0)).unwrap_or_default(),
        speed.map(|speed| format!("{} {}", speed.value, speed.unit)).unwrap_or_default(),
        bytes(usage.resident as f64),
        usage.processes.to_string(),
        state(usage.state).to_owned(),
    ]
}

/// Returns index, use, memory, power and temperature.
pub(super) fn gpu_cells(gpu: &GpuUsage) -> [String; 5] {
    let memory = gpu.memory_used.zip(gpu.memory);
    [
        gpu.index.to_string(),
        gpu.busy_percent.map(|share| format!("{share} %")).unwrap_or_default(),
        memory.map(|(used, all)| part_of(used, all)).unwrap_or_default(),
        gpu.power_mw.map(|power| format!("{:.0} W", power as f64 / 1e3)).unwrap_or_default(),
        gpu.temperature.map(|degrees| format!("{degrees} °C")).unwrap_or_default(),
    ]
}

/// Returns host, CPUs and memory.
pub(super) fn host_cells(host: &HostActivity<'_>) -> [String; 3] {
    let cpus = match (host.answers, host.busy_cpus, host.cpus) {
        (false, ..) if host.has_ended => "ended".to_owned(),
        (false, ..) => "no answer".to_owned(),
        (true, Some(busy), Some(cpus)) => format!("{busy:.1} of {cpus}"),
        (true, None, Some(cpus)) => format!("of {cpus}"),
        (true, _, None) => String::new(),
    };
    let memory = host.memory_used.zip(host.memory);
    let memory = memory.map(|(used, all)| part_of(used, all));
    [host.host.to_owned(), cpus, memory.unwrap_or_default()]
}

fn port_cells(port: &PortActivity) -> Vec<String> {
    let mut cells = vec![port.name.clone()];
    cells.extend(rate_cells(port.received));
    cells.extend(rate_cells(port.sent));
    cells
}

/// Returns bytes per second, packets per second and bytes per packet.
pub(super) fn rate_cells(rate: Rate) -> [String; 3] {
    [
        rate.bytes.map(|rate| format!("{}/s", bytes(rate))).unwrap_or_default(),
        rate.packets.map(|rate| format!("{rate:.0} packets/s")).unwrap_or_default(),
        rate.bytes_per_packet().map(|size| format!("{size:.0} B/packet")).unwrap_or_default(),
    ]
}

/// Formats how many bytes of all bytes are in use.
fn part_of(used: u64, all: u64) -> String {
    format!("{} of {}", bytes(used as f64), bytes(all as f64))
}

/// Formats a number of bytes with three or four digits.
fn bytes(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$} {}", units[unit])
}

/// Returns the word for a state letter of a process, as in proc_pid_stat(5).
fn state(letter: char) -> &'static str {
    match letter {
        'R' => "runs",
        'S' | 'I' => "sleeps",
        'D' => "waits for a device",
        'T' | 't' => "stopped",
        'Z' | 'X' => "has ended",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::{job, samples};
    use super::*;

    #[test]
    fn a_port_shows_bytes_packets_and_bytes_per_packet() {
        let [before, now] = samples();
        let text = hosts(&now.since(&before));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 7, "{text}");
        for word in [
            "a ", "3.0 of 4", "2.0 GiB of 8.0 GiB", "erdma_0/1", "1.3 MiB/s", "1000 packets/s",
            "1413 B/packet",
        ] {
            assert!(lines[1].contains(word), "{word} in {text}");
        }
        assert!(lines[2].trim_start().starts_with("rxe0/1"), "{text}");
        assert_eq!(lines[3].trim_end(), "b     no answer");
        let mut ended = now.clone();
        ended.hosts[1].has_ended = true;
        assert!(hosts(&ended.since(&before)).contains("\nb     ended\n"));
        let gpu: Vec<&str> = lines[6].split_whitespace().collect();
        assert_eq!(gpu.join(" "), "a 1 97 % 70.0 GiB of 80.0 GiB 612 W");
    }

    #[test]
    fn a_rank_is_a_line() {
        let [before, mut now] = samples();
        now.job = Some(job());
        let text = ranks(&now.since(&before).ranks);
        let lines = text.lines().skip(1);
        let lines: Vec<String> =
            lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines,
            ["0 a 150 % 75 % 1.0 GiB 2 runs", "1 a 100 % 50 % 812.5 images/s 1.0 GiB 2 runs"]
        );
    }

    #[test]
    fn bytes_have_few_digits() {
        let texts = [0.0, 999.0, 1000.0, 1023.0 * 1024.0, 5e12].map(bytes);
        assert_eq!(texts, ["0 B", "999 B", "1.0 KiB", "1.0 MiB", "4.5 TiB"]);
    }
}
