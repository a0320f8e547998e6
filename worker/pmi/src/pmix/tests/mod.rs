//! Dialogues of PMIx clients with the servers of a job: clients and requests that are served, refused
//! or have little effect; and properties: any bytes are survived, and no split makes a difference.

mod data;
mod groups;
mod names;

use super::bfrops::{Item, Reader, Status, Writer};
use super::client::framed;
use super::client::tests::{hello, message};
use crate::node::{ConnectionId, Family, Output};
use crate::testing::Job;
use proptest::collection::vec;
use proptest::prelude::*;
use std::time::{Duration, Instant};

const SUCCESS: i32 = 0;
const NOT_FOUND: i32 = -46;

/// Bytes of a first message with its header.
fn first(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_ne_bytes();
    [&[255; 8][..], &length, &[0; 4], body].concat()
}

/// Connects a rank to its node's port.
fn start(job: &mut Job, node: usize, rank: u32) -> ConnectionId {
    let connection = job.connect(node);
    let answer = job.send(connection, &first(&hello("job", rank)));
    assert_eq!(answer, [&[0; 4][..], &rank.to_be_bytes()].concat());
    connection
}

/// Connects all ranks of a job; the result is by rank if the nodes have the ranks in order.
fn start_all(nodes: &[&[u32]]) -> (Job, Vec<ConnectionId>) {
    let mut job = Job::new(nodes);
    let mut clients = Vec::new();
    for (node, ranks) in nodes.iter().enumerate() {
        clients.extend(ranks.iter().map(|&rank| start(&mut job, node, rank)));
    }
    job.events();
    (job, clients)
}

/// Takes messages apart: tags and bodies.
fn messages(bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut reader = Reader::new(bytes);
    let mut found = Vec::new();
    while !reader.is_at_end() {
        assert_eq!(reader.u32(), Ok(0));
        let tag = reader.u32().unwrap();
        let length = reader.u32().unwrap();
        assert_eq!(reader.u32(), Ok(0));
        found.push((tag, reader.bytes(usize::try_from(length).unwrap()).unwrap().to_vec()));
    }
    found
}

/// Lets a client send a request with a tag, and returns the bodies of the answers to it.
fn ask(job: &mut Job, client: ConnectionId, tag: u32, body: &[u8]) -> Vec<Vec<u8>> {
    let answers = messages(&job.send(client, &framed(tag, body)));
    answers.into_iter().filter(|(of, _)| *of == tag).map(|(_, body)| body).collect()
}

/// Lets a client send a request and returns the status of its answer, `None` if there is none yet.
fn status(job: &mut Job, client: ConnectionId, body: &[u8]) -> Option<i32> {
    let answers = ask(job, client, 77, body);
    assert!(answers.len() <= 1);
    answers.first().map(|body| status_of(body))
}

/// Returns the status of the answer that a client has received since the last time.
fn received_status(job: &mut Job, client: ConnectionId) -> Option<i32> {
    let answers = messages(&job.received(client));
    assert!(answers.len() <= 1);
    answers.first().map(|(_, body)| status_of(body))
}

fn status_of(body: &[u8]) -> i32 {
    let mut reader = Reader::new(body);
    reader.count(1).unwrap();
    reader.i32().unwrap()
}

/// Returns the keys and texts in the answer to a request for a rank's data.
fn data_of(body: &[u8], rank: u32) -> Vec<(String, String)> {
    let mut reader = Reader::new(body);
    reader.count(1).unwrap();
    assert_eq!(reader.i32(), Ok(SUCCESS));
    reader.count(1).unwrap();
    let mut items = Reader::new(reader.byte_object().unwrap());
    assert!(reader.is_at_end());
    items.count(1).unwrap();
    let proc = items.proc().unwrap();
    assert_eq!((proc.namespace, proc.rank), (&b"job"[..], rank));
    let mut data = Vec::new();
    while !items.is_at_end() {
        items.count(1).unwrap();
        let key = String::from_utf8(items.string().unwrap().to_vec()).unwrap();
        let value = items.value().unwrap();
        let text = Reader::new(value.encoded).string().unwrap();
        data.push((key, String::from_utf8(text.to_vec()).unwrap()));
    }
    data
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Begins a request.
fn command(number: u8) -> Writer {
    let mut writer = Writer::new();
    writer.count(1).u8(number);
    writer
}

fn body(number: u8) -> Vec<u8> {
    command(number).into_bytes()
}

fn infos(writer: &mut Writer, infos: &[(&str, Item<'_>)]) {
    writer.count(1).size(infos.len() as u64);
    if !infos.is_empty() {
        writer.count(infos.len());
        for (key, value) in infos {
            writer.info(key, 0, *value);
        }
    }
}

fn procs(writer: &mut Writer, procs: &[(&str, u32)]) {
    writer.count(1).size(procs.len() as u64);
    if !procs.is_empty() {
        writer.count(procs.len());
        for (namespace, rank) in procs {
            writer.proc(namespace, *rank);
        }
    }
}

/// Request to commit values; each has a scope: 1 is this node, 2 the other nodes.
fn commit(values: &[(u8, &str, &str)]) -> Vec<u8> {
    let mut writer = command(2);
    for (scope, key, value) in values {
        let mut items = Writer::new();
        items.key_value(key, Item::Text(value));
        writer.count(1).u8(*scope).count(1).u8(1).byte_object(&items.into_bytes());
    }
    writer.into_bytes()
}

/// Request to wait for ranks.
fn fence(ranks: &[u32]) -> Vec<u8> {
    let mut writer = command(3);
    let ranks: Vec<(&str, u32)> = ranks.iter().map(|&rank| ("job", rank)).collect();
    procs(&mut writer, &ranks);
    infos(&mut writer, &[("pmix.collect", Item::U32(1))]);
    writer.into_bytes()
}

/// Request to wait for all ranks.
fn fence_all() -> Vec<u8> {
    fence(&[u32::MAX - 1])
}

fn get(rank: u32, key: &str, directives: &[(&str, Item<'_>)]) -> Vec<u8> {
    get_of("job", rank, key, directives)
}

fn get_of(namespace: &str, rank: u32, key: &str, directives: &[(&str, Item<'_>)]) -> Vec<u8> {
    let mut writer = command(4);
    writer.count(1).string(namespace.as_bytes()).count(1).u32(rank);
    infos(&mut writer, directives);
    if !key.is_empty() {
        writer.count(1).string(key.as_bytes());
    }
    writer.into_bytes()
}

/// Body of a request: a good one, one with some bytes changed, or anything.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let mut group = command(24);
    group.count(1).string(b"g");
    procs(&mut group, &[("job", 0), ("job", 1)]);
    infos(&mut group, &[("pmix.grp.info", Item::Infos(&[("k", Item::Size(1))]))]);
    let mut publish = command(6);
    publish.count(1).u32(0);
    infos(&mut publish, &[("k", Item::Text("v"))]);
    let mut lookup = command(7);
    lookup.count(1).u32(0).count(1).size(1).count(1).string(b"k");
    infos(&mut lookup, &[("pmix.wait", Item::U32(0)), ("pmix.timeout", Item::U32(1))]);
    let good = prop::sample::select(vec![
        body(0),
        commit(&[(3, "k", "v"), (1, "l", "w")]),
        fence_all(),
        fence(&[0, 1]),
        fence(&[0, 2]),
        get(1, "k", &[]),
        get(2, "k", &[("pmix.timeout", Item::U32(1))]),
        get(0, "pmix.grp.lclid", &[("pmix.grp.ctxid", Item::Size(1 << 32 | 1))]),
        group.into_bytes(),
        publish.into_bytes(),
        lookup.into_bytes(),
        body(13),
        body(5),
    ]);
    let changed = (good.clone(), vec((any::<prop::sample::Index>(), any::<u8>()), 1..4));
    let changed = changed.prop_map(|(mut body, changes)| {
        for (index, byte) in changes {
            let index = index.index(body.len());
            body[index] = byte;
        }
        body
    });
    prop_oneof![4 => good, 4 => changed, 1 => vec(any::<u8>(), 0..80)]
}

/// Bytes of a client from its first on.
fn dialogue() -> impl Strategy<Value = Vec<u8>> {
    let first_message = prop_oneof![
        8 => (0..2_u32).prop_map(|rank| first(&hello("job", rank))),
        1 => vec(any::<u8>(), 0..60).prop_map(|bytes| first(&bytes)),
        1 => vec(any::<u8>(), 0..60),
    ];
    let requests = vec(request(), 0..8);
    (first_message, requests, vec(any::<u8>(), 0..20)).prop_map(|(first, requests, rest)| {
        let requests = (0..).zip(&requests).map(|(tag, body)| framed(tag, body));
        [first, requests.collect::<Vec<_>>().concat(), rest].concat()
    })
}

/// Returns what a client and the agent receive when two clients send these bytes in these parts, and the
/// first rank then ends.
fn run(dialogues: &[Vec<u8>], splits: &[usize]) -> (Vec<Vec<u8>>, Vec<Output>, Vec<bool>) {
    let mut job = Job::new(&[&[0, 1], &[2]]);
    let mut splits = splits.iter().copied().cycle();
    let clients: Vec<ConnectionId> = dialogues.iter().map(|_| job.connect(0)).collect();
    for (client, bytes) in clients.iter().zip(dialogues) {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (part, after) = rest.split_at(splits.next().unwrap().min(rest.len()));
            job.servers[0].received(*client, part, Instant::now());
            rest = after;
        }
    }
    job.settle();
    for server in &mut job.servers {
        server.handle_timeout(Instant::now() + Duration::from_secs(3));
    }
    job.end(0, 0);
    let received = clients.iter().map(|&client| job.received(client)).collect();
    clients.iter().for_each(|&client| job.close(client));
    assert!(job.servers.iter().all(|server| server.poll_timeout().is_none()));
    let closed = clients.iter().map(|&client| job.is_closed(client)).collect();
    (received, job.events(), closed)
}

proptest! {
    #[test]
    fn any_bytes_are_survived_and_no_split_makes_a_difference(
        dialogues in vec(dialogue(), 1..3),
        splits in vec(1..40_usize, 1..10),
    ) {
        let whole = run(&dialogues, &[usize::MAX]);
        prop_assert_eq!(run(&dialogues, &splits), whole.clone());
        prop_assert_eq!(run(&dialogues, &[1]), whole);
    }
}

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
        assert_eq!(status(&mut job, clients[1], &abort(-7, given)), None);
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
    assert_eq!(status(&mut job, clients[1], &abort(1, Some("N/A"))), None);
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
