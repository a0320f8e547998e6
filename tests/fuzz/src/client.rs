//! Messages between ranks and their agent.

use crate::stream::{parts, whole};
use bytes::Bytes;
use rlaunch_bootstrap::id::{JobId, NodeId, Rank};
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_bootstrap::protocol::rank::{
    CLIENT_VERSION, FromRank, HelloRefusal, JobEvent, Reply, ToRank,
};
use rlaunch_bootstrap::rendezvous::Time;
use rlaunch_bootstrap::rendezvous::codec::{Decoder, encode_head};
use rlaunch_bootstrap::rendezvous::message::{CollectiveKind, Key};
use rlaunch_bootstrap::rendezvous::node::{Call, CallId, ClientId, Node, NodeInput, NodeOutput};
use rlaunch_bootstrap::rendezvous::shape::TreeShape;
use rlaunch_bootstrap::security::Token;
use rlaunch_client::machine::{ClientMachine, ClientPhase};
use serde::Serialize;
use std::time::Duration;

const LIMIT: usize = 64 << 10;

/// Handles a rank's frames in a node. Each call is answered at most once, and nothing else is answered.
pub(crate) fn from_rank(data: &[u8]) {
    let mut node = Node::new(NodeId(0), TreeShape::new(1, 2), [Rank(0), Rank(1)]);
    let table = node.handle(Time(0), NodeInput::Table(Bytes::from_static(b"{}").into()));
    assert!(table.is_ok());
    let mut decoder = Decoder::<FromRank>::new(LIMIT);
    let mut open = Vec::new();
    for part in parts(data) {
        decoder.push(part);
        while let Ok(Some((frame, _))) = decoder.next_frame() {
            let FromRank::Call { request, call } = frame else { continue };
            let id = CallId { client: ClientId(1), request };
            open.push(id);
            assert!(node.handle(Time(1), NodeInput::Call(Rank(0), id, call)).is_ok());
            while let Some(output) = node.poll_output() {
                let NodeOutput::Answer(id, _) = output else { continue };
                let at = open.iter().position(|open| *open == id);
                assert!(at.map(|at| open.swap_remove(at)).is_some(), "{id:?} answered twice");
            }
        }
    }
}

/// Handles an agent's frames in a client that awaits the replies to calls 0 to 3.
pub(crate) fn to_rank(data: &[u8]) {
    let (mut client, _) = ClientMachine::hello(JobId(1), Rank(0), Token([0; 16]));
    for _ in 0..4 {
        client.call(Call::Clock);
    }
    let mut decoder = Decoder::<ToRank>::new(LIMIT);
    for part in parts(data) {
        decoder.push(part);
        while let Ok(Some((message, payload))) = decoder.next_frame() {
            let (phase, open) = (client.phase(), client.open().count());
            match client.handle(message, payload) {
                Ok(_) => assert_ne!(phase, ClientPhase::Closed),
                Err(_) => assert_eq!((client.phase(), client.open().count()), (phase, open)),
            }
        }
    }
}

fn stream<T: Serialize>(frames: &[(T, &[u8])]) -> Vec<u8> {
    let frame = |(head, payload): &(T, &[u8])| {
        let mut bytes = encode_head(head, payload.len()).unwrap_or_default();
        bytes.extend_from_slice(payload);
        bytes
    };
    whole(frames.iter().flat_map(frame))
}

pub(crate) fn from_rank_seeds() -> Vec<Vec<u8>> {
    let key = || Key { namespace: "a".into(), name: "b".into() };
    let token = Token([0; 16]);
    let hello = FromRank::Hello { version: CLIENT_VERSION, job: JobId(1), rank: Rank(0), token };
    let timeout = Some(Duration::from_secs(1));
    let meet = |kind| Call::Collective { kind, name: "x".into(), blob: Vec::new(), timeout };
    let calls = [
        Call::Put { key: key(), value: vec![1, 2] },
        Call::Get(key()),
        Call::Await { key: key(), timeout },
        meet(CollectiveKind::Barrier),
        meet(CollectiveKind::Gather),
        Call::Clock,
        Call::Event("here".into()),
        Call::Abort("enough".into()),
    ];
    let call = |(request, call)| (FromRank::Call { request, call }, [].as_slice());
    let calls: Vec<_> = (0..).zip(calls).map(call).collect();
    vec![stream(&[(hello, &[])]), stream(&calls[..4]), stream(&calls[4..])]
}

pub(crate) fn to_rank_seeds() -> Vec<Vec<u8>> {
    let reply = |request, reply| ToRank::Reply { request, reply };
    let aborted = Reply::Aborted { by: None, text: "enough".into() };
    let status = ExitStatus::Signal(9);
    let failed = JobEvent::RankFailed { rank: Rank(1), status, ends: true };
    vec![
        stream(&[
            (ToRank::Welcome { world_size: 3 }, &[]),
            (reply(1, Reply::Value(())), b"value"),
            (reply(0, Reply::Clock { offset: -3, error: 2 }), &[]),
        ]),
        stream(&[(ToRank::Welcome { world_size: 3 }, &[]), (reply(3, aborted), &[])]),
        stream(&[(ToRank::Refused(HelloRefusal::Version(9)), &[])]),
        stream(&[
            (ToRank::Welcome { world_size: 3 }, &[]),
            (ToRank::JobEvent(failed), &[]),
            (
                ToRank::JobEvent(JobEvent::RanksFinished {
                    ranks: [Rank(0), Rank(2)].into_iter().collect(),
                }),
                &[],
            ),
            (
                ToRank::JobEvent(JobEvent::LinkDown {
                    nodes: [NodeId(0), NodeId(1)],
                    what: "x".into(),
                }),
                &[],
            ),
        ]),
    ]
}
