//! Byte streams to servers, and what is negotiated on them.
//!
//! | file | subject |
//! |---|---|
//! | `dial` | TCP connections to the addresses of a name |
//! | `stream` | `ProxyCommand`; the text that a server sends before its SSH version, kept for errors |
//! | `algorithms` | algorithms to offer; limits after which session keys are renewed |
//! | `retry` | which failures are retried, and after which pause |

pub(crate) mod algorithms;
pub(crate) mod dial;
pub(crate) mod retry;
pub(crate) mod stream;
