//! Reports on recorded output are compared with `launcher/goldens/report-*.txt`. Reports on inconsistent
//! output must have findings.

use super::input::ReportInput;
use super::{
    FindingKind, Report, ReportArgs, Run, Scaling, SourceReport, VERSION, curves, run, text,
};
use clap::Parser;
use rlaunch_plan::testing::is_golden;
use rlaunch_plot::curves::Axis;
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
fn speeds_of_other_programs_are_shown_as_they_are() {
    let bar = "[0,a]   0%| 0/9\r[0,a]  50%|# | 1/2 [00:01<00:01,  4.00it/s]\r[0,a] 2/2 [00:01, 2.00s/it]\n\
               [1,b] tokens/sec: 900\n[1,b] step 7, 1.5 it/s\n";
    let report = report_on(bar);
    let speed = report.speed.as_ref().unwrap();
    let means: Vec<_> = speed.rates.iter().map(|rate| (rate.rank, rate.mean)).collect();
    assert_eq!((speed.unit.as_str(), means), ("it/s", vec![(Some(0), 2.25), (Some(1), 1.5)]));
    assert!(speed.total.is_none() && report.findings.is_empty());
    let text = printed(vec![report]);
    assert!(text.contains("it/s") && text.contains("2.250"), "{text}");
    // Those of a benchmark count more.
    let report = report_on(&format!("{bar}[0,a] 10 images/sec: 100.0 +/- 0.1 (jitter = 0.1)\n"));
    assert_eq!(report.speed.unwrap().unit, "images/sec");
    // Tags before which a bar was not tagged.
    let report = report_on("[3,a] 1%, 4.0it/s\r2%, 5.0it/s\n[1,b] x\n");
    assert_eq!(report.speed.unwrap().rates[0].rank, Some(3));
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

fn input(name: &str) -> ReportInput {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
    ReportInput::from_text(name, &std::fs::read_to_string(path).unwrap())
}

#[test]
fn several_runs_are_curves_of_one_picture() {
    let pictures = curves::pictures(&[input("tf-cnn-1.log"), input("tf-cnn-4.log")]);
    assert_eq!(pictures.len(), 1);
    let picture = &pictures[0];
    assert_eq!((picture.axis, picture.unit.as_str()), (Axis::Steps, "images/s"));
    let [one, four] = &picture.series[..] else { panic!("{picture:?}") };
    assert_eq!(
        (one.0.as_str(), four.0.as_str()),
        ("tf-cnn-1.log: 1 rank", "tf-cnn-4.log: 4 ranks")
    );
    assert_eq!((one.1.len(), one.1[0]), (11, (1.0, 512.1)));
    assert_eq!(four.1.last().map(|(step, rate)| (*step, rate.round())), Some((100.0, 1992.0)));
}

#[test]
fn ranks_of_a_single_run_have_curves_too() {
    let pictures = curves::pictures(&[input("tf-cnn-4.log")]);
    let names: Vec<&str> = pictures[1].series.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["rank 0", "rank 1", "rank 2", "rank 3"]);
    // Lines without tags of ranks are summed up by their steps.
    let untagged = curves::pictures(&[input("guide-tf-cnn.log")]);
    assert_eq!(untagged.len(), 1);
    assert_eq!(untagged[0].series[0].1[0], (1.0, 2100.6 + 2100.8 + 2100.2 + 2100.8));
}

#[test]
fn many_ranks_are_a_range() {
    let mut log = String::new();
    for rank in 0..9 {
        for step in [1, 10] {
            let rate = 100 + rank;
            log += &format!("[{rank},a] {step} images/sec: {rate} +/- 0 (jitter = 0) 7\n");
        }
    }
    let pictures = curves::pictures(&[ReportInput::from_text("x.log", &log)]);
    assert_eq!(pictures[0].series[0].1[1], (10.0, 936.0));
    let ranks: Vec<(&str, f64)> =
        pictures[1].series.iter().map(|(name, points)| (name.as_str(), points[0].1)).collect();
    let wanted = [("fastest rank", 108.0), ("middle of all ranks", 104.0), ("slowest rank", 100.0)];
    assert_eq!(ranks, wanted);
}

#[test]
fn a_step_that_ranks_repeat_or_miss_is_not_counted_twice() {
    let line = |rank: u32, step: u32, rate: u32| {
        format!("[{rank},a] {step} images/sec: {rate} +/- 0 (jitter = 0) 7\n")
    };
    let log = [line(0, 1, 10), line(1, 1, 20), line(0, 10, 11), line(0, 1, 30), line(1, 20, 1)];
    let pictures = curves::pictures(&[ReportInput::from_text("x.log", &log.concat())]);
    assert_eq!(pictures[0].series[0].1, [(1.0, 50.0)]);
}

#[test]
fn devices_of_horovod_are_multiplied() {
    let pictures = curves::pictures(&[input("horovod-nccl.log")]);
    assert_eq!(pictures[0].series[0].0, "horovod-nccl.log: 2 devices");
    assert_eq!(pictures[0].series[0].1[0], (0.0, 582.8));
}

#[test]
fn bandwidths_of_nccl_tests_are_drawn_over_sizes() {
    let pictures = curves::pictures(&[input("nccl-tests.log")]);
    assert_eq!(pictures.len(), 1);
    assert_eq!((pictures[0].axis, pictures[0].unit.as_str()), (Axis::Sizes, "GB/s"));
    assert!(pictures[0].series[0].1.len() > 1, "{pictures:?}");
}

#[tokio::test]
async fn reports_are_drawn_in_each_format() {
    let directory = tempfile::tempdir().unwrap();
    let log = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
    for (ending, begins) in [("svg", "<svg "), ("html", "<!DOCTYPE html>")] {
        let path = directory.path().join(format!("runs.{ending}"));
        let words = [log("tf-cnn-1.log"), log("tf-cnn-4.log"), "--plot".into(), path.clone()];
        let words = words.map(std::path::PathBuf::into_os_string);
        let args = ReportArgs::try_parse_from(std::iter::once("report".into()).chain(words));
        run(&args.unwrap()).await.unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with(begins), "{ending}");
        assert!(text.contains("tf-cnn-4.log: 4 ranks") && text.contains("images/s"), "{ending}");
    }
    let bad = ReportArgs::try_parse_from(["report", "x.log", "--plot", "runs.pdf"]).unwrap_err();
    assert!(bad.to_string().contains(".svg, .html or .png"), "{bad}");
}

#[tokio::test]
async fn a_log_without_rates_is_not_drawn() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("nccl.log");
    std::fs::write(&log, "[0,a] h:1:2 [0] NCCL INFO Using network Socket\n").unwrap();
    let picture = directory.path().join("x.svg");
    let words = ["report".into(), log.into_os_string(), "--plot".into(), picture.clone().into()];
    let words: [std::ffi::OsString; 4] = words;
    let failed = run(&ReportArgs::try_parse_from(words).unwrap()).await.unwrap_err();
    assert!(failed.message.contains("no rates over steps"), "{}", failed.message);
    assert!(!picture.exists());
}
