//! Ranks that are slower than the others: `--straggler-report`.

use crate::running::Running;
use crate::support::Field;
use nix::sys::signal::Signal;
use std::time::Duration;

/// Time limit for ranks that share two busy processors.
const PATIENCE: Duration = Duration::from_secs(180);

/// Program that works, which takes rank `SLOW` longer, and then waits for all others.
const BARRIERS: &str = "import os, sys, time, rlaunch\n\
    comm = rlaunch.init()\n\
    slow = comm.rank == int(os.environ['SLOW'])\n\
    for step in range(int(os.environ['STEPS'])):\n    \
    time.sleep(0.2 if slow else 0.02)\n    comm.barrier()\n";

fn job<'a>(field: &'a Field, window: &str, slow: &str, steps: &str) -> Running<'a> {
    let run = field.rlaunch("-H a:2,b:2 --straggler-report").args([window]).within(PATIENCE);
    let run = run.env("SLOW", slow).env("STEPS", steps);
    run.args(["-x", "SLOW", "-x", "STEPS", "/usr/bin/python3", "-c", BARRIERS]).spawn()
}

#[test]
fn a_rank_for_which_the_others_wait_is_named_once() {
    let field = Field::new();
    let mut running = job(&field, "3", "2", "100000");
    running.wait_for_stderr("slower than the others: ", 1);
    let named = running.err();
    let line = named.lines().find(|line| line.contains("slower than the others")).unwrap();
    let expected = "slower than the others: rank 2 on b: waiting for others takes ";
    assert!(line.contains(expected) && line.ends_with(" % elsewhere"), "{line}");
    running.signal(Signal::SIGTERM);
    running.finish().ended_with(143);
}

#[test]
fn equal_ranks_are_no_stragglers() {
    let field = Field::new();
    // Within a long window each has the processors of a busy machine as often as the others.
    let done = job(&field, "6", "-1", "500").finish();
    done.succeeded().keeps_quiet_about(&["slower"]);
}

#[test]
fn programs_that_tell_nothing_cannot_be_compared() {
    let field = Field::new();
    let mut running = field.rlaunch("-H a,b --straggler-report 1").args(["sleep", "100"]).spawn();
    running.wait_for_stderr("--straggler-report has nothing to compare yet", 1);
    running.signal(Signal::SIGTERM);
    running.finish().ended_with(143);
}

#[test]
fn ranks_that_print_a_lower_speed_are_named_with_their_host() {
    let field = Field::new();
    let speed = "speed=800; [ $RANK -lt 2 ] || speed=40$RANK
        while :; do echo \"step 3/9 $speed images/s loss 0.5\"; sleep 0.2; done";
    let mut running =
        field.rlaunch("-H a:2,b:2,c --straggler-report 1").within(PATIENCE).sh(speed).spawn();
    // Ranks 2 to 4 are the majority: ranks 0 and 1 are fast, and none is slow.
    running.wait_for_lines(60);
    assert!(!running.err().contains("slower"), "{}", running.err());
    running.signal(Signal::SIGTERM);
    running.finish().ended_with(143);
    let speed = speed.replace("-lt 2", "-lt 4");
    let mut running =
        field.rlaunch("-H a:3,b:1,c:2 --straggler-report 1").within(PATIENCE).sh(&speed).spawn();
    running.wait_for_stderr("slower than the others: ranks 4-5 on c: 40", 1);
    running.signal(Signal::SIGTERM);
    running.finish().ended_with(143);
}
