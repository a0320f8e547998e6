//! How many files the agent may have open: a rank has three pipes and a connection or more, and the usual
//! soft limit of 1024 is less than a node of many ranks takes. Ranks are given back what they had:
//! programs that use select(2) fail with a number above 1023.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io;
use std::sync::OnceLock;

/// Highest limit that is set: no agent needs more, and some programs go through every number below their
/// limit.
const MOST: u64 = 1 << 16;

/// The soft limit that this process was started with, once it has another.
static BEFORE: OnceLock<u64> = OnceLock::new();

/// Raises the soft limit as far as the hard one allows. Without that the system says so when files are
/// opened.
pub(crate) fn raise() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let most = hard.min(MOST);
    if soft < most && setrlimit(Resource::RLIMIT_NOFILE, most, hard).is_ok() {
        let _ = BEFORE.set(soft);
    }
}

/// Returns the limit that `__exec-rank` has to restore; empty if none was raised.
pub(crate) fn before() -> String {
    BEFORE.get().map(u64::to_string).unwrap_or_default()
}

/// Gives back what [`before`] says.
pub(crate) fn restore(before: &str) -> io::Result<()> {
    if before.is_empty() {
        return Ok(());
    }
    let soft = before.parse().map_err(io::Error::other)?;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?)
}
