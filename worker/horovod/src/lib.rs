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

mod request;
mod store;

pub use request::{MAX_HEAD, MAX_VALUE, Method, Refusal, Request, RequestReader};
pub use store::{MAX_STORED, Store};

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
}
