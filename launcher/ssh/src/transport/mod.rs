//! The byte stream to a server, and what is negotiated on it.
//!
//! | file | subject |
//! |---|---|
//! | `dial` | TCP to a host's addresses |
//! | `proxy` | `ProxyCommand` |
//! | `stream` | any byte stream, with the server's banner kept for errors |
//! | `algorithms` | algorithms and rekeying limits |
//! | `retry` | which failures are retried, and when |

pub(crate) mod algorithms;
pub(crate) mod dial;
pub(crate) mod proxy;
pub(crate) mod retry;
pub(crate) mod stream;
