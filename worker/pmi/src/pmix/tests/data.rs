//! Requests of every MPI program: commits, fences and gets.

use super::*;

/// Lets time pass for all servers.
fn pass(job: &mut Job, now: Instant) {
    for server in &mut job.servers {
        server.handle_timeout(now);
    }
    job.settle();
}

#[test]
fn a_client_greets_learns_the_job_and_finalizes() {
    let mut job = Job::new(&[&[0, 1], &[2]]);
    let client = start(&mut job, 1, 2);
    assert_eq!(job.events(), [Output::Connected(2, Family::Pmix)]);
    let answers = ask(&mut job, client, 5, &body(0));
    let layout = job.servers[1].layout();
    assert_eq!(answers, [crate::pmix::job_info::body(layout)]);
    assert_eq!(status(&mut job, client, &body(5)), Some(SUCCESS));
    assert_eq!(job.events(), [Output::Finalized(2)]);
    assert!(!job.is_closed(client));
    job.send(client, &framed(1, &body(0)));
    assert!(job.is_closed(client));
}

#[test]
fn data_is_everywhere_after_a_fence_for_those_it_is_meant_for() {
    let (mut job, clients) = start_all(&[&[0, 1], &[2]]);
    let mine = commit(&[(1, "near", "a"), (2, "far", "b"), (3, "all", "c")]);
    assert_eq!(status(&mut job, clients[0], &mine), Some(SUCCESS));
    assert_eq!(status(&mut job, clients[1], &fence_all()), None);
    assert_eq!(status(&mut job, clients[0], &fence_all()), None);
    assert_eq!(job.gathered.len(), 0);
    assert_eq!(status(&mut job, clients[2], &fence_all()), Some(SUCCESS));
    assert_eq!(received_status(&mut job, clients[0]), Some(SUCCESS));
    assert_eq!(received_status(&mut job, clients[1]), Some(SUCCESS));
    assert_eq!(job.gathered, ["pmix:fence:0"]);
    let near = ask(&mut job, clients[1], 1, &get(0, "near", &[]));
    assert_eq!(data_of(&near[0], 0), pairs(&[("all", "c"), ("near", "a")]));
    let far = ask(&mut job, clients[2], 1, &get(0, "", &[]));
    assert_eq!(data_of(&far[0], 0), pairs(&[("all", "c"), ("far", "b")]));
    assert!(job.stored.is_empty());
}

#[test]
fn a_fence_that_lists_all_ranks_is_one_of_all() {
    let (mut job, clients) = start_all(&[&[0], &[1]]);
    assert_eq!(status(&mut job, clients[0], &fence(&[1, 0])), None);
    assert_eq!(status(&mut job, clients[1], &fence_all()), Some(SUCCESS));
    assert_eq!(received_status(&mut job, clients[0]), Some(SUCCESS));
}

#[test]
fn a_fence_fails_if_a_rank_has_ended_that_had_not_arrived() {
    let (mut job, clients) = start_all(&[&[0, 1], &[2]]);
    assert_eq!(status(&mut job, clients[0], &fence_all()), None);
    assert_eq!(status(&mut job, clients[2], &fence_all()), None);
    job.end(0, 1);
    let failed = Some(Status::PROC_ABORTED.0);
    assert_eq!(received_status(&mut job, clients[0]), failed);
    assert_eq!(received_status(&mut job, clients[2]), failed);
    for client in [clients[0], clients[2]] {
        assert_eq!(status(&mut job, client, &get(1, "k", &[])), Some(NOT_FOUND));
        assert_eq!(status(&mut job, client, &fence_all()), failed);
    }
}

/// A rank may want data of one that waits for it in a fence.
#[test]
fn data_that_a_fence_does_not_bring_in_time_is_stored() {
    let (mut job, clients) = start_all(&[&[0], &[1]]);
    assert_eq!(status(&mut job, clients[0], &commit(&[(3, "k", "v")])), Some(SUCCESS));
    assert_eq!(status(&mut job, clients[0], &fence_all()), None);
    assert_eq!(status(&mut job, clients[1], &get(0, "k", &[])), None);
    let now = Instant::now();
    pass(&mut job, now + Duration::from_millis(100));
    assert!(job.received(clients[1]).is_empty());
    pass(&mut job, now + Duration::from_millis(1100));
    let answers = messages(&job.received(clients[1]));
    assert_eq!(data_of(&answers[0].1, 0), pairs(&[("k", "v")]));
    assert_eq!(status(&mut job, clients[1], &fence_all()), Some(SUCCESS));
    assert_eq!(job.servers[0].poll_timeout(), None);
}

/// A shell may go on to the next program after one was killed in a fence.
#[test]
fn a_program_that_is_killed_in_a_fence_does_not_disturb_the_next() {
    let (mut job, killed) = start_all(&[&[0, 1], &[2]]);
    for client in [killed[0], killed[2]] {
        assert_eq!(status(&mut job, client, &fence_all()), None);
    }
    killed.into_iter().for_each(|client| job.close(client));
    let next = [start(&mut job, 0, 0), start(&mut job, 0, 1), start(&mut job, 1, 2)];
    for value in ["a", "b"] {
        assert_eq!(status(&mut job, next[1], &commit(&[(2, "k", value)])), Some(SUCCESS));
        assert_eq!(status(&mut job, next[0], &fence_all()), None);
        assert_eq!(status(&mut job, next[1], &fence_all()), None);
        assert_eq!(status(&mut job, next[2], &fence_all()), Some(SUCCESS));
        assert_eq!(received_status(&mut job, next[0]), Some(SUCCESS));
        assert_eq!(received_status(&mut job, next[1]), Some(SUCCESS));
        let answers = ask(&mut job, next[2], 1, &get(1, "k", &[]));
        assert_eq!(data_of(&answers[0], 1), pairs(&[("k", value)]));
    }
}

#[test]
fn a_fence_may_have_a_time_limit() {
    let (mut job, clients) = start_all(&[&[0], &[1]]);
    let mut timed = command(3);
    procs(&mut timed, &[("job", u32::MAX - 1)]);
    infos(&mut timed, &[("pmix.collect", Item::U32(1)), ("pmix.timeout", Item::U32(2))]);
    let timed = timed.into_bytes();
    assert_eq!(status(&mut job, clients[0], &timed), None);
    let now = Instant::now();
    pass(&mut job, now + Duration::from_secs(1));
    assert_eq!(received_status(&mut job, clients[0]), None);
    pass(&mut job, now + Duration::from_secs(3));
    assert_eq!(received_status(&mut job, clients[0]), Some(Status::TIMEOUT.0));
    assert_eq!(job.servers[0].poll_timeout(), None);
    // The client tries again, and the other is in time for that.
    assert_eq!(status(&mut job, clients[0], &timed), None);
    assert_eq!(status(&mut job, clients[1], &timed), Some(SUCCESS));
    assert_eq!(received_status(&mut job, clients[0]), Some(SUCCESS));
    assert_eq!(job.gathered, ["pmix:fence:0"]);
    assert_eq!(status(&mut job, clients[0], &fence_all()), None);
    assert_eq!(status(&mut job, clients[1], &fence_all()), Some(SUCCESS));
}

#[test]
fn a_fence_that_can_never_complete_fails() {
    let (mut job, clients) = start_all(&[&[0], &[1]]);
    assert_eq!(status(&mut job, clients[0], &fence_all()), None);
    job.fail("pmix:fence:0");
    assert_eq!(received_status(&mut job, clients[0]), Some(Status::PROC_ABORTED.0));
}

#[test]
fn a_get_waits_until_a_rank_of_the_node_commits() {
    let (mut job, clients) = start_all(&[&[0, 1]]);
    assert_eq!(ask(&mut job, clients[0], 8, &get(1, "k", &[])), [[0; 0]; 0]);
    assert_eq!(status(&mut job, clients[1], &commit(&[(3, "k", "v")])), Some(SUCCESS));
    let answers = messages(&job.received(clients[0]));
    assert_eq!(answers[0].0, 8);
    assert_eq!(data_of(&answers[0].1, 1), pairs(&[("k", "v")]));
    // A rank that has committed is not waited for again.
    let other = ask(&mut job, clients[0], 8, &get(1, "other", &[]));
    assert_eq!(data_of(&other[0], 1), pairs(&[("k", "v")]));
}

#[test]
fn a_get_waits_for_a_key_if_it_says_for_how_long() {
    let (mut job, clients) = start_all(&[&[0, 1]]);
    let seconds = [("pmix.timeout", Item::U32(3))];
    assert_eq!(status(&mut job, clients[1], &commit(&[(3, "a", "1")])), Some(SUCCESS));
    assert_eq!(status(&mut job, clients[0], &get(1, "b", &seconds)), None);
    assert_eq!(status(&mut job, clients[1], &commit(&[(3, "a", "1"), (3, "b", "2")])), Some(0));
    let answers = messages(&job.received(clients[0]));
    assert_eq!(data_of(&answers[0].1, 1), pairs(&[("a", "1"), ("b", "2")]));
    assert_eq!(status(&mut job, clients[0], &get(1, "c", &seconds)), None);
    let now = Instant::now();
    pass(&mut job, now + Duration::from_secs(2));
    assert_eq!(received_status(&mut job, clients[0]), None);
    pass(&mut job, now + Duration::from_secs(4));
    assert_eq!(received_status(&mut job, clients[0]), Some(Status::TIMEOUT.0));
    assert_eq!(status(&mut job, clients[0], &get(1, "c", &seconds)), None);
    job.end(0, 1);
    let answers = messages(&job.received(clients[0]));
    assert_eq!(data_of(&answers[0].1, 1), pairs(&[("a", "1"), ("b", "2")]));
}

#[test]
fn a_get_need_not_wait() {
    let (mut job, clients) = start_all(&[&[0, 1], &[2]]);
    for rank in [1, 2] {
        for (key, directive) in [("k", "pmix.immediate"), ("k", "pmix.optional"), ("pmix.x", "x")] {
            let request = get(rank, key, &[(directive, Item::U32(1))]);
            assert_eq!(status(&mut job, clients[0], &request), Some(NOT_FOUND), "{key}");
        }
    }
    let rank_numbers = [3, u32::MAX, u32::MAX - 1, u32::MAX - 4];
    for rank in rank_numbers {
        assert_eq!(status(&mut job, clients[0], &get(rank, "k", &[])), Some(NOT_FOUND));
    }
    let other = get_of("other", 1, "k", &[]);
    assert_eq!(status(&mut job, clients[0], &other), Some(NOT_FOUND));
    assert_eq!(status(&mut job, clients[1], &commit(&[])), Some(SUCCESS));
    assert_eq!(status(&mut job, clients[0], &get(1, "k", &[])), Some(NOT_FOUND));
}

#[test]
fn data_that_no_fence_takes_is_stored_and_read() {
    let (mut job, clients) = start_all(&[&[0], &[1], &[2]]);
    assert_eq!(status(&mut job, clients[0], &get(1, "k", &[])), None);
    assert_eq!(status(&mut job, clients[1], &commit(&[(2, "k", "v")])), Some(SUCCESS));
    let now = Instant::now();
    assert!(job.servers[1].poll_timeout().is_some_and(|at| at <= now + Duration::from_millis(50)));
    assert!(job.stored.is_empty());
    pass(&mut job, now + Duration::from_millis(60));
    let answers = messages(&job.received(clients[0]));
    assert_eq!(data_of(&answers[0].1, 1), pairs(&[("k", "v")]));
    assert_eq!(job.stored.keys().collect::<Vec<_>>(), ["pmix:1:1"]);
    let late = ask(&mut job, clients[2], 1, &get(1, "k", &[]));
    assert_eq!(data_of(&late[0], 1), pairs(&[("k", "v")]));
    assert_eq!(job.servers[1].poll_timeout(), None);
}

#[test]
fn a_get_of_a_rank_in_a_fence_waits_for_the_fence() {
    let (mut job, clients) = start_all(&[&[0], &[1]]);
    assert_eq!(status(&mut job, clients[0], &fence_all()), None);
    assert_eq!(ask(&mut job, clients[0], 3, &get(1, "k", &[])), [[0; 0]; 0]);
    assert_eq!(status(&mut job, clients[1], &commit(&[(2, "k", "v")])), Some(SUCCESS));
    assert_eq!(status(&mut job, clients[1], &fence_all()), Some(SUCCESS));
    let answers = messages(&job.received(clients[0]));
    assert_eq!(answers.len(), 2);
    assert_eq!(data_of(&answers[1].1, 1), pairs(&[("k", "v")]));
    assert!(job.stored.is_empty());
    // What was committed after a fence is read.
    assert_eq!(status(&mut job, clients[0], &commit(&[(2, "late", "w")])), Some(SUCCESS));
    pass(&mut job, Instant::now() + Duration::from_millis(60));
    assert_eq!(job.stored.keys().collect::<Vec<_>>(), ["pmix:1:0"]);
}

#[test]
fn a_get_that_the_fence_does_not_satisfy_is_read() {
    let (mut job, clients) = start_all(&[&[0], &[1]]);
    assert_eq!(status(&mut job, clients[0], &fence_all()), None);
    assert_eq!(ask(&mut job, clients[0], 3, &get(1, "k", &[])), [[0; 0]; 0]);
    assert_eq!(status(&mut job, clients[1], &fence_all()), Some(SUCCESS));
    assert_eq!(received_status(&mut job, clients[0]), Some(SUCCESS));
    assert_eq!(status(&mut job, clients[1], &commit(&[(2, "k", "v")])), Some(SUCCESS));
    pass(&mut job, Instant::now() + Duration::from_millis(60));
    let answers = messages(&job.received(clients[0]));
    assert_eq!(data_of(&answers[0].1, 1), pairs(&[("k", "v")]));
}

#[test]
fn a_get_does_not_wait_for_a_rank_that_has_ended() {
    let (mut job, clients) = start_all(&[&[0, 1], &[2]]);
    assert_eq!(status(&mut job, clients[0], &get(1, "k", &[])), None);
    assert_eq!(status(&mut job, clients[2], &get(1, "k", &[])), None);
    job.end(0, 1);
    assert_eq!(received_status(&mut job, clients[0]), Some(NOT_FOUND));
    assert_eq!(received_status(&mut job, clients[2]), Some(NOT_FOUND));
    assert_eq!(status(&mut job, clients[0], &get(1, "k", &[])), Some(NOT_FOUND));
    assert_eq!(status(&mut job, clients[2], &get(1, "k", &[])), Some(NOT_FOUND));
}

#[test]
fn a_rank_may_run_one_program_after_the_other() {
    let (mut job, clients) = start_all(&[&[0, 1], &[2]]);
    for (client, value) in clients.iter().zip(["a", "b", "c"]) {
        assert_eq!(status(&mut job, *client, &commit(&[(3, "k", value)])), Some(SUCCESS));
        status(&mut job, *client, &fence_all());
        assert_eq!(job.events(), []);
    }
    for &client in &clients {
        job.received(client);
        assert_eq!(status(&mut job, client, &body(5)), Some(SUCCESS));
        job.close(client);
    }
    job.events();
    let first = start(&mut job, 0, 0);
    // Data of the first program is not that of the second.
    assert_eq!(status(&mut job, first, &get(1, "k", &[])), None);
    assert_eq!(ask(&mut job, first, 9, &get(2, "k", &[])), [[0; 0]; 0]);
    let second = start(&mut job, 0, 1);
    let third = start(&mut job, 1, 2);
    assert_eq!(job.events().len(), 3);
    assert_eq!(status(&mut job, second, &commit(&[(3, "k", "B")])), Some(SUCCESS));
    let answers = messages(&job.received(first));
    assert_eq!(data_of(&answers[0].1, 1), pairs(&[("k", "B")]));
    assert_eq!(status(&mut job, third, &commit(&[(3, "k", "C")])), Some(SUCCESS));
    for client in [first, second, third] {
        status(&mut job, client, &fence_all());
    }
    let answers = messages(&job.received(first));
    assert!(answers.iter().any(|(tag, _)| *tag == 9), "{answers:?}");
    let remote = ask(&mut job, first, 1, &get(2, "k", &[]));
    assert_eq!(data_of(&remote[0], 2), pairs(&[("k", "C")]));
}

#[test]
fn a_get_does_not_wait_for_a_program_that_a_rank_has_left() {
    let (mut job, clients) = start_all(&[&[0, 1]]);
    assert_eq!(status(&mut job, clients[0], &get(1, "k", &[])), None);
    job.close(clients[1]);
    assert_eq!(received_status(&mut job, clients[0]), None);
    start(&mut job, 0, 1);
    assert_eq!(received_status(&mut job, clients[0]), Some(NOT_FOUND));
}

#[test]
fn a_new_connection_of_a_rank_takes_the_place_of_the_old() {
    let (mut job, clients) = start_all(&[&[0], &[1]]);
    assert_eq!(status(&mut job, clients[0], &fence_all()), None);
    assert_eq!(status(&mut job, clients[1], &get(0, "k", &[])), None);
    let new = start(&mut job, 1, 1);
    assert!(job.is_closed(clients[1]) && !job.is_closed(new));
    // The answer to the old connection's request goes nowhere.
    assert_eq!(status(&mut job, clients[0], &commit(&[(2, "k", "v")])), Some(SUCCESS));
    pass(&mut job, Instant::now() + Duration::from_millis(60));
    assert_eq!(received_status(&mut job, clients[1]), None);
}

#[test]
fn files_that_ranks_name_are_to_be_removed() {
    let mut job = Job::new(&[&[0, 1], &[2]]);
    let client = start(&mut job, 0, 1);
    let control = |key: &str, value: &str| {
        let mut writer = command(18);
        procs(&mut writer, &[("job", 1)]);
        infos(&mut writer, &[(key, Item::Text(value))]);
        writer.into_bytes()
    };
    let files = control("pmix.reg.cleanup", "/dev/shm/sm_segment.a,/dev/shm/other");
    assert_eq!(status(&mut job, client, &files), Some(SUCCESS));
    for (key, value) in [("pmix.reg.cleanup", "/tmp/file"), ("pmix.reg.cleanupdir", "/dev/shm/x")] {
        assert_eq!(status(&mut job, client, &control(key, value)), Some(-47), "{key} {value}");
    }
    let segments = ["sm_segment.a", "other"].map(|name| (0, name.to_owned()));
    assert_eq!(job.segments, segments);
}
