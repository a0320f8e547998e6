//! Requests to the key-value store of Horovod.

use crate::stream::{parts, whole};
use rlaunch_horovod::{MAX_HEAD, MAX_VALUE, Method, RequestReader, Response, Store};

/// Parses a request in parts and as a whole, with the same result. A stored value is returned unchanged.
pub(crate) fn requests(data: &[u8]) {
    let stream = data.get(1..).unwrap_or_default();
    let at_once = RequestReader::default().push(stream);
    let mut reader = RequestReader::default();
    let in_parts = parts(data).find_map(|part| reader.push(part).transpose()).transpose();
    assert_eq!(in_parts, at_once);
    let Ok(Some(request)) = at_once else { return };
    assert!(request.value.len() <= MAX_VALUE);
    assert!(request.scope.len() + request.key.len() < MAX_HEAD);
    let handed_on = RequestReader::default().push(&request.to_bytes());
    assert_eq!(handed_on, Ok(Some(request.clone())));
    let mut store = Store::default();
    let response = store.handle(request.clone());
    let found = store.handle(rlaunch_horovod::Request { method: Method::Get, ..request.clone() });
    match request.method {
        Method::Put => assert_eq!(found, Response::Done(request.value)),
        Method::Get => assert_eq!(response, Response::NotFound),
        Method::Delete => assert_eq!(found, Response::NotFound),
    }
    assert!(response.to_bytes().starts_with(b"HTTP/1.1 "));
}

pub(crate) fn requests_seeds() -> Vec<Vec<u8>> {
    let put = "PUT /global/0 HTTP/1.1\r\nHost: 10.0.0.1:21002\r\nContent-Length: 4\r\n\r\n1234";
    let get = "GET /local_a/12 HTTP/1.1\r\nHost: 10.0.0.1:21002\r\n\r\n";
    let delete = "DELETE /cross_0/1 HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
    [put, get, delete].map(|request| whole(request.bytes())).to_vec()
}
