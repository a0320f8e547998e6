//! Clients and requests that are refused, and requests with little effect.

use super::*;

#[test]
fn a_stranger_is_turned_away_without_a_word() {
    let strangers: [Vec<u8>; 7] = [
        hello("jab", 0),
        hello("jo", 0),
        hello("", 0),
        hello("job", 2),
        hello("job", u32::MAX),
        message("native", 8, 3, "job", 0, "5.0.11", "v3", 1, "hash"),
        b"".to_vec(),
    ];
    for stranger in strangers {
        let mut job = Job::new(&[&[0, 1], &[2]]);
        let client = job.connect(0);
        assert_eq!(job.send(client, &first(&stranger)), b"");
        assert!(job.is_closed(client));
        assert_eq!(job.events(), []);
    }
    let mut job = Job::new(&[&[0]]);
    let client = job.connect(0);
    assert_eq!(job.send(client, &[0xff; 16]), b"");
    assert!(job.is_closed(client));
}

#[test]
fn a_client_that_encodes_in_another_way_is_told_so() {
    let mut job = Job::new(&[&[0]]);
    let client = job.connect(0);
    let other = message("native", 8, 0, "job", 0, "5.0.11", "v41", 1, "hash");
    assert_eq!(job.send(client, &first(&other)), Status::NOT_SUPPORTED.0.to_be_bytes());
    assert!(job.is_closed(client));
    assert_eq!(job.events(), []);
}

#[test]
fn commands_that_the_server_does_not_know_are_not_supported() {
    let known = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 14, 16, 18, 24, 28];
    let (mut job, clients) = start_all(&[&[0]]);
    for number in (0..=255).filter(|number| !known.contains(number)) {
        let request = [body(number), vec![7; 8]].concat();
        let answer = status(&mut job, clients[0], &request);
        assert_eq!(answer, Some(Status::NOT_SUPPORTED.0), "command {number}");
    }
    assert!(!job.is_closed(clients[0]));
}

#[test]
fn malformed_requests_are_answered() {
    let (mut job, clients) = start_all(&[&[0]]);
    let malformed = Some(Status::UNPACK_FAILURE.0);
    assert_eq!(status(&mut job, clients[0], b""), malformed);
    assert_eq!(status(&mut job, clients[0], &[0, 0, 0, 2, 3]), malformed);
    for number in [1, 2, 3, 4, 6, 7, 8, 10, 11, 16, 24, 28] {
        let request = [body(number), vec![0]].concat();
        assert_eq!(status(&mut job, clients[0], &request), malformed, "command {number}");
    }
    let mut unknown_type = command(2);
    let items = [0, 0, 0, 1, 0, 0, 0, 2, b'k', 0, 0, 99];
    unknown_type.count(1).u8(1).count(1).u8(1).byte_object(&items);
    assert_eq!(status(&mut job, clients[0], &unknown_type.into_bytes()), malformed);
    assert!(!job.is_closed(clients[0]));
}

#[test]
fn a_rank_may_not_commit_too_much() {
    let (mut job, clients) = start_all(&[&[0]]);
    let long = "x".repeat(64 * 1024);
    let much = commit(&[(2, "k", &long)]);
    assert_eq!(status(&mut job, clients[0], &much), Some(Status::OUT_OF_RESOURCE.0));
}

#[test]
fn a_client_asks_for_the_job_once() {
    let (mut job, clients) = start_all(&[&[0]]);
    assert_eq!(ask(&mut job, clients[0], 1, &body(0)).len(), 1);
    assert_eq!(ask(&mut job, clients[0], 2, &body(0)).len(), 0);
    assert!(job.is_closed(clients[0]));
}

#[test]
fn gets_that_wait_are_limited() {
    let (mut job, clients) = start_all(&[&[0, 1]]);
    for number in 0..66 {
        assert_eq!(status(&mut job, clients[0], &get(1, "k", &[])), None, "{number}");
    }
    let refused = status(&mut job, clients[0], &get(1, "k", &[]));
    assert_eq!(refused, Some(Status::OUT_OF_RESOURCE.0));
}

#[test]
fn events_are_registered_and_never_come() {
    let (mut job, clients) = start_all(&[&[0]]);
    assert_eq!(status(&mut job, clients[0], &body(13)), Some(SUCCESS));
    assert_eq!(status(&mut job, clients[0], &body(14)), None);
    assert!(!job.is_closed(clients[0]));
}

fn abort(code: i32, message: Option<&str>) -> Vec<u8> {
    let mut writer = command(1);
    writer.count(1).i32(code).count(1);
    match message {
        Some(message) => writer.string(message.as_bytes()),
        None => writer.u32(0),
    };
    writer.count(1).size(0);
    writer.into_bytes()
}

#[test]
fn a_rank_ends_the_job() {
    let (mut job, clients) = start_all(&[&[0], &[1]]);
    let long = "x".repeat(5000);
    for (given, text) in [(None, ""), (Some(" why\n"), "why"), (Some(&*long), &long[..4096])] {
        assert_eq!(status(&mut job, clients[1], &abort(-7, given)), Some(SUCCESS));
        let message = text.to_owned();
        assert_eq!(job.events(), [Output::Abort { rank: 1, code: -7, message }]);
    }
}

/// Request to log a help message of Open MPI 4.
fn help(text: &str) -> Vec<u8> {
    let mut message = Writer::new();
    message.count(1).string(b"help-mpi-errors.txt").count(1).string(b"mpi_errors_are_fatal");
    message.count(1).u8(1).count(1).string(text.as_bytes());
    let mut writer = command(16);
    writer.count(1).raw(&[0; 8]);
    infos(&mut writer, &[("pmix.log.msg", Item::Bytes(&message.into_bytes()))]);
    writer.count(1).size(0);
    writer.into_bytes()
}

#[test]
fn help_messages_of_open_mpi_4_are_printed() {
    let (mut job, clients) = start_all(&[&[0, 1]]);
    assert_eq!(status(&mut job, clients[1], &help("*** An error\n***\n")), Some(SUCCESS));
    let text = "*** An error\n***".to_owned();
    assert_eq!(job.events(), [Output::Print { rank: 1, text }]);
    assert_eq!(status(&mut job, clients[1], &abort(1, Some("N/A"))), Some(SUCCESS));
    assert_eq!(job.events(), [Output::Abort { rank: 1, code: 1, message: String::new() }]);
}

#[test]
fn the_messages_of_open_mpi_5_are_left_to_itself() {
    let (mut job, clients) = start_all(&[&[0]]);
    for (key, value) in [
        ("pmix.log.stderr", Item::Text("text")),
        ("pmix.log.msg", Item::Text("text")),
        ("pmix.log.msg", Item::Bytes(b"text")),
    ] {
        let mut writer = command(16);
        writer.count(1).raw(&[0; 8]);
        infos(&mut writer, &[(key, value)]);
        let answer = status(&mut job, clients[0], &writer.into_bytes());
        assert_eq!(answer, Some(Status::NOT_SUPPORTED.0));
    }
}
