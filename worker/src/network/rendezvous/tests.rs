//! Nodes that join over loopback, while unauthenticated peers connect as well.

use super::super::ports;
use super::accept::{self, AUTH_TIMEOUT, EdgeContext, ReturnConnections};
use super::dial::{DialOutcome, STAGGER};
use super::edge::{EdgeEvent, Negotiation, Nonce, ProvedConnection, RETURN_MAGIC, SetupMessage};
use rlaunch_bootstrap::deadline::SUSPENSION_THRESHOLD;
use rlaunch_bootstrap::id::{JobId, NodeId};
use rlaunch_bootstrap::job::PortRange;
use rlaunch_bootstrap::rendezvous::link::Head;
use rlaunch_bootstrap::rendezvous::oob::{EDGE_TIMEOUT, EdgeFailure, ParentPeer};
use rlaunch_bootstrap::security::Secret;
use rlaunch_bootstrap::security::handshake::{Dialer, HandshakeStep, Listener, Parties};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

const JOB: JobId = JobId(77);
const RANGE: PortRange = PortRange { first: 23000, last: 23999 };
const ROOT: NodeId = NodeId(0);
const CHILD: NodeId = NodeId(1);
/// Time limit for events that must happen. It is long, because a test machine may be suspended for
/// seconds.
const LONG: Duration = Duration::from_secs(60);

fn secret() -> Secret {
    Secret::from_bytes([5; 32])
}

/// Returns the loopback address `127.0.0.last`.
fn here(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, last).into()
}

/// Node of the tree of agents, with its accepting tasks.
struct Member {
    context: EdgeContext,
    proved: mpsc::UnboundedReceiver<ProvedConnection>,
    accepting: JoinSet<()>,
}

impl Member {
    fn new(me: NodeId, addresses: &[u8], children: &[NodeId]) -> Member {
        Member::with_auth_timeout(me, addresses, children, AUTH_TIMEOUT)
    }

    fn with_auth_timeout(
        me: NodeId,
        addresses: &[u8],
        children: &[NodeId],
        auth_timeout: Duration,
    ) -> Member {
        let addresses: Vec<IpAddr> = addresses.iter().map(|&last| here(last)).collect();
        let listeners = ports::listen(&addresses, RANGE, JOB, me.0).unwrap();
        let context = EdgeContext {
            secret: secret(),
            job: JOB,
            me,
            listeners: listeners.iter().map(|l| l.local_addr().unwrap()).collect(),
            returns: ReturnConnections::default(),
            node_timeout: EDGE_TIMEOUT,
            stagger: STAGGER,
            auth_timeout,
        };
        let (sender, proved) = mpsc::unbounded_channel();
        let mut accepting = JoinSet::new();
        for listener in listeners {
            let children = children.to_vec();
            accepting.spawn(accept::accept_all(
                listener,
                children,
                context.clone(),
                sender.clone(),
            ));
        }
        Member { context, proved, accepting }
    }

    fn at(&self, index: usize) -> SocketAddr {
        self.context.listeners[index]
    }

    async fn join(&self, pairs: &[(u8, SocketAddr)]) -> DialOutcome {
        let pairs = pairs.iter().map(|&(local, remote)| (here(local), remote)).collect();
        self.context.clone().connect_to_parent(&ParentPeer { node: ROOT, pairs }).await
    }

    async fn child(&mut self) -> ProvedConnection {
        timeout(LONG, self.proved.recv()).await.unwrap().unwrap()
    }
}

fn outcomes(outcome: &DialOutcome) -> Vec<EdgeFailure> {
    outcome.failed.iter().map(|attempt| attempt.outcome.clone()).collect()
}

/// Returns an address of this machine at which nothing listens.
async fn closed() -> SocketAddr {
    TcpListener::bind((here(1), 0)).await.unwrap().local_addr().unwrap()
}

/// Waits until the peer disconnects, and returns how long that took.
async fn until_disconnected(mut tcp: TcpStream) -> Duration {
    let (mut received, began) = (Vec::new(), Instant::now());
    // A reset ends the connection as well.
    let _ = timeout(LONG, tcp.read_to_end(&mut received)).await.unwrap();
    assert!(received.is_empty(), "an unauthenticated peer received data");
    began.elapsed()
}

/// Waits until all tasks of this test are waiting. Tokio's clock is paused meanwhile; a paused
/// clock advances only when all tasks are waiting.
async fn until_all_wait() {
    tokio::time::pause();
    tokio::time::sleep(Duration::from_millis(1)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn three_nodes_join_and_frames_go_both_ways() {
    let mut root = Member::new(ROOT, &[1], &[NodeId(1), NodeId(2)]);
    for (id, last) in [(NodeId(1), 2), (NodeId(2), 3)] {
        let member = Member::new(id, &[last], &[]);
        let outcome = member.join(&[(last, root.at(0))]).await;
        assert_eq!(outcomes(&outcome), []);
        let mine = outcome.edge.unwrap();
        let parents = root.child().await;
        assert_eq!((mine.peer, parents.peer), (ROOT, id));
        assert_eq!((mine.local, mine.remote), (parents.remote, parents.local));
        assert_eq!((mine.local.ip(), mine.remote), (here(last), root.at(0)));

        let (to_child, mut from_parent) = mpsc::unbounded_channel();
        let (to_parent, mut from_child) = mpsc::unbounded_channel();
        let mine = mine.into_edge(1 << 20, EDGE_TIMEOUT, to_child);
        let parents = parents.into_edge(1 << 20, EDGE_TIMEOUT, to_parent);
        mine.send(Head::Leaving.into());
        parents.send(Head::Leaving.into());
        for (arrivals, peer) in [(&mut from_parent, ROOT), (&mut from_child, id)] {
            let (from, what) = timeout(LONG, arrivals.recv()).await.unwrap().unwrap();
            assert_eq!(from, peer);
            assert!(matches!(what, EdgeEvent::Frame(f) if f.head == Head::Leaving));
        }
        // The edge is closed, which the other end notices.
        mine.finish().await;
        drop(parents);
        let broke = timeout(LONG, from_parent.recv()).await.unwrap();
        assert!(matches!(broke, None | Some((ROOT, EdgeEvent::Broke(_)))), "{broke:?}");
    }
}

#[tokio::test]
async fn a_pair_that_is_refused_is_left_for_the_next_at_once() {
    let mut root = Member::new(ROOT, &[1], &[CHILD]);
    let mut child = Member::new(CHILD, &[2], &[]);
    // Longer than the whole limit: a second pair can be tried only because the first has failed.
    child.context.stagger = 2 * EDGE_TIMEOUT;
    let pairs = [(2, closed().await), (2, root.at(0))];
    // Waiting for the stagger would look like a suspension, after which the attempts start again.
    let outcome = timeout(LONG, child.join(&pairs)).await.unwrap();
    assert_eq!(outcomes(&outcome), [EdgeFailure::Refused]);
    assert_eq!(outcome.edge.unwrap().remote, root.at(0));
    assert_eq!(root.child().await.peer, CHILD);
}

#[tokio::test]
async fn a_pair_without_a_way_back_is_not_used() {
    let mut root = Member::new(ROOT, &[1], &[CHILD]);
    let mut child = Member::new(CHILD, &[2, 3], &[]);
    // Nothing listens at the address to which the parent has to connect back.
    let gone = TcpListener::bind((here(2), 0)).await.unwrap().local_addr().unwrap();
    child.context.listeners[0] = gone;
    let outcome = child.join(&[(2, root.at(0)), (3, root.at(0))]).await;
    assert_eq!(outcomes(&outcome), [EdgeFailure::NoReturnPath(gone)]);
    assert_eq!(outcome.edge.unwrap().local.ip(), here(3));
    assert_eq!(root.child().await.remote.ip(), here(3));

    let alone = child.join(&[(2, root.at(0))]).await;
    assert!(alone.edge.is_none());
    assert_eq!(outcomes(&alone), [EdgeFailure::NoReturnPath(gone)]);
}

/// Tokio's clock is paused, and advances only when all tasks are waiting.
#[tokio::test(start_paused = true)]
async fn a_parent_that_is_silent_is_given_up_in_time() {
    let silent = TcpListener::bind((here(1), 0)).await.unwrap();
    let child = Member::new(CHILD, &[2], &[]);
    let (pairs, began) = ([(2, silent.local_addr().unwrap())], Instant::now());
    let outcome = child.join(&pairs).await;
    assert_eq!(outcomes(&outcome), [EdgeFailure::NoAnswer]);
    assert!(outcome.edge.is_none());
    let took = began.elapsed();
    assert!(took >= EDGE_TIMEOUT && took < EDGE_TIMEOUT + Duration::from_secs(1), "{took:?}");
}

/// The parent was suspended as well, since it shares this process.
#[tokio::test]
async fn a_child_that_stood_still_tries_again() {
    let mut root = Member::new(ROOT, &[1], &[CHILD]);
    let child = Member::new(CHILD, &[2], &[]);
    let pairs = [(2, root.at(0))];
    let standstill = async { std::thread::sleep(EDGE_TIMEOUT + 2 * SUSPENSION_THRESHOLD) };
    let (outcome, ()) = tokio::join!(child.join(&pairs), standstill);
    assert!(outcome.edge.is_some(), "{:?}", outcomes(&outcome));
    assert_eq!(root.child().await.peer, CHILD);
}

#[tokio::test]
async fn whoever_has_another_secret_gets_no_edge() {
    let mut root = Member::new(ROOT, &[1], &[CHILD]);
    let mut child = Member::new(CHILD, &[2], &[]);
    child.context.secret = Secret::from_bytes([6; 32]);
    let outcome = child.join(&[(2, root.at(0))]).await;
    assert!(outcome.edge.is_none());
    assert!(matches!(&outcomes(&outcome)[..], [EdgeFailure::WrongPeer(_)]));
    assert!(root.proved.try_recv().is_err());
}

#[tokio::test]
async fn a_node_that_is_no_child_gets_no_edge() {
    let mut root = Member::new(ROOT, &[1], &[CHILD]);
    let other = Member::new(NodeId(9), &[2], &[]);
    let outcome = other.join(&[(2, root.at(0))]).await;
    assert!(outcome.edge.is_none());
    assert!(root.proved.try_recv().is_err());
}

/// Returns messages that a peer which knows the job but not its secret can send, cut off at various
/// places.
fn unauthenticated_messages() -> Vec<Vec<u8>> {
    let parties = Parties { job: JOB, from: CHILD, to: ROOT };
    let (_, known) = Dialer::start(&secret(), parties).unwrap();
    let (_, unknown) = Dialer::start(&Secret::from_bytes([9; 32]), parties).unwrap();
    let mut back = RETURN_MAGIC.to_vec();
    back.extend_from_slice(&Nonce::default());
    vec![
        Vec::new(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        known[..known.len() - 1].to_vec(),
        unknown,
        back.clone(),
        back[..20].to_vec(),
        vec![0xff; 100_000],
    ]
}

#[tokio::test(start_paused = true)]
async fn strangers_are_let_go_in_time_and_told_nothing() {
    let mut root = Member::new(ROOT, &[1], &[CHILD]);
    let mut connections = JoinSet::new();
    for words in unauthenticated_messages() {
        let mut tcp = TcpStream::connect(root.at(0)).await.unwrap();
        // The peer may have been disconnected before all is written.
        let _ = tcp.write_all(&words).await;
        connections.spawn(until_disconnected(tcp));
    }
    while let Some(took) = connections.join_next().await {
        assert!(took.unwrap() < Duration::from_millis(2500));
    }
    assert!(root.proved.try_recv().is_err());
    assert_eq!(root.accepting.len(), 1);
    assert!(root.accepting.try_join_next().is_none(), "the listener was closed");
}

#[tokio::test]
async fn strangers_leave_nothing_behind_at_a_port() {
    // A loopback address that no other test uses.
    let root = Member::with_auth_timeout(ROOT, &[77], &[CHILD], Duration::from_millis(1));
    let address = root.at(0);
    for _ in 0..3 {
        until_disconnected(TcpStream::connect(address).await.unwrap()).await;
    }
    drop(root);
    // None of its tasks holds the listener any more.
    let deadline = Instant::now() + LONG;
    while tokio::net::TcpSocket::new_v4().unwrap().bind(address).is_err() {
        assert!(Instant::now() < deadline, "connections are left in TIME_WAIT at {address}");
        tokio::task::yield_now().await;
    }
}

/// The replay of a recorded handshake is answered, but gets no further, and is disconnected long
/// before any limit.
#[tokio::test]
async fn a_replayed_handshake_is_let_go() {
    let mut root = Member::with_auth_timeout(ROOT, &[1], &[CHILD], 2 * LONG);
    let parties = Parties { job: JOB, from: CHILD, to: ROOT };
    let (_, recorded) = Dialer::start(&secret(), parties).unwrap();
    let mut tcp = TcpStream::connect(root.at(0)).await.unwrap();
    tcp.write_all(&recorded).await.unwrap();
    tcp.write_all(&[40, 0]).await.unwrap();
    tcp.write_all(&[7; 40]).await.unwrap();
    let mut answer = Vec::new();
    assert!(timeout(LONG, tcp.read_to_end(&mut answer)).await.is_ok());
    assert!(root.proved.try_recv().is_err());
}

#[tokio::test]
async fn a_crowd_of_silent_strangers_keeps_no_child_out() {
    let mut root = Member::new(ROOT, &[1], &[CHILD]);
    let mut crowd = Vec::new();
    for _ in 0..400 {
        crowd.push(TcpStream::connect(root.at(0)).await.unwrap());
    }
    let child = Member::new(CHILD, &[2], &[]);
    let outcome = child.join(&[(2, root.at(0))]).await;
    assert!(outcome.edge.is_some(), "{:?}", outcomes(&outcome));
    assert_eq!(root.child().await.peer, CHILD);
}

/// Runs the parent's side of the handshake up to the child's first message.
async fn receive_offer(listener: &TcpListener) -> (Negotiation, SocketAddr, Nonce) {
    let (mut tcp, _) = listener.accept().await.unwrap();
    let mut waiting = Listener::new(secret(), JOB, ROOT);
    let mut buffer = [0; 4096];
    let done = loop {
        let length = tcp.read(&mut buffer).await.unwrap();
        assert_ne!(length, 0);
        match waiting.receive(&buffer[..length]).unwrap() {
            HandshakeStep::More(more) => waiting = more,
            HandshakeStep::Done(done) => break done,
        }
    };
    let mut negotiation = Negotiation::begin(tcp, done).await.unwrap();
    match negotiation.receive().await.unwrap() {
        SetupMessage::ConnectBack { listener, nonce } => (negotiation, listener, nonce),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn of_two_pairs_proved_at_once_one_is_taken() {
    let parents = [
        TcpListener::bind((here(1), 0)).await.unwrap(),
        TcpListener::bind((here(4), 0)).await.unwrap(),
    ];
    let pairs = [(2, parents[0].local_addr().unwrap()), (2, parents[1].local_addr().unwrap())];
    let child = Member::new(CHILD, &[2], &[]);
    let acting = async {
        let mut talks = Vec::new();
        let mut returns = Vec::new();
        for parent in &parents {
            let (negotiation, listener, nonce) = receive_offer(parent).await;
            let mut back = TcpStream::connect(listener).await.unwrap();
            back.write_all(RETURN_MAGIC).await.unwrap();
            talks.push(negotiation);
            returns.push((back, nonce));
        }
        // The child has received the first parts; both return connections complete at the same
        // time.
        until_all_wait().await;
        for (back, nonce) in &returns {
            assert_eq!(back.try_write(nonce).unwrap(), nonce.len());
        }
        (talks, returns)
    };
    let (outcome, (talks, _backs)) = tokio::join!(child.join(&pairs), acting);
    let edge = outcome.edge.unwrap();
    let mut taken = Vec::new();
    for (mut negotiation, (_, remote)) in talks.into_iter().zip(pairs) {
        let word = timeout(LONG, negotiation.receive()).await.unwrap();
        if matches!(word, Ok(SetupMessage::Accept)) {
            taken.push(remote);
        }
    }
    assert_eq!(taken, [edge.remote]);
}
