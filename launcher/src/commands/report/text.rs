//! Formatting of a report as text for people.

use super::input::JobFacts;
use super::log_metrics::collective::{CollectiveTable, Timing};
use super::log_metrics::throughput::Style;
use super::nccl::RankNetwork;
use super::speed::{RankRate, ScaledRun, range};
use super::{Report, ReportFinding, Scaling, SourceReport, Speed};
use rlaunch_console::messages::{HINT, WARNING};
use rlaunch_engine::run::record::RecordedPhase;
use rlaunch_text::columns::{self, row};
use rlaunch_text::printable;
use rlaunch_text::shell::quoted;
use rlaunch_text::text::{self, count};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::{self, Write};

/// Number of ranges of ranks that are named of a host.
const MAX_RANGES: usize = 4;

/// Formats the report, with colours.
pub(super) fn format(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut out, report);
    out
}

fn write(out: &mut impl Write, report: &Report) -> fmt::Result {
    for report in &report.reports {
        write_source(out, report)?;
    }
    match &report.scaling {
        Some(scaling) => write_scaling(out, scaling),
        None if report.reports.iter().any(|report| report.run().is_some()) => writeln!(
            out,
            "scaling: no smaller run to compare with; rlaunch bench train --np 1,2,4 runs several sizes"
        ),
        None => Ok(()),
    }
}

fn write_source(out: &mut impl Write, report: &SourceReport) -> fmt::Result {
    let SourceReport { source, job, speed, collective, networks, findings } = report;
    match job {
        Some(job) => writeln!(out, "{}", describe_job(job))?,
        None => writeln!(out, "{source}")?,
    }
    let has_figures = speed.is_some() || collective.is_some() || !networks.is_empty();
    if let Some(job) = job.as_ref().filter(|_| !has_figures) {
        indent(out, &facts(job))?;
    }
    if let Some(speed) = speed {
        indent(out, &rates(speed))?;
        writeln!(out, "  {}", totals(speed))?;
    }
    if let Some(collective) = collective {
        indent(out, &bandwidths(collective))?;
    }
    if !networks.is_empty() {
        indent(out, &network_table(networks))?;
    }
    findings.iter().try_for_each(|finding| write_finding(out, finding))
}

/// Describes a job: `job amber-fox (0199f3a2…), 2026-11-29 10:10 UTC: python3 train.py, 4 ranks on 2 hosts, 12.3 s`.
fn describe_job(job: &JobFacts) -> String {
    const MAX_CHARS: usize = 80;
    let JobFacts { id, name, began, program, ranks, nodes, seconds, .. } = job;
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    let mut words: String = program.join(" ").chars().map(printable).take(MAX_CHARS + 1).collect();
    if words.chars().count() > MAX_CHARS {
        words.pop();
        words.push('…');
    }
    let (ranks, nodes) = (count(*ranks as usize, "rank"), count(*nodes, "host"));
    // It is not known how long a job took whose launcher was killed.
    let time = if *seconds > 0.0 { format!(", {seconds:.1} s") } else { String::new() };
    let job = if name.is_empty() { id.clone() } else { format!("{name} ({id})") };
    format!("job {job}, {began}: {words}, {ranks} on {nodes}{time}")
}

/// Lays out what is known of a job without figures: its command, where it ran, its end, and where the time of its start
/// went.
fn facts(job: &JobFacts) -> String {
    let words = job.command.iter().skip(1).map(|word| quoted(OsStr::new(word)));
    let command = std::iter::once("rlaunch".to_owned()).chain(words).collect::<Vec<_>>().join(" ");
    let hosts = job.ranks_by_host();
    let named = hosts
        .iter()
        .map(|(host, ranks)| format!("{host} {}", text::ranges(ranks.iter().copied(), MAX_RANGES)));
    let named: Vec<String> = named.collect();
    let mut rows = vec![
        row(["command", printable::first_line(&command).as_str()]),
        row(["ranks", text::list(&named).as_str()]),
        row(["exit code", job.exit_code.to_string().as_str()]),
    ];
    let of_start: Vec<&RecordedPhase> =
        job.phases.iter().filter(|phase| phase.name != "run").collect();
    if !of_start.is_empty() {
        let seconds: f64 = of_start.iter().map(|phase| phase.seconds).sum();
        let parts = of_start.iter().map(|phase| format!("{} {:.2} s", phase.name, phase.seconds));
        let parts = parts.collect::<Vec<_>>().join(", ");
        rows.push(row(["start", format!("{seconds:.2} s: {parts}").as_str()]));
    }
    let mut text = columns::lay_out(&rows);
    if !job.last_lines.is_empty() {
        text += "last lines\n";
        for line in &job.last_lines {
            text += &format!("  {}\n", anstream::adapter::strip_str(line));
        }
    }
    text
}

fn rates(speed: &Speed) -> String {
    let per = match speed.style {
        Style::TfCnn | Style::Printed => speed.unit.clone(),
        Style::Horovod => format!("{} of a device", speed.unit),
    };
    let mut rows = vec![row(["rank", "host", "step", per.as_str(), "+/-", "values", "loss"])];
    let signed = speed.rates.iter().any(|rate| rate.rank.is_some());
    // Steps may take seconds.
    let is_low = speed.style == Style::Printed && speed.rates.iter().any(|rate| rate.mean < 10.0);
    let decimals = if is_low { 3 } else { 1 };
    rows.extend(speed.rates.iter().map(|rate| rate_row(rate, signed, decimals)));
    columns::lay_out(&rows)
}

fn rate_row(rate: &RankRate, signed: bool, decimals: usize) -> Vec<String> {
    let RankRate { rank, host, values, mean, spread, step, loss } = rate;
    let rank = rank.map(|rank| rank.to_string());
    vec![
        rank.unwrap_or_else(|| if signed { String::new() } else { "?".to_owned() }),
        host.clone().unwrap_or_default(),
        step.map(|step| step.to_string()).unwrap_or_default(),
        format!("{mean:.decimals$}"),
        spread.map(|spread| format!("{spread:.decimals$}")).unwrap_or_default(),
        match values {
            1 => "the last".to_owned(),
            values => format!("the last {values}"),
        },
        loss.map(|loss| loss.to_string()).unwrap_or_default(),
    ]
}

/// Describes the totals: `ranks sum to 8401.2; total printed: 8400.46 (4 times, 8400.46 to 8400.99)`.
fn totals(speed: &Speed) -> String {
    if speed.style == Style::Printed {
        return "as ranks print it, each its own speed or that of all: the total is not known"
            .to_owned();
    }
    let sum = match (speed.style, speed.rates.len()) {
        (Style::TfCnn, 2..) => format!("ranks sum to {:.1}; ", speed.sum),
        _ => String::new(),
    };
    let printed = &speed.printed_totals;
    let total = match (&printed[..], range(printed.iter().copied())) {
        ([], _) | (_, None) => "no total printed".to_owned(),
        ([only], _) => format!("total printed: {only}"),
        ([first, ..], Some((least, most))) => {
            format!("total printed: {first} ({} times, {least} to {most})", printed.len())
        }
    };
    format!("{sum}{total}")
}

fn bandwidths(collective: &CollectiveTable) -> String {
    let CollectiveTable { test, devices, rows, average_busbw, .. } = collective;
    let hosts: BTreeSet<&str> = devices.iter().map(|device| device.host.as_str()).collect();
    let mut text = test.clone().unwrap_or_else(|| "nccl-tests".to_owned());
    if !devices.is_empty() {
        text += &format!(", {} on {}", count(devices.len(), "rank"), count(hosts.len(), "host"));
    }
    text += "; out of place, then in place:\n";
    let head = ["bytes", "us", "algbw GB/s", "busbw GB/s", "us", "algbw GB/s", "busbw GB/s"];
    let mut table = vec![row(head)];
    let cells = |timing: &Timing| {
        let Timing { time_us, algbw, busbw, .. } = timing;
        [time_us.to_string(), format!("{algbw:.2}"), format!("{busbw:.2}")]
    };
    table.extend(rows.iter().map(|row| {
        let in_place = row.in_place.as_ref().map(cells).unwrap_or_default();
        [row.bytes.to_string()]
            .into_iter()
            .chain(cells(&row.out_of_place))
            .chain(in_place)
            .collect()
    }));
    text += &columns::lay_out(&table);
    if let Some(average) = average_busbw {
        text += &format!("average busbw {average} GB/s\n");
    }
    text
}

fn network_table(networks: &[RankNetwork]) -> String {
    let mut rows = vec![row(["NCCL in", "host", "out of band", "network"])];
    rows.extend(networks.iter().map(|used| {
        let out_of_band = used.network.out_of_band().unwrap_or_default().to_owned();
        vec![used.name(), used.host.clone(), out_of_band, used.network.to_string()]
    }));
    columns::lay_out(&rows)
}

fn write_finding(out: &mut impl Write, finding: &ReportFinding) -> fmt::Result {
    writeln!(out, "  {WARNING}warning:{WARNING:#} {}", printable::message(&finding.text))?;
    for line in &finding.details {
        writeln!(out, "    {}", printable::message(line))?;
    }
    match &finding.hint {
        Some(hint) => writeln!(out, "  {HINT}hint:{HINT:#} {}", printable::text(hint)),
        None => Ok(()),
    }
}

fn write_scaling(out: &mut impl Write, scaling: &Scaling) -> fmt::Result {
    writeln!(out, "scaling")?;
    indent(out, &scaling_table(scaling))
}

/// Formats a table with one row for each run whose total is known.
fn scaling_table(scaling: &Scaling) -> String {
    let rows = scaling.runs.iter().map(scaling_row);
    columns::lay_out(&std::iter::once(scaling_head("images/sec")).chain(rows).collect::<Vec<_>>())
}

pub(crate) fn scaling_head(unit: &str) -> Vec<String> {
    row(["ranks", unit, "per rank", "efficiency", "from"])
}

pub(crate) fn scaling_row(scaled: &ScaledRun) -> Vec<String> {
    vec![
        scaled.run.ranks.to_string(),
        format!("{:.1}", scaled.run.total),
        format!("{:.1}", scaled.per_rank),
        format!("{:.1} %", scaled.efficiency * 100.0),
        scaled.run.source.clone(),
    ]
}

fn indent(out: &mut impl Write, text: &str) -> fmt::Result {
    printable::text(text).lines().try_for_each(|line| writeln!(out, "  {line}"))
}
