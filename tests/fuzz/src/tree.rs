//! State machines of the agents' tree: an edge, a node between its neighbours and its ranks, and
//! the launcher's coordinator. The input is decoded to a list of acts, up to the first that does
//! not decode.

use crate::stream::{acts, written};
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_bootstrap::rendezvous::Time;
use rlaunch_bootstrap::rendezvous::codec::{Decoder, encode_head};
use rlaunch_bootstrap::rendezvous::coordinator::{self, Coordinator};
use rlaunch_bootstrap::rendezvous::link::{Frame, Head, ReliableLink};
use rlaunch_bootstrap::rendezvous::message::{CollectiveId, CollectiveKind, Key, Message, Packet};
use rlaunch_bootstrap::rendezvous::node::{Call, CallId, ClientId, Node, NodeInput, NodeOutput};
use rlaunch_bootstrap::rendezvous::payload::{Gathered, Payload, gather_record};
use rlaunch_bootstrap::rendezvous::rank_set::RankSet;
use rlaunch_bootstrap::rendezvous::shape::TreeShape;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Longest payload, in bytes.
const LIMIT: usize = 64 << 10;

/// Event at one end of an edge of the tree.
#[derive(Serialize, Deserialize)]
enum EdgeAct {
    Up,
    Down,
    Send,
    Beat,
    Frame(Head, u16),
    Raw(Vec<u8>),
}

/// Runs one end of an edge, which delivers packets once and in order, and keeps packets that are
/// not confirmed.
pub(crate) fn edge(data: &[u8]) {
    let mut link = ReliableLink::default();
    let mut decoder = Decoder::<Head>::new(LIMIT);
    let mut sent = 0;
    for act in acts(data) {
        match act {
            EdgeAct::Up => {
                link.carrier_up();
                decoder = Decoder::new(LIMIT);
            }
            EdgeAct::Down => link.carrier_down(),
            EdgeAct::Beat => link.beat(),
            EdgeAct::Send => {
                sent += 1;
                link.send(Packet { message: Message::Table, payload: Payload::empty() });
            }
            EdgeAct::Frame(head, length) => {
                let length = usize::from(length);
                let Ok(mut bytes) = encode_head(&head, length) else { continue };
                bytes.resize(bytes.len() + length, 7);
                decoder.push(&bytes);
            }
            EdgeAct::Raw(bytes) => decoder.push(&bytes),
        }
        while let Ok(Some((head, payload))) = decoder.next_frame() {
            let kept = link.unconfirmed();
            let received = link.receive(Frame { head, payload: payload.into() });
            assert!(received.is_ok() || link.unconfirmed() == kept);
        }
        assert!(link.unconfirmed() <= sent);
        while link.poll_frame().is_some() {}
    }
}

pub(crate) fn edge_seeds() -> Vec<Vec<u8>> {
    use EdgeAct::{Beat, Down, Frame, Raw, Send, Up};
    let packet = |number| Frame(Head::Packet { number, message: Message::Table }, 9);
    let beat = encode_head(&Head::Beat, 0).unwrap_or_default();
    vec![
        written(&[Send, Up, packet(0), Beat, Frame(Head::Confirm { next: 1 }, 0)]),
        written(&[Up, Send, Send, Down, Up, Frame(Head::Resume { next: 1 }, 0), packet(0)]),
        written(&[Up, packet(0), packet(0), packet(2), Raw(beat), Frame(Head::Leaving, 0)]),
    ]
}

/// Event at a node.
#[derive(Serialize, Deserialize)]
enum NodeAct {
    /// Passing of time, in nanoseconds.
    Pass(u64),
    Packet(u32, Message, Vec<u8>),
    Table,
    Started(u32),
    Ended(u32),
    Call(u32, u64, Call),
    Gone(u64),
}

const SHAPE: (u32, u32) = (7, 2);
const ME: NodeId = NodeId(1);

/// Runs a node with a parent, two children and two ranks. The node obeys the protocol, whatever the
/// others send.
pub(crate) fn node(data: &[u8]) {
    let shape = TreeShape::new(SHAPE.0, SHAPE.1);
    let mut node = Node::new(ME, shape, [Rank(2), Rank(3)]);
    let mut now = Time(0);
    let mut calls = Calls::default();
    for act in acts(data) {
        let phase = node.phase();
        let input = match act {
            NodeAct::Pass(time) => {
                now = Time(now.0.saturating_add(time));
                node.handle_timeout(now);
                take_outputs(&mut node, shape, &mut calls);
                continue;
            }
            NodeAct::Packet(from, message, payload) => {
                NodeInput::Packet(NodeId(from), Packet { message, payload: payload.into() })
            }
            NodeAct::Table => NodeInput::Table(vec![7; 9].into()),
            NodeAct::Started(rank) => NodeInput::RankStarted(Rank(rank), 4711),
            NodeAct::Ended(rank) => NodeInput::RankEnded(Rank(rank), ExitStatus::Code(1)),
            NodeAct::Call(rank, request, call) => {
                let id = CallId { client: ClientId(request % 3), request };
                if calls.gone.contains(&id.client) || !calls.open.insert(id) {
                    continue;
                }
                NodeInput::Call(Rank(rank), id, call)
            }
            NodeAct::Gone(client) => {
                calls.gone.insert(ClientId(client));
                NodeInput::ClientGone(ClientId(client))
            }
        };
        if node.handle(now, input).is_err() {
            assert_eq!(node.phase(), phase);
            assert_eq!(node.poll_output(), None, "a violation has no effect");
        }
        take_outputs(&mut node, shape, &mut calls);
    }
}

/// Open calls, and clients that are gone.
#[derive(Default)]
struct Calls {
    open: BTreeSet<CallId>,
    gone: BTreeSet<ClientId>,
}

fn take_outputs(node: &mut Node, shape: TreeShape, calls: &mut Calls) {
    while let Some(output) = node.poll_output() {
        match output {
            NodeOutput::Send(to, _) => assert!(shape.is_edge(ME, to), "sent to {to:?}"),
            NodeOutput::Answer(id, _) => {
                assert!(calls.open.remove(&id), "{id:?} is answered unasked");
            }
            NodeOutput::Table(_) | NodeOutput::Report(_) => {}
            NodeOutput::RootRequest(..) => panic!("{ME} is not the root"),
        }
    }
}

pub(crate) fn node_seeds() -> Vec<Vec<u8>> {
    use CollectiveKind::{Barrier, Gather};
    use NodeAct::{Call as Asks, Ended, Gone, Packet, Pass, Started};
    let operation = |kind| CollectiveId { kind, name: "x".into(), sequence: 0 };
    let key = || Key { namespace: "a".into(), name: "b".into() };
    let here = |rank: u32| Message::TableReceived { ranks: [Rank(rank)].into_iter().collect() };
    let ready = || {
        let table = Packet(0, Message::Table, vec![1, 2]);
        vec![table, Packet(3, here(4), vec![]), Packet(4, here(5), vec![]), Started(2), Started(3)]
    };
    let meet = |kind| Call::Collective { kind, name: "x".into(), blob: vec![7; 3], timeout: None };
    let arrived = |from, rank| {
        Packet(
            from,
            Message::Arrived(operation(Gather)),
            gather_record(Rank(rank), b"xyz").to_vec(),
        )
    };
    let gather = [
        Asks(2, 0, meet(Gather)),
        Asks(3, 1, meet(Gather)),
        arrived(3, 4),
        arrived(4, 5),
        Packet(0, Message::Released(operation(Gather)), vec![]),
    ];
    let keys = [
        Asks(2, 0, Call::Await { key: key(), timeout: None }),
        Packet(3, Message::Put { request: 1, key: key() }, vec![5]),
        Packet(0, Message::Stored { request: 0, stored: true }, vec![]),
        Packet(0, Message::Appeared(key()), vec![5]),
        Packet(3, Message::Get { request: 2, key: key() }, vec![]),
        Packet(0, Message::Got { request: 1, found: true }, vec![5]),
        Packet(4, Message::RootRequest { request: 3 }, vec![5]),
        Packet(0, Message::RootReply { request: 2 }, vec![6]),
    ];
    let missing = [
        Asks(2, 0, meet(Barrier)),
        Pass(11_000_000_000),
        Packet(0, Message::CountMissing(operation(Barrier)), vec![]),
        Packet(3, Message::MissingCounted(operation(Barrier), Default::default()), vec![]),
        Ended(3),
        Pass(1_000_000_000),
        Gone(0),
    ];
    // A child that claims all possible ranks, and then sends nothing.
    let everything = RankSet::try_from(vec![(0, u32::MAX)]).unwrap_or_default();
    let endless = written(&[
        Packet(0, Message::Table, vec![]),
        Packet(3, Message::TableReceived { ranks: everything }, vec![]),
        Packet(0, Message::CountMissing(operation(Barrier)), vec![]),
        Pass(100_000_000_000),
    ]);
    let clock = [
        Asks(2, 0, Call::Clock),
        Packet(3, Message::Ping { sent: 5 }, vec![]),
        Packet(0, Message::Pong { sent: 0, at: 9, offset: 1, error: 2 }, vec![]),
        Packet(0, Message::Abort { by: None, text: "enough".into() }, vec![]),
    ];
    let story = |acts: Vec<NodeAct>| written(&ready().into_iter().chain(acts).collect::<Vec<_>>());
    vec![
        story(gather.into()),
        story(keys.into()),
        story(missing.into()),
        story(clock.into()),
        endless,
        written(&[NodeAct::Table]),
    ]
}

/// Runs the coordinator. It reports that all nodes are ready once, and only after every node has
/// joined.
pub(crate) fn server(data: &[u8]) {
    let (nodes, radix) = (9, 2);
    let mut server = Coordinator::new(TreeShape::new(nodes, radix), Time(0));
    let mut joined = BTreeSet::new();
    let (mut ready, mut relayed) = (0, BTreeSet::new());
    for act in data.chunks_exact(3) {
        let (a, b) = (NodeId(u32::from(act[1] % 11)), NodeId(u32::from(act[2] % 11)));
        let input = match act[0] % 5 {
            0 => {
                coordinator::CoordinatorInput::Joined { node: a, relayed: act[2].is_multiple_of(2) }
            }
            1 => coordinator::CoordinatorInput::TableEverywhere { node: a },
            2 => coordinator::CoordinatorInput::Broke { node: a, peer: b },
            3 => coordinator::CoordinatorInput::Relay { from: a, to: b },
            _ => {
                server.handle_timeout(Time(u64::from(act[1]) << 28));
                continue;
            }
        };
        let phase = server.phase();
        match server.handle(input) {
            Ok(()) => {
                if matches!(input, coordinator::CoordinatorInput::Joined { .. }) {
                    joined.insert(a);
                }
            }
            Err(_) => assert_eq!(server.phase(), phase),
        }
        while let Some(output) = server.poll_output() {
            match output {
                coordinator::CoordinatorOutput::Ready => ready += 1,
                coordinator::CoordinatorOutput::Relayed { child, .. } => {
                    assert!(relayed.insert(child));
                }
                coordinator::CoordinatorOutput::ForwardRelayed { to } => assert!(to.0 < nodes),
                coordinator::CoordinatorOutput::Failed => {}
            }
        }
        assert!(ready == 0 || ready == 1 && joined.len() == nodes as usize - 1);
    }
}

pub(crate) fn server_seeds() -> Vec<Vec<u8>> {
    let joined: Vec<u8> = (1..9).flat_map(|node| [0, node, node]).collect();
    vec![[joined, vec![1, 0, 0, 2, 3, 1, 3, 1, 0]].concat(), vec![4, 255, 0, 0, 1, 1]]
}

/// Joins the blobs of a gather, which are returned unchanged and in order of rank.
pub(crate) fn gathered(data: &[u8]) {
    let Some((size, records)) = data.split_first() else { return };
    // In pieces, as a tree delivers them.
    let pieces: Vec<Payload> = records.chunks(5).map(|piece| piece.to_vec().into()).collect();
    let Ok(blobs) = Gathered(Payload::join(&pieces)).by_rank(u32::from(*size)) else { return };
    assert_eq!(blobs.len(), usize::from(*size));
    let again = blobs.iter().zip(0..).map(|(blob, rank)| gather_record(Rank(rank), blob));
    let again: Vec<Payload> = again.collect();
    let again = Gathered(Payload::join(&again));
    assert_eq!(again.0.len(), records.len());
    assert_eq!(again.by_rank(u32::from(*size)), Ok(blobs));
}

pub(crate) fn gathered_seeds() -> Vec<Vec<u8>> {
    let records = [(1, b"one".as_slice()), (0, b""), (2, b"rank two")];
    let records = records.map(|(rank, blob)| gather_record(Rank(rank), blob).to_vec()).concat();
    vec![[vec![3], records].concat(), vec![0]]
}
