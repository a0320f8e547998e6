//! Dialogues of PMIx clients with the servers of a job.

mod anything;
mod data;
mod groups;
mod names;
mod refusals;

use super::bfrops::{Item, Reader, Writer};
use super::frame::framed;
use super::handshake::tests::{hello, message};
use super::status::Status;
use crate::output::{ConnectionId, Family, Output};
use crate::testing::Job;
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
