//! Jobs that are ended: by a rank, the user, a limit or a service.

use super::check;

#[test]
fn the_first_failure_ends_the_others() {
    check(
        "-H a,b,c x",
        r#"
        0.10 b exited 1 code 3
          event rank_exited code=3 host="b" pid=101 rank=1
          to all: event: rank 1 exited with code 3, which ends the job
          to all: end
        0.20 a exited 0 signal 15
          event rank_exited host="a" pid=100 rank=0 signal=15
        0.20 c exited 2 code 0
          event rank_exited code=0 host="c" pid=102 rank=2
        0.30 c exited 2 code 9 at 0.05
          event rank_exited code=9 host="c" pid=102 rank=2
        0.40 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.40 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        0.40 c done
          event node_clean helpers_ended=0 host="c" segments_removed=0
        exit 9 of the rank, may restart: rank 2 on c (pid 102) exited with code 9
          1 more rank failed
          all processes ended on a, b, c
        "#,
    );
}

#[test]
fn a_rank_is_killed_for_want_of_memory() {
    check(
        "-H a x",
        r#"
        0.10 a exited 0 signal 9 oom
          event rank_exited host="a" pid=100 rank=0 signal=9
          to all: event: rank 0 was killed by signal 9, which ends the job
          to all: end
        0.20 a done left 7 x D
          event node_clean helpers_ended=0 host="a" segments_removed=0
        exit 137 of the rank, may restart: rank 0 on a (pid 100) was killed by signal 9 (SIGKILL)
          the kernel's out-of-memory killer was active on a at that time
          a: could not end 7 x D
        hint: fewer ranks per host, or less memory for each
        "#,
    );
}

#[test]
fn nodes_that_do_not_report_their_end_are_given_up() {
    check(
        "-H a,b --kill-after 2 x",
        r#"
        0.10 a exited 0 code 1
          event rank_exited code=1 host="a" pid=100 rank=0
          to all: event: rank 0 exited with code 1, which ends the job
          to all: end
        0.20 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        6.00 wait
        6.10 wait
        exit 1 of the rank, may restart: rank 0 on a (pid 100) exited with code 1
          b: its end was not reported
          all processes ended on a
        hint: `rlaunch reap amber-fox -H b` ends what may be left there
        "#,
    );
}

#[test]
fn a_reader_that_pauses_holds_back_the_reports_of_nodes() {
    check(
        "-H a --kill-after 2 x",
        r#"
        0.10 a exited 0 code 1
          event rank_exited code=1 host="a" pid=100 rank=0
          to all: event: rank 0 exited with code 1, which ends the job
          to all: end
        1.00 reader pauses
        60.00 wait
        60.10 signal SIGINT
          to all: end now
          readers may pause for 1 s
        61.10 reader reads
        61.20 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        exit 1 of the rank, may restart: rank 0 on a (pid 100) exited with code 1
          all processes ended on a
        "#,
    );
}

#[test]
fn a_launcher_that_was_suspended_waits_for_nodes_again() {
    check(
        "-H a --kill-after 2 x",
        r#"
        0.10 a exited 0 code 1
          event rank_exited code=1 host="a" pid=100 rank=0
          to all: event: rank 0 exited with code 1, which ends the job
          to all: end
        30.00 late timeout
        35.90 wait
        36.00 wait
        exit 1 of the rank, may restart: rank 0 on a (pid 100) exited with code 1
          a: its end was not reported
        hint: `rlaunch reap amber-fox -H a` ends what may be left there
        "#,
    );
}

#[test]
fn a_node_that_was_suspended_has_its_grace_again() {
    check(
        "-H a --kill-after 0 x",
        r#"
        0.10 signal SIGTERM
          to all: event: ending: ended by SIGTERM
          to all: end
          readers may pause for 1 s
        4.00 a stood-still
        7.90 wait
        8.00 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        exit 143: ended by SIGTERM
          all processes ended on a
        "#,
    );
}

#[test]
fn the_first_signal_of_the_user_leaves_ranks_their_grace() {
    check(
        "-H a,b x",
        r#"
        0.10 signal SIGTERM
          to all: event: ending: ended by SIGTERM
          to all: end
          readers may pause for 1 s
        0.20 a exited 0 code 143
          event rank_exited code=143 host="a" pid=100 rank=0
        0.30 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.30 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        exit 143: ended by SIGTERM
          all processes ended on a, b
        "#,
    );
}

#[test]
fn the_second_signal_of_the_user_does_not() {
    check(
        "-H a,b --kill-after 60 x",
        r#"
        0.10 signal SIGINT
          to all: event: ending: ended by SIGINT
          to all: end
          readers may pause for 1 s
        0.20 signal SIGINT
          to all: end now
          readers may pause for 0 s
        0.30 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        4.10 wait
        4.20 wait
        exit 130: ended by SIGINT
          b: its end was not reported
          all processes ended on a
        hint: `rlaunch reap amber-fox -H b` ends what may be left there
        "#,
    );
}

#[test]
fn a_signal_while_the_job_ends_hurries_it() {
    check(
        "-H a,b x",
        r#"
        0.10 b exited 1 code 1
          event rank_exited code=1 host="b" pid=101 rank=1
          to all: event: rank 1 exited with code 1, which ends the job
          to all: end
        0.20 signal SIGHUP
          to all: end now
          readers may pause for 1 s
        0.30 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.30 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        exit 1 of the rank, may restart: rank 1 on b (pid 101) exited with code 1
          all processes ended on a, b
        "#,
    );
}

#[test]
fn ctrl_z_suspends_a_job_that_ends() {
    check(
        "-H a,b x",
        r#"
        0.10 signal SIGINT
          to all: event: ending: ended by SIGINT
          to all: end
          readers may pause for 1 s
        0.20 ctrl-z
          to all: suspend
          (suspending)
        0.30 a suspended
          (suspending)
        0.30 b suspended
          stop this process
          to all: resume
        0.40 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.40 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        exit 130: interrupted: 2 ranks ended
        "#,
    );
}

#[test]
fn a_job_has_a_time_limit() {
    check(
        "-H a,b --timeout 1.5 x",
        r#"
        0.10 b exited 1 code 0
          event rank_exited code=0 host="b" pid=101 rank=1
        0.20 timeout
          to all: event: ranks 1 finished
        1.50 timeout
          to all: event: ending: not done within 1.5 s
          to all: end
          readers may pause for 1 s
        1.60 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        1.60 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        exit 124: not done within 1.5 s (--timeout)
          all processes ended on a, b
        "#,
    );
}

#[test]
fn a_job_whose_output_is_not_read_ends() {
    check(
        "-H a x",
        r#"
        0.10 reader gone
          to all: event: ending: its output cannot be written any more
          to all: end
          readers may pause for 1 s
        0.20 reader gone
        0.30 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        exit 141: 
          all processes ended on a
        "#,
    );
}

#[test]
fn a_rank_aborts_the_job() {
    check(
        "-H a,b x",
        r#"
        0.10 b aborted-by 1 no data
          to all: event: ending: rank 1 on b aborted the job: no data
          to all: end
        0.20 a aborted-by 0 me too
        0.30 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.30 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        exit 1, may restart: rank 1 on b aborted the job: no data
          all processes ended on a, b
        "#,
    );
    check(
        "-H a x",
        r#"
        0.10 a aborted: by hand
          to all: event: ending: a aborted the job: by hand
          to all: end
        0.20 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        exit 1, may restart: a aborted the job: by hand
          all processes ended on a
        "#,
    );
}

#[test]
fn services_end_together() {
    check(
        "-H a,b --serve x",
        r#"
        0.10 b exited 1 code 0
          event rank_exited code=0 host="b" pid=101 rank=1
          to all: event: ending: rank 1 on b has ended, so the others are ended too
          to all: end
        0.20 a exited 0 code 143
          event rank_exited code=143 host="a" pid=100 rank=0
        0.30 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.30 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        rlaunch: rank 1 on b has ended, so the others are ended too
        exit 0
        "#,
    );
    check(
        "-H a,b --serve x",
        r#"
        0.10 b exited 1 code 7
          event rank_exited code=7 host="b" pid=101 rank=1
          to all: event: rank 1 exited with code 7, which ends the job
          to all: end
        0.30 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.30 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        exit 7 of the rank, may restart: rank 1 on b (pid 101) exited with code 7
          all processes ended on a, b
        "#,
    );
}

#[test]
fn mpi_that_is_linked_ends_the_job() {
    check(
        "-H a,b x",
        r#"
        0.10 b unserved 101 linked
          to all: event: ending: process 101 on b runs MPI (libmpi.so.40), which needs PMIx; rlaunch does not serve it, so every rank would be rank 0 of 1
          to all: end
        0.20 a unserved 100 linked
        0.30 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.30 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        exit 207: process 101 on b runs MPI (libmpi.so.40), which needs PMIx; rlaunch does not serve it, so every rank would be rank 0 of 1
          all processes ended on a, b
        hint: leave out --mpi none; --singleton warn lets it run anyway
        "#,
    );
}

#[test]
fn sessions_that_close_end_the_wait() {
    check(
        "-H a,b x",
        r#"
        0.10 signal SIGINT
          to all: event: ending: ended by SIGINT
          to all: end
          readers may pause for 1 s
        0.20 sessions closed
        exit 130: ended by SIGINT
          a, b: its end was not reported
        hint: `rlaunch reap amber-fox -H a,b` ends what may be left there
        "#,
    );
}

#[test]
fn mpi_abort_gives_the_job_its_code() {
    check(
        "-H a,b x",
        r#"
        0.10 b mpi-aborted-by 1 7 N/A
          to all: event: ending: rank 1 on b called MPI_Abort(7)
          to all: end
        0.11 b exited 1 code 7
          event rank_exited code=7 host="b" pid=101 rank=1
        0.20 a exited 0 signal 15 ended
          event rank_exited host="a" pid=100 rank=0 signal=15
        0.30 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.30 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        exit 7, may restart: rank 1 on b called MPI_Abort(7)
          all processes ended on a, b
        "#,
    );
}

#[test]
fn a_rank_that_fails_because_of_an_abort_is_not_blamed() {
    check(
        "-H a,b x",
        r#"
        0.10 b mpi-aborted-by 1 7 N/A
          to all: event: ending: rank 1 on b called MPI_Abort(7)
          to all: end
        0.20 a exited 0 signal 6
          event rank_exited host="a" pid=100 rank=0 signal=6
        0.30 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.30 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        exit 7, may restart: rank 1 on b called MPI_Abort(7)
          all processes ended on a, b
        "#,
    );
}

/// MPI libraries call `MPI_Abort` when they lose the connection to a rank.
#[test]
fn an_abort_because_a_rank_has_gone_names_that_rank() {
    check(
        "-H a,b x",
        r#"
        0.10 b mpi-aborted-by 1 14 N/A
          to all: event: ending: rank 1 on b called MPI_Abort(14)
          to all: end
        0.11 b exited 1 code 14
          event rank_exited code=14 host="b" pid=101 rank=1
        0.20 a exited 0 signal 9
          event rank_exited host="a" pid=100 rank=0 signal=9
        0.30 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.30 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        exit 137 of the rank, may restart: rank 0 on a (pid 100) was killed by signal 9 (SIGKILL)
          all processes ended on a, b
        "#,
    );
}

#[test]
fn a_rank_that_ends_before_it_is_heard_to_abort_has_aborted() {
    check(
        "-H a,b x",
        r#"
        0.10 b exited 1 code 0 unfinalized
          event rank_exited code=0 host="b" pid=101 rank=1
          to all: event: rank 1 exited with code 0, which ends the job
          to all: end
        0.11 b mpi-aborted-by 1 263 Fatal error in internal_Send
        0.20 a exited 0 signal 15
          event rank_exited host="a" pid=100 rank=0 signal=15
        0.30 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.30 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        exit 7, may restart: rank 1 on b called MPI_Abort(263)
            Fatal error in internal_Send
          all processes ended on a, b
        "#,
    );
}

#[test]
fn a_rank_that_leaves_mpi_unfinished_has_failed() {
    check(
        "-H a,b x",
        r#"
        0.10 b exited 1 code 0 unfinalized
          event rank_exited code=0 host="b" pid=101 rank=1
          to all: event: rank 1 exited with code 0, which ends the job
          to all: end
        0.20 a exited 0 code 0 unfinalized
          event rank_exited code=0 host="a" pid=100 rank=0
        0.30 a done
          event node_clean helpers_ended=0 host="a" segments_removed=0
        0.30 b done
          event node_clean helpers_ended=0 host="b" segments_removed=0
        exit 1 of the rank, may restart: rank 1 on b (pid 101) exited without MPI_Finalize
          all processes ended on a, b
        "#,
    );
}
