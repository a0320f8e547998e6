//! Jobs whose ranks end by themselves, and what is reported meanwhile.

use super::check;

#[test]
fn ranks_that_succeed() {
    check(
        "-H a,b x",
        r#"
        0.10 a started 0
          event rank_started host="a" pid=100 rank=0
        0.10 b started 1
          event rank_started host="b" pid=101 rank=1
        0.50 a exited 0 code 0
          event rank_exited code=0 host="a" pid=100 rank=0
        0.52 b exited 1 code 0
          event rank_exited code=0 host="b" pid=101 rank=1
        0.53 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.54 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        exit 0
        "#,
    );
}

#[test]
fn an_application_starts_once_its_conditions_are_met() {
    check(
        "-H a,b -np 1 --name srv x : -H b -np 1 --name cli --after srv,ready:tcp:a:80 y",
        r#"
        0.10 a started 0
          event rank_started host="a" pid=100 rank=0
        10.00 timeout
          rlaunch: application 2 (cli) waits for ready:tcp:a:80, 10 s so far
        10.50 a port 0
          to b: start application 2
        10.60 b started 1
          event rank_started host="b" pid=101 rank=1
        10.70 a exited 0 code 0
          event rank_exited code=0 host="a" pid=100 rank=0
        10.70 b exited 1 code 0
          event rank_exited code=0 host="b" pid=101 rank=1
        10.80 timeout
          to all: event: ranks 0-1 finished
        10.90 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        10.90 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        exit 0
        "#,
    );
}

#[test]
fn an_application_does_not_start_while_the_job_ends() {
    check(
        "-H a,b -np 1 --name srv x : -H b -np 1 --after srv y",
        r#"
        0.10 a exited 0 code 1
          event rank_exited code=1 host="a" pid=100 rank=0
          to all: event: rank 0 exited with code 1, which ends the job
          to all: end
        0.20 a started 0
          event rank_started host="a" pid=100 rank=0
        0.30 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.30 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        exit 1 of the rank, may restart: rank 0 on a (pid 100) exited with code 1
          all processes ended on a, b
        "#,
    );
}

#[test]
fn signals_reach_the_ranks() {
    check(
        "-H a,b x",
        r#"
        0.10 signal SIGUSR1
          to all: SIGUSR1
        0.20 signal SIGWINCH
          to all: SIGWINCH
        0.25 resize 30 100
          to all: resize 30 100
        0.30 signal SIGCONT
          to all: SIGCONT
        (goes on)
        "#,
    );
}

#[test]
fn ctrl_z_waits_for_the_ranks_to_stop() {
    check(
        "-H a,b --timeout 3 x",
        r#"
        0.10 a started 0
          event rank_started host="a" pid=100 rank=0
        2.90 ctrl-z
          to all: suspend
          (suspending)
        2.95 a suspended
          (suspending)
        2.96 a exited 0 code 0
          event rank_exited code=0 host="a" pid=100 rank=0
          (suspending)
        2.97 b suspended
          stop this process
          to all: resume
        9.00 late timeout
          to all: event: ranks 0 finished
          to all: event: ending: not done within 3 s
          to all: end
          readers may pause for 1 s
        (goes on)
        "#,
    );
}

#[test]
fn ctrl_z_does_not_wait_for_a_node_that_is_silent() {
    check(
        "-H a,b x",
        r#"
        0.10 a suspended
        0.20 ctrl-z
          to all: suspend
          (suspending)
        0.30 a suspended
          (suspending)
        1.20 timeout
          stop this process
          to all: resume
        (goes on)
        "#,
    );
}

#[test]
fn ctrl_z_ends_with_the_sessions() {
    check(
        "-H a,b x",
        r#"
        0.10 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.20 ctrl-z
          to all: suspend
          (suspending)
        0.30 sessions closed
          stop this process
          to all: resume
        exit 0
        "#,
    );
}

#[test]
fn ctrl_z_stops_a_job_whose_last_node_ends_meanwhile() {
    check(
        "-H a x",
        r#"
        0.20 ctrl-z
          to all: suspend
          (suspending)
        0.30 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
          (suspending)
        1.20 timeout
          stop this process
          to all: resume
        exit 0
        "#,
    );
}

#[test]
fn messages_are_relayed_between_neighbours_only() {
    check(
        "-H a,b,c x",
        r#"
        0.10 a relays b 5
          to b: 5 bytes of a
        0.20 c relays b 7
          to b: 7 bytes of c
        0.30 a relays c 9
        (goes on)
        "#,
    );
}

#[test]
fn a_broken_edge_is_printed_late_and_once() {
    check(
        "-H a,b,c x",
        r#"
        0.10 b edge-broke a connection reset
          event edge_relayed child="b" parent="a"
        0.20 a edge-broke b connection reset
        0.30 c edge-broke b timed out
          event edge_relayed child="c" parent="b"
        1.10 timeout
          rlaunch: the connection between b and a broke (connection reset): their messages go through this machine
          rlaunch: the connection between c and b broke (timed out): their messages go through this machine; `rlaunch doctor -H b,c` tells whether large packets are lost (MTU)
        (goes on)
        "#,
    );
}

#[test]
fn waits_are_printed_and_logged() {
    check(
        "-H a,b,c x",
        r#"
        0.10 a waits-for 2
          event waiting missing="rank 2 on c (pid 102, running, has not arrived)" seconds=10.0 what="barrier \"x\""
          rlaunch: barrier "x": waiting 10 s for rank 2 on c (pid 102, running, has not arrived)
        0.20 a waits-for 1 2
          event waiting missing="rank 1 on b (pid 101, running, has not arrived), and 1 more" seconds=10.0 what="barrier \"x\""
          rlaunch: barrier "x": waiting 10 s for rank 1 on b (pid 101, running, has not arrived), and 1 more
        0.30 a waits-for-key k
          rlaunch: ranks have waited 10 s for key k: no rank has put it
        0.40 b event-of 1 epoch 3
          event rank_event rank=1 text="epoch 3"
        0.50 b no-library: disk full
          warning: b: ranks have no library to link or import: disk full
        (goes on)
        "#,
    );
}

#[test]
fn ranks_of_other_nodes_are_not_believed() {
    check(
        "-H a,b x",
        r#"
        0.10 a started 1
        0.20 a exited 1 code 3
        (goes on)
        "#,
    );
}

#[test]
fn mpi_is_warned_of_once() {
    check(
        "-H a,b x",
        r#"
        0.10 a unserved 100 loaded
          warning: process 100 on a runs MPI (libmpi.so.40), which needs PMIx; rlaunch does not serve it, so every rank would be rank 0 of 1
        0.20 b unserved 101 loaded
        (goes on)
        "#,
    );
    check(
        "-H a,b --singleton warn x",
        r#"
        0.10 a unserved 100 linked
          warning: process 100 on a runs MPI (libmpi.so.40), which needs PMIx; rlaunch does not serve it, so every rank would be rank 0 of 1
        (goes on)
        "#,
    );
}

#[test]
fn all_failures_are_reported_where_the_others_go_on() {
    check(
        "-H a,b,c --continue-on-error x",
        r#"
        0.10 a exited 0 code 0
          event rank_exited code=0 host="a" pid=100 rank=0
        0.20 timeout
          to all: event: ranks 0 finished
        0.50 c exited 2 code 4 at 0.45
          event rank_exited code=4 host="c" pid=102 rank=2
          to all: event: rank 2 exited with code 4
        0.60 b exited 1 code 3 at 0.40
          event rank_exited code=3 host="b" pid=101 rank=1
          to all: event: rank 1 exited with code 3
        0.70 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.70 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        0.70 c done
          event node_clean helpers_ended=0 host="c" segments_removed=0
        exit 3 of the rank, may restart: rank 1 on b (pid 101) exited with code 3
          1 more rank failed
          all processes ended on a, b, c
        "#,
    );
}

#[test]
fn an_agent_that_reports_too_much_is_cut_short() {
    let report = "b no-library: disk full\n";
    let line = "  warning: b: ranks have no library to link or import: disk full\n";
    let mut script = format!("0.10 {report}{line}").repeat(100);
    script += "  warning: b: its agent sends too many reports, the next are left out\n";
    script += &format!("0.10 {report}").repeat(3);
    // Each second earns another one.
    script += &format!("1.20 {report}{line}1.20 {report}");
    let long = "x".repeat(3000);
    let cut = "x".repeat(2000 - "a: ranks have no library to link or import: ".len());
    script += &format!(
        "2.00 a no-library: {long}\n{}{cut}…\n",
        line[..].replace(": b:", ": a:").trim_end_matches("disk full\n")
    );
    check("-H a,b x", &(script + "(goes on)"));
}
