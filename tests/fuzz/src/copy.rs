//! Manifests and messages of copies, and the state machine behind them.

use crate::stream::{acts, parts, whole, written};
use rlaunch_copy::control::{Limit, Report, Request, Role, Secret, TreeLimit};
use rlaunch_copy::wire::{Assembly, MAX_RANGES, PREFIX, manifest_parts, split};
use rlaunch_copy::{
    CHUNK, ChunkId, ChunkSet, Difference, Entry, Hash, Hop, Kind, Manifest, Message, Patch,
    PatchEntry, Put, RelativePath, Step, Time,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;

/// Decodes frames that come in parts, and puts manifests together. Each message survives being
/// encoded and decoded again.
pub(crate) fn frames(data: &[u8]) {
    let mut buffer = Vec::new();
    let mut assembly = Assembly::default();
    for part in parts(data) {
        buffer.extend_from_slice(part);
        let mut taken = 0;
        loop {
            let Ok(frame) = split(&buffer[taken..]) else { return };
            let Some(frame) = frame else { break };
            let payload = frame.payload.len();
            assert!(payload as u64 <= CHUNK && taken + frame.length <= buffer.len());
            if let Ok(again) = frame.message.encode(payload) {
                assert_eq!(Message::decode(&again[PREFIX..], payload).as_ref(), Ok(&frame.message));
            }
            if let Message::Manifest { part, last } = &frame.message
                && let Ok(Some(manifest)) = assembly.push(part, *last)
            {
                look_at(&manifest);
            }
            taken += frame.length;
        }
        buffer.drain(..taken);
    }
}

pub(crate) fn frames_seeds() -> Vec<Vec<u8>> {
    let chunk = Message::Chunk { id: ChunkId(3) }.encode(4).unwrap_or_default();
    let others = [
        Message::Want(vec![0..2, 5..9]),
        Message::WantEnd,
        Message::Have,
        Message::failed("a", "no space left"),
        Message::Beat,
    ];
    let encode = |message: Message| message.encode(0).unwrap_or_default();
    vec![
        whole(manifest_parts(&sample()).flat_map(encode)),
        whole(others.into_iter().flat_map(encode).chain(chunk).chain([1, 2, 3, 4])),
    ]
}

/// Decodes a manifest, which does not differ from itself, and a patch.
pub(crate) fn manifest(data: &[u8]) {
    if let Ok(manifest) = Manifest::decode(data) {
        look_at(&manifest);
        assert_eq!(Difference::between(&manifest, &manifest), Some(Difference::default()));
    }
    if let Ok(patch) = Patch::decode(data) {
        for PatchEntry { path, put, .. } in &patch.entries {
            assert!(put.beside().is_none_or(|beside| beside.parent() == path.parent()));
        }
        assert_eq!(Patch::decode(&patch.encode()), Ok(patch));
    }
}

pub(crate) fn manifest_seeds() -> Vec<Vec<u8>> {
    let path = |text: &str| RelativePath::new(text).unwrap_or_else(|error| panic!("{error}"));
    let entry = |name: &str, put| {
        let mtime = Time { secs: 1_700_000_000, nanos: 5 };
        PatchEntry { path: path(name), mode: 0o755, mtime, put }
    };
    let file = Put::File { beside: path("data/.x"), data: b"content".to_vec() };
    let link = Put::Link { beside: path("data/.l"), target: b"x".to_vec() };
    let entries = vec![entry("data", Put::Directory), entry("data/l", link), entry("data/x", file)];
    let (removed, left) = (vec![path("old/y")], vec![path("old")]);
    let patch = Patch { content: Hash([7; 32]), entries, removed, left };
    vec![sample().encode(), patch.encode()]
}

/// Checks what whoever writes the files relies on.
fn look_at(manifest: &Manifest) {
    let mut directories = BTreeSet::new();
    let mut bytes = 0;
    for (index, entry) in manifest.entries.iter().enumerate() {
        let is_name = |part: &[u8]| !part.is_empty() && part != b"." && part != b"..";
        assert!(entry.path.parts().all(is_name) && !entry.path.as_bytes().contains(&0));
        assert!(entry.path.parent().is_none_or(|parent| directories.contains(parent)));
        if entry.kind == Kind::Directory {
            directories.insert(entry.path.as_bytes());
        }
        let ids = manifest.chunks_of(index).map(ChunkId);
        let lengths = ids.map(|id| {
            let place = manifest.chunk(id);
            assert_eq!(place.entry, index);
            u64::from(place.length)
        });
        assert_eq!(lengths.sum::<u64>(), entry.size());
        bytes += entry.size();
    }
    let ordered = manifest.entries.windows(2).all(|pair| pair[0].path < pair[1].path);
    assert!(ordered && bytes == manifest.bytes());
    assert_eq!(Manifest::decode(&manifest.encode()).as_ref(), Ok(manifest));
}

fn sample() -> Manifest {
    let file = |size: u64| Kind::File {
        size,
        chunks: vec![Hash([7; 32]); size.div_ceil(CHUNK) as usize],
        sparse: size > CHUNK,
    };
    let kinds = [
        ("data", Kind::Directory),
        ("data/large", file(2 * CHUNK + 5)),
        ("data/latest", Kind::Link { target: b"large".to_vec() }),
        ("empty", file(0)),
    ];
    let entry = |(path, kind): (&str, Kind)| {
        let path = RelativePath::new(path).ok()?;
        Some(Entry { path, mode: 0o755, mtime: Time { secs: 1_700_000_000, nanos: 5 }, kind })
    };
    let entries = kinds.into_iter().filter_map(entry).collect();
    Manifest::new(entries).unwrap_or_else(|error| panic!("{error}"))
}

/// Decodes lines between the launcher and programs that copy.
pub(crate) fn control(data: &[u8]) {
    for line in data.split(|byte| *byte == b'\n') {
        if let Ok(request) = serde_json::from_slice::<Request>(line) {
            let again = serde_json::to_string(&request).unwrap_or_default();
            assert_eq!(serde_json::from_str::<Request>(&again).ok(), Some(request));
        }
        if let Ok(report) = serde_json::from_slice::<Report>(line) {
            let again = serde_json::to_string(&report).unwrap_or_default();
            assert!(!again.contains('\n') && serde_json::from_str::<Report>(&again).is_ok());
        }
    }
}

pub(crate) fn control_seeds() -> Vec<Vec<u8>> {
    let request = Request {
        secret: Secret([9; 32]),
        hosts: vec!["a".into()],
        plain: true,
        streams: 2,
        destination: "~/x".into(),
        verify: false,
        limit: Some(7),
        role: Role::Source { paths: vec!["y".into()] },
        tree: Some(TreeLimit { files: 1, bytes: 2 }),
        last: None,
        image: None,
    };
    let addresses = vec![[10, 0, 0, 1].into()];
    let reports = [
        Report::Listening { rank: 0, addresses, port: 9 },
        Report::Progress { rank: 1, received: 2, written: 3, total: 4, waits_for: Limit::Wire },
        Report::TooLarge { files: 1, bytes: 2 },
        Report::Failed { rank: 1, text: "x".into(), hint: Some("y".into()) },
    ];
    let lines = reports.iter().filter_map(|report| serde_json::to_string(report).ok());
    let requests = serde_json::to_vec(&request).unwrap_or_default();
    vec![requests, Vec::from_iter(lines).join("\n").into_bytes()]
}

/// How a host of the chain begins.
#[derive(Serialize, Deserialize)]
struct Start {
    is_source: bool,
    chunks: u8,
    has_downstream: bool,
}

/// What happens to a host of the chain.
#[derive(Serialize, Deserialize)]
enum Act {
    Have(Vec<u32>),
    Scanned,
    Want(Vec<Range<u32>>),
    WantEnd,
    Chunk(u32),
    Finished,
    DownstreamDone,
    Next,
    NextSend,
    NextOther,
}

/// Lets anything happen to a host of the chain. It asks for nothing twice, and sends what it has, was
/// asked for and has not sent.
pub(crate) fn hop(data: &[u8]) {
    let Ok((start, rest)) = postcard::take_from_bytes::<Start>(data) else { return };
    let chunks = u32::from(start.chunks);
    let mut hop = Hop::receiver(chunks, start.has_downstream);
    let mut model = Model::default();
    if start.is_source {
        hop = Hop::source(chunks);
        model.had.extend(0..chunks);
    }
    for act in acts::<Act>(rest) {
        match act {
            Act::Have(ids) => {
                let mut set = ChunkSet::new(chunks);
                ids.into_iter().for_each(|id| {
                    set.insert(ChunkId(id));
                });
                model.had.extend(set.iter().map(|id| id.0));
                hop.on_have(&set);
            }
            Act::Scanned => hop.on_scanned(),
            Act::Want(ids) => {
                let within = |range: &Range<u32>| range.start..range.end.min(chunks);
                model.wanted.extend(ids.iter().flat_map(within));
                hop.on_want(&ids);
            }
            Act::WantEnd => hop.on_want_end(),
            Act::Chunk(id) => {
                if hop.awaits(ChunkId(id)) {
                    assert!(model.asked.contains(&id));
                    model.had.insert(id);
                }
                hop.on_chunk(ChunkId(id));
                assert!(!hop.awaits(ChunkId(id)));
            }
            Act::Finished => hop.on_finished(),
            Act::DownstreamDone => hop.on_downstream_done(),
            Act::Next => model.take(hop.next(), chunks),
            Act::NextSend => model.take(hop.next_send().map(Step::Send), chunks),
            Act::NextOther => model.take(hop.next_other(), chunks),
        }
        assert_eq!(hop.had() as usize, model.had.len());
    }
}

#[derive(Default)]
struct Model {
    had: BTreeSet<u32>,
    asked: BTreeSet<u32>,
    wanted: BTreeSet<u32>,
    sent: BTreeSet<u32>,
    asks_no_more: bool,
    is_complete: bool,
    is_done: bool,
}

impl Model {
    fn take(&mut self, step: Option<Step>, chunks: u32) {
        match step {
            None => {}
            Some(Step::Ask(ids)) => {
                assert!(!self.asks_no_more && !ids.is_empty() && ids.len() <= MAX_RANGES);
                for id in ids.into_iter().flatten() {
                    assert!(id < chunks && !self.had.contains(&id) && self.asked.insert(id));
                }
            }
            Some(Step::AskEnd) => {
                assert!(!std::mem::replace(&mut self.asks_no_more, true));
            }
            Some(Step::Send(ChunkId(id))) => {
                assert!(self.had.contains(&id) && self.wanted.contains(&id));
                assert!(self.sent.insert(id));
            }
            Some(Step::Complete) => {
                assert_eq!(self.had.len(), chunks as usize);
                assert!(self.asks_no_more && !std::mem::replace(&mut self.is_complete, true));
            }
            Some(Step::Done) => assert!(!std::mem::replace(&mut self.is_done, true)),
        }
    }
}

pub(crate) fn hop_seeds() -> Vec<Vec<u8>> {
    let relay = Start { is_source: false, chunks: 5, has_downstream: true };
    let relayed = [
        Act::Have(vec![1]),
        Act::Scanned,
        Act::Next,
        Act::NextOther,
        Act::Want(vec![0..1, 3..5]),
        Act::WantEnd,
        Act::Chunk(3),
        Act::NextSend,
        Act::Chunk(0),
        Act::Chunk(2),
        Act::Chunk(4),
        Act::Next,
        Act::Next,
        Act::Next,
        Act::Finished,
        Act::DownstreamDone,
        Act::Next,
    ];
    let source = Start { is_source: true, chunks: 200, has_downstream: true };
    let sent = [Act::Want(vec![7..9, 100..201]), Act::NextSend, Act::Next, Act::DownstreamDone];
    let begin = |start: &Start| written(std::slice::from_ref(start));
    vec![
        [begin(&relay), written(&relayed)].concat(),
        [begin(&source), written(&sent), written(&[Act::NextOther])].concat(),
    ]
}
