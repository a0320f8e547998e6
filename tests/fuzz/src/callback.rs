//! Unauthenticated input to the launcher's port for agents that connect back, and announcements in a host's
//! output.

use crate::stream::{parts, whole};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::security::callback::{
    Announcement, AnnouncementScanner, CallbackDialer, FirstMessage, KeyPair, MAX_FIRST_MESSAGE,
    PublicKey,
};
use std::sync::LazyLock;

static LAUNCHER: LazyLock<Option<KeyPair>> = LazyLock::new(|| KeyPair::generate().ok());
static AGENT: LazyLock<Option<KeyPair>> = LazyLock::new(|| KeyPair::generate().ok());

/// Parses a first message that arrives in parts. Its length is bounded, and only a dialer with the announced
/// key is answered.
pub(crate) fn opening(data: &[u8]) {
    let mut received = Vec::new();
    for part in parts(data) {
        received.extend_from_slice(part);
        match FirstMessage::read(&received) {
            Ok(None) => assert!(received.len() < MAX_FIRST_MESSAGE),
            Ok(Some(FirstMessage::Callback(call))) => {
                let (Some(launcher), Some(agent)) = (&*LAUNCHER, &*AGENT) else { return };
                assert!(
                    call.answer(launcher, &agent.public()).is_err(),
                    "an unauthenticated dialer is answered"
                );
                return;
            }
            Ok(Some(FirstMessage::Fetch(fetch))) => {
                assert!(fetch.digest.len() == 64 && fetch.digest.is_ascii());
                return;
            }
            Err(_) => return,
        }
    }
}

/// Scans output for announcements. Each that is found survives being written and scanned again.
pub(crate) fn announcement(data: &[u8]) {
    let mut scanner = AnnouncementScanner::default();
    for announced in parts(data).flat_map(|part| scanner.push(part)) {
        let written = format!("{announced}\n");
        let again = AnnouncementScanner::default().push(written.as_bytes());
        // A failure without a reason is written with a trailing space, which does not parse.
        if announced != Announcement::Failed(String::new()) {
            assert_eq!(again, [announced]);
        }
    }
}

pub(crate) fn opening_seeds() -> Vec<Vec<u8>> {
    let other = KeyPair::generate().ok();
    let launcher = LAUNCHER.as_ref().map(KeyPair::public);
    let first = other.zip(launcher).and_then(|(own, launcher)| {
        CallbackDialer::start(&own, &launcher, NodeId(2)).ok().map(|(_, first)| first)
    });
    let digest = "0123456789abcdef".repeat(4);
    vec![
        whole(first.unwrap_or_default()),
        whole(format!("FETCH {digest}\n").into_bytes()),
        whole(format!("GET /{digest} HTTP/1.1\r\nHost: x\r\n\r\n").into_bytes()),
    ]
}

pub(crate) fn announcement_seeds() -> Vec<Vec<u8>> {
    let key: Option<PublicKey> = "0f".repeat(32).parse().ok();
    let calls = key.map(|key| Announcement::Dialing { version: 7, key }.to_string());
    let failed = Announcement::Failed("10.0.0.1:21003 (no answer)".to_owned());
    vec![
        whole(format!("entering\r\n{}\r\n", calls.unwrap_or_default()).into_bytes()),
        whole(format!("{failed}\nnoise").into_bytes()),
    ]
}
