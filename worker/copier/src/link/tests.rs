use super::proxy::{self, Fault};
use super::*;
use rlaunch_bootstrap::job::PortRange;
use rlaunch_bootstrap::security::Secret;
use rlaunch_copy::{CHUNK, ChunkId, Message};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::thread;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// The kernel chooses a port.
const ANY: PortRange = PortRange { first: 0, last: 0 };
const SOON: Duration = Duration::from_secs(10);

fn party(me: u32, secret: u8, is_plain: bool) -> Party {
    Party { secret: Secret::from_bytes([secret; 32]), me, is_plain }
}

fn acceptor() -> Acceptor {
    Acceptor::open(&[HERE], ANY).unwrap()
}

fn peer(port: u16) -> Peer {
    Peer { rank: 1, host: "b".into(), addresses: vec![HERE], port }
}

/// Connects rank 0, called a, to rank 1, called b.
fn linked(streams: u32, is_plain: bool, fault: Fault) -> (Link, Link) {
    let acceptor = acceptor();
    let port = proxy::start(acceptor.port(), fault);
    let accepts =
        thread::spawn(move || acceptor.accept(&party(1, 7, is_plain), (0, "a"), SOON).unwrap());
    let dialled = dial(&peer(port), &party(0, 7, is_plain), streams, SOON).unwrap();
    (dialled, accepts.join().unwrap())
}

/// Connects two hosts that do not agree on something. Returns the errors of both.
fn not_linked(dials: &Party, accepts: Party) -> (LinkError, LinkError) {
    let acceptor = acceptor();
    let port = acceptor.port();
    let within = Duration::from_millis(700);
    let accepting = thread::spawn(move || acceptor.accept(&accepts, (0, "a"), within).unwrap_err());
    let dialled = dial(&peer(port), dials, 1, Duration::from_millis(100)).unwrap_err();
    (dialled, accepting.join().unwrap())
}

fn chunk(id: u32) -> (Message, Vec<u8>) {
    (Message::Chunk { id: ChunkId(id) }, vec![id as u8; CHUNK as usize - id as usize])
}

#[test]
fn all_messages_cross_on_all_streams_both_ways() {
    for is_plain in [false, true] {
        let (mut a, mut b) = linked(3, is_plain, Fault::default());
        assert_eq!((a.senders.len(), b.senders.len()), (3, 3));
        assert_eq!((a.handle.host(), b.handle.host()), ("b", "a"));
        for stream in 0..3 {
            let messages = [
                chunk(stream as u32),
                (Message::Beat, Vec::new()),
                (Message::Want(Vec::from([3..4, 7..9])), Vec::new()),
                (Message::Manifest { part: vec![9; 1000], last: true }, Vec::new()),
                (Message::failed("c", "no space"), Vec::new()),
                chunk(50),
            ];
            for (message, payload) in &messages {
                a.senders[stream].send(message, payload).unwrap();
                let incoming = b.receivers[stream].receive().unwrap();
                assert_eq!((&incoming.message, &incoming.payload[..]), (message, &payload[..]));
                b.senders[stream].send(message, payload).unwrap();
                let incoming = a.receivers[stream].receive().unwrap();
                assert_eq!((&incoming.message, &incoming.payload[..]), (message, &payload[..]));
            }
        }
    }
}

#[test]
fn another_secret_is_refused() {
    let (dialled, accepted) = not_linked(&party(0, 1, false), party(1, 2, false));
    let text = dialled.to_string();
    assert!(text.starts_with("cannot connect to b: 127.0.0.1:"), "{text}");
    assert!(text.ends_with("closed at once, as by a host of another copy"), "{text}");
    assert!(dialled.hint().is_some());
    assert!(matches!(accepted, LinkError::NotConnected { .. }), "{accepted}");
}

#[test]
fn what_both_ends_must_agree_on_is_not_taken_from_one() {
    // A host that encrypts nothing, one that another is expected before, and one that is not dialled.
    for (dials, accepts) in [
        (party(0, 1, true), party(1, 1, false)),
        (party(5, 1, false), party(1, 1, false)),
        (party(0, 1, false), party(2, 1, false)),
    ] {
        let (dialled, accepted) = not_linked(&dials, accepts);
        assert!(matches!(dialled, LinkError::Unreachable { .. }), "{dialled}");
        assert!(matches!(accepted, LinkError::NotConnected { .. }), "{accepted}");
    }
}

#[test]
fn strangers_do_not_disturb() {
    let acceptor = acceptor();
    let port = acceptor.port();
    let mut silent = Vec::new();
    for _ in 0..80 {
        silent.push(TcpStream::connect((HERE, port)).unwrap());
    }
    let mut stranger = TcpStream::connect((HERE, port)).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let accepts =
        thread::spawn(move || acceptor.accept(&party(1, 7, false), (0, "a"), SOON).unwrap());
    let link = dial(&peer(port), &party(0, 7, false), 2, SOON).unwrap();
    assert_eq!(link.senders.len(), accepts.join().unwrap().receivers.len());
    // The stranger learns nothing.
    stranger.set_read_timeout(Some(SOON)).unwrap();
    assert!(!matches!(stranger.read(&mut [0; 16]), Ok(1..)));
}

#[test]
fn bytes_on_the_wire_tell_nothing_but_chunks_of_plain_ones() {
    for is_plain in [false, true] {
        let listener = TcpListener::bind((HERE, 0)).unwrap();
        let (acceptor, watched) = (acceptor(), listener.local_addr().unwrap().port());
        let to = acceptor.port();
        // Keeps what goes by.
        let watcher = thread::spawn(move || {
            let (mut from, _) = listener.accept().unwrap();
            let mut to = TcpStream::connect((HERE, to)).unwrap();
            let (mut back_from, mut back_to) = (to.try_clone().unwrap(), from.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
            let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                seen.extend_from_slice(&buffer[..length]);
                to.write_all(&buffer[..length]).unwrap();
            }
            seen
        });
        let accepts =
            thread::spawn(move || acceptor.accept(&party(1, 7, is_plain), (0, "a"), SOON).unwrap());
        let mut a = dial(&peer(watched), &party(0, 7, is_plain), 1, SOON).unwrap();
        let mut b = accepts.join().unwrap();
        let part = b"name of a file".to_vec();
        a.senders[0].send(&Message::Manifest { part, last: true }, &[]).unwrap();
        a.senders[0].send(&Message::Chunk { id: ChunkId(0) }, b"content of a file").unwrap();
        b.receivers[0].receive().unwrap();
        b.receivers[0].receive().unwrap();
        a.handle.close();
        let seen = watcher.join().unwrap();
        let has = |text: &[u8]| seen.windows(text.len()).any(|part| part == text);
        assert!(!has(b"name of a file"));
        assert_eq!(has(b"content of a file"), is_plain);
    }
}

#[test]
fn an_altered_record_is_not_read() {
    // A byte of the first chunk, and one of the second.
    for flip_at in [500_000, CHUNK + 700] {
        let fault = Fault { flip_at: Some(flip_at), ..Fault::default() };
        let (mut a, mut b) = linked(1, false, fault);
        let sending = thread::spawn(move || {
            for id in [0, 1, 2] {
                let (message, payload) = chunk(id);
                if a.senders[0].send(&message, &payload).is_err() {
                    break;
                }
            }
            a
        });
        let error = loop {
            match b.receivers[0].receive() {
                Ok(incoming) => assert!(incoming.payload.iter().all(|&byte| byte < 3)),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, LinkError::Altered { .. }), "{error}");
        assert_eq!(error.to_string(), "what came from a was altered on the way");
        b.handle.close();
        drop(sending.join().unwrap());
    }
}

#[test]
fn a_stream_that_is_cut_ends_with_an_error() {
    let fault = Fault { cut_at: Some(CHUNK / 2), ..Fault::default() };
    let (mut a, mut b) = linked(1, false, fault);
    let sending = thread::spawn(move || {
        let (message, payload) = chunk(0);
        // The wire may take all of it.
        let _ = a.senders[0].send(&message, &payload);
        a.receivers[0].receive().unwrap_err()
    });
    let error = b.receivers[0].receive().unwrap_err();
    assert_eq!(error.to_string(), "the connection to a ended");
    assert_eq!(sending.join().unwrap().to_string(), "the connection to b ended");
}

#[test]
fn a_neighbour_that_reads_slowly_is_not_lost() {
    let delay = Duration::from_millis(5);
    let (mut a, mut b) = linked(1, false, Fault { delay, ..Fault::default() });
    let sending = thread::spawn(move || {
        for id in 0..24 {
            let (message, payload) = chunk(id);
            a.senders[0].send(&message, &payload).unwrap();
        }
        a
    });
    thread::sleep(3 * TICK);
    for id in 0..24 {
        let incoming = b.receivers[0].receive().unwrap();
        assert_eq!(incoming.message, Message::Chunk { id: ChunkId(id) });
    }
    drop(sending.join().unwrap());
}

#[test]
fn closing_a_link_wakes_those_who_wait() {
    let (mut a, b) = linked(2, false, Fault::default());
    let handle = a.handle.clone();
    let waiting = thread::spawn(move || a.receivers[1].receive().unwrap_err());
    thread::sleep(Duration::from_millis(20));
    handle.close();
    assert!(matches!(waiting.join().unwrap(), LinkError::Ended));
    drop(b);
}

#[test]
fn silence_is_noticed_only_after_its_time() {
    let (a, _b) = linked(1, false, Fault::default());
    a.handle.check().unwrap();
    let now = Instant::now();
    let past = Deadline::after(Duration::ZERO, now);
    *lock(&a.handle.0.silence) = past;
    let error = a.handle.check().unwrap_err();
    assert_eq!(error.to_string(), "b has sent nothing for 20 s");
    a.handle.heard();
    // Restarted with its own limit, which is over at once.
    assert!(matches!(a.handle.check(), Err(LinkError::Silent { .. })));
}

#[test]
fn a_port_that_is_taken_is_passed_over() {
    let taken = acceptor();
    let port = taken.port();
    let error = Acceptor::open(&[HERE], PortRange { first: port, last: port }).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot listen at ports {port} to {port}"));
    assert!(error.hint().is_some());
    // One of the next ports is free, or this host has none left.
    let range = PortRange { first: port, last: port.saturating_add(20) };
    let other = Acceptor::open(&[HERE], range).unwrap();
    assert_ne!(other.port(), port);
}

#[test]
fn addresses_of_others_are_left_out() {
    // 192.0.2.1 is for documentation: no host has it.
    let others = [IpAddr::from([192, 0, 2, 1]), HERE, HERE];
    let acceptor = Acceptor::open(&others, ANY).unwrap();
    assert_eq!(acceptor.addresses(), [HERE], "loopback is all there is");
    assert!(Acceptor::open(&others[..1], ANY).is_err());
}

#[test]
fn the_address_that_answers_is_taken() {
    let acceptor = acceptor();
    // Nobody listens at the first, and the second is a program that says nothing.
    let silent = TcpListener::bind(("127.0.0.3", acceptor.port())).unwrap();
    let addresses = [[127, 0, 0, 2], [127, 0, 0, 3], [127, 0, 0, 1]].map(IpAddr::from).to_vec();
    let peer = Peer { addresses, ..peer(acceptor.port()) };
    let accepts =
        thread::spawn(move || acceptor.accept(&party(1, 7, false), (0, "a"), SOON).unwrap());
    let begin = Instant::now();
    dial(&peer, &party(0, 7, false), 2, SOON).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    accepts.join().unwrap();
    drop(silent);
}

#[test]
fn a_command_carries_a_link() {
    let acceptor = acceptor();
    let port = acceptor.port().to_string();
    let accepts =
        thread::spawn(move || acceptor.accept(&party(1, 7, false), (0, "a"), SOON).unwrap());
    let script = "exec 3<>/dev/tcp/127.0.0.1/$0; cat <&3 & exec cat >&3";
    let command = ["bash", "-c", script, &port].map(str::to_owned);
    let (mut a, mut child) = over_command(&command, (1, "b"), &party(0, 7, false)).unwrap();
    let mut b = accepts.join().unwrap();
    let (message, payload) = chunk(4);
    let sending = thread::spawn(move || a.senders[0].send(&message, &payload).map(|()| a).unwrap());
    assert_eq!(b.receivers[0].receive().unwrap().payload.len(), CHUNK as usize - 4);
    drop(sending.join().unwrap());
    child.kill().unwrap();
    child.wait().unwrap();
    let missing = ["/nowhere/program".to_owned()];
    let error = over_command(&missing, (1, "b"), &party(0, 7, false)).unwrap_err();
    assert!(matches!(error, LinkError::Command { .. }), "{error}");
    let ends = ["true".to_owned()];
    let error = over_command(&ends, (1, "b"), &party(0, 7, false)).unwrap_err();
    assert_eq!(error.to_string(), "cannot connect to b by \"true\"");
}
