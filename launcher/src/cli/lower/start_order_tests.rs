//! Tests that programs start in the order that `--after` gives.

use super::parse;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_plan::job::apps::{DueProgram, StartOrder};
use std::time::{Duration, Instant};

fn order(line: &str, now: Instant) -> StartOrder {
    let job = parse(line).unwrap();
    StartOrder::new(&job, &job.map_ranks().unwrap(), now)
}

fn due(index: u32, nodes: &[u32]) -> Vec<DueProgram> {
    vec![DueProgram { index, nodes: nodes.iter().copied().map(NodeId).collect() }]
}

#[test]
fn a_program_starts_when_all_of_another_has_and_its_ports_are_open() {
    let line = "-H a,b -np 2 --name srv x : -H b:2,c --after srv,ready:tcp:a:80 y : -H c \
                --after ready:tcp:b:81 z";
    let mut order = order(line, Instant::now());
    assert_eq!(order.on_rank_started(Rank(0)), []);
    assert_eq!(order.on_port_open(0), []);
    assert_eq!(order.on_port_open(1), due(2, &[2]));
    assert_eq!(order.on_rank_started(Rank(0)), [], "the same one again");
    assert_eq!(order.on_rank_started(Rank(1)), due(1, &[1, 2]));
    assert_eq!(order.deadline(), None, "no program waits any more");
}

#[test]
fn a_long_wait_is_said_less_and_less_often() {
    let now = Instant::now();
    let line = "-H a -np 1 --name srv x : -H b -np 1 --name decode --after srv,ready:tcp:a:80 y";
    let mut order = order(line, now);
    let mut reports = Vec::new();
    for second in 0..=100 {
        let lines = order.on_time(now + Duration::from_secs(second));
        reports.extend(lines.into_iter().map(|line| (second, line)));
    }
    let seconds: Vec<u64> = reports.iter().map(|(second, _)| *second).collect();
    assert_eq!(seconds, [10, 30, 90]);
    let line = "application 2 (decode) waits for srv and ready:tcp:a:80, 30 s so far";
    assert_eq!(reports[1].1, line);
    assert_eq!(order.on_rank_started(Rank(0)), []);
    let left = order.on_time(now + Duration::from_secs(300));
    assert_eq!(left, ["application 2 (decode) waits for ready:tcp:a:80, 300 s so far"]);
}

#[test]
fn a_job_without_conditions_waits_for_nothing() {
    let mut order = order("-H a,b x", Instant::now());
    assert_eq!(order.deadline(), None);
    assert_eq!(order.on_rank_started(Rank(0)), []);
}
