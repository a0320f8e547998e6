//! Services that ranks publish, look up and withdraw.
//!
//! A service is a value in the store that all nodes read. A rank learns that its service is published, or
//! withdrawn, only after this node has read the key again: from then on each other rank finds the new
//! state, also on other nodes.

use crate::node::Node;
use crate::output::{ConnectionId, Family};
use crate::sorted_map::SortedMap;

/// Beginning of the keys of services.
const PREFIX: &str = "pmi:pub:";

/// Maximum length in bytes of a service's name, so that its key has at most 255 bytes.
const SERVICE_MAX: usize = 255 - PREFIX.len();

/// Requests about services that wait for a value.
#[derive(Debug, Default)]
pub(super) struct ServiceReads {
    waiting: SortedMap<u64, Pending>,
}

/// Request about a service that waits for a value.
#[derive(Debug)]
struct Pending {
    connection: ConnectionId,
    step: ReadPurpose,
}

/// Use of a value that is read.
#[derive(Debug)]
enum ReadPurpose {
    /// The service is published as soon as it can be read.
    Publish,
    /// The value is the answer.
    Lookup,
    /// The service with this key can be withdrawn if it has a value.
    Unpublish(String),
    /// The service is withdrawn as soon as this is read.
    Withdrawn,
}

impl ServiceReads {
    /// Publishes a port. Returns the answer if the request is refused, otherwise the answer comes from
    /// [`ServiceReads::value`].
    pub(super) fn publish(
        &mut self,
        node: &mut Node,
        connection: ConnectionId,
        service: &[u8],
        port: &[u8],
    ) -> Option<String> {
        let Some(key) = key(service) else { return Some(refused("publish", BAD_NAME)) };
        if port.is_empty() || !is_printable(port) {
            return Some(refused("publish", "bad_port"));
        }
        node.put(key.clone(), port.to_vec());
        self.read(node, connection, key, ReadPurpose::Publish);
        None
    }

    /// Looks up a service; returns the same as [`ServiceReads::publish`].
    pub(super) fn look_up(
        &mut self,
        node: &mut Node,
        connection: ConnectionId,
        service: &[u8],
    ) -> Option<String> {
        let Some(key) = key(service) else { return Some(refused("lookup", BAD_NAME)) };
        self.read(node, connection, key, ReadPurpose::Lookup);
        None
    }

    /// Withdraws a service; returns the same as [`ServiceReads::publish`].
    pub(super) fn unpublish(
        &mut self,
        node: &mut Node,
        connection: ConnectionId,
        service: &[u8],
    ) -> Option<String> {
        let Some(key) = key(service) else { return Some(refused("unpublish", BAD_NAME)) };
        self.read(node, connection, key.clone(), ReadPurpose::Unpublish(key));
        None
    }

    /// Takes a value that was read. Returns the connection that waits for it and the answer.
    pub(super) fn value(
        &mut self,
        node: &mut Node,
        request: u64,
        value: Option<Vec<u8>>,
    ) -> Option<(ConnectionId, String)> {
        let Pending { connection, step } = self.waiting.remove(&request)?;
        let answer = match (step, value) {
            (ReadPurpose::Publish, Some(_)) => done("publish", ""),
            (ReadPurpose::Publish, None) => refused("publish", "not_stored"),
            (ReadPurpose::Lookup, Some(port)) if is_printable(&port) => {
                done("lookup", &format!(" port={}", String::from_utf8_lossy(&port)))
            }
            (ReadPurpose::Lookup, _) => refused("lookup", NOT_FOUND),
            (ReadPurpose::Unpublish(key), Some(_)) => {
                node.put(key.clone(), Vec::new());
                self.read(node, connection, key, ReadPurpose::Withdrawn);
                return None;
            }
            (ReadPurpose::Unpublish(_), None) => refused("unpublish", NOT_FOUND),
            (ReadPurpose::Withdrawn, _) => done("unpublish", ""),
        };
        Some((connection, answer))
    }

    fn read(&mut self, node: &mut Node, connection: ConnectionId, key: String, step: ReadPurpose) {
        let wait = matches!(step, ReadPurpose::Publish);
        let request = node.get(Family::Pmi1, key, wait);
        self.waiting.insert(request, Pending { connection, step });
    }
}

/// Reasons in answers; clients end a reason at the first space.
const BAD_NAME: &str = "service_names_have_1_to_247_bytes_of_UTF-8";
const NOT_FOUND: &str = "service_not_found";

fn done(command: &str, port: &str) -> String {
    format!("cmd={command}_result{port} info=ok rc=0 msg=success\n")
}

fn refused(command: &str, reason: &str) -> String {
    format!("cmd={command}_result rc=1 msg={reason}\n")
}

/// Returns the key of a service.
fn key(service: &[u8]) -> Option<String> {
    let service = std::str::from_utf8(service).ok()?;
    let fits = (1..=SERVICE_MAX).contains(&service.len());
    fits.then(|| format!("{PREFIX}{service}"))
}

/// Tells whether a port can be part of an answer: it must not end the line.
fn is_printable(port: &[u8]) -> bool {
    !port.iter().any(u8::is_ascii_control)
}
