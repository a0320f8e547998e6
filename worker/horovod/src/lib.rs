//! Key-value store over HTTP through which Horovod's ranks exchange their addresses for Gloo.
//!
//! The crate parses requests and keeps the values; agents own the sockets. Horovod's client
//! (`horovod/common/gloo/http_store.cc`) makes one request on each connection:
//!
//! ```text
//! PUT /scope/key       with the value as body                  200
//! GET /scope/key       repeated until the value exists         404, then 200 and the value
//! DELETE /scope/rank   when this rank has read all values      200
//! ```
//!
//! Scopes are `global`, `local_HOST` and `cross_LOCAL-RANK`, with further ones for process sets.
//! Scopes and keys are compared as they are sent, without URL decoding.

use std::collections::{BTreeMap, BTreeSet};

/// Response to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// Success, with the value if the request was a GET.
    Done(Vec<u8>),
    /// The key has no value yet.
    NotFound,
    /// The request is refused.
    Refused(Refusal),
}

impl Response {
    /// Encodes the response as HTTP. The connection is to be closed after it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (status, body): (_, &[u8]) = match self {
            Response::Done(value) => ("200 OK", value),
            Response::NotFound => ("404 Not Found", &[]),
            Response::Refused(refusal) => (refusal.status(), &[]),
        };
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        bytes
    }
}

/// Maximum length of a request head, in bytes. Horovod's has four short lines.
pub const MAX_HEAD: usize = 8 << 10;
/// Maximum length of a value, in bytes. A rank's value has about 150 bytes for each other rank.
pub const MAX_VALUE: usize = 1 << 20;
/// Maximum number of header lines.
const MAX_HEADERS: usize = 32;

/// HTTP method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Read the value of a key.
    Get,
    /// Store a value under a key.
    Put,
    /// Remove a key; if the key is a rank, report that this rank has read all values.
    Delete,
}

/// Complete request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub method: Method,
    /// Scope, such as `global`, `local_a` or `cross_0`.
    pub scope: String,
    /// Key, usually the number of a rank.
    pub key: String,
    /// Value to store; empty unless the method is PUT.
    pub value: Vec<u8>,
}

/// Reason to refuse a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request is not HTTP, or its path does not have a scope and a key.
    #[error("not a request for /SCOPE/KEY")]
    Malformed,
    /// The method is not supported, or the body has no Content-Length.
    #[error("only GET, PUT and DELETE with a Content-Length are supported")]
    NotServed,
    /// The head is longer than [`MAX_HEAD`].
    #[error("the head is longer than {MAX_HEAD} bytes")]
    LongHead,
    /// The value is longer than [`MAX_VALUE`].
    #[error("the value is longer than {MAX_VALUE} bytes")]
    LongValue,
    /// The store holds [`MAX_STORED`] already.
    #[error("the store is full")]
    Full,
    /// The job is ending, or too many requests are pending.
    #[error("the store cannot be reached")]
    Unavailable,
}

impl Refusal {
    fn status(self) -> &'static str {
        match self {
            Refusal::Malformed => "400 Bad Request",
            Refusal::NotServed => "501 Not Implemented",
            Refusal::LongHead => "431 Request Header Fields Too Large",
            Refusal::LongValue => "413 Content Too Large",
            Refusal::Full => "507 Insufficient Storage",
            Refusal::Unavailable => "503 Service Unavailable",
        }
    }
}

impl Method {
    fn word(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
        }
    }
}

impl Request {
    /// Encodes the request. The encoded head is never longer than the head from which the request
    /// was parsed.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Request { method, scope, key, value } = self;
        let mut bytes = format!("{} /{scope}/{key} HTTP/1.1\r\n", method.word()).into_bytes();
        if !value.is_empty() {
            bytes.extend_from_slice(format!("Content-Length:{}\r\n", value.len()).as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(value);
        bytes
    }
}

/// Parsed head, with the length of the value in bytes.
#[derive(Debug)]
struct Head {
    method: Method,
    scope: String,
    key: String,
    value_length: usize,
}

/// Parser of one request. Bytes after the request are ignored, because a connection carries only
/// one request.
#[derive(Debug, Default)]
pub struct RequestReader {
    buffer: Vec<u8>,
    head: Option<Head>,
}

impl RequestReader {
    /// Appends received bytes. Returns the request once it is complete. Must not be called again
    /// after it has returned the request or a refusal.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Option<Request>, Refusal> {
        self.buffer.extend_from_slice(bytes);
        let head = match self.head.take() {
            Some(head) => head,
            None => {
                let Some((head, length)) = read_head(&self.buffer)? else { return Ok(None) };
                self.buffer.drain(..length);
                head
            }
        };
        if self.buffer.len() < head.value_length {
            self.head = Some(head);
            return Ok(None);
        }
        self.buffer.truncate(head.value_length);
        let Head { method, scope, key, .. } = head;
        Ok(Some(Request { method, scope, key, value: std::mem::take(&mut self.buffer) }))
    }
}

/// Parses the head. Returns it with its length in bytes, or `None` if it is incomplete.
fn read_head(buffer: &[u8]) -> Result<Option<(Head, usize)>, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let seen = &buffer[..buffer.len().min(MAX_HEAD)];
    let length = match request.parse(seen) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if buffer.len() < MAX_HEAD => return Ok(None),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err(Refusal::LongHead);
        }
        Err(_) => return Err(Refusal::Malformed),
    };
    let method = match request.method {
        Some("GET") => Method::Get,
        Some("PUT") => Method::Put,
        Some("DELETE") => Method::Delete,
        _ => return Err(Refusal::NotServed),
    };
    let path = request.path.and_then(|path| path.strip_prefix('/')).unwrap_or_default();
    let (scope, key) = path.split_once('/').ok_or(Refusal::Malformed)?;
    if scope.is_empty() || key.is_empty() {
        return Err(Refusal::Malformed);
    }
    let value_length = value_length(request.headers)?;
    let (scope, key) = (scope.to_owned(), key.to_owned());
    Ok(Some((Head { method, scope, key, value_length }, length)))
}

fn value_length(headers: &[httparse::Header<'_>]) -> Result<usize, Refusal> {
    let is = |header: &httparse::Header<'_>, name| header.name.eq_ignore_ascii_case(name);
    if headers.iter().any(|header| is(header, "Transfer-Encoding")) {
        return Err(Refusal::NotServed);
    }
    let mut lengths = headers.iter().filter(|header| is(header, "Content-Length"));
    let (first, second) = (lengths.next(), lengths.next());
    let Some(first) = first else { return Ok(0) };
    let digits = std::str::from_utf8(first.value).unwrap_or_default().trim();
    if second.is_some() || digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit()) {
        return Err(Refusal::Malformed);
    }
    // A number that does not fit is also above the limit.
    let length = digits.parse().unwrap_or(usize::MAX);
    if length > MAX_VALUE { Err(Refusal::LongValue) } else { Ok(length) }
}

/// Maximum memory of the store, in bytes, including keys and an overhead per value.
pub const MAX_STORED: usize = 64 << 20;
/// Approximate overhead of a value in bytes, without its scope and key.
const OVERHEAD: usize = 96;

/// Values of all scopes.
///
/// Each rank puts its addresses under its own number, reads the addresses of all other ranks, and
/// then sends DELETE for its own number. The value must not be removed at once, because other ranks
/// may not have read it yet. But it must not stay for ever either: after a shutdown of Horovod, the
/// same ranks use the same scope again and would read old addresses. So a scope is removed when
/// every rank with a value in it has sent DELETE. At that time all of them have read all values.
#[derive(Debug, Default)]
pub struct Store {
    scopes: BTreeMap<String, Scope>,
    /// Memory in use, as limited by [`MAX_STORED`].
    stored: usize,
}

#[derive(Debug, Default)]
struct Scope {
    values: BTreeMap<String, Vec<u8>>,
    /// Ranks that have read all values.
    finished: BTreeSet<String>,
}

impl Store {
    /// Executes a request.
    pub fn handle(&mut self, request: Request) -> Response {
        let Request { method, scope, key, value } = request;
        match method {
            Method::Get => self.get(&scope, &key),
            Method::Put => self.put(scope, key, value),
            Method::Delete => {
                self.delete(&scope, key);
                Response::Done(Vec::new())
            }
        }
    }

    /// Tells whether the store has no values.
    pub fn is_empty(&self) -> bool {
        self.scopes.is_empty()
    }

    fn get(&self, scope: &str, key: &str) -> Response {
        let value = self.scopes.get(scope).and_then(|scope| scope.values.get(key));
        value.map_or(Response::NotFound, |value| Response::Done(value.clone()))
    }

    fn put(&mut self, scope: String, key: String, value: Vec<u8>) -> Response {
        let old = self.scopes.get(&scope).and_then(|found| found.values.get(&key));
        let old = old.map_or(0, |old| size(&scope, &key, old.len()));
        let stored = self.stored - old + size(&scope, &key, value.len());
        if stored > MAX_STORED {
            return Response::Refused(Refusal::Full);
        }
        self.stored = stored;
        self.scopes.entry(scope).or_default().values.insert(key, value);
        Response::Done(Vec::new())
    }

    fn delete(&mut self, name: &str, key: String) {
        let Some(scope) = self.scopes.get_mut(name) else { return };
        let Some(value) = scope.values.get(&key) else { return };
        if is_rank(&key) {
            scope.finished.insert(key);
        } else {
            self.stored -= size(name, &key, value.len());
            scope.values.remove(&key);
        }
        if scope.is_finished() {
            let left = scope.values.iter().map(|(key, value)| size(name, key, value.len()));
            self.stored -= left.sum::<usize>();
            self.scopes.remove(name);
        }
    }
}

impl Scope {
    /// Tells whether every rank with a value has read all values, or no value is left.
    fn is_finished(&self) -> bool {
        let ranks = self.values.keys().filter(|key| is_rank(key)).count();
        self.values.is_empty() || (ranks > 0 && self.finished.len() == ranks)
    }
}

fn is_rank(key: &str) -> bool {
    key.bytes().all(|c| c.is_ascii_digit())
}

fn size(scope: &str, key: &str, value: usize) -> usize {
    scope.len() + key.len() + value + OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_how_long_it_is() {
        let text = |response: Response| String::from_utf8(response.to_bytes()).unwrap();
        let close = "Connection: close\r\n\r\n";
        let value = text(Response::Done(b"where".to_vec()));
        assert_eq!(value, format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n{close}where"));
        let none = text(Response::NotFound);
        assert_eq!(none, format!("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n{close}"));
        let full = text(Response::Refused(Refusal::Full));
        assert!(full.starts_with("HTTP/1.1 507 Insufficient Storage\r\n"), "{full}");
    }

    fn read(text: &str) -> Result<Option<Request>, Refusal> {
        RequestReader::default().push(text.as_bytes())
    }

    fn request(method: Method, scope: &str, key: &str, value: &[u8]) -> Request {
        Request { method, scope: scope.into(), key: key.into(), value: value.to_vec() }
    }

    const PUT: &str =
        "PUT /local_a/12 HTTP/1.1\r\nHost: 10.1.0.1:21003\r\nContent-Length: 4\r\n\r\n";

    #[test]
    fn a_request_is_read_however_it_is_cut() {
        let whole = format!("{PUT}a\r\nb");
        let wanted = request(Method::Put, "local_a", "12", b"a\r\nb");
        for size in 1..=whole.len() {
            let mut reader = RequestReader::default();
            let mut read: Vec<_> =
                whole.as_bytes().chunks(size).map(|part| reader.push(part)).collect();
            assert_eq!(read.pop(), Some(Ok(Some(wanted.clone()))), "parts of {size}");
            assert!(read.iter().all(|early| *early == Ok(None)), "parts of {size}: {read:?}");
        }
    }

    #[test]
    fn a_request_is_handed_on_as_it_was_read() {
        let longest = format!("GET /s/{} HTTP/1.1\r\n\r\n", "k".repeat(MAX_HEAD - 20));
        for text in [&*format!("{PUT}a\r\nb"), "DELETE /a%20b/0 HTTP/1.0\r\n\r\n", &longest] {
            let request = read(text).unwrap().unwrap();
            let bytes = request.to_bytes();
            assert!(bytes.len() <= text.len(), "{text}");
            assert_eq!(RequestReader::default().push(&bytes), Ok(Some(request)));
        }
    }

    #[test]
    fn what_follows_is_no_part_of_it() {
        let read = read(&format!("{PUT}1234GET /x/y HTTP/1.1\r\n\r\n")).unwrap();
        assert_eq!(read, Some(request(Method::Put, "local_a", "12", b"1234")));
    }

    #[test]
    fn keys_are_taken_as_they_are() {
        let read = read("GET /cross_0/a%20b/c HTTP/1.0\r\n\r\n").unwrap();
        assert_eq!(read, Some(request(Method::Get, "cross_0", "a%20b/c", b"")));
    }

    #[test]
    fn other_requests_are_refused_at_once() {
        let put = |header: &str| format!("PUT /s/k HTTP/1.1\r\n{header}\r\n\r\n");
        let long = format!("GET /s/k HTTP/1.1\r\nX: {}", "x".repeat(MAX_HEAD));
        let many = format!("GET /s/k HTTP/1.1\r\n{}", "X: y\r\n".repeat(MAX_HEADERS + 1));
        let cases = [
            ("\x16\x03\x01\x02\x00", Refusal::Malformed),
            ("GET / HTTP/1.1\r\n\r\n", Refusal::Malformed),
            ("GET /scope HTTP/1.1\r\n\r\n", Refusal::Malformed),
            ("GET /scope/ HTTP/1.1\r\n\r\n", Refusal::Malformed),
            ("GET //key HTTP/1.1\r\n\r\n", Refusal::Malformed),
            ("POST /s/k HTTP/1.1\r\n\r\n", Refusal::NotServed),
            (&put("Transfer-Encoding: chunked"), Refusal::NotServed),
            (&put("Content-Length: -1"), Refusal::Malformed),
            (&put("Content-Length: 1\r\nContent-Length: 2"), Refusal::Malformed),
            (&put("Content-Length: 1048577"), Refusal::LongValue),
            (&put("Content-Length: 99999999999999999999999"), Refusal::LongValue),
            (&long, Refusal::LongHead),
            (&many, Refusal::LongHead),
        ];
        for (text, refusal) in cases {
            assert_eq!(read(text), Err(refusal), "{text}");
        }
    }

    fn ask(store: &mut Store, method: Method, path: &str, value: &[u8]) -> Response {
        let (scope, key) = path.split_once('/').unwrap();
        let (scope, key) = (scope.to_owned(), key.to_owned());
        store.handle(Request { method, scope, key, value: value.to_vec() })
    }

    fn get(store: &mut Store, path: &str) -> Response {
        ask(store, Method::Get, path, b"")
    }

    fn put(store: &mut Store, path: &str, value: &str) {
        let response = ask(store, Method::Put, path, value.as_bytes());
        assert_eq!(response, Response::Done(Vec::new()));
    }

    fn delete(store: &mut Store, path: &str) {
        assert_eq!(ask(store, Method::Delete, path, b""), Response::Done(Vec::new()));
    }

    #[test]
    fn scopes_are_apart() {
        let mut store = Store::default();
        assert_eq!(get(&mut store, "global/0"), Response::NotFound);
        put(&mut store, "global/0", "one");
        put(&mut store, "local_a/0", "two");
        put(&mut store, "local_a/0", "three");
        assert_eq!(get(&mut store, "global/0"), Response::Done(b"one".to_vec()));
        assert_eq!(get(&mut store, "local_a/0"), Response::Done(b"three".to_vec()));
        assert_eq!(get(&mut store, "cross_0/0"), Response::NotFound);
    }

    #[test]
    fn a_rank_that_is_done_can_still_be_read() {
        let mut store = Store::default();
        for key in ["0", "1", "rank_0", "rank_1"] {
            put(&mut store, &format!("global/{key}"), "here");
        }
        delete(&mut store, "global/0");
        delete(&mut store, "global/0");
        assert_eq!(get(&mut store, "global/0"), Response::Done(b"here".to_vec()));
        delete(&mut store, "global/1");
        assert_eq!(get(&mut store, "global/0"), Response::NotFound, "they may meet once more");
        assert!(store.is_empty());
        assert_eq!(store.stored, 0);
    }

    #[test]
    fn other_keys_go_at_once() {
        let mut store = Store::default();
        put(&mut store, "global/0", "here");
        put(&mut store, "global/name", "x");
        delete(&mut store, "global/name");
        assert_eq!(get(&mut store, "global/name"), Response::NotFound);
        assert_eq!(get(&mut store, "global/0"), Response::Done(b"here".to_vec()));
        put(&mut store, "other/name", "x");
        delete(&mut store, "other/name");
        delete(&mut store, "other/name");
        delete(&mut store, "nowhere/7");
        assert_eq!(store.scopes.len(), 1);
    }

    #[test]
    fn there_is_an_end_to_what_it_takes() {
        let mut store = Store::default();
        let value = vec![0; MAX_VALUE];
        let fits = (0..).take_while(|key| {
            let response = ask(&mut store, Method::Put, &format!("global/{key}"), &value);
            response == Response::Done(Vec::new())
        });
        let fits = fits.count();
        assert_eq!(fits, 63, "64 MiB, less what each takes besides");
        // A value that replaces another needs no more room.
        assert_eq!(ask(&mut store, Method::Put, "global/0", &value), Response::Done(Vec::new()));
        for key in 0..fits {
            delete(&mut store, &format!("global/{key}"));
        }
        assert_eq!(store.stored, 0);
    }
}
