//! Requests that publish, look up and withdraw values.

use super::*;

fn publish(values: &[(&str, Item<'_>)]) -> Vec<u8> {
    let mut writer = command(6);
    writer.count(1).u32(1000);
    infos(&mut writer, values);
    writer.into_bytes()
}

/// Request to publish a value that is withdrawn once it has been looked up.
fn publish_once(key: &str, value: &str) -> Vec<u8> {
    let mut writer = command(6);
    writer.count(1).u32(1000).count(1).size(2).count(2);
    writer.info(key, 0, Item::Text(value));
    writer.string(b"pmix.persist").u32(0).u16(30).u8(1);
    writer.into_bytes()
}

fn keys(writer: &mut Writer, keys: &[&str]) {
    writer.count(1).u32(1000).count(1).size(keys.len() as u64);
    for key in keys {
        writer.count(1).string(key.as_bytes());
    }
}

fn lookup(names: &[&str], directives: &[(&str, Item<'_>)]) -> Vec<u8> {
    let mut writer = command(7);
    keys(&mut writer, names);
    infos(&mut writer, directives);
    writer.into_bytes()
}

fn unpublish(names: &[&str]) -> Vec<u8> {
    let mut writer = command(8);
    keys(&mut writer, names);
    infos(&mut writer, &[]);
    writer.into_bytes()
}

/// Returns publishers, keys and texts in the answer to a request to look up.
fn found(body: &[u8]) -> Vec<(u32, String, String)> {
    let mut reader = Reader::new(body);
    reader.count(1).unwrap();
    assert_eq!(reader.i32(), Ok(SUCCESS));
    reader.count(1).unwrap();
    let number = reader.size().unwrap();
    reader.count(number).unwrap();
    let entry = |reader: &mut Reader<'_>| {
        let rank = reader.proc().unwrap().rank;
        let key = String::from_utf8(reader.string().unwrap().to_vec()).unwrap();
        let text = Reader::new(reader.value().unwrap().encoded).string().unwrap().to_vec();
        (rank, key, String::from_utf8(text).unwrap())
    };
    let entries = (0..number).map(|_| entry(&mut reader)).collect();
    assert!(reader.is_at_end());
    entries
}

#[test]
fn values_are_published_looked_up_and_withdrawn() {
    let (mut job, clients) = start_all(&[&[0], &[1]]);
    let port = [("my service", Item::Text("port")), ("pmix.range", Item::U16(3))];
    assert_eq!(status(&mut job, clients[0], &publish(&port)), Some(SUCCESS));
    assert_eq!(job.stored.keys().collect::<Vec<_>>(), ["pmi:pub:my service"]);
    let answers = ask(&mut job, clients[1], 1, &lookup(&["my service", "other"], &[]));
    assert_eq!(found(&answers[0]), [(0, "my service".to_owned(), "port".to_owned())]);
    assert_eq!(status(&mut job, clients[1], &lookup(&["other"], &[])), Some(NOT_FOUND));
    assert_eq!(status(&mut job, clients[1], &unpublish(&["other"])), Some(NOT_FOUND));
    assert_eq!(status(&mut job, clients[1], &unpublish(&["my service"])), Some(SUCCESS));
    assert_eq!(status(&mut job, clients[0], &lookup(&["my service"], &[])), Some(NOT_FOUND));
}

#[test]
fn a_rank_withdraws_all_that_it_has_published() {
    let (mut job, clients) = start_all(&[&[0], &[1]]);
    assert_eq!(status(&mut job, clients[0], &unpublish(&[])), Some(SUCCESS));
    let two = [("a", Item::Text("1")), ("b", Item::Text("2"))];
    assert_eq!(status(&mut job, clients[0], &publish(&two)), Some(SUCCESS));
    assert_eq!(status(&mut job, clients[1], &publish(&[("c", Item::Text("3"))])), Some(SUCCESS));
    let answers = ask(&mut job, clients[1], 1, &lookup(&["b", "a"], &[]));
    assert_eq!(found(&answers[0]).len(), 2);
    assert_eq!(status(&mut job, clients[0], &unpublish(&[])), Some(SUCCESS));
    let answers = ask(&mut job, clients[0], 1, &lookup(&["a", "b", "c"], &[]));
    assert_eq!(found(&answers[0]), [(1, "c".to_owned(), "3".to_owned())]);
}

#[test]
fn a_value_may_be_read_once() {
    let (mut job, clients) = start_all(&[&[0], &[1]]);
    assert_eq!(status(&mut job, clients[0], &publish_once("k", "v")), Some(SUCCESS));
    let answers = ask(&mut job, clients[1], 1, &lookup(&["k"], &[]));
    assert_eq!(found(&answers[0]), [(0, "k".to_owned(), "v".to_owned())]);
    assert_eq!(status(&mut job, clients[1], &lookup(&["k"], &[])), Some(NOT_FOUND));
}

#[test]
fn a_client_may_wait_for_values() {
    let (mut job, clients) = start_all(&[&[0], &[1]]);
    let wait = [("pmix.wait", Item::U32(0)), ("pmix.timeout", Item::U32(5))];
    assert_eq!(ask(&mut job, clients[1], 4, &lookup(&["a", "b"], &wait)), [[0; 0]; 0]);
    assert_eq!(status(&mut job, clients[0], &publish_once("a", "1")), Some(SUCCESS));
    assert_eq!(received_status(&mut job, clients[1]), None);
    assert_eq!(status(&mut job, clients[0], &publish_once("b", "2")), Some(SUCCESS));
    let answers = messages(&job.received(clients[1]));
    assert_eq!((answers[0].0, found(&answers[0].1).len()), (4, 2));
    assert_eq!(job.servers[1].poll_timeout(), None);
    assert_eq!(status(&mut job, clients[1], &lookup(&["c"], &wait)), None);
    let later = Instant::now() + Duration::from_secs(5);
    assert!(job.servers[1].poll_timeout().is_some_and(|at| at <= later));
    job.servers[1].handle_timeout(later);
    job.settle();
    assert_eq!(received_status(&mut job, clients[1]), Some(Status::TIMEOUT.0));
    // The value is not for the client that no longer waits.
    assert_eq!(status(&mut job, clients[0], &publish_once("c", "3")), Some(SUCCESS));
    assert_eq!(received_status(&mut job, clients[1]), None);
    let answers = ask(&mut job, clients[1], 1, &lookup(&["c"], &[]));
    assert_eq!(found(&answers[0]).len(), 1);
}

#[test]
fn a_closed_connection_waits_for_nothing() {
    let (mut job, clients) = start_all(&[&[0], &[1]]);
    let wait = [("pmix.wait", Item::U32(0))];
    assert_eq!(status(&mut job, clients[1], &lookup(&["a"], &wait)), None);
    assert_eq!(status(&mut job, clients[1], &get(0, "k", &[])), None);
    job.close(clients[1]);
    assert_eq!(status(&mut job, clients[0], &publish(&[("a", Item::Text("1"))])), Some(SUCCESS));
    assert_eq!(status(&mut job, clients[0], &commit(&[(2, "k", "v")])), Some(SUCCESS));
    assert_eq!(received_status(&mut job, clients[1]), None);
}

#[test]
fn what_makes_no_sense_or_is_too_much_is_refused() {
    let (mut job, clients) = start_all(&[&[0]]);
    let client = clients[0];
    let bad = Some(Status::BAD_PARAM.0);
    let much = Some(Status::OUT_OF_RESOURCE.0);
    assert_eq!(status(&mut job, client, &publish(&[])), bad);
    assert_eq!(status(&mut job, client, &publish(&[("", Item::Text("v"))])), bad);
    assert_eq!(status(&mut job, client, &lookup(&[], &[])), bad);
    let long = "x".repeat(248);
    assert_eq!(status(&mut job, client, &publish(&[(&long, Item::Text("v"))])), bad);
    assert_eq!(status(&mut job, client, &publish(&[(&long[1..], Item::Text("v"))])), Some(0));
    assert_eq!(status(&mut job, client, &lookup(&[&long], &[])), bad);
    let big = "x".repeat(64 * 1024);
    assert_eq!(status(&mut job, client, &publish(&[("k", Item::Text(&big))])), much);
    let names: Vec<String> = (0..1025).map(|number| number.to_string()).collect();
    let many: Vec<&str> = names.iter().map(|name| &**name).collect();
    assert_eq!(status(&mut job, client, &lookup(&many, &[])), much);
    let values: Vec<(&str, Item<'_>)> = many.iter().map(|name| (*name, Item::U32(1))).collect();
    assert_eq!(status(&mut job, client, &publish(&values[..1000])), Some(SUCCESS));
    assert_eq!(status(&mut job, client, &publish(&values[1000..])), much);
    assert_eq!(status(&mut job, client, &unpublish(&[])), Some(SUCCESS));
    assert_eq!(status(&mut job, client, &publish(&values[1000..])), Some(SUCCESS));
}

#[test]
fn values_that_are_waited_for_in_vain_are_limited() {
    let (mut job, clients) = start_all(&[&[0]]);
    let wait = [("pmix.wait", Item::U32(0)), ("pmix.timeout", Item::U32(1))];
    let mut refused = 0;
    for round in 0..10_u64 {
        let names: Vec<String> = (0..1000).map(|number| format!("{round}-{number}")).collect();
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        match status(&mut job, clients[0], &lookup(&names, &wait)) {
            None => {
                job.servers[0].handle_timeout(Instant::now() + Duration::from_secs(2));
                job.settle();
                assert_eq!(received_status(&mut job, clients[0]), Some(Status::TIMEOUT.0));
            }
            status => {
                assert_eq!(status, Some(Status::OUT_OF_RESOURCE.0));
                refused += 1;
            }
        }
    }
    assert_eq!(refused, 6);
}

#[test]
fn a_service_of_pmi_1_is_not_found() {
    let (mut job, clients) = start_all(&[&[0]]);
    job.stored.insert("pmi:pub:a".to_owned(), b"tag#0$description#host$".to_vec());
    assert_eq!(status(&mut job, clients[0], &lookup(&["a"], &[])), Some(NOT_FOUND));
}

/// A client that polls for a value makes a request after each that has timed out.
#[test]
fn a_value_is_polled_for_without_end() {
    let (mut job, clients) = start_all(&[&[0], &[1]]);
    let wait = [("pmix.wait", Item::U32(0)), ("pmix.timeout", Item::U32(1))];
    let mut now = Instant::now();
    for _ in 0..5000 {
        assert_eq!(status(&mut job, clients[1], &lookup(&["a"], &wait)), None);
        now += Duration::from_secs(2);
        job.servers[1].handle_timeout(now);
        job.settle();
        assert_eq!(received_status(&mut job, clients[1]), Some(Status::TIMEOUT.0));
    }
    assert_eq!(ask(&mut job, clients[1], 4, &lookup(&["a"], &wait)), [[0; 0]; 0]);
    assert_eq!(status(&mut job, clients[0], &publish(&[("a", Item::Text("1"))])), Some(SUCCESS));
    let answers = messages(&job.received(clients[1]));
    assert_eq!(found(&answers[0].1), [(0, "a".to_owned(), "1".to_owned())]);
}

#[test]
fn clients_that_wait_for_a_value_to_be_read_once_take_turns() {
    let (mut job, clients) = start_all(&[&[0], &[1, 2]]);
    let wait = [("pmix.wait", Item::U32(0))];
    for &client in &clients[1..] {
        assert_eq!(status(&mut job, client, &lookup(&["a"], &wait)), None);
    }
    for client in [clients[1], clients[2]] {
        assert_eq!(received_status(&mut job, client), None);
        assert_eq!(status(&mut job, clients[0], &publish_once("a", "1")), Some(SUCCESS));
        assert_eq!(received_status(&mut job, client), Some(SUCCESS));
    }
    assert_eq!(status(&mut job, clients[0], &lookup(&["a"], &[])), Some(NOT_FOUND));
}

/// Keys that are awaited in vain keep no rank from publishing.
#[test]
fn values_can_be_published_while_many_are_waited_for() {
    let (mut job, clients) = start_all(&[&[0, 1]]);
    let wait = [("pmix.wait", Item::U32(0)), ("pmix.timeout", Item::U32(1))];
    for round in 0..10_u64 {
        let names: Vec<String> = (0..1024).map(|number| format!("{round}-{number}")).collect();
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        status(&mut job, clients[0], &lookup(&names, &wait));
        job.servers[0].handle_timeout(Instant::now() + Duration::from_secs(2));
        job.settle();
        job.received(clients[0]);
    }
    assert_eq!(status(&mut job, clients[1], &publish(&[("k", Item::Text("v"))])), Some(SUCCESS));
    let answers = ask(&mut job, clients[0], 1, &lookup(&["k"], &[]));
    assert_eq!(found(&answers[0]).len(), 1);
}

#[test]
fn the_answer_to_a_lookup_has_a_limit() {
    let (mut job, clients) = start_all(&[&[0]]);
    let big = "x".repeat(60_000);
    assert_eq!(status(&mut job, clients[0], &publish(&[("k", Item::Text(&big))])), Some(SUCCESS));
    let repeated = ask(&mut job, clients[0], 1, &lookup(&["k"; 1024], &[]));
    assert_eq!(found(&repeated[0]).len(), 1);
    let names: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    for &name in &names {
        let value = [(name, Item::Text(&big))];
        assert_eq!(status(&mut job, clients[0], &publish(&value)), Some(SUCCESS));
    }
    let much = Some(Status::OUT_OF_RESOURCE.0);
    assert_eq!(status(&mut job, clients[0], &lookup(&names, &[])), much);
    let fits = ask(&mut job, clients[0], 1, &lookup(&names[..100], &[]));
    assert_eq!(found(&fits[0]).len(), 100);
}
