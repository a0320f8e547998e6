use super::*;
use crate::rendezvous::message::{CollectiveId, Key};
use crate::rendezvous::payload::{Gathered, gather_record};

const PARENT: NodeId = NodeId(0);
const ME: NodeId = NodeId(1);
const LEFT: NodeId = NodeId(3);
const RIGHT: NodeId = NodeId(4);
const NOW: Time = Time(0);

/// Makes a node in the middle of a tree. It has rank 2; the nodes below it have ranks 4 and 5.
fn new() -> Node {
    Node::new(ME, TreeShape::new(7, 2), [Rank(2)])
}

fn packet(from: NodeId, message: Message) -> NodeInput {
    NodeInput::Packet(from, message.into())
}

fn here(rank: u32) -> Message {
    Message::TableReceived { ranks: [Rank(rank)].into_iter().collect() }
}

fn operation(kind: CollectiveKind) -> CollectiveId {
    CollectiveId { kind, name: "x".into(), sequence: 0 }
}

fn meet(kind: CollectiveKind) -> NodeInput {
    let call = Call::Collective { kind, name: "x".into(), blob: b"two".to_vec(), timeout: None };
    NodeInput::Call(Rank(2), id(), call)
}

fn id() -> CallId {
    CallId { client: ClientId(1), request: 9 }
}

fn outputs(node: &mut Node) -> Vec<NodeOutput> {
    std::iter::from_fn(|| node.poll_output()).collect()
}

fn sent(outputs: &[NodeOutput]) -> Vec<(NodeId, &'static str)> {
    let sent = |output: &NodeOutput| match output {
        NodeOutput::Send(to, packet) => Some((*to, packet.message.name())),
        _ => None,
    };
    outputs.iter().filter_map(sent).collect()
}

fn feed(node: &mut Node, inputs: impl IntoIterator<Item = NodeInput>) -> Vec<NodeOutput> {
    inputs.into_iter().for_each(|input| node.handle(NOW, input).unwrap());
    outputs(node)
}

/// Makes a node whose subtree has the rank table on every node.
fn running() -> Node {
    let mut node = new();
    let story = [packet(PARENT, Message::Table), packet(LEFT, here(4)), packet(RIGHT, here(5))];
    feed(&mut node, story);
    assert_eq!(node.phase(), NodePhase::Running);
    node
}

#[test]
fn the_table_goes_down_and_its_arrival_up() {
    let mut node = new();
    let table = Payload::from(b"table".to_vec());
    let emitted = feed(
        &mut node,
        [NodeInput::Packet(PARENT, Packet { message: Message::Table, payload: table.clone() })],
    );
    assert_eq!(sent(&emitted), [(LEFT, "table"), (RIGHT, "table")]);
    assert_eq!(emitted.last(), Some(&NodeOutput::Table(table)));
    assert_eq!(sent(&feed(&mut node, [packet(LEFT, here(4))])), []);
    let emitted = feed(&mut node, [packet(RIGHT, here(5))]);
    let ranks = [Rank(2), Rank(4), Rank(5)].into_iter().collect();
    assert_eq!(emitted, [NodeOutput::Send(PARENT, Message::TableReceived { ranks }.into())]);
}

#[test]
fn a_gather_goes_up_whole_and_comes_down_without_what_is_known_below() {
    let mut node = running();
    let gather = operation(CollectiveKind::Gather);
    let arrived = |from, rank: u32, blob: &[u8]| {
        let message = Message::Arrived(gather.clone());
        NodeInput::Packet(from, Packet { message, payload: gather_record(Rank(rank), blob) })
    };
    let emitted = feed(&mut node, [meet(CollectiveKind::Gather), arrived(LEFT, 4, b"four")]);
    assert_eq!(emitted, []);
    let emitted = feed(&mut node, [arrived(RIGHT, 5, b"five")]);
    assert_eq!(sent(&emitted), [(PARENT, "arrived")]);
    let others = [0, 1, 3, 6, 7].map(|rank| gather_record(Rank(rank), b"-"));
    let payload = Payload::join(&others);
    let released = Packet { message: Message::Released(gather.clone()), payload };
    let emitted = feed(&mut node, [NodeInput::Packet(PARENT, released)]);
    assert_eq!(sent(&emitted), [(LEFT, "released"), (RIGHT, "released")]);
    for output in &emitted {
        match output {
            NodeOutput::Send(to, packet) => {
                let own = if *to == LEFT { "four" } else { "five" };
                let bytes = packet.payload.to_vec();
                assert!(!bytes.windows(4).any(|window| window == own.as_bytes()));
            }
            NodeOutput::Answer(answered, Answer::Gathered(gathered)) => {
                assert_eq!(*answered, id());
                let blobs = Gathered(gathered.clone()).by_rank(8).unwrap();
                assert_eq!(
                    [&blobs[2][..], &blobs[4], &blobs[5]],
                    [b"two", b"four" as &[u8], b"five"]
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_abort_goes_everywhere_it_has_not_come_from() {
    let mut node = running();
    feed(&mut node, [meet(CollectiveKind::Barrier)]);
    let abort = Message::Abort { by: Some(Rank(4)), text: "enough".into() };
    let emitted = feed(&mut node, [packet(LEFT, abort.clone())]);
    assert_eq!(sent(&emitted), [(PARENT, "abort"), (RIGHT, "abort")]);
    let aborted = Answer::Aborted { by: Some(Rank(4)), text: "enough".into() };
    assert!(emitted.contains(&NodeOutput::Answer(id(), aborted)));
    assert_eq!(feed(&mut node, [packet(PARENT, abort)]), [], "it has been heard");
}

#[test]
fn a_table_that_an_abort_has_overtaken_is_handed_on() {
    let mut node = new();
    feed(&mut node, [packet(PARENT, Message::Abort { by: None, text: "enough".into() })]);
    let emitted = feed(&mut node, [packet(PARENT, Message::Table)]);
    assert_eq!(sent(&emitted), [(LEFT, "table"), (RIGHT, "table")]);
    assert_eq!(node.phase(), NodePhase::Aborted);
}

#[test]
fn a_wait_for_a_rank_that_has_ended_is_in_vain() {
    let mut node = running();
    feed(&mut node, [meet(CollectiveKind::Barrier)]);
    let ended = Message::Ended(vec![(Rank(5), ExitStatus::Code(3), Vec::new())]);
    let emitted = feed(&mut node, [packet(RIGHT, ended)]);
    let broken = |output: &NodeOutput| matches!(output, NodeOutput::Answer(_, Answer::Failed(_)));
    assert!(
        emitted.iter().any(broken) || sent(&emitted).contains(&(PARENT, "report failure")),
        "{emitted:?}"
    );
}

#[test]
fn every_violation_has_its_name_and_no_effect() {
    let (from, key) = (PARENT, Key { namespace: "a".into(), name: "b".into() });
    let barrier = || operation(CollectiveKind::Barrier);
    let unknown = |message| NodeViolation::Unknown { from, message };
    let direction = |from, message| NodeViolation::WrongDirection { from, message };
    let phase = NodePhase::AwaitTable;
    let early = |from, message| NodeViolation::OutOfPhase { from, message, phase };
    let pong = Message::Pong { sent: 1, at: 2, offset: 3, error: 4 };
    let mut met = running();
    feed(&mut met, [packet(LEFT, Message::Arrived(barrier()))]);
    let cases = [
        (running(), NodeId(6), Message::Table, NodeViolation::NotANeighbour(NodeId(6))),
        (running(), LEFT, Message::Table, direction(LEFT, "table")),
        (running(), from, Message::Arrived(barrier()), direction(from, "arrived")),
        (running(), from, Message::Table, NodeViolation::Duplicate { from, message: "table" }),
        (
            running(),
            LEFT,
            here(4),
            NodeViolation::Duplicate { from: LEFT, message: "table received" },
        ),
        (
            met,
            LEFT,
            Message::Arrived(barrier()),
            NodeViolation::Duplicate { from: LEFT, message: "arrived" },
        ),
        (new(), LEFT, here(4), early(LEFT, "table received")),
        (new(), from, Message::Stored { request: 7, stored: true }, early(from, "stored")),
        (new(), from, Message::Released(barrier()), unknown("released")),
        (running(), from, Message::Released(barrier()), unknown("released")),
        (running(), from, Message::Stored { request: 7, stored: true }, unknown("stored")),
        (running(), from, Message::Got { request: 7, found: true }, unknown("got")),
        (running(), from, Message::Appeared(key), unknown("appeared")),
        (running(), from, pong, unknown("pong")),
    ];
    for (mut node, from, message, violation) in cases {
        let phase = node.phase();
        outputs(&mut node);
        assert_eq!(node.handle(NOW, packet(from, message)), Err(violation.clone()));
        assert_eq!(violation.from(), from);
        assert_eq!((node.phase(), outputs(&mut node)), (phase, vec![]));
    }
}

#[test]
fn more_operations_than_any_job_needs_are_refused() {
    let mut node = running();
    let arrived = |sequence| {
        let name = "x".into();
        packet(
            LEFT,
            Message::Arrived(CollectiveId { kind: CollectiveKind::Barrier, name, sequence }),
        )
    };
    let refused = (0..1 << 20).find_map(|sequence| node.handle(NOW, arrived(sequence)).err());
    let message = "arrived";
    assert_eq!(refused, Some(NodeViolation::TooMany { from: LEFT, message }));
}

#[test]
fn the_states_of_a_node() {
    assert_eq!(
        NodePhase::graph(),
        "AwaitTable -- Table -> AwaitSubtree\n\
         AwaitSubtree -- Subtree -> Running\n\
         AwaitTable -- Abort -> Aborted\n\
         AwaitSubtree -- Abort -> Aborted\n\
         Running -- Abort -> Aborted\n"
    );
}

fn question(request: u64, text: &str) -> Packet {
    Packet { message: Message::RootRequest { request }, payload: text.as_bytes().to_vec().into() }
}

fn answered(request: u64, text: &str) -> Packet {
    Packet { message: Message::RootReply { request }, payload: text.as_bytes().to_vec().into() }
}

#[test]
fn a_question_goes_up_and_its_answer_comes_back() {
    let mut node = running();
    let ask = NodeInput::AskRoot(id(), b"own".to_vec().into());
    let asked = feed(&mut node, [NodeInput::Packet(LEFT, question(5, "left")), ask]);
    let up =
        [question(0, "left"), question(1, "own")].map(|packet| NodeOutput::Send(PARENT, packet));
    assert_eq!(asked, up);
    let answers = [answered(1, "one"), answered(0, "zero")];
    let emitted = feed(&mut node, answers.map(|packet| NodeInput::Packet(PARENT, packet)));
    let own = NodeOutput::Answer(id(), Answer::Value(b"one".to_vec().into()));
    assert_eq!(emitted, [own, NodeOutput::Send(LEFT, answered(5, "zero"))]);
    let again = node.handle(NOW, NodeInput::Packet(PARENT, answered(0, "zero")));
    assert_eq!(again, Err(NodeViolation::Unknown { from: PARENT, message: "root reply" }));
}

#[test]
fn the_root_has_its_agent_answer() {
    let mut root = Node::new(NodeId(0), TreeShape::new(7, 2), [Rank(0)]);
    let child = NodeId(1);
    let asked = feed(&mut root, [NodeInput::Packet(child, question(5, "child"))]);
    assert_eq!(asked, [NodeOutput::RootRequest(0, b"child".to_vec().into())]);
    let emitted = feed(&mut root, [NodeInput::RootReply(0, b"yes".to_vec().into())]);
    assert_eq!(emitted, [NodeOutput::Send(child, answered(5, "yes"))]);
    // A reply counts once, and no request is sent after an abort.
    assert_eq!(feed(&mut root, [NodeInput::RootReply(0, b"yes".to_vec().into())]), []);
    feed(&mut root, [packet(child, Message::Abort { by: None, text: "enough".into() })]);
    let emitted = feed(&mut root, [NodeInput::AskRoot(id(), Payload::empty())]);
    assert!(matches!(emitted[..], [NodeOutput::Answer(_, Answer::Aborted { .. })]), "{emitted:?}");
}
