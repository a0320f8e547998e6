//! `rlaunch bench` over soft RoCE: a slow cable is told from a slow host, and RDMA operations are
//! measured.

use crate::support::{ALL, Field, PATIENT, SILENCE, Undo, list, text};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

const SCHEMA: &str = include_str!("../../launcher/schemas/bench-verbs.schema.json");

/// Rate to which links are slowed down. Emulated computers manage ten times as much.
const SLOW: [&str; 2] = ["rate", "8mbit"];

/// Measures each pair for some seconds, and returns what has a low bandwidth. Where this machine has other work, latencies
/// differ much.
fn slow(field: &Field, seconds: f64) -> Vec<String> {
    let words = format!("--hca rxe --transport rdma --size 64K --duration {seconds} --json");
    let ran = field.verb(&format!("bench mesh -H {ALL} {PATIENT} {SILENCE} {words}"), &[]);
    let said: Value = serde_json::from_str(&ran.succeeded().out).unwrap();
    assert_eq!(list(&said["over"]), ["RDMA"], "{ran}");
    let slow = list(&said["slow"]).iter().map(text);
    slow.filter(|slow: &String| !slow.ends_with("of latency")).collect()
}

/// Asserts that what begins with `name` is slow, and nothing else. Where this machine has other work, a pair
/// that is measured for a third of a second may have had no processor, so there are longer measurements after that.
fn only_is_slow(field: &Field, name: &str) {
    let mut seen = Vec::new();
    for seconds in [0.3, 1.0, 3.0, 3.0] {
        let slow = slow(field, seconds);
        if matches!(&slow[..], [only] if only.starts_with(name)) {
            return;
        }
        seen.push(slow);
    }
    panic!("not only {name}: {seen:?}");
}

/// Slows down what this interface of a guest sends, until the guard is dropped.
fn slowed<'a>(field: &'a Field, guest: &'a str, interface: &'a str) -> impl Drop + use<'a> {
    field.lab.netem(guest, interface, &SLOW).unwrap();
    Undo(move || field.lab.netem(guest, interface, &[]))
}

/// Cables of the triangle: at each end the guest, the RDMA device and its interface.
const CABLES: [[(&str, &str, &str); 2]; 3] = [
    [("n1", "rxe0", "eth1"), ("n2", "rxe0", "eth1")],
    [("n1", "rxe1", "eth2"), ("n3", "rxe0", "eth1")],
    [("n2", "rxe1", "eth2"), ("n3", "rxe1", "eth2")],
];

/// Returns a number below 6 that differs from run to run.
fn chosen() -> usize {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    (now.as_millis() % 6) as usize
}

/// A run slows down a cable or a host: to measure both takes five minutes on a slow machine.
#[test]
fn a_slow_cable_is_told_from_a_slow_host() {
    let field = Field::new();
    let chosen = chosen();
    if let Some([one, other]) = CABLES.get(chosen) {
        println!("slow cable: {one:?} {other:?}");
        let _ends = [one, other].map(|(guest, _, interface)| slowed(&field, guest, interface));
        let end = |(guest, device, interface)| format!("{guest} {device}/1 ({interface})");
        only_is_slow(&field, &format!("link {} – {}: ", end(*one), end(*other)));
    } else {
        let host = ["n1", "n2", "n3"][chosen - CABLES.len()];
        println!("slow host: {host}");
        let _interfaces = ["eth1", "eth2"].map(|interface| slowed(&field, host, interface));
        only_is_slow(&field, &format!("host {host}: "));
    }
}

/// Measures an operation between n1 and n2 with `words`, and returns the rows of the result.
pub(crate) fn rows(field: &Field, operation: &str, words: &str) -> Vec<Value> {
    let hosts = format!("-H n1,n2 {PATIENT} {SILENCE}");
    let ran = field.verb(&format!("bench {operation} {hosts} --json {words}"), &[]);
    let said: Value = serde_json::from_str(&ran.succeeded().out).unwrap();
    let validator = jsonschema::validator_for(&serde_json::from_str(SCHEMA).unwrap()).unwrap();
    let errors: Vec<String> = validator.iter_errors(&said).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}: {said}");
    assert_eq!(said["bench"], operation, "{ran}");
    list(&said["rows"]).to_vec()
}

/// Asserts that times and rates of a row are possible, and that `messages` were sent.
pub(crate) fn is_sane(row: &Value, (times, messages): (u64, u64)) {
    let (latency, rate) = (&row["latency"], &row["bandwidth"]);
    let number = |value: &Value| value.as_f64().unwrap();
    assert_eq!(
        (&latency["messages"], &rate["messages"]),
        (&json!(times), &json!(messages)),
        "{row}"
    );
    let quantiles = ["min_us", "typical_us", "p99_us", "p999_us", "max_us"];
    let quantiles = quantiles.map(|name| number(&latency[name]));
    assert!(quantiles.is_sorted() && quantiles[0] > 0.0, "{row}");
    let average = number(&rate["average_gb_s"]);
    // Times are kept to three digits.
    assert!(average > 0.0 && average <= number(&rate["peak_gb_s"]) * 1.01, "{row}");
    let bytes = number(&row["bytes"]) * number(&rate["messages_per_s"]) / 1e9;
    assert!((bytes / average - 1.0).abs() < 1e-6, "{row}");
    assert!(number(&rate["cpu"][0]) > 0.0, "{row}");
}

#[test]
fn operations_are_measured_over_soft_roce() {
    let field = Field::new();
    let words = "--hca rxe0 --sizes 64,16K --iterations 50 --qps 2 --bidirectional --mtu 1024";
    let written = rows(&field, "write", words);
    assert_eq!(written.len(), 2);
    written.iter().for_each(|row| is_sane(row, (50, 2 * 2 * 50)));
    let read = rows(&field, "read", "--hca rxe0 --sizes 4K --iterations 50 --depth 7");
    read.iter().for_each(|row| is_sane(row, (50, 50)));
    let words =
        "--hca rxe0 --connect rdma_cm --sizes 8,4K --iterations 200 --qps 2 --bidirectional";
    let sent = rows(&field, "send", words);
    sent.iter().for_each(|row| is_sane(row, (200, 2 * 2 * 200)));
}

#[test]
fn a_stream_without_end_has_a_line_a_second() {
    let field = Field::new();
    let words = format!("-H n1,n2 --hca rxe0 {PATIENT} {SILENCE} --sizes 4K --duration 0");
    // The pipe's reader leaves after two seconds of results.
    let said = field.shell(&format!("rlaunch bench write bw {words} | head -n 4"));
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        lines.len() == 4 && lines[0].starts_with("# write: n1 rxe0/1 to n2 rxe0/1, MTU"),
        "{said}"
    );
    for line in &lines[2..] {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [rate, "GB/s", messages, "Mmsg/s"] = words[..] else { panic!("{said}") };
        assert!(rate.parse::<f64>().is_ok() && messages.parse::<f64>().unwrap() > 0.0, "{said}");
    }
}
