//! Messages between launcher and agent.

use crate::stream::{parts, whole};
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::library::NodeLibrary;
use rlaunch_bootstrap::job::{AwaitedPort, RankFile, RankSetup, TerminalSize};
use rlaunch_bootstrap::protocol::changes::journal::{Event, Journal, Record as JournalRecord, Was};
use rlaunch_bootstrap::protocol::changes::{
    Change, ChangeOrder, ChangeOutcome, ChangeReply, UndoneChange,
};
use rlaunch_bootstrap::protocol::control::{
    FrameReader, FromAgent, HELLO_MAGIC, HelloScanner, MAX_NOISE, Stream, ToAgent, encode,
};
use rlaunch_bootstrap::protocol::inspection::{
    EnteredOperation, GroupPosition, GroupProgress, ProcessStacks, RankStacks, StackFrame,
    StackOrder, StackSubject, ThreadStack, Wait,
};
use rlaunch_bootstrap::protocol::rank::JobEvent;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) fn to_agent(data: &[u8]) {
    read::<ToAgent>(data);
}

pub(crate) fn from_agent(data: &[u8]) {
    read::<FromAgent>(data);
}

/// Decodes the order and the answers of the program that looks into processes.
pub(crate) fn stack_order(data: &[u8]) {
    read::<StackOrder>(data);
    read::<Vec<RankStacks>>(data);
    read::<Vec<GroupPosition>>(data);
}

pub(crate) fn stack_order_seeds() -> Vec<Vec<u8>> {
    let processes = vec![(Rank(3), vec![7, 8])];
    let thread = ThreadStack {
        tid: 7,
        name: "main".into(),
        state: 'S',
        waits_for: Some(Wait::Child),
        frames: vec![StackFrame { function: "f".into(), line: 3, ..StackFrame::default() }],
        ..ThreadStack::default()
    };
    let process = ProcessStacks { pid: 7, threads: vec![thread], ..ProcessStacks::default() };
    let answer = vec![RankStacks { rank: Rank(3), processes: vec![process] }];
    let subject = StackSubject::Stacks { native: true };
    let order = StackOrder { processes, subject, limit_ms: 9 };
    let (name, caller) = ("all_reduce".into(), "step train.py:88".into());
    let operation = EnteredOperation { number: 42, name, is_complete: false, caller };
    let position = GroupPosition {
        rank: Rank(3),
        started: Some(5),
        group: "default_pg".into(),
        size: 8,
        progress: GroupProgress::Entered(operation),
    };
    vec![stream(&[order]), stream(&[answer]), stream(&[vec![position]])]
}

/// Decodes orders and replies about changes to a host, and its journal.
pub(crate) fn changes(data: &[u8]) {
    read::<ChangeOrder>(data);
    read::<ChangeReply>(data);
    let (journal, whole) = Journal::parse(data);
    assert!(whole <= data.len());
    // What was cut off is no part of what is read.
    let again = Journal::parse(data.get(..whole).unwrap_or_default()).0;
    assert_eq!(again.pending(0), journal.pending(0));
    for record in data.split(|byte| *byte == b'\n').filter_map(JournalRecord::from_line) {
        let line = record.to_line();
        let again =
            line.strip_suffix('\n').and_then(|line| JournalRecord::from_line(line.as_bytes()));
        assert_eq!(again, Some(record));
    }
}

pub(crate) fn changes_seeds() -> Vec<Vec<u8>> {
    let (path, content) = ("/etc/x".into(), Some("x".into()));
    let change = Change::File { path, mode: 0o644, content, expected: Some(String::new()) };
    let by = "rlaunch up".to_owned();
    let changes = vec![change.clone()];
    let order = ChangeOrder::Apply { by: by.clone(), changes, trial_ms: Some(60_000) };
    let undone = UndoneChange { change: change.clone(), by: by.clone(), time: 7, failure: None };
    let was = Was::NoFile { directories: vec!["/etc".into()] };
    let events = [Event::Begun { by, change, was }, Event::Done { was: None }, Event::Undone];
    let lines = events.map(|event| JournalRecord { time: 7, id: 3, event }.to_line());
    let replies = [ChangeReply::Undone(undone), ChangeReply::Outcome(ChangeOutcome::Made)];
    vec![stream(&[order]), stream(&replies), lines.concat().into_bytes()]
}

/// Decodes frames. Each message survives being encoded and decoded again.
pub(crate) fn read<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(data: &[u8]) {
    let mut reader = FrameReader::default();
    for part in parts(data) {
        reader.push(part);
        loop {
            match reader.next_frame::<T>() {
                Ok(Some(message)) => {
                    let Ok(again) = encode(&message) else { continue };
                    let mut reader = FrameReader::default();
                    reader.push(&again);
                    assert_eq!(reader.next_frame::<T>().ok().flatten(), Some(message));
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

/// Scans a stream for the agent's hello. The hello is found wherever the stream is cut, and no byte
/// after it is lost or repeated.
pub(crate) fn hello(data: &[u8]) {
    let stream = data.get(1..).unwrap_or_default();
    let mut scanner = HelloScanner::default();
    let mut taken = 0;
    for part in parts(data) {
        taken += part.len();
        match scanner.push(part) {
            Ok(None) => {}
            Ok(Some(rest)) => {
                let at = taken - rest.len();
                assert!(stream[..at].ends_with(HELLO_MAGIC));
                assert_eq!(stream[at..taken], rest);
                return;
            }
            Err(_) => {
                assert!(taken > MAX_NOISE);
                return;
            }
        }
    }
    assert!(!stream.windows(HELLO_MAGIC.len()).any(|window| window == HELLO_MAGIC));
}

pub(crate) fn stream<T: Serialize>(messages: &[T]) -> Vec<u8> {
    whole(messages.iter().flat_map(|message| encode(message).unwrap_or_default()))
}

pub(crate) fn to_agent_seeds() -> Vec<Vec<u8>> {
    let cpus = Some([0, 1].into_iter().collect());
    let words = vec![(1, "--ip=10.0.0.1".into())];
    let variables = vec![("A".into(), "b".into())];
    let files = vec![RankFile { path: "/x/y".into(), content: vec![3; 9] }];
    let setup = RankSetup {
        cpus,
        memory_node: Some(0),
        rendered_args: words,
        rendered_env: variables,
        files,
        ..RankSetup::default()
    };
    let relayed = ToAgent::Relay { from: NodeId(3), data: vec![1; 40] };
    let horovod = Some(21_002);
    let ports = vec![AwaitedPort { id: 1, hosts: vec!["10.0.0.1".into()], port: 7100 }];
    let end = ToAgent::End { now: true };
    vec![
        stream(&[ToAgent::Join { parent: None }, ToAgent::Table(vec![7; 30]), relayed]),
        stream(&[
            ToAgent::Start { ranks: vec![setup], horovod, ports },
            ToAgent::StartApplication { index: 1 },
            ToAgent::Credit(9),
            ToAgent::Stdin(b"typed\n".to_vec()),
            ToAgent::Stdin(Vec::new()),
            ToAgent::Signal(15),
            ToAgent::Resize(TerminalSize { rows: 24, columns: 80 }),
            ToAgent::JobEvent(JobEvent::NodeLost { node: NodeId(2), how: "silence".into() }),
            end,
        ]),
        stream(&[
            ToAgent::File { index: 0, data: vec![1; 9] },
            ToAgent::LibraryPart(vec![2; 9]),
            ToAgent::PatchCopy(vec![3; 9]),
            ToAgent::Beat,
        ]),
    ]
}

pub(crate) fn from_agent_seeds() -> Vec<Vec<u8>> {
    let (rank, stream, stamp) = (Rank(3), Stream::Stderr, Some(1_700_000_000_000_000));
    let output = FromAgent::Output { rank, stream, stamp, data: b"x\n".to_vec() };
    let prepared = FromAgent::Prepared {
        notices: Vec::new(),
        ports: vec![21_000],
        listeners: vec![([127, 0, 0, 1], 21_001).into()],
        inventory: Box::default(),
        library: Some(NodeLibrary { path: "/x/library-0".into(), is_present: false }),
    };
    let aborted = FromAgent::Aborted { by: Some(Rank(1)), text: "no more".into(), code: Some(7) };
    let broke = FromAgent::EdgeBroke { peer: NodeId(1), how: "reset".into() };
    let stdin = [FromAgent::StdinCredit(7), FromAgent::StdinClosed];
    let error = FromAgent::RankError { rank, content: b"{}".to_vec() };
    vec![
        self::stream(&[output, FromAgent::PortOpen { id: 1 }, prepared]),
        self::stream(&[FromAgent::TableEverywhere, aborted, broke, error]),
        self::stream(&stdin),
    ]
}

pub(crate) fn hello_seeds() -> Vec<Vec<u8>> {
    let greeting = b"Last login: today\n".iter().copied();
    vec![
        whole(greeting.chain(HELLO_MAGIC.iter().copied()).chain([1, 2, 3])),
        whole(HELLO_MAGIC[..3].iter().chain(HELLO_MAGIC).copied()),
    ]
}
