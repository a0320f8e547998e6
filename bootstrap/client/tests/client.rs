//! Tests of both clients. They talk over a real socket to the state machine of a node.
#![expect(clippy::unwrap_used, reason = "what does not hold is to end the test")]

use rlaunch_bootstrap::id::{JobId, NodeId, Rank};
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_bootstrap::protocol::rank::{FromRank, HelloRefusal, Reply, ToRank};
use rlaunch_bootstrap::rendezvous::Time;
use rlaunch_bootstrap::rendezvous::codec::{Decoder, encode_head};
use rlaunch_bootstrap::rendezvous::message::{CollectiveFailure, MAX_BLOB};
use rlaunch_bootstrap::rendezvous::node::{CallId, ClientId, Node, NodeInput, NodeOutput, Refusal};
use rlaunch_bootstrap::rendezvous::shape::TreeShape;
use rlaunch_bootstrap::security::Token;
use rlaunch_client::{AsyncClient, Client, ClientError, Credentials};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

const RANKS: u32 = 2;
const TOKEN: Token = Token([7; 16]);

/// Agent with a node of two ranks. It serves each connection in a thread.
struct Agent {
    socket: PathBuf,
    state: Arc<Mutex<State>>,
}

struct State {
    node: Node,
    sockets: BTreeMap<ClientId, UnixStream>,
    since: Instant,
}

impl Agent {
    fn start() -> Agent {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let socket = env::temp_dir().join(format!("rlaunch-client-{}-{number}", process::id()));
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let mut node = Node::new(NodeId(0), TreeShape::new(1, 2), (0..RANKS).map(Rank));
        node.handle(Time(0), NodeInput::Table(b"{}".to_vec().into())).unwrap();
        let state = State { node, sockets: BTreeMap::new(), since: Instant::now() };
        let state = Arc::new(Mutex::new(state));
        let served = Arc::clone(&state);
        thread::spawn(move || {
            for (number, socket) in (0..).zip(listener.incoming().flatten()) {
                let state = Arc::clone(&served);
                thread::spawn(move || serve(&state, ClientId(number), socket));
            }
        });
        Agent { socket, state }
    }

    fn credentials(&self, rank: u32) -> Credentials {
        let (socket, rank) = (self.socket.clone(), Rank(rank));
        Credentials { socket, job: JobId(5), rank, token: TOKEN, timeout: None }
    }

    fn handle(&self, input: NodeInput) {
        self.state.lock().unwrap().handle(input);
    }

    fn close_connections(&self) {
        for socket in self.state.lock().unwrap().sockets.values() {
            socket.shutdown(std::net::Shutdown::Both).unwrap();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
    }
}

impl State {
    fn now(&self) -> Time {
        Time(u64::try_from(self.since.elapsed().as_nanos()).unwrap())
    }

    fn handle(&mut self, input: NodeInput) {
        let now = self.now();
        self.node.handle(now, input).unwrap();
        self.answer();
    }

    fn answer(&mut self) {
        while let Some(output) = self.node.poll_output() {
            let NodeOutput::Answer(CallId { client, request }, answer) = output else { continue };
            let (reply, payload) = answer.split();
            self.send(client, &ToRank::Reply { request, reply }, &payload.to_vec());
        }
    }

    fn send(&self, client: ClientId, frame: &ToRank, payload: &[u8]) {
        let mut bytes = encode_head(frame, payload.len()).unwrap();
        bytes.extend_from_slice(payload);
        // Sent in two parts, because a socket may split a frame anywhere.
        let (first, second) = bytes.split_at(bytes.len() / 2);
        let mut socket = &self.sockets[&client];
        let _ = socket.write_all(first).and_then(|()| socket.write_all(second));
    }
}

fn serve(state: &Mutex<State>, client: ClientId, mut socket: UnixStream) {
    socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    state.lock().unwrap().sockets.insert(client, socket.try_clone().unwrap());
    let mut decoder = Decoder::<FromRank>::new(0);
    let (mut buffer, mut caller) = ([0; 100], Rank(0));
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => decoder.push(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
        let mut state = state.lock().unwrap();
        while let Some((frame, _)) = decoder.next_frame().unwrap() {
            match frame {
                FromRank::Hello { rank, token, .. } if token == TOKEN => {
                    caller = rank;
                    state.send(client, &ToRank::Welcome { world_size: RANKS }, &[]);
                }
                FromRank::Hello { .. } => {
                    state.send(client, &ToRank::Refused(HelloRefusal::WrongJob), &[]);
                }
                FromRank::Call { request, call } => {
                    state.handle(NodeInput::Call(caller, CallId { client, request }, call));
                }
            }
        }
        let now = state.now();
        state.node.handle_timeout(now);
        state.answer();
    }
}

/// Sequence of calls that tests a client type. `$wait` is `.await` or nothing.
macro_rules! story {
    ($client:ident, [$($wait:tt)*]) => {{
        let agent = Agent::start();
        let mut one = $client::connect(agent.credentials(0))$($wait)*.unwrap();
        let mut two = $client::connect(agent.credentials(1))$($wait)*.unwrap();
        assert_eq!(one.world_size(), RANKS);

        assert_eq!(one.get("", "k")$($wait)*.unwrap(), None);
        one.put("", "k", b"value")$($wait)*.unwrap();
        assert_eq!(&two.get("", "k")$($wait)*.unwrap().unwrap()[..], b"value");
        assert_eq!(&two.wait("", "k")$($wait)*.unwrap()[..], b"value");
        assert_eq!(two.get("other", "k")$($wait)*.unwrap(), None);
        let large = one.put("", "k", &vec![0; MAX_BLOB + 1])$($wait)*;
        assert!(matches!(large, Err(ClientError::Refused(Refusal::TooLong))), "{large:?}");
        one.event("here")$($wait)*.unwrap();
        assert_eq!(one.clock()$($wait)*.unwrap().nanoseconds, 0);

        one.set_timeout(Some(Duration::from_millis(20)));
        let alone = one.barrier("x")$($wait)*.unwrap_err().to_string();
        assert!(alone.starts_with("barrier \"x\": not within 0.02 s"), "{alone}");
        let nothing = one.wait("", "never")$($wait)*;
        assert!(matches!(nothing, Err(ClientError::TimedOut { .. })), "{nothing:?}");
        one.set_timeout(None);

        agent.handle(NodeInput::RankEnded(Rank(0), ExitStatus::Code(3)));
        let gone = one.clock()$($wait)*;
        assert!(matches!(gone, Err(ClientError::Refused(Refusal::NotARank))), "{gone:?}");
        let broke = two.all_gather("y", b"two")$($wait)*;
        let Err(ClientError::CollectiveFailed { why: CollectiveFailure::RankEnded { rank, .. }, .. }) = broke else {
            panic!("{broke:?}");
        };
        assert_eq!(rank, Rank(0));
        two.abort("enough")$($wait)*.unwrap();
        let aborted = two.get("", "k")$($wait)*.unwrap_err().to_string();
        assert_eq!(aborted, "aborted by rank 1: enough");

        agent.close_connections();
        let over = two.clock()$($wait)*;
        assert!(matches!(over, Err(ClientError::AgentGone)), "{over:?}");
        let token = Token([8; 16]);
        let rejected = $client::connect(Credentials { token, ..agent.credentials(0) })$($wait)*;
        let not_welcome = ClientError::Rejected(HelloRefusal::WrongJob).to_string();
        assert_eq!(rejected.unwrap_err().to_string(), not_welcome);
        let socket = agent.socket.with_extension("no");
        let nowhere = $client::connect(Credentials { socket, ..agent.credentials(0) })$($wait)*;
        assert!(matches!(nowhere, Err(ClientError::Connect { .. })));
    }};
}

#[test]
fn a_blocking_client_has_every_call() {
    story!(Client, []);
}

#[tokio::test]
async fn an_async_client_has_every_call() {
    story!(AsyncClient, [.await]);
}

#[test]
fn ranks_meet_from_two_threads() {
    let agent = Agent::start();
    let all = thread::scope(|scope| {
        let threads = [0, 1].map(|rank: u32| {
            let credentials = agent.credentials(rank);
            scope.spawn(move || {
                let mut client = Client::connect(credentials).unwrap();
                client.barrier("start").unwrap();
                client.all_gather("x", &[u8::try_from(rank).unwrap(); 3]).unwrap()
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(all, [[&[0; 3][..], &[1; 3]], [&[0; 3][..], &[1; 3]]]);
}

#[tokio::test]
async fn a_call_that_is_dropped_leaves_the_socket_in_order() {
    let agent = Agent::start();
    let mut one = AsyncClient::connect(agent.credentials(0)).await.unwrap();
    let mut two = AsyncClient::connect(agent.credentials(1)).await.unwrap();
    let dropped = tokio::time::timeout(Duration::from_millis(30), one.barrier("x")).await;
    assert!(dropped.is_err());
    // The call whose future was dropped has arrived at the barrier; the answer to it is ignored.
    two.barrier("x").await.unwrap();
    one.put("", "k", b"v").await.unwrap();
    assert_eq!(&one.wait("", "k").await.unwrap()[..], b"v");
}

#[test]
fn an_agent_that_answers_out_of_turn_is_not_believed() {
    let agent = Agent::start();
    let mut client = Client::connect(agent.credentials(0)).unwrap();
    let unasked = ToRank::Reply { request: 99, reply: Reply::Done };
    agent.state.lock().unwrap().send(ClientId(0), &unasked, &[]);
    let answered = client.clock();
    assert!(matches!(answered, Err(ClientError::Violation(_))), "{answered:?}");
}
