//! Tests with ranks as threads, each with its own copy of the gathered contacts.

mod lazy;

use super::eager_connect::connect_all_within;
use super::handshake::{Ends, Hello};
use super::lazy_link::LazyLink;
use super::*;
use crate::progress::idle::{EpollIdle, Idle};
use crate::transport::tcp::TcpLink;
use crate::transport::{Armed, Fill, Header, Link, PacketKind, Sink};
use crate::types::LinkError;
use bytes::Bytes;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rlaunch_bootstrap::id::{JobId, LocalRank, NodeId, Rank};
use rlaunch_bootstrap::rank_table::{Connectivity, NodeRow, RankRow, RankTable};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(20);
const REVERSE_AFTER: Duration = Duration::from_millis(30);

type ConnectResult = Result<BTreeMap<Rank, TcpLink>, ConnectError>;

fn address(node: u32) -> IpAddr {
    IpAddr::from([127, 0, 0, node as u8 + 1])
}

/// Makes a rank table of `ranks` ranks on two nodes; the lower half of the ranks is on the first
/// node.
fn table(ranks: u32) -> RankTable {
    let node = |number| NodeRow {
        node: NodeId(number),
        host: ["a", "b"][number as usize].into(),
        hostname: "h".into(),
        arch: "x86_64".into(),
        address: address(number),
        addresses: Vec::new(),
        nics: Vec::new(),
    };
    let half = ranks / 2;
    let rank = |rank| RankRow {
        rank: Rank(rank),
        node: NodeId(rank / half),
        local_rank: LocalRank(rank % half),
        address: address(rank / half),
        gpu: None,
        numa_node: None,
        cpus: None,
        nics: Vec::new(),
    };
    let nodes = (0..2).map(node).collect();
    let rows = (0..ranks).map(rank).collect();
    RankTable::new(JobId(7), ranks, nodes, rows, Connectivity::default()).unwrap()
}

/// Opens the listeners of `ranks` ranks, and gathers their contacts.
fn listeners(ranks: usize) -> (Vec<RankListener>, Vec<Contact>) {
    let half = ranks / 2;
    let open = |rank| RankListener::open(address((rank / half) as u32)).unwrap();
    let listeners: Vec<RankListener> = (0..ranks).map(open).collect();
    let own: Vec<Contact> =
        listeners.iter().map(|listener| Contact::new(Some(listener.contact()))).collect();
    let bytes: Vec<Bytes> = own.iter().map(|own| encoded(own).into()).collect();
    let contacts = exchange_contacts(&own[0], |_| Ok(bytes)).unwrap();
    assert_eq!(contacts, own);
    (listeners, contacts)
}

fn encoded(contact: &Contact) -> Vec<u8> {
    postcard::to_stdvec(contact).unwrap()
}

/// Returns the ranks that are not on the node of rank `me`.
fn others(ranks: u32, me: u32) -> Vec<Rank> {
    let half = ranks / 2;
    (0..ranks).filter(|rank| rank / half != me / half).map(Rank).collect()
}

/// Starts a thread in which rank `me` connects with all ranks of the other node.
fn rank(
    me: u32,
    listener: RankListener,
    contacts: Vec<Contact>,
) -> thread::JoinHandle<ConnectResult> {
    thread::spawn(move || {
        let ranks = contacts.len() as u32;
        let peers = others(ranks, me);
        connect_all_within(
            listener,
            &contacts,
            &table(ranks),
            Rank(me),
            &peers,
            TIMEOUT,
            REVERSE_AFTER,
        )
    })
}

/// Sink that keeps the tags of packets.
struct Tags(Vec<u32>);

impl Sink for Tags {
    fn packet(&mut self, header: Header, _: &[u8]) -> Result<(), LinkError> {
        self.0.push(header.tag);
        Ok(())
    }

    fn part(
        &mut self,
        header: Header,
        offset: usize,
        fill: &mut Fill<'_>,
    ) -> Result<usize, LinkError> {
        let count = fill(&mut vec![0; header.length as usize - offset]).unwrap();
        if offset + count == header.length as usize {
            self.0.push(header.tag);
        }
        Ok(count)
    }
}

/// Checks that every link leads to the right rank: each rank sends its number to all peers, in a
/// short and in a long packet.
fn check(all: Vec<BTreeMap<Rank, TcpLink>>) {
    let ranks = all.len() as u32;
    let threads = (0..).zip(all).map(|(me, mut links)| {
        thread::spawn(move || {
            let found: Vec<Rank> = links.keys().copied().collect();
            assert_eq!(found, others(ranks, me));
            let end = Instant::now() + TIMEOUT;
            for (peer, link) in &mut links {
                let mut tags = Tags(Vec::new());
                for length in [0, 1 << 20] {
                    let kind = if length == 0 { PacketKind::Eager } else { PacketKind::Data };
                    let header = Header { kind, context: 0, tag: me, transfer: 1, length };
                    let payload = vec![1; length as usize];
                    while !link.send(header, &payload).unwrap() {
                        link.receive(&mut tags).unwrap();
                        assert!(Instant::now() < end);
                    }
                }
                while tags.0.len() < 2 {
                    link.receive(&mut tags).unwrap();
                    assert!(Instant::now() < end);
                }
                assert_eq!(tags.0, [peer.0, peer.0]);
            }
            links
        })
    });
    // The links are kept until all ranks have finished.
    let threads: Vec<_> = threads.collect();
    drop(threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>());
}

fn join(threads: Vec<thread::JoinHandle<ConnectResult>>) -> Vec<BTreeMap<Rank, TcpLink>> {
    threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
}

fn start(
    listeners: Vec<RankListener>,
    contacts: &[Contact],
) -> Vec<thread::JoinHandle<ConnectResult>> {
    (0..).zip(listeners).map(|(me, listener)| rank(me, listener, contacts.to_vec())).collect()
}

#[test]
fn ranks_of_two_hosts_meet() {
    let (listeners, contacts) = listeners(8);
    let begin = Instant::now();
    let all = join(start(listeners, &contacts));
    eprintln!("8 ranks: {:?}", begin.elapsed());
    check(all);
}

#[test]
fn each_rank_dials_half_of_its_peers_and_of_two_always_one() {
    for ranks in [8, 9, 64] {
        for me in 0..ranks {
            let all = (0..ranks).filter(|peer| *peer != me);
            let dialled = all.filter(|&peer| {
                let dials = eager_connect::dials(Rank(me), Rank(peer));
                assert_ne!(dials, eager_connect::dials(Rank(peer), Rank(me)));
                dials
            });
            assert!(dialled.count().abs_diff(ranks as usize / 2) <= 1);
        }
    }
}

#[test]
fn connections_that_cross_come_to_one() {
    for _ in 0..30 {
        let (listeners, contacts) = listeners(6);
        let threads = (0..).zip(listeners).map(|(me, listener)| {
            let contacts = contacts.clone();
            thread::spawn(move || {
                let peers = others(6, me);
                let at_once = Duration::ZERO;
                connect_all_within(
                    listener,
                    &contacts,
                    &table(6),
                    Rank(me),
                    &peers,
                    TIMEOUT,
                    at_once,
                )
            })
        });
        let threads = threads.collect();
        check(join(threads));
    }
}

/// Reserves a port on which no process listens as long as the returned socket exists.
fn closed_port() -> (nix::sys::socket::SockaddrIn, std::os::fd::OwnedFd, u16) {
    use nix::sys::socket::*;
    use std::os::fd::AsRawFd;
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap();
    bind(fd.as_raw_fd(), &SockaddrIn::new(0, 0, 0, 0, 0)).unwrap();
    let name: SockaddrIn = getsockname(fd.as_raw_fd()).unwrap();
    (name, fd, name.port())
}

fn with_port(contacts: &[Contact], of: usize, port: u16) -> Vec<Contact> {
    let mut contacts = contacts.to_vec();
    contacts[of].tcp.as_mut().unwrap().port = port;
    contacts
}

#[test]
fn a_closed_direction_is_replaced_by_the_other() {
    for blocked in [0, 1] {
        let (mut listeners, contacts) = listeners(2);
        let (_, _held, port) = closed_port();
        let sees_closed = with_port(&contacts, blocked, port);
        let (second, first) = (listeners.pop().unwrap(), listeners.pop().unwrap());
        let views = if blocked == 0 { [contacts, sees_closed] } else { [sees_closed, contacts] };
        let [firsts, seconds] = views;
        check(join(vec![rank(0, first, firsts), rank(1, second, seconds)]));
    }
}

#[test]
fn a_direction_that_leads_to_silence_is_replaced_by_the_other() {
    let (mut listeners, contacts) = listeners(2);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = with_port(&contacts, 0, silent.local_addr().unwrap().port());
    let (second, first) = (listeners.pop().unwrap(), listeners.pop().unwrap());
    check(join(vec![rank(0, first, contacts), rank(1, second, silent)]));
}

fn connect_for(
    milliseconds: u64,
    me: u32,
    listener: RankListener,
    contacts: &[Contact],
) -> ConnectError {
    let table = table(contacts.len() as u32);
    let peers = others(contacts.len() as u32, me);
    let timeout = Duration::from_millis(milliseconds);
    connect_all_within(listener, contacts, &table, Rank(me), &peers, timeout, REVERSE_AFTER)
        .err()
        .unwrap()
}

#[test]
fn a_pair_that_cannot_meet_is_named_with_the_reason() {
    let (mut listeners, contacts) = listeners(4);
    let (_, _held, port) = closed_port();
    let closed = with_port(&with_port(&contacts, 2, port), 3, port);
    let own = listeners.remove(1);
    let own_port = own.address.port();
    let error = connect_for(1500, 1, own, &closed);
    assert_eq!(
        error.to_string(),
        format!(
            "rank 1 on a and rank 2 on b could not connect over TCP within 1.5 s: b could not be reached at \
             127.0.0.2:{port} (Connection refused (os error 111)), and could not reach a at \
             127.0.0.1:{own_port}; nor could this rank and 1 other"
        )
    );
    let hint = error.hint().unwrap();
    assert!(hint.contains("on b") && hint.contains("from 127.0.0.1"), "{hint}");
}

#[test]
fn who_listens_without_the_key_is_not_believed() {
    let (mut listeners, contacts) = listeners(2);
    let mut wrong_keys = contacts;
    for contact in &mut wrong_keys {
        let stranger = RankListener::open(address(0)).unwrap();
        contact.tcp.as_mut().unwrap().key = stranger.contact().key;
    }
    let (second, first) = (listeners.pop().unwrap(), listeners.pop().unwrap());
    let both = wrong_keys.clone();
    let waiting = thread::spawn(move || connect_for(1500, 0, first, &both));
    let error = connect_for(1500, 1, second, &wrong_keys).to_string();
    assert!(error.contains("(the process that answers there is not of this job)"), "{error}");
    let error = waiting.join().unwrap().to_string();
    assert!(error.contains("rank 0 on a and rank 1 on b could not connect"), "{error}");
}

#[test]
fn strangers_harm_nobody() {
    let (mut listeners, contacts) = listeners(4);
    let first = listeners.remove(0);
    let at = first.address;
    let first = rank(0, first, contacts.clone());
    let mut strangers = Vec::new();
    let from = |from, to| Ends { from: Rank(from), to: Rank(to) };
    let likely = [from(2, 0), from(3, 0), from(1, 0), from(2, 1), from(9, 0)];
    for round in 0..60 {
        // Clients that send nothing, disconnect at once, send no hello, half a hello, or hellos of
        // other ranks with invalid proofs.
        strangers.push(TcpStream::connect(at).unwrap());
        drop(TcpStream::connect(at).unwrap());
        let mut noise = TcpStream::connect(at).unwrap();
        noise.write_all(&[round; 100]).unwrap();
        let hello = Hello::new(likely[usize::from(round) % likely.len()]).unwrap();
        let mut half = TcpStream::connect(at).unwrap();
        half.write_all(&hello.bytes()[..20]).unwrap();
        let mut liar = TcpStream::connect(at).unwrap();
        liar.write_all(hello.bytes()).unwrap();
        // The connection may be closed already.
        let _ = liar.write_all(&[round; 32]);
        strangers.extend([noise, half, liar]);
    }
    let mut threads = vec![first];
    threads.extend((1..).zip(listeners).map(|(me, listener)| rank(me, listener, contacts.clone())));
    check(join(threads));
    // All these connections are closed without the message that a connection is in use.
    for mut stranger in strangers {
        stranger.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut received = Vec::new();
        if stranger.read_to_end(&mut received).is_ok() {
            assert!(matches!(received.len(), 0 | handshake::REPLY), "{} bytes", received.len());
        }
    }
}

#[test]
fn what_was_overheard_opens_no_door() {
    // Rank 1 connects through an eavesdropper. Rank 0 waits for rank 3, too.
    let (mut listeners, contacts) = listeners(4);
    let listens_in = TcpListener::bind("127.0.0.1:0").unwrap();
    let through = with_port(&contacts, 0, listens_in.local_addr().unwrap().port());
    let (fourth, third) = (listeners.pop().unwrap(), listeners.pop().unwrap());
    let (second, first) = (listeners.pop().unwrap(), listeners.pop().unwrap());
    let at = first.address;
    assert!(eager_connect::dials(Rank(3), Rank(0)) && eager_connect::dials(Rank(0), Rank(2)));
    let slow = Duration::from_secs(10);
    let zero = contacts.clone();
    let zero = thread::spawn(move || {
        let peers = [Rank(2), Rank(3)];
        connect_all_within(first, &zero, &table(4), Rank(0), &peers, TIMEOUT, slow)
    });
    let three = through.clone();
    let three = thread::spawn(move || {
        connect_all_within(fourth, &three, &table(4), Rank(3), &[Rank(0)], TIMEOUT, slow)
    });
    let (mut dialled, _) = listens_in.accept().unwrap();
    let mut listener = TcpStream::connect(at).unwrap();
    let mut overheard = vec![0; handshake::HELLO + handshake::PROOF];
    let mut reply = [0; handshake::REPLY];
    let (first_message, proof) = overheard.split_at_mut(handshake::HELLO);
    dialled.read_exact(first_message).unwrap();
    listener.write_all(first_message).unwrap();
    listener.read_exact(&mut reply).unwrap();
    // Replay the hello before the dialling rank has its reply, and later the proof.
    let mut early = TcpStream::connect(at).unwrap();
    early.write_all(first_message).unwrap();
    let mut other_reply = [0; handshake::REPLY];
    early.read_exact(&mut other_reply).unwrap();
    assert_ne!(reply, other_reply);
    dialled.write_all(&reply).unwrap();
    dialled.read_exact(proof).unwrap();
    early.write_all(proof).unwrap();
    assert_eq!(early.read(&mut [0; 9]).unwrap_or(0), 0, "the proof was for another nonce");
    listener.write_all(proof).unwrap();
    let mut in_use = [0];
    listener.read_exact(&mut in_use).unwrap();
    dialled.write_all(&in_use).unwrap();
    assert_eq!(three.join().unwrap().unwrap().len(), 1);
    let mut late = TcpStream::connect(at).unwrap();
    late.write_all(&overheard).unwrap();
    assert_eq!(late.read(&mut [0; 9]).unwrap_or(0), 0, "the connection is in use already");
    let two = thread::spawn(move || {
        connect_all_within(third, &contacts, &table(4), Rank(2), &[Rank(0)], TIMEOUT, slow)
    });
    assert_eq!(zero.join().unwrap().unwrap().len(), 2);
    assert_eq!(two.join().unwrap().unwrap().len(), 1);
    drop(second);
}

#[test]
fn contacts_of_other_builds_and_damaged_ones_are_refused() {
    let (mut listeners, contacts) = listeners(2);
    let good = encoded(&contacts[0]);
    let gather = |second: &[u8]| {
        let all = vec![Bytes::from(good.clone()), Bytes::copy_from_slice(second)];
        exchange_contacts(&contacts[0], |_| Ok(all)).unwrap_err().to_string()
    };
    assert!(gather(&[]).ends_with("of rank 1 is invalid: it is empty"));
    assert!(gather(&good[..good.len() - 1]).ends_with("it is damaged"));
    assert!(gather(&[99, 1, 2]).ends_with("it is from another version of rlaunch"));
    let mut without = contacts.clone();
    without[1].tcp = None;
    let error = connect_for(100, 0, listeners.remove(0), &without).to_string();
    assert_eq!(error, "the contact of rank 1 is invalid: it has no TCP listener");
    assert!(!format!("{contacts:?}").contains("key: Key(["));
}
