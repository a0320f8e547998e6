//! Limit of open files. The agent raises its own limit, since a rank takes three pipes and at least
//! one connection, and the usual soft limit of 1024 is too low for a node of many ranks. Ranks get
//! the original limit back, because programs that use select(2) fail with descriptors above 1023.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io;
use std::sync::OnceLock;

/// Maximum to which the agent raises its limit: no agent needs more, and some programs try to close
/// every descriptor up to the limit.
const MAX_LIMIT: u64 = 1 << 16;

/// Soft limit that this process was started with. Unset if the limit was not raised.
static ORIGINAL: OnceLock<u64> = OnceLock::new();

/// Raises the soft limit as far as the hard limit and [`MAX_LIMIT`] allow. If that fails, opening
/// files may fail later.
pub(crate) fn raise() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let most = hard.min(MAX_LIMIT);
    if soft < most && setrlimit(Resource::RLIMIT_NOFILE, most, hard).is_ok() {
        let _ = ORIGINAL.set(soft);
    }
}

/// Returns the soft limit that `__exec-rank` has to restore; empty if the limit was not raised.
pub(crate) fn original() -> String {
    ORIGINAL.get().map(u64::to_string).unwrap_or_default()
}

/// Restores a limit that [`original`] has returned.
pub(crate) fn restore(original: &str) -> io::Result<()> {
    if original.is_empty() {
        return Ok(());
    }
    let soft = original.parse().map_err(io::Error::other)?;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?)
}
