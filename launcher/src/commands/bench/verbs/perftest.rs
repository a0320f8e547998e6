//! Results in the columns of perftest, for scripts that read them.

use super::super::Unit;
use rlaunch_bootstrap::bench::VerbsRow;
use std::fmt::Write;

/// Line around a table.
const RULE: &str =
    "---------------------------------------------------------------------------------------\n";

/// Returns the tables of times and of bandwidths, as far as they were measured.
pub(super) fn tables(rows: &[&VerbsRow], unit: Unit) -> String {
    let mut text = String::new();
    let (times, rates) = (times(rows), rates(rows, unit));
    for table in [times, rates].into_iter().flatten() {
        let _ = write!(text, "{RULE}{table}{RULE}");
    }
    text
}

fn times(rows: &[&VerbsRow]) -> Option<String> {
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

fn rates(rows: &[&VerbsRow], unit: Unit) -> Option<String> {
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
    use rlaunch_bootstrap::bench::{MessageTimes, StreamRate};

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
        let text = tables(&[&row], Unit::Gigabytes);
        let times = ["65536", "999", "1.23", "9.00", "2.00", "2.50", "0.25", "3.00", "4.00"];
        assert_eq!(words(&text, 2), times);
        assert_eq!(words(&text, 6), ["65536", "5000", "1000.00", "500.00", "0.008000"]);
        let only_times = VerbsRow { bandwidth: None, ..row };
        assert_eq!(tables(&[&only_times], Unit::Gigabits).lines().count(), 4);
    }
}
