//! Fuzzing targets for `tests/fuzz`. Each accepts any bytes and panics only if the parser has a bug.

use crate::run::live::messages::{Reply, Request};
use rlaunch_bootstrap::frame::{self, FrameReader};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::{Inspection, InspectionResult};
use rlaunch_bootstrap::protocol::session::{
    FromSession, SessionError, SessionKind, SessionStart, Terminal, TerminalSize, ToSession,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads requests to a running job, and its replies. Asserts that each message is the same after it is written and read
/// again.
pub fn live_messages(data: &[u8]) {
    read_frames::<Request>(data);
    read_frames::<Reply>(data);
}

fn read_frames<T: Serialize + DeserializeOwned>(data: &[u8]) {
    let mut reader = FrameReader::default();
    reader.push(data);
    while let Ok(Some(message)) = reader.next_frame::<T>() {
        let Ok(written) = frame::encode(&message) else { continue };
        let mut again = FrameReader::default();
        again.push(&written);
        let read = again.next_frame::<T>().ok().flatten();
        // Compared as bytes, since numbers may be NaN.
        assert_eq!(read.and_then(|read| frame::encode(&read).ok()), Some(written));
    }
}

/// Returns the inputs of [`live_messages`] with which the fuzzer starts.
pub fn live_messages_seeds() -> Vec<Vec<u8>> {
    let size = TerminalSize { rows: 24, columns: 80 };
    let terminal = Some(Terminal { term: Some("xterm".into()), size });
    let kind = SessionKind::Command { argv: vec!["sh".into(), "-c".into()], terminal };
    let requests = [
        Request::Status,
        Request::Output { position: 7 },
        Request::Inspect(Inspection::Stacks { ranks: vec![Rank(3)], native: true }),
        Request::End,
        Request::Session(ToSession::Start(SessionStart { rank: Rank(1), kind })),
        Request::Session(ToSession::Stdin(b"ls".to_vec())),
    ];
    let replies = [
        Reply::Node { host: "a".into(), result: InspectionResult::Failed("late".into()) },
        Reply::Complete { missing: vec!["b".into()] },
        Reply::Session(FromSession::Failed(SessionError::TooMany)),
        Reply::Refused("it is ending".into()),
    ];
    vec![frames(&requests), frames(&replies)]
}

fn frames<T: Serialize>(messages: &[T]) -> Vec<u8> {
    messages.iter().flat_map(|message| frame::encode(message).unwrap_or_default()).collect()
}
