//! The communicator between ranks of one host and of several hosts: the suite, and ranks that are
//! lost.

use crate::running::Outcome;
use crate::support::{Field, Run, Undo};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_lab::{Process, Stopwatch};
use std::time::Duration;

fn suite<'a>(field: &'a Field, hosts: &str, ranks: usize, words: &str) -> Run<'a> {
    let suite = field.rlaunch.with_file_name("comm-suite");
    let line = format!("-H {hosts} -np {ranks} --preload {} comm-suite {words}", suite.display());
    field.rlaunch(&line).within(Duration::from_secs(90))
}

/// Asserts that all cases hold, as rank 0 prints.
fn holds(field: &Field, hosts: &str, ranks: usize, words: &str) {
    let ran = suite(field, hosts, ranks, words).run();
    let said = ran.succeeded().out();
    assert!(said.ends_with(&format!("cases hold among {ranks} ranks\n")), "{ran}");
}

#[test]
fn every_case_holds_among_ranks_of_a_host() {
    let field = Field::new();
    // Simulated jobs run all cases among 4 and 7 ranks too (`tests/comm`).
    for (ranks, cases) in
        [(1, "all"), (2, "all"), (3, "all"), (4, "cover"), (7, "cover"), (8, "all")]
    {
        holds(&field, "a:8", ranks, cases);
    }
    for ranks in [2, 4] {
        holds(&field, "a:8", ranks, "long 1048577");
    }
}

#[test]
fn cases_hold_among_hosts() {
    let field = Field::new();
    for ranks in [2, 3, 4, 7, 8] {
        holds(&field, "a,b,c,d,e,f,g,h", ranks, "cover");
    }
    holds(&field, "a,b,c", 3, "long 1048577");
}

#[test]
fn cases_hold_among_ranks_of_several_hosts() {
    let field = Field::new();
    holds(&field, "a:3,b:2,c:1", 6, "cover");
    holds(&field, "a:4,b:4", 8, "cover");
}

/// Ranks connect when they first communicate, as in jobs of more than 256 ranks.
#[test]
fn cases_hold_where_ranks_meet_when_they_have_something_to_say() {
    let field = Field::new();
    let ran = suite(&field, "a:2,b:2,c:2,d", 7, "cover").env("RLAUNCH_EAGER_RANKS", "1").run();
    assert!(ran.succeeded().out().ends_with("cases hold among 7 ranks\n"), "{ran}");
}

#[test]
fn no_message_is_lost_or_wrong_in_eight_seconds() {
    let field = Field::new();
    let bound = Duration::from_secs(80);
    let ran = suite(&field, "a:4,b:4", 8, "traffic 8").within(bound).run();
    assert!(ran.succeeded().out().ends_with("rounds of messages among 8 ranks\n"), "{ran}");
}

/// Script of ranks that ignore SIGTERM, so that they can report what they have seen.
const STUBBORN: &str = "trap '' TERM; exec \"$RLAUNCH_PRELOAD_DIR\"/comm-suite lose";
/// Numbers of elements: 8 bytes, and enough that ranks of one host copy directly from each other.
const ELEMENTS: [&str; 2] = ["1", "500000"];
/// Arguments that kill a rank that does not exist: the ranks communicate until the test interferes.
const NOBODY: &str = "9 KILL";

/// Runs three ranks that communicate. The third argument has the number of the rank that ends, and
/// how it ends.
fn loses<'a>(field: &'a Field, hosts: &str, who: &str, elements: &str) -> Run<'a> {
    loses_by(field, hosts, &format!("{STUBBORN} {who} {elements}"))
}

fn loses_by<'a>(field: &'a Field, hosts: &str, script: &str) -> Run<'a> {
    let suite = field.rlaunch.with_file_name("comm-suite");
    let line = format!("-H {hosts} -np 3 --preload {} --kill-after 3", suite.display());
    field.rlaunch(&line).sh(script).within(Duration::from_secs(60))
}

/// Asserts that this number of ranks have printed the sentence, each on its own line.
fn say(ran: &Outcome, ranks: usize, sentence: &str) {
    let said = format!("error: all_reduce: {sentence}");
    let count = ran.err().lines().filter(|line| line.starts_with(&said)).count();
    assert_eq!(count, ranks, "{said}\n{ran}");
}

#[test]
fn a_rank_that_fails_is_named_by_all_the_others_and_by_rlaunch() {
    let field = Field::new();
    let ways = [("KILL", 137, "was killed by signal 9"), ("EXIT", 3, "exited with code 3")];
    for (hosts, host) in [("a:3", "a"), ("a,b,c", "b"), ("a:2,b", "a")] {
        for (how, code, words) in ways {
            let ran = loses(&field, hosts, &format!("1 {how}"), "1").run();
            ran.ended_with(code).says(&[&format!("error: rank 1 on {host} (pid ")]);
            say(&ran, 2, &format!("rank 1 on {host} is lost: it {words}"));
            // Most of the time is spent on the first 50 calls.
            ran.took_less_than(15);
        }
    }
}

#[test]
fn a_rank_that_ends_well_but_without_a_goodbye_is_missed_by_the_others() {
    let field = Field::new();
    // Otherwise the first rank to report the loss would be the next that is lost.
    let leaves = STUBBORN.replace("exec", "[ $RANK != 1 ] || exec");
    let lives_on = STUBBORN.replace("exec", "");
    let script = format!("{leaves} 1 LEAVE 1; {lives_on} 1 LEAVE 1; code=$?; sleep 6; exit $code");
    let ran = loses_by(&field, "a:2,b", &script).run();
    say(&ran, 2, "rank 1 on a is lost: it closed the connection without saying goodbye");
    ran.ended_with(1).took_less_than(15);
}

#[test]
fn a_rank_that_stands_still_is_named_after_the_timeout() {
    let field = Field::new();
    let jobs = ELEMENTS.map(|elements| {
        let run = loses(&field, "a:2,b", "1 STOP", elements).env("RLAUNCH_COMM_TIMEOUT", "5");
        run.spawn()
    });
    for job in jobs {
        let ran = job.finish_first();
        ran.ended_with(1)
            .says(&["error: all_reduce: timed out after 5 s: waiting for rank 1 on a"]);
        ran.took_less_than(15);
    }
}

#[test]
fn an_agent_that_is_killed_takes_its_ranks_along_and_the_others_say_so() {
    let field = Field::new();
    let mut running = loses(&field, "a,b,c", NOBODY, "1").spawn();
    running.wait_for_text("calls hold", 1);
    let mut agents = field.lab.processes("b").unwrap();
    agents.retain(|process| process.args[0].ends_with("rlaunch-worker"));
    let is_child = |process: &&Process| agents.iter().any(|other| other.pid == process.parent);
    let agent = agents.iter().find(is_child).unwrap();
    kill(Pid::from_raw(agent.pid), Signal::SIGKILL).unwrap();
    let ran = running.finish();
    ran.ended_with(206).says(&["error: node b is lost"]).took_less_than(10);
    say(&ran, 2, "rank 1 on b is lost: its node is lost: ");
}

/// Returns a host's address.
fn address(field: &Field, host: &str) -> String {
    let shown = field.on(host, "ip -4 -o addr show dev eth0 primary scope global | head -1");
    shown.split_whitespace().nth(3).unwrap().split('/').next().unwrap().to_owned()
}

#[test]
fn a_network_that_is_cut_between_two_ranks_is_named() {
    let field = Field::new();
    let mut jobs = ELEMENTS.map(|elements| loses(&field, "a,b,c", NOBODY, elements).spawn());
    jobs.iter_mut().for_each(|job| job.wait_for_text("calls hold", 1));
    let c = address(&field, "c");
    let chain = |hook| format!("'{{ type filter hook {hook} priority 0; }}'");
    field.on(
        "b",
        &format!(
            "nft add table inet cut && nft add chain inet cut in {} && \
             nft add chain inet cut out {} && nft add rule inet cut in ip saddr {c} drop && \
             nft add rule inet cut out ip daddr {c} drop",
            chain("input"),
            chain("output")
        ),
    );
    let cut = Stopwatch::start();
    let _heal = Undo(|| {
        field.on("b", "nft delete table inet cut");
        Ok::<(), String>(())
    });
    for job in jobs {
        let ran = job.finish_first();
        // 15 s, plus the time that a busy machine takes to end the job.
        assert!(cut.elapsed() < Duration::from_secs(45), "{:?}\n{ran}", cut.elapsed());
        ran.ended_with(1).says(&["its host has not answered for 1"]);
        let ranks = ["rank 1 on b is lost: ", "rank 2 on c is lost: "];
        let named: usize = ranks.iter().map(|rank| ran.err().matches(rank).count()).sum();
        assert!(named >= 2, "{ran}");
    }
}

/// `nccl#1524`: an MTU of 9000, and a switch between that carries 1500. What is short arrives.
#[test]
fn a_host_that_gets_no_full_packets_is_not_said_to_be_down() {
    let field = Field::new();
    let mut job = loses(&field, "a,b,c", NOBODY, ELEMENTS[1]).spawn();
    job.wait_for_text("calls hold", 1);
    let ways = [("b", address(&field, "c")), ("c", address(&field, "b"))];
    for (host, from) in &ways {
        let rule = format!("ip saddr {from} meta length gt 1400 drop");
        field.on(
            host,
            &format!(
                "nft add table inet cut && \
                 nft add chain inet cut in '{{ type filter hook input priority 0; }}' && \
                 nft add rule inet cut in {rule}"
            ),
        );
    }
    let _heal = Undo(|| {
        ways.iter().for_each(|(host, _)| drop(field.on(host, "nft delete table inet cut")));
        Ok::<(), String>(())
    });
    let ran = job.finish_first();
    ran.ended_with(1);
    ran.says(&["is lost: its host answers, but data has not reached it for 1"]);
    ran.says(&["rlaunch doctor -H"]).keeps_quiet_about(&["it is down"]);
}

#[test]
fn an_abort_ends_all_with_its_reason() {
    let field = Field::new();
    let ran = suite(&field, "a:2,b", 3, "abort").run();
    ran.ended_with(1).says(&["rank 1 on a aborted the job: no data"]).took_less_than(10);
}

#[test]
fn ranks_wait_for_all_of_them_as_long_as_they_are_told() {
    let field = Field::new();
    let suite = field.rlaunch.with_file_name("comm-suite");
    let line = format!("-H a,b --preload {} --init-timeout 2 --show env", suite.display());
    let script = "test $RANK = 0 || sleep 60; exec \"$RLAUNCH_PRELOAD_DIR\"/comm-suite cover";
    let run = field.rlaunch(&line).sh(script).env("RLAUNCH_INIT_TIMEOUT", "50");
    let ran = run.within(Duration::from_secs(60)).run();
    ran.ended_with(1).says(&["not within 2 s: missing rank 1 ", "--init-timeout"]);
    assert!(ran.took_less_than(30).out().contains("RLAUNCH_INIT_TIMEOUT=2 "), "{ran}");
}
