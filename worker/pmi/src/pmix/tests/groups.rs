//! Fences of some ranks, groups, and connections between programs of a job.

use super::*;

/// Request to construct a group; the client tells the others a number.
fn construct(id: &str, ranks: &[u32], told: u64) -> Vec<u8> {
    let mut writer = command(24);
    writer.count(1).string(id.as_bytes());
    let ranks: Vec<(&str, u32)> = ranks.iter().map(|&rank| ("job", rank)).collect();
    procs(&mut writer, &ranks);
    let told = [("pmix.grp.lclid", Item::Size(told))];
    let directives = [("pmix.grp.actxid", Item::U32(1)), ("pmix.grp.info", Item::Infos(&told))];
    infos(&mut writer, &directives);
    writer.into_bytes()
}

fn destruct(id: &str, ranks: &[u32]) -> Vec<u8> {
    let mut writer = command(28);
    writer.count(1).string(id.as_bytes());
    let ranks: Vec<(&str, u32)> = ranks.iter().map(|&rank| ("job", rank)).collect();
    procs(&mut writer, &ranks);
    infos(&mut writer, &[]);
    writer.into_bytes()
}

/// Returns the members and the number in the answer to a client that has constructed a group.
fn group(body: &[u8]) -> (Vec<u32>, usize) {
    let mut reader = Reader::new(body);
    reader.count(1).unwrap();
    assert_eq!(reader.i32(), Ok(SUCCESS));
    let members = reader.procs().unwrap().iter().map(|proc| proc.rank).collect();
    reader.count(1).unwrap();
    let context = reader.size().unwrap();
    assert!(reader.is_at_end());
    (members, context)
}

/// Lets ranks construct a group and returns its number. All must learn the same.
fn form(job: &mut Job, clients: &[ConnectionId], id: &str, ranks: &[u32]) -> usize {
    let mut answers = Vec::new();
    for &rank in ranks {
        let client = clients[usize::try_from(rank).unwrap()];
        let told = 100 + u64::from(rank);
        answers.extend(ask(job, client, 9, &construct(id, ranks, told)));
    }
    for client in clients {
        answers.extend(messages(&job.received(*client)).into_iter().map(|(_, body)| body));
    }
    assert_eq!(answers.len(), ranks.len());
    let groups: Vec<_> = answers.iter().map(|body| group(body)).collect();
    let mut members = ranks.to_vec();
    members.sort_unstable();
    assert!(groups.iter().all(|group| *group == (members.clone(), groups[0].1)), "{groups:?}");
    assert_ne!(groups[0].1, 0);
    groups[0].1
}

/// Asks for what a rank has told the others of a group.
fn told(job: &mut Job, client: ConnectionId, context: usize, rank: u32) -> Option<i64> {
    let directives =
        [("pmix.timeout", Item::U32(5)), ("pmix.grp.ctxid", Item::Size(context as u64))];
    let answers = ask(job, client, 1, &get(rank, "pmix.grp.lclid", &directives));
    if status_of(&answers[0]) != SUCCESS {
        assert_eq!(status_of(&answers[0]), NOT_FOUND);
        return None;
    }
    let mut reader = Reader::new(&answers[0]);
    reader.bytes(12).unwrap();
    let mut items = Reader::new(reader.byte_object().unwrap());
    items.count(1).unwrap();
    assert_eq!(items.proc().unwrap().rank, rank);
    items.count(1).unwrap();
    assert_eq!(items.string(), Ok(&b"pmix.qual.val"[..]));
    let infos = items.value().unwrap().infos().unwrap();
    assert_eq!(infos[0].key, b"pmix.grp.lclid");
    infos[0].value.integer()
}

#[test]
fn members_of_a_group_learn_its_number_and_what_the_others_tell() {
    let (mut job, clients) = start_all(&[&[0, 1], &[2], &[3, 4]]);
    let first = form(&mut job, &clients, "a", &[1, 0, 3]);
    let second = form(&mut job, &clients, "b", &[4, 2]);
    let local = form(&mut job, &clients, "c", &[0, 1]);
    let again = form(&mut job, &clients, "a", &[1, 0, 3]);
    let numbers = std::collections::BTreeSet::from([first, second, local, again]);
    assert_eq!(numbers.len(), 4);
    for client in [clients[0], clients[3]] {
        for rank in [0, 1, 3] {
            assert_eq!(told(&mut job, client, first, rank), Some(100 + i64::from(rank)));
        }
        assert_eq!(told(&mut job, client, first, 2), None);
    }
    assert_eq!(told(&mut job, clients[2], second, 4), Some(104));
    assert_eq!(told(&mut job, clients[2], first, 0), None);
    assert_eq!(told(&mut job, clients[1], local, 0), Some(100));
}

#[test]
fn a_group_that_is_destroyed_leaves_little() {
    let (mut job, clients) = start_all(&[&[0], &[1]]);
    let context = form(&mut job, &clients, "a", &[0, 1]);
    assert_eq!(job.stored.values().filter(|value| !value.is_empty()).count(), 2);
    assert_eq!(status(&mut job, clients[0], &destruct("a", &[0, 1])), None);
    assert_eq!(status(&mut job, clients[1], &destruct("a", &[1, 0])), Some(SUCCESS));
    assert_eq!(received_status(&mut job, clients[0]), Some(SUCCESS));
    let left: Vec<usize> = job.stored.values().map(Vec::len).filter(|&length| length > 0).collect();
    assert!(left.iter().all(|&length| length < 40) && left.len() == 2, "{left:?}");
    // Open MPI destroys a group at once and asks for what was told later.
    assert_eq!(told(&mut job, clients[0], context, 1), Some(101));
}

#[test]
fn older_and_newer_clients_have_answers_of_their_own() {
    for (version, length) in [("3.2.5", 22), ("4.2.3", 22), ("4.2.4", 52), ("6.1.0", 57)] {
        let mut job = Job::new(&[&[0]]);
        let client = job.connect(0);
        let hello = message("native", 8, 0, "job", 0, version, "v3", 1, "hash");
        job.send(client, &first(&hello));
        let answers = ask(&mut job, client, 1, &construct("a", &[0], 1));
        assert_eq!(answers[0].len(), length, "{version}");
    }
}

#[test]
fn some_ranks_wait_for_one_another() {
    let (mut job, clients) = start_all(&[&[0, 1], &[2, 3]]);
    for round in 0..3 {
        assert_eq!(status(&mut job, clients[0], &fence(&[0, 2])), None);
        assert_eq!(status(&mut job, clients[1], &fence(&[1, 3])), None);
        assert_eq!(status(&mut job, clients[2], &fence(&[0, 2])), Some(SUCCESS), "{round}");
        assert_eq!(received_status(&mut job, clients[0]), Some(SUCCESS));
        assert_eq!(received_status(&mut job, clients[1]), None);
        assert_eq!(status(&mut job, clients[3], &fence(&[1, 3])), Some(SUCCESS));
        assert_eq!(received_status(&mut job, clients[1]), Some(SUCCESS));
    }
    assert_eq!(job.gathered, [""; 0]);
    // Ranks of one node need no other.
    let stored = job.stored.len();
    assert_eq!(status(&mut job, clients[3], &fence(&[2, 3])), None);
    assert_eq!(status(&mut job, clients[2], &fence(&[u32::MAX - 4])), Some(SUCCESS));
    assert_eq!(job.stored.len(), stored);
}

#[test]
fn a_rank_may_enter_the_next_fence_before_the_others_have_left() {
    let (mut job, clients) = start_all(&[&[0], &[1], &[2]]);
    for _ in 0..2 {
        assert_eq!(status(&mut job, clients[0], &fence(&[0, 1])), None);
    }
    assert_eq!(status(&mut job, clients[1], &fence(&[0, 1])), Some(SUCCESS));
    assert_eq!(received_status(&mut job, clients[0]), Some(SUCCESS));
    assert_eq!(status(&mut job, clients[1], &fence(&[0, 1])), Some(SUCCESS));
    assert_eq!(received_status(&mut job, clients[0]), Some(SUCCESS));
}

#[test]
fn programs_of_a_job_connect_and_disconnect() {
    let (mut job, clients) = start_all(&[&[0, 1], &[2]]);
    for number in [10, 11] {
        let mut writer = command(number);
        procs(&mut writer, &[("job", 0), ("job", 1), ("job", 2)]);
        infos(&mut writer, &[]);
        let request = writer.into_bytes();
        assert_eq!(status(&mut job, clients[2], &request), None);
        assert_eq!(status(&mut job, clients[0], &request), None);
        assert_eq!(status(&mut job, clients[1], &request), Some(SUCCESS));
        assert_eq!(received_status(&mut job, clients[0]), Some(SUCCESS));
        assert_eq!(received_status(&mut job, clients[2]), Some(SUCCESS));
    }
}

#[test]
fn a_member_that_has_ended_makes_a_group_fail_everywhere() {
    let (mut job, clients) = start_all(&[&[0, 1], &[2]]);
    let failed = Some(Status::PROC_ABORTED.0);
    assert_eq!(status(&mut job, clients[0], &construct("a", &[0, 1, 2], 0)), None);
    assert_eq!(status(&mut job, clients[2], &construct("a", &[0, 1, 2], 0)), None);
    job.end(0, 1);
    assert_eq!(received_status(&mut job, clients[0]), failed);
    assert_eq!(received_status(&mut job, clients[2]), failed);
    assert_eq!(status(&mut job, clients[0], &fence(&[0, 1])), failed);
    assert_eq!(status(&mut job, clients[0], &fence(&[0, 2])), None);
    assert_eq!(status(&mut job, clients[2], &fence(&[0, 2])), Some(SUCCESS));
}

#[test]
fn a_closed_connection_leaves_its_group() {
    let (mut job, clients) = start_all(&[&[0, 1]]);
    assert_eq!(status(&mut job, clients[0], &fence(&[0])), Some(SUCCESS));
    assert_eq!(status(&mut job, clients[0], &construct("a", &[0, 1], 0)), None);
    job.close(clients[0]);
    assert_eq!(status(&mut job, clients[1], &construct("a", &[0, 1], 0)), None);
    let again = start(&mut job, 0, 0);
    // The first program's group is not that of the second.
    assert_eq!(status(&mut job, again, &construct("a", &[0, 1], 0)), None);
}

#[test]
fn groups_that_make_no_sense_or_are_too_many_are_refused() {
    let (mut job, clients) = start_all(&[&[0, 1], &[2]]);
    let bad = Some(Status::BAD_PARAM.0);
    let much = Some(Status::OUT_OF_RESOURCE.0);
    for ranks in [&[][..], &[1, 2], &[0, 3], &[0, u32::MAX]] {
        assert_eq!(status(&mut job, clients[0], &fence(ranks)), bad, "{ranks:?}");
        assert_eq!(status(&mut job, clients[0], &construct("a", ranks, 0)), bad, "{ranks:?}");
    }
    let mut writer = command(3);
    procs(&mut writer, &[("other", 0)]);
    infos(&mut writer, &[]);
    assert_eq!(status(&mut job, clients[0], &writer.into_bytes()), bad);
    let long = "x".repeat(4097);
    assert_eq!(status(&mut job, clients[0], &construct(&long, &[0], 0)), much);
    for number in 0..64 {
        let request = construct(&number.to_string(), &[0, 1], 0);
        assert_eq!(status(&mut job, clients[0], &request), None, "{number}");
    }
    assert_eq!(status(&mut job, clients[0], &construct("64", &[0, 1], 0)), much);
    for number in 0..64 {
        assert_eq!(status(&mut job, clients[0], &fence_all()), None, "{number}");
    }
    assert_eq!(status(&mut job, clients[0], &fence_all()), much);
}

#[test]
fn a_client_that_tells_too_much_is_refused() {
    let (mut job, clients) = start_all(&[&[0]]);
    let long = "x".repeat(5000);
    let told = [("k", Item::Text(&long))];
    let mut writer = command(24);
    writer.count(1).string(b"a");
    procs(&mut writer, &[("job", 0)]);
    infos(&mut writer, &[("pmix.grp.info", Item::Infos(&told))]);
    let request = writer.into_bytes();
    assert_eq!(status(&mut job, clients[0], &request), Some(Status::OUT_OF_RESOURCE.0));
}

/// A rank whose groups have no other member on its node does not wait for any before it begins the next.
#[test]
fn groups_that_wait_for_another_node_are_limited() {
    let (mut job, clients) = start_all(&[&[0], &[1]]);
    for number in 0..64 {
        let request = construct(&number.to_string(), &[0, 1], 0);
        assert_eq!(status(&mut job, clients[0], &request), None, "{number}");
    }
    let request = construct("64", &[0, 1], 0);
    let much = Some(Status::OUT_OF_RESOURCE.0);
    assert_eq!(status(&mut job, clients[0], &request), much);
    assert!(status(&mut job, clients[1], &construct("7", &[0, 1], 0)).is_some());
    assert_eq!(received_status(&mut job, clients[0]), Some(SUCCESS));
    assert_eq!(status(&mut job, clients[0], &request), None);
}

/// Requests that are answered when the other members have sent the same, each with a time limit.
fn timed() -> Vec<Vec<u8>> {
    let seconds = [("pmix.timeout", Item::U32(2))];
    let members = [("job", 0), ("job", 1), ("job", 2)];
    let of = |number: u8| {
        let mut writer = command(number);
        if number >= 24 {
            writer.count(1).string(b"g");
        }
        procs(&mut writer, &members);
        infos(&mut writer, &seconds);
        writer.into_bytes()
    };
    [10, 11, 24, 28, 3].map(of).into()
}

#[test]
fn what_some_ranks_do_together_may_have_a_time_limit() {
    for request in timed() {
        let (mut job, clients) = start_all(&[&[0, 1], &[2], &[3]]);
        let mut now = Instant::now();
        let mut pass = |job: &mut Job, seconds| {
            now += Duration::from_secs(seconds);
            job.servers.iter_mut().for_each(|server| server.handle_timeout(now));
            job.settle();
        };
        let timeout = Some(Status::TIMEOUT.0);
        // A member of the same node is missing.
        assert_eq!(status(&mut job, clients[0], &request), None);
        pass(&mut job, 1);
        assert_eq!(received_status(&mut job, clients[0]), None);
        pass(&mut job, 2);
        assert_eq!(received_status(&mut job, clients[0]), timeout);
        assert_eq!(status(&mut job, clients[1], &request), None);
        assert!(job.stored.is_empty());
        // A member of another node is missing.
        assert_eq!(status(&mut job, clients[0], &request), None);
        pass(&mut job, 3);
        assert_eq!(received_status(&mut job, clients[0]), timeout);
        assert_eq!(received_status(&mut job, clients[1]), timeout);
        assert_eq!(job.servers[0].poll_timeout(), None);
        // One tries again, and the last member comes.
        assert_eq!(status(&mut job, clients[1], &request), None);
        assert_eq!(status(&mut job, clients[2], &request), Some(SUCCESS));
        assert_eq!(received_status(&mut job, clients[1]), Some(SUCCESS));
        assert_eq!(received_status(&mut job, clients[0]), None);
    }
}
