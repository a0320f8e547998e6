//! Words for what threads wait for.

use super::place;
use rlaunch_bootstrap::protocol::inspection::{ThreadStack, Wait};
use rlaunch_text::printable;
use std::collections::BTreeSet;

/// Number of objects of one kind that are named.
const NAMED: usize = 3;

/// Kinds of waits. Threads that wait in the same way, each for an object of its own, do the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WaitKind(String);

/// Returns the kind of a thread's wait, and the object that the thread waits for, if it has a name.
pub(super) fn split(thread: &ThreadStack) -> (WaitKind, Option<String>) {
    let (kind, object) = match &thread.waits_for {
        // A collective looks at its connections again and again, and may sleep in between.
        None | Some(Wait::Descriptors | Wait::Futex | Wait::Socket { .. })
            if place::waits_for_others(thread) && thread.state != 'T' =>
        {
            ("waits for other ranks".to_owned(), None)
        }
        None if thread.state == 'T' => ("stopped".to_owned(), None),
        None if thread.state == 'D' => ("waits in the kernel".to_owned(), None),
        None => ("runs".to_owned(), None),
        Some(Wait::Futex) => ("waits for a lock or another thread".to_owned(), None),
        Some(Wait::Socket { peer, owner }) => {
            let owner = owner.iter().map(|owner| format!(" ({owner})")).collect::<String>();
            let peer = peer.as_ref().map(|peer| format!("{peer}{owner}"));
            ("waits at a socket".to_owned(), peer)
        }
        Some(Wait::Pipe { name }) => {
            let name = name.strip_prefix("pipe:").map_or(Some(name), |_| None);
            ("waits for a pipe".to_owned(), name.map(|name| format!("the pipe {name}")))
        }
        Some(Wait::File { path }) => ("waits for a file".to_owned(), Some(path.clone())),
        Some(Wait::Rdma) => ("waits for RDMA".to_owned(), None),
        Some(Wait::Descriptors) => ("waits for one of several descriptors".to_owned(), None),
        Some(Wait::Sleep) => ("sleeps".to_owned(), None),
        Some(Wait::Child) => ("waits for a child process".to_owned(), None),
        Some(Wait::Stopped) => ("is stopped by a signal".to_owned(), None),
        Some(Wait::Kernel { channel }) => (format!("waits in {channel}"), None),
    };
    (WaitKind(printable::first_line(&kind)), object.map(|object| printable::first_line(&object)))
}

/// Returns the kind of a wait of which nothing is known.
pub(super) fn unknown() -> (WaitKind, Option<String>) {
    (WaitKind(String::new()), None)
}

/// Describes a wait for these objects.
pub(super) fn describe(kind: &WaitKind, objects: &BTreeSet<String>) -> String {
    let named: Vec<&str> = objects.iter().take(NAMED).map(String::as_str).collect();
    match (named.is_empty(), objects.len().saturating_sub(NAMED)) {
        (true, _) => kind.0.clone(),
        (false, 0) => format!("waits for {}", named.join(", ")),
        (false, more) => format!("waits for {} and {more} more", named.join(", ")),
    }
}

/// Describes what a thread does: whether it runs, or what it waits for.
pub fn describe_thread(thread: &ThreadStack) -> String {
    let (kind, object) = split(thread);
    describe(&kind, &object.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(wait: Wait) -> String {
        describe_thread(&ThreadStack { waits_for: Some(wait), ..ThreadStack::default() })
    }

    #[test]
    fn an_object_with_a_name_is_named() {
        let peer = Some("10.0.0.2:4711".to_owned());
        let owner = Some("rank 1 on b".to_owned());
        let unknown = Wait::Socket { peer: peer.clone(), owner: None };
        assert_eq!(waits(unknown), "waits for 10.0.0.2:4711");
        assert_eq!(waits(Wait::Socket { peer, owner }), "waits for 10.0.0.2:4711 (rank 1 on b)");
        assert_eq!(waits(Wait::Pipe { name: "/tmp/x".into() }), "waits for the pipe /tmp/x");
        assert_eq!(waits(Wait::Pipe { name: "pipe:[7]".into() }), "waits for a pipe");
        assert_eq!(waits(Wait::File { path: "/a\x1b[1m".into() }), "waits for /a\\x1b[1m");
    }

    #[test]
    fn many_objects_are_counted() {
        let (kind, _) = split(&ThreadStack {
            waits_for: Some(Wait::File { path: "/a".into() }),
            ..ThreadStack::default()
        });
        let objects = ["/a", "/b", "/c", "/d", "/e"].map(str::to_owned);
        assert_eq!(describe(&kind, &objects.into()), "waits for /a, /b, /c and 2 more");
    }
}
