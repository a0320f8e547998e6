//! Reports on recorded output are compared with `launcher/goldens/report-*.txt`. Reports on inconsistent
//! output must have findings.

use super::input::ReportInput;
use super::{FindingKind, Report, Run, Scaling, SourceReport, VERSION, text};
use crate::goldens::is_golden;
use std::path::Path;

fn fixture(name: &str) -> SourceReport {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
    let text = std::fs::read_to_string(&path).unwrap();
    SourceReport::new(ReportInput::from_text(name, &text))
}

fn report_on(text: &str) -> SourceReport {
    SourceReport::new(ReportInput::from_text("x.log", text))
}

/// Formats a report without colours.
fn printed(reports: Vec<SourceReport>) -> String {
    let runs: Vec<Run> = reports.iter().filter_map(SourceReport::run).collect();
    let report = Report { v: VERSION, scaling: Scaling::between_sizes(runs), reports };
    anstream::adapter::strip_str(&text::format(&report)).to_string()
}

fn check(golden: &str, fixtures: &[&str]) {
    let reports = fixtures.iter().map(|name| fixture(name)).collect();
    is_golden(&format!("report-{golden}"), &printed(reports));
}

fn kinds(report: &SourceReport) -> Vec<FindingKind> {
    report.findings.iter().map(|finding| finding.kind).collect()
}

#[test]
fn a_guides_log_does_not_add_up() {
    check("guide-tf-cnn", &["guide-tf-cnn.log"]);
}

#[test]
fn ranks_that_add_up_and_a_smaller_run() {
    check("scaling", &["tf-cnn-1.log", "tf-cnn-4.log"]);
}

#[test]
fn ranks_that_were_alone() {
    check("alone", &["tf-cnn-alone.log"]);
}

#[test]
fn horovod_over_two_networks() {
    check("horovod-nccl", &["horovod-nccl.log"]);
}

#[test]
fn a_table_of_nccl_tests() {
    check("nccl-tests", &["nccl-tests.log"]);
}

#[test]
fn a_table_of_newer_nccl_tests_on_two_hosts() {
    check("nccl-tests-mpi", &["nccl-tests-mpi.log"]);
}

/// Without MPI each process of nccl-tests is rank 0 of 1.
#[test]
fn tables_of_several_ranks_are_not_one_job() {
    let table = |rank: u32, busbw: &str| {
        let lines = [
            "#  Rank  0 Group  0 Pid 223120 on cnode2-002 device  0 [0000:1b:00] NVIDIA H100",
            "#  size  count  type  redop  root  time  algbw  busbw  #wrong",
            &format!("1024 256 float sum -1 31.2 0.03 {busbw} 0"),
            &format!("# Avg bus bandwidth    : {busbw}"),
        ];
        lines.map(|line| format!("[{rank},a] {line}\n")).concat()
    };
    let report = report_on(&(table(0, "0") + &table(1, "9")));
    assert_eq!(kinds(&report), [FindingKind::Alone]);
    assert_eq!(report.findings[0].text, "2 ranks printed a table of their own: each ran alone");
    assert!(kinds(&report_on(&table(3, "9"))).is_empty());
}

#[test]
fn tables_that_lie_are_noticed() {
    let head = "# size count type redop root time algbw busbw #wrong\n";
    let rows = "1024 256 float sum -1 31.2 10.0 10.0 3\n2048 512 float sum -1 31.2 20.0 20.0 0\n";
    let report = report_on(&format!("{head}{rows}# Avg bus bandwidth    : 30\n"));
    assert_eq!(kinds(&report), [FindingKind::WrongValues, FindingKind::AverageDiffers]);
    assert_eq!(
        report.findings[0].text,
        "3 values were wrong, first at 1024 bytes: do not trust this network"
    );
    assert!(
        report_on(&format!("{head}{rows}"))
            .findings
            .iter()
            .all(|r| r.kind == FindingKind::WrongValues)
    );
}

#[test]
fn a_rank_that_prints_for_all_is_believed() {
    let report = report_on(
        "[0,a] 10 images/sec: 100.0 +/- 0.1 (jitter = 0.1)\n\
                      [0,a] total images/sec: 396.0\n[1,a] done\n[2,b] done\n[3,b] done\n",
    );
    assert_eq!(kinds(&report), [FindingKind::Incomplete]);
    assert_eq!(report.findings[0].text, "1 of 4 ranks printed images/sec");
    let run = report.run().unwrap();
    assert_eq!((run.ranks, run.total), (4, 396.0));
}

#[test]
fn a_rank_that_prints_its_own_rate_for_all_is_not() {
    let report = report_on(
        "[0,a] 10 images/sec: 100.0 +/- 0.1 (jitter = 0.1)\n\
                      [0,a] total images/sec: 100.1\n[1,a] done\n",
    );
    assert_eq!(kinds(&report), [FindingKind::Alone]);
    assert!(report.run().is_none());
}

#[test]
fn horovods_that_did_not_meet_were_alone() {
    let report = report_on(
        "Iter #0: 290.1 img/sec per GPU\nTotal img/sec on 1 GPU(s): 290.1 +-0.4\n\
                      Iter #0: 280.1 img/sec per GPU\nTotal img/sec on 1 GPU(s): 280.1 +-0.4\n",
    );
    assert_eq!(kinds(&report), [FindingKind::Alone]);
    assert!(report.run().is_none());
}

#[test]
fn totals_that_differ_are_not_trusted() {
    let report = report_on(
        "[0,a] 1 images/sec: 10 +/- 0 (jitter = 0) 7\n[0,a] total images/sec: 20\n\
                      [1,a] 1 images/sec: 10 +/- 0 (jitter = 0) 7\n[1,a] total images/sec: 30\n",
    );
    assert_eq!(kinds(&report), [FindingKind::TotalsDiffer]);
}

#[test]
fn without_a_launchers_word_one_rate_is_one_rank_only_if_the_total_is_the_same() {
    let line = "1 images/sec: 10.0 +/- 0.0 (jitter = 0.0) 7.7\n";
    assert_eq!(report_on(&format!("{line}total images/sec: 10.01\n")).run().unwrap().ranks, 1);
    let unknown = report_on(&format!("{line}total images/sec: 39.9\n"));
    assert!(unknown.run().is_none() && unknown.findings.is_empty(), "{unknown:?}");
}

#[test]
fn programs_can_read_it() {
    let report = fixture("guide-tf-cnn.log");
    let json = serde_json::to_value(Report { v: VERSION, scaling: None, reports: vec![report] });
    let json = json.unwrap();
    let speed = &json["reports"][0]["speed"];
    assert!((speed["sum"].as_f64().unwrap() - 6655.8).abs() < 0.01, "{speed}");
    assert_eq!(speed["printed_totals"][0], 8400.46);
    assert_eq!(speed["total"], serde_json::Value::Null);
    assert_eq!(json["reports"][0]["remarks"][1]["kind"], "sum_differs");
}
