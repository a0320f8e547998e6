//! Tests of links that connect when there is something to send.

use super::*;

/// Each rank sends to every third of the other ranks; all ranks send at the same time.
#[test]
fn peers_meet_when_there_is_something_to_say() {
    let ranks = 8;
    let (listeners, contacts) = listeners(8);
    let table = Arc::new(table(ranks));
    let open = |(me, listener): (u32, RankListener)| {
        let peers = others(ranks, me);
        let connector = LazyConnector::open(
            listener,
            None,
            &contacts,
            table.clone(),
            Rank(me),
            &peers,
            TIMEOUT,
        )
        .unwrap();
        let connector = Arc::new(connector);
        let link = |peer: &Rank| (*peer, LazyLink::new(*peer, &connector));
        peers.iter().map(link).collect::<BTreeMap<Rank, LazyLink>>()
    };
    let all: Vec<_> = (0..).zip(listeners).map(open).collect();
    let speak = |one: u32, other: u32| (one + other).is_multiple_of(3);
    let barrier = Barrier::new(ranks as usize);
    thread::scope(|scope| {
        for (me, mut links) in (0..).zip(all) {
            let barrier = &barrier;
            scope.spawn(move || {
                let end = Instant::now() + TIMEOUT;
                let header =
                    Header { kind: PacketKind::Eager, context: 0, tag: me, transfer: 0, length: 0 };
                for (peer, link) in &mut links {
                    let mut tags = Tags(Vec::new());
                    if !speak(me, peer.0) {
                        continue;
                    }
                    while !link.send(header, &[]).unwrap() {
                        assert!(Instant::now() < end);
                    }
                    while tags.0.is_empty() {
                        link.receive(&mut tags).unwrap();
                        assert!(Instant::now() < end);
                    }
                    assert_eq!(tags.0, [peer.0]);
                }
                for (peer, link) in &links {
                    assert_eq!(link.is_connected(), speak(me, peer.0), "{me} and {peer}");
                }
                // No rank ends before all ranks have finished.
                barrier.wait();
            });
        }
    });
}

/// The error about a rank that has left names that rank.
#[test]
fn a_peer_that_does_not_come_is_named() {
    let (mut listeners, contacts) = listeners(2);
    let table = Arc::new(table(2));
    drop(listeners.pop());
    let timeout = Duration::from_millis(200);
    let listener = listeners.remove(0);
    let connector =
        LazyConnector::open(listener, None, &contacts, table, Rank(0), &[Rank(1)], timeout);
    let mut link = LazyLink::new(Rank(1), &Arc::new(connector.unwrap()));
    let header = Header { kind: PacketKind::Eager, context: 0, tag: 0, transfer: 0, length: 0 };
    let end = Instant::now() + TIMEOUT;
    let error = loop {
        match link.send(header, &[]) {
            Ok(went) => assert!(!went && Instant::now() < end),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("rank 0 on a and rank 1 on b could not connect over TCP"), "{error}");
}

/// Sleeping ranks are woken when a peer connects.
#[test]
fn a_rank_that_sleeps_hears_of_its_peer() {
    let (listeners, contacts) = listeners(2);
    let table = Arc::new(table(2));
    let mut links: Vec<LazyLink> = (0..)
        .zip(listeners)
        .map(|(me, listener)| {
            let peer = Rank(1 - me);
            let table = table.clone();
            let connector =
                LazyConnector::open(listener, None, &contacts, table, Rank(me), &[peer], TIMEOUT);
            LazyLink::new(peer, &Arc::new(connector.unwrap()))
        })
        .collect();
    let header = Header { kind: PacketKind::Eager, context: 0, tag: 7, transfer: 0, length: 0 };
    assert!(!links[0].send(header, &[]).unwrap());
    for link in &mut links {
        let end = Instant::now() + TIMEOUT;
        while !link.is_connected() {
            assert!(Instant::now() < end);
            if let Armed::Watch(watched) = link.arm(true).unwrap() {
                let mut fds = [PollFd::new(watched.fd, PollFlags::POLLIN)];
                poll(&mut fds, PollTimeout::MAX).unwrap();
            }
        }
    }
    assert!(links[0].send(header, &[]).unwrap());
}

/// Makes both ends of a link between two ranks that are not connected yet.
fn two_ahead() -> [LazyLink; 2] {
    let (listeners, contacts) = listeners(2);
    let table = Arc::new(table(2));
    let open = |(me, listener): (u32, RankListener)| {
        let (peer, table) = (Rank(1 - me), table.clone());
        let connector =
            LazyConnector::open(listener, None, &contacts, table, Rank(me), &[peer], TIMEOUT);
        LazyLink::new(peer, &Arc::new(connector.unwrap()))
    };
    let links: Vec<LazyLink> = (0..).zip(listeners).map(open).collect();
    links.try_into().unwrap()
}

/// Sleeps on a link until a packet arrives, and returns its kind.
fn next_kind(link: &mut LazyLink) -> PacketKind {
    struct First(Option<PacketKind>);
    impl Sink for First {
        fn packet(&mut self, header: Header, _: &[u8]) -> Result<(), LinkError> {
            self.0.get_or_insert(header.kind);
            Ok(())
        }

        fn part(&mut self, _: Header, _: usize, _: &mut Fill<'_>) -> Result<usize, LinkError> {
            unreachable!("it is short")
        }
    }
    let mut first = First(None);
    let end = Instant::now() + TIMEOUT;
    loop {
        link.receive(&mut first).unwrap();
        if let Some(kind) = first.0 {
            return kind;
        }
        assert!(Instant::now() < end);
        if let Armed::Watch(watched) = link.arm(false).unwrap() {
            let mut fds = [PollFd::new(watched.fd, PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::from(1000_u16)).unwrap();
        }
    }
}

/// After the last peer has connected, no unconnected link is left to drain the wake-up of that
/// event.
#[test]
fn a_rank_that_has_met_all_is_not_woken_by_the_reception() {
    let [mut link, mut other] = two_ahead();
    let kernel = EpollIdle::new().unwrap();
    let watch = |link: &mut LazyLink| {
        if let Armed::Watch(watched) = link.arm(false).unwrap() {
            kernel.watch(1, watched).unwrap();
        }
    };
    watch(&mut link);
    let header = Header { kind: PacketKind::Eager, context: 0, tag: 7, transfer: 0, length: 0 };
    let end = Instant::now() + TIMEOUT;
    while !other.send(header, &[]).unwrap() {
        assert!(Instant::now() < end);
    }
    let mut tags = Tags(Vec::new());
    while tags.0.is_empty() {
        link.receive(&mut tags).unwrap();
        assert!(Instant::now() < end);
    }
    watch(&mut link);
    assert!(kernel.is_quiet());
}

#[test]
fn a_peer_that_left_before_it_was_met_says_goodbye() {
    let [mut link, gone] = two_ahead();
    drop(gone);
    link.peer_has_left();
    assert_eq!(next_kind(&mut link), PacketKind::Bye);
    assert!(matches!(link.arm(true).unwrap(), Armed::NoFd));
}

/// The report that a peer has left takes another path than the peer's packets.
#[test]
fn what_a_peer_sent_before_it_left_comes_first() {
    for is_wanted in [false, true] {
        let [mut link, mut leaves] = two_ahead();
        let header = |kind| Header { kind, context: 0, tag: 0, transfer: 0, length: 0 };
        if is_wanted {
            // Both ranks then dial each other.
            assert!(!link.send(header(PacketKind::Eager), &[]).unwrap());
        }
        let end = Instant::now() + TIMEOUT;
        for kind in [PacketKind::Eager, PacketKind::Bye] {
            while !leaves.send(header(kind), &[]).unwrap() {
                assert!(Instant::now() < end);
            }
        }
        link.peer_has_left();
        assert_eq!(next_kind(&mut link), PacketKind::Eager);
        assert!(leaves.is_connected());
    }
}
