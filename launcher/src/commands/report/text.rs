//! Verdicts for people.

use super::networks::RankNetwork;
use super::source::JobFacts;
use super::speed::{RankRate, range};
use super::{Remark, Report, Scaling, Speed, Verdict};
use crate::commands::report::log_metrics::collective::{Collective, Measured};
use crate::commands::report::log_metrics::throughput::Style;
use rlaunch_console::columns::{self, row};
use rlaunch_console::messages::{HINT, WARNING};
use rlaunch_console::printable;
use rlaunch_console::text::count;
use std::collections::BTreeSet;
use std::io::{self, Write};

pub(super) fn write(out: &mut impl Write, report: &Report) -> io::Result<()> {
    for verdict in &report.reports {
        write_verdict(out, verdict)?;
    }
    match &report.scaling {
        Some(scaling) => write_scaling(out, scaling),
        None if report.reports.iter().any(|verdict| verdict.run().is_some()) => writeln!(
            out,
            "scaling: no smaller run to compare with: rlaunch bench train --np 1,2,4 measures them"
        ),
        None => Ok(()),
    }
}

fn write_verdict(out: &mut impl Write, verdict: &Verdict) -> io::Result<()> {
    let Verdict { source, job, speed, collective, networks, remarks } = verdict;
    writeln!(out, "{source}{}", job.as_ref().map(about).unwrap_or_default())?;
    if let Some(speed) = speed {
        indent(out, &rates(speed))?;
        writeln!(out, "  {}", totals(speed))?;
    }
    if let Some(collective) = collective {
        indent(out, &measured(collective))?;
    }
    if !networks.is_empty() {
        indent(out, &used(networks))?;
    }
    remarks.iter().try_for_each(|remark| write_remark(out, remark))
}

/// `: python3 train.py, 4 ranks on 2 hosts, 12.3 s`
fn about(job: &JobFacts) -> String {
    const LONGEST: usize = 80;
    let JobFacts { program, ranks, nodes, seconds, .. } = job;
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    let mut words: String = program.join(" ").chars().map(printable).take(LONGEST + 1).collect();
    if words.chars().count() > LONGEST {
        words.pop();
        words.push('…');
    }
    let (ranks, nodes) = (count(*ranks as usize, "rank"), count(*nodes, "host"));
    format!(": {words}, {ranks} on {nodes}, {seconds:.1} s")
}

fn rates(speed: &Speed) -> String {
    let per = match speed.style {
        Style::TfCnn => "images/sec",
        Style::Horovod => "images/sec of a device",
    };
    let mut rows = vec![row(["rank", "host", "step", per, "+/-", "values", "loss"])];
    let signed = speed.rates.iter().any(|rate| rate.rank.is_some());
    rows.extend(speed.rates.iter().map(|rate| rate_row(rate, signed)));
    columns::lay_out(&rows)
}

fn rate_row(rate: &RankRate, signed: bool) -> Vec<String> {
    let RankRate { rank, host, values, mean, spread, step, loss } = rate;
    let rank = rank.map(|rank| rank.to_string());
    vec![
        rank.unwrap_or_else(|| if signed { String::new() } else { "?".to_owned() }),
        host.clone().unwrap_or_default(),
        step.map(|step| step.to_string()).unwrap_or_default(),
        format!("{mean:.1}"),
        spread.map(|spread| format!("{spread:.1}")).unwrap_or_default(),
        match values {
            1 => "the last".to_owned(),
            values => format!("the last {values}"),
        },
        loss.map(|loss| loss.to_string()).unwrap_or_default(),
    ]
}

/// `ranks sum to 8401.2; total printed: 8400.46 (4 times, 8400.46 to 8400.99)`
fn totals(speed: &Speed) -> String {
    let sum = match (speed.style, speed.rates.len()) {
        (Style::TfCnn, 2..) => format!("ranks sum to {:.1}; ", speed.sum),
        _ => String::new(),
    };
    let printed = &speed.printed_totals;
    let said = match (&printed[..], range(printed.iter().copied())) {
        ([], _) | (_, None) => "no total printed".to_owned(),
        ([only], _) => format!("total printed: {only}"),
        ([first, ..], Some((least, most))) => {
            format!("total printed: {first} ({} times, {least} to {most})", printed.len())
        }
    };
    format!("{sum}{said}")
}

fn measured(collective: &Collective) -> String {
    let Collective { test, devices, rows, average_busbw, .. } = collective;
    let hosts: BTreeSet<&str> = devices.iter().map(|device| device.host.as_str()).collect();
    let mut text = test.clone().unwrap_or_else(|| "nccl-tests".to_owned());
    if !devices.is_empty() {
        text += &format!(", {} on {}", count(devices.len(), "rank"), count(hosts.len(), "host"));
    }
    text += "; out of place, then in place:\n";
    let head = ["bytes", "us", "algbw GB/s", "busbw GB/s", "us", "algbw GB/s", "busbw GB/s"];
    let mut table = vec![row(head)];
    let cells = |measured: &Measured| {
        let Measured { time_us, algbw, busbw, .. } = measured;
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

fn used(networks: &[RankNetwork]) -> String {
    let mut rows = vec![row(["NCCL in", "host", "out of band", "network"])];
    rows.extend(networks.iter().map(|used| {
        let out_of_band = used.network.out_of_band().unwrap_or_default().to_owned();
        vec![used.name(), used.host.clone(), out_of_band, used.network.to_string()]
    }));
    columns::lay_out(&rows)
}

fn write_remark(out: &mut impl Write, remark: &Remark) -> io::Result<()> {
    writeln!(out, "  {WARNING}warning:{WARNING:#} {}", printable::message(&remark.text))?;
    match &remark.hint {
        Some(hint) => writeln!(out, "  {HINT}hint:{HINT:#} {}", printable::text(hint)),
        None => Ok(()),
    }
}

fn write_scaling(out: &mut impl Write, scaling: &Scaling) -> io::Result<()> {
    writeln!(out, "scaling")?;
    indent(out, &table(scaling))
}

/// One row for each run.
pub(crate) fn table(scaling: &Scaling) -> String {
    let mut rows = vec![row(["ranks", "images/sec", "per rank", "efficiency", "from"])];
    rows.extend(scaling.runs.iter().map(|step| {
        vec![
            step.run.ranks.to_string(),
            format!("{:.1}", step.run.total),
            format!("{:.1}", step.per_rank),
            format!("{:.1} %", step.efficiency * 100.0),
            step.run.source.clone(),
        ]
    }));
    columns::lay_out(&rows)
}

fn indent(out: &mut impl Write, text: &str) -> io::Result<()> {
    printable::text(text).lines().try_for_each(|line| writeln!(out, "  {line}"))
}
