//! Results as text whose lines are printed as they come, as one JSON object, as curves, and in the columns of perftest, for
//! scripts that read them.

use super::super::Unit;
use super::super::ceiling::{ABOVE_OF_OURS, Ceiling};
use super::super::table::{points, tcp_rate};
use rlaunch_bootstrap::bench::{
    BenchRecord, MessageTimes, StreamRate, VerbsHeader, VerbsOperation, VerbsPart, VerbsRequest,
    VerbsRow,
};
use rlaunch_bootstrap::id::Rank;
use rlaunch_engine::run::job_run::StartFacts;
use rlaunch_plot::curves::Curves;
use serde_json::{Value, json};
use std::fmt::Write;

/// Size of messages from which a low bandwidth has a cause, in bytes.
const LARGE: usize = 64 << 10;
/// Number of outstanding requests with which a stream is as fast as its link.
const USUAL_DEPTH: u32 = 64;
/// Length of the bar of the most frequent class of times, in characters.
const BAR: f64 = 40.0;

/// Formatter of lines.
pub(super) struct VerbsTable {
    unit: Unit,
    has_distribution: bool,
}

impl VerbsTable {
    pub(super) fn new(unit: Unit, has_distribution: bool) -> VerbsTable {
        VerbsTable { unit, has_distribution }
    }

    /// Returns the lines for a record, with a newline after each; `None` for a record without lines of its own.
    pub(super) fn lines(&self, record: &BenchRecord, facts: &StartFacts) -> Option<String> {
        match record {
            BenchRecord::VerbsBegin(header) => Some(begin(header, &hosts(facts), self.unit)),
            BenchRecord::VerbsRow(row) => {
                let mut text = line(row, self.unit);
                if let Some(times) = row.latency.as_ref().filter(|_| self.has_distribution) {
                    text.push_str(&distribution(times));
                }
                Some(text)
            }
            BenchRecord::VerbsSecond(rate) => Some(second(rate, self.unit)),
            _ => None,
        }
    }
}

/// Returns the hosts of rank 0 and rank 1.
fn hosts(facts: &StartFacts) -> [String; 2] {
    let host = |rank: usize| {
        let node = facts.table.ranks().get(rank)?.node;
        facts.table.nodes().get(node.index()).map(|row| row.host.clone())
    };
    [0, 1].map(|rank| host(rank).unwrap_or_default())
}

/// Returns the lines above the rows.
fn begin(header: &VerbsHeader, hosts: &[String; 2], unit: Unit) -> String {
    let VerbsHeader { request, ports, .. } = header;
    let arrow = match request.operation {
        _ if request.bidirectional => "and",
        VerbsOperation::Read => "from",
        VerbsOperation::Write | VerbsOperation::Send => "to",
    };
    let mtu = header.mtu.map_or("unknown MTU".to_owned(), |mtu| format!("MTU {mtu}"));
    let manager = if header.by_manager { ", by rdma_cm" } else { "" };
    let depth = request.depth;
    let copied = |bytes: u32| match bytes {
        0 => String::new(),
        bytes => format!(", inline up to {bytes}"),
    };
    let mut how = Vec::new();
    if request.part != VerbsPart::Bandwidth {
        how.push(format!("one message at a time{}", copied(header.inline.0)));
    }
    if request.part != VerbsPart::Latency {
        let pairs = match request.qps {
            1 => format!("1 queue pair, {depth} requests"),
            qps => format!("{qps} queue pairs, {depth} requests each"),
        };
        let sum = if request.bidirectional { " in each direction, added up" } else { "" };
        how.push(format!("streams of {pairs}{}{sum}", copied(header.inline.1)));
    }
    let how = how.join("; ");
    let mut text = format!(
        "# {}: {} {} {arrow} {} {}, {mtu}{manager}; {how}\n",
        request.operation.name(),
        hosts[0],
        ports[0],
        hosts[1],
        ports[1],
    );
    let mut columns = format!("{:>10}", "# bytes");
    if request.part != VerbsPart::Bandwidth {
        for name in ["min us", "typical", "average", "99%", "99.9%", "max us"] {
            let _ = write!(columns, " {name:>9}");
        }
    }
    if request.part != VerbsPart::Latency {
        for name in [format!("peak {unit}"), "average".to_owned(), "Mmsg/s".to_owned()] {
            let _ = write!(columns, " {name:>10}");
        }
        let _ = write!(columns, " {:>9}", "CPU %");
    }
    text.push_str(&columns);
    text.push('\n');
    text
}

fn line(row: &VerbsRow, unit: Unit) -> String {
    let mut text = format!("{:>10}", row.bytes);
    if let Some(times) = &row.latency {
        let MessageTimes { min_us, typical_us, average_us, p99_us, p999_us, max_us, .. } = times;
        for time in [min_us, typical_us, average_us, p99_us, p999_us, max_us] {
            let _ = write!(text, " {time:>9.2}");
        }
    }
    if let Some(rate) = &row.bandwidth {
        let peak =
            rate.peak_gb_s.map_or("-".to_owned(), |peak| format!("{:.3}", unit.convert(peak)));
        let average = unit.convert(rate.average_gb_s);
        let percent =
            |cpu: Option<f64>| cpu.map_or("-".to_owned(), |cpu| format!("{:.0}", cpu * 100.0));
        let cpu = format!("{}/{}", percent(rate.cpu[0]), percent(rate.cpu[1]));
        let _ = write!(
            text,
            " {peak:>10} {average:>10.3} {:>10.4} {cpu:>9}",
            rate.messages_per_s / 1e6
        );
    }
    text.push('\n');
    text
}

/// Returns the line of one second of an endless stream.
fn second(rate: &StreamRate, unit: Unit) -> String {
    let average = unit.convert(rate.average_gb_s);
    format!("{average:>10.3} {unit} {:>10.4} Mmsg/s\n", rate.messages_per_s / 1e6)
}

/// Returns a line with a bar for each class of times.
fn distribution(times: &MessageTimes) -> String {
    let most = times.distribution.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1);
    let mut text = String::new();
    for (bound, count) in &times.distribution {
        let bar = "#".repeat((*count as f64 / most as f64 * BAR).ceil() as usize);
        let _ = writeln!(text, "#   up to {bound:>10.2} us {count:>10} {bar}");
    }
    text
}

/// Measurement that is over, with what limits it.
pub(super) struct VerbsSummary<'a> {
    header: &'a VerbsHeader,
    pub(super) rows: Vec<&'a VerbsRow>,
    hosts: [String; 2],
    ceiling: Option<Ceiling>,
}

impl<'a> VerbsSummary<'a> {
    /// Returns `None` if there are no rows.
    pub(super) fn new(records: &'a [BenchRecord], facts: &StartFacts) -> Option<VerbsSummary<'a>> {
        let header = records.iter().find_map(|record| match record {
            BenchRecord::VerbsBegin(header) => Some(header),
            _ => None,
        })?;
        let rows = records.iter().filter_map(|record| match record {
            BenchRecord::VerbsRow(row) => Some(row),
            _ => None,
        });
        let rows: Vec<&VerbsRow> = rows.collect();
        let ceiling = Ceiling::between(facts, (Rank(0), Rank(1)), header.mtu);
        let is_comparable = header.request.has_comparable_bandwidth();
        let ceiling =
            ceiling.filter(|_| is_comparable).map(|ceiling| ceiling.with_tcp(tcp_rate(records)));
        (!rows.is_empty()).then_some(VerbsSummary { header, rows, hosts: hosts(facts), ceiling })
    }

    /// Returns the highest average bandwidth of all sizes, in Mb/s.
    fn best(&self) -> f64 {
        let rates = self.rows.iter().filter_map(|row| row.bandwidth);
        rates.map(|rate| rate.average_gb_s * 8e3).fold(0.0, f64::max)
    }

    /// Returns the lines below the rows, with a newline after each.
    pub(super) fn end(&self) -> String {
        let Some(ceiling) = &self.ceiling else { return String::new() };
        // A short queue or a low MTU is reason enough for a low bandwidth.
        let VerbsRequest { depth, mtu, .. } = self.header.request;
        let is_usual = depth >= USUAL_DEPTH && mtu.is_none();
        let is_large = is_usual && self.rows.iter().any(|row| row.bytes >= LARGE);
        let hosts = self.hosts.join(",");
        let lines = ceiling.judge(self.best(), is_large.then_some(hosts.as_str()), ABOVE_OF_OURS);
        lines.iter().map(|line| format!("# {line}\n")).collect()
    }

    pub(super) fn json(&self) -> Value {
        let VerbsHeader { request, inline, mtu, reads, ports, by_manager } = self.header;
        let end = |index: usize| json!({ "host": self.hosts[index], "port": ports[index] });
        json!({
            "v": 1,
            "bench": request.operation.name(),
            "ends": [end(0), end(1)],
            "mtu": mtu,
            "connect": if *by_manager { "rdma_cm" } else { "oob" },
            "qps": request.qps,
            "depth": request.depth,
            "outstanding_reads": reads,
            "inline_bytes": { "latency": inline.0, "bandwidth": inline.1 },
            "bidirectional": request.bidirectional,
            "limit": self.ceiling.as_ref().map(|ceiling| ceiling.json(self.best())),
            "rows": self.rows,
        })
    }

    /// Returns curves of average bandwidths over sizes, or of typical times if nothing else was measured.
    pub(super) fn curves(&self, unit: Unit) -> Curves {
        let is_time = self.header.request.part == VerbsPart::Latency;
        let points = |value: &dyn Fn(&VerbsRow) -> Option<f64>| {
            points(self.rows.iter().filter_map(|row| Some((row.bytes as f64, value(row)?))))
        };
        let time = |quantile: fn(&MessageTimes) -> f64| {
            points(&move |row: &VerbsRow| row.latency.as_ref().map(quantile))
        };
        let rate = |of: fn(&StreamRate) -> Option<f64>| {
            points(&move |row: &VerbsRow| {
                row.bandwidth.as_ref().and_then(of).map(|rate| unit.convert(rate))
            })
        };
        let series = match is_time {
            true => vec![
                ("typical".to_owned(), time(|times| times.typical_us)),
                ("99 %".to_owned(), time(|times| times.p99_us)),
            ],
            false => vec![
                ("average".to_owned(), rate(|rate| Some(rate.average_gb_s))),
                ("peak".to_owned(), rate(|rate| rate.peak_gb_s)),
            ],
        };
        let limit = self.ceiling.as_ref().and_then(|ceiling| ceiling.line(unit));
        let [from, to] = &self.hosts;
        Curves {
            title: format!("RDMA {} between {from} and {to}", self.header.request.operation.name()),
            unit: if is_time { "us".to_owned() } else { unit.to_string() },
            is_logarithmic: is_time,
            series,
            limits: limit.into_iter().filter(|_| !is_time).collect(),
            ..Curves::default()
        }
    }
}

/// Line around a table.
const RULE: &str =
    "---------------------------------------------------------------------------------------\n";

/// Returns the tables of times and of bandwidths, as far as they were measured.
pub(super) fn perftest_tables(rows: &[&VerbsRow], unit: Unit) -> String {
    let mut text = String::new();
    let (times, rates) = (perftest_times(rows), perftest_rates(rows, unit));
    for table in [times, rates].into_iter().flatten() {
        let _ = write!(text, "{RULE}{table}{RULE}");
    }
    text
}

fn perftest_times(rows: &[&VerbsRow]) -> Option<String> {
    let mut text = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
                    99% percentile[usec]   99.9% percentile[usec] \n"
        .to_owned();
    let begin = text.len();
    for row in rows {
        let Some(times) = &row.latency else { continue };
        let _ = writeln!(
            text,
            " {:<7} {}          {:<7.2}        {:<7.2}      {:<7.2}  \t       {:<7.2}     \t{:<7.2}\t\t{:<7.2} \t\t{:<7.2}",
            row.bytes,
            times.messages,
            times.min_us,
            times.max_us,
            times.typical_us,
            times.average_us,
            times.deviation_us,
            times.p99_us,
            times.p999_us
        );
    }
    (text.len() > begin).then_some(text)
}

fn perftest_rates(rows: &[&VerbsRow], unit: Unit) -> Option<String> {
    // perftest has no other units.
    let (unit, name) = match unit {
        Unit::Gigabits => (Unit::Gigabits, "Gb/sec"),
        Unit::Gigabytes | Unit::Mebibytes => (Unit::Mebibytes, "MiB/sec"),
    };
    let mut text = format!(
        " #bytes     #iterations    BW peak[{name}]    BW average[{name}]   MsgRate[Mpps]\n"
    );
    let begin = text.len();
    for row in rows {
        let Some(rate) = &row.bandwidth else { continue };
        let peak = unit.convert(rate.peak_gb_s.unwrap_or_default());
        let _ = writeln!(
            text,
            " {:<7}    {:<10}       {:<7.2}            {:<7.2}\t\t     {:<7.6}",
            row.bytes,
            rate.messages,
            peak,
            unit.convert(rate.average_gb_s),
            rate.messages_per_s / 1e6
        );
    }
    (text.len() > begin).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::bench::{MessageTimes, StreamRate, VerbsAmount};

    fn times() -> MessageTimes {
        MessageTimes {
            messages: 30,
            min_us: 1.0,
            typical_us: 2.0,
            average_us: 2.5,
            deviation_us: 0.25,
            p99_us: 3.0,
            p999_us: 4.0,
            max_us: 9.0,
            distribution: vec![(2.0, 20), (4.0, 9), (16.0, 1)],
        }
    }

    #[test]
    fn the_sum_of_both_directions_is_said_to_be_one() {
        let request = VerbsRequest {
            operation: VerbsOperation::Write,
            part: VerbsPart::Bandwidth,
            sizes: vec![8],
            amount: VerbsAmount::Messages(10),
            qps: 1,
            depth: 128,
            inline: None,
            mtu: None,
            bidirectional: true,
            perftest: false,
        };
        let ports = ["mlx5_0/1", "mlx5_1/1"].map(str::to_owned);
        let (inline, mtu, reads, by_manager) = ((0, 0), Some(4096), 16, false);
        let mut header = VerbsHeader { request, inline, mtu, reads, ports, by_manager };
        let hosts = ["a", "b"].map(str::to_owned);
        let above = |header: &VerbsHeader| {
            let lines = begin(header, &hosts, Unit::Gigabytes);
            lines.lines().next().unwrap_or_default().to_owned()
        };
        let both = "# write: a mlx5_0/1 and b mlx5_1/1, MTU 4096; streams of 1 queue pair, 128 requests \
                    in each direction, added up";
        assert_eq!(above(&header), both);
        header.request.bidirectional = false;
        assert!(
            above(&header)
                .ends_with(" to b mlx5_1/1, MTU 4096; streams of 1 queue pair, 128 requests")
        );
    }

    #[test]
    fn a_line_has_what_was_measured() {
        let rate = StreamRate {
            messages: 100,
            peak_gb_s: Some(2.0),
            average_gb_s: 1.0,
            messages_per_s: 1e6,
            cpu: [Some(1.0), Some(0.024)],
        };
        let row = VerbsRow { bytes: 1000, latency: Some(times()), bandwidth: Some(rate) };
        let words =
            |row: &VerbsRow, unit| line(row, unit).split_whitespace().collect::<Vec<_>>().join(" ");
        let all = "1000 1.00 2.00 2.50 3.00 4.00 9.00 16.000 8.000 1.0000 100/2";
        assert_eq!(words(&row, Unit::Gigabits), all);
        let only = VerbsRow { latency: None, ..row };
        assert_eq!(words(&only, Unit::Gigabytes), "1000 2.000 1.000 1.0000 100/2");
    }

    #[test]
    fn the_distribution_has_a_bar_for_each_class() {
        let text = distribution(&times());
        let lengths: Vec<usize> = text.lines().map(|line| line.matches('#').count() - 1).collect();
        assert_eq!(lengths, [40, 18, 2], "{text}");
    }

    #[test]
    fn columns_are_those_of_perftest() {
        let latency = MessageTimes {
            messages: 999,
            min_us: 1.234,
            typical_us: 2.0,
            average_us: 2.5,
            deviation_us: 0.25,
            p99_us: 3.0,
            p999_us: 4.0,
            max_us: 9.0,
            distribution: Vec::new(),
        };
        let bandwidth = StreamRate {
            messages: 5000,
            peak_gb_s: Some(1.048_576),
            average_gb_s: 0.524_288,
            messages_per_s: 8_000.0,
            cpu: [None; 2],
        };
        let row = VerbsRow { bytes: 65_536, latency: Some(latency), bandwidth: Some(bandwidth) };
        let words = |text: &str, line: usize| {
            let line = text.lines().nth(line).unwrap_or_default();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let text = perftest_tables(&[&row], Unit::Gigabytes);
        let times = ["65536", "999", "1.23", "9.00", "2.00", "2.50", "0.25", "3.00", "4.00"];
        assert_eq!(words(&text, 2), times);
        assert_eq!(words(&text, 6), ["65536", "5000", "1000.00", "500.00", "0.008000"]);
        let only_times = VerbsRow { bandwidth: None, ..row };
        assert_eq!(perftest_tables(&[&only_times], Unit::Gigabits).lines().count(), 4);
    }
}
