//! Matrices and conclusions as text.

use super::super::Unit;
use super::report::{MeshReport, PairLimit, pairs, quantile};
use rlaunch_plan::limit::HEALTHY;
use rlaunch_plot::heat_map::HeatMap;
use std::fmt::Write;

/// Maximum number of hosts that are shown as matrices.
const MATRIX: usize = 16;
/// Number of the slowest pairs that are shown for more hosts.
const SLOWEST_SHOWN: usize = 5;
/// Maximum number of slow hosts and links that are shown, and of pairs that have become slower.
const SLOWER_SHOWN: usize = 10;
/// Ratio of the highest to the lowest rate up to which no host is named as the slowest.
const LEVEL: f64 = 1.05;
/// Minimum width of a column.
const COLUMN: usize = 9;

/// Returns the report as text, with a newline after each line.
pub(super) fn report(report: &MeshReport, unit: Unit) -> String {
    let (hosts, size) = (report.hosts.len(), report.matrix.bytes);
    let mut text = format!("# mesh: {}; each pair by itself\n", title(report));
    if hosts <= MATRIX {
        let title = format!("bandwidth of messages of {size} bytes in {unit}, row to column");
        let speed = |a: usize, b: usize| unit.convert(report.matrix.megabits[a][b] / 8e3);
        text += &matrix(report, &title, speed);
        let title = "latency in us: half of a round trip of 8 bytes";
        text += &matrix(report, title, |a, b| report.matrix.latency_us[a][b]);
    } else {
        text += &summary(report, unit);
    }
    for line in conclusions(report, unit) {
        // Writing to a String does not fail.
        let _ = writeln!(text, "# {line}");
    }
    text
}

/// Returns the number of hosts and their transports, as `3 hosts over RDMA`.
pub(super) fn title(report: &MeshReport) -> String {
    format!("{} hosts over {}", report.hosts.len(), report.over.join(" and "))
}

/// Returns bandwidth and latency as heat maps; slow pairs are marked.
pub(super) fn heat_maps(report: &MeshReport, unit: Unit) -> [HeatMap; 2] {
    let speeds = report.matrix.megabits.iter();
    let speeds = speeds.map(|row| row.iter().map(|rate| unit.convert(rate / 8e3)).collect());
    let marked = report.slow_pairs();
    let title = title(report);
    [
        HeatMap {
            title: format!("{title}: bandwidth in {unit}, row to column"),
            names: report.hosts.clone(),
            cells: speeds.collect(),
            marked,
            is_reversed: false,
        },
        HeatMap {
            title: format!("{title}: latency in us, half of a round trip"),
            names: report.hosts.clone(),
            cells: report.matrix.latency_us.clone(),
            marked: report.late_pairs(),
            is_reversed: true,
        },
    ]
}

fn matrix(report: &MeshReport, title: &str, cell: impl Fn(usize, usize) -> f64) -> String {
    let hosts = &report.hosts;
    let first = hosts.iter().map(|host| host.chars().count()).max().unwrap_or_default().max(2);
    let width = first.max(COLUMN);
    let mut text = format!("# {title}\n#{:>1$}", "", first - 1);
    hosts.iter().for_each(|host| text += &format!(" {host:>width$}"));
    text.push('\n');
    for (a, host) in hosts.iter().enumerate() {
        text += &format!("{host:<first$}");
        for b in 0..hosts.len() {
            text += &match a == b {
                true => format!(" {:>width$}", "-"),
                false => format!(" {:>width$.2}", cell(a, b)),
            };
        }
        text.push('\n');
    }
    text
}

/// Returns a line for each host with its medians, and the slowest pairs.
fn summary(report: &MeshReport, unit: Unit) -> String {
    let hosts = &report.hosts;
    let first = hosts.iter().map(|host| host.chars().count()).max().unwrap_or_default().max(6);
    let speed = |a: usize, b: usize| unit.convert(report.matrix.megabits[a][b] / 8e3);
    let mut text = format!(
        "# medians of each host: bandwidth of messages of {} bytes in {unit}, and half of a round trip of 8 bytes\n\
         {:<first$} {:>12} {:>12} {:>12}\n",
        report.matrix.bytes, "# host", "sending", "receiving", "latency us"
    );
    for (host, name) in hosts.iter().enumerate() {
        let others = || (0..hosts.len()).filter(|other| *other != host);
        let median = |numbers: Vec<f64>| quantile(numbers, 1, 2);
        text += &format!(
            "{name:<first$} {:>12.2} {:>12.2} {:>12.2}\n",
            median(others().map(|other| speed(host, other)).collect()),
            median(others().map(|other| speed(other, host)).collect()),
            median(others().map(|other| report.matrix.latency_us[host][other]).collect()),
        );
    }
    let mut slowest: Vec<(usize, usize)> = pairs(hosts.len()).collect();
    slowest.sort_by(|one, other| speed(one.0, one.1).total_cmp(&speed(other.0, other.1)));
    text += &format!("# slowest pairs, in {unit}\n");
    for (a, b) in slowest.into_iter().take(SLOWEST_SHOWN) {
        text += &format!("{} → {} {:.2}\n", hosts[a], hosts[b], speed(a, b));
    }
    text
}

fn conclusions(report: &MeshReport, unit: Unit) -> Vec<String> {
    let mut lines = Vec::new();
    let speed = |(a, b): (usize, usize)| report.matrix.megabits[a][b];
    let slowest =
        pairs(report.hosts.len()).min_by(|one, other| speed(*one).total_cmp(&speed(*other)));
    if let Some((a, b)) = slowest {
        let [from, to] = &report.ports[a][b];
        let rate = unit.convert(speed((a, b)) / 8e3);
        let share = report.limit[a][b].as_ref().map(|limit| {
            let percent = |whole: u32| speed((a, b)) * 100.0 / f64::from(whole.max(1));
            let (raw, usable) = (percent(limit.raw_mbps), percent(limit.usable_mbps));
            format!("; {raw:.1} % of the link, {usable:.1} % of what is usable: {}", limit.bound)
        });
        let share = share.unwrap_or_default();
        lines.push(format!("slowest pair: {from} → {to} {rate:.2} {unit}{share}"));
    }
    lines.push(hardware(report, unit));
    let rates = report.matrix.at_once.iter().map(|rate| unit.convert(rate / 8e3));
    let rates: Vec<f64> = rates.collect();
    let least = (0..rates.len()).min_by(|one, other| rates[*one].total_cmp(&rates[*other]));
    if let Some(least) = least {
        let most = rates.iter().copied().fold(0.0, f64::max);
        let (low, host) = (rates[least], &report.hosts[least]);
        lines.push(match most > low * LEVEL {
            true => format!(
                "all at once: each host sends {low:.2} to {most:.2} {unit}, {host} the least"
            ),
            false => format!("all at once: each host sends {low:.2} to {most:.2} {unit}"),
        });
    }
    let slow = report.slow_in(unit);
    match slow.is_empty() {
        true if report.hosts.len() > 2 => {
            lines.push("no host and no link is slower than the rest".to_owned());
        }
        true => {}
        false => {
            let shown = slow.iter().take(SLOWER_SHOWN);
            lines.extend(shown.map(|slow| format!("slow: {slow}")));
            let more = slow.len().saturating_sub(SLOWER_SHOWN);
            lines.extend((more > 0).then(|| format!("and {more} more; --json has all")));
            let hosts = match report.hosts.len() <= MATRIX {
                true => report.hosts.join(","),
                false => "…".to_owned(),
            };
            lines.push(format!("look for the cause with: rlaunch doctor -H {hosts} --probe"));
        }
    }
    if let Some(against) = &report.against {
        let file = &against.file;
        if against.pairs == 0 {
            lines.push(format!("{file} has no pair of these hosts"));
        } else if against.slower.is_empty() {
            lines.push(format!("no pair has become slower than in {file}"));
        }
        let shown = against.slower.iter().take(SLOWER_SHOWN);
        lines.extend(shown.map(|slower| format!("slower than in {file}: {slower}")));
        let more = against.slower.len().saturating_sub(SLOWER_SHOWN);
        lines.extend((more > 0).then(|| format!("and {more} more; --json has all")));
    }
    lines
}

/// Returns a line on the pair that is farthest below what its hardware can give, or is slowest where that is not known.
pub(super) fn verdict(report: &MeshReport, unit: Unit) -> String {
    let speed = |(a, b): (usize, usize)| report.matrix.megabits[a][b];
    let share = |(a, b): (usize, usize)| {
        let limit = report.limit[a][b].as_ref()?;
        Some(speed((a, b)) * 100.0 / f64::from(limit.usable_mbps.max(1)))
    };
    let all: Vec<(usize, usize)> = pairs(report.hosts.len()).collect();
    let is_known = all.iter().all(|pair| share(*pair).is_some());
    let figure =
        |pair: (usize, usize)| share(pair).filter(|_| is_known).unwrap_or_else(|| speed(pair));
    let worst = all.iter().min_by(|one, other| figure(**one).total_cmp(&figure(**other)));
    let Some(&(a, b)) = worst else { return "there is no pair of hosts".to_owned() };
    let ([from, to], rate) = (&report.ports[a][b], unit.convert(speed((a, b)) / 8e3));
    let pair = format!("slowest pair {from} → {to}: {rate:.2}");
    let limit = report.limit[a][b].as_ref().filter(|_| is_known);
    let Some((limit, share)) = limit.zip(share((a, b))) else {
        return format!("{pair} {unit}; {}", hardware(report, unit));
    };
    let usable = unit.convert(f64::from(limit.usable_mbps) / 8e3);
    let judged = if share < f64::from(HEALTHY) {
        let hosts = report.hosts.join(",");
        format!(
            "{share:.0} % of what it can give; look for the cause with: rlaunch doctor -H {hosts} --probe"
        )
    } else {
        "as good as this hardware gets".to_owned()
    };
    format!("{pair} {unit} of {usable:.2} ({}): {judged}", limit.bound)
}

/// Says what the hardware between the hosts can give.
fn hardware(report: &MeshReport, unit: Unit) -> String {
    let all = || pairs(report.hosts.len());
    let limits = all().filter_map(|(a, b)| Some(((a, b), report.limit[a][b].as_ref()?)));
    let limits: Vec<((usize, usize), &PairLimit)> = limits.collect();
    let rate = |limit: &PairLimit| unit.convert(f64::from(limit.usable_mbps) / 8e3);
    let least = limits.iter().min_by_key(|(_, limit)| limit.usable_mbps);
    let most = limits.iter().max_by_key(|(_, limit)| limit.usable_mbps);
    let (Some((pair, least)), Some((_, most))) = (least, most) else {
        return "what the hardware can give is not known: RDMA ports report it, emulated ones and TCP do not".to_owned();
    };
    let (low, high, bound) = (rate(least), rate(most), &least.bound);
    let known = if limits.len() < all().count() {
        format!(", as far as it is known ({} of {} pairs)", limits.len(), all().count())
    } else {
        String::new()
    };
    if least.usable_mbps == most.usable_mbps {
        return format!("the hardware can give {low:.2} {unit} to each pair{known}: {bound}");
    }
    let [from, to] = &report.ports[pair.0][pair.1];
    format!(
        "the hardware can give {low:.2} to {high:.2} {unit}{known}, the least {from} → {to}: {bound}"
    )
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report as made;
    use super::*;

    #[test]
    fn a_few_hosts_are_matrices() {
        let report = made(&[&[0.0, 96.0, 95.0], &[96.0, 0.0, 40.0], &[95.0, 41.0, 0.0]]);
        let expected = "\
# mesh: 3 hosts over RDMA; each pair by itself
# bandwidth of messages of 1048576 bytes in Gb/s, row to column
#          a         b         c
a          -     96.00     95.00
b      96.00         -     40.00
c      95.00     41.00         -
# latency in us: half of a round trip of 8 bytes
#          a         b         c
a          -      5.00      5.00
b       5.00         -      5.00
c       5.00      5.00         -
# slowest pair: b mlx5_0/1 → c mlx5_0/1 40.00 Gb/s
# what the hardware can give is not known: RDMA ports report it, emulated ones and TCP do not
# all at once: each host sends 150.00 to 150.00 Gb/s
# slow: link b mlx5_0/1 – c mlx5_0/1: 40.00 Gb/s
# look for the cause with: rlaunch doctor -H a,b,c --probe
";
        assert_eq!(super::report(&report, Unit::Gigabits), expected);
    }

    #[test]
    fn what_the_hardware_can_give_is_said_in_the_same_unit() {
        let mut report = made(&[&[0.0, 90.0], &[90.0, 0.0]]);
        let limit = |usable_mbps| {
            Some(PairLimit { bound: "100 Gb/s port".into(), raw_mbps: 100_000, usable_mbps })
        };
        (report.limit[0][1], report.limit[1][0]) = (limit(96_000), limit(96_000));
        let text = hardware(&report, Unit::Gigabytes);
        assert_eq!(text, "the hardware can give 12.00 GB/s to each pair: 100 Gb/s port");
        report.limit[1][0] = limit(48_000);
        let text = hardware(&report, Unit::Gigabits);
        let expected =
            "the hardware can give 48.00 to 96.00 Gb/s, the least b mlx5_0/1 → a mlx5_0/1: ";
        assert!(text.starts_with(expected), "{text}");
        report.limit[0][1] = None;
        let text = hardware(&report, Unit::Gigabits);
        assert!(text.contains(", as far as it is known (1 of 2 pairs): "), "{text}");
    }

    #[test]
    fn a_verdict_is_a_line() {
        let mut report = made(&[&[0.0, 96.0], &[88.0, 0.0]]);
        let line = verdict(&report, Unit::Gigabytes);
        let unknown = "slowest pair b mlx5_0/1 → a mlx5_0/1: 11.00 GB/s; what the hardware can give is not known";
        assert!(line.starts_with(unknown), "{line}");
        let limit = |usable_mbps| {
            Some(PairLimit { bound: "100 Gb/s port".into(), raw_mbps: 100_000, usable_mbps })
        };
        (report.limit[0][1], report.limit[1][0]) = (limit(97_000), limit(89_000));
        let good = "slowest pair b mlx5_0/1 → a mlx5_0/1: 11.00 GB/s of 11.12 (100 Gb/s port): as good as this hardware gets";
        assert_eq!(verdict(&report, Unit::Gigabytes), good);
        // The faster pair is the one that lacks more.
        report.limit[0][1] = limit(192_000);
        let line = verdict(&report, Unit::Gigabytes);
        let bad = "a mlx5_0/1 → b mlx5_0/1: 12.00 GB/s of 24.00 (100 Gb/s port): 50 % of what it can give; look for";
        assert!(line.contains(bad) && line.ends_with("rlaunch doctor -H a,b --probe"), "{line}");
    }

    #[test]
    fn slow_pairs_are_marked_in_the_picture() {
        let report = made(&[&[0.0, 96.0, 95.0], &[96.0, 0.0, 40.0], &[95.0, 41.0, 0.0]]);
        let [speeds, times] = heat_maps(&report, Unit::Gigabits);
        assert_eq!(speeds.marked, [(1, 2), (2, 1)]);
        assert_eq!((speeds.cells[1][2], times.cells[1][2]), (40.0, 5.0));
        assert_eq!(speeds.title, "3 hosts over RDMA: bandwidth in Gb/s, row to column");
    }

    #[test]
    fn many_hosts_are_a_summary() {
        let rows: Vec<Vec<f64>> = (0..20)
            .map(|a| (0..20).map(|b| if a == 3 || b == 3 { 2.0 } else { 8.0 }).collect())
            .collect();
        let rows: Vec<&[f64]> = rows.iter().map(Vec::as_slice).collect();
        let text = super::report(&made(&rows), Unit::Gigabytes);
        assert!(text.contains("\nd              0.25         0.25         5.00\n"), "{text}");
        assert!(text.contains("# slow: host d: its links reach 0.25 GB/s\n"), "{text}");
        assert!(text.lines().count() < 35, "{text}");
    }
}
