//! Values by scope and key.
//!
//! Each rank puts its addresses under its own number, reads the addresses of all other ranks, and
//! then sends DELETE for its own number. The value must not be removed at once, because other ranks
//! may not have read it yet. But it must not stay for ever either: after a shutdown of Horovod, the
//! same ranks use the same scope again and would read old addresses. So a scope is removed when
//! every rank with a value in it has sent DELETE. At that time all of them have read all values.

use crate::{Method, Refusal, Request, Response};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum memory of the store, in bytes, including keys and an overhead per value.
pub const MAX_STORED: usize = 64 << 20;
/// Approximate overhead of a value in bytes, without its scope and key.
const OVERHEAD: usize = 96;

/// Values of all scopes.
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
    use crate::MAX_VALUE;

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
