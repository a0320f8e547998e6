//! The store by which Horovod's ranks meet when they use Gloo: values under a key, in a scope, over
//! HTTP. No sockets here; agents have those.
//!
//! What Horovod's C++ client asks (`horovod/common/gloo/http_store.cc`), one request for each
//! connection:
//!
//! ```text
//! PUT /scope/key       the value is the body         200
//! GET /scope/key       until it is there             404, then 200 and the value
//! DELETE /scope/rank   this rank has met the others  200
//! ```
//!
//! Scopes are `global`, `local_HOST` and `cross_LOCAL-RANK`, and one more of each for every process
//! set. Scope and key are compared as they were sent: nothing in them is decoded.

mod request;
mod store;

pub use request::{MAX_HEAD, MAX_VALUE, Method, Refusal, Request, RequestReader};
pub use store::{MAX_STORED, Store};

/// What a request comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done; a GET has its value here.
    Done(Vec<u8>),
    /// Nobody has put that yet.
    NotFound,
    /// Not a request that is served.
    Refused(Refusal),
}

impl Answer {
    /// As it is sent. The connection ends with it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (status, body): (_, &[u8]) = match self {
            Answer::Done(value) => ("200 OK", value),
            Answer::NotFound => ("404 Not Found", &[]),
            Answer::Refused(refusal) => (refusal.status(), &[]),
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
        let text = |answer: Answer| String::from_utf8(answer.to_bytes()).unwrap();
        let close = "Connection: close\r\n\r\n";
        let value = text(Answer::Done(b"where".to_vec()));
        assert_eq!(value, format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n{close}where"));
        let none = text(Answer::NotFound);
        assert_eq!(none, format!("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n{close}"));
        let full = text(Answer::Refused(Refusal::Full));
        assert!(full.starts_with("HTTP/1.1 507 Insufficient Storage\r\n"), "{full}");
    }
}
