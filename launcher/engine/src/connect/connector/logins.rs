//! SSH connections that jobs of this process share: one logs in, and jobs ahead of it or beside it run over the same
//! connection.

use rlaunch_ssh::Connection;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Connections to hosts, by the names that the user calls them.
#[derive(Clone, Default)]
pub struct Logins(Arc<Mutex<HashMap<String, Shared>>>);

struct Shared {
    connection: Weak<Connection>,
    /// The same, if a job has left it to the one that it is ahead of. It closes with the last [`Logins`].
    left: Option<Arc<Connection>>,
}

impl Logins {
    /// Returns the connection to a host, if one is open.
    pub(super) fn find(&self, host: &str) -> Option<Arc<Connection>> {
        let connection = self.lock().get(host)?.connection.upgrade()?;
        connection.is_open().then_some(connection)
    }

    /// Lets other jobs find a new connection to a host.
    pub(super) fn share(&self, host: String, connection: Connection) -> Arc<Connection> {
        let connection = Arc::new(connection);
        let shared = Shared { connection: Arc::downgrade(&connection), left: None };
        self.lock().insert(host, shared);
        connection
    }

    /// Keeps a connection open that no other job has, until [`Logins::take_left`].
    pub(super) fn leave(&self, host: &str, connection: Arc<Connection>) {
        if Arc::strong_count(&connection) == 1
            && let Some(shared) = self.lock().get_mut(host)
        {
            shared.left = Some(connection);
        }
    }

    /// Keeps the connection to a host open no longer than jobs have it.
    pub(super) fn take_left(&self, host: &str) {
        let left = self.lock().get_mut(host).and_then(|shared| shared.left.take());
        drop(left);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Shared>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Logins {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_set().entries(self.lock().keys()).finish()
    }
}
