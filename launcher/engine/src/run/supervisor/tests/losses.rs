//! Nodes that are lost, and links that go down.

use super::{check, check_links};

#[test]
fn a_lost_node_ends_the_job() {
    check(
        "-H a,b x",
        r#"
        0.10 b lost: the connection ended
          event node_lost cause="the connection ended" host="b"
          to all: event: node 1 lost: the connection ended
          to all: end
          readers may pause for 1 s
        0.20 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.30 b cleaned-up: 1 ended, 0 segments removed
        exit 206, may restart: node b is lost: the connection ended
          b: agent lost, nothing more found (1 ended, 0 segments removed)
          all processes ended on a
        "#,
    );
}

#[test]
fn a_second_lost_node_is_a_warning() {
    check(
        "-H a,b x",
        r#"
        0.10 b lost: nothing received for 10 s
          event node_lost cause="nothing received for 10 s" host="b"
          to all: event: node 1 lost: nothing received for 10 s
          to all: end
          readers may pause for 1 s
        0.20 a lost: nothing received for 10 s
          event node_lost cause="nothing received for 10 s" host="a"
          readers may pause for 1 s
          warning: node a is lost: nothing received for 10 s
        0.30 b cleaned-up: unreachable
        0.30 a cleaned-up: unreachable
        exit 206, may restart: node b is lost: nothing received for 10 s
          a, b: lost; its ranks end there by themselves, which was not verified
        hint: `rlaunch reap amber-fox -H a,b` ends what may be left there
        "#,
    );
}

#[test]
fn an_agent_that_cannot_go_on_is_lost() {
    check(
        "-H a,b x",
        r#"
        0.10 b cannot open /dev/null: No such file or directory
          event node_lost cause="cannot open /dev/null: No such file or directory" host="b"
          to all: event: node 1 lost: cannot open /dev/null: No such file or directory
          to all: end
          readers may pause for 1 s
        0.20 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.30 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        exit 206, may restart: node b is lost: cannot open /dev/null: No such file or directory
          all processes ended on a, b
        "#,
    );
}

#[test]
fn a_node_is_lost_once() {
    check(
        "-H a,b x",
        r#"
        0.10 b cannot open /dev/null: No such file or directory
          event node_lost cause="cannot open /dev/null: No such file or directory" host="b"
          to all: event: node 1 lost: cannot open /dev/null: No such file or directory
          to all: end
          readers may pause for 1 s
        0.20 b lost: the connection ended
        0.30 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.40 b cleaned-up: unreachable
        exit 206, may restart: node b is lost: cannot open /dev/null: No such file or directory
          b: lost; its ranks end there by themselves, which was not verified
          all processes ended on a
        hint: `rlaunch reap amber-fox -H b` ends what may be left there
        "#,
    );
}

#[test]
fn a_node_that_gave_up_this_launcher_is_lost() {
    check(
        "-H a,b x",
        r#"
        0.10 b unheard 20
          event node_lost cause="it received nothing from this rlaunch for 20 s and gave up" host="b"
          to all: event: node 1 lost: it received nothing from this rlaunch for 20 s and gave up
          to all: end
          readers may pause for 1 s
        0.20 a unheard 20
        0.30 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.30 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        exit 206, may restart: node b is lost: it received nothing from this rlaunch for 20 s and gave up
          all processes ended on a, b
        hint: hosts cannot tell an rlaunch that is suspended or cut off from one that has died; --node-timeout sets how long they wait once they have the job
        "#,
    );
}

#[test]
fn a_job_that_its_batch_system_ends_does_not_start_again() {
    check(
        "--kill-after 600 -H a,b x",
        r#"
        0.10 b job-over: task is ended
          event node_lost cause="task is ended" host="b"
          to all: event: node 1 lost: task is ended
          to all: end
          readers may pause for 1 s
        0.20 a job-over: task is ended
        3.00 a job-over: task has ended
          to all: end now
        3.10 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        3.20 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        exit 206: node b is lost: task is ended
          all processes ended on a, b
        "#,
    );
}

#[test]
fn a_job_that_is_being_ended_ends_now_when_its_batch_system_ends_it() {
    check(
        "--kill-after 600 -H a,b x",
        r#"
        0.10 signal SIGTERM
          to all: event: ending: ended by SIGTERM
          to all: end
          readers may pause for 1 s
        0.20 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.30 a job-over: task is ended
        0.30 b job-over: task is ended
          to all: end now
        9.00 wait
        exit 143: ended by SIGTERM
          b: its end was not reported
          all processes ended on a
        hint: `rlaunch reap amber-fox -H b` ends what may be left there
        "#,
    );
}

#[test]
fn a_node_whose_agent_was_told_to_end_is_lost_whatever_its_ranks_do() {
    check(
        "-H a,b x",
        r#"
        0.10 b got-signal 15
          event node_lost cause="its agent got signal 15 (SIGTERM) and ended" host="b"
          to all: event: node 1 lost: its agent got signal 15 (SIGTERM) and ended
          to all: end
          readers may pause for 1 s
        0.20 b exited 1 signal 15
          event rank_exited host="b" pid=101 rank=1 signal=15
        0.30 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        0.30 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        exit 206, may restart: node b is lost: its agent got signal 15 (SIGTERM) and ended
          all processes ended on a, b
        hint: a host that shuts down, its batch system or a person there sends it to rlaunch-worker
        "#,
    );
}

#[test]
fn a_lost_node_explains_its_broken_edge() {
    check(
        "-H a,b x",
        r#"
        0.10 a edge-broke b connection reset
          event edge_relayed child="b" parent="a"
        0.50 b lost: the connection ended
          event node_lost cause="the connection ended" host="b"
          to all: event: node 1 lost: the connection ended
          to all: end
          readers may pause for 1 s
        1.20 wait
        1.30 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        1.30 b cleaned-up: unreachable
        exit 206, may restart: node b is lost: the connection ended
          b: lost; its ranks end there by themselves, which was not verified
          all processes ended on a
        hint: `rlaunch reap amber-fox -H b` ends what may be left there
        "#,
    );
}

#[test]
fn a_link_goes_down_and_is_proved_again() {
    check_links(
        "",
        r#"
        10.00 a link-down 0 no beat for 5.0 s
          event link_down text="link down: a rocep1s0f0 ↔ b rocep1s0f0 after 10 s (no beat for 5.0 s); ranks 0 and 1 use it"
          warning: link down: a rocep1s0f0 ↔ b rocep1s0f0 after 10 s (no beat for 5.0 s); ranks 0 and 1 use it
        10.10 b link-down 0 no beat for 5.0 s
        13.00 timeout
          to a: prove [3] in round 1
          to b: prove [3] in round 1
        13.10 a meets 1
        13.20 b meets 1
          to b: met [[7]]
          to a: met [[7]]
        13.30 a proved 1 3 up
        13.40 b proved 1 3 up
          to a: watch [1, 3]
          to b: watch [2, 3]
          event link_up text="link up: a rocep1s0f0 ↔ b rocep1s0f0 after 3 s without it"
          rlaunch: link up: a rocep1s0f0 ↔ b rocep1s0f0 after 3 s without it
        13.50 b link-down 3 status 12
          event link_down text="link down: a rocep1s0f0 ↔ b rocep1s0f0 after 13 s (status 12); ranks 0 and 1 use it"
          warning: link down: a rocep1s0f0 ↔ b rocep1s0f0 after 13 s (status 12); ranks 0 and 1 use it
        (goes on)
        "#,
    );
}

#[test]
fn a_link_that_cannot_be_proved_again_is_dead() {
    check_links(
        "",
        r#"
        10.00 a link-down 0 no beat for 5.0 s
          event link_down text="link down: a rocep1s0f0 ↔ b rocep1s0f0 after 10 s (no beat for 5.0 s); ranks 0 and 1 use it"
          warning: link down: a rocep1s0f0 ↔ b rocep1s0f0 after 10 s (no beat for 5.0 s); ranks 0 and 1 use it
        10.50 a port-up 0
        10.50 timeout
          to a: prove [3] in round 1
          to b: prove [3] in round 1
        10.60 a proved 1 3 no route
        10.70 b proved 1 3 up
          to a: event: nodes 0, 1: link down: a rocep1s0f0 ↔ b rocep1s0f0 after 10 s (no beat for 5.0 s); ranks 0 and 1 use it
          to b: event: nodes 0, 1: link down: a rocep1s0f0 ↔ b rocep1s0f0 after 10 s (no beat for 5.0 s); ranks 0 and 1 use it
        13.70 timeout
          to a: prove [4] in round 2
          to b: prove [4] in round 2
        13.80 a proved 2 4 no route
        13.90 b proved 2 4 no route
        (goes on)
        "#,
    );
}

#[test]
fn a_node_proves_one_link_at_a_time() {
    check_links(
        "",
        r#"
        10.00 a link-down 0 status 12
          event link_down text="link down: a rocep1s0f0 ↔ b rocep1s0f0 after 10 s (status 12); ranks 0 and 1 use it"
          warning: link down: a rocep1s0f0 ↔ b rocep1s0f0 after 10 s (status 12); ranks 0 and 1 use it
        10.00 a link-down 1 status 12
          event link_down text="link down: a rocep1s0f1 ↔ c rocep1s0f1 after 10 s (status 12); ranks 0 and 2 use it"
          warning: link down: a rocep1s0f1 ↔ c rocep1s0f1 after 10 s (status 12); ranks 0 and 2 use it
        10.00 b link-down 2 status 12
          event link_down text="link down: b rocep1s0f1 ↔ c rocep1s0f0 after 10 s (status 12); ranks 1 and 2 use it"
          warning: link down: b rocep1s0f1 ↔ c rocep1s0f0 after 10 s (status 12); ranks 1 and 2 use it
        13.00 timeout
          to a: prove [3] in round 1
          to b: prove [3] in round 1
        13.20 timeout
        (goes on)
        "#,
    );
}

#[test]
fn a_link_that_goes_down_ends_the_job_where_that_is_wanted() {
    check_links(
        "--abort-on-link-down ",
        r#"
        10.00 a link-down 0 no beat for 5.0 s
          event link_down text="link down: a rocep1s0f0 ↔ b rocep1s0f0 after 10 s (no beat for 5.0 s); ranks 0 and 1 use it"
          to all: event: ending: link down: a rocep1s0f0 ↔ b rocep1s0f0 after 10 s (no beat for 5.0 s); ranks 0 and 1 use it
          to all: end
        10.10 a link-down 1 no beat for 5.0 s
        10.20 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        10.20 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        10.20 c done
          event node_clean helpers_ended=0 host="c" segments_removed=0
        exit 205, may restart: link down: a rocep1s0f0 ↔ b rocep1s0f0 after 10 s (no beat for 5.0 s); ranks 0 and 1 use it
          all processes ended on a, b, c
        "#,
    );
}
