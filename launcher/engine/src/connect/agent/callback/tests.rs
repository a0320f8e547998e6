use super::listener::CallbackListener;
use super::*;
use crate::connect::agent::store::AgentStore;
use rlaunch_bootstrap::security::callback::{CallbackDialer, HANDSHAKE, parse_address_word};
use rlaunch_bootstrap::security::handshake::SecureStream;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const NODE: NodeId = NodeId(2);
/// Time limit for authentication, for tests in which it expires.
const AUTH_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for events that must happen. It is long, since the test machine may be suspended for seconds.
const BOUND: Duration = Duration::from_secs(60);

async fn listener(auth_timeout: Duration) -> CallbackListener {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    CallbackListener::open(KeyPair::generate().unwrap(), vec![listener], auth_timeout)
}

/// Sends bytes, and returns everything that comes back until the connection is closed.
async fn exchange(listener: &CallbackListener, first_bytes: &[u8]) -> Vec<u8> {
    let mut tcp = TcpStream::connect(listener.addresses()[0]).await.unwrap();
    tcp.write_all(first_bytes).await.unwrap();
    let mut answer = Vec::new();
    // A peer that closes before it has read everything resets the connection.
    let _ = timeout(BOUND, tcp.read_to_end(&mut answer)).await.expect("it is left open");
    answer
}

/// Completes the handshake as an agent. Returns the connection, the encrypted stream on it, and the first
/// message that was sent.
async fn call(listener: &CallbackListener, key: &KeyPair) -> (TcpStream, SecureStream, Vec<u8>) {
    let (caller, first) = CallbackDialer::start(key, &listener.key(), NODE).unwrap();
    let mut tcp = TcpStream::connect(listener.addresses()[0]).await.unwrap();
    tcp.write_all(&first).await.unwrap();
    let mut answer = [0; HANDSHAKE];
    timeout(BOUND, tcp.read_exact(&mut answer)).await.expect("no answer").unwrap();
    (tcp, caller.finish(&answer).unwrap(), first)
}

async fn say(tcp: &mut TcpStream, stream: &mut SecureStream, words: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    stream.seal(words, &mut sealed).unwrap();
    tcp.write_all(&sealed).await.unwrap();
    sealed
}

#[tokio::test]
async fn an_agent_that_announced_itself_comes_in() {
    let listener = listener(BOUND).await;
    let key = KeyPair::generate().unwrap();
    let mut expected = listener.expect(NODE, key.public());
    let (mut tcp, mut stream, _) = call(&listener, &key).await;
    say(&mut tcp, &mut stream, b"hello").await;
    let mut called = timeout(BOUND, expected.called()).await.unwrap().unwrap();
    assert_eq!(called.decrypted, b"hello");
    let sealed = called.secure_stream.seal(b"welcome").unwrap();
    called.tcp.write_all(&sealed).await.unwrap();
    let (mut received, mut decrypted) = (Vec::new(), Vec::new());
    while decrypted.is_empty() {
        assert!(tcp.read_buf(&mut received).await.unwrap() > 0);
        stream.open(&std::mem::take(&mut received), &mut decrypted).unwrap();
    }
    assert_eq!(decrypted, b"welcome");
}

#[tokio::test]
async fn an_agent_may_be_quicker_than_its_announcement() {
    let listener = listener(BOUND).await;
    let key = KeyPair::generate().unwrap();
    let announced = async {
        // Waits until the listener has surely received the agent's first message, before the key is
        // announced.
        let mut early = TcpStream::connect(listener.addresses()[0]).await.unwrap();
        assert!(timeout(AUTH_TIMEOUT / 8, early.read(&mut [0])).await.is_err());
        listener.expect(NODE, key.public())
    };
    let ((mut tcp, mut stream, _), mut expected) = tokio::join!(call(&listener, &key), announced);
    say(&mut tcp, &mut stream, b"x").await;
    assert!(timeout(BOUND, expected.called()).await.unwrap().is_some());
}

#[tokio::test]
async fn strangers_hear_nothing_and_the_agent_comes_in_all_the_same() {
    let listener = listener(AUTH_TIMEOUT).await;
    let (key, thief) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut expected = listener.expect(NODE, key.public());
    // A process that reads the agent's command line knows everything but the private key of the announced
    // pair.
    let (_, by_thief) = CallbackDialer::start(&thief, &listener.key(), NODE).unwrap();
    let (_, mut old) = CallbackDialer::start(&key, &listener.key(), NODE).unwrap();
    old[12] = 9;
    let (_, of_nobody) = CallbackDialer::start(&key, &listener.key(), NodeId(9)).unwrap();
    let oversized = [b"GET /".as_slice(), &[b'a'; 4096]].concat();
    let cases: [(&str, &[u8]); 7] = [
        ("garbage", b"\x16\x03\x01\x02\x00\x01"),
        ("another protocol", b"SSH-2.0-OpenSSH_9.2\r\n"),
        ("another version", &old),
        ("an oversized line", &oversized),
        ("another's key", &by_thief),
        ("a node that nobody expects", &of_nobody),
        ("half a message", &by_thief[..30]),
    ];
    for (case, first_bytes) in cases {
        assert_eq!(exchange(&listener, first_bytes).await, b"", "{case}");
    }
    assert_eq!(exchange(&listener, b"FETCH /etc/passwd\n").await, b"");
    let (mut tcp, mut stream, _) = call(&listener, &key).await;
    say(&mut tcp, &mut stream, b"me").await;
    assert_eq!(timeout(BOUND, expected.called()).await.unwrap().unwrap().decrypted, b"me");
}

#[tokio::test]
async fn slow_bytes_have_an_end() {
    let listener = listener(AUTH_TIMEOUT).await;
    let key = KeyPair::generate().unwrap();
    let (_, first) = CallbackDialer::start(&key, &listener.key(), NODE).unwrap();
    let mut slow = TcpStream::connect(listener.addresses()[0]).await.unwrap();
    for byte in &first {
        if slow.write_all(&[*byte]).await.is_err() {
            return;
        }
        // Sends the next byte once no answer has arrived for a short while.
        if let Ok(read) = timeout(AUTH_TIMEOUT / 16, slow.read(&mut [0])).await {
            assert_eq!(read.unwrap_or(0), 0);
            return;
        }
    }
    panic!("it may take as long as it likes");
}

#[tokio::test]
async fn slow_bytes_hold_nobody_up() {
    // The time limit is so long that the slow peer stays connected throughout the test.
    let listener = listener(10 * BOUND).await;
    let key = KeyPair::generate().unwrap();
    let mut expected = listener.expect(NODE, key.public());
    let (_, first) = CallbackDialer::start(&key, &listener.key(), NODE).unwrap();
    let mut slow = TcpStream::connect(listener.addresses()[0]).await.unwrap();
    slow.write_all(&first[..first.len() / 2]).await.unwrap();
    let (mut tcp, mut stream, _) = call(&listener, &key).await;
    say(&mut tcp, &mut stream, b"me").await;
    assert!(timeout(BOUND, expected.called()).await.unwrap().is_some());
}

#[tokio::test]
async fn a_replay_neither_comes_in_nor_keeps_the_agent_out() {
    let listener = listener(AUTH_TIMEOUT).await;
    let key = KeyPair::generate().unwrap();
    let mut expected = listener.expect(NODE, key.public());
    // Recorded before the agent has sent its first encrypted packet.
    let (mut tcp, mut stream, first) = call(&listener, &key).await;
    let mut recorded = first;
    let mut replay = TcpStream::connect(listener.addresses()[0]).await.unwrap();
    replay.write_all(&recorded).await.unwrap();
    let mut answer = [0; HANDSHAKE];
    timeout(BOUND, replay.read_exact(&mut answer)).await.unwrap().unwrap();
    let sealed = say(&mut tcp, &mut stream, b"me").await;
    // A packet that the agent encrypted for one connection is invalid in another.
    replay.write_all(&sealed).await.unwrap();
    assert_eq!(timeout(BOUND, replay.read(&mut [0])).await.unwrap().unwrap_or(0), 0);
    let called = timeout(BOUND, expected.called()).await.unwrap().unwrap();
    assert_eq!(called.decrypted, b"me");
    // A replay is refused as well after the agent has connected, because no agent is expected then.
    recorded.extend_from_slice(&sealed);
    assert_eq!(exchange(&listener, &recorded).await, b"");
}

#[tokio::test]
async fn hosts_get_what_is_lent_and_nothing_else() {
    let exe = std::env::current_exe().unwrap();
    let file = AgentStore::new(Some(exe.clone())).native().unwrap();
    let listener = listener(AUTH_TIMEOUT).await;
    let line = format!("FETCH {}\n", file.sha256);
    assert_eq!(exchange(&listener, line.as_bytes()).await, b"");
    listener.serve(&file);
    let content = std::fs::read(&exe).unwrap();
    assert!(fetched(&listener, &line).await == content);
    let get = format!("GET /{} HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n", file.sha256);
    let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", content.len());
    let answer = fetched(&listener, &get).await;
    assert!(answer.strip_prefix(head.as_bytes()) == Some(&content));
    assert_eq!(exchange(&listener, format!("FETCH {}\n", "0".repeat(64)).as_bytes()).await, b"");
}

/// 127.0.0.2 requests the file 80 times and reads nothing; 127.0.0.1 must still receive the file.
#[tokio::test]
async fn a_host_that_reads_nothing_keeps_no_other_waiting() {
    let exe = std::env::current_exe().unwrap();
    let file = AgentStore::new(Some(exe.clone())).native().unwrap();
    let listener = listener(BOUND).await;
    listener.serve(&file);
    let line = format!("FETCH {}\n", file.sha256);
    let mut greedy = Vec::new();
    for _ in 0..80 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut tcp = socket.connect(listener.addresses()[0]).await.unwrap();
        tcp.write_all(line.as_bytes()).await.unwrap();
        greedy.push(tcp);
    }
    let size = std::fs::metadata(&exe).unwrap().len();
    let own = timeout(BOUND, fetched(&listener, &line)).await.expect("it waits for the others");
    assert_eq!(own.len() as u64, size);
}

/// More unauthenticated peers than the limit connect from 127.0.0.2; an agent that has connected before
/// must not be displaced.
#[tokio::test]
async fn a_flood_from_one_address_pushes_out_no_other() {
    let listener = listener(BOUND).await;
    let key = KeyPair::generate().unwrap();
    let (caller, first) = CallbackDialer::start(&key, &listener.key(), NODE).unwrap();
    let mut tcp = TcpStream::connect(listener.addresses()[0]).await.unwrap();
    tcp.write_all(&first).await.unwrap();
    let mut flood = Vec::new();
    for _ in 0..600 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        flood.push(socket.connect(listener.addresses()[0]).await.unwrap());
    }
    let mut expected = listener.expect(NODE, key.public());
    let mut answer = [0; HANDSHAKE];
    timeout(BOUND, tcp.read_exact(&mut answer)).await.expect("no answer").unwrap();
    say(&mut tcp, &mut caller.finish(&answer).unwrap(), b"me").await;
    assert!(timeout(BOUND, expected.called()).await.unwrap().is_some());
}

async fn fetched(listener: &CallbackListener, request: &str) -> Vec<u8> {
    let mut tcp = TcpStream::connect(listener.addresses()[0]).await.unwrap();
    tcp.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tcp.read_to_end(&mut answer).await.unwrap();
    answer
}

#[test]
fn the_address_that_led_to_the_host_comes_first() {
    let listening: Vec<SocketAddr> = ["127.0.0.1:1024", "10.1.0.1:1025", "[fd00::1]:1026"]
        .iter()
        .map(|text| text.parse().unwrap())
        .collect();
    let with = |local: &str| format_addresses(&listening, local.parse().ok());
    assert_eq!(with("fd00::1"), ["fd00::1:1026", "10.1.0.1:1025"]);
    assert_eq!(with("::ffff:10.1.0.1"), ["10.1.0.1:1025", "fd00::1:1026"]);
    assert_eq!(with("127.0.0.1"), ["127.0.0.1:1024", "10.1.0.1:1025", "fd00::1:1026"]);
    assert_eq!(with(""), ["10.1.0.1:1025", "fd00::1:1026"]);
    assert!(with("10.1.0.1").iter().all(|word| parse_address_word(word).is_some()));
}

#[tokio::test]
async fn a_command_line_names_ports_of_the_range() {
    let ports = PortRange { first: 21000, last: 21511 };
    let callbacks = Callbacks::new(AddressConstraints::default(), ports);
    let words = callbacks.callback_args(NODE, "127.0.0.1".parse().ok()).unwrap();
    let [option, addresses, key, node] = words.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{words}")
    };
    assert_eq!((option, key.len(), node), ("--callback", 64, "2"));
    for word in addresses.split(',') {
        let port = parse_address_word(word).unwrap().port();
        assert!((ports.first..=ports.last).contains(&port), "{words}");
    }
    let nowhere =
        AddressConstraints { interfaces: vec!["none".into()], ..AddressConstraints::default() };
    assert_eq!(Callbacks::new(nowhere, ports).callback_args(NODE, None), None);
}
