//! Properties: any bytes are survived, and no split makes a difference.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

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
