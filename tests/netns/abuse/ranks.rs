//! Ranks that interrupt calls, fork or leave during communication.

use crate::support::{Field, Run};
use std::time::Duration;

/// Timeout in seconds; a call that waits longer would wait forever.
const LOST: &str = "20";

fn suite<'a>(field: &'a Field, hosts: &str, ranks: usize, words: &str) -> Run<'a> {
    let suite = field.rlaunch.with_file_name("comm-suite");
    let line = format!("-H {hosts} -np {ranks} --preload {} comm-suite {words}", suite.display());
    let run = field.rlaunch(&line).env("RLAUNCH_COMM_TIMEOUT", LOST);
    run.within(Duration::from_secs(90))
}

/// The message is long, so that its receiver would read it from the sender's memory.
#[test]
fn a_message_whose_sender_gave_up_is_not_read_from_its_memory() {
    let field = Field::new();
    for hosts in ["a:2", "a,b"] {
        let ran = suite(&field, hosts, 2, "give-up").run();
        let said = "rank 1: receive from rank 0 (tag 7): rank 0 on a cancelled the message before it \
                    was received";
        assert!(ran.succeeded().out().contains(said), "{ran}");
        assert!(ran.out().contains("rank 0: send to rank 1 (tag 7): interrupted"), "{ran}");
    }
}

#[test]
fn ranks_of_a_collective_that_one_of_them_gave_up_are_told() {
    let field = Field::new();
    for elements in ["1", "500000"] {
        let ran = suite(&field, "a:2,b:2", 4, &format!("give-up-all {elements}")).run();
        let told =
            "all_reduce: rank 2 on b cancelled all_reduce, so the ranks of this communicator";
        let out = ran.succeeded().out();
        // A rank that already has everything from rank 2 notices at its next call.
        for rank in 0..4 {
            assert!(out.contains(&format!("rank {rank}, call 2: {told}")), "{ran}");
        }
        assert!(out.contains("rank 2, call 1: all_reduce: interrupted"), "{ran}");
    }
}

/// Signals interrupt calls at random times, over shared memory and TCP. Ranks connect at the start,
/// or when they first communicate.
#[test]
fn ranks_that_give_up_what_they_like_get_nothing_wrong() {
    let field = Field::new();
    for (seed, eager) in [(1, "256"), (2, "1")] {
        let run = suite(&field, "a:2,b:2", 4, &format!("unruly 3 {seed}"));
        let ran = run.env("RLAUNCH_EAGER_RANKS", eager).env("RLAUNCH_COMM_TIMEOUT", "30").run();
        assert!(ran.succeeded().out().starts_with(&format!("seed {seed}: ")), "{ran}");
    }
}

/// Ranks connect when they first communicate, as in jobs of more than 256 ranks.
#[test]
fn a_rank_that_left_before_it_was_met_is_not_waited_for() {
    let field = Field::new();
    for (messages, hosts) in [(0, "a,b,c"), (3, "a,b,c"), (0, "a:2,b")] {
        let run = suite(&field, hosts, 3, &format!("leave {messages}"));
        let ran = run.env("RLAUNCH_EAGER_RANKS", "1").run();
        let host = if hosts == "a:2,b" { "a" } else { "b" };
        let said = format!(
            "{messages} messages, then receive from rank 1 (tag 0): rank 1 on {host} has left\n"
        );
        assert!(ran.succeeded().out().contains(&said), "{ran}");
    }
}
