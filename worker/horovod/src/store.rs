//! What ranks have put, by scope.
//!
//! Each rank puts what it can be reached by under its own number, reads those of all others, and
//! then says DELETE of its number. That must not take the value away: another rank may not have
//! read it yet. Nor may it stay for ever: after a shutdown the same ranks meet once more, in the
//! same scope, and would read old addresses. So a scope goes when all who put a number have deleted
//! it, which is when nobody reads any more: a rank is done only once it has read all the others.

use crate::{Answer, Method, Refusal, Request};
use std::collections::{BTreeMap, BTreeSet};

/// The most that is kept, in bytes, keys and what each value takes besides included.
pub const MAX_STORED: usize = 64 << 20;
/// What a value takes besides itself and its key, in bytes, roughly.
const ENTRY: usize = 96;

/// Values by scope and key.
#[derive(Debug, Default)]
pub struct Store {
    scopes: BTreeMap<String, Scope>,
    /// Bytes, as [`MAX_STORED`] counts them.
    stored: usize,
}

#[derive(Debug, Default)]
struct Scope {
    values: BTreeMap<String, Vec<u8>>,
    /// The ranks that have met the others.
    done: BTreeSet<String>,
}

impl Store {
    /// Does what is asked.
    pub fn answer(&mut self, request: Request) -> Answer {
        let Request { method, scope, key, value } = request;
        match method {
            Method::Get => self.get(&scope, &key),
            Method::Put => self.put(scope, key, value),
            Method::Delete => {
                self.delete(&scope, key);
                Answer::Done(Vec::new())
            }
        }
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.scopes.is_empty()
    }

    fn get(&self, scope: &str, key: &str) -> Answer {
        let value = self.scopes.get(scope).and_then(|scope| scope.values.get(key));
        value.map_or(Answer::NotFound, |value| Answer::Done(value.clone()))
    }

    fn put(&mut self, scope: String, key: String, value: Vec<u8>) -> Answer {
        let old = self.scopes.get(&scope).and_then(|found| found.values.get(&key));
        let old = old.map_or(0, |old| size(&scope, &key, old.len()));
        let stored = self.stored - old + size(&scope, &key, value.len());
        if stored > MAX_STORED {
            return Answer::Refused(Refusal::Full);
        }
        self.stored = stored;
        self.scopes.entry(scope).or_default().values.insert(key, value);
        Answer::Done(Vec::new())
    }

    fn delete(&mut self, name: &str, key: String) {
        let Some(scope) = self.scopes.get_mut(name) else { return };
        let Some(value) = scope.values.get(&key) else { return };
        if is_rank(&key) {
            scope.done.insert(key);
        } else {
            self.stored -= size(name, &key, value.len());
            scope.values.remove(&key);
        }
        if scope.is_over() {
            let left = scope.values.iter().map(|(key, value)| size(name, key, value.len()));
            self.stored -= left.sum::<usize>();
            self.scopes.remove(name);
        }
    }
}

impl Scope {
    /// Every rank is done, or nothing is left.
    fn is_over(&self) -> bool {
        let ranks = self.values.keys().filter(|key| is_rank(key)).count();
        self.values.is_empty() || (ranks > 0 && self.done.len() == ranks)
    }
}

fn is_rank(key: &str) -> bool {
    key.bytes().all(|c| c.is_ascii_digit())
}

fn size(scope: &str, key: &str, value: usize) -> usize {
    scope.len() + key.len() + value + ENTRY
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_VALUE;

    fn ask(store: &mut Store, method: Method, path: &str, value: &[u8]) -> Answer {
        let (scope, key) = path.split_once('/').unwrap();
        let (scope, key) = (scope.to_owned(), key.to_owned());
        store.answer(Request { method, scope, key, value: value.to_vec() })
    }

    fn get(store: &mut Store, path: &str) -> Answer {
        ask(store, Method::Get, path, b"")
    }

    fn put(store: &mut Store, path: &str, value: &str) {
        let answer = ask(store, Method::Put, path, value.as_bytes());
        assert_eq!(answer, Answer::Done(Vec::new()));
    }

    fn delete(store: &mut Store, path: &str) {
        assert_eq!(ask(store, Method::Delete, path, b""), Answer::Done(Vec::new()));
    }

    #[test]
    fn scopes_are_apart() {
        let mut store = Store::default();
        assert_eq!(get(&mut store, "global/0"), Answer::NotFound);
        put(&mut store, "global/0", "one");
        put(&mut store, "local_a/0", "two");
        put(&mut store, "local_a/0", "three");
        assert_eq!(get(&mut store, "global/0"), Answer::Done(b"one".to_vec()));
        assert_eq!(get(&mut store, "local_a/0"), Answer::Done(b"three".to_vec()));
        assert_eq!(get(&mut store, "cross_0/0"), Answer::NotFound);
    }

    #[test]
    fn a_rank_that_is_done_can_still_be_read() {
        let mut store = Store::default();
        for key in ["0", "1", "rank_0", "rank_1"] {
            put(&mut store, &format!("global/{key}"), "here");
        }
        delete(&mut store, "global/0");
        delete(&mut store, "global/0");
        assert_eq!(get(&mut store, "global/0"), Answer::Done(b"here".to_vec()));
        delete(&mut store, "global/1");
        assert_eq!(get(&mut store, "global/0"), Answer::NotFound, "they may meet once more");
        assert!(store.is_empty());
        assert_eq!(store.stored, 0);
    }

    #[test]
    fn other_keys_go_at_once() {
        let mut store = Store::default();
        put(&mut store, "global/0", "here");
        put(&mut store, "global/name", "x");
        delete(&mut store, "global/name");
        assert_eq!(get(&mut store, "global/name"), Answer::NotFound);
        assert_eq!(get(&mut store, "global/0"), Answer::Done(b"here".to_vec()));
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
            let answer = ask(&mut store, Method::Put, &format!("global/{key}"), &value);
            answer == Answer::Done(Vec::new())
        });
        let fits = fits.count();
        assert_eq!(fits, 63, "64 MiB, less what each takes besides");
        // A value that replaces another needs no more room.
        assert_eq!(ask(&mut store, Method::Put, "global/0", &value), Answer::Done(Vec::new()));
        for key in 0..fits {
            delete(&mut store, &format!("global/{key}"));
        }
        assert_eq!(store.stored, 0);
    }
}
